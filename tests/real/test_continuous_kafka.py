"""Continuous queries from and to a real broker: each row once, who reads what (FLIP-537), and committed offsets."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate.connectors.kafka.client_config import GROUP_ID_PREFIX
from headgate.connectors.kafka.reader import KafkaReader
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.errors import SourceUnavailableError
from headgate.readers import MultiplexedReader
from headgate.source import SourceReaderContext
from headgate.spark.continuous.settings import arrow_schema
from local.kafka import running_broker
from local.topics import Message, add_partitions, create_topic, produce, read_topic
from tests.real.running_queries import is_running, newest, owners, stop_all, wait_until, written

if TYPE_CHECKING:
    from local.kafka import Broker

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

ASSIGNERS = ("hash", "round-robin")


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def send(kafka: Broker, topic: str, numbers: range, partitions: int) -> None:
    produce(kafka.plain, topic, [Message(str(n).encode(), partition=n % partitions) for n in numbers])


def read(spark: SparkSession, kafka: Broker, topics: str, **options: str) -> DataFrame:
    return (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", kafka.plain)
        .option("subscribe", topics)
        .option("startingOffsets", "earliest")
        .options(**options)
        .load()
    )


class Copy:
    """Copies one topic of two partitions to another."""

    def __init__(self, spark: SparkSession, kafka: Broker, topic: str, guarantee: str, folder: Path) -> None:
        self.spark, self.kafka, self.guarantee, self.folder = spark, kafka, guarantee, folder
        self.source = create_topic(kafka.plain, f"{topic}-in", 2)
        self.target = create_topic(kafka.plain, f"{topic}-out", 1)

    def start(self, parallelism: int) -> headgate.ContinuousQuery:
        return (
            written(read(self.spark, self.kafka, self.source).select("value"), "kafka", parallelism, interval="200 ms")
            .option("kafka.bootstrap.servers", self.kafka.plain)
            .option("topic", self.target)
            .option("guarantee", self.guarantee)
            .option("checkpointLocation", str(self.folder))
            .start()
        )

    def copied(self) -> list[int]:
        return sorted(int(each.value() or b"") for each in read_topic(self.kafka.plain, self.target))


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_kafka_to_kafka(spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path, guarantee: str) -> None:
    """A worker is killed, the query is stopped and started again at another parallelism; then it is drained."""
    copy = Copy(spark, kafka, topic_name, guarantee, tmp_path)
    send(kafka, copy.source, range(1000), 2)
    query = copy.start(2)
    wait_until(lambda: len(copy.copied()) >= 1000, query)
    send(kafka, copy.source, range(1000, 2000), 2)
    os.kill(query.status["slots"][0]["pid"], signal.SIGKILL)
    send(kafka, copy.source, range(2000, 3000), 2)
    wait_until(lambda: set(copy.copied()) == set(range(3000)), query)
    query.stop()
    send(kafka, copy.source, range(3000, 4000), 2)
    query = copy.start(1)
    wait_until(lambda: set(copy.copied()) == set(range(4000)), query)
    query.stop(drain=True)
    counts = Counter(copy.copied())
    assert counts.keys() == set(range(4000))
    if guarantee == "exactly-once":
        assert set(counts.values()) == {1}


def test_updates_do_not_wait_for_a_checkpoint(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """At least once, that is: the checkpoint is an hour away."""
    copy = Copy(spark, kafka, topic_name, "at-least-once", tmp_path)
    counts = read(spark, kafka, copy.source).groupBy("value").count()
    query = (
        written(counts.selectExpr("concat_ws(' ', value, count) AS value"), "kafka", 2, interval="1 hour")
        .option("kafka.bootstrap.servers", kafka.plain)
        .option("topic", copy.target)
        .option("checkpointLocation", str(tmp_path))
        .outputMode("update")
        .start()
    )
    for changes in (10, 20):
        send(kafka, copy.source, range(10), 2)
        wait_until(lambda: len(read_topic(kafka.plain, copy.target)) == changes, query)  # noqa: B023
    query.stop()
    updates = {each.value() for each in read_topic(kafka.plain, copy.target)}
    assert updates == {f"{number} {times}".encode() for number in range(10) for times in (1, 2)}


def test_a_read_with_an_end_ends(spark: SparkSession, kafka: Broker, topic_name: str) -> None:
    """Whatever is written meanwhile; an ending option makes an unbounded read a bounded one."""
    create_topic(kafka.plain, topic_name, 2)
    send(kafka, topic_name, range(500), 2)
    for frame in (
        read(spark, kafka, topic_name, endingOffsets="latest"),
        spark.read.format("headgate.kafka")
        .option("kafka.bootstrap.servers", kafka.plain).option("subscribe", topic_name).load(),
    ):  # fmt: skip
        query = written(frame.select("value"), slots="threads").start()
        assert query.awaitTermination(120)
        assert sorted(int(value) for value in query.table()["value"].to_pylist()) == list(range(500))


def test_what_kafka_s_tools_and_progress_say(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """The positions of a complete checkpoint are the group's; progress has rows, offsets and lag."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    create_topic(kafka.plain, topic_name, 2)
    send(kafka, topic_name, range(100), 2)
    writer = written(read(spark, kafka, topic_name), "noop", 1, interval="200 ms", checkpointLocation=tmp_path)
    query = writer.queryName(topic_name).start()
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    group = f"{GROUP_ID_PREFIX}-{topic_name}"

    def committed() -> dict[int, int]:
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        return {each.partition: each.offset for each in asked[group].result(60).topic_partitions}

    wait_until(lambda: committed() == {0: 50, 1: 50}, query)
    send(kafka, topic_name, range(100, 200), 2)
    wait_until(lambda: committed() == {0: 100, 1: 100}, query)

    progress = wait_until(lambda: next((each for each in query.recentProgress if each.sources[0].metrics), None), query)
    assert {"rowsBehind", "maxOffsetsBehindLatest"} <= progress.sources[0].metrics.keys()
    ends = {f"{topic_name}-{partition}": 100 for partition in range(2)}

    def is_reported() -> bool:
        (source,) = query.recentProgress[-1].sources
        return json.loads(source.endOffset) == ends and source.metrics.get("rowsBehind") == "0"

    wait_until(is_reported, query)
    assert sum(each.numInputRows for each in query.recentProgress) == query.status["rowsIn"] == 200


