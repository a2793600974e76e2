"""An ``Aggregate`` of Spark's plan becomes an exchange by key and the operator of its groups.

Never: compute what an aggregate has: the operators of `headgate.operators.windows` do, and an aggregate whose result
would have another type than Spark's is refused.

The operator makes the window, the keys and the aggregates; what the program computes of them (``sum(n) / count(*)``) is
a projection after it, and columns that are no such computation are taken as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from headgate.expressions.expressions import Bound, Branches, Column, Constant, Node
from headgate.graph.plan import PlanNode
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import NoWindow
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, not_supported
from headgate.spark.analyzed.rows import Columns, Rows, Window, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, is_a, items, option, same_type
from headgate.spark.analyzed.windows import is_window, window_in
from headgate.spark.continuous.grouped import GroupedStream

_FUNCTIONS = {
    "Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max", "First": "first", "Last": "last",
    "CollectList": "collect_list", "HyperLogLogPlusPlus": "approx_count_distinct",
}  # fmt: skip
_ONE = Constant(1, pa.int32())
_EVENT_TIME = "spark.watermarkDelayMs"


def expanded(before: Rows, node: JavaObject) -> Rows:
    """Return rows with the sliding windows that the analyzer made an ``Expand`` for; the rows are as they were.

    Raises
    ------
    UnsupportedOperationError
        It was made for something else.
    """
    output = list(items(node.output()))
    first = list(items(next(items(node.projections()))))
    found = [(attribute, made) for attribute, made in zip(output, first) if is_window(attribute)]
    if len(found) != 1 or class_of(found[0][1]) != "CreateNamedStruct":
        raise unsupported(node, "rollup, cube, grouping sets and several windows are not supported yet")
    attribute, made = found[0]
    columns = Columns()
    for each in before.all():
        columns.add(each.node, each.name_in_output)
    try:
        window = window_in(before.expressions(), made, str(attribute.name()), session=False)
    except NotOnArrowError as why:
        raise not_supported(made, why) from None
    windows = {**before.windows, attribute.exprId().id(): columns.window(window)}
    return replace(before, node=before.projected(columns.made), windows=windows)


def aggregated(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of an ``Aggregate``.

    Raises
    ------
    UnsupportedOperationError
        It has several windows, or an aggregate that there is no operator for.
    OptionError
        A key cannot be grouped by, or the window's times are not those of the watermark.
    """
    grouping = list(items(node.groupingExpressions()))
    output = list(items(node.aggregateExpressions()))
    windows = [each for each in grouping if _window(before, each) is not None]
    if len(windows) > 1:
        raise unsupported(node, "an aggregation by several windows has no end")
    found: list[JavaObject] = []
    for each in output:
        _find(each, grouping, found)
    columns = Columns()
    keys = [each for each in grouping if _window(before, each) is None]
    before, known = with_catalyst(before, [*keys, *(argument for each in found for argument in _arguments(each))])
    expressions = before.expressions(known)
    by: list[Column | Window | NoWindow] = [
        _grouped_by(before, expressions, each, columns, output) for each in grouping
    ]
    if not windows:
        by += [NoWindow(expressions.compiled(each)) for each in grouping if _is_event_time(each)][:1]
    aggregates = [_aggregate(expressions, each, columns, output) for each in found]
    if not aggregates:  # distinct groups
        aggregates = [Aggregate("count", name=columns.free("count"))]
    made: PlanNode = GroupedStream(before.node, by, before.time_zone, lambda made: made).agg(*aggregates)
    made_of = [(each, Bound(index, made.schema.names[index])) for index, each in enumerate([*grouping, *found])]
    _check_types(made.schema, expressions, made_of[len(grouping) :])
    after = Rows(node=made, places={}, windows={}, session=before.session)
    results = after.expressions(made_of)
    outputs = Columns()
    places = {each.exprId().id(): outputs.add(results.compiled(each), str(each.name())) for each in output}
    return replace(after, node=after.projected(outputs.made), places=places)


def _window(before: Rows, expression: JavaObject) -> Window | None:
    named = class_of(expression) == "AttributeReference"
    return before.windows.get(expression.exprId().id()) if named else None


