"""Processors for the tests of `TransformWithState`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import LongType, StringType, StructField, StructType


def columns(**types: Any) -> StructType:
    """Return a schema."""
    return StructType([StructField(name, data_type) for name, data_type in types.items()])


LONG = columns(n=LongType())
NAME = columns(name=StringType())


class Scripted(StatefulProcessor):
    """Runs a function for each key; everything that there is hangs on it: value, list, map, handle.

    Parameters
    ----------
    rows, timer, initial
        Called with the processor, the key and the rows (the time of the timer, a row), and the times; what they return
        is yielded as ``(user, text)``.
    ttl_ms
        Of all states.
    """

    def __init__(
        self,
        rows: Callable[..., Any] | None = None,
        timer: Callable[..., Any] | None = None,
        initial: Callable[..., Any] | None = None,
        ttl_ms: int | None = None,
    ) -> None:
        self.rows = rows
        self.timer = timer
        self.initial = initial
        self.ttl_ms = ttl_ms

    def init(self, handle: Any) -> None:
        """Declare the states."""
        self.handle = handle
        self.value = handle.getValueState("value", LONG, self.ttl_ms)
        self.list = handle.getListState("list", LONG, self.ttl_ms)
        self.map = handle.getMapState("map", NAME, LONG, self.ttl_ms)

    def _result(self, key: Any, result: Any) -> Iterator[Row]:
        if result is not None:
            yield Row(user=key[0], result=repr(result))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        """Call the function for rows."""
        return self._result(key, self.rows(self, key[0], list(rows), timerValues) if self.rows else None)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
        """Call the function for timers."""
        at_ms = expiredTimerInfo.getExpiryTimeInMs()
        return self._result(key, self.timer(self, key[0], at_ms, timerValues) if self.timer else at_ms)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Call the function for the initial state."""
        if self.initial is not None:
            self.initial(self, key[0], initialState, timerValues)


def state_of(processor: Scripted) -> tuple[Any, ...]:
    """Return all that is known of the current key."""
    timers = sorted(processor.handle.listTimers())
    return (processor.value.get(), list(processor.list.get()), sorted(processor.map.iterator()), timers)
