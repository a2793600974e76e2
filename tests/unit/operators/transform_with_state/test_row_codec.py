"""Rows as bytes: every type comes back as PySpark gives it, what does not fit is refused, bytes stay what they are."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import numpy as np
import pytest
from pyspark.sql import Row
from pyspark.sql import types as t

from headgate.errors import OptionError
from headgate.operators.transform_with_state.row_codec import MisfitValueError, RowCodec

UTC = datetime.UTC
AT = datetime.datetime(2024, 2, 29, 1, 2, 3, 4)
DIGITS = t.DecimalType(6, 2)
TIME = getattr(t, "TimeType", t.NullType)()
STRUCT = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", t.DateType())])


def codec(data_type: t.DataType, zone: Any = None) -> RowCodec:
    """Return the codec of one column."""
    return RowCodec(t.StructType([t.StructField("v", data_type)]), "state 's'", zone)


@pytest.mark.parametrize(
    ("data_type", "value", "read"),
    [
        (t.BooleanType(), True, True),
        (t.ByteType(), -128, -128),
        (t.LongType(), np.int64(7), 7),
        (t.LongType(), (1 << 63) - 1, (1 << 63) - 1),
        (t.DoubleType(), 1, 1.0),
        (t.DoubleType(), np.float32(0.5), 0.5),
        (t.FloatType(), 0.1, 0.10000000149011612),
        (t.FloatType(), 1e300, float("inf")),
        (DIGITS, decimal.Decimal("1.005"), decimal.Decimal("1.01")),
        (t.StringType(), "é", "é"),
        (t.BinaryType(), bytearray(b"\xff"), b"\xff"),
        (t.DateType(), AT.date(), AT.date()),
        (t.TimestampType(), AT, AT),
        (t.TimestampNTZType(), AT, AT),
        pytest.param(TIME, AT.time(), AT.time(), marks=pytest.mark.spark_since("time-type")),
        (t.DayTimeIntervalType(), datetime.timedelta(days=-1, microseconds=1), datetime.timedelta(-1, 0, 1)),
        (t.YearMonthIntervalType(), 14, 14),
        (t.ArrayType(DIGITS), [decimal.Decimal(1), None], [decimal.Decimal("1.00"), None]),
        (t.ArrayType(t.LongType()), np.array([1, 2]), [1, 2]),
        (t.ArrayType(t.LongType()), (1, None), [1, None]),
        (t.MapType(t.StringType(), STRUCT), {"a": None, "b": (1, None)}, {"a": None, "b": Row(x=1, y=None)}),
        (STRUCT, {"y": AT.date()}, Row(x=None, y=AT.date())),
        (STRUCT, Row(x=1, y=AT.date()), Row(x=1, y=AT.date())),
        (t.NullType(), None, None),
    ],
)
def test_a_value_comes_back_as_pyspark_gives_it(data_type: t.DataType, value: Any, read: Any) -> None:
    """Of its own Python type, and null as null."""
    of = codec(data_type)
    (found,) = of.decode(of.encode((value,)))
    assert found == read and type(found) is type(read)
    assert of.decode(of.encode([None])) == (None,)


def test_timestamps_of_keys_have_the_sessions_zone() -> None:
    """As those of rows have."""
    of = codec(t.TimestampType(), datetime.timezone(datetime.timedelta(hours=9)))
    (found,) = of.decode(of.encode((AT.replace(tzinfo=UTC),)))
    assert found == AT.replace(tzinfo=UTC) and found.utcoffset() == datetime.timedelta(hours=9)


@pytest.mark.parametrize(
    ("data_type", "value", "says"),
    [
        (t.ByteType(), 128, "128 does not fit the type tinyint"),
        (t.LongType(), 1 << 63, "does not fit the type bigint"),
        (t.LongType(), True, r"True is a bool; it must be an integer \(bigint\)"),
        (t.DoubleType(), "1", r"'1' is a str; it must be a number \(double\)"),
        (t.StringType(), 1, "1 is a int; it must be a string"),
        (DIGITS, decimal.Decimal("12345.67"), r"12345.67 does not fit the type decimal\(6,2\)"),
        (DIGITS, 1.5, r"it must be a Decimal"),
        (t.DateType(), "2024-01-01", "it must be a date"),
        (t.ArrayType(t.LongType()), "abc", "it must be a list"),
        (t.MapType(t.StringType(), t.LongType()), [1], "it must be a dict"),
        (STRUCT, (1,), "with 2 fields: x, y"),
        (t.BinaryType(), "x", "it must be bytes"),
        (t.NullType(), 1, r"it must be None \(void\)"),
    ],
)
def test_a_value_that_does_not_fit_is_refused(data_type: t.DataType, value: Any, says: str) -> None:
    """The error names the state and what it should be."""
    with pytest.raises(MisfitValueError, match=rf"state 's': .*{says}"):
        codec(data_type).encode((value,))


@pytest.mark.parametrize("row", [(1, 2), (), "a", {"v": 1}, None, 7])
def test_what_is_no_row_is_refused(row: Any) -> None:
    """A row is a tuple with a value for each column."""
    with pytest.raises(MisfitValueError, match=r"state 's': .* v$"):
        codec(t.LongType()).encode(row)


def test_types_that_state_cannot_have_are_refused() -> None:
    """With the name of the column."""
    with pytest.raises(OptionError, match=r"state 's', field 'v' has the type variant"):
        codec(t.ArrayType(t.VariantType()))


def test_the_bytes_are_part_of_the_checkpoint_format() -> None:
    """Version 1: they never change."""
    schema = t.StructType([t.StructField(str(n), kind) for n, kind in enumerate(
        (t.LongType(), t.StringType(), t.DoubleType(), t.TimestampNTZType(), DIGITS, STRUCT, t.BinaryType())
    )])  # fmt: skip
    row = (-3, "x", 1.5, AT, decimal.Decimal("1.5"), (None, AT.date()), b"\x01")
    stored = "97fda178cb3ff8000000000000cf0006127aceacb8c4a4312e353092c0cd4d46c40101"
    assert RowCodec(schema, "s").encode(row).hex() == stored