def test_brokers_that_never_answer_end_the_query_with_their_address(spark: SparkSession) -> None:
    records = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", "127.0.0.1:1")
        .option("subscribe", "rides")
        .option("kafka.default.api.timeout.ms", 1000)
        .load()
    )
    query = written(records, "noop", 1, slots="threads").start()
    with pytest.raises(SourceUnavailableError, match=r"127\.0\.0\.1:1 did not answer within 1000 ms.*the query ends"):
        query.awaitTermination(120)


def test_brokers_that_are_away_for_a_while_are_shown(spark: SparkSession, tmp_path: Path) -> None:
    """Which brokers and partitions, since when; until they are back, though no record comes then."""
    with running_broker(tmp_path / "broker") as broker:
        topic = create_topic(broker.plain, "away", 1)
        send(broker, topic, range(10), 1)
        query = written(read(spark, broker, topic), "memory", 1, interval="200 milliseconds").start()
        wait_until(lambda: len(query.table()) == 10, query)

        def troubles() -> list[str]:
            found: list[str] = query.status["sources"]["kafka"]["troubles"]
            return [each for each in found if each.startswith("No Kafka broker")]

        assert troubles() == []
        broker.kill()
        (trouble,) = wait_until(troubles, query)
        assert re.match(
            rf"No Kafka broker at {broker.plain} has answered since 20\d\d-\S+Z: away-0 cannot be read", trouble
        )

        def shown() -> list[str]:
            progress = query.lastProgress
            return [] if progress is None else progress["headgate"]["troubles"].get("kafka", [])

        # Not the same text: it has the client's last error, which changes.
        wait_until(lambda: [each for each in shown() if each.startswith("No Kafka broker")], query)
        broker.start()
        wait_until(lambda: not troubles(), query)
        send(broker, topic, range(10, 20), 1)
        wait_until(lambda: len(query.table()) == 20, query)
        query.stop()


