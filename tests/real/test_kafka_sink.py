"""The sinks of `headgate.kafka` on real Spark and a real broker: what arrives, what is refused, and each row once."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from broker_sinks import VALUES, Stream, rows
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession

from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter
from headgate.connectors.kafka.sink.task_writer import _idle, write_batches, write_epoch
from headgate.connectors.kafka.sink.transactions import Marker, TransactionalWriter
from headgate.errors import SinkError, SinkUnavailableError
from local.topics import create_topic, read_topic, wait_for_transactions

if TYPE_CHECKING:
    from confluent_kafka import Message, Producer

    from local.kafka import Broker, Certificates

COLUMNS = "key binary, value binary, headers array<struct<key: string, value: binary>>, partition int, topic string"


def read(kafka: Broker, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Return what a consumer sees once all transactions have ended, if it sees only committed ones."""
    if isolation == "read_committed":
        wait_for_transactions(kafka.plain, topic)
    return read_topic(kafka.plain, topic, isolation)


def values(kafka: Broker, topic: str, isolation: str = "read_committed") -> list[str]:
    return sorted(message.value().decode() for message in read(kafka, topic, isolation))


def parts(messages: list[Message]) -> list[tuple[Any, ...]]:
    return [(each.partition(), each.offset(), each.key(), each.value(), each.headers()) for each in messages]


def write(frame: DataFrame, kafka: Broker, format_name: str = "headgate.kafka", **options: str) -> None:
    settings = {"kafka.bootstrap.servers": kafka.plain} | options
    frame.write.format(format_name).mode("append").options(**settings).save()


def test_the_same_records_arrive_as_by_spark_s_own_sink(spark: SparkSession, kafka: Broker, topic_name: str) -> None:
    """Keys choose the same partitions too; rows without key or partition may go anywhere."""
    rows: list[tuple[Any, ...]] = [(f"key{n}".encode(), f"value{n}".encode(), None, None, None) for n in range(200)]
    rows += [
        (b"tombstone", None, None, None, None),
        (b"", b"", [], None, None),
        (None, b"to partition 2", None, 2, None),
        (
            b"\x00\xff",
            b"\xfe\x00",
            [Row(key="a", value=b"1"), Row(key="a", value=None), Row(key="", value=b"")],
            1,
            None,
        ),
        (None, None, [Row(key="ü", value="ß".encode())], 0, None),
    ]
    frame = spark.createDataFrame(rows, COLUMNS).coalesce(1)
    for format_name in ("kafka", "headgate.kafka"):
        topic = create_topic(kafka.plain, f"{topic_name}-{format_name}", 3)
        write(frame, kafka, format_name, topic=topic)
    ours, theirs = (read(kafka, f"{topic_name}-{each}") for each in ("headgate.kafka", "kafka"))
    assert parts(ours) == parts(theirs)
    assert len(ours) == len(rows)


def test_text_is_written_as_utf_8_and_columns_may_stand_in_any_order(
    spark: SparkSession, kafka: Broker, topic_name: str
) -> None:
    frame = spark.createDataFrame([(1.5, "wert ü", "schlüssel")], "other double, value string, key string")
    write(frame, kafka, topic=create_topic(kafka.plain, topic_name))
    (message,) = read(kafka, topic_name)
    assert (message.key(), message.value()) == ("schlüssel".encode(), "wert ü".encode())


def test_rows_go_to_the_topics_that_they_name(spark: SparkSession, kafka: Broker, topic_name: str) -> None:
    """The second topic is made by the broker, as for Spark's own sink, if the broker makes topics at all."""
    create_topic(kafka.plain, f"{topic_name}-0")
    frame = spark.range(100).selectExpr(f"concat('{topic_name}-', id % 2) AS topic", "string(id) AS value")
    write(frame, kafka)
    for each in range(2):
        assert values(kafka, f"{topic_name}-{each}") == sorted(str(n) for n in range(100) if n % 2 == each)
    write(frame, kafka, topic=create_topic(kafka.plain, topic_name))
    assert len(read(kafka, topic_name)) == 100, "the option wins over the column"


