"""The enumerator of `headgate.kafka`: discovery, ends, failures, and what holds watermarks."""

from __future__ import annotations

import json
import logging
import re
from typing import Any

import pytest

from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators import topics as module
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, InvalidTransitionError, SourceUnavailableError
from headgate.source.enumerator import Boundedness
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.unit.connectors.kafka.partitions_source import (
    BOUNDED,
    UNBOUNDED,
    Cluster,
    Harness,
    begin,
    discovered,
    held,
    positions,
    pull,
    register,
    reports_of,
    split,
    state_of,
)

DOWN = SourceUnavailableError("no broker answers", source="headgate.kafka")


def test_the_table_is_the_code() -> None:
    row = re.compile(r"^    (\(unknown\)|pending|assigned|finished)  +(\w+(?: back)?)  +(\w+)  ", re.MULTILINE)
    documented = {(place, event): following for place, event, following in row.findall(module.__doc__ or "")}
    coded = {
        ("(unknown)" if place is None else place.value, event): following.value
        for (place, event), following in module._NEXT.items()
    }
    assert documented == coded


# -- discovery ----------------------------------------------------------------------------------------------------


def test_nothing_is_assigned_before_all_readers_have_registered() -> None:
    harness = begin(Cluster(rides=[10, 20, 30]), 2)
    harness.run_due_calls()
    harness.register_reader(1)
    assert not harness.outbox
    assert [each.split_id for each in state_of(harness).unassigned] == ["rides-0", "rides-1", "rides-2"]
    harness.register_reader(0)
    assert positions(harness) == {"rides-0": 10, "rides-1": 20, "rides-2": 30}
    assert [len(splits) for splits in held(harness).values()] in ([1, 2], [2, 1])


def test_readers_that_registered_first_get_what_is_discovered_later() -> None:
    harness = begin(Cluster(rides=[10]), 1)
    register(harness)
    harness.request_split(0)
    assert harness.requests == {0}
    harness.run_due_calls()
    assert positions(harness) == {"rides-0": 10}
    assert not harness.requests


def test_a_bounded_read_stops_where_its_input_ended_at_the_start_and_does_not_look_again() -> None:
    cluster = Cluster(rides=[10, 0])
    harness = begin(cluster, 2, BOUNDED, startingOffsets="earliest", discovery="100")
    harness.run_due_calls()
    cluster.topics["rides"] = [99, 99, 99]
    register(harness)
    pull(harness)
    assert not harness.calls
    assert sorted((each.position, each.stop) for splits in reports_of(harness).values() for each in splits) == [
        (0, 0),
        (0, 10),
    ]
    assert harness.no_more_splits == {0, 1}
    again = begin(cluster, 2, BOUNDED, harness.snapshot(), startingOffsets="earliest")
    register(again, reports_of(harness))
    pull(again)
    assert not again.calls
    assert positions(again) == positions(harness)
    assert again.no_more_splits == {0, 1}


def test_a_bounded_read_gives_whoever_asks_the_partition_with_the_most_left_to_read() -> None:
    harness = begin(Cluster(rides=[5, 30, 0], fares=[20, 5]), 2, BOUNDED, startingOffsets="earliest")
    register(harness)
    harness.request_split(1)
    assert harness.requests == {1}, "discovery is under way"
    harness.run_next_call()
    given = [held(harness)[1]]
    for _ in range(4):
        harness.request_split(0)
        given.append(held(harness)[0])
    assert given[0] == ["rides-1"]
    assert harness.assigned[0].keys() == {"fares-0", "fares-1", "rides-0", "rides-2"}
    assert [splits[0].split_id for _, splits in harness.outbox if isinstance(splits, list)] == [
        "rides-1", "fares-0", "fares-1", "rides-0", "rides-2",
    ]  # fmt: skip
    assert not harness.no_more_splits, "nobody asked"
    for subtask in (0, 1):
        harness.request_split(subtask)
    assert harness.no_more_splits == {0, 1}


