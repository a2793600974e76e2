"""What micro-batches of Pulsar's topics plan, by what its brokers say, without a broker."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from headgate.connectors.pulsar.ledgers import Ledger, Ledgers
from headgate.connectors.pulsar.position import Position
from headgate.connectors.pulsar.source import PulsarSource
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit, topic_name
from headgate.enumerators.partition import TopicPartition
from headgate.source import PlanLimits

TOPIC = "persistent://public/default/rides"


class Brokers:
    """What the brokers' HTTP API says of one topic: the ledgers of its partitions."""

    def __init__(self, ledgers: dict[int, Ledgers]) -> None:
        self.of = ledgers
        self.moved: set[str] = set()

    def ledgers(self, topic: str) -> Ledgers | None:
        assert topic == TOPIC
        return self.of.get(NOT_PARTITIONED)

    def ledgers_of_partitions(self, topic: str, numbers: Collection[int]) -> dict[int, Ledgers]:
        assert topic == TOPIC
        assert NOT_PARTITIONED not in numbers
        return {number: of for number, of in self.of.items() if number in numbers}

    def before_open_transactions(self, topic: str) -> None:
        return None

    def move_subscription(self, topic: str, subscription: str, position: Position) -> None:
        self.moved.add(topic)


def source(brokers: Brokers, **more: str) -> PulsarSource:
    made = PulsarSource({"service.url": "pulsar://b", "admin.url": "http://b", "topic": "rides", **more})
    made._admin = brokers  # type: ignore[assignment]
    return made


def split(number: int, position: Position | None) -> PulsarSplit:
    return PulsarSplit(
        split_id=topic_name(TopicPartition(TOPIC, number)), topic=TOPIC, partition=number, position=position
    )


@pytest.mark.parametrize(
    ("before", "after"), [([NOT_PARTITIONED], [0, 1]), ([0, 1], [NOT_PARTITIONED])], ids=["with", "without"]
)
def test_a_topic_made_again_with_other_partitions_is_read(
    before: list[int], after: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Those of the deleted one stay known; which are first is as it comes."""
    gone = [split(number, Position(3, 7)) for number in before]
    new = [split(number, Position(9, -1)) for number in after]
    brokers = Brokers({number: Ledgers((Ledger(9, 5, 100),)) for number in after})
    for order in (gone + new, new + gone):
        reader = source(brokers, failOnDataLoss="false", predefinedSubscription="kept")
        caplog.clear()
        for now_ms in (0, 1000, 2000):
            ranges = reader.plan_ranges(order, PlanLimits(), now_ms)
            assert [(each.split.split_id, each.split.stop) for each in ranges] == [
                (each.split_id, Position(9, 4)) for each in new
            ]
        assert reader.lag(order, 3000)["entriesBehindLatest"] == 5 * len(after)
        assert brokers.moved == {each.name for each in new}, "a subscription makes the topic that is gone"
        assert len(caplog.records) == len(gone), "each loss is logged once, not at each plan"
