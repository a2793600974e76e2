"""A worker dies under load: seconds until the query writes a new row.

A generator of 20,000 rows a second, a function that adds the number of its process, and Kafka (at-least-once), with a
checkpoint every second, on a cluster of two executors. Ten times over, the Python worker of a slot is killed by
SIGKILL; the figure is the time until the first row arrives that a process wrote which was not there before.

state: the slots of a dropDuplicates of keys of a kilobyte have a gigabyte of state each. One is killed; the figure is
the time until all slots run again, with the state, and rows come out.
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
STATE_BYTES, QUICK_STATE_BYTES = 1 << 30, 128 << 20
"""Of each slot."""
KEY_BYTES = 1000
STATE_KILLS, REQUIRED_STATE_S = 3, 10.0
PATIENCE_S = 600.0
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


def _kills_with_state(spark: Any, kills: int, state_bytes: int) -> list[float]:
    rows, figures = CORES * state_bytes // KEY_BYTES, []
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        keys = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 50_000)
        keys = keys.option("numPartitions", CORES).option("fields.key.length", KEY_BYTES).schema("key string").load()
        query = (
            headgate.continuous(keys.dropDuplicates(["key"]), parallelism=CORES)
            .writeStream.format("noop").option("checkpointLocation", folder).trigger(continuous="5 seconds").start()
        )  # fmt: skip
        with Progress(console=console, transient=True) as progress:
            filling = progress.add_task("state", total=rows)
            while (there := query.status["rowsOut"]) < rows:
                progress.update(filling, completed=there)
                wait_for(query, lambda: False, 1.0)
        for _ in range(kills):
            query.checkpoint()
            victim = query.status["slots"][0]["pid"]
            os.kill(victim, signal.SIGKILL)
            killed = time.perf_counter()
            wait_for(query, lambda victim=victim: victim not in _pids(query), PATIENCE_S)
            there = query.status["rowsOut"]
            wait_for(query, lambda there=there: _flows(query.status, there), PATIENCE_S)
            figures.append(time.perf_counter() - killed)
            time.sleep(SETTLE_S)
        query.stop()
    return figures


def _flows(status: dict[str, Any], rows_before: int) -> bool:
    return status["message"] == "running" and status["rowsOut"] > rows_before


def _pids(query: Any) -> set[int]:
    return {each["pid"] for each in query.status["slots"]}


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    wanted = arguments.only or ["worker", "state"]
    if unknown := set(wanted) - {"worker", "state"}:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are worker, state")
    kills, state_kills = (QUICK_KILLS, 1) if arguments.quick else (KILLS, STATE_KILLS)
    state_bytes = QUICK_STATE_BYTES if arguments.quick else STATE_BYTES
    memory, results = WorkerMemory(), []
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors do not have this module
    spark = session("recover", master=f"local-cluster[{CORES},1,1024]")
    if "worker" in wanted:
        with running_broker(CACHE / "kafka") as broker:
            results.append(result_of("worker", _kills(spark, broker, kills), [REQUIRED_S], "required"))
    if "state" in wanted:
        figures = _kills_with_state(spark, state_kills, state_bytes)
        results.append(result_of("state", figures, [REQUIRED_STATE_S], "required"))
    spark.stop()
    report(
        "recover", results, memory,
        f"local-cluster[{CORES},1,1024], parallelism {CORES}. worker: {kills} SIGKILLs of a slot's Python worker, "
        "20,000 rows/s, checkpoints every second in a local folder, Kafka sink at-least-once, kills 3 s after the last "
        f"recovery (restart-strategy.reset-backoff-threshold 2 seconds). state: {state_kills} kills, "
        f"{state_bytes >> 20} MiB a slot, checkpoints every 5 s in a local folder, no sink.",
    )  # fmt: skip
