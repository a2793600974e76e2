"""What the tests of Pulsar share: its source without Spark, messages beside what its client reads, and plans."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pulsar
import pyarrow as pa

from headgate.connectors.pulsar.source import PulsarSource
from headgate.source import Boundedness, PlanLimits
from headgate.testing import ReaderHarness, SourceHarness
from local.pulsar_topics import Broker, Message, produce, read_topic

SCHEMA = pa.schema({"value": pa.binary(), "__messageId": pa.binary(), "__eventTime": pa.timestamp("us", "UTC")})
_COMPRESSIONS = ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY")


def source(broker: Any, topic: str, **more: str) -> PulsarSource:
    """Return a source; options that are empty are not set."""
    where = {"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": topic}
    return PulsarSource({name: value for name, value in {**where, **more}.items() if value})


def read(each: PulsarSource, schema: pa.Schema | None = None, **more: Any) -> list[dict[str, Any]]:
    """Read to the end; return the rows."""
    with SourceHarness(each, schema=schema, **more) as harness:
        harness.run_to_end()
        return harness.rows()


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    """Return the values that are numbers, sorted."""
    return sorted(int(row["value"]) for row in rows)


def messages(count: int, first: int = 0, **more: Any) -> list[Message]:
    """Return messages whose values are numbers, some with a key, an event time and a property."""
    return [
        Message(b"%d" % number, key=f"k{number}" if number % 3 else None, event_time_ms=number * 1000 or None,
                properties={"n": str(number)} if number % 2 else {}, **more)
        for number in range(first, first + count)
    ]  # fmt: skip


def by_topic(topic: str, start: Any) -> str:
    """Return a place of a topic, as an option has it."""
    return json.dumps({topic: start})


def produce_every_kind(broker: Broker, topic: str, partitions: int) -> int:
    """Write messages of every kind, and return how many: in batches, one by one, compressed, each with and without all.

    A batch of one message has an id of another shape than a message without one.
    """
    count = 0
    for kind, batch in enumerate((4, 1, 3, 1, 5)):
        messages = [
            Message(
                value=(None, b"", b"\xff\0binary", b"%d" % number, b"long" * 300)[number % 5],
                key=(None, f"k{number}", "schlüssel")[number % 3],
                event_time_ms=(None, 1_700_000_000_123 + number)[number // 2 % 2],
                properties=({}, {"n": str(number), "ä": "", "": "ö"})[number // 3 % 2],
                partition=number % partitions,
            )
            for number in range(count, count + 11)
        ]
        compression = getattr(pulsar.CompressionType, _COMPRESSIONS[kind])
        count += len(produce(broker, topic, messages, batch=batch, compression_type=compression))
    return count


def read_by_the_client(broker: Broker, topic: str) -> dict[bytes, dict[str, Any]]:
    """Return every column of every message, by message id, from what Pulsar's client says of it."""
    return {
        each.message_id().serialize(): {
            "value": None if each.has_null_value() else each.data(),
            "__key": each.partition_key().encode() or None,
            "__topic": each.topic_name(),
            "__publishTime": each.publish_timestamp(),
            "__eventTime": each.event_timestamp() or None,
            "__messageProperties": each.properties(),
        }
        for each in read_topic(broker, topic)
    }


def by_message_id(rows: Iterable[dict[str, Any]]) -> dict[bytes, dict[str, Any]]:
    """Return rows, as Arrow gives them to Python, in the same shape; no message may be there twice."""
    found: dict[bytes, dict[str, Any]] = {}
    for row in rows:
        times = {name: row[name] and round(row[name].timestamp() * 1000) for name in ("__publishTime", "__eventTime")}
        properties = {"__messageProperties": dict(row["__messageProperties"])}
        message_id = row["__messageId"]
        assert message_id not in found, f"{row} is there twice"
        found[message_id] = {name: row[name] for name in row if name != "__messageId"} | times | properties
    return found


class Plans:
    """Plans micro-batches over a topic from its beginning, and reads them."""

    def __init__(self, broker: Any, topic: str, **more: str) -> None:
        self.source, self._again = (source(broker, topic, startingOffsets="earliest", **more) for _ in range(2))
        with SourceHarness(self.source, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
            harness.enumerator.run_due_calls()
            self.splits = list(harness.enumerator.assigned[0].values())

    def rows(self, limits: PlanLimits) -> list[int]:
        """Return the values of the next micro-batch, in no order; it may be none."""
        planned = self.source.plan_ranges(self.splits, limits, 0)
        found: list[int] = []
        for one in planned:
            with ReaderHarness(self._again.create_reader, self._again.split_serializer, SCHEMA) as reader:
                reader.add_splits(one.split)
                found += [int(row["value"]) for row in reader.run_to_end()]
        rests = {one.split.split_id: one.rest for one in planned}
        self.splits = [rests.get(split.split_id) or split for split in self.splits]
        return found
