"""What Spark's analyzer makes of every function that has an Arrow kernel gives Spark's result, to the last digit."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Node, evaluate
from headgate.spark.analyzed.rows import Rows
from headgate.spark.analyzed.scala import items
from tests.real.test_functions_equal_spark import CASES, FAILING, SCHEMA
from tests.real.test_functions_equal_spark import batch as batch  # a fixture
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
    "regexp_replace": "regexp_replace(s, '([a-z])[.]', '$1-')",
    "texts to double": "cast(case i when 1 then '.5' when -7 then ' -1E-3 ' when 0 then '+5.' else '17' end as double)",
    "texts to special doubles": "cast(case i when 1 then 'NaN' when -7 then '-inf' else 'Infinity' end as double)",
    "texts to timestamp": "cast(case i when 1 then '2024-03-10 02:30' when -7 then '2024-11-03T01:30:00.5' "
    "else '1969' end as timestamp)",
    "literals": "struct(timestamp'2024-01-02 03:04:05.678901', date'1850-12-31', 1.50, 2e0, X'00ff', 12345678901)",
    "ntz": "cast(at as timestamp_ntz) < timestamp_ntz'2024-02-29 12:00:00'",
    "trims and pads": "rpad(ltrim(s), 3, 'é')",
    "week": "date_trunc('WEEK', at)",
}  # fmt: skip


def compiled(frame: DataFrame, schema: pa.Schema, time_zone: str, index: int = 0) -> Node:
    """Return what a column of the last projection of a DataFrame becomes."""
    analyzed = frame._jdf.queryExecution().analyzed()
    places = {each.exprId().id(): place for place, each in enumerate(items(analyzed.child().output()))}
    rows = Rows(node=source(schema), places=places, windows={}, time_zone=time_zone)
    return rows.expressions().compiled(analyzed.projectList().apply(index))


def plain(value: Any) -> Any:
    """Make NaN equal to itself."""
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


@pytest.fixture(scope="module", params=["UTC", "America/New_York"])
def analyzed(request: pytest.FixtureRequest, spark: SparkSession, batch: pa.RecordBatch) -> Any:
    """Return the projection of all cases, Spark's results, and the time zone of both."""
    before = str(spark.conf.get("spark.sql.session.timeZone"))
    spark.conf.set("spark.sql.session.timeZone", request.param)
    try:
        frame = spark.createDataFrame(pa.Table.from_batches([batch])).coalesce(1)
        columns = [case(F, F.col).alias(name) for name, case in CASES.items()]
        columns += [F.expr(text).alias(name) for name, text in ALSO.items()]
        numbered = frame.select(*(column.alias(f"c{index}") for index, column in enumerate(columns)))
        return frame.select(*columns), numbered.toArrow(), request.param
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize("index", range(len(CASES) + len(ALSO)), ids=[*CASES, *(f"{name} too" for name in ALSO)])
def test_kernel_gives_what_spark_gives(index: int, analyzed: Any, batch: pa.RecordBatch) -> None:
    made, results, time_zone = analyzed
    name = [*CASES, *ALSO][index]
    if index < len(CASES) and name in NOT_ON_ARROW:
        with pytest.raises(UnsupportedOperationError, match="cannot run continuously"):
            compiled(made, SCHEMA, time_zone, index)
        return
    ours = evaluate(compiled(made, SCHEMA, time_zone, index), batch, time_zone)
    assert [plain(each) for each in ours.to_pylist()] == [plain(each) for each in results.column(index).to_pylist()]


@pytest.mark.parametrize("name", FAILING)
def test_what_is_an_error_in_spark_is_one(name: str, spark: SparkSession, batch: pa.RecordBatch) -> None:
    frame = spark.createDataFrame(pa.Table.from_batches([batch])).select(FAILING[name](F, F.col))
    node = compiled(frame, SCHEMA, "UTC")
    with pytest.raises(pa.ArrowInvalid):
        evaluate(node, batch, "UTC")


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
        ("at + interval 1 day", "INTERVAL"),
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
