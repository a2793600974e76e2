"""What a reader of Kafka says of itself, over a real broker: lag of its partitions, bytes, the age of records."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.testing import ReaderHarness
from local.kafka import Broker
from local.topics import Message, create_topic, produce
from tests.real.kafka_splits import client, reader
from tests.real.running_queries import stop_all, wait_until, written
from tests.waiting import wait_until as wait_for


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_the_end_of_a_partition_comes_with_what_is_fetched(kafka: Broker, topic_name: str, decoder: str) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, [Message(b"%d" % number) for number in range(30)])
    with reader(client(kafka.plain), decoder=decoder) as harness:
        harness.add_splits(KafkaSplit(split_id="a", topic=topic_name, partition=0, position=25))
        while len(harness.rows()) < 5:
            harness.fetch()
        consumer = harness.split_reader._lease.consumer  # type: ignore[attr-defined]
        assert consumer.known_end(TopicPartition(topic_name, 0)) == 30
        assert consumer.known_end(TopicPartition("unknown", 3)) is None


def test_a_reader_knows_how_far_its_partitions_lag_and_how_old_records_are(kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 2)
    produce(kafka.plain, topic_name, [Message(b"%d" % number, partition=0) for number in range(30)])
    produce(kafka.plain, topic_name, [Message(b"x", partition=1)])
    source = KafkaSource({"kafka.bootstrap.servers": kafka.plain, "subscribe": topic_name})
    with ReaderHarness(source.create_reader, source.split_serializer, source.schema()) as harness:
        assert "pendingRecords" not in harness.metrics()
        harness.add_splits(
            KafkaSplit(split_id="first", topic=topic_name, partition=0, position=10),
            KafkaSplit(split_id="second", topic=topic_name, partition=1, position=0),
        )
        while len(harness.rows()) < 21:
            harness.step()
        wait_for(lambda: (harness.poll(), harness.pending_records())[1] == {"first": 0, "second": 0})
        produce(kafka.plain, topic_name, [Message(b"%d" % number, partition=0) for number in range(5)])
        wait_for(lambda: harness.pending_records() == {"first": 5, "second": 0})  # they are fetched, and not emitted
        measured = harness.metrics()
        assert measured["pendingRecords"] == 5
        assert measured["numBytesIn"] == 20 * len("10") + len("x") + 5 * len("0")
        assert measured["fetches"] >= 2 and measured["currentFetchEventTimeLag"] >= 0


def test_a_querys_snapshot_has_the_lag_of_each_partition(spark: SparkSession, kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 2)
    options = {"kafka.bootstrap.servers": kafka.plain, "subscribe": topic_name, "startingOffsets": "earliest"}
    query = written(spark.readStream.format("headgate.kafka").options(**options).load(), "noop").start()
    try:
        produce(kafka.plain, topic_name, [Message(b"12345", partition=number % 2) for number in range(10)])

        def source() -> dict[str, Any] | None:
            [made] = query.snapshot()["sources"]
            is_read = made["bytesRead"] == 50 and [each["lag"] for each in made["splits"]] == [0, 0]
            return made if is_read else None

        made = wait_until(source, query)
        assert made["metrics"]["numBytesIn"] == {"kind": "counter", "value": 50}
        assert made["metrics"]["pendingRecords"] == {"kind": "gauge", "value": 0}
        wait_until(lambda: query.snapshot()["sources"][0]["metrics"]["commitsSucceeded"]["value"] > 0, query)
    finally:
        stop_all()
