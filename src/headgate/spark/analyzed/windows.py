"""What windows Spark's analyzer made columns for: their size and slide, or their gap, read back from its expressions.

Never: take an expression for a window that is not made as the analyzer makes them.

Follows Spark 4.3's ``TimeWindowing`` and ``SessionWindowing``: a struct of ``start`` and ``end``, in microseconds until
the last step, marked in the metadata of its attribute.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import pyarrow as pa

from headgate.expressions.expressions import Bound, Call, Node
from headgate.operators.assign_windows import AssignWindows
from headgate.operators.windows.assigner import SessionWindow, TimeWindow
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError
from headgate.spark.analyzed.rows import Columns, Rows, Window, unsupported
from headgate.spark.analyzed.rules import fixed_interval_us
from headgate.spark.analyzed.scala import class_of, items
from headgate.spark.compatibility import interval_added

_TIME, _SESSION = "spark.timeWindow", "spark.sessionWindow"


def is_window(attribute: Any) -> bool:
    """Return whether an attribute, or an alias, is a window."""
    metadata = attribute.metadata()
    return bool(metadata.contains(_TIME) or metadata.contains(_SESSION))


@dataclass(frozen=True)
class GapByRow:
    """Session windows whose end is to be computed for each row.

    Parameters
    ----------
    window
        The windows, without that end.
    end
        Spark's expression of it.
    """

    window: SessionWindow
    end: Any

    def made(self, own: Expressions) -> SessionWindow:
        """Return the windows, where the expression has a value."""
        return msgspec.structs.replace(self.window, end=own.compiled(self.end))


def window_of(own: Expressions, named: Any) -> Window | GapByRow | None:
    """Return the windows that the analyzer made an alias of; None: it is no such alias.

    Raises
    ------
    NotOnArrowError
        They are of a kind that there is no operator for.
    """
    if class_of(named) != "Alias" or not is_window(named) or class_of(named.child()) != "CreateNamedStruct":
        return None
    of_struct = session_in if named.metadata().contains(_SESSION) else window_in
    return of_struct(own, named.child(), str(named.name()))


def compared_bounds(condition: Any) -> int:
    """Return the id of the attribute of which a condition says that its end is after its start; else 0."""
    if class_of(condition) != "GreaterThan":
        return 0
    sides = [condition.left(), condition.right()]
    if any(class_of(each) != "GetStructField" or class_of(each.child()) != "AttributeReference" for each in sides):
        return 0
    end, start = ((int(each.child().exprId().id()), int(each.ordinal())) for each in sides)
    return end[0] if (end[0], end[1], start[1]) == (start[0], 1, 0) else 0


def session_in(own: Expressions, struct: Any, name: str) -> SessionWindow | GapByRow:
    """Return the session windows that a struct of start and end is made for; raises as `window_of`."""
    _, _, _, end = items(struct.children())
    (moment,) = _parts(struct, end, "KnownNullable", *_CONVERTED)
    time, gap = _parts(struct, moment, "Cast", interval_added())
    gap_us = fixed_interval_us(gap, own.time_zone) or 0
    if gap_us > 0:
        return SessionWindow(own.node(time), gap_us, name)
    return GapByRow(SessionWindow(own.node(time), 0, name, gap=str(gap.sql())), moment)


def window_in(own: Expressions, struct: Any, name: str) -> TimeWindow:
    """Return the windows that a struct of start and end is made for; raises as `window_of`."""
    _, start, _, end = items(struct.children())
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


def _unknown(struct: Any) -> NotOnArrowError:
    return NotOnArrowError(struct, "it is marked as a window and not made as Spark makes them")


def with_windows(rows: Rows, node: Any) -> Rows:
    """Return rows that have columns for the windows that nobody has grouped by.

    Raises
    ------
    UnsupportedOperationError
        There are session windows.
    """
    made_by: dict[int, int] = {}
    for number, window in rows.windows.items():
        if not isinstance(window, TimeWindow) or not isinstance(window.time, Bound):
            raise unsupported(node, f"{window.text} is there when rows are grouped by it")
        if window.made_by in made_by:
            rows = replace(rows, places={**rows.places, number: made_by[window.made_by]})
            continue
        columns = Columns()
        for name in rows.node.schema.names:
            columns.free(name)
        made = AssignWindows(rows.node.schema, window.time.index, window, columns.free(window.name))
        places = {**rows.places, number: len(rows.node.schema)}
        rows = replace(rows, node=rows.node.then(made), places=places)
        made_by |= {window.made_by: places[number]} if window.made_by else {}
    return replace(rows, windows={})


def needs_columns(rows: Rows, expressions: Iterable[Any], passed: Collection[int]) -> bool:
    """Return whether windows must be columns before some expressions are evaluated.

    Parameters
    ----------
    rows
        The rows.
    expressions
        What may use a window's value.
    passed
        The ids of the windows that go on as they are. Of others a row that is in several comes several times.
    """
    left = (window for number, window in rows.windows.items() if number not in passed)
    if any(isinstance(each, TimeWindow) and each.size_us != each.slide_us for each in left):
        return True
    used = (each for one in expressions for each in items(one.references())) if rows.windows else ()
    return any(int(each.exprId().id()) in rows.windows for each in used)


def is_window_type(kind: pa.DataType) -> bool:
    """Return whether a type is that of windows."""
    fields = [kind.field(place) for place in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    return [each.name for each in fields] == ["start", "end"] and all(
        pa.types.is_timestamp(each.type) for each in fields
    )


def key_parts(key: Node, kind: pa.DataType) -> list[tuple[str, Node]]:
    """Return what stands for a key, and the name of each part: of a window its bounds, of what is nested its bytes."""
    if is_window_type(kind):
        return [(name, Call("getfield", (key,), {"name": name})) for name in ("start", "end")]
    # The type is in the name, and so in the signature of the state.
    return [(f"bytes of {kind}", Call("key_bytes", (key,)))] if pa.types.is_nested(kind) else [("", key)]