def test_a_bounded_read_does_not_end_before_all_readers_came_with_what_they_have() -> None:
    cluster = Cluster(rides=[10, 20])
    before = discovered(cluster, 2, BOUNDED, startingOffsets="earliest")
    pull(before)
    again = begin(cluster, 3, BOUNDED, before.snapshot(), startingOffsets="earliest")
    for subtask in (0, 1):
        again.register_reader(subtask)
        again.request_split(subtask)
    assert again.requests == {0, 1}
    again.register_reader(2, reported_splits=[each for of in reports_of(before).values() for each in of])
    assert held(again) == {0: ["rides-1"], 1: ["rides-0"]}


def test_a_bounded_read_gives_what_came_back_to_a_reader_that_waits() -> None:
    """SeaTunnel: nobody was woken. A reader that was restored with it before means nothing (FLIP-537, section 3)."""
    cluster = Cluster(rides=[10])
    before = discovered(cluster, 1, BOUNDED, startingOffsets="earliest")
    pull(before)
    reported = reports_of(before)[0]
    harness = begin(cluster, 3, BOUNDED, before.snapshot(), startingOffsets="earliest")
    harness.register_reader(0, reported_splits=reported)
    harness.request_split(0)
    harness.register_reader(1)
    harness.request_split(1)
    assert held(harness) == {0: ["rides-0"]}
    harness.fail_reader(0)
    assert held(harness) == {1: ["rides-0"]}, "it waited"
    harness.register_reader(0, reported_splits=reported)
    harness.register_reader(2)
    pull(harness)
    assert held(harness) == {1: ["rides-0"]}


def test_a_report_of_what_another_reader_has_read_to_its_end_is_ignored() -> None:
    cluster = Cluster(rides=[10])
    before = discovered(cluster, 1, BOUNDED, startingOffsets="earliest")
    pull(before)
    (rides,) = reports_of(before)[0]
    harness = begin(cluster, 2, BOUNDED, before.snapshot(), startingOffsets="earliest")
    register(harness, {0: [rides]})
    harness.request_split(1)
    harness.enumerator.notify_splits_finished(["rides-0"])
    harness.assigned[1].clear()
    harness.fail_reader(0, [])
    harness.register_reader(0, reported_splits=[rides])
    pull(harness)
    assert not held(harness)


def test_whoever_gives_it_back_first_counts_and_a_later_report_of_it_does_not() -> None:
    cluster = Cluster(rides=[10])
    before = discovered(cluster, 1, BOUNDED, startingOffsets="earliest")
    pull(before)
    (rides,) = reports_of(before)[0]
    harness = begin(cluster, 2, BOUNDED, before.snapshot(), startingOffsets="earliest")
    register(harness, {0: [rides]})
    harness.request_split(1)
    harness.fail_reader(1)
    harness.fail_reader(0, [])
    harness.register_reader(0, reported_splits=[rides])
    harness.register_reader(1)
    pull(harness)
    assert positions(harness) == {"rides-0": 0}


def test_a_request_for_a_split_that_has_an_owner_changes_nothing() -> None:
    harness = discovered(Cluster(rides=[10]), 2, discovery="100")
    before = held(harness), len(harness.outbox)
    for subtask in (0, 1):
        harness.request_split(subtask)
    assert (held(harness), len(harness.outbox)) == before


@pytest.mark.parametrize("assigner", ["hash", "round-robin"])
def test_new_partitions_go_to_those_that_have_the_fewest_though_the_enumerator_alone_was_restored(
    assigner: str,
) -> None:
    """Readers that read on report nothing: only the state says who has what."""
    cluster = Cluster(rides=[10] * 3)
    before = discovered(cluster, 4, discovery="100", assigner=assigner)
    again = begin(cluster, 4, state=before.snapshot(), discovery="100", assigner=assigner)
    register(again)
    cluster.topics["rides"] += [7] * 5
    again.run_next_call()
    counts = [len(before.assigned[subtask]) + len(again.assigned[subtask]) for subtask in range(4)]
    assert counts == [2, 2, 2, 2]


