"""Reads one split of a file from its position to its end, batch by batch, each with the split after it.

Never: know of other splits, threads or Spark. A cursor is an iterator; whoever holds it decides when to go on.

Follows FLIP-27, "Implementation Plan" (row-wise and bulk files), and Spark 4.3, "Generic File Source Options" for
``ignoreMissingFiles`` and ``ignoreCorruptFiles``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.compression import codec_of, open_decompressed
from headgate.connectors.files.lines import (
    BLOCK_BYTES,
    MAX_LINE_BYTES,
    LineCutter,
    Window,
    can_be_cut,
    plain_reader,
)
from headgate.connectors.files.partitions import partition_scalar
from headgate.connectors.files.split import FileSplit
from headgate.errors import BadDataError, DataLossError, HeadgateError, InternalError, SourceUnavailableError
from headgate.formats.base import DocumentFormat, LineBlock, LineFormat, UnitFormat
from headgate.formats.names import Names
from headgate.formats.row_filter import RowFilter

Format = LineFormat | UnitFormat | DocumentFormat
Step = tuple[pa.RecordBatch | None, FileSplit]
PositionAt = Callable[[int], FileSplit]
_Read = tuple[pa.RecordBatch | None, FileSplit, PositionAt | None]

_log = logging.getLogger(__name__)


class FileReadSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How files are read, whatever their format.

    Parameters
    ----------
    file_system
        Where the files are.
    schema
        The columns to produce, partition columns included.
    time_zone
        The zone in which partition folders' timestamps are read.
    row_filter
        Rows that are wanted, or None for all; files whose folders rule them out are not opened.
    names
        Which names of columns and folders are one.
    ignore_missing_files, ignore_corrupt_files
        Warn and go on instead of raising.
    block_bytes, max_line_bytes
        For lines: how much is read at once, and the longest line that is not an error.
    """

    file_system: pa_fs.FileSystem
    schema: pa.Schema
    time_zone: str = "UTC"
    row_filter: RowFilter | None = None
    names: Names = msgspec.field(default_factory=Names)
    ignore_missing_files: bool = False
    ignore_corrupt_files: bool = False
    block_bytes: int = BLOCK_BYTES
    max_line_bytes: int = MAX_LINE_BYTES


class FileCursor:
    """An open split. Iterating gives (rows or None, the split after them); the end is the end of the split.

    Parameters
    ----------
    split
        Where to begin.
    file_format
        Decodes; made for the columns of the schema that are not partition columns of the file.
    settings
        How to read.

    Attributes
    ----------
    split
        The split after the rows returned last.
    position_at
        Returns the split after the first so many of those rows; None where only all of them have a position: in files
        of lines, and where the row filter took rows out.
    """

    def __init__(self, split: FileSplit, file_format: Format, settings: FileReadSettings) -> None:
        self.split = split
        self.position_at: PositionAt | None = None
        self._format = file_format
        self._settings = settings
        self._file: pa.NativeFile | None = None
        self._steps = self._read()
        self._constants = {
            field.name: partition_scalar(field.name, text, field.type, split.path, settings.time_zone)
            for field in settings.schema
            for text in _partition_texts(split.partitions, field.name, settings.names)
        }

    def __iter__(self) -> Iterator[Step]:
        return self

    def __next__(self) -> Step:
        """Return the next rows and the split after them.

        Raises
        ------
        DataLossError
            The file vanished or shrank.
        BadDataError
            The file or a record in it is malformed.
        SourceUnavailableError
            The file system failed.
        """
        try:
            batch, self.split, self.position_at = next(self._steps)
        except (HeadgateError, OSError, pa.ArrowException, EOFError) as error:
            self.close()
            self._raise_unless_ignored(error)
            raise StopIteration from None
        if batch is None or batch.num_rows == 0:
            self.position_at = None
            return None, self.split
        batch = self._complete(batch)
        if self._settings.row_filter is not None:
            kept = self._settings.row_filter.keep(batch)
            if kept.num_rows < batch.num_rows:
                self.position_at = None
            batch = kept
        return batch, self.split

    def close(self) -> None:
        """Close the file. May be called twice."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> Iterator[_Read]:
        if not self._folders_may_match():
            return
        file = self._file = self._open()
        match self._format:
            case LineFormat():
                steps = _read_lines(self.split, file, self._format, self._settings)
            case UnitFormat():
                steps = _read_units(self.split, file, self._format)
            case DocumentFormat():
                steps = _read_document(self.split, file, self._format)
        yield from steps
        self.close()

    def _folders_may_match(self) -> bool:
        row_filter = self._settings.row_filter
        values = ((name, scalar.as_py()) for name, scalar in self._constants.items())
        return row_filter is None or all(
            row_filter.may_match(name, value, value, int(value is None), 1) for name, value in values
        )

    def _open(self) -> pa.NativeFile:
        split, file_system = self.split, self._settings.file_system
        file = file_system.open_input_file(split.path)
        size = file.size()
        if size < split.size:
            file.close()
            raise DataLossError(
                f"headgate.files: {split.path} has {size} bytes, but {split.size} when it was listed: it has shrunk or "
                "was replaced. Files must not change once they are there. Restore it, or set 'ignoreMissingFiles' to "
                "true to go on without it.",
                path=split.path, wanted=split.size, available=size,
            )  # fmt: skip
        if size > split.size and not isinstance(self._format, LineFormat):
            file.close()
            raise DataLossError(
                f"headgate.files: {split.path} has {size} bytes, but {split.size} when it was listed: it was replaced "
                "or is still being written. Move files into the folder when they are complete.",
                path=split.path, wanted=split.size, available=size,
            )  # fmt: skip
        return file

    def _complete(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Put the partition columns in, and the columns into the schema's order."""
        if not self._constants and batch.schema.equals(self._settings.schema):
            return batch
        columns = []
        for field in self._settings.schema:
            constant = self._constants.get(field.name)
            columns.append(batch.column(field.name) if constant is None else pa.repeat(constant, batch.num_rows))
        return pa.RecordBatch.from_arrays(columns, schema=self._settings.schema)

    def _raise_unless_ignored(self, error: Exception) -> None:
        ours = self._as_ours(error)
        ignored = (isinstance(ours, DataLossError) and self._settings.ignore_missing_files) or (
            isinstance(ours, BadDataError)
            and self._settings.ignore_corrupt_files
            and not (isinstance(error, BadDataError) and isinstance(self._format, LineFormat))
        )
        if not ignored:
            raise ours from (None if ours is error else error)
        _log.warning("The rest of a file is skipped. %s", ours.message)

    def _as_ours(self, error: Exception) -> HeadgateError:
        path, offset = self.split.path, self.split.position or self.split.start
        if isinstance(error, HeadgateError):
            return error
        if isinstance(error, FileNotFoundError):
            return DataLossError(
                f"headgate.files: {path} is gone; it was there when it was listed. Restore it, or set "
                "'ignoreMissingFiles' to true to go on without it.",
                path=path, wanted=self.split.size, available=0,
            )  # fmt: skip
        # Arrow's S3 has no error numbers: a refusal or a lost connection must not look like a damaged file.
        if isinstance(error, OSError) and (error.errno or "AWS Error " in str(error)):
            hint = ""
            if "ACCESS_DENIED" in str(error):
                hint = (
                    " Credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, or a role), on "
                    "driver and executors, or be part of the path: s3://KEY:SECRET@bucket/folder."
                )
            return SourceUnavailableError(
                f"headgate.files cannot read {path} at byte {offset}: {error}.{hint}",
                source="headgate.files", path=path,
            )  # fmt: skip
        return BadDataError(
            f"headgate.files: {path} cannot be read after byte {offset}: {error}. The file is damaged or incomplete. "
            "Write it again, or set 'ignoreCorruptFiles' to true to go on without the rest of it.",
            path=path, byte_offset=offset,
        )  # fmt: skip


