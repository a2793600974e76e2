"""`WithWatermark`: where the event times of a source are found in a column that only an operator made.

Never: make a watermark, or change a row. The output of the source that the rows come from learns which rows passed, and
keeps a watermark for each split with the machine that serves a source's own columns: idle splits, ends and alignment
included (`headgate.task.reader_output.StreamingOutput.rows_passed`).

A source's own column is better served: its rows can be aligned one by one, these only by whole batches.
"""

from __future__ import annotations

import pyarrow as pa

from headgate.errors import OptionError
from headgate.operators.operator import Emit, Operator
from headgate.source.event_time import highest_event_time_ms


class WithWatermark(Operator):
    """Finds the highest event time of rows that pass.

    Parameters
    ----------
    schema
        The columns of the rows.
    column
        The one with the event time.

    Raises
    ------
    OptionError
        The column is not a timestamp.
    """

    kind = "with-watermark"
    function = "withWatermark"

    def __init__(self, schema: pa.Schema, column: str) -> None:
        self._index = schema.get_field_index(column)
        column_type = schema.field(self._index).type
        if not pa.types.is_timestamp(column_type):
            raise OptionError(
                f"withWatermark: the column {column!r} has the type {column_type}; it must be a timestamp.",
                option="withWatermark", value=column,
            )  # fmt: skip
        self.schema = schema
        self.column = column

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows."""
        emit(batch, split_id)

    def highest_event_time_ms(self, batch: pa.RecordBatch) -> int | None:
        """Return the highest event time of rows, in milliseconds rounded down; None: none of them has one."""
        return highest_event_time_ms(batch.column(self._index))
