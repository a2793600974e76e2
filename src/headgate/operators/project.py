"""`Project`: makes columns of columns.

Never: keep anything between two batches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.compiled import Run, compiled, type_in
from headgate.expressions.expressions import Column, Node, index_of
from headgate.operators.operator import Emit, Operator


class Project(Operator):
    """Evaluates an expression per column.

    Parameters
    ----------
    schema
        The columns of its input.
    columns
        What it makes, by their names in the output.
    time_zone
        The session's.

    Raises
    ------
    OptionError
        A column is missing, types do not go together, or two results have the same name.
    """

    kind = "select"

    def __init__(self, schema: pa.Schema, columns: Sequence[Column], time_zone: str) -> None:
        if not columns:
            raise OptionError("select: it needs at least one column.", option="select", value=None)
        names = [each.name_in_output for each in columns]
        twice = sorted(name for name, count in Counter(names).items() if count > 1)
        if twice:
            raise OptionError(
                f"select: {', '.join(map(repr, twice))} appears more than once among the columns. Use alias().",
                option="select", value=twice,
            )  # fmt: skip
        self._nodes = [each.node for each in columns]
        self._input = schema
        self._time_zone = time_zone
        self.function = f"select({', '.join(map(repr, columns))})"
        self.schema = pa.schema(
            [pa.field(name, type_in(node, schema, time_zone)) for name, node in zip(names, self._nodes)]
        )

    @property
    def nodes(self) -> Sequence[Node]:
        """What the columns of the output are made of."""
        return self._nodes

    def expression_of(self, column: str) -> Node:
        """Return what a column of the output is made of."""
        return self._nodes[index_of(self.schema, column)]

    @cached_property
    def _compiled(self) -> Sequence[Run]:
        return [compiled(node, self._input, self._time_zone).run for node in self._nodes]

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the results."""
        arrays = [run(batch) for run in self._compiled]
        emit(pa.RecordBatch.from_arrays(arrays, schema=self.schema), split_id)