def test_new_partitions_go_to_those_that_have_the_fewest_though_its_state_was_taken_before_all_readers_came() -> None:
    """An enumerator that was restored twice: then readers say who has what."""
    cluster = Cluster(rides=[10] * 3)
    before = begin(cluster, 4, discovery="100")
    before.run_due_calls()
    of_before = before.snapshot()
    register(before)
    restored = begin(cluster, 4, state=of_before, discovery="100")
    assert restored.enumerator.take_assignments(reports_of(before))
    again = begin(cluster, 4, state=restored.snapshot(), discovery="100")
    for subtask, splits in before.assigned.items():
        again.register_reader(subtask, held_split_ids=tuple(splits))
    cluster.topics["rides"] += [7] * 5
    again.run_next_call()
    counts = [len(before.assigned[subtask]) + len(again.assigned[subtask]) for subtask in range(4)]
    assert counts == [2, 2, 2, 2]


def test_without_an_interval_there_is_one_discovery_at_each_start_and_then_an_end() -> None:
    cluster = Cluster(rides=[10])
    harness = begin(cluster, 2)
    register(harness)
    assert not harness.no_more_splits, "a partition may still be found"
    harness.run_due_calls()
    assert harness.no_more_splits == {0, 1}
    assert not harness.calls
    cluster.topics["rides"].append(5)
    again = begin(cluster, 2, state=harness.snapshot())
    register(again, reports_of(harness))
    assert not again.no_more_splits
    again.run_due_calls()
    assert positions(again) == {"rides-0": 10, "rides-1": 0}
    assert again.no_more_splits == {0, 1}


def test_with_an_interval_new_partitions_are_read_from_the_earliest_record_and_there_is_no_end() -> None:
    cluster = Cluster(rides=[10])
    harness = discovered(cluster, 2, discovery="100")
    cluster.topics["rides"].append(7)
    cluster.topics["fares"] = [3]
    cluster.earliest[TopicPartition("fares", 0)] = 2
    harness.run_next_call()
    assert harness.clock() == 100
    assert positions(harness) == {"rides-0": 10, "rides-1": 0, "fares-0": 2}
    for subtask in (0, 1):
        harness.request_split(subtask)
    assert not harness.no_more_splits
    assert cluster.discoveries[1] == (frozenset([TopicPartition("rides", 0)]), False)


def test_the_first_discovery_is_finished_when_it_found_nothing() -> None:
    """FLIP-537's flag: a topic that appears later is read from its earliest record, after a restart too."""
    cluster = Cluster()
    harness = begin(cluster, discovery="100")
    register(harness)
    assert not state_of(harness).initial_discovery_finished
    harness.run_next_call()
    state = harness.snapshot()
    assert state_of(harness).initial_discovery_finished
    cluster.topics["rides"] = [10]
    harness.run_next_call()
    assert positions(harness) == {"rides-0": 0}
    again = begin(cluster, state=state)
    register(again)
    again.run_due_calls()
    assert positions(again) == {"rides-0": 0}


def test_a_failing_first_discovery_fails_the_enumerator_with_its_own_error() -> None:
    harness = begin(Cluster(), discovery="100")
    with pytest.raises(SourceUnavailableError) as raised:
        harness.fail_next_call(DOWN)
    assert raised.value.__cause__ is DOWN
    assert raised.value.final  # it ends the query: see test_enumerator_runner


