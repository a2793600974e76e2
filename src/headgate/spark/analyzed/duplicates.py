"""``dropDuplicates``, ``dropDuplicatesWithinWatermark`` and ``distinct`` become an exchange by key and an operator.

Never: keep keys without a bound where the program says by when they are over.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from headgate.operators.deduplicate import Deduplicate
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.spark.analyzed.rows import WATERMARK_DELAY, Rows, is_event_time, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, items


def deduplicated(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``Deduplicate``, a ``DeduplicateWithinWatermark`` or a ``Distinct``.

    Raises
    ------
    UnsupportedOperationError
        A key is a window, a struct, a list or a map, or there is no watermark that the node needs.
    OptionError
        A key has no hash.
    """
    output, name = list(items(node.child().output())), class_of(node)
    keys = [_column(before, node, each) for each in (output if name == "Distinct" else items(node.keys()))]
    schema = before.node.schema
    for each in keys:
        if pa.types.is_nested(schema.field(each).type):
            raise unsupported(node, f"{each!r} has the type {schema.field(each).type}; name columns of simple types")
        check_key_type(repr(each), schema.field(each).type)
    timed = next((each for each in output if is_event_time(each)), None)
    time = None if timed is None else _column(before, node, timed)
    if time is not None and not pa.types.is_timestamp(schema.field(time).type):
        raise unsupported(node, f"the event time {time!r} is no timestamp; drop duplicates before grouping")
    within_us = 0 if time in keys else None
    if name == "DeduplicateWithinWatermark":
        if timed is None:
            raise unsupported(node, "there is no watermark; call withWatermark before")
        within_us = int(timed.metadata().getLong(WATERMARK_DELAY)) * 1000
    made = Deduplicate(schema, keys, time=time, within_us=within_us)
    by = ", ".join(f"{each} {schema.field(each).type}" for each in keys)
    made.signature = f"first rows by {by}" + ("" if within_us is None else f", for {within_us // 1000} ms")
    return replace(before, node=before.node.then(Exchange(schema, "hash", keys=tuple(keys))).then(made))


def _column(before: Rows, node: JavaObject, attribute: JavaObject) -> str:
    """Return the name of an attribute's column."""
    number = attribute.exprId().id()
    if number not in before.places:
        raise unsupported(node, f"the window {attribute.sql()} is not grouped by")
    return str(before.node.schema.names[before.places[number]])
