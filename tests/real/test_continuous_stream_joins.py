"""Joins of two streams in continuous queries: the rows of Spark's batch, through failures and rescales."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import UnsupportedOperationError
from tests.real.running_queries import PATIENCE_S, happens, is_running, stop_all, wait_until
from tests.real.test_continuous_dataframe import finished, generated, in_order

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def left_of(rows: DataFrame) -> DataFrame:
    """Return the left side: some keys are null."""
    return rows.withWatermark("at", "1 second").select(
        F.when(F.col("k") == 9, None).otherwise(F.col("k")).alias("k"), F.col("n").alias("ln"), F.col("at").alias("lt")
    )


def right_of(rows: DataFrame) -> DataFrame:
    """Return the right side: some keys are those of no row of the left one, some are null."""
    return rows.withWatermark("at", "1 second").select(
        F.when(F.col("k") == 8, None).otherwise(F.col("k") + 3).alias("key"),
        F.col("n").alias("rn"),
        F.col("at").alias("rt"),
        "name",
    )


IN_TIME = "k = key AND rt >= lt - interval 5 milliseconds AND rt <= lt + interval 20 milliseconds"


def windowed(left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return both sides with windows, and without the times that these are of."""
    return (
        left.select("k", "ln", F.window("lt", "50 milliseconds").alias("w")),
        right.select("key", "rn", F.window("rt", "50 milliseconds").alias("w")),
    )


