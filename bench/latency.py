"""From produce to consume: a record's way through Kafka, the query and Kafka again.

A producer sends 5,000 records a second for some seconds; each carries the time at which it was handed to the producer.
A consumer reads the output topic and takes the difference. The broker, the producer, the consumer, Spark and the query
share two cores. A case's figure is the 99th percentile; the table below it has p50 and p99.9 too.

kafka is at-least-once with checkpoints every second, beside Structured Streaming with its default trigger.
kafka-exactly-once is what the transactional sink costs: rows come out with the checkpoint. real-time is Structured
Streaming's real-time mode, where this Spark can run the job.
"""

from __future__ import annotations

import argparse
import statistics
import struct
import sys
import tempfile
import threading
import time
import uuid
from functools import partial
from typing import Any

from pyspark.sql import SparkSession
from rich.table import Table

import headgate
from bench.frame import CACHE, CORES, Case, WorkerMemory, chosen, console, measure, report, session
from local.jars import jars
from local.kafka import Broker, running_broker
from local.topics import create_topic, delete_topic

SUMMARY = "Kafka in, Kafka out: milliseconds from produce to consume"
ROWS_PER_SECOND = 5_000
PARTITIONS = 2
WARM_UP_S = 6.0
SECONDS, QUICK_SECONDS = 20.0, 5.0
_STAMP = struct.Struct(">q")

Percentiles = dict[str, list[tuple[float, float, float]]]


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _produce(broker: Broker, topic: str, seconds: float, done: threading.Event) -> None:
    """Send records at an even pace, each with the time at which it is sent."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.plain, "linger.ms": 0, "acks": "1"})
    begin, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - begin) < seconds and not done.is_set():
        while sent < passed * ROWS_PER_SECOND:
            producer.produce(topic, _STAMP.pack(time.time_ns()), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        time.sleep(0.001)
    producer.flush(10)


def _consume(broker: Broker, topic: str, latencies: list[tuple[int, float]], done: threading.Event) -> None:
    """Note when each record was produced and how long it took, in milliseconds."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {"bootstrap.servers": broker.plain, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 5,
         "enable.auto.commit": False, "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    while not done.is_set():
        for message in consumer.consume(500, 0.02):
            if message.error() is None:
                now_ns, value = time.time_ns(), message.value()
                assert value is not None
                produced_ns = _STAMP.unpack(value)[0]
                latencies.append((produced_ns, (now_ns - produced_ns) / 1e6))
    consumer.close()


