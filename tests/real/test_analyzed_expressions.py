"""What Spark's analyzer makes of every function that has an Arrow kernel gives Spark's result, to the last digit."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.errors import UnsupportedOperationError
from headgate.expressions.compiled import evaluate
from headgate.expressions.expressions import Constant, Node
from headgate.spark.analyzed.rows import Rows, Session
from headgate.spark.analyzed.scala import items
from tests.real.expression_cases import CASES, FAILING, ROWS, SCHEMA
from tests.unit.operators.collecting_sink import source

NOT_ON_ARROW = {
    "decimal and double", "power", "pow", "exp", "ln", "log10", "log2", "sin", "cos", "tan", "atan", "rlike",
    "cast double to string", "cast small double to string", "cast float to string", "cast decimal to double",
}  # fmt: skip
"""What an Arrow kernel nearly computes."""

ALSO: dict[str, str] = {
    "or that guards": "i = 0 or 200 / i > 1",
    "or that guards, of null": "q or k > 0",
    "coalesce that guards": "coalesce(x, 1 / (i - i))",
    "if": "if(i > 0, s, t)",
    "decode": "decode(i, 1, 'one', 5, 'five', 'many')",
    "between": "i between 0 and 10",
    "not in": "i not in (1, 5, null)",
    "is distinct": "q is distinct from p",
    "nvl2": "nvl2(s, i, j)",
    "two columns of one name": "struct(i as a, j as b).b",
    "like over lines": "concat(s, '\n', t) like '%b'",
    "rlike": "s rlike '^[a-z]+[.]'",
    "rlike with a class that excludes &": "s rlike '(&|^)[^&]*b'",
    "regexp_extract of what lies between &": "regexp_extract(concat(s, '&', t), '(&|^)([^&]*)', 2)",
    "split_part": "split_part(s, '.', 2)",
    "split_part of several characters": "split_part(concat(s, '||', t), '||', 2)",
    "date_format": "date_format(at, 'yyyy-MM-dd HH:mm:ss')",
    "date_format of a date": "date_format(day, 'MM/dd/yyyy')",
    "regexp_replace": "regexp_replace(s, '([a-z])[.]', '$1-')",
    "texts to double": "cast(case i when 1 then '.5' when -7 then ' -1E-3 ' when 0 then '+5.' else '17' end as double)",
    "texts to special doubles": "cast(case i when 1 then 'NaN' when -7 then '-inf' else 'Infinity' end as double)",
    "texts to timestamp": "cast(case i when 1 then '2024-03-10 02:30' when -7 then '2024-11-03T01:30:00.5' "
    "else '1969' end as timestamp)",
    "case of case": "lower(upper(upper(s)))",
    "null of what is never null": "greatest(abs(0), b + b) is null",
    "null before an error": "nullif(j, j) + 1 / (j - j)",
    "null after an error": "(1 / (k - k)) / nullif(k, k)",
    "decided after an error": "1 / (i - j - i + j) > 0 and 1 > 2 or i is null",
    "null in an error": "hour(null) * (1 / (b - b))",
    "literals": "struct(timestamp'2024-01-02 03:04:05.678901', date'1850-12-31', 1.50, 2e0, X'00ff', 12345678901)",
    "ntz": "cast(at as timestamp_ntz) < timestamp_ntz'2024-02-29 12:00:00'",
    "trims and pads": "rpad(ltrim(s), 3, 'é')",
    "week": "date_trunc('WEEK', at)",
    "later": "at + interval 2 seconds",
    "earlier": "at - interval '3:04:05.678901' hour to second",
    "earlier by a negative interval": "at + (- interval 23 hours)",
    "later without a time zone": "cast(at as timestamp_ntz) + interval '3 01:00' day to minute",
    "within some time": "at between at - interval 1 minute and at + make_interval(0, 0, 0, 0, 1, 2, 3.5)",
}  # fmt: skip


NUMBERS_AS_TEXT = [
    "1",
    "-1",
    "+1",
    " 1 ",
    "1.5",
    "1.",
    "-.5",
    ".",
    "",
    "+",
    "1e5",
    "1E5",
    "1e",
    "0x10",
    "1_000",
    "1,0",
    "١",
    "1\t",
    "\n1",
    "1d",
    "1f",
    "1L",
    "NaN",
    "-inf",
    "Infinity",
    "+INF",
    "127",
    "128",
    "-128",
    "-129",
    "32768",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "00012",
    "-0",
    "1e400",
    "4.9e-324",
    "1.9999999999999999999",
    "0.1",
    "1.7976931348623159e308",
    "true",
    "T",
    "f",
    "yes",
    "No",
    "0",
    "on",
    "\xa01",
    "--1",
    "0x1p3",
    "2.5E0F",
    "123456789.98765",
]
MOMENTS_AS_TEXT = [
    "2024-01-01",
    "2024-1-1",
    "2024",
    "2024-2",
    "2024-02-30",
    "02024-01-01",
    "12024-01-01",
    "-2024-01-01",
    "2024-01-01T",
    "2024-01-01T10",
    "2024-01-01 10:11",
    "2024-01-01 10:11:12.123456789",
    "2024-01-01T10:11:12Z",
    "2024-01-01T10:11:12+2",
    "2024-01-01 10:11:12 Europe/Berlin",
    "2024-01-01 24:00:00",
    "2024-01-01 1:2:3",
    "2024-01-01-",
    "2024/01/01",
    "20240101",
    "epoch",
    "0001-01-01",
    "9999-12-31",
    "1582-10-10",
    "1900-01-01 00:00:00",
    "2024-03-10 02:30:00",
    "2024-11-03 01:30:00",
    "2024-01-01x",
    "99-01-01",
    "2024-01-01 10:11:12-0800",
    "2024-01-01 10:11:12.1 PST",
    "\t2024-01-01\n",
]
TEXTS = [
    "",
    "a",
    "abc",
    "Straße",
    "ﬁn",
    "İstanbul",
    "ıI",
    "ΑΣ",
    "ΣΑΣ Σ",
    "ǅ",
    "日本語",
    "😀x",
    "é",
    "  a ",
    "\ta\n",
    "a\xa0",
    "a%b",
    "a_b",
    "a\\b",
    "a\nb",
    "ŉ",
    "ﬄ",
    "µ",
]
SECONDS = [
    0, 1, -1, 10**9, 10**10, -62135596800, 253402300800, -(10**11), 1710055800, 1710054000, 1730610000, 1730613600,
    -62167219201, -62167219200, -59011459200, -5_000_000_000,
]  # fmt: skip
LONGS = [0, 1, -1, 5, 25, 127, -128, 2147483647, 2**63 - 1, -(2**63), 10**18]
DOUBLES = [
    0.0, -0.0, 1.5, -1.5, 2.5, 0.5, 1e300, math.nan, math.inf, -math.inf, 5e-324, 2.675, 1.005, 1234567.891, 0.1,
    1e15 + 0.5, 4503599627370497.5, 9.2e18, 2147483647.5, -2147483648.9, 1 / 3,
]  # fmt: skip
T = "timestamp_seconds(v)"
TRICKY: list[tuple[list[Any], pa.DataType, list[str]]] = [
    (NUMBERS_AS_TEXT, pa.string(), [
        f"try_cast(v as {kind})"
        for kind in ("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "decimal(10,2)")
    ]),
    (MOMENTS_AS_TEXT, pa.string(), [
        f"cast(try_cast(v as {kind}) as string)" for kind in ("date", "timestamp")
    ]),
    (TEXTS, pa.string(), [
        "upper(v)", "lower(v)", "length(v)", "reverse(v)", "trim(v)", "substring(v,-2,1)", "substring(v,-5,3)",
        "substring(v,0)", "lpad(v,4,'é')", "rpad(v,-1,'x')", "v like 'a_b'", "v like '%\n%'", "contains(v,'')",
        "replace(v,'a','')", "repeat(v,-1)", "split(v,'[ab]')", "regexp_extract(v,'^(a)(b)',2)", "v > 'a'",
        "split_part(v,'a',1)", "split_part(v,'a',2)", "split_part(v,'Σ',3)", "v rlike '[^&b]'",
    ]),
    (SECONDS, pa.int64(), [
        *(f"{part}({T})" for part in ("year", "month", "hour", "minute", "second", "dayofweek", "weekofyear")),
        *(f"cast(cast({T} as {kind}) as string)" for kind in ("date", "timestamp", "timestamp_ntz")),
        *(f"unix_micros(date_trunc('{unit}', {T}))" for unit in ("year", "week", "day", "hour", "minute", "second")),
        *(f"date_format({T}, '{each}')" for each in ("yyyy", "HH:mm", "yyyy-MM-dd HH:mm:ss", "dd.MM.yyyy", "mm_ss")),
        f"cast({T} as bigint)", f"cast({T} as double)", f"unix_millis({T})", f"unix_micros({T} + interval 90 minutes)",
        f"cast(date_add(cast({T} as date), 40) as string)",
    ]),
    (LONGS, pa.int64(), [
        "v % 3", "v % -3", "v / 7", "ceil(v)", "round(v)", "cast(v as string)", "cast(v as double)", "cast(v as float)",
        "try_cast(v as int)", "try_add(v, 1)", "try_multiply(v, 2)", "try_divide(v, 0)", "try_mod(v, 0)",
    ]),
    (DOUBLES, pa.float64(), [
        "v * v", "-v", "abs(v)", "sqrt(v)", "round(v)", "round(v, 2)", "round(v, -1)", "v % 0.3d", "signum(v)", "v = 0",
        "v < 0", "cast(v as float)", "greatest(v, 1d)", "v in (0d, 1.5d)", "try_cast(v as int)", "try_divide(v, 0)",
        "try_cast(v as bigint)",
    ]),
]  # fmt: skip
"""Values that are easily taken for others. What is ``try_`` here is not in the program, whose error is then null."""
_WITHOUT_TRY = {
    r"try_add\((.*), (.*)\)": r"\1 + \2", r"try_multiply\((.*), (.*)\)": r"\1 * \2",
    r"try_divide\((.*), (.*)\)": r"\1 / \2", r"try_mod\((.*), (.*)\)": r"\1 % \2", "try_cast": "cast",
}  # fmt: skip


def compiled(frame: DataFrame, schema: pa.Schema, time_zone: str, index: int = 0) -> Node:
    """Return what a column of the last projection of a DataFrame becomes."""
    analyzed = frame._jdf.queryExecution().analyzed()
    places = {each.exprId().id(): place for place, each in enumerate(items(analyzed.child().output()))}
    rows = Rows(node=source(schema), places=places, windows={}, session=Session(frame.sparkSession, time_zone, False))
    return rows.expressions().compiled(analyzed.projectList().apply(index))


def plain(value: Any) -> Any:
    """Make NaN equal to itself."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@pytest.fixture(scope="module")
