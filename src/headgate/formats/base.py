"""What a file format has to do, in three shapes: lines, units, whole documents.

Never: open a path, know about splits, partition folders or Spark. A format gets bytes and gives record batches.

    LineFormat      text, CSV, JSON lines      cut at line ends; position: a byte offset
    UnitFormat      Parquet, ORC, Arrow IPC    row groups, stripes, record batches; position: (unit, row)
    DocumentFormat  CSV and JSON ``multiLine`` read from the start; position: a number of rows

Follows FLIP-27, "Implementation Plan" (a row-wise and a bulk file source).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import msgspec
import pyarrow as pa

from headgate.errors import BadDataError


class LineBlock(msgspec.Struct, frozen=True):
    """Whole lines of one file.

    Parameters
    ----------
    data
        The lines, each with its end; the last line of a file may have none. Never empty. A byte order mark at the
        start of the file and header lines are already gone.
    path
        The file, for error messages.
    byte_offset
        Where ``data`` starts in the (decompressed) file, in bytes.
    header
        The file's first line without its end, where the format asked for it (``LineFormat.header``), else None.
    """

    data: bytes | memoryview
    path: str
    byte_offset: int
    header: bytes | None = None


class LineFormat(ABC):
    """Decodes lines. One instance decodes many blocks of many files, on one thread."""

    line_separator: bytes | None = None
    """What ends a line; None: ``\\n``, ``\\r\\n`` or ``\\r``, whichever comes first."""
    header: bool = False
    """Whether each file's first line is a header, kept out of the data and passed with every block."""

    def is_header(self, line: bytes) -> bool:
        """Return whether a line may be the header; those before it are skipped. The default: it is not blank."""
        return bool(line.strip())

    @abstractmethod
    def decode(self, block: LineBlock) -> pa.RecordBatch:
        """Return the rows of a block, with exactly the schema that the format was made for.

        Raises
        ------
        BadDataError
            A record contradicts the format or the schema and ``mode`` is ``FAILFAST``; facts ``path`` and
            ``byte_offset`` are those of the record.
        """


class UnitFile(ABC):
    """An open file of a `UnitFormat`."""

    @property
    @abstractmethod
    def num_units(self) -> int:
        """How many row groups, stripes or record batches the file has."""

    @abstractmethod
    def rows_of_unit(self, unit: int) -> int:
        """Return how many rows a unit has, approximately where the file does not say."""

    @abstractmethod
    def read_unit(self, unit: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit from ``first_row`` on, in batches of bounded size, in the format's schema."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class UnitFormat(ABC):
    """Opens files that are made of units."""

    @abstractmethod
    def open(self, file: pa.NativeFile, path: str) -> UnitFile:
        """Read the footer of an open file.

        Raises
        ------
        BadDataError
            The file is not of this format, is truncated, or contradicts the schema; with ``path`` and ``byte_offset``.
        """


class DocumentFormat(ABC):
    """Reads files that cannot be cut."""

    @abstractmethod
    def read(self, stream: pa.NativeFile, path: str) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a file, from its (decompressed) start, always in the same batches."""


def read_document(stream: pa.NativeFile, path: str, max_bytes: int, advice: str) -> bytes:
    """Return all of a file that is held in memory as a whole; BadDataError with ``advice`` if it is too large."""
    data: bytes = stream.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise BadDataError(f"{path} is larger than {max_bytes} bytes, {advice}", path=path, byte_offset=max_bytes)
    return data
