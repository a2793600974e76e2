"""Producing in bulk gives the records and the errors that confluent-kafka gives row by row."""

from __future__ import annotations

import random
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink import producer as producer_module
from headgate.connectors.kafka.sink.bulk_producer import BulkProducer
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.plain_producer import PlainProducer
from headgate.connectors.kafka.sink.producer import KafkaWriter
from headgate.connectors.kafka.sink.transactions import Marker, TransactionalWriter
from headgate.errors import SinkError
from local.kafka import Broker
from local.topics import create_topic, read_topic, wait_for_transactions

HEADERS = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}))
LARGE_HEADERS = pa.list_(pa.struct({"key": pa.large_string(), "value": pa.large_binary()}))
PARTITIONS = 3
BULK, PLAIN = "bulk", "plain"
Use = Callable[[str], None]


@pytest.fixture(params=[BULK, PLAIN])
def each_way(request: pytest.FixtureRequest, use: Use) -> str:
    """Write so."""
    use(request.param)
    return str(request.param)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Make the next writers write so."""
    ways: dict[str, Any] = {BULK: BulkProducer, PLAIN: PlainProducer}
    return lambda way: monkeypatch.setattr(producer_module, "make_producer", ways[way])


def sink(kafka: Broker, topic: str | None, schema: pa.Schema, **settings: str) -> KafkaSink:
    """Return a sink; names of Kafka's settings have ``_`` for ``.``."""
    options = {"kafka.bootstrap.servers": kafka.plain} | ({} if topic is None else {"topic": topic})
    return KafkaSink.of(options | {f"kafka.{name.replace('_', '.')}": each for name, each in settings.items()}, schema)


def some_bytes(numbers: random.Random) -> bytes | None:
    kind = numbers.random()
    if kind < 0.2:
        return None if kind < 0.1 else b""
    return numbers.choice(["a", "Größe", "x" * 90, "y" * 3000]).encode() + str(numbers.randrange(99)).encode()


def some_headers(numbers: random.Random) -> list[dict[str, Any]] | None:
    if numbers.random() < 0.3:
        return None
    names = ["", "a", "a", "Größe"]
    return [{"key": numbers.choice(names), "value": some_bytes(numbers)} for _ in range(numbers.choice([0, 1, 3]))]


def some_rows(topics: list[str], count: int, text: pa.DataType, octets: pa.DataType, headers: pa.DataType) -> Any:
    """Return rows of every kind, the middle of a larger batch: of its bits none begins where a byte does."""
    numbers = random.Random(7)
    rows = 13 + count + 5
    columns = {
        "topic": pa.array([numbers.choice(topics) for _ in range(rows)]).cast(text),
        "key": pa.array([some_bytes(numbers) for _ in range(rows)]).cast(octets),
        "value": pa.array([some_bytes(numbers) for _ in range(rows)]).cast(octets),
        "partition": pa.array([numbers.choice([None, 0, 1, 2]) for _ in range(rows)], pa.int32()),
        "headers": pa.array([some_headers(numbers) for _ in range(rows)], HEADERS).cast(headers),
    }
    return pa.record_batch(columns).slice(13, count)


def records(kafka: Broker, topics: list[str]) -> list[tuple[Any, ...]]:
    return [
        (number, each.partition(), each.offset(), each.key(), each.value(), each.headers(), each.timestamp()[0])
        for number, topic in enumerate(topics)
        for each in read_topic(kafka.plain, topic)
    ]


@pytest.mark.parametrize(
    ("text", "octets", "headers", "partitioner"),
    [
        (pa.string(), pa.binary(), HEADERS, "murmur2"),
        (pa.string(), pa.string(), HEADERS, "fnv1a"),
        (pa.large_string(), pa.large_binary(), LARGE_HEADERS, "consistent"),
        (pa.string(), pa.large_string(), LARGE_HEADERS, "murmur2"),
    ],
)
def test_bulk_gives_the_records_that_plain_gives(
    kafka: Broker, topic_name: str, use: Use, text: Any, octets: Any, headers: Any, partitioner: str
) -> None:
    """With these partitioners rows without a key go to one partition, so that all can be compared."""
    found = []
    for way in (BULK, PLAIN):
        use(way)
        topics = [create_topic(kafka.plain, f"{topic_name}-{way}-{each}", PARTITIONS) for each in range(2)]
        batch = some_rows(topics, 2000, text, octets, headers)
        since_ms = int(1000 * time.time())
        with KafkaWriter(sink(kafka, None, batch.schema, partitioner=partitioner)) as writer:
            for start in (0, 1, 700):  # the same bytes once more, from other rows on
                writer.write(batch.slice(start, 700))
            writer.flush()
        found.append(records(kafka, topics))
        assert all(each.timestamp()[1] >= since_ms for each in read_topic(kafka.plain, topics[0]))
    in_bulk, one_by_one = found
    assert in_bulk == one_by_one
    assert len(in_bulk) == 2100


