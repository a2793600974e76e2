"""The fast way: blocks on which Arrow's CSV parser and Spark's agree, read by Arrow.

Never: guess. Where a cheap look at the bytes does not show that both parsers give the same, the answer is None and
the caller takes the slow way.

What the looks exclude, because Arrow reads it otherwise than univocity or ``Integer.parseInt``:

    quotes that neither open nor close a value, quotes over a line end      all of a block's quotes are paired
    escapes before a quote or an escape                                     searched for
    white space around whole numbers and decimals, hexadecimal numbers      these columns are read as text, then cast
    spellings of infinity and not-a-number                                  a column that has one is cast from text
    blank lines, comments, a bare carriage return                           cut out or replaced, then read
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from headgate.formats import values_datetime as dt
from headgate.formats.csv_options import CsvSettings
from headgate.formats.csv_rows import FileColumns
from headgate.formats.values import cast_strings, session_zone

_BLANK = re.compile(rb"(?m)^[\x00-\x09\x0b\x0c\x0e-\x20]*(?:\n|\r\n?|\Z)")
_BLANK_INSIDE = re.compile(rb"(?:^|[\r\n])[\x00-\x09\x0b-\x0c\x0e-\x20]+(?:[\r\n]|$)")
_BLANKS = bytes(range(33))
_FAILED_COLUMN = re.compile(r"In CSV column #(\d+)")
_PIECE_BYTES = 128 << 10
_BLOCKS_AS_TEXT = 16
"""For how many blocks a column is read as text after a cell of it needed that."""


class ArrowResult(msgspec.Struct, frozen=True):
    """What Arrow made of a block.

    Parameters
    ----------
    arrays
        The columns of the schema; None for the column of corrupt records.
    num_rows
        How many rows they have.
    bad
        Which rows have a cell that could not be converted; None: none has.
    text
        The lines that were read, as UTF-8, blank ones aside one per row.
    """

    arrays: list[pa.Array | None]
    num_rows: int
    bad: pa.Array | None
    text: bytes

    def lines(self) -> list[str]:
        """Return the text of each row."""
        return [line.decode("utf-8", "replace") for line in _lines_of(self.text)]


class ArrowReader:
    """Reads blocks of one schema through ``pyarrow.csv``."""

    def __init__(self, schema: pa.Schema, settings: CsvSettings, time_zone: str) -> None:
        self._schema = schema
        self._settings = settings
        self._time_zone = time_zone
        self._zone = session_zone(settings.values, time_zone)
        dialect = settings.dialect
        self._usable = (
            len(dialect.separator) == 1
            and dialect.separator.isascii()
            and dialect.quote.isascii()
            and dialect.escape.isascii()
            and dialect.separator not in "\r\n"
            and settings.encoding in ("utf-8", "ascii", "iso8859-1")
        )
        self._separator, self._quote = dialect.separator.encode(), dialect.quote.encode()
        self._doubled = dialect.escape == dialect.quote
        self._escapes_alike = dialect.escape_of_escape in (dialect.escape, dialect.quote, "\0")
        self._as_text: dict[int, int] = {}
        self._native = {index: self._native_type(field.type) for index, field in enumerate(schema)}
        self._exact = [
            index
            for index, field in enumerate(schema)
            if pa.types.is_integer(field.type) or pa.types.is_decimal(field.type)
        ]

    def _native_type(self, to: pa.DataType) -> pa.DataType | None:
        """Return the type that Arrow reads a column as; None: as text."""
        given = self._settings.values
        if pa.types.is_timestamp(to):
            pattern = given["timestampFormat" if to.tz is not None else "timestampNTZFormat"]
            return None if pattern is not None else pa.timestamp("us")
        if pa.types.is_date32(to):
            return None if given["dateFormat"] is not None else to
        return None if pa.types.is_binary(to) else to  # as text, so that bytes which are not UTF-8 are noticed

    def normalised(self, data: bytes) -> bytes | None:
        r"""Return a block as UTF-8 with ``\n`` or ``\r\n`` at the ends of lines, without comments; None: slow way."""
        return self._plain(data) if self._usable else None

    def separate(self, plain: bytes, columns: FileColumns) -> tuple[list[bytes], list[bytes], np.ndarray]:
        """Return the lines that this reader can read, the others, and where each goes: rows of both, in their order."""
        separator, quote = self._separator, self._quote
        tidy = re.compile(self._tidy_line(columns.count))
        easy: list[bytes] = []
        hard: list[bytes] = []
        is_hard = []
        for line in _lines_of(plain):
            if quote in line:
                plain_line = tidy.fullmatch(line) is not None
            else:
                plain_line = line.count(separator) == columns.count - 1
            (easy if plain_line else hard).append(line)
            is_hard.append(not plain_line)
        order = np.argsort(np.argsort(np.array(is_hard, np.bool_), kind="stable"), kind="stable")
        return easy, hard, order

    def _tidy_line(self, count: int) -> bytes:
        quote, separator = re.escape(self._quote), re.escape(self._separator)
        dialect = self._settings.dialect
        escapes = re.escape((dialect.escape + dialect.escape_of_escape).encode())
        value = b"(?:%b[^%b%b]+%b|[^%b%b]*)" % (quote, quote, escapes, quote, quote, separator)
        return b"%b(?:%b%b){%d}" % (value, separator, value, count - 1)

    def read(self, plain: bytes, columns: FileColumns) -> ArrowResult | None:
        """Return what Arrow makes of a normalised block; None: separate its lines, some of them are hard."""
        if not plain:
            return self._empty()
        escape_char = self._escape_char(plain)
        if escape_char is None:
            return None
        if self._exact and self._inexact_numbers(plain):
            self._as_text.update(dict.fromkeys(self._exact, _BLOCKS_AS_TEXT))
        table = self._parse(plain, columns, escape_char)
        if table is None or not self._is_one_row_per_line(table, plain):
            without_blank = _BLANK.sub(b"", plain)
            if not without_blank:
                return self._empty()
            if len(without_blank) == len(plain):
                return None
            plain = without_blank
            table = self._parse(plain, columns, escape_char)
            if table is None or not self._is_one_row_per_line(table, plain):
                return None
        result = self._convert(table, plain, columns, escape_char)
        self._as_text = {index: left - 1 for index, left in self._as_text.items() if left > 1}
        return result

    def read_document(self, data: bytes, columns: FileColumns, at_end: bool) -> tuple[ArrowResult, int] | None:
        r"""Return what Arrow makes of the whole records at the start of a text, and where they end; None: slow way.

        Lines end in ``\n`` only, quoted values may hold it, and lines of white space are records.
        """
        dialect = self._settings.dialect
        if not self._usable or (dialect.comment is not None and dialect.comment.encode() in data):
            return None
        if (dialect.trim_leading or dialect.trim_trailing) and self._white_at_edges(data, control=True):
            return None
        end = len(data) if at_end else self._last_record_end(data)
        records = data[:end]
        escape_char = self._escape_char(records) if records else None
        if escape_char is None:
            return None
        if self._exact and self._inexact_numbers(records):
            self._as_text.update(dict.fromkeys(self._exact, _BLOCKS_AS_TEXT))
        table = self._parse(records, columns, escape_char, is_document=True)
        result = None if table is None else self._convert(table, records, columns, escape_char)
        return None if result is None else (result, end)

    def _last_record_end(self, data: bytes) -> int:
        """Return the offset after the last line end that no quotes surround; 0 if there is none."""
        if self._quote not in data:
            return data.rfind(b"\n") + 1
        raw = np.frombuffer(data, np.uint8)
        quotes = self._quotes(data, raw)
        if quotes is None:
            return 0
        ends = np.flatnonzero(raw == 10)
        outside = ends[np.searchsorted(quotes, ends) % 2 == 0]
        return int(outside[-1]) + 1 if len(outside) else 0

    def _is_one_row_per_line(self, table: pa.Table, plain: bytes) -> bool:
        """Return whether no quoted value runs over a line end."""
        if self._quote not in plain:
            return True
        return bool(table.num_rows == plain.count(b"\n") + (not plain.endswith(b"\n")))

    def _empty(self) -> ArrowResult:
        return ArrowResult([pa.nulls(0, field.type) for field in self._schema], 0, None, b"")

    def _plain(self, data: bytes) -> bytes | None:
        r"""Return the block as UTF-8 with ``\n`` at the ends of lines and no comments, or None."""
        settings = self._settings
        dialect = settings.dialect
        if settings.encoding != "utf-8" and not data.isascii():
            data = data.decode(settings.encoding, "replace").encode()
        if settings.line_separator is None:
            if b"\r" in data and data.count(b"\r") != data.count(b"\r\n"):
                data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif b"\r" in data or settings.line_separator != "\n":
            end = settings.separator_bytes or b"\n"
            rest = data.replace(end, b"") if end != b"\n" else data
            if b"\r" in rest or (end != b"\n" and b"\n" in rest):
                return None
            data = data.replace(end, b"\n")
        if dialect.comment is not None:
            comment = dialect.comment.encode()
            if data.startswith(comment) or b"\n" + comment in data:
                data = re.sub(rb"(?m)^" + re.escape(comment) + rb"[^\n]*(?:\n|\Z)", b"", data)
        if (dialect.trim_leading or dialect.trim_trailing) and self._white_at_edges(data, control=True):
            return None
        return data

    def _escape_char(self, data: bytes) -> str | Literal[False] | None:
        """Return which escape character Arrow needs to read the quotes of a block as Spark does; None: none will do.

        Every quote must open or close a value, be doubled, or be escaped inside quotes.
        """
        dialect = self._settings.dialect
        if dialect.quote == "\0" or self._quote not in data:
            return False
        if not self._escapes_alike and dialect.escape_of_escape.encode() in data:
            return None
        if (dialect.null_value or dialect.empty_value or dialect.escape == "\0") and self._quote * 2 in data:
            return None
        raw = np.frombuffer(data, np.uint8)
        places = self._quotes(data, raw)
        if places is None or not len(places) or len(places) % 2:
            return None
        edge = np.zeros(256, np.bool_)
        edge[[self._separator[0], 10, 13]] = True
        if self._doubled:
            edge[self._quote[0]] = True
        opening, closing = places[0::2], places[1::2]
        if opening[0] == 0:
            opening = opening[1:]
        if closing[-1] == len(raw) - 1:
            closing = closing[:-1]
        if not (edge[raw[opening - 1]].all() and edge[raw[closing + 1]].all()):
            return None
        if self._doubled or (dialect.escape + dialect.quote).encode() not in data:
            return False
        escapes = np.flatnonzero(raw == ord(dialect.escape))
        inside = np.searchsorted(places, escapes) % 2 == 1
        return dialect.escape if inside.all() and (raw[escapes + 1] == self._quote[0]).all() else None

    def _quotes(self, data: bytes, raw: np.ndarray) -> np.ndarray | None:
        """Return the places of quotes that are not escaped; None if escapes are escaped, which is hard."""
        dialect = self._settings.dialect
        places = np.flatnonzero(raw == self._quote[0])
        if self._doubled or dialect.escape.encode() not in data:
            return places
        if (dialect.escape + dialect.escape_of_escape).encode() in data or data.endswith(dialect.escape.encode()):
            return None
        unescaped: np.ndarray = places[(places == 0) | (raw[places - 1] != ord(dialect.escape))]
        return unescaped

    def _inexact_numbers(self, data: bytes) -> bool:
        """Return whether there may be white space around numbers, or numbers that Arrow takes for hexadecimal."""
        if b"x" in data or b"X" in data:
            for raw in _overlapping(data):
                if (((raw[1:] | 32) == ord("x")) & (raw[:-1] == ord("0"))).any():
                    return True
        return self._white_at_edges(data, control=False)

    def _white_at_edges(self, data: bytes, *, control: bool) -> bool:
        """Return whether white space touches a separator, a quote or a line end."""
        tabs, separator = b"\t" in data, self._separator[0]
        if not control and b" " not in data and not tabs:
            return False
        blanks = (set(range(33)) - {10, 13} if control else {9, 32}) - {separator}
        if data[0] in blanks or data[-1] in blanks:
            return True
        edges = [separator, 10, *(other[0] for other in (b"\r", self._quote) if other in data)]
        for raw in _overlapping(data):
            if control:
                white = (raw <= 32) & (raw != 10) & (raw != 13)
            else:
                white = raw == 32
                if tabs:
                    white |= raw == 9
            if separator <= 32:
                white &= raw != separator
            edge = raw == edges[0]
            for other in edges[1:]:
                edge |= raw == other
            if (white[1:] & edge[:-1]).any() or (white[:-1] & edge[1:]).any():
                return True
        return False

    def _parse(
        self, data: bytes, columns: FileColumns, escape_char: str | Literal[False], is_document: bool = False
    ) -> pa.Table | None:
        """Return the wanted columns as Arrow reads them; None where a line has another number of columns."""
        if not is_document and (columns.count == 1 or self._separator[0] <= 32):
            # Lines of white space only are not records for Spark, and may be for Arrow.
            white_start = columns.count == 1 or data[:1] <= b" " or b"\n" + self._separator in data
            if white_start and _BLANK_INSIDE.search(data):
                data = _BLANK.sub(b"", data)
        read = csv.ReadOptions(
            use_threads=False, block_size=len(data) + 1, column_names=[str(each) for each in range(columns.count)]
        )
        parse = csv.ParseOptions(
            delimiter=self._settings.dialect.separator,
            quote_char=self._settings.dialect.quote if self._settings.dialect.quote != "\0" else False,
            double_quote=self._doubled,
            escape_char=escape_char,
            newlines_in_values=is_document,
        )
        while True:
            types = self._types(columns)
            try:
                return csv.read_csv(
                    pa.BufferReader(data), read, parse, self._convert_options(types, list(types) or ["0"])
                )
            except pa.ArrowInvalid as error:
                failed = _FAILED_COLUMN.search(str(error))
                if failed is None:
                    return None
                affected = [i for i, place in enumerate(columns.indexes) if place == int(failed[1])]
                if not affected or all(index in self._as_text for index in affected):
                    return None  # text that is not UTF-8
                for index in affected:
                    self._as_text[index] = _BLOCKS_AS_TEXT

    def _types(self, columns: FileColumns) -> dict[str, pa.DataType]:
        types: dict[str, pa.DataType] = {}
        for index, place in enumerate(columns.indexes):
            if place is not None:
                native = None if index in self._as_text else self._native[index]
                types[str(place)] = pa.string() if native is None else native
        return types

    def _convert_options(self, types: Mapping[str, pa.DataType], include: Sequence[str]) -> csv.ConvertOptions:
        null_value = self._settings.dialect.null_value
        return csv.ConvertOptions(
            column_types=types or {"0": pa.string()},
            include_columns=include,
            null_values=["", null_value] if null_value else [""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=True,
            true_values=["true", "TRUE", "True"],
            false_values=["false", "FALSE", "False"],
        )

    def _convert(
        self, table: pa.Table, data: bytes, columns: FileColumns, escape_char: str | Literal[False]
    ) -> ArrowResult | None:
        bad = None
        arrays: list[pa.Array | None] = []
        for index, (field, place) in enumerate(zip(self._schema, columns.indexes, strict=True)):
            if place is None:
                arrays.append(None)
                continue
            array = _one_chunk(table.column(str(place)))
            if index not in self._as_text and _is_doubtful(array):
                self._as_text[index] = _BLOCKS_AS_TEXT
                again = self._parse(data, columns, escape_char)
                return None if again is None else self._convert(again, data, columns, escape_char)
            if self._native[index] is None or index in self._as_text:
                array, bad_cells = cast_strings(array, field.type, self._settings.values, self._time_zone)
                if bad_cells is not None:
                    bad = bad_cells if bad is None else pc.or_(bad, bad_cells)
            elif pa.types.is_timestamp(field.type) and field.type.tz is not None:
                array = dt.local_to_utc(array, self._zone).cast(field.type)
            arrays.append(array)
        return ArrowResult(arrays, table.num_rows, bad, data)


def _lines_of(text: bytes) -> list[bytes]:
    lines = text.split(b"\n")
    if b"\r" in text:
        lines = [line.removesuffix(b"\r") for line in lines]
    return [line for line in lines if line.strip(_BLANKS)]


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _is_doubtful(array: pa.Array) -> bool:
    """Return whether Arrow read a number that Spark may read otherwise, or that is none."""
    if pa.types.is_floating(array.type):
        return not pc.all(pc.is_finite(array), min_count=0).as_py()
    if pa.types.is_decimal(array.type):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            return True  # more digits than its precision: Arrow does not check that when it adds digits of the scale
    return False


def _overlapping(data: bytes) -> Iterator[np.ndarray]:
    """Yield the bytes in pieces that fit a core's cache, each with the last byte of the one before it."""
    raw = np.frombuffer(data, np.uint8)
    for start in range(0, len(raw), _PIECE_BYTES):
        yield raw[max(0, start - 1) : start + _PIECE_BYTES]
