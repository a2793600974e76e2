"""Expressions for Spark's own code: bound, serialised, and evaluated by an operator before the one that wants them.

Never: interpret an expression. One that only stands for another is replaced by the rules of Spark's optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound
from headgate.operators.catalyst_project import CatalystProject
from headgate.spark.analyzed.expressions import NotOnArrowError, not_supported
from headgate.spark.analyzed.scala import JavaObject, UnsupportedTypeError, arrow_type, class_of, items

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headgate.spark.analyzed.rows import Rows

_INLINE = "spark.sql.alwaysInlineCommonExpr"
Known = tuple[JavaObject, Bound]


def with_catalyst(before: Rows, wanted: Sequence[JavaObject]) -> tuple[Rows, list[Known]]:
    """Return rows that have a column for each of the expressions that no Arrow kernel evaluates, and which these are.

    Raises
    ------
    UnsupportedOperationError
        An expression cannot be evaluated by Spark's code alone either.
    """
    missing: list[JavaObject] = []
    expressions = before.expressions()
    for each in wanted:
        value = each.child() if class_of(each) == "Alias" else each
        try:
            expressions.node(value)
        except NotOnArrowError as why:
            _check(value, why)
            if not any(value.semanticEquals(other) for other in missing):
                missing.append(value)
    if not missing:
        return before, []
    made = _operator(before, missing)
    first = len(before.node.schema)
    known = [(each, Bound(first + index, made.schema.names[first + index])) for index, each in enumerate(missing)]
    return replace(before, node=before.node.then(made)), known


def _check(expression: JavaObject, why: NotOnArrowError) -> None:
    """Refuse what Spark's code cannot evaluate by itself, row by row, with the same result each time."""
    for each in _all(expression):
        name = class_of(each)
        if name in ("CurrentDate", "CurrentTimestamp", "Now", "LocalTimestamp", "CurrentTime", "CurrentTimestampLike"):
            raise not_supported(expression, NotOnArrowError(each, "the time of a query that does not end is not one"))
        if name in ("PythonUDF", "PythonUDAF", "AggregateExpression", "WindowExpression") or "Subquery" in name:
            raise not_supported(expression, why)
    if not expression.deterministic():
        raise not_supported(expression, NotOnArrowError(expression, "its result is another one each time"))


def _all(expression: JavaObject) -> list[JavaObject]:
    found = [expression]
    for each in items(expression.children()):
        found += _all(each)
    return found


def _operator(before: Rows, wanted: Sequence[JavaObject]) -> CatalystProject:
    attributes = {int(each.exprId().id()): each for one in wanted for each in items(one.references())}
    for number, each in attributes.items():
        if number not in before.places:
            raise UnsupportedOperationError(
                f"{each.sql()} is a window, and there is no value of it before it is grouped by.",
                operation="window", expression=str(each.sql()),
            )  # fmt: skip
    names, fields = set(before.node.schema.names), []
    for each in wanted:
        try:
            kind = arrow_type(each.dataType())
        except UnsupportedTypeError as error:
            raise not_supported(each, NotOnArrowError(each, f"it has {error}")) from error
        name = next(name for name in (f"{each.sql()}{tail}" for tail in _tails()) if name not in names)
        names.add(name)
        fields.append(pa.field(name, kind))
    return CatalystProject(
        before.node.schema,
        [before.places[number] for number in attributes],
        fields,
        _serialized(before.spark, wanted, list(attributes.values())),
        [str(each.sql()) for each in wanted],
    )


def _tails() -> Iterator[str]:
    yield ""
    yield from (f" {number}" for number in count(2))


def _serialized(spark: SparkSession, wanted: Sequence[JavaObject], attributes: Sequence[JavaObject]) -> bytes:
    """Return what Evaluator.java reads: the expressions, their attributes, the type of the output, SQL settings."""
    jvm: Any = spark._jvm
    inputs = _sequence(jvm, attributes)
    expressions = _replaced(spark, wanted, inputs)
    output = jvm.org.apache.spark.sql.types.StructType()
    for index, each in enumerate(wanted):
        output = output.add(f"c{index}", each.dataType(), True)
    gateway: Any = spark.sparkContext._gateway
    parts = gateway.new_array(jvm.java.lang.Object, 4)
    parts[0], parts[1], parts[2], parts[3] = expressions, inputs, output, _settings(spark)
    made = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.java.io.ObjectOutputStream(made)
    stream.writeObject(parts)
    stream.close()
    return bytes(made.toByteArray())


def _replaced(spark: SparkSession, wanted: Sequence[JavaObject], inputs: JavaObject) -> JavaObject:
    """Return the expressions as Spark's optimizer leaves those that only stand for others."""
    jvm: Any = spark._jvm
    catalyst = jvm.org.apache.spark.sql.catalyst
    none, nothing = jvm.scala.Option.empty(), _sequence(jvm, ())
    new_id = _singleton(jvm, "expressions.NamedExpression").newExprId
    named = [
        catalyst.expressions.Alias(each, f"c{index}", new_id(), nothing, none, nothing)
        for index, each in enumerate(wanted)
    ]
    relation = catalyst.plans.logical.LocalRelation(inputs, nothing, False, none)
    plan = catalyst.plans.logical.Project(_sequence(jvm, named), relation)
    with _common_expressions_inlined(spark):
        for rule in ("ReplaceExpressions", "RewriteWithExpression"):
            plan = _singleton(jvm, f"optimizer.{rule}").apply(plan)
    return plan.projectList()


@contextmanager
def _common_expressions_inlined(spark: SparkSession) -> Iterator[None]:
    """Have no plan made for what an expression uses twice."""
    before = spark.conf.get(_INLINE)
    spark.conf.set(_INLINE, "true")
    try:
        yield
    finally:
        spark.conf.set(_INLINE, before or "false")


def _singleton(jvm: Any, name: str) -> JavaObject:
    """Return a Scala object of Catalyst's."""
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    return loader.loadClass(f"org.apache.spark.sql.catalyst.{name}$").getField("MODULE$").get(None)


def _sequence(jvm: Any, elements: Sequence[JavaObject]) -> JavaObject:
    made = jvm.java.util.ArrayList()
    for each in elements:
        made.add(each)
    return jvm.scala.jdk.javaapi.CollectionConverters.asScala(made).toList()


def _settings(spark: SparkSession) -> JavaObject:
    """Return the session's SQL settings: some functions ask for them when they are evaluated."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.HashMap()
    for name, value in dict(spark.conf.getAll).items():
        if name.startswith("spark.sql."):
            settings.put(name, value)
    return settings
