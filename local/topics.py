"""Makes, fills and deletes topics, for tests and benches.

Never: return before the broker has what it was sent.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import confluent_kafka
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
    TopicPartitionInfo,
)
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec

_PATIENCE_S = 240
"""How long a broker may take to answer; it takes milliseconds, unless the machine is very busy."""


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
    made = admin.create_topics([NewTopic(topic, partitions, 1, config=settings)], operation_timeout=_PATIENCE_S)
    made[topic].result(_PATIENCE_S)
    _wait(lambda: _served(admin, topic) == partitions)
    return topic


def add_partitions(address: str, topic: str, partitions: int) -> None:
    """Let a topic have so many partitions."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(_PATIENCE_S)
    _wait(lambda: _served(admin, topic) == partitions)


def delete_topic(address: str, topic: str) -> None:
    """Delete a topic, and wait until it is gone."""
    admin = AdminClient({"bootstrap.servers": address})  # held: without it nothing is answered any more
    admin.delete_topics([topic], operation_timeout=_PATIENCE_S)[topic].result(_PATIENCE_S)
    _wait(lambda: _served(admin, topic) is None)


def read_topic(address: str, topic: str, isolation: str = "read_committed") -> list[confluent_kafka.Message]:
    """Return what a consumer sees now: all records up to the end, by partition and offset."""
    settings = {"bootstrap.servers": address, "group.id": "reads-nothing-else", "isolation.level": isolation}
    consumer = Consumer(settings | {"enable.partition.eof": True, "enable.auto.commit": False})
    partitions = list(consumer.list_topics(topic, _PATIENCE_S).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, each, OFFSET_BEGINNING) for each in partitions])
    found, ended = [], 0
    while ended < len(partitions):
        message = consumer.poll(_PATIENCE_S)
        assert message is not None, "the broker did not answer"
        if (error := message.error()) is None:
            found.append(message)
        else:
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended += 1
    consumer.close()
    return sorted(found, key=lambda each: (each.partition() or 0, each.offset() or 0))


def wait_for_transactions(address: str, topic: str) -> None:
    """Wait until none is open. A commit or an abort returns before partitions have its marker, and readers see it."""
    admin = AdminClient({"bootstrap.servers": address})
    latest = {TopicPartition(topic, each.id): OffsetSpec.latest() for each in _partitions(admin, topic)}

    def ends(isolation: IsolationLevel) -> list[int]:
        asked = admin.list_offsets(latest, isolation_level=isolation, request_timeout=_PATIENCE_S)
        return [each.result(_PATIENCE_S).offset for each in asked.values()]

    _wait(lambda: ends(IsolationLevel.READ_COMMITTED) == ends(IsolationLevel.READ_UNCOMMITTED))


def _served(admin: AdminClient, topic: str) -> int | None:
    """Return how many partitions of a topic can be read and written; None: there is no such topic.

    The controller has a topic first, then the broker names its leaders, then it serves them: on a busy machine there is
    time in between, in which a producer's first batch is refused and its second one taken.
    """
    try:
        there = [each.id for each in _partitions(admin, topic) if each.leader is not None and each.leader.id >= 0]
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        raise
    if not there:
        return 0
    asked = admin.list_offsets(
        {TopicPartition(topic, each): OffsetSpec.latest() for each in there}, request_timeout=_PATIENCE_S
    )
    return sum(each.exception(_PATIENCE_S) is None and each.result().offset >= 0 for each in asked.values())


def _partitions(admin: AdminClient, topic: str) -> list[TopicPartitionInfo]:
    asked = admin.describe_topics(TopicCollection([topic]), request_timeout=_PATIENCE_S)[topic]
    partitions: list[TopicPartitionInfo] = asked.result(_PATIENCE_S).partitions
    return partitions


def _wait(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"The broker has not heard of it within {_PATIENCE_S} s.")
        time.sleep(0.01)


def produce(address: str, topic: str, messages: Iterable[Message], **config: str | int) -> None:
    """Write records in their order, and wait until the broker has all. Names of settings have ``_`` for ``.``."""
    in_order = {"max.in.flight": 1}
    settings = in_order | {"bootstrap.servers": address, "linger.ms": 5, "queue.buffering.max.messages": 1_000_000}
    producer = Producer(settings | {name.replace("_", "."): value for name, value in config.items()})
    failed: list[str] = []
    written: dict[int, int] = {}

    def on_delivery(error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            failed.append(str(error))
            return
        partition, offset = message.partition() or 0, message.offset() or 0
        if offset <= written.get(partition, -1):  # what was refused is sent once more, after what was on its way
            failed.append(f"offset {offset} of partition {partition} was written after {written[partition]}")
        written[partition] = offset

    for each in messages:
        producer.produce(
            topic, each.value, each.key, each.partition, timestamp=each.timestamp_ms, headers=each.headers or None,
            on_delivery=on_delivery,
        )  # fmt: skip
        producer.poll(0)
    left = producer.flush(_PATIENCE_S)
    if left or failed:
        raise RuntimeError(f"{topic}: {left} records were not written, {len(failed)} failed: {failed[:3]}")
