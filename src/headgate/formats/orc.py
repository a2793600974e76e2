"""Reads ORC: only the columns that are wanted, in batches of bounded size.

Never: hold a large stripe. pyarrow reads single stripes as a whole only, so a file with large ones is one unit, read
as a stream from its start; a file with small ones can be read in parts, stripe by stripe.

Follows Spark 4.3, "ORC Files".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyarrow import orc

from headgate.errors import BadDataError
from headgate.formats.base import UnitFile, UnitFormat
from headgate.formats.columns import ColumnFitter, spark_schema, with_leaves
from headgate.formats.names import Names
from headgate.formats.values_datetime import Zone, zone_of
from headgate.source.options import OptionSpec, boolean, text

OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("mergeSchema", boolean, False, "infer the columns of all files, not those of the first one"),
    OptionSpec("compression", text, None, status="no-op", why="the file says how its stripes are compressed"),
)

_BATCH_ROWS = 1 << 16
_SMALL_STRIPE_BYTES = 16 << 20
_SMALL_STRIPE_DECODED_BYTES = 64 << 20
_BYTES_OF_A_TEXT = 64


class OrcFormat(UnitFormat):
    """Opens ORC files.

    Parameters
    ----------
    schema
        The columns to produce.
    options
        Parsed values of `OPTIONS`, by name.
    time_zone
        The session's time zone: ORC's ordinary timestamps are local times, which Spark takes for instants.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str) -> None:
        self._schema = schema
        self._zone = zone_of(time_zone)
        self._case_sensitive = Names.of(options).case_sensitive

    def open(self, file: pa.NativeFile, path: str) -> OrcUnits:
        """Read the footer."""
        return OrcUnits(file, path, self._schema, self._zone, self._case_sensitive)


class OrcUnits(UnitFile):
    """An open ORC file. Its units are its stripes, or it is one unit if those are large."""

    def __init__(self, file: pa.NativeFile, path: str, schema: pa.Schema, zone: Zone, case_sensitive: bool) -> None:
        self._raw = file
        self._file = _open(file, path)
        self._fitter = ColumnFitter(self._file.schema, schema, path, zone, case_sensitive)
        # Decided by the file alone: positions must mean the same after any restart.
        self._whole = not _has_small_stripes(self._file)

    @property
    def num_units(self) -> int:
        """The number of stripes, or one."""
        return min(1, self._file.nrows) if self._whole else int(self._file.nstripes)

    def rows_of_unit(self, unit: int) -> int:
        """Return the rows of an average stripe: pyarrow does not report those of a single one."""
        return -(-int(self._file.nrows) // max(1, self.num_units))

    def read_unit(self, unit: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a unit."""
        skip = first_row
        # Without any column pyarrow gives no rows, which are to be counted even then.
        columns = self._fitter.columns or self._file.schema.names[:1]
        for batch in self._stream(columns) if self._whole else [self._file.read_stripe(unit, columns=columns)]:
            for row in range(skip, batch.num_rows, _BATCH_ROWS):
                yield self._fitter.fit(batch.slice(row, _BATCH_ROWS))
            skip = max(0, skip - batch.num_rows)

    def close(self) -> None:
        """Do nothing: the file is closed by who opened it."""

    def _stream(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        self._raw.seek(0)
        from pyarrow import dataset as pa_dataset  # imports pandas, which every other read can do without

        fragment = pa_dataset.OrcFileFormat().make_fragment(self._raw)
        scanner = fragment.scanner(
            columns=columns, batch_size=_BATCH_ROWS, batch_readahead=0, fragment_readahead=0, use_threads=False
        )
        yield from scanner.to_batches()


def _has_small_stripes(file: orc.ORCFile) -> bool:
    stripes = max(1, file.nstripes)
    row_bytes = sum(_width(field.type) for field in file.schema)
    decoded_bytes = file.nrows * row_bytes // stripes
    return bool(file.content_length // stripes <= _SMALL_STRIPE_BYTES and decoded_bytes <= _SMALL_STRIPE_DECODED_BYTES)


def _width(data_type: pa.DataType) -> int:
    return data_type.bit_width // 8 + 1 if pa.types.is_primitive(data_type) else _BYTES_OF_A_TEXT


def infer_orc_schema(file: pa.NativeFile, path: str) -> pa.Schema:
    """Return the columns of a file as Spark would infer them."""
    found = spark_schema(_open(file, path).schema)
    return pa.schema([field.with_type(with_leaves(field.type, _as_instant)) for field in found])


def _as_instant(data_type: pa.DataType) -> pa.DataType:
    """Return instants in place of local times: to Spark, ORC's timestamps are those."""
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(data_type) else data_type


def _open(file: pa.NativeFile, path: str) -> orc.ORCFile:
    try:
        return orc.ORCFile(file)
    except (pa.ArrowException, OSError) as error:
        raise BadDataError(
            f"headgate.files: {path} is not a complete ORC file: {error}. Write it again, or set 'ignoreCorruptFiles' "
            "to true to go on without it.",
            path=path, byte_offset=0,
        ) from error  # fmt: skip
