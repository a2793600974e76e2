"""Infers the schema of JSON records as Spark does: the narrowest type that holds every value seen, field by field.

Never: read more than the sample it is given.

Follows Spark 4.3's ``JsonInferSchema``. The types that only exist while inferring are Arrow's null type (nothing but
null or empty strings so far) and struct types without fields; both are replaced or dropped at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.json_cursor import JsonCursor, JsonDialect, MalformedRecordError
from headgate.formats.json_parser import big_decimal
from headgate.formats.json_records import records_of
from headgate.formats.names import Names
from headgate.formats.shared_options import DROPMALFORMED, FAILFAST
from headgate.formats.values import cast_strings

_MOST_DIGITS = 38
_DIGITS_OF_LONG = 20
_UTC_TIMESTAMP = pa.timestamp("us", "UTC")
_EMPTY = pa.struct([])


def infer_json_schema(sample: bytes, options: Mapping[str, Any], names: Names | None = None) -> pa.Schema:
    """Return the schema of a sample: its fields in the order of their names.

    Parameters
    ----------
    sample
        Whole lines of a file, or a whole document with ``multiLine``; a byte order mark is already gone.
    options
        Parsed values of the format's ``OPTIONS``, by name.
    names
        Which names are one; None: those that differ only in case. Two of one object stay two here, as in Spark.

    Raises
    ------
    BadDataError
        A record is malformed and ``mode`` is ``FAILFAST``.
    """
    infer = _Inference(options, names or Names())
    root: pa.DataType = _EMPTY
    for start, record in records_of(sample, options):
        root = infer.with_record(root, record, start)
    final = infer.final_type(root)
    return pa.schema(list(final.fields) if final is not None and pa.types.is_struct(final) else [])


class _Inference:
    """The types of values and of their union, under one set of options."""

    def __init__(self, options: Mapping[str, Any], names: Names) -> None:
        self._options = options
        self._names = names
        self._dialect = JsonDialect.of(options, characters=False)
        self._corrupt_column: str = options["columnNameOfCorruptRecord"]
        self._corrupt_type = pa.struct([pa.field(self._corrupt_column, pa.string())])
        self._is_timestamp = functools.lru_cache(maxsize=4096)(self._read_timestamp)

    def with_record(self, root: pa.DataType, record: bytes, start: int) -> pa.DataType:
        """Return the type of all records so far and one more."""
        try:
            cursor = JsonCursor(record, self._dialect)
            found = pa.null() if cursor.next() is None else self._type_of(cursor)
        except (MalformedRecordError, RecursionError):
            found = None
        while found is not None and pa.types.is_list(found):
            found = found.value_type
        if found is not None and pa.types.is_null(found):
            return root
        if found is None or not pa.types.is_struct(found):
            if self._options["mode"] == FAILFAST:
                shown = record[:80].decode("utf-8", "replace")
                raise BadDataError(
                    f"The JSON record at byte {start} of the sample is not an object: {shown!r}. Correct the file, or "
                    "set mode to PERMISSIVE or DROPMALFORMED.",
                    path=None, byte_offset=start,
                )  # fmt: skip
            if self._options["mode"] == DROPMALFORMED:
                return root
            found = self._corrupt_type
        return self._union(root, found)

    def _type_of(self, cursor: JsonCursor) -> pa.DataType:
        if cursor.kind == "{":
            return self._object_type(cursor)
        if cursor.kind == "[":
            element = pa.null()
            while cursor.next() not in (None, "]"):
                element = self._union(element, self._type_of(cursor))
            return pa.list_(pa.field("element", element))
        assert cursor.kind is not None
        return self._token_type(cursor.kind, cursor.text())

    def _object_type(self, cursor: JsonCursor) -> pa.DataType:
        types: dict[str, pa.DataType] = {}
        while cursor.next() not in (None, "}"):
            name = cursor.name
            assert name is not None
            cursor.next()
            found = self._type_of(cursor)
            types[name] = self._union(types[name], found) if name in types else found
        return _struct(types)

    def _token_type(self, kind: str, text: str) -> pa.DataType:
        if kind == "null" or (kind == "string" and not text):
            return pa.null()
        if kind == "string":
            return self._string_type(text)
        if self._options["primitivesAsString"]:
            return pa.string()
        if kind == "boolean":
            return pa.bool_()
        if kind == "integer":
            is_long = len(text) <= 20 and -(2**63) <= int(text) < 2**63
            return pa.int64() if is_long else _decimal_type(text) or pa.float64()
        if self._options["prefersDecimal"]:
            if not text[-1].isdigit():
                raise MalformedRecordError  # NaN and Infinity are not decimals, which Spark takes for a bad record
            return _decimal_type(text) or pa.float64()
        return pa.float64()

    def _string_type(self, text: str) -> pa.DataType:
        if self._options["prefersDecimal"]:
            found = _decimal_type(text.replace(",", ""))
            if found is not None:
                return found
        if self._options["inferTimestamp"] and self._is_timestamp(text):
            return _UTC_TIMESTAMP
        return pa.string()

    def _read_timestamp(self, text: str) -> bool:
        _, bad = cast_strings(pa.array([text]), _UTC_TIMESTAMP, self._options, "UTC")
        return bad is None

    def _union(self, one: pa.DataType, other: pa.DataType) -> pa.DataType:
        """Return the narrowest type that holds the values of both."""
        if one == other or pa.types.is_null(other):
            return one
        if pa.types.is_null(one):
            return other
        if pa.types.is_struct(one) and pa.types.is_struct(other):
            alike = self._tightest(one, other)
            if alike is not None:
                return alike
            types = {field.name: field.type for field in one.fields}
            for field in other.fields:
                types[field.name] = self._union(types[field.name], field.type) if field.name in types else field.type
            return _struct(types)
        if pa.types.is_list(one) and pa.types.is_list(other):
            return pa.list_(pa.field("element", self._union(one.value_type, other.value_type)))
        return _number_union(one, other) or pa.string()

    def _tightest(self, one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
        """Return Spark's ``findTightestCommonType``: structs have the same fields in this order, but for their case."""
        if one == other or pa.types.is_null(other):
            return one
        if pa.types.is_null(one):
            return other
        if pa.types.is_list(one) and pa.types.is_list(other):
            element = self._tightest(one.value_type, other.value_type)
            return None if element is None else pa.list_(pa.field("element", element))
        if not (pa.types.is_struct(one) and pa.types.is_struct(other)):
            return _tightest_number(one, other)
        pairs = list(zip(one.fields, other.fields))
        if one.num_fields != other.num_fields or not all(self._is_one(a.name, b.name) for a, b in pairs):
            return None
        types = [self._tightest(a.type, b.type) for a, b in pairs]
        if None in types:
            return None
        self._names.folded |= any(a.name != b.name for a, b in pairs)
        return pa.struct([field.with_type(found) for field, found in zip(one.fields, types)])

    def _is_one(self, one: str, other: str) -> bool:
        return self._names.key(one) == self._names.key(other)

    def final_type(self, data_type: pa.DataType) -> pa.DataType | None:
        """Return a type without the parts that only exist while inferring; None if nothing is left."""
        if pa.types.is_struct(data_type):
            kept = [(field.name, self.final_type(field.type)) for field in data_type.fields if field.name]
            fields = [pa.field(name, found) for name, found in kept if found is not None]
            return pa.struct(fields) if fields else None
        if pa.types.is_list(data_type):
            element = self.final_type(data_type.value_type)
            return None if element is None else pa.list_(pa.field("element", element))
        if pa.types.is_null(data_type):
            return None if self._options["dropFieldIfAllNull"] else pa.string()
        return data_type


