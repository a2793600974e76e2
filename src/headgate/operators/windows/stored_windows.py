"""Reads the windows of a checkpoint as rows: what each group would be if its window ended now.

Never: need the program whose state it is: what is stored says of which windows, keys and aggregates it is.

The operator is made of that once more, restored as it is in a query, and emits all of its state. What only Spark's own
code can finish is given as the bytes that are stored of it, where these are in one piece.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.expressions.expressions import Constant
from headgate.operators.windows.aggregates import Accumulator, Aggregate, Partial, accumulator_of
from headgate.operators.windows.assigner import NoWindow, SessionWindow, TimeWindow
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.sessions import SessionAggregate
from headgate.operators.windows.windowed import Aggregated, Key, WindowedAggregate
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateColumn, StateSchema
from headgate.state.chunks import RestoredChunk, head_in, read_part

_TIME = "\0time"
_SLIDING = re.compile(r"window\(.*, (\S+) s, (\S+) s, (\S+) s\)", re.DOTALL)
_SESSION = re.compile(r"session_window\(.*?(?:, by row: .*|, (\S+) s)\)", re.DOTALL)
_AT = Constant(None, pa.timestamp("us", "UTC"))
_PARAMETERS = re.compile(r"(?P<call>.*?\))(?P<parameters>(?:, \w+=[^,()]*)*)", re.DOTALL)
_PARAMETER = re.compile(r", (\w+)=([^,()]*)")
_WORDS = {"True": True, "False": False, "None": None}


def stored_windows(
    schema: StateSchema, context: OperatorContext, chunks: Sequence[RestoredChunk]
) -> Iterator[pa.RecordBatch]:
    """Yield the groups of one subtask's state.

    Parameters
    ----------
    schema
        What the state is of.
    context
        Says which subtask of how many it was.
    chunks
        All its state, in order.
    """
    kinds = next((types for chunk in chunks if (types := _types_of(read_part(chunk), len(schema.keys)))), None)
    if kinds is None:
        return
    operator = _operator(schema, kinds)
    found: list[pa.RecordBatch] = []
    operator.open(context, [])
    try:
        operator.restore_keyed(chunks)
        operator.emit_state(lambda batch, _: found.append(batch))
        yield from found
    finally:
        operator.close()


def _types_of(part: Any, keys: int) -> tuple[dict[str, pa.DataType], list[pa.DataType]] | None:
    """Return the types of all columns, and those of the keys; of what is no part, None."""
    if head_in(part) is not None:
        return None
    types = {field.name: field.type for field in part.schema}
    return types, [types[f"key {number}"] for number in range(keys)]


def _operator(schema: StateSchema, kinds: tuple[dict[str, pa.DataType], list[pa.DataType]]) -> WindowedAggregate:
    types, key_types = kinds
    window = window_of(schema.window)
    name = None if isinstance(window, NoWindow) else window.name
    taken = {name, _TIME}
    keys = [_free(each.name, taken) for each in schema.keys]
    results = [_free(each.name, taken) for each in schema.aggregates]
    fields = [pa.field(key, kind) for key, kind in zip(keys, key_types)]
    fields += [pa.field(_TIME, pa.timestamp("us", "UTC"))]
    arguments: dict[str, Any] = {
        "keys": [Key(key, key, _bytes_of(each)) for key, each in zip(keys, schema.keys)],
        "aggregates": [
            Aggregated(result, _accumulator(each, number, types), None)
            for number, (each, result) in enumerate(zip(schema.aggregates, results))
        ],
        "columns": [*([name] if name else []), *keys, *results],
    }
    operator: WindowedAggregate
    if isinstance(window, SessionWindow):
        operator = SessionAggregate(pa.schema(fields), window, time=_TIME, **arguments)
    else:
        time = None if window.time is None else _TIME
        operator = WindowAggregate(pa.schema(fields), window, time=time, **arguments)
    operator.state_schema = schema
    return operator


def _bytes_of(key: StateColumn) -> pa.DataType | None:
    """Return the type of a key whose bytes are stored; None: its values are."""
    kind = arrow_type(key.kind)
    return kind if kind is not None and pa.types.is_nested(kind) else None


def _free(name: str, taken: set[str | None]) -> str:
    """Return a name that is not taken, and take it."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name} {number}", number + 1
    taken.add(free)
    return free


