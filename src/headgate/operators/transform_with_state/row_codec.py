"""Rows of a Spark schema as bytes: how values and keys of `transformWithState` are kept in memory and in checkpoints.

Never: store a value that the schema does not have: Spark would make it null without a word, here it is an error.

Version 1 is MessagePack: a row is an array of its fields, each in Spark's internal form:

    type                                      stored as
    ----------------------------------------  ---------------------------------------------------------
    boolean, integers, string, binary         as they are; integers are checked against their width
    float, double                             a double; of a key, -0.0 is 0.0 and there is one NaN
    decimal                                   its digits as text, rounded half up to the type's scale
    timestamp, timestamp_ntz                  microseconds since 1970-01-01 (UTC, or of the wall clock)
    date; time; day-time, year-month interval days; nanoseconds; microseconds; months
    array; struct                             an array
    map                                       an array of [key, value], in the order of the dict

What is read back is what PySpark's own client of the state store returns: a `Row` for a struct, timestamps without a
zone in local time.
"""

from __future__ import annotations

import datetime
import decimal
import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

Convert = Callable[[Any], Any]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(tuple[Any, ...]).decode


class MisfitValueError(ValueError):
    """A value does not fit its schema; the message says which and how."""


class RowCodec:
    """Rows of one schema to bytes and back.

    Parameters
    ----------
    schema
        PySpark's.
    what
        Names the schema in errors, like ``"state 'counts'"``.
    zone
        Timestamps are read back in this zone; None: without one, in local time.

    Raises
    ------
    OptionError
        A type cannot be stored.
    """

    def __init__(self, schema: StructType, what: str, zone: datetime.tzinfo | None = None) -> None:
        self.schema = schema
        self._what = what
        pairs = [_conversions(field.dataType, f"{what}, field {field.name!r}", zone) for field in schema.fields]
        self._to = [to for to, _ in pairs]
        self._from = [back for _, back in pairs] if any(back is not None for _, back in pairs) else None

    def encode(self, row: Sequence[Any]) -> bytes:
        """Return a row as bytes.

        Raises
        ------
        MisfitValueError
            It is not a tuple or list with the fields of the schema.
        """
        if not isinstance(row, tuple | list):
            raise MisfitValueError(
                f"{self._what}: {row!r} is not a row: give a tuple with values of {', '.join(self.schema.names)}"
            )
        if len(row) != len(self._to):
            raise MisfitValueError(
                f"{self._what}: {row!r} has {len(row)} values; it must have {len(self._to)}: "
                f"{', '.join(self.schema.names)}"
            )
        try:
            return _pack([value if value is None else to(value) for to, value in zip(self._to, row, strict=True)])
        except MisfitValueError as error:
            raise MisfitValueError(f"{self._what}: {error}") from error

    @cached_property
    def _row_of(self) -> Callable[[Iterable[Any]], Any]:
        return row_maker(self.schema.names)

    def decode_row(self, data: bytes) -> Any:
        """Return the row as a `Row`."""
        return self._row_of(self.decode(data))

    def decode(self, data: bytes) -> tuple[Any, ...]:
        """Return the row as a plain tuple."""
        values = _unpack(data)
        if self._from is None:
            return values
        return tuple(
            [
                value if back is None or value is None else back(value)
                for back, value in zip(self._from, values, strict=True)
            ]
        )


def _conversions(data_type: DataType, where: str, zone: datetime.tzinfo | None) -> tuple[Convert, Convert | None]:
    """Return how a value that is not null is stored and read back; None: as it is."""
    from pyspark.sql import types as t

    match data_type:
        case t.BooleanType():
            return _exactly(bool, "a boolean"), None
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return _integer(data_type), None
        case t.DoubleType():
            return _double, None
        case t.FloatType():
            return _float, None
        case t.StringType() | t.CharType() | t.VarcharType():
            return _exactly(str, "a string"), None
        case t.BinaryType():
            return _binary, None
        case t.DecimalType():
            return _decimal(data_type), decimal.Decimal
        case t.DateType():
            return _instance(datetime.date, "a date", data_type.toInternal), data_type.fromInternal
        case t.TimestampType():
            back = data_type.fromInternal if zone is None else _in_zone(zone)
            return _instance(datetime.datetime, "a datetime", data_type.toInternal), back
        case t.TimestampNTZType():
            return _instance(datetime.datetime, "a datetime", data_type.toInternal), data_type.fromInternal
        case _ if data_type.typeName() == "time":  # no class of PySpark 4.0
            return _instance(datetime.time, "a time", data_type.toInternal), data_type.fromInternal
        case t.DayTimeIntervalType():
            return _instance(datetime.timedelta, "a timedelta", data_type.toInternal), data_type.fromInternal
        case t.YearMonthIntervalType():
            return _exactly(int, "a number of months"), None
        case t.NullType():
            return _nothing, None
        case t.ArrayType():
            return _array(*_conversions(data_type.elementType, where, zone))
        case t.MapType():
            key, value = (_conversions(each, where, zone) for each in (data_type.keyType, data_type.valueType))
            return _map(*key, *value)
        case t.StructType():
            return _struct(data_type, [_conversions(field.dataType, where, zone) for field in data_type.fields])
    raise OptionError(
        f"{where} has the type {data_type.simpleString()}, which state cannot have. Store its parts, or a string.",
        option="schema", value=data_type.simpleString(),
    )  # fmt: skip


