"""What the state of keyed queries goes through on real Spark, one function each; results equal Spark's own of the rows.

Used by test_continuous_keyed.py, as keyed_scenarios.py is.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from keyed_scenarios import ALL, ENDING, WITHIN_S, Slowly, numbers, start, wait_until, written
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import HeadgateError, OptionError, StoredStateError
from headgate.spark.continuous.query import ContinuousQuery

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

SPLITS = 3
TIMESTAMP = pa.timestamp("us", "UTC")


def events(split: int, rows: int) -> pa.RecordBatch:
    """Return the rows of a split: times that are out of order by up to 1.5 seconds; a few keys have most rows."""
    dice = np.random.default_rng(split)
    n = np.arange(rows, dtype=np.int64)
    at = 2_000_000 + n * 10_000 + dice.integers(-1_500_000, 0, rows)
    k = (40 * dice.random(rows) ** 3).astype(np.int64)
    arrays = [pa.array(n * SPLITS + split), pa.array(k), pa.array(at).cast(TIMESTAMP)]
    return pa.RecordBatch.from_arrays(arrays, names=["n", "k", "at"])


class Events(headgate.SimpleSource):
    """The rows of `events`, a few at a time until a file says that it can hurry; then ten times as many.

    The second half takes ten times as long: a query is not at its end before that file is there.
    """

    name = "keyed-events"
    schema = "n bigint, k bigint, at timestamp"
    option_specs = ENDING

    def splits(self) -> list[str]:
        return [str(split) for split in range(SPLITS)]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder = Path(self.options["folder"])
        rows = events(int(split_id), self.options["endingRow"])
        begin = position or 0
        while begin < rows.num_rows:
            hurry = (folder / "hurry").exists()
            if not hurry:
                time.sleep(0.05 if begin < rows.num_rows // 2 else 0.5)
            batch = rows.slice(begin, 1000 if hurry else 100)
            begin += batch.num_rows
            yield batch, begin


def read_events(spark: SparkSession, folder: Path, rows: int) -> DataFrame:
    """Return the rows of `events`, with a watermark for which none of them is late."""
    headgate.register(spark, Events)
    reader = spark.readStream.format(Events.name).option("endingRow", rows).option("folder", folder)
    return reader.load().withWatermark("at", "2 seconds")


def frame_of(spark: SparkSession, rows: int) -> DataFrame:
    """Return all that `events` has, as Spark's own frame."""
    return spark.createDataFrame(pa.Table.from_batches([events(split, rows) for split in range(SPLITS)])).coalesce(1)


def counted(table: Any) -> Counter[Any]:
    """Return how often an Arrow table has each row: lists as multisets, windows as their bounds."""
    return Counter(tuple(_plain(each) for each in row.values()) for row in table.to_pylist())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple(value.values())
    return tuple(sorted(value)) if isinstance(value, list) else value


def check_equal(found: Any, expected: Any) -> None:
    """Check that two Arrow tables have the same rows, as often."""
    ours, sparks = counted(found.select(expected.column_names)), counted(expected)
    lost, more = sparks - ours, ours - sparks
    assert not lost and not more, (
        f"{lost.total()} of {sparks.total()} rows are lost, {more.total()} are too many: "
        f"{list(lost.items())[:3]}, {list(more.items())[:3]}"
    )


def in_the_middle(query: ContinuousQuery, more: int = 1) -> None:
    """Wait until the query has read some more rows."""
    before = query.status["rowsIn"]
    wait_until(lambda: query.status["message"] == "running" and query.status["rowsIn"] >= before + more, query)


def kill_a_worker(query: ContinuousQuery, slot: int) -> None:
    """Kill a slot's process, and wait until all runs again."""
    pid = wait_until(lambda: query.status["slots"][slot]["pid"], query)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: query.status["slots"][slot]["pid"] not in (0, pid), query)
    wait_until(lambda: query.status["message"] == "running", query)


def end(query: ContinuousQuery, folder: Path) -> None:
    """Let the source hurry, and wait for the end."""
    (folder / "hurry").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    assert late_of(query) == 0, "rows were late"


def late_of(query: ContinuousQuery) -> int:
    """Return how many rows were late."""
    progress = query.lastProgress
    return 0 if progress is None else int(progress["headgate"]["lateRows"])


def raised(does: Callable[[], Any], kind: type[BaseException], *words: str) -> str:
    """Check that something raises an error of a kind that says certain words, and return its message."""
    try:
        does()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        return str(error)
    raise AssertionError("it did not raise")


