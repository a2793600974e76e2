"""`CatalystAggregate`: an aggregate that Spark's own code computes, with its buffers as bytes.

What Arrow has no kernel for is lifted, merged and finished by the class that Spark has for it, in the helper JVM: a
buffer of a declared aggregate is its row, one of any other what Spark's partial aggregation sends to the final one.

Never: know which aggregate it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.catalyst.evaluator import AggregateEvaluator
from headgate.java_texts import with_java_texts
from headgate.operators.catalyst_helper import helper_of
from headgate.operators.windows.aggregates import Accumulator, Partial
from headgate.protocol.operator_context import OperatorContext

MOST_ROWS = 1 << 16
"""So many rows are merged in one call, and those of a group that begin within them."""


class CatalystBuffers:
    """Makes and merges the buffers of an aggregate function.

    Parameters
    ----------
    function
        The function, Java-serialised (`headgate.spark.analyzed.catalyst`).
    """

    def __init__(self, function: bytes) -> None:
        self._function = function

    def open(self, context: OperatorContext) -> None:
        """Connect to the helper."""
        self.evaluator = AggregateEvaluator(helper_of(context), self._function)

    def close(self) -> None:
        """Close the connection; the helper stays, for others."""
        evaluator = getattr(self, "evaluator", None)
        if evaluator is not None:
            evaluator.close()

    def __call__(self, buffers: pa.Array, groups: Any) -> pa.Array:
        """Return a buffer for each group, of buffers with the number of the group of each, in its order."""
        starts = np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]]))
        if len(starts) == len(groups):
            return buffers
        made, begin = [], 0
        while begin < len(groups):
            place = int(np.searchsorted(starts, begin + MOST_ROWS))
            end = int(starts[place]) if place < len(starts) else len(groups)
            numbers = pa.array(groups[begin:end].astype(np.int32))
            made.append(self.evaluator.merge(buffers.slice(begin, end - begin), numbers))
            begin = end
        return pa.concat_arrays(made)


class CatalystAggregate(Accumulator):
    """An aggregate that Spark's own code computes; it takes a struct of what it is computed of.

    Parameters
    ----------
    of
        The aggregate, for errors.
    kind
        The type of its result.
    function
        The function, Java-serialised.
    conditional
        Whether the last field says which rows count.
    """

    two_phase = False
    blocks = True

    def __init__(self, of: str, kind: pa.DataType, function: bytes, *, conditional: bool) -> None:
        self.kind = kind
        self._conditional = conditional
        self._buffers = CatalystBuffers(function)
        self.partials = (Partial(pa.binary(), "buffers", of, self._buffers),)

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """Start the helper, if none lives on this host."""
        return helper_of(context).started_in_steps()

    def open(self, context: OperatorContext) -> None:
        """Get ready."""
        self._buffers.open(context)

    def close(self) -> None:
        """Close the connection."""
        self._buffers.close()

    def lift(self, values: Any, rows: int) -> list[Any]:
        """Return a buffer for each row."""
        columns = values.flatten()
        if not self._conditional:
            columns.append(pa.array(np.ones(rows, bool)))
        return [self._buffers.evaluator.lift(columns)]

    def of_nothing(self) -> list[Any]:
        """Return the buffer of a group without rows."""
        return [self._buffers.evaluator.of_nothing()]

    def finish(self, partials: Sequence[Any]) -> Any:
        """Return the results of groups."""
        made = with_java_texts(self._buffers.evaluator.finish(partials[0]))  # Spark's may be no UTF-8, Arrow's must
        return made if made.type == self.kind else made.cast(self.kind)
