"""Rows that wait for their checkpoint: as Arrow IPC bytes, small ones in the state itself, others in durable files.

Never: name a file in a state before it is durable.

A piece is a run of rows in their order; pieces of one name are numbered from 0 without a gap.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import zlib
from collections.abc import Mapping

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.errors import CorruptStateError, OptionError
from headgate.formats.file_systems import resolve_paths
from headgate.protocol.operator_context import OperatorContext

_TOGETHER_BYTES = 64 * 1024
"""So many bytes of rows wait for others, to be one batch."""
_PIECE_BYTES = 8 * 1024 * 1024
"""Staged rows go into a file when there are so many: memory does not depend on the time between checkpoints."""
_IPC_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4" if pa.Codec.is_available("lz4") else None)


class InlineRows(msgspec.Struct, frozen=True, tag="inline"):
    """Rows in the state itself."""

    data: bytes


class RowsFile(msgspec.Struct, frozen=True, tag="file"):
    """Rows in a file. ``path`` is relative to the checkpoint location; the others are what the file must be."""

    path: str
    size_bytes: int
    crc32: int


class StagedPiece(msgspec.Struct, frozen=True):
    """A run of rows.

    Parameters
    ----------
    number
        Counts the pieces of a name.
    checkpoint_id
        The checkpoint in which it stood first: it may be published once that one, or a later one, is complete.
    rows
        Where they are.
    """

    number: int
    checkpoint_id: int
    rows: InlineRows | RowsFile


class StagedItem(msgspec.Struct, frozen=True):
    """All that one writer had staged and did not know to be published: one item of list state.

    It is one and not one for each piece: whoever gets it after a rescale is alone in writing under the name.

    Parameters
    ----------
    name
        What the rows are published under, so that a repetition is known: no other writer stages under it.
    topic
        The topic of all rows; None: they name theirs.
    pieces
        In order.
    """

    name: str
    topic: str | None
    pieces: tuple[StagedPiece, ...]


def folder_of(name: str) -> str:
    """Return where the files of a name lie, relative to the checkpoint location."""
    return f"staged/{name}"


class RowsEncoder:
    """Collects staged rows as the bytes of one IPC stream. Small batches become one: each costs a kibibyte there."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._begin()

    def _begin(self) -> None:
        self._stream = pa.BufferOutputStream()
        self._writer = pa.ipc.new_stream(self._stream, self._schema, options=_IPC_OPTIONS)
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self.rows = 0

    @property
    def size_bytes(self) -> int:
        """How many bytes there are by now, about."""
        return int(self._stream.tell()) + self._held_bytes

    def add(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self.rows += batch.num_rows
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _TOGETHER_BYTES:
            self._write()

    def _write(self) -> None:
        self._writer.write_table(pa.Table.from_batches(self._held, self._schema).combine_chunks())
        self._held, self._held_bytes = [], 0

    def take(self) -> bytes:
        """Return the bytes, and begin anew."""
        self._write()
        self._writer.close()
        data: bytes = self._stream.getvalue().to_pybytes()
        self._begin()
        return data


def staging_name(context: OperatorContext) -> str:
    """Return the name under which a writer stages: no other writer, before or after it, has the same."""
    own = (context.uid, context.run, context.subtask, context.execution)
    return f"headgate-{context.query_id}-{'-'.join(map(str, own))}"


def staging_folder(options: Mapping[str, str], sink: str, if_gone: str = "") -> StagingFolder:
    """Return where rows are staged: at the option ``checkpointLocation`` of a query.

    Parameters
    ----------
    options
        The query's, whatever the case of their names.
    sink, if_gone
        As of `StagingFolder`.

    Raises
    ------
    OptionError
        There is no ``checkpointLocation``.
    """
    location = {name.lower(): value for name, value in options.items()}.get("checkpointlocation")
    if not location:
        raise OptionError(
            f"{sink}: guarantee exactly-once stages rows with checkpoints: set the option 'checkpointLocation'.",
            option="checkpointLocation", value=location,
        )  # fmt: skip
    return StagingFolder(location, sink, if_gone)


class StagingFolder:
    """The files of staged rows below a checkpoint location.

    Parameters
    ----------
    location
        The query's checkpoint location: a path, or a URI that pyarrow opens.
    sink
        Whose rows they are, for messages.
    if_gone
        What to say when a file is gone that is in a checkpoint.

    Raises
    ------
    OptionError
        pyarrow does not know the scheme.
    """

    def __init__(self, location: str, sink: str, if_gone: str = "") -> None:
        self._sink = sink
        self._if_gone = if_gone
        self._files, (self._root,) = resolve_paths([location], "checkpointLocation")

    def write(self, path: str, data: bytes) -> RowsFile:
        """Write a new file; it is durable when this returns. Blocks."""
        full = posixpath.join(self._root, path)
        if isinstance(self._files, pa_fs.LocalFileSystem):
            _write_local(full, data)
        else:
            # An object store has a file when its stream is closed, whole or not at all; others need the folder.
            if not isinstance(self._files, pa_fs.S3FileSystem):
                self._files.create_dir(posixpath.dirname(full), recursive=True)
            with self._files.open_output_stream(full) as stream:
                stream.write(data)
        return RowsFile(path, len(data), zlib.crc32(data))

    def read(self, rows: InlineRows | RowsFile) -> pa.RecordBatchReader:
        """Return the rows of a piece. Blocks.

        Raises
        ------
        CorruptStateError
            The file is gone, or is not what was written.
        """
        return pa.ipc.open_stream(rows.data if isinstance(rows, InlineRows) else self._read_file(rows))

    def _read_file(self, rows: RowsFile) -> bytes:
        full = posixpath.join(self._root, rows.path)
        try:
            with self._files.open_input_stream(full) as stream:
                data: bytes = stream.read()
        except FileNotFoundError as error:
            raise CorruptStateError(
                f"{self._sink}: the staged rows in {full!r} are gone, and nobody knows that they were published. "
                f"{self._if_gone}If the checkpoint was copied, copy its folder 'staged' too.",
                what=full, expected=rows.size_bytes, found=None,
            ) from error  # fmt: skip
        if (len(data), zlib.crc32(data)) != (rows.size_bytes, rows.crc32):
            raise CorruptStateError(
                f"{self._sink}: the staged rows in {full!r} are not what was written: {len(data)} bytes of "
                f"{rows.size_bytes}, or others.",
                what=full, expected=rows.size_bytes, found=len(data),
            )  # fmt: skip
        return data

    def read_bytes(self, path: str) -> bytes | None:
        """Return the bytes of a file that `write` wrote; None: there is none. Blocks."""
        try:
            with self._files.open_input_stream(posixpath.join(self._root, path)) as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def delete(self, rows: InlineRows | RowsFile) -> None:
        """Delete the file of a piece that nobody needs; what cannot be deleted stays."""
        if isinstance(rows, RowsFile):
            with contextlib.suppress(OSError):
                self._files.delete_file(posixpath.join(self._root, rows.path))

    def delete_tree(self, path: str) -> None:
        """Delete a folder with all that is in it; what cannot be deleted stays."""
        with contextlib.suppress(OSError):
            self._files.delete_dir(posixpath.join(self._root, path))

    def delete_folder(self, path: str) -> None:
        """Delete a folder if it is empty; an object store has none."""
        if isinstance(self._files, pa_fs.LocalFileSystem):
            with contextlib.suppress(OSError):
                os.rmdir(posixpath.join(self._root, path))


class PieceWriter:
    """Stages rows as they come, in pieces that are numbered from 0. One thread; every call may block.

    Parameters
    ----------
    folder
        Where files are written.
    prefix
        What their paths begin with; nobody else's do.
    schema
        The rows'.
    inline_bytes
        Up to here the last piece that `take` returns is no file.
    """

    def __init__(self, folder: StagingFolder, prefix: str, schema: pa.Schema, *, inline_bytes: int = 0) -> None:
        self._folder = folder
        self._prefix = prefix
        self._inline_bytes = inline_bytes
        self._encoder = RowsEncoder(schema)
        self._pieces: list[InlineRows | RowsFile] = []  # that were not taken
        self._taken = 0

    def add(self, rows: pa.RecordBatch) -> None:
        """Stage rows; they are durable when `take` has returned."""
        self._encoder.add(rows)
        if self._encoder.size_bytes >= _PIECE_BYTES:
            self._cut(self._encoder.take())

    def take(self, checkpoint_id: int) -> list[StagedPiece]:
        """Return the pieces of all rows since the last call, which are those of a checkpoint, or of a micro-batch."""
        if self._encoder.rows:
            data = self._encoder.take()
            if len(data) <= self._inline_bytes:
                self._pieces.append(InlineRows(data))
            else:
                self._cut(data)
        pieces = [StagedPiece(number, checkpoint_id, rows) for number, rows in enumerate(self._pieces, self._taken)]
        self._taken += len(pieces)
        self._pieces = []
        return pieces

    def discard(self) -> None:
        """Delete what was not taken."""
        for rows in self._pieces:
            self._folder.delete(rows)

    def _cut(self, data: bytes) -> None:
        number = self._taken + len(self._pieces)
        self._pieces.append(self._folder.write(f"{self._prefix}{number}.arrow", data))


def _write_local(path: str, data: bytes) -> None:
    folder = os.path.dirname(path)
    new = []  # folders of which the one above must be made durable
    while folder and not os.path.isdir(folder):
        new.append(folder)
        folder = os.path.dirname(folder)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    partial = f"{path}.partial"
    with open(partial, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    for each in (path, *new):
        handle = os.open(os.path.dirname(each), os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
