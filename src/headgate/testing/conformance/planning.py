"""Promises about ranges planned for micro-batches: the same rows whenever they are read, and together all of them.

Never: blame a source without `SupportsBoundedPlans`: then the promises do not apply.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.source.enumerator import Boundedness
from headgate.source.source import (
    PlanLimits,
    PlannedRange,
    SupportsBoundedPlans,
    SupportsEventTimeSeek,
    SupportsTaskGroups,
)
from headgate.testing.conformance.subject import MAX_STEPS, DoesNotApply, Rows, Subject, promise
from headgate.testing.rows import assert_same_rows

_EVENT_TIMES = 5
_LATER_MS = 1 << 50
"""A time at which everything is due."""


@promise(
    name="plans-can-be-replayed",
    sentence="A planned range gives the same rows whenever it is read; all ranges together give those of the source.",
    how="Plan ranges without limits and with each limit at 1, and read every range twice.",
    contract='docs/full-source.md, "Optional abilities"',
)
def plans_can_be_replayed(subject: Subject) -> None:
    """Plan and read ranges twice."""
    subject.needs(Boundedness.BOUNDED)
    source = _planning(subject.make_source())
    expected = subject.rows
    for chosen in ({}, {"max_rows": 1}, {"max_bytes": 1}, {"max_files": 1}):
        limits = PlanLimits(**chosen)
        rows: Rows = []
        splits = subject.splits(source)
        with_limit = "".join(f" with {name}={value}" for name, value in chosen.items()) or " without limits"
        subject.does(f"Plan{with_limit} until nothing is left, and read each plan twice.")
        for _ in range(MAX_STEPS):
            if not splits:
                break
            planned = source.plan_ranges(splits, limits, 0)
            assert planned or not chosen, f"nothing was planned of {splits}"
            if not planned:
                break
            ids = [each.split.split_id for each in planned]
            assert len(set(ids)) == len(ids), f"more than one range of a split in one plan: {ids}"
            read = subject.read_splits([each.split for each in planned])
            again = subject.read_splits([each.split for each in planned])
            assert_same_rows(again, read, f"the replay of {planned}")
            rows += read
            rests = {each.split.split_id: each.rest for each in planned}
            after = [rests.get(split.split_id, split) for split in splits]
            splits = [split for split in after if split is not None]
        assert_same_rows(rows, expected, f"rows of all ranges planned{with_limit}")


@promise(
    name="plans-survive-new-rows",
    sentence="A planned range gives the same rows also when more has come since it was planned.",
    how="Plan ranges without limits and with max_rows=1, read them, add rows, and read them again.",
    contract='docs/full-source.md, "Optional abilities"',
)
def plans_survive_new_rows(subject: Subject) -> None:
    """Add rows between the plan and its reading."""
    subject.needs(Boundedness.BOUNDED)
    _planning(subject.make_source())
    subject.can_add_rows()
    plans = [[each.split for each in _plan(subject, limits)] for limits in (PlanLimits(), PlanLimits(max_rows=1))]
    subject.does("Plan ranges, and read them.")
    before = [subject.read_splits(planned) for planned in plans]
    subject.add_rows()
    subject.does("Read planned ranges again, after rows were added.")
    for planned, rows in zip(plans, before):
        assert_same_rows(subject.read_splits(planned), rows, f"rows of {planned}")


@promise(
    name="plans-keep-limits",
    sentence="All ranges of a plan together keep within each limit; one range alone may exceed it, if there is no "
    "smaller one.",
    how="Plan with several limits of rows, and read the ranges; plan with limits of files and bytes, and look at what "
    "the ranges say of themselves.",
    contract='docs/full-source.md, "Optional abilities"',
)
def plans_keep_limits(subject: Subject) -> None:
    """Count what is planned."""
    subject.needs(Boundedness.BOUNDED)
    count = len(subject.rows)
    for most in sorted({1, 2, max(1, count // 2), max(1, count)}):
        subject.does(f"Plan with max_rows={most}, and read the ranges.")
        counts = _counts(subject, PlanLimits(max_rows=most))
        if sum(counts) > most:
            assert len(counts) == 1, f"{len(counts)} ranges of a plan with max_rows={most} have {sum(counts)} rows"
            smallest = _counts(subject, PlanLimits(max_rows=1))
            assert counts <= smallest, f"a range with max_rows={most} has {counts} rows, one with max_rows=1 {smallest}"
    for most in (1, 2):
        subject.does(f"Plan with max_files={most}.")
        files = {each.split.remaining().file for each in _plan(subject, PlanLimits(max_files=most))} - {None}
        assert len(files) <= most, f"a plan with max_files={most} has {len(files)} files: {sorted(map(str, files))}"
    sizes = [each.remaining().bytes for each in subject.splits()]
    if sizes and all(sizes):
        most = sum(each or 0 for each in sizes) // 2
        subject.does(f"Plan with max_bytes={most}.")
        planned = _plan(subject, PlanLimits(max_bytes=most))
        planned_bytes = sum(each.split.remaining().bytes or 0 for each in planned)
        assert planned_bytes <= most or len(planned) == 1, (
            f"{len(planned)} ranges of a plan with max_bytes={most} have {planned_bytes} bytes"
        )


def _plan(subject: Subject, limits: PlanLimits) -> Sequence[PlannedRange[Any]]:
    """Return what a new source plans of all its splits."""
    source = _planning(subject.make_source())
    splits = subject.splits(source)
    planned: Sequence[PlannedRange[Any]] = source.plan_ranges(splits, limits, 0) if splits else ()
    return planned


def _counts(subject: Subject, limits: PlanLimits) -> list[int]:
    """Return how many rows each range of a plan has; without those that have none."""
    counts = [len(subject.read_splits([each.split])) for each in _plan(subject, limits)]
    return [count for count in counts if count]


def _planning(source: Any) -> Any:
    if not isinstance(source, SupportsBoundedPlans):
        raise DoesNotApply("the source has no plan_ranges: it is not read in micro-batches")
    return source


@promise(
    name="plans-stop-at-an-event-time",
    sentence="next_event_times is never later than a split's next row, and a plan that ends before an event time has "
    "no row of which it knows that it is of that time or later.",
    how="Plan before several event times, read the ranges and what is left, and compare with next_event_times.",
    contract='docs/full-source.md, "Optional abilities"',
)
def plans_stop_at_an_event_time(subject: Subject) -> None:
    """Plan up to event times."""
    subject.needs(Boundedness.BOUNDED)
    source: Any = _planning(subject.make_source())
    splits = subject.splits(source)
    if not isinstance(source, SupportsEventTimeSeek):
        raise DoesNotApply("the source has no next_event_times: it cannot find an event time without reading")
    if source.next_event_times(splits) is None:
        raise DoesNotApply("next_event_times knows none with these options: set eventTimeColumn")
    times = sorted({at_ms for row in subject.rows if (at_ms := subject.event_ms(row)) is not None})
    for before_ms in times[:: max(1, len(times) // _EVENT_TIMES)]:
        subject.does(f"Plan before the event time {before_ms} ms.")
        source = _planning(subject.make_source())
        splits = subject.splits(source)
        planned = source.plan_ranges(splits, PlanLimits(before_event_time_ms=before_ms), _LATER_MS)
        for each in planned:
            _assert_ends_before(subject, source, each.split, before_ms)
        rests = {each.split.split_id: each.rest for each in planned}
        left = [rest for split in splits if (rest := rests.get(split.split_id, split)) is not None]
        for split_id, next_ms in (source.next_event_times(left) or {}).items():
            (split,) = [each for each in left if each.split_id == split_id]
            found = [at_ms for row in subject.read_splits([split]) if (at_ms := subject.event_ms(row)) is not None]
            assert next_ms is None or not found or next_ms <= found[0], (
                f"next_event_times says {next_ms} for {split}, whose next row is at {found[0]}"
            )


def _assert_ends_before(subject: Subject, source: SupportsEventTimeSeek[Any], planned: Any, before_ms: int) -> None:
    """Assert that a range has no row of which the source knows that it is not before an event time."""
    with subject.reader() as reader:
        reader.add_splits(planned)
        reader.run_to_end()
        at_row = planned
        for fetched in reader.fetched:
            for index, row in enumerate(fetched.batch.to_pylist() if fetched.batch is not None else ()):
                at_ms = subject.event_ms(row)
                if at_ms is None or at_ms < before_ms:
                    continue
                if index:
                    at_row = None if fetched.position_at is None else fetched.position_at(index)
                known = {} if at_row is None else source.next_event_times([at_row]) or {}
                known_ms = known.get(planned.split_id)
                assert known_ms is None or known_ms < before_ms, f"a plan that ends before {before_ms} has {row}"
                break
            at_row = fetched.split


@promise(
    name="task-groups-read-everything",
    sentence="The splits of all tasks together read what the splits read that were grouped, and so each time.",
    how="Group the splits twice, by two copies of the source, and read all groups.",
    contract='docs/full-source.md, "Optional abilities"',
)
def task_groups_read_everything(subject: Subject) -> None:
    """Group splits."""
    subject.needs(Boundedness.BOUNDED)
    source = subject.make_source()
    if not isinstance(source, SupportsTaskGroups):
        raise DoesNotApply("the source has no group_splits: splits are packed into tasks by their sizes")
    splits = subject.splits()
    groups = source.group_splits(splits, source.grouping())
    other = subject.make_source()
    assert isinstance(other, SupportsTaskGroups)
    again = other.group_splits(splits, msgspec.json.decode(msgspec.json.encode(source.grouping())))
    assert [list(each) for each in again] == [list(each) for each in groups], f"groups differ: {groups}, then {again}"
    rows: Rows = []
    for group in groups:
        rows += subject.read_splits(group)
    assert_same_rows(rows, subject.rows, "rows of all groups")


CHECKS = (
    plans_can_be_replayed,
    plans_survive_new_rows,
    plans_keep_limits,
    plans_stop_at_an_event_time,
    task_groups_read_everything,
)
