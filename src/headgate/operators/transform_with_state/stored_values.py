"""Reads the state variables and timers of a checkpoint's `transformWithState` as rows.

Never: need the processor's class: names, kinds and schemas are stored with the state.

    of      columns beside those of the key
    ------  ----------------------------------------------------------
    value   those of the value; ``expires``
    list    ``position``, from 0; those of an item; ``expires``
    map     those of the map's key, those of the value; ``expires``
    timers  ``timer``: when it fires
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.operators.transform_with_state.keyed_store import StateVariable
from headgate.operators.transform_with_state.row_codec import RowCodec
from headgate.operators.transform_with_state.state_rows import TIMERS, Row, compact, read_chunk, rows_of
from headgate.operators.transform_with_state.stored_states import StoredStates
from headgate.protocol.key_groups import KeyGroupRange
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import RestoredChunk

_TIME = pa.timestamp("ms", "UTC")


def stored_values(
    chunks: Sequence[RestoredChunk], context: OperatorContext, now_ms: int
) -> Iterator[tuple[str, pa.Table]]:
    """Yield a table for each state variable of one subtask, and one of its timers.

    Parameters
    ----------
    chunks
        All its state, the older ones first.
    context
        Says which operator it is, and how many key groups there are.
    now_ms
        What has expired by then is left out, in milliseconds since 1970-01-01 UTC.
    """
    read = [read_chunk(chunk.read(), chunk.chunk_id) for chunk in chunks]
    if not read:
        return
    states = StoredStates(context.uid, "the state", read[-1][1].keys, (), ())
    for _, header in reversed(read):  # the newest one says which columns a state has
        states.take_on(header)
    every = KeyGroupRange(0, context.max_parallelism - 1)
    table = compact([states.own_rows(table, header, every) for table, header in read], lowest=True, now_ms=now_ms)
    by_state: dict[int, list[Row]] = {}
    for row in rows_of(table):
        by_state.setdefault(row[0], []).append(row)
    key = _Columns(read[-1][1].keys, "the key")
    for number, variable in enumerate(states.variables):
        yield variable.name, _values(key, variable, by_state.get(number, []))
    if TIMERS in by_state:
        timers = by_state[TIMERS]
        times = pa.array([int.from_bytes(row[3] or b"", "big", signed=True) for row in timers], pa.int64())
        yield "timers", _table([*key.columns([row[2] for row in timers]), ("timer", times.cast(_TIME))])


class _Columns:
    """Rows of a Spark schema, as columns.

    Parameters
    ----------
    schema
        As Spark's JSON.
    what
        Names it in errors.
    """

    def __init__(self, schema: str, what: str) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema
        from pyspark.sql.types import StructType

        spark = StructType.fromJson(msgspec.json.decode(schema))
        self._schema = to_arrow_schema(spark)
        self._codec = RowCodec(spark, what, datetime.UTC)

    def columns(self, rows: Sequence[bytes | None]) -> list[tuple[str, pa.Array]]:
        """Return the columns of rows, with their names."""
        values = [None if row is None else self._codec.decode(row) for row in rows]
        return [
            (field.name, _array([None if row is None else row[place] for row in values], field.type))
            for place, field in enumerate(self._schema)
        ]


def _array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError):  # such as an interval, or a timestamp without a zone
        return pa.array([None if value is None else str(value) for value in values], pa.string())


def _values(key: _Columns, variable: StateVariable, rows: Sequence[Row]) -> pa.Table:
    columns = key.columns([row[2] for row in rows])
    if variable.kind == "list":
        columns.append(("position", pa.array(_positions(rows), pa.int64())))
    if variable.kind == "map":
        columns += _Columns(variable.key_schema, f"the keys of {variable.name!r}").columns([row[3] for row in rows])
    columns += _Columns(variable.schema, f"the state {variable.name!r}").columns([row[4] for row in rows])
    columns.append(("expires", pa.array([row[5] for row in rows], pa.int64()).cast(_TIME)))
    return _table(columns)


def _positions(rows: Sequence[Row]) -> list[int]:
    """Return which item of its key's list each row is."""
    counts: dict[bytes, int] = {}
    places = []
    for row in rows:
        place = counts.get(row[2], 0)
        counts[row[2]] = place + 1
        places.append(place)
    return places


def _table(columns: Sequence[tuple[str, pa.Array]]) -> pa.Table:
    """Return columns whose names may be given several times: the later ones get a number."""
    names: list[str] = []
    for name, _ in columns:
        free, number = name, 2
        while free in names:
            free, number = f"{name} {number}", number + 1
        names.append(free)
    return pa.table([array for _, array in columns], names=names)
