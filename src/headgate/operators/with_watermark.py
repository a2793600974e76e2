"""`WithWatermark`: makes watermarks of a column that only an operator made; rows pass unchanged.

Never: store a watermark. After a restart it is found anew from the rows.

A source's own column is better served by the source's `WatermarkStrategy`, which knows of idle splits as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.operators.operator import Emit, Operator, OperatorContext

_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class WithWatermark(Operator):
    """Keeps the highest event time of each split; the watermark is the least of them, less the delay.

    Parameters
    ----------
    schema
        The columns of the rows.
    column
        The one with the event time.
    delay_ms
        How much earlier than the highest event time seen in its split a row may be, in milliseconds.

    Raises
    ------
    OptionError
        The column is no timestamp.
    """

    kind = "with-watermark"
    function = "withWatermark"

    def __init__(self, schema: pa.Schema, column: str, delay_ms: int) -> None:
        self._index = schema.get_field_index(column)
        column_type = schema.field(self._index).type
        if not pa.types.is_timestamp(column_type):
            raise OptionError(
                f"withWatermark: the column {column!r} has the type {column_type}; it must be a timestamp.",
                option="withWatermark", value=column,
            )  # fmt: skip
        self.schema = schema
        self.column = column
        self.delay_ms = delay_ms
        self._per_second = _PER_SECOND[column_type.unit]

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without a watermark."""
        self._highest_ms: dict[str, int] = {}
        self._watermark_ms: int | None = None

    @property
    def watermark_ms(self) -> int | None:
        """The watermark, in milliseconds; None: there were no rows with an event time. It never goes back."""
        return self._watermark_ms

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take note of the highest event time, and emit the rows."""
        value = pc.max(batch.column(self._index)).value
        if value is not None:
            event_time_ms = value * 1000 // self._per_second
            self._highest_ms[split_id] = max(event_time_ms, self._highest_ms.get(split_id, event_time_ms))
            self._advance()
        emit(batch, split_id)

    def release_split(self, split_id: str) -> None:
        """Forget a finished split: it holds nobody back any longer."""
        if self._highest_ms.pop(split_id, None) is not None:
            self._advance()

    def _advance(self) -> None:
        if self._highest_ms:
            watermark_ms = min(self._highest_ms.values()) - self.delay_ms
            if self._watermark_ms is None or watermark_ms > self._watermark_ms:
                self._watermark_ms = watermark_ms