def test_bulk_gives_what_the_rows_say(kafka: Broker, topic_name: str, use: Use) -> None:
    use(BULK)
    topic = create_topic(kafka.plain, topic_name)
    batch = some_rows(["not used"], 500, pa.string(), pa.binary(), HEADERS).drop_columns("partition")
    with KafkaWriter(sink(kafka, topic, batch.schema)) as writer:
        writer.write(batch)
        writer.flush()
    expected = [
        (row["key"], row["value"], [tuple(each.values()) for each in row["headers"] or []] or None)
        for row in batch.to_pylist()
    ]
    assert [(each.key(), each.value(), each.headers()) for each in read_topic(kafka.plain, topic)] == expected


def test_columns_without_memory_of_their_own_are_written(kafka: Broker, topic_name: str, each_way: str) -> None:
    """Empty values and lists only: there are no data, and of headers no ends either."""
    topic = create_topic(kafka.plain, topic_name)
    nothing = pa.py_buffer(b"")
    empty = pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(bytes(12)), nothing])
    no_text = pa.Array.from_buffers(pa.string(), 0, [None, nothing, nothing])
    no_bytes = pa.Array.from_buffers(pa.binary(), 0, [None, None, nothing])
    pairs = pa.StructArray.from_arrays([no_text, no_bytes], fields=list(HEADERS.value_type))
    lists = pa.Array.from_buffers(HEADERS, 2, [None, pa.py_buffer(bytes(12))], children=[pairs])
    batch = pa.record_batch({"value": empty, "key": pa.array([b"", None], pa.binary()), "headers": lists})
    with KafkaWriter(sink(kafka, topic, batch.schema)) as writer:
        writer.write(batch)
        writer.write(batch.slice(0, 0))
        writer.flush()
    found = [(each.key(), each.value(), each.headers()) for each in read_topic(kafka.plain, topic)]
    assert found == [(b"", b"", None), (None, b"", None)]


def test_many_rows_fill_the_queue_and_keep_their_order(kafka: Broker, topic_name: str, use: Use) -> None:
    use(BULK)
    topic = create_topic(kafka.plain, topic_name)
    batch = pa.record_batch({"value": [str(n) for n in range(200_000)]})
    with KafkaWriter(sink(kafka, topic, batch.schema, queue_buffering_max_messages="7000")) as writer:
        assert writer.write_now(batch) < batch.num_rows
        writer.flush()
        writer.write(batch)
        writer.flush()
    found = [each.value() for each in read_topic(kafka.plain, topic)]
    assert [int(each) for each in found[-200_000:]] == list(range(200_000))
    assert found[:-200_000] == found[-200_000:][: len(found) - 200_000]


# ---- errors ----

