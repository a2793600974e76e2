"""Promises about event time: watermarks after which no row is late, idleness, and reading that stops at a bound.

Never: need more of the rows than a column of timestamps.

Follows FLIP-27, "Per Split Event Time"; FLIP-217, Proposed Changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from typing import Any

from headgate.source.enumerator import Boundedness
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkAlignment, WatermarkStrategy
from headgate.testing.conformance.subject import DoesNotApply, Rows, Subject, promise, try_to_pause
from headgate.testing.enumerator_harness import splits_in
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.rows import assert_same_rows

IDLE_AFTER_S = 10.0
"""How long silent splits have to become idle, in seconds of real time: on their clock time flies."""
_IDLE_TIMEOUT_MS = 1000
_PATIENCE_S = 30.0
_RESTLESS_S = 5.0
"""After this time of rows in an unbounded read, in seconds, it counts as one that never waits for any."""
_BOUNDS = 5
_ALIGNED_SPLITS = 4


@promise(
    name="rows-keep-watermarks",
    sentence="After a watermark that the source itself knows (FetchedBatch.watermark_ms) no row of the split is "
    "earlier, and a split that it calls idle has no rows at hand.",
    how="Read to the end, and compare the rows of each split with the watermarks and idleness that came before them.",
    contract="FLIP-27, Per Split Event Time",
)
def rows_keep_watermarks(subject: Subject) -> None:
    """Compare fetched batches with fetched watermarks."""
    subject.needs(Boundedness.BOUNDED)
    with subject.harness() as harness:
        harness.run_to_end()
        fetched = list(harness.readers[0].fetched)
    if all(each.watermark_ms is None and not each.idle for each in fetched):
        raise DoesNotApply("no fetched batch has a watermark, or is idle")
    watermarks: dict[str, int] = {}
    idle: set[str] = set()
    for each in fetched:
        split_id = each.split.split_id
        if each.batch is not None and each.batch.num_rows:
            assert split_id not in idle, f"split {split_id!r} was idle, and had further rows all the same"
            for row in each.batch.to_pylist() if split_id in watermarks else ():
                at_ms = subject.event_ms(row)
                assert at_ms is None or at_ms >= watermarks[split_id], (
                    f"after the watermark {watermarks[split_id]} of split {split_id!r} came a row of {at_ms}: {row}"
                )
        if each.watermark_ms is not None:
            watermarks[split_id] = max(each.watermark_ms, watermarks.get(split_id, MIN_WATERMARK_MS))
        if each.idle:
            idle.add(split_id)


@promise(
    name="unassigned-rows-hold-the-watermark",
    sentence="unassigned_event_time_ms is never later than a row that is not assigned yet, and holds nobody back once "
    "all is assigned.",
    how="Assign split by split, and compare what it returns with the rows of the splits that are left.",
    contract='docs/full-source.md, "The enumerator"',
)
def unassigned_rows_hold_the_watermark(subject: Subject) -> None:
    """Look at it after every call."""
    if subject.make_source().supports(Boundedness.BOUNDED):
        _compare_with_unassigned_rows(subject)
    if subject.make_source().supports(Boundedness.CONTINUOUS_UNBOUNDED):
        subject.does("Assign all splits of an unbounded read.")
        enumerator = subject.enumerator(boundedness=Boundedness.CONTINUOUS_UNBOUNDED)
        enumerator.start()
        enumerator.register_reader(0)
        for _ in range(100):
            if 0 not in enumerator.no_more_splits and 0 not in enumerator.requests:
                enumerator.request_split(0)
            elif not enumerator.run_due_calls():
                break
        is_left = list(splits_in(enumerator.state()))
        time_ms = enumerator.enumerator.unassigned_event_time_ms()
        enumerator.close()
        assert is_left or time_ms != MIN_WATERMARK_MS, (
            "discovery is over and all splits are assigned, but unassigned_event_time_ms still holds all watermarks"
        )


def _compare_with_unassigned_rows(subject: Subject) -> None:
    earliest_ms: dict[str, int] = {}
    try:
        for split_id, rows in subject.split_rows.items():
            times = [at_ms for row in rows if (at_ms := subject.event_ms(row)) is not None]
            if times:
                earliest_ms[split_id] = min(times)
    except DoesNotApply:
        pass  # without event times only the end counts
    enumerator = subject.enumerator()
    enumerator.start()
    enumerator.register_reader(0)

    def look() -> int | None:
        time_ms = enumerator.enumerator.unassigned_event_time_ms()
        left = {each: at_ms for each, at_ms in earliest_ms.items() if each not in enumerator.assigned[0]}
        for split_id, at_ms in left.items():
            assert time_ms is None or time_ms <= at_ms, (
                f"unassigned_event_time_ms returned {time_ms}, but split {split_id!r} is not assigned and has a row of "
                f"{at_ms}"
            )
        return time_ms

    look()
    while 0 not in enumerator.no_more_splits:
        before = len(enumerator.outbox)
        if 0 not in enumerator.requests:
            enumerator.request_split(0)
        if len(enumerator.outbox) == before:
            assert enumerator.run_next_call(), "the enumerator neither assigns nor ends nor has work to do"
        look()
    at_end_ms = look()
    enumerator.close()
    assert at_end_ms in (None, MAX_WATERMARK_MS), (
        f"nothing is left to assign, but unassigned_event_time_ms returns {at_end_ms}, which holds watermarks for ever"
    )


@promise(
    name="silent-splits-become-idle",
    sentence="A split without rows becomes idle after the idle time-out, so that nobody waits for it; one whose source "
    "makes its watermarks itself marks it as idle, or its watermark goes on.",
    how="Read an unbounded read until nothing comes, let the idle time-out pass, and look at the reader's output.",
    contract='FLIP-27, "Per Split Event Time"',
)
def silent_splits_become_idle(subject: Subject) -> None:
    """Let splits be silent."""
    strategy = WatermarkStrategy(event_time_column=subject.event_time_column, idle_timeout_ms=_IDLE_TIMEOUT_MS)
    splits = subject.unbounded_splits()
    with subject.reader(strategy=strategy, asks=True) as reader:
        reader.add_splits(*splits)
        until, quiet = time.monotonic() + _RESTLESS_S, 0
        while quiet < 5:
            before = len(reader.batches), len(reader.finished)
            reader.poll()
            quiet = quiet + 1 if before == (len(reader.batches), len(reader.finished)) else 0
            if not quiet or wait([reader.reader.available()], 0.02).done:
                quiet = 0
            if time.monotonic() > until:
                raise DoesNotApply("rows come all the time")
        if not reader.splits:
            raise DoesNotApply("the splits of an unbounded read end: none falls silent")
        until, watermarks = time.monotonic() + IDLE_AFTER_S, len(reader.watermarks)
        while not reader.idle and len(reader.watermarks) == watermarks:
            reader.clock.advance(_IDLE_TIMEOUT_MS // 4)
            reader.poll()
            wait([reader.reader.available()], 0.01)
            assert time.monotonic() < until, (
                f"splits {sorted(reader.splits)} have no rows, but are not idle after {reader.clock()} ms, with an "
                f"idle time-out of {_IDLE_TIMEOUT_MS} ms"
            )


@promise(
    name="aligned-splits-stop-at-the-bound",
    sentence="Aligned in event time, a split emits the rows before the bound, stops at the first one beyond it (or "
    "after its batch, where rows have no positions or the source makes watermarks), and goes on when the bound moves.",
    how="Read one split, and up to four, in an alignment group whose bound moves in five steps; in the middle take a "
    "checkpoint and restore.",
    contract="FLIP-217, Proposed Changes",
)
def aligned_splits_stop_at_the_bound(subject: Subject) -> None:
    """Move the bound of an alignment group."""
    subject.needs(Boundedness.BOUNDED)
    splits = [split for split in subject.splits() if subject.split_rows[split.split_id]][:_ALIGNED_SPLITS]
    if len(_times(subject, splits)) < 2:
        raise DoesNotApply("the rows have fewer than two event times")
    with subject.reader() as reader:
        reader.add_splits(*splits[:1])
        try_to_pause(reader)
    alone = max(splits, key=lambda split: len(_times(subject, [split])))
    for some in ([alone], splits):
        if len(_times(subject, some)) > 1:
            _read_aligned(subject, some)


def _times(subject: Subject, splits: Sequence[Any]) -> list[int]:
    """Return the event times of all rows, each once, in order."""
    rows = [row for split in splits for row in subject.split_rows[split.split_id]]
    return sorted({at_ms for row in rows if (at_ms := subject.event_ms(row)) is not None})


def _read_aligned(subject: Subject, splits: Sequence[Any]) -> None:
    rows = [row for split in splits for row in subject.split_rows[split.split_id]]
    times = _times(subject, splits)
    strategy = WatermarkStrategy(
        event_time_column=subject.event_time_column, alignment=WatermarkAlignment(group="conformance", max_drift_ms=0)
    )
    bounds = times[:: max(1, len(times) // _BOUNDS)]
    came: dict[str, int] = {split.split_id: 0 for split in splits}  # before the restore
    found: Rows = []
    reader = subject.reader(strategy=strategy)
    try:
        reader.add_splits(*splits)
        for number, bound_ms in enumerate(bounds):
            subject.does(f"Read {sorted(came)} while the rest of the alignment group is at {bound_ms} ms.")
            if number == len(bounds) // 2:
                state, found = reader.snapshot(), reader.rows()
                came = {split_id: len(reader.rows(split_id)) for split_id in came}
                reader.close()
                reader = subject.reader(strategy=strategy)
                reader.restore(state)
            reader.announce(bound_ms)
            _settle(subject, reader, came, bound_ms)
            for split_id in came:
                _assert_stopped(subject, reader, split_id, bound_ms)
        subject.does(f"Read {sorted(came)} when the rest of the alignment group has ended.")
        reader.announce(MAX_WATERMARK_MS)
        reader.reader.notify_no_more_splits()
        until = time.monotonic() + _PATIENCE_S
        while reader.splits:
            _move(reader)
            assert time.monotonic() < until, "splits did not go on to their end, though the bound allowed it"
        assert_same_rows(found + reader.rows(), rows, "rows of an aligned read")
    finally:
        reader.close()


def _settle(subject: Subject, reader: ReaderHarness[Any], came: Mapping[str, int], bound_ms: int) -> None:
    """Read until all rows before the bound have come, and nothing comes any more."""
    until, quiet = time.monotonic() + _PATIENCE_S, 0
    while quiet < 5:
        quiet = 0 if _move(reader) else quiet + 1
        for split_id, earlier in came.items():
            due = _rows_before(subject, subject.split_rows[split_id], bound_ms)
            if (rows := earlier + len(reader.rows(split_id))) < due:
                quiet = 0
                assert time.monotonic() < until, (
                    f"split {split_id!r} emitted {rows} of its {due} rows before the bound {bound_ms}"
                )


def _move(reader: ReaderHarness[Any]) -> bool:
    """Poll, and rest if nothing came of it."""
    before = len(reader.batches), len(reader.finished)
    reader.poll()
    if before != (len(reader.batches), len(reader.finished)):
        return True
    time.sleep(0.003)
    return False


def _rows_before(subject: Subject, rows: Rows, bound_ms: int) -> int:
    for index, row in enumerate(rows):
        at_ms = subject.event_ms(row)
        if at_ms is not None and at_ms > bound_ms:
            return index
    return len(rows)


def _assert_stopped(subject: Subject, reader: ReaderHarness[Any], split_id: str, bound_ms: int) -> None:
    """Assert that nothing followed the first row beyond the bound, save for the rest of its batch."""
    fetched = [each for each in reader.fetched if each.split.split_id == split_id and each.batch is not None]
    to_the_row = bool(fetched) and all(each.position_at is not None and each.watermark_ms is None for each in fetched)
    emitted: Sequence[Any] = [batch.to_pylist() for each, batch in reader.batches if each == split_id]
    for number, rows in enumerate(emitted):
        beyond = rows[_rows_before(subject, rows, bound_ms) :]
        if beyond:
            assert not to_the_row, f"split {split_id!r} emitted {beyond[0]}, which is beyond the bound {bound_ms}"
            assert number == len(emitted) - 1, (
                f"split {split_id!r} emitted batches after {beyond[0]}, beyond {bound_ms}"
            )
            return


CHECKS = (
    rows_keep_watermarks,
    unassigned_rows_hold_the_watermark,
    silent_splits_become_idle,
    aligned_splits_stop_at_the_bound,
)
