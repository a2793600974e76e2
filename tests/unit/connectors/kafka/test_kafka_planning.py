"""How both planners for Spark drive the enumerator of `headgate.kafka`: batches, streams, restarts."""

from __future__ import annotations

import logging
from itertools import chain
from typing import Any

import pytest

from headgate.connectors.kafka.split import KafkaSplit
from headgate.errors import SourceUnavailableError
from headgate.microbatch.offsets import INITIAL
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.stream_plan import StreamPlanner
from headgate.source import PlanLimits
from tests.unit.connectors.kafka.partitions_source import (
    Cluster,
    PartitionsSource,
)

DOWN = SourceUnavailableError("no broker answers", source="headgate.kafka")


NO_LIMITS = PlanLimits()


def planner_of(cluster: Cluster, **options: str) -> tuple[StreamPlanner, PartitionsSource]:
    source = PartitionsSource(cluster, options)
    return StreamPlanner(source, source.schema()), source


def planned(planner: StreamPlanner, start: dict[str, Any], end: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    ranges = list(chain.from_iterable(planner.tasks(start, end, 0)))
    return {each.split_id: (each.position, each.stop) for each in ranges if isinstance(each, KafkaSplit)}


def test_a_batch_read_gets_all_splits() -> None:
    source = PartitionsSource(Cluster(rides=[10, 0], fares=[3]), {"startingOffsets": "earliest"})
    splits = plan_batch(source, source.schema(), 0)
    assert sorted((each.split_id, each.position, each.stop) for each in splits) == [
        ("fares-0", 0, 3),
        ("rides-0", 0, 10),
        ("rides-1", 0, 0),
    ]
    assert plan_batch(PartitionsSource(Cluster(), {}), source.schema(), 0) == []


def test_a_stream_reads_what_comes_and_finds_partitions_as_new_ones() -> None:
    cluster = Cluster(rides=[10, 10])
    planner, _ = planner_of(cluster, discovery="1000")
    first = planner.plan(INITIAL, NO_LIMITS, 0)
    assert planned(planner, INITIAL, first) == {}
    cluster.topics["rides"] = [15, 10]
    second = planner.plan(first, NO_LIMITS, 100)
    assert planned(planner, first, second) == {"rides-0": (10, 15)}
    cluster.topics["rides"] = [15, 10, 4]
    assert planner.plan(second, NO_LIMITS, 900) == second, "discovery is not due"
    third = planner.plan(second, NO_LIMITS, 1000)
    assert planned(planner, second, third) == {"rides-2": (0, 4)}
    assert planner.plan(third, NO_LIMITS, 5000) == third
    assert planner.lag(5000) == {
        "minOffsetsBehindLatest": 0, "maxOffsetsBehindLatest": 0, "avgOffsetsBehindLatest": 0, "rowsBehind": 0,
    }  # fmt: skip


def test_a_restarted_stream_goes_on_where_it_was_without_the_topics_that_are_not_named_any_longer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster(rides=[10], fares=[10])
    planner, _ = planner_of(cluster, subscribe="rides,fares", startingOffsets="earliest")
    end = planner.plan(INITIAL, PlanLimits(max_rows=10), 0)
    assert planned(planner, INITIAL, end) == {"rides-0": (0, 5), "fares-0": (0, 5)}
    cluster.topics["tips"] = [7]
    with caplog.at_level(logging.WARNING):
        again, _ = planner_of(cluster, subscribe="fares,tips", startingOffsets="latest")
        after = again.plan(end, NO_LIMITS, 0)
    assert planned(again, end, after) == {"fares-0": (5, 10), "tips-0": (0, 7)}
    assert "no longer read, since the options do not name them: rides-0." in caplog.text


def test_available_now_reads_up_to_what_was_there_and_a_later_run_goes_on() -> None:
    cluster = Cluster(rides=[10])
    planner, _ = planner_of(cluster, discovery="1000", startingOffsets="earliest")
    planner.freeze()
    first = planner.plan(INITIAL, PlanLimits(max_rows=6), 0)
    cluster.topics["rides"] = [20, 5]
    second = planner.plan(first, PlanLimits(max_rows=6), 5000)
    assert [planned(planner, *each) for each in ((INITIAL, first), (first, second))] == [
        {"rides-0": (0, 6)},
        {"rides-0": (6, 10)},
    ]
    assert planner.plan(second, NO_LIMITS, 9000) == second
    later, _ = planner_of(cluster, discovery="1000", startingOffsets="earliest")
    third = later.plan(second, NO_LIMITS, 10_000)
    assert planned(later, second, third) == {"rides-0": (10, 20), "rides-1": (0, 5)}


def test_a_topic_dropped_while_it_had_a_stop_leaves_nothing_and_is_new_when_it_is_named_again() -> None:
    """What followed the stop of an ``AvailableNow`` run stood in the offsets for ever, and met the next split."""
    cluster = Cluster(rides=[10], trips=[10])

    def started(subscribe: str, now: bool = False) -> StreamPlanner:
        planner, _ = planner_of(cluster, subscribe=subscribe, discovery="1000", startingOffsets="earliest")
        if now:
            planner.freeze()
        return planner

    half = started("rides,trips", now=True).plan(INITIAL, PlanLimits(max_rows=6), 0)
    assert all("then" in each for each in half["splits"]), "the run was stopped half way"
    without = started("rides").plan(half, NO_LIMITS, 1000)
    assert [each["split"]["topic"] for each in without["splits"]] == ["rides"]
    assert "behind_stops" not in without
    for offset in (without, without | {"behind_stops": [half["splits"][1]["then"]]}):
        again = started("rides,trips", now=True)
        end = again.plan(offset, NO_LIMITS, 2000)
        assert planned(again, offset, end) == {"trips-0": (0, 10)}
        cluster.topics["trips"] = [15]
        assert again.plan(end, NO_LIMITS, 3000) == end, "what comes later is not part of this run"
        cluster.topics["trips"] = [10]


def test_a_deleted_topic_ends_and_one_made_again_is_read_from_its_beginning() -> None:
    cluster = Cluster(rides=[10], fares=[10])
    planner, _ = planner_of(cluster, discovery="100", failOnDataLoss="false")
    first = planner.plan(INITIAL, NO_LIMITS, 0)
    del cluster.topics["rides"]
    second = planner.plan(first, NO_LIMITS, 10)
    assert planned(planner, first, second) == {"rides-0": (10, 10)}, "an empty range, so that it is finished"
    cluster.topics["rides"] = [3]
    third = planner.plan(second, NO_LIMITS, 100)
    assert planned(planner, second, third) == {"rides-0": (0, 3)}


def test_a_first_discovery_that_fails_fails_the_query_and_a_later_one_does_not() -> None:
    cluster = Cluster(rides=[10])
    planner, _ = planner_of(cluster, discovery="100")
    cluster.error = DOWN
    with pytest.raises(SourceUnavailableError):
        planner.plan(INITIAL, NO_LIMITS, 0)
    cluster.error = None
    planner, _ = planner_of(cluster, discovery="100")
    first = planner.plan(INITIAL, NO_LIMITS, 0)
    cluster.error = DOWN
    assert planner.plan(first, NO_LIMITS, 100) == first


def test_a_stream_that_began_without_topics_reads_those_that_come_from_their_beginning_after_a_restart_too() -> None:
    cluster = Cluster()
    planner, _ = planner_of(cluster, discovery="100", startingOffsets="latest")
    first = planner.plan(INITIAL, NO_LIMITS, 0)
    assert planned(planner, INITIAL, first) == {}
    cluster.topics["late"] = [10]
    again, _ = planner_of(cluster, discovery="100", startingOffsets="latest")
    for each in (planner, again):
        end = each.plan(first, NO_LIMITS, 100)
        assert planned(each, first, end) == {"late-0": (0, 10)}


def test_an_idle_stream_writes_the_same_offset() -> None:
    planner, _ = planner_of(Cluster(rides=[10, 11]), discovery="1000")
    first = planner.plan(INITIAL, NO_LIMITS, 0)
    for now_ms in range(0, 60_000, 500):
        assert planner.plan(first, NO_LIMITS, now_ms) == first