def stop_what_is_left(folder: Path) -> None:
    """Stop the queries of a scenario that went wrong: others need their cores."""
    for query in headgate.streams.active:
        if (query.name or "").startswith(folder.name):
            query.stop()


AGGREGATES = {"rows": "count(1)", "total": "sum(n)", "most": "max(n)", "all": "collect_list(n)"}


def aggregated(frame: DataFrame, by: Any) -> DataFrame:
    """Return ``AGGREGATES`` of windows and keys."""
    return frame.groupBy(by, "k").agg(*(F.expr(f"{sql} as `{name}`") for name, sql in AGGREGATES.items()))


def sliding_and_session_windows(spark: SparkSession, folder: Path) -> None:
    """Rescaled, restored, and with most of their state in local files, they give what Spark gives in a batch."""
    rows = 16_000
    made = {
        "sliding": F.window("at", "10 seconds", "4 seconds"),
        "session": F.session_window("at", "400 milliseconds"),
    }
    queries = {}
    for name, by in made.items():
        own = folder / f"{folder.name}-{name}"
        own.mkdir(parents=True)
        queries[name] = start(aggregated(read_events(spark, own, rows), by), 3, own, {"state.memory": "20k"})
    for parallelism in (1, 4, 2):
        for query in queries.values():
            in_the_middle(query, 1000)
            query.rescale(parallelism)
    for query in queries.values():
        in_the_middle(query)
        query.checkpoint()
        kill_a_worker(query, 1)
    for name, by in made.items():
        end(queries[name], folder / f"{folder.name}-{name}")
        check_equal(queries[name].table(), aggregated(frame_of(spark, rows), by).toArrow())


def two_windows_in_one_stage(spark: SparkSession, folder: Path) -> None:
    """Each spills to files of its own."""
    rows = 16_000
    folder.mkdir(parents=True)
    by = (F.window("at", "1 hour"), F.window("at", "40 seconds"), F.session_window("at", "1 minute"))

    def all_windows(frame: DataFrame) -> DataFrame:
        first, second, third = (aggregated(frame, each.alias("window")) for each in by)
        return first.union(second).union(third)

    query = start(all_windows(read_events(spark, folder, rows)), 2, folder, {"state.memory": "4k"})
    in_the_middle(query, 1000)
    query.rescale(3)
    end(query, folder)
    check_equal(query.table(), all_windows(frame_of(spark, rows)).toArrow())


