"""`ApplyInPandasWithState`: state and time-outs in snapshots, frames and errors as PySpark makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from stateful_runs import INPUT, events, for_subtask

from headgate.errors import UserFunctionError
from headgate.operators.transform_with_state.apply_in_pandas_with_state import ApplyInPandasWithState
from headgate.operators.transform_with_state.group_function import GroupFunction
from headgate.operators.transform_with_state.transform_with_state import Definition
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import RestoredChunk

LONG = '{"type":"struct","fields":[{"name":"n","type":"long","nullable":true,"metadata":{}}]}'
MODES: dict[str, Any] = {
    "NoTimeout": "none",
    "ProcessingTimeTimeout": "processingtime",
    "EventTimeTimeout": "eventtime",
}


class Run:
    """One deployment of a function in one subtask.

    Parameters
    ----------
    function
        The user's.
    timeout
        Its kind of time-outs.
    restored
        The chunks of its state.
    conf
        Settings of the session.
    context
        What differs of the subtask.
    """

    def __init__(
        self,
        function: Any,
        timeout: str = "NoTimeout",
        restored: list[RestoredChunk] | None = None,
        conf: dict[str, str] | None = None,
        **context: Any,
    ) -> None:
        self.now_ms = 1_000_000
        self.rows: list[tuple[Any, ...]] = []
        defined = Definition(
            keys=("user",),
            input=INPUT,
            output=pa.schema([("user", pa.string()), ("text", pa.string())]),
            time_mode=MODES[timeout],
            event_time="at" if timeout == "EventTimeTimeout" else None,
            conf={"spark.sql.session.timeZone": "UTC", **(conf or {})},
        )
        given = GroupFunction(
            function=function,
            state=LONG,
            timeout=timeout,
            output_mode="append",
            has_watermark=True,
        )
        self.operator = ApplyInPandasWithState(given, defined, clock_ms=lambda: self.now_ms)
        self.context = OperatorContext(**{"uid": "grouped", "subtask": 0, "parallelism": 1, **context})
        self.operator.open(self.context, ())
        self.operator.restore_keyed(restored or [])

    def emit(self, batch: pa.RecordBatch, split_id: str) -> None:
        self.rows += [tuple(row.values()) for row in batch.to_pylist()]

    def take(self, *rows: tuple[str | None, int, int]) -> list[tuple[Any, ...]]:
        """Return what rows give."""
        self.operator.process(events(*rows), "split", self.emit)
        return self.taken()

    def taken(self) -> list[tuple[Any, ...]]:
        found, self.rows = self.rows, []
        return found


def summed(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
    """Yield the sum so far; a key is forgotten a second of the event time after its rows."""
    total = state.get[0] if state.exists else 0
    if state.hasTimedOut:
        yield pd.DataFrame({"user": [key[0]], "text": [f"over at {total}"]})
        state.remove()
        return
    for frame in frames:
        total += frame["amount"].sum()
        last_ms = int(frame["at"].max().timestamp() * 1000)
    state.update((total,))
    state.setTimeoutTimestamp(last_ms + 1000)
    yield pd.DataFrame({"user": [key[0]], "text": [str(total)]})


def test_state_and_time_outs_are_in_snapshots_and_move_with_their_keys() -> None:
    users = [f"user {number}" for number in range(20)]
    before = Run(summed, "EventTimeTimeout")
    before.take(*((user, 1, 5000) for user in users))
    before.take(*((user, 2, 6000) for user in users[:10]))
    chunks = list(before.operator.snapshot_keyed(1))
    over: list[tuple[Any, ...]] = []
    for subtask in range(3):
        facts = {"subtask": subtask, "parallelism": 3}
        context = OperatorContext(uid="grouped", **facts)  # type: ignore[arg-type]
        part = Run(summed, "EventTimeTimeout", for_subtask(chunks, context), **facts)
        part.operator.process_watermark(6000, part.emit)
        assert part.taken() == [], "it is not past 6000"
        part.operator.process_watermark(6001, part.emit)
        first = part.taken()
        part.operator.process_watermark(7001, part.emit)
        assert all(text == "over at 1" for _, text in first)
        over += [*first, *part.taken()]
        assert not part.operator._store.cells, "removed"
    assert sorted(over) == sorted((user, "over at 3" if user in users[:10] else "over at 1") for user in users)


def test_a_time_out_of_the_clock_is_put_off_by_rows() -> None:
    def quiet(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        if not state.hasTimedOut:
            state.setTimeoutDuration(100)
        yield pd.DataFrame({"user": [key[0]], "text": [f"{state.hasTimedOut} {state.exists} {len(list(frames))}"]})

    run = Run(quiet, "ProcessingTimeTimeout")
    assert run.take(("a", 1, 0)) == [("a", "False False 1")]
    run.now_ms += 100
    assert run.take(("a", 1, 0)) == [("a", "False False 1")]
    run.now_ms += 100
    run.operator.process_time(run.now_ms, run.emit)
    assert run.taken() == []
    run.operator.process_time(run.now_ms + 1, run.emit)
    assert run.taken() == [("a", "True False 1")]
    assert run.operator.due_ms() is None, "it did not set another one"


def test_only_a_group_with_nulls_has_floats() -> None:
    def types(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        (frame,) = frames
        yield pd.DataFrame({"user": [key[0]], "text": [str(frame["amount"].dtype)]})

    assert Run(types).take(("a", 1, 0), ("b", None, 0), ("b", 2, 0)) == [("a", "int64"), ("b", "float64")]  # type: ignore[arg-type]


def test_what_a_function_must_yield() -> None:
    def wrong(made: Any) -> Any:
        return lambda key, frames, state: made

    for made, error, words in (
        (pd.DataFrame({"a": [1]}), PySparkTypeError, "iterable of pandas.DataFrame"),
        (5, PySparkTypeError, "iterable"),
        ([7], PySparkTypeError, "iterator of int"),
        ([pd.DataFrame({"a": [1]})], PySparkRuntimeError, "2.*1"),
    ):
        with pytest.raises(error, match=words):
            Run(wrong(made)).take(("a", 1, 0))
    assert Run(wrong([pd.DataFrame()])).take(("a", 1, 0)) == []


def test_a_frame_has_as_many_rows_as_the_session_allows() -> None:
    """One call for each key all the same; each frame by itself has floats because of nulls."""

    def sizes(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        seen = [f"{len(frame)} {frame['amount'].dtype}" for frame in frames]
        yield pd.DataFrame({"user": [key[0]], "text": [", ".join(seen)]})

    limit = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2"}
    rows: Any = [("a", 1, 0), ("a", 2, 0), ("b", 4, 0), ("a", None, 0)]
    assert Run(sizes, conf=limit).take(*rows) == [("a", "2 int64, 1 float64"), ("b", "1 int64")]
    assert Run(sizes).take(*rows) == [("a", "3 float64"), ("b", "1 int64")]


def test_a_misnamed_column_is_named() -> None:
    """With what was expected and what was given; Spark gives null."""

    def misnamed(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"user": [key[0]], "txt": ["x"]})

    with pytest.raises(
        UserFunctionError, match=r"columns 'user', 'txt'.*user: string, text: string.*'text' is missing"
    ):
        Run(misnamed).take(("a", 1, 0))
    by_place = {"spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName": "false"}
    assert Run(misnamed, conf=by_place).take(("a", 1, 0)) == [("a", "x")]


def test_a_row_at_the_watermark_is_late_with_time_outs_of_the_event_time_only() -> None:
    def amounts(key: Any, frames: Any, state: Any) -> Iterator[pd.DataFrame]:
        yield pd.DataFrame({"user": [key[0]], "text": [str([n for frame in frames for n in frame["amount"]])]})

    for timeout, kept, late in (("EventTimeTimeout", "[3]", 2), ("NoTimeout", "[1, 2, 3]", 0)):
        run = Run(amounts, timeout)
        run.operator.process_watermark(1000, run.emit)
        assert run.take(("a", 1, 999), ("a", 2, 1000), ("a", 3, 1001)) == [("a", kept)]
        assert run.operator.late_rows == late
