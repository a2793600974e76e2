"""Writes rows to files as Spark's file sinks do, and puts several such files into one: Parquet, JSON, CSV.

Never: hold more than a row group in memory.

Parquet: timestamps are microseconds in UTC (without a zone: Spark's ``timestamp_ntz``), nullability is the schema's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from headgate.connectors.files.sink.csv_lines import CsvDialect, check_csv_type, csv_header, csv_lines
from headgate.connectors.files.sink.json_lines import check_json_type, json_lines
from headgate.formats.columns import with_leaves

_GROUP_BYTES = 64 * 1024 * 1024
_SLICE_BYTES = 16 * 1024 * 1024
_CHUNK_BYTES = 1024 * 1024


class RowFile(ABC):
    """A file that is being written."""

    @abstractmethod
    def write(self, table: pa.Table) -> None:
        """Append rows that have the schema of `FileEncoding.stored_schema`."""

    @abstractmethod
    def close(self) -> None:
        """End the file and its upload: it is durable when this returns."""


class FileEncoding(ABC):
    """One format with its options. Pickled to every slot."""

    name: str
    extension: str
    """What file names end with, without the dot at its beginning."""

    @abstractmethod
    def check_type(self, data_type: pa.DataType) -> bool:
        """Return whether the format can hold values of a type."""

    @abstractmethod
    def create(self, file_system: pa_fs.FileSystem, path: str, schema: pa.Schema) -> RowFile:
        """Begin a file."""

    @abstractmethod
    def merge(self, file_system: pa_fs.FileSystem, paths: Sequence[str], target: str) -> None:
        """Write the rows of files with equal schema to one, in order."""


class ParquetEncoding(FileEncoding):
    """Parquet.

    Parameters
    ----------
    compression
        A codec of Parquet's, in lower case; ``none``: no compression.
    """

    name = "parquet"

    def __init__(self, compression: str) -> None:
        self._compression = compression
        self.extension = "parquet" if compression == "none" else f"{compression}.parquet"

    def check_type(self, data_type: pa.DataType) -> bool:
        """See `FileEncoding.check_type`."""
        return _all_types(data_type, _is_parquet_scalar)

    def create(self, file_system: pa_fs.FileSystem, path: str, schema: pa.Schema) -> RowFile:
        """See `FileEncoding.create`."""
        return _ParquetFile(file_system, path, schema, self._compression)

    def merge(self, file_system: pa_fs.FileSystem, paths: Sequence[str], target: str) -> None:
        """See `FileEncoding.merge`."""
        merged: RowFile | None = None
        held: list[pa.Table] = []
        for path in paths:
            with file_system.open_input_file(path) as source, pq.ParquetFile(source) as file:
                merged = merged or self.create(file_system, target, file.schema_arrow)
                for group in range(file.num_row_groups):
                    held.append(file.read_row_group(group))
                    if sum(table.nbytes for table in held) >= _GROUP_BYTES:
                        merged.write(pa.concat_tables(held))
                        held.clear()
        assert merged is not None, "nothing to merge"
        if held:
            merged.write(pa.concat_tables(held))
        merged.close()


class _ParquetFile(RowFile):
    def __init__(self, file_system: pa_fs.FileSystem, path: str, schema: pa.Schema, compression: str) -> None:
        self._stream = file_system.open_output_stream(path)
        self._writer = pq.ParquetWriter(self._stream, schema, compression=compression)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table)

    def close(self) -> None:
        self._writer.close()
        self._stream.close()


class _TextEncoding(FileEncoding):
    """Lines of text: such files can be concatenated."""

    def __init__(self, extension: str, compression: str) -> None:
        self._codec = None if compression == "none" else compression
        self.extension = extension + (".gz" if self._codec else "")

    def header(self, names: Sequence[str]) -> bytes:
        """Return what a file begins with."""
        return b""

    @abstractmethod
    def lines(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Return the text of rows."""

    def create(self, file_system: pa_fs.FileSystem, path: str, schema: pa.Schema) -> RowFile:
        """See `FileEncoding.create`."""
        return _TextFile(self, self._open(file_system, path), schema)

    def _open(self, file_system: pa_fs.FileSystem, path: str) -> Any:
        return file_system.open_output_stream(path, compression=self._codec)

    def merge(self, file_system: pa_fs.FileSystem, paths: Sequence[str], target: str) -> None:
        """See `FileEncoding.merge`."""
        with self._open(file_system, target) as merged:
            for position, path in enumerate(paths):
                with file_system.open_input_stream(path, compression=self._codec) as source:
                    skips = position > 0 and bool(self.header(["a"]))
                    while chunk := source.read(_CHUNK_BYTES):
                        if skips:  # a header is one line: `FilesSink` allows no line ends in names then
                            _, end, chunk = chunk.partition(b"\n")
                            skips = not end
                        merged.write(chunk)


