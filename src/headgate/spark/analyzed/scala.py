"""What Spark's Scala objects look like from Python: sequences, classes, types, constants, new plans and attributes.

Never: interpret an expression or a plan.
"""

from __future__ import annotations

import decimal
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.spark.analyzed.plan_copy import CopiedItems, CopiedNode, copied_together, has_pattern

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


JavaObject = Any
"""An object of Spark's, whose methods py4j calls, or a copy of one: see `headgate.spark.analyzed.plan_copy`."""


class UnsupportedTypeError(Exception):
    """A type that Arrow columns of ours do not have; the message says which."""


def items(collection: Any) -> Iterator[Any]:
    """Yield the items of a Scala collection."""
    if isinstance(collection, CopiedItems):
        yield from collection.items
        return
    iterator = collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def texts(given: JavaObject) -> dict[str, str]:
    """Return a Java map of texts: in two calls, where ``dict`` makes several for each of them."""
    return dict(json.loads(_mapper().writeValueAsString(given)))


def java_map(given: Mapping[str, str]) -> JavaObject:
    """Return a Java map of texts."""
    return _mapper().readValue(json.dumps(dict(given)), class_named("java.util.HashMap")().getClass())


def _mapper() -> JavaObject:
    return class_named("com.fasterxml.jackson.databind.ObjectMapper")()


def class_named(name: str) -> JavaObject:
    """Return a class of Java's by its full name, in one call.

    ``jvm.java.util.ArrayList`` would be three, and for the first Java looks for a class ``java`` in all jars.
    """
    return getattr(_jvm(), name)


def sql_class(name: str) -> JavaObject:
    """Return a class of a package of Spark SQL's."""
    return class_named(f"org.apache.spark.sql.{name}")


def singleton(name: str) -> JavaObject:
    """Return a Scala object of a package of Spark SQL's."""
    return getattr(sql_class(f"{name}$"), "MODULE$")


def data_frame(spark: SparkSession, plan: JavaObject) -> DataFrame:
    """Return the DataFrame of a plan."""
    from pyspark.sql import DataFrame

    return DataFrame(sql_class("classic.Dataset").ofRows(spark._jsparkSession, plan), spark)


def projection(expressions: Sequence[JavaObject], below: JavaObject) -> JavaObject:
    """Return the plan of some expressions of a plan's rows, in the columns ``c0``, ``c1`` and so on."""
    none, nothing = class_named("scala.Option").empty(), sequence(())
    alias, new_id = sql_class("catalyst.expressions.Alias"), singleton("catalyst.expressions.NamedExpression").newExprId
    named = [alias(each, f"c{place}", new_id(), nothing, none, nothing) for place, each in enumerate(expressions)]
    return sql_class("catalyst.plans.logical.Project")(sequence(named), below)


def relation(attributes: JavaObject, *, is_streaming: bool) -> JavaObject:
    """Return the plan of a relation with these attributes and without rows, in the place of another plan."""
    return sql_class("catalyst.plans.logical.LocalRelation")(
        attributes, sequence(()), is_streaming, class_named("scala.Option").empty()
    )


def attribute_of(expression: JavaObject, name: str) -> JavaObject:
    """Return a new attribute of the type of an expression."""
    return sql_class("catalyst.expressions.AttributeReference")(
        name,
        expression.dataType(),
        True,
        sql_class("types.Metadata").empty(),
        singleton("catalyst.expressions.NamedExpression").newExprId(),
        sequence(()),
    )


def _jvm() -> Any:
    from pyspark import SparkContext

    return SparkContext._jvm


def contains(expression: JavaObject, pattern: str) -> bool:
    """Return whether a kind of expression is in one: a ``TreePattern`` of Spark's, which it keeps for whole trees."""
    known = has_pattern(expression, pattern) if isinstance(expression, CopiedNode) else None
    if known is not None:
        return known
    return bool(expression.containsPattern(_pattern(pattern)))


@cache
def _pattern(name: str) -> JavaObject:
    return getattr(sql_class("catalyst.trees.TreePattern"), name)()


