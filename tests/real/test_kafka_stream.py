"""Streams over a real broker: restarts, trouble and change, with nothing lost and nothing repeated."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from local.kafka import Broker, running_broker
from local.topics import Message, add_partitions, create_topic, delete_topic, produce


class Stream:
    """A stream of a topic's values into Parquet, to be stopped and started again."""

    def __init__(self, spark: SparkSession, broker: Broker, folder: Path) -> None:
        self._spark, self._broker, self._folder = spark, broker, folder
        self._seen: list[tuple[str, int]] = []
        self._values: list[str] = []

    def start(self, *, available_now: bool = False, **options: object) -> StreamingQuery:
        source = self._spark.readStream.format("headgate.kafka").option("kafka.bootstrap.servers", self._broker.plain)
        names = {name.replace("__", "."): value for name, value in options.items()}
        writer = (
            source.options(**names)
            .load()
            .selectExpr("topic", "partition", "offset", "cast(value AS string) AS value")
            .writeStream.format("parquet")
            .option("path", str(self._folder / "rows"))
            .option("checkpointLocation", str(self.checkpoint))
        )
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def run(self, **options: object) -> StreamingQuery:
        """Read what is there now."""
        query = self.start(available_now=True, **options)
        query.awaitTermination()
        return query

    @property
    def checkpoint(self) -> Path:
        return self._folder / "checkpoint"

    @property
    def _log(self) -> Path:
        return self._folder / "rows" / "_spark_metadata"

    def values(self) -> list[str]:
        """Return what is written. Spark is asked only if the sink's log, which says so, has changed since."""
        seen = sorted((each.name, each.stat().st_mtime_ns) for each in self._log.glob("[0-9]*"))
        if seen != self._seen:
            rows = self._spark.read.schema("value string").parquet(str(self._folder / "rows"))
            self._values, self._seen = sorted(row.value for row in rows.collect()), seen
        return self._values

    def forget_last_commit(self) -> None:
        """Leave the checkpoint as a kill after planning and before committing leaves it."""
        last = max(int(each.name) for each in (self.checkpoint / "commits").iterdir() if each.name.isdigit())
        for each in (self.checkpoint / "commits" / str(last), self.checkpoint / "commits" / f".{last}.crc"):
            each.unlink(missing_ok=True)
        for each in self._log.glob(f"*{last}*"):
            each.unlink()


@pytest.fixture
def stream(spark: SparkSession, kafka: Broker, tmp_path: Path) -> Iterator[Stream]:
    yield Stream(spark, kafka, tmp_path)
    for query in spark.streams.active:
        query.stop()


def values(*numbers: int) -> list[str]:
    return sorted(str(number) for number in numbers)


def send(broker: Broker, topic: str, *numbers: int, partitions: int = 1) -> None:
    produce(broker.plain, topic, [Message(b"%d" % number, partition=number % partitions) for number in numbers])


def until(condition: Callable[[], Any], query: StreamingQuery | None = None, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if query is not None and not query.isActive:
            raise AssertionError(f"the query ended: {query.exception()}")
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.05)


def test_latest_is_resolved_once_though_batch_0_never_committed(stream: Stream, kafka: Broker, topic_name: str) -> None:
    """Spark asks for the first offset again after a kill; ``latest`` must mean the same then.

    Before Spark 4.2 the first start ends with the batch that it repeats.
    """
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, *range(10))
    query = stream.start(subscribe=topic_name)
    until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    query.stop()
    stream.forget_last_commit()
    send(kafka, topic_name, *range(10, 15))
    for _ in range(2):
        stream.run(subscribe=topic_name)
    assert stream.values() == values(*range(10, 15))