REFUSED = {
    "no such partition": {"partition": 7, "value": b"x"},
    "too large": {"value": b"x" * 2_000_000},
    "too large for the queue": {"value": b"x" * 900_000, "key": b"y" * 90_000},
    "not a name": {"topic": "n" * 600, "value": b"x"},
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_row_that_is_refused_is_the_same_error(kafka: Broker, topic_name: str, use: Use, why: str) -> None:
    """It comes after one that is good, with headers, which belong to nobody when the row is refused."""
    topic, errors = create_topic(kafka.plain, topic_name), []
    row = {"topic": topic, "key": b"k", "partition": None, "headers": [{"key": "h", "value": b"v"}]} | REFUSED[why]
    kinds = {"topic": pa.string(), "key": pa.binary(), "partition": pa.int32(), "headers": HEADERS}
    schema = pa.schema(kinds | {"value": pa.binary()})
    batch = pa.RecordBatch.from_pylist([{"topic": topic, "value": b"good"}, row], schema)
    for way in (BULK, PLAIN):
        use(way)
        with KafkaWriter(sink(kafka, None, schema, queue_buffering_max_kbytes="800")) as writer:
            writer.write(batch.slice(0, 1))
            writer.flush()  # the client knows the topic's partitions now
            with pytest.raises(SinkError) as caught:
                writer.write(batch)
        errors.append((str(caught.value), caught.value.facts, type(caught.value.__cause__).__name__))
    assert errors[0] == errors[1]


def test_a_row_that_the_broker_refuses_is_an_error(kafka: Broker, topic_name: str, each_way: str) -> None:
    """It is the only one of many, and the topic is not the first."""
    topic = create_topic(kafka.plain, topic_name)
    small = create_topic(kafka.plain, f"{topic_name}-small", max_message_bytes="1000")
    rows = pa.record_batch({"topic": [topic] * 500 + [small], "value": [b"x" * 50] * 500 + [b"y" * 5000]})
    with KafkaWriter(sink(kafka, None, rows.schema)) as writer:
        with pytest.raises(
            SinkError, match=f"'{small}' is too large for Kafka .Broker: Message size too large"
        ) as caught:
            writer.write(rows)
            writer.flush()
        assert (caught.value.facts["topic"], caught.value.facts["partition"]) == (small, 0)
        with pytest.raises(SinkError, match="too large for Kafka"):
            writer.serve()
    assert len(read_topic(kafka.plain, topic)) == 500


def test_rows_that_are_dropped_are_an_error(topic_name: str, each_way: str) -> None:
    """Nobody answers, so all wait; the queue takes so many and no more."""
    batch = pa.record_batch({"value": [b"x"] * 1000})
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": topic_name}
    to = KafkaSink.of(options | {"kafka.queue.buffering.max.messages": "300"}, batch.schema)
    with KafkaWriter(to) as writer:
        assert writer.write_now(batch) == 300
        assert writer.write_now(batch) == 0
        writer.drop_rows()
        with pytest.raises(SinkError, match=f"writing to topic '{topic_name}' failed: Local: Purged in queue"):
            writer.flush()


# ---- transactions ----


def test_transactions_commit_and_abort(kafka: Broker, topic_name: str, each_way: str) -> None:
    topics = [create_topic(kafka.plain, f"{topic_name}-{each}") for each in range(2)]
    batch = pa.record_batch({"topic": topics, "value": ["0", "1"]})
    with TransactionalWriter(sink(kafka, None, batch.schema, linger_ms="5000"), topic_name) as writer:
        writer.begin()
        writer.write(batch)  # of this nothing is sent
        writer.abort()
        writer.begin()
        writer.write(batch)
        writer.flush()  # and of this all is
        writer.abort()
        assert writer.marker() is None
        for epoch in (10**digits for digits in range(17)):  # what follows a text in memory depends on its length
            writer.begin()
            writer.write(batch)
            writer.commit(epoch)
            assert writer.marker() == Marker(epoch=epoch, rows=2)
    for number, topic in enumerate(topics):
        wait_for_transactions(kafka.plain, topic)
        assert [each.value() for each in read_topic(kafka.plain, topic)] == [str(number).encode()] * 17


def test_a_row_that_fails_in_a_transaction_aborts_it(kafka: Broker, topic_name: str, each_way: str) -> None:
    topic = create_topic(kafka.plain, topic_name, max_message_bytes="1000")
    good, bad = (pa.record_batch({"value": [value]}) for value in (b"x", b"y" * 5000))
    with TransactionalWriter(sink(kafka, topic, good.schema), topic_name) as writer:
        writer.begin()
        writer.write(good)
        writer.write(bad)
        with pytest.raises(SinkError, match="too large for Kafka"):
            writer.commit(0)
        writer.abort()
    with TransactionalWriter(sink(kafka, topic, good.schema), topic_name) as writer:
        assert writer.marker() is None
        writer.begin()
        writer.write(good)
        writer.commit(0)
    wait_for_transactions(kafka.plain, topic)
    assert [each.value() for each in read_topic(kafka.plain, topic)] == [b"x"]


# ---- the client's life ----


CLOSED = """
    import contextlib
    from pathlib import Path
    import pyarrow as pa
    from headgate.connectors.kafka.sink import producer
    from headgate.connectors.kafka.sink.bulk_producer import BulkProducer
    from headgate.connectors.kafka.sink.options import KafkaSink
    from headgate.connectors.kafka.sink.plain_producer import PlainProducer
    from headgate.errors import SinkError

    def threads():
        count = 0
        for each in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                count += (each / "comm").read_text().startswith("rdk:")
        return count

    batch = pa.record_batch({"value": [b"x" * 2_000_000]})
    for producer.make_producer in (BulkProducer, PlainProducer):
        writer = producer.KafkaWriter(KafkaSink.of(
            {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "t"}, batch.schema
        ))
        try:
            writer.write(batch)
        except SinkError as error:
            kept = error
        assert threads()
        writer.close()
        while threads():  # the system lists them for a moment after they were waited for
            pass
        print(type(kept.__cause__).__name__)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="threads are listed in /proc")
def test_a_writer_that_is_closed_leaves_no_thread_though_its_error_is_kept() -> None:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(CLOSED)], capture_output=True, text=True, timeout=100)
    assert (done.stdout, done.stderr) == ("KafkaException\n" * 2, "")


FORKED = """
    import gc, os
    import pyarrow as pa
    from headgate.connectors.kafka.sink.options import KafkaSink
    from headgate.connectors.kafka.sink.producer import KafkaWriter
    from headgate.connectors.kafka.sink.bulk_producer import BulkProducer

    batch = pa.record_batch({{"value": ["a"]}})
    writer = KafkaWriter(KafkaSink.of({{"kafka.bootstrap.servers": {address!r}, "topic": {topic!r}}}, batch.schema))
    assert isinstance(writer._producer, BulkProducer)
    writer.write(batch)
    writer.flush()
    child = os.fork()
    if child == 0:
        assert not writer.is_usable()
        writer.close()
        del writer
        gc.collect()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert writer.is_usable()
    writer.write(batch)
    writer.flush()
    writer.close()
"""


def test_a_child_leaves_the_client_of_its_parent_alone(kafka: Broker, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name)
    program = textwrap.dedent(FORKED).format(address=kafka.plain, topic=topic)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [each.value() for each in read_topic(kafka.plain, topic)] == [b"a", b"a"]
