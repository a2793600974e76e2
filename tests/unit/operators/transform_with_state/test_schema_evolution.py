"""`row_conversion`: which schemas of state are taken on, and what becomes of their rows."""

from __future__ import annotations

import decimal
from typing import Any

import pytest
from pyspark.sql.types import StructField, StructType

from headgate.operators.transform_with_state.row_codec import RowCodec
from headgate.operators.transform_with_state.schema_evolution import NotTakenOnError, row_conversion

CASES: dict[str, tuple[str, str, Any, Any]] = {
    "fields more and less": ("a int, b string, c long", "c long, d string, a int", (1, "x", 3), (3, None, 1)),
    "wider integers": ("a tinyint, b smallint, c int", "a smallint, b int, c bigint", (1, 2, 3), (1, 2, 3)),
    "floating point numbers": ("a float, b int", "a double, b double", (0.5, 3), (0.5, 3.0)),
    "decimals": ("a decimal(5,2)", "a decimal(12,2)", (decimal.Decimal("1.50"),), (decimal.Decimal("1.50"),)),
    "in a struct": ("a struct<x: int, y: int>", "a struct<y: double, z: string>", ((1, 2),), ((2.0, None),)),
    "in an array": ("a array<struct<x: int>>", "a array<struct<y: int, x: int>>", ([(1,)],), ([(None, 1)],)),
    "in a map": ("a map<string, int>", "a map<string, double>", ({"x": 1},), ({"x": 1.0},)),
}  # fmt: skip
REFUSED = (
    ("a bigint", "a int"), ("a double", "a float"), ("a bigint", "a double"), ("a int", "a string"),
    ("a decimal(5,2)", "a decimal(5,3)"), ("a decimal(5,2)", "a decimal(4,2)"), ("a int", "a array<int>"),
    ("a array<int>", "a map<int, int>"), ("a struct<x: int>", "a struct<x: string>"),
)  # fmt: skip


def parsed(text: str) -> StructType:
    fields = [each.split(" ", 1) for each in _split(text)]
    return StructType([StructField(name, _parsed_type(kind)) for name, kind in fields])


def _split(text: str) -> list[str]:
    made, depth = [""], 0
    for sign in text:
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and depth == 0:
            made.append("")
        else:
            made[-1] += sign
    return [each.strip() for each in made]


def _parsed_type(kind: str) -> Any:
    from pyspark.sql import types as t

    simple = {
        "int": t.IntegerType, "bigint": t.LongType, "long": t.LongType, "tinyint": t.ByteType, "float": t.FloatType,
        "smallint": t.ShortType, "string": t.StringType, "double": t.DoubleType,
    }  # fmt: skip
    if kind in simple:
        return simple[kind]()
    inner = kind.partition("<")[2][:-1] or kind.partition("(")[2][:-1]
    parts = _split(inner)
    if kind.startswith("decimal"):
        return t.DecimalType(*map(int, parts))
    if kind.startswith("array"):
        return t.ArrayType(_parsed_type(inner))
    if kind.startswith("map"):
        return t.MapType(*map(_parsed_type, parts))
    return t.StructType([t.StructField(name, _parsed_type(of)) for name, of in (each.split(": ") for each in parts)])


@pytest.mark.parametrize("name", CASES)
def test_what_becomes_of_rows(name: str) -> None:
    before, now, row, expected = CASES[name]
    convert = row_conversion(parsed(before).json(), parsed(now).json())
    found = RowCodec(parsed(now), "now").decode(convert(RowCodec(parsed(before), "before").encode(row)))
    assert found == expected


@pytest.mark.parametrize(("before", "now"), REFUSED)
def test_what_is_refused(before: str, now: str) -> None:
    with pytest.raises(NotTakenOnError):
        row_conversion(parsed(before).json(), parsed(now).json())


def test_a_field_that_may_not_be_null_is_refused() -> None:
    now = StructType([*parsed("a int").fields, StructField("b", _parsed_type("int"), nullable=False)])
    with pytest.raises(NotTakenOnError):
        row_conversion(parsed("a int").json(), now.json())
    some = StructType([StructField("a", _parsed_type("int"), nullable=False)])
    row_conversion(some.json(), parsed("a int").json())
