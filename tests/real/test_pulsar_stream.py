"""headgate.pulsar from Spark on a real broker: batches, micro-batches, continuous queries under kills and rescales."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate
from local.pulsar import running_pulsar
from local.pulsar_topics import Message, create_topic, produce
from tests.real.pulsar_queries import micro_batches, options, rows_in
from tests.real.pulsar_reads import by_message_id, produce_every_kind, read_by_the_client
from tests.real.running_queries import is_running, newest, owners, stop_all, wait_until, written
from tests.shared_broker import PulsarAddresses

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

KILLS = 10
FOR_EVER = {"restart-strategy.attempts": "infinite", "restart-strategy.max-backoff": "200 ms"}
COLUMNS = ["value", "__key", "__topic", "__messageId", "__publishTime", "__eventTime", "__messageProperties"]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def send(broker: Any, topic: str, numbers: range, partitions: int = 2) -> None:
    produce(broker, topic, [Message(b"%d" % number, partition=number % partitions) for number in numbers], batch=7)


def test_a_batch_has_what_pulsar_s_client_reads(spark: SparkSession, pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 2)
    count = produce_every_kind(pulsar, topic_name, 2)
    frame = spark.read.format("headgate.pulsar").options(**options(pulsar, topic_name)).load()
    assert frame.columns == COLUMNS
    found = by_message_id(frame.toArrow().to_pylist())
    assert len(found) == count
    assert found == read_by_the_client(pulsar, topic_name)
    some = spark.read.format("headgate.pulsar").options(**options(pulsar, topic_name)).schema("__topic string").load()
    assert sorted({row[0][-1] for row in some.collect()}) == ["0", "1"]
    assert some.count() == count


LIMITED = pytest.mark.spark_since("read-limits")
ALIGNED = {
    "eventTimeColumn": "__eventTime",
    "scan.watermark.alignment.group": "ferries",
    "scan.watermark.alignment.max-drift": "10 minutes",
}


@pytest.mark.parametrize(
    "limit",
    [
        pytest.param({"maxBytesPerTrigger": "3000"}, marks=LIMITED),
        pytest.param({"maxRowsPerTrigger": "9"}, marks=LIMITED),
        {},
    ],
    ids=str,
)
def test_micro_batches_have_what_pulsar_s_client_reads(
    spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path, limit: dict[str, str]
) -> None:
    create_topic(pulsar, topic_name, 2)
    chosen = options(pulsar, topic_name, startingOffsets="earliest", predefinedSubscription="ferry", **limit)
    produce_every_kind(pulsar, topic_name, 2)
    batches = micro_batches(spark, tmp_path, **chosen)
    assert by_message_id(chain.from_iterable(batches)) == read_by_the_client(pulsar, topic_name)
    if limit:
        assert len(batches) > 2
    if "maxRowsPerTrigger" in limit:
        assert max(map(len, batches)) <= 9
    produce_every_kind(pulsar, topic_name, 2)
    batches += micro_batches(spark, tmp_path, **chosen)
    assert by_message_id(chain.from_iterable(batches)) == read_by_the_client(pulsar, topic_name)


@pytest.mark.spark_since("micro-batch-alignment")
def test_micro_batches_are_aligned_by_event_time(
    spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path
) -> None:
    """Two partitions of the same hour, one with three times as many messages: read evenly, its rows would be late."""
    create_topic(pulsar, topic_name, 2)
    first_ms = 1_767_225_600_000
    for partition, (count, step_ms) in enumerate([(120, 30_000), (360, 10_000)]):
        made = [
            Message(b"0", partition=partition, event_time_ms=first_ms + number * step_ms) for number in range(count)
        ]
        produce(pulsar, topic_name, made, batch=20)
    dropped = {}
    for name, more in (("aligned", ALIGNED), ("apart", {})):
        chosen = options(pulsar, topic_name, startingOffsets="earliest", maxRowsPerTrigger="80", **more)
        frame = spark.readStream.format("headgate.pulsar").options(**chosen).load()
        counted = frame.withWatermark("__eventTime", "10 minutes").groupBy(F.window("__eventTime", "5 minutes")).count()
        writer = counted.writeStream.format("noop").outputMode("update").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(tmp_path / name)).start()
        query.awaitTermination()
        operators = [each for progress in query.recentProgress for each in progress["stateOperators"]]
        dropped[name] = sum(each["numRowsDroppedByWatermark"] for each in operators)
        assert sum(each["numInputRows"] for each in query.recentProgress) == 480
    assert dropped["aligned"] == 0
    assert dropped["apart"] > 0


def committed(folder: Path) -> list[int]:
    """Return the numbers that are committed in a folder."""
    return sorted(row["value"] for row in rows_in(folder))


def test_a_continuous_query_has_what_pulsar_s_client_reads(
    spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path
) -> None:
    create_topic(pulsar, topic_name, 2)
    count = produce_every_kind(pulsar, topic_name, 2)
    chosen = options(pulsar, topic_name, startingOffsets="earliest")
    frame = spark.readStream.format("headgate.pulsar").options(**chosen).load()
    writer = written(frame, "parquet", interval="200 ms", path=str(tmp_path / "rows"), publishInterval="0 seconds")
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_until(lambda: len(rows_in(tmp_path / "rows")) >= count, query)
    count += produce_every_kind(pulsar, topic_name, 2)
    wait_until(lambda: len(rows_in(tmp_path / "rows")) >= count, query)
    assert by_message_id(rows_in(tmp_path / "rows")) == read_by_the_client(pulsar, topic_name)


def test_json_values_in_a_stream(spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, [Message(b'{"value": %d, "at": "2026-01-01T00:00:00Z"}' % each) for each in range(9)])
    chosen = options(pulsar, topic_name, startingOffsets="earliest", valueFormat="json")
    reader = spark.readStream.format("headgate.pulsar").options(**chosen).schema("value long, at timestamp")
    query = written(reader.load().select("value"), "parquet", path=str(tmp_path / "rows"), publishInterval="0 seconds")
    running = query.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    wait_until(lambda: committed(tmp_path / "rows") == list(range(9)), running)


class Copy:
    """Copies numbers from a topic of three partitions to files, exactly once."""

    def __init__(self, spark: SparkSession, broker: Any, topic: str, folder: Path) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        create_topic(broker, topic, 3)
        self.sent = 0

    def start(self, parallelism: int = 2) -> headgate.ContinuousQuery:
        chosen = options(self.broker, self.topic, startingOffsets="earliest", predefinedSubscription="ferry")
        frame = self.spark.readStream.format("headgate.pulsar").options(**chosen).load()
        numbers = frame.selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value")
        writer = written(numbers, "parquet", parallelism, interval="200 ms", **FOR_EVER)
        out = {"path": str(self.folder / "rows"), "publishInterval": "0 seconds"}
        return writer.options(**out).option("checkpointLocation", str(self.folder / "checkpoint")).start()

    def send(self, count: int) -> None:
        send(self.broker, self.topic, range(self.sent, self.sent + count), 3)
        self.sent += count

    def is_copied(self) -> bool:
        return len(committed(self.folder / "rows")) >= self.sent

    def check(self) -> None:
        assert committed(self.folder / "rows") == list(range(self.sent))


def test_a_continuous_query_under_kills_of_its_workers(
    spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path
) -> None:
    copy = Copy(spark, pulsar, topic_name, tmp_path)
    query = copy.start()
    for number in range(KILLS):
        copy.send(30)
        wait_until(lambda: is_running(query), query)
        killed = query.status["slots"][number % 2]["pid"]
        os.kill(killed, signal.SIGKILL)
        copy.send(30)
        wait_until(lambda: not is_running(query) or query.status["slots"][number % 2]["pid"] != killed, query)  # noqa: B023
    wait_until(copy.is_copied, query)
    copy.check()


def test_rescales_and_restarts_keep_readers(
    spark: SparkSession, pulsar: PulsarAddresses, topic_name: str, tmp_path: Path
) -> None:
    """The same owner after a restart (FLIP-537); each message once whatever the parallelism."""
    copy = Copy(spark, pulsar, topic_name, tmp_path)
    copy.send(60)
    query = copy.start(2)
    wait_until(copy.is_copied, query)
    query.stop()
    before = owners(newest(tmp_path / "checkpoint"))
    assert len(before) == 3
    copy.send(60)
    query = copy.start(2)
    wait_until(copy.is_copied, query)
    assert owners(newest(tmp_path / "checkpoint")) == before
    for parallelism in (1, 2):
        query.rescale(parallelism)
        copy.send(60)
        wait_until(copy.is_copied, query)
    copy.check()


def test_a_continuous_query_under_kills_of_the_broker(spark: SparkSession, topic_name: str, tmp_path: Path) -> None:
    """What breaks it breaks `tests/real/test_pulsar_source.py::test_it_goes_on_after_the_broker_was_killed` too."""
    with running_pulsar() as broker:
        copy = Copy(spark, broker, topic_name, tmp_path)
        copy.send(30)
        query = copy.start()
        wait_until(copy.is_copied, query)
        for _ in range(KILLS):
            copy.send(30)
            broker.kill()
            broker.start()
            copy.send(30)
        wait_until(copy.is_copied, query)
        copy.check()
        query.stop()
