"""Aligned micro-batches: nobody is read beyond the slowest and the drift, and whatever happens a query goes on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from event_time_source import LearningSource, ScriptedMember, SeekingSource, Times, VagueSource
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.microbatch.alignment.group_membership import GroupMembership
from headgate.microbatch.alignment.planning import AlignedPlans
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.source import PlanLimits, Remaining, WatermarkAlignment
from tests.unit.microbatch.counting_source import RangeSplit

NO_LIMITS = PlanLimits()
DRIFT_MS = 100


class Stream:
    """One source of a query: its planner, what it has read, and where it is."""

    def __init__(self, query: Query, world: Times, kind: type[LearningSource], name: str, **options: str) -> None:
        self.query, self.world, self.kind, self.name, self.options = query, world, kind, name, options
        self.reports = True
        self.idle_timeout_ms: int | None = None
        self.start: dict[str, Any] = dict(INITIAL)
        self.rows: list[tuple[str, int]] = []
        self.open()

    def open(self) -> None:
        """Start, or start again in a new process."""
        self.member = ScriptedMember(
            self.query.membership, self.name, lambda: self.query.now_ms, self.query.while_waiting
        )
        source = self.kind(self.options, self.world)
        alignment = WatermarkAlignment(group="g", max_drift_ms=DRIFT_MS)
        self.plans = AlignedPlans(source, alignment, self.idle_timeout_ms, self.member)
        self.planner = StreamPlanner(source, source.schema(), alignment=self.plans)

    def unread(self) -> list[int]:
        """Return the event times of the next rows."""
        read = {name: 1 + max((n for each, n in self.rows if each == name), default=-1) for name in self.world.times}
        return [
            time
            for name, rows in self.world.times.items()
            for time in rows[read[name] : read[name] + 1]
            if time is not None
        ]

    def times_of(self, rows: list[tuple[str, int]]) -> list[int]:
        return [time for name, n in rows if (time := self.world.times[name][n]) is not None]


class Query:
    """What Spark does with the sources of one query, in its order; its watermark is the highest time less a delay."""

    def __init__(
        self, membership: GroupMembership | None = None, while_waiting: Callable[[], None] = lambda: None
    ) -> None:
        self.membership = membership or GroupMembership((), 0)
        self.while_waiting = while_waiting
        self.now_ms = 0
        self.streams: list[Stream] = []
        self.batches: list[list[int]] = []
        self.empty_batches = 0

    def add(self, world: Times, kind: type[LearningSource] = SeekingSource, **options: str) -> Stream:
        stream = Stream(self, world, kind, f"{id(self)}-{len(self.streams)}", **options)
        self.streams.append(stream)
        return stream

    def freeze(self) -> None:
        for stream in self.streams:
            stream.planner.freeze()

    def batch(self, limits: PlanLimits = NO_LIMITS) -> bool:
        """Run one micro-batch; return whether there was anything new."""
        self.now_ms += 10
        ends = [stream.planner.plan(stream.start, limits, self.now_ms) for stream in self.streams]
        if all(end == stream.start for end, stream in zip(ends, self.streams, strict=True)):
            return False
        times: list[int] = []
        for stream, end in zip(self.streams, ends, strict=True):
            tasks = stream.planner.tasks(stream.start, json.loads(json.dumps(end)), self.now_ms)
            splits = [split for task in tasks for split in task]
            rows = [(split.split_id, n) for split in splits for n in range(split.position, split.stop or 0)]
            seen = {
                name: max(stream.times_of([each for each in rows if each[0] == name]), default=None) for name, _ in rows
            }
            if stream.reports:
                stream.member.report({name: time for name, time in seen.items() if time is not None})
            stream.rows += rows
            stream.start = json.loads(json.dumps(end))
            times += stream.times_of(rows)
        self.batches.append(times)
        self.empty_batches += not times
        return True

    def run_to_the_end(self, limits: PlanLimits = NO_LIMITS, most: int = 2000) -> None:
        """As Spark does it with AvailableNow."""
        for _ in range(most):
            if not self.batch(limits):
                return
        raise AssertionError(f"the query does not end: {self.empty_batches} of {most} batches were empty")

    def late(self, delay_ms: int) -> list[int]:
        """Return the rows that Spark would drop with this delay of the watermark."""
        highest, late = None, []
        for times in self.batches:
            late += [time for time in times if highest is not None and time < highest - delay_ms]
            highest = max([*times, *([] if highest is None else [highest])], default=None)
        return late

    def has_read_everything(self) -> bool:
        everything = [
            sorted((name, n) for name, rows in stream.world.times.items() for n in range(len(rows)))
            for stream in self.streams
        ]
        return everything == [sorted(stream.rows) for stream in self.streams]


def hour(start_ms: int, rows: int = 50, step_ms: int = 10) -> list[int | None]:
    return [start_ms + n * step_ms for n in range(rows)]


def test_no_range_of_a_seeking_source_holds_a_row_beyond_the_earliest_next_one_and_the_drift() -> None:
    query = Query()
    stream = query.add(Times(slow=hour(0), fast=hour(300)))
    query.batch()
    assert query.batches == [[0, 10, 20, 30, 40, 50, 60, 70, 80, 90]]
    assert stream.planner.lag(0)["alignment"] == {
        "group": "g", "maxDriftMs": 100, "driftMs": 200, "held": 1,
        "splits": {"slow": {"eventTimeMs": 100, "held": False}, "fast": {"eventTimeMs": 300, "held": True}},
    }  # fmt: skip
    query.freeze()
    query.run_to_the_end()
    assert query.has_read_everything()
    assert query.late(DRIFT_MS) == []


def test_a_split_whose_next_row_is_just_at_the_bound_is_shown_as_held() -> None:
    """No range of a source that seeks reaches the bound itself."""
    query = Query()
    stream = query.add(Times(silent=[0, 10], ahead=hour(0)))
    while query.batch():
        pass
    shown = stream.planner.lag(0)["alignment"]
    assert shown["splits"] == {"silent": {"eventTimeMs": 0, "held": False}, "ahead": {"eventTimeMs": 100, "held": True}}
    assert (shown["driftMs"], shown["held"]) == (DRIFT_MS, 1)


def test_without_alignment_the_same_input_is_late() -> None:
    """Guards the test above: its rows are late unless something is done about it."""
    world, times = Times(slow=hour(0), fast=hour(300)), []
    source = SeekingSource({}, world)
    planner, start, highest, late = StreamPlanner(source, source.schema()), dict(INITIAL), None, 0
    while (end := planner.plan(start, PlanLimits(max_rows=60), 0)) != start:
        splits = [split for task in planner.tasks(start, end, 0) for split in task]
        times = [world.times[each.split_id][n] or 0 for each in splits for n in range(each.position, each.stop or 0)]
        late += sum(highest is not None and time < highest - DRIFT_MS for time in times)
        highest, start = max([*times, highest or 0]), end
    assert late > 0


def test_the_bound_moves_over_a_gap_by_itself() -> None:
    """Every next row lies far beyond what was read."""
    query = Query()
    query.add(Times(a=[0, 1, 10**9, 10**9 + 1], b=[0, 10**9 + 50]))
    query.freeze()
    query.run_to_the_end()
    assert query.has_read_everything()
    assert query.batches[:2] == [[0, 1, 0], [10**9, 10**9 + 1, 10**9 + 50]]


def test_a_split_at_its_target_has_no_vote() -> None:
    """Else the query ends with data unread."""
    query = Query()
    world = Times(short=[0], long=hour(0, 200))
    query.add(world)
    query.freeze()
    query.batch(PlanLimits(max_rows=2))
    world.times["short"].append(5)  # comes later: belongs to a later run
    query.run_to_the_end()
    assert query.streams[0].rows.count(("short", 1)) == 0
    assert len(query.streams[0].rows) == 201


def test_rows_without_event_time_hold_nobody_back_and_are_read() -> None:
    query = Query()
    query.add(Times(a=[None] * 5, b=hour(0, 30), c=[0, None, 400]))
    query.freeze()
    query.run_to_the_end(PlanLimits(max_rows=3))
    assert query.has_read_everything()


def test_a_split_that_is_caught_up_votes_until_its_idle_timeout() -> None:
    query = Query()
    query.add(Times(a=[0], b=hour(0, 40)))
    query.streams[0].idle_timeout_ms = 1000
    query.streams[0].open()
    while query.batch():
        pass
    held_ms = query.now_ms
    assert max(query.batches[-1]) < DRIFT_MS
    query.now_ms = held_ms + 900
    assert not query.batch()
    query.now_ms = held_ms + 1100
    assert query.batch(), "after the time-out the others are read on"


class ArrivingSource(SeekingSource):
    """Rows come right after it was asked for event times."""

    def next_event_times(self, splits: Sequence[RangeSplit]) -> Mapping[str, int | None] | None:
        answers = super().next_event_times(splits)
        for name, rows in self.world.arriving.items():
            self.world.times[name] += rows
        self.world.arriving = {}
        return answers


def test_rows_that_come_while_all_are_idle_and_a_plan_is_made_are_aligned_too() -> None:
    query = Query()
    stream = query.add(Times(a=[0], b=[0]), ArrivingSource)
    stream.idle_timeout_ms = 1000
    stream.open()
    while query.batch():
        pass
    query.now_ms += 2000
    assert not query.batch()
    stream.world.arriving = {"a": hour(1000, 40), "b": hour(3000, 40)}
    for _ in range(40):
        query.batch()
        query.now_ms += 100
    assert query.has_read_everything()
    assert all(max(batch) - min(batch) <= DRIFT_MS for batch in query.batches if batch)
    assert query.late(DRIFT_MS) == []


def test_a_split_that_is_caught_up_holds_for_ever_without_a_timeout_and_a_warning_names_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    query = Query()
    query.add(Times(a=[0], b=hour(0, 40), never=[]))
    while query.batch():
        pass
    with caplog.at_level(logging.WARNING):
        for _ in range(10_000):
            assert not query.batch(), "nothing to read is not a batch, whatever the clock says"
    (warning,) = [each.getMessage() for each in caplog.records if each.name.startswith("headgate.microbatch.alignment")]
    assert "the split 'a' of counting holds" in warning and "scan.watermark.idle-timeout" in warning
    query.streams[0].world.times["a"].append(390)
    assert query.batch()


def test_a_plan_that_is_cut_by_alignment_does_not_wait_for_more_rows() -> None:
    """Else it would wait for rows that only come when it is read."""
    query = Query()
    query.add(Times(a=hour(0, 100)))
    assert query.batch()
    assert query.batch(PlanLimits(min_rows=50))
    while query.batch():
        pass
    query.streams[0].world.times["a"].append(1001)
    assert not query.batch(PlanLimits(min_rows=50)), "what is not cut waits"


def test_two_sources_of_one_query_are_aligned_from_the_first_batch_on() -> None:
    query = Query()
    query.add(Times(a=hour(1000)))
    query.add(Times(a=hour(0)))
    query.freeze()
    query.run_to_the_end()
    assert query.has_read_everything()
    assert query.late(DRIFT_MS) == []
    assert query.empty_batches == 0


@pytest.mark.parametrize("kind", [SeekingSource, LearningSource])
def test_a_restart_in_the_middle_goes_on_aligned(kind: type[LearningSource]) -> None:
    query = Query()
    query.add(Times(a=hour(0, step_ms=40), b=hour(0)), kind)
    query.add(Times(a=hour(50, step_ms=20)), kind)
    for _ in range(8):
        for _ in range(2 if kind is SeekingSource else 8):
            query.batch(PlanLimits(max_rows=3))
        for stream in query.streams:
            stream.member.leave()
        for stream in query.streams:
            stream.open()
    query.freeze()
    query.run_to_the_end(PlanLimits(max_rows=3))
    assert query.has_read_everything()
    # A learning source is a plan beyond at most, three rows of 40 ms, and after a restart it may be two.
    assert query.late(DRIFT_MS + (0 if kind is SeekingSource else 240)) == []


def test_a_learning_source_holds_back_who_is_ahead_by_at_most_one_plan() -> None:
    query = Query()
    query.add(Times(slow=hour(0), fast=hour(0, step_ms=40), faster=hour(0, step_ms=200)), LearningSource)
    query.freeze()
    query.run_to_the_end(PlanLimits(max_rows=3))
    assert query.has_read_everything()
    assert query.late(DRIFT_MS + 3 * 200) == []
    # Each becomes known by one plan of its own; then the fastest waits until the others are within its drift.
    assert {max(times) for times in query.batches[:3]} == {400, 80, 20}
    went_on = query.batches.index([600, 800, 1000])
    assert [300, 310, 320] in query.batches[:went_on], "the slowest was within the drift of 400 before"


def test_files_of_which_nothing_is_known_are_read_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the first rows of each before the others: the watermark would pass what is left of the first ones."""
    monkeypatch.setattr(RangeSplit, "remaining", lambda split: Remaining(file=split.split_id))
    query = Query()
    for _ in range(2):
        query.add(Times(**{f"f{n}": hour(500 * n) for n in range(6)}), LearningSource, finite="true")
    query.freeze()
    query.run_to_the_end(PlanLimits(max_rows=10))
    assert query.has_read_everything()
    assert query.late(DRIFT_MS + 100) == []


