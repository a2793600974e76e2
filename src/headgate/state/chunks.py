"""The chunks of a checkpoint that keyed state is stored in, and what is in them.

Never: change a chunk that has a name, or read what a future version wrote.

A subtask's state is a head, which says what follows, and then parts, each a table in Arrow's stream format.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError, UnsupportedVersionError
from headgate.protocol.key_groups import KeyGroupRange
from headgate.state.mapped_files import give_back, give_back_freed

STATE_VERSION = 1
_WRITTEN_BYTES = 1 << 20
"""What is compressed at a time."""
_HEAD = "head"


class KeyedChunk(msgspec.Struct, frozen=True):
    """An immutable part of a keyed operator's state.

    Parameters
    ----------
    chunk_id
        Unique in the query for ever: made of `OperatorContext`'s uid, run, subtask, attempt, execution, and a counter.
        It is stored once, however many checkpoints name it.
    first_key_group, last_key_group
        It holds keys of these groups only, both included.
    serialize
        Returns its bytes, an Arrow IPC stream or file. Called on another thread, while the operator goes on: what it
        reads never changes.
    """

    chunk_id: str
    first_key_group: int
    last_key_group: int
    serialize: Callable[[], bytes]


class RestoredChunk(msgspec.Struct, frozen=True):
    """A chunk of the checkpoint that is restored.

    Parameters
    ----------
    chunk_id
        Its name.
    whole
        All its keys are of this subtask, and the file stays where it is: the operator may name the chunk again, under
        the same ``chunk_id``, in its next snapshot, and nothing is uploaded. False: the operator keeps only the rows of
        its own key groups, in chunks of new names.
    read
        Returns its bytes.
    """

    chunk_id: str
    whole: bool
    read: Callable[[], bytes]

    def is_named(self, name: str) -> bool:
        """Whether a head means it by a name: restored for another query, chunks have a name before their own."""
        return self.chunk_id == name or self.chunk_id.endswith(f".{name}")


def keyed_chunks(groups: KeyGroupRange, head: tuple[str, Any], parts: Iterable[tuple[str, Any]]) -> list[KeyedChunk]:
    """Return the chunks of a subtask's state.

    Parameters
    ----------
    groups
        The key groups of the subtask.
    head
        Its name, and what it says.
    parts
        The name of each, and its rows.
    """
    name, says = head
    stored = pa.table({_HEAD: pa.array([msgspec.msgpack.encode(says)], pa.binary())})
    tables = [(name, stored), *parts]
    return [
        KeyedChunk(
            chunk_id=name,
            first_key_group=groups.first,
            last_key_group=groups.last,
            serialize=partial(serialized, table),
        )
        for name, table in tables
    ]


def head_in(table: Any) -> bytes | None:
    """Return what a head says; of a part, None."""
    return table.column(_HEAD)[0].as_py() if table.column_names == [_HEAD] else None


def read_part(chunk: RestoredChunk) -> Any:
    """Return a stored part, or a head.

    Raises
    ------
    StoredStateError
        It cannot be read.
    """
    try:
        table = pa.ipc.open_stream(chunk.read()).read_all()
    except pa.ArrowInvalid as error:
        raise CorruptStateError(
            f"The keyed state in the chunk {chunk.chunk_id!r} cannot be read: {error}",
            what=chunk.chunk_id, expected="an Arrow stream", found=str(error),
        ) from error  # fmt: skip
    version = (table.schema.metadata or {}).get(b"version", b"none").decode()
    if version != str(STATE_VERSION):
        raise UnsupportedVersionError(
            f"The keyed state in the chunk {chunk.chunk_id!r} has the version {version}; this Headgate reads "
            f"version {STATE_VERSION}.",
            what=chunk.chunk_id, expected=STATE_VERSION, found=version,
        )  # fmt: skip
    return table.replace_schema_metadata(None)


def read_head(chunk: RestoredChunk) -> bytes:
    """Return what a head says; raises as `read_part`."""
    says = head_in(read_part(chunk))
    assert says is not None, f"{chunk.chunk_id} is no head"
    return says


def serialized(table: Any) -> bytes:
    """Return rows of the state as they are stored: `read_part` reads them. Any thread."""
    table = table.replace_schema_metadata({"version": str(STATE_VERSION)})
    sink = io.BytesIO()  # whose bytes are not copied once more
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        rows = max(1, table.num_rows * _WRITTEN_BYTES // max(1, table.nbytes))
        writer.write_table(table, max_chunksize=rows)
    give_back()
    if table.nbytes > _WRITTEN_BYTES:
        give_back_freed()  # each thread that uploads would keep what it needed once
    return sink.getvalue()
