"""What windows Spark's analyzer made columns for: their size and slide, or their gap, read back from its expressions.

Never: take an expression for a window that is not made as the analyzer makes them.

Follows Spark 4.3's ``TimeWindowing`` and ``SessionWindowing``: a struct of ``start`` and ``end``, in microseconds until
the last step, marked in the metadata of its attribute.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import get_field  # type: ignore[import-untyped]

from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError
from headgate.spark.analyzed.rows import Window
from headgate.spark.analyzed.scala import class_of, items
from headgate.spark.compatibility import interval_added

_TIME, _SESSION = "spark.timeWindow", "spark.sessionWindow"


def is_window(attribute: Any) -> bool:
    """Return whether an attribute, or an alias, is a window."""
    metadata = attribute.metadata()
    return bool(metadata.contains(_TIME) or metadata.contains(_SESSION))


def window_of(own: Expressions, named: Any) -> Window | None:
    """Return the windows that the analyzer made an alias of; None: it is no such alias.

    Raises
    ------
    NotOnArrowError
        They are of a kind that there is no operator for.
    """
    if class_of(named) != "Alias" or not is_window(named) or class_of(named.child()) != "CreateNamedStruct":
        return None
    return window_in(own, named.child(), str(named.name()), session=named.metadata().contains(_SESSION))


def window_in(own: Expressions, struct: Any, name: str, *, session: bool) -> Window:
    """Return the windows that a struct of start and end is made for; raises as `window_of`."""
    _, start, _, end = items(struct.children())
    if session:
        time, gap = _parts(struct, end, "KnownNullable", *_CONVERTED, "Cast", interval_added())
        return SessionWindow(own.node(time), _gap_us(own, struct, gap), name)
    _, size = _parts(struct, end, "KnownNullable", "PreciseTimestampConversion", "Add")
    last_start, shift = _parts(struct, start, "KnownNullable", "PreciseTimestampConversion", "Subtract")
    micros, case = _parts(struct, last_start, "Subtract")
    (time,) = _parts(struct, micros, "PreciseTimestampConversion")
    remainder = list(items(_is(struct, case, "CaseWhen").children()))[-1]
    since, slide = _parts(struct, remainder, "Remainder")
    _, begin = _parts(struct, since, "Subtract")
    if own.fixed(shift) != 0:
        raise _unknown(struct)
    return TimeWindow(own.node(time), own.fixed(size), own.fixed(slide), own.fixed(begin), name)


_CONVERTED = ("PreciseTimestampConversion", "PreciseTimestampConversion")


def _parts(struct: Any, expression: Any, *classes: str) -> list[Any]:
    """Return the children of the last of some expressions, each the only child of the one before it."""
    for name in classes[:-1]:
        (expression,) = items(_is(struct, expression, name).children())
    return list(items(_is(struct, expression, classes[-1]).children()))


def _is(struct: Any, expression: Any, name: str) -> Any:
    if class_of(expression) != name:
        raise _unknown(struct)
    return expression


def _gap_us(own: Expressions, struct: Any, gap: Any) -> int:
    if not gap.foldable():
        raise NotOnArrowError(gap, "a session's gap is the same for all rows here")
    interval = gap.eval(None)
    if isinstance(interval, int):  # of an interval of days to seconds
        return interval
    months, days = get_field(interval, "months"), get_field(interval, "days")
    if months or (days and own.time_zone not in ("UTC", "Etc/UTC", "Z")):
        raise NotOnArrowError(gap, "how long months are, and days where clocks are turned, depends on when they are")
    return int(get_field(interval, "microseconds")) + int(days) * 86_400_000_000


def _unknown(struct: Any) -> NotOnArrowError:
    return NotOnArrowError(struct, "it is marked as a window and not made as Spark makes them")