def test_a_file_is_not_begun_while_another_waits_for_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RangeSplit, "remaining", lambda split: Remaining(file=split.split_id))
    query = Query()
    ahead = query.add(Times(f0=hour(0, step_ms=40), f1=hour(2000)), LearningSource, finite="true")
    after = query.add(Times(a=hour(0)), LearningSource)
    query.freeze()
    while not any(name == "f1" for name, _ in ahead.rows):
        assert query.batch(PlanLimits(max_rows=5))
    assert len(after.rows) == 50, "until then f0 was held back, again and again"
    query.run_to_the_end(PlanLimits(max_rows=5))
    assert query.has_read_everything()


def test_a_seeking_source_waits_for_what_a_learning_one_has_planned_and_not_reported() -> None:
    """Whichever of them Spark asks first: what the learning one reads first may be of any time."""
    for kinds in ((SeekingSource, LearningSource), (LearningSource, SeekingSource)):
        query = Query()
        for kind in kinds:
            query.add(Times(a=hour(500) if kind is SeekingSource else hour(0)), kind)
        query.freeze()
        query.run_to_the_end(PlanLimits(max_rows=3))
        assert query.has_read_everything()
        assert query.late(DRIFT_MS + 30) == [], kinds


def test_reports_that_are_lost_cost_alignment_and_nothing_else() -> None:
    query = Query()
    query.add(Times(slow=hour(0), fast=hour(1000)), LearningSource)
    query.add(Times(a=hour(200)), SeekingSource)
    for stream in query.streams:
        stream.reports = False
    query.freeze()
    query.run_to_the_end(PlanLimits(max_rows=3))
    assert query.has_read_everything()


