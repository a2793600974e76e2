"""One function of `applyInPandasWithState`, run by Spark and by ours over the same rows: equal output."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from headgate.operators.transform_with_state.apply_in_pandas_with_state import ApplyInPandasWithState
from headgate.operators.transform_with_state.group_function import GroupFunction
from headgate.operators.transform_with_state.transform_with_state import Definition
from headgate.protocol.operator_context import OperatorContext
from headgate.spark.analyzed.functions import worker_conf
from headgate.spark.continuous.settings import arrow_schema
from tests.real.test_transform_with_state_equal_spark import (
    DELAY_MS,
    INPUT,
    OUTPUT,
    STEPS,
    as_batch,
    by_spark,
    in_order,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

STATE = "n long, half double, at timestamp, tag string"
BEGIN_MS = 1_000_000_000


@pytest.fixture
def small(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with one shuffle partition."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", before or "2")


def result(key: Any, what: str, value: Any, state: GroupState) -> pd.DataFrame:
    user = None if key[0] is None else str(key[0])
    return pd.DataFrame(
        {"user": [user], "what": [what], "value": [repr(value)], "watermark": [state.getCurrentWatermarkMs()]}
    )


def tried(call: Any, *given: Any) -> Any:
    """Return what a call raises, as the user sees it."""
    try:
        return call(*given)
    except Exception as error:
        return type(error).__name__, str(error)


def by_event_time(key: Any, frames: Any, state: GroupState) -> Iterator[pd.DataFrame]:
    """Use all that a `GroupState` has, and yield what it sees."""
    before = state.getOption
    yield result(key, "state", [state.exists, before, state.hasTimedOut, str(state), type(key[0]).__name__], state)
    yield result(key, "errors", [tried(lambda: state.get) if before is None else None,
                                 tried(state.setTimeoutDuration, 5), tried(state.setTimeoutTimestamp, -1),
                                 tried(state.update, None), tried(state.setTimeoutDuration, "5 s"),
                                 state.getCurrentWatermarkMs() > 0 and tried(state.setTimeoutTimestamp, 1)],
                 state)  # fmt: skip
    if state.hasTimedOut:
        (frame,) = list(frames)
        yield result(key, "timed out", [type(frames).__name__, len(frame), list(frame.columns)], state)
        if before is not None and before[0] > 5:
            state.update((0, None, None, None))
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 3000)
        else:
            state.remove()
        return
    frame = pd.concat(list(frames))
    amounts = frame["amount"].tolist()
    yield result(key, "rows", [amounts, list(frame.columns), [str(each) for each in frame.dtypes],
                               [str(each) for each in frame["at"]]], state)  # fmt: skip
    if -1 in amounts:
        state.remove()
        yield result(key, "removed", [state.exists, state.getOption], state)
        return
    if amounts == [7, 8]:
        return  # what was set before stays
    last_ms = int(frame["at"].max().timestamp() * 1000)
    state.update((frame["amount"].sum() + (before[0] if before else 0), 0.5, frame["at"].iloc[0], "a"))
    yield result(key, "updated", state.get, state)
    if 3 in amounts:
        state.setTimeoutTimestamp(last_ms + 2000)
    else:
        state.setTimeoutTimestamp(pd.Timestamp(last_ms + 4000, unit="ms").to_pydatetime())


def by_us(function: Any, steps: list[Any], spark: SparkSession, output: str, timeout: str) -> list[Any]:
    """Return what our operator makes of each step and its watermark."""
    from pyspark.sql.types import StructType

    mode: Any = {"NoTimeout": "none", "EventTimeTimeout": "eventtime", "ProcessingTimeTimeout": "processingtime"}
    defined = Definition(
        keys=("user",), input=arrow_schema(INPUT), output=arrow_schema(output), time_mode=mode[timeout],
        event_time="at" if timeout == "EventTimeTimeout" else None, conf=worker_conf(spark),
    )  # fmt: skip
    given = GroupFunction(
        function=function, state=StructType.fromDDL(STATE).json(), timeout=timeout, output_mode="update",
        has_watermark=True,
    )  # fmt: skip
    operator = ApplyInPandasWithState(given, defined)
    operator.open(OperatorContext(uid="stateful", subtask=0, parallelism=1), ())
    operator.restore_keyed(())
    emitted: list[pa.RecordBatch] = []
    results, highest = [], 0
    for rows in steps:
        operator.process(as_batch(rows), "split", lambda batch, split: emitted.append(batch))
        highest = max(highest, *(BEGIN_MS + each for _, _, each in rows))
        operator.process_watermark(highest - DELAY_MS, lambda batch, split: emitted.append(batch))
        results.append([tuple(row.values()) for batch in emitted for row in batch.to_pylist()])
        emitted.clear()
    operator.close()
    return results


def test_state_and_time_outs_of_the_event_time(small: SparkSession, tmp_path: Path) -> None:
    """All that a function sees, and what follows from all that it does, is as in Spark."""
    steps = [
        *STEPS, [("e", 5, 61_000)], [("e", 7, 62_000), ("e", 8, 62_000)], [("z", 9, 90_000)], [("z", 9, 99_000)]
    ]  # fmt: skip
    theirs = by_spark(
        small, tmp_path, steps,
        lambda grouped: grouped.applyInPandasWithState(by_event_time, OUTPUT, STATE, "update", "EventTimeTimeout"),
    )  # fmt: skip
    ours = by_us(by_event_time, steps, small, OUTPUT, "EventTimeTimeout")
    assert sum(row[1] == "timed out" for step in ours for row in step) > 5
    for step, (their, our) in enumerate(zip(theirs, ours, strict=True)):
        assert in_order(our) == in_order(their), f"step {step}"
