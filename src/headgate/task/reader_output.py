"""The outputs that a task gives to its reader: one that only collects, for batch, and one that keeps watermarks.

Never: read a clock; the task says what time it is. Used on the task's thread only.

A `StreamingOutput` composes two machines: `SplitWatermarks` finds the watermark of each split and of the reader, and
with an alignment group `SplitAlignment` decides from these who is ahead. What it decides is carried out by the task
(`ReaderControl`).

Follows FLIP-27, "SourceOutput and Watermarking"; FLIP-217.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, assert_never

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.errors import OptionError
from headgate.protocol.messages import SplitEventTime
from headgate.source.event_time import UNITS_PER_SECOND
from headgate.source.reader import ReaderOutput, SourceOutput
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkStrategy, saturated_ms
from headgate.task import split_alignment as al
from headgate.task import watermarks as wm

_READER_ITSELF = ""
"""The id of the output of readers that emit without an output per split."""
_MOST, _LEAST = 2**63 - 1, -(2**63)
_FIRST_ROWS = 1024
"""A search for the first row beyond the bound looks at so many, then at four times as many: it is mostly near."""


class TaskOutput(ReaderOutput):
    """A reader's output, and what its task passes to it."""

    timer_period_ms: int | None = None
    """How often `advance_time` is to be called though nothing happens, in milliseconds; None: never."""

    def add_split(self, split_id: str) -> None:
        """Say that the reader is given a split: it is waited for before it has rows."""

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

    may_hold_rows = False

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


