"""A reader of a simulated cluster with production's fetcher, which lends its split reader to the subtask's thread.

Never: decide who has the split reader: this is `headgate.readers.fetcher.SplitFetcher` without a thread, whose turns
and fetches are taken by the cluster's clock, and a client of brokers, which gives signals.

Follows the source contract (`headgate.source`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa

from headgate.errors import SourceError
from headgate.readers import MultiplexedReader, ReaderOptions, lending
from headgate.readers.element_queue import MOST_BATCHES
from headgate.readers.fetcher import SplitFetcher
from headgate.simulation.durable import Row
from headgate.simulation.scripted_reader import ScriptedReader, Surroundings, rows_of, slowest_ms
from headgate.simulation.scripted_source import ScriptedSource
from headgate.simulation.slot_services import FAULT
from headgate.source import (
    FetchedBatch,
    InputStatus,
    ReaderOutput,
    Signal,
    SourceOutput,
    SourceReaderContext,
    SplitReader,
)

_FETCH_MS = 20
"""What a fetch takes at most that has rows."""
_FETCH_TIMEOUT_MS = 100
_LENT_MS = 1000
"""How long a split reader that is lent may go without a poll."""
_UNUSUAL = 0.03
"""How often a poll finds that there is more to do than to read on."""


class ScriptedSplitReader(SplitReader[Any]):
    """A client that reads a topic, and gives a signal when there is something where there was nothing."""

    def __init__(self, source: ScriptedSource, around: Surroundings) -> None:
        self._source = source
        self._topic = source.topic
        self._around = around
        self._given: dict[str, Any] = {}
        self._rows: dict[str, int] = {}  # by split: its next row
        self._arrives_ms: dict[str, int] = {}  # by split: when what follows is here, if it is there by then
        self._paused: set[str] = set()
        self._signal: Signal | None = None
        self._watches = 0
        self._looked_ms = 0
        self.fails_next = False
        """Whether the next fetch or poll fails."""

    def handle_splits_changes(self, added: Sequence[Any]) -> None:
        """See `SplitReader`."""
        assert self._signal is None, "a split reader that is polled got splits"
        self._given.update((split.split_id, split) for split in added)
        self._rows.update((split.split_id, self._source.row(split)) for split in added)

    def pause_or_resume_splits(self, splits_to_pause: Sequence[Any], splits_to_resume: Sequence[Any]) -> None:
        """See `SplitReader`."""
        assert self._signal is None, "a split reader that is polled is to pause splits"
        self._paused |= {split.split_id for split in splits_to_pause}
        self._paused -= {split.split_id for split in splits_to_resume}

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Any]]:
        """Return some rows of one split."""
        assert self._signal is None, "a split reader that is polled is to fetch"
        self._fail()
        ready = self._ready()
        return [self._next_of(self._around.choose.choice(ready))] if ready else []

    def begin_polling(self, signal: Signal) -> bool:
        """Get ready, mostly."""
        if self._around.choose.random() < _UNUSUAL:
            return False
        self._signal = signal
        self._watch()
        return True

    def poll(self) -> Sequence[FetchedBatch[Any]] | None:
        """Return rows of some splits; those that are left are signalled."""
        assert self._signal is not None, "a split reader is polled that is not lent"
        self._fail()
        if self._around.choose.random() < _UNUSUAL:
            return None
        ready = self._ready()
        fetched = [self._next_of(each) for each in ready if each is ready[0] or self._around.choose.random() < 0.5]
        if self.has_waiting():
            self._signal.give()
        self._watch()
        return fetched

    def has_waiting(self) -> bool:
        """See `SplitReader`."""
        return bool(self._ready())

    def end_polling(self) -> None:
        """See `SplitReader`."""
        self._signal = None

    def wake_up(self) -> None:
        """A fetch under way ends, of which the fetcher takes care."""

    def close(self) -> None:
        """Nothing is open."""

    def next_ms(self) -> int | None:
        """Return when there is something next, as far as is known; None: never."""
        found = []
        for split_id, row in self._rows.items():
            next_ms = None if split_id in self._paused else self._topic.next_row_ms(split_id, row)
            if next_ms is not None:
                found.append(max(next_ms, self._arrives_ms.get(split_id, 0)))
        return min(found, default=None)

    def waits_since(self, now_ms: int) -> bool:
        """Return whether something has come since it was looked at, before a time in milliseconds."""
        next_ms = self.next_ms() if self.has_waiting() else None
        return next_ms is not None and max(next_ms, self._looked_ms) < now_ms

    def _fail(self) -> None:
        if self.fails_next:
            raise SourceError(f"{FAULT}: a client fails")

    def _ready(self) -> list[str]:
        return [
            split_id
            for split_id, row in self._rows.items()
            if self._topic.has_next(split_id, row)
            if split_id not in self._paused and self._arrives_ms.get(split_id, 0) <= self._around.now_ms()
        ]

    def _next_of(self, split_id: str) -> FetchedBatch[Any]:
        begin, given = self._rows[split_id], self._given[split_id]
        most = self._around.choose.randint(1, self._topic.script.batch_rows)
        end = min(self._topic.rows(split_id), begin + most)
        finished = end == self._topic.splits[split_id].stop
        self._rows[split_id] = end
        until_ms = slowest_ms(self._around) * len(self._rows)
        self._arrives_ms[split_id] = self._around.now_ms() + self._around.choose.randrange(until_ms)
        if finished:
            del self._rows[split_id], self._given[split_id], self._arrives_ms[split_id]
        position_at = (lambda rows: self._source.at_row(given, begin + rows)) if self._topic.script.knows_rows else None
        return FetchedBatch(
            split=self._source.at_row(given, end),
            batch=rows_of(self._topic, split_id, range(begin, end)),
            finished=finished,
            position_at=position_at,
        )

    def _watch(self) -> None:
        """Give the signal when rows come where there are none now."""
        self._watches += 1
        self._looked_ms = self._around.now_ms()
        next_ms = None if self.has_waiting() else self.next_ms()
        if next_ms is not None:
            delay_ms = max(1, next_ms - self._around.now_ms())
            self._around.later(delay_ms, partial(self._on_rows, self._watches))

    def _on_rows(self, watch: int) -> None:
        if self._signal is None or watch != self._watches:
            return
        if self.has_waiting():
            self._signal.give()
        else:
            self._watch()


class SteppedFetcher(SplitFetcher[Any]):
    """Takes its turns by the cluster's clock; between them, and while it fetches, mails come."""

    def __init__(self, around: Surroundings, client: ScriptedSplitReader, *arguments: Any, **keywords: Any) -> None:
        self._around = around
        self.client = client
        self._call: lending.Action | None = None  # that is under way
        self._calls = 0
        self._armed = self._has_ended = False
        super().__init__("stepped", client, *arguments, **keywords)

    def join(self, timeout_s: float) -> bool:
        """Nobody waits for it."""
        return True

    @property
    def alive(self) -> bool:
        """See `SplitFetcher`."""
        return not self._has_ended

    def _start(self) -> None:
        self._wake_locked()

    def _wake_locked(self) -> None:
        if not (self._armed or self._call or self._has_ended):
            self._armed = True
            self._around.later(self._around.choose.randrange(3), self._take_turn)

    def _take_turn(self) -> None:
        self._armed = False
        if not self._lending.sleeps:
            self._go_on(self._turn)

    def _go_on(self, what: Callable[[], bool]) -> None:
        try:
            goes_on = what()
        except BaseException as error:
            goes_on = False
            self._fail(error)
        if not goes_on:
            self._has_ended = True
            self.client.close()
        elif not self._lending.sleeps:
            self._wake_locked()

    def _carry_out(self, action: lending.Action) -> bool:
        match action:
            case lending.Fetch():
                self._begin(action, self._fetch_ms())
            case lending.BeginPolling():
                self._begin(action, self._around.choose.randrange(3))
            case lending.WakeFetch():
                self._around.later(0, partial(self._end, self._calls))
            case _:
                return super()._carry_out(action)
        return True

    def _fetch_ms(self) -> int:
        """Return how long a fetch takes that nobody wakes: until there is something, or it gives up."""
        next_ms, at_most_ms = self.client.next_ms(), self._fetch_timeout_ms
        waits_ms = at_most_ms if next_ms is None else max(0, next_ms - self._around.now_ms())
        return min(at_most_ms, waits_ms + self._around.choose.randrange(_FETCH_MS))

    def _begin(self, call: lending.Action, takes_ms: int) -> None:
        self._call = call
        self._calls += 1
        self._around.later(takes_ms, partial(self._end, self._calls))

    def _end(self, number: int) -> None:
        if self._call is None or number != self._calls:
            return
        if isinstance(self._call, lending.Fetch) and self._queue.size[0] >= MOST_BATCHES:
            self._around.later(_FETCH_MS, partial(self._end, number))  # it would wait for room
            return
        call, self._call = self._call, None
        self._go_on(lambda: super(SteppedFetcher, self)._carry_out(call))

    def _sleep(self) -> None:
        if self.is_lent:
            self._around.later(_LENT_MS, partial(self._on_silence, self._calls))

    def _on_silence(self, call: int) -> None:
        if self.is_lent and call == self._calls:
            assert self._signal is not None
            self._signal.give()
            self._sleep()

    def _rest(self) -> None:
        """A turn comes soon enough."""


