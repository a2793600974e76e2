"""``dropDuplicates``, ``dropDuplicatesWithinWatermark`` and ``distinct`` become an exchange by key and an operator.

Never: keep keys without a bound where the program says by when they are over.
"""

from __future__ import annotations

from dataclasses import replace

from headgate.expressions.expressions import Bound
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
    keys = [_column(whole, each) for each in by]
    timed = [each for each in output if is_event_time(each)]
    if len(timed) > 1:
        names = ", ".join(str(each.name()) for each in timed)
        raise unsupported(node, f"its rows have several event times, {names}: keep one, as in Spark")
    time = _column(whole, timed[0]) if timed else None
    within_us = 0 if time in keys else None
    if name == "DeduplicateWithinWatermark":
        if not timed:
            raise unsupported(node, "there is no watermark; call withWatermark before")
        within_us = int(timed[0].metadata().getLong(WATERMARK_DELAY)) * 1000
    before, keys = _with_parts(whole, keys)
    schema = before.node.schema
    for key in keys:
        check_key_type(repr(key), schema.field(key).type)
    made = Deduplicate(schema, keys, time=time, within_us=within_us)
    described = ", ".join(f"{each} {schema.field(each).type}" for each in keys)
    made.signature = f"first rows by {described}" + ("" if within_us is None else f", for {within_us // 1000} ms")
    after = before.then(Exchange(schema, "hash", keys=tuple(keys))).then(made)
    return replace(after, node=after.projected(after.all()[: len(whole.node.schema)]))


def _with_parts(before: Rows, keys: list[str]) -> tuple[Rows, list[str]]:
    """Return rows with columns that stand for keys: the bounds of windows, the bytes of what is nested."""
    columns, found = Columns(before.all()), []
    for key in keys:
        place = before.node.schema.get_field_index(key)
        for part, node in key_parts(Bound(place, key), before.node.schema.field(place).type):
            name = f"{key}.{part}" if part else key
            found.append(columns.made[columns.place(node, name)].name_in_output)
    return replace(before, node=before.projected(columns.made)), found


def _column(before: Rows, attribute: JavaObject) -> str:
    """Return the name of an attribute's column."""
    return str(before.node.schema.names[before.places[attribute.exprId().id()]])