class _TextFile(RowFile):
    def __init__(self, encoding: _TextEncoding, stream: Any, schema: pa.Schema) -> None:
        self._encoding = encoding
        self._stream = stream
        header = encoding.header(schema.names)
        if header:
            stream.write(header)

    def write(self, table: pa.Table) -> None:
        for batch in _slices(table):
            self._stream.write(self._encoding.lines(batch))

    def close(self) -> None:
        self._stream.close()


class JsonEncoding(_TextEncoding):
    """JSON lines.

    Parameters
    ----------
    compression
        ``none`` or ``gzip``.
    """

    name = "json"

    def __init__(self, compression: str) -> None:
        super().__init__("json", compression)

    def check_type(self, data_type: pa.DataType) -> bool:
        """See `FileEncoding.check_type`."""
        return check_json_type(data_type)

    def lines(self, batch: pa.RecordBatch) -> pa.Buffer:
        """See `json_lines`."""
        return json_lines(batch)


class CsvEncoding(_TextEncoding):
    """CSV.

    Parameters
    ----------
    compression
        ``none`` or ``gzip``.
    dialect
        How it is spelled.
    """

    name = "csv"

    def __init__(self, compression: str, dialect: CsvDialect) -> None:
        super().__init__("csv", compression)
        self._dialect = dialect

    def check_type(self, data_type: pa.DataType) -> bool:
        """See `FileEncoding.check_type`."""
        return check_csv_type(data_type)

    def header(self, names: Sequence[str]) -> bytes:
        """Return the line of names."""
        return csv_header(names, self._dialect) if self._dialect.header else b""

    def lines(self, batch: pa.RecordBatch) -> pa.Buffer:
        """See `csv_lines`."""
        return csv_lines(batch, self._dialect)


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the types in files: times as Spark has them, no dictionaries, no metadata of others."""
    return pa.schema([field.with_type(with_leaves(field.type, _stored_leaf)).remove_metadata() for field in schema])


def _stored_leaf(data_type: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(data_type):
        return with_leaves(data_type.value_type, _stored_leaf)
    if pa.types.is_timestamp(data_type):
        return pa.timestamp("us", None if data_type.tz is None else "UTC")
    if pa.types.is_date64(data_type):
        return pa.date32()
    if pa.types.is_string_view(data_type):
        return pa.string()
    if pa.types.is_binary_view(data_type) or pa.types.is_fixed_size_binary(data_type):
        return pa.binary()
    return data_type


def _all_types(data_type: pa.DataType, is_scalar: Any) -> bool:
    """Return whether a type, and those in it, are ones that a format can hold."""
    if not pa.types.is_nested(data_type):
        return bool(is_scalar(data_type))
    if not (pa.types.is_struct(data_type) or pa.types.is_map(data_type) or pa.types.is_list(data_type)):
        return False
    if pa.types.is_map(data_type):
        inner = [data_type.key_type, data_type.item_type]
    else:
        inner = [data_type.field(each).type for each in range(data_type.num_fields)]
    return bool(inner) and all(_all_types(each, is_scalar) for each in inner)


def _is_parquet_scalar(data_type: pa.DataType) -> bool:
    """Return whether Spark reads a type from Parquet from what the file says alone."""
    return bool(
        check_csv_type(data_type) or data_type in (pa.binary(), pa.large_binary())
    ) and not pa.types.is_decimal256(data_type)


def _slices(table: pa.Table) -> Iterator[pa.RecordBatch]:
    rows = max(1, table.num_rows * _SLICE_BYTES // max(1, table.nbytes))
    yield from table.to_batches(max_chunksize=rows)
