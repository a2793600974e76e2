"""``dropDuplicates`` and its like in continuous queries: the rows of Spark's batch, through failures and rescales."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from tests.real.running_queries import PATIENCE_S, happens, stop_all, wait_until
from tests.real.test_continuous_dataframe import check, finished, generated, in_order


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def in_sql(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("rides")
    return rows.sparkSession.sql("SELECT DISTINCT k, n % 7 AS m FROM rides WHERE n > 10")


PROGRAMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "of some columns": lambda rows: rows.dropDuplicates(["k"]).select("k"),
    "of all columns": lambda rows: rows.selectExpr("k", "n % 5 AS n", "if(n > 500, NULL, k) AS x").dropDuplicates(),
    "distinct": lambda rows: rows.selectExpr("cast(n % 13 AS double) / 3 AS n", "name < 'M' AS x").distinct(),
    "in SQL": in_sql,
    "with the event time": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .select(F.explode(F.array("k", "k", "n")).alias("x"), "at")
        .dropDuplicates(["x", "at"])
    ),
    "then a window": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .dropDuplicates(["n", "at"])
        .groupBy(F.window("at", "100 milliseconds"))
        .count()
    ),
    "of windows that were grouped by": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .groupBy(F.window("at", "50 milliseconds"), "k")
        .agg(F.max("n").alias("n"))
        .dropDuplicates()
        .select("window", (F.col("k") % 3).alias("m"))
        .dropDuplicates(["m", "window"])
        .groupBy(F.window("window", "200 milliseconds").alias("w"))
        .agg(F.count("*"), F.sum("m"))
        .select("w")
        .distinct()
    ),
    "of windows before": lambda rows: (
        rows.withWatermark("at", "100 milliseconds")
        .select(F.window("at", "20 milliseconds").alias("w"), "k")
        .distinct()
    ),
    "of two columns of one name": lambda rows: (
        rows.select(rows.k.alias("x"), (rows.n % 3).alias("x")).distinct().toDF("first", "second")
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(spark: SparkSession, name: str) -> None:
    check(spark, PROGRAMS[name])


def test_within_the_watermark(spark: SparkSession) -> None:
    """Spark has no such batch; if nothing expires, it is what duplicates of all rows are."""
    rows = generated(spark.readStream).withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["k", "name"])
    expected = generated(spark.read).dropDuplicates(["k", "name"]).select("k", "name").collect()
    found = finished(rows.select("k", "name")).table().to_pylist()
    assert in_order(found) == in_order([row.asDict() for row in expected])


def test_late_rows_have_the_columns_of_the_program(spark: SparkSession) -> None:
    rows = generated(spark.readStream).withWatermark("at", "1 second")
    rows = rows.select("n", F.array("k").alias("x"), F.window("at", "1 second").alias("w"))
    frame = rows.dropDuplicatesWithinWatermark(["x", "w"])
    writer = headgate.continuous(frame, parallelism=1).writeStream.format("noop").option("lateRows", "noop")
    late = writer.definition().late_rows
    assert late is not None and late.schema.names == frame.columns


@pytest.mark.parametrize("how", ["stopped", "failed"])
def test_a_row_comes_once_through_restores_at_another_parallelism(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    """Each key comes 15 times; some of it before, and some after a savepoint or a failure of a subtask.

    What breaks it breaks `tests/unit/operators/test_deduplicate.py` too.
    """
    flag, failed, restarted = tmp_path / "fail", tmp_path / "failed", tmp_path / "restarted"

    def rows(reader: Any) -> DataFrame:
        made = generated(reader, rows=6000, rowsPerSecond=1000)
        return made.select((F.col("n") % 400).alias("n"))

    def failing(batches: Any) -> Any:
        if failed.exists():
            restarted.touch()
        for each in batches:
            if happens(flag):
                failed.touch()
                raise RuntimeError("once")
            yield each

    def start(parallelism: int, savepoint: str | None = None) -> headgate.ContinuousQuery:
        frame = rows(spark.readStream).mapInArrow(failing, "n long").dropDuplicates()
        writer = headgate.continuous(frame, parallelism=parallelism).writeStream.format("json")
        writer = writer.option("path", tmp_path / "out").option("checkpointLocation", tmp_path / "checkpoints")
        writer = writer.trigger(continuous="200 milliseconds").option("slots", "threads")
        return writer.start(fromSavepoint=savepoint)

    query = start(2)
    wait_until(lambda: query.status["rowsIn"] > 1500, query)
    if how == "stopped":
        query.stop(savepoint=str(tmp_path / "savepoint"))
        query = start(3, str(tmp_path / "savepoint"))
    else:
        flag.touch()
        wait_until(restarted.exists, query)  # no checkpoint completes before
        query.rescale(1)
    assert query.awaitTermination(PATIENCE_S), query.status
    found = [row.n for row in spark.read.schema("n long").json(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(400)) == sorted(row.n for row in rows(spark.read).distinct().collect())
