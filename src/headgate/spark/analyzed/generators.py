"""A ``Generate`` of Spark's plan, which ``explode`` and its like are made into, becomes an operator of ours.

Never: let a generator through that there is no operator for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from headgate.operators.generate import Explode, Stack
from headgate.spark.analyzed.catalyst import with_catalyst
from headgate.spark.analyzed.expressions import Expressions, NotOnArrowError, not_supported
from headgate.spark.analyzed.rows import Columns, Rows, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, items


def generated(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``Generate``.

    Raises
    ------
    UnsupportedOperationError
        There is no operator for its generator.
    """
    generator = node.generator()
    name = class_of(generator)
    if name not in ("Explode", "PosExplode", "Inline", "Stack", "JsonTuple"):
        raise unsupported(node, f"the generator {name} is not supported yet")
    # Spark's own code makes an array of the rows of those that have no operator of their own.
    given = [generator] if name == "JsonTuple" else list(items(generator.children()))
    if name == "Stack":
        count, *given = given
        many = int(before.expressions().fixed(count))
    wide, known = with_catalyst(before, given)
    expressions, columns = wide.expressions(known), Columns(before.all())
    kept = range(len(columns.made))
    places = [columns.place(expressions.compiled(each), "generated from") for each in given]
    child = wide.projected(columns.made)
    output = list(items(node.generatorOutput()))
    fields = _fields(expressions, output, before)
    made: Explode | Stack
    if name == "Stack":
        made = Stack(child.schema, [places[row * len(fields) :][: len(fields)] for row in range(many)], kept, fields)
    else:
        inline = name in ("Inline", "JsonTuple")
        parts = {"outer": bool(node.outer()), "position": name == "PosExplode", "inline": inline}
        made = Explode(child.schema, places[0], kept, fields, **parts)
    added = {int(each.exprId().id()): len(kept) + place for place, each in enumerate(output)}
    return replace(before, node=child.then(made), places={**before.places, **added})


def _fields(own: Expressions, output: Sequence[JavaObject], before: Rows) -> list[pa.Field]:
    """Return the columns of what a generator gives, under names that no column has."""
    columns, fields = Columns(), []
    for each in before.all():
        columns.free(each.name_in_output)
    for each in output:
        try:
            fields.append(pa.field(columns.free(str(each.name())), own.kind(each)))
        except NotOnArrowError as why:
            raise not_supported(each, why) from None
    return fields
