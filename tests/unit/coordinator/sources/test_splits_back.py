"""Where splits are that are not simply with the enumerator."""

from __future__ import annotations

import pytest

from headgate.coordinator.sources.source_state import SourceState, decode_source_state
from headgate.coordinator.sources.splits_back import SplitsBack
from headgate.protocol.state import SplitState

A, B = SplitState("a", b"a"), SplitState("b", b"b")


@pytest.mark.parametrize("keeps", [False, True])
def test_what_a_reader_was_given_goes_back_or_waits_for_it(keeps: bool) -> None:
    places = SplitsBack(0)
    places.tracker.assign(0, [A, B])
    assert places.take_back(0, 0, keeps_subtask=keeps) == (() if keeps else (A, B))
    assert places.parked == ({0: {"a": A, "b": B}} if keeps else {})
    places.check()


def test_what_the_enumerator_has_as_well_waits_for_its_reader_until_the_enumerator_knows() -> None:
    places = SplitsBack(0, ["a"])
    places.tracker.assign(0, [A, B])
    assert places.take_back(0, 0, keeps_subtask=False) == (B,)
    assert decode_source_state(places.encode(b"e")) == SourceState(b"e", ("a",), {0: (A,)})
    assert places.unpark(0, [A, B]) == [A]
    places.heard_of([A])
    assert (places.parked, places.swallowed) == ({}, {})


def test_of_a_report_counts_what_nobody_was_given_since() -> None:
    places = SplitsBack(0)
    assert places.not_reassigned((A, B)) == (A, B)
    places.tracker.assign(1, [B])
    assert places.not_reassigned((A, B)) == (A,)


def test_a_split_in_two_places_is_found() -> None:
    places = SplitsBack(0)
    places.tracker.assign(0, [A])
    places.parked[1] = {"a": A}
    with pytest.raises(AssertionError, match="a split is in two places"):
        places.check()
