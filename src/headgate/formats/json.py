"""Decodes JSON lines and whole JSON documents into record batches, with Spark's rules for what is malformed.

Never: parse one record at a time in Python, unless the lines around it are such that Arrow's JSON reader refuses them.

A block goes to the fastest reader that takes it; each is strict, so that what it takes it reads as Spark would:

    block of lines          reader                   refuses
    ----------------------  -----------------------  ------------------------------------------------------------
    whole block             `UniformLines`           lines that do not all look like the first
    whole block, then what  Arrow's JSON reader      what is not a plain JSON object, or contradicts the schema
    is between bad lines
    bad lines               `JsonRecordParser`       what Spark calls malformed: ``mode`` decides

Follows Spark 4.3, "JSON Files", and its ``JacksonParser`` and ``FailureSafeParser``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pajson

from headgate.errors import BadDataError, OptionError
from headgate.formats.base import DocumentFormat, LineBlock, LineFormat, read_document
from headgate.formats.json_cursor import JsonDialect, MalformedRecordError
from headgate.formats.json_infer import infer_json_schema
from headgate.formats.json_options import OPTIONS
from headgate.formats.json_parser import JsonRecordParser
from headgate.formats.json_records import Record, records_of, separator_of
from headgate.formats.json_uniform import UniformLines
from headgate.formats.shared_options import DROPMALFORMED, FAILFAST, encoding_of
from headgate.formats.values import cast_strings, session_zone
from headgate.formats.values_datetime import parse_cast_date, parse_cast_timestamp, utc_micros

__all__ = ["OPTIONS", "JsonDocumentFormat", "JsonFormat", "infer_json_schema"]

_FEW_LINES = 16
"""Fewer lines than these are not worth a call of Arrow's reader."""
_MOST_DIGITS = 76
"""Of a decimal in Arrow."""
_MOST_LINES = 4096
"""Lines that are read at once where one of them is known to be bad."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,10}")
_JULIAN_DAYS = -141_428
"""The day before the Gregorian calendar begins."""
_ROW = re.compile(r"in row (\d+)$")
_TOP_LEVEL_NULL = re.compile(rb"\}\s*null")
_WHITESPACE = b" \t\r\n"
_INFINITY = re.compile(rb"[:,\[]\s*[-+]?Inf")
_NAN = re.compile(rb"[:,\[]\s*NaN")


class _Records:
    """What lines and documents have in common: records in, rows out, ``mode`` applied."""

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str, characters: bool = False) -> None:
        self.schema = schema
        self._options = options
        self._time_zone = time_zone
        self._zone = session_zone(options, time_zone)
        self._mode: str = options["mode"]
        self._corrupt_column: str = options["columnNameOfCorruptRecord"]
        self._data_schema = pa.schema([field for field in schema if field.name != self._corrupt_column])
        if len(self._data_schema) < len(schema) and not pa.types.is_string(schema.field(self._corrupt_column).type):
            raise OptionError(
                f"The column {self._corrupt_column!r} for corrupt records is "
                f"{schema.field(self._corrupt_column).type}, but must be a string: give it that type in the schema, "
                "or name another column with columnNameOfCorruptRecord.",
                option="columnNameOfCorruptRecord", value=self._corrupt_column,
            )  # fmt: skip
        self._dialect = JsonDialect.of(options, characters)
        self._parser = JsonRecordParser(
            self._data_schema, self._dialect, functools.lru_cache(maxsize=4096)(self._cast_one)
        )

    def rows(self, records: Sequence[Record], path: str, byte_offset: int) -> pa.RecordBatch:
        """Parse records one by one, and apply ``mode``."""
        rows: list[dict[str, Any]] = []
        corrupt: list[str | None] = []
        for start, text in records:
            parsed, flaw = self.parse_record(text)
            if flaw is not None:
                if self._mode == FAILFAST:
                    raise self._malformed(text, path, byte_offset + start, flaw)
                if self._mode == DROPMALFORMED:
                    continue
            raw = None if flaw is None else text.decode("utf-8", "replace")
            rows.extend(parsed)
            corrupt.extend([raw] * len(parsed))
        return self.batch_of(rows, corrupt)

    def parse_record(self, text: bytes) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows of one record, each a dict of columns, and what is wrong with it; None: nothing."""
        try:
            parsed, partial = self._parser.parse(text)
        except (MalformedRecordError, RecursionError):
            return [{}], "is not a JSON object"
        return parsed, "has a value that contradicts its column's type" if partial else None

    def batch_of(self, rows: Sequence[Mapping[str, Any]], corrupt: Sequence[str | None]) -> pa.RecordBatch:
        """Return parsed rows as a batch; ``corrupt`` has the texts for the column of corrupt records."""
        arrays = [
            pa.array(
                corrupt if field.name == self._corrupt_column else [row.get(field.name) for row in rows], field.type
            )
            for field in self.schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _malformed(self, text: bytes, path: str, byte_offset: int, flaw: str) -> BadDataError:
        shown = text[:80].decode("utf-8", "replace")
        return BadDataError(
            f"The JSON record at byte {byte_offset} of {path} {flaw}: {shown!r}. Correct the file, or set mode to "
            "PERMISSIVE (nulls in place of what is bad) or DROPMALFORMED (without the record).",
            path=path, byte_offset=byte_offset,
        )  # fmt: skip

    def _cast_one(self, text: str, data_type: pa.DataType) -> int | None:
        """Return the days of a date or the microseconds of a timestamp, None if the text is none."""
        is_date = pa.types.is_date(data_type)
        pattern = "dateFormat" if is_date else "timestampFormat" if data_type.tz else "timestampNTZFormat"
        if self._options[pattern] is not None:
            values, bad = cast_strings(pa.array([text]), data_type, self._options, self._time_zone)
            value: int | None = values.cast(pa.int32() if is_date else pa.int64())[0].as_py()
            return value if bad is None else None
        try:
            if is_date:
                return _days_of(text)
            local_us, zone = parse_cast_timestamp(text)
        except ValueError:
            return None
        if data_type.tz is None:
            return local_us if zone is None else None
        return utc_micros(local_us, self._zone if zone is None else zone)


class JsonFormat(_Records, LineFormat):
    """JSON lines: a record a line.

    Parameters
    ----------
    schema
        The columns, in Arrow's types of Spark's.
    options
        Parsed values of `OPTIONS`, by name.
    time_zone
        The session's time zone, for timestamps without one.
    characters
        Whether bad records are read as Spark reads strings (``from_json``), and not as it reads files.
    """

    def __init__(self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str, characters: bool = False) -> None:
        super().__init__(schema, options, time_zone, characters)
        self._encoding = encoding_of(options)
        _check_encoding(self._encoding, options["lineSep"])
        self.line_separator = separator_of(options)
        self._read_types = [(field, _read_type(field.type)) for field in self._data_schema]
        self._read_schema = (
            pa.schema([pa.field(field.name, read) for field, read in self._read_types if read is not None])
            if self._read_types and all(read is not None for _, read in self._read_types)
            else None
        )
        self.refused_row: int | None = None
        """The line at which the last bulk read stopped, if Arrow's reader reported it."""
        self._uniform = UniformLines(self._read_schema) if self._read_schema is not None else None

    def decode(self, block: LineBlock) -> pa.RecordBatch:
        """Return the rows of a block; see `LineFormat`."""
        data = bytes(block.data)
        lines = self._plain_lines(data)
        if lines is not None:
            batch = self.read_lines(lines)
            if batch is not None:
                return batch
        batches: list[pa.RecordBatch] = []
        self._read_parts(records_of(data, self._options), block.path, block.byte_offset, batches)
        return pa.concat_batches(batches) if batches else pa.RecordBatch.from_pylist([], schema=self.schema)

    def read_lines(self, lines: bytes) -> pa.RecordBatch | None:
        r"""Return the rows of lines, read in bulk, or None if one of them is not plain enough for that.

        Whoever wants a row for each line compares their number: blank lines at the end have none.

        Parameters
        ----------
        lines
            Lines in UTF-8 with ``\n`` between them, none at the end, and without ``\r``.
        """
        self.refused_row = None
        batch = self._read_uniform(lines)
        if batch is None and _one_object_a_line(lines):
            batch = self._read_arrow(lines)
        return batch

    def _plain_lines(self, data: bytes) -> bytes | None:
        r"""Return the block with ``\n`` between its lines and none at its end, or None if that is not so simple."""
        if self._encoding != "utf-8":
            try:
                data = data.decode(self._encoding).encode()
            except UnicodeDecodeError:
                return None
        if self.line_separator is not None:
            if self.line_separator != b"\n":
                separator: str = self._options["lineSep"]
                data = data.replace(b"\r", b" ").replace(b"\n", b" ").replace(separator.encode(), b"\n")
        elif b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if data.endswith(b"\n"):
            data = data[:-1]
        return data

    def _read_parts(self, records: list[Record], path: str, byte_offset: int, batches: list[pa.RecordBatch]) -> None:
        """Append the rows of records to ``batches``: as many as Arrow reads, then one by one those that it refuses.

        The more of them Arrow refuses in a row, the more are parsed one by one before it is asked again.
        """
        refused = 1
        attempt = _MOST_LINES
        while records:
            batch, count = self._read_some(records[:attempt])
            if batch is None:
                count = min(refused, len(records))
                batch = self.rows(records[:count], path, byte_offset)
                refused = min(2 * refused, _MOST_LINES)
            else:
                refused = 1
                attempt = max(_FEW_LINES, min(2 * count, _MOST_LINES))
            batches.append(batch)
            records = records[count:]

    def _read_some(self, records: list[Record]) -> tuple[pa.RecordBatch | None, int]:
        """Return the rows of the first records and their number; None if Arrow refuses the very first ones."""
        lines = [text.strip(_WHITESPACE) for _, text in records]
        count = len(lines)
        for index, line in enumerate(lines):
            if not _one_object_a_line(line):
                count = index
                break
        while count >= _FEW_LINES:
            text = b"\n".join(lines[:count])
            batch = None if b"\r" in text else self._read_arrow(text)
            if batch is not None:
                return batch, count
            count = count // 2 if self.refused_row is None else min(self.refused_row, count - 1)
        return None, 0

    def _read_uniform(self, lines: bytes) -> pa.RecordBatch | None:
        if self._uniform is None:
            return None
        batch = self._uniform.read(lines)
        return None if batch is None else self._finish(batch)

    def _read_arrow(self, lines: bytes) -> pa.RecordBatch | None:
        """Read lines that are objects with Arrow's reader; None if it or a rule of Spark's refuses one of them."""
        self.refused_row = None
        if self._read_schema is None or not lines or not self._arrow_reads_alike(lines):
            return None
        try:
            table = pajson.read_json(
                pa.BufferReader(lines),
                read_options=pajson.ReadOptions(use_threads=False, block_size=len(lines) + 1),
                parse_options=pajson.ParseOptions(
                    explicit_schema=self._read_schema, unexpected_field_behavior="ignore"
                ),
            )
        except pa.ArrowInvalid as error:
            row = _ROW.search(str(error))
            self.refused_row = int(row[1]) if row else None
            return None
        if table.num_rows != lines.count(b"\n") + 1:
            return None
        batches = table.combine_chunks().to_batches()
        return self._finish(batches[0]) if len(batches) == 1 else None

    def _arrow_reads_alike(self, lines: bytes) -> bool:
        """Whether the lines are free of what Arrow's reader takes and Spark does not, or what makes it crash."""
        if _TOP_LEVEL_NULL.search(lines):
            return False  # Arrow 26 crashes on a null between objects
        if b"I" in lines and b"Inf" in lines and _INFINITY.search(lines):
            return False
        if not self._dialect.non_numeric_numbers and b"NaN" in lines and _NAN.search(lines):
            return False
        return _is_utf8(lines)

    def _finish(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """Give the columns as read the types of the schema; None if a value does not fit."""
        arrays = []
        for field in self.schema:
            if field.name == self._corrupt_column:
                arrays.append(pa.nulls(batch.num_rows, field.type))
                continue
            array = self._cast(batch.column(field.name), field.type)
            if array is None:
                return None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, array: pa.Array, data_type: pa.DataType) -> pa.Array | None:
        if array.type == data_type:
            return array
        if pa.types.is_struct(data_type):
            children = [
                self._cast(child, field.type) for child, field in zip(_children(array), data_type.fields, strict=True)
            ]
            if any(child is None for child in children):
                return None
            mask = array.is_null() if array.null_count else None
            return pa.StructArray.from_arrays(children, fields=data_type.fields, mask=mask)
        if pa.types.is_list(data_type):
            values = self._cast(array.values, data_type.value_type)
            if values is None or array.offset:
                return None
            mask = array.is_null() if array.null_count else None
            return pa.ListArray.from_arrays(array.offsets, values, type=data_type, mask=mask)
        if pa.types.is_decimal(data_type):
            try:
                return array.cast(data_type)
            except pa.ArrowInvalid:
                return None
        casted, bad = cast_strings(array, data_type, self._options, self._time_zone)
        return None if bad is not None and pc.any(bad).as_py() else casted


def _days_of(text: str) -> int:
    """Return the days of a date, or of the number of days that Spark 1.5 wrote; before 1582 those are no dates here."""
    try:
        return parse_cast_date(text)
    except ValueError:
        days = int(text) if _INTEGER.fullmatch(text) else _JULIAN_DAYS
        if not _JULIAN_DAYS < days < 1 << 31:
            raise
        return days


def _children(array: pa.StructArray) -> list[pa.Array]:
    return [array.field(index) for index in range(array.type.num_fields)]


def _read_type(data_type: pa.DataType) -> pa.DataType | None:
    """Return the type as which Arrow's JSON reader is to read a column, None if it cannot.

    Dates and timestamps are read as strings: Arrow would drop the zone of a timestamp without one. Decimals are read
    with all digits there can be: Arrow does not see that a number overflows its type, and makes another one of it.
    """
    if pa.types.is_struct(data_type):
        fields = [(field, _read_type(field.type)) for field in data_type.fields]
        if not fields or any(read is None for _, read in fields):
            return None
        return pa.struct([pa.field(field.name, read) for field, read in fields])
    if pa.types.is_list(data_type):
        read = _read_type(data_type.value_type)
        return None if read is None else pa.list_(pa.field(data_type.value_field.name, read))
    if pa.types.is_map(data_type) or pa.types.is_binary(data_type) or pa.types.is_null(data_type):
        return None
    if pa.types.is_temporal(data_type):
        return pa.string()
    return pa.decimal256(_MOST_DIGITS, data_type.scale) if pa.types.is_decimal(data_type) else data_type


def _one_object_a_line(lines: bytes) -> bool:
    r"""Whether each line begins and ends with a brace: no object spans lines then, for none has ``}\n{`` in it."""
    return lines.startswith(b"{") and lines.endswith(b"}") and lines.count(b"}\n{") == lines.count(b"\n")


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    offsets = pa.py_buffer(pa.array([0, len(data)], pa.int64()).buffers()[1])
    try:
        pa.Array.from_buffers(pa.large_string(), 1, [None, offsets, pa.py_buffer(data)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check_encoding(encoding: str, line_sep: str | None) -> None:
    if encoding in ("utf-16", "utf-32"):
        raise OptionError(
            f"The encoding {encoding!r} marks its byte order at the start of the file only, so that such files cannot "
            "be split: name the order (UTF-16LE, UTF-16BE), or set multiLine.",
            option="encoding", value=encoding,
        )  # fmt: skip
    if encoding != "utf-8" and line_sep is None:
        raise OptionError(
            f"The encoding {encoding!r} needs the option lineSep, for example lineSep='\\n'.",
            option="encoding", value=encoding,
        )  # fmt: skip


class JsonDocumentFormat(_Records, DocumentFormat):
    """Files that hold one object or one array of objects each (``multiLine``).

    Parameters
    ----------
    schema, options, time_zone
        See `JsonFormat`.
    max_document_bytes
        The largest file that is read, for it is held in memory as a whole.
    """

    def __init__(
        self, schema: pa.Schema, options: Mapping[str, Any], time_zone: str, max_document_bytes: int = 64 << 20
    ) -> None:
        super().__init__(schema, options, time_zone)
        self._max_document_bytes = max_document_bytes

    def read(self, stream: pa.NativeFile, path: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a document, if it has any; see `DocumentFormat`."""
        advice = "the most that multiLine reads: write one JSON object a line and read it without multiLine."
        data = read_document(stream, path, self._max_document_bytes, advice)
        batch = self.rows(records_of(data, self._options), path, 0)
        if batch.num_rows:
            yield batch
