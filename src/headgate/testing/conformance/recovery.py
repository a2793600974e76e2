"""Promises about failures and restores: every row comes once, whatever fails and when.

Never: keep an object over a restore: what is restored is made of bytes.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.source.enumerator import Boundedness
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import SupportsSplitReassignmentOnRecovery
from headgate.testing.conformance.subject import MAX_STEPS, DoesNotApply, Rows, Subject, promise, pull_all, steps
from headgate.testing.enumerator_harness import splits_in
from headgate.testing.rows import assert_same_rows


@promise(
    name="restore-at-every-step",
    sentence="A checkpoint may be taken at any step: what is restored from it reads on, and every row comes once.",
    how="After each batch take a checkpoint and restore it into new objects by way of bytes, with one reader and two.",
    contract='docs/full-source.md, "What a snapshot holds"',
)
def restore_at_every_step(subject: Subject) -> None:
    """Restore after each batch."""
    subject.needs(Boundedness.BOUNDED)
    expected = subject.rows
    rows: Rows = []
    snapshot = None
    for number in range(MAX_STEPS):
        subject.does(
            f"After {number} restores, read until rows come, with {number % 2 + 1} readers, and take a checkpoint."
        )
        with subject.harness(parallelism=number % 2 + 1, snapshot=snapshot) as harness:
            goes_on = True
            while goes_on and not harness.row_count:  # a restored source must get on by itself: only rows count
                goes_on = harness.step()
            snapshot = harness.snapshot()
            rows += harness.rows()
        if not goes_on or len(rows) > len(expected):
            break
    assert_same_rows(rows, expected, "rows of a read that was restored after each batch")
    subject.does("Read on from a checkpoint that was taken after the end.")
    with subject.harness(snapshot=snapshot) as harness:
        harness.run_to_end()
        assert_same_rows(harness.rows(), [], "rows of a read that was restored after its end")


@promise(
    name="failed-readers-give-back",
    sentence="What a failed reader was given since the last checkpoint goes back and is read again, by whoever asks.",
    how="Let two readers fail after some steps, with and without a checkpoint before, and read to the end.",
    contract='docs/full-source.md, "The enumerator"',
)
def failed_readers_give_back(subject: Subject) -> None:
    """Let readers fail."""
    subject.needs(Boundedness.BOUNDED)
    for count in (1, 2, 3, 5, 8, 13):
        for checkpoint in (False, True):
            after = "a checkpoint and as many again" if checkpoint else "no checkpoint"
            subject.does(f"Take {count} steps, {after}, let reader 0 fail, take {count} more and let reader 1 fail.")
            with subject.harness(parallelism=2) as harness:
                steps(harness, count)
                if checkpoint:
                    harness.snapshot()
                    steps(harness, count)
                harness.fail_reader(0)
                steps(harness, count)
                harness.fail_reader(1)
                harness.run_to_end()
                assert_same_rows(harness.rows(), subject.rows, f"rows after failures every {count} steps")


@promise(
    name="readers-that-are-gone-get-nothing",
    sentence="A reader that asked and failed before it was answered is not answered; when it is back and asks, it gets "
    "all.",
    how="Let a reader ask and fail before discovery is over, then return and ask.",
    contract='docs/full-source.md, "The enumerator"',
)
def readers_that_are_gone_get_nothing(subject: Subject) -> None:
    """Let a reader fail before it is answered."""
    subject.needs(Boundedness.BOUNDED)
    expected = {split.split_id for split in subject.splits()}
    enumerator = subject.enumerator()
    enumerator.start()
    enumerator.register_reader(0)
    enumerator.request_split(0)
    if not enumerator.outbox:
        enumerator.forget_reader(0)
        enumerator.run_due_calls()
        enumerator.register_reader(0)
    found = {split.split_id for split in pull_all(enumerator)}
    enumerator.close()
    assert found == expected, f"after a reader asked, failed and returned, it got {found} instead of {expected}"


@promise(
    name="finished-splits-can-come-back",
    sentence="Splits that ended before the enumerator's state was taken come back, if no completed checkpoint knows of "
    "their end, and are assigned again.",
    how="Let a reader finish all splits, restore the enumerator from its state, and give the splits back.",
    contract='docs/full-source.md, "The enumerator"',
)
def finished_splits_can_come_back(subject: Subject) -> None:
    """Give finished splits back to a restored enumerator."""
    subject.needs(Boundedness.BOUNDED)
    before = subject.enumerator()
    before.start()
    before.register_reader(0)
    splits = pull_all(before)
    for split in splits:
        before.finish_split(0, split.split_id)
    before.enumerator.notify_splits_finished([split.split_id for split in splits])
    restored = subject.enumerator(state=before.snapshot())
    before.close()
    restored.start()
    restored.fail_reader(0, splits)
    restored.register_reader(0)
    found = sorted(split.split_id for split in pull_all(restored))
    restored.close()
    expected = sorted(split.split_id for split in splits)
    assert found == expected, f"splits that were given back to a restored enumerator: {expected}; it assigned {found}"


@promise(
    name="rescaled-reads-are-complete",
    sentence="What is restored at another parallelism reads on: no split is lost or read twice.",
    how="Restore every few steps with 2 readers, 3, 1 and 4, in turn, and read to the end.",
    contract="FLIP-27, Split Enumerator",
)
def rescaled_reads_are_complete(subject: Subject) -> None:
    """Change the parallelism."""
    subject.needs(Boundedness.BOUNDED)
    rows: Rows = []
    snapshot = None
    for number in range(MAX_STEPS):
        parallelism = (2, 3, 1, 4)[number % 4]
        subject.does(f"Restore for the {number}. time, now with {parallelism} readers.")
        with subject.harness(parallelism=parallelism, snapshot=snapshot) as harness:
            before, goes_on = harness.row_count, True
            while goes_on and harness.row_count < before + parallelism:
                goes_on = harness.step()
            snapshot = harness.snapshot()
            rows += harness.rows()
        if not goes_on or len(rows) > len(subject.rows):
            break
    assert_same_rows(rows, subject.rows, "rows of a read that was rescaled again and again")


@promise(
    name="reported-splits-are-assigned-again",
    sentence="Splits that readers report after a recovery belong to the enumerator: each is part of its state until it "
    "is assigned again, to one reader, at the position that was reported.",
    how="Restore 2 readers' splits with 1 reader, 2 and 3, which register and report one after the other, and fail.",
    contract="FLIP-537, Proposed Changes",
)
def reported_splits_are_assigned_again(subject: Subject) -> None:
    """Let readers report splits."""
    source = subject.make_source()
    if not isinstance(source, SupportsSplitReassignmentOnRecovery):
        raise DoesNotApply("the source is not marked SupportsSplitReassignmentOnRecovery: readers keep their splits")
    for boundedness in filter(source.supports, Boundedness):
        with subject.harness(boundedness=boundedness, parallelism=2) as harness:
            steps(harness, 4)
            snapshot = harness.snapshot()
        held = [source.split_serializer.deserialize(data) for of in snapshot.readers for data in of]
        for parallelism in (1, 2, 3):
            subject.does(f"Restore {len(held)} splits of a {boundedness.value} read with {parallelism} readers.")
            _report(subject, boundedness, snapshot.enumerator, held, parallelism)


def _report(subject: Subject, boundedness: Boundedness, state: bytes, held: list[Any], parallelism: int) -> None:
    enumerator = subject.enumerator(boundedness=boundedness, parallelism=parallelism, state=state)
    inside_before = {split.split_id for split in splits_in(enumerator.source.state_serializer.deserialize(state))}
    enumerator.start()
    reported: dict[str, Any] = {}
    assigned: dict[str, Any] = {}

    def look(what: str) -> None:
        inside = {split.split_id: split for split in splits_in(enumerator.state())}
        assigned.clear()
        assigned.update((each, split) for of in enumerator.assigned.values() for each, split in of.items())
        for split_id, split in reported.items():
            there = assigned.get(split_id) or inside.get(split_id)
            assert there is not None, f"{what}, the reported split {split_id!r} is neither assigned nor in the state"
            assert there == split, f"{what}, {split} was reported, and became {there}"

    for subtask in range(parallelism):
        of_reader = held[subtask::parallelism]
        reported.update((split.split_id, split) for split in of_reader)
        enumerator.register_reader(subtask, "localhost", of_reader)
        look(f"after reader {subtask} reported")
    lost = list(enumerator.assigned[0].values())
    enumerator.fail_reader(0, lost)
    look("after reader 0 failed")
    enumerator.register_reader(0, "localhost")
    for _ in range(MAX_STEPS):
        look("after all were registered")
        if reported.keys() <= assigned.keys():
            break
        asking = [each for each in range(parallelism) if each not in enumerator.no_more_splits]
        before = len(enumerator.outbox)
        for subtask in asking:
            enumerator.request_split(subtask)
        if len(enumerator.outbox) == before and not enumerator.run_next_call():
            left = sorted(reported.keys() - assigned.keys())
            raise AssertionError(f"reported splits are never assigned again: {left}; in the state were {inside_before}")
    enumerator.close()


@promise(
    name="splits-and-states-survive-their-bytes",
    sentence="Splits and enumerator states come back from their bytes as they were; other bytes, and those of unknown "
    "versions, are refused; every older version that is read leads up to the one that is written.",
    how="Serialise what a read has before it, in the middle and after it, and change the bytes.",
    contract='docs/full-source.md, "Serializers"',
)
def splits_and_states_survive_their_bytes(subject: Subject) -> None:
    """Look at the bytes of a read."""
    source = subject.make_source()
    for boundedness in filter(source.supports, Boundedness):
        for count in (0, 1, 4):
            subject.does(f"Serialise splits and states of a {boundedness.value} read after {count} steps.")
            with subject.harness(boundedness=boundedness, parallelism=2) as harness:
                steps(harness, count)
                snapshot = harness.snapshot()  # which compares
            for what, serializer, each in [
                ("the state", source.state_serializer, snapshot.enumerator),
                *(("a split", source.split_serializer, data) for of in snapshot.readers for data in of),
            ]:
                _change_bytes(what, serializer, each)


def _change_bytes(what: str, serializer: VersionedSerializer[Any], data: bytes) -> None:
    value = serializer.deserialize(data)
    config = getattr(value, "__struct_config__", None)
    assert config is not None and config.frozen, f"{what} is a {type(value).__name__}, which is not a frozen struct"
    assert serializer.serialize(value) == data, f"{what} has other bytes each time"
    fields = msgspec.json.decode(data)
    for changed, error in (
        (data[: len(data) // 2], CorruptStateError),
        (msgspec.json.encode({**fields, "v": serializer.version + 1}), UnsupportedVersionError),
    ):
        try:
            found = serializer.deserialize(changed)
        except error:
            continue
        raise AssertionError(f"{what} was read from {changed!r} as {found} instead of refused with {error.__name__}")
    for version in serializer.upgrades:
        missing = [each for each in range(version, serializer.version) if each not in serializer.upgrades]
        assert not missing, (
            f"{what} of version {version} cannot be read by version {serializer.version}: there is no upgrade from "
            f"version {missing[0]}"
        )


CHECKS = (
    restore_at_every_step,
    rescaled_reads_are_complete,
    reported_splits_are_assigned_again,
    failed_readers_give_back,
    readers_that_are_gone_get_nothing,
    finished_splits_can_come_back,
    splits_and_states_survive_their_bytes,
)
