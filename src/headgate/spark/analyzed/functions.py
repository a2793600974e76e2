"""A user's function in Spark's plan is called in the slot itself: rows never cross to a JVM.

Never: call it here.

A UDF in an expression becomes a column, as in Spark's ``ExtractPythonUDFs``: `next_calls` finds those whose arguments
can be evaluated, `called` adds their results, and the rest of the expression finds them there, by the id that Spark
gives to a result. A UDF of nothing but another's result is called on it directly.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from headgate.graph.plan import PlanNode
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.user_functions import MapInPandas, UserFunction, UserFunctions, in_zone
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, not_supported
from headgate.spark.analyzed.plan_copy import key_of, semantic_key
from headgate.spark.analyzed.rows import Columns, Rows, unsupported
from headgate.spark.analyzed.scala import (
    JavaObject,
    class_named,
    class_of,
    contains,
    items,
    option,
    sequence,
    sql_class,
)
from headgate.spark.continuous.settings import session_time_zone

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS = {101: "udf", 200: "pandas_udf", 204: "pandas_udf", 250: "arrow_udf", 251: "arrow_udf"}
_ITERATORS = (204, 251)


def mapped(spark: SparkSession, before: PlanNode, node: JavaObject, schema: pa.Schema) -> PlanNode:
    """Return the node of a ``MapInArrow`` or ``MapInPandas``.

    Parameters
    ----------
    spark
        The session.
    before
        The rows that the function gets, in columns of the names that the program knows.
    node
        Spark's node.
    schema
        The columns of what it yields.

    Raises
    ------
    UnsupportedOperationError
        It asks for what only Spark's own tasks have.
    """
    if node.isBarrier() or option(node.profile()) is not None:
        raise unsupported(node, "barrier mode and resource profiles are those of Spark's own stages")
    function = function_of(node, node.functionExpr().func())
    called = MapInPandas(function, worker_conf(spark)) if class_of(node) == "MapInPandas" else function[0]
    return before.then(MapInArrow(called, schema, in_zone(before.schema, session_time_zone(spark))))


def next_calls(before: Rows, wanted: Sequence[JavaObject], known: Sequence[JavaObject]) -> list[JavaObject]:
    """Return the UDFs of expressions that can be called next, all together; none: all have been.

    Parameters
    ----------
    before
        The rows.
    wanted
        The expressions.
    known
        Parts of them whose values are columns of the rows.
    """
    found: list[JavaObject] = []
    known_keys = set(map(key_of, known))
    for each in wanted:
        _find_calls(before, each, known_keys, found)
    if not found:
        return []
    kind = found[0].evalType()
    return found[:1] if kind in _ITERATORS else [each for each in found if each.evalType() == kind]


def arguments_of(call: JavaObject) -> list[JavaObject]:
    """Return the expressions that a UDF, or the first of those that are called one on the other, is called on."""
    return [each.value() if class_of(each) == "NamedArgumentExpression" else each for each in _given(call)]


def called(before: Rows, arguments: Expressions, calls: Sequence[JavaObject]) -> Rows:
    """Return rows with the results of UDFs.

    Raises
    ------
    UnsupportedOperationError
        A UDF is of another kind, or uses a broadcast variable.
    """
    columns, fields, texts = Columns(before.all()), [], []
    types: dict[int, str] = {}
    functions: list[UserFunction] = []
    results: list[tuple[JavaObject, int]] = []
    numbers: dict[Hashable, int] = {}
    for call in calls:
        key = semantic_key(call)
        earlier = None if key is None else numbers.get(key)
        results.append((call, len(functions) if earlier is None else earlier))
        if earlier is not None:
            continue
        numbers[key] = len(functions)
        positional, named = [], {}
        for each in _given(call):
            name = str(each.key()) if class_of(each) == "NamedArgumentExpression" else None
            value = each if name is None else each.value()
            place = columns.place(arguments.compiled(value), "argument")
            number = list(types).index(place) if place in types else len(types)
            types.setdefault(place, str(value.dataType().json()))
            if name is None:
                positional.append(number)
            else:
                named[name] = number
        chain = tuple(function_of(each, each.func()) for each in _chain(call))
        functions.append(UserFunction(functions=chain, arguments=tuple(positional), named=named))
        texts.append(str(call.sql()))
        try:
            fields.append(pa.field(columns.free(str(call.name())), arguments.kind(call)))
        except NotOnArrowError as why:
            raise not_supported(call, why) from None
    node, kind = before.projected(columns.made), int(calls[0].evalType())
    first = len(node.schema)
    made = UserFunctions(
        node.schema,
        list(types),
        list(types.values()),
        fields,
        functions,
        kind,
        worker_conf(before.session.spark),
        texts,
    )
    places = before.places | {int(call.resultId().id()): first + number for call, number in results}
    return replace(before, node=node.then(made), places=places)


def with_results(before: Rows, expression: JavaObject) -> JavaObject:
    """Return an expression in which UDFs that have been called are the attributes of their results."""
    if class_of(expression) == "PythonUDF" and int(expression.resultId().id()) in before.places:
        return expression.resultAttribute()
    if not has_user_function(expression):
        return expression
    children = [with_results(before, each) for each in items(expression.children())]
    return expression.withNewChildren(sequence(children))


def has_user_function(expression: JavaObject) -> bool:
    """Return whether a UDF is in an expression."""
    return contains(expression, "PYTHON_UDF")


def _find_calls(before: Rows, expression: JavaObject, known: Set[Hashable], found: list[JavaObject]) -> None:
    if not has_user_function(expression) or (known and key_of(expression) in known):
        return
    given = list(items(expression.children()))
    if class_of(expression) == "PythonUDF":
        number = expression.resultId().id()
        if number in before.places or any(number == each.resultId().id() for each in found):
            return
        if expression.evalType() not in _KINDS:
            why = "a UDF that is called with pickled rows is not supported: make it with useArrow=True"
            raise unsupported(expression, why if expression.evalType() == 100 else "it is no scalar function")
        given = _given(expression)
        count = len(found)
        for each in given:
            _find_calls(before, each, known, found)
        if len(found) == count and not any(_uncalled(before, each) for each in given):
            found.append(expression)
        return
    for each in given:
        _find_calls(before, each, known, found)


def _uncalled(before: Rows, expression: JavaObject) -> bool:
    if not has_user_function(expression):
        return False
    if class_of(expression) == "PythonUDF":
        return expression.resultId().id() not in before.places
    return any(_uncalled(before, each) for each in items(expression.children()))


def _chain(call: JavaObject) -> list[JavaObject]:
    """Return the UDFs that are called one on the result of the other, the first one first."""
    given = list(items(call.children()))
    if len(given) != 1 or class_of(given[0]) != "PythonUDF" or call.evalType() in _ITERATORS:
        return [call]
    return [*_chain(given[0]), call] if given[0].evalType() == call.evalType() else [call]


def _given(call: JavaObject) -> list[JavaObject]:
    return list(items(_chain(call)[0].children()))


def worker_conf(spark: SparkSession) -> dict[str, str]:
    """Return the settings that Spark gives to its Python workers."""
    conf = spark._jsparkSession.sessionState().conf()
    made = sql_class("execution.python.ArrowPythonRunner").getPythonRunnerConfMap(conf)
    return {str(each._1()): str(each._2()) for each in items(made)}


def function_of(node: JavaObject, pickled: JavaObject) -> tuple[Any, Any]:
    """Return a function as it was pickled for Spark, and the type of its result.

    Raises
    ------
    UnsupportedOperationError
        It uses a broadcast variable.
    """
    from pyspark.serializers import CPickleSerializer

    if pickled.broadcastVars().size():
        raise unsupported(node, "its function uses a broadcast variable, or is as large as one (1 MiB)")
    command = bytes(pickled.command().toArray(class_named("scala.reflect.ClassTag").Byte()))
    function, kind = CPickleSerializer().loads(command)  # type: ignore[no-untyped-call]
    return function, kind
