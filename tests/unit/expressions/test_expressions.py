"""Expressions: names, texts, constants, branches that are not taken, and errors in the line that is wrong."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
from typing import Any

import pyarrow as pa
import pytest

from headgate import functions as f
from headgate.errors import OptionError
from headgate.expressions.compiled import evaluate, type_in
from headgate.expressions.row_condition import condition_of
from headgate.functions import Column, col, lit, when
from headgate.operators.filter import Filter
from headgate.operators.project import Project

SCHEMA = pa.schema(
    [
        ("n", pa.int32()), ("Name", pa.string()), ("o", pa.struct([("a", pa.int32())])), ("dotted.name", pa.int64()),
        ("p", pa.bool_()), ("at", pa.timestamp("us", "UTC")),
    ]
)  # fmt: skip
ROWS = pa.RecordBatch.from_pylist(
    [
        {
            "n": 0,
            "Name": "x",
            "o": {"a": 1},
            "dotted.name": 5,
            "p": True,
            "at": dt.datetime(2024, 3, 31, 1, tzinfo=dt.UTC),
        },
        {"n": 2, "Name": None, "o": None, "dotted.name": 6, "p": None, "at": None},
    ],
    schema=SCHEMA,
)


def values(column: Column, time_zone: str = "UTC") -> list[Any]:
    found: list[Any] = evaluate(column.node, ROWS, time_zone).to_pylist()
    return found


def test_names_have_no_case_and_may_be_paths() -> None:
    assert values(col("NAME")) == ["x", None]
    assert values(col("o.a")) == [1, None]
    assert values(col("`dotted.name`")) == [5, 6]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (col("missing"), "no column 'missing'. The columns are: n, Name"),
        (col("o.b"), "no field 'b'"),
        (col("n") + col("p"), r"\+: there is no common type"),
        (f.upper("o"), "upper cannot take struct"),
        (col("o").cast("string"), "no cast of struct<a: int32> to string"),
        (col("n").cast("date"), "no cast of int32 to date32"),
        (~col("n"), "cannot take int32"),
        (col("n") & col("p"), "AND takes boolean values"),
        (f.regexp_extract("Name", "(a)", 2), "has 1 groups"),
    ],
)
def test_a_wrong_program_is_refused_before_there_are_rows(column: Column, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        type_in(column.node, SCHEMA, "UTC")


def test_a_name_that_two_columns_have() -> None:
    twice = pa.RecordBatch.from_pydict({"a": [1], "A": [2]})
    assert evaluate(col("A").node, twice, "UTC").to_pylist() == [2]
    with pytest.raises(OptionError, match="no column 'b'"):
        evaluate(col("b").node, twice, "UTC")
    with pytest.raises(OptionError, match="more than one column 'aB'"):
        evaluate(col("aB").node, pa.RecordBatch.from_pydict({"ab": [1], "AB": [2]}), "UTC")


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, pa.int32()), (1 << 31, pa.int64()), (1.5, pa.float64()), ("x", pa.string()), (b"x", pa.binary()),
        (True, pa.bool_()), (None, pa.null()), (dt.date(2024, 1, 1), pa.date32()),
        (decimal.Decimal("12.50"), pa.decimal128(4, 2)), (decimal.Decimal("0.05"), pa.decimal128(2, 2)),
        (dt.datetime(2024, 1, 1), pa.timestamp("us", "UTC")),
    ],
)  # fmt: skip
def test_constants_have_the_types_that_spark_gives_them(value: object, kind: pa.DataType) -> None:
    assert type_in(lit(value).node, SCHEMA, "UTC") == kind
    assert len(values(lit(value))) == 2


def test_a_time_without_zone_is_in_the_session_s() -> None:
    moment = lit(dt.datetime(2024, 1, 1, 12))
    assert values(moment, "Europe/Berlin")[0] == dt.datetime(2024, 1, 1, 11, tzinfo=dt.UTC)


def test_a_constant_of_another_kind() -> None:
    with pytest.raises(OptionError, match="dict cannot be a constant"):
        lit({})


def test_branches_that_are_not_taken_are_not_evaluated() -> None:
    assert values(when(col("n") != 0, 10 / col("n")).otherwise(0)) == [0.0, 5.0]
    assert values((col("n") != 0) & (10 / col("n") > 1)) == [False, True]
    with pytest.raises(pa.ArrowInvalid, match="divide by zero"):
        values(10 / col("n"))


def test_branches_keep_their_order() -> None:
    big = pa.RecordBatch.from_pydict({"n": list(range(1000))})
    column = when(col("n") % 3 == 0, "a").when(col("n") % 3 == 1, "b")
    assert evaluate(column.node, big, "UTC").to_pylist() == [["a", "b", None][n % 3] for n in range(1000)]


def test_a_condition_in_python_s_words() -> None:
    with pytest.raises(OptionError, match="use '&' for 'and'"):
        bool(col("n") > 1 and col("n") < 2)
    with pytest.raises(TypeError):
        list(col("n"))  # type: ignore[call-overload]


def test_names_in_the_output() -> None:
    names = [
        (col("n"), "n"), (col("o.a"), "a"), (col("o").getField("a"), "a"), (col("n").cast("long"), "n"),
        (col("n").alias("m"), "m"), (col("n") + 1, "(n + 1)"), (f.upper("Name"), "upper(Name)"),
        (col("n").isin(1, 2), "in(n, 1, 2)"), (when(col("p"), 1).otherwise(2), "CASE WHEN p THEN 1 ELSE 2 END"),
        (~col("p"), "(NOT p)"), (lit(None), "NULL"), (lit(True), "true"),
    ]  # fmt: skip
    for column, name in names:
        assert column.name_in_output == name


def test_expressions_are_pickled() -> None:
    column = when(f.upper("Name") == "X", col("n").cast("decimal(5, 1)")).otherwise(None)
    again = pickle.loads(pickle.dumps(column))
    assert values(again) == [decimal.Decimal("0.0"), None]


def test_conditions_as_text() -> None:
    assert values(condition_of("n >= 1 and `dotted.name` in (5, 6) and Name is null")) == [False, True]
    assert values(condition_of("at < date '2024-04-01'")) == [True, None]
    with pytest.raises(OptionError, match="for all else use headgate"):
        condition_of("n + 1 > 2 or p")


def test_project_and_filter_refuse_what_cannot_be() -> None:
    with pytest.raises(OptionError, match="'n' appears more than once"):
        Project(SCHEMA, [col("n"), lit(1).alias("n")], "UTC")
    with pytest.raises(OptionError, match="has the type int32; a condition is boolean"):
        Filter(SCHEMA, col("n"), "UTC")
    assert Project(SCHEMA, [col("n").cast("long").alias("m")], "UTC").schema == pa.schema([("m", pa.int64())])
