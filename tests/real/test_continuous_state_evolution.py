"""A changed program goes on from the state of the one before: aggregates added, types wider, fields more and less."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import headgate
from headgate.errors import HeadgateError, StoredStateError
from tests.real.running_queries import PATIENCE_S, Held, stop_all, wait_until

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

ROWS = 2000


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


class Life:
    """A query of the numbers from 0 that is stopped in the middle, changed and started again.

    Parameters
    ----------
    spark
        The session.
    folder
        Where it is.
    """

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        headgate.register(spark, Held)
        self._spark = spark
        self._folder = folder

    def start(
        self, program: Callable[[DataFrame], DataFrame], kind: str = "int", bounded: bool = False, **given: Any
    ) -> headgate.ContinuousQuery:
        """Start a program over the rows ``k``, ``n`` (of a type) and ``at``; with an end it emits its rows there."""
        reader = (self._spark.read if bounded else self._spark.readStream).format(Held.name)
        reader = reader.option("mayEnd", str(self._folder / "end"))
        rows = reader.option("rows", ROWS).load().alias("numbers")
        rows = rows.selectExpr("value % 10 AS k", f"CAST(value AS {kind}) AS n", "timestamp_millis(value) AS at")
        writer = headgate.continuous(program(rows), parallelism=2).writeStream.format("memory")
        writer = writer.outputMode("append" if bounded else "update")
        writer = writer.option("checkpointLocation", str(self._folder / "checkpoints")).option("slots", "threads")
        return writer.trigger(continuous="1 hour").start(**given)

    def stopped(self, query: headgate.ContinuousQuery, savepoint: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Stop it in the middle; return how it is started again, and its rows until then."""

        def begun() -> bool:
            query.checkpoint()
            return len(last_of(query)) == 10

        wait_until(begun, query)
        if savepoint:
            query.stop(savepoint=str(self._folder / "savepoint"))
            return {"fromSavepoint": str(self._folder / "savepoint")}, list(last_of(query).values())
        query.checkpoint()
        query.stop()
        return {}, list(last_of(query).values())

    def ended(self, query: headgate.ContinuousQuery, rows: Callable[[list[dict[str, Any]]], int]) -> dict[int, Any]:
        """Let it read all, and return the last row of each key."""
        (self._folder / "end").touch()

        def complete() -> bool:
            query.checkpoint()
            return rows(list(last_of(query).values())) == ROWS

        wait_until(complete, query)
        query.stop()
        return last_of(query)


def last_of(query: headgate.ContinuousQuery) -> dict[int, Any]:
    rows = query.table().to_pylist()
    return {row["k"]: json.loads(row["json"]) if "json" in row else row for row in rows}


def by(*aggregates: Any, windowed: bool = False) -> Callable[[DataFrame], DataFrame]:
    """Return a program of aggregates."""

    def program(rows: DataFrame) -> DataFrame:
        keys = ["k", F.window("at", "1 hour")] if windowed else ["k"]
        rows = rows.withWatermark("at", "1 minute") if windowed else rows
        grouped = rows.groupBy(*keys).agg(*aggregates).drop("window")
        return grouped.select("k", F.to_json(F.struct("*")).alias("json"))

    return program


@pytest.mark.parametrize("savepoint", [True, False])
@pytest.mark.parametrize("windowed", [True, False])
def test_an_aggregate_more_and_a_wider_column(
    spark: SparkSession, tmp_path: Path, savepoint: bool, windowed: bool
) -> None:
    """What was there goes on, of wider numbers; what is new is over the rows since. It follows more operators.

    What breaks it breaks
    `tests/real/test_continuous_state_evolution.py::test_an_aggregate_more_and_a_wider_column[True-True]` or
    `tests/real/test_continuous_state_evolution.py::test_an_aggregate_more_and_a_wider_column[False-False]` too.
    """
    rows, total, greatest = F.count("*").alias("rows"), F.sum("n").alias("n"), F.max("n").alias("greatest")
    life = Life(spark, tmp_path)
    query = life.start(by(rows, total, windowed=windowed))
    how, table = life.stopped(query, savepoint)
    before = {row["k"]: row["rows"] for row in table}
    since = F.count("n").alias("since"), F.collect_list("n").alias("list"), F.avg("n").alias("mean")
    more = by(since[0], total, greatest, rows, *since[1:], windowed=windowed)

    def changed(numbers: DataFrame) -> DataFrame:
        return more(numbers.where("k >= 0").withColumn("twice", F.col("n") * 2).where("twice >= 0"))

    wrong = by(rows, F.min("n").alias("n"), windowed=windowed)
    with pytest.raises(StoredStateError, match=r"(?s)sum\(n\) of int32.*now it is.*min\(n\) of int32"):
        life.start(wrong, **how)
    last = life.ended(life.start(changed, "long", **how), lambda found: sum(row["rows"] for row in found))
    for k in range(10):
        numbers = list(range(k, ROWS, 10))
        assert (last[k]["rows"], last[k]["n"]) == (len(numbers), sum(numbers))
        assert last[k]["greatest"] == numbers[-1]
        assert last[k]["since"] == len(numbers) - before[k], "rows that were in flight are among those since"
        assert len(last[k]["list"]) == last[k]["since"]
        assert last[k]["mean"] == pytest.approx(sum(last[k]["list"]) / last[k]["since"])


