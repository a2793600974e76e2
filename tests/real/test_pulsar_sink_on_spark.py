"""The sinks of `headgate.pulsar` on real Spark and a real broker, of all three engines."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from broker_sinks import VALUES, Stream, rows
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from running_queries import happens, numbers, stop_all, wait_until, written

from headgate.connectors.pulsar.sink.micro_batch import publish_batch, stage_batches
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.errors import SinkError
from local.pulsar import running_pulsar
from local.pulsar_topics import Broker, create_topic, read_topic
from tests.shared_broker import PulsarAddresses

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


def values(broker: Broker, topic: str) -> list[str]:
    return [message.data().decode() for message in read_topic(broker, topic)]


def once(topic: str) -> str:
    """Return the name of a topic whose repeated messages are dropped."""
    return f"persistent://public/once/{topic}"


def test_a_batch(spark: SparkSession, pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 2)
    frame = spark.range(20_000).selectExpr(
        "string(id) AS value", "string(id % 10) AS __key", "timestamp_millis(id + 1) AS __eventTime",
        "map('n', string(id)) AS __messageProperties",
    )  # fmt: skip
    options = {"service.url": pulsar.service_url, "topic": topic_name}
    frame.write.format("headgate.pulsar").mode("append").options(**options).save()
    found = read_topic(pulsar, topic_name)
    assert sorted(int(each.data()) for each in found) == list(range(20_000))
    for each in found:
        n = int(each.data())
        assert (each.partition_key(), each.event_timestamp()) == (str(n % 10), n + 1)
        assert each.properties() == {"n": str(n)}


def test_a_batch_cannot_overwrite_and_not_be_exactly_once(spark: SparkSession, pulsar: PulsarAddresses) -> None:
    frame = spark.range(1).selectExpr("string(id) AS value")
    options = {"service.url": pulsar.service_url, "admin.url": pulsar.admin_url, "topic": "t"}
    with pytest.raises(Exception, match="'overwrite' is not possible"):
        frame.write.format("headgate.pulsar").mode("overwrite").options(**options).save()
    with pytest.raises(Exception, match="Use writeStream"):
        frame.write.format("headgate.pulsar").mode("append").options(guarantee="exactly-once", **options).save()


def stream_of(spark: SparkSession, broker: Broker, folder: Path, topic: str, guarantee: str) -> Stream:
    options = {"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": topic}
    return Stream(spark, "headgate.pulsar", folder, options | {"guarantee": guarantee})


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
@pytest.mark.spark_since("stream-arrow-writer")
def test_a_micro_batch_that_spark_replays_with_other_tasks_is_written_once_or_again(
    spark: SparkSession, pulsar: PulsarAddresses, tmp_path: Path, topic_name: str, guarantee: str
) -> None:
    stream = stream_of(spark, pulsar, tmp_path, create_topic(pulsar, once(topic_name), 2), guarantee)
    stream.add(*(f"a{n}" for n in range(10)))
    stream.add(*(f"b{n}" for n in range(3000)))
    stream.run()
    stream.forget_commit(1)
    stream.add("c0")
    stream.run(tasks=1)
    times = 1 if guarantee == "exactly-once" else 2
    expected = {f"a{n}": 1 for n in range(10)} | {f"b{n}": times for n in range(3000)} | {"c0": 1}
    assert Counter(values(pulsar, stream.topic)) == expected
    staged = {each.parent.name for each in (tmp_path / "checkpoint").rglob("staged/**/*.arrow")}
    assert staged == ({"2"} if guarantee == "exactly-once" else set()), "earlier batches' files are gone"


@pytest.mark.spark_since("stream-arrow-writer")
def test_a_micro_batch_of_which_one_task_failed_is_written_once(
    spark: SparkSession, pulsar: PulsarAddresses, tmp_path: Path, topic_name: str
) -> None:
    stream = stream_of(spark, pulsar, tmp_path, create_topic(pulsar, once(topic_name), 2), "exactly-once")
    lines = [f"a{n}" for n in range(20_000)]
    stream.add(*lines)
    with pytest.raises(StreamingQueryException, match="broken"):
        stream.run(failing="value = 'a19999'")
    assert values(pulsar, stream.topic) == []
    stream.run()
    assert Counter(values(pulsar, stream.topic)) == Counter(lines)


def test_a_commit_that_failed_half_way_goes_on_by_its_manifest(tmp_path: Path, topic_name: str) -> None:
    """What the replay's tasks staged, in another order and of other rows, is not what counts."""
    texts = [f"{n:06}" for n in range(40_000)]
    with running_pulsar(deduplication=True) as broker:
        create_topic(broker, topic_name, 2)
        options = {
            "service.url": broker.service_url, "admin.url": broker.admin_url, "topic": topic_name,
            "guarantee": "exactly-once", "checkpointLocation": str(tmp_path),
            "pulsar.client.operationTimeoutMs": "2000", "pulsar.producer.sendTimeoutMs": "2000",
        }  # fmt: skip
        sink = PulsarSink.of(options, VALUES)
        staged = [
            stage_batches(sink, "query", 7, task, [rows(*texts[start : start + 20_000])])
            for task, start in enumerate((0, 20_000))
        ]
        broker.freeze()
        with pytest.raises(SinkError):
            publish_batch(sink, "query", 7, staged)
        broker.thaw()
        replayed = [stage_batches(sink, "query", 7, 0, [rows(*texts[::-1])])]
        publish_batch(sink, "query", 7, replayed)
        (mark,) = tmp_path.rglob("published.json")
        mark.unlink()  # as if it was killed before that
        publish_batch(sink, "query", 7, replayed)
        assert sorted(values(broker, topic_name)) == texts
    publish_batch(sink, "query", 7, replayed)  # its mark is there: brokers may be gone, or have forgotten the name


