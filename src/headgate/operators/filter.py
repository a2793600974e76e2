"""`Filter`: lets rows through for which a condition is true.

Never: keep anything between two batches.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.compiled import Run, compiled, type_in
from headgate.expressions.expressions import Column
from headgate.operators.operator import Emit, Operator


class Filter(Operator):
    """Evaluates a condition. Null counts as false.

    Parameters
    ----------
    schema
        The columns of the rows.
    condition
        A boolean expression.
    time_zone
        The session's.

    Raises
    ------
    OptionError
        A column is missing, or it is not a condition.
    """

    kind = "filter"

    def __init__(self, schema: pa.Schema, condition: Column, time_zone: str) -> None:
        found = type_in(condition.node, schema, time_zone)
        if not pa.types.is_boolean(found):
            raise OptionError(
                f"filter: {condition!r} has the type {found}; a condition is boolean.",
                option="filter", value=repr(condition),
            )  # fmt: skip
        self.condition = condition.node
        self._time_zone = time_zone
        self.schema = schema
        self.function = f"filter({condition!r})"

    @cached_property
    def _compiled(self) -> Run:
        return compiled(self.condition, self.schema, self._time_zone).run

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows for which the condition is true."""
        keep = self._compiled(batch)
        emit(batch if keep.true_count == len(keep) else batch.filter(keep), split_id)
