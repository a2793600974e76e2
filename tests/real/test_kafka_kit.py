"""Every promise of the contract, by the kit that connector authors use, over a real broker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from headgate.connectors.kafka import split_reader
from headgate.connectors.kafka.source import KafkaSource
from headgate.testing.conformance import conformance_test
from local.kafka import Broker, running_broker
from local.topics import Message, create_topic, produce


@pytest.fixture(scope="module")
def three(kafka: Broker) -> str:
    """Return a topic of 24 records in 3 partitions, of which one is empty."""
    topic = create_topic(kafka.plain, "kit-three", 3)
    add(kafka, topic, 0, 24)
    return topic


def add(broker: Broker, topic: str, begin: int, end: int) -> None:
    """Produce records, a second after the other."""
    numbers = range(begin, end)
    messages = [Message(b"%d" % each, partition=each % 2, timestamp_ms=(each + 1) * 1000) for each in numbers]
    produce(broker.plain, topic, messages)


def options(broker: Broker, topic: str, **more: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": broker.plain,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "eventTimeColumn": "timestamp",
        "minPartitions": "5",
        **more,
    }


@pytest.fixture(autouse=True)
def few_records_a_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be many places to restore at."""
    for name in ("_FIRST_ROWS", "MOST_ROWS"):
        monkeypatch.setattr(split_reader, name, 4)


test_kafka_keeps = conformance_test(
    lambda kafka, three: KafkaSource(options(kafka, three)), add_rows=lambda kafka, three: add(kafka, three, 24, 30)
)


@pytest.fixture(scope="module")
def frozen_at_times(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker that only these tests stop."""
    with running_broker(tmp_path_factory.mktemp("own") / "broker") as broker:
        create_topic(broker.plain, "kit-frozen", 2)
        add(broker, "kit-frozen", 0, 24)
        yield broker


@contextmanager
def frozen(broker: Broker) -> Iterator[None]:
    """Let a broker stand still."""
    broker.freeze()
    try:
        yield
    finally:
        assert broker.process is not None
        broker.process.send_signal(signal.SIGCONT)


SHORT = {"kafka.request.timeout.ms": "1000", "kafka.default.api.timeout.ms": "1500"}

test_kafka_keeps_while_its_broker_stands_still = conformance_test(
    lambda frozen_at_times: KafkaSource(options(frozen_at_times, "kit-frozen", **SHORT)),
    unavailable=lambda frozen_at_times: frozen(frozen_at_times),
    only=["enumerator-does-not-block", "unavailability-loses-nothing"],
)