class ReaderControl(Protocol):
    """Who carries out what alignment decides, in order, and not while it is called by the reader: in the task.

    The output's own part, that a split that is paused does not become idle, is done.
    """

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Call `SourceReader.pause_or_resume_splits`."""

    def on_source_paused(self, paused: bool) -> None:
        """Poll the reader no more, or again."""

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        """Report to the alignment group how far the reader is: `headgate.protocol.messages.WatermarkReported`."""


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
    control
        Who carries out what alignment decides; None: the strategy's alignment is left aside.
    held
        Whether there is no watermark until the first `set_unassigned`. Nor does the alignment group learn that there is
        no vote before that, or a split.
    after_rows
        Runs something when all rows that were handed on have passed the operator that finds their event times and
        reports them (`rows_passed`). Then whole batches are aligned, because nobody knows before what is in them. None:
        the event-time column is one of ``schema``.
    asked_ms
        Returns until when splits were asked for rows in vain, by their ids, in milliseconds; None: all until now.
    asked_by_others
        Whether other threads ask (`headgate.readers.SourceReaderBase.asked_until_ms`). Else nobody was asked in a long
        time in which the task did not say what time it is.

    Raises
    ------
    OptionError
        The strategy's event-time column is missing or no timestamp.
    """

    def __init__(
        self,
        schema: pa.Schema,
        strategy: WatermarkStrategy | None,
        downstream: Downstream,
        now_ms: int,
        *,
        control: ReaderControl | None = None,
        held: bool = False,
        bounded: bool = False,
        after_rows: Callable[[Callable[[], None]], None] | None = None,
        asked_ms: Callable[[int], Mapping[str, int]] | None = None,
        asked_by_others: bool = False,
    ) -> None:
        self._strategy = strategy
        self._downstream = downstream
        self._control = control
        self._after_rows = after_rows
        self._passing: Counter[str] = Counter()  # batches of a split whose event times are not known yet
        self._asked_ms = asked_ms
        self._asked_by_others = asked_by_others
        self._now_ms = self._looked_ms = now_ms
        self._blocked = False
        self._outputs: dict[str, _SplitOutput] = {}
        self._given: set[str] = set()  # splits that the task added and that have not finished
        self._event_times: _EventTimes | None = None
        if strategy is not None and after_rows is None:
            self._event_times = _EventTimes(schema, strategy.event_time_column)
        self._alignment: al.SplitAlignment | None = None
        if strategy is not None and strategy.alignment is not None and control is not None:
            self._alignment = al.SplitAlignment(strategy.alignment)
        self.is_aligned = self._alignment is not None
        """Whether there is an alignment group."""
        self.may_hold_rows = self._alignment is not None and self._event_times is not None
        self._has_votes = strategy is not None or after_rows is not None  # else rows say nothing of watermarks
        self._cannot_pause: Callable[[str], bool] | None = None  # None: all splits can be paused
        self._source_paused = False
        self._expects_splits = held  # nobody knows yet whether there are any for this reader
        self._owes_report = False  # that it has no vote, if so it is when that is known
        self._machine = wm.SplitWatermarks(
            strategy, held=held, bounded=bounded, reports_votes=self._alignment is not None
        )
        if strategy is not None and strategy.idle_timeout_ms is not None:
            self.timer_period_ms = max(1, strategy.idle_timeout_ms // 4)

    # For the reader.

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
            self._vote_from_now_on(split_id)
            if split_id == _READER_ITSELF:  # which has the rows of all splits that have no output
                for each in self._given - self._outputs.keys():
                    self._vote_no_more(each)
        return output

    def release_output_for_split(self, split_id: str) -> None:
        """Forget a finished split."""
        self._outputs.pop(split_id, None)
        self._given.discard(split_id)
        self._run_after_rows(lambda: self._finish(split_id))

    def rows_allowed(self, split_id: str, batch: pa.RecordBatch) -> int:
        """Return how many rows come before the first one whose watermark would be beyond the bound."""
        rows: int = batch.num_rows
        if self._alignment is None or self._event_times is None or not self._can_pause(split_id):
            return rows
        self.create_output_for_split(split_id)
        if self._outputs[split_id].says_itself:
            return rows
        assert self._strategy is not None
        disorder_ms = self._strategy.max_out_of_orderness_ms
        allowed, bound_ms = 0, self._alignment.bound_ms
        while True:
            limit_ms = None if bound_ms is None else bound_ms + disorder_ms
            beyond = self._event_times.first_beyond(batch, allowed, limit_ms)
            if beyond is None:
                return rows
            allowed, event_time_ms = beyond
            self._align(al.SplitHeld(split_id, saturated_ms(event_time_ms - disorder_ms)))
            before_ms, bound_ms = bound_ms, self._alignment.bound_ms
            if bound_ms == before_ms or split_id in self._alignment.paused:
                return allowed

    # For the task.

    def add_split(self, split_id: str) -> None:
        """Let a split have a vote, though the reader emitted nothing of it."""
        self._given.add(split_id)
        if _READER_ITSELF not in self._outputs:
            self._vote_from_now_on(split_id)

    def advance_time(self, now_ms: int) -> None:
        """Find splits that fell silent, and report what is due."""
        self._now_ms, stood_still_ms = now_ms, now_ms - self._now_ms
        if self.timer_period_ms is not None:
            stood_still = stood_still_ms > 2 * self.timer_period_ms
            if stood_still and not (self._asked_by_others or self._blocked):
                self.block(now_ms - stood_still_ms)
                self.unblock(now_ms)
            if now_ms - self._looked_ms >= self.timer_period_ms:
                self._looked_ms = now_ms
                self._find_silent_splits()
        if self._alignment is None:
            return
        due_ms = self.due_ms
        if due_ms is not None and now_ms >= due_ms:
            self._align(al.TimePassed())

    @property
    def due_ms(self) -> int | None:
        """When `advance_time` must be called for alignment, in milliseconds; None: not before something happens."""
        return None if self._alignment is None else self._alignment.next_time_ms()

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Stop and start the idleness clocks of splits."""
        for split_id in splits_to_pause:
            self.handle(wm.SplitPaused(split_id))
        for split_id in splits_to_resume:
            self.handle(wm.SplitResumed(split_id))

    def block(self, now_ms: int) -> None:
        """Stop all idleness clocks: rows cannot be emitted, because of back pressure."""
        self._now_ms, self._blocked = now_ms, True
        self.handle(wm.Blocked())

    def unblock(self, now_ms: int) -> None:
        """Let them run again."""
        self._now_ms, self._blocked = now_ms, False
        self.handle(wm.Unblocked())

    def end_input(self) -> None:
        """Emit the final watermark."""
        self._run_after_rows(self._end)

    def set_unassigned(self, event_time_ms: int | None) -> None:
        """Take note of what is not assigned: `headgate.protocol.messages.UnassignedWork`."""
        if self._after_rows is not None and event_time_ms is not None:
            # The enumerator knows another column's times: of this one anything may be in what is not assigned.
            event_time_ms = None if event_time_ms == MAX_WATERMARK_MS else MIN_WATERMARK_MS
        disorder_ms = 0 if self._strategy is None else self._strategy.max_out_of_orderness_ms
        held_ms = event_time_ms
        if event_time_ms is not None and MIN_WATERMARK_MS < event_time_ms < MAX_WATERMARK_MS:
            # A row of this very time may be unassigned, and is late at a watermark that has reached it.
            held_ms = saturated_ms(event_time_ms - disorder_ms - 1)
        self.handle(wm.UnassignedChanged(held_ms))
        if self._strategy is not None:
            watermark_ms = None if event_time_ms is None else saturated_ms(event_time_ms - disorder_ms)
            self._align(al.UnassignedChanged(watermark_ms))
        self._expect_no_splits()

    def announce(self, max_watermark_ms: int, others_ms: int) -> None:
        """Take note of where the group is: `headgate.protocol.messages.AlignmentAnnounced`."""
        self._align(al.AllowedAnnounced(max_watermark_ms, others_ms))

    @property
    def aligns_splits(self) -> bool:
        """Whether splits may have to be paused: there is an alignment group, and more than one split."""
        return self._alignment is not None and len(self._given | self._outputs.keys()) > 1

    def read_splits_unaligned(self, cannot_pause: Callable[[str], bool] = lambda split_id: True) -> None:
        """Never pause single splits from now on that the reader cannot pause; all of them together, with the source."""
        self._cannot_pause = cannot_pause
        if self._alignment is not None and not self._source_paused:
            self.pause_or_resume_splits((), [each for each in self._alignment.paused if cannot_pause(each)])
            self._set_source_paused(self._all_are_ahead())

    def split_ids(self) -> Collection[str]:
        """Return the splits that have a vote, or had one before they fell silent."""
        return self._machine.split_ids()

    def event_times(self) -> dict[str, SplitEventTime]:
        """Return how far each split is; empty where nothing is known of event time."""
        splits = self._machine.splits()
        known = self._strategy is not None or any(split.watermark_ms is not None for split in splits.values())
        return splits if known else {}

    def rows_passed(self, split_id: str, max_event_time_ms: int | None) -> None:
        """Take note of rows that the operator of ``after_rows`` saw: their highest event time, in milliseconds."""
        self.handle(wm.RowsEmitted(split_id, max_event_time_ms))

    # From the outputs of the splits.

    def hand_on(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Pass rows on, before the watermark that follows from them."""
        self._downstream.on_batch(batch, split_id)
        if not self._has_votes:
            return
        if self._after_rows is None:
            max_event_time_ms = None if self._event_times is None else self._event_times.highest(batch)
            self.handle(wm.RowsEmitted(split_id, max_event_time_ms))
        elif self.timer_period_ms is not None:
            self._passing[split_id] += 1
            self._after_rows(lambda: self._passed(split_id))

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
                case wm.SplitVoteChanged(split_id=split_id, watermark_ms=watermark_ms, idle=idle):
                    self._align(al.SplitMoved(split_id, watermark_ms, idle))
                case _:
                    assert_never(action)

    def _align(self, event: al.Event) -> None:
        """Give an event to the alignment machine, if there is one, and have carried out what it decides."""
        if self._alignment is None or self._control is None:
            return
        for action in self._alignment.handle(event, self._now_ms):
            match action:
                case al.PauseOrResumeSplits(pause=pause, resume=resume):
                    pause = tuple(each for each in pause if self._can_pause(each))
                    resume = tuple(each for each in resume if self._can_pause(each))
                    if pause or resume:
                        self.pause_or_resume_splits(pause, resume)
                        self._control.on_pause_or_resume_splits(pause, resume)
                case al.PauseSource():
                    self._set_source_paused(True)
                case al.ResumeSource():
                    self._set_source_paused(False)
                case al.ReportWatermark(watermark_ms=watermark_ms, slowest=slowest):
                    # Without a split there is no vote. But before the enumerator has seen this reader, the group would
                    # take that for an answer, and others would run ahead of the splits that are on their way.
                    self._owes_report = watermark_ms is None and self._expects_splits
                    if not self._owes_report:
                        self._control.on_report(watermark_ms, slowest)
                case _:
                    assert_never(action)
        if self._cannot_pause is not None:  # looked at each time: a split that comes has nobody paused or resumed
            self._set_source_paused(self._all_are_ahead())

    def _find_silent_splits(self) -> None:
        now_ms = self._now_ms
        asked_ms = dict.fromkeys(self.split_ids(), now_ms) if self._asked_ms is None else self._asked_ms(now_ms)
        self.handle(wm.TimePassed({each: at_ms for each, at_ms in asked_ms.items() if each not in self._passing}))

    def _passed(self, split_id: str) -> None:
        self._passing[split_id] -= 1
        if not self._passing[split_id]:
            del self._passing[split_id]

    def _expect_no_splits(self) -> None:
        self._expects_splits = False
        if self._owes_report and self._control is not None:
            self._owes_report = False
            self._control.on_report(None, "")

    def _set_source_paused(self, paused: bool) -> None:
        if self._control is None or paused == self._source_paused:
            return
        self._source_paused = paused
        splits = set(self.split_ids())
        if not paused and self._cannot_pause is not None and self._alignment is not None:
            splits -= {each for each in self._alignment.paused if self._can_pause(each)}  # they wait by themselves
        self.pause_or_resume_splits(splits if paused else (), () if paused else splits)
        self._control.on_source_paused(paused)

    def _can_pause(self, split_id: str) -> bool:
        return self._cannot_pause is None or not self._cannot_pause(split_id)

    def _all_are_ahead(self) -> bool:
        """Return whether the source waits as a whole, because of splits that cannot be paused by themselves.

        Idle ones do not count: nobody waits for them, and they are read as soon as anybody else may.
        """
        assert self._alignment is not None
        splits = self._alignment.voting or self.split_ids()
        if len(self.split_ids()) > 1 and all(map(self._can_pause, splits)):
            return False
        return bool(self._alignment.paused) and self._alignment.paused.issuperset(splits)

    def _vote_from_now_on(self, split_id: str) -> None:
        self._expects_splits = False
        self.handle(wm.SplitAdded(split_id))
        self._align(al.SplitAdded(split_id))

    def _vote_no_more(self, split_id: str) -> None:
        self.handle(wm.SplitFinished(split_id))
        self._align(al.SplitFinished(split_id))

    def _finish(self, split_id: str) -> None:
        if split_id not in self._outputs and split_id not in self._given:  # else it has come again meanwhile
            self._vote_no_more(split_id)

    def _end(self) -> None:
        self._expect_no_splits()
        self.handle(wm.InputEnded())
        self._align(al.InputEnded())

    def _run_after_rows(self, run: Callable[[], None]) -> None:
        """Run something after the rows whose event times are not known yet."""
        if self._after_rows is None:
            run()
        else:
            self._after_rows(run)


class _SplitOutput(SourceOutput):
    """One split's part of a `StreamingOutput`."""

    def __init__(self, output: StreamingOutput, split_id: str) -> None:
        self._output = output
        self._split_id = split_id
        self.says_itself = False
        """Whether the source says what its watermark is."""

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self._output.hand_on(batch, self._split_id)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.says_itself = True
        self._output.handle(wm.WatermarkEmitted(self._split_id, timestamp_ms))

    def mark_idle(self) -> None:
        self.says_itself = True
        self._output.handle(wm.IdleMarked(self._split_id))


class _EventTimes:
    """Finds event times in batches; in milliseconds, rounded down. Rows without one are passed over."""

    def __init__(self, schema: pa.Schema, name: str) -> None:
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
        self._index = schema.get_field_index(matching[0])
        self._per_second = UNITS_PER_SECOND[column_type.unit]

    def highest(self, batch: pa.RecordBatch) -> int | None:
        """Return the highest event time; None: there is none."""
        column = batch.column(self._index)
        values = _values_of(column) if not column.null_count else _values_of(column.drop_null())
        return int(values.max()) * 1000 // self._per_second if len(values) else None

    def first_beyond(self, batch: pa.RecordBatch, begin: int, limit_ms: int | None) -> tuple[int, int] | None:
        """Return the first row from ``begin`` on with a later event time, and that; None: there is none.

        Without a limit any event time is later.
        """
        column = batch.column(self._index)
        least = _LEAST if limit_ms is None else -(-(limit_ms + 1) * self._per_second // 1000)
        if least > _MOST:
            return None
        values, rows = _values_of(column), _FIRST_ROWS
        while begin < len(values):
            beyond = values[begin : begin + rows] >= max(least, _LEAST)
            if column.null_count:
                beyond &= column.slice(begin, rows).is_valid().to_numpy(zero_copy_only=False)
            first = int(beyond.argmax())
            if beyond[first]:
                return begin + first, int(values[begin + first]) * 1000 // self._per_second
            begin, rows = begin + rows, rows * 4
        return None


def _values_of(column: pa.Array) -> npt.NDArray[np.int64]:
    """Return the numbers of a column of timestamps, without copying them; those of nulls mean nothing."""
    data = column.buffers()[1]
    if data is None or not len(column):
        return np.empty(0, np.int64)
    return np.frombuffer(data, np.int64, count=len(column), offset=8 * column.offset)
