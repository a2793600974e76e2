"""Pulsar topics: Headgate beside a bare loop over pulsar-client, the same broker beside both.

value reads the values of JSON messages of about 90 bytes, in 4 partitions, into the noop sink; columns reads all of the
columns. json-sum parses the values and sums one field grouped by another: valueFormat json here, json.loads and a dict
there. The loop is what a program without Spark would do: one reader of all partitions, and for each message its fields.
The broker runs on the same two cores, so its work counts for both.
"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from bench.frame import QUICK_NOTE, Case, WorkerMemory, chosen, console, measure, report, session
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import create_topic, full_name

SUMMARY = "Pulsar topics beside a bare loop over pulsar-client"
ROWS, QUICK_ROWS = 2_000_000, 200_000
PARTITIONS = 4
SCHEMA = "user string, amount long"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _fill(broker: PulsarBroker, rows: int) -> str:
    """Return a topic with so many messages."""
    import pulsar

    name = full_name(f"bench-{rows}")
    create_topic(broker, name, PARTITIONS)
    console.print(f"filling the topic {name} with {rows:,} messages", soft_wrap=True)
    client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    for partition in range(PARTITIONS):
        producer = client.create_producer(
            f"{name}-partition-{partition}", batching_enabled=True, batching_max_messages=1000,
            block_if_queue_full=True, batching_max_publish_delay_ms=10, compression_type=pulsar.CompressionType.LZ4,
        )  # fmt: skip
        for number in range(partition, rows, PARTITIONS):
            producer.send_async(
                b'{"user":"user-%04d","amount":%d,"flight":"UA%d","at":"2026-01-%02dT05:00:00Z","late":%d.5}'
                % (number * 7919 % 1000, number % 5000, number % 9973, number % 28 + 1, number % 60),
                None, partition_key=f"user-{number * 7919 % 1000:04d}", event_timestamp=1_767_225_600_000 + number,
            )  # fmt: skip
        producer.flush()
    client.close()
    return name


def _reader(spark: SparkSession, broker: PulsarBroker, topic: str) -> Any:
    where = {"service.url": broker.service_url, "admin.url": broker.admin_url, "topic": topic}
    return spark.read.format("headgate.pulsar").options(**where)


def _value(spark: SparkSession, broker: PulsarBroker, topic: str) -> None:
    _reader(spark, broker, topic).schema("value binary").load().write.format("noop").mode("overwrite").save()


def _columns(spark: SparkSession, broker: PulsarBroker, topic: str) -> None:
    _reader(spark, broker, topic).load().write.format("noop").mode("overwrite").save()


def _json_sum(spark: SparkSession, broker: PulsarBroker, topic: str) -> list[tuple[str, int]]:
    values = _reader(spark, broker, topic).option("valueFormat", "json").schema(SCHEMA).load()
    return sorted((row[0], row[1]) for row in values.groupBy("user").sum("amount").collect())


def _loop(broker: PulsarBroker, topic: str, rows: int, use: Callable[[Any], object]) -> None:
    """Read so many messages as Pulsar's own documentation does, and do something with each."""
    import pulsar

    client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull))
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    for _ in range(rows):
        use(reader.read_next())
    client.close()


def _all_fields(message: Any) -> tuple[Any, ...]:
    return (
        message.data(), message.partition_key(), message.topic_name(), message.message_id().serialize(),
        message.publish_timestamp(), message.event_timestamp(), message.properties(),
    )  # fmt: skip


def _loop_json_sum(broker: PulsarBroker, topic: str, rows: int) -> list[tuple[str, int]]:
    sums: Counter[str] = Counter()

    def add(message: Any) -> None:
        ride = json.loads(message.data())
        sums[ride["user"]] += ride["amount"]

    _loop(broker, topic, rows, add)
    return sorted(sums.items())


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else ROWS)
    memory = WorkerMemory()
    # Without retention, and a subscription, Pulsar would delete what nobody reads.
    keep = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
    with running_pulsar(settings=keep) as broker:
        topic = _fill(broker, rows)
        spark = session("pulsar")
        ours = {"value": _value, "columns": _columns, "json-sum": _json_sum}
        loops: dict[str, Callable[[], Any]] = {
            "value": partial(_loop, broker, topic, rows, lambda message: message.data()),
            "columns": partial(_loop, broker, topic, rows, _all_fields),
            "json-sum": partial(_loop_json_sum, broker, topic, rows),
        }
        cases = [
            Case(name, partial(side, spark, broker, topic), loops[name], "pulsar-client loop", rows)
            for name, side in ours.items()
        ]
        results = [measure(case, arguments.rounds, memory) for case in chosen(cases, arguments.only)]
        spark.stop()
    report(
        "pulsar", results, memory,
        f"{rows:,} JSON messages in {PARTITIONS} partitions, batches of 1,000, lz4; local[2], the broker beside it."
        + (QUICK_NOTE if arguments.quick else ""),
    )  # fmt: skip
