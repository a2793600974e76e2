"""``applyInPandasWithState`` in continuous queries: the rows that Structured Streaming gives, through kills.

What a function sees of its state, step by step, is in test_apply_in_pandas_with_state_equal_spark.py.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.state import GroupState

import headgate
from headgate.errors import HeadgateError, OptionError
from tests.real.running_queries import PATIENCE_S, Held, is_running, stop_all, wait_until
from tests.real.test_continuous_dataframe import COLUMNS, generated, in_order

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

OUTPUT = "k long, n long, seen long"


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def counted(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield how many rows of a key there were so far, for each of them."""
    seen = state.get[0] if state.exists else 0
    for frame in frames:
        yield pd.DataFrame({"k": key[0], "n": frame["n"], "seen": range(seen + 1, seen + len(frame) + 1)})
        seen += len(frame)
    state.update((seen,))


def compared(
    spark: SparkSession, folder: Path, program: Callable[[DataFrame], DataFrame], mode: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of a program that runs continuously, and in Structured Streaming.

    For Spark the row at 1970-01-01 is late already: it is at the first watermark.
    """
    rows = generated(spark.read, rows=2001).orderBy("at").where("at > timestamp_millis(0)")
    rows.coalesce(1).write.parquet(str(folder / "in"))

    reader = spark.readStream.format("headgate.files").option("fileFormat", "parquet").schema(COLUMNS)
    frame = program(reader.load(str(folder / "in")))
    query = (
        frame.writeStream.format("memory").queryName("available_now").outputMode(mode)
        .option("checkpointLocation", str(folder / "spark")).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(int(PATIENCE_S))
    theirs = [row.asDict() for row in spark.table("available_now").collect()]
    writer = headgate.continuous(frame, parallelism=2).writeStream.outputMode(mode).format("memory")
    ours = writer.option("slots", "threads").start()
    wait_until(lambda: ours.status["rowsIn"] == 2000, ours)
    ours.stop(drain=True)
    return ours.table().to_pylist(), theirs


def comparable(rows: list[dict[str, Any]]) -> list[Counter[Any]]:
    """Return what does not depend on the order of rows of different splits."""
    return [Counter((row["k"], row["seen"]) for row in rows), Counter((row["k"], row["n"]) for row in rows)]


@pytest.mark.parametrize("mode", ["append", "update"])
def test_state(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    def program(rows: DataFrame) -> DataFrame:
        frame = rows.groupBy("k").applyInPandasWithState(counted, OUTPUT, "seen long", mode, "NoTimeout")
        return frame.where("seen > 0").select("seen", "n", "k")

    ours, theirs = compared(spark, tmp_path, program, mode)
    assert len(ours) == 2000
    assert comparable(ours) == comparable(theirs)


def until_100_ms(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield the sum of a key's rows before 50 ms, once the watermark is past 100 ms."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "rows": [state.get[0]], "n": [state.get[1]]})
        state.remove()
        return
    rows, total = state.getOption or (0, 0)
    for frame in frames:
        early = frame[frame["at"] < pd.Timestamp(50, unit="ms")]
        rows, total = rows + len(early), total + early["n"].sum()
    if rows > (state.get[0] if state.exists else 0):
        state.update((rows, total))
        state.setTimeoutTimestamp(100)


@pytest.mark.spark_since("available-now")
def test_time_outs_of_the_event_time(spark: SparkSession, tmp_path: Path) -> None:
    def program(rows: DataFrame) -> DataFrame:
        return rows.withWatermark("at", "10 milliseconds").groupBy("k").applyInPandasWithState(
            until_100_ms, "k long, rows long, n long", "rows long, n long", "append", "EventTimeTimeout"
        )  # fmt: skip

    ours, theirs = compared(spark, tmp_path, program, "append")
    assert len(ours) == 10
    assert in_order(ours) == in_order(theirs)


def until_quiet(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield the rows and the sum of a key when it was quiet for a moment."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "rows": [state.get[0]], "n": [state.get[1]]})
        state.remove()
        return
    rows, total = state.getOption or (0, 0)
    for frame in frames:
        rows, total = rows + len(frame), total + frame["n"].sum()
    state.update((rows, total))
    state.setTimeoutDuration(50)


def test_time_outs_of_the_clock(spark: SparkSession, tmp_path: Path) -> None:
    """Whenever keys are quiet: what they had is yielded once."""
    (tmp_path / "in").mkdir()
    for file in range(3):
        lines = "".join(f'{{"k": {n % 7}, "n": {n}}}\n' for n in range(file * 100, file * 100 + 100))
        (tmp_path / "in" / f"{file}.json").write_text(lines)
    stream = spark.readStream.format("headgate.files").option("fileFormat", "json").schema("k long, n long")
    frame = stream.load(str(tmp_path / "in")).groupBy("k").applyInPandasWithState(
        until_quiet, "k long, rows long, n long", "rows long, n long", "update", "ProcessingTimeTimeout"
    )  # fmt: skip
    expected = {k: (len(range(k, 300, 7)), sum(range(k, 300, 7))) for k in range(7)}

    def sums(rows: list[Any]) -> dict[int, tuple[int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for row in rows:
            before = found.get(row["k"], (0, 0))
            found[row["k"]] = (before[0] + row["rows"], before[1] + row["n"])
        return found

    theirs = frame.writeStream.format("memory").queryName("quiet").outputMode("update").start()
    wait_until(lambda: sums(spark.table("quiet").collect()) == expected)
    theirs.stop()
    writer = headgate.continuous(frame, parallelism=2).writeStream.outputMode("update").format("memory")
    query = writer.option("slots", "threads").trigger(continuous="100 milliseconds").start()
    wait_until(lambda: sums(query.table().to_pylist()) == expected, query)
    query.stop()


def counted_until_it_ends(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Yield what `counted` does, and the last count when the event time is at its end."""
    if state.hasTimedOut:
        yield pd.DataFrame({"k": [key[0]], "n": [-1], "seen": [state.get[0]]})
        state.remove()
        return
    yield from counted(key, frames, state)
    state.setTimeoutTimestamp(1_000_000_000)


def killed(query: headgate.ContinuousQuery) -> None:
    """Kill a slot's process, and wait until all runs again."""
    pid = wait_until(lambda: query.status["slots"][0]["pid"], query)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: query.status["slots"][0]["pid"] not in (0, pid), query)
    wait_until(lambda: is_running(query), query)