def window_of(text: str) -> TimeWindow | SessionWindow | NoWindow:
    """Return windows of what their ``text`` says.

    Examples
    --------
    >>> found = window_of("window(at, 60 s, 15 s, 0 s)")
    >>> found.size_us, found.slide_us
    (60000000, 15000000)
    >>> window_of("session_window(at, 0.5 s)").gap_us
    500000
    >>> window_of("session_window(at, by row: concat(n, 5 s))").gap_us
    0
    """
    if match := _SLIDING.fullmatch(text):
        size, slide, start = (round(float(each) * 1_000_000) for each in match.groups())
        return TimeWindow(_AT, size, slide, start)
    if match := _SESSION.fullmatch(text):
        return SessionWindow(_AT, round(float(match[1] or 0) * 1_000_000))
    return NoWindow(_AT if text.startswith("no window, until ") else None)


def _accumulator(column: StateColumn, number: int, types: dict[str, pa.DataType]) -> Accumulator:
    """Return how an aggregate is merged and finished, of its column."""
    stored = [types[name] for place in range(8) if (name := f"partial {number} {place}") in types]
    kind = arrow_type(column.kind) if column.kind else None
    match = _PARAMETERS.fullmatch(column.name)
    if column.can_widen and match is not None and (kind is not None or not column.kind):
        parameters = {name: _value(text) for name, text in _PARAMETER.findall(match["parameters"])}
        try:
            made = accumulator_of(Aggregate(match["call"].partition("(")[0], parameters=parameters), kind)
        except (KeyError, ValueError):  # another version's
            return _AsStored(column.name, stored)
        if [each.kind for each in made.partials] == stored:
            return made
    return _AsStored(column.name, stored)


def _value(text: str) -> Any:
    return _WORDS[text] if text in _WORDS else float(text)


class _AsStored(Accumulator):
    """An aggregate of which only is known how its partial results are stored."""

    two_phase = False

    def __init__(self, of: str, stored: Sequence[pa.DataType]) -> None:
        self.partials = tuple(Partial(kind, "buffers", of, _single) for kind in stored)
        self.kind = stored[0] if len(stored) == 1 else pa.struct([(str(n), each) for n, each in enumerate(stored)])

    def lift(self, values: Any, rows: int) -> list[Any]:
        """Never called: no rows come."""
        raise NotImplementedError

    def finish(self, partials: Sequence[Any]) -> Any:
        """Return what is stored."""
        return partials[0] if len(partials) == 1 else pa.StructArray.from_arrays(partials, fields=list(self.kind))


def _single(buffers: Any, groups: Any) -> Any:
    """Return what is stored of each group; null where it is in several pieces."""
    starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
    counts = np.diff(np.concatenate([starts, [len(groups)]]))
    return buffers.take(pa.array(starts, mask=counts > 1))


_TIMESTAMP = re.compile(r"timestamp\[(\w+), tz=(.+)\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (\d+)\)")
_NESTED = re.compile(r"(list|struct)<(.+)>", re.DOTALL)


def arrow_type(text: str) -> pa.DataType | None:
    """Return an Arrow type of its text; None: one that is not known.

    Examples
    --------
    >>> [arrow_type(str(kind)) == kind for kind in (pa.int64(), pa.decimal128(9, 2), pa.timestamp("us", "UTC"))]
    [True, True, True]
    >>> arrow_type("list<element: struct<a: int32, b: list<element: decimal128(9, 2)>>>").value_type.names
    ['a', 'b']
    """
    if match := _NESTED.fullmatch(text):
        names, _, types = zip(*(each.partition(": ") for each in columns_in(match[2])))
        kinds = [arrow_type(each) for each in types]
        if any(kind is None for kind in kinds):
            return None
        fields = list(map(pa.field, names, kinds))
        return pa.struct(fields) if match[1] == "struct" else pa.list_(fields[0])
    if match := _TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1], match[2])
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    try:
        return pa.type_for_alias(text)
    except ValueError:
        return None


def columns_in(text: str) -> list[str]:
    """Return the columns of a list of them, with their types.

    Examples
    --------
    >>> columns_in("a list<element: int32>, b decimal128(9, 2)")
    ['a list<element: int32>', 'b decimal128(9, 2)']
    """
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([<") - (sign in ")]>")
        if depth == 0 and text.startswith(", ", place):
            parts.append(text[start:place])
            start = place + 2
    return [*parts, text[start:]]
