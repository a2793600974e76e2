"""The watermark machine of one reader: the lessons of others by name, then all short histories against a model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import msgspec
import pytest

from headgate.errors import InvalidTransitionError
from headgate.machine import steps_of
from headgate.protocol.messages import SplitEventTime
from headgate.source import WatermarkStrategy
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task.watermarks import (
    Action,
    Blocked,
    EmitActive,
    EmitIdle,
    EmitWatermark,
    Event,
    IdleMarked,
    InputEnded,
    RowsEmitted,
    SplitAdded,
    SplitFinished,
    SplitPaused,
    SplitResumed,
    SplitVote,
    SplitVoteChanged,
    SplitWatermarks,
    TimePassed,
    UnassignedChanged,
    Unblocked,
    WatermarkEmitted,
    _Reader,
)
from tests.machines import Later, explore

STRATEGY = WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=10, idle_timeout_ms=100)


class Machine:
    """A machine that is checked after each event."""

    def __init__(
        self,
        strategy: WatermarkStrategy | None = STRATEGY,
        *,
        held: bool = False,
        bounded: bool = False,
        reports_votes: bool = False,
    ) -> None:
        self.machine = SplitWatermarks(strategy, held=held, bounded=bounded, reports_votes=reports_votes)

    def __call__(self, event: Event, now_ms: int = 0) -> list[Action]:
        actions = self.machine.handle(event, now_ms)
        self.machine.check()
        return actions


@pytest.fixture
def two() -> Machine:
    """Return a machine with the splits a and b, both without rows."""
    machine = Machine()
    assert machine(SplitAdded("a")) == [EmitActive()]
    assert machine(SplitAdded("b")) == []
    return machine


def test_the_watermark_is_the_highest_event_time_less_the_disorder() -> None:
    machine = Machine()
    machine(SplitAdded("a"))

    assert machine(RowsEmitted("a", 100)) == [EmitWatermark(90)]
    assert machine(RowsEmitted("a", 95)) == []
    assert machine(RowsEmitted("a", 101)) == [EmitWatermark(91)]


def test_the_minimum_over_all_splits_counts(two: Machine) -> None:
    assert two(RowsEmitted("a", 100)) == []
    assert two(RowsEmitted("b", 50)) == [EmitWatermark(40)]
    assert two(RowsEmitted("b", 200)) == [EmitWatermark(90)]
    assert two(RowsEmitted("b", 300)) == []


def test_no_split_no_vote() -> None:
    machine = Machine()
    assert machine(TimePassed(), 10**9) == []

    machine(SplitAdded("a"), 10**9)
    machine(RowsEmitted("a", 100), 10**9)
    assert machine(SplitFinished("a"), 10**9) == [EmitIdle()]


def test_a_finished_split_holds_nobody_back(two: Machine) -> None:
    two(RowsEmitted("a", 100))
    two(RowsEmitted("b", 50))

    assert two(SplitFinished("b")) == [EmitWatermark(90)]
    assert two(SplitFinished("b")) == []


def test_a_split_that_starts_late_holds_the_watermark_but_does_not_move_it_back(two: Machine) -> None:
    two(RowsEmitted("a", 100))
    two(RowsEmitted("b", 100))

    assert two(SplitAdded("c")) == []
    assert two(RowsEmitted("a", 200)) == []
    assert two(RowsEmitted("b", 200)) == []
    assert two(RowsEmitted("c", 50)) == []
    assert two(RowsEmitted("c", 150)) == [EmitWatermark(140)]


def test_a_silent_split_becomes_idle_and_its_rows_make_it_active_again(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(RowsEmitted("b", 50), 0)
    two(RowsEmitted("a", 200), 60)

    assert two(TimePassed(), 99) == []
    assert two(TimePassed(), 100) == [EmitWatermark(190)]
    assert two(RowsEmitted("b", 60), 110) == []
    assert two(RowsEmitted("a", 300), 120) == []
    assert two(RowsEmitted("b", 250), 130) == [EmitWatermark(240)]


def test_a_reader_whose_splits_are_all_idle_is_idle_and_never_at_the_maximum(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(RowsEmitted("b", 50), 0)

    assert two(TimePassed(), 100) == [EmitIdle()]
    assert two(RowsEmitted("a", 110), 150) == [EmitActive(), EmitWatermark(100)]


def test_arithmetic_saturates() -> None:
    machine = Machine()
    machine(SplitAdded("a"))

    assert machine(RowsEmitted("a", MIN_WATERMARK_MS + 5)) == [EmitWatermark(MIN_WATERMARK_MS)]
    assert machine(RowsEmitted("a", 2**70)) == [EmitWatermark(MAX_WATERMARK_MS)]


def test_a_paused_split_does_not_become_idle_and_its_clock_goes_on_when_resumed(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(RowsEmitted("b", 50), 0)
    two(SplitPaused("b"), 40)
    two(RowsEmitted("a", 200), 1000)

    assert two(TimePassed(), 1000) == []
    two(SplitResumed("b"), 1000)
    assert two(TimePassed(), 1059) == []
    assert two(TimePassed(), 1060) == [EmitWatermark(190)]


def test_an_idle_split_can_be_paused_and_resumed(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(TimePassed(), 100)
    two(SplitPaused("a"), 110)
    two(SplitResumed("a"), 120)

    assert two(RowsEmitted("a", 120), 130) == [EmitActive(), EmitWatermark(110)]


def test_time_under_back_pressure_does_not_count_as_silence(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(RowsEmitted("b", 50), 0)
    two(Blocked(), 50)

    assert two(TimePassed(), 10_000) == []
    two(Unblocked(), 10_000)
    assert two(TimePassed(), 10_049) == []
    assert two(TimePassed(), 10_050) == [EmitIdle()]


def test_only_time_in_which_a_split_was_asked_in_vain_is_silence(two: Machine) -> None:
    two(RowsEmitted("a", 100), 0)
    two(RowsEmitted("b", 50), 0)

    assert two(TimePassed({"a": 99, "b": 99}), 10_000) == []
    assert two(TimePassed({"a": 99}), 20_000) == []
    assert two(TimePassed({"a": 99, "b": 100}), 20_000) == [EmitWatermark(90)]
    two(RowsEmitted("a", 200), 20_000)
    assert two(TimePassed({"a": 20_000, "b": 20_000}), 20_050) == []
    assert two(TimePassed({"a": 20_100, "b": 20_100}), 20_100) == [EmitIdle()]


@pytest.mark.parametrize(
    ("blocked", "paused", "counted_until"),
    [((20, 50), (30, 60), 20), ((20, 50), (10, 30), 10), ((20, 50), (10, 60), 10), ((10, 60), (20, 50), 10)],
)
def test_time_in_which_a_split_is_blocked_and_paused_is_left_out_once(
    blocked: tuple[int, int], paused: tuple[int, int], counted_until: int
) -> None:
    machine = Machine()
    machine(SplitAdded("a"), 0)
    machine(RowsEmitted("a", 100), 0)
    steps: list[tuple[int, Event]] = [
        (blocked[0], Blocked()), (blocked[1], Unblocked()), (paused[0], SplitPaused("a")),
        (paused[1], SplitResumed("a")),
    ]  # fmt: skip
    for at_ms, event in sorted(steps, key=lambda step: step[0]):
        machine(event, at_ms)
        assert machine(TimePassed(), at_ms) == []
    idle_at_ms = 100 - counted_until + max(blocked[1], paused[1])
    assert machine(TimePassed(), idle_at_ms - 1) == []
    assert machine(TimePassed(), idle_at_ms) == [EmitIdle()]


def test_what_the_source_emits_replaces_the_strategy_on_that_split(two: Machine) -> None:
    two(RowsEmitted("b", 1000))
    assert two(WatermarkEmitted("a", 5)) == [EmitWatermark(5)]

    assert two(RowsEmitted("a", 500)) == []
    assert two(TimePassed(), 99) == []
    assert two(WatermarkEmitted("a", 3)) == []
    assert two(WatermarkEmitted("a", 7), 99) == [EmitWatermark(7)]


def test_a_split_marked_idle_by_its_source_is_active_again_with_its_next_watermark(two: Machine) -> None:
    two(RowsEmitted("b", 100))

    assert two(IdleMarked("a")) == [EmitWatermark(90)]
    assert two(RowsEmitted("a", 5)) == []
    assert two(RowsEmitted("b", 200)) == [EmitWatermark(190)]
    assert two(WatermarkEmitted("a", 250)) == []
    assert two(RowsEmitted("b", 300)) == [EmitWatermark(250)]


def test_rows_without_event_time_only_show_that_the_split_is_alive(two: Machine) -> None:
    two(RowsEmitted("b", 100), 0)

    assert two(RowsEmitted("a", None), 90) == []
    assert two(TimePassed(), 110) == []  # b is idle now, a has no watermark
    assert two(TimePassed(), 190) == [EmitIdle()]


def test_without_a_strategy_only_the_sources_own_watermarks_count() -> None:
    machine = Machine(None)
    machine(SplitAdded("a"))

    assert machine(RowsEmitted("a", 100)) == []
    assert machine(TimePassed(), 10**9) == []
    assert machine(WatermarkEmitted("a", 5)) == [EmitWatermark(5)]


def test_a_source_that_ends_at_once_still_emits_its_final_watermark() -> None:
    machine = Machine()

    assert machine(InputEnded()) == [EmitActive(), EmitWatermark(MAX_WATERMARK_MS)]
    assert machine(TimePassed(), 10**9) == []


def test_pausing_unknown_or_finished_splits_does_nothing(two: Machine) -> None:
    assert two(SplitPaused("never heard of")) == []
    two(SplitFinished("a"))
    assert two(SplitPaused("a")) == []
    assert two(SplitResumed("a")) == []


@pytest.mark.parametrize("event", [RowsEmitted("c", 1), WatermarkEmitted("c", 1), IdleMarked("c")])
def test_rows_of_an_unknown_split_are_our_bug(two: Machine, event: Event) -> None:
    with pytest.raises(InvalidTransitionError, match="the split was not added"):
        two(event)


@pytest.mark.parametrize(
    "event",
    [RowsEmitted("a", 1), WatermarkEmitted("a", 1), IdleMarked("a"), SplitAdded("c"), InputEnded()],
    ids=lambda event: type(event).__name__,
)
def test_nothing_is_read_after_the_end(two: Machine, event: Event) -> None:
    two(InputEnded())

    with pytest.raises(InvalidTransitionError, match="is ended and cannot take"):
        two(event)


def test_what_comes_late_after_the_end_is_ignored(two: Machine) -> None:
    two(InputEnded())

    for event in (
        UnassignedChanged(5), UnassignedChanged(None), SplitPaused("a"), SplitResumed("a"), SplitFinished("a"),
        Blocked(), Unblocked(), TimePassed(),
    ):  # fmt: skip
        assert two(event, 10**9) == []


def test_no_watermark_passes_unassigned_work(two: Machine) -> None:
    assert two(UnassignedChanged(75)) == []
    two(RowsEmitted("a", 100))
    assert two(RowsEmitted("b", 100)) == [EmitWatermark(75)]  # exactly: no earlier row follows, whatever the disorder
    assert two(RowsEmitted("b", 200)) == []
    assert two(UnassignedChanged(80)) == [EmitWatermark(80)]
    assert two(UnassignedChanged(10)) == []  # given back by a reader that failed: what was emitted stays
    assert two(RowsEmitted("a", 200)) == []
    assert two(UnassignedChanged(None)) == [EmitWatermark(190)]


def test_a_reader_that_waits_for_its_next_split_is_not_idle_while_work_is_unassigned() -> None:
    machine = Machine()
    assert machine(UnassignedChanged(50)) == [EmitActive(), EmitWatermark(50)]
    machine(SplitAdded("a"))
    machine(RowsEmitted("a", 100))

    assert machine(SplitFinished("a")) == []
    assert machine(TimePassed(), 10**9) == []
    assert machine(SplitAdded("b"), 10**9) == []
    assert machine(UnassignedChanged(None), 10**9) == []  # b was the last one
    assert machine(SplitFinished("b"), 10**9) == [EmitIdle()]


def test_unassigned_work_that_may_be_at_any_time_holds_the_watermark_where_it_is(two: Machine) -> None:
    two(UnassignedChanged(MIN_WATERMARK_MS))
    two(RowsEmitted("a", 100))
    assert two(RowsEmitted("b", 100)) == []
    assert two(UnassignedChanged(95)) == [EmitWatermark(90)]
    assert two(UnassignedChanged(MIN_WATERMARK_MS)) == []
    two(RowsEmitted("a", 200))
    assert two(RowsEmitted("b", 200)) == []
    assert two(UnassignedChanged(None)) == [EmitWatermark(190)]


@pytest.mark.parametrize(
    "first", [TimePassed(), SplitAdded("a"), Blocked(), SplitPaused("a")], ids=lambda event: type(event).__name__
)
def test_a_held_reader_is_waited_for_from_its_first_event_on_until_it_learns_what_is_unassigned(first: Event) -> None:
    machine = Machine(held=True)
    assert machine(first) == [EmitActive()]
    machine(SplitAdded("a"))
    assert machine(RowsEmitted("a", 100)) == []
    assert machine(TimePassed(), 99) == []

    assert machine(UnassignedChanged(None), 99) == [EmitWatermark(90)]


def test_a_held_reader_is_not_idle_though_all_its_splits_are() -> None:
    machine = Machine(held=True)
    machine(SplitAdded("a"))
    assert machine(TimePassed(), 100) == []
    assert machine(RowsEmitted("a", 100), 110) == []
    assert machine(TimePassed(), 210) == []

    assert machine(UnassignedChanged(None), 220) == [EmitIdle()]


def test_a_held_reader_without_a_split_or_unassigned_work_becomes_idle() -> None:
    machine = Machine(held=True)
    machine(TimePassed())
    assert machine(UnassignedChanged(None)) == [EmitIdle()]

    notified_at_once = Machine(held=True)
    assert notified_at_once(UnassignedChanged(None)) == []  # nobody waits for it yet


def test_a_bounded_reader_keeps_its_place_until_it_ends_once_it_has_no_split() -> None:
    """Between its last split and its end others would take the final watermark of those that ended for theirs."""
    machine = Machine(held=True, bounded=True)
    machine(SplitAdded("a"))
    machine(RowsEmitted("a", 100))
    assert machine(UnassignedChanged(None)) == [EmitWatermark(90)]
    assert machine(SplitFinished("a")) == []
    assert machine(SplitAdded("b")) == []
    assert machine(RowsEmitted("b", 120)) == [EmitWatermark(110)]
    assert machine(TimePassed(), 100) == [EmitIdle()]  # a split that falls silent is another matter
    assert machine(SplitFinished("b"), 100) == [EmitActive()]
    assert machine(InputEnded(), 100) == [EmitWatermark(MAX_WATERMARK_MS)]


def test_a_bounded_reader_is_waited_for_from_its_first_event_on() -> None:
    machine = Machine(bounded=True)
    machine.machine.check()
    assert machine(TimePassed()) == [EmitActive()]


def test_a_held_reader_that_ends_before_it_is_notified_still_emits_its_final_watermark() -> None:
    machine = Machine(held=True)
    assert machine(InputEnded()) == [EmitActive(), EmitWatermark(MAX_WATERMARK_MS)]


def test_votes_are_reported_whenever_they_change_after_what_is_emitted() -> None:
    machine = Machine(reports_votes=True)
    assert machine(SplitAdded("a")) == [EmitActive()]  # whoever adds it knows that it has none yet
    machine(SplitAdded("b"))

    assert machine(RowsEmitted("a", 100)) == [SplitVoteChanged("a", 90, False)]
    assert machine(RowsEmitted("a", 95), 50) == []
    assert machine(TimePassed(), 100) == [EmitWatermark(90), SplitVoteChanged("b", None, True)]
    assert machine(TimePassed(), 150) == [EmitIdle(), SplitVoteChanged("a", 90, True)]
    assert machine(RowsEmitted("a", None), 160) == [EmitActive(), SplitVoteChanged("a", 90, False)]
    assert machine(RowsEmitted("b", 60), 170) == [SplitVoteChanged("b", 50, False)]
    assert machine(WatermarkEmitted("b", 120), 180) == [SplitVoteChanged("b", 120, False)]
    assert machine(IdleMarked("b"), 190) == [SplitVoteChanged("b", 120, True)]
    assert machine(SplitFinished("b"), 200) == []
    assert machine(InputEnded(), 210) == [EmitWatermark(MAX_WATERMARK_MS)]


def test_it_says_of_each_split_how_far_it_is(two: Machine) -> None:
    two(RowsEmitted("a", 100), 90)
    two(TimePassed(), 100)
    two(SplitPaused("a"), 100)
    assert two.machine.splits() == {
        "a": SplitEventTime(watermark_ms=90, paused=True), "b": SplitEventTime(idle=True),
    }  # fmt: skip

    two(SplitResumed("a"), 110)
    two(SplitFinished("b"), 110)
    assert two.machine.splits() == {"a": SplitEventTime(watermark_ms=90)}


class Model:
    """The same rules, slowly: the minimum is found from all that ever happened."""

    def __init__(self) -> None:
        self.splits: dict[str, tuple[int | None, bool]] = {}
        self.own: set[str] = set()
        self.unassigned: list[int | None] = []
        self.emitted: int | None = None

    def handle(self, event: Event) -> tuple[int | None, bool]:
        """Return the highest watermark emitted so far, and whether the reader is idle."""
        match event:
            case SplitAdded(split_id):
                self.splits.setdefault(split_id, (None, False))
            case RowsEmitted(split_id, timestamp_ms) if split_id not in self.own:
                watermark = self.splits[split_id][0]
                if timestamp_ms is not None:
                    watermark = max(timestamp_ms - 10, timestamp_ms - 10 if watermark is None else watermark)
                self.splits[split_id] = (watermark, False)
            case WatermarkEmitted(split_id, timestamp_ms):
                watermark = self.splits[split_id][0]
                self.splits[split_id] = (max(timestamp_ms, timestamp_ms if watermark is None else watermark), False)
                self.own.add(split_id)
            case IdleMarked(split_id):
                self.splits[split_id] = (self.splits[split_id][0], True)
                self.own.add(split_id)
            case SplitFinished(split_id):
                self.splits.pop(split_id, None)
                self.own.discard(split_id)
            case UnassignedChanged(event_time_ms):
                self.unassigned = [event_time_ms] if event_time_ms is not None else []
                if event_time_ms == MIN_WATERMARK_MS:
                    self.unassigned = [None]
        voting = [watermark for watermark, idle in self.splits.values() if not idle] + self.unassigned
        if voting and None not in voting:
            lowest = min(watermark for watermark in voting if watermark is not None)
            self.emitted = lowest if self.emitted is None else max(lowest, self.emitted)
        return self.emitted, not voting


ALPHABET: tuple[Event, ...] = tuple(
    event
    for split_id in "ab"
    for event in (
        SplitAdded(split_id),
        RowsEmitted(split_id, 20 if split_id == "a" else 30),
        RowsEmitted(split_id, 40),
        WatermarkEmitted(split_id, 25),
        IdleMarked(split_id),
        SplitFinished(split_id),
    )
)


def test_every_history_of_five_events_agrees_with_the_model() -> None:
    compared = 0
    for history in itertools.product(ALPHABET, repeat=5):
        machine, model = Machine(), Model()
        emitted: int | None = None
        idle = True
        for event in history:
            known = not isinstance(event, RowsEmitted | WatermarkEmitted | IdleMarked) or event.split_id in model.splits
            if not known:
                break
            for action in machine(event):
                if isinstance(action, EmitWatermark):
                    assert emitted is None or action.timestamp_ms > emitted, history
                    emitted = action.timestamp_ms
                else:
                    idle = isinstance(action, EmitIdle)
            assert (emitted, idle) == model.handle(event), history
            compared += 1
    assert compared > 100_000


def test_every_history_with_unassigned_work_agrees_with_the_model_and_all_votes_are_reported() -> None:
    alphabet: tuple[Event, ...] = (
        *(SplitAdded("a"), RowsEmitted("a", 20), RowsEmitted("a", 40), IdleMarked("a"), SplitFinished("a")),
        *(SplitAdded("b"), RowsEmitted("b", 30)),
        *(UnassignedChanged(when) for when in (15, 35, MIN_WATERMARK_MS, None)),
    )
    compared = 0
    for history in itertools.product(alphabet, repeat=5):
        machine, model = Machine(held=True, reports_votes=True), Model()
        model.unassigned = [None]
        emitted: int | None = None
        idle = True
        reported: dict[str, tuple[int | None, bool]] = {}
        for event in history:
            if isinstance(event, RowsEmitted | IdleMarked) and event.split_id not in model.splits:
                break
            for action in machine(event):
                match action:
                    case EmitWatermark(timestamp_ms):
                        assert emitted is None or timestamp_ms > emitted, history
                        emitted = timestamp_ms
                    case SplitVoteChanged(split_id, watermark_ms, is_idle):
                        assert reported[split_id] != (watermark_ms, is_idle), history
                        reported[split_id] = (watermark_ms, is_idle)
                    case _:
                        idle = isinstance(action, EmitIdle)
            if isinstance(event, SplitAdded):
                reported.setdefault(event.split_id, (None, False))
            if isinstance(event, SplitFinished):
                reported.pop(event.split_id, None)
            assert (emitted, idle) == model.handle(event), history
            assert reported == model.splits, history
            compared += 1
    assert compared > 100_000


def test_the_table_of_a_split_is_what_it_does() -> None:
    def events(split: SplitVote) -> Iterator[Event | Later]:
        yield from (RowsEmitted("a", at_ms) for at_ms in (None, 20, 40))
        yield from (WatermarkEmitted("a", at_ms) for at_ms in (25, 50))
        yield from (IdleMarked("a"), SplitPaused("a"), SplitResumed("a"), Unblocked())
        yield from (TimePassed({}), Later(TimePassed(), by_ms=100))

    explore(lambda: SplitVote("a", _Reader(10, 100), 0), events, depth=5)


class Made(msgspec.Struct, frozen=True):
    """A reader's machine is made."""

    held: bool
    bounded: bool
    reports_votes: bool