def test_kills_and_rescales(spark: SparkSession, tmp_path: Path) -> None:
    """Every row is counted once, and every key times out once, with all that it had."""
    rows = 4000
    headgate.register(spark, Held)
    source = spark.readStream.format(Held.name).option("mayEnd", str(tmp_path / "end")).option("rows", rows).load()
    timed = source.selectExpr("value % 10 AS k", "value AS n", "timestamp_millis(value) AS at")
    frame = timed.withWatermark("at", "1 second").groupBy("k").applyInPandasWithState(
        counted_until_it_ends, OUTPUT, "seen long", "append", "EventTimeTimeout"
    )  # fmt: skip
    writer = headgate.continuous(frame, parallelism=2).writeStream.format("memory")
    query = writer.option("checkpointLocation", tmp_path / "checkpoints").trigger(continuous="1 second").start()
    for parallelism in (1, 2):
        before = query.status["rowsIn"]
        wait_until(lambda before=before: query.status["rowsIn"] >= before + 300, query)
        query.checkpoint()
        killed(query)
        query.rescale(parallelism)
    (tmp_path / "end").touch()
    wait_until(lambda: query.table().num_rows == rows, query)
    query.stop(drain=True)
    found = query.table().to_pylist()
    assert in_order([row for row in found if row["n"] == -1]) == in_order(
        [{"k": k, "n": -1, "seen": rows // 10} for k in range(10)]
    )
    assert Counter((row["k"], row["seen"]) for row in found if row["n"] != -1) == Counter(
        (k, seen) for k in range(10) for seen in range(1, rows // 10 + 1)
    )


def test_what_is_refused(spark: SparkSession) -> None:
    rows = generated(spark.readStream)

    def program(rows: DataFrame, mode: str = "append", timeout: str = "NoTimeout", function: Any = counted) -> Any:
        return rows.groupBy("k").applyInPandasWithState(function, OUTPUT, "seen long", mode, timeout)

    with pytest.raises(OptionError, match=r"EventTimeTimeout needs a watermark.*withWatermark"):
        headgate.continuous(program(rows, timeout="EventTimeTimeout"), parallelism=1).explain()
    for own, wanted in (("update", "append"), ("append", "update")):
        writer = headgate.continuous(program(rows, own), parallelism=1).writeStream.outputMode(wanted)
        with pytest.raises(OptionError, match=rf"{wanted!r}.*counted.*{own!r}: they must be the same"):
            writer.format("memory").start()

    def wrong(key: Any, frames: Any, state: GroupState) -> Any:
        return pd.DataFrame({"k": [1]})

    writer = headgate.continuous(program(rows, function=wrong), parallelism=1).writeStream.format("memory")
    query = writer.option("slots", "threads").option("restart-strategy", "none").start()
    with pytest.raises(HeadgateError, match=r"(?s)wrong.*UDF_RETURN_TYPE.*iterable of pandas.DataFrame"):
        query.awaitTermination(PATIENCE_S)
