"""Promises about pausing and positions within batches, on which alignment in event time rests.

Never: blame a source that cannot pause: then the promises do not apply.

Follows FLIP-217, Proposed Changes.
"""

from __future__ import annotations

from concurrent.futures import wait

from headgate.errors import UnsupportedOperationError
from headgate.readers import SequentialReader
from headgate.source.enumerator import Boundedness
from headgate.testing.conformance.subject import DoesNotApply, Subject, promise, ready_made, try_to_pause
from headgate.testing.rows import assert_same_rows
from headgate.testing.split_reader_harness import SplitReaderHarness

_SPLITS_TO_PAUSE = 8
_BATCHES_WITH_POSITIONS = 8
_FETCHES = 20
LATE_S = 0.05
"""How long a paused split is watched, in seconds of real time."""


@promise(
    name="paused-splits-are-silent",
    sentence="A paused split emits nothing until it is resumed, then all of it; unknown and finished ones are ignored.",
    how="Pause and resume splits one after the other as they come, after batches and after single rows.",
    contract="FLIP-217, Proposed Changes",
)
def paused_splits_are_silent(subject: Subject) -> None:
    """Pause at batches, and in the middle of batches where they have the positions of single rows."""
    subject.needs(Boundedness.BOUNDED)
    for most_rows in (None, 1):
        _pause_all_in_turn(subject, most_rows)


def _pause_all_in_turn(subject: Subject, most_rows: int | None) -> None:
    """Pause and resume splits as they come."""
    expected = subject.rows
    with subject.harness(most_rows=most_rows) as harness:
        reader = harness.readers[0]
        paused_once: set[str] = set()
        while harness.step():
            begun = {split_id for split_id, _ in reader.batches}
            new = (reader.splits if most_rows is None else reader.splits & begun) - paused_once
            if not new or len(paused_once) > _SPLITS_TO_PAUSE:
                continue
            paused_once |= new
            emitted, state = len(reader.batches), sorted(reader.snapshot())
            subject.does(f"Pause {sorted(new)} after {emitted} batches.")
            try_to_pause(reader)
            reader.pause_or_resume(["no such split"], ["nor such a one"])
            reader.pause_or_resume(new, ())
            wait([reader.reader.available()], LATE_S)  # what is fetched in spite of it has time to come
            for _ in range(3):
                harness.poll()
            late = {split_id for split_id, _ in reader.batches[emitted:]} & new
            assert not late, f"splits emitted rows while they were paused: {sorted(late)}"
            if new == reader.splits:
                assert sorted(reader.snapshot()) == state, "a split moved while it was paused"
            reader.pause_or_resume((), new)
        reader.pause_or_resume(reader.finished, reader.finished)
        subject.does(f"Read to the end after pausing and resuming {sorted(paused_once)}.")
        assert_same_rows(harness.rows(), expected, "rows of a read that was paused")


@promise(
    name="rows-have-positions",
    sentence="Reading from the position after some rows of a batch (FetchedBatch.position_at) gives just the others.",
    how="Read from positions within batches: before the first row, after it, in the middle and before the last.",
    contract='docs/full-source.md, "The split reader"',
)
def rows_have_positions(subject: Subject) -> None:
    """Read from positions within batches of ready-made readers."""
    subject.needs(Boundedness.BOUNDED)
    with subject.harness() as harness:
        harness.run_to_end()
        fetched = [each for reader in harness.readers for each in reader.fetched if each.position_at is not None]
    if not fetched:
        raise DoesNotApply("no fetched batch has position_at: splits are aligned after whole batches")
    for each in fetched[:: max(1, len(fetched) // _BATCHES_WITH_POSITIONS)]:
        assert each.batch is not None, f"a fetched batch without rows has positions of them: {each.split}"
        rows = each.batch.to_pylist()
        for count in sorted({0, 1, len(rows) // 2, len(rows) - 1} & set(range(len(rows)))):
            assert each.position_at is not None
            split = each.position_at(count)
            where = f"after {count} of the {len(rows)} rows before {each.split}, which is {split}"
            subject.does(f"Read from the position {where}.")
            assert split.split_id == each.split.split_id, f"another split is {where}"
            with subject.reader() as reader:
                reader.add_splits(split)
                while len(reader.rows()) < len(rows) - count and reader.splits:
                    reader.step()
                assert_same_rows(reader.rows()[: len(rows) - count], rows[count:], f"rows from the position {where}")


@promise(
    name="fetches-pass-over-paused-splits",
    sentence="A split reader fetches nothing of a paused split, while others go on; once resumed, it reads on.",
    how="Pause the largest of two splits after a fetch, fetch the other, resume, and fetch both to their ends.",
    contract="FLIP-217, Proposed Changes",
)
def fetches_pass_over_paused_splits(subject: Subject) -> None:
    """Pause a split of a split reader."""
    subject.needs(Boundedness.BOUNDED)
    rows = subject.split_rows
    splits = sorted(
        (split for split in subject.splits() if rows[split.split_id]), key=lambda split: -len(rows[split.split_id])
    )
    if len(splits) < 2:
        raise DoesNotApply("there are not two splits with rows")
    first, second = splits[:2]
    reader = ready_made(subject.reader().reader)
    with SplitReaderHarness(reader.split_reader_factory(), timeout_ms=200) as harness:
        harness.add_splits(*([first] if isinstance(reader, SequentialReader) else [first, second]))
        for _ in range(_FETCHES):
            if harness.fetch():
                break
        if first.split_id in harness.finished or second.split_id in harness.finished:
            raise DoesNotApply("a split is read in one fetch: there is no middle to pause it in")
        try:
            harness.pause(first.split_id)
        except UnsupportedOperationError:
            raise DoesNotApply("the split reader does not implement pause_or_resume_splits") from None
        if isinstance(reader, SequentialReader):
            harness.add_splits(second)
        for _ in range(_FETCHES):
            if second.split_id not in harness.finished:
                harness.fetch()
        harness.resume(first.split_id)
        harness.fetch_all()
        assert_same_rows(harness.rows(), rows[first.split_id] + rows[second.split_id], "rows of two splits, one paused")
    reader.close()


CHECKS = (paused_splits_are_silent, fetches_pass_over_paused_splits, rows_have_positions)
