"""What a copy of Spark's plan answers is what Spark's own objects answer, node by node."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.spark.analyzed.plan_copy import CopiedNode, PlanCopy, key_of, semantic_key
from headgate.spark.analyzed.scala import class_of, contains, is_a, items, option, sequence, sql_class

PLAIN = ("foldable", "deterministic", "nullable")
TRAITS = ("RuntimeReplaceable", "NamedExpression", "LeafExpression", "UnaryNode", "Product")


def program(spark: SparkSession) -> Any:
    """Return an analyzed plan of all kinds of nodes and values."""
    one = F.udf(lambda value: value, "bigint", useArrow=True)
    columns = (
        "n bigint, text string, x double, at timestamp, amount decimal(9, 2), parts struct<a: int, b: array<string>>"
    )
    rows = spark.readStream.format("headgate.datagen").schema(columns).load().withWatermark("at", "5 seconds")
    typed = rows.select(
        "*",
        (F.col("n") + 1).alias("more"),
        (1 + F.col("n")).alias('"same" \\ \n é 😀'),
        F.rand(3).alias("drawn"),
        F.current_timestamp().alias("now"),
        one("n").alias("called"),
        F.expr("n + 1L + cast('7' AS int)").alias("constant"),
        F.expr("cast('seven' AS int)").alias("fails"),
        F.expr("nvl(text, 'none') || X'00ff' || 1.5e300D || cast('NaN' AS double) || 2.50 || 3.5f || true").alias(
            "all"
        ),
        F.expr("parts.b[n % 2]").alias("part"),
        F.expr("try_add(n, 1)").alias("tried"),
        F.expr("transform(parts.b, each -> upper(each))").alias("each"),
        F.expr("make_interval(0, n, 0, 3)").alias("gap"),
        F.expr("n in (1, null, 3)").alias("some"),
    )
    grouped = typed.groupBy(F.window("at", "10 seconds", "5 seconds"), "text").agg(
        F.sum("n").alias("sum"), F.expr("count(*) FILTER (WHERE x > 0)"), F.first("x"), F.approx_count_distinct("n")
    )
    return grouped.filter("sum > 1")._jdf.queryExecution().analyzed()


def pairs(java: Any, copied: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each node of a tree and of its expressions, with its copy."""
    yield java, copied
    ours = list(items(copied.children()))
    theirs = list(items(java.children()))
    if is_plan(copied):
        theirs += list(items(java.expressions()))
        ours += list(items(copied.expressions()))
    for one, other in zip(theirs, ours, strict=True):
        yield from pairs(one, other)


def is_plan(copied: Any) -> bool:
    return "LogicalPlan" in copied.getClass().above


@pytest.fixture(scope="module")
def nodes(spark: SparkSession) -> list[tuple[Any, Any]]:
    analyzed = program(spark)
    return list(pairs(analyzed, PlanCopy().of(analyzed)))


def test_a_copy_answers_as_spark_does(nodes: list[tuple[Any, Any]]) -> None:
    kinds = set()
    for java, copied in nodes:
        kinds.add(class_of(java))
        assert class_of(copied) == class_of(java)
        assert copied.getClass().getName() == java.getClass().getName()
        assert [is_a(copied, trait) for trait in TRAITS] == [is_a(java, trait) for trait in TRAITS]
        if is_plan(copied):
            assert copied.isStreaming() == java.isStreaming()
            assert [each.exprId().id() for each in items(copied.output())] == [
                each.exprId().id() for each in items(java.output())
            ]
            continue
        for name in PLAIN:
            assert getattr(copied, name)() == getattr(java, name)(), name
        assert copied.dataType().json() == java.dataType().json()
        assert copied.dataType().catalogString() == java.dataType().catalogString()
        assert copied.sql() == java.sql()
        for pattern in ("CURRENT_LIKE", "PYTHON_UDF", "ALIAS"):
            assert contains(copied, pattern) == contains(java, pattern)
        if is_a(java, "NamedExpression"):
            assert (copied.name(), copied.exprId().id()) == (java.name(), java.exprId().id())
            for key in ("spark.watermarkDelayMs", "spark.timeWindow"):
                assert copied.metadata().contains(key) == java.metadata().contains(key)
    assert kinds >= {"Aggregate", "AggregateExpression", "EventTimeWatermark", "PythonUDF", "Rand", "LambdaFunction"}


def test_values_are_those_of_spark(nodes: list[tuple[Any, Any]]) -> None:
    found = set()
    for java, copied in nodes:
        match class_of(java):
            case "Literal":
                ours, theirs = copied.value(), java.value()
                found.add(type(ours))
                assert ours == theirs or ours.toString() == theirs.toString()
            case "Cast" if java.foldable():
                try:
                    assert str(copied.eval(None)) == str(java.eval(None))
                except PySparkException:
                    with pytest.raises(PySparkException):
                        copied.eval(None)
                assert option(copied.timeZoneId()) == option(java.timeZoneId())
                assert copied.evalMode().toString() == java.evalMode().toString()
            case "Add":
                assert copied.evalMode().toString() == java.evalMode().toString()
            case "AggregateExpression":
                assert class_of(copied.aggregateFunction()) == class_of(java.aggregateFunction())
                assert copied.isDistinct() == java.isDistinct()
                assert (option(copied.filter()) is None) == (option(java.filter()) is None)
                assert copied.resultId().id() == java.resultId().id()
    assert {int, float, bool, bytes} <= found


def test_expressions_have_one_key_exactly_if_spark_takes_them_for_equal(nodes: list[tuple[Any, Any]]) -> None:
    expressions = [pair for pair in nodes if not is_plan(pair[1])]
    equal = 0
    for (java, copied), (java_other, other) in combinations(expressions[::3] + expressions[:40], 2):
        same = class_of(copied) == class_of(other) and bool(java.semanticEquals(java_other))
        equal += same
        assert (semantic_key(copied) is not None and semantic_key(copied) == semantic_key(other)) == same
        assert copied.semanticEquals(other) == same
        assert same or key_of(copied) != key_of(other) or java == java_other
    assert equal > 20


def test_a_copy_is_passed_to_spark_as_what_it_is_a_copy_of(nodes: list[tuple[Any, Any]]) -> None:
    java, copied = next(pair for pair in nodes if class_of(pair[0]) == "Add")
    children = list(items(copied.children()))
    again = copied.withNewChildren(sequence(children[::-1]))
    assert not isinstance(again, CopiedNode)
    assert copied.semanticEquals(again) and java.semanticEquals(again)
    assert sql_class("catalyst.expressions.Not")(copied).child().equals(java)
    assert java.children().equals(copied.children())