@pytest.mark.spark_since("read-limits")
def test_a_replayed_batch_reads_the_same_rows(stream: Stream, kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 2)
    send(kafka, topic_name, *range(20), partitions=2)
    stream.run(subscribe=topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    stream.forget_last_commit()
    send(kafka, topic_name, *range(20, 25), partitions=2)
    stream.run(subscribe=topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=8)
    assert stream.values() == values(*range(25))


def test_new_partitions_are_read_from_their_start(stream: Stream, kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 1)
    query = stream.start(subscribe=topic_name, partition__discovery__interval="200 ms")
    until(lambda: query.lastProgress, query)
    add_partitions(kafka.plain, topic_name, 3)
    send(kafka, topic_name, *range(12), partitions=3)
    until(lambda: len(stream.values()) == 12, query)
    assert stream.values() == values(*range(12))


def test_only_the_partitions_of_assign_are_read(stream: Stream, kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 3)
    send(kafka, topic_name, *range(9), partitions=3)
    chosen = {"assign": json.dumps({topic_name: [0, 2]}), "startingOffsets": "earliest"}
    stream.run(**chosen)
    send(kafka, topic_name, *range(9, 18), partitions=3)
    stream.run(**chosen)
    assert stream.values() == values(*(number for number in range(18) if number % 3 != 1))


def test_a_topic_that_comes_after_an_empty_start_is_read_from_its_start(
    stream: Stream, kafka: Broker, topic_name: str
) -> None:
    """FLIP-537: initial discovery is over when it found nothing; and it is over for the next run, too."""
    pattern = {"subscribePattern": f"{topic_name}-.*", "startingOffsets": "latest"}
    stream.run(**pattern)
    create_topic(kafka.plain, f"{topic_name}-a")
    send(kafka, f"{topic_name}-a", 1, 2, 3)
    stream.run(**pattern)
    assert stream.values() == values(1, 2, 3)


def test_topics_come_and_go_with_the_options(stream: Stream, kafka: Broker, topic_name: str) -> None:
    one, two, three = (create_topic(kafka.plain, f"{topic_name}-{each}") for each in "abc")
    for number, topic in enumerate((one, two, three)):
        send(kafka, topic, number)
    stream.run(subscribe=f"{one},{two}", startingOffsets="earliest")
    assert stream.values() == values(0, 1)
    for number, topic in enumerate((one, two, three), 10):
        send(kafka, topic, number)
    stream.run(subscribe=f"{two},{three}", startingOffsets="latest")
    assert stream.values() == values(0, 1, 11, 2, 12), "the removed topic is not read, the added one from its start"


def test_a_deleted_topic_is_data_loss_unless_allowed(stream: Stream, kafka: Broker, topic_name: str) -> None:
    gone, kept = create_topic(kafka.plain, f"{topic_name}-gone"), create_topic(kafka.plain, f"{topic_name}-kept")
    send(kafka, gone, 1)
    send(kafka, kept, 2)
    options = {"subscribe": f"{gone},{kept}", "startingOffsets": "earliest"}
    stream.run(**options)
    delete_topic(kafka.plain, gone)
    send(kafka, kept, 3)
    with pytest.raises(StreamingQueryException, match=f"(?s)DataLossError.*{gone}.*failOnDataLoss"):
        stream.run(**options)
    stream.run(**options, failOnDataLoss="false")
    assert stream.values() == values(1, 2, 3)


@pytest.mark.parametrize("rows_after", [1, 5])
def test_a_topic_that_was_made_again_is_data_loss_unless_allowed(
    stream: Stream, kafka: Broker, topic_name: str, rows_after: int
) -> None:
    """Also where the new topic has as many records: its offsets look right, and its id differs."""
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, 1, 2, 3)
    options = {"subscribe": topic_name, "startingOffsets": "earliest"}
    stream.run(**options)
    delete_topic(kafka.plain, topic_name)
    until(lambda: topic_name not in AdminClient({"bootstrap.servers": kafka.plain}).list_topics(timeout=60).topics)
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, *range(10, 10 + rows_after))
    with pytest.raises(StreamingQueryException, match=f"(?s)DataLossError.*{topic_name}.*failOnDataLoss"):
        stream.run(**options)
    stream.run(**options, failOnDataLoss="false")
    assert stream.values() == values(1, 2, 3, *range(10, 10 + rows_after))


def test_a_topic_made_again_while_it_is_read_is_read_from_its_beginning_where_losses_are_allowed(
    stream: Stream, kafka: Broker, topic_name: str
) -> None:
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, 1, 2, 3)
    query = stream.start(subscribe=topic_name, startingOffsets="earliest", failOnDataLoss="false")
    until(lambda: stream.values() == values(1, 2, 3), query)
    delete_topic(kafka.plain, topic_name)
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, *range(10, 15))
    until(lambda: "14" in stream.values(), query)
    send(kafka, topic_name, 15)
    until(lambda: "15" in stream.values(), query)
    query.stop()
    assert stream.values() == values(1, 2, 3, *range(10, 16))