@pytest.mark.parametrize("sessions", [True, False])
def test_a_wider_key(spark: SparkSession, tmp_path: Path, sessions: bool) -> None:
    """A key is found again in the subtask that has it, in a session too, and its state goes on."""
    rows, total, since = F.count("*").alias("rows"), F.sum("n").alias("n"), F.count("n").alias("since")

    def of(key: str, *aggregates: Any) -> Callable[[DataFrame], DataFrame]:
        def program(numbers: DataFrame) -> DataFrame:
            cast = numbers.withColumn("k", F.col("k").cast(key)).alias("cast")
            keys = ["k", F.session_window("at", "1 hour")] if sessions else ["k"]
            grouped = cast.groupBy(*keys).agg(*aggregates).drop("session_window")
            return grouped.select("k", F.to_json(F.struct("*")).alias("json"))

        return program

    life = Life(spark, tmp_path)
    query = life.start(of("int", rows, total), bounded=sessions)
    wait_until(lambda: query.status["rowsIn"], query)
    query.stop(savepoint=str(tmp_path / "savepoint"))
    how = {"fromSavepoint": str(tmp_path / "savepoint"), "bounded": sessions}
    with pytest.raises(StoredStateError, match=r"(?s)k.*int32.*int16"):
        life.start(of("smallint", rows, total), **how)
    again = life.start(of("long", since, total, rows), "long", **how)
    (tmp_path / "end").touch()
    if sessions:
        assert again.awaitTermination(PATIENCE_S), again.status
    last = last_of(again) if sessions else life.ended(again, lambda found: sum(row["rows"] for row in found))
    assert {k: (row["rows"], row["n"]) for k, row in last.items()} == {
        k: (ROWS // 10, sum(range(k, ROWS, 10))) for k in range(10)
    }
    assert 0 < sum(row["since"] for row in last.values()) < ROWS


class Counting(StatefulProcessor):
    """Counts the rows of a key."""

    schema = "n int, gone string"

    def init(self, handle: Any) -> None:
        self.seen = handle.getValueState("seen", self.schema)
        self.all = handle.getMapState("all", "third long", self.schema)

    def next(self, before: Any) -> Any:
        return (1 if before is None else before[0] + 1, "gone")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for row in rows:
            third = (row.n % 3,)
            self.all.updateValue(third, self.next(self.all.getValue(third)))
            self.seen.update(self.next(self.seen.get()))
        yield Row(k=key[0], **self.seen_of(self.seen.get()), thirds=[
            Row(**self.seen_of(value)) for _, value in sorted(self.all.iterator())
        ])  # fmt: skip

    def seen_of(self, value: Any) -> dict[str, int]:
        return {"n": value[0], "since": 0}

    def close(self) -> None:
        pass


class CountingMore(Counting):
    """Counts in longs, and since when there is a field for it in another one; one is gone."""

    schema = "since int, n long"

    def next(self, before: Any) -> Any:
        since, n = (None, 0) if before is None else before
        return ((since or 0) + 1, n + 1)

    def seen_of(self, value: Any) -> dict[str, int]:
        return {"n": value[1], "since": value[0] or 0}


class CountingTexts(Counting):
    schema = "n string"


def processed(processor: type[Counting]) -> Callable[[DataFrame], DataFrame]:
    return lambda rows: rows.groupBy("k").transformWithState(
        processor(), "k long, n long, since long, thirds array<struct<n: long, since: long>>", "update", "None"
    )


@pytest.mark.parametrize("savepoint", [True, False])
@pytest.mark.spark_since("transform-with-state-rows")
def test_fields_of_transform_with_state(spark: SparkSession, tmp_path: Path, savepoint: bool) -> None:
    life = Life(spark, tmp_path)
    how, table = life.stopped(life.start(processed(Counting)), savepoint)
    before = {row["k"]: row["n"] for row in table}
    again = life.start(processed(CountingMore), **how)
    last = life.ended(again, lambda found: sum(row["n"] for row in found))
    for k, row in last.items():
        assert row["n"] == ROWS // 10 == sum(each["n"] for each in row["thirds"])
        assert row["since"] == ROWS // 10 - before[k] == sum(each["since"] for each in row["thirds"])


@pytest.mark.spark_since("transform-with-state-rows")
def test_a_field_of_another_type_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    life = Life(spark, tmp_path)
    how, _ = life.stopped(life.start(processed(Counting)), True)
    query = life.start(processed(CountingTexts), **how)
    words = r"(?s)'seen'.*stored as value \(n integer, gone string\).*CountingTexts now declares value \(n string\)"
    with pytest.raises(HeadgateError, match=words):
        query.awaitTermination(PATIENCE_S)


def test_fields_of_apply_in_pandas_with_state(spark: SparkSession, tmp_path: Path) -> None:
    def counted(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        n = sum(map(len, frames)) + (state.get[0] if state.exists else 0)
        state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n], "since": [0]})

    def counted_more(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        before, since = state.getOption or (0, None)
        rows = sum(map(len, frames))
        state.update((before + rows, (since or 0) + rows))
        yield pd.DataFrame({"k": [key[0]], "n": [before + rows], "since": [(since or 0) + rows]})

    def program(function: Any, state: str) -> Callable[[DataFrame], DataFrame]:
        return lambda rows: rows.groupBy("k").applyInPandasWithState(
            function, "k long, n long, since long", state, "update", "NoTimeout"
        )

    life = Life(spark, tmp_path)
    how, table = life.stopped(life.start(program(counted, "n int")), True)
    before = {row["k"]: row["n"] for row in table}
    again = life.start(program(counted_more, "n long, since long"), **how)
    last = life.ended(again, lambda found: sum(row["n"] for row in found))
    assert {k: (row["n"], row["since"]) for k, row in last.items()} == {
        k: (ROWS // 10, ROWS // 10 - before[k]) for k in range(10)
    }
