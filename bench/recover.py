"""A worker dies under load: seconds until the query writes a new row.

A generator of 20,000 rows a second, a function that adds the number of its process, and Kafka (at-least-once), with a
checkpoint every second, on a cluster of two executors. Ten times over, the Python worker of a slot is killed by
SIGKILL; the figure is the time until the first row arrives that a process wrote which was not there before.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from rich.progress import Progress

import headgate
from bench.frame import CACHE, CORES, WorkerMemory, console, report, result_of, session, wait_for
from local.kafka import Broker, running_broker
from local.topics import create_topic

SUMMARY = "continuous queries: seconds from a worker's death to a new row"
KILLS, QUICK_KILLS = 10, 3
REQUIRED_S = 2.0
SETTLE_S = 3.0
"""Time between two kills: some checkpoints complete, and the restart strategy's patience is as after a quiet time."""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _with_process(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Say which process saw the rows."""
    for batch in batches:
        texts = pa.array([json.dumps({"pid": os.getpid(), "row": row}) for row in batch.column(0).to_pylist()])
        yield pa.RecordBatch.from_arrays([texts], names=["value"])


class _Watcher:
    """Reads the output topic and knows when each process was first and last heard of."""

    def __init__(self, broker: Broker, topic: str) -> None:
        self.first: dict[int, float] = {}
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(broker, topic), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End."""
        self._done.set()
        self._thread.join()

    def _run(self, broker: Broker, topic: str) -> None:
        from confluent_kafka import Consumer, TopicPartition

        settings = {"bootstrap.servers": broker.plain, "group.id": uuid.uuid4().hex, "fetch.wait.max.ms": 5}
        consumer = Consumer(settings)
        consumer.assign([TopicPartition(topic, 0, 0)])
        while not self._done.is_set():
            for message in consumer.consume(2000, 0.02):
                value = message.value()
                if message.error() is None and value is not None:
                    self.first.setdefault(json.loads(value)["pid"], time.perf_counter())
        consumer.close()


def _kills(spark: Any, broker: Broker, kills: int) -> list[float]:
    topic = f"out-{uuid.uuid4().hex}"
    create_topic(broker.plain, topic, 1)
    watcher = _Watcher(broker, topic)
    figures = []
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as folder:
        rows = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 20_000)
        rows = rows.option("numPartitions", CORES).schema("value bigint").load()
        query = (
            headgate.continuous(rows.mapInArrow(_with_process, "value string"), parallelism=CORES)
            .writeStream.format("kafka").option("kafka.bootstrap.servers", broker.plain).option("topic", topic)
            .option("restart-strategy.reset-backoff-threshold", "2 seconds")
            .option("checkpointLocation", folder).trigger(continuous="1 second").start()
        )  # fmt: skip
        with Progress(console=console, transient=True) as progress:
            for number in progress.track(range(kills), description="kills"):
                wait_for(query, lambda number=number: len(watcher.first) >= CORES + number)
                time.sleep(SETTLE_S)
                known = dict(watcher.first)
                victim = max(known, key=lambda pid: (_alive(pid), -known[pid]))  # the oldest that lives
                os.kill(victim, signal.SIGKILL)
                killed, deadline = time.perf_counter(), time.perf_counter() + 60
                while not (fresh := set(watcher.first) - set(known)) and time.perf_counter() < deadline:
                    time.sleep(0.005)
                figures.append(min(watcher.first[pid] for pid in fresh) - killed)
        query.stop()
    watcher.close()
    return figures


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    kills = QUICK_KILLS if arguments.quick else KILLS
    memory = WorkerMemory()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have this module
    with running_broker(CACHE / "kafka") as broker:
        spark = session("recover", master=f"local-cluster[{CORES},1,1024]")
        figures = _kills(spark, broker, kills)
        spark.stop()
    report(
        "recover", [result_of("worker", figures, [REQUIRED_S], "required")], memory,
        f"local-cluster[{CORES},1,1024], parallelism {CORES}, {kills} SIGKILLs of a slot's Python worker, 20,000 "
        "rows/s, checkpoints every second in a local folder, Kafka sink at-least-once, kills 3 s after the last "
        "recovery (restart-strategy.reset-backoff-threshold 2 seconds).",
    )  # fmt: skip
