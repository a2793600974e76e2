"""How far readers may get while splits are not found or not assigned yet: no watermark passes what may still come."""

from __future__ import annotations

from headgate.protocol import messages as msg
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.scenarios.coordinated_query import BOUNDED, Query, pulled
from tests.unit.coordinator.sources.toy_sources import PushedToySource, ToySource, ToySplit


def test_nobody_passes_what_may_still_be_found_and_then_what_is_not_assigned() -> None:
    query = Query(ToySource([ToySplit(split_id="s1"), ToySplit(split_id="s2"), ToySplit(split_id="s3")]), 2, BOUNDED)
    assert query.unassigned() == {0: MIN_WATERMARK_MS, 1: MIN_WATERMARK_MS}
    query.discover()
    assert query.unassigned() == {0: 10, 1: 10}
    query.request(0)
    assert query.unassigned() == {0: 20, 1: 20}
    query.request(1)
    query.finish(1, "s2")
    assert query.unassigned() == {0: 30, 1: 30}, "reader 1 has no split, and waits for this one"
    query.request(1)
    assert query.unassigned() == {0: None, 1: None}
    for subtask in (0, 1):
        kinds = [type(message).__name__ for message in query.readers[subtask].taken]
        assert kinds.index("AssignSplits") < len(kinds) - 1, "what is left is reported after what was assigned"


def test_a_child_that_follows_its_parent_is_unassigned_work_before_it_is_found() -> None:
    """The other reader would go idle, and pass it."""
    query = Query(ToySource([ToySplit(split_id="s1", child="c1")]), 2, BOUNDED)
    query.discover()
    query.request(0)
    assert query.unassigned() == {0: 15, 1: 15}
    query.finish(0, "s1")
    query.request(1)
    assert query.held() == {1: ["c1"]}
    assert query.unassigned() == {0: None, 1: None}


def test_a_source_that_knows_no_times_holds_its_readers_no_longer_than_their_registration() -> None:
    query = pulled("a", "b")
    assert query.unassigned() == {0: None, 1: None}
    query.fail_reader(0)
    assert query.unassigned() == {0: None, 1: None}


def test_a_reader_that_is_back_has_its_splits_before_it_learns_of_the_rest() -> None:
    splits = [ToySplit(split_id="s1"), ToySplit(split_id="s2")]
    for source, keeps in ((ToySource(splits), True), (PushedToySource(splits), False)):
        query = Query(source, 2, BOUNDED, keeps_subtask=keeps)
        query.discover()
        for subtask in (0, 1):
            query.request(subtask)
        before = query.held()
        for subtask in before:
            query.fail_reader(subtask)
            kinds = [type(message).__name__ for message in query.readers[subtask].taken]
            assert kinds.index("AssignSplits") < kinds.index("UnassignedWork")
        assert query.held() == before
        assert query.unassigned() == {0: None, 1: None}


def test_while_a_reader_is_away_the_others_are_not_held_for_what_waits_for_it() -> None:
    query = Query(ToySource([ToySplit(split_id="s1"), ToySplit(split_id="s2")]), 2, BOUNDED, keeps_subtask=True)
    query.discover()
    query.request(0)
    query.request(1)
    query.fail_reader(0, comes_back=False)
    assert query.unassigned() == {1: None}


def test_an_enumerators_failure_holds_nobody_for_what_readers_have() -> None:
    """A split without an end is never asked for again."""
    query = Query(ToySource([ToySplit(split_id="s1"), ToySplit(split_id="s2")]), 2, BOUNDED)
    query.discover()
    query.request(0)
    query.request(1)
    messages = [len(reader.taken) for reader in query.readers.values()]
    query.crash()
    assert query.held() == {0: ["s1"], 1: ["s2"]}
    assert query.unassigned() == {0: None, 1: None}
    news = [
        message
        for number, reader in query.readers.items()
        for message in reader.taken[messages[number] :]
        if isinstance(message, msg.UnassignedWork)
    ]
    assert news == []


def test_with_what_the_failed_enumerator_had_not_assigned_readers_are_held_as_before() -> None:
    query = Query(ToySource([ToySplit(split_id=f"s{number}") for number in (1, 2, 3)]), 2, BOUNDED)
    query.discover()
    query.request(0)
    query.crash()
    assert query.unassigned() == {0: 20, 1: 20}
    for subtask in (0, 1, 1):
        query.request(subtask)
    assert query.unassigned() == {0: None, 1: None}


def test_after_a_restart_readers_are_held_until_they_are_notified() -> None:
    source = ToySource([ToySplit(split_id=f"s{number}") for number in (1, 2)])
    query = Query(source, 2, BOUNDED)
    query.discover()
    query.request(0)
    again = Query(source, 2, BOUNDED, query.checkpoint(), register=False)
    again.deploy(0)
    assert again.unassigned() == {0: 20}
    again.deploy(1)
    again.request(1)
    assert again.unassigned() == {0: None, 1: None}


def test_with_another_parallelism_nobody_passes_what_a_reader_that_is_not_there_yet_will_report() -> None:
    """It is another one's now, which may be there first."""
    source = PushedToySource([ToySplit(split_id=f"s{number}") for number in range(6)])
    query = Query(source, 2, BOUNDED)
    query.discover()
    again = Query(source, 3, BOUNDED, query.checkpoint(), register=False)
    again.deploy(0)
    again.deploy(1)
    assert again.unassigned() == {0: MIN_WATERMARK_MS, 1: MIN_WATERMARK_MS}
    again.deploy(2)
    assert again.unassigned() == {0: None, 1: None, 2: None}
    assert len(again.splits()) == 6
