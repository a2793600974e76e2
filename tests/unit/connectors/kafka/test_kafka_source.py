"""What `KafkaSource` asks the brokers while it plans, and what travels with it. Nobody listens at port 9."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from headgate.connectors.kafka.cluster import KafkaCluster
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.connectors.kafka.subscription import TopicInfo
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError
from headgate.source import PlanLimits, SupportsEventTimeSeek

AT = TopicPartition("rides", 0)
SPLIT = KafkaSplit(split_id="rides-0", topic="rides", partition=0, position=5, topic_id="first")


class Answers:
    """One partition; notes what is asked."""

    def __init__(self) -> None:
        self.first, self.committed, self.end, self.topic_id = 0, 9, 9, "first"
        self.asked: list[str] = []

    def _answer(self, question: str, partitions: Iterable[TopicPartition], offset: int) -> dict[TopicPartition, int]:
        self.asked.append(question)
        return dict.fromkeys(partitions, offset)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer("latest", partitions, self.committed)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer("ends", partitions, self.end)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return self._answer("earliest", partitions, self.first)

    def topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        self.asked.append("topics")
        return dict.fromkeys(names, TopicInfo(self.topic_id, (0,)))


def source(answers: Answers | None = None, **options: str) -> KafkaSource:
    made = KafkaSource({"subscribe": "rides", "kafka.bootstrap.servers": "127.0.0.1:9", **options})
    made._cluster = answers  # type: ignore[assignment]
    return made


def stops(planning: KafkaSource, now_ms: int, split: KafkaSplit = SPLIT) -> list[int | None]:
    return [each.split.stop for each in planning.plan_ranges([split], PlanLimits(), now_ms)]


def test_an_idle_planner_does_not_ask_at_each_plan() -> None:
    """Spark plans a hundred times a second when nothing comes."""
    answers = Answers()
    planning = source(answers)
    read = msgspec.structs.replace(SPLIT, position=9)
    for now_ms in range(0, 1000, 10):
        assert stops(planning, now_ms, read) == []
    assert answers.asked.count("latest") == 20
    assert answers.asked.count("topics") == answers.asked.count("earliest") == 1
    assert stops(planning, 1000, read) == []
    assert answers.asked.count("topics") == answers.asked.count("earliest") == 2


def test_a_plan_rests_on_the_topic_that_its_offsets_are_of() -> None:
    """A topic that was made again between two plans, with records at the very offsets that come next."""
    answers = Answers()
    planning = source(answers, failOnDataLoss="false")
    assert stops(planning, 0) == [9]
    read = msgspec.structs.replace(SPLIT, position=9)
    answers.committed = answers.end = 12
    answers.topic_id = "second"
    (planned,) = planning.plan_ranges([read], PlanLimits(), 100)
    assert (planned.split.position, planned.split.stop, planned.split.topic_id) == (0, 12, "second")


def test_a_clock_that_was_set_back_leaves_no_fact_for_ever() -> None:
    answers = Answers()
    planning = source(answers)
    assert stops(planning, 3_600_000) == [9]
    answers.committed = answers.end = 12
    assert stops(planning, 0) == [12]


def test_a_partition_that_is_new_to_the_planner_is_asked_for_at_once() -> None:
    answers = Answers()
    planning = source(answers)
    stops(planning, 0)
    other = KafkaSplit(split_id="rides-1", topic="rides", partition=1, position=3)
    assert stops(planning, 1, other) == [9]


def test_a_position_after_the_end_is_looked_into_at_once() -> None:
    """A topic that was made again is found by its id before anything of it is planned."""
    answers = Answers()
    planning = source(answers)
    stops(planning, 0)
    answers.committed, answers.end, answers.topic_id = 2, 2, "second"
    with pytest.raises(DataLossError, match="created again"):
        stops(planning, 60)


@pytest.mark.parametrize(("isolation", "lost"), [("read_committed", False), ("read_uncommitted", True)])
def test_only_an_open_transaction_may_lie_between_the_latest_offset_and_a_position(isolation: str, lost: bool) -> None:
    answers = Answers()
    answers.committed = 3
    planning = source(answers, **{"kafka.isolation.level": isolation})
    if lost:
        with pytest.raises(DataLossError):
            stops(planning, 0)
    else:
        assert stops(planning, 0) == []


def test_a_client_does_not_travel() -> None:
    made = source()
    cluster: Any = made._brokers()
    assert isinstance(cluster, KafkaCluster)
    assert pickle.loads(pickle.dumps(made))._cluster is None
    assert made._cluster is cluster


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"eventTimeColumn": "at"},
        {"eventTimeColumn": "value"},
        {"valueFormat": "json"},
        {"eventTimeColumn": "_timestamp"},
    ],
)
def test_what_is_no_event_time_is_not_known_and_no_broker_is_asked_for_it(options: dict[str, str]) -> None:
    answers = Answers()
    planning = source(answers, **options)
    assert planning.next_event_times([SPLIT]) is None
    assert answers.asked == []
    assert isinstance(planning, SupportsEventTimeSeek)


def test_a_split_that_has_nothing_new_has_no_next_record() -> None:
    after = msgspec.structs.replace(SPLIT, position=9)
    assert source(Answers(), eventTimeColumn="timestamp").next_event_times([after]) == {}
