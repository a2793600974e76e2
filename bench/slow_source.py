"""The cases of ``./run bench unaligned`` with a slow function directly after Kafka, without an exchange.

A function of 20 ms a row, a topic that gets 4,000 rows/s, two slots, a checkpoint each second: what a reader gives at a
time takes minutes, and the backlog grows all the while.

    slow-source-checkpoint  the longest of the checkpoints that were asked for every second, in intervals of 1 s
    slow-source-progress    the longest time between two progress entries that have rows, in seconds
    slow-source-rescale     seconds of a rescale to one slot, rows in flight included

The peer is the same query with aligned checkpoints, which is given up after a while.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import headgate
from bench.frame import CACHE, Case, Result, console, wait_for
from headgate.errors import HeadgateError
from local.kafka import Broker, running_broker
from local.topics import create_topic

ROW_S = 0.02
ROWS_PER_S = 4000
PARTITIONS = 2
RUN_S, QUICK_RUN_S = 30.0, 8.0
LIMITS = {"slow-source-checkpoint": 2.0, "slow-source-progress": 2.0, "slow-source-rescale": 3.0}
CASES = {"slow-source-checkpoint": "intervals", "slow-source-progress": "s", "slow-source-rescale": "s"}


@dataclass
class Figures:
    """What was measured of one query, by case."""

    checkpoint: float
    progress: float
    rescale: float

    def of(self, case: str) -> float:
        """Return the figure of a case."""
        return float(getattr(self, case.rpartition("-")[2]))


@contextmanager
def _filled(broker: Broker, topic: str) -> Iterator[None]:
    """Produce rows all the while, from a backlog of some seconds on."""
    from confluent_kafka import Producer

    over = threading.Event()

    def produce() -> None:
        producer, sent, began = Producer({"bootstrap.servers": broker.plain, "linger.ms": 5}), 0, time.monotonic() - 5
        while not over.is_set():
            while sent < (time.monotonic() - began) * ROWS_PER_S:
                producer.produce(topic, b"%d" % sent, partition=sent % PARTITIONS)
                sent += 1
            producer.poll(0.01)
        producer.flush(10)

    thread = threading.Thread(target=produce, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _slowly(value: Any) -> Any:
    time.sleep(ROW_S)
    return value


def _seconds(call: Callable[[], Any], most_s: float) -> float:
    """Return how long a call took; at least ``most_s`` if it gave up."""
    began = time.monotonic()
    try:
        call()
    except HeadgateError:
        return max(most_s, time.monotonic() - began)
    return time.monotonic() - began


def _gap_s(query: Any) -> float:
    """Return the longest time between two progress entries that have rows, or since the last one."""
    stamps = [
        datetime.fromisoformat(each["timestamp"].replace("Z", "+00:00")).timestamp()
        for each in query.recentProgress
        if each["numInputRows"]
    ]
    stamps += [time.time()] if stamps else []
    return max((after - before for before, after in itertools.pairwise(stamps)), default=float("inf"))


def _measured(spark: SparkSession, broker: Broker, options: dict[str, Any], run_s: float, given_up_s: float) -> Figures:
    topic = f"slow-{time.monotonic_ns()}"
    create_topic(broker.plain, topic, PARTITIONS)
    with _filled(broker, topic), tempfile.TemporaryDirectory(dir=CACHE, ignore_cleanup_errors=True) as folder:
        source = spark.readStream.format("headgate.kafka").option("kafka.bootstrap.servers", broker.plain)
        rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
        slow = F.udf(_slowly, "long")
        program = headgate.continuous(
            rows.select(slow(rows.value.cast("string").cast("long")).alias("n")), parallelism=2
        )
        writer = program.writeStream.format("noop").trigger(continuous="1 second").options(**options)
        query = writer.option("checkpointLocation", folder).start()
        try:
            if not wait_for(query, lambda: query.status["rowsIn"] > 0, 120, every_s=0.05):
                raise SystemExit(f"no rows came: {query.status}")
            worst_s, began = 0.0, time.monotonic()
            while time.monotonic() - began < run_s and worst_s < given_up_s:
                worst_s = max(worst_s, _seconds(lambda: query.checkpoint(timeout=given_up_s), given_up_s))
                time.sleep(1)
            gap_s = min(_gap_s(query), max(run_s, worst_s))
            rescale_s = _seconds(lambda: query.rescale(1, timeout=given_up_s), given_up_s)
        finally:
            query.stop()
        return Figures(worst_s, gap_s, rescale_s)


def measure_cases(spark: SparkSession, cases: list[Case], quick: bool, aligned: dict[str, Any]) -> list[Result]:
    """Measure both sides once, and return the figures of the cases that were chosen."""
    if not cases:
        return []
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots do not have this module
    run_s, given_up_s = (QUICK_RUN_S, 3.0) if quick else (RUN_S, 10.0)
    with running_broker(CACHE / "kafka") as broker:
        ours = _measured(spark, broker, {}, run_s, 60.0)
        theirs = _measured(spark, broker, aligned, run_s, given_up_s)
    for case in cases:
        console.print(f"{case.name}: {ours.of(case.name):.3f}, aligned at least {theirs.of(case.name):.3f}")
    return [
        Result(replace(case, peer_name="aligned: at least"), [ours.of(case.name)], [theirs.of(case.name)])
        for case in cases
    ]
