"""Every function gives what PySpark's function of the same name gives: the same code, run with both modules."""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as spark_functions

import headgate.functions as headgate_functions
from headgate.expressions.compiled import evaluate

UTC = dt.UTC
SCHEMA = pa.schema(
    [
        ("i", pa.int32()), ("j", pa.int32()), ("k", pa.int64()), ("b", pa.int8()), ("x", pa.float64()),
        ("y", pa.float64()), ("f", pa.float32()), ("d", pa.decimal128(10, 2)), ("p", pa.bool_()), ("q", pa.bool_()),
        ("s", pa.string()), ("t", pa.string()), ("n", pa.string()), ("m", pa.string()),
        ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
        ("o", pa.struct([("a", pa.int32()), ("b", pa.string())])),
    ]
)  # fmt: skip
D = decimal.Decimal
ROWS: list[tuple[Any, ...]] = [
    (1, 2, 3, 4, 1.5, 2.0, 0.5, D("1.25"), True, False, "abc", "b", "12", "2024-02-29",
     dt.date(2024, 2, 29), dt.datetime(2024, 2, 29, 23, 59, 58, 123456, UTC), {"a": 1, "b": "x"}),
    (-7, 3, -(1 << 40), -4, -2.5, 0.5, -1e10, D("-9.99"), False, None, "  Größe x ", "x", " -5 ", "2024-2-3 04:05:06",
     dt.date(1969, 12, 31), dt.datetime(1969, 12, 31, 23, 0, 0, 500000, UTC), {"a": None, "b": ""}),
    (None, 5, None, None, None, 1.0, None, None, None, True, None, None, None, None, None, None, None),
    (0, -3, 1 << 40, 0, math.nan, math.nan, math.nan, D("0.00"), True, True, "", "%", "+7", "1999",
     dt.date(2000, 1, 1), dt.datetime(2000, 1, 1, tzinfo=UTC), {"a": 5, "b": None}),
    (100, 7, 9, 127, math.inf, 1e-5, 1e7, D("12345678.90"), False, True, "a.b.c", ".", "0",
     "2024-07-01 12:30:45.6789+02:00", dt.date(2026, 12, 28), dt.datetime(2026, 12, 28, 1, 2, 3, tzinfo=UTC),
     {"a": 7, "b": "y"}),
    (5, 4, 5, 1, 2.675, 12345678.9, 3.25, D("2.50"), None, False, "日本語 text", "本", "99", "2020-01-01 00:00:00Z",
     dt.date(2023, 1, 1), dt.datetime(2023, 7, 3, 4, 5, 6, 7, UTC), {"a": 9, "b": "z"}),
]  # fmt: skip


def text_of(f: Any, c: Any, positive: str, other: str) -> Any:
    """Return a column of two texts, by the sign of ``i``."""
    return f.when(c("i") > 0, positive).otherwise(other)


