"""Parses single JSON records as Spark's JSON source does: the slow way, for records that need its leniency.

Never: used for records that Arrow's JSON reader takes, or a decision about ``mode``; the format makes it.

Follows Spark 4.3's ``JacksonParser``: what contradicts JSON spoils the whole record (`MalformedRecordError`), what only
contradicts a column's type makes that value null and the record ``partial``.
"""

from __future__ import annotations

import base64
import binascii
import decimal
import re
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from headgate.formats.json_cursor import JsonCursor, JsonDialect, JsonToken, MalformedRecordError

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
            The record is no JSON object and no array of objects. What follows the object is not looked at.
        """
        cursor = JsonCursor(record, self._dialect)
        first = cursor.peek()
        if first == "{":
            return [self._row(cursor)], cursor.partial
        if first == "" and self._dialect.comments:
            return [], False
        rows: list[dict[str, Any]] = []

        def element() -> None:
            if cursor.peek() != "{":
                raise MalformedRecordError
            rows.append(self._row(cursor))

        cursor.elements(element)
        return rows, cursor.partial

    def _converter(self, data_type: pa.DataType) -> Convert:
        if pa.types.is_struct(data_type):
            return self._nested("{", self._struct(list(data_type.fields)))
        if pa.types.is_map(data_type):
            return self._nested("{", self._map(data_type))
        if pa.types.is_list(data_type):
            return self._nested("[", self._list(data_type))
        if pa.types.is_string(data_type):
            return _string
        return self._nested("", self._scalar(data_type))

    def _nested(self, opening: str, convert: Convert) -> Convert:
        """Let a converter see only values that open as its type's do, or for scalars ("") that open nothing."""

        def checked(cursor: JsonCursor) -> Any:
            character = cursor.peek()
            if character == opening or (opening == "" and character not in "{["):
                return convert(cursor)
            if character not in "{[" and cursor.token().kind == "null":
                return None
            if character in "{[":
                cursor.skip()
            raise BadCellError

        return checked

    def _struct(self, fields: list[pa.Field]) -> Convert:
        converters = {field.name: self._converter(field.type) for field in fields}

        def convert(cursor: JsonCursor) -> dict[str, Any]:
            row: dict[str, Any] = {}

            def on_field(name: str) -> None:
                converter = converters.get(name)
                if converter is None:
                    cursor.skip()
                    return
                try:
                    row[name] = converter(cursor)
                except BadCellError:
                    cursor.partial = True

            cursor.fields(on_field)
            return row

        return convert

    def _map(self, data_type: pa.MapType) -> Convert:
        value_of = self._converter(data_type.item_type)

        def convert(cursor: JsonCursor) -> list[tuple[str, Any]]:
            items: dict[str, Any] = {}
            bad = False

            def on_field(name: str) -> None:
                nonlocal bad
                try:
                    items[name] = value_of(cursor)
                except BadCellError:
                    bad = True

            cursor.fields(on_field)
            if bad:
                raise BadCellError
            return list(items.items())

        return convert

    def _list(self, data_type: pa.ListType) -> Convert:
        value_of = self._converter(data_type.value_type)

        def convert(cursor: JsonCursor) -> list[Any]:
            values: list[Any] = []
            bad = False

            def on_element() -> None:
                nonlocal bad
                try:
                    values.append(value_of(cursor))
                except BadCellError:
                    bad = True

            cursor.elements(on_element)
            if bad:
                raise BadCellError
            return values

        return convert

    def _scalar(self, data_type: pa.DataType) -> Convert:
        def convert(cursor: JsonCursor) -> Any:
            token = cursor.token()
            return None if token.kind == "null" else self._value(token, data_type)

        return convert

    def _value(self, token: JsonToken, data_type: pa.DataType) -> Any:
        if pa.types.is_integer(data_type) and token.kind == "integer":
            return _integer(token.text, _INTEGER_BITS[data_type])
        if pa.types.is_floating(data_type):
            return _floating(token, self._dialect.non_numeric_numbers)
        if pa.types.is_boolean(data_type) and token.kind == "boolean":
            return token.text == "true"
        if pa.types.is_decimal(data_type):
            return _decimal(token, data_type)
        if pa.types.is_binary(data_type) and token.kind == "string":
            try:
                return base64.b64decode(token.text, validate=True)
            except binascii.Error:
                raise BadCellError from None
        if pa.types.is_timestamp(data_type) and data_type.tz and token.kind == "integer":
            seconds = _integer(token.text, 64)
            return (seconds * 1_000_000 + 2**63) % 2**64 - 2**63  # Spark's multiplication overflows silently
        if pa.types.is_temporal(data_type) and token.kind == "string":
            value = self._cast_string(token.text, data_type) if token.text else None
            if value is not None:
                return value
        raise BadCellError


def _string(cursor: JsonCursor) -> str | None:
    """Read a value for a string column: a string's text, of everything else what stands in the file."""
    character = cursor.peek()
    if cursor.quote(character):
        return cursor.string(character)
    raw = cursor.raw()
    return None if raw == "null" else raw


def _integer(text: str, bits: int) -> int:
    value = int(text) if len(text) < _MOST_DIGITS else 2**64  # Python refuses to read thousands of digits
    if bits == 8 and 128 <= value <= 255:
        return value - 256  # Jackson takes unsigned bytes as well
    if not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
        raise BadCellError
    return value


def _floating(token: JsonToken, non_numeric_numbers: bool) -> float:
    if token.text in _FLOATS and (token.kind == "float" or (token.kind == "string" and non_numeric_numbers)):
        return _FLOATS[token.text]
    if token.kind == "integer":
        return float(token.text) + 0.0  # -0 is an integer: 0.0
    if token.kind == "float":
        return float(token.text)
    raise BadCellError


def big_decimal(text: str) -> decimal.Decimal | None:
    """Return the number that Java's ``BigDecimal`` reads, None if it reads none."""
    try:
        return decimal.Decimal(text) if _BIG_DECIMAL.fullmatch(text) else None
    except decimal.InvalidOperation:
        return None  # an exponent of more than nineteen digits


def _decimal(token: JsonToken, data_type: pa.Decimal128Type) -> decimal.Decimal:
    if token.kind not in ("string", "integer", "float"):
        raise BadCellError
    value = big_decimal(token.text.replace(",", ""))
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
