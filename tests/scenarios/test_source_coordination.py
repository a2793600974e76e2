"""Who has which split, through coordinator, runner and the real enumerator of Kafka: FLIP-27's and FLIP-537's stories.

No broker: the cluster is a dict. Readers are numbered from 0, partitions as in the stories but from 0 as well. The
numbers in the docstrings are public issues of others.
"""

from __future__ import annotations

from typing import Any

import pytest

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.source_state import decode_source_state
from headgate.errors import InvalidTransitionError
from headgate.protocol import messages as msg
from tests.scenarios.coordinated_query import BOUNDED, Checkpoint, Query, Reader
from tests.scenarios.test_source_failures import pulled
from tests.unit.connectors.kafka.partitions_source import Cluster, PartitionsSource
from tests.unit.coordinator.sources.toy_sources import ToySource, ToySplit

every_assigner = pytest.mark.parametrize("assigner", ["hash", "round-robin"])


def kafka(cluster: Cluster, parallelism: int, restored: Checkpoint | None = None, **options: Any) -> Query:
    """Return a query of Kafka's partitions; its readers have come, and discovery has run."""
    register = options.pop("register", True)
    names = {"assigner": "scan.split-assigner"}
    given = {"discovery": "100", **{names.get(name, name): value for name, value in options.items()}}
    query = Query(PartitionsSource(cluster, given), parallelism, restored=restored, register=register)
    if register:
        query.discover()
    return query


def grow(query: Query, cluster: Cluster, **topics: int) -> None:
    for topic, count in topics.items():
        cluster.topics.setdefault(topic, []).extend([9] * count)
    query.discover()


def pending(query: Query) -> list[str]:
    """Return the ids of the splits in the enumerator's state, as a checkpoint now would have it."""
    assert query.begin_checkpoint(), query.refused
    assert query.ready is not None
    state = query.source.state_serializer.deserialize(decode_source_state(query.ready.state).enumerator)
    query.notify(src.SourceCheckpointAborted(query.checkpoints))
    splits = state.unassigned if hasattr(state, "unassigned") else state.pending
    return sorted(split.split_id for split in splits)


def spread(counts: list[int]) -> int:
    return max(counts) - min(counts)


# -- FLIP-537, Motivation -------------------------------------------------------------------------------------------


def test_case_1_two_topics_of_four_partitions_are_one_for_each_of_eight_readers() -> None:
    """FLINK-31762: some readers had two partitions, others none."""
    assert kafka(Cluster(one=[1] * 4, two=[1] * 4), 8, assigner="round-robin").sizes() == [1] * 8


def test_case_1_by_hash_each_topic_is_spread_by_itself() -> None:
    query = kafka(Cluster(one=[1] * 4, two=[1] * 4), 8)
    assert sorted(query.sizes("one")) == sorted(query.sizes("two")) == [0] * 4 + [1] * 4


@every_assigner
def test_case_2_partitions_found_after_a_rescale_go_to_the_readers_without_any(assigner: str) -> None:
    """Three readers, one partition each (the first table); then six readers (the second); then partitions 4 to 6."""
    cluster = Cluster(topic=[1, 1, 1])
    before = kafka(cluster, 3, assigner=assigner)
    assert before.sizes() == [1, 1, 1]
    query = kafka(cluster, 6, before.checkpoint(), assigner=assigner)
    assert sorted(query.sizes()) == [0, 0, 0, 1, 1, 1]
    grow(query, cluster, topic=3)
    assert query.sizes() == [1] * 6, "not 1,4 and 2,5 and 3,6 on three of them"


@every_assigner
def test_with_as_many_readers_every_owner_stays_whatever_restarts(assigner: str) -> None:
    cluster = Cluster(b=[1, 1], c=[1])
    query = kafka(cluster, 3, assigner=assigner)
    for _ in range(3):
        before = query.held()
        grow(query, cluster, a=2, c=1)
        assert all(set(splits) <= set(query.held()[subtask]) for subtask, splits in before.items())
        before = query.held()
        query.fail_reader(1)  # before the checkpoint
        assert query.held() == before
        query.checkpoint()
        query.fail_reader(2)  # after it
        assert query.held() == before
        query.crash()
        assert query.held() == before
        query = kafka(cluster, 3, query.checkpoint(), assigner=assigner)
        assert query.held() == before
        assert not query.failures


