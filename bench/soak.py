"""Half an hour under load with a kill every two minutes: nothing grows, and nothing becomes slower.

A process produces JSON records to Kafka at half of the rate that the machine reached before; a continuous query counts
them by key in windows of ten seconds and writes these to Kafka, exactly once, with a checkpoint every second. Every two
minutes a slot's process is killed. Once a second the memory of driver, Java and workers, their files and threads are
noted, with the last checkpoint's duration and the latency of windows: how long after its end one is there.
All figures are medians of a third; a case compares the last third with the first, beside which it may be 5 % worse. At
the end each record must have been counted once.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import statistics
import tempfile
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate
from bench.frame import CACHE, CORES, WorkerMemory, console, report, result_of, session, wait_for
from local.kafka import Broker, running_broker
from local.topics import create_topic

SUMMARY = "Kafka to Kafka for half an hour with kills: memory, files, threads, checkpoints, latency"
MINUTES, QUICK_MINUTES = 30.0, 0.5
KILL_EVERY_S, QUICK_KILL_EVERY_S = 120.0, 12.0
CALIBRATE_S = 15.0
KEYS, PARTITIONS = 1_000, 4
PATIENCE_S = 120.0
WINDOW_S, DELAY_S = 10, 1
SCHEMA = "k long, at timestamp"
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "soak.png"
NAMES = {
    "memory-driver": "MiB", "memory-java": "MiB", "memory-workers": "MiB", "files": "files", "threads": "threads",
    "checkpoint": "ms", "latency": "ms",
}  # fmt: skip


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this bench alone."""
    command.add_argument("--minutes", type=float, help=f"how long (default {MINUTES:.0f})")
    command.add_argument("--rate", type=int, help="records a second, instead of half of what the machine reaches")
    command.add_argument("--picture", action="store_true", help=f"draw {PICTURE.name} for the docs")


def _produce(brokers: str, topic: str, rate: int, sent: Any, done: Any) -> None:
    """Send records at a rate, 0: as fast as it goes; note how many."""
    from confluent_kafka import Producer

    settings = {"bootstrap.servers": brokers, "linger.ms": 5, "queue.buffering.max.messages": 200_000}
    producer, begun, number = Producer(settings), time.perf_counter(), 0
    while not done.is_set():
        due = number + 500 if rate == 0 else int((time.perf_counter() - begun) * rate)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time_ns() // 1_000_000 % 1000:03}Z"
        while number < due:
            try:
                producer.produce(topic, b'{"k": %d, "at": "%s"}' % (number % KEYS, at.encode()))
                number += 1
            except BufferError:
                producer.poll(0.01)
        producer.poll(0)
        sent.value = number
        if rate:
            time.sleep(0.002)
    for partition in range(PARTITIONS):  # a record an hour ahead: all windows of the others are over
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
        producer.produce(topic, b'{"k": -1, "at": "%s"}' % at.encode(), partition=partition)
    producer.flush()


@dataclass
class Noted:
    """What was noted, as seconds since the begin and a figure, by what it is of."""

    series: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: {name: [] for name in NAMES})
    kills: list[float] = field(default_factory=list)
    counted: int = 0

    def note(self, name: str, at_s: float, figure: float) -> None:
        """Take a figure."""
        self.series[name].append((at_s, figure))

    def third(self, name: str, number: int, seconds: float) -> list[float]:
        """Return the figures of the first (0), second or last third of so many seconds."""
        begin, end = seconds * number / 3, seconds * (number + 1) / 3
        return [figure for at_s, figure in self.series[name] if begin <= at_s < end]


