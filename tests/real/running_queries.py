"""What the tests of continuous queries on real Spark share: a stream of numbers, waiting, and what is on disk."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import headgate
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.storage import CheckpointStorage
from headgate.spark.continuous.writer import ContinuousStreamWriter

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

PATIENCE_S = 240.0
"""How long anything may take on a machine that others use as well; nothing is asserted about it."""


def numbers(spark: SparkSession, *, rows: int | None = None, rate: int = 2000, partitions: int = 4) -> DataFrame:
    """Return a stream of the numbers from 0 in the column ``value``; endless without ``rows``."""
    options = {"rowsPerSecond": rate, "numPartitions": partitions} | ({} if rows is None else {"numRows": rows})
    return spark.readStream.format("headgate.datagen").options(**options).schema("value long").load()


def written(
    frame: DataFrame, to: str = "memory", parallelism: int = 2, *, interval: str = "1 second", **options: Any
) -> ContinuousStreamWriter:
    """Return the writer of a program that runs continuously, into a sink, with a checkpoint now and then."""
    writer = headgate.continuous(frame, parallelism=parallelism).writeStream.format(to)
    return writer.options(**options).trigger(continuous=interval)


class Held(headgate.SimpleSource):
    """The numbers from 0, a few at a time; the last of a split, and all without delay, once a file is there."""

    name = "held-numbers"
    schema = "value bigint"

    def splits(self) -> list[str]:
        return ["0", "1", "2", "3"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        may_end, rows = Path(self.options["mayEnd"]), int(self.options["rows"])
        for begin in range(position or int(split_id), rows, 20):
            while begin + 20 >= rows and not may_end.exists():
                time.sleep(0.01)
                yield pa.record_batch({"value": pa.array([], pa.int64())}), begin
            if not may_end.exists():
                time.sleep(0.01)
            yield pa.record_batch({"value": pa.array(range(begin, min(begin + 20, rows), 4), pa.int64())}), begin + 20


def held_numbers(spark: SparkSession, may_end: Path, *, rows: int) -> DataFrame:
    """Return the numbers from 0 in the column ``value``; a query of them does not end before a file is there.

    Of a bounded read each slot has one split at a time: until then the rows of further splits are not read.
    """
    headgate.register(spark, Held)
    return spark.read.format(Held.name).option("mayEnd", str(may_end)).option("rows", rows).load()


def happens(path: Path) -> bool:
    """Return whether a file was there, and take it away: of several subtasks that look one finds it."""
    try:
        path.unlink()
    except FileNotFoundError:
        return False
    return True


def wait_until(condition: Callable[[], Any], query: headgate.ContinuousQuery | None = None) -> Any:
    """Wait for a condition and return its value; raise the query's error if it ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        if query is not None and not query.isActive:
            if value := condition():
                return value
            raise query.exception() or AssertionError("the query ended")
        assert time.monotonic() < deadline, "it did not happen in time" + ("" if query is None else f": {query.status}")
        time.sleep(0.02)
    return value


def is_running(query: headgate.ContinuousQuery) -> bool:
    return bool(query.status["message"] == "running")


def stop_all() -> None:
    """Stop what a test left running."""
    for query in headgate.streams.active:
        with contextlib.suppress(Exception):
            query.stop()


def read_values(spark: SparkSession, folder: Path | str, file_format: str = "parquet") -> list[int]:
    """Return what is committed in a folder, sorted."""
    frame = spark.read.format(file_format).schema("value long").load(str(folder))
    return sorted(row.value for row in frame.collect())


def newest(location: Path | str) -> Manifest:
    """Return the newest complete checkpoint at a location."""
    found = CheckpointStorage(str(location)).load_newest()
    assert found is not None, "there is no checkpoint"
    return found


def owners(manifest: Manifest) -> dict[str, int]:
    """Return which subtask read each split when a checkpoint was taken."""
    return dict(_owned(manifest))


def _owned(manifest: Manifest) -> Iterator[tuple[str, int]]:
    for number, subtask in enumerate(manifest.subtasks[0]):
        for reader in subtask.readers.values():
            yield from ((split.split_id, number) for split in reader.splits)