def test_reports_never_change_a_plan_that_stands_in_an_offset() -> None:
    query = Query()
    stream = query.add(Times(a=hour(0), b=hour(1000)), LearningSource)
    end = stream.planner.plan(stream.start, PlanLimits(max_rows=7), 0)
    before = stream.planner.tasks(stream.start, end, 0)
    stream.member.report({"a": 10**9, "b": -(10**9)})
    assert stream.planner.tasks(stream.start, end, 0) == before
    stream.open()
    assert stream.planner.tasks(stream.start, end, 0) == before


def test_a_lower_bound_that_is_far_too_low_delays_nobody_for_ever() -> None:
    query = Query()
    query.add(Times(a=[0, 10**6, 2 * 10**6], b=hour(50)), VagueSource)
    query.freeze()
    query.run_to_the_end()
    assert query.has_read_everything()


def test_a_query_that_is_held_by_another_one_waits_for_it_and_ends_after_it() -> None:
    membership = GroupMembership((), 0)
    after = Query(membership)
    after.add(Times(a=hour(0)))
    ahead = Query(membership, while_waiting=lambda: after.batch())
    ahead.add(Times(a=hour(2000)))
    after.freeze()
    ahead.freeze()
    after.batch()
    ahead.run_to_the_end()
    assert ahead.has_read_everything() and after.has_read_everything()
    assert ahead.empty_batches <= len(after.batches), "the other one's progress bounds the empty batches"


