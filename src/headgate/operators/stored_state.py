"""Reads the keyed state of a checkpoint as tables: which operator wrote it is known from its signature.

Never: start a JVM, or need the program whose state it is. Bytes that only the user's classes could read stay bytes.

    signature                            tables
    -----------------------------------  --------------------------------------------------------------------------
    ... in window(...) by ...            ``groups``: keys and aggregates, as they would be emitted now
    first rows by ...                    ``keys``: the keys that are known, and until when
    the first rows                       ``rows``: how many there were
    ... join; ...                        ``left`` and ``right``: the rows that are kept, until when, and what is matched
    transformWithState by ...,           one for each state variable, and ``timers``
    applyInPandasWithState by ...
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.expressions.key_bytes import key_value
from headgate.operators.deduplicate import stored_keys
from headgate.operators.first_rows import FirstRows
from headgate.operators.stream_join.stored_rows import stored_rows
from headgate.operators.transform_with_state.stored_values import stored_values
from headgate.operators.windows.stored_windows import arrow_type, columns_in, stored_windows
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state_schema import StateSchema
from headgate.state.chunks import RestoredChunk, read_part

_TYPE = re.compile(r" \w+(\[.*\]|\(.*\)|<.*>)?$", re.DOTALL)
_BYTES = re.compile(r"(.*)\.bytes of (.*)", re.DOTALL)
Tables = Iterator[tuple[str, pa.RecordBatch | pa.Table]]


def stored_state(
    signature: str, schema: StateSchema | None, context: OperatorContext, chunks: Sequence[RestoredChunk], now_ms: int
) -> Tables:
    """Yield the tables of one subtask's state of an operator: the name of each, and rows.

    Parameters
    ----------
    signature, schema
        What the checkpoint says the state is of.
    context
        Says which subtask of how many it was.
    chunks
        All of the subtask's state, in order.
    now_ms
        What has expired by then is left out, in milliseconds since 1970-01-01 UTC.

    Raises
    ------
    StoredStateError
        A chunk cannot be read.
    UnsupportedOperationError
        Nothing is known of such state.
    """
    if schema is not None:
        yield from (("groups", batch) for batch in stored_windows(schema, context, chunks))
    elif signature.startswith("first rows by "):
        yield from (("keys", _with_values(table)) for table in stored_keys(chunks, key_names(signature)))
    elif signature == FirstRows.signature:
        yield from (("rows", read_part(chunk)) for chunk in chunks)
    elif " join; " in signature:
        for side, table in stored_rows(chunks, context, side_names(signature)):
            yield side, _with_values(table)
    elif signature.startswith(("transformWithState by ", "applyInPandasWithState by ")):
        yield from stored_values(chunks, context, now_ms)
    else:
        raise UnsupportedOperationError(
            f"The state of {context.uid!r} is of an operator that cannot be read here: {signature or 'no signature'}.",
            source=context.uid, operation="state read",
        )  # fmt: skip


def key_names(signature: str) -> list[str]:
    """Return the columns of ``first rows by``.

    Examples
    --------
    >>> key_names("first rows by user string, price decimal128(9, 2), for 1000 ms")
    ['user', 'price']
    """
    columns = re.sub(r", for \d+ ms$", "", signature.removeprefix("first rows by "))
    return _names(columns)


def side_names(signature: str) -> Mapping[str, list[str]]:
    """Return the columns of both sides of a join.

    Examples
    --------
    >>> side_names("inner join; left: id int64, at timestamp[us, tz=UTC] by id, for ever; right: id int64 by id, ...")
    {'left': ['id', 'at'], 'right': ['id']}
    """
    found = {}
    for side in ("left", "right"):
        _, _, rest = signature.partition(f"; {side}: ")
        columns, _, _ = rest.partition("; right: ")[0].rpartition(" by ")
        found[side] = _names(columns)
    return found


def _names(columns: str) -> list[str]:
    """Return the names of columns that are followed by their types."""
    return [_TYPE.sub("", each) for each in columns_in(columns)]


def _with_values(table: pa.Table) -> pa.Table:
    """Return a table with the keys whose bytes it has."""
    for place, name in enumerate(table.column_names):
        match = _BYTES.fullmatch(name)
        kind = None if match is None else arrow_type(match[2])
        if match is not None and kind is not None:
            values = key_value(table.column(place).combine_chunks(), kind)
            table = table.set_column(place, name if match[1] in table.column_names else match[1], values)
    return table
