"""Promises about failures and restores: every row comes once, whatever fails and when.

Never: keep an object over a restore: what is restored is made of bytes.
"""

from __future__ import annotations

from headgate.source.enumerator import Boundedness
from headgate.testing.conformance.subject import MAX_STEPS, Rows, Subject, promise, pull_all, steps
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


CHECKS = (
    restore_at_every_step,
    failed_readers_give_back,
    readers_that_are_gone_get_nothing,
    finished_splits_can_come_back,
)