def test_later_discoveries_are_tried_again_while_no_broker_answers(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(rides=[10])
    harness = discovered(cluster, discovery="100")
    with caplog.at_level(logging.WARNING):
        harness.fail_next_call(DOWN)
    assert "retried: no broker answers" in caplog.text
    cluster.topics["rides"].append(7)
    harness.run_next_call()
    assert positions(harness) == {"rides-0": 10, "rides-1": 0}
    with pytest.raises(DataLossError):
        harness.fail_next_call(DataLossError("gone"))


def test_a_restored_read_that_looks_once_only_does_not_go_on_without_having_looked() -> None:
    harness = begin(Cluster(rides=[10]))
    harness.run_next_call()
    again = begin(Cluster(rides=[10]), state=harness.snapshot())
    with pytest.raises(SourceUnavailableError):
        again.fail_next_call(DOWN)


def test_a_finished_partition_may_be_discovered_again_as_a_new_one() -> None:
    """Its topic was deleted (failOnDataLoss=false) and made again."""
    cluster = Cluster(rides=[10])
    harness = discovered(cluster, discovery="100")
    (rides,) = reports_of(harness)[0]
    del cluster.topics["rides"]
    del harness.assigned[0]["rides-0"]
    harness.enumerator.notify_splits_finished(["rides-0", "never heard of"])
    assert state_of(harness).assigned == {}
    cluster.topics["rides"] = [4]
    harness.run_next_call()
    assert positions(harness) == {"rides-0": 0}
    assert rides.position == 10
    assert state_of(harness).assigned == {"rides": ((0, 0),)}


def test_what_is_found_anew_is_not_replaced_by_what_a_reader_remembers_of_it() -> None:
    cluster = Cluster(rides=[10])
    harness = discovered(cluster, discovery="100")
    (rides,) = reports_of(harness)[0]
    harness.enumerator.notify_splits_finished(["rides-0"])
    harness.fail_reader(0, [])
    harness.run_next_call()
    harness.register_reader(0, reported_splits=[rides])
    assert positions(harness) == {"rides-0": 0}


@pytest.mark.parametrize("way", ["reported", "given back"])
def test_a_finish_that_no_checkpoint_saw_is_undone(way: str) -> None:
    harness = discovered(Cluster(rides=[10]), boundedness=BOUNDED, startingOffsets="earliest")
    pull(harness)
    (rides,) = reports_of(harness)[0]
    del harness.assigned[0]["rides-0"]
    harness.enumerator.notify_splits_finished(["rides-0"])
    harness.enumerator.snapshot_state(7)
    harness.fail_reader(0, [rides] if way == "given back" else [])
    if way == "given back":
        assert state_of(harness).unassigned == (rides,)
    harness.no_more_splits.discard(0)
    harness.register_reader(0, reported_splits=[rides] if way == "reported" else [])
    pull(harness)
    assert reports_of(harness) == {0: [rides]}
    assert harness.no_more_splits == {0}


@pytest.mark.parametrize("boundedness", [BOUNDED, UNBOUNDED])
def test_such_a_finish_is_undone_by_an_enumerator_restored_from_a_state_of_after_it(boundedness: Boundedness) -> None:
    before = discovered(Cluster(rides=[10]), boundedness=boundedness, startingOffsets="earliest")
    if boundedness is BOUNDED:
        pull(before)
    (rides,) = reports_of(before)[0]
    before.finish_split(0, "rides-0")
    before.enumerator.notify_splits_finished(["rides-0"])
    restored = begin(Cluster(), boundedness=boundedness, state=before.snapshot())
    restored.fail_reader(0, [rides])
    assert state_of(restored).unassigned == (rides,)
    restored.register_reader(0)
    restored.request_split(0)
    assert reports_of(restored) == {0: [rides]}


@pytest.mark.parametrize("complete", [6, 7])
def test_finished_partitions_are_forgotten_when_a_checkpoint_knows(complete: int) -> None:
    harness = discovered(Cluster(rides=[10]))
    (rides,) = reports_of(harness)[0]
    del harness.assigned[0]["rides-0"]
    harness.enumerator.snapshot_state(6)
    harness.enumerator.notify_splits_finished(["rides-0"])
    harness.enumerator.snapshot_state(7)
    harness.enumerator.notify_checkpoint_complete(complete)
    if complete == 6:
        harness.fail_reader(0, [rides])
        assert state_of(harness).unassigned == (rides,)
    else:
        with pytest.raises(InvalidTransitionError, match="but it is unknown"):
            harness.fail_reader(0, [rides])


def test_a_partition_that_came_back_finishes_again_as_if_for_the_first_time() -> None:
    harness = discovered(Cluster(rides=[10]))
    (rides,) = reports_of(harness)[0]
    for checkpoint in (1, 2):
        harness.enumerator.notify_splits_finished(["rides-0"])
        harness.enumerator.snapshot_state(checkpoint)
        harness.enumerator.notify_checkpoint_complete(checkpoint - 1)
        harness.fail_reader(0, [rides])
        register(harness)
        assert reports_of(harness) == {0: [rides]}
    harness.enumerator.notify_splits_finished(["rides-0"])
    harness.enumerator.notify_checkpoint_complete(2)
    harness.fail_reader(0, [rides])
    assert state_of(harness).unassigned == (rides,)


# -- what cannot be (FLINK-39073) ---------------------------------------------------------------------------------


def test_a_split_that_its_reader_does_not_own_cannot_come_back() -> None:
    harness = discovered(Cluster(rides=[10, 20]), 2)
    owner = next(subtask for subtask, splits in held(harness).items() if splits == ["rides-0"])
    rides = harness.assigned[owner]["rides-0"]
    with pytest.raises(InvalidTransitionError, match=f"assigned to reader {owner} at 10") as raised:
        harness.fail_reader(1 - owner, [rides])
    assert raised.value.split == "rides-0"
    assert raised.value.history == ("discovered at 10", f"assigned to reader {owner} at 10")
    assert "rides-0 was given back" in str(raised.value)


def test_what_is_pending_or_unknown_cannot_come_back() -> None:
    harness = begin(Cluster(rides=[10]), 2)
    harness.run_next_call()
    before = harness.enumerator.snapshot_state(1)
    for lost in (split("rides", 0, 10), split("rides", 7)):
        with pytest.raises(InvalidTransitionError, match="given back by reader 0"):
            harness.enumerator.add_splits_back([lost], 0)
    assert harness.enumerator.snapshot_state(2) == before, "a rejected event leaves no trace"


def test_a_split_cannot_be_discovered_twice() -> None:
    harness = discovered(Cluster(rides=[10]), discovery="100")
    rides = split("rides", 0)
    twice: list[tuple[Any, list[KafkaSplit]]] = [
        (frozenset([rides.topic_partition]), [rides]),
        (frozenset(), [split("new", 0), split("new", 0)]),
    ]
    for known, found in twice:
        with pytest.raises(InvalidTransitionError, match="was discovered at 0, but it is"):
            harness.enumerator._on_discovered((known, found), None)


def test_two_readers_cannot_both_have_held_a_split() -> None:
    state = json.dumps(
        {"v": 1, "initial_discovery_finished": True, "assigned": {"rides": [0]}, "parallelism": 3}
    ).encode()
    harness = begin(Cluster(), 4, state=state)
    harness.register_reader(0, reported_splits=[split("rides", 0, 5)])
    harness.register_reader(0, reported_splits=[split("rides", 0, 5)])
    with pytest.raises(InvalidTransitionError, match="reported by reader 0 at 5"):
        harness.register_reader(1, reported_splits=[split("rides", 0, 9)])


def test_a_history_is_short() -> None:
    harness = discovered(Cluster(rides=[10]))
    for _ in range(50):
        harness.fail_reader(0)
        register(harness)
    with pytest.raises(InvalidTransitionError) as raised:
        harness.enumerator.add_splits_back([split("rides", 0)], 1)
    assert len(raised.value.history) == 8


def test_a_split_that_came_back_during_a_discovery_is_not_a_second_one() -> None:
    """The discovery began before the reader came back with it, and does not know that it is known."""
    cluster = Cluster(rides=[10])
    harness = discovered(cluster, discovery="100")
    (rides,) = reports_of(harness)[0]
    harness.enumerator.notify_splits_finished(["rides-0"])
    call = harness.calls[0]
    call.run_work()
    harness.fail_reader(0, [rides])
    harness.finish_call(call)
    register(harness)
    assert positions(harness) == {"rides-0": 10}


# -- event time ---------------------------------------------------------------------------------------------------


def unassigned(harness: Harness) -> int | None:
    return harness.enumerator.unassigned_event_time_ms()


def test_no_watermark_passes_before_the_first_discovery_is_over_and_all_partitions_are_assigned() -> None:
    harness = begin(Cluster(rides=[10, 20]), 2, discovery="100")
    assert unassigned(harness) == MIN_WATERMARK_MS
    harness.register_reader(0)
    harness.run_next_call()
    assert unassigned(harness) == MIN_WATERMARK_MS, "reader 1 is not there: nothing is assigned"
    harness.register_reader(1)
    assert unassigned(harness) is None and len(positions(harness)) == 2


def test_readers_that_are_all_there_wait_for_the_first_discovery() -> None:
    cluster = Cluster(rides=[10])
    harness = begin(cluster, 1, discovery="100")
    register(harness)
    assert unassigned(harness) == MIN_WATERMARK_MS
    harness.run_next_call()
    assert unassigned(harness) is None
    cluster.topics["rides"].append(5)
    assert unassigned(harness) is None, "nobody waits for ever for what may come"
    harness.run_next_call()
    assert unassigned(harness) is None and len(positions(harness)) == 2


def test_a_topic_without_partitions_holds_nobody() -> None:
    harness = discovered(Cluster(), 1, discovery="100")
    assert unassigned(harness) is None


def test_partitions_that_came_while_the_query_was_down_are_waited_for() -> None:
    cluster = Cluster(rides=[10])
    before = discovered(cluster, 1, discovery="100")
    cluster.topics["rides"].append(5)
    harness = begin(cluster, 1, state=before.snapshot(), discovery="100")
    register(harness, reports_of(before))
    assert unassigned(harness) == MIN_WATERMARK_MS
    cluster.error = DOWN
    harness.run_next_call()
    assert unassigned(harness) == MIN_WATERMARK_MS, "it failed and is retried"
    cluster.error = None
    harness.run_next_call()
    assert unassigned(harness) is None and len(positions(harness)) == 2


def test_a_reader_that_failed_holds_no_other_reader_and_has_its_partitions_before_it_is_free_itself() -> None:
    harness = discovered(Cluster(rides=[10, 20]), 2, discovery="100")
    mine = held(harness)[1]
    harness.fail_reader(1)
    assert [each.split_id for each in state_of(harness).unassigned] == mine
    assert unassigned(harness) is None
    harness.register_reader(1)
    assert held(harness)[1] == mine and unassigned(harness) is None


def test_a_bounded_read_holds_until_its_last_partition_is_assigned_and_again_when_one_comes_back() -> None:
    harness = discovered(Cluster(rides=[5, 6, 7]), 2, BOUNDED, startingOffsets="earliest")
    for subtask in (0, 1):
        harness.request_split(subtask)
        assert unassigned(harness) == MIN_WATERMARK_MS
    harness.request_split(0)
    assert unassigned(harness) is None
    harness.fail_reader(1)
    assert unassigned(harness) == MIN_WATERMARK_MS, "whoever asks first gets it"
    harness.request_split(0)
    assert unassigned(harness) is None


def test_a_restored_bounded_read_waits_for_what_its_readers_report() -> None:
    cluster = Cluster(rides=[5])
    before = discovered(cluster, 1, BOUNDED, startingOffsets="earliest")
    pull(before)
    harness = begin(cluster, 2, BOUNDED, before.snapshot(), startingOffsets="earliest")
    harness.register_reader(0)
    assert unassigned(harness) == MIN_WATERMARK_MS
    harness.register_reader(1, reported_splits=reports_of(before)[0])
    assert unassigned(harness) == MIN_WATERMARK_MS
    pull(harness)
    assert unassigned(harness) is None
