"""Slow functions right after a source: checkpoints complete in the middle of a batch, and every row comes once."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
import running_queries
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from running_queries import PATIENCE_S, happens, newest, wait_until, written

import headgate
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import HeadgateError

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

SPLITS, ROWS = 3, 2000
ROW_S = 0.01
"""A batch takes 20 s, unless a test lets the function hurry: no checkpoint comes too late to be in the middle of it."""
RETRIES = {"restart-strategy": "fixed-delay", "restart-strategy.attempts": 10, "restart-strategy.delay": 0}


class Heaps(headgate.SimpleSource):
    """A few splits, each of which is one batch of rows: null, nested and wide ones among them."""

    name = "heaps"
    schema = "split string, n bigint, items array<string>"

    def splits(self) -> list[str]:
        return [f"s{number}" for number in range(SPLITS)]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        if not position:
            numbers = range(ROWS)
            items = [None if n % 7 == 0 else [] if n % 5 == 0 else ["x" * (n % 50), None] for n in numbers]
            items_column = pa.array(items, pa.list_(pa.string()))
            yield pa.record_batch({"split": [split_id] * ROWS, "n": [*numbers], "items": items_column}), 1


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    running_queries.stop_all()


def heaps(spark: SparkSession) -> DataFrame:
    headgate.register(spark, Heaps)
    return spark.read.format(Heaps.name).load()


def take_time(folder: Path) -> None:
    """Take the time of a row, unless a file says that all should be over soon."""
    if not (folder / "hurry").exists():
        time.sleep(ROW_S)


def slow_time(folder: Path) -> Any:
    """Return a Python UDF that takes its time and returns when it was called; its process dies when a file says so."""

    def slow(n: Any) -> Any:
        take_time(folder)
        if happens(folder / "kill"):
            os.kill(os.getpid(), signal.SIGKILL)
        return time.monotonic_ns()  # of the machine: processes are compared

    return f.udf(slow, "bigint")


class Slowly:
    """For ``mapInArrow``: takes its time over each row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for _ in range(batch.num_rows):
                take_time(self.folder)
            yield batch


def begun_rows(manifest: Manifest) -> dict[str, int]:
    """Return how many rows of each split precede a checkpoint: all that were read but those in flight."""
    readers = (reader for subtask in manifest.subtasks[0] for reader in subtask.readers.values())
    unassigned = (entry.unassigned for entry in manifest.sources.values())
    splits = [split for of in (*(reader.splits for reader in readers), *unassigned) for split in of]
    return {split.split_id: ROWS - split.in_flight.rows for split in splits if split.in_flight is not None}


def in_flight(manifest: Manifest) -> int:
    """Return how many rows of splits a checkpoint holds that no operator has seen."""
    return sum(each.rows for each in manifest.in_flight)


def check_exact(spark: SparkSession, out: Path) -> None:
    """Assert that each row is there once, as it was."""
    found = spark.read.parquet(str(out)).select("split", "n", "items").orderBy("split", "n").toArrow()
    wanted = heaps(spark).select("split", "n", "items").orderBy("split", "n").toArrow()
    assert found.to_pylist() == wanted.to_pylist()


def with_rows_in_flight(query: headgate.ContinuousQuery, location: Path) -> Manifest:
    """Take checkpoints until one was taken in the middle of a batch, and return it.

    After a kill that nobody may have noticed yet, it is of the processes that took the place of those before.
    """

    def taken() -> Manifest | None:
        try:
            query.checkpoint(timeout=PATIENCE_S)
        except HeadgateError:
            return None  # a query that has ended is not waited for
        found = newest(location)
        return found if in_flight(found) else None

    found = wait_until(taken, query)
    assert isinstance(found, Manifest)
    return found


