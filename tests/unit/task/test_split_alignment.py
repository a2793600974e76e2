"""The alignment of one reader: its table, FLIP-217's policy in all its transitions, and any history against a model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.errors import InvalidTransitionError
from headgate.source import WatermarkAlignment
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task.split_alignment import (
    Action,
    AllowedAnnounced,
    Event,
    InputEnded,
    PauseOrResumeSplits,
    PauseSource,
    ReportWatermark,
    ResumeSource,
    SplitAdded,
    SplitAlignment,
    SplitFinished,
    SplitHeld,
    SplitMoved,
    TimePassed,
    UnassignedChanged,
)
from tests.machines import Later, explore

DRIFT, INTERVAL = 100, 1000


def machine() -> SplitAlignment:
    return SplitAlignment(WatermarkAlignment(group="g", max_drift_ms=DRIFT, update_interval_ms=INTERVAL))


class Reader:
    """A machine that is checked after each event, and with what it ordered so far carried out."""

    def __init__(self, *splits: str, others_ms: int | None = None) -> None:
        self.machine = machine()
        self.reports: list[ReportWatermark] = []
        self.now_ms = 0
        for split_id in splits:
            self(SplitAdded(split_id))
        if others_ms is not None:
            self.announce(others_ms)

    def __call__(self, event: Event) -> list[Action]:
        """Return what is to be paused and resumed; reports are kept apart."""
        actions = self.machine.handle(event, self.now_ms)
        self.machine.check()
        self.reports += [each for each in actions if isinstance(each, ReportWatermark)]
        return [each for each in actions if not isinstance(each, ReportWatermark)]

    def announce(self, others_ms: int) -> list[Action]:
        return self(AllowedAnnounced(min(others_ms, MAX_WATERMARK_MS - DRIFT) + DRIFT, others_ms))

    def reported(self, event: Event | None = None) -> list[ReportWatermark]:
        """Return what is reported with an event."""
        self.reports.clear()
        if event is not None:
            self(event)
        return list(self.reports)


# The policy: pausing and resuming.


def test_with_one_split_the_source_is_paused_and_not_the_split() -> None:
    reader = Reader("a", others_ms=0)
    assert reader(SplitMoved("a", DRIFT)) == []
    assert reader(SplitMoved("a", DRIFT + 1)) == [PauseSource("a")]
    assert reader.machine.paused == {"a"}
    assert reader.announce(0) == []
    assert reader.announce(1) == [ResumeSource("a")]
    assert reader.machine.paused == frozenset()


def test_with_several_splits_exactly_those_ahead_are_paused() -> None:
    reader = Reader("a", "b", "c", others_ms=MAX_WATERMARK_MS)
    for split_id in "abc":
        reader(SplitMoved(split_id, 0))
    assert reader(SplitMoved("b", 50)) == []
    assert reader(SplitMoved("c", 150)) == [PauseOrResumeSplits(pause=("c",), resume=())]
    assert reader(SplitMoved("a", 60)) == [PauseOrResumeSplits(pause=(), resume=("c",))]
    assert reader(SplitMoved("b", 200)) == [PauseOrResumeSplits(pause=("b",), resume=())]
    assert reader(SplitMoved("c", 300)) == [PauseOrResumeSplits(pause=("c",), resume=())]
    assert reader(SplitMoved("a", 250)) == [PauseOrResumeSplits(pause=(), resume=("b", "c"))]


def test_the_readers_own_progress_moves_the_bound_without_an_announcement() -> None:
    reader = Reader("a", "b", others_ms=1000)
    reader(SplitMoved("a", 0))
    assert reader.machine.bound_ms == MIN_WATERMARK_MS + DRIFT  # b has no row yet: who knows where it begins
    reader(SplitMoved("b", 10))
    assert reader.machine.bound_ms == DRIFT
    reader(SplitMoved("a", 500))
    assert reader.machine.bound_ms == 10 + DRIFT
    reader(SplitMoved("b", 2000))
    assert reader.machine.bound_ms == 500 + DRIFT
    reader(SplitMoved("a", 1500))
    assert reader.machine.bound_ms == 1000 + DRIFT


def test_until_the_first_announcement_a_split_that_has_a_watermark_waits() -> None:
    reader = Reader("a")
    assert reader.machine.bound_ms is None
    assert reader(SplitMoved("a", 5)) == [PauseSource("a")]
    assert reader.announce(5) == [ResumeSource("a")]


def test_until_the_first_announcement_each_of_several_splits_may_begin_and_then_waits() -> None:
    reader = Reader("a", "b")
    assert reader(SplitMoved("a", 5)) == [PauseOrResumeSplits(pause=("a",), resume=())]
    assert reader(SplitMoved("b", 500)) == [PauseOrResumeSplits(pause=("b",), resume=())]
    assert reader.announce(MAX_WATERMARK_MS) == [PauseOrResumeSplits(pause=(), resume=("a",))]


def test_nobody_overtakes_a_split_before_its_first_row() -> None:
    reader = Reader("a", "b", others_ms=MAX_WATERMARK_MS)
    assert reader(SplitMoved("a", 5)) == [PauseOrResumeSplits(pause=("a",), resume=())]
    assert reader(SplitMoved("b", 10)) == [PauseOrResumeSplits(pause=(), resume=("a",))]


@pytest.mark.parametrize("ahead", [SplitMoved("a", 500), SplitHeld("a", 500)], ids=["by its watermark", "held"])
def test_a_second_split_turns_the_pause_of_the_source_into_that_of_the_first_split(ahead: Event) -> None:
    reader = Reader("a", others_ms=0)
    reader(ahead)
    assert reader(SplitAdded("b")) == [ResumeSource("a"), PauseOrResumeSplits(pause=("a",), resume=())]
    assert reader(SplitMoved("b", 10)) == []
    assert reader.announce(400) == []
    assert reader(SplitMoved("b", 400)) == [PauseOrResumeSplits(pause=(), resume=("a",))]


def test_when_one_split_is_left_its_own_pause_becomes_that_of_the_source() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 500))
    assert reader(SplitFinished("a")) == [PauseOrResumeSplits(pause=(), resume=("b",)), PauseSource("b")]
    assert reader.announce(400) == [ResumeSource("b")]


def test_when_the_slowest_split_finishes_those_that_waited_for_it_alone_are_resumed() -> None:
    reader = Reader("a", "b", "c", others_ms=200)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 150))
    reader(SplitMoved("c", 500))
    assert reader.machine.paused == {"b", "c"}
    assert reader(SplitFinished("a")) == [PauseOrResumeSplits(pause=(), resume=("b",))]
    assert reader(SplitFinished("b")) == [PauseOrResumeSplits(pause=(), resume=("c",)), PauseSource("c")]


def test_a_source_whose_paused_split_finishes_is_resumed_so_that_the_next_one_can_be_read() -> None:
    reader = Reader("a", others_ms=0)
    reader(SplitMoved("a", 500))
    assert reader(SplitFinished("a")) == [ResumeSource("a")]
    assert reader(SplitAdded("b")) == []
    assert reader(SplitMoved("b", 600)) == [PauseSource("b")]


def test_a_paused_split_that_finishes_is_not_resumed_and_its_id_may_come_again() -> None:
    reader = Reader("a", "b", "c", others_ms=0)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 0))
    reader(SplitMoved("c", 500))
    assert reader(SplitFinished("c")) == []
    assert reader.machine.paused == frozenset()
    assert reader(SplitAdded("c")) == [PauseOrResumeSplits(pause=("a", "b"), resume=())]
    assert reader(SplitMoved("c", 500)) == [PauseOrResumeSplits(pause=("c",), resume=("a", "b"))]


def test_an_idle_split_has_no_vote() -> None:
    reader = Reader("a", "b", others_ms=MAX_WATERMARK_MS)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 500))
    assert reader(SplitMoved("a", 0, idle=True)) == [PauseOrResumeSplits(pause=(), resume=("b",))]
    assert reader(SplitMoved("a", 0)) == [PauseOrResumeSplits(pause=("b",), resume=())]


def test_an_idle_split_that_is_paused_is_resumed_like_any_other() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 500))
    reader(SplitMoved("b", 500, idle=True))
    assert reader.machine.paused == {"b"}
    assert reader.announce(400) == []
    assert reader(SplitMoved("a", 400)) == [PauseOrResumeSplits(pause=(), resume=("b",))]


def test_where_all_are_idle_the_bound_is_the_maximum_and_everything_is_resumed() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 300))
    reader(SplitMoved("b", 500))
    reader(SplitMoved("a", 300, idle=True))
    reader(SplitMoved("b", 500, idle=True))
    assert reader.machine.bound_ms == DRIFT
    assert reader.announce(MAX_WATERMARK_MS) == [PauseOrResumeSplits(pause=(), resume=("a", "b"))]
    assert reader.machine.bound_ms == MAX_WATERMARK_MS


def test_the_bound_moves_back_with_a_reader_that_reads_again() -> None:
    reader = Reader("a", "b", others_ms=300)
    reader(SplitMoved("a", 350))
    reader(SplitMoved("b", 300))
    assert reader.machine.paused == frozenset()
    assert reader.announce(100) == [PauseOrResumeSplits(pause=("a", "b"), resume=())]
    assert reader.announce(200) == [PauseOrResumeSplits(pause=(), resume=("b",))]
    assert reader.announce(250) == [PauseOrResumeSplits(pause=(), resume=("a",))]


def test_what_is_announced_of_the_own_part_is_older_than_what_the_reader_knows() -> None:
    reader = Reader("a", others_ms=MAX_WATERMARK_MS)
    reader(SplitMoved("a", 1000))
    assert reader(AllowedAnnounced(max_watermark_ms=50 + DRIFT, others_ms=2000)) == []
    assert reader.machine.bound_ms == 1000 + DRIFT


def test_arithmetic_saturates() -> None:
    reader = Reader("a", others_ms=MAX_WATERMARK_MS - 1)
    assert reader(SplitMoved("a", MAX_WATERMARK_MS)) == []
    assert reader.machine.bound_ms == MAX_WATERMARK_MS
    reader(SplitAdded("b"))
    assert reader.machine.bound_ms == MIN_WATERMARK_MS + DRIFT
    assert reader(SplitHeld("b", 2**70)) == [PauseOrResumeSplits(pause=(), resume=("a",))]


# Rows instead of batches.


def test_a_held_split_waits_until_its_next_row_may_go() -> None:
    reader = Reader("a", others_ms=0)
    assert reader(SplitHeld("a", 300)) == [PauseSource("a")]
    assert reader(SplitMoved("a", 80)) == []  # what precedes that row is emitted after the question
    assert reader.announce(199) == []
    assert reader.announce(200) == [ResumeSource("a")]
    assert reader(SplitHeld("a", 300)) == []
    assert reader(SplitMoved("a", 300)) == []
    assert reader(SplitMoved("a", 301)) == [PauseSource("a")]


def test_of_several_splits_those_that_are_held_are_paused() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 0))
    assert reader(SplitHeld("b", 300)) == [PauseOrResumeSplits(pause=("b",), resume=())]
    assert reader(SplitMoved("a", 250)) == [PauseOrResumeSplits(pause=("a",), resume=())]  # others are at 0
    assert reader.announce(150) == [PauseOrResumeSplits(pause=(), resume=("a",))]
    assert reader.announce(200) == [PauseOrResumeSplits(pause=(), resume=("b",))]


def test_a_held_split_votes_with_its_next_row_so_that_a_gap_does_not_stop_the_slowest() -> None:
    reader = Reader("a", others_ms=MAX_WATERMARK_MS)
    reader(SplitMoved("a", 0))
    assert reader.reported(SplitHeld("a", 10_000)) == [ReportWatermark(10_000, "a")]
    assert reader.machine.bound_ms == 10_000 + DRIFT
    assert reader.machine.paused == frozenset()


def test_a_gap_in_all_splits_is_passed_by_the_earliest_next_row() -> None:
    reader = Reader("a", "b", others_ms=MAX_WATERMARK_MS)
    reader(SplitMoved("a", 0))
    reader(SplitMoved("b", 0))
    assert reader(SplitHeld("a", 10_000)) == [PauseOrResumeSplits(pause=("a",), resume=())]
    assert reader(SplitHeld("b", 9_950)) == [PauseOrResumeSplits(pause=(), resume=("a",))]
    assert reader.machine.bound_ms == 9_950 + DRIFT


def test_a_held_split_keeps_its_vote_though_rows_before_the_gap_are_still_emitted() -> None:
    reader = Reader("a", others_ms=MAX_WATERMARK_MS)
    reader(SplitMoved("a", 0))
    reader(SplitHeld("a", 10_000))
    assert reader.reported(SplitMoved("a", 50)) == []
    assert reader.machine.bound_ms == 10_000 + DRIFT


def test_a_row_that_does_not_raise_the_watermark_holds_nothing() -> None:
    reader = Reader("a", others_ms=0)
    reader(SplitMoved("a", 100))
    assert reader(SplitHeld("a", 100)) == []
    assert reader(SplitHeld("a", 50)) == []
    assert reader.machine.bound_ms == DRIFT


def test_a_split_that_is_held_before_its_first_row_has_a_vote_all_the_same() -> None:
    reader = Reader("a", "b", others_ms=MAX_WATERMARK_MS)
    assert reader(SplitHeld("a", 700)) == [PauseOrResumeSplits(pause=("a",), resume=())]
    assert reader(SplitHeld("b", 650)) == [PauseOrResumeSplits(pause=(), resume=("a",))]


# Reports.


def test_a_vote_that_comes_or_goes_is_reported_at_once() -> None:
    reader = Reader(others_ms=0)
    assert reader.reported(SplitAdded("a")) == [ReportWatermark(MIN_WATERMARK_MS, "a")]
    assert reader.reported(SplitMoved("a", 5)) == [ReportWatermark(5, "a")]
    assert reader.reported(SplitMoved("a", 5, idle=True)) == [ReportWatermark(None, "")]
    assert reader.reported(SplitMoved("a", 6)) == [ReportWatermark(6, "a")]
    assert reader.reported(SplitFinished("a")) == [ReportWatermark(None, "")]


def test_the_first_announcement_is_answered_though_the_reader_has_no_vote() -> None:
    """The group may count what it reported before it failed."""
    reader = Reader()
    assert reader.reported(TimePassed()) == []
    assert reader.reported(AllowedAnnounced(5 + DRIFT, 5)) == [ReportWatermark(None, "")]
    assert reader.reported(AllowedAnnounced(6 + DRIFT, 6)) == []


def test_the_end_is_reported_though_the_reader_never_had_a_vote() -> None:
    reader = Reader()
    assert reader.reported(InputEnded()) == [ReportWatermark(None, "")]

    drained = Reader("a", "b", others_ms=0)
    drained(SplitMoved("a", 500))
    assert drained.reported(InputEnded()) == [ReportWatermark(None, "")]
    assert drained.machine.paused == frozenset()


def test_a_quarter_of_the_drift_is_reported_at_once_and_less_after_the_interval() -> None:
    reader = Reader("a", others_ms=0)
    reader(SplitMoved("a", 0))
    assert reader.reported(SplitMoved("a", 24)) == []
    assert reader.machine.next_time_ms() == INTERVAL
    assert reader.reported(SplitMoved("a", 25)) == [ReportWatermark(25, "a")]
    assert reader.machine.next_time_ms() is None
    reader.now_ms = 300
    assert reader.reported(SplitMoved("a", 30)) == []
    reader.now_ms = INTERVAL - 1
    assert reader.reported(TimePassed()) == []
    reader.now_ms = INTERVAL
    assert reader.reported(TimePassed()) == [ReportWatermark(30, "a")]
    assert reader.reported(TimePassed()) == []


def test_a_minimum_that_falls_is_reported_at_once() -> None:
    reader = Reader("a", others_ms=0)
    reader(SplitMoved("a", 100))
    reader(SplitAdded("b"))
    reader(SplitMoved("b", 99))
    assert reader.reports[-1] == ReportWatermark(99, "b")


def test_only_the_minimum_is_reported() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 10))
    reader(SplitMoved("b", 20))
    assert reader.reported(SplitMoved("b", 5000)) == []
    assert reader.machine.next_time_ms() is None


def test_it_is_reported_which_split_is_the_slowest_though_its_watermark_is_that_of_another_before() -> None:
    reader = Reader("a", "b", others_ms=0)
    reader(SplitMoved("a", 10))
    reader(SplitMoved("b", 10))
    assert reader.reports[-1] == ReportWatermark(10, "b")  # it was the last one without rows
    assert reader.reported(SplitMoved("b", 50)) == []
    reader.now_ms = INTERVAL
    assert reader.reported(TimePassed()) == [ReportWatermark(10, "a")]


def test_without_drift_every_move_is_reported_at_once() -> None:
    aligned = SplitAlignment(WatermarkAlignment(group="g", max_drift_ms=0))
    aligned.handle(SplitAdded("a"), 0)
    aligned.handle(AllowedAnnounced(0, 0), 0)
    assert aligned.handle(SplitMoved("a", 1), 0) == [PauseSource("a"), ReportWatermark(1, "a")]
    assert aligned.handle(SplitMoved("a", 2), 0) == [ReportWatermark(2, "a")]


# What cannot be.


@pytest.mark.parametrize("event", [SplitMoved("q", 1), SplitHeld("q", 1)], ids=lambda event: type(event).__name__)
def test_rows_of_an_unknown_split_are_our_bug(event: Event) -> None:
    reader = Reader("a")
    with pytest.raises(InvalidTransitionError, match="the split was not added"):
        reader(event)
    reader(SplitFinished("a"))
    with pytest.raises(InvalidTransitionError, match=r"SplitAdded.*SplitFinished") as caught:
        reader(SplitMoved("a", 1))
    assert len(caught.value.history) == 2


@pytest.mark.parametrize(
    "event",
    [SplitAdded("b"), SplitMoved("a", 1), SplitHeld("a", 1), InputEnded()],
    ids=lambda event: type(event).__name__,
)
def test_nothing_is_read_after_the_end(event: Event) -> None:
    reader = Reader("a")
    reader(InputEnded())
    with pytest.raises(InvalidTransitionError, match="is ended and cannot take"):
        reader(event)


def test_a_reader_between_two_splits_votes_with_what_is_not_assigned() -> None:
    """It is about to read the next of that: nobody may run ahead of it meanwhile, or ever stop for nothing."""
    reader = Reader("a")
    reader.announce(0)
    reader(SplitMoved("a", 100))
    reader(UnassignedChanged(700))
    assert reader.reported(SplitFinished("a")) == [ReportWatermark(700, "")]
    assert reader.reported(SplitAdded("b")) == [ReportWatermark(MIN_WATERMARK_MS, "b")]
    reader(UnassignedChanged(None))
    assert reader.reported(SplitFinished("b")) == [ReportWatermark(None, "")]
    assert reader.reported(UnassignedChanged(900)) == [ReportWatermark(900, "")]
    assert reader.reported(InputEnded()) == [ReportWatermark(None, "")]


def events(made: SplitAlignment) -> Iterator[Event | Later]:
    """Yield what may happen: watermarks only grow, and a split is asked for the same row until it went."""
    happen: list[Event] = [each(split_id) for split_id in "abc" for each in (SplitAdded, SplitFinished)]
    for split_id, split in made._splits.items():
        if split_id == "c":
            continue
        at_ms, held_ms = split.watermark_ms, split.next_watermark_ms
        happen += [SplitMoved(split_id, ms) for ms in (0, 20, 90, 110) if at_ms is None or ms > at_ms]
        happen += [SplitMoved(split_id, at_ms, not split.idle)]
        happen += [SplitHeld(split_id, ms) for ms in ((15, 300) if held_ms is None else (held_ms,))]
    happen += [AllowedAnnounced(ms + DRIFT, ms) for ms in (0, 60, MAX_WATERMARK_MS - DRIFT)]
    if made.state == "without split":
        happen += [UnassignedChanged(ms) for ms in (MIN_WATERMARK_MS, 40, 45)]
    if made._unassigned_ms is None and (len(made._splits) < 2 or made.bound_ms == DRIFT):
        happen += [UnassignedChanged(40)]
    elif made._paused and made._unassigned_ms is not None:
        happen += [UnassignedChanged(None)]
    happen += [InputEnded(), TimePassed()]
    for each in happen:
        yield each
        yield Later(each, by_ms=INTERVAL)


def test_the_table_is_what_the_machine_does() -> None:
    explore(machine, events, depth=7, limit=5000, ignore=("_reported_at_ms",))


# Any history.

IDS = st.sampled_from(["", "a", "b", "c"])  # the empty one is a reader's that has no output per split
TIMES = st.one_of(st.integers(-50, 400), st.sampled_from([MIN_WATERMARK_MS, MAX_WATERMARK_MS, 10_000]))


class AnyHistory(RuleBasedStateMachine):
    """The machine beside the rules themselves, computed anew from everything that is known."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.machine = machine()
        self.splits: dict[str, tuple[int | None, bool, int | None]] = {}
        self.others_ms: int | None = None
        self.unassigned_ms: int | None = None
        # What whoever carries out the actions has: the reader's pauses, and those that idleness clocks know.
        self.source_paused = False
        self.splits_paused: set[str] = set()
        self.clocks_paused: set[str] = set()
        self.reported: ReportWatermark | None = None
        self.reported_at_ms = 0

    def vote(self) -> tuple[int | None, set[str]]:
        votes = {
            split_id: next_ms if next_ms is not None else MIN_WATERMARK_MS if at_ms is None else at_ms
            for split_id, (at_ms, idle, next_ms) in self.splits.items()
            if not idle
        }
        lowest = min(votes.values(), default=None if self.splits else self.unassigned_ms)
        return lowest, {split_id for split_id, vote in votes.items() if vote == lowest}

    def notify(self, event: Event) -> None:
        known = set(self.splits)
        actions = self.machine.handle(event, self.now_ms)
        self.machine.check()
        match event:
            case SplitAdded(split_id):
                self.splits.setdefault(split_id, (None, False, None))
            case SplitFinished(split_id):
                self.splits.pop(split_id, None)
                self.splits_paused.discard(split_id)
                self.clocks_paused.discard(split_id)
            case SplitMoved(split_id, at_ms, idle):
                next_ms = self.splits[split_id][2]
                done = next_ms is not None and at_ms is not None and at_ms >= next_ms
                self.splits[split_id] = (at_ms, idle, None if done else next_ms)
            case SplitHeld(split_id, next_ms):
                at_ms, idle, _ = self.splits[split_id]
                if at_ms is None or next_ms > at_ms:
                    self.splits[split_id] = (at_ms, idle, next_ms)
            case AllowedAnnounced(_, others_ms):
                self.others_ms = others_ms
            case UnassignedChanged(watermark_ms):
                self.unassigned_ms = watermark_ms
        for action in actions:
            self.carry_out(action, known)
        self.check_reports(actions)

    def carry_out(self, action: Action, known: set[str]) -> None:
        match action:
            case PauseSource(split_id):
                assert not self.source_paused
                self.source_paused = True
                self.clocks_paused.add(split_id)
            case ResumeSource(split_id):
                assert self.source_paused
                self.source_paused = False
                self.clocks_paused.discard(split_id)
            case PauseOrResumeSplits(pause, resume):
                assert pause or resume
                assert set(pause).isdisjoint(resume)
                assert set(pause) <= set(self.splits) - self.splits_paused
                assert set(resume) <= self.splits_paused
                assert set(pause) | set(resume) <= known | set(self.splits)
                self.splits_paused |= set(pause)
                self.splits_paused -= set(resume)
                self.clocks_paused |= set(pause)
                self.clocks_paused -= set(resume)

    def check_reports(self, actions: list[Action]) -> None:
        lowest, slowest = self.vote()
        reports = [each for each in actions if isinstance(each, ReportWatermark)]
        assert len(reports) <= 1
        before, late = self.reported, self.now_ms - self.reported_at_ms >= INTERVAL
        if before is None:
            due = lowest is not None or self.others_ms is not None
        elif lowest is None or before.watermark_ms is None:
            due = lowest != before.watermark_ms
        else:
            rose_ms = lowest - before.watermark_ms
            due = rose_ms < 0 or 4 * rose_ms >= DRIFT or (late and rose_ms > 0)
            if not due and late and reports:
                due = before.slowest not in slowest or reports[0].slowest != before.slowest
        assert bool(reports) == due or (late and before is not None and before.slowest not in slowest and reports)
        if reports:
            assert reports[0].watermark_ms == lowest
            assert reports[0].slowest in (slowest or {""})
            assert reports[0] != before
            self.reported, self.reported_at_ms = reports[0], self.now_ms

    @rule(split_id=IDS)
    def add(self, split_id: str) -> None:
        self.notify(SplitAdded(split_id))

    @rule(split_id=IDS)
    def finish(self, split_id: str) -> None:
        self.notify(SplitFinished(split_id))

    @precondition(lambda self: self.splits)
    @rule(data=st.data(), at_ms=st.none() | TIMES, idle=st.booleans())
    def move(self, data: st.DataObject, at_ms: int | None, idle: bool) -> None:
        self.notify(SplitMoved(data.draw(st.sampled_from(sorted(self.splits))), at_ms, idle))

    @precondition(lambda self: self.splits)
    @rule(data=st.data(), next_ms=TIMES)
    def hold(self, data: st.DataObject, next_ms: int) -> None:
        self.notify(SplitHeld(data.draw(st.sampled_from(sorted(self.splits))), next_ms))

    @rule(others_ms=TIMES)
    def announce(self, others_ms: int) -> None:
        self.notify(AllowedAnnounced(0, others_ms))

    @rule(watermark_ms=st.none() | TIMES)
    def find_work(self, watermark_ms: int | None) -> None:
        self.notify(UnassignedChanged(watermark_ms))

    @rule(by_ms=st.sampled_from([1, 400, INTERVAL]))
    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.notify(TimePassed())

    @rule()
    def wait_until_something_is_due(self) -> None:
        due_ms = self.machine.next_time_ms()
        if due_ms is None:
            assert self.reported is None or self.vote()[0] == self.reported.watermark_ms
            return
        before = self.reported
        self.now_ms = max(self.now_ms, due_ms)
        self.notify(TimePassed())
        assert self.reported != before, "woken for nothing"

    @invariant()
    def exactly_those_ahead_are_paused_in_the_way_of_the_policy(self) -> None:
        bound: int | None = None
        if self.others_ms is not None:
            votes = [each for each in (self.vote()[0] if self.splits else None, self.others_ms) if each is not None]
            bound = max(MIN_WATERMARK_MS, min(MAX_WATERMARK_MS, min(votes) + DRIFT))
        assert self.machine.bound_ms == bound
        reaches = {
            split_id: at_ms if next_ms is None else next_ms for split_id, (at_ms, _, next_ms) in self.splits.items()
        }
        ahead = {
            split_id for split_id, reach in reaches.items() if reach is not None and (bound is None or reach > bound)
        }
        assert self.machine.paused == ahead == self.clocks_paused
        assert self.source_paused == (len(self.splits) == 1 and bool(ahead))
        assert self.splits_paused == (ahead if len(self.splits) > 1 else set())


AnyHistory.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
