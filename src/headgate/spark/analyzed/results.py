"""``Sort`` and ``Limit`` of Spark's plan become operators of whole results.

Never: decide where results are put together: `headgate.graph.results` does, when the output mode is known.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.operators.complete_results import LimitRows, SortRows
from headgate.operators.row_order import SortKey, is_orderable
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.expressions import NotOnArrowError, not_supported
from headgate.spark.analyzed.rows import Columns, Rows
from headgate.spark.analyzed.scala import JavaObject, class_of, has_collation, items


def ordered(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``Sort``, global or not: of a result all partitions are one.

    Raises
    ------
    UnsupportedOperationError
        They are sorted by what has no order here.
    """
    orders = list(items(node.order()))
    wide, known = with_catalyst(before, [each.child() for each in orders])
    expressions, columns = wide.expressions(known), Columns(before.all())
    places = [columns.place(expressions.compiled(each.child()), "order") for each in orders]
    made = wide.projected(columns.made)
    for each, place in zip(orders, places):
        text = str(each.child().dataType().catalogString())
        if has_collation(text) or not is_orderable(made.schema.field(place).type):
            raise not_supported(each, NotOnArrowError(each.child(), f"rows are not sorted by the type {text}"))
    keys = [
        SortKey(
            made.schema.names[place],
            descending=class_of(each.direction()) == "Descending",
            nulls_first=class_of(each.nullOrdering()) == "NullsFirst",
        )
        for each, place in zip(orders, places)
    ]
    after = replace(before, node=made.then(SortRows(made.schema, keys)))
    return replace(after, node=after.projected(after.all()[: len(before.node.schema)]))


def limited(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``GlobalLimit``, which is a constant."""
    return before.then(LimitRows(before.node.schema, int(node.limitExpr().eval(None))))
