"""An ``Aggregate`` of Spark's plan becomes an exchange by key and the operator of its groups.

Never: compute what an aggregate has: the operators of `headgate.operators.windows` do, and an aggregate whose result
would have another type than Spark's is refused.

The operator makes the window, the keys and the aggregates; what the program computes of them (``sum(n) / count(*)``) is
a projection after it, and columns that are no such computation are taken as they are.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.compiled import type_in
from headgate.expressions.expressions import Bound, Branches, Call, Column, Constant, Node
from headgate.graph.plan import PlanNode
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.windows.aggregates import Aggregate, accumulator_of
from headgate.operators.windows.assigner import NoWindow
from headgate.operators.windows.catalyst_aggregate import CatalystAggregate
from headgate.operators.windows.windowed import WindowedAggregate
from headgate.spark.analyzed.catalyst import stored_aggregate, with_catalyst
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, check_keys, not_supported
from headgate.spark.analyzed.grouping import grouped
from headgate.spark.analyzed.plan_copy import semantic_key
from headgate.spark.analyzed.rows import Columns, Rows, Window, is_event_time, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, is_a, items, option, same_type
from headgate.spark.analyzed.windows import is_window, needs_columns, window_in, with_windows
from headgate.spark.compatibility import eval_mode, skips_null

_FUNCTIONS = {
    "Count": "count", "Sum": "sum", "Average": "avg", "Min": "min", "Max": "max", "First": "first", "Last": "last",
    "CollectList": "collect_list", "HyperLogLogPlusPlus": "approx_count_distinct", "StddevPop": "stddev_pop",
    "StddevSamp": "stddev_samp", "VariancePop": "var_pop", "VarianceSamp": "var_samp",
}  # fmt: skip
_ONE = Constant(1, pa.int32())


def expanded(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of an ``Expand``: of sliding windows those that were there, of grouping sets each several times.

    Raises
    ------
    UnsupportedOperationError
        A window is among the grouping sets, or an expression that cannot be evaluated.
    """
    output = list(items(node.output()))
    first = list(items(next(items(node.projections()))))
    found = [(attribute, made) for attribute, made in zip(output, first) if class_of(made) == "CreateNamedStruct"]
    if len(found) != 1 or not is_window(found[0][0]):
        return _grouping_sets(before, node)
    attribute, made = found[0]
    columns = Columns(before.all())
    try:
        window = window_in(before.expressions(), made, str(attribute.name()))
        window = msgspec.structs.replace(window, made_by=int(attribute.exprId().id()))
    except NotOnArrowError as why:
        raise not_supported(made, why) from None
    windows = {**before.windows, attribute.exprId().id(): columns.window(window)}
    return replace(before, node=before.projected(columns.made), windows=windows)


def _grouping_sets(before: Rows, node: JavaObject) -> Rows:
    """Return each row once for each grouping set, with nulls for the keys that are not in it."""
    output, nodes = list(items(node.output())), []
    places: dict[int, int] = {}
    windows: dict[int, Window] = {}
    expressions = before.expressions()
    all_windows: set[int] = set()
    for projection in items(node.projections()):
        columns, known = Columns(), {}
        for attribute, value in zip(output, items(projection)):
            number, window = attribute.exprId().id(), _window(before, value)
            if window is None:
                places[number] = columns.add(expressions.compiled(value), str(attribute.name()))
            else:
                known[number] = window
        windows = {number: columns.window(window) for number, window in known.items()}
        nodes.append(before.projected(columns.made))
        all_windows |= set(windows)
    if all_windows & set(places):  # null in some of the sets: only a column can be
        return _grouping_sets(with_windows(before, node), node)
    made = PlanNode(of=Union(*(each.schema for each in nodes)), inputs=tuple(nodes))
    return replace(before, node=made, places=places, windows=windows)


