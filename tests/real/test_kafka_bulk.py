"""Decoding in bulk gives what confluent-kafka gives message by message, and is not used where it cannot be trusted.

For rows that are written see `test_kafka_producers`.
"""

from __future__ import annotations

import logging
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.kafka import consumer_pool, librdkafka
from headgate.connectors.kafka.bulk import BulkConsumer
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.plain import PlainConsumer
from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from local.kafka import Broker
from local.topics import Message, create_topic, produce

PARTITIONS = 3
EVERYTHING = Wanted(headers=True)


def some_bytes(numbers: random.Random) -> bytes | None:
    kind = numbers.random()
    if kind < 0.1:
        return None
    if kind < 0.2:
        return b""
    return numbers.randbytes(numbers.choice([1, 7, 90, 300]) if kind < 0.99 else 200_000)


def some_headers(numbers: random.Random) -> list[tuple[str, bytes | None]]:
    return [(numbers.choice(["", "a", "Größe"]), some_bytes(numbers)) for _ in range(numbers.choice([0, 0, 1, 3]))]


def some_messages(seed: int, count: int) -> list[Message]:
    numbers = random.Random(seed)
    return [
        Message(
            some_bytes(numbers), some_bytes(numbers), numbers.randrange(PARTITIONS),
            numbers.randrange(1, 1_700_000_000_000), some_headers(numbers),
        )
        for _ in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def topics(kafka: Broker) -> dict[str, str]:
    """Two topics with the same records, one with the times of producers, one with those of the broker."""
    names = {}
    for kind in ("CreateTime", "LogAppendTime"):
        names[kind] = create_topic(kafka.plain, f"bulk-{kind}", PARTITIONS, message_timestamp_type=kind)
        produce(kafka.plain, names[kind], some_messages(5, 2000), message_max_bytes=2_000_000)
    return names


def settings(kafka: Broker) -> dict[str, str | int | bool]:
    return {
        "bootstrap.servers": kafka.plain, "group.id": "bulk", "enable.partition.eof": True, "enable.auto.commit": False,
    }  # fmt: skip


def read(consumer: Any, topic: str, wanted: Wanted) -> dict[TopicPartition, list[Records]]:
    """Read all partitions to their ends."""
    sources = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    found: dict[TopicPartition, list[Records]] = {source: [] for source in sources}
    consumer.assign(dict.fromkeys(sources, 0))
    ended: set[Any] = set()
    while ended != set(sources):
        consumed = consumer.consume(wanted, 700, 1000)
        for records in consumed.records:
            found[records.source].append(records)
        ended.update(event.source for event in consumed.events if event.code == -191)
    consumer.unassign(sources)
    consumer.close()
    return found


def column(records: list[Records], name: str) -> list[Any]:
    return [value for each in records for value in list(getattr(each, name))]


def text_of(array: Any) -> bytes:
    """The memory of all values of an array, those under a null included."""
    ends = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    return bytes(memoryview(array.buffers()[2])[ends[0] : ends[-1]])


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_bulk_equals_plain(kafka: Broker, topics: dict[str, str], kind: str) -> None:
    in_bulk = read(BulkConsumer(settings(kafka)), topics[kind], EVERYTHING)
    one_by_one = read(PlainConsumer(settings(kafka)), topics[kind], EVERYTHING)
    for source, records in one_by_one.items():
        assert sum(len(each.offsets) for each in records) > 500
        for name in ("offsets", "keys", "values", "timestamps_ms", "timestamp_types", "headers"):
            assert column(in_bulk[source], name) == column(records, name), (source, name)
        assert set(column(records, "timestamp_types")) == {["CreateTime", "LogAppendTime"].index(kind)}
    for each in (each for of_it in in_bulk.values() for each in of_it):
        for array in (each.keys, each.values, each.headers):
            assert isinstance(array, pa.Array)
            array.validate(full=True)


def test_bulk_gives_what_was_produced(kafka: Broker, topics: dict[str, str]) -> None:
    found = read(BulkConsumer(settings(kafka)), topics["CreateTime"], EVERYTHING)
    for source, records in found.items():
        produced = [each for each in some_messages(5, 2000) if each.partition == source.partition]
        assert [value.as_py() for value in column(records, "values")] == [each.value for each in produced]
        assert [key.as_py() for key in column(records, "keys")] == [each.key for each in produced]
        assert column(records, "timestamps_ms") == [each.timestamp_ms for each in produced]
        headers = [None if each.as_py() is None else [tuple(h.values()) for h in each.as_py()]
                   for each in column(records, "headers")]  # fmt: skip
        assert headers == [each.headers or None for each in produced]


def test_lines_are_text_in_bulk_as_in_plain(kafka: Broker, topics: dict[str, str]) -> None:
    wanted = Wanted(keys=False, lines=True)
    in_bulk = read(BulkConsumer(settings(kafka)), topics["CreateTime"], wanted)
    one_by_one = read(PlainConsumer(settings(kafka)), topics["CreateTime"], wanted)
    for source, records in one_by_one.items():
        produced = [each for each in some_messages(5, 2000) if each.partition == source.partition]
        expected = b"".join((each.value or b"") + b"\n" for each in produced)
        assert b"".join(text_of(each.values) for each in records) == expected
        assert b"".join(text_of(each.values) for each in in_bulk[source]) == expected
        assert column(in_bulk[source], "values") == column(records, "values")


def test_what_is_not_wanted_is_not_there(kafka: Broker, topics: dict[str, str]) -> None:
    for made in (BulkConsumer, PlainConsumer):
        found = read(made(settings(kafka)), topics["CreateTime"], Wanted(keys=False, values=False, timestamps=False))
        for each in (each for of_it in found.values() for each in of_it):
            assert (each.keys, each.values, each.timestamps_ms, each.timestamp_types, each.headers) == (None,) * 5
            assert len(each.offsets)


@pytest.fixture
def undecided(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was found out about the library, before and after."""
    monkeypatch.setattr(consumer_pool, "_bulk_possible", None)
    librdkafka.library.cache_clear()
    yield
    librdkafka.library.cache_clear()


@pytest.mark.usefixtures("undecided")
@pytest.mark.parametrize(("bound", "version"), [("OLDEST", 0x7F000000), ("NEWEST", 0x02000000)])
def test_an_unknown_version_is_read_message_by_message(
    kafka: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, bound: str, version: int
) -> None:
    monkeypatch.setattr(librdkafka, bound, version)
    client = ClientConfig((("bootstrap.servers", kafka.plain),))
    with caplog.at_level(logging.WARNING):
        leases = [consumer_pool.acquire(client, {}, "auto") for _ in range(2)]
    assert [type(lease.consumer) for lease in leases] == [PlainConsumer, PlainConsumer]
    (warning,) = [record.message for record in caplog.records if "one by one" in record.message]
    assert warning.endswith("is not one whose interface is known")
    for lease in leases:
        lease.release(assigned=[], failed=True)


WITHOUT_NUMBA = """
import sys
sys.modules["numba"] = None
from headgate.connectors.kafka import consumer_pool
from headgate.connectors.kafka.client_config import ClientConfig
lease = consumer_pool.acquire(ClientConfig((("bootstrap.servers", "127.0.0.1:1"),)), {}, "auto")
print(type(lease.consumer).__name__)
lease.release(assigned=[], failed=True)

import pyarrow as pa
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "topic": "t"}
with KafkaWriter(KafkaSink.of(options, pa.schema({"value": pa.string()}))) as writer:
    print(type(writer._producer).__name__)
"""


def test_without_numba_messages_are_read_and_written_one_by_one() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)
    assert done.stdout == "PlainConsumer\nPlainProducer\n"
    assert done.stderr.count("read and written one by one") == 1


COMPILED_ELSEWHERE = """
from headgate.connectors.kafka import bulk_compiled as of
print(sum(sum(each.stats.cache_misses.values()) for each in (of.sort, of.copy, of.copy_headers, of.produce)))
print(of.note_failure.cache_hits)
"""


def test_a_second_process_does_not_compile_again() -> None:
    first, second = (
        subprocess.run([sys.executable, "-c", COMPILED_ELSEWHERE], capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert (second.stdout, first.stderr) == ("0\n1\n", "")
