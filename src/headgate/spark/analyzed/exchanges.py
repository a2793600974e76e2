"""``repartition`` in Spark's plan becomes an exchange between subtasks.

Never: move a row: see `headgate.operators.exchange`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from headgate.expressions.compiled import evaluate
from headgate.expressions.expressions import Node
from headgate.operators.exchange import Exchange
from headgate.operators.key_hash import check_key_type
from headgate.spark.analyzed.expressions import check_keys
from headgate.spark.analyzed.rows import Columns, Rows, unsupported
from headgate.spark.analyzed.scala import JavaObject, class_of, items, option


class PartitionIds:
    """Sends each row to the partition whose number an expression gives, as ``repartitionById`` does.

    Parameters
    ----------
    node
        The expression; null is partition 0.
    partitions
        How many partitions there are; a subtask has as many of them as any other, plus or minus one.
    time_zone
        The session's.
    """

    def __init__(self, node: Node, partitions: int, time_zone: str) -> None:
        self._node = node
        self._partitions = partitions
        self._time_zone = time_zone

    def __call__(self, batch: pa.RecordBatch, subtasks: int) -> pa.Array:
        """Return the subtask of each row."""
        numbers = evaluate(self._node, batch, self._time_zone).fill_null(0).to_numpy(zero_copy_only=False)
        return pa.array((numbers.astype(np.int64) % self._partitions) % subtasks)


def spread(before: Rows, targets: int | None) -> Rows:
    """Return rows that go to so many subtasks in turn; None: to all."""
    return before.then(Exchange(before.node.schema, "rebalance", targets=targets))


def repartitioned(before: Rows, node: JavaObject) -> Rows:
    """Return the rows of a ``RepartitionByExpression``: equal keys meet in one subtask.

    Raises
    ------
    UnsupportedOperationError
        It is by ranges, or by an expression that cannot be evaluated.
    OptionError
        A key has no hash.
    """
    by, partitions = list(items(node.partitionExpressions())), option(node.optNumPartitions())
    if not by or partitions == 1:
        return spread(before, partitions)
    if any(class_of(each) == "SortOrder" for each in by):
        raise unsupported(node, "a stream has no ranges; repartition by the columns themselves")
    check_keys(by)
    expressions, columns = before.expressions(), Columns(before.all())
    if class_of(by[0]) == "DirectShufflePartitionID":
        wanted = expressions.compiled(by[0].child())
        function = PartitionIds(wanted, int(node.numPartitions()), before.time_zone)
        return before.then(Exchange(before.node.schema, "custom", partition=function))
    places = [columns.place(expressions.compiled(each), "key") for each in by]
    made = before.projected(columns.made)
    keys = tuple(dict.fromkeys(made.schema.names[place] for place in places))
    for key in keys:
        check_key_type(repr(key), made.schema.field(key).type)
    return replace(before, node=made.then(Exchange(made.schema, "hash", keys=keys)))