def update_mode(spark: SparkSession, folder: Path) -> None:
    """What a group had last is what ``append`` says of it, and there was more than that."""
    rows = 16_000
    folder.mkdir(parents=True)

    def counted(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy(F.window("at", "10 seconds").alias("window"), "k")
        return grouped.agg(F.count("*").alias("rows"), F.sum("n").alias("total"))

    writer = written(counted(read_events(spark, folder, rows)), 3, folder).outputMode("update")
    query = writer.trigger(continuous="300 milliseconds").start()
    in_the_middle(query, 1000)
    query.rescale(2)
    in_the_middle(query)
    kill_a_worker(query, 0)
    end(query, folder)
    table = query.table()
    last = {(row["window"]["start"], row["k"]): row for row in table.to_pylist()}
    assert table.num_rows > len(last)
    expected = counted(frame_of(spark, rows)).toArrow()
    check_equal(pa.Table.from_pylist(list(last.values()), schema=table.schema), expected)


def window_of_windows(spark: SparkSession, folder: Path) -> None:
    """What a window emits comes in time for a second aggregation, rescaled or not."""
    rows = 16_000
    folder.mkdir(parents=True)

    def twice(frame: DataFrame) -> DataFrame:
        first = frame.groupBy(F.window("at", "5 seconds").alias("window"), "k").agg(F.count("*").alias("rows"))
        second = first.groupBy(F.window("window.end", "20 seconds").alias("longer"))
        return second.agg(F.sum("rows").alias("rows"), F.count("*").alias("groups"))

    query = start(twice(read_events(spark, folder, rows)), 3, folder)
    for parallelism in (1, 2):
        in_the_middle(query, 2000)
        query.rescale(parallelism)
    end(query, folder)
    check_equal(query.table(), twice(frame_of(spark, rows)).toArrow())


class Lagging(headgate.SimpleSource):
    """Two splits with a minute each, and then its end again and again; a third one that pauses after them.

    Those two wait after their first ten rows for the ten of the third one: who is slow to begin would be late.
    """

    name = "keyed-lagging"
    schema = "n bigint, k bigint, at timestamp"
    option_specs = ENDING

    def splits(self) -> list[str]:
        return ["0", "1", "2"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder = Path(self.options["folder"])
        begin, lags = position or 0, split_id == "2"
        while not (folder / "end").exists():
            rows = range(min(begin, 60), min(begin + 10, 60))
            if lags and begin == 10:
                (folder / "begun").touch()
            waits = begin == 10 and not (folder / ("release" if lags else "begun")).exists()
            if waits:
                rows = range(0)  # others of this subtask go on
            seconds = list(rows) or ([] if lags else [9] if waits else [59])
            n = pa.array([each + 1000 * int(split_id) for each in rows] or [-1] * len(seconds), pa.int64())
            at = pc.cast(pc.multiply(pa.array(seconds, pa.int64()), 500_000 if lags else 1_000_000), TIMESTAMP)
            k = pa.array([each % 7 for each in seconds], pa.int64())
            begin += 0 if waits else len(rows) or len(seconds)
            yield pa.RecordBatch.from_arrays([n, k, at], names=["n", "k", "at"]), begin
            time.sleep(0 if len(rows) else 0.05)


def late_rows(spark: SparkSession, folder: Path) -> None:
    """A split that others did not wait for comes after the watermark: its rows are counted and kept, each once."""
    folder.mkdir(parents=True)
    headgate.register(spark, Lagging)
    reader = spark.readStream.format(Lagging.name).option("folder", folder).option("endingRow", 60)
    rows = reader.option("scan.watermark.idle-timeout", "4 seconds").load().withWatermark("at", "2 seconds")
    frame = rows.groupBy(F.window("at", "10 seconds"), "k").agg(F.collect_list("n").alias("all"))
    writer = written(frame, 3, folder).option("lateRows", "parquet").option("lateRows.path", folder / "late")
    query = writer.trigger(continuous="300 milliseconds").start()
    # The watermark is at 57 seconds: five windows are over.
    wait_until(lambda: query.table().num_rows == 35, query)
    query.rescale(2)
    in_the_middle(query, 0)
    (folder / "release").touch()
    wait_until(lambda: late_of(query) == 50, query)
    query.checkpoint()
    kill_a_worker(query, 1)
    query.checkpoint()
    (folder / "end").touch()
    assert query.awaitTermination(WITHIN_S), query.status
    late = [row.n for row in spark.read.parquet(str(folder / "late")).collect()]
    in_time = [n for each in query.table()["all"].to_pylist() for n in each if n >= 0]
    assert sorted(late) == list(range(2010, 2060)), sorted(late)
    assert sorted(in_time) == [*range(60), *range(1000, 1060), *range(2000, 2010)]


def savepoints_of_windows(spark: SparkSession, folder: Path) -> None:
    """A savepoint, and a location, are resumed at other parallelisms; nothing needs the savepoint for long."""
    rows = 16_000
    folder.mkdir(parents=True)

    def begin(parallelism: int, checkpoints: str, savepoint: str | None = None) -> ContinuousQuery:
        frame = aggregated(read_events(spark, folder, rows), F.window("at", "10 seconds"))
        writer = written(frame, parallelism, folder).format("parquet").option("path", folder / "out")
        return writer.option("checkpointLocation", folder / checkpoints).start(fromSavepoint=savepoint)

    query = begin(3, "first")
    in_the_middle(query, 2000)
    savepoint = str(folder / "savepoint")
    query.stop(savepoint=savepoint)
    # A query that has ended may still delete what is old.
    wait_until(lambda: f"headgate-storage-{folder.name}" not in [each.name for each in threading.enumerate()])
    shutil.rmtree(folder / "first")
    query = begin(4, "checkpoints", savepoint)
    in_the_middle(query)
    query.checkpoint()
    shutil.rmtree(savepoint)
    kill_a_worker(query, 2)
    in_the_middle(query)
    query.checkpoint()
    query.stop()
    query = begin(1, "checkpoints")
    in_the_middle(query)
    end(query, folder)
    found = spark.read.parquet(str(folder / "out")).toArrow()
    check_equal(found, aggregated(frame_of(spark, rows), F.window("at", "10 seconds")).toArrow())


def drained_windows(spark: SparkSession, folder: Path) -> None:
    """Drained, a query fires all its windows: every row that was read is in one."""
    folder.mkdir(parents=True)
    grouped = read_events(spark, folder, 50_000).groupBy(F.window("at", "1 hour"), "k")
    query = start(grouped.agg(F.count("*").alias("rows")), 3, folder)
    in_the_middle(query, 2000)
    assert query.table().num_rows == 0
    query.rescale(2)
    in_the_middle(query, 100)
    query.stop(drain=True)
    found = pc.sum(query.table()["rows"]).as_py()
    assert found == query.status["rowsIn"] < 3 * 50_000, (found, query.status["rowsIn"])


class Touched(headgate.SimpleSource):
    """A row of each key, and one more of each hundredth when a file says so."""

    name = "keyed-touched"
    schema = "k string, at timestamp"

    def splits(self) -> list[str]:
        return ["0", "1"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        steps = ((1, "begin"), (100, "touch"))
        for number, (step, file) in enumerate(steps[position or 0 :], (position or 0) + 1):
            while not (Path(self.options["folder"]) / file).exists():
                time.sleep(0.05)
            k = pa.array([f"key {each} of split {split_id}" for each in range(0, 30_000, step)])
            at = pa.array([1_000_000] * len(k), pa.int64()).cast(TIMESTAMP)
            yield pa.RecordBatch.from_arrays([k, at], names=["k", "at"]), number


def little_changes(spark: SparkSession, folder: Path) -> None:
    """When a hundredth of the keys is touched, a checkpoint uploads a twentieth of the state at most."""
    folder.mkdir(parents=True)
    headgate.register(spark, Touched)
    rows = spark.readStream.format(Touched.name).option("folder", folder).load().withWatermark("at", "1 second")
    query = start(rows.groupBy(F.window("at", "1 hour"), "k").count(), 2, folder)

    def stored() -> dict[str, int]:
        """Take a checkpoint, and return the sizes of the files that it shares with others."""
        query.checkpoint()
        sizes = {}
        for path in (folder / "checkpoints" / "shared").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # what is old is deleted meanwhile
                sizes |= {path.name: path.stat().st_size} if path.is_file() else {}
        return sizes

    (folder / "begin").touch()
    wait_until(lambda: query.status["rowsIn"] == 60_000, query)
    before = wait_until(lambda: (sizes := stored()) == stored() and sizes, query)
    (folder / "touch").touch()
    wait_until(lambda: query.status["rowsIn"] == 60_600, query)
    after = wait_until(lambda: (sizes := stored()) != before and sizes, query)
    assert before.keys() <= after.keys()
    new = sum(size for name, size in after.items() if name not in before)
    assert new <= sum(after.values()) / 20, (new, before, after)
    query.stop()


def _counting() -> Any:
    """Return a processor that keeps the same in a value, a list and a map, and emits it when the input ends."""
    from pyspark.sql import Row
    from pyspark.sql.streaming import StatefulProcessor

    class Counting(StatefulProcessor):  # type: ignore[misc]
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.rows = handle.getValueState("rows", "rows long")
            self.numbers = handle.getListState("numbers", "n long")
            self.last = handle.getMapState("last", "third long", "rows long")

        def handleInitialState(self, key: Any, initial: Any, timerValues: Any) -> None:
            before = self.rows.get() if self.rows.exists() else (0,)
            self.rows.update((before[0] + initial.rows,))
            self.handle.registerTimer(4_000_000_000_000)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
            if not self.rows.exists():
                self.handle.registerTimer(4_000_000_000_000)
            known = self.rows.get()[0] if self.rows.exists() else 0
            new = [row.n for row in rows]
            if -7 in new:
                raise ZeroDivisionError("a number that I do not like")
            self.rows.update((known + len(new),))
            self.numbers.appendList([(n,) for n in new])
            for n in new:
                third = (n % 3,)
                times = self.last.getValue(third)[0] if self.last.containsKey(third) else 0
                self.last.updateValue(third, (times + 1,))
            yield from ()

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            thirds = {third[0]: times[0] for third, times in self.last.iterator()}
            numbers = [each[0] for each in self.numbers.get()] if self.numbers.exists() else []
            yield Row(k=key[0], rows=self.rows.get()[0], numbers=numbers, thirds=[thirds.get(n, 0) for n in range(3)])

        def close(self) -> None:
            pass

    return Counting()


COUNTED = "k long, rows long, numbers array<long>, thirds array<long>"


def stateful_processor(spark: SparkSession, folder: Path) -> None:
    """Values, lists, maps and timers are exact after rescales and a kill; the initial state came once."""
    rows = 16_000
    folder.mkdir(parents=True)
    initial = pa.table({"k": pa.array(range(100, 130), pa.int64()), "rows": pa.array([1000] * 30, pa.int64())})
    initial = pa.concat_tables([initial, pa.table({"k": pa.array(range(10)), "rows": pa.array([500] * 10)})])
    known = spark.createDataFrame(initial).groupBy("k")
    grouped = read_events(spark, folder, rows).groupBy("k")
    frame = grouped.transformWithState(_counting(), COUNTED, "append", "EventTime", initialState=known)
    query = start(frame, 3, folder)
    for parallelism in (4, 1, 3):
        in_the_middle(query, 1500)
        query.rescale(parallelism)
    in_the_middle(query)
    query.checkpoint()
    kill_a_worker(query, 2)
    end(query, folder)
    expected: dict[int, list[int]] = {k: [] for k in range(100, 130)}
    for split in range(SPLITS):
        for row in events(split, rows).to_pylist():
            expected.setdefault(row["k"], []).append(row["n"])
    table = query.table().to_pylist()
    assert sorted(row["k"] for row in table) == sorted(expected), "a timer did not fire once"
    for row in table:
        n = expected[row["k"]]
        assert row["rows"] == len(n) + (1000 if row["k"] >= 100 else 500 if row["k"] < 10 else 0), row["k"]
        assert sorted(row["numbers"]) == sorted(n), row["k"]
        assert row["thirds"] == [sum(each % 3 == third for each in n) for third in range(3)]


def user_errors(spark: SparkSession, folder: Path) -> None:
    """What a processor does wrong ends the query with words that help."""
    disliked = numbers(spark, 1000).mapInArrow(_minus_seven, "n long, k long").groupBy("k")
    frame = disliked.transformWithState(_counting(), COUNTED, "append", "ProcessingTime")
    query = start(frame, 2, folder, {"restart-strategy": "none"})
    words = ("Counting", "ZeroDivisionError", "a number that I do not like", "stage 1, subtask", "handleInputRows")
    raised(lambda: query.awaitTermination(WITHIN_S), HeadgateError, *words)


def _minus_seven(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        n = pa.array([-7] * batch.num_rows, pa.int64())
        yield pa.RecordBatch.from_arrays([n, batch["k"]], names=["n", "k"])


def changed_programs(spark: SparkSession, folder: Path) -> None:
    """What does not fit the checkpoint, or shares its place, is refused: the message names it, and what to do."""
    folder.mkdir(parents=True)
    rows = numbers(spark, 60_000)

    def spread(exchanged: DataFrame, name: str = "spread") -> DataFrame:
        return exchanged.alias(name).mapInArrow(Slowly(folder), "n long, pid long").alias("slow")

    query = start(spread(rows.repartition(ALL)), 2, folder)
    wait_until(lambda: query.status["rowsOut"] > 0, query)
    raised(lambda: start(rows, 2, folder), OptionError, str(folder / "checkpoints"), folder.name, "Stop that one first")
    raised(lambda: query.rescale(200), OptionError, "200", "24")
    raised(lambda: query.rescale(0), OptionError, "0")
    query.checkpoint()
    query.stop()
    other = spread(rows.repartition("k"))
    raised(lambda: start(other, 2, folder), StoredStateError, "'spread'", "'rebalance'", "'hash'", "savepoint")
    again = spread(rows.repartition(ALL))
    words = ("'max-parallelism'", "128", "64", "Set them back")
    raised(lambda: start(again, 2, folder, {"max-parallelism": 64}), OptionError, *words)
    renamed = spread(rows.repartition(ALL), "scattered")
    raised(lambda: start(renamed, 2, folder), StoredStateError, "'spread'", "'scattered'", ".alias(")
    query = start(again, 2, folder)
    wait_until(lambda: query.status["message"] == "running", query)
    query.stop()
    by_windows = folder / "windows"

    def summed(key: str, made: Any) -> DataFrame:
        return read_events(spark, folder, 16_000).groupBy(F.window("at", "10 minutes"), key).agg(made)

    query = start(summed("k", F.sum("n").alias("n")), 2, by_windows)
    in_the_middle(query)
    query.checkpoint()
    query.stop()
    other_sum, words = summed("k", F.max("n").alias("n")), ("sum(n) of int64", "max(n) of int64", ".alias(")
    raised(lambda: start(other_sum, 2, by_windows), StoredStateError, *words)
    other_key = summed("n", F.sum("n"))
    raised(lambda: start(other_key, 2, by_windows), StoredStateError, "by k int64", "by n int64")
    query = start(summed("k", F.sum("n").alias("sum of n")), 2, by_windows)
    wait_until(lambda: query.status["message"] == "running", query)
    query.stop()
