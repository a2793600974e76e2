"""A ``Join`` of two streams becomes an exchange by key of each, and an operator with state of both.

Never: decide which joins may be run, what their keys are or how long rows are kept: Spark's checker, its planner and
its helper do, which are called here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.errors import AnalysisException

from headgate.errors import UnsupportedOperationError
from headgate.graph.plan import PlanNode
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.operators.operator import Operator
from headgate.operators.stream_join.condition import PairCondition
from headgate.operators.stream_join.operator import Side, StreamJoin, StreamJoinKind
from headgate.operators.union import Union
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.expressions import NotOnArrowError, check_keys, not_supported
from headgate.spark.analyzed.rows import Columns, Rows, is_event_time, unsupported
from headgate.spark.analyzed.scala import (
    JavaObject,
    class_named,
    class_of,
    conjuncts,
    is_a,
    items,
    option,
    relation,
    sequence,
    singleton,
    sql_class,
)
from headgate.spark.analyzed.windows import key_parts
from headgate.spark.compatibility import has_key_search, join_helper

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KINDS: dict[str, StreamJoinKind] = {
    "Inner": "inner", "Cross": "inner", "LeftOuter": "left", "RightOuter": "right", "FullOuter": "full",
    "LeftSemi": "semi", "LeftAnti": "anti",
}  # fmt: skip
_SOME_WATERMARKS_MS = (1_000_000_000_000, 2_000_000_000_000)
"""Spark says for a watermark how far it lets rows be forgotten: asked for two, we know how far above or below it."""


def check_streaming(analyzed: JavaObject, output_mode: str) -> None:
    """Have Spark check whether a plan of streams may be run in an output mode.

    Raises
    ------
    UnsupportedOperationError
        It may not, in Spark's words.
    """
    mode = getattr(sql_class("streaming.OutputMode"), output_mode.capitalize())()
    _asked(
        lambda: singleton("catalyst.analysis.UnsupportedOperationChecker").checkForStreaming(analyzed, mode), analyzed
    )


def _asked(ask: Callable[[], Any], node: JavaObject) -> Any:
    try:
        return ask()
    except AnalysisException as error:
        raise UnsupportedOperationError(
            f"Spark does not run this in a stream, nor does a continuous query: {str(error).partition(chr(10))[0]}",
            operation=class_of(node),
        ) from error


def join_below(node: JavaObject) -> JavaObject:
    """Return what is below filters and projections."""
    while class_of(node) in ("Filter", "Project"):
        node = node.child()
    return node


def pushed_down(node: JavaObject) -> JavaObject:
    """Return a join, or filters over projections of one, as Spark's optimizer has it: each condition as low as can be.

    What a filter after an inner join compares of both sides becomes part of its condition: there it is a bound of the
    state. Below the join all stays as it is, but for filters of one side that are now there.
    """
    join = join_below(node)
    below = [join.left(), join.right()]
    leaves = [relation(each.output(), is_streaming=True) for each in below]
    made = _replaced(node, join, join.withNewChildren(sequence(leaves)))
    rule, before = singleton("catalyst.optimizer.PushDownPredicates"), None
    while before is None or not made.equals(before):  # as the optimizer does: until nothing changes
        before, made = made, rule.apply(made)
    for leaf, each in zip(leaves, below):
        made = _replaced(made, leaf, each)
    return made


def _replaced(node: JavaObject, part: JavaObject, by: JavaObject) -> JavaObject:
    if node.equals(part):
        return by
    children = [_replaced(each, part, by) for each in items(node.children())]
    return node.withNewChildren(sequence(children)) if children else node


def streams_joined(rows: Sequence[Rows], node: JavaObject) -> Rows:
    """Return the rows of a join of two streams.

    Parameters
    ----------
    rows
        Those of the left side and of the right one, `with_windows`.
    node
        Spark's node.

    Raises
    ------
    UnsupportedOperationError
        Spark refuses it, or a key or a part of the condition cannot be evaluated.
    OptionError
        A key has no hash.
    """
    session, how = rows[0].session, class_of(node.joinType())
    if how not in _KINDS:
        raise unsupported(node, f"there is no join of two streams of the type {how}")
    if session.streams:
        check_streaming(node, "append")
    node = _comparable(node)
    found = option(singleton("catalyst.planning.ExtractEquiJoinKeys").unapply(node))
    if found is None:
        raise unsupported(node, "it has no condition that columns of the two streams are equal, as Spark's needs one")
    java_keys, rest = (found._2(), found._3()), option(found._4())
    key_place, offsets = _bounds(session.spark, node, java_keys, rest) if session.streams else (None, (None, None))
    outputs = [list(items(each.output())) for each in (node.left(), node.right())]
    copied = session.copy.of
    sides = [
        _Joined(each, list(map(copied, items(keys))), output) for each, keys, output in zip(rows, java_keys, outputs)
    ]
    left, right = (side.described(key_place, offset) for side, offset in zip(sides, offsets))
    names, types = Columns(), [*left.schema.types, *right.schema.types]
    both = pa.schema([(names.free(name), kind) for name, kind in zip([*sides[0].names, *sides[1].names], types)])
    shifted = {number: place + len(left.schema) for number, place in sides[1].places.items()}
    places = {**sides[0].places, **shifted}
    pairs = Rows(node=PlanNode(of=Union(both)), places=places, windows={}, session=session)
    condition = None if rest is None else _condition(pairs, copied(rest))
    kind = _KINDS[how]
    texts = [f"{one.sql()} = {other.sql()}" for one, other in zip(items(java_keys[0]), items(java_keys[1]))]
    made = StreamJoin(left, right, both, kind, condition, ", ".join(texts))
    made.signature = f"{kind} join; {_kept('left', left, sides[0].names)}; {_kept('right', right, sides[1].names)}"
    exchanged = tuple(side.node.then(Exchange(side.node.schema, "hash", keys=side.key_names)) for side in sides)
    return replace(
        rows[0],
        node=PlanNode(of=made, inputs=exchanged),
        places=sides[0].places if kind in ("semi", "anti") else places,
        windows={},
    )


def _comparable(node: JavaObject) -> JavaObject:
    """Return a join in which ``<=>`` of values without a type asks whether both are null.

    Spark puts a default in the place of a null that is equal to null, and the default of that type is null, too.
    """
    condition = option(node.condition())
    found = [] if condition is None else conjuncts(condition)
    is_null, equal, both = (sql_class(f"catalyst.expressions.{name}") for name in ("IsNull", "EqualTo", "And"))
    made = [
        equal(is_null(each.left()), is_null(each.right()))
        if class_of(each) == "EqualNullSafe" and each.left().dataType().typeName() == "void"
        else each
        for each in found
    ]
    if all(one is other for one, other in zip(made, found)):
        return node
    join, some = sql_class("catalyst.plans.logical.Join"), class_named("scala.Option").apply
    return join(node.left(), node.right(), node.joinType(), some(reduce(both, made)), node.hint())


class _Joined:
    """One side on its way to the join: with a column for each key, and for each window."""

    def __init__(self, rows: Rows, keys: list[JavaObject], output: list[JavaObject]) -> None:
        check_keys(keys)
        wide, known = with_catalyst(rows, keys)
        expressions, columns = wide.expressions(known), Columns(rows.all())
        self.keys: list[tuple[int, ...]] = []
        """Of each key the places of its columns: a window has two."""
        for each in keys:
            compiled = expressions.compiled(each)
            try:
                kind = expressions.kind(each)
            except NotOnArrowError as why:
                raise not_supported(each, why) from None
            parts = key_parts(compiled, kind)
            names = [f"key.{name}" if name.startswith("bytes") else "key" for name, _ in parts]
            self.keys.append(tuple(columns.place(part, name) for name, (_, part) in zip(names, parts)))
        self.node = wide.projected(columns.made)
        self.places = rows.places
        timed = next((each for each in output if is_event_time(each)), None)
        self.event_time = None if timed is None else self.places[timed.exprId().id()]
        self._all_keys = tuple(place for places in self.keys for place in places)
        self.names = list(self.node.schema.names)
        """The names of its columns, as the program knows them."""
        for each in output:
            self.names[self.places[each.exprId().id()]] = str(each.name())
        self.key_names = tuple(self.node.schema.field(place).name for place in self._all_keys)
        for name in self.key_names:
            check_key_type(repr(name), self.node.schema.field(name).type)

    def described(self, key_place: int | None, offset_ms: int | None) -> Side:
        """Return it as the operator knows it; ``key_place``: of the key that is the event time, if one is."""
        time = self.event_time if key_place is None else self.keys[key_place][-1]
        return Side(
            self.node.schema,
            self._all_keys,
            late=self.event_time,
            time=None if offset_ms is None else time,
            offset_ms=offset_ms,
        )


def _bounds(
    spark: SparkSession, node: JavaObject, keys: tuple[JavaObject, JavaObject], rest: JavaObject | None
) -> tuple[int | None, tuple[int | None, int | None]]:
    """Return which key is the event time, and for each side how far above the watermark rows are that are over.

    A condition of one side alone is no bound of it: Spark's helper would take ``n > 5`` for one.
    """
    helper = singleton(join_helper())
    some, conjunction = class_named("scala.Option").apply, None
    several = spark.conf.get("spark.sql.streaming.statefulOperator.allowMultiple", "true") != "true"
    ids = [{int(each.exprId().id()) for each in items(side.output())} for side in (node.left(), node.right())]
    for each in [] if rest is None else conjuncts(rest):
        of = {int(found.exprId().id()) for found in items(each.references())}
        if all(of & side for side in ids):
            both = sql_class("catalyst.expressions.And")
            conjunction = each if conjunction is None else both(conjunction, each)

    def state_watermarks(watermark_ms: int) -> list[int | None]:
        found = _asked(
            lambda: helper.getStateWatermark(
                node.left().output(), node.right().output(), *keys, some(conjunction), some(watermark_ms), several
            ),
            node,
        )  # fmt: skip
        return [option(found._1()), option(found._2())]

    low, high = map(state_watermarks, _SOME_WATERMARKS_MS)
    offsets = [
        None if one is None or other is None else (one - _SOME_WATERMARKS_MS[0], other - _SOME_WATERMARKS_MS[1])
        for one, other in zip(low, high)
    ]
    left, right = (None if each is None or each[0] != each[1] else int(each[0]) for each in offsets)
    place = option(helper.findJoinKeyOrdinalForWatermark(*keys)) if has_key_search() else _event_time_key(keys)
    return None if place is None else int(place), (left, right)


def _event_time_key(keys: tuple[JavaObject, JavaObject]) -> int | None:
    """Return the place of the first key with an event time: of the left side, else of the right one."""
    for side in keys:
        for place, each in enumerate(items(side)):
            if is_a(each, "NamedExpression") and is_event_time(each):
                return place
    return None


def _condition(pairs: Rows, condition: JavaObject) -> PairCondition:
    """Return what is to be true of pairs, in the columns of both sides."""
    wide, known = with_catalyst(pairs, [condition])
    steps: list[Operator] = []
    node = wide.node
    while node is not pairs.node:
        assert isinstance(node.of, Operator)
        steps.insert(0, node.of)
        (node,) = node.inputs
    return PairCondition(pairs.node.schema, steps, wide.expressions(known).compiled(condition), pairs.time_zone)


def _kept(side_name: str, side: Side, names: Sequence[str]) -> str:
    """Return what is kept of a side and until when, for people to read."""
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, side.schema.types))
    rows = f"{side_name}: {columns} by {', '.join(names[place] for place in side.keys)}"
    if side.time is None or side.offset_ms is None:
        return f"{rows}, for ever"
    offset = f" {'-' if side.offset_ms < 0 else '+'} {abs(side.offset_ms)} ms" if side.offset_ms else ""
    return f"{rows}, until {names[side.time]} is at the watermark{offset}"