@every_assigner
@pytest.mark.parametrize("parallelism", [1, 2, 4, 7])
def test_with_another_number_of_readers_everything_is_assigned_anew(assigner: str, parallelism: int) -> None:
    cluster = Cluster(a=[5] * 5, b=[6] * 3)
    before = kafka(cluster, 3, assigner=assigner)
    query = kafka(cluster, parallelism, before.checkpoint(), assigner=assigner)
    assert query.splits() == before.splits()
    if assigner == "hash":
        assert all(spread(query.sizes(topic)) <= 1 for topic in "ab")
    else:
        assert spread(query.sizes()) <= 1


# -- The whole contract, section by section -------------------------------------------------------------------------


@every_assigner
def test_section_1_readers_get_nothing_from_state_but_report_it(assigner: str) -> None:
    cluster = Cluster(topic=[5, 5])
    checkpoint = kafka(cluster, 2, assigner=assigner).checkpoint()
    query = kafka(cluster, 2, checkpoint, assigner=assigner, register=False)
    query.deploy(0)
    info = query.runner.readers[0]
    assert [split.split_id for split in info.reported_splits_on_registration] == [
        split.split_id for split in checkpoint.readers[0]
    ]
    assert not query.held(), "only the enumerator gives them out, when all have come"
    query.deploy(1)
    assert query.held() == {subtask: [each.split_id for each in part] for subtask, part in checkpoint.readers.items()}


@every_assigner
def test_section_2_reported_splits_are_in_the_state_before_they_are_assigned(assigner: str) -> None:
    """FLINK-40469: A reports 1 and 2, a checkpoint completes before they are assigned, and A restores empty."""
    cluster = Cluster(topic=[5, 6])
    checkpoint = kafka(cluster, 1, assigner=assigner).checkpoint()
    window = kafka(cluster, 2, checkpoint, assigner=assigner, register=False)
    window.deploy(0)
    assert not window.held()
    assert "topic-0" in pending(window)
    window.begin_checkpoint()
    window.readers[1] = Reader(execution=99)  # it is there, and has nothing
    window.complete_checkpoint()
    query = kafka(cluster, 2, window.completed, assigner=assigner)
    assert "topic-0" in query.splits()


@every_assigner
@pytest.mark.parametrize("failing", [0, 1])
def test_section_3_a_reader_fails_before_the_first_checkpoint_and_reports_again(assigner: str, failing: int) -> None:
    """FLIP-537: split 1 was added to reader 1 twice, and split 2 to reader 2 again."""
    cluster = Cluster(topic=[5, 6])
    query = kafka(cluster, 2, both_with_the_first(cluster, assigner), assigner=assigner)
    before = query.held()
    assert query.sizes() == [1, 1]
    query.fail_reader(failing)
    assert query.held() == before
    assert {name: split.position for name, split in query.splits().items()} == {"topic-0": 5, "topic-1": 6}
    assert pending(query) == []
    assert not query.failures


@every_assigner
def test_section_3_ownership_survives_an_enumerator_that_fails_before_the_first_checkpoint(assigner: str) -> None:
    """FLINK-40710, and what was reported is nowhere but in the log."""
    cluster = Cluster(topic=[5, 6])
    query = kafka(cluster, 2, both_with_the_first(cluster, assigner), assigner=assigner)
    before = query.held()
    query.crash()
    assert query.held() == before
    query.fail_reader(0)
    assert query.held() == before
    assert pending(query) == []


def test_section_3_what_was_reported_survives_an_enumerator_that_fails_before_it_assigned_it() -> None:
    cluster = Cluster(topic=[5, 6])
    query = kafka(cluster, 2, both_with_the_first(cluster, "hash"), register=False)
    query.deploy(0)
    query.crash()
    assert not query.held()
    query.deploy(1)
    assert query.sizes() == [1, 1]
    assert query.splits().keys() == {"topic-0", "topic-1"}


@every_assigner
def test_section_4_what_a_failed_reader_was_given_waits_for_it(assigner: str) -> None:
    """FLIP-537: split 2 went to reader 1 while reader 2 was away: two splits against none."""
    cluster = Cluster(topic=[5])
    query = kafka(cluster, 2, assigner=assigner)
    query.checkpoint()
    grow(query, cluster, topic=1)
    before = query.held()
    newcomer = next(subtask for subtask, splits in before.items() if "topic-1" in splits)
    query.fail_reader(newcomer, comes_back=False)
    query.request(1 - newcomer)
    grow(query, cluster)
    assert query.held() == {1 - newcomer: ["topic-0"]}
    query.deploy(newcomer)
    assert query.held() == before


