"""A model of what connectors write: a reader, and what it and users' functions know of the process that they are in.

Never: emit a row of a split before its position or after its end.

Follows the contract (`headgate.source`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

import msgspec
import pyarrow as pa

from headgate.simulation.durable import Row
from headgate.simulation.scripted_source import Nudge, ScriptedSource
from headgate.simulation.topic import SCHEMA, Topic
from headgate.source import InputStatus, ReaderOutput, SourceEvent, SourceReader, SourceReaderContext

_POLL_MS = 25
_HURRIED_POLL_MS = 10
_HURRIED_BATCHES = 6
"""How many times as much is read at a time in a hurry, except by who is aligned."""
_IN_VAIN = 0.1
"""How often a reader says that it may have rows, and has none."""
_NUDGES = 0.02
"""How often a poll leads to an event for the enumerator."""


class Restored(msgspec.Struct, frozen=True):
    """What a subtask is restored from.

    Parameters
    ----------
    positions
        Where splits were in the checkpoint: rows before are recovered, those that follow are read again.
    relocated
        The exchanges whose recovered rows come through other channels than those that follow.
    copies
        Downstream of a broadcast: which row of each split came next.
    """

    positions: dict[str, int]
    relocated: frozenset[str]
    copies: dict[str, int]


class Surroundings(Protocol):
    """The process that readers and writers are in, and who looks at them."""

    choose: random.Random
    """The cluster's."""

    def now_ms(self) -> int:
        """Read the clock."""

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Do something in so many milliseconds, if the process lives then."""

    def count_quiet(self) -> None:
        """Count how long splits have been silent, before there is room in the sink, or no longer."""

    def room_made(self) -> None:
        """Take note that there is room in the sink again."""

    def declines(self) -> bool:
        """Return whether the snapshot that is being taken fails."""

    def loses_rows(self) -> bool:
        """Return whether the rows that are being sent are lost."""

    def leaves_a_row(self) -> bool:
        """Return whether there is no room for the last of the rows that are being sent."""

    def snapshot_ms(self) -> int:
        """Return how long it takes until the rows of a snapshot are safe."""

    def uid_of(self, split_id: str) -> str:
        """Return the source of a split."""

    def work(self, rows: int, *, at_source: bool) -> None:
        """Take the time that a function takes for so many rows; ``at_source``: one right after a source."""

    def key_group(self, key: int) -> int:
        """Return the key group of a key."""

    def split_group(self, split_id: str) -> int:
        """Return the key group of a split's name."""

    @property
    def is_hurried(self) -> bool:
        """Whether what is left is to be read soon: nothing goes wrong or grows any more, and no function is slow."""

    @property
    def reads_slowly(self) -> bool:
        """Whether a slow function comes right after sources."""

    def rows_of_key(self, split_id: str, key: int, first: int, last: int) -> int:
        """Return how many rows a key has in a split between two offsets, both included."""

    @property
    def excuses_late(self) -> bool:
        """Whether rows may come after the watermark has passed them."""

    @property
    def is_in_time(self) -> bool:
        """Whether none may, in whatever run."""

    @property
    def loses_files(self) -> bool:
        """Whether somebody deletes files of keyed state."""

    def snapshot_taken(self, checkpoint_id: int) -> None:
        """Take note that a snapshot is being taken."""

    def restored(self) -> Restored:
        """Return what the subtask is restored from."""

    def copies_stored(self, checkpoint_id: int, copies: dict[str, int]) -> None:
        """Take note of which row of each split that is broadcast comes next in a snapshot."""

    def copies_ended(self, copies: dict[str, int]) -> None:
        """Check that the same rows have come to all subtasks downstream of a broadcast, which has ended."""

    def begins_anywhere(self, split_id: str) -> bool:
        """Return whether a split need not be read from its first row on."""

    def splits_added(self, reader: ScriptedReader, split_ids: set[str]) -> None:
        """Take note that a reader got splits."""

    def rows_wanted(self, reader: ScriptedReader) -> None:
        """Take note that a reader is about to read."""

    def rows_read(self, reader: ScriptedReader, rows: list[Row]) -> None:
        """Take note of what a reader read."""


