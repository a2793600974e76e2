"""The outputs that a task gives to its reader: one that only collects, for batch, and one that keeps watermarks.

Never: read a clock; the task says what time it is. Used on the task's thread only.

Follows FLIP-27, "SourceOutput and Watermarking".
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from typing import Protocol, assert_never

import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import OptionError
from headgate.source.reader import ReaderOutput, SourceOutput
from headgate.source.watermark import WatermarkStrategy
from headgate.task import watermarks as wm

_READER_ITSELF = ""
"""The id of the output of readers that emit without an output per split."""
_PER_SECOND = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}


class TaskOutput(ReaderOutput):
    """A reader's output, and what its task tells it."""

    timer_period_ms: int | None = None
    """How often `advance_time` is to be called though nothing happens, in milliseconds; None: never."""

    @abstractmethod
    def advance_time(self, now_ms: int) -> None:
        """Say what time it is, in milliseconds: before each poll, and as often as ``timer_period_ms`` says."""

    @abstractmethod
    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Say which splits cannot be read for now: that they are silent does not make them idle."""

    @abstractmethod
    def end_input(self) -> None:
        """Say that the reader reached its end. Called once."""


class BatchOutput(TaskOutput):
    """Collects batches until they are taken. Does no watermark work at all: in batch nobody asks for them."""

    def __init__(self) -> None:
        self._batches: deque[pa.RecordBatch] = deque()

    def take(self) -> pa.RecordBatch | None:
        """Return the oldest batch not yet taken, or None."""
        return self._batches.popleft() if self._batches else None

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """Collect rows."""
        self._batches.append(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Ignored."""

    def mark_idle(self) -> None:
        """Ignored."""

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """Return this output: without watermarks all splits are alike."""
        return self

    def release_output_for_split(self, split_id: str) -> None:
        """Ignored."""

    def advance_time(self, now_ms: int) -> None:
        """Ignored."""

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Ignored."""

    def end_input(self) -> None:
        """Ignored."""


class Downstream(Protocol):
    """Who gets what a `StreamingOutput` lets through."""

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Take rows of a split; the id is empty for a reader that has no output per split."""

    def on_watermark(self, timestamp_ms: int) -> None:
        """Take the reader's watermark, in milliseconds; it only grows."""

    def on_idle(self) -> None:
        """Wait no longer for this reader, until `on_active`."""

    def on_active(self) -> None:
        """Wait for this reader again, at the watermark that it sent last."""


class StreamingOutput(TaskOutput):
    """Hands rows on, and keeps a watermark for each split and their minimum for the reader.

    Parameters
    ----------
    schema
        The columns that will be emitted.
    strategy
        How event time and watermarks are made; None: only the source's own watermarks count.
    downstream
        Who gets rows, watermarks and idleness.
    now_ms
        The time at the beginning, in milliseconds.

    Raises
    ------
    OptionError
        The strategy's event-time column is missing or no timestamp.
    """

    def __init__(
        self, schema: pa.Schema, strategy: WatermarkStrategy | None, downstream: Downstream, now_ms: int
    ) -> None:
        self._machine = wm.SplitWatermarks(strategy)
        self._downstream = downstream
        self._now_ms = self._looked_ms = now_ms
        self._outputs: dict[str, _SplitOutput] = {}
        self._max_event_time_ms = None if strategy is None else _event_time_reader(schema, strategy.event_time_column)
        if strategy is not None and strategy.idle_timeout_ms is not None:
            self.timer_period_ms = max(1, strategy.idle_timeout_ms // 4)

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """Emit rows of the reader itself."""
        self.create_output_for_split(_READER_ITSELF).emit_batch(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Emit a watermark for the rows of the reader itself."""
        self.create_output_for_split(_READER_ITSELF).emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        """Mark the reader itself as idle."""
        self.create_output_for_split(_READER_ITSELF).mark_idle()

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """Return the split's own output; the split has a vote from the first call on."""
        output = self._outputs.get(split_id)
        if output is None:
            output = self._outputs[split_id] = _SplitOutput(self, split_id)
            self.handle(wm.SplitAdded(split_id))
        return output

    def release_output_for_split(self, split_id: str) -> None:
        """Forget a finished split."""
        self._outputs.pop(split_id, None)
        self.handle(wm.SplitFinished(split_id))

    def advance_time(self, now_ms: int) -> None:
        """Find splits that fell silent."""
        self._now_ms = now_ms
        if self.timer_period_ms is not None and now_ms - self._looked_ms >= self.timer_period_ms:
            self._looked_ms = now_ms
            self.handle(wm.TimePassed())

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Stop and start the idleness clocks of splits."""
        for split_id in splits_to_pause:
            self.handle(wm.SplitPaused(split_id))
        for split_id in splits_to_resume:
            self.handle(wm.SplitResumed(split_id))

    def block(self, now_ms: int) -> None:
        """Stop all idleness clocks: rows cannot be emitted, because of back pressure."""
        self._now_ms = now_ms
        self.handle(wm.Blocked())

    def unblock(self, now_ms: int) -> None:
        """Let them run again."""
        self._now_ms = now_ms
        self.handle(wm.Unblocked())

    def end_input(self) -> None:
        """Emit the final watermark."""
        self.handle(wm.InputEnded())

    def hand_on(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Pass rows on, before the watermark that follows from them."""
        max_event_time_ms = self._max_event_time_ms(batch) if self._max_event_time_ms is not None else None
        self._downstream.on_batch(batch, split_id)
        self.handle(wm.RowsEmitted(split_id, max_event_time_ms))

    def handle(self, event: wm.Event) -> None:
        """Give an event to the watermark machine and carry out what it decides."""
        for action in self._machine.handle(event, self._now_ms):
            match action:
                case wm.EmitWatermark(timestamp_ms=timestamp_ms):
                    self._downstream.on_watermark(timestamp_ms)
                case wm.EmitIdle():
                    self._downstream.on_idle()
                case wm.EmitActive():
                    self._downstream.on_active()
                case _:
                    assert_never(action)


class _SplitOutput(SourceOutput):
    """One split's part of a `StreamingOutput`."""

    def __init__(self, output: StreamingOutput, split_id: str) -> None:
        self._output = output
        self._split_id = split_id

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self._output.hand_on(batch, self._split_id)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._output.handle(wm.WatermarkEmitted(self._split_id, timestamp_ms))

    def mark_idle(self) -> None:
        self._output.handle(wm.IdleMarked(self._split_id))


def _event_time_reader(schema: pa.Schema, name: str) -> Callable[[pa.RecordBatch], int | None]:
    """Return what finds the highest event time of a batch, in milliseconds rounded down."""
    matching = [each for each in schema.names if each.lower() == name.lower()]  # Spark has no case in names
    if len(matching) != 1:
        raise OptionError(
            f"The option 'eventTimeColumn' is {name!r}; it must name exactly one of the columns {schema.names}.",
            option="eventTimeColumn",
            value=name,
        )
    column_type = schema.field(matching[0]).type
    if not pa.types.is_timestamp(column_type):
        raise OptionError(
            f"The option 'eventTimeColumn' is {name!r}, a column of type {column_type}; it must be a timestamp.",
            option="eventTimeColumn",
            value=name,
        )
    index = schema.get_field_index(matching[0])
    per_second = _PER_SECOND[column_type.unit]

    def max_event_time_ms(batch: pa.RecordBatch) -> int | None:
        value: int | None = pc.max(batch.column(index)).value
        return None if value is None else value * 1000 // per_second

    return max_event_time_ms