def _start(spark: SparkSession, broker: Broker, topics: tuple[str, str], side: str, folder: str) -> Any:
    """Start the query of one side."""
    peer, exchange = side in ("spark", "real-time"), side.startswith("exchange")
    stream = (
        spark.readStream.format("kafka" if peer else "headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topics[0])
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = stream.select("value")
    if exchange:  # for the bench keyed: every record's subtask is that of its own hash
        rows = rows.repartition("value")
    program: Any = rows if peer else headgate.continuous(rows, parallelism=CORES if exchange else 1)
    writer = (
        program.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("topic", topics[1])
        .option("checkpointLocation", folder)
    )  # fmt: skip
    if side == "real-time":
        writer = writer.outputMode("update").trigger(realTime="5 minutes")
    elif not peer:
        guarantee = "exactly-once" if side == "exactly-once" else "at-least-once"
        writer = writer.option("guarantee", guarantee).trigger(continuous="1 second")
        if side == "exchange-at-once":
            writer = writer.option("exchange.buffer-timeout", "0 seconds")
    return writer.start()


def _wait_until_it_runs(query: Any, broker: Broker, topic: str, latencies: list[tuple[int, float]]) -> None:
    """Send a record now and then until one comes out: starting a query is not what is measured."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.plain, "linger.ms": 0})
    deadline = time.monotonic() + 90
    while not latencies:
        if query.exception() is not None or time.monotonic() > deadline:
            raise SystemExit(f"nothing came out of the query: {query.exception()}")
        producer.produce(topic, _STAMP.pack(time.time_ns()), partition=0)
        producer.flush(10)
        time.sleep(0.2)


def measure_latency(spark: SparkSession, broker: Broker, side: str, seconds: float, found: Percentiles) -> float:
    """Return the 99th percentile in milliseconds; note the others."""
    topics = (f"in-{uuid.uuid4().hex}", f"out-{uuid.uuid4().hex}")
    for topic in topics:
        create_topic(broker.plain, topic, PARTITIONS)
    latencies: list[tuple[int, float]] = []
    done = threading.Event()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
        query = _start(spark, broker, topics, side, folder)
        consumer = threading.Thread(target=_consume, args=(broker, topics[1], latencies, done), daemon=True)
        producer = threading.Thread(target=_produce, args=(broker, topics[0], WARM_UP_S + seconds, done), daemon=True)
        consumer.start()
        _wait_until_it_runs(query, broker, topics[0], latencies)
        begin_ns = time.time_ns()
        producer.start()
        producer.join()
        time.sleep(3.0)  # what is under way arrives
        done.set()
        consumer.join()
        error = query.exception()
        query.stop()
    for topic in topics:
        delete_topic(broker.plain, topic)
    warm_ns = begin_ns + int(WARM_UP_S * 1e9)
    measured = sorted(each for produced_ns, each in latencies if produced_ns >= warm_ns)
    if len(measured) < ROWS_PER_SECOND * seconds * 0.9:
        raise SystemExit(f"{side}: only {len(measured)} records came out: {error}")
    percentiles = statistics.quantiles(measured, n=1000, method="inclusive")
    found.setdefault(side, []).append((percentiles[499], percentiles[989], percentiles[998]))
    return percentiles[989]


def _real_time_mode_runs(spark: SparkSession, broker: Broker) -> bool:
    """Return whether this Spark can run the job in real-time mode; say why not."""
    try:
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
            topics = (f"in-{uuid.uuid4().hex}", f"out-{uuid.uuid4().hex}")
            for topic in topics:
                create_topic(broker.plain, topic, PARTITIONS)
            query = _start(spark, broker, topics, "real-time", folder)
            query.awaitTermination(5)
            query.stop()
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        console.print(f"Structured Streaming's real-time mode cannot run this job here: {reason}", soft_wrap=True)
        return False
    return True


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    found: Percentiles = {}
    memory = WorkerMemory()
    # Threads that wait for the interpreter every 5 ms would be measured, too: producer and consumer are this process.
    sys.setswitchinterval(0.0005)
    with running_broker(CACHE / "kafka") as broker:
        spark = session("latency", jars=jars("spark-kafka"))
        side = partial(partial, measure_latency, spark, broker)
        cases = [
            Case(
                "kafka", side("at-least-once", seconds, found), side("spark", seconds, found), "spark kafka", unit="ms"
            ),
        ]
        if not arguments.quick:
            cases.append(Case("kafka-exactly-once", side("exactly-once", seconds, found), None, "", unit="ms"))
            if _real_time_mode_runs(spark, broker):
                cases.append(Case("kafka-real-time", side("at-least-once", seconds, found),
                                  side("real-time", seconds, found), "spark real-time mode", unit="ms"))  # fmt: skip
        rounds = 1 if arguments.quick else arguments.rounds
        results = [measure(case, rounds, memory, warm_up=False) for case in chosen(cases, arguments.only)]
        spark.stop()
    table = Table(title="latency: milliseconds, medians over the rounds", title_justify="left", header_style="bold")
    for heading in ("side", "p50", "p99", "p99.9"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for name, rounds_of in found.items():
        table.add_row(name, *(f"{statistics.median(each):.1f}" for each in zip(*rounds_of, strict=True)))
    console.print(table)
    report(
        "latency", results, memory,
        f"local[{CORES}], parallelism 1, {PARTITIONS} partitions, {ROWS_PER_SECOND:,} records/s for {seconds:.0f} s "
        f"after {WARM_UP_S:.0f} s of warm-up, checkpoints every second in a local folder; producer, consumer and "
        "broker beside it.",
    )  # fmt: skip