def test_kills_a_rescale_and_a_savepoint_in_the_middle_of_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Chained: a projection, a slow Python UDF, another projection. Rows of a split are processed in their order."""
    before = heaps(spark).withColumn("m", f.col("n") + 1)
    slow = slow_time(tmp_path)
    after = before.withColumn("at", slow("n")).select("split", "n", "items", "at", (f.col("m") * 2).alias("m"))
    out, first, second = tmp_path / "out", tmp_path / "first", tmp_path / "second"

    def started(parallelism: int, location: Path, **options: Any) -> headgate.ContinuousQuery:
        writer = written(after, "parquet", parallelism, interval="200 milliseconds", **RETRIES)
        return writer.option("checkpointLocation", location).start(str(out), **options)

    def killed(location: Path) -> None:
        """Kill a process between two checkpoints with rows in flight."""
        (tmp_path / "kill").touch()
        wait_until(lambda: not (tmp_path / "kill").exists(), query)
        assert in_flight(with_rows_in_flight(query, location)) > ROWS // 2

    query = started(2, first)
    with_rows_in_flight(query, first)
    killed(first)
    killed(first)
    query.rescale(1)
    killed(first)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert in_flight(CheckpointStorage(str(tmp_path / "savepoint")).load_savepoint()) > ROWS // 2
    query = started(2, second, fromSavepoint=str(tmp_path / "savepoint"))
    with_rows_in_flight(query, second)
    killed(second)
    (tmp_path / "hurry").touch()
    assert query.awaitTermination(PATIENCE_S), query.status
    check_exact(spark, out)
    times = spark.read.parquet(str(out)).orderBy("split", "n").select("split", "n", "at", "m").collect()
    assert all(row.m == 2 * (row.n + 1) for row in times)
    overtaken = [(one, two) for one, two in pairwise(times) if one.split == two.split and one.at > two.at]
    assert not overtaken, overtaken[:3]


@pytest.mark.parametrize("way", ["mapInArrow to files", "a UDF to foreachBatch"])
def test_a_kill_while_most_of_a_batch_waits(spark: SparkSession, tmp_path: Path, way: str) -> None:
    """Of two cores one is for the jobs of ``foreachBatch``."""
    out, location, rows = tmp_path / "out", tmp_path / "checkpoints", heaps(spark)
    batches: dict[int, list[tuple[str, int]]] = {}

    def take(batch: DataFrame, number: int) -> None:
        batches[number] = [(row.split, row.n) for row in batch.collect()]

    if way == "mapInArrow to files":
        slow = rows.mapInArrow(Slowly(tmp_path), rows.schema)
    else:
        slow = rows.withColumn("at", slow_time(tmp_path)("n"))
    writer = written(slow, "parquet", 1, interval="200 milliseconds", **RETRIES)
    writer = writer.option("checkpointLocation", location)
    query = writer.start(str(out)) if way == "mapInArrow to files" else writer.foreachBatch(take).start()
    assert in_flight(with_rows_in_flight(query, location)) > ROWS // 2
    kill_slot(query)
    assert in_flight(with_rows_in_flight(query, location)) > ROWS // 2
    (tmp_path / "hurry").touch()
    assert query.awaitTermination(PATIENCE_S), query.status
    if way == "mapInArrow to files":
        check_exact(spark, out)
    else:
        found = [row for number in batches for row in batches[number]]
        assert sorted(found) == [(f"s{split}", n) for split in range(SPLITS) for n in range(ROWS)]


def kill_slot(query: headgate.ContinuousQuery) -> None:
    """Kill the process of a query's only slot, and wait until another one runs."""
    victim = query.status["slots"][0]["pid"]
    assert victim > 0
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: query.status["slots"][0]["pid"] not in (0, victim), query)
    wait_until(lambda: running_queries.is_running(query), query)


