"""``transformWithState`` of PySpark's own DataFrames in continuous queries: states, timers, savepoints."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import headgate
from headgate.errors import OptionError
from tests.real.running_queries import PATIENCE_S, Held, stop_all, wait_until
from tests.real.test_continuous_apply_in_pandas_with_state import killed
from tests.real.test_continuous_dataframe import finished, generated, in_order

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


class Counting(StatefulProcessor):
    """Yields how many rows of a key it has seen so far, for each of them."""

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        seen = self.seen.get()[0] if self.seen.exists() else 0
        for row in rows:
            seen += 1
            yield Row(k=key[0], n=row.n, seen=seen)
        self.seen.update((seen,))

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.seen.update((initialState.before,))

    def close(self) -> None:
        pass


class CountingFrames(Counting):
    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for frame in rows:
            seen = self.seen.get()[0] if self.seen.exists() else 0
            self.seen.update((seen + len(frame),))
            yield pd.DataFrame({"k": key[0], "n": frame["n"], "seen": range(seen + 1, seen + len(frame) + 1)})


class Last(StatefulProcessor):
    """Yields, when the event time is past all that it has seen of a key, how many rows that were."""

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.seen = handle.getValueState("seen", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        count = sum(1 for _ in rows)
        self.seen.update(((self.seen.get()[0] if self.seen.exists() else 0) + count,))
        self.handle.registerTimer(3_600_000)
        return iter(())

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        yield Row(k=key[0], n=self.seen.get()[0])

    def close(self) -> None:
        pass


OUTPUT = "k long, n long, seen long"


def expected(spark: SparkSession, rows: int = 2000, before: int = 0) -> list[str]:
    """Return the numbers that are counted, of each key."""
    counts = generated(spark.read, rows=rows).groupBy("k").count().collect()
    return sorted(repr((k, before + seen)) for k, count in counts for seen in range(1, count + 1))


@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.spark_since("transform-with-state-rows")
def test_states(spark: SparkSession, pandas: bool) -> None:
    grouped = generated(spark.readStream).selectExpr("n", "k + 0 AS k").groupBy("k")
    if pandas:
        frame = grouped.transformWithStateInPandas(CountingFrames(), OUTPUT, "Append", "None")
    else:
        frame = grouped.transformWithState(Counting(), OUTPUT, "Append", "None")
    found = finished(frame.where("seen > 0").select("seen", "k", "n")).table().to_pylist()
    assert sorted(repr((row["k"], row["seen"])) for row in found) == expected(spark)
    numbers = generated(spark.read).select("k", "n").collect()
    assert in_order([{"k": row["k"], "n": row["n"]} for row in found]) == in_order([row.asDict() for row in numbers])


@pytest.mark.spark_since("transform-with-state-rows")
def test_initial_state(spark: SparkSession) -> None:
    initial = spark.range(10).selectExpr("id AS k", "100L AS before").groupBy("k")
    grouped = generated(spark.readStream).groupBy("k")
    frame = grouped.transformWithState(Counting(), OUTPUT, "Update", "None", initialState=initial)
    found = finished(frame).table().to_pylist()
    assert sorted(repr((row["k"], row["seen"])) for row in found) == expected(spark, before=100)


PASSED: dict[str, Callable[[DataFrame], DataFrame]] = {
    "Arrow": lambda rows: rows.select("at", "k", "n"),
    "Spark's own code": lambda rows: rows.withColumn("hashed", F.sha2(F.col("k").cast("string"), 256)),
    "a user's function": lambda rows: rows.withColumn("more", F.pandas_udf(lambda n: n + 1, "long")("n")),
    "explode": lambda rows: rows.withColumn("one", F.explode(F.array("n"))),
    "a static join": lambda rows: rows.join(rows.sparkSession.range(10).withColumnRenamed("id", "k"), "k"),
    "deduplication": lambda rows: rows.dropDuplicates(["at", "k", "n"]),
}


@pytest.mark.parametrize("through", PASSED)
@pytest.mark.spark_since("transform-with-state-rows")
def test_timers_of_the_event_time(spark: SparkSession, through: str) -> None:
    """Whatever the rows have passed since their watermark was defined."""
    rows = PASSED[through](generated(spark.readStream).withWatermark("at", "1 second"))
    frame = rows.groupBy("k").transformWithState(Last(), "k long, n long", "Append", "EventTime")
    counts = PASSED[through](generated(spark.read)).groupBy("k").agg(F.count("*").alias("n")).collect()
    assert in_order(finished(frame).table().to_pylist()) == in_order([row.asDict() for row in counts])


@pytest.mark.spark_since("transform-with-state-rows")
def test_state_goes_on_from_a_savepoint_at_another_parallelism(spark: SparkSession, tmp_path: Path) -> None:
    def frame() -> DataFrame:
        grouped = generated(spark.readStream, rows=6000).groupBy("k")
        return grouped.transformWithState(Counting(), OUTPUT, "Append", "None")

    def start(parallelism: int, savepoint: str | None = None) -> headgate.ContinuousQuery:
        writer = headgate.continuous(frame(), parallelism=parallelism).writeStream.format("json")
        writer = writer.option("path", tmp_path / "out").option("checkpointLocation", tmp_path / "checkpoints")
        return writer.option("slots", "threads").start(fromSavepoint=savepoint)

    query = start(2)
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    query = start(3, str(tmp_path / "savepoint"))
    assert query.awaitTermination(PATIENCE_S), query.status
    found = spark.read.schema(OUTPUT).json(str(tmp_path / "out")).collect()
    assert sorted(repr((row.k, row.seen)) for row in found) == expected(spark, rows=6000)


@pytest.mark.spark_since("transform-with-state-rows")
def test_state_beyond_its_memory_and_a_kill(spark: SparkSession, tmp_path: Path) -> None:
    """Most of the state of 2000 keys is on the local disk; a killed process takes it along, and nothing is lost."""
    rows = 8000
    headgate.register(spark, Held)
    source = spark.readStream.format(Held.name).option("mayEnd", str(tmp_path / "end")).option("rows", rows).load()
    grouped = source.selectExpr("value % 2000 AS k", "value AS n").groupBy("k")
    frame = grouped.transformWithState(Counting(), OUTPUT, "Append", "None")
    writer = headgate.continuous(frame, parallelism=2).writeStream.format("memory").option("state.memory", "40k")
    query = writer.option("checkpointLocation", tmp_path / "checkpoints").trigger(continuous="1 second").start()
    wait_until(lambda: query.status["rowsIn"] > 1000, query)
    query.checkpoint()
    (tmp_path / "end").touch()  # from here on as fast as can be
    killed(query)
    query.rescale(1)
    wait_until(lambda: query.table().num_rows == rows, query)
    query.stop()
    found = sorted((row["k"], row["seen"]) for row in query.table().to_pylist())
    assert found == [(k, seen) for k in range(2000) for seen in range(1, rows // 2000 + 1)]


@pytest.mark.spark_since("transform-with-state-rows")
def test_event_time_without_a_watermark_is_named(spark: SparkSession) -> None:
    frame = generated(spark.readStream).groupBy("k").transformWithState(Last(), "k long, n long", "Append", "EventTime")
    with pytest.raises(OptionError, match="needs a watermark"):
        headgate.continuous(frame, parallelism=1).explain()