def _partition_texts(partitions: Mapping[str, str | None], column: str, names: Names) -> list[str | None]:
    return [text for name, text in partitions.items() if names.same(name, column)]


def open_lines(
    split: FileSplit, file: pa.NativeFile, fmt: LineFormat, block_bytes: int, max_line_bytes: int
) -> tuple[LineCutter, bytes | None, int, int | None]:
    """Return what cuts a file into lines, the header, where the split's next line starts, and where its last one ends.

    The last is None for compressed files, which are read to their end.
    """
    compressed = codec_of(split.path) is not None
    read_at = Window(open_decompressed(file, split.path)).read_at if compressed else plain_reader(file, split.size)
    cutter = LineCutter(read_at, split.path, fmt.line_separator, block_bytes, max_line_bytes)
    header, first = None, 0
    if fmt.header:
        header, first = cutter.first_line(fmt.is_header)
    elif split.start == 0 and split.position is None:
        first = cutter.text_start()
    if compressed or not can_be_cut(fmt.line_separator):
        return cutter, header, split.position or first, (None if compressed else split.size)
    begin = max(first, cutter.line_start(split.start if split.position is None else split.position))
    stop = split.size if split.end >= split.size else cutter.line_start(split.end)
    return cutter, header, begin, stop


def _read_lines(split: FileSplit, file: pa.NativeFile, fmt: LineFormat, settings: FileReadSettings) -> Iterator[_Read]:
    cutter, header, offset, stop = open_lines(split, file, fmt, settings.block_bytes, settings.max_line_bytes)
    for data, end in cutter.blocks(offset, stop):
        try:
            batch = fmt.decode(LineBlock(data, split.path, offset, header))
        except pa.ArrowException as error:
            raise InternalError(f"The lines at byte {offset} of {split.path} cannot be decoded: {error}.") from error
        offset = end
        yield batch, msgspec.structs.replace(split, position=end), None


def units_of(split: FileSplit, count: int) -> list[int]:
    """Return the units that a split holds and that are not read yet, of a file that has ``count``."""
    first = 0 if split.unit is None else split.unit
    return [unit for unit in range(first, count) if split.start <= unit * split.size // count < split.end]


def _read_units(split: FileSplit, file: pa.NativeFile, fmt: UnitFormat) -> Iterator[_Read]:
    opened = fmt.open(file, split.path)
    try:
        for unit in units_of(split, opened.num_units):
            row = (split.position or 0) if unit == split.unit else 0
            for batch in opened.read_unit(unit, row):
                position_at = partial(_row_position, split, unit, row)
                row += batch.num_rows
                yield batch, msgspec.structs.replace(split, unit=unit, position=row), position_at
    finally:
        opened.close()


def _read_document(split: FileSplit, file: pa.NativeFile, fmt: DocumentFormat) -> Iterator[_Read]:
    skip = split.position or 0
    row = 0
    for batch in fmt.read(open_decompressed(file, split.path), split.path):
        row += batch.num_rows
        if row > skip:
            fresh = batch.slice(max(0, batch.num_rows - (row - skip)))
            position_at = partial(_row_position, split, None, row - fresh.num_rows)
            yield fresh, msgspec.structs.replace(split, position=row), position_at


def _row_position(split: FileSplit, unit: int | None, first: int, rows: int) -> FileSplit:
    return msgspec.structs.replace(split, unit=unit, position=first + rows)
