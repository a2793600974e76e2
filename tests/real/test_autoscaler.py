"""Queries on real Kafka and Spark that are rescaled automatically, and what keeps the autoscaler from it."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import headgate
from local.topics import create_topic
from tests.real.running_queries import is_running, numbers, stop_all, wait_until, written

if TYPE_CHECKING:
    from local.kafka import Broker

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

SOON = {
    "autoscaler": "lag",
    "autoscaler.metrics.window": "6 seconds",
    "autoscaler.stabilization.interval": "1 second",
    "autoscaler.scale-down.interval": "3 seconds",
    "autoscaler.catch-up.duration": "30 seconds",
}
ROW_S = 0.004
"""What a row costs: a slot processes 250 rows a second."""
SLOWER = 5
"""How much more it costs where the rate is looked at: a busy machine's own share of a row has to be small beside it."""


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def slow(batches: Iterator[pa.RecordBatch], row_s: float = ROW_S) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(row_s * batch.num_rows)
        yield batch


class Load:
    """Writes the numbers from 0 to a topic, so many a second."""

    def __init__(self, kafka: Broker, topic: str) -> None:
        self.per_second = 0
        self.written = 0
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": kafka.plain, "linger.ms": 5})
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._write, name="load")

    @contextmanager
    def of(self, per_second: int) -> Iterator[Load]:
        self.per_second = per_second
        self._thread.start()
        try:
            yield self
        finally:
            self._stopped.set()
            self._thread.join()

    def _write(self) -> None:
        due, before = 0.0, time.monotonic()
        while not self._stopped.wait(0.02):
            now = time.monotonic()
            due, before = due + self.per_second * (now - before), now
            for _ in range(int(due)):
                self._producer.produce(self._topic, str(self.written).encode(), partition=self.written % 8)
                self.written += 1
            due -= int(due)
        self._producer.flush()


def read(spark: SparkSession, kafka: Broker, topic: str) -> DataFrame:
    return (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", kafka.plain)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
        .selectExpr("CAST(CAST(value AS STRING) AS LONG) AS value")
    )


def autoscaler(query: headgate.ContinuousQuery) -> dict[str, Any]:
    found: dict[str, Any] = query.snapshot()["autoscaler"]
    return found


def rescales(query: headgate.ContinuousQuery) -> list[tuple[int, int]]:
    return [(each["from"], each["to"]) for each in autoscaler(query)["decisions"] if each["from"] != each["to"]]


def reasons(query: headgate.ContinuousQuery) -> list[str]:
    return [each["reason"] for each in autoscaler(query)["decisions"]]


def slots(query: headgate.ContinuousQuery) -> int:
    return len(query.status["slots"])


def test_parallelism_follows_a_load_that_doubles_and_halves(
    spark: SparkSession, kafka: Broker, topic_name: str
) -> None:
    """What breaks it breaks `tests/scenarios/test_autoscaler_follows_the_load.py` and
    `tests/real/test_autoscaler.py::test_the_session_s_cores_limit_it_and_the_user_is_first` too.
    """
    create_topic(kafka.plain, topic_name, 8)
    frame = read(spark, kafka, topic_name).mapInArrow(lambda batches: slow(batches, SLOWER * ROW_S), "value long")
    bounds = {"parallelism.min": "1", "parallelism.max": "4"}
    query = written(frame, parallelism=1, slots="threads", **SOON, **bounds).start()
    with Load(kafka, topic_name).of(25) as load:
        wait_until(lambda: "1 are as many as it needs" in "".join(reasons(query)[-1:]), query)
        begun = len(rescales(query))  # 0, unless the machine was so slow at the start that there was a lag
        for load.per_second in (50, 100):
            time.sleep(1)
        wait_until(lambda: slots(query) >= 3 and is_running(query), query)
        up = rescales(query)[begun:]
        for load.per_second in (50, 25):
            time.sleep(1)
        wait_until(lambda: slots(query) < up[-1][1] and is_running(query), query)
        shown = autoscaler(query)
    wait_until(lambda: query.status["rowsOut"] >= load.written, query)
    query.stop(drain=True)

    assert all(before < after for before, after in up)
    down = rescales(query)[begun + len(up) :]
    assert down and all(1 <= after < before <= 4 for before, after in down), f"to and fro: {up}, {down}"
    assert (shown["mode"], shown["min"], shown["max"]) == ("lag", 1, 4)
    assert sorted(query.table()["value"].to_pylist()) == list(range(load.written))


def test_the_session_s_cores_limit_it_and_the_user_is_first(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The slots are tasks: of the session's two cores both are used, and no more is tried. Then the user wants one."""
    frame = numbers(spark, rate=2000, partitions=8).mapInArrow(slow, "value long")
    with caplog.at_level(logging.INFO, "headgate"):
        query = written(frame, parallelism=1, **SOON).queryName("limited").start()
        wait_until(lambda: slots(query) == 2, query)
        limited = "more than 2 slots are wanted, but the session has cores for 2 slots"
        wait_until(lambda: any(limited in each for each in reasons(query)), query)
        assert rescales(query) == [(1, 2)]
        query.rescale(1)
        wait_until(lambda: "the query was rescaled from 2 to 1 by its user" in reasons(query), query)
        query.stop()
    lines = [each.getMessage() for each in caplog.records if "autoscaler: " in each.getMessage()]
    assert any(line.startswith("query limited: autoscaler: parallelism 1 to 2: scale up") for line in lines), lines
    assert any(line.startswith(f"query limited: autoscaler: parallelism 2: {limited}") for line in lines), lines
    contexts = [getattr(each, "context", None) for each in caplog.records if "autoscaler: " in each.getMessage()]
    assert contexts == [{"query": "limited"}] * len(lines)
    wait_until(lambda: not any(each.name == "headgate-autoscaler-limited" for each in threading.enumerate()))


def test_a_rescale_that_fails_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    """There is a file where the checkpoints should go: the query goes on as it was, until the folder is there again."""
    location, kept = tmp_path / "checkpoints", tmp_path / "kept"
    frame = numbers(spark, rate=1000, partitions=4).mapInArrow(slow, "value long")
    options = {"slots": "threads", "checkpointLocation": str(location), "parallelism.max": "2"}
    tolerant = {"execution.checkpointing.tolerable-failed-checkpoints": "100"}
    query = written(frame, parallelism=1, interval="1 hour", **SOON, **options, **tolerant).start()
    wait_until(lambda: any("figures are collected" in each for each in reasons(query)), query)
    location.rename(kept)
    location.touch()
    wait_until(lambda: any("the rescale to 2 failed, none follows for" in each for each in reasons(query)), query)
    assert slots(query) == 1
    location.unlink()
    kept.rename(location)
    wait_until(lambda: slots(query) == 2 and is_running(query), query)
    query.stop(drain=True)
    assert not any("nothing is read" in each for each in reasons(query)), "while it is drained nothing has to be"
    values = query.table()["value"].to_pylist()
    for partition in range(4):  # where each of them was when the input ended
        of_partition = sorted(value for value in values if value % 4 == partition)
        assert of_partition == list(range(partition, 4 * len(of_partition), 4))
    assert len(values) > 1000


def test_without_the_option_there_is_none(spark: SparkSession) -> None:
    query = written(numbers(spark, rate=10), parallelism=1, slots="threads").start()
    assert query.snapshot()["autoscaler"] is None
    query.stop()