@pytest.mark.parametrize(
    ("select", "options", "mode", "message"),
    [
        ("id AS value", {"topic": "t"}, "append", "'value' must be a string or binary, not int64"),
        ("string(id) AS key", {"topic": "t"}, "append", "no column 'value'"),
        ("string(id) AS value", {}, "append", "Set the option 'topic', or add a column 'topic'"),
        ("string(id) AS value, string(null) AS topic", {}, "append", "a row's topic is null"),
        ("string(id) AS value, int(-1) AS partition", {"topic": "t"}, "append", "a row's partition is -1"),
        ("string(id) AS value", {"topic": "t", "topik": "t"}, "append", "no option 'topik'. Did you mean 'topic'"),
        ("string(id) AS value", {"topic": "t", "guarantee": "exactly-once"}, "append", "Use writeStream"),
        ("string(id) AS value", {"topic": "t"}, "overwrite", "save mode 'overwrite' is not possible"),
        ("string(id) AS value, array(named_struct('key', string(null), 'value', binary('x'))) AS headers",
         {"topic": "t"}, "append", "header without a key"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_named(
    spark: SparkSession, kafka: Broker, select: str, options: dict[str, str], mode: str, message: str
) -> None:
    writer = spark.range(1).selectExpr(*_split(select)).write.format("headgate.kafka").mode(mode)
    with pytest.raises(Exception, match=message):
        writer.options(**{"kafka.bootstrap.servers": kafka.plain} | options).save()


def _split(select: str) -> list[str]:
    """Cut a select list at the commas outside of brackets."""
    found, depth = [""], 0
    for each in select:
        depth += (each == "(") - (each == ")")
        if each == "," and depth == 0:
            found.append("")
        else:
            found[-1] += each
    return found


def sink(kafka: Broker, topic: str | None, schema: pa.Schema = VALUES, **settings: str) -> KafkaSink:
    """Return a sink; names of Kafka's settings have ``_`` for ``.``."""
    options = {"kafka.bootstrap.servers": kafka.plain, "guarantee": "exactly-once"}
    options |= {f"kafka.{name.replace('_', '.')}": value for name, value in settings.items()}
    return KafkaSink.of(options | ({} if topic is None else {"topic": topic}), schema)


def test_a_partition_that_is_not_there_is_named(kafka: Broker, topic_name: str) -> None:
    batch = pa.record_batch({"value": ["x"], "partition": pa.array([7], pa.int32())})
    topic = create_topic(kafka.plain, topic_name)
    with pytest.raises(SinkError, match=f"'{topic}' has no partition 7"):
        write_batches(sink(kafka, topic, batch.schema), [batch])


def test_a_row_too_large_for_the_client_or_the_broker_is_an_error(kafka: Broker, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name)
    for settings in ({}, {"max_request_size": "5000000"}):
        with pytest.raises(SinkError, match=rf"'{topic}' is too large for Kafka.*kafka\.max\.request\.size"):
            write_batches(sink(kafka, topic, **settings), [rows("x" * 2_000_000)])
    with pytest.raises(SinkError, match=r"2000000 bytes and does not fit.*Raise kafka\.buffer\.memory"):
        write_batches(sink(kafka, topic, max_request_size="5000000", buffer_memory="1000000"), [rows("x" * 2_000_000)])


def test_brokers_that_do_not_answer_are_an_error_after_the_configured_time(
    kafka: Broker, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_producer = KafkaWriter._make_producer

    def make_refused_producer(writer: KafkaWriter) -> Producer:
        """Wait until the client knows why nobody answers, which on a busy machine is later than the 300 ms."""
        producer = make_producer(writer)
        while "Connection refused" not in writer._trouble.last:
            producer.poll(0.1)
        return producer

    monkeypatch.setattr(KafkaWriter, "_make_producer", make_refused_producer)
    nobody = {"bootstrap_servers": "127.0.0.1:9", "delivery_timeout_ms": "300", "default_api_timeout_ms": "300"}
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:9 did not answer in time.*Connection refused"):
        write_batches(sink(kafka, topic_name, **nobody), [rows("x")])
    with pytest.raises(SinkUnavailableError, match=r"127\.0\.0\.1:9 did not answer in time.*Connection refused"):
        write_epoch(sink(kafka, topic_name, **nobody), topic_name, 0, [rows("x")])


def test_a_wrong_password_is_an_error_that_does_not_say_it(kafka: Broker, topic_name: str) -> None:
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "sasl_username": "ferry"}
    settings = login | {"bootstrap_servers": kafka.sasl, "sasl_password": "a-wr0ng-0ne"}
    for write_rows in (write_batches, lambda to, batches: write_epoch(to, topic_name, 0, batches)):
        with pytest.raises(SinkError, match=r"do not accept each other: .*Check the options") as caught:
            write_rows(sink(kafka, topic_name, **settings), [rows("x")])
        assert "a-wr0ng-0ne" not in str(caught.value)


def test_a_wrong_authority_is_an_error(kafka: Broker, certificates: Certificates, topic_name: str) -> None:
    settings = {"security_protocol": "SSL", "ssl_ca_location": str(certificates.other_ca)}
    for write_rows in (write_batches, lambda to, batches: write_epoch(to, topic_name, 0, batches)):
        with pytest.raises(SinkError, match=r"do not accept each other: .*certificate.*Check the options"):
            write_rows(sink(kafka, topic_name, bootstrap_servers=kafka.tls, **settings), [rows("x")])


def test_a_writer_that_failed_between_two_tasks_is_not_used_again(kafka: Broker, topic_name: str) -> None:
    to = sink(kafka, create_topic(kafka.plain, topic_name))
    write_batches(to, [rows("a")])
    _idle[to]._failed = SinkError("the brokers closed the connection of an idle task")
    write_batches(to, [rows("b")])
    first = _idle[to]
    write_batches(to, [rows("c")])
    assert values(kafka, topic_name) == ["a", "b", "c"]
    assert _idle[to] is first, "a writer that is well is used again"


def test_a_full_queue_is_waited_for_and_the_order_stays(kafka: Broker, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name)
    texts = [str(n) for n in range(3000)]
    write_batches(sink(kafka, topic, queue_buffering_max_messages="500"), [rows(*texts)])
    assert [message.value().decode() for message in read(kafka, topic)] == texts


# Exactly once: the story of one task, without Spark.


def test_an_epoch_is_written_once_however_often_it_is_replayed(kafka: Broker, topic_name: str) -> None:
    to = sink(kafka, create_topic(kafka.plain, topic_name))
    write_epoch(to, topic_name, 0, [rows("a", "b"), rows("c")])
    write_epoch(to, topic_name, 1, [rows("d")])
    for epoch, batches in ((1, [rows("d")]), (0, [rows("a", "b", "c")])):
        replay = iter(batches)
        write_epoch(to, topic_name, epoch, replay)
        assert next(replay, None) is None, "Spark keeps the state of operators only if all rows were taken"
    write_epoch(to, topic_name, 2, [rows("e")])
    assert values(kafka, topic_name) == ["a", "b", "c", "d", "e"]


def test_a_replay_finds_its_marker_whatever_topic_its_rows_go_to(kafka: Broker, topic_name: str) -> None:
    """A shuffle hands out the same rows in another order."""
    topics = [create_topic(kafka.plain, f"{topic_name}-{each}") for each in range(2)]
    batch = pa.record_batch({"topic": topics, "value": ["0", "1"]})
    to = sink(kafka, None, batch.schema)
    write_epoch(to, topic_name, 5, [batch])
    write_epoch(to, topic_name, 5, [batch.take([1, 0])])
    write_epoch(to, topic_name, 6, [batch.slice(1, 1)])
    write_epoch(to, topic_name, 6, [batch.slice(1, 1)])
    assert [values(kafka, topic) for topic in topics] == [["0"], ["1", "1"]]


def test_a_replay_with_other_rows_is_an_error(kafka: Broker, topic_name: str) -> None:
    to = sink(kafka, create_topic(kafka.plain, topic_name))
    write_epoch(to, topic_name, 0, [rows("a", "b")])
    with pytest.raises(SinkError, match=r"wrote 2 rows in batch 0, and its replay has 1.*as many cores as before"):
        write_epoch(to, topic_name, 0, [rows("a")])


def test_rows_of_a_task_killed_in_its_transaction_are_never_seen(kafka: Broker, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name)
    program = f"""
        import os, signal
        import pyarrow as pa
        from headgate.connectors.kafka.sink.options import KafkaSink
        from headgate.connectors.kafka.sink.transactions import TransactionalWriter

        options = {{"kafka.bootstrap.servers": {kafka.plain!r}, "guarantee": "exactly-once", "topic": {topic!r}}}
        batch = pa.record_batch({{"value": ["a", "b"]}})
        writer = TransactionalWriter(KafkaSink.of(options, batch.schema), {topic_name!r})
        writer.begin()
        writer.write(batch)
        writer.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert values(kafka, topic, "read_uncommitted") == ["a", "b"], "it was in the middle"
    write_epoch(sink(kafka, topic), topic_name, 0, [rows("a", "b")])
    assert values(kafka, topic, "read_uncommitted") == ["a", "a", "b", "b"]
    assert values(kafka, topic) == ["a", "b"]


def test_a_zombie_can_write_no_more(kafka: Broker, topic_name: str) -> None:
    to = sink(kafka, create_topic(kafka.plain, topic_name))
    with TransactionalWriter(to, topic_name) as zombie:
        zombie.begin()
        zombie.write(rows("a", "b"))
        zombie.flush()
        write_epoch(to, topic_name, 0, [rows("a", "b")])
        with pytest.raises(SinkError, match=f"newer attempt of the same task writes as '{topic_name}'"):
            zombie.commit(0)
        zombie.abort()
    assert values(kafka, topic_name) == ["a", "b"]


def test_a_writer_goes_on_after_an_abort(kafka: Broker, topic_name: str) -> None:
    with TransactionalWriter(sink(kafka, create_topic(kafka.plain, topic_name)), topic_name) as writer:
        assert writer.marker() is None
        writer.begin()
        writer.write(rows("dropped"))
        writer.abort()
        for epoch in range(2):
            writer.begin()
            writer.write(rows(f"kept {epoch}"))
            writer.commit(epoch)
        assert writer.marker() == Marker(epoch=1, rows=1)
    assert values(kafka, topic_name) == ["kept 0", "kept 1"]


def test_transactions_longer_than_the_broker_allows_are_an_error(kafka: Broker, topic_name: str) -> None:
    with pytest.raises(SinkError, match=r"do not allow transactions of 99000000 ms. Set kafka\.transaction\.timeout"):
        write_epoch(sink(kafka, topic_name, transaction_timeout_ms="99000000"), topic_name, 0, [rows("a")])


# Exactly once, on Spark.


def stream_of(spark: SparkSession, kafka: Broker, folder: Path, topic: str, guarantee: str) -> Stream:
    options = {"kafka.bootstrap.servers": kafka.plain, "topic": topic, "guarantee": guarantee}
    return Stream(spark, "headgate.kafka", folder, options)


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.spark_since("stream-arrow-writer")
def test_a_batch_that_spark_replays_is_written_once_or_again(
    spark: SparkSession, kafka: Broker, tmp_path: Path, topic_name: str, guarantee: str
) -> None:
    stream = stream_of(spark, kafka, tmp_path, create_topic(kafka.plain, topic_name, 2), guarantee)
    stream.add(*(f"a{n}" for n in range(10)))
    stream.add(*(f"b{n}" for n in range(10)))
    stream.run()
    stream.forget_commit(1)
    stream.add("c0")
    stream.run()
    times = 1 if guarantee == "exactly-once" else 2
    expected = {f"a{n}": 1 for n in range(10)} | {f"b{n}": times for n in range(10)} | {"c0": 1}
    assert Counter(values(kafka, topic_name)) == expected


@pytest.mark.spark_since("stream-arrow-writer")
def test_a_batch_of_which_one_task_failed_is_written_once(
    spark: SparkSession, kafka: Broker, tmp_path: Path, topic_name: str
) -> None:
    stream = stream_of(spark, kafka, tmp_path, create_topic(kafka.plain, topic_name, 2), "exactly-once")
    lines = [f"a{n}" for n in range(20_000)]
    stream.add(*lines)
    with pytest.raises(StreamingQueryException, match="broken"):
        stream.run(failing="value = 'a19999'")
    assert set(values(kafka, topic_name, "read_uncommitted")) < set(lines), "some rows were on their way"
    stream.run()
    assert Counter(values(kafka, topic_name)) == Counter(lines)


@pytest.mark.spark_since("stream-arrow-writer")
def test_the_output_mode_complete_appends_every_batch(
    spark: SparkSession, kafka: Broker, tmp_path: Path, topic_name: str
) -> None:
    stream = stream_of(spark, kafka, tmp_path, create_topic(kafka.plain, topic_name), "exactly-once")
    stream.add("a", "a")
    stream.add("a", "b")
    frame = spark.readStream.option("maxFilesPerTrigger", 1).text(str(tmp_path / "in")).groupBy("value").count()
    frame = frame.selectExpr("concat(value, count) AS value")
    writer = frame.writeStream.format("headgate.kafka").options(**stream.options).outputMode("complete")
    assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert values(kafka, topic_name) == ["a2", "a3", "b1"]
