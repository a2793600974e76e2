"""Reads Parquet: row groups in batches of bounded size, only the columns that are wanted.

Never: hold a row group. Pages are streamed from the file; what is held is a batch, a page and a dictionary a column.

Follows Spark 4.3, "Parquet Files" (schema merging aside).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headgate.errors import BadDataError
from headgate.formats.base import UnitFile, UnitFormat
from headgate.formats.columns import ColumnFitter, match_columns, spark_schema
from headgate.formats.names import Names
from headgate.formats.row_filter import RowFilter
from headgate.source.event_time import to_milliseconds
from headgate.source.options import OptionSpec, boolean, text
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

OPTIONS: tuple[OptionSpec, ...] = (
    OptionSpec("mergeSchema", boolean, False, "infer the columns of all files, not those of the first one"),
    OptionSpec(
        "datetimeRebaseMode", text, None, status="no-op",
        why="dates before 1582 that Spark 2 wrote are read as they are stored",
    ),
    OptionSpec(
        "int96RebaseMode", text, None, status="no-op",
        why="dates before 1582 that Spark 2 wrote are read as they are stored",
    ),
    OptionSpec("compression", text, None, status="no-op", why="the file says how its pages are compressed"),
)  # fmt: skip

BATCH_ROWS = 1 << 16
BATCH_BYTES = 8 << 20
MAX_BATCH_BYTES = 128 << 20
_BUFFER_BYTES = 1 << 20
_PROBE_ROWS = 64


class ParquetFormat(UnitFormat):
    """Opens Parquet files.

    Parameters
    ----------
    schema
        The columns to produce.
    options
        Parsed values of `OPTIONS`, by name.
    time_zone
        Not used: Parquet's timestamps have their zone.
    row_filter
        Row groups that hold no row of it, by their statistics, are not read; None reads all.
    """

    def __init__(
        self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str, row_filter: RowFilter | None = None
    ) -> None:
        self._schema = schema
        self._case_sensitive = Names.of(options).case_sensitive
        self._row_filter = row_filter

    def open(self, file: pa.NativeFile, path: str) -> ParquetUnits:
        """Read the footer."""
        return ParquetUnits(file, path, self._schema, self._row_filter, self._case_sensitive)


class ParquetUnits(UnitFile):
    """An open Parquet file. Its units are row groups."""

    def __init__(
        self,
        file: pa.NativeFile,
        path: str,
        schema: pa.Schema,
        row_filter: RowFilter | None,
        case_sensitive: bool,
    ) -> None:
        self._path = path
        self._file = open_parquet(file, path)
        self._fitter = ColumnFitter(_readable_schema(self._file), schema, path, case_sensitive=case_sensitive)
        self._row_filter = row_filter
        self._probed_row_bytes: float | None = None

    @property
    def num_units(self) -> int:
        """The number of row groups."""
        return int(self._file.num_row_groups)

    def rows_of_unit(self, unit: int) -> int:
        """Return the rows of a row group."""
        return int(self._file.metadata.row_group(unit).num_rows)

    def read_unit(self, unit: int, first_row: int) -> Iterator[pa.RecordBatch]:
        """Yield a row group; nothing of one that the filter rules out."""
        group = self._file.metadata.row_group(unit)
        if not self._may_match(group):
            return
        row_bytes = max(group.total_byte_size / max(1, group.num_rows), self._decoded_row_bytes(unit))
        if row_bytes > MAX_BATCH_BYTES:
            raise BadDataError(
                f"headgate.files: the rows of row group {unit} of {self._path} have {int(row_bytes)} bytes on average; "
                f"more than {MAX_BATCH_BYTES} cannot be read in bounded memory. Write shorter rows.",
                path=self._path, byte_offset=0,
            )  # fmt: skip
        batch_rows = max(1, min(BATCH_ROWS, int(BATCH_BYTES / max(row_bytes, 1))))
        skip = first_row
        for batch in self._batches(unit, batch_rows):
            if skip < batch.num_rows:
                yield self._fitter.fit(batch).slice(skip)
            skip = max(0, skip - batch.num_rows)

    def _decoded_row_bytes(self, unit: int) -> float:
        """Return the bytes of a row once it is decoded: a dictionary's values are stored but once.

        The first rows that are read of a file stand for all of it: probing every row group costs a fifth of the read.
        """
        if self._probed_row_bytes is None:
            if all(pa.types.is_primitive(self._file.schema_arrow.field(name).type) for name in self._fitter.columns):
                return 0.0
            first = next(self._batches(unit, _PROBE_ROWS), None)
            self._probed_row_bytes = first.nbytes / first.num_rows if first else 0.0
        return self._probed_row_bytes

    def _batches(self, unit: int, rows: int) -> Iterator[pa.RecordBatch]:
        batches: Iterator[pa.RecordBatch] = self._file.iter_batches(
            batch_size=rows, row_groups=[unit], columns=self._fitter.columns, use_threads=False
        )
        return batches

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _may_match(self, group: pq.RowGroupMetaData) -> bool:
        if self._row_filter is None:
            return True
        wanted_by_file_name = {
            found: wanted for found, wanted in zip(self._fitter.names, self._fitter.wanted_names) if found is not None
        }
        for index in range(group.num_columns):
            column = group.column(index)
            wanted = wanted_by_file_name.get(column.path_in_schema)
            statistics = column.statistics
            if wanted is None or statistics is None:
                continue
            lowest, highest = _bounds(statistics)
            nulls = statistics.null_count if statistics.has_null_count else None
            if not self._row_filter.may_match(wanted, lowest, highest, nulls, group.num_rows):
                return False
        return True


def _bounds(statistics: pq.Statistics) -> tuple[Any, Any]:
    """Return the least and the greatest value, or None for both where they are not known."""
    if not statistics.has_min_max:
        return None, None
    lowest, highest = statistics.min, statistics.max
    if isinstance(highest, float):
        highest = float("inf")  # NaN is left out of statistics, and Spark holds it greater than all
    return lowest, highest


def open_parquet(file: pa.NativeFile, path: str) -> pq.ParquetFile:
    """Return an open Parquet file that streams its pages.

    Raises
    ------
    BadDataError
        It is not a Parquet file, or is incomplete.
    """
    try:
        return pq.ParquetFile(
            file, buffer_size=_BUFFER_BYTES, pre_buffer=False, coerce_int96_timestamp_unit="us", memory_map=False
        )
    except (pa.ArrowException, OSError) as error:
        raise BadDataError(
            f"headgate.files: {path} is not a complete Parquet file: {error}. Write it again, or set "
            "'ignoreCorruptFiles' to true to go on without it.",
            path=path, byte_offset=0,
        ) from error  # fmt: skip


def earliest_event_times(
    file: pa.NativeFile, path: str, column: pa.Field, case_sensitive: bool = False
) -> tuple[int, ...]:
    """Return a lower bound of a column of times for each row group, by the statistics in the footer.

    Returns
    -------
    Milliseconds; `MIN_WATERMARK_MS` for a row group without statistics, `MAX_WATERMARK_MS` for one that has only nulls.

    Raises
    ------
    BadDataError
        It is not a Parquet file, or the column's name is ambiguous.
    """
    opened = open_parquet(file, path)
    metadata, found = opened.metadata, opened.schema_arrow
    (name,) = match_columns(found.names, pa.schema([column]), path, case_sensitive)
    if name is None:
        return (MAX_WATERMARK_MS,) * int(metadata.num_row_groups)  # all of it is read as null
    as_ms = _raw_to_ms(found.field(name).type)
    leaf = next((each for each in range(metadata.num_columns) if metadata.schema.column(each).path == name), None)
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    if leaf is None or as_ms is None:
        return (MIN_WATERMARK_MS,) * int(metadata.num_row_groups)
    return tuple([_earliest(group, leaf, as_ms) for group in groups])


def _earliest(group: pq.RowGroupMetaData, leaf: int, as_ms: Callable[[int], int]) -> int:
    statistics = group.column(leaf).statistics
    if group.num_rows == 0:
        return MAX_WATERMARK_MS
    if statistics is None:
        return MIN_WATERMARK_MS
    if statistics.has_min_max:
        return as_ms(int(statistics.min_raw))
    has_only_nulls = statistics.has_null_count and statistics.null_count == group.num_rows
    return MAX_WATERMARK_MS if has_only_nulls else MIN_WATERMARK_MS


def _raw_to_ms(data_type: pa.DataType) -> Callable[[int], int] | None:
    """Return what turns a stored time into milliseconds, rounded down; None: the type is not a time."""
    if pa.types.is_date32(data_type):
        return lambda raw: raw * 86_400_000
    if not pa.types.is_timestamp(data_type):
        return None
    return lambda raw: to_milliseconds(raw, data_type)


def _readable_schema(file: pq.ParquetFile) -> pa.Schema:
    """Return the file's columns as they are read, but Parquet's old timestamps as the instants that they are."""
    int96 = {column.path for column in file.schema if column.physical_type == "INT96"}
    return pa.schema(
        [field.with_type(pa.timestamp("us", "UTC")) if field.name in int96 else field for field in file.schema_arrow]
    )


def infer_parquet_schema(file: pa.NativeFile, path: str) -> pa.Schema:
    """Return the columns of a file as Spark would infer them."""
    return spark_schema(_readable_schema(open_parquet(file, path)))
