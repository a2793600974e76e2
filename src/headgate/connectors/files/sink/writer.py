"""Stages the rows of one subtask in files that no reader sees, at least one per checkpoint that has rows.

Never: touch a file on the mailbox thread, or delete a file that a checkpoint may name.

Rows are held until a row group is worth writing, and a file is begun with its first row group: small checkpoints are
one write each. Each partition has rows and a file of its own; what all partitions hold, and how many files are open,
is bounded: the largest rows are written first, and the file that was written to longest ago is ended.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.sink.durable_files import make_durable
from headgate.connectors.files.sink.encodings import FileEncoding, RowFile, stored_schema
from headgate.connectors.files.sink.partition_folders import PartitionFolders
from headgate.connectors.files.sink.staged_files import StagedFile, StagedNames, staged_path
from headgate.errors import HeadgateError, SinkError
from headgate.protocol.state import OperatorState
from headgate.sink import SinkWriter
from headgate.sink.writer_thread import WriterThread

T = TypeVar("T")
_QUEUE_BYTES = 32 * 1024 * 1024
_GROUP_BYTES = 16 * 1024 * 1024
_CLOSE_TIMEOUT_S = 10.0
_HELD_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 2048
"""What a few rows of one partition need beside their values."""
_OPEN_FILES = 16


@contextlib.contextmanager
def as_sink_error(output: str, doing: str) -> Iterator[None]:
    """Turn what a file system or Arrow raises into a `SinkError`."""
    try:
        yield
    except (OSError, pa.ArrowException, ValueError) as error:
        if isinstance(error, HeadgateError):
            raise
        raise SinkError(f"The files sink could not {doing} in {output}: {error}", sink="files", path=output) from error


class FilesWriter(SinkWriter):
    """See `SinkWriter`.

    Parameters
    ----------
    file_system, output
        Where the query's output goes.
    encoding
        How rows are written.
    schema
        The rows' columns.
    names
        Makes the names of staged files.
    target_bytes
        A checkpoint's rows are staged in several files when they are more than that.
    folders
        Which partition each row belongs to; None: they are not partitioned.
    replaces
        Whether the rows of a checkpoint stand for those before, which are not carried on if theirs failed.
    """

    def __init__(
        self,
        file_system: pa_fs.FileSystem,
        output: str,
        encoding: FileEncoding,
        schema: pa.Schema,
        names: StagedNames,
        target_bytes: int,
        folders: PartitionFolders | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        self._fs = file_system
        self._output = output
        self._encoding = encoding
        self._schema = schema
        self._stored_schema = stored_schema(schema)
        self._target_bytes = target_bytes
        self._folders = folders
        self._replaces = replaces
        partitions = () if folders is None else folders.columns
        self._file_schema = pa.schema([each for each in self._stored_schema if each.name not in partitions])
        self._thread = WriterThread("headgate-files-sink", limit_bytes=_QUEUE_BYTES)
        # Used by the thread alone, and by close when the thread has ended.
        self._names = names
        self._has_folder = False
        self._held: dict[str, _HeldRows] = {}  # by folder, as are the files; "": no partition
        self._held_bytes = 0
        self._files: dict[str, _OpenFile] = {}  # the one that was written to last is the last
        self._ended: list[StagedFile] = []  # of the checkpoint to come
        self._carried: dict[int, list[StagedFile]] = {}  # by checkpoint

    def write(self, batch: pa.RecordBatch) -> None:
        """See `SinkWriter.write`."""
        self._thread.raise_failure()
        if batch.num_rows:
            self._submit(lambda: self._append(batch), "stage rows", batch.nbytes)

    def ready(self) -> Future[None] | None:
        """See `SinkWriter.ready`."""
        return self._thread.room()

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """See `SinkWriter.prepare_commit`."""
        return self._submit(lambda: self._stage(checkpoint_id), "stage rows")

    def discard_rows(self) -> None:
        """See `SinkWriter.discard_rows`."""
        self._submit(self._discard, "discard rows")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """See `SinkWriter.notify_checkpoint_complete`."""
        self._submit(lambda: self._forget(checkpoint_id), "forget staged files")

    def close(self) -> None:
        """See `SinkWriter.close`. Waits a little for a write under way; the committer finds what that leaves."""
        if not self._thread.stop(_CLOSE_TIMEOUT_S):
            return
        # Whatever the file system says now: the committer deletes what stays.
        with contextlib.suppress(OSError, pa.ArrowException, ValueError):
            unnamed = [staged.name for staged in self._ended]
            for open_file in self._files.values():
                unnamed.append(open_file.name)
                open_file.file.close()
            for name in unnamed:
                self._fs.delete_file(staged_path(self._output, name))

    def _submit(self, job: Callable[[], T], doing: str, size_bytes: int = 0) -> Future[T]:
        def run() -> T:
            with as_sink_error(self._output, doing):
                return job()

        return self._thread.submit(run, size_bytes)

    # From here on: on the thread.

    def _append(self, batch: pa.RecordBatch) -> None:
        # Only what the files' types leave out may be cut off: nanoseconds.
        table = pa.Table.from_batches([batch]).cast(self._schema).cast(self._stored_schema, safe=False)
        for folder, rows in [("", table)] if self._folders is None else self._folders.split(table):
            self._hold(folder, rows)
        if self._held_bytes >= _HELD_BYTES:
            for folder in sorted(self._held, key=lambda each: self._held[each].size_bytes, reverse=True):
                self._flush(folder)
                if self._held_bytes * 2 <= _HELD_BYTES:
                    break

    def _hold(self, folder: str, rows: pa.Table) -> None:
        held = self._held.setdefault(folder, _HeldRows())
        held.tables.append(rows)
        held.size_bytes += rows.nbytes
        self._held_bytes += rows.nbytes + _PIECE_BYTES
        if held.size_bytes >= _GROUP_BYTES:
            self._flush(folder)
        if folder in self._files and self._files[folder].written_bytes >= self._target_bytes:
            self._end_file(folder)

    def _flush(self, folder: str) -> None:
        held = self._held.pop(folder)
        self._held_bytes -= held.size_bytes + len(held.tables) * _PIECE_BYTES
        file = self._files.pop(folder, None) or self._begin_file()
        self._files[folder] = file
        table = pa.concat_tables(held.tables)
        file.file.write(table)
        file.rows += table.num_rows
        file.written_bytes += held.size_bytes

    def _begin_file(self) -> _OpenFile:
        if len(self._files) >= _OPEN_FILES:
            self._end_file(next(iter(self._files)))
        name = self._names.next()
        path = staged_path(self._output, name)
        if not self._has_folder:
            self._fs.create_dir(posixpath.dirname(path), recursive=True)
            self._has_folder = True
        return _OpenFile(name, self._encoding.create(self._fs, path, self._file_schema))

    def _end_file(self, folder: str) -> None:
        file = self._files[folder]
        file.file.close()
        del self._files[folder]
        path = staged_path(self._output, file.name)
        make_durable(self._fs, path)
        size = self._fs.get_file_info(path).size
        self._ended.append(StagedFile.of(self._output, file.name, file.rows, size, folder))

    def _stage(self, checkpoint_id: int) -> OperatorState:
        for folder in list(self._held):
            self._flush(folder)
            self._end_file(folder)
        for folder in list(self._files):
            self._end_file(folder)
        if self._replaces:
            self._carried.clear()
        if self._ended:
            self._carried[checkpoint_id], self._ended = self._ended, []
        carried = [staged for files in self._carried.values() for staged in files]
        return OperatorState(committables=tuple(staged.encode() for staged in carried))

    def _discard(self) -> None:
        self._held, self._held_bytes = {}, 0
        for folder in list(self._files):
            self._end_file(folder)
        for staged in self._ended:
            self._fs.delete_file(staged_path(self._output, staged.name))
        self._ended = []

    def _forget(self, checkpoint_id: int) -> None:
        self._carried = {each: files for each, files in self._carried.items() if each > checkpoint_id}


class _HeldRows:
    """Rows of one folder that are in no file yet."""

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []
        self.size_bytes = 0


class _OpenFile:
    """A staged file that is being written."""

    def __init__(self, name: str, file: RowFile) -> None:
        self.name = name
        self.file = file
        self.rows = 0
        self.written_bytes = 0