def _plain(value: Any) -> Any:
    """Return NumPy's and pandas' scalars as Python's."""
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    if hasattr(value, "to_pytimedelta"):
        return value.to_pytimedelta()
    return value.item() if type(value).__module__ == "numpy" and hasattr(value, "item") else value


def _misfit(value: Any, wanted: str) -> MisfitValueError:
    return MisfitValueError(f"{value!r} is a {type(value).__name__}; it must be {wanted}")


def _exactly(kind: type, wanted: str) -> Convert:
    def to(value: Any) -> Any:
        if type(value) is kind:
            return value
        value = _plain(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _misfit(value, wanted)
        return value

    return to


def _instance(kind: type, wanted: str, convert: Convert) -> Convert:
    def to(value: Any) -> Any:
        value = _plain(value)
        if not isinstance(value, kind):
            raise _misfit(value, wanted)
        return convert(value)

    return to


def _integer(data_type: DataType) -> Convert:
    bits = {"tinyint": 7, "smallint": 15, "int": 31, "bigint": 63}[data_type.simpleString()]
    lowest, highest = -(1 << bits), (1 << bits) - 1
    name = data_type.simpleString()

    def to(value: Any) -> int:
        if type(value) is not int:
            value = _plain(value)
            if not isinstance(value, int) or isinstance(value, bool):
                raise _misfit(value, f"an integer ({name})")
        if lowest <= value <= highest:
            return int(value)
        raise MisfitValueError(f"{value} does not fit the type {name}")

    return to


def _double(value: Any) -> float:
    if type(value) is float:
        return value
    value = _plain(value)
    if not isinstance(value, (float, int)) or isinstance(value, bool):
        raise _misfit(value, "a number (double)")
    return float(value)


def _float(value: Any) -> float:
    value = _double(value)
    try:
        return float(struct.unpack("f", struct.pack("f", value))[0])
    except OverflowError:
        return math.copysign(math.inf, value)


def _binary(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise _misfit(value, "bytes")
    return bytes(value)


def _decimal(data_type: Any) -> Convert:
    unit = decimal.Decimal(1).scaleb(-data_type.scale)
    context = decimal.Context(prec=data_type.precision, rounding=decimal.ROUND_HALF_UP)

    def to(value: Any) -> str:
        if not isinstance(value, decimal.Decimal):
            raise _misfit(value, f"a Decimal ({data_type.simpleString()})")
        try:
            return str(value.quantize(unit, context=context))
        except decimal.InvalidOperation as error:
            raise MisfitValueError(f"{value} does not fit the type {data_type.simpleString()}") from error

    return to


def _in_zone(zone: datetime.tzinfo) -> Convert:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return lambda microseconds: (epoch + datetime.timedelta(microseconds=microseconds)).astimezone(zone)


def _nothing(value: Any) -> Any:
    raise _misfit(value, "None (void)")


def _array(to: Convert, back: Convert | None) -> tuple[Convert, Convert | None]:
    def store(value: Any) -> list[Any]:
        if hasattr(value, "tolist"):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise _misfit(value, "a list")
        return [each if each is None else to(each) for each in value]

    if back is None:
        return store, None
    return store, lambda stored: [each if each is None else back(each) for each in stored]


def _map(
    to_key: Convert, key_back: Convert | None, to_value: Convert, value_back: Convert | None
) -> tuple[Convert, Convert]:
    def store(value: Any) -> list[Any]:
        if not isinstance(value, dict):
            raise _misfit(value, "a dict")
        return [(to_key(key), each if each is None else to_value(each)) for key, each in value.items()]

    def read(stored: Any) -> dict[Any, Any]:
        return {
            key if key_back is None else key_back(key): value
            if value is None or value_back is None
            else value_back(value)
            for key, value in stored
        }

    return store, read


def _struct(data_type: StructType, fields: list[tuple[Convert, Convert | None]]) -> tuple[Convert, Convert]:
    names, made = data_type.names, row_maker(data_type.names)

    def store(value: Any) -> list[Any]:
        if isinstance(value, dict):
            value = [value.get(name) for name in names]
        if not isinstance(value, (tuple, list)) or len(value) != len(fields):
            raise _misfit(value, f"a Row, tuple or dict with {len(fields)} fields: {', '.join(names)}")
        return [each if each is None else to(each) for (to, _), each in zip(fields, value, strict=True)]

    def read(stored: Any) -> Any:
        return made(
            [
                each if each is None or back is None else back(each)
                for (_, back), each in zip(fields, stored, strict=True)
            ]
        )

    return store, read


def row_maker(names: Sequence[str]) -> Callable[[Iterable[Any]], Any]:
    """Return what makes a `Row` with these names of its values: as ``Row(*names)`` does, several times faster."""
    from pyspark.sql import Row

    def make(values: Iterable[Any], new: Any = tuple.__new__, put: Any = object.__setattr__) -> Any:
        row = new(Row, values)
        put(row, "__fields__", names)  # a row's own way is code in Python, which asks whether it may
        return row

    return make
