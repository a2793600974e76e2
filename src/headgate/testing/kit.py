"""Checks a source against the promises of the contract: one function for each, usable without pytest.

Never: need more than the source's factory and its columns. A check that does not apply to the source passes at once.

The source should be small (tens of batches): most checks read it several times, and `check_restore_at_every_step`
makes new readers after each batch. What is not checked: what the rows are, whether new work is found in an unbounded
read, errors for bad input. Those are the connector's own tests, for which the harnesses are.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import wait
from typing import Any

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.pickling import dumps, loads
from headgate.source.enumerator import Boundedness
from headgate.source.source import PlanLimits, Source, SupportsBoundedPlans
from headgate.testing.enumerator_harness import EnumeratorHarness, arrow_schema
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.rows import assert_same_rows
from headgate.testing.source_harness import SourceHarness

MakeSource = Callable[[], Source[Any, Any]]
Check = Callable[..., None]

_MAX_STEPS = 100_000
_SPLITS_TO_PAUSE = 8
_BATCHES_WITH_POSITIONS = 8
_CLOSE_S = 1.0
_LATE_S = 0.05
"""How long a paused split is watched, in seconds of real time."""


def _bounded_only(check: Check) -> Check:
    """Let a check pass for sources without a bounded read."""

    @functools.wraps(check)
    def checked(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
        if make_source().supports(Boundedness.BOUNDED):
            check(make_source, schema=schema)

    return checked


def check_source(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """Run all checks.

    Parameters
    ----------
    make_source
        Makes the source afresh, with the same options over the same data each time.
    schema
        The columns to read; None: what the source says, if that is an Arrow schema.

    Raises
    ------
    AssertionError
        A promise is broken. Other errors are the source's own.
    """
    for check in ALL_CHECKS:
        check(make_source, schema=schema)


@_bounded_only
def check_rows_and_splits_repeat(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """Two reads of the same data give the same rows, by splits of the same ids."""
    reads = []
    for _ in range(2):
        with SourceHarness(make_source(), schema=schema) as harness:
            harness.run_to_end()
            reads.append((harness.rows(), sorted(harness.readers[0].finished)))
    assert_same_rows(reads[1][0], reads[0][0], "rows of the second read")
    assert reads[0][1] == reads[1][1], f"split ids differ: {reads[0][1]}, then {reads[1][1]}"
    assert len(set(reads[0][1])) == len(reads[0][1]), f"a split id stands for two pieces of work: {reads[0][1]}"


@_bounded_only
def check_source_can_be_sent_to_readers(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """A source is pickled to every reader: the copy reads the same rows."""
    copy = loads(dumps(make_source()))
    assert_same_rows(_read(copy, schema), _read(make_source(), schema), "rows of the pickled source")


@_bounded_only
def check_parallel_readers_read_the_same_rows(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """Several readers together read what one reads."""
    expected = _read(make_source(), schema)
    for parallelism in (2, 3):
        with SourceHarness(make_source(), schema=schema, parallelism=parallelism) as harness:
            harness.run_to_end()
            assert_same_rows(harness.rows(), expected, f"rows of {parallelism} readers")


@_bounded_only
def check_threads(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """One thread calls everything but ``wake_up``, and work given to ``call_async`` touches no enumerator's method."""
    with SourceHarness(make_source(), schema=schema, parallelism=2) as harness:
        harness.run_to_end()


def check_restore_at_every_step(
    make_source: MakeSource, *, schema: pa.Schema | None = None, parallelism: tuple[int, ...] = (1, 2)
) -> None:
    """Checkpoint at every step, restore into new objects by way of bytes, and read the same rows in the end.

    Parameters
    ----------
    make_source, schema
        As for `check_source`.
    parallelism
        How many readers there are after each restore, in turn; the first number also after the first start.
    """
    if not make_source().supports(Boundedness.BOUNDED):
        return
    expected = _read(make_source(), schema)
    rows: list[dict[str, Any]] = []
    snapshot = None
    for number in range(_MAX_STEPS):
        with SourceHarness(
            make_source(), schema=schema, parallelism=parallelism[number % len(parallelism)], snapshot=snapshot
        ) as harness:
            goes_on = True
            while goes_on and not harness.row_count:  # a restored source must get on by itself: only rows count
                goes_on = harness.step()
            snapshot = harness.snapshot()
            rows += harness.rows()
        if not goes_on or len(rows) > len(expected):
            break
    assert_same_rows(rows, expected, "rows of a read that was restored after each batch")
    with SourceHarness(make_source(), schema=schema, snapshot=snapshot) as harness:
        harness.run_to_end()
        assert_same_rows(harness.rows(), [], "rows of a read that was restored after its end")


