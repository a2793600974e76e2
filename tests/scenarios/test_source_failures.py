"""Readers, enumerators and logs fail, through coordinator and runner: no split is lost, read twice, or left to nobody.

FLIP-27's stories. The numbers in the docstrings are public issues of others.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.simple import adapt
from headgate.coordinator.sources.source_state import decode_source_state
from headgate.source.events import SourceEvent
from headgate.source.simple import SimpleSource
from tests.scenarios.coordinated_query import BOUNDED, Query, pulled
from tests.unit.connectors.kafka.partitions_source import Cluster, PartitionsSource
from tests.unit.coordinator.sources.toy_sources import STATES, PullEnumerator, PushedToySource, ToySource, ToySplit


def test_while_a_reader_is_away_the_others_pulls_are_served() -> None:
    query = pulled("a", "b", "c", "d", "e")
    query.request(0)
    query.request(1)
    query.fail_reader(0, comes_back=False)
    served = []
    while query.readers[1].held:
        (split_id,) = query.readers[1].held
        served.append(split_id)
        query.finish(1, split_id)
        query.request(1)
    assert sorted(served) == ["a", "b", "c", "d", "e"], "what reader 0 had, too"
    assert query.readers[1].ended


def test_without_a_checkpoint_everything_since_the_start_goes_back() -> None:
    query = pulled("a", "b", "c")
    for _ in range(2):
        query.request(0)
    query.finish(0, "a")
    query.fail_reader(0)
    assert query.held() == {}
    for _ in range(3):
        query.request(0)
    assert query.held() == {0: ["a", "b", "c"]}


def test_only_what_was_assigned_since_the_checkpoint_goes_back() -> None:
    query = pulled("a", "b")
    query.request(0)
    query.checkpoint()
    query.request(0)
    query.fail_reader(0)
    assert query.held() == {0: ["a"]}, "its state has it"
    query.request(1)
    assert query.held() == {0: ["a"], 1: ["b"]}


def test_with_event_time_what_goes_back_returns_to_the_same_subtask() -> None:
    query = pulled("a", "b", keeps_subtask=True)
    query.request(0)
    query.fail_reader(0, comes_back=False)
    query.request(1)
    assert query.held() == {1: ["b"]}
    query.deploy(0)
    assert query.held() == {0: ["a"], 1: ["b"]}


def test_an_assignment_that_was_logged_and_did_not_arrive_is_sent_again() -> None:
    query = pulled("a", "b")
    query.cut(0)
    query.request(0)
    query.readers[0].inbox.clear()  # lost with the coordinator
    query.crash()
    query.mend(0)
    assert query.held() == {0: ["a"]}
    query.request(1)
    assert query.held() == {0: ["a"], 1: ["b"]}


def test_a_restored_enumerator_gives_no_split_away_that_a_reader_has_or_has_read() -> None:
    query = pulled("a", "b", "c")
    query.request(0)
    query.request(1)
    query.finish(0, "a")
    query.crash()
    assert query.held() == {1: ["b"]}, "readers keep what they have"
    query.request(0)
    assert query.held() == {0: ["c"], 1: ["b"]}, "a is read, b is with reader 1: the request is asked again"
    query.request(0)
    assert query.readers[0].ended


def test_an_end_in_between_is_reported_to_the_restored_enumerator() -> None:
    source = ToySource([ToySplit(split_id="parent", child="child")])
    query = Query(source, 1, BOUNDED)
    query.discover()
    query.request(0)
    query.finish(0, "parent")
    query.crash()
    query.request(0)
    assert query.held() == {0: ["child"]}


def test_a_request_that_was_pending_is_asked_again() -> None:
    query = pulled("a", register=False)
    query.deploy(0)
    query.deploy(1)
    query.request(0)
    query.request(1)
    assert query.held() == {0: ["a"]}
    query.crash()
    assert query.requests[-1] == 1
    query.fail_reader(0, comes_back=False)
    query.deploy(0)
    query.request(0)
    assert query.splits().keys() == {"a"}


def test_a_checkpoint_after_a_restored_enumerator_has_each_split_once() -> None:
    query = pulled("a", "b")
    query.request(0)
    query.crash()
    checkpoint = query.checkpoint()
    assert checkpoint.state is not None
    state = decode_source_state(checkpoint.state)
    inside = {split.split_id for split in STATES.deserialize(state.enumerator).pending} - set(state.assigned)
    assert inside == {"b"}
    again = Query(query.source, 2, BOUNDED, checkpoint)
    again.request(1)
    again.request(1)
    assert again.held() == {0: ["a"], 1: ["b"]}


@pytest.mark.parametrize("source", ["kafka", "datagen"])
def test_after_an_enumerators_restart_checkpoints_complete_though_no_reader_asks_for_work(source: str) -> None:
    """Its state has what it assigned since; with splits that take hours to read, nobody asks for hours."""
    query = bounded(source)
    for subtask in (0, 1):
        query.request(subtask)
    before = query.held()
    assert len(query.splits()) == 2
    query.crash()
    checkpoint = query.checkpoint()
    assert query.held() == before, "readers read on"
    again = Query(query.source, 3, BOUNDED, checkpoint)
    again.discover()
    for _ in range(8):
        for subtask in range(3):
            if not again.readers[subtask].ended:
                again.request(subtask)
    assert len(again.splits()) == 6
    assert not query.failovers and not query.failures and not again.failures


def test_after_an_enumerators_restart_whoever_asks_first_gets_what_nobody_has() -> None:
    query = bounded("kafka")
    for subtask in (0, 1):
        query.request(subtask)
    (first,) = query.held()[0]
    query.finish(0, first)
    query.crash()
    query.request(1)
    query.fail_reader(0)
    query.request(0)
    assert sorted(map(len, query.held().values())) == [1, 2]
    query.crash()
    query.crash()
    query.checkpoint()
    assert not query.failovers and not query.failures


def test_what_was_given_back_since_the_state_is_the_restarted_enumerators_again() -> None:
    query = bounded("datagen")
    query.request(0)
    query.request(1)
    query.fail_reader(0, comes_back=False)
    query.crash()
    assert query.held().keys() == {1}
    query.deploy(0)
    query.checkpoint()
    for _ in range(6):
        query.request(1)
    assert len(query.held()[1]) == 6
    assert not query.failovers and not query.failures


class Numbers(DatagenSource):
    def schema(self) -> Any:
        return pa.schema([("value", pa.int64())])


def bounded(source: str) -> Query:
    """Return a bounded query of six splits and two readers, that has discovered them."""
    if source == "kafka":
        made: Any = PartitionsSource(Cluster(rides=[5, 50, 9, 20, 1, 40]), {"startingOffsets": "earliest"})
    else:
        made = Numbers({"numRows": "600", "numPartitions": "6"})
    query = Query(made, 2, BOUNDED)
    query.discover()
    return query


class Done(SourceEvent, frozen=True):
    """Says by its name that something is done."""

    name: str


class CountingEnumerator(PullEnumerator):
    """Counts what is done, and completed checkpoints, among the ends it knows; its first handling of "poison" fails."""

    poisoned = 0

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        assert isinstance(event, Done) and subtask in self.context.registered_readers
        if event.name == "poison" and CountingEnumerator.poisoned:
            CountingEnumerator.poisoned -= 1
            raise OSError("planned")
        self.ended.add(event.name)

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.ended.add(f"checkpoint {checkpoint_id}")


class CountingSource(ToySource):
    enumerator = CountingEnumerator


def counting(*, poisoned: int = 0) -> Query:
    CountingEnumerator.poisoned = poisoned
    query = Query(CountingSource([ToySplit(split_id="a")]), 2, BOUNDED)
    query.discover()
    return query


def counted(query: Query) -> set[str]:
    assert isinstance(query.runner._enumerator, CountingEnumerator)
    return query.runner._enumerator.ended


def test_events_that_the_enumerator_handled_survive_its_restart() -> None:
    query = counting()
    query.event(0, Done(name="first"))
    query.checkpoint()
    query.event(1, Done(name="second"))
    for _ in range(2):
        query.crash()
        assert counted(query) >= {"first", "second"}
    query.checkpoint()
    query.crash()
    assert counted(query) >= {"first", "second"}
    records = [type(record).__name__ for _, record in query.log]
    assert "SourceEventRecord" not in records, "the state of the checkpoint has it"


def test_an_event_that_comes_while_the_enumerator_is_restored_waits_for_it() -> None:
    query = counting()
    query.cut(0)
    query.crash()
    query.event(0, Done(name="early"))
    query.crash()
    query.mend(0)
    assert counted(query) == {"early"}


def test_an_event_whose_handling_failed_comes_again() -> None:
    query = counting(poisoned=2)
    query.event(0, Done(name="before"))
    query.event(0, Done(name="poison"))
    query.event(0, Done(name="after"))
    assert counted(query) == {"before", "poison", "after"}
    assert len(query.failures) == 2 and not query.failovers


def test_an_event_that_is_never_handled_restarts_everything_and_is_gone_with_its_sender() -> None:
    query = counting(poisoned=100)
    query.event(0, Done(name="poison"))
    assert len(query.failovers) == 1
    assert not counted(query)


def test_events_of_a_reader_that_failed_since_wait_until_it_is_registered_again() -> None:
    query = counting()
    query.event(0, Done(name="of its first execution"))
    query.fail_reader(0, comes_back=False)
    query.crash()
    query.deploy(0)
    assert counted(query) == {"of its first execution"}


def test_what_a_completed_checkpoint_changed_survives_the_enumerators_restart() -> None:
    query = counting()
    query.checkpoint()
    query.crash()
    assert counted(query) == {"checkpoint 1"}


class Pages(SimpleSource):
    """Lists what the test says."""

    name = "pages"
    schema = "n bigint"
    listed: ClassVar[list[str]]

    def splits(self) -> list[str]:
        return self.listed

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        yield from ()


def test_new_splits_of_a_simple_source_are_spread_evenly_whatever_failed() -> None:
    pages = type("Pages", (Pages,), {"listed": []})
    source = adapt(pages)({})
    pages.listed += [f"a{number}" for number in range(30)]
    query = Query(source, 3)
    query.discover()
    query.checkpoint()
    assert query.sizes() == [10, 10, 10]
    query.fail_reader(1)
    pages.listed += [f"b{number}" for number in range(30)]
    query.discover()
    assert query.sizes() == [20, 20, 20]
    query.crash()
    pages.listed += [f"c{number}" for number in range(30)]
    query.discover()
    assert query.sizes() == [30, 30, 30]
    query.checkpoint()
    again = Query(source, 2, restored=query.completed)
    pages.listed += [f"d{number}" for number in range(30)]
    again.discover()
    assert again.sizes() == [60, 60]


def test_an_unusable_log_is_a_global_failover_from_the_last_checkpoint() -> None:
    query = pulled("a", "b")
    query.request(0)
    query.checkpoint()
    query.request(1)
    query.log_works = False
    query.crash()
    assert len(query.failovers) == 1
    assert query.held() == {0: ["a"]}, "what was assigned since is with the enumerator"
    query.request(1)
    assert query.held() == {0: ["a"], 1: ["b"]}


@pytest.mark.parametrize("pushed", [False, True])
def test_enumerator_and_readers_fail_by_turns_and_nothing_is_lost(pushed: bool) -> None:
    splits = [ToySplit(split_id=f"s{number}") for number in range(8)]
    query = Query(PushedToySource(splits) if pushed else ToySource(splits), 2, BOUNDED)
    query.discover()
    for subtask in (0, 1, 0):
        query.request(subtask)
        query.crash()
        query.fail_reader(subtask)
        query.request(1 - subtask)
    if query.begin_checkpoint():
        query.complete_checkpoint()
    for _ in range(8):
        for subtask in (0, 1):
            if not query.readers[subtask].ended:
                query.request(subtask)
    assert query.splits().keys() == {split.split_id for split in splits}
    assert not query.failures
