"""Parses single JSON records as Spark's JSON source does: the slow way, for records that need its leniency.

Never: used for records that Arrow's JSON reader takes, or a decision about ``mode``; the format makes it.

Follows Spark 4.3's ``JacksonParser``: what contradicts JSON spoils the whole record (`MalformedRecordError`), what only
contradicts a column's type makes that value null and the record ``partial``.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.formats.json_cursor import JsonCursor, JsonDialect, MalformedRecordError

Convert = Callable[[JsonCursor], Any]
CastString = Callable[[str, pa.DataType], int | None]

_BIG_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_FLOATS = {
    "NaN": float("nan"),
    "+INF": float("inf"),
    "+Infinity": float("inf"),
    "Infinity": float("inf"),
    "-INF": float("-inf"),
    "-Infinity": float("-inf"),
}
_MOST_DIGITS = 100
_INTEGER_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64}


class BadCellError(Exception):
    """A value contradicts the type of its column; it has been read to its end."""


class JsonRecordParser:
    """Parses records into Python values that ``pa.array`` takes for the types of the schema.

    Parameters
    ----------
    schema
        The columns to read. Other fields are skipped.
    dialect
        What of JSON's rules may be broken.
    cast_string
        Gives the storage integer of a date or timestamp in a text, None if it is none.
    """

    def __init__(self, schema: pa.Schema, dialect: JsonDialect, cast_string: CastString) -> None:
        self._dialect = dialect
        self._cast_string = cast_string
        self._row = self._struct(list(schema))

    def parse(self, record: bytes) -> tuple[list[dict[str, Any]], bool]:
        """Return the rows of a record, each a dict of columns, and whether some value of them was bad.

        Raises
        ------
        MalformedRecordError
            The record is neither a JSON object nor an array of objects. What follows the object is not looked at.
        """
        cursor = JsonCursor(record, self._dialect)
        first = cursor.next()
        if first is None:
            return [], False
        if first == "{":
            return [self._row(cursor)], cursor.partial
        if first != "[":
            raise MalformedRecordError
        rows: list[dict[str, Any]] = []
        while cursor.next() not in (None, "]"):
            if cursor.kind != "{":
                raise MalformedRecordError
            rows.append(self._row(cursor))
        return rows, cursor.partial

    def _converter(self, data_type: pa.DataType) -> Convert:
        """Return what reads a value whose first token is the current one, or follows its name."""
        if pa.types.is_struct(data_type):
            return _nested("{", self._struct(list(data_type.fields)))
        if pa.types.is_map(data_type):
            return _nested("{", self._map(data_type))
        if pa.types.is_list(data_type):
            return _nested("[", self._list(data_type))
        return self._scalar(data_type)

    def _struct(self, fields: list[pa.Field]) -> Convert:
        converters = {field.name: self._converter(field.type) for field in fields}

        def convert(cursor: JsonCursor) -> dict[str, Any]:
            row: dict[str, Any] = {}
            while cursor.next() not in (None, "}"):
                name = cursor.name or ""
                converter = converters.get(name)
                if converter is None or cursor.name is None:
                    cursor.skip_children()
                    continue
                try:
                    row[name] = converter(cursor)
                except (BadCellError, MalformedRecordError):
                    cursor.partial = True
                    cursor.skip_children()
            return row

        return convert

    def _map(self, data_type: pa.MapType) -> Convert:
        value_of = self._converter(data_type.item_type)

        def convert(cursor: JsonCursor) -> list[tuple[str, Any]]:
            items: list[tuple[str, Any]] = []
            bad = False
            while cursor.next() not in (None, "}"):
                name = cursor.name
                try:
                    items.append((name or "", value_of(cursor)))
                except (BadCellError, MalformedRecordError):
                    bad = True
                    cursor.skip_children()
            if bad:
                raise BadCellError
            return items

        return convert

    def _list(self, data_type: pa.ListType) -> Convert:
        value_of = self._converter(data_type.value_type)

        def convert(cursor: JsonCursor) -> list[Any]:
            values: list[Any] = []
            while cursor.next() not in (None, "]"):
                values.append(value_of(cursor))
            return values

        return convert

    def _scalar(self, data_type: pa.DataType) -> Convert:
        def convert(cursor: JsonCursor) -> Any:
            return None if _at_null(cursor) else self._value(cursor, data_type)

        return convert

    def _value(self, cursor: JsonCursor, data_type: pa.DataType) -> Any:
        kind = cursor.kind
        if pa.types.is_string(data_type):
            return cursor.text() if kind == "string" else cursor.raw()
        if pa.types.is_binary(data_type) and kind == "string":
            return cursor.binary()
        text = cursor.text()
        if pa.types.is_integer(data_type) and kind == "integer":
            return _integer(text, _INTEGER_BITS[data_type])
        if pa.types.is_floating(data_type):
            return _floating(kind, text, self._dialect.non_numeric_numbers)
        if pa.types.is_boolean(data_type) and kind == "boolean":
            return text == "true"
        if pa.types.is_decimal(data_type) and kind in ("string", "integer", "float"):
            return _decimal(text, data_type)
        if pa.types.is_timestamp(data_type) and data_type.tz and kind == "integer":
            seconds = _integer(text, 64)
            return (seconds * 1_000_000 + 2**63) % 2**64 - 2**63  # Spark's multiplication overflows silently
        if pa.types.is_temporal(data_type) and kind == "string":
            value = self._cast_string(text, data_type) if text else None
            if value is not None:
                return value
        raise BadCellError


def _at_null(cursor: JsonCursor) -> bool:
    """Go on to the value if its name is the current token, and say whether it is null: what has no value is."""
    while cursor.kind == "name":
        cursor.next()
    return cursor.kind in (None, "null")


def _nested(opening: str, convert: Convert) -> Convert:
    """Let a converter see only values that open as its type's do."""

    def checked(cursor: JsonCursor) -> Any:
        if _at_null(cursor):
            return None
        if cursor.kind != opening:
            cursor.text()  # Spark's message has it, so that a string that is not JSON is found here
            raise BadCellError
        return convert(cursor)

    return checked