def counted(left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return how many rows there are in each window and of each key."""
    one, other = windowed(left, right)
    return one.groupBy("w", "k").count(), other.groupBy("w", "key").agg(F.sum("rn").alias("total"))


def by_sql(left: DataFrame, right: DataFrame) -> DataFrame:
    left.createOrReplaceTempView("left_rows")
    right.createOrReplaceTempView("right_rows")
    return left.sparkSession.sql(
        """SELECT l.k, upper(name) AS name, ln - rn AS difference FROM left_rows l, right_rows r
           WHERE l.k = r.key AND rt BETWEEN lt AND lt + INTERVAL 10 MILLISECONDS AND ln > 100 AND rn < 900"""
    )


def is_even(left: int, right: int) -> bool:
    return (left + right) % 2 == 0


PROGRAMS: dict[str, Callable[[DataFrame, DataFrame], DataFrame]] = {
    **{
        f"{how}, in time": lambda left, right, how=how: left.join(right, F.expr(IN_TIME), how)  # type: ignore[misc]
        for how in ("inner", "left", "right", "full", "left_semi")
    },
    "inner, for ever": lambda left, right: left.join(right, (left.k == right.key) & (left.ln > right.rn + 700)),
    "arrays, and structs that have some": lambda left, right: left.join(
        right,
        F.expr("array(k, ln % 50) = array(key, rn % 50) AND struct(array(k) AS x) <=> struct(array(key) AS x)"),
        "inner",
    ),
    "null safe, also without a type": lambda left, right: (
        left.withColumn("v", F.lit(None))
        .join(right.withColumn("w", F.lit(None)), F.expr("k <=> key AND ln % 50 = rn % 50 AND v <=> w"))
        .drop("v", "w")
    ),
    "the event time is a key": lambda left, right: left.withColumn("second", F.col("ln") * 2).join(
        right.withColumnRenamed("rt", "lt"), "lt", "full"
    ),
    "the window is a key": lambda left, right: (
        (both := windowed(left, right))[0]
        .join(both[1].withColumnRenamed("key", "k"), ["w", "k"], "left")
        .selectExpr("w.start", "k", "ln", "rn")
    ),
    "the window is a key, then counted": lambda left, right: (
        (both := windowed(left, right))[0]
        .join(both[1].withColumnRenamed("key", "k"), ["w", "k"])
        .groupBy(F.window("w", "100 milliseconds"), "k")
        .agg(F.count("*").alias("pairs"), F.max("rn").alias("most"))
    ),
    "of aggregations": lambda left, right: (both := counted(left, right))[0].join(
        both[1].withColumnRenamed("key", "k"), ["w", "k"], "full"
    ),
    "what Spark's own code evaluates": lambda left, right: left.join(
        right, F.expr(f"{IN_TIME} AND levenshtein(name, string(ln)) > 3 AND sha2(name, 256) > 'a'"), "left"
    ),
    "a function of the user's": lambda left, right: left.join(
        right, F.expr(IN_TIME) & F.udf(is_even, "boolean")("ln", "rn"), "inner"
    ).select("k", "ln", "rn"),
    "conditions of one side": lambda left, right: left.join(
        right, F.expr(f"{IN_TIME} AND ln > 300 AND rn < 700"), "left"
    ).where("ln < 800"),
    "in SQL, in a filter": by_sql,
    "then a window": lambda left, right: (
        left.join(right, F.expr(IN_TIME), "left").groupBy(F.window("lt", "40 milliseconds"), "k").agg(F.count("rn"))
    ),
    "then a window of the other side": lambda left, right: (
        left.join(right, F.expr(IN_TIME), "right").groupBy(F.window("rt", "40 milliseconds")).count()
    ),
    "with itself": lambda left, right: (
        left.alias("a").join(
            left.alias("b"),
            F.expr("a.k = b.k AND a.lt < b.lt AND b.lt <= a.lt + interval 2 milliseconds"),
            "left",
        )
    ).toDF("k", "n", "at", "again", "next", "then"),
    "of three": lambda left, right: (
        left.join(right, F.expr(IN_TIME))
        .drop("rt")
        .join(
            right.select(F.col("key").alias("third"), F.col("rn").alias("n 3"), F.col("rt").alias("t 3")),
            F.expr("third = k AND `n 3` = ln % 100"),
        )
    ),
    "in a union": lambda left, right: (
        left.join(right, F.expr(IN_TIME), "left")
        .select("k", "ln")
        .union(right.select("key", "rn"))
        .where("k > 2")
        .selectExpr("k * 2 AS k", "ln")
    ),
}


def sides(reader: object) -> tuple[DataFrame, DataFrame]:
    return left_of(generated(reader)), right_of(generated(reader, rows=1500, seed=7))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(spark: SparkSession, name: str) -> None:
    """What breaks it breaks `tests/unit/operators/stream_join/test_operator.py` too."""
    expected = PROGRAMS[name](*sides(spark.read)).toArrow()
    query = finished(PROGRAMS[name](*sides(spark.readStream)))
    assert query.table().schema.names == expected.schema.names
    assert in_order(query.table().to_pylist()) == in_order(expected.to_pylist())
    assert len(expected) > 0


def test_rows_that_end_are_joined_as_a_batch(spark: SparkSession) -> None:
    """All that Spark's batch has, with slots that are Spark's tasks: also anti joins, which no stream has."""
    left, right = sides(spark.read)
    for how in ("left_anti", "full"):
        frame = left.join(right, F.expr("k = key AND rn % 50 = ln % 50"), how)
        query = headgate.continuous(frame, parallelism=2).writeStream.format("memory").start()
        assert query.awaitTermination(PATIENCE_S), query.status
        assert in_order(query.table().to_pylist()) == in_order(frame.toArrow().to_pylist())


@pytest.mark.parametrize("slots", ["threads", "spark"])
def test_rows_under_way_are_joined_once_through_kills_and_rescales(
    spark: SparkSession, tmp_path: Path, slots: str
) -> None:
    """A slow function holds up the join: rows are in its channels and its state when they move.

    What breaks it breaks
    `tests/real/test_continuous_stream_joins.py::test_rows_under_way_are_joined_once_through_kills_and_rescales[threads]`
    too.
    """

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if happens(tmp_path / "raise"):
                raise RuntimeError("once")
            if not (tmp_path / "hurry").exists():
                time.sleep(0.002 * batch.num_rows)
            yield batch

    def program(reader: Any) -> DataFrame:
        left = left_of(generated(reader, rows=6000, rowsPerSecond=3000))
        right = right_of(generated(reader, rows=5000, rowsPerSecond=3000, seed=7))
        return left.join(right, F.expr(IN_TIME), "full").drop("name")

    frame = program(spark.readStream)
    slow = frame.mapInArrow(slowly, frame.schema)  # type: ignore[arg-type]
    writer = headgate.continuous(slow, parallelism=2).writeStream.format("json").option("path", tmp_path / "out")
    writer = writer.option("checkpointLocation", tmp_path / "checkpoints").option("slots", slots)
    query = writer.trigger(continuous="200 milliseconds").start()
    wait_until(lambda: query.status["rowsIn"] > 2000, query)
    query.checkpoint()
    before = [each["execution"] for each in query.status["subtasks"]]
    if slots == "spark":
        os.kill(query.status["slots"][1]["pid"], signal.SIGKILL)
    else:
        (tmp_path / "raise").touch()
    wait_until(lambda: [each["execution"] for each in query.status["subtasks"]] != before and is_running(query), query)
    for parallelism in (1, 2) if slots == "spark" else (3, 1):
        query.rescale(parallelism)
        query.checkpoint()
    (tmp_path / "hurry").touch()
    assert query.awaitTermination(PATIENCE_S), query.status
    found = spark.read.schema(frame.schema).json(str(tmp_path / "out")).toArrow().to_pylist()
    assert in_order(found) == in_order(program(spark.read).toArrow().to_pylist())


class Listed(headgate.SimpleSource):
    """Rows of a key, a second and a text, as a file lists them, as soon as it does."""

    name = "listed-rows"
    schema = "k long, at timestamp, v string"

    def splits(self) -> list[str]:
        return ["0"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        known = int(position or 0)
        lines = [line.split() for line in Path(self.options["file"]).read_text().splitlines()[known:]]
        for k, second, v in lines:
            known += 1
            columns = [pa.array([int(k)]), pa.array([int(second) * 1_000_000]), pa.array([v])]
            schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("v", pa.string())])
            yield (
                pa.RecordBatch.from_arrays([columns[0], columns[1].cast(schema.types[1]), columns[2]], schema=schema),
                known,
            )


class Sides:
    """Two streams whose rows a test writes, and a query that joins them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        headgate.register(spark, Listed)
        self._files = {side: folder / side for side in ("left", "right")}
        for path in self._files.values():
            path.write_text("")
        self.left, self.right = (
            spark.readStream.format("listed-rows").option("file", str(path)).option("pollInterval", "20 ms").load()
            for path in self._files.values()
        )

    def write(self, side: str, *rows: tuple[int, int, str]) -> None:
        with self._files[side].open("a") as file:
            file.write("".join(f"{k} {second} {v}\n" for k, second, v in rows))


def test_unmatched_rows_come_when_the_watermark_is_at_their_bound_and_late_ones_are_kept_apart(
    spark: SparkSession, tmp_path: Path
) -> None:
    streams = Sides(spark, tmp_path)
    left = streams.left.withWatermark("at", "2 seconds").toDF("k", "lt", "l")
    right = streams.right.withWatermark("at", "0 seconds").toDF("key", "rt", "r")
    joined = left.join(right, F.expr("k = key AND rt BETWEEN lt AND lt + interval 10 seconds"), "left").select("l", "r")
    writer = headgate.continuous(joined, parallelism=2).writeStream.format("memory").option("slots", "threads")
    late = str(tmp_path / "late")
    writer = writer.option("lateRows", "json").option("lateRows.path", late)
    writer = writer.option("checkpointLocation", tmp_path / "checkpoints")
    query = writer.trigger(continuous="100 milliseconds").start()

    def rows() -> set[tuple[str, str]]:
        return {(row["l"], row["r"]) for row in query.table().to_pylist()}

    streams.write("left", (1, 100, "one"), (2, 100, "two"), (3, 105, "three"))
    streams.write("right", (1, 104, "first"), (1, 110, "last"), (1, 111, "beyond"))
    wait_until(lambda: rows() == {("one", "first"), ("one", "last")}, query)
    streams.write("left", (9, 113, "on"))  # the watermark is 111, and at 111 "two" is over
    wait_until(lambda: rows() == {("one", "first"), ("one", "last"), ("two", None)}, query)
    streams.write("right", (9, 111, "too-late"), (9, 112, "in-time"), (9, 113, "nine"))
    wait_until(lambda: rows() == {("one", "first"), ("one", "last"), ("two", None), ("on", "nine")}, query)
    wait_until(lambda: query.lastProgress and query.lastProgress["headgate"]["lateRows"] == 1, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    assert [
        (row.key, row.l, row.r) for row in spark.read.schema("key long, l string, r string").json(late).collect()
    ] == [(9, None, "too-late")]


def test_one_side_without_event_time_does_not_hold_the_watermark(spark: SparkSession, tmp_path: Path) -> None:
    """As in Spark, where the watermark is that of the streams that have one."""
    streams = Sides(spark, tmp_path)
    left = streams.left.toDF("k", "lt", "l")
    right = streams.right.withWatermark("at", "5 seconds").toDF(
        "key", "lt", "r"
    )  # whichever is read first: none is late
    joined = left.join(right, "lt", "left").select("l", "r")
    writer = headgate.continuous(joined, parallelism=1).writeStream.format("memory").option("slots", "threads")
    query = writer.trigger(continuous="100 milliseconds").start()
    streams.write("left", (1, 100, "one"), (1, 101, "two"), (1, 102, "three"))
    streams.write("right", (1, 100, "first"), (1, 101, "last"))
    wait_until(lambda: len(query.table()) == 2, query)
    streams.write("right", (1, 108, "on"))
    wait_until(
        lambda: (
            {(row["l"], row["r"]) for row in query.table().to_pylist()}
            == {("one", "first"), ("two", "last"), ("three", None)}
        ),
        query,
    )


REFUSED: dict[str, tuple[Callable[[DataFrame, DataFrame], DataFrame], str]] = {
    "an outer join without a bound": (
        lambda left, right: left.join(right, F.expr("k = key"), "left"),
        "LeftOuter join between two streaming DataFrame/Datasets is not supported without a watermark",
    ),
    "a semi join without a bound": (
        lambda left, right: left.join(right, F.expr("k = key"), "left_semi"),
        "LeftSemi join between two streaming",
    ),
    "an anti join": (
        lambda left, right: left.join(right, F.expr(IN_TIME), "left_anti"),
        "LeftAnti joins with a streaming DataFrame/Dataset on the right are not supported",
    ),
    "a join without equal columns": (
        lambda left, right: left.join(right, F.expr("rt BETWEEN lt AND lt + interval 1 second")),
        "no condition that columns of the two streams are equal",
    ),
    "several event times": (
        lambda left, right: left.join(right, F.expr(IN_TIME)).join(right.toDF("a", "b", "c", "d"), F.expr("k = a")),
        "MULTIPLE_EVENT_TIME_COLUMNS|More than one event time columns",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_spark_refuses_is_refused_in_its_words(spark: SparkSession, name: str) -> None:
    program, message = REFUSED[name]
    with pytest.raises(UnsupportedOperationError, match=message):
        headgate.continuous(program(*sides(spark.readStream)), parallelism=1).explain()


@pytest.mark.spark_since("join-in-update-mode")
def test_the_output_mode_is_checked_by_spark(spark: SparkSession) -> None:
    left, right = sides(spark.readStream)
    outer = headgate.continuous(left.join(right, F.expr(IN_TIME), "left"), parallelism=1).writeStream
    with pytest.raises(UnsupportedOperationError, match="not supported in Update output mode"):
        outer.outputMode("update").format("memory").start()
    inner = finished(left.join(right, F.expr(IN_TIME)), mode="update").table().num_rows
    assert inner == sides(spark.read)[0].join(sides(spark.read)[1], F.expr(IN_TIME)).count()


def test_explain_shows_the_join_its_keys_and_its_bounds(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    left, right = sides(spark.readStream)
    headgate.continuous(left.join(right, F.expr(f"{IN_TIME} AND ln > rn"), "left"), parallelism=1).explain()
    shown = capsys.readouterr().out
    assert "left join on k = key and" in shown and "(ln > rn)" in shown
    assert "to stage 1 by the hash of k" in shown and "to stage 1 by the hash of key" in shown
    assert "left: k int64, ln int64, lt timestamp[us, tz=UTC] by k, until lt is at the watermark - 21 ms" in shown
    assert "by key, until rt is at the watermark - 6 ms" in shown
    filtered = left.join(right.withColumnRenamed("key", "k"), "k").where("rt > lt AND rt < lt + interval 1 second")
    headgate.continuous(filtered.where("ln > 5"), parallelism=1).explain()
    shown = capsys.readouterr().out
    assert "until lt is at the watermark - 1000 ms" in shown and "until rt is at the watermark\n" in shown
    assert 0 < shown.find("(ln > 5)") < shown.index("Stage 1"), f"what is of one side alone is kept: {shown}"
    headgate.continuous(left.join(right, F.expr("k = key")), parallelism=1).explain()
    assert "by k, for ever" in capsys.readouterr().out
