"""One `StatefulProcessor`, run by Spark's `transformWithState` and by ours over the same rows: equal output."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from conformance.spark import changed_settings
from headgate.operators.transform_with_state.transform_with_state import Definition, TransformWithState
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.continuous.settings import arrow_schema
from headgate.spark.continuous.stateful import _schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

INPUT = "user string, amount long, at timestamp"
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
DELAY_MS = 5000


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with the state store that Spark's transformWithState needs."""
    changed = {
        PROVIDER: "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",  # a commit is one small file
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.shuffle.partitions": "1",
    }
    with changed_settings(spark, changed):
        yield spark


def everything() -> Any:
    """Return a processor that uses all that there is, and emits what it saw."""
    import datetime
    import decimal

    from pyspark.sql import Row
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Everything(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "amount long, at timestamp")
            self.items = handle.getListState("items", "amount long, half double")
            self.seen = handle.getMapState("seen", "parity string", "times int, last struct<amount: long>")
            self.types = handle.getValueState(
                "types",
                "a boolean, b byte, c float, d decimal(10,2), e date, f timestamp, g binary, h array<int>, "
                "i map<string, double>, j struct<x: int, y: string>, k timestamp_ntz, l string",
            )

        def result(self, key: Any, what: str, value: Any, times: Any) -> Any:
            return Row(user=key[0], what=what, value=repr(value), watermark=times.getCurrentWatermarkInMs())

        def handleInputRows(self, key: Any, rows: Any, times: Any) -> Any:
            rows = list(rows)
            first = rows[0]
            if first.amount == -1:
                for state in (self.total, self.items, self.seen, self.types):
                    state.clear()
                yield self.result(key, "cleared", [self.total.exists(), self.total.get(), self.items.exists(),
                                                 list(self.items.get()), self.seen.exists(),
                                                 list(self.seen.keys())], times)  # fmt: skip
                return
            yield self.result(key, "rows", [tuple(row) for row in rows], times)
            yield self.result(key, "names", [list(first.__fields__), type(key).__name__], times)
            before = self.total.get()
            yield self.result(key, "total", [self.total.exists(), before], times)
            self.total.update(((before[0] or 0 if before else 0) + sum(row.amount or 0 for row in rows), first.at))
            self.items.appendValue((first.amount, 0.5))
            self.items.appendList([(row.amount, None) for row in rows])
            if len(list(self.items.get())) > 5:
                self.items.put([(len(rows), 1.5)])
            yield self.result(key, "items", [self.items.exists(), list(self.items.get())], times)
            for row in rows:
                parity = ("odd" if (row.amount or 0) % 2 else "even",)
                known = self.seen.getValue(parity) if self.seen.containsKey(parity) else (0, None)
                self.seen.updateValue(parity, (known[0] + 1, Row(amount=row.amount)))
            yield self.result(key, "seen", [sorted(self.seen.iterator()), sorted(self.seen.keys()),
                                          sorted(self.seen.values()), self.seen.getValue(("none",)),
                                          self.seen.getValue(("odd",))], times)  # fmt: skip
            if first.amount == 3:
                self.seen.removeKey(("even",))
            yield self.result(key, "types", self.types.get(), times)
            self.types.update(
                (
                    True, 7, 0.1, decimal.Decimal("3.14"), datetime.date(2024, 2, 29),
                    datetime.datetime(2024, 2, 29, 1, 2, 3, 4), b"\x00\xff", [1, None, 3], {"x": 1.5, "y": None},
                    Row(x=1, y="z"), datetime.datetime(2024, 2, 29, 1, 2, 3, 4), "é",
                )
            )  # fmt: skip
            at_ms = int(first.at.timestamp() * 1000)
            self.handle.registerTimer(at_ms + 2000)
            self.handle.registerTimer(at_ms + 4000)
            self.handle.registerTimer(at_ms + 4000)
            self.handle.registerTimer(at_ms + 3000)
            self.handle.deleteTimer(at_ms + 3000)
            yield self.result(key, "timers", sorted(self.handle.listTimers()), times)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            at_ms = expiredTimerInfo.getExpiryTimeInMs()
            yield self.result(key, "expired", [at_ms, self.total.get(), sorted(self.handle.listTimers())], timerValues)
            if at_ms % 10_000 == 2000:
                self.handle.registerTimer(at_ms + 20_000)

        def handleInitialState(self, key: Any, initial: Any, times: Any) -> None:
            self.total.update((initial.amount, None))
            self.handle.registerTimer(1_000_002_000)

    return Everything()


STEPS = [
    [("a", 1, 0), ("b", 2, 100), ("a", 3, 8000), ("c", 5, 300), (None, 4, 10), ("c", 6, 400)],
    [("a", 3, 9000), ("b", 7, 3000), ("b", 8, 12000), ("a", 10, 4000), ("d", -1, 20000)],
    [("b", -1, 20000), ("a", 6, 21000), ("c", 1, 60000), ("a", 6, 30000), (None, 1, 17000)],
]
"""Rows of (user, amount, milliseconds after 1,000,000 s); one that is at the watermark or below is late."""
OUTPUT = "user string, what string, value string, watermark long"


def as_batch(rows: list[Any]) -> pa.RecordBatch:
    """Return a step's rows."""
    users, amounts, times = zip(*rows, strict=True)
    at = pa.array([(1_000_000_000 + each) * 1000 for each in times], pa.int64()).cast(pa.timestamp("us", "UTC"))
    return pa.record_batch([pa.array(users), pa.array(amounts, pa.int64()), at], schema=arrow_schema(INPUT))