def sequence(elements: Sequence[JavaObject]) -> JavaObject:
    """Return a Scala list."""
    copy = copied_together(elements)
    if copy is not None:
        return copy.sequence(elements)
    made = class_named("java.util.ArrayList")()
    for each in elements:
        made.add(each)
    return class_named("scala.jdk.javaapi.CollectionConverters").asScala(made).toList()


def class_of(instance: JavaObject) -> str:
    """Return the simple name of a class, which is what Spark calls the node or the expression."""
    if isinstance(instance, CopiedNode):
        return instance.getClass().simple_name
    return str(instance.getClass().getSimpleName()).removesuffix("$")


def is_a(instance: JavaObject, trait: str) -> bool:
    """Return whether an expression of Spark's is of a class or trait, given by its simple name."""
    if isinstance(instance, CopiedNode):
        return trait in instance.getClass().above
    return trait in _names_of(str(instance.getClass().getName()))


@cache
def _names_of(class_name: str) -> frozenset[str]:
    """Return the simple names of a class, of those above it and of their traits: a dozen calls each."""
    left = [class_named("java.lang.Thread").currentThread().getContextClassLoader().loadClass(class_name)]
    names = set()
    while left:
        java_class = left.pop()
        names.add(str(java_class.getSimpleName()))
        left.extend(each for each in (java_class.getSuperclass(), *java_class.getInterfaces()) if each is not None)
    return frozenset(names)


def option(value: JavaObject) -> Any:
    """Return what a Scala ``Option`` holds; None: nothing."""
    return value.get() if value.isDefined() else None


def conjuncts(condition: JavaObject) -> list[JavaObject]:
    """Return the conditions that all must hold for one to hold."""
    if class_of(condition) == "And":
        return [*conjuncts(condition.left()), *conjuncts(condition.right())]
    return [condition]


def arrow_type(data_type: JavaObject) -> pa.DataType:
    """Return a type of Spark's as Arrow's: timestamps in microseconds, UTC, and everything nullable.

    Raises
    ------
    UnsupportedTypeError
        There is none, or its values do not compare as Arrow's do.
    """
    return _arrow_type(data_type.json(), data_type.catalogString())


def has_collation(text: str) -> bool:
    """Return whether a type, by its text, is or contains texts that do not compare byte by byte."""
    return " collate " in text


def column_type(data_type: JavaObject) -> pa.DataType:
    """Return the type that a column has which Spark's own code made: also of what Arrow's kernels do not compare.

    Raises
    ------
    UnsupportedTypeError
        There is none.
    """
    text = data_type.catalogString()
    if text == "variant":
        return pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
    return _column_type(data_type.json(), text)


@cache
def _arrow_type(spelled: str, text: str) -> pa.DataType:
    if has_collation(text):
        raise UnsupportedTypeError(f"the type {text}, whose texts do not compare byte by byte")
    if any(each in text for each in ("interval", "variant", "time(", "struct<>")):
        raise UnsupportedTypeError(f"the type {text}")
    return _column_type(spelled, text)


@cache
def _column_type(spelled: str, text: str) -> pa.DataType:
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string

    from headgate.spark.compatibility import to_arrow_type

    try:
        nullable = StructType([StructField("column", _parse_datatype_json_string(spelled))]).toNullable()
        return to_arrow_type(nullable["column"].dataType)
    except (PySparkException, ValueError) as error:
        raise UnsupportedTypeError(f"the type {text}") from error


def constant(value: Any, kind: pa.DataType) -> Any:
    """Return the value of a literal in a form of which Arrow makes a scalar; moments and days are numbers.

    Raises
    ------
    UnsupportedTypeError
        It is not a simple value.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if pa.types.is_string(kind):
        return str(value.toString())
    if pa.types.is_decimal(kind):
        return decimal.Decimal(value.toString())
    raise UnsupportedTypeError(f"a constant of the type {kind}")


def same_type(left: pa.DataType, right: pa.DataType) -> bool:
    """Return whether two types are the same but for what may be null in them."""
    return left == right or str(left).replace(" not null", "") == str(right).replace(" not null", "")
