"""An alignment group as its driver sees it: bounds, who is notified and when, who is waited for, and warnings."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headgate.coordinator.alignment import alignment_group
from headgate.coordinator.alignment.alignment_group import (
    Action,
    AlignmentGroup,
    Announce,
    Event,
    OthersMoved,
    ReaderJoined,
    ReaderLost,
    ReaderPaused,
    ReaderReported,
    ShareMinimum,
    TimePassed,
    WarnOfAbsence,
    WarnOfHolder,
)
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from tests.machines import Later, explore

MINUTE_MS = 60_000


class Group:
    """A group that is checked after each event."""

    def __init__(self, parallelism: int = 2, **drifts: int) -> None:
        self.machine = AlignmentGroup("g", drifts or {"a": 10}, parallelism=parallelism)
        self.now_ms = 0

    def __call__(self, *events: Event) -> list[Action]:
        """Handle events and return what follows from the last."""
        actions: list[Action] = []
        for event in events:
            actions = self.machine.handle(event, self.now_ms)
            self.machine.check()
        return actions

    def bounds(self, *events: Event) -> dict[tuple[str, int], tuple[int, int]]:
        """Return who receives which bound and which minimum of the others."""
        return {
            (each.source, each.subtask): (each.max_watermark_ms, each.others_ms)
            for each in self(*events)
            if isinstance(each, Announce)
        }


def joined(subtask: int, source: str = "a") -> ReaderJoined:
    return ReaderJoined(source, subtask)


def reported(subtask: int, watermark_ms: int | None, source: str = "a") -> ReaderReported:
    return ReaderReported(source, subtask, watermark_ms, "" if watermark_ms is None else f"{source}-{subtask}")


def group_at(*watermarks_ms: int | None, drift_ms: int = 10) -> Group:
    """Return a group of one source whose readers have reported these."""
    group = Group(len(watermarks_ms), a=drift_ms)
    group(*(joined(subtask) for subtask in range(len(watermarks_ms))))
    group(*(reported(subtask, watermark_ms) for subtask, watermark_ms in enumerate(watermarks_ms)))
    return group


# -- the bound ------------------------------------------------------------------------------------------------------


def test_the_bound_is_the_lowest_watermark_and_the_drift_and_each_receives_the_lowest_of_the_others() -> None:
    group = group_at(100, 200, 300)
    assert group.bounds(reported(0, 150)) == {("a", 0): (160, 200), ("a", 1): (160, 150), ("a", 2): (160, 150)}
    assert group.bounds(reported(0, 400)) == {("a", 0): (210, 200), ("a", 1): (210, 300), ("a", 2): (210, 200)}
    assert group.machine.minimum_ms == 200


def test_what_does_not_move_the_minimum_is_announced_to_nobody() -> None:
    group = group_at(100, 200)
    assert group(reported(1, 300)) == []
    assert group(reported(1, 250)) == []
    assert group(reported(0, 100)) == []
    assert group(ReaderLost("a", 1), TimePassed()) == []


def test_sources_of_a_group_may_have_different_drifts() -> None:
    group = Group(1, a=10, b=1000)
    group(joined(0, "a"), joined(0, "b"), reported(0, 500, "a"))
    assert group.bounds(reported(0, 70, "b")) == {("a", 0): (80, 70), ("b", 0): (1070, 500)}


def test_a_newcomer_receives_the_bound_at_once() -> None:
    group = group_at(100, 200)
    group(ReaderLost("a", 1))
    assert group(joined(1)) == [Announce("a", 1, 110, 100)]


def test_without_a_split_there_is_no_vote() -> None:
    """FLINK-32414: a subtask without a split held the group for ever."""
    group = group_at(100, None)
    assert group.machine.minimum_ms == 100
    assert group.bounds(reported(0, None)) == {
        ("a", 0): (MAX_WATERMARK_MS, MAX_WATERMARK_MS),
        ("a", 1): (MAX_WATERMARK_MS, MAX_WATERMARK_MS),
    }


def test_an_idle_reader_that_is_back_counts_again() -> None:
    """FLINK-32496: the watermark of an idle source became the highest there is."""
    group = group_at(None, 500)
    assert group.bounds(reported(0, 100)) == {("a", 0): (110, 500), ("a", 1): (110, 100)}


def test_a_split_without_any_watermark_lets_nobody_pass() -> None:
    group = group_at(100, 200)
    assert group.bounds(reported(1, MIN_WATERMARK_MS)) == {
        ("a", 0): (MIN_WATERMARK_MS + 10, MIN_WATERMARK_MS),
        ("a", 1): (MIN_WATERMARK_MS + 10, 100),
    }


def test_the_bound_saturates() -> None:
    """FLINK-31632."""
    group = group_at(MAX_WATERMARK_MS - 5, drift_ms=10)
    assert group.machine.minimum_ms == MAX_WATERMARK_MS - 5
    assert group.bounds(joined(0)) == {("a", 0): (MAX_WATERMARK_MS, MAX_WATERMARK_MS)}


def test_who_holds_the_minimum_hears_when_the_others_fall_below_what_it_received() -> None:
    """It goes by its own progress and by the others as it knows them: it would run ahead of them."""
    group = group_at(100, 500)
    assert group(reported(1, 120)) == [Announce("a", 0, 110, 120)]


def test_until_all_readers_have_reported_nobody_runs_ahead() -> None:
    """Readers come one after the other, and the first has read a lot when the last one says where it begins."""
    group = Group(2, a=10)
    assert group(joined(0)) == [
        Announce("a", 0, MIN_WATERMARK_MS + 10, MIN_WATERMARK_MS),
        ShareMinimum(MIN_WATERMARK_MS),
    ]
    assert group(reported(0, 7_000)) == []
    assert group(joined(1)) == [Announce("a", 1, MIN_WATERMARK_MS + 10, 7_000)]
    assert group.bounds(reported(1, 100)) == {("a", 0): (110, 100), ("a", 1): (110, 7_000)}


def test_before_the_first_reader_came_other_queries_are_not_held() -> None:
    group = Group(2, a=10)
    assert group(OthersMoved(50), TimePassed()) == []
    assert group.machine.minimum_ms == 50


# -- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_reader_keeps_its_vote_until_it_reports_anew() -> None:
    group = group_at(100, 200)
    group(ReaderLost("a", 0))
    assert group(reported(0, 900)) == [], "of the execution that failed"
    assert group.machine.minimum_ms == 100
    assert group(joined(0)) == [Announce("a", 0, 110, 200)]
    assert group.machine.minimum_ms == 100
    assert group.bounds(reported(0, 40)) == {("a", 0): (50, 200), ("a", 1): (50, 40)}


def test_a_reader_that_is_back_without_a_split_holds_nobody() -> None:
    group = group_at(100, 200)
    group(ReaderLost("a", 0), joined(0))
    assert group.bounds(reported(0, None)) == {("a", 0): (210, 200), ("a", 1): (210, MAX_WATERMARK_MS)}


def test_who_is_away_receives_nothing_and_gets_the_newest_bound_when_it_is_back() -> None:
    group = group_at(100, 200)
    group(ReaderLost("a", 1))
    assert list(group.bounds(reported(0, 150))) == [("a", 0)]
    assert group(joined(1)) == [Announce("a", 1, 160, 150)]


# -- several queries ------------------------------------------------------------------------------------------------


def test_other_queries_take_part_through_their_minimum() -> None:
    group = group_at(100, 200)
    assert group.bounds(OthersMoved(60)) == {("a", 0): (70, 60), ("a", 1): (70, 60)}
    assert group(reported(0, 110)) == [ShareMinimum(110)], "what is shared is this query's own"
    assert group.bounds(OthersMoved(None)) == {("a", 0): (120, 200), ("a", 1): (120, 110)}


def two_queries(*watermarks_ms: int) -> list[Group]:
    """Return two queries of one reader each that exchange what they share."""
    queries = [Group(1, a=10), Group(1, a=10)]
    for number, watermark_ms in enumerate(watermarks_ms):
        notify(queries, number, joined(0))
        notify(queries, number, reported(0, watermark_ms))
    return queries


def notify(queries: list[Group], number: int, event: Event) -> dict[int, int]:
    """Pass one of two queries an event, and the other what it shares; return the bounds announced in each."""
    bounds: dict[int, int] = {}
    for action in queries[number](event):
        if isinstance(action, ShareMinimum):
            bounds |= notify(queries, 1 - number, OthersMoved(action.watermark_ms))
        elif isinstance(action, Announce):
            bounds[number] = action.max_watermark_ms
    return bounds


def test_two_queries_wait_for_each_other() -> None:
    queries = two_queries(100, 500)
    assert [query.machine.minimum_ms for query in queries] == [100, 100]
    assert notify(queries, 0, reported(0, 450)) == {0: 460, 1: 460}
    assert notify(queries, 0, reported(0, 800)) == {0: 510, 1: 510}
    assert notify(queries, 1, reported(0, 790)) == {0: 800, 1: 800}


def test_when_one_of_two_queries_stops_the_other_reads_on() -> None:
    """Invariant 4: whoever waits for nobody who is still there goes on."""
    queries = two_queries(100, 500)
    assert queries[1].machine.minimum_ms == 100
    assert queries[1].bounds(OthersMoved(None)) == {("a", 0): (510, MAX_WATERMARK_MS)}


# -- very many readers ----------------------------------------------------------------------------------------------


def test_with_thousands_of_readers_a_rise_is_announced_a_little_later_and_in_one_go() -> None:
    """Each of them is the slowest in turn: every move to everybody would be a hundred million messages."""
    count = 10_000
    group = AlignmentGroup("g", {"a": 1_000}, parallelism=count)
    for subtask in range(count):
        group.handle(joined(subtask), 0)
    for subtask in range(count):
        group.handle(reported(subtask, subtask), 0)
    announced = sum(
        isinstance(action, Announce)
        for subtask in range(count)
        for action in group.handle(reported(subtask, 100_000 + subtask), 1)
    )
    assert announced <= count
    due_ms = group.next_time_ms()
    assert due_ms is not None and due_ms <= 1_000
    actions = group.handle(TimePassed(), due_ms)
    assert {each.max_watermark_ms for each in actions if isinstance(each, Announce)} == {101_000}
    assert len(actions) == count
    (first, *rest) = group.handle(reported(17, 5), due_ms)
    assert isinstance(first, Announce) and len(rest) == count, "a fall is announced at once"


def test_who_comes_while_a_rise_is_put_off_reads_no_further_than_those_who_do_not_know_of_it() -> None:
    """The minimum may fall again, to no less than what the others know: nothing is announced, and nobody is too far."""
    group = group_at(*[100] * 60)
    group.now_ms = MINUTE_MS
    assert len(group.bounds(reported(0, 99))) == 60
    assert [group(reported(subtask, 500)) for subtask in range(60)][-1] == [ShareMinimum(500)]
    assert group.bounds(ReaderLost("a", 7), joined(7)) == {("a", 7): (109, 99)}
    assert group(reported(8, 300)) == [ShareMinimum(300)]
    assert len(group.bounds(reported(8, 90))) == 60, "a fall below what was announced is announced at once"


def test_who_held_the_minimum_hears_of_a_fall_of_the_others_while_a_rise_is_put_off() -> None:
    group = group_at(100, *[500] * 59)
    group.now_ms = MINUTE_MS
    assert group.bounds(reported(0, 99))["a", 0] == (109, 500)
    assert group(reported(0, 900)) == [ShareMinimum(500)]
    assert group.bounds(reported(8, 300)) == {("a", 0): (109, 99)}
    assert group(reported(8, 200)) == [ShareMinimum(200)], "it knows of less"


def test_with_few_readers_a_rise_is_announced_at_once() -> None:
    group = group_at(*range(40))
    for watermark_ms in range(41, 60):
        assert len(group.bounds(reported(watermark_ms - 41, watermark_ms))) == 40


# -- warnings -------------------------------------------------------------------------------------------------------


def warned(group: Group, at_ms: int) -> list[WarnOfHolder]:
    group.now_ms = at_ms
    return [each for each in group(TimePassed()) if isinstance(each, WarnOfHolder)]


def test_a_split_that_holds_others_for_a_minute_is_warned_of_every_minute() -> None:
    group = group_at(100, 110)
    assert group.machine.next_time_ms() == MINUTE_MS
    assert warned(group, MINUTE_MS - 1) == []
    assert warned(group, MINUTE_MS) == [WarnOfHolder("a", 0, "a-0", MINUTE_MS)]
    assert warned(group, MINUTE_MS + 1) == []
    assert group.machine.next_time_ms() == 2 * MINUTE_MS
    assert warned(group, 2 * MINUTE_MS) == [WarnOfHolder("a", 0, "a-0", 2 * MINUTE_MS)]
    group(reported(0, 105))
    assert group.machine.next_time_ms() == 3 * MINUTE_MS


def test_a_group_in_which_nobody_waits_is_quiet() -> None:
    group = group_at(100, 109)
    assert warned(group, MINUTE_MS) == []
    group(reported(1, 110))
    assert warned(group, MINUTE_MS + 10_000) == [WarnOfHolder("a", 0, "a-0", MINUTE_MS + 10_000)]


def test_who_waits_in_the_same_reader_is_waited_for_too() -> None:
    group = group_at(100)
    group(ReaderPaused("a", 0, True))
    assert warned(group, MINUTE_MS) == [WarnOfHolder("a", 0, "a-0", MINUTE_MS)]
    group(ReaderPaused("a", 0, False))
    assert warned(group, 2 * MINUTE_MS) == []


def test_a_split_without_any_watermark_is_warned_of_by_its_name() -> None:
    group = group_at(MIN_WATERMARK_MS, 100)
    assert warned(group, MINUTE_MS) == [WarnOfHolder("a", 0, "a-0", MINUTE_MS)]


def test_a_reader_that_never_reported_is_warned_of() -> None:
    group = Group(2, a=10)
    group(joined(0), joined(1), reported(0, 100))
    assert warned(group, MINUTE_MS) == [WarnOfHolder("a", 1, "", MINUTE_MS)]


@pytest.mark.parametrize(("others_ms", "expected"), [(50, ("", 0, "")), (200, ("a", 0, "a-0"))])
def test_another_query_may_be_who_holds_or_who_waits(others_ms: int, expected: tuple[str, int, str]) -> None:
    group = group_at(100)
    group(OthersMoved(others_ms))
    assert warned(group, MINUTE_MS) == [WarnOfHolder(*expected, MINUTE_MS)]


# -- while nobody is here ---------------------------------------------------------------------------------------------


def test_others_wait_for_a_query_whose_readers_failed_where_it_stood_but_not_for_ever() -> None:
    group = group_at(100)
    assert group(ReaderLost("a", 0), ReaderLost("a", 1)) == []
    group.now_ms += 5 * MINUTE_MS - 1
    assert ShareMinimum(None) not in group(TimePassed())
    group.now_ms += 1
    assert group.machine.next_time_ms() == group.now_ms
    assert group(TimePassed())[:2] == [ShareMinimum(None), WarnOfAbsence(5 * MINUTE_MS)]
    assert group(OthersMoved(700)) == []
    for _ in range(3):
        group.now_ms += MINUTE_MS
        assert group(TimePassed()) == [], "it holds nobody any more"
    assert ShareMinimum(100) in group(joined(1)), "its vote stays what it was"
    group.now_ms += 10 * MINUTE_MS
    assert ShareMinimum(None) not in group(TimePassed()), "one reader is here"


def test_what_an_earlier_run_shared_is_void_when_no_reader_comes() -> None:
    group = Group()
    assert group(TimePassed()) == []
    group.now_ms = 5 * MINUTE_MS
    assert group(TimePassed()) == [ShareMinimum(None), WarnOfAbsence(5 * MINUTE_MS)]
    assert group(TimePassed()) == []
    assert ShareMinimum(MIN_WATERMARK_MS) in group(joined(0))


# -- its table ------------------------------------------------------------------------------------------------------


def test_the_table_is_what_the_machine_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alignment_group, "_ANNOUNCEMENTS_PER_MS", 1)  # so that two readers are very many

    def events(machine: AlignmentGroup) -> Iterator[Event | Later]:
        happen: list[Event] = [TimePassed(), OthersMoved(None), OthersMoved(20), OthersMoved(300)]
        for subtask in range(2):
            happen += [joined(subtask), ReaderLost("a", subtask), ReaderPaused("a", subtask, True)]
            happen += [reported(subtask, at_ms) for at_ms in (None, MIN_WATERMARK_MS, 50, 200)]
        for event in happen:
            yield event
            yield Later(event, by_ms=MINUTE_MS)
        yield Later(TimePassed(), by_ms=5 * MINUTE_MS)

    explore(
        lambda: AlignmentGroup("g", {"a": 10}, parallelism=2), events, depth=8, limit=2500,
        ignore=("_moved_at_ms", "_look_at_ms", "_quiet_until_ms", "_heap", "slowest"), now_ms=1,
    )  # fmt: skip


# -- any order ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_in_any_order_everybody_receives_the_truth_in_the_end(seed: int) -> None:
    """The shortest way to a wrong bound is a heap that forgot somebody: `check` compares with all votes each time."""
    chosen = random.Random(seed)
    parallelism = chosen.choice([1, 2, 3, 60])
    group = Group(parallelism, a=10, b=25)
    announced: dict[tuple[str, int], Announce] = {}
    here: set[tuple[str, int]] = set()
    votes: list[int | None] = [None, MIN_WATERMARK_MS, MAX_WATERMARK_MS, *range(0, 100, 9)]
    for _ in range(400):
        source, subtask = chosen.choice("ab"), chosen.randrange(parallelism)
        events: list[Event] = [
            ReaderJoined(source, subtask),
            *[ReaderReported(source, subtask, chosen.choice(votes), "s")] * 5,
            ReaderLost(source, subtask),
            OthersMoved(chosen.choice(votes)),
            TimePassed(),
        ]
        event = chosen.choice(events)
        if isinstance(event, ReaderJoined):
            here.add((source, subtask))
        if isinstance(event, ReaderLost):
            here.discard((source, subtask))
        group.now_ms += chosen.choice([0, 0, 1, 7])
        announced |= {(each.source, each.subtask): each for each in group(event) if isinstance(each, Announce)}
    late = [(source, subtask) for source in "ab" for subtask in range(parallelism) if (source, subtask) not in here]
    for key in late:
        announced |= {
            (each.source, each.subtask): each for each in group(ReaderJoined(*key)) if isinstance(each, Announce)
        }
    group.now_ms += 1_000
    announced |= {(each.source, each.subtask): each for each in group(TimePassed()) if isinstance(each, Announce)}
    minimum_ms = group.machine.minimum_ms
    assert announced.keys() == here.union(late)
    for key in announced:
        drift_ms = {"a": 10, "b": 25}[key[0]]
        expected = MAX_WATERMARK_MS if minimum_ms is None else min(MAX_WATERMARK_MS, minimum_ms + drift_ms)
        assert announced[key].max_watermark_ms == expected
