"""Expressions for Spark's own code: bound, serialised, and evaluated by an operator before the one that wants them.

Never: interpret an expression. One that only stands for another is replaced by the rules of Spark's optimizer.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Column, Node
from headgate.operators.catalyst_project import CatalystProject
from headgate.operators.current_time import CurrentTime
from headgate.operators.project import Project
from headgate.spark.analyzed.expressions import NotOnArrowError, not_supported
from headgate.spark.analyzed.functions import arguments_of, called, next_calls, with_results
from headgate.spark.analyzed.plan_copy import CopiedNode, PlanCopy, key_of, number_of, semantic_key
from headgate.spark.analyzed.scala import (
    JavaObject,
    UnsupportedTypeError,
    attribute_of,
    class_of,
    column_type,
    contains,
    items,
    projection,
    relation,
    sequence,
    singleton,
    sql_class,
)

if TYPE_CHECKING:
    from headgate.spark.analyzed.rows import Rows, Session

Known = tuple[JavaObject, Bound]

CURRENT_TIMES = {
    "CurrentTimestamp": "timestamp", "Now": "timestamp", "CurrentDate": "date", "LocalTimestamp": "local timestamp",
    "CurrentTime": "time",
}  # fmt: skip
"""What `CurrentTime` makes for an expression, by its class."""


def with_catalyst(
    before: Rows, wanted: Sequence[JavaObject], made_before: Sequence[Known] = ()
) -> tuple[Rows, list[Known]]:
    """Return rows that have a column for each of the expressions that no Arrow kernel evaluates, and which these are.

    Parameters
    ----------
    before
        The rows.
    wanted
        The expressions.
    made_before
        Parts of them whose values are columns of the rows.

    Raises
    ------
    UnsupportedOperationError
        An expression cannot be evaluated by Spark's code alone either.
    """
    wanted = list(map(before.session.copy.of, wanted))
    while calls := next_calls(before, wanted, [each for each, _ in made_before]):
        arguments = [argument for each in calls for argument in arguments_of(each)]
        wide, known = with_catalyst(before, arguments, made_before)
        before = called(wide, wide.expressions(known), calls)
    before, now = _with_current_time(before, wanted)
    now += made_before
    missing: dict[Hashable, JavaObject] = {}
    taken_over: dict[Hashable, tuple[JavaObject, Node]] = {}
    known_keys = {semantic_key(each) for each, _ in made_before} - {None}
    expressions = before.expressions(now)
    for each in wanted:
        value = each.child() if class_of(each) == "Alias" else each
        expressions.taken_over = False
        try:
            node = expressions.node(value)
            if expressions.taken_over:
                taken_over.setdefault(key_of(value), (value, node))
        except NotOnArrowError as why:
            _check(with_results(before, value), why, known_keys)
            missing.setdefault(key_of(value), value)
    if not missing and not taken_over:
        return before, now
    made: Project | CatalystProject
    added = list(missing.values()) or [each for each, _ in taken_over.values()]
    if missing:
        made = _operator(before, [with_results(before, each) for each in added], now)
    else:
        made = _in_its_place(before, list(taken_over.values()))
    return replace(before, node=before.node.then(made)), [*_added(before, made.schema, added), *now]


def _in_its_place(before: Rows, taken_over: Sequence[tuple[JavaObject, Node]]) -> Project:
    """Return what computes expressions that Spark's own code evaluated in earlier versions, as that was named.

    What follows keeps its uid, and keyed state the names of its columns, so that checkpoints of then are restored.
    """
    names = _names(before, [each for each, _ in taken_over])
    added = [Column(node, name) for (_, node), name in zip(taken_over, names)]
    return Project(before.node.schema, [*before.all(), *added], before.time_zone)


def _with_current_time(before: Rows, wanted: Sequence[JavaObject]) -> tuple[Rows, list[Known]]:
    """Return rows with a column for each function of the current time in some expressions, and which these are."""
    found: dict[str, JavaObject] = {}
    for each in (part for one in wanted if contains(one, "CURRENT_LIKE") for part in _all(one)):
        if class_of(each) in CURRENT_TIMES:
            found.setdefault(str(each.sql()), each)
    if not found:
        return before, []
    made = CurrentTime(before.node.schema, [_current_time(each) for each in found.values()], before.time_zone)
    return replace(before, node=before.node.then(made)), _added(before, made.schema, list(found.values()))


def _current_time(expression: JavaObject) -> tuple[str, int]:
    name = class_of(expression)
    digits = expression.precision() if name == "CurrentTime" else 6
    return CURRENT_TIMES[name], int(digits)


def _added(before: Rows, schema: pa.Schema, expressions: Sequence[JavaObject]) -> list[Known]:
    """Return expressions with the columns that an operator added for them."""
    places = range(len(before.node.schema), len(schema))
    return [(each, Bound(place, schema.field(place).name)) for place, each in zip(places, expressions, strict=True)]


def _check(expression: JavaObject, why: NotOnArrowError, known: Set[Hashable]) -> None:
    """Refuse what Spark's code cannot evaluate by itself, row by row."""
    for each in _all(expression, known):
        name = class_of(each)
        if name.startswith("InputFile"):
            raise not_supported(expression, NotOnArrowError(each, "rows of a stream are of no file"))
        if name == "MonotonicallyIncreasingID":
            raise not_supported(expression, NotOnArrowError(each, "a stream has none, in Spark neither"))
        if name in ("PythonUDF", "PythonUDAF", "AggregateExpression", "WindowExpression") or "Subquery" in name:
            raise not_supported(expression, why)