def aggregated(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of an ``Aggregate``.

    Raises
    ------
    UnsupportedOperationError
        It has several windows, or an aggregate that there is no operator for.
    OptionError
        A key cannot be grouped by.
    """
    grouping = list(items(node.groupingExpressions()))
    output = list(items(node.aggregateExpressions()))
    keys = [each for each in grouping if _window(before, each) is None]
    if len(grouping) - len(keys) > 1 and any(map(_is_event_time, grouping)):
        raise unsupported(node, "an aggregation by several windows has no end")
    found = _found(output, grouping)
    for each in found:
        _check_aggregate(each)
    passed = {each.exprId().id() for each in grouping if _window(before, each) is not None}
    arguments = [argument for each in found for argument in _arguments(each)]
    if len(passed) > 1 or needs_columns(before, [*keys, *arguments], passed):
        before, keys = with_windows(before, node), grouping
    columns = Columns()
    before, known = with_catalyst(before, [*keys, *arguments])
    expressions = before.expressions(known)
    called = _names(output)
    by = [_grouped_by(before, expressions, each, columns, called) for each in grouping]
    windows = [each for each in by if not isinstance(each, Column)]
    times = [_end_of(before, expressions.compiled(each)) for each in keys if _is_event_time(each)]
    window = windows[0] if windows else NoWindow(times[0] if times else None)
    aggregates = [_aggregate(before, expressions, each, columns, called) for each in found]
    if not aggregates:  # distinct groups
        aggregates = [Aggregate("count", name=columns.free("count"))]
    nested = [_nested_type(before, each) for each in by]
    parts = [part for each, kind in zip(by, nested) for part in _parts(each, kind, columns)]
    made = grouped(before.node, parts, window, aggregates, before.time_zone)
    if before.lost_event_time and not any(map(_is_event_time, grouping)):
        assert isinstance(made.of, WindowedAggregate)
        made.of.has_event_time = False
    made = _whole(made, by, list(map(_fields, nested)), before.time_zone)
    made_of = [
        (each, Bound(index, name)) for index, (each, name) in enumerate(zip([*grouping, *found], made.schema.names))
    ]
    _check_types(made.schema, expressions, made_of[len(grouping) :])
    after = Rows(node=made, places={}, windows={}, session=before.session)
    after, made_of = with_catalyst(after, output, made_of)
    results = after.expressions(made_of)
    outputs = Columns()
    places = {each.exprId().id(): outputs.add(results.compiled(each), str(each.name())) for each in output}
    return replace(after, node=after.projected(outputs.made), places=places)


def _window(before: Rows, expression: JavaObject) -> Window | None:
    named = class_of(expression) == "AttributeReference"
    return before.windows.get(expression.exprId().id()) if named else None


def _is_event_time(expression: JavaObject) -> bool:
    return class_of(expression) == "AttributeReference" and is_event_time(expression)


def _found(output: list[JavaObject], grouping: list[JavaObject]) -> list[JavaObject]:
    """Return the aggregates of expressions, each once."""
    found: list[JavaObject] = []
    known = set(map(semantic_key, grouping)) - {None}

    def find(expression: JavaObject) -> None:
        key = semantic_key(expression)
        if key is not None and key in known:
            return
        if class_of(expression) == "AggregateExpression":
            found.append(expression)
            if key is not None:
                known.add(key)
            return
        for each in items(expression.children()):
            find(each)

    for each in output:
        find(each)
    return found


def _names(output: list[JavaObject]) -> dict[Hashable, str]:
    """Return what expressions are called in the output, if they are there as they are."""
    names: dict[Hashable, str] = {}
    for each in output:
        key = semantic_key(each.child() if class_of(each) == "Alias" else each)
        if key is not None:
            names.setdefault(key, str(each.name()))
    return names


def _check_aggregate(expression: JavaObject) -> None:
    """Refuse what has no buffers that can be merged, or none that Spark alone knows how to make."""
    of = _aggregated_by(expression)
    why = None
    if expression.isDistinct():
        why = "distinct values of a stream are not aggregated, in Spark's streaming neither; use approx_count_distinct"
    elif class_of(of) == "PythonUDAF":
        why = "pandas functions that aggregate are those of batches, in Spark's streaming too"
    elif not str(of.getClass().getName()).startswith("org.apache.spark.sql.catalyst.expressions."):
        why = f"the aggregate {class_of(of)} is a function of a user's"
    elif any(class_of(each) == "SortOrder" for each in items(of.children())):
        why = "values of a group are aggregated in the order of arrival, not in another"
    if why is not None:
        raise not_supported(expression, NotOnArrowError(expression, why))


def _arguments(expression: JavaObject) -> list[JavaObject]:
    """Return what is evaluated for each row that is aggregated."""
    condition = option(expression.filter())
    given = [each for each in items(_aggregated_by(expression).children()) if not each.foldable()]
    return [*given, *([] if condition is None else [condition])]


def _aggregated_by(expression: JavaObject) -> JavaObject:
    of = expression.aggregateFunction()
    while is_a(of, "RuntimeReplaceable"):
        of = of.replacement()
    return of


def _grouped_by(
    before: Rows, expressions: Expressions, expression: JavaObject, columns: Columns, names: dict[Hashable, str]
) -> Column | Window:
    name = columns.free(names.get(semantic_key(expression), "key"))
    window = _window(before, expression)
    if window is not None:
        return msgspec.structs.replace(window, name=name)
    check_keys([expression])
    return Column(expressions.compiled(expression), name)


def _end_of(before: Rows, time: Node) -> Node:
    """Return the event time that a key is, or, where it is a window of an earlier aggregation, has."""
    is_window = pa.types.is_struct(type_in(time, before.node.schema, before.time_zone))
    return Call("getfield", (time,), {"name": "end"}) if is_window else time


def _nested_type(before: Rows, by: Column | Window) -> pa.DataType | None:
    """Return the type of a key that is an array or a struct; None: it is neither."""
    kind = type_in(by.node, before.node.schema, before.time_zone) if isinstance(by, Column) else None
    return kind if kind is not None and pa.types.is_nested(kind) else None


def _fields(kind: pa.DataType | None) -> list[str]:
    """Return the names of the fields of a struct of simple types; of others there are none."""
    fields = list(kind) if kind is not None and pa.types.is_struct(kind) else []
    return [] if any(pa.types.is_nested(each.type) for each in fields) else [each.name for each in fields]


def _parts(by: Column | Window, kind: pa.DataType | None, columns: Columns) -> list[Column | Window]:
    """Return what stands for a key: of a struct its fields, and whether it is null; of what is nested its bytes."""
    if kind is None or not isinstance(by, Column):
        return [by]
    of = [(each, Call("getfield", (by.node,), {"name": each})) for each in _fields(kind)]
    if not of:
        return [Column(Call("key_bytes", (by.node,)), by.name_in_output)]
    of.append(("null", Call("isnull", (by.node,))))
    return [Column(node, columns.free(f"{by.name_in_output}.{part}")) for part, node in of]


def _whole(made: PlanNode, by: list[Column | Window], fields: list[list[str]], time_zone: str) -> PlanNode:
    """Return groups with their keys as they were before structs were taken apart."""
    if not any(fields):
        return made
    places = iter([Bound(index, name) for index, name in enumerate(made.schema.names)])
    columns = []
    for each, of in zip(by, fields):
        parts, last = tuple(next(places) for _ in of), next(places)
        whole = Branches(((last, Constant(None, pa.null())),), Call("struct", parts, {"names": tuple(of)}))
        node = whole if of else last
        columns.append(Column(node, each.name_in_output if isinstance(each, Column) else each.name))
    columns += [Column(each, each.name) for each in places]
    return made.then(Project(made.schema, columns, time_zone))


def _aggregate(
    before: Rows, own: Expressions, expression: JavaObject, columns: Columns, names: dict[Hashable, str]
) -> Aggregate:
    try:
        made = _on_arrow(own, expression) or _by_catalyst(before, own, expression)
    except NotOnArrowError as why:
        raise not_supported(expression, why) from None
    return made.alias(columns.free(names.get(semantic_key(expression), made.function)))


def _on_arrow(own: Expressions, expression: JavaObject) -> Aggregate | None:
    """Return an aggregate of ours; None: none gives Spark's result."""
    of = _aggregated_by(expression)
    name, given = class_of(of), list(items(of.children()))
    if name not in _FUNCTIONS:
        return None
    condition = option(expression.filter())
    parameters: dict[str, Any] = {}
    argument = _counted(own, given) if name == "Count" else own.node(given[0])
    without_null = True
    exact = name in ("Sum", "Average") and not pa.types.is_floating(own.kind(given[0]))
    if exact and eval_mode(of, name) != "ANSI":
        return None
    if name in ("First", "Last", "CollectList"):
        without_null = skips_null(of, name)
    if name in ("First", "Last"):
        parameters["ignorenulls"] = without_null
    elif name == "HyperLogLogPlusPlus":
        parameters["rsd"] = float(of.relativeSD())
    elif name in ("StddevSamp", "VarianceSamp") and not of.nullOnDivideByZero():
        parameters["of_one"] = math.nan
    if not without_null and (condition is not None or name == "CollectList"):
        return None
    if condition is not None:
        argument = Branches(((own.node(condition), _ONE if argument is None else argument),))
    made = Aggregate(_FUNCTIONS[name], argument, parameters)
    try:
        kind = accumulator_of(made, None if argument is None else own.kind(given[0])).kind
    except OptionError:
        return None
    return made if same_type(kind, own.kind(expression)) else None


def _counted(own: Expressions, given: list[JavaObject]) -> Node | None:
    """Return what is not null in rows that count; None: they all do."""
    nodes = [own.node(each) for each in given]
    nodes = [each for each in nodes if not isinstance(each, Constant) or each.value is None]
    if len(nodes) < 2:
        return nodes[0] if nodes else None
    there: Node = Call("isnotnull", (nodes[0],))
    for each in nodes[1:]:
        there = Call("and", (there, Call("isnotnull", (each,))))
    return Branches(((there, _ONE),))


def _by_catalyst(before: Rows, own: Expressions, expression: JavaObject) -> Aggregate:
    """Return an aggregate that Spark's own code computes, of a struct of its arguments and its condition."""
    of = _aggregated_by(expression)
    nodes = tuple(own.node(each) for each in _arguments(expression))
    name = str(of.prettyName())
    if not nodes:
        raise NotOnArrowError(expression, "an aggregate of constants is not supported")
    accumulator = CatalystAggregate(
        str(expression.sql()),
        own.kind(expression),
        stored_aggregate(before.session, of),
        conditional=option(expression.filter()) is not None,
    )
    argument = Call("struct", nodes, {"names": tuple(map(str, range(len(nodes))))})
    constants = [str(each.sql()) for each in items(of.children()) if each.foldable()]
    parameters = {"constants": ", ".join(constants)} if constants else {}
    return Aggregate(name, argument, parameters, accumulator=accumulator)


def _check_types(schema: pa.Schema, own: Expressions, made: list[tuple[JavaObject, Bound]]) -> None:
    for expression, bound in made:
        try:
            theirs = own.kind(expression)
            ours = schema.field(bound.index).type
            if not same_type(ours, theirs):
                raise NotOnArrowError(expression, f"it gives {ours}, and Spark's {theirs}")
        except NotOnArrowError as why:
            raise not_supported(expression, why) from None
