"""From produce to consume: a record's way through Kafka, the query and Kafka again.

A process of its own produces 5,000 records a second, each of which is the time of that, reads what comes out and takes
the difference. The broker, that process, Spark and the query share two cores. A case's figure is the 99th percentile,
unless its name ends in p50; the table below has those and p99.9 too.

kafka is at-least-once with checkpoints every second, beside Structured Streaming with its default trigger, and
kafka-real-time beside its real-time mode, where this Spark can run the job. kafka-floor: beside twice what a bare loop
of confluent-kafka takes, which consumes and produces. kafka-exactly-once is what the transactional sink costs: rows
come out with the checkpoint, every second or (-100ms) every 100 ms, for which 200 ms are required. python has a Python
UDF in the way, beside Structured Streaming: real-time mode has none. window counts by key, in update mode.

Of ours the table has the processor time of the slots, too, in cores and for each fetch that brought records.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import queue
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

import headgate
from bench.frame import (
    CACHE,
    CORES,
    Case,
    WorkerMemory,
    chosen,
    console,
    measure,
    report,
    result_of,
    session,
    worker_seconds,
)
from local.jars import spark_kafka
from local.kafka import Broker, running_broker
from local.topics import create_topic, delete_topic

SUMMARY = "Kafka in, Kafka out: milliseconds from produce to consume"
ROWS_PER_SECOND = 5_000
PARTITIONS = 2
SLOTS = 4
"""Tasks at a time, on two cores: in real-time mode the tasks of all stages run at once."""
WARM_UP_S = 6.0
SECONDS, QUICK_SECONDS = 20.0, 5.0
REQUIRED_EXACTLY_ONCE_MS = 200.0

Percentiles = dict[str, list[tuple[float, ...]]]
"""Of each side, by round: p50, p99, p99.9 in milliseconds; cores and microseconds a fetch, or nan."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _through(brokers: str, topics: tuple[str, str], seconds: float, answers: Any) -> None:
    """Produce at an even pace, consume, and answer: first None when a record has come out, then all latencies in ms."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1, "acks": "1"})
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 5,
         "enable.auto.commit": False, "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topics[1], number, 0) for number in range(PARTITIONS)])
    latencies: list[float] = []

    def consume(wait_s: float, since_ns: int) -> bool:
        """Note what has come out; return whether anything has."""
        first = consumer.poll(wait_s)
        messages = [] if first is None else [first, *consumer.consume(500, 0)]
        now_ns = time.time_ns()
        stamps = [int(each.value() or b"0") for each in messages if each.error() is None]
        latencies.extend((now_ns - stamp) / 1e6 for stamp in stamps if stamp >= since_ns)
        return bool(stamps)

    sent = 0
    while not consume(0.2, 1 << 62):  # starting a query is not what is measured
        producer.produce(topics[0], b"%d" % time.time_ns(), partition=0)
        producer.flush(10)
    answers.put(None)
    begin, since_ns = time.perf_counter(), time.time_ns() + int(WARM_UP_S * 1e9)
    while (passed := time.perf_counter() - begin) < WARM_UP_S + seconds:
        while sent < passed * ROWS_PER_SECOND:
            producer.produce(topics[0], b"%d" % time.time_ns(), partition=sent % PARTITIONS)
            sent += 1
        producer.poll(0)
        consume(0.001, since_ns)
    producer.flush(10)
    while time.perf_counter() - begin < WARM_UP_S + seconds + 3:  # what is under way arrives
        consume(0.02, since_ns)
    consumer.close()
    answers.put(latencies)


def _bare(brokers: str, topics: tuple[str, str], done: Any) -> None:
    """Produce what is consumed, as the least that any engine has to do."""
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": brokers, "linger.ms": 1, "acks": "all"})
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": uuid.uuid4().hex, "enable.auto.commit": False})
    consumer.assign([TopicPartition(topics[0], number, 0) for number in range(PARTITIONS)])
    while not done.is_set():
        first = consumer.poll(0.1)
        for each in [] if first is None else [first, *consumer.consume(500, 0)]:
            if each.error() is None:
                producer.produce(topics[1], each.value())
        producer.poll(0)
    consumer.close()


class _BareLoop:
    """The bare loop, with what of a query's interface is needed."""

    def __init__(self, broker: Broker, topics: tuple[str, str]) -> None:
        context = multiprocessing.get_context("spawn")
        self._done = context.Event()
        self._process = context.Process(target=_bare, args=(broker.plain, topics, self._done), daemon=True)
        self._process.start()

    def exception(self) -> str | None:
        """Return why it ended."""
        return None if self._process.is_alive() else f"exit code {self._process.exitcode}"

    def stop(self) -> None:
        """End."""
        self._done.set()
        self._process.join()