def test_a_query_under_available_now_passes_one_that_does_not_move(caplog: pytest.LogCaptureFixture) -> None:
    membership = GroupMembership((), 0)
    stuck = Query(membership)
    stuck.add(Times(a=hour(0, 5, 1000)))
    stuck.batch()
    query = Query(membership)
    query.add(Times(a=hour(100_000)))
    query.add(Times(a=hour(100_500)))
    query.freeze()
    with caplog.at_level(logging.WARNING):
        query.run_to_the_end()
    assert query.has_read_everything()
    assert query.late(DRIFT_MS) == [], "the sources of the query itself stay aligned"
    assert "continues without it" in caplog.text
    assert sum(stream.member.waited for stream in query.streams) <= 2


def test_a_query_that_stopped_holds_nobody() -> None:
    membership = GroupMembership((), 0)
    stopped = Query(membership)
    stopped.add(Times(a=hour(0)))
    stopped.batch()
    query = Query(membership)
    query.add(Times(a=hour(100_000)))
    query.batch()
    assert not query.batch(), "held"
    stopped.streams[0].member.leave()
    assert query.batch()


def test_what_is_not_assigned_and_earlier_is_pulled_whatever_there_is_to_read() -> None:
    """Files are pulled; a budget that is used up by later ones must not keep the earliest away."""

    class Pulled(SeekingSource):
        def create_enumerator(self, context: Any) -> Any:
            enumerator = super().create_enumerator(context)
            world = self.world

            def unassigned_event_time_ms() -> int | None:
                waiting = [world.times[each.split_id][0] for each in enumerator._pending]
                return min((time for time in waiting if time is not None), default=None)

            enumerator.unassigned_event_time_ms = unassigned_event_time_ms  # type: ignore[method-assign]
            return enumerator

    query = Query()
    query.add(Times(a=hour(1000), b=hour(2000), c=hour(0)), Pulled, pull="true", finite="true")
    query.batch(PlanLimits(max_rows=5))
    assert query.batches == [[0, 10, 20, 30, 40]]