def test_section_5_a_registration_comes_before_the_first_snapshot() -> None:
    """What is reported is in the state even where the checkpoint is ordered right after it."""
    cluster = Cluster(topic=[5, 6, 7])
    checkpoint = kafka(cluster, 1).checkpoint()
    query = kafka(cluster, 3, checkpoint, register=False)
    for subtask in range(3):
        assert query.held() == {}, "all have to come"
        query.deploy(subtask)
    after = query.checkpoint()
    assert sorted(split.split_id for part in after.readers.values() for split in part) == [
        "topic-0",
        "topic-1",
        "topic-2",
    ]


def both_with_the_first(cluster: Cluster, assigner: str) -> Checkpoint:
    """Return a checkpoint in which reader 0 of two has all, as FLIP-537's reader 1: it had one reader before."""
    before = kafka(cluster, 1, assigner=assigner).checkpoint()
    return Checkpoint(before.checkpoint_id, before.state, {0: before.readers[0], 1: ()}, {})


# -- topics come and go ---------------------------------------------------------------------------------------------


@every_assigner
def test_a_topic_that_is_not_named_any_longer_is_dropped_and_no_other_moves(assigner: str) -> None:
    cluster = Cluster(gone=[1] * 3, kept=[1] * 5)
    before = kafka(cluster, 3, subscribe="gone,kept", assigner=assigner)
    kept = {
        subtask: names
        for subtask, splits in before.held().items()
        if (names := [name for name in splits if name.startswith("kept")])
    }
    query = kafka(cluster, 3, before.checkpoint(), subscribe="kept", assigner=assigner)
    assert query.held() == kept


@every_assigner
def test_a_topic_that_is_named_anew_is_assigned_and_no_other_moves(assigner: str) -> None:
    cluster = Cluster(old=[4] * 5, new=[4] * 4)
    before = kafka(cluster, 3, subscribe="old", assigner=assigner)
    query = kafka(cluster, 3, before.checkpoint(), subscribe="old,new", assigner=assigner)
    assert all(set(splits) <= set(query.held()[subtask]) for subtask, splits in before.held().items())
    assert sum(query.sizes("new")) == 4
    assert spread(query.sizes("new") if assigner == "hash" else query.sizes()) <= 1


# -- shipped elsewhere ----------------------------------------------------------------------------------------------


def test_a_start_position_is_resolved_once_though_the_enumerator_fails() -> None:
    """FLINK-38453: "latest" was resolved a second time, and what came in between was lost."""
    cluster = Cluster(topic=[5, 6])
    query = kafka(cluster, 2, register=False)
    query.discover()
    cluster.topics["topic"] = [50, 60]
    query.crash()
    query.discover()
    for subtask in (0, 1):
        query.deploy(subtask)
    assert {name: split.position for name, split in query.splits().items()} == {"topic-0": 5, "topic-1": 6}


def test_splits_given_back_wake_a_reader_that_waits() -> None:
    """SeaTunnel: restored splits went back to the assigner and nobody was woken: running, and no rows."""
    query = Query(ToySource([ToySplit(split_id="parent", child="child")]), 2, BOUNDED)
    query.discover()
    query.request(0)
    query.request(1)
    assert query.held() == {0: ["parent"]}
    query.fail_reader(0, comes_back=False)
    assert query.held() == {1: ["parent"]}, "it waited, and nobody had to ask"