def test_records_deleted_before_they_were_read_are_data_loss_unless_allowed(
    stream: Stream, kafka: Broker, topic_name: str
) -> None:
    from confluent_kafka import TopicPartition

    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, *range(5))
    options = {"subscribe": topic_name, "startingOffsets": "earliest"}
    stream.run(**options)
    send(kafka, topic_name, *range(5, 20))
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    for future in admin.delete_records([TopicPartition(topic_name, 0, 12)]).values():
        future.result(60)
    with pytest.raises(StreamingQueryException, match=f"(?s)DataLossError.*{topic_name}.*failOnDataLoss"):
        stream.run(**options)
    stream.run(**options, failOnDataLoss="false")
    assert stream.values() == values(*range(5), *range(12, 20))


def test_an_idle_stream_makes_no_batch_and_no_rows_wait_for_long(
    stream: Stream, kafka: Broker, topic_name: str
) -> None:
    """An offset that changes without data would be an empty batch, again and again."""
    create_topic(kafka.plain, topic_name, 2)
    query = stream.start(subscribe=topic_name, partition__discovery__interval="100 ms")
    until(lambda: (stream.checkpoint / "commits" / "0").exists(), query)
    time.sleep(1)  # ten discoveries
    batches = len(list((stream.checkpoint / "offsets").glob("[0-9]*")))
    send(kafka, topic_name, 1, 2)
    until(lambda: len(stream.values()) == 2, query)
    assert batches == 1


@pytest.mark.spark_since("read-limits")
def test_a_minimum_of_offsets_waits_and_its_delay_ends_the_waiting(
    stream: Stream, kafka: Broker, topic_name: str
) -> None:
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, 0)
    minimum = {"startingOffsets": "earliest", "minOffsetsPerTrigger": 10}
    query = stream.start(subscribe=topic_name, **minimum, maxTriggerDelay="1 hour")
    until(lambda: stream.values() == values(0), query)
    send(kafka, topic_name, 1, 2, 3)
    time.sleep(1.5)
    assert stream.values() == values(0)
    send(kafka, topic_name, *range(4, 11))
    until(lambda: stream.values() == values(*range(11)), query)
    query.stop()
    send(kafka, topic_name, 11)
    query = stream.start(subscribe=topic_name, **minimum, maxTriggerDelay="1 second")
    until(lambda: stream.values() == values(*range(12)), query)


@pytest.mark.spark_since("lag-of-micro-batches")
def test_lag_is_in_the_progress(stream: Stream, kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name)
    send(kafka, topic_name, *range(30))
    query = stream.run(subscribe=topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=10)
    after = [json.loads(progress["sources"][0]["latestOffset"]) for progress in query.recentProgress]
    assert next(each["rowsBehind"] for each in after if each) == 20


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Return a broker that may be killed; a test leaves it running."""
    with running_broker(tmp_path_factory.mktemp("own") / "broker") as broker:
        yield broker


@pytest.mark.spark_since("read-limits")
def test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing(
    spark: SparkSession, own_broker: Broker, tmp_path: Path, topic_name: str
) -> None:
    stream = Stream(spark, own_broker, tmp_path)
    create_topic(own_broker.plain, topic_name, 2)
    send(own_broker, topic_name, *range(1200), partitions=2)
    # As long as the broker may take to come back.
    patience = {"kafka__default__api__timeout__ms": 150_000}
    query = stream.start(subscribe=topic_name, startingOffsets="earliest", maxOffsetsPerTrigger=100, **patience)
    try:
        until(lambda: len(query.recentProgress) > 2, query)
        own_broker.kill()
        own_broker.start()
        send(own_broker, topic_name, *range(1200, 1500), partitions=2)
        until(lambda: sum(each["numInputRows"] for each in query.recentProgress) >= 1500, query, seconds=120)
    finally:
        query.stop()
    assert stream.values() == values(*range(1500))


def test_an_unreachable_broker_fails_in_time_and_the_query_can_be_started_again(
    spark: SparkSession, own_broker: Broker, tmp_path: Path, topic_name: str
) -> None:
    stream = Stream(spark, own_broker, tmp_path)
    create_topic(own_broker.plain, topic_name)
    send(own_broker, topic_name, 1)
    options = {"subscribe": topic_name, "startingOffsets": "earliest"}
    stream.run(**options)
    own_broker.stop()
    try:
        with pytest.raises(StreamingQueryException, match=f"(?s)SourceUnavailableError.*{own_broker.plain}"):
            stream.run(**options, kafka__default__api__timeout__ms="1000")
    finally:
        own_broker.start()
    send(own_broker, topic_name, 2)
    stream.run(**options)
    assert stream.values() == values(1, 2)