class ScriptedReader(SourceReader[Any]):
    """Reads a few rows of a split at a time, and takes its time.

    Parameters
    ----------
    source
        What it reads.
    context
        The task's.
    around
        The process.
    """

    def __init__(self, source: ScriptedSource, context: SourceReaderContext, around: Surroundings) -> None:
        self.uid = source.topic.script.uid
        self.splits: dict[str, int] = {}
        """By split: its next row."""
        self.no_more = False
        self.highest_ms: dict[str, int] = {}
        """By split: the highest event time emitted by this reader, less the disorder."""
        self.quiet_ms: dict[str, int] = {}
        """By split: how long it could have been read, and had no rows."""
        self.paused: set[str] = set()
        """Splits that it was called to pause."""
        self.held: set[str] = set()
        """Splits that are paused, be it with the whole source."""
        self.watermarks: list[int] = []
        """What was emitted, without the final one."""
        self.is_final = False
        """Whether the final watermark was emitted."""
        self.unassigned_ms: int | None = None
        """Where what is not assigned begins, as far as the subtask was notified."""
        self.idle: set[str] = set()
        """Splits that were idle when it was looked last."""
        self.votes_since_ms: dict[str, int] = {}
        """By split: since when it is read and not idle."""
        self._source = source
        self._topic = source.topic
        self._given: dict[str, Any] = {}  # the splits as they were assigned
        self._context = context
        self._around = around
        self._choose = around.choose
        self._asking = False
        self._available: Future[None] = Future()
        self._counted_ms = around.now_ms()

    def note_times(self, split_id: str, times_ms: Sequence[int]) -> None:
        """Note how far a split is with rows that are emitted of it, by this reader or by one before it."""
        strategy = self._topic.script.strategy
        if strategy is not None:
            highest_ms = max(times_ms) - strategy.max_out_of_orderness_ms
            self.highest_ms[split_id] = max(highest_ms, self.highest_ms.get(split_id, highest_ms))

    def note_batch(self, split_id: str, batch: pa.RecordBatch) -> None:
        """Note that rows of a split are emitted."""
        if self._topic.script.strategy is not None:
            self.note_times(split_id, batch.column(0).cast(pa.int64()).to_pylist())
        self.quiet_ms[split_id] = 0

    def start(self) -> None:
        """Ask for a split, and greet the enumerator, at times."""
        if self._choose.random() < 0.3:
            self._ask()
        if self._choose.random() < 0.1:
            self._context.send_event(Nudge())

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit some rows of one split."""
        self._around.rows_wanted(self)
        rows = self._read(output)
        self._around.rows_read(self, rows)
        self._ask()
        if self._choose.random() < _NUDGES:
            self._context.send_event(Nudge())
        if self.no_more and not self.splits:
            return InputStatus.END_OF_INPUT
        if self._around.reads_slowly and self._ready():
            return InputStatus.MORE_AVAILABLE  # else its other splits would seem to be silent while functions work
        self._available = Future()
        self._wake_later(self._available)
        return InputStatus.NOTHING_AVAILABLE

    def _wake_later(self, available: Future[None]) -> None:
        """Say that there may be rows when there are, and at times too soon; new splits and resumed ones say so."""
        now_ms = self._around.now_ms()
        delay_ms = 1 + self._choose.randrange(slowest_ms(self._around))
        if self._choose.random() >= _IN_VAIN:
            readable = (each for each in self.splits.items() if each[0] not in self.paused)
            times = (self._topic.next_row_ms(split_id, position) for split_id, position in readable)
            next_ms = min((each for each in times if each is not None), default=None)
            if next_ms is None:
                return
            delay_ms = max(delay_ms, next_ms - now_ms)
        self._around.later(delay_ms, lambda: _wake(available))

    def available(self) -> Future[None]:
        """Done when it is time to read again."""
        return self._available

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Take splits to read."""
        self._asking = False
        for split in splits:
            assert split.split_id not in self.splits, f"a reader was given {split.split_id} twice"
            self._given[split.split_id] = split
            self.splits[split.split_id] = self._source.row(split)
            self.quiet_ms[split.split_id] = 0
        self._around.splits_added(self, {split.split_id for split in splits})

    def notify_no_more_splits(self) -> None:
        """Take note that none follows."""
        self.no_more = True
        _wake(self._available)

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        """Return the splits at their positions."""
        if checkpoint_id:  # else somebody looks where they are
            self._around.snapshot_taken(checkpoint_id)
        return [self._source.at_row(self._given[split_id], row) for split_id, row in self.splits.items()]

    def forget(self, split_id: str) -> None:
        """Note that a split was read to its end."""
        del self.splits[split_id], self._given[split_id]
        self.paused.discard(split_id)
        self.votes_since_ms.pop(split_id, None)

    def handle_source_event(self, event: SourceEvent) -> None:
        """Do something about it, at times."""
        assert isinstance(event, Nudge)
        if self._choose.random() < 0.3:
            self._context.send_event(Nudge())
        else:
            self._ask()

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Read some splits no more, and others again."""
        if not self._topic.script.pauses_splits:
            super().pause_or_resume_splits(splits_to_pause, splits_to_resume)
        self._around.count_quiet()
        self.paused = (self.paused | set(splits_to_pause)) - set(splits_to_resume)

    def close(self) -> None:
        """Nothing is open."""

    def count_quiet(self, reading: bool) -> None:
        """Count the time since the last call: ``reading`` says whether rows were wanted in it."""
        now_ms = self._around.now_ms()
        passed_ms, self._counted_ms = now_ms - self._counted_ms, now_ms
        for split_id in self.splits.keys() - self.paused - self.held if reading else ():
            self.quiet_ms[split_id] += passed_ms

    def _ask(self) -> None:
        if self._topic.script.pulled and not (self.splits or self.no_more or self._asking):
            self._asking = True
            self._context.request_split()

    def _read(self, output: ReaderOutput) -> list[Row]:
        """Emit rows of one split, and its end; return the rows."""
        ready = self._ready()
        if not ready:
            return []
        split_id = ready[0] if self._topic.script.in_turn else self._choose.choice(ready)
        begin = self.splits[split_id]
        end = min(self._topic.rows(split_id), begin + self._choose.randint(1, self._most_rows()))
        end = self._emit_rows(output, split_id, begin, end)
        rows = [(self.uid, split_id, offset) for offset in range(begin, end)]
        if end == self._topic.splits[split_id].stop:
            self.forget(split_id)
            output.release_output_for_split(split_id)
        else:
            if self._topic.script.in_turn:
                del self.splits[split_id]
            self.splits[split_id] = end
        return rows

    def _ready(self) -> list[str]:
        """Return the splits that have rows, or end, and are not paused."""
        return [
            split_id
            for split_id, position in self.splits.items()
            if self._topic.has_next(split_id, position)
            if split_id not in self.paused
        ]

    def _most_rows(self) -> int:
        script = self._topic.script
        is_aligned = script.strategy is not None and script.strategy.alignment is not None
        return script.batch_rows * (_HURRIED_BATCHES if self._around.is_hurried and not is_aligned else 1)

    def _emit_rows(self, output: ReaderOutput, split_id: str, begin: int, end: int) -> int:
        """Emit rows up to ``end``, or as many as alignment allows; return after which one."""
        batch = rows_of(self._topic, split_id, range(begin, end))
        of_split = output.create_output_for_split(split_id)
        if self._topic.script.strategy is not None and self._topic.script.knows_rows:
            batch = batch.slice(0, output.rows_allowed(split_id, batch))
        if batch.num_rows:
            self.note_batch(split_id, batch)
            of_split.emit_batch(batch)
        rows: int = batch.num_rows
        return begin + rows


def slowest_ms(around: Surroundings) -> int:
    """Return how long it takes at most until rows that are there are noticed."""
    return _HURRIED_POLL_MS if around.is_hurried else 2 * _POLL_MS


def rows_of(topic: Topic, split_id: str, offsets: range) -> pa.RecordBatch:
    """Return rows of a split."""
    has_times = topic.script.strategy is not None
    times = [topic.event_time_ms(split_id, offset) if has_times else 0 for offset in offsets]
    columns = [
        pa.array(times, SCHEMA.field(0).type), pa.array([split_id] * len(offsets)), pa.array(offsets, pa.int64()),
        pa.array([topic.key(offset) for offset in offsets], pa.int64()),
    ]  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _wake(available: Future[None]) -> None:
    if not available.done():
        available.set_result(None)
