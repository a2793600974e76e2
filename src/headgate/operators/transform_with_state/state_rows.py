"""The rows of which a snapshot of keyed state is made, and how rows of several snapshots become one.

Never: look at a value, or change a table: tables are shared with threads that store them.

A chunk is one Arrow IPC stream. Its schema's metadata says the version, the key's columns, and the states by number:

    column    what
    --------  ---------------------------------------------------------------------------------------------
    state     the number of the state in the metadata; `TIMERS`, `PROGRESS`
    group     the key group
    key       the key (`headgate.operators.transform_with_state.row_codec`)
    entry     of a map: the key in it; of timers: the time, 8 bytes, big endian; of progress: the key group
    op        what is to be done:
    value     the value
    expiry    when it expires, in milliseconds since 1970-01-01 UTC; of progress: the watermark up to which timers fired

    op      of                           means
    ------  ---------------------------  -------------------------------------------------------------------
    SET     value, map, timer, progress  what stood under (state, key, entry) is replaced
    APPEND  list                         an item more
    CLEAR   value, list, map             what came before of (state, key) is gone
    REMOVE  map, timer                   what stood under (state, key, entry) is gone

Rows apply in their order. Of rows that nothing lies below, tombstones and what is expired are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import CorruptStateError, UnsupportedVersionError

VERSION = 1
SET, APPEND, CLEAR, REMOVE = range(4)
TIMERS = -1
"""The number under which timers stand."""
PROGRESS = -2
"""The number under which each key group stands, once for all: that its initial state was handled, and its watermark."""

SCHEMA = pa.schema(
    [
        pa.field("state", pa.int16(), nullable=False),
        pa.field("group", pa.uint16(), nullable=False),
        pa.field("key", pa.large_binary(), nullable=False),
        pa.field("entry", pa.large_binary()),
        pa.field("op", pa.int8(), nullable=False),
        pa.field("value", pa.large_binary()),
        pa.field("expiry", pa.int64()),
    ]
)
_METADATA = b"headgate.transform-with-state"
_RESERVED = 2  # TIMERS and PROGRESS
Kind = Literal["value", "list", "map"]
Row = tuple[int, int, bytes, bytes | None, bytes | None, int | None]


class Rows:
    """Collects rows."""

    def __init__(self) -> None:
        self._rows: list[tuple[Any, ...]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(
        self,
        state: int,
        group: int,
        key: bytes,
        entry: bytes | None,
        op: int,
        value: bytes | None = None,
        expiry: int | None = None,
    ) -> None:
        """Add a row."""
        self._rows.append((state, group, key, entry, op, value, expiry))

    def table(self) -> pa.Table:
        """Return them as a table."""
        columns = zip(*self._rows, strict=True) if self._rows else ((),) * len(SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)]
        return pa.Table.from_arrays(arrays, schema=SCHEMA)


def compact(tables: Sequence[pa.Table], *, lowest: bool, now_ms: int) -> pa.Table:
    """Return the rows of several tables as one that has the same effect.

    Parameters
    ----------
    tables
        The older one first.
    lowest
        Whether nothing lies below them.
    now_ms
        What expires up to it is left out if nothing lies below, in milliseconds since 1970-01-01 UTC.
    """
    table = pa.concat_tables(tables).combine_chunks()
    rows = table.num_rows
    if rows == 0:
        return table
    state, op = _numbers(table, "state"), _numbers(table, "op")
    place = np.arange(rows)
    owner = _codes(table, "key") * (int(state.max()) + _RESERVED + 1) + state + _RESERVED
    _, owner = np.unique(owner, return_inverse=True)
    cleared = np.full(int(owner.max()) + 1, -1)
    clear = op == CLEAR
    cleared[owner[clear]] = place[clear]  # of several the last one stays
    keep: npt.NDArray[np.bool_] = place > cleared[owner]
    named = keep & ((op == SET) | (op == REMOVE))
    entry = owner[named] * (rows + 1) + _codes(table, "entry")[named]
    keep[named] = _is_last(entry)
    if lowest:
        expiry = _numbers(table, "expiry", LAST_EXPIRY)
        keep &= (op != REMOVE) & ((expiry > now_ms) | (state == PROGRESS))
    else:
        keep |= clear & (place == cleared[owner])
    return table.filter(pa.array(keep))


LAST_EXPIRY = 2**63 - 1
"""Stands for none."""


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Yield (state, group, key, entry, value, expiry) of a table that has no obsolete rows left."""
    names = ("state", "group", "key", "entry", "value", "expiry")
    return zip(*(table.column(name).to_pylist() for name in names), strict=True)


def _numbers(table: pa.Table, name: str, null: int = 0) -> npt.NDArray[Any]:
    numbers: npt.NDArray[Any] = table.column(name).fill_null(null).to_numpy()
    return numbers


def _codes(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    """Return a number for each value of a column, the same for the same."""
    encoded = table.column(name).combine_chunks().dictionary_encode(null_encoding="encode")
    codes: npt.NDArray[np.int64] = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    return codes


def _is_last(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Return which ones do not come again."""
    _, first_from_end = np.unique(codes[::-1], return_index=True)
    last = np.zeros(len(codes), bool)
    last[len(codes) - 1 - first_from_end] = True
    return last


# Chunks.


class ChunkHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The metadata of a chunk.

    Parameters
    ----------
    version
        `VERSION`.
    keys
        The columns of the key, as Spark's JSON.
    states
        Name, kind, schema and key's schema of each state, in the order of their numbers.
    """

    version: int
    keys: str
    states: tuple[tuple[str, Kind, str, str], ...]


_headers = msgspec.json.Decoder(ChunkHeader)


def write_chunk(table: pa.Table, header: ChunkHeader) -> bytes:
    """Return a chunk's bytes."""
    sink = pa.BufferOutputStream()
    schema = SCHEMA.with_metadata({_METADATA: msgspec.json.encode(header)})
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    return bytes(sink.getvalue())


def read_chunk(data: bytes, chunk_id: str) -> tuple[pa.Table, ChunkHeader]:
    """Return what a chunk holds.

    Raises
    ------
    StoredStateError
        It is not a chunk of transformWithState's, or of another version.
    """
    try:
        table = pa.ipc.open_stream(data).read_all()
        metadata = (table.schema.metadata or {})[_METADATA]
        version = msgspec.json.decode(metadata)["version"]
    except (pa.ArrowException, KeyError, TypeError, msgspec.DecodeError) as error:
        raise CorruptStateError(
            f"The chunk {chunk_id} of keyed state cannot be read as one of transformWithState: {error!r}.",
            what=chunk_id, expected="rows of keyed state", found=repr(error),
        ) from error  # fmt: skip
    if version != VERSION:
        raise UnsupportedVersionError(
            f"The chunk {chunk_id} of keyed state has version {version}; this Headgate reads version {VERSION}.",
            what=chunk_id, expected=VERSION, found=version,
        )  # fmt: skip
    return table.replace_schema_metadata(None), _headers.decode(metadata)