def test_a_group_that_cannot_be_committed_to_ends_nothing(
    kafka: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader neither raises nor waits, and says so once the client has given up."""
    options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "rides", "kafka.request.timeout.ms": "1000"}
    source = KafkaSource(options)
    context = SourceReaderContext(
        subtask=0, schema=arrow_schema(source.schema()), host="here",
        request_split=lambda: None, send_event=lambda _: None, query="rides",
    )  # fmt: skip
    reader = source.create_reader(context)
    assert isinstance(reader, KafkaReader)
    split = KafkaSplit(split_id="rides-0", topic="rides", partition=0, position=5)
    monkeypatch.setattr(MultiplexedReader, "snapshot_state", lambda self, checkpoint_id: [split])
    with caplog.at_level(logging.WARNING):
        for checkpoint_id in range(1, 200):
            reader.snapshot_state(checkpoint_id)
            started = time.monotonic()
            reader.notify_checkpoint_complete(checkpoint_id)
            assert time.monotonic() - started < 5
            if "the group's offsets were not committed" in caplog.text:
                break
            time.sleep(0.1)
    assert "the group's offsets were not committed" in caplog.text
    assert len(reader._positions) <= 1
    reader.close()


class Reading:
    """Reads topics of one test again and again, from the same checkpoint location."""

    def __init__(self, spark: SparkSession, kafka: Broker, folder: Path, assigner: str) -> None:
        self.spark, self.kafka, self.folder, self.assigner = spark, kafka, folder, assigner

    def start(self, topics: list[str], parallelism: int) -> headgate.ContinuousQuery:
        options = {"partition.discovery.interval": "200 milliseconds", "scan.split-assigner": self.assigner}
        records = read(self.spark, self.kafka, ",".join(topics), **options).alias("topics")
        writer = written(records, "noop", parallelism, interval="100 ms", checkpointLocation=self.folder)
        return writer.start()

    def owners(self, query: headgate.ContinuousQuery, splits: int) -> dict[str, int]:
        """Return who reads what, once that many splits are read and a checkpoint says so."""

        def found() -> dict[str, int] | None:
            if not is_running(query):
                return None
            query.checkpoint()
            now = owners(newest(self.folder))
            return now if len(now) == splits else None

        return wait_until(found, query)  # type: ignore[no-any-return]

    def once(self, topics: list[str], parallelism: int, splits: int) -> dict[str, int]:
        """Start, look who reads what, and stop."""
        query = self.start(topics, parallelism)
        now = self.owners(query, splits)
        query.stop()
        return now


def spread(owned: dict[str, int], parallelism: int) -> list[int]:
    """Return how many splits each subtask reads, sorted."""
    counts = Counter(owned.values())
    return sorted(counts[number] for number in range(parallelism))


@pytest.mark.parametrize("assigner", ASSIGNERS)
def test_owners_topics_and_rescaling(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path, assigner: str
) -> None:
    """FLIP-537: unchanged at the same parallelism; a topic less, a topic more, and partitions more move no other."""
    first, second, third = (create_topic(kafka.plain, f"{topic_name}-{n}", 3) for n in range(3))
    reading = Reading(spark, kafka, tmp_path, assigner)
    query = reading.start([first, second], 2)
    begun = reading.owners(query, 6)
    assert spread(begun, 2) == ([3, 3] if assigner == "round-robin" else spread(begun, 2))
    os.kill(query.status["slots"][1]["pid"], signal.SIGKILL)
    wait_until(lambda: not is_running(query), query)
    assert reading.owners(query, 6) == begun, "a slot that failed gets its own back"
    query.stop()

    assert reading.once([first, second], 2, 6) == begun

    only_first = {split: owner for split, owner in begun.items() if split.startswith(f"{first}-")}
    assert reading.once([first], 2, 3) == only_first

    query = reading.start([first, third], 2)
    added = reading.owners(query, 6)
    assert only_first.items() <= added.items()
    add_partitions(kafka.plain, first, 5)
    more = reading.owners(query, 8)
    assert added.items() <= more.items()
    query.stop()

    for parallelism in (1, 2):
        rescaled = reading.once([first, third], parallelism, 8)
        for topic in (first, third):
            of_topic = {split: owner for split, owner in rescaled.items() if split.startswith(f"{topic}-")}
            counts = spread(of_topic, parallelism)
            assert counts[-1] - counts[0] <= 1, "each topic is spread alike"
        if assigner == "round-robin":
            counts = spread(rescaled, parallelism)
            assert counts[-1] - counts[0] <= 1