def _struct(types: Mapping[str, pa.DataType]) -> pa.DataType:
    return pa.struct([pa.field(name, types[name]) for name in sorted(types)])


def _decimal_type(text: str) -> pa.DataType | None:
    """Return the decimal type that just holds a number, None if there is none or the text is not a number."""
    value = big_decimal(text)
    if value is None:
        return None
    exponent = value.as_tuple().exponent
    assert isinstance(exponent, int)
    digits = len(value.as_tuple().digits)
    if exponent > 0:
        digits, exponent = digits + exponent, 0
    precision = max(digits, -exponent)
    return pa.decimal128(precision, -exponent) if precision <= _MOST_DIGITS else None


def _tightest_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return that of two types of numbers which holds all values of the other, as Spark sees it; None: neither."""
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    for whole, wide in ((one, other), (other, one)):
        if whole == pa.int64() and pa.types.is_decimal(wide) and wide.precision - wide.scale >= _DIGITS_OF_LONG:
            return wide
    return None


def _number_union(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type that holds two kinds of numbers, None if one of them is not a number."""
    pair = (one, other)
    if not all(t == pa.int64() or t == pa.float64() or pa.types.is_decimal(t) for t in pair):
        return None
    if pa.float64() in pair:
        return pa.float64()
    decimals = [pa.decimal128(_DIGITS_OF_LONG, 0) if t == pa.int64() else t for t in pair]
    scale = max(t.scale for t in decimals)
    whole = max(t.precision - t.scale for t in decimals)
    return pa.decimal128(whole + scale, scale) if whole + scale <= _MOST_DIGITS else pa.float64()