def test_a_batch_of_a_query_that_was_rewound_is_an_error(
    pulsar: PulsarAddresses, tmp_path: Path, topic_name: str
) -> None:
    """Under a number that was published there are other rows now: the brokers would drop them without a word."""
    topic = create_topic(pulsar, once(topic_name), 2)
    options = {
        "service.url": pulsar.service_url, "admin.url": pulsar.admin_url, "topic": topic, "guarantee": "exactly-once",
        "checkpointLocation": str(tmp_path),
    }  # fmt: skip
    sink = PulsarSink.of(options, VALUES)
    (tmp_path / "offsets").mkdir()

    def publish(batch: int, offsets: str, *texts: str) -> None:
        (tmp_path / "offsets" / str(batch)).write_text(offsets)
        publish_batch(sink, topic_name, batch, [stage_batches(sink, topic_name, batch, 0, [rows(*texts)])])

    for batch in range(3):
        publish(batch, f"from {batch}", f"{batch}a", f"{batch}b")
    publish(2, "from 2", "2b", "2a")  # a replay
    with pytest.raises(SinkError, match=r"published a micro-batch 2 before.* new checkpointLocation"):
        publish(2, "from 2, made anew", "2a", "2b", "2c")
    with pytest.raises(SinkError, match=r"published a micro-batch 1 before, .* the checkpoint was rewound"):
        publish(1, "from 1, made anew", "1a", "1b", "2a")
    publish(3, "from 3")  # without rows; what was staged of the one before goes
    for _ in range(2):  # it is one as often as Spark is started
        with pytest.raises(SinkError, match=r"published a micro-batch 2 before, .* the checkpoint was rewound"):
            publish(2, "from 2, made anew again", "2a", "2b", "2c")
    publish(4, "from 4", "4a")
    assert sorted(values(pulsar, topic)) == ["0a", "0b", "1a", "1b", "2a", "2b", "4a"]


@pytest.mark.spark_since("stream-arrow-writer")
def test_a_query_that_a_user_rewinds_ends_with_an_error(
    spark: SparkSession, pulsar: PulsarAddresses, tmp_path: Path, topic_name: str
) -> None:
    frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    options = {
        "service.url": pulsar.service_url, "admin.url": pulsar.admin_url, "guarantee": "exactly-once",
        "topic": create_topic(pulsar, once(topic_name)), "checkpointLocation": str(tmp_path),
    }  # fmt: skip
    writer = frame.selectExpr("string(value) AS value").writeStream.format("headgate.pulsar").options(**options)
    query = writer.trigger(processingTime="100 milliseconds").start()
    wait_until(lambda: (tmp_path / "commits" / "2").exists())
    query.stop()
    for each in [*(tmp_path / "offsets").iterdir(), *(tmp_path / "commits").iterdir()]:
        number = each.name.strip(".").removesuffix(".crc")
        if number.isdecimal() and number != "0":
            each.unlink()
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        with pytest.raises(StreamingQueryException, match="the checkpoint was rewound"):
            assert query.awaitTermination(60), "it goes on, and brokers drop its rows"
    finally:
        query.stop()


class KillsItself:
    """A function of rows whose process is killed once for each file there is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows and happens(self.folder / "kill"):
                os.kill(os.getpid(), signal.SIGKILL)
            yield pa.record_batch({"value": batch["value"].cast(pa.string())})


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_continuous_query_whose_workers_are_killed(
    spark: SparkSession, pulsar: PulsarAddresses, tmp_path: Path, topic_name: str, guarantee: str
) -> None:
    """What breaks it breaks `tests/real/test_pulsar_sink.py::test_rows_are_out_at_once_and_a_barrier_waits_for_them`
    too.
    """
    topic = create_topic(pulsar, once(topic_name), 2)
    frame = numbers(spark, rows=80_000, rate=4000).mapInArrow(KillsItself(tmp_path), "value string")
    options = {
        "service.url": pulsar.service_url, "admin.url": pulsar.admin_url, "topic": topic, "guarantee": guarantee,
        "checkpointLocation": str(tmp_path / "checkpoints"),
    }  # fmt: skip
    query = written(frame, "headgate.pulsar", interval="300 milliseconds", **options).start()
    try:
        for enough in (2_000, 8_000):
            wait_until(lambda enough=enough: len(values(pulsar, topic)) >= enough, query)  # type: ignore[misc]
            (tmp_path / "kill").touch()
            wait_until(lambda: not (tmp_path / "kill").exists(), query)
        assert query.awaitTermination(240)
    finally:
        stop_all()
    found = Counter(int(each) for each in values(pulsar, topic))
    assert set(found) == set(range(80_000))
    if guarantee == "exactly-once":
        assert set(found.values()) == {1}
