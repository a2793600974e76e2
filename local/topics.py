"""Makes, fills and deletes topics, for tests and benches.

Never: return before the broker has what it was told.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec


@dataclass(frozen=True)
class Message:
    """One record to produce; the names are Kafka's."""

    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int = 0
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


def create_topic(address: str, topic: str, partitions: int = 1, **config: str) -> str:
    """Make a topic and return its name. Names of settings have ``_`` for ``.``."""
    settings = {"retention.ms": "-1"} | {name.replace("_", "."): value for name, value in config.items()}
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1, config=settings)], operation_timeout=30)[topic].result(60)
    # The controller has it; the broker, which clients ask, hears of it later on a busy machine.
    _wait(lambda: _leaders(admin, topic) == partitions)
    return topic


def add_partitions(address: str, topic: str, partitions: int) -> None:
    """Let a topic have so many partitions."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)
    _wait(lambda: _leaders(admin, topic) == partitions)


def delete_topic(address: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": address})  # held: without it nothing is answered any more
    admin.delete_topics([topic], operation_timeout=30)[topic].result(60)
    _wait(lambda: _leaders(admin, topic) is None)


def wait_for_transactions(address: str, topic: str) -> None:
    """Wait until none is open. A commit or an abort returns before partitions have its marker, and readers see it."""
    admin = AdminClient({"bootstrap.servers": address})
    latest = {TopicPartition(topic, each.id): OffsetSpec.latest() for each in _partitions(admin, topic)}

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = admin.list_offsets(latest, isolation_level=isolation, request_timeout=60)
        return [each.result(60).offset for each in asked.values()]

    _wait(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED))


def _leaders(admin: AdminClient, topic: str) -> int | None:
    """Return how many partitions of a topic can be read and written; None: there is no such topic."""
    try:
        partitions = _partitions(admin, topic)
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    return sum(each.leader is not None and each.leader.id >= 0 for each in partitions)


def _partitions(admin: AdminClient, topic: str) -> list[TopicPartitionInfo]:
    partitions: list[TopicPartitionInfo] = (
        admin.describe_topics(TopicCollection([topic]), request_timeout=60)[topic].result(60).partitions
    )
    return partitions


def _wait(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"The broker has not heard of it within {timeout_s} s.")
        time.sleep(0.01)


def produce(address: str, topic: str, messages: Iterable[Message], **config: str | int) -> None:
    """Write records in their order, and wait until the broker has all. Names of settings have ``_`` for ``.``."""
    # A broker that has just heard of a topic may refuse the first batch and take a second one. Idempotence would help
    # as well; asking for a producer's id takes as long as a small test.
    in_order = {"max.in.flight": 1}
    settings = in_order | {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings | {name.replace("_", "."): value for name, value in config.items()})
    failed: list[str] = []
    for each in messages:
        producer.produce(
            topic, each.value, each.key, each.partition, timestamp=each.timestamp_ms, headers=each.headers or None,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )  # fmt: skip
        producer.poll(0)
    left = producer.flush(240)
    if left or failed:
        raise RuntimeError(f"{topic}: {left} records were not written, {len(failed)} failed: {failed[:3]}")