def by_spark(
    spark: SparkSession, folder: Path, steps: list[Any], transform: Any, rows_of: list[int] | None = None
) -> list[list[tuple[Any, ...]]]:
    """Return what Spark makes of each step, the timers that the step's watermark fires included.

    ``rows_of``: how many rows each step gives at least, for a query with a clock, which is never without a batch.
    """
    import pyarrow.parquet as pq

    source = folder / "in"
    source.mkdir()
    stream = spark.readStream.schema(INPUT).parquet(str(source)).withWatermark("at", f"{DELAY_MS} milliseconds")
    written = transform(stream.groupBy("user"))
    query = (
        written.writeStream.format("memory").queryName("stateful").outputMode("update")
        .option("checkpointLocation", str(folder / "checkpoint")).start()
    )  # fmt: skip
    results: list[list[tuple[Any, ...]]] = []
    try:
        for number, rows in enumerate(steps):
            pq.write_table(pa.table(as_batch(rows)), folder / "part.parquet")
            (folder / "part.parquet").rename(source / f"{number}.parquet")
            known = sum(map(len, results))
            if rows_of is None:
                query.processAllAvailable()
            else:
                wait_for_rows(spark, query, known + rows_of[number])
            results.append([tuple(row) for row in spark.table("stateful").collect()][known:])
    finally:
        query.stop()
    return results


def wait_for_rows(spark: SparkSession, query: Any, rows: int) -> None:
    """Wait until a running query has given so many rows."""
    deadline = time.monotonic() + 120
    while spark.table("stateful").count() < rows and query.isActive and time.monotonic() < deadline:
        time.sleep(0.2)


def by_us(processor: Any, steps: list[Any], mode: str, output: str, **facts: Any) -> list[list[tuple[Any, ...]]]:
    """Return what our operator makes of each step and its watermark."""
    defined = Definition(
        keys=("user",), input=arrow_schema(INPUT), output=arrow_schema(output), time_mode=mode,
        event_time="at" if mode == "eventtime" else None, schemas=_schemas(processor, mode), **facts,
    )  # fmt: skip
    operator = TransformWithState(processor, defined)
    operator.open(OperatorContext(uid="stateful", subtask=0, parallelism=1), ())
    operator.restore_keyed(())
    emitted: list[pa.RecordBatch] = []
    results, highest = [], 0
    for rows in steps:
        operator.process(as_batch(rows), "split", lambda batch, split: emitted.append(batch))
        highest = max(highest, *(1_000_000_000 + each for _, _, each in rows))
        operator.process_watermark(highest - DELAY_MS, lambda batch, split: emitted.append(batch))
        results.append([tuple(row.values()) for batch in emitted for row in batch.to_pylist()])
        emitted.clear()
    operator.close()
    return results


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return rows in an order that does not depend on that of keys."""
    return sorted(rows, key=lambda row: json.dumps(row[0]))


@pytest.mark.spark_since("transform-with-state-rows", "rows-in-states")
def test_rows_and_event_time(rocksdb: SparkSession, tmp_path: Path) -> None:
    """Every state, both kinds of output, event timers, late rows and the initial state are those of Spark."""
    initial = rocksdb.createDataFrame([("a", 100), ("z", 7)], "user string, amount long")
    theirs = by_spark(
        rocksdb, tmp_path, STEPS,
        lambda grouped: grouped.transformWithState(
            everything(), OUTPUT, "update", "EventTime", initialState=initial.groupBy("user")
        ),
    )  # fmt: skip
    ours = by_us(everything(), STEPS, "eventtime", OUTPUT, initial_state=initial.toArrow())
    for step, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert in_order(our) == in_order(their), f"step {step}"


def mortal() -> Any:
    """Return a processor over pandas frames with timers of the clock and values that expire."""
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Mortal(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "amount long", 3_600_000)
            self.items = handle.getListState("items", "amount long", 3_600_000)
            self.seen = handle.getMapState("seen", "amount long", "times long", 3_600_000)
            self.gone = handle.getValueState("gone", "amount long", 1)

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            frames = list(rows)
            frame = pd.concat(frames)
            gone = self.gone.get()
            self.gone.update((1,))
            total = (self.total.get() or (0,))[0] + int(frame["amount"].sum())
            self.total.update((total,))
            self.items.appendList([(amount,) for amount in frame["amount"]])
            for amount in frame["amount"]:
                self.seen.updateValue((amount,), (((self.seen.getValue((amount,)) or (0,))[0]) + 1,))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 3_600_000)
            result = [gone, list(self.items.get()), sorted(self.seen.iterator()), list(frame.columns),
                    str(frame["at"].dtype), [str(each) for each in frame["at"]],
                    timerValues.getCurrentWatermarkInMs()]  # fmt: skip
            yield pd.DataFrame({"total": [total], "user": [key[0]], "result": [repr(result)]})

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Any:
            early = timerValues.getCurrentProcessingTimeInMs() - expiredTimerInfo.getExpiryTimeInMs()
            result = [early >= 1, self.total.get(), len(list(self.handle.listTimers()))]
            yield pd.DataFrame({"user": [key[0]], "result": [repr(result)], "total": [-1]})

    return Mortal()


def test_pandas_and_the_clock(rocksdb: SparkSession, tmp_path: Path) -> None:
    """Frames, timers of the clock and a time to live are those of Spark."""
    steps, output = [STEPS[0], STEPS[1][:2]], "user string, total long, result string"
    ours = by_us(mortal(), steps, "processingtime", output, pandas=True)
    theirs = by_spark(
        rocksdb, tmp_path, steps,
        lambda grouped: grouped.transformWithStateInPandas(mortal(), output, "update", "ProcessingTime"),
        [len(rows) for rows in ours],
    )  # fmt: skip
    for step, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert in_order(our) == in_order(their), f"step {step}"