def _integer(text: str, bits: int) -> int:
    value = int(text) if len(text) < _MOST_DIGITS else 2**64  # Python refuses to read thousands of digits
    if bits == 8 and 128 <= value <= 255:
        return value - 256  # Jackson takes unsigned bytes as well
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise BadCellError
    return value


def _floating(kind: str | None, text: str, non_numeric_numbers: bool) -> float:
    if text in _FLOATS and (kind == "float" or (kind == "string" and non_numeric_numbers)):
        return _FLOATS[text]
    if kind == "integer":
        return float(text) + 0.0  # -0 is an integer: 0.0
    if kind == "float":
        return float(text)
    raise BadCellError


def big_decimal(text: str) -> decimal.Decimal | None:
    """Return the number that Java's ``BigDecimal`` reads, None if it reads none."""
    try:
        return decimal.Decimal(text) if _BIG_DECIMAL.fullmatch(text) else None
    except decimal.InvalidOperation:
        return None  # an exponent of more than nineteen digits


def _decimal(text: str, data_type: pa.Decimal128Type) -> decimal.Decimal:
    value = big_decimal(text.replace(",", ""))
    if value is None or (value != 0 and value.adjusted() >= data_type.precision - data_type.scale):
        raise BadCellError
    if value.adjusted() < -data_type.scale - 1:
        return decimal.Decimal(0)
    context = decimal.Context(prec=200, rounding=decimal.ROUND_HALF_UP)
    try:
        rounded = value.quantize(decimal.Decimal(1).scaleb(-data_type.scale), context=context)
    except decimal.InvalidOperation:
        raise BadCellError from None
    if rounded != 0 and rounded.adjusted() >= data_type.precision - data_type.scale:
        raise BadCellError
    return rounded