CASES: dict[str, Callable[[Any, Any], Any]] = {
    "literals": lambda f, c: f.struct(f.lit(1).alias("a"), f.lit("x").alias("b"), f.lit(2.5).alias("c")),
    "null literal": lambda f, c: f.coalesce(f.lit(None), c("i")),
    "add": lambda f, c: c("i") + c("k"),
    "add int8": lambda f, c: c("b") + c("i"),
    "add float": lambda f, c: c("i") + c("f"),
    "add decimal": lambda f, c: c("d") + c("d"),
    "decimal and double": lambda f, c: c("d") + c("x"),
    "subtract": lambda f, c: 10 - c("i"),
    "multiply": lambda f, c: c("i") * c("x"),
    "multiply decimal": lambda f, c: c("d") * c("d"),
    "divide": lambda f, c: c("i") / c("j"),
    "remainder": lambda f, c: c("i") % c("j"),
    "remainder of doubles": lambda f, c: c("x") % 2.0,
    "negative": lambda f, c: -c("i"),
    "power": lambda f, c: c("x") ** 2,
    "pow": lambda f, c: f.pow(c("i"), 2),
    "eq": lambda f, c: c("x") == c("y"),
    "ne": lambda f, c: c("x") != c("y"),
    "lt": lambda f, c: c("x") < c("y"),
    "le": lambda f, c: c("x") <= c("y"),
    "gt": lambda f, c: c("x") > c("y"),
    "ge": lambda f, c: c("x") >= c("y"),
    "eq int and long": lambda f, c: c("i") == c("k"),
    "text and number": lambda f, c: c("n") > 3,
    "timestamp and text": lambda f, c: c("at") >= "2000-01-01",
    "date and text": lambda f, c: c("day") < "2020-01-01",
    "date and timestamp": lambda f, c: c("day") <= c("at"),
    "eqNullSafe": lambda f, c: c("q").eqNullSafe(c("p")),
    "eqNullSafe NaN": lambda f, c: c("x").eqNullSafe(c("y")),
    "and": lambda f, c: c("p") & c("q"),
    "or": lambda f, c: c("p") | c("q"),
    "not": lambda f, c: ~c("p"),
    "and guards": lambda f, c: (c("i") != 0) & (100 / c("i") > 1),
    "between": lambda f, c: c("i").between(0, 10),
    "isin": lambda f, c: c("s").isin("abc", "", None),
    "isin list": lambda f, c: c("i").isin([1, 5]),
    "isNull": lambda f, c: c("s").isNull(),
    "isNotNull": lambda f, c: c("s").isNotNull(),
    "isNaN": lambda f, c: c("x").isNaN(),
    "isnull": lambda f, c: f.isnull("s"),
    "isnotnull": lambda f, c: f.isnotnull("s"),
    "isnan": lambda f, c: f.isnan("x"),
    "coalesce": lambda f, c: f.coalesce("i", "k", f.lit(0)),
    "ifnull": lambda f, c: f.ifnull(c("s"), c("t")),
    "nvl": lambda f, c: f.nvl(c("p"), c("q")),
    "nullif": lambda f, c: f.nullif(c("i"), f.lit(0)),
    "greatest": lambda f, c: f.greatest("x", "y"),
    "least": lambda f, c: f.least("x", "y"),
    "greatest of ints": lambda f, c: f.greatest("i", "k"),
    "when": lambda f, c: f.when(c("i") > 0, "more").when(c("i") < 0, "less"),
    "when otherwise": lambda f, c: f.when(c("p"), c("i")).otherwise(c("k")),
    "when guards": lambda f, c: f.when(c("i") != 0, 100 / c("i")).otherwise(-1.0),
    "abs": lambda f, c: f.abs("i"),
    "abs double": lambda f, c: f.abs("x"),
    "ceil": lambda f, c: f.ceil(c("y")),
    "floor": lambda f, c: f.floor(c("y")),
    "round": lambda f, c: f.round(c("x"), 2),
    "round to whole": lambda f, c: f.round(c("x")),
    "round float": lambda f, c: f.round(c("f"), 1),
    "round int": lambda f, c: f.round(c("i"), -1),
    "sqrt": lambda f, c: f.sqrt("x"),
    "exp": lambda f, c: f.exp("y"),
    "ln": lambda f, c: f.ln("x"),
    "log10": lambda f, c: f.log10("i"),
    "log2": lambda f, c: f.log2("j"),
    "signum": lambda f, c: f.signum("x"),
    "sin": lambda f, c: f.sin("y"),
    "cos": lambda f, c: f.cos("y"),
    "tan": lambda f, c: f.tan("y"),
    "atan": lambda f, c: f.atan("y"),
    "upper": lambda f, c: f.upper("s"),
    "lower": lambda f, c: f.lower("s"),
    "length": lambda f, c: f.length("s"),
    "reverse": lambda f, c: f.reverse("s"),
    "trim": lambda f, c: f.trim("s"),
    "ltrim": lambda f, c: f.ltrim("s"),
    "rtrim": lambda f, c: f.rtrim("s"),
    "lpad": lambda f, c: f.lpad("s", 5, "*"),
    "rpad": lambda f, c: f.rpad("s", 5, "*"),
    "repeat": lambda f, c: f.repeat("t", 3),
    "concat": lambda f, c: f.concat("s", f.lit("-"), "i"),
    "concat_ws": lambda f, c: f.concat_ws("-", "s", "t", "n"),
    "substring": lambda f, c: f.substring("s", 2, 2),
    "substring from 0": lambda f, c: f.substring("s", 0, 2),
    "substring from the end": lambda f, c: f.substring("s", -4, 2),
    "substr": lambda f, c: c("s").substr(1, 3),
    "functions of texts": lambda f, c: f.struct(
        f.contains("s", f.lit("b")).alias("a"), f.startswith("s", f.lit("a")).alias("b"),
        f.endswith("s", f.lit("c")).alias("c"), f.like("s", f.lit("a%")).alias("d"),
        f.rlike("s", f.lit("^a")).alias("e"),
    ),
    "contains": lambda f, c: c("s").contains("b"),
    "startswith": lambda f, c: c("s").startswith("a"),
    "endswith": lambda f, c: c("s").endswith("c"),
    "like": lambda f, c: c("s").like("a_c%"),
    "like escaped": lambda f, c: c("t").like(r"\%"),
    "rlike": lambda f, c: c("s").rlike("^[a-c.]+$"),
    "replace": lambda f, c: f.replace(c("s"), f.lit("b"), f.lit("BB")),
    "regexp_replace": lambda f, c: f.regexp_replace("s", "(b)", "<$1>"),
    "regexp_extract": lambda f, c: f.regexp_extract("s", r"([a-z])(\.)([a-z])", 3),
    "regexp_extract all": lambda f, c: f.regexp_extract("s", r"(a|b)[.]", 0),
    "split": lambda f, c: f.split("s", r"\."),
    "year": lambda f, c: f.year("at"),
    "quarter": lambda f, c: f.quarter("day"),
    "month": lambda f, c: f.month("at"),
    "dayofmonth": lambda f, c: f.dayofmonth("at"),
    "day": lambda f, c: f.day("at"),
    "dayofweek": lambda f, c: f.dayofweek("at"),
    "weekday": lambda f, c: f.weekday("at"),
    "dayofyear": lambda f, c: f.dayofyear("at"),
    "weekofyear": lambda f, c: f.weekofyear("at"),
    "hour": lambda f, c: f.hour("at"),
    "minute": lambda f, c: f.minute("at"),
    "second": lambda f, c: f.second("at"),
    **{f"date_trunc {unit}": partial(lambda unit, f, c: f.date_trunc(unit, "at"), unit)
       for unit in ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")},
    "date_add": lambda f, c: f.date_add("day", 3),
    "date_add column": lambda f, c: f.date_add("day", "i"),
    "date_sub": lambda f, c: f.date_sub("day", 40),
    "datediff": lambda f, c: f.datediff("at", "day"),
    "to_date": lambda f, c: f.to_date("m"),
    "to_timestamp": lambda f, c: f.to_timestamp("m"),
    "unix_seconds": lambda f, c: f.unix_seconds("at"),
    "unix_millis": lambda f, c: f.unix_millis("at"),
    "unix_micros": lambda f, c: f.unix_micros("at"),
    "timestamp_seconds": lambda f, c: f.timestamp_seconds("i"),
    "timestamp_millis": lambda f, c: f.timestamp_millis("k"),
    "timestamp_micros": lambda f, c: f.timestamp_micros("k"),
    "getField": lambda f, c: c("o").getField("b"),
    "getItem": lambda f, c: c("o")["a"],
    "path": lambda f, c: c("o.a"),
    "struct": lambda f, c: f.struct("i", c("s").alias("z")),
    **{f"cast int to {kind}": partial(lambda kind, f, c: c("j").cast(kind), kind)
       for kind in ("tinyint", "bigint", "float", "double", "string", "boolean", "decimal(12, 3)", "timestamp")},
    **{f"cast text to {kind}": partial(lambda kind, f, c: c("n").cast(kind), kind)
       for kind in ("tinyint", "int", "long", "float", "double", "decimal(5,1)")},
    "cast text to boolean": lambda f, c: f.when(c("i") > 0, " Yes").when(c("i") < 0, "f").cast("boolean"),
    "cast text to date": lambda f, c: c("m").cast("date"),
    "cast double to string": lambda f, c: c("x").cast("string"),
    "cast small double to string": lambda f, c: c("y").cast("string"),
    "cast float to string": lambda f, c: c("f").cast("string"),
    "cast double to float": lambda f, c: c("y").cast("float"),
    "cast double to int": lambda f, c: f.coalesce(f.when(c("x") < 100, c("x")), f.lit(0.0)).cast("int"),
    "cast decimal": lambda f, c: c("d").cast("decimal(12, 1)"),
    "cast decimal to string": lambda f, c: c("d").cast("string"),
    "cast decimal to int": lambda f, c: c("d").cast("int"),
    "cast decimal to double": lambda f, c: c("d").cast("double"),
    "cast decimal with a carry": lambda f, c: text_of(f, c, "999.99", "-999.95").cast("decimal(5,2)")
    .cast("decimal(5,1)"),
    "cast fraction to int": lambda f, c: text_of(f, c, "0.5", "-0.9").cast("decimal(38,38)").cast("int"),
    "cast fraction to decimal": lambda f, c: text_of(f, c, "0.5", "-0.4").cast("decimal(38,38)").cast("decimal(38,0)"),
    "cast decimal to most digits": lambda f, c: text_of(f, c, "9", "-1").cast("decimal(1,0)").cast("decimal(38,37)"),
    "cast long to the most digits": lambda f, c: c("k").cast("decimal(38,19)"),
    "cast boolean to decimal": lambda f, c: c("p").cast("decimal(1,0)"),
    "common type of long decimals": lambda f, c: f.coalesce(
        text_of(f, c, "1e20", "7").cast("decimal(30,5)"), text_of(f, c, "0.5", "0.25").cast("decimal(38,20)")
    ),
    "compare long decimals": lambda f, c: text_of(f, c, "1e20", "0.1").cast("decimal(38,0)")
    < text_of(f, c, "0.5", "0.75").cast("decimal(38,38)"),
    "common type of long and decimal": lambda f, c: f.coalesce("k", text_of(f, c, "0.5", "1").cast("decimal(38,30)")),
    "cast boolean to string": lambda f, c: c("p").cast("string"),
    "cast boolean to int": lambda f, c: c("p").cast("int"),
    "cast timestamp to string": lambda f, c: c("at").cast("string"),
    "cast timestamp to date": lambda f, c: c("at").cast("date"),
    "cast timestamp to long": lambda f, c: c("at").cast("long"),
    "cast timestamp to ntz": lambda f, c: c("at").cast("timestamp_ntz"),
    "cast date to string": lambda f, c: c("day").cast("string"),
    "cast date to timestamp": lambda f, c: c("day").cast("timestamp"),
    "cast text to binary": lambda f, c: c("s").cast("binary"),
}  # fmt: skip

FAILING: dict[str, Callable[[Any, Any], Any]] = {
    "overflow": lambda f, c: c("i") * 100_000_000,
    "division by zero": lambda f, c: c("j") / c("i"),
    "remainder by zero": lambda f, c: c("j") % c("i"),
    "no number": lambda f, c: c("s").cast("int"),
    "too large a number": lambda f, c: c("k").cast("int"),
    "NaN to int": lambda f, c: c("x").cast("int"),
    "too large a text for a decimal": lambda f, c: text_of(f, c, "1e20", "4").cast("decimal(38,38)"),
    "a text with a comma": lambda f, c: text_of(f, c, "1,234", "1").cast("decimal(10,2)"),
    # One that wraps to another number in 128 bits.
    "too large a decimal": lambda f, c: text_of(f, c, "1e20", "1e20").cast("decimal(38,0)").cast("decimal(38,38)"),
    "too large a decimal with digits": lambda f, c: (
        text_of(f, c, "1234567890123456789012345678", "0").cast("decimal(38,10)").cast("decimal(38,20)")
    ),
    "too large a long": lambda f, c: f.when(c("i").isNotNull(), 4).otherwise(4).cast("bigint").cast("decimal(38,38)"),
    "no date": lambda f, c: c("s").cast("date"),
    "no boolean": lambda f, c: c("s").cast("boolean"),
}


@pytest.fixture(scope="module")
def batch() -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in ROWS], field.type) for index, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.fixture(scope="module", params=["UTC", "America/New_York"])
def spark_results(request: pytest.FixtureRequest, spark: SparkSession, batch: pa.RecordBatch) -> Any:
    """Return all of Spark's results, from one query, and the time zone it ran in."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", request.param)
    try:
        frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
        columns = [case(spark_functions, spark_functions.col).alias(name) for name, case in CASES.items()]
        table = frame.select(*[column.alias(f"c{index}") for index, column in enumerate(columns)]).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    return dict(zip(CASES, table.columns)), request.param


def plain(value: Any) -> Any:
    """Make NaN equal to itself, and let doubles differ in their last digits: the libraries' sines do."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else float(f"{value:.13g}")
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return value


@pytest.mark.parametrize("name", CASES)
def test_function_gives_what_spark_gives(name: str, spark_results: Any, batch: pa.RecordBatch) -> None:
    results, time_zone = spark_results
    column = CASES[name](headgate_functions, headgate_functions.col)
    ours = evaluate(column.node, batch, time_zone)
    theirs = results[name]
    assert [plain(each) for each in ours.to_pylist()] == [plain(each) for each in theirs.to_pylist()]
    if not pa.types.is_timestamp(ours.type):  # Spark hands timestamps out in the session's time zone
        assert str(ours.type) == str(theirs.type).replace(" not null", "").replace("<element:", "<item:")


@pytest.mark.parametrize("name", FAILING)
def test_what_is_an_error_in_spark_is_one(name: str, spark: SparkSession, batch: pa.RecordBatch) -> None:
    column = FAILING[name](headgate_functions, headgate_functions.col)
    with pytest.raises(pa.ArrowInvalid):
        evaluate(column.node, batch, "UTC")
    frame = spark.createDataFrame(pa.Table.from_batches([batch]))
    with pytest.raises(Exception, match="SQLSTATE"):
        frame.select(FAILING[name](spark_functions, spark_functions.col)).collect()
