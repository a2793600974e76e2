"""Alignment in spark.readStream: with a watermark of drift and disorder nothing is late, whatever is skewed.

The same input without alignment loses rows: each test says so, or it could not fail.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate

ALIGNED = {"scan.watermark.alignment.group": "g", "scan.watermark.alignment.max-drift": "500 milliseconds"}
ROWS = 30_000


class Windows:
    """Counts rows in windows as a query with a watermark does; keeps the last result of windows."""

    def __init__(self, work: Path, delay: str, window: str = "250 milliseconds") -> None:
        self.work, self.delay, self.window = work, delay, window
        self.counts: dict[Any, int] = {}
        self.held_at: int | None = None
        self.go_on = threading.Event()
        self.dropped = self.batches = 0
        self.progress: list[Any] = []

    def start(self, frame: DataFrame, **trigger: Any) -> Any:
        def keep(batch: DataFrame, _: int) -> None:
            self.counts.update({row.start: row["count"] for row in batch.collect()})
            if self.held_at is not None and self.counted > self.held_at:
                self.go_on.wait(120)

        counted = (
            frame.withWatermark("timestamp", self.delay)
            .groupBy(F.window("timestamp", self.window))
            .count()
            .select("window.start", "count")
        )
        writer = counted.writeStream.outputMode("update").foreachBatch(keep)
        if trigger:
            writer = writer.trigger(**trigger)
        return writer.option("checkpointLocation", str(self.work / "checkpoint")).start()

    def run(self, frame: DataFrame) -> None:
        """Read what is there and end."""
        query = self.start(frame, availableNow=True)
        assert query.awaitTermination(400)
        for progress in query.recentProgress:
            self.dropped += sum(each.numRowsDroppedByWatermark for each in progress.stateOperators)
            self.batches += progress.numInputRows > 0
            self.progress.append(progress)

    @property
    def counted(self) -> int:
        return sum(self.counts.values())


def generated(spark: SparkSession, start_ms: int, **options: Any) -> DataFrame:
    """Return rows of one and a half seconds of event time, all of which are there after as long."""
    return (
        spark.readStream.format("headgate.datagen")
        .options(
            rowsPerSecond=ROWS // 3 * 2, numRows=ROWS, numPartitions=2, eventTimeColumn="timestamp",
            startTimestamp=start_ms, maxRowsPerTrigger=ROWS // 3,
        )
        .options(**options)
        .load()
    )  # fmt: skip


def two_sources(spark: SparkSession, **options: Any) -> DataFrame:
    return generated(spark, 3000, **options).union(generated(spark, 0, **options))


def begin(windows: Windows, frame: DataFrame) -> None:
    """Let the sources begin and have all their rows: a split that never had a row holds nobody back.

    What is read meanwhile, of whichever source had its first row first, moves the watermark nowhere.
    """
    delay, windows.delay = windows.delay, "1 hour"
    windows.run(frame)
    windows.delay = delay
    time.sleep(2)


def run_twice(windows: Windows, frame: DataFrame) -> None:
    """Let the sources begin, then read all that they have by then: after a restart."""
    begin(windows, frame)
    windows.run(frame)


@pytest.mark.spark_since("micro-batch-alignment")
def test_two_sources_of_one_query_are_aligned_and_nothing_is_late(spark: SparkSession, tmp_path: Path) -> None:
    """One is three seconds ahead of the other; the watermark is the drift, half a second."""
    windows = Windows(tmp_path / "aligned", "500 milliseconds")
    run_twice(windows, two_sources(spark, **ALIGNED))
    assert (windows.dropped, windows.counted) == (0, 2 * ROWS)

    unaligned = Windows(tmp_path / "unaligned", "500 milliseconds")
    run_twice(unaligned, two_sources(spark))
    assert unaligned.dropped > 0
    assert unaligned.counted < 2 * ROWS


@pytest.mark.spark_since("micro-batch-alignment")
def test_a_query_that_is_stopped_in_the_middle_goes_on_aligned(spark: SparkSession, tmp_path: Path) -> None:
    windows = Windows(tmp_path, "500 milliseconds")
    frame = two_sources(spark, **ALIGNED)
    begin(windows, frame)
    windows.held_at = ROWS // 3
    query = windows.start(frame)
    until(lambda: windows.counted > ROWS // 3)
    stopping = threading.Thread(target=query.stop)
    stopping.start()  # it waits for the batch, which is held
    until(lambda: not query.isActive)
    windows.go_on.set()
    stopping.join(120)
    assert windows.counted < 2 * ROWS, "it was stopped in the middle"
    windows.run(frame)
    assert (windows.dropped, windows.counted) == (0, 2 * ROWS)


def sensors(spark: SparkSession, **options: Any) -> DataFrame:
    """Return the rows of two splits with steps of 100 and of 400 ms, of a source that cannot say when they are."""

    class Sensors(headgate.SimpleSource):  # in here, so that it travels by value
        name = "sensors"
        schema = "timestamp timestamp"

        def splits(self) -> list[str]:
            return ["100", "400"]

        def latest(self, split_id: str) -> int:
            return 80

        def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, int]]:
            for start in range(position or 0, 80, 20):
                times = pa.array([n * int(split_id) for n in range(start, start + 20)], pa.timestamp("ms", "UTC"))
                yield pa.record_batch({"timestamp": times.cast(pa.timestamp("us", "UTC"))}), start + 20

    headgate.register(spark, Sensors)
    return spark.readStream.format("sensors").options(maxRowsPerTrigger=20, **options).load()


@pytest.mark.spark_since("micro-batch-alignment")
def test_a_source_that_cannot_seek_learns_from_what_its_tasks_read(spark: SparkSession, tmp_path: Path) -> None:
    """It is at most one plan beyond the drift: 20 rows of 400 ms, and 2 s."""
    aligned = {
        "eventTimeColumn": "timestamp",
        "scan.watermark.alignment.group": "g",
        "scan.watermark.alignment.max-drift": "2 seconds",
    }
    windows = Windows(tmp_path / "aligned", "10 seconds", "1 second")
    windows.run(sensors(spark, **aligned))
    assert (windows.dropped, windows.counted) == (0, 160)

    unaligned = Windows(tmp_path / "unaligned", "10 seconds", "1 second")
    unaligned.run(sensors(spark))
    assert unaligned.dropped > 0
    assert unaligned.counted < 160


@pytest.mark.spark_since("micro-batch-alignment")
def test_a_stopped_query_holds_nobody(spark: SparkSession, tmp_path: Path) -> None:
    """A query a day ahead of another one of its group waits, until that one is stopped."""
    after, ahead = (Windows(tmp_path / name, "1 minute") for name in ("after", "ahead"))
    options = {"numRows": 10**9, "rowsPerSecond": 1000, **ALIGNED}
    first = after.start(generated(spark, 0, **options), processingTime="500 milliseconds")
    try:
        until(lambda: after.counted > 0)
        second = ahead.start(generated(spark, 86_400_000, **options), processingTime="500 milliseconds")
        try:
            counted = after.counted
            until(lambda: second.lastProgress is not None and after.counted > counted + 300)
            assert ahead.counted == 0
            first.stop()
            until(lambda: ahead.counted > 0)
        finally:
            second.stop()
    finally:
        first.stop()


@pytest.mark.spark_since("micro-batch-alignment")
def test_progress_shows_the_splits_and_their_drift(spark: SparkSession, tmp_path: Path) -> None:
    windows = Windows(tmp_path, "500 milliseconds")
    run_twice(windows, generated(spark, 0, **ALIGNED))
    shown = [json.loads(progress.sources[0].latestOffset or "{}").get("alignment") for progress in windows.progress]
    assert all(each["maxDriftMs"] == 500 and each["driftMs"] <= 500 for each in shown if each)
    assert any("eventTimeMs" in each["splits"].get("partition-1", {}) for each in shown if each)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that must happen; the test's time limit is the only one."""
    while not condition():
        time.sleep(0.1)
