"""Every promise of the contract, by the kit that connector authors use, over a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headgate.connectors.kafka import split_reader
from headgate.connectors.kafka.source import KafkaSource
from headgate.testing import ALL_CHECKS
from local.kafka import Broker
from local.topics import Message, create_topic, produce


@pytest.fixture(scope="module")
def three(kafka: Broker) -> str:
    """Return a topic of 24 records in 3 partitions, of which one is empty."""
    topic = create_topic(kafka.plain, "kit-three", 3)
    produce(kafka.plain, topic, [Message(b"%d" % number, partition=number % 2) for number in range(24)])
    return topic


@pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
def test_kafka_keeps(check: Callable[..., None], kafka: Broker, three: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_ROWS", "MOST_ROWS"):  # few records a fetch, so that there are many places to restore at
        monkeypatch.setattr(split_reader, name, 4)
    options = {"kafka.bootstrap.servers": kafka.plain, "subscribe": three}
    check(lambda: KafkaSource(options), schema=KafkaSource(options).schema())