def _is_event_time(expression: JavaObject) -> bool:
    named = class_of(expression) == "AttributeReference"
    return named and bool(expression.metadata().contains(_EVENT_TIME))


def _find(expression: JavaObject, grouping: list[JavaObject], found: list[JavaObject]) -> None:
    """Collect the aggregates of an expression, each once."""
    if any(expression.semanticEquals(each) for each in grouping):
        return
    if class_of(expression) == "AggregateExpression":
        if not any(expression.semanticEquals(each) for each in found):
            found.append(expression)
        return
    for each in items(expression.children()):
        _find(each, grouping, found)


def _name(expression: JavaObject, output: list[JavaObject], otherwise: str) -> str:
    """Return what a column of the operator is called: as in the output, if it is there as it is."""
    for each in output:
        if (each.child() if class_of(each) == "Alias" else each).semanticEquals(expression):
            return str(each.name())
    return otherwise


def _arguments(expression: JavaObject) -> list[JavaObject]:
    """Return what is evaluated for each row that is aggregated."""
    condition = option(expression.filter())
    return [*items(_aggregated_by(expression).children()), *([] if condition is None else [condition])]


def _aggregated_by(expression: JavaObject) -> JavaObject:
    of = expression.aggregateFunction()
    return of.replacement() if is_a(of, "RuntimeReplaceable") else of


def _grouped_by(
    before: Rows, expressions: Expressions, expression: JavaObject, columns: Columns, output: list[JavaObject]
) -> Column | Window:
    name = columns.free(_name(expression, output, "key"))
    window = _window(before, expression)
    if window is not None:
        return msgspec.structs.replace(window, name=name)
    return Column(expressions.compiled(expression), name)


def _aggregate(
    expressions: Expressions, expression: JavaObject, columns: Columns, output: list[JavaObject]
) -> Aggregate:
    try:
        function, argument, parameters = _function(expressions, expression)
    except NotOnArrowError as why:
        raise not_supported(expression, why) from None
    return Aggregate(function, argument, parameters, columns.free(_name(expression, output, function)))


def _function(own: Expressions, expression: JavaObject) -> tuple[str, Node | None, dict[str, Any]]:
    """Return the name of an aggregate of ours, its argument and its parameters."""
    of = _aggregated_by(expression)
    name, given = class_of(of), list(items(of.children()))
    if name not in _FUNCTIONS:
        raise NotOnArrowError(expression, f"the aggregate {name} is not supported yet")
    if expression.isDistinct() or (name == "Count" and len(given) != 1):
        raise NotOnArrowError(expression, "distinct values, and those of several columns, are not aggregated yet")
    if name in ("Sum", "Average") and not pa.types.is_floating(own.kind(given[0])):
        mode = of.evalContext().evalMode() if name == "Sum" else of.evalMode()
        if str(mode.toString()) != "ANSI":
            raise NotOnArrowError(expression, "it is not in ANSI mode (spark.sql.ansi.enabled), or a try_ function")
    parameters: dict[str, Any] = {}
    skips_null = True
    if name in ("First", "Last", "CollectList"):
        skips_null = bool(of.ignoreNulls())
    if name in ("First", "Last"):
        parameters["ignorenulls"] = skips_null
    elif name == "HyperLogLogPlusPlus":
        parameters["rsd"] = float(of.relativeSD())
    argument: Node | None = own.node(given[0])
    if name == "Count" and isinstance(argument, Constant) and argument.value is not None:
        argument = None
    condition = option(expression.filter())
    if condition is not None:
        argument = Branches(((own.node(condition), _ONE if argument is None else argument),))
    if not skips_null and (condition is not None or name == "CollectList"):
        raise NotOnArrowError(expression, "an aggregate that counts nulls has neither FILTER nor lists yet")
    return _FUNCTIONS[name], argument, parameters


def _check_types(schema: pa.Schema, own: Expressions, made: list[tuple[JavaObject, Bound]]) -> None:
    for expression, bound in made:
        try:
            theirs = own.kind(expression)
            if not same_type(schema.types[bound.index], theirs):
                raise NotOnArrowError(expression, f"it gives {schema.types[bound.index]}, and Spark's {theirs}")
        except NotOnArrowError as why:
            raise not_supported(expression, why) from None
