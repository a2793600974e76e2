"""`Union`: rows of several inputs, in the columns of the first.

Never: compare names: as in Spark, columns are united by position.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.errors import OptionError
from headgate.operators.operator import Emit, Operator


class Union(Operator):
    """Hands rows on under the names of the first input.

    Parameters
    ----------
    first, others
        The columns of the inputs.

    Raises
    ------
    OptionError
        Their number or types differ.
    """

    kind = "union"
    function = "union"

    def __init__(self, first: pa.Schema, *others: pa.Schema) -> None:
        for other in others:
            if other.types != first.types:
                raise OptionError(
                    f"union: the columns are {_columns(first)} and {_columns(other)}; number and types must be the "
                    "same, in this order. Use select and cast before the union.",
                    option="union", value=_columns(other),
                )  # fmt: skip
        nullable = [any(schema.field(index).nullable for schema in (first, *others)) for index in range(len(first))]
        self.schema = pa.schema([field.with_nullable(null) for field, null in zip(first, nullable)])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows."""
        emit(pa.RecordBatch.from_arrays(batch.columns, schema=self.schema), split_id)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
