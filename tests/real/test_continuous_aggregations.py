"""Aggregations without a window, built by PySpark, run continuously: what Spark's own batch gives of the same rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.errors import OptionError
from tests.real.running_queries import PATIENCE_S, stop_all, wait_until
from tests.real.test_continuous_dataframe import finished, generated, in_order

Program = Callable[[DataFrame], DataFrame]


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def by_city(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k", (F.col("n") % 2).alias("odd")).agg(F.count("*").alias("rides"), F.sum("n"), F.max("name"))


PROGRAMS: dict[str, Program] = {
    "keys": by_city,
    "no key": lambda rows: rows.agg(F.count("*"), F.avg("n"), (F.max("n") - F.min("n")).alias("spread")),
    "no rows and no key": lambda rows: rows.where("n < 0").agg(F.count("*"), F.sum("n"), F.collect_list("n")),
    "SQL": lambda rows: rows.sparkSession.sql(
        "SELECT k, count(*) AS rides FROM {rows} GROUP BY k HAVING sum(n) > 1000", rows=rows
    ),
    "the event time as a key": lambda rows: rows.withWatermark("at", "1 second").groupBy("at", "k").count(),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_ends_gives_what_a_batch_gives(spark: SparkSession, name: str) -> None:
    """In append mode once, in complete mode as the last checkpoint's rows."""
    expected = in_order(PROGRAMS[name](generated(spark.read)).toArrow().to_pylist())
    for mode in ("append", "complete"):
        table = finished(PROGRAMS[name](generated(spark.read)), mode=mode).table()
        assert in_order(table.to_pylist()) == expected


def test_updates_end_with_what_a_batch_gives(spark: SparkSession) -> None:
    found: dict[Any, dict[str, Any]] = {}
    for row in finished(by_city(generated(spark.readStream)), mode="update").table().to_pylist():
        if row["rides"] >= found.get((row["k"], row["odd"]), row)["rides"]:
            found[row["k"], row["odd"]] = row
    assert in_order(list(found.values())) == in_order(by_city(generated(spark.read)).toArrow().to_pylist())


def test_groups_of_the_event_time_are_complete_when_the_watermark_is_there(spark: SparkSession) -> None:
    """A stream that goes on emits them in append mode."""
    rows = generated(spark.readStream, rows=10**9).withWatermark("at", "1 second")
    counted = rows.groupBy(F.col("at"), "k").count()
    query = headgate.continuous(counted, parallelism=2).writeStream.format("memory").option("slots", "threads")
    running = query.trigger(continuous="100 milliseconds").start()
    wait_until(lambda: running.table().num_rows > 500, running)
    assert set(running.table()["count"].to_pylist()) == {1}


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_state_goes_on_through_rescales_and_restarts(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    """And is spilled: it is larger than its memory."""

    def program(reader: Any) -> DataFrame:
        rows = generated(reader, rows=6000)
        return rows.groupBy(F.col("n") * 10 + F.col("k") % 4).agg(F.count("*").alias("rides"), F.sum("k"))

    emitted: list[tuple[int, list[Any]]] = []

    def take(frame: DataFrame, epoch: int) -> None:
        emitted.append((epoch, frame.collect()))

    def start(savepoint: str | None = None) -> headgate.ContinuousQuery:
        writer = headgate.continuous(program(spark.readStream), parallelism=2).writeStream.outputMode(mode)
        writer = writer.option("checkpointLocation", tmp_path / "checkpoints").option("state.memory", "50k")
        writer = writer.trigger(continuous="300 milliseconds").option("slots", "threads")
        return writer.foreachBatch(take).start(fromSavepoint=savepoint)

    query = start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.rescale(3)
    wait_until(lambda: query.status["rowsIn"] > 2500, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    query = start(str(tmp_path / "savepoint"))
    assert query.awaitTermination(PATIENCE_S), query.status
    by_key = {row[0]: row for _, batch in emitted for row in batch} if mode == "update" else None
    found = list(by_key.values()) if by_key is not None else emitted[-1][1]
    assert sorted(map(repr, found)) == sorted(map(repr, program(spark.read).collect()))


def test_groups_that_never_end_are_not_appended(spark: SparkSession) -> None:
    """As Spark refuses it; and files cannot take back what the checkpoint before wrote."""
    counted = by_city(generated(spark.readStream))
    with pytest.raises(OptionError, match="no group would ever be complete"):
        headgate.continuous(counted, parallelism=1).writeStream.format("noop").start()
    with pytest.raises(OptionError, match="only appends"):
        headgate.continuous(counted, parallelism=1).writeStream.outputMode("complete").format("json").start("out")
