"""Every promise of the contract, by the kit that connector authors use, over a real broker."""

from __future__ import annotations

import pytest

from headgate.connectors.kafka import split_reader
from headgate.connectors.kafka.source import KafkaSource
from headgate.testing.conformance import conformance_test
from local.kafka import Broker
from local.topics import Message, create_topic, produce


@pytest.fixture(scope="module")
def three(kafka: Broker) -> str:
    """Return a topic of 24 records in 3 partitions, of which one is empty."""
    topic = create_topic(kafka.plain, "kit-three", 3)
    produce(kafka.plain, topic, [Message(b"%d" % number, partition=number % 2) for number in range(24)])
    return topic


@pytest.fixture(autouse=True)
def few_records_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be many places to restore at."""
    for name in ("_FIRST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(split_reader, name, 4)


test_kafka_keeps = conformance_test(
    lambda kafka, three: KafkaSource({"kafka.bootstrap.servers": kafka.plain, "subscribe": three})
)