@_bounded_only
def check_a_failed_readers_splits_are_read_again(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """A reader fails: what it was given since the last checkpoint goes back and is read again, by whoever asks."""
    expected = _read(make_source(), schema)
    for steps in (1, 2, 3, 5, 8, 13):
        for checkpoint in (False, True):
            with SourceHarness(make_source(), schema=schema, parallelism=2) as harness:
                _steps(harness, steps)
                if checkpoint:
                    harness.snapshot()
                    _steps(harness, steps)
                harness.fail_reader(0)
                _steps(harness, steps)
                harness.fail_reader(1)
                harness.run_to_end()
                assert_same_rows(harness.rows(), expected, f"rows after failures every {steps} steps")


@_bounded_only
def check_nobody_assigns_to_a_reader_that_is_gone(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """A reader asks and fails before it is answered: it is answered no more, and gets all when it is back and asks."""
    expected = {split.split_id for split in _all_splits(make_source(), schema)}
    enumerator = EnumeratorHarness(make_source(), schema=schema)
    enumerator.start()
    enumerator.register_reader(0)
    enumerator.request_split(0)
    if not enumerator.outbox:
        enumerator.forget_reader(0)
        enumerator.run_due_calls()
        enumerator.register_reader(0)
    found = {split.split_id for split in _pull_all(enumerator)}
    enumerator.close()
    assert found == expected, f"after a reader asked, failed and returned, it got {found} instead of {expected}"


@_bounded_only
def check_splits_finished_before_a_restore_can_come_back(
    make_source: MakeSource, *, schema: pa.Schema | None = None
) -> None:
    """What ended before a state was taken comes back to an enumerator restored from it, and is assigned again."""
    before = EnumeratorHarness(make_source(), schema=schema)
    before.start()
    before.register_reader(0)
    splits = _pull_all(before)
    for split in splits:
        before.finish_split(0, split.split_id)
    before.enumerator.notify_splits_finished([split.split_id for split in splits])
    restored = EnumeratorHarness(make_source(), schema=schema, state=before.snapshot())
    before.close()
    restored.start()
    restored.fail_reader(0, splits)
    restored.register_reader(0)
    found = sorted(split.split_id for split in _pull_all(restored))
    restored.close()
    expected = sorted(split.split_id for split in splits)
    assert found == expected, f"splits that were given back to a restored enumerator: {expected}; it assigned {found}"


@_bounded_only
def check_pausing(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """A paused split emits nothing until it is resumed, then all of it; unknown and finished ones are ignored.

    Also in the middle of a batch, where that has the positions of single rows. Passes if the source does not support
    pausing.
    """
    expected = _read(make_source(), schema)
    for most_rows in (None, 1):
        if not _pause_all_in_turn(make_source(), schema, expected, most_rows):
            return


def _pause_all_in_turn(
    source: Source[Any, Any], schema: pa.Schema | None, expected: list[dict[str, Any]], most_rows: int | None
) -> bool:
    """Pause and resume splits as they come; return whether the source supports it."""
    with SourceHarness(source, schema=schema, most_rows=most_rows) as harness:
        reader = harness.readers[0]
        paused_once: set[str] = set()
        while harness.step():
            begun = {split_id for split_id, _ in reader.batches}
            new = (reader.splits if most_rows is None else reader.splits & begun) - paused_once
            if not new or len(paused_once) > _SPLITS_TO_PAUSE:
                continue
            paused_once |= new
            emitted, state = len(reader.batches), sorted(reader.snapshot())
            try:
                reader.pause_or_resume()
                reader.pause_or_resume(["no such split"], ["nor such a one"])
                reader.pause_or_resume(new, ())
            except UnsupportedOperationError:
                return False
            wait([reader.reader.available()], _LATE_S)  # what is fetched in spite of it has time to come
            for _ in range(3):
                harness.poll()
            late = {split_id for split_id, _ in reader.batches[emitted:]} & new
            assert not late, f"splits emitted rows while they were paused: {sorted(late)}"
            if new == reader.splits:
                assert sorted(reader.snapshot()) == state, "a split moved while it was paused"
            reader.pause_or_resume((), new)
        reader.pause_or_resume(reader.finished, reader.finished)
        assert_same_rows(harness.rows(), expected, "rows of a read that was paused")
    return True


@_bounded_only
def check_positions_of_rows(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """Read from the position after some rows of a batch (`FetchedBatch.position_at`): exactly the others come.

    Applies to sources with ready-made readers whose batches have such positions.
    """
    columns = arrow_schema(make_source(), schema)
    with SourceHarness(make_source(), schema=schema) as harness:
        harness.run_to_end()
        fetched = [each for reader in harness.readers for each in reader.fetched if each.position_at is not None]
    looked_at = fetched[:: max(1, len(fetched) // _BATCHES_WITH_POSITIONS)]
    for each in looked_at:
        assert each.batch is not None, f"a fetched batch without rows has positions of them: {each.split}"
        rows = each.batch.to_pylist()
        for count in sorted({0, 1, len(rows) // 2, len(rows) - 1} & set(range(len(rows)))):
            assert each.position_at is not None
            split = each.position_at(count)
            where = f"after {count} of the {len(rows)} rows before {each.split}, which is {split}"
            assert split.split_id == each.split.split_id, f"another split is {where}"
            with ReaderHarness(make_source().create_reader, make_source().split_serializer, columns) as reader:
                reader.add_splits(split)
                while len(reader.rows()) < len(rows) - count and reader.splits:
                    reader.step()
                assert_same_rows(reader.rows()[: len(rows) - count], rows[count:], f"rows from the position {where}")


def check_close_is_quick(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """A reader closes within a second, whatever its fetchers are doing; before it got a split, too."""
    for boundedness in Boundedness:
        if not make_source().supports(boundedness):
            continue
        for steps in (0, 1, 3):
            took_s = math.inf
            for _ in range(5):  # others may have held the machine up: the quickest time is the reader's own
                harness = SourceHarness(make_source(), schema=schema, boundedness=boundedness)
                _steps(harness, steps)
                harness.close()
                took_s = min(took_s, *(reader.close_s for reader in harness.readers))
                if took_s < _CLOSE_S:
                    break
            assert took_s < _CLOSE_S, f"close took {took_s:.1f} s; it must return within a second"


@_bounded_only
def check_planned_ranges(make_source: MakeSource, *, schema: pa.Schema | None = None) -> None:
    """Planned ranges, read twice, give the same rows twice, and together those of the whole source.

    Applies to sources with `SupportsBoundedPlans`.
    """
    source = make_source()
    if not isinstance(source, SupportsBoundedPlans):
        return
    expected = _read(make_source(), schema)
    for limits in (PlanLimits(), PlanLimits(max_rows=1), PlanLimits(max_bytes=1), PlanLimits(max_files=1)):
        rows: list[dict[str, Any]] = []
        splits = _all_splits(source, schema)
        for _ in range(_MAX_STEPS):
            if not splits:
                break
            planned = source.plan_ranges(splits, limits, 0)
            assert planned or limits == PlanLimits(), f"nothing was planned of {splits} with {limits}"
            if not planned:
                break
            ids = [each.split.split_id for each in planned]
            assert len(set(ids)) == len(ids), f"more than one range of a split in one plan: {ids}"
            read = _read_ranges(source, schema, [each.split for each in planned])
            assert_same_rows(
                _read_ranges(make_source(), schema, [each.split for each in planned]), read, f"the replay of {planned}"
            )
            rows += read
            rests = {each.split.split_id: each.rest for each in planned}
            after = [rests.get(split.split_id, split) for split in splits]
            splits = [split for split in after if split is not None]
        assert_same_rows(rows, expected, f"rows of all ranges planned with {limits}")


ALL_CHECKS: tuple[Check, ...] = (
    check_rows_and_splits_repeat,
    check_source_can_be_sent_to_readers,
    check_threads,
    check_parallel_readers_read_the_same_rows,
    check_restore_at_every_step,
    check_a_failed_readers_splits_are_read_again,
    check_nobody_assigns_to_a_reader_that_is_gone,
    check_splits_finished_before_a_restore_can_come_back,
    check_pausing,
    check_positions_of_rows,
    check_close_is_quick,
    check_planned_ranges,
)
"""All checks of the kit. Each is called with ``make_source`` and ``schema=``."""


def _read(source: Source[Any, Any], schema: pa.Schema | None) -> list[dict[str, Any]]:
    with SourceHarness(source, schema=schema) as harness:
        harness.run_to_end()
        return harness.rows()


def _steps(harness: SourceHarness[Any, Any], count: int) -> None:
    for _ in range(count):
        harness.step()


def _all_splits(source: Source[Any, Any], schema: pa.Schema | None) -> list[Any]:
    """Return the splits of a bounded read, pulled or pushed."""
    enumerator = EnumeratorHarness(source, schema=schema)
    enumerator.start()
    enumerator.register_reader(0)
    splits = _pull_all(enumerator)
    enumerator.close()
    return splits


def _pull_all(enumerator: EnumeratorHarness[Any, Any]) -> list[Any]:
    """Let reader 0 ask until there are no more splits, and return those that it has."""
    while 0 not in enumerator.no_more_splits:
        before = len(enumerator.outbox)
        if 0 not in enumerator.requests:
            enumerator.request_split(0)
        if len(enumerator.outbox) == before:
            assert enumerator.run_next_call(), "the enumerator neither assigns nor ends nor has work to do"
    return list(enumerator.assigned[0].values())


def _read_ranges(source: Source[Any, Any], schema: pa.Schema | None, splits: list[Any]) -> list[dict[str, Any]]:
    columns = arrow_schema(source, schema)
    with ReaderHarness(source.create_reader, source.split_serializer, columns) as harness:
        harness.add_splits(*splits)
        return harness.run_to_end()
