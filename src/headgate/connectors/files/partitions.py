"""Partition columns: from the names of folders to typed values.

Never: list or open anything. Values stay texts (as in the folders' names) until a batch is made.

Follows Spark 4.3, "Partition Discovery" (``PartitioningUtils``): the types tried are int, long, decimal for longer
whole numbers, double, date, timestamp, string; the type of a column is the narrowest that holds all its values.
"""

from __future__ import annotations

import datetime
import decimal
import functools
import re
from collections.abc import Iterable

import pyarrow as pa

from headgate.errors import BadDataError
from headgate.formats.names import Names
from headgate.formats.values_datetime import tzinfo_of, zone_of

PartitionValues = tuple[tuple[str, str | None], ...]
"""Column names and texts, outermost folder first; None is Hive's null."""

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?(NaN|Infinity)")
_INFERRED_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_INFERRED_TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{1,2})(?:-([0-9]{1,2}))?")
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{1,2}-[0-9]{1,2})[ T]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{1,6}))?)?"
)
_TIMESTAMP_TYPE = pa.timestamp("us", "UTC")
_DIGITS = {pa.int32(): 10, pa.int64(): 20}


def partition_of_folder(name: str) -> tuple[str, str | None] | None:
    """Return column and text of a folder named ``column=text``, unescaped; None if it is not named so."""
    column, equals, value = name.partition("=")
    if not equals or not column or not value:
        return None
    return _unescape(column), None if value == _HIVE_NULL else _unescape(value)


def _unescape(text: str) -> str:
    # As in Spark, each escape is a character, not a byte of UTF-8: Spark escapes nothing beyond ASCII.
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def infer_partition_fields(values: Iterable[PartitionValues], time_zone: str, names: Names) -> list[pa.Field]:
    """Return the partition columns with the narrowest type that holds every value of the column.

    All files have the same columns, in this order; they are spelt as the first one's folders.
    """
    columns: list[tuple[str, set[str | None]]] = []
    for row in dict.fromkeys(values):
        columns = columns or [(column, set()) for column, _ in row]
        for (column, texts), (spelt, text) in zip(columns, row):
            assert names.same(column, spelt), "listing refuses folders of other columns"
            texts.add(text)
    return [pa.field(column, _common_type(texts, time_zone)) for column, texts in columns]


def _common_type(texts: Iterable[str | None], time_zone: str) -> pa.DataType:
    types = {_type_of(text, time_zone) for text in texts if text is not None}
    return functools.reduce(_wider, sorted(types, key=str)) if types else pa.null()


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type of a column with values of two types: Spark's ``findWiderTypeForPartitionColumn``."""
    pair = {one, other}
    if len(pair) == 1:
        return one
    if pair == {pa.int32(), pa.float64()}:
        return pa.float64()
    if pair == {pa.date32(), _TIMESTAMP_TYPE}:
        return _TIMESTAMP_TYPE
    if pair == {pa.int32(), pa.int64()}:
        return pa.int64()
    digits = [each.precision if pa.types.is_decimal(each) else _DIGITS.get(each) for each in pair]
    return pa.string() if None in digits else pa.decimal128(min(38, max(filter(None, digits))), 0)


def _type_of(text: str, time_zone: str) -> pa.DataType:
    if _WHOLE.fullmatch(text):
        number = int(text)
        if -(2**31) <= number < 2**31:
            return pa.int32()
        if -(2**63) <= number < 2**63:
            return pa.int64()
    if _DECIMAL.fullmatch(text):
        return _decimal_type(text) or pa.float64()
    for pattern, candidate in ((_INFERRED_DATE, pa.date32()), (_INFERRED_TIMESTAMP, _TIMESTAMP_TYPE)):
        if pattern.fullmatch(text):
            try:
                _parse(text, candidate, time_zone)
            except ValueError:
                continue
            return candidate
    return pa.string()


def _decimal_type(text: str) -> pa.DataType | None:
    """Return the type of a number without digits after the point, such as 2e3; None if it has some, or too many."""
    parts = decimal.Decimal(text).as_tuple()
    if not isinstance(parts.exponent, int) or parts.exponent < 0:
        return None
    digits = len(parts.digits) + parts.exponent
    return pa.decimal128(digits, 0) if digits <= 38 else None


def partition_scalar(column: str, text: str | None, target: pa.DataType, path: str, time_zone: str) -> pa.Scalar:
    """Return a partition value in the type that the schema wants.

    Raises
    ------
    BadDataError
        The text is not a value of that type.
    """
    if text is None:
        return pa.scalar(None, target)
    try:
        return pa.scalar(_parse(text, target, time_zone), target)
    except (ValueError, ArithmeticError, pa.ArrowException) as error:
        raise BadDataError(
            f"headgate.files: the partition folder {column}={text} of {path} is not a valid {target}. Change the type "
            f"of {column!r} in the schema, or leave the folder out.",
            path=path, byte_offset=0,
        ) from error  # fmt: skip


def _parse(text: str, target: pa.DataType, time_zone: str) -> object:
    if pa.types.is_integer(target):
        if not _WHOLE.fullmatch(text):
            raise ValueError(text)
        return int(text)
    if pa.types.is_floating(target):
        if not _DECIMAL.fullmatch(text):
            raise ValueError(text)
        return float(text)
    if pa.types.is_decimal(target):
        return decimal.Decimal(text)
    if pa.types.is_boolean(target):
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    if pa.types.is_date(target):
        match = _DATE.fullmatch(text)
        if match is None:
            raise ValueError(text)
        return datetime.date(int(match[1]), int(match[2]), int(match[3] or 1))
    if pa.types.is_timestamp(target):
        return _parse_timestamp(text, target, time_zone)
    if pa.types.is_binary(target):
        return text.encode()
    return text


def _parse_timestamp(text: str, target: pa.TimestampType, time_zone: str) -> datetime.datetime:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        day = _parse(text, pa.date32(), time_zone)
        assert isinstance(day, datetime.date)
        moment = datetime.datetime(day.year, day.month, day.day)
    else:
        day = _parse(match[1], pa.date32(), time_zone)
        assert isinstance(day, datetime.date)
        fraction = int((match[5] or "").ljust(6, "0"))
        moment = datetime.datetime(
            day.year, day.month, day.day, int(match[2]), int(match[3]), int(match[4] or 0), fraction
        )
    return moment if target.tz is None else moment.replace(tzinfo=tzinfo_of(zone_of(time_zone)))