def test_an_end_between_the_snapshot_of_coordinator_and_reader_is_not_lost() -> None:
    """FLINK-37627, FLINK-37416: the shard was in neither, and its children were never read."""
    source = ToySource([ToySplit(split_id="parent", child="child")])
    query = Query(source, 1, BOUNDED)
    query.discover()
    query.request(0)
    assert query.begin_checkpoint()
    query.finish(0, "parent")
    query.complete_checkpoint()
    assert [each.split_id for each in query.completed.finished[0]] == ["parent"]
    again = Query(source, 1, BOUNDED, query.completed)
    again.request(0)
    assert again.held() == {0: ["child"]}
    query.checkpoint()
    assert query.completed.finished[0][0].split_id == "parent", "until a completed one has the enumerator's knowledge"
    query.checkpoint()
    assert query.completed.finished[0] == ()


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_a_bounded_query_ends_after_any_restore(parallelism: int) -> None:
    """FLINK-31006: nothing new was found, and no-more-splits was never sent."""
    cluster = Cluster(topic=[5, 6])
    source = PartitionsSource(cluster, {"startingOffsets": "earliest"})
    query = Query(source, 2, BOUNDED)
    query.discover()
    query.crash()
    again = Query(source, parallelism, BOUNDED, query.checkpoint())
    again.discover()
    for subtask in [*range(parallelism)] * 3:
        if not again.readers[subtask].ended:
            again.request(subtask)
    assert again.splits().keys() == {"topic-0", "topic-1"}
    assert all(reader.ended for reader in again.readers.values())


def test_every_split_has_its_own_place() -> None:
    """Fluss 3548: splits were kept by something coarser than their ids, and all but one were lost."""
    cluster = Cluster(**{"a": [1] * 12, "a-1": [1] * 12, "b": [1] * 12})
    query = kafka(cluster, 5)
    query.fail_reader(0)
    query.crash()
    query.fail_reader(1)
    assert len(kafka(cluster, 2, query.checkpoint()).splits()) == 36


def test_bounded_reads_pull_and_the_fastest_reader_takes_the_next() -> None:
    """Hudi 19520: sticky assignment, and readers finished 78 minutes apart."""
    query = pulled("a", "b", "c", "d")
    query.request(0)
    query.request(1)
    for _ in range(2):
        (split_id,) = query.readers[1].held
        query.finish(1, split_id)
        query.request(1)
    assert sum(len(reader.finished) for reader in query.readers.values()) == 2
    assert query.sizes() == [1, 1]


def test_a_bounded_read_of_kafka_is_pulled_and_a_slow_reader_holds_nobody_up() -> None:
    """Hudi 19520 once more, with the real enumerator."""
    cluster = Cluster(rides=[5, 50, 9, 20, 1, 40])
    query = Query(PartitionsSource(cluster, {"startingOffsets": "earliest"}), 2, BOUNDED)
    query.request(0)
    query.request(1)
    query.discover()
    assert query.held() == {0: ["rides-1"], 1: ["rides-5"]}, "the largest first"
    fast = []
    while query.readers[1].held:
        (split_id,) = query.readers[1].held
        fast.append(split_id)
        query.finish(1, split_id)
        query.request(1)
    assert fast == ["rides-5", "rides-3", "rides-2", "rides-0", "rides-4"]
    assert query.readers[1].ended and query.held() == {0: ["rides-1"]}
    query.finish(0, "rides-1")
    query.request(0)
    assert query.readers[0].ended
    assert not query.failures and not query.failovers


def test_what_a_reader_of_a_bounded_read_of_kafka_gives_back_goes_to_whoever_asks() -> None:
    cluster = Cluster(rides=[5, 6])
    query = Query(PartitionsSource(cluster, {"startingOffsets": "earliest"}), 2, BOUNDED)
    query.discover()
    query.request(0)
    query.checkpoint()
    query.request(0)
    query.fail_reader(0, comes_back=False)
    query.request(1)
    assert query.held() == {1: ["rides-0"]}, "it was assigned since the checkpoint"
    query.deploy(0)
    assert query.held() == {1: ["rides-0"]}
    query.request(1)
    assert query.held() == {1: ["rides-0", "rides-1"]}, "it was reported, and nobody asked before"
    query.fail_reader(0)
    assert query.held() == {1: ["rides-0", "rides-1"]}, "its report is of a checkpoint before that"
    for subtask in (0, 1):
        query.request(subtask)
    assert all(reader.ended for reader in query.readers.values())
    assert not query.failures and not query.failovers


def test_an_impossible_transition_is_an_error_with_what_was_before() -> None:
    """FLINK-39073: invalid transitions went unnoticed."""
    query = pulled("a")
    message = msg.ReaderRegistered(stage=0, execution=9, source="source", host="h")
    with pytest.raises(InvalidTransitionError) as raised:
        query.machine.handle(src.FromReader(0, message), 0)
    assert "0 ms: running ReaderRegistered -> running" in raised.value.history