class SlowSink:
    """Takes its time over each row, and appends it to a file of its process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def process(self, row: Any) -> None:
        take_time(self.folder)
        with (self.folder / f"rows-{os.getpid()}").open("a") as file:
            file.write(f"{row.split} {row.n}\n")

    @staticmethod
    def seen(folder: Path, pid: int) -> dict[str, list[int]]:
        """Return the rows that a process had, by split."""
        found: dict[str, list[int]] = {f"s{number}": [] for number in range(SPLITS)}
        for line in (folder / f"rows-{pid}").read_text().splitlines():
            split, n = line.split()
            found[split].append(int(n))
        return found


def test_a_slow_sink_repeats_only_what_came_after_the_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """``foreach``: after a kill, each split goes on with the first of its rows that was in flight, in order."""
    location = tmp_path / "checkpoints"
    writer = headgate.continuous(heaps(spark), parallelism=1).writeStream.foreach(SlowSink(tmp_path))
    writer = writer.options(checkpointLocation=location, **RETRIES).trigger(continuous="1 hour")
    query = writer.start()
    wait_until(lambda: [*tmp_path.glob("rows-*")], query)
    found = with_rows_in_flight(query, location)
    assert in_flight(found) > ROWS // 2
    killed = query.status["slots"][0]["pid"]
    kill_slot(query)
    (tmp_path / "hurry").touch()
    last = query.status["slots"][0]["pid"]
    assert query.awaitTermination(PATIENCE_S), query.status
    before, after, begun = SlowSink.seen(tmp_path, killed), SlowSink.seen(tmp_path, last), begun_rows(found)
    assert len(begun) == 1, "one subtask reads one split at a time"
    for split in before:
        assert before[split] == list(range(len(before[split])))
        assert len(before[split]) >= begun.get(split, 0)
        assert after[split] == list(range(begun.get(split, 0), ROWS))


class Trickle(headgate.SimpleSource):
    """One row at a time, until the other source has been read."""

    name = "trickle"
    schema = "side string, n bigint"

    def splits(self) -> list[str]:
        return ["trickle"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder, n = Path(self.options["folder"]), position or 0
        while n < 50 or not (folder / "flood-ended").exists():
            time.sleep(0.002)
            yield pa.record_batch({"side": ["small"], "n": pa.array([n], pa.int64())}), n + 1
            n += 1
            if n == 50:
                (folder / "flood-begins").touch()


class Flood(headgate.SimpleSource):
    """Many rows at a time, once the other source has given some."""

    name = "flood"
    schema = "side string, n bigint"

    def splits(self) -> list[str]:
        return ["flood"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder = Path(self.options["folder"])
        while not (folder / "flood-begins").exists():
            time.sleep(0.002)
        for n in range(position or 0, FLOOD, 5000):
            yield pa.record_batch({"side": ["fast"] * 5000, "n": pa.array(range(n, n + 5000), pa.int64())}), n + 5000
        (folder / "flood-ended").touch()


FLOOD = 20_000


def test_a_trickle_does_not_make_the_calls_of_a_flood_small(spark: SparkSession, tmp_path: Path) -> None:
    """A union in one stage, and a function for which a call costs as much as a hundred rows."""
    calls = tmp_path / "calls"

    def slowly(side: pd.Series, n: pd.Series) -> pd.Series:
        time.sleep(0.002 + 0.00002 * len(n))
        with calls.open("a") as file:
            file.write(f"{(side == 'fast').sum()}\n")
        return n

    sides = []
    for source in (Flood, Trickle):
        headgate.register(spark, source)
        sides.append(spark.read.format(source.name).option("folder", str(tmp_path)).load())
    rows = sides[0].union(sides[1]).select("side", f.pandas_udf(slowly, "bigint")("side", "n").alias("n"))
    query = written(rows, "memory", 1, slots="threads").start()
    assert query.awaitTermination(PATIENCE_S), query.status
    found: dict[str, list[int]] = {"fast": [], "small": []}
    for row in query.table().to_pylist():
        found[row["side"]].append(row["n"])
    assert found["fast"] == list(range(FLOOD))
    assert found["small"] == list(range(len(found["small"]))) and len(found["small"]) >= 50
    fast = [count for line in calls.read_text().splitlines() if (count := int(line))]
    assert sum(fast) == FLOOD
    assert FLOOD / len(fast) >= 50, f"{len(fast)} calls: {fast[:20]}"
