"""``dropDuplicates``, ``dropDuplicatesWithinWatermark`` and ``distinct`` become an exchange by key and an operator.

Never: keep keys without a bound where the program says by when they are over.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headgate.expressions.expressions import Bound, Call, Column
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.spark.analyzed.expressions import check_keys
from headgate.spark.analyzed.rows import WATERMARK_DELAY, Columns, Rows, is_event_time, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, items
from headgate.spark.analyzed.windows import key_parts, with_windows


def deduplicated(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``Deduplicate``, a ``DeduplicateWithinWatermark`` or a ``Distinct``.

    Raises
    ------
    UnsupportedOperationError
        A key is, or contains, a map or a text with a collation, there is no watermark that the node needs, or there
        are several event times.
    OptionError
        A key has no hash.
    """
    output, name = list(items(node.child().output())), class_of(node)
    whole = with_windows(before, node)
    by = output if name == "Distinct" else list(items(node.keys()))
    check_keys(by)
    columns = [_column(whole, each) for each in by]
    timed = [each for each in output if is_event_time(each)]
    if len(timed) > 1:
        names = ", ".join(str(each.name()) for each in timed)
        raise unsupported(node, f"its rows have several event times, {names}: keep one, as in Spark")
    time = _column(whole, timed[0]) if timed else None
    within_us = 0 if time in columns else None
    if name == "DeduplicateWithinWatermark":
        if not timed:
            raise unsupported(node, "there is no watermark; call withWatermark before")
        within_us = int(timed[0].metadata().getLong(WATERMARK_DELAY)) * 1000
    before, parts = _with_parts(whole, columns)
    schema, keys = before.node.schema, [name for names in parts for name in names]
    for key in keys:
        check_key_type(repr(key), schema.field(key).type)
    late = [(whole.places[each.exprId().id()], str(each.name())) for each in output]
    made = Deduplicate(schema, keys, time=time, within_us=within_us, late=late)
    described = ", ".join(f"{each} {schema.field(each).type}" for each in keys)
    made.signature = f"first rows by {described}" + ("" if within_us is None else f", for {within_us // 1000} ms")
    after = before.then(Exchange(schema, "hash", keys=tuple(keys))).then(made)
    shown = after.all()[: len(whole.node.schema)]
    for name, (part, *others) in zip(columns, parts):
        kind = schema.field(name).type
        if not others and pa.types.is_nested(kind):  # with one zero and one NaN, as the operator does with numbers
            value = Call("key_value", (Bound(schema.get_field_index(part), part),), {"kind": kind})
            shown[schema.get_field_index(name)] = Column(value, name)
    return replace(after, node=after.projected(shown))


def _with_parts(before: Rows, keys: list[str]) -> tuple[Rows, list[list[str]]]:
    """Return rows with columns that stand for each key: the bounds of a window, the bytes of what is nested."""
    columns, found = Columns(before.all()), []
    for key in keys:
        place = before.node.schema.get_field_index(key)
        parts = key_parts(Bound(place, key), before.node.schema.field(place).type)
        names = [(node, f"{key}.{part}" if part else key) for part, node in parts]
        found.append([columns.made[columns.place(*each)].name_in_output for each in names])
    return replace(before, node=before.projected(columns.made)), found


def _column(before: Rows, attribute: JavaObject) -> str:
    """Return the name of an attribute's column."""
    return str(before.node.schema.names[before.places[attribute.exprId().id()]])