class _Windows(threading.Thread):
    """Reads what the query wrote: how many records its windows counted, and how long after their ends they came."""

    def __init__(self, broker: Broker, topic: str, noted: Noted, begun: float) -> None:
        super().__init__(name="soak-windows", daemon=True)
        self._broker, self._topic, self._noted, self._begun = broker, topic, noted, begun
        self.done = threading.Event()

    def run(self) -> None:
        """Read until it is done."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({
            "bootstrap.servers": self._broker.plain, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
            "isolation.level": "read_committed",
        })  # fmt: skip
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        while not self.done.is_set():
            messages = [each for each in consumer.consume(2000, 0.1) if each.error() is None]
            now = time.time()
            ends = []
            for each in messages:
                value = json.loads(each.value() or b"")
                self._noted.counted += value["n"]
                ends.append(value["end"])
            if ends:
                late_ms = (now - max(ends) - DELAY_S) * 1000
                self._noted.note("latency", time.monotonic() - self._begun, late_ms)
        consumer.close()


def _program(spark: SparkSession, broker: Broker, topics: tuple[str, str], folder: str) -> Any:
    rows = (
        spark.readStream.format("headgate.kafka").option("kafka.bootstrap.servers", broker.plain)
        .option("subscribe", topics[0]).option("startingOffsets", "earliest").option("valueFormat", "json")
        .schema(SCHEMA).load().withWatermark("at", f"{DELAY_S} seconds")
    )  # fmt: skip
    counts = rows.groupBy(F.window("at", f"{WINDOW_S} seconds"), "k").agg(F.count("*").alias("n"))
    end = F.unix_timestamp(F.col("window.end")).alias("end")
    written = counts.select(F.to_json(F.struct("k", "n", end)).alias("value"))
    return (
        headgate.continuous(written, parallelism=CORES).writeStream.format("kafka")
        .option("kafka.bootstrap.servers", broker.plain).option("topic", topics[1])
        .option("guarantee", "exactly-once").option("checkpointLocation", folder)
        .option("restart-strategy.reset-backoff-threshold", "5 seconds").trigger(continuous="1 second").start()
    )  # fmt: skip


def _note_processes(noted: Noted, at_s: float, java: psutil.Process, workers: Sequence[int]) -> None:
    own = psutil.Process()
    found = [psutil.Process(pid) for pid in workers if psutil.pid_exists(pid)]
    if len(found) < CORES:
        return  # one was killed: its successor has no figures yet
    try:
        rss = [each.memory_info().rss / 2**20 for each in found]
        everybody = [own, java, *found]
        files, threads = sum(each.num_fds() for each in everybody), sum(each.num_threads() for each in everybody)
    except psutil.NoSuchProcess:
        return
    noted.note("memory-driver", at_s, own.memory_info().rss / 2**20)
    noted.note("memory-java", at_s, java.memory_info().rss / 2**20)
    noted.note("memory-workers", at_s, sum(rss))
    noted.note("files", at_s, files)
    noted.note("threads", at_s, threads)


def _watch(query: Any, noted: Noted, begun: float, seconds: float, kill_every_s: float) -> None:
    """Note and kill until so many seconds are over."""
    (java,) = [
        each
        for each in psutil.Process().children()
        if each.name() == "java" and "SparkSubmit" in " ".join(each.cmdline())
    ]
    checkpoint, killed = None, begun
    while (now := time.monotonic()) - begun < seconds:
        time.sleep(max(0.0, 1 - (time.monotonic() - now)))
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        workers = [each["pid"] for each in query.status["slots"] if each["pid"]]
        _note_processes(noted, now - begun, java, workers)
        progress = query.lastProgress
        last = None if progress is None else progress["headgate"]["checkpoint"]
        if last is not None and last["id"] != checkpoint:
            checkpoint = last["id"]
            noted.note("checkpoint", now - begun, last["durationMs"])
        if now - killed >= kill_every_s:
            os.kill(workers[len(noted.kills) % len(workers)], signal.SIGKILL)
            noted.kills.append(now - begun)
            killed = now


def _soak(spark: SparkSession, broker: Broker, rate: int, seconds: float, kill_every_s: float) -> tuple[Noted, int]:
    """Return what was noted, and the rate at which the query read, records a second."""
    topics = (f"soak-in-{uuid.uuid4().hex[:8]}", f"soak-out-{uuid.uuid4().hex[:8]}")
    create_topic(broker.plain, topics[0], PARTITIONS, retention_bytes=str(1 << 30), segment_bytes=str(1 << 28))
    create_topic(broker.plain, topics[1])
    context = multiprocessing.get_context("spawn")
    sent, done = context.Value("q", 0), context.Event()
    producer = context.Process(target=_produce, args=(broker.plain, topics[0], rate, sent, done), daemon=True)
    noted = Noted()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="soak-", ignore_cleanup_errors=True) as folder:
        producer.start()
        query = _program(spark, broker, topics, folder)
        wait_for(query, lambda: query.status["rowsIn"] > 0)
        begun, before = time.monotonic(), query.status["rowsIn"]
        windows = _Windows(broker, topics[1], noted, begun)
        windows.start()
        _watch(query, noted, begun, seconds, kill_every_s)
        reached = int((query.status["rowsIn"] - before) / (time.monotonic() - begun))
        done.set()
        producer.join()
        deadline = time.monotonic() + PATIENCE_S
        while rate and noted.counted < sent.value and time.monotonic() < deadline:
            time.sleep(0.1)
        query.stop()
        windows.done.set()
        windows.join()
    if rate and noted.counted != sent.value:
        raise SystemExit(f"of {sent.value:,} records windows counted {noted.counted:,}")
    return noted, reached


def draw(noted: Noted, path: Path) -> None:
    """Write a picture of all figures over time."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = (("memory-driver", "memory-java", "memory-workers"), ("files", "threads"), ("checkpoint",), ("latency",))
    figure, axes = plt.subplots(len(rows), 1, sharex=True, figsize=(9, 9), layout="constrained")
    for axis, names in zip(axes, rows):
        for name in names:
            axis.plot([at / 60 for at, _ in noted.series[name]], [each for _, each in noted.series[name]], label=name)
        for kill in noted.kills:
            axis.axvline(kill / 60, color="#c0392b", alpha=0.25, linewidth=1)
        axis.set_ylim(bottom=0)
        axis.set_ylabel(NAMES[names[0]])
        axis.legend(loc="lower right", ncols=3)
    axes[-1].set_xlabel("minutes; a red line is a slot's process that is killed")
    figure.savefig(path, dpi=110)


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    minutes = arguments.minutes or (QUICK_MINUTES if arguments.quick else MINUTES)
    kill_every_s = QUICK_KILL_EVERY_S if arguments.quick else KILL_EVERY_S
    with running_broker(CACHE / "kafka") as broker:
        spark = session("soak", master=f"local[{CORES},1000]")
        rate = arguments.rate
        if rate is None:
            _, reached = _soak(spark, broker, 0, CALIBRATE_S, 1e9)
            rate = reached // 2
            console.print(f"the machine reached {reached:,} records/s; {rate:,} records/s from now on", style="dim")
        noted, _ = _soak(spark, broker, rate, minutes * 60, kill_every_s)
        spark.stop()
    results = []
    for name, unit in NAMES.items():
        first, last = (noted.third(name, number, minutes * 60) or [0.0] for number in (0, 2))
        results.append(result_of(name, [statistics.median(last)], [statistics.median(first)], "first third", unit))
    if arguments.picture:
        draw(noted, PICTURE)
    report(
        "soak", results, WorkerMemory(),
        f"{minutes:g} minutes, {rate:,} records/s, {len(noted.kills)} kills; each of {noted.counted:,} records was "
        "counted once. headgate: median of the last third, peer: of the first; 0.95 is required.",
    )  # fmt: skip
