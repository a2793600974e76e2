"""Where the rows, watermarks and idleness of one input of a chain go.

Never: let rows through that are not what the source was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from headgate.errors import ConnectorContractError
from headgate.operators.cast_to_schema import MisfitError, cast_to_schema
from headgate.task.watermark_flow import WatermarkFlow


class Chain(Protocol):
    """What takes them: a `headgate.runtime.chain.StageChain`."""

    @property
    def watermarks(self) -> WatermarkFlow:
        """The watermarks of the subtask."""

    def take_rows(self, source: str, batch: pa.RecordBatch, split: str) -> None:
        """Take rows of a source."""

    def take_note(self, run: Callable[[], None]) -> None:
        """Queue something to do after the rows that came before it."""


class ChainInput:
    """Where a source's output goes: a `headgate.task.reader_output.Downstream`."""

    def __init__(self, chain: Chain, uid: str, schema: pa.Schema) -> None:
        self._chain = chain
        self._uid = uid
        self._schema = schema
        self._takes_nulls = all(field.nullable for field in schema)
        self.rows_passed: Callable[[str, int | None], None] = lambda split_id, max_event_time_ms: None
        """Called with rows that passed the operator after which the source's event times are found."""

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Take rows of a split.

        Raises
        ------
        ConnectorContractError
            They are not what the source was asked for.
        """
        if not (self._takes_nulls and batch.schema.equals(self._schema)):
            try:
                batch = cast_to_schema(batch, self._schema)
            except MisfitError as error:
                raise ConnectorContractError(
                    f"The source {self._uid} emitted a batch that does not fit its schema: {error}.",
                    connector=self._uid, method="emit_batch", split=split_id,
                ) from error  # fmt: skip
        self._chain.take_rows(self._uid, batch, split_id)

    def on_watermark(self, timestamp_ms: int) -> None:
        """Take the source's watermark, in milliseconds."""
        self._chain.take_note(lambda: self._chain.watermarks.on_watermark(self._uid, timestamp_ms))

    def on_idle(self) -> None:
        """Wait no longer for this source."""
        self._chain.take_note(lambda: self._chain.watermarks.on_idle(self._uid))

    def on_active(self) -> None:
        """Wait for this source again."""
        self._chain.take_note(lambda: self._chain.watermarks.on_active(self._uid))

    def after_rows(self, run: Callable[[], None]) -> None:
        """Run something after the rows that were taken before."""
        self._chain.take_note(run)
