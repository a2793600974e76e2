"""A ``Join`` of a stream with rows that end: Spark collects these when the query starts, whatever they are made of.

Never: collect them before, or read a stream here.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headgate.expressions.expressions import Call, Node
from headgate.operators.key_hash import check_key_type
from headgate.operators.static_join import JoinKind, StaticJoin, StaticTable
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, check_keys, not_supported
from headgate.spark.analyzed.rows import Columns, Rows, unsupported
from headgate.spark.analyzed.scala import (
    JavaObject,
    UnsupportedTypeError,
    class_of,
    column_type,
    conjuncts,
    data_frame,
    items,
    option,
    projection,
)

_KINDS: dict[tuple[str, bool], JoinKind] = {
    ("Inner", False): "inner", ("Inner", True): "inner", ("Cross", False): "inner", ("Cross", True): "inner",
    ("LeftOuter", False): "left", ("RightOuter", True): "left",
    ("LeftSemi", False): "semi", ("LeftAnti", False): "anti",
}  # fmt: skip
"""What a join is, by its type in Spark and whether its left side is the one that ends."""


def joined(before: Rows, node: JavaObject, *, on_the_left: bool) -> tuple[Rows, list[JavaObject]]:
    """Return the rows of a stream joined with a side that ends, and the conditions by which they are to be filtered.

    Raises
    ------
    UnsupportedOperationError
        There is no operator for such a join.
    """
    static, how = node.left() if on_the_left else node.right(), class_of(node.joinType())
    kind = _KINDS.get((how, on_the_left))
    if kind is None:
        raise unsupported(node, f"{how} is of all rows of the side that ends, and the stream goes on")
    if _has_reference(static):
        raise unsupported(node, "the side that ends is a common table expression; make it a temporary view")
    output = list(items(static.output()))
    keys, rest = _conditions(node, {int(each.exprId().id()) for each in output})
    if not keys:
        raise unsupported(node, "it has no condition that columns of the two sides are equal")
    check_keys(each for ours, theirs, _ in keys for each in (ours, theirs))
    wide, known = with_catalyst(before, [ours for ours, _, _ in keys])
    expressions, columns = wide.expressions(known), Columns(before.all())
    places = [columns.place(expressions.compiled(ours), "key") for ours, _, _ in keys]
    child = wide.projected(columns.made)
    for key in (child.schema.field(place) for place in places):
        check_key_type(repr(key.name), key.type)
    fields = [pa.field(columns.free(str(each.name())), _type(each)) for each in output]
    added = {int(each.exprId().id()): len(child.schema) + place for place, each in enumerate(output)}
    after, condition = {**before.places, **added}, None
    if kind != "inner":
        own = Expressions(pa.schema([*child.schema, *fields]), after, before.time_zone, spark=before.session.spark)
        condition, rest = _all_true(own, rest), []
    table = _table(before, static, [*output, *(theirs for _, theirs, _ in keys)], [safe for _, _, safe in keys])
    made = StaticJoin(child.schema, places, table, kind, fields, condition, before.time_zone)
    return replace(before, node=child.then(made), places=after if kind in ("inner", "left") else before.places), rest


_Key = tuple[JavaObject, JavaObject, bool]
"""Expressions of the stream and of the side that ends, and whether null is equal to null."""


def _conditions(node: JavaObject, ids: set[int]) -> tuple[list[_Key], list[JavaObject]]:
    """Return what is compared of the two sides, and what else is to be true; ``ids``: those of the side that ends."""
    keys: list[_Key] = []
    rest: list[JavaObject] = []
    condition = option(node.condition())
    for each in [] if condition is None else conjuncts(condition):
        if class_of(each) in ("EqualTo", "EqualNullSafe"):
            sides = [each.left(), each.right()]
            of = [{int(found.exprId().id()) for found in items(side.references())} for side in sides]
            theirs = [bool(found) and found <= ids for found in of]
            ours = [bool(found) and found.isdisjoint(ids) for found in of]
            if (ours[0] and theirs[1]) or (theirs[0] and ours[1]):
                keys.append((sides[ours.index(True)], sides[theirs.index(True)], class_of(each) == "EqualNullSafe"))
                continue
        rest.append(each)
    return keys, rest


def _all_true(own: Expressions, conditions: list[JavaObject]) -> Node | None:
    found: Node | None = None
    for each in conditions:
        try:
            node = own.node(each)
        except NotOnArrowError as why:
            raise not_supported(each, why) from None
        found = node if found is None else Call("and", (found, node))
    return found


def _type(expression: JavaObject) -> pa.DataType:
    try:
        return column_type(expression.dataType())
    except UnsupportedTypeError as error:
        raise not_supported(expression, NotOnArrowError(expression, f"it has {error}")) from error


def _table(before: Rows, static: JavaObject, wanted: list[JavaObject], null_safe: list[bool]) -> StaticTable:
    """Return the table of some expressions of the side that ends, which Spark collects as Arrow when it is asked to."""
    spark = before.session.spark
    schema = pa.schema([pa.field(f"c{place}", _type(each)) for place, each in enumerate(wanted)])

    def collect() -> pa.Table:
        return data_frame(spark, projection(wanted, static)).toArrow()

    return StaticTable(str(static.simpleString(25))[:200], schema, null_safe, collect)


def _has_reference(node: JavaObject) -> bool:
    return class_of(node) == "CTERelationRef" or any(map(_has_reference, items(node.children())))
