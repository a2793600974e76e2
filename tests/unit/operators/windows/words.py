"""Windows and aggregates by the names that ``pyspark.sql.functions`` has for them, over columns of these names."""

from __future__ import annotations

from typing import Any

from headgate.expressions.expressions import Bound
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.source.options import duration_ms


def window(time: str, size: str, slide: str | None = None, start: str = "0 seconds") -> TimeWindow:
    sizes = (duration_ms(each) * 1000 for each in (size, slide or size))
    return TimeWindow(Bound(0, time), *sizes, 0 if start == "0 seconds" else duration_ms(start) * 1000)


def session_window(time: str, gap: str) -> SessionWindow:
    return SessionWindow(Bound(0, time), duration_ms(gap) * 1000)


def _of(function: str, column: str, **parameters: Any) -> Aggregate:
    return Aggregate(function, Bound(0, column), parameters)


def count(column: str = "*") -> Aggregate:
    return Aggregate("count") if column == "*" else _of("count", column)


def sum(column: str) -> Aggregate:
    return _of("sum", column)


def avg(column: str) -> Aggregate:
    return _of("avg", column)


def min(column: str) -> Aggregate:
    return _of("min", column)


def max(column: str) -> Aggregate:
    return _of("max", column)


def first(column: str, ignorenulls: bool = False) -> Aggregate:
    return _of("first", column, ignorenulls=ignorenulls)


def last(column: str, ignorenulls: bool = False) -> Aggregate:
    return _of("last", column, ignorenulls=ignorenulls)


def collect_list(column: str) -> Aggregate:
    return _of("collect_list", column)


def approx_count_distinct(column: str, rsd: float | None = None) -> Aggregate:
    return _of("approx_count_distinct", column, rsd=0.05 if rsd is None else rsd)
