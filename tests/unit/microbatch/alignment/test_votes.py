"""Who votes, and how far it lets others go: the rows of the table, and what others got wrong, by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headgate.microbatch.alignment.votes import SplitVotes, bound_ms, earliest_of
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS


def votes(*splits: str, idle_timeout_ms: int | None = None) -> SplitVotes:
    made = SplitVotes(100, idle_timeout_ms)
    made.keep(splits)
    return made


def test_no_split_no_vote() -> None:
    """FLINK-32414: a reader without splits must hold nobody."""
    assert votes().votes(0, frozen=False) == {}
    assert earliest_of({}, [None]) is None
    assert votes().bound_ms(None) is None


def test_a_new_split_and_one_that_never_had_a_row_have_no_vote() -> None:
    made = votes("new", "empty")
    made.nothing_to_read("empty", 0)
    assert made.votes(0, frozen=False) == {}
    assert made.within(["new", "empty"], -(10**9)) == ["new", "empty"]


def test_a_readable_split_votes_with_its_next_row_and_one_without_a_time_does_not() -> None:
    made = votes("a", "b")
    made.next_row("a", 5)
    made.next_row("b", 3)
    assert made.votes(0, frozen=False) == {"a": 5, "b": 3}
    made.next_row("b", None)
    assert made.votes(0, frozen=False) == {"a": 5}
    assert made.readable() == ["a", "b"]


def test_a_silent_split_is_idle_after_its_timeout_and_never_at_the_maximum() -> None:
    """FLINK-32496: idle means no vote, and the next row resumes it where it was."""
    made = votes("a", idle_timeout_ms=50)
    made.next_row("a", 5)
    made.nothing_to_read("a", 1000)
    assert made.votes(1049, frozen=False) == {"a": 5}
    assert made.votes(1050, frozen=False) == {}
    made.nothing_to_read("a", 2000)
    assert made.votes(2000, frozen=False) == {}, "still silent since the first time"
    made.next_row("a", 6)
    assert made.votes(2000, frozen=False) == {"a": 6}


def test_a_silent_split_votes_for_ever_without_a_timeout_but_not_under_available_now() -> None:
    made = votes("a")
    made.next_row("a", 5)
    made.nothing_to_read("a", 0)
    assert made.votes(10**15, frozen=False) == {"a": 5}
    assert made.votes(0, frozen=True) == {}


def test_what_is_reported_only_grows_and_finished_splits_are_ignored() -> None:
    made = votes("a")
    made.highest_read("a", 7)
    made.highest_read("a", 6)
    made.highest_read("gone", 1)
    assert made.event_times() == {"a": 7}
    made.keep([])
    assert made.event_times() == {}


def test_event_time_zero_is_a_time() -> None:
    made = votes("a")
    made.highest_read("a", 0)
    made.highest_read("a", -5)
    assert made.event_times() == {"a": 0}


@given(st.integers(MIN_WATERMARK_MS, MAX_WATERMARK_MS), st.integers(0, 2**63 - 1))
def test_the_bound_saturates_and_lets_the_earliest_row_pass(earliest_ms: int, drift_ms: int) -> None:
    """FLINK-31632: the allowed watermark overflowed."""
    found = bound_ms(earliest_ms, drift_ms)
    assert MIN_WATERMARK_MS <= found <= MAX_WATERMARK_MS
    assert found > earliest_ms or earliest_ms == MAX_WATERMARK_MS


def test_the_lowest_of_all_members_counts() -> None:
    assert earliest_of({"a": 5, "b": 9}, [7, None]) == 5
    assert earliest_of({"a": 5}, [-3]) == -3