def test_an_unaligned_offset_has_no_event_times_and_an_aligned_one_does() -> None:
    source = SeekingSource({}, Times(a=hour(0)))
    assert "event_times" not in StreamPlanner(source, source.schema()).plan(INITIAL, NO_LIMITS, 0)
    query = Query()
    query.add(Times(a=hour(0)))
    query.batch()
    assert query.streams[0].start["event_times"] == {"a": 100}


event_times = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-500, 500)), max_size=12),
    st.lists(st.sampled_from([0, 50, 99, 100, 101, 10**6, -(10**12), 2**62]), max_size=12).map(sorted),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_available_now_reads_everything_and_ends_whatever_splits_gaps_targets_and_limits(data: st.DataObject) -> None:
    query = Query()
    for _ in range(data.draw(st.integers(1, 3))):
        names = data.draw(st.sets(st.sampled_from("abcd"), max_size=4))
        world = Times(**{name: data.draw(event_times) for name in sorted(names)})
        kind = data.draw(st.sampled_from([SeekingSource, LearningSource, VagueSource]))
        stream = query.add(world, kind, pull=str(data.draw(st.booleans())).lower())
        stream.reports = data.draw(st.booleans())
    limits = PlanLimits(
        max_rows=data.draw(st.one_of(st.none(), st.integers(1, 5))), min_rows=data.draw(st.sampled_from([None, 4]))
    )
    for _ in range(data.draw(st.integers(0, 3))):
        query.batch(limits)  # before: an ordinary run, then a restart
        for stream in query.streams:
            stream.member.leave()
        for stream in query.streams:
            stream.open()
    query.freeze()
    query.run_to_the_end(limits)
    assert query.has_read_everything()


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_seeking_sources_drop_nothing_with_a_watermark_of_drift_and_disorder(data: st.DataObject) -> None:
    """Of any splits of any sources, each in order up to 40 ms: with limits, restarts, and rows that come meanwhile."""
    query = Query()
    for _ in range(data.draw(st.integers(1, 3))):
        times = {}
        for name in sorted(data.draw(st.sets(st.sampled_from("abc"), min_size=1))):
            now, rows = data.draw(st.integers(0, 2000)), []
            for _ in range(data.draw(st.integers(1, 15))):
                now += data.draw(st.sampled_from([0, 5, 60, 150, 900]))
                rows.append(now - data.draw(st.integers(0, 40)))
            times[name] = rows
        query.add(Times(**times))
    limits = PlanLimits(max_rows=data.draw(st.one_of(st.none(), st.integers(1, 5))))
    query.freeze()
    for _ in range(500):
        nexts = [time for stream in query.streams for time in stream.unread()]
        if not query.batch(limits):
            break
        if query.batches[-1]:
            # A vote may have moved within the round, to what is next after the plans before it.
            after = [time for stream in query.streams for time in stream.unread()]
            assert max(query.batches[-1]) < max(min(nexts), min(after, default=max(nexts))) + DRIFT_MS
    assert query.has_read_everything()
    assert query.late(DRIFT_MS + 40) == []
