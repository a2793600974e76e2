"""Reads Arrow IPC files: record batch by record batch, only the columns that are wanted.

Never: hold more than one of the file's batches. One that is too large is refused: it cannot be read in parts.

Follows the Arrow columnar format, "IPC File Format" (Feather 2 is the same). Spark has no such source.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.base import UnitFile, UnitFormat
from headgate.formats.columns import ColumnFitter, spark_schema
from headgate.formats.names import Names
from headgate.source.options import OptionSpec, boolean, text

OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("mergeSchema", boolean, False, "infer the columns of all files, not those of the first one"),
    OptionSpec("compression", text, None, status="no-op", why="the file says how its batches are compressed"),
)

_BATCH_ROWS = 1 << 16
_MAX_UNIT_BYTES = 128 << 20


class ArrowFormat(UnitFormat):
    """Opens Arrow IPC files.

    Parameters
    ----------
    schema
        The columns to produce.
    options
        Parsed values of `OPTIONS`, by name.
    time_zone
        Not used: Arrow's timestamps have their zone.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        self._schema = schema
        self._case_sensitive = Names.of(options).case_sensitive

    def open(self, file: pa.NativeFile, path: str) -> ArrowUnits:
        """Read the footer."""
        return ArrowUnits(file, path, self._schema, self._case_sensitive)


class ArrowUnits(UnitFile):
    """An open Arrow IPC file. Its units are record batches."""

    def __init__(self, file: pa.NativeFile, path: str, schema: pa.Schema, case_sensitive: bool) -> None:
        found = _open(file, path).schema
        self._fitter = ColumnFitter(found, schema, path, case_sensitive=case_sensitive)
        indices = sorted({found.get_field_index(name) for name in self._fitter.columns})
        # An empty list would mean all columns; the first one then only counts the rows.
        options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=indices or [0])
        file.seek(0)
        self._reader = pa.ipc.open_file(file, options=options)
        unit_bytes = file.size() // max(1, self._reader.num_record_batches)
        if unit_bytes > _MAX_UNIT_BYTES:
            raise BadDataError(
                f"headgate.files: the record batches of {path} have {unit_bytes} bytes on average; more than "
                f"{_MAX_UNIT_BYTES} cannot be read in bounded memory. Write it in smaller batches.",
                path=path, byte_offset=0,
            )  # fmt: skip

    @property
    def num_units(self) -> int:
        """The number of record batches."""
        return int(self._reader.num_record_batches)

    def rows_of_unit(self, unit: int) -> int:
        """Return the rows of a record batch, which has to be read for it."""
        return int(self._reader.get_batch(unit).num_rows)

    def read_unit(self, unit: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield a record batch, in parts where it is long."""
        batch = self._reader.get_batch(unit)
        for row in range(first_row, batch.num_rows, _BATCH_ROWS):
            yield self._fitter.fit(batch.slice(row, _BATCH_ROWS))

    def close(self) -> None:
        """Do nothing: the file is closed by who opened it."""


def infer_arrow_schema(file: pa.NativeFile, path: str) -> pa.Schema:
    """Return the columns of a file as Spark would read them."""
    return spark_schema(_open(file, path).schema)


def _open(file: pa.NativeFile, path: str) -> pa.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file)
    except (pa.ArrowException, OSError) as error:
        raise BadDataError(
            f"headgate.files: {path} is not a complete Arrow IPC file: {error}. Write it with pyarrow.ipc.new_file "
            "(the stream format cannot be split), or set 'ignoreCorruptFiles' to true to go on without it.",
            path=path, byte_offset=0,
        ) from error  # fmt: skip
