"""`PairCondition`: what is to be true of a pair of rows beside that their keys are equal.

Never: evaluate anything by itself: Arrow's kernels do, after the operators that add what Spark's own code computes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa

from headgate.expressions.compiled import Run, compiled
from headgate.expressions.expressions import Node, text_of
from headgate.operators.operator import Operator
from headgate.protocol.operator_context import OperatorContext


class PairCondition:
    """A condition over the columns of both sides.

    Parameters
    ----------
    schema
        The columns of a pair.
    steps
        Operators that add columns to pairs, one after the other; they keep all rows in their order.
    node
        The condition, over the columns after the last step.
    time_zone
        The session's.
    """

    blocks = False
    """As `headgate.operators.operator.Operator.blocks`: whether a step does."""

    def __init__(self, schema: pa.Schema, steps: Sequence[Operator], node: Node, time_zone: str) -> None:
        self._steps = list(steps)
        self.blocks = any(each.blocks for each in steps)
        self._schema = steps[-1].schema if steps else schema
        self._node = node
        self._time_zone = time_zone

    def __str__(self) -> str:
        return text_of(self._node)

    @cached_property
    def _is_true(self) -> Run:
        return compiled(self._node, self._schema, self._time_zone).run

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """See `headgate.operators.operator.Operator.prepare`."""
        for each in self._steps:
            yield from each.prepare(context)

    def opened(self, context: OperatorContext) -> PairCondition:
        """Return it ready, for one subtask."""
        made = PairCondition(self._schema, [copy.copy(each) for each in self._steps], self._node, self._time_zone)
        for each in made._steps:
            each.open(context, [])
        return made

    def true_of(self, pairs: pa.RecordBatch) -> Any:
        """Return of which pairs it is true."""
        for each in self._steps:
            emitted: list[pa.RecordBatch] = []
            each.process(pairs, "", lambda rows, split, to=emitted: to.append(rows))  # type: ignore[misc]
            pairs = pa.concat_batches(emitted) if len(emitted) != 1 else emitted[0]
        return self._is_true(pairs).fill_null(False).to_numpy(zero_copy_only=False)

    def close(self) -> None:
        """Release what the steps hold."""
        for each in self._steps:
            each.close()
