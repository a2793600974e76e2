"""Kafka topics: Headgate beside Spark's own Kafka source, the same broker beside both.

batch-noop reads a topic of JSON records of about 90 bytes, in 4 partitions, into the noop sink. stream-available-now
does so as a stream with Trigger.AvailableNow. json-sum parses the values and sums one field grouped by another:
valueFormat json here, from_json there. The broker runs on the same two cores as Spark, so its work counts for both.
memory-tenth reads a topic of a tenth of the size: the workers' resident set must not depend on it.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from rich.progress import Progress

from bench.frame import CACHE, QUICK_NOTE, Case, WorkerMemory, chosen, console, measure, report, session
from local.jars import spark_kafka
from local.kafka import Broker, running_broker
from local.topics import create_topic, delete_topic

SUMMARY = "Kafka topics: batch, AvailableNow, JSON values with a grouped sum"
ROWS, QUICK_ROWS = 4_000_000, 200_000
PARTITIONS = 4
SCHEMA = "user string, amount long"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def topic(broker: Broker, rows: int) -> str:
    """Return a topic with so many records, made if it is not there yet."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient

    name = f"bench-{rows}"
    done = broker.folder / f"{name}.done"
    if done.exists():
        return name
    console.print(f"filling the topic {name} with {rows:,} records (kept in {broker.folder})", soft_wrap=True)
    admin = AdminClient({"bootstrap.servers": broker.plain})
    if name in admin.list_topics(timeout=30).topics:  # of a run that was interrupted
        delete_topic(broker.plain, name)
    create_topic(broker.plain, name, PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": broker.plain, "compression.type": "lz4", "linger.ms": 50, "batch.num.messages": 20_000,
         "queue.buffering.max.messages": 500_000, "enable.idempotence": True}
    )  # fmt: skip
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("records", total=rows)
        for number in range(rows):
            value = (
                b'{"user":"user-%04d","amount":%d,"flight":"UA%d","at":"2026-01-%02dT05:00:00Z","late":%d.5}'
                % (number * 7919 % 1000, number % 5000, number % 9973, number % 28 + 1, number % 60)
            )  # fmt: skip
            while True:
                try:
                    producer.produce(name, value, partition=number % PARTITIONS, timestamp=1_767_225_600_000 + number)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 10_000 == 0:
                producer.poll(0)
                progress.update(bar, completed=number)
        if producer.flush(60):
            raise SystemExit("the broker did not take all records")
    done.touch()
    return name


def _reader(frames: Any, broker: Broker, rows: int, peer: bool) -> Any:
    """Return ``spark.read`` or ``spark.readStream`` with all that both sides have in common."""
    return (
        frames.format("kafka" if peer else "headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topic(broker, rows))
        .option("startingOffsets", "earliest")
    )


def _batch(spark: SparkSession, broker: Broker, rows: int, peer: bool) -> int:
    _reader(spark.read, broker, rows, peer).load().write.format("noop").mode("overwrite").save()
    return rows


def _available_now(spark: SparkSession, broker: Broker, rows: int, peer: bool) -> int:
    stream = _reader(spark.readStream, broker, rows, peer).load()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as checkpoint:
        writer = stream.writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read: int = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != rows:
        raise SystemExit(f"the {'peer' if peer else 'Headgate'} read {read:,} records of {rows:,}")
    return read


def _json_sum(spark: SparkSession, broker: Broker, rows: int, peer: bool) -> list[tuple[str, int]]:
    reader = _reader(spark.read, broker, rows, peer)
    values: DataFrame
    if peer:
        values = reader.load().select(from_json(col("value").cast("string"), SCHEMA).alias("v")).select("v.*")
    else:
        values = reader.option("valueFormat", "json").schema(SCHEMA).load()
    return sorted((row[0], row[1]) for row in values.groupBy("user").sum("amount").collect())


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    rows = arguments.rows or (QUICK_ROWS if arguments.quick else ROWS)
    memory = WorkerMemory()
    with running_broker(CACHE / "kafka") as broker:
        spark = session("kafka", jars=spark_kafka())
        sides = {"batch-noop": _batch, "stream-available-now": _available_now, "json-sum": _json_sum}
        cases = [
            Case(name, partial(side, spark, broker, rows, peer=False), partial(side, spark, broker, rows, peer=True),
                 "spark kafka", rows)
            for name, side in sides.items()
        ]  # fmt: skip
        if not arguments.quick:  # which has too few for memory to mean anything
            tenth = rows // 10
            cases.append(Case("memory-tenth", partial(_batch, spark, broker, tenth, peer=False), None, "", tenth))
        results = [measure(case, arguments.rounds, memory) for case in chosen(cases, arguments.only)]
        spark.stop()
    note = f" memory-tenth reads {rows // 10:,} records: its worker MiB beside batch-noop's show what the size changes."
    report(
        "kafka", results, memory,
        f"{rows:,} JSON records of about 90 bytes in {PARTITIONS} partitions, lz4; local[2], the broker beside it."
        + (QUICK_NOTE if arguments.quick else note),
    )  # fmt: skip