def _all(expression: JavaObject, known: Set[Hashable] = frozenset()) -> list[JavaObject]:
    """Return an expression and its parts, but for those with known keys."""
    if known and semantic_key(expression) in known:
        return []
    found = [expression]
    for each in items(expression.children()):
        found += _all(each, known)
    return found


def _operator(before: Rows, wanted: Sequence[JavaObject], now: Sequence[Known]) -> CatalystProject:
    attributes_now = [attribute_of(each, class_of(each)) for each, _ in now]
    places = {
        **before.places,
        **{int(attribute.exprId().id()): bound.index for attribute, (_, bound) in zip(attributes_now, now)},
    }
    stand_ins = _by_key(zip((each for each, _ in now), attributes_now))
    evaluated = [before.session.copy.of(_substituted(each, stand_ins)) for each in wanted]
    attributes = {int(each.exprId().id()): each for one in evaluated for each in items(one.references())}
    for number, each in attributes.items():
        if number not in places:
            raise UnsupportedOperationError(
                f"{each.sql()} is a window, and there is no value of it before it is grouped by.",
                operation="window", expression=str(each.sql()),
            )  # fmt: skip
    fields = []
    for each, name in zip(wanted, _names(before, wanted)):
        try:
            kind = column_type(each.dataType())
        except UnsupportedTypeError as error:
            raise not_supported(each, NotOnArrowError(each, f"it has {error}")) from error
        fields.append(pa.field(name, kind))
    return CatalystProject(
        before.node.schema,
        [places[number] for number in attributes],
        fields,
        _serialized(before.session, evaluated, list(attributes.values())),
        [str(each.sql()) for each in wanted],
        is_unbounded=before.session.streams,
    )


def _by_key(stand_ins: Iterable[tuple[JavaObject, JavaObject]]) -> dict[Hashable, JavaObject]:
    """Return what stands in the place of expressions, by their keys: of equal ones the first one's."""
    found: dict[Hashable, JavaObject] = {}
    for each, by in stand_ins:
        found.setdefault(semantic_key(each), by)
    found.pop(None, None)
    return found


def _substituted(expression: JavaObject, stand_ins: Mapping[Hashable, JavaObject]) -> JavaObject:
    """Return an expression with attributes in the place of some of its parts."""
    if not stand_ins:
        return expression
    stand_in = stand_ins.get(semantic_key(expression))
    if stand_in is not None:
        return stand_in
    children = list(items(expression.children()))
    made = [_substituted(each, stand_ins) for each in children]
    changed = any(one is not other for one, other in zip(made, children))
    return expression.withNewChildren(sequence(made)) if changed else expression


def _names(before: Rows, added: Sequence[JavaObject]) -> list[str]:
    """Return the names of columns that are added for expressions."""
    names = dict.fromkeys(before.node.schema.names)
    count_before = len(names)
    for each in added:
        text = str(each.sql())
        names[next(name for name in (f"{text}{tail}" for tail in _tails()) if name not in names)] = None
    return list(names)[count_before:]


def _tails() -> Iterator[str]:
    yield ""
    yield from (f" {number}" for number in count(2))


def _serialized(session: Session, wanted: Sequence[JavaObject], attributes: Sequence[JavaObject]) -> bytes:
    """Return what Evaluator.java reads of expressions."""
    inputs = sequence(attributes)
    expressions = _replaced(session, wanted, inputs)
    output = sql_class("types.StructType")()
    for index, each in enumerate(wanted):
        output = output.add(f"c{index}", each.dataType(), True)
    copy = session.copy
    return b64decode(copy.whole(copy.java.stored(expressions, inputs, output, session.settings)))


def stored_aggregate(session: Session, function: CopiedNode) -> bytes:
    """Return what Evaluator.java reads of an aggregate function: it is computed of attributes, the last a condition.

    Constants stay what they are: Spark evaluates them when it makes the function.
    """
    copy = session.copy
    return b64decode(copy.whole(copy.java.storedAggregate(number_of(function), session.settings)))


def _replaced(session: Session, wanted: Sequence[JavaObject], inputs: JavaObject) -> JavaObject:
    """Return the expressions as Spark's optimizer leaves those that only stand for others."""
    plan = projection(wanted, relation(inputs, is_streaming=False))
    for rule in ("ReplaceExpressions", "RewriteWithExpression"):
        plan = singleton(f"catalyst.optimizer.{rule}").apply(plan)
    state = cast(Any, session.spark)._jsparkSession.sessionState()
    plan = sql_class("catalyst.optimizer.ReplaceCurrentLike")(state.catalogManager()).apply(plan)
    plan = singleton("catalyst.optimizer.ComputeCurrentTime").apply(plan)  # the time zone: the time is a column
    return sequence(_inlined(session.copy.of(plan), session.copy))


def _inlined(plan: JavaObject, copy: PlanCopy) -> list[JavaObject]:
    """Return the expressions of a projection over others, each common expression in every place that refers to it."""
    expressions, below = list(items(plan.projectList())), plan.child()
    while class_of(below) == "Project":
        common = _by_key(
            (each.toAttribute(), each.child()) for each in items(below.projectList()) if class_of(each) == "Alias"
        )
        expressions = [copy.of(_substituted(each, common)) for each in expressions]
        below = below.child()
    return expressions
