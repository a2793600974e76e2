"""A function of ``applyInPandasWithState`` as a `StatefulProcessor`: its `GroupState` is a value, its time-out a timer.

Never: decide what a `GroupState` does: it is PySpark's own, made anew for each call as Spark makes it.

What follows from a call is stored as Spark's Python worker and its JVM do together:

    the function                        state               time-out
    ----------------------------------  ------------------  -----------------------------------
    removed it, and set no time-out     gone                none
    updated or removed it, or set one   the new one, if any the new one; none, if it set none
    did none of these                   as before           as before; one that has passed: none

Follows ``FlatMapGroupsInPandasWithStateExec`` of Spark 4.3, and its Python worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from headgate.operators.transform_with_state.group_function import GroupFunction
from headgate.operators.transform_with_state.keyed_store import LAST_MS
from headgate.spark.compatibility import to_pandas

STATE = "groupState"
"""The name of the state in checkpoints."""


class GroupProcessor(StatefulProcessor):
    """Calls a function where a processor is called.

    Parameters
    ----------
    given
        The user's function.
    keys
        The columns of the key.
    columns
        The columns of the rows.
    width
        How many columns its frames have.
    """

    def __init__(self, given: GroupFunction, keys: tuple[str, ...], columns: pa.Schema, width: int) -> None:
        self._given = given
        self._columns = columns
        self._width = width
        self._key_types = [columns.field(key).type for key in keys]

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._handle = handle
        self._schema = StructType.fromJson(msgspec.json.decode(self._given.state))
        self._state = handle.getValueState(STATE, self._schema)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Call the function with rows."""
        return self._called(key, rows, timerValues, has_timed_out=False)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Call the function of a key that has timed out; as in Spark, with an empty frame."""
        import pandas as pd

        empty = pd.DataFrame(columns=self._columns.names)
        return self._called(self._as_numpy(key), [empty], timerValues, has_timed_out=True)

    def close(self) -> None:
        """Do nothing."""

    def _called(self, key: Any, frames: Any, times: Any, *, has_timed_out: bool) -> Iterator[Any]:
        value = self._state.get()
        state = GroupState(
            optionalValue=value,
            batchProcessingTimeMs=times.getCurrentProcessingTimeInMs(),
            eventTimeWatermarkMs=times.getCurrentWatermarkInMs(),
            timeoutConf=self._given.timeout,
            hasTimedOut=has_timed_out,
            watermarkPresent=self._given.has_watermark,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self._schema,
        )
        made = self._given.function(key, frames, state)
        yield from _frames(made, self._width)
        self._store(state)

    def _store(self, state: GroupState) -> None:
        """Keep what follows from a call."""
        timeout_ms = int(state._timeout_timestamp)
        has_timeout = timeout_ms != GroupState.NO_TIMESTAMP
        if not (state._updated or state._removed or has_timeout):
            return
        if state._updated:
            self._state.update(state.get)
        elif state._removed:
            self._state.clear()
        if self._given.timeout == GroupStateTimeout.NoTimeout:
            return
        for before_ms in self._handle.listTimers():
            self._handle.deleteTimer(before_ms)
        if has_timeout:
            self._handle.registerTimer(min(timeout_ms + 1, LAST_MS))  # it has passed when the time is later

    def _as_numpy(self, key: Any) -> tuple[Any, ...]:
        """Return a key as its values are in frames."""
        return tuple(
            kind.to_pandas_dtype()(value) if value is not None and _is_number(kind) else _in_a_frame(value, kind)
            for value, kind in zip(key, self._key_types, strict=True)
        )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _in_a_frame(value: Any, kind: pa.DataType) -> Any:
    """Return a value as it is in a column of a frame."""
    column = pa.table({"key": pa.array([value], kind)})
    (series,) = to_pandas(column, getattr(kind, "tz", None) or "UTC")
    return series.iloc[0]


def _frames(made: Any, width: int) -> Iterator[Any]:
    """Yield the frames of a function's result.

    Raises
    ------
    PySparkTypeError, PySparkRuntimeError
        They are not what Spark's worker takes.
    """
    import pandas as pd

    if isinstance(made, pd.DataFrame):
        raise _wrong_type("iterable of pandas.DataFrame", type(made).__name__)
    try:
        each_frame = iter(made)
    except TypeError:
        raise _wrong_type("iterable", type(made).__name__) from None
    for frame in each_frame:
        if not isinstance(frame, pd.DataFrame):
            raise _wrong_type("iterator of pandas.DataFrame", f"iterator of {type(frame).__name__}")
        if len(frame.columns) != width and not (len(frame.columns) == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(width), "actual": str(len(frame.columns))},
            )
        yield frame


def _wrong_type(expected: str, actual: str) -> PySparkTypeError:
    return PySparkTypeError(errorClass="UDF_RETURN_TYPE", messageParameters={"expected": expected, "actual": actual})
