"""`CatalystProject`: adds columns whose expressions Spark's own code evaluates.

Never: keep anything between two batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from headgate.catalyst.evaluator import Evaluator
from headgate.java_texts import with_java_texts
from headgate.operators.catalyst_helper import helper_of
from headgate.operators.operator import Emit, Operator
from headgate.protocol.operator_context import OperatorContext


class CatalystProject(Operator):
    """Adds a column for each expression to its input's, all in one call of the helper JVM.

    Parameters
    ----------
    schema
        The columns of its input.
    arguments
        The places of those that the expressions are evaluated on.
    fields
        The columns that are added.
    projection
        The expressions, Java-serialised (`headgate.spark.analyzed.catalyst`).
    texts
        The expressions, as Spark writes them.
    is_unbounded
        Whether what is drawn by chance has seeds of its own each time, as in a stream of Spark's.
    """

    kind = "select"

    blocks = True

    def __init__(
        self,
        schema: pa.Schema,
        arguments: Sequence[int],
        fields: Sequence[pa.Field],
        projection: bytes,
        texts: Sequence[str],
        *,
        is_unbounded: bool = False,
    ) -> None:
        self._arguments = list(arguments)
        self._projection = projection
        self._is_unbounded = is_unbounded
        self.function = ", ".join(texts)
        self.schema = pa.schema([*schema, *fields])

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """Start the helper, if none lives on this host."""
        return helper_of(context).started_in_steps()

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Connect to the helper."""
        # Rows that are read again, and those after them, must not be given what other rows were: uuid() is unique.
        draws = self._is_unbounded or context.run > 1 or context.execution > 1
        self._evaluator = Evaluator(helper_of(context), self._projection, context.subtask, own_seeds=draws)

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows with what is added.

        Raises
        ------
        ExpressionError
            Spark's code raised an error.
        HelperLostError
            The helper has ended.
        """
        given = [batch.column(each) for each in self._arguments]
        # Spark's texts may be bytes that are no UTF-8, of which Arrow has none.
        made = [with_java_texts(each) for each in self._evaluator.evaluate(given, batch.num_rows)]
        kinds = self.schema.types[batch.num_columns :]
        columns = [each if each.type == kind else each.cast(kind) for each, kind in zip(made, kinds)]
        emit(pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema), split_id)

    def close(self) -> None:
        """Close the connection; the helper stays, for others."""
        evaluator = getattr(self, "_evaluator", None)
        if evaluator is not None:
            evaluator.close()