def batch() -> pa.RecordBatch:
    columns = [pa.array([row[index] for row in ROWS], field.type) for index, field in enumerate(SCHEMA)]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


@pytest.fixture(scope="module", params=["UTC", "America/New_York"])
def analyzed(request: pytest.FixtureRequest, spark: SparkSession, batch: pa.RecordBatch) -> Any:
    """Return the projection of all cases, Spark's results, and the time zone of both."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    try:
        frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
        columns = [case().alias(name) for name, case in CASES.items()]
        columns += [F.expr(text).alias(name) for name, text in ALSO.items()]
        numbered = frame.select(*(column.alias(f"c{index}") for index, column in enumerate(columns)))
        return frame.select(*columns), numbered.toArrow(), request.param
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param(
            index, id=name, marks=pytest.mark.spark_since("ceil-overflow") if name in ("ceil", "floor") else ()
        )
        for index, name in enumerate([*CASES, *(f"{name} too" for name in ALSO)])
    ],
)
def test_kernel_gives_what_spark_gives(index: int, analyzed: Any, batch: pa.RecordBatch) -> None:
    made, results, time_zone = analyzed
    name = [*CASES, *ALSO][index]
    if index < len(CASES) and name in NOT_ON_ARROW:
        with pytest.raises(UnsupportedOperationError, match="cannot run continuously"):
            compiled(made, SCHEMA, time_zone, index)
        return
    ours = evaluate(compiled(made, SCHEMA, time_zone, index), batch, time_zone)
    assert [plain(each) for each in ours.to_pylist()] == [plain(each) for each in results.column(index).to_pylist()]


@pytest.mark.parametrize("time_zone", ["UTC", "America/New_York"])
@pytest.mark.parametrize("which", range(len(TRICKY)))
def test_values_that_are_easily_taken_for_others(which: int, time_zone: str, spark: SparkSession) -> None:
    values, kind, texts = TRICKY[which]
    table = pa.table({"id": pa.array(range(len(values)), pa.int64()), "v": pa.array(values, kind)})
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", time_zone)
    try:
        frame = spark.createDataFrame(table).coalesce(1)
        named = [f"{text} AS c{place}" for place, text in enumerate(texts)]
        theirs = frame.selectExpr("id", *named).toArrow().sort_by("id")
        for place, text in enumerate(texts):
            for pattern, written in _WITHOUT_TRY.items():
                text = re.sub(pattern, written, text)
            node = compiled(frame.selectExpr(text), table.schema, time_zone)
            ours = [evaluated(node, table.slice(row, 1), time_zone) for row in range(len(values))]
            expected = [repr(each) for each in theirs.column(place + 1).to_pylist()]
            different = [each for each in zip(values, ours, expected) if each[1] != each[2]]
            assert different == [], text
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


def evaluated(node: Node, row: pa.Table, time_zone: str) -> str:
    """Return the value of a row; of an error null."""
    try:
        return repr(evaluate(node, row.to_batches()[0], time_zone).to_pylist()[0])
    except pa.ArrowInvalid:
        return "None"


@pytest.mark.spark_since("ceil-overflow")
def test_ceil_and_floor_of_what_is_no_long_fail(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(9.3e18,)], "v double")
    schema = pa.schema([("v", pa.float64())])
    for text in ("ceil(v)", "floor(v)"):
        with pytest.raises(pa.ArrowInvalid):
            evaluate(compiled(frame.selectExpr(text), schema, "UTC"), pa.record_batch({"v": [9.3e18]}), "UTC")
        with pytest.raises(Exception, match="ARITHMETIC_OVERFLOW"):
            frame.selectExpr(text).collect()


def test_what_has_no_columns_is_computed_by_spark_once(spark: SparkSession) -> None:
    frame = spark.createDataFrame([("abc",)], "v string")
    schema = pa.schema([("v", pa.string())])
    for text, value in (
        ("pow(2, 10)", 1024.0),
        ("sha2('a', 256)", hashlib.sha256(b"a").hexdigest()),
        ("1.5d || 'x'", "1.5x"),
    ):
        node = compiled(frame.selectExpr(text), schema, "UTC")
        assert isinstance(node, Constant) and node.value == value
    assert (
        evaluate(compiled(frame.selectExpr("right(v, 2)"), schema, "UTC"), pa.record_batch({"v": ["abc"]}), "UTC")[
            0
        ].as_py()
        == "bc"
    )
    for text in ("current_timestamp()", "rand(1)", "date_add(current_date(), 1)"):
        with pytest.raises(UnsupportedOperationError):
            compiled(frame.selectExpr(text), schema, "UTC")


@pytest.mark.parametrize("name", FAILING)
def test_what_is_an_error_in_spark_is_one(name: str, spark: SparkSession, batch: pa.RecordBatch) -> None:
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).select(FAILING[name]())
    node = compiled(frame, SCHEMA, "UTC")
    with pytest.raises(pa.ArrowInvalid):
        evaluate(node, batch, "UTC")
    with pytest.raises(Exception, match="SQLSTATE"):
        frame.collect()


@pytest.mark.parametrize(
    "text",
    ["i + j", "cast(k as int)", "cast(s as int)", "i % j", "abs(i)", "-i", "try_add(i, j)", "try_cast(s as int)"],
)
def test_what_does_not_fail_is_not_ansi(text: str, spark: SparkSession, batch: pa.RecordBatch) -> None:
    """Kernels raise where Spark wraps around, or gives null."""
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        frame = spark.createDataFrame(pa.Table.from_batches([batch])).selectExpr(text)
        with pytest.raises(UnsupportedOperationError, match="ANSI mode"):
            compiled(frame, SCHEMA, "UTC")
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize("text", ["x + f", "x * 2d", "cast(i as bigint)", "cast(k as string)"])
def test_what_cannot_fail_is_the_same_in_every_mode(text: str, spark: SparkSession, batch: pa.RecordBatch) -> None:
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1).selectExpr(f"{text} AS c")
        ours = evaluate(compiled(frame, SCHEMA, "UTC"), batch, "UTC")
        assert [plain(each) for each in ours.to_pylist()] == [plain(row.c) for row in frame.collect()]
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("upper(s) || sha2(t, 256)", "sha2"),
        ("s rlike 'a.c$'", "RLIKE"),
        ("upper(s collate utf8_lcase)", "collate"),
        ("array(i, j)", "array"),
        ("s rlike '[a&&b]'", "RLIKE"),
        ("split_part(s, '.', -1)", "split_part"),
        ("date_format(at, 'EEEE')", "date_format"),
        ("at + interval 1 month", "INTERVAL"),
        ("at + make_interval(0, i)", "interval"),
        ("rand()", "rand"),
    ],
)
def test_what_has_no_kernel_is_named_as_it_was_written(
    text: str, named: str, spark: SparkSession, batch: pa.RecordBatch
) -> None:
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).selectExpr(f"struct({text}) AS made")
    with pytest.raises(UnsupportedOperationError) as raised:
        compiled(frame, SCHEMA, "UTC")
    assert named.lower() in raised.value.expression.lower()
    assert str(raised.value).startswith(raised.value.expression)


def test_times_in_the_format_of_spark_2_have_no_kernel(spark: SparkSession, batch: pa.RecordBatch) -> None:
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).selectExpr("date_format(at, 'yyyy-MM-dd') AS made")
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "LEGACY")
    try:
        with pytest.raises(UnsupportedOperationError, match="LEGACY"):
            compiled(frame, SCHEMA, "UTC")
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")


REPEATED = [
    "upper(v)", "lower(v)", "v rlike '[^&b]'", "regexp_extract(v,'(a)([^&]*)',2)", "regexp_replace(v,'[ab]','-')",
    "split_part(v,'a',2)",
]  # fmt: skip


@pytest.mark.parametrize("text", REPEATED)
@pytest.mark.parametrize("values", [[*TEXTS, None] * 200, [*"ab&", None] * 600, [f"a{n}&b" for n in range(3000)]])
def test_many_texts_are_as_few(text: str, values: list[str | None], spark: SparkSession) -> None:
    few, schema = list(dict.fromkeys(values)), pa.schema([("v", pa.string())])
    rows = pa.RecordBatch.from_arrays([pa.array(few, pa.string())], schema=schema)
    frame = spark.createDataFrame(pa.Table.from_batches([rows])).coalesce(1).selectExpr(f"{text} AS made")
    results = dict(zip(few, (row.made for row in frame.collect()), strict=True))
    many = pa.RecordBatch.from_arrays([pa.array([None, *values], pa.string()).slice(1)], schema=schema)
    made = evaluate(compiled(frame, schema, "UTC"), many, "UTC")
    assert made.to_pylist() == [results[each] for each in values]