def _program(rows: DataFrame, side: str) -> DataFrame:
    """Return what is done with the values of records: texts of times."""
    if side.endswith("python"):
        return rows.select(F.udf(lambda value: value, "binary")("value").alias("value"))
    if side.endswith("window"):
        stamps = rows.select(F.col("value").cast("string").cast("long").alias("stamp"))
        newest = stamps.groupBy(F.expr("stamp % 100").alias("key")).agg(
            F.count("*").alias("n"), F.max("stamp").alias("s")
        )
        return newest.select(F.col("s").cast("string").alias("value"))
    if side.startswith("exchange"):  # for the bench keyed: every record's subtask is that of its own hash
        return rows.repartition("value")
    return rows


def _start(spark: SparkSession, broker: Broker, topics: tuple[str, str], side: str, folder: str) -> Any:
    """Start the query of one side."""
    if side == "floor":
        return _BareLoop(broker, topics)
    peer, exchange = side.startswith(("spark", "real-time")), side.startswith("exchange")
    stream = (
        spark.readStream.format("kafka" if peer else "headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topics[0])
        .option("startingOffsets", "earliest")
        .load()
    )
    rows = _program(stream.select("value"), side)
    program: Any = rows if peer else headgate.continuous(rows, parallelism=CORES if exchange else 1)
    writer = (
        program.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.plain)
        .option("topic", topics[1])
        .option("checkpointLocation", folder)
    )  # fmt: skip
    if side.endswith("window") or side == "real-time":
        writer = writer.outputMode("update")
    if side.startswith("real-time"):
        writer = writer.trigger(realTime="5 minutes")
    elif not peer:
        guarantee = "exactly-once" if side.startswith("exactly-once") else "at-least-once"
        interval = "100 milliseconds" if side.endswith("100ms") else "1 second"
        writer = writer.option("guarantee", guarantee).trigger(continuous=interval)
        if side == "exchange-at-once":
            writer = writer.option("exchange.buffer-timeout", "0 seconds")
    return writer.start()


class _Processor:
    """Counts what the slots of a query of ours take, from one moment to another."""

    def __init__(self, query: Any) -> None:
        self._query = query
        self._began = self._count()

    def _count(self) -> tuple[float, float, float]:
        snapshot = self._query.snapshot() if hasattr(self._query, "snapshot") else {"sources": []}
        metrics = [each["metrics"] for each in snapshot["sources"]]
        fetches = sum(each["fetches"]["value"] for each in metrics if "fetches" in each)
        return time.monotonic(), worker_seconds(), fetches

    def spent(self) -> tuple[float, float]:
        """Return cores, and microseconds for each fetch; nan if it is no query of ours."""
        seconds, used, fetches = (now - then for now, then in zip(self._count(), self._began))
        return (used / seconds, 1e6 * used / fetches) if fetches else (math.nan, math.nan)


