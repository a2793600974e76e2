"""What the tests of Pulsar share: its source without Spark, and messages of every kind beside what its client reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pulsar
import pyarrow as pa

from headgate.connectors.pulsar.source import PulsarSource
from headgate.testing import SourceHarness
from local.pulsar_topics import Broker, Message, produce, read_topic

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