class AnyReader:
    """A machine that is made by the first event."""

    def __init__(self) -> None:
        self.machine: SplitWatermarks | None = None

    def handle(self, event: Event | Made, now_ms: int) -> list[Action]:
        if isinstance(event, Made):
            self.machine = SplitWatermarks(
                STRATEGY, held=event.held, bounded=event.bounded, reports_votes=event.reports_votes
            )
            return []
        assert self.machine is not None
        return self.machine.handle(event, now_ms)

    def check(self) -> None:
        if self.machine is not None:
            self.machine.check()


def test_the_table_of_the_reader_is_what_it_does() -> None:
    def events(any_reader: AnyReader) -> Iterator[Event | Made | Later]:
        if any_reader.machine is None:
            yield from (Made(*flags) for flags in itertools.product((False, True), repeat=3))
            return
        for split_id in "ab":
            yield from (SplitAdded(split_id), SplitFinished(split_id), SplitPaused(split_id), SplitResumed(split_id))
            yield from (RowsEmitted(split_id, at_ms) for at_ms in (None, 20, 40, MAX_WATERMARK_MS + 10))
            yield from (WatermarkEmitted(split_id, 30), IdleMarked(split_id))
        yield from (UnassignedChanged(at_ms) for at_ms in (None, MIN_WATERMARK_MS, 15, 35))
        yield from (Blocked(), Unblocked(), InputEnded(), TimePassed({}), Later(TimePassed(), by_ms=100))

    explore(
        AnyReader,
        events,
        steps=steps_of(SplitWatermarks.TRANSITIONS),
        state=lambda each, _: None if each.machine is None else each.machine.state,
        depth=8,
        ignore=("_now_ms",),
    )