def measure_latency(spark: SparkSession, broker: Broker, side: str, seconds: float, found: Percentiles) -> float:
    """Return the 99th percentile in milliseconds; note the others."""
    topics = (f"in-{uuid.uuid4().hex}", f"out-{uuid.uuid4().hex}")
    for topic in topics:
        create_topic(broker.plain, topic, PARTITIONS)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    through = context.Process(target=_through, args=(broker.plain, topics, seconds, answers), daemon=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        query = _start(spark, broker, topics, side, folder)
        through.start()

        def answer(patience_s: float) -> Any:
            deadline = time.monotonic() + patience_s
            while query.exception() is None and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    return answers.get(timeout=0.5)
            through.terminate()
            raise SystemExit(f"{side}: nothing came out: {query.exception()}")

        answer(90)
        time.sleep(WARM_UP_S)
        processor = _Processor(query)
        time.sleep(seconds)
        cores, fetch_us = processor.spent()
        measured = sorted(answer(seconds + 60))
        through.join()
        query.stop()
    for topic in topics:
        delete_topic(broker.plain, topic)
    if len(measured) < ROWS_PER_SECOND * seconds * (0.01 if side.endswith("window") else 0.9):
        raise SystemExit(f"{side}: only {len(measured)} records came out")
    percentiles = statistics.quantiles(measured, n=1000, method="inclusive")
    found.setdefault(side, []).append((percentiles[499], percentiles[989], percentiles[998], cores, fetch_us))
    return percentiles[989]


def _runs(spark: SparkSession, broker: Broker, side: str) -> bool:
    """Return whether this Spark can run the job of a side in real-time mode; say why not."""
    try:
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
            topics = (f"in-{uuid.uuid4().hex}", f"out-{uuid.uuid4().hex}")
            for topic in topics:
                create_topic(broker.plain, topic, PARTITIONS)
            query = _start(spark, broker, topics, side, folder)
            query.awaitTermination(5)
            query.stop()
    except Exception as error:
        reason = str(error).strip().splitlines()[0][:200]
        console.print(f"Structured Streaming's real-time mode cannot run {side}: {reason}", soft_wrap=True)
        return False
    return True


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    seconds = QUICK_SECONDS if arguments.quick else SECONDS
    found: Percentiles = {}
    memory = WorkerMemory()
    with running_broker(CACHE / "kafka") as broker:
        spark = session("latency", jars=spark_kafka(), master=f"local[{SLOTS}]")

        def figure(side: str, by: float = 1) -> Callable[[], float]:
            return lambda: by * measure_latency(spark, broker, side, seconds, found)

        def case(name: str, ours: str, theirs: str | None, peer_name: str, times: float = 1) -> Case:
            return Case(name, figure(ours), None if theirs is None else figure(theirs, times), peer_name, unit="ms")

        cases = [case("kafka", "at-least-once", "spark", "spark kafka")]
        if not arguments.quick:
            cases += [
                case("kafka-floor", "at-least-once", "floor", "twice a bare loop", 2),
                case("kafka-exactly-once", "exactly-once", None, ""),
                Case("kafka-exactly-once-100ms", figure("exactly-once-100ms"),
                     lambda: REQUIRED_EXACTLY_ONCE_MS, "required", unit="ms"),
                case("python", "python", "spark-python", "spark kafka"),
            ]  # fmt: skip
            for name, ours in (("kafka-real-time", "at-least-once"), ("window", "window")):
                theirs = name.removeprefix("kafka-") if name != "window" else "real-time-window"
                wanted = arguments.only is None or name in arguments.only
                runs = wanted and _runs(spark, broker, theirs)
                cases.append(case(name, ours, theirs if runs else None, "spark real-time mode"))
        measure_latency(spark, broker, "floor", SECONDS, {})  # a broker is slow until its Java has compiled its code
        rounds = 1 if arguments.quick else arguments.rounds
        results = [measure(each, rounds, memory, warm_up=False) for each in chosen(cases, arguments.only)]
        spark.stop()
    if "real-time" in found:
        ours, theirs = ([p50 for p50, *_ in found[side]] for side in ("at-least-once", "real-time"))
        results.append(result_of("kafka-real-time-p50", ours, theirs, "spark real-time mode", "ms"))
    table = Table(title="latency: milliseconds, medians over the rounds", title_justify="left", header_style="bold")
    for heading in ("side", "p50", "p99", "p99.9", "cores", "µs a fetch"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    for name, rounds_of in found.items():
        *percentiles, cores, fetch_us = (statistics.median(each) for each in zip(*rounds_of, strict=True))
        spent = ("", "") if math.isnan(cores) else (f"{cores:.2f}", f"{fetch_us:.0f}")
        table.add_row(name, *(f"{each:.1f}" for each in percentiles), *spent)
    console.print(table)
    report(
        "latency", results, memory,
        f"local[{SLOTS}] on {CORES} cores, parallelism 1, {PARTITIONS} partitions, {ROWS_PER_SECOND:,} records/s "
        f"for {seconds:.0f} s after {WARM_UP_S:.0f} s of warm-up, checkpoints every second, locally; a process "
        "that produces and consumes, and the broker, beside it.",
    )  # fmt: skip