class _SplitOutput(SourceOutput):
    """A split's output, whose rows are noted."""

    def __init__(self, reader: LentReader, split_id: str, output: SourceOutput) -> None:
        self._reader = reader
        self._split_id = split_id
        self._output = output

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self._reader.emits(self._split_id, batch)
        self._output.emit_batch(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self._output.emit_watermark(timestamp_ms)

    def mark_idle(self) -> None:
        self._output.mark_idle()


class _Output(_SplitOutput, ReaderOutput):
    """A reader's output, of which is noted what it is given."""

    def __init__(self, reader: LentReader, output: ReaderOutput) -> None:
        super().__init__(reader, "", output)
        self._of_reader = output
        self.may_hold_rows = output.may_hold_rows

    def rows_allowed(self, split_id: str, batch: pa.RecordBatch) -> int:
        return self._of_reader.rows_allowed(split_id, batch)

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return _SplitOutput(self._reader, split_id, self._of_reader.create_output_for_split(split_id))

    def release_output_for_split(self, split_id: str) -> None:
        self._reader.forget(split_id)
        self._of_reader.release_output_for_split(split_id)


class LentReader(ScriptedReader, MultiplexedReader[Any]):
    """A ready-made reader of production's, with a stepped fetcher, of which is noted what a scripted one notes."""

    def __init__(self, source: ScriptedSource, context: SourceReaderContext, around: Surroundings) -> None:
        ScriptedReader.__init__(self, source, context, around)
        options = ReaderOptions(fetch_timeout_ms=_FETCH_TIMEOUT_MS, request_splits=False)
        MultiplexedReader.__init__(self, lambda: ScriptedSplitReader(source, around), context, options)
        self._emitted: dict[str, list[Row]] = {}

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit what production's reader does."""
        self._around.rows_wanted(self)
        status = MultiplexedReader.poll_next(self, _Output(self, output))
        emitted, self._emitted = self._emitted, {}
        for rows in emitted.values():
            self._around.rows_read(self, rows)
        self._ask()
        return status

    def emits(self, split_id: str, batch: pa.RecordBatch) -> None:
        """Note what is being emitted."""
        self.note_batch(split_id, batch)
        offsets = batch.column(2).to_pylist()
        self.splits[split_id] = offsets[-1] + 1
        self._emitted.setdefault(split_id, []).extend((self.uid, split_id, offset) for offset in offsets)

    def fail(self) -> bool:
        """Let the client fail; return whether there is one."""
        for fetcher in self._steppers():
            fetcher.client.fails_next = True
        return bool(self._fetchers)

    def _steppers(self) -> Iterator[SteppedFetcher]:
        return (fetcher for fetcher in self._fetchers.values() if isinstance(fetcher, SteppedFetcher))

    def overlooks_rows(self) -> bool:
        """Return whether rows have come to be polled, by the last millisecond."""
        now_ms = self._around.now_ms()
        return any(fetcher.is_lent and fetcher.client.waits_since(now_ms) for fetcher in self._steppers())

    def add_splits(self, splits: Sequence[Any]) -> None:
        """Take splits to read."""
        ScriptedReader.add_splits(self, splits)
        MultiplexedReader.add_splits(self, splits)

    def notify_no_more_splits(self) -> None:
        """Take note that none follows."""
        ScriptedReader.notify_no_more_splits(self)
        MultiplexedReader.notify_no_more_splits(self)

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        """Return the splits at the positions that production's reader knows."""
        if checkpoint_id:
            self._around.snapshot_taken(checkpoint_id)
        return MultiplexedReader.snapshot_state(self, checkpoint_id)

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Read some splits no more, and others again."""
        ScriptedReader.pause_or_resume_splits(self, splits_to_pause, splits_to_resume)
        MultiplexedReader.pause_or_resume_splits(self, splits_to_pause, splits_to_resume)

    def available(self) -> Future[None]:
        """See `MultiplexedReader`."""
        return MultiplexedReader.available(self)

    def close(self) -> None:
        """See `MultiplexedReader`."""
        MultiplexedReader.close(self)

    def _new_fetcher(self, key: Hashable) -> SteppedFetcher:
        client = self.split_reader_factory()
        assert isinstance(client, ScriptedSplitReader)
        return SteppedFetcher(
            self._around, client, self._queue, self.options.fetch_timeout_ms, signal=self.context.signal
        )
