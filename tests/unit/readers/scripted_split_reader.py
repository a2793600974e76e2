"""A split reader whose data a test feeds by hand, and an output that remembers; for the tests of the readers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

import pyarrow as pa

from headgate.readers import (
    MultiplexedReader,
    MultithreadedReader,
    ReaderOptions,
    SequentialReader,
    SourceReaderBase,
)
from headgate.source import (
    FetchedBatch,
    InputStatus,
    ReaderOutput,
    Signal,
    SourceOutput,
    SourceReaderContext,
    Split,
    SplitReader,
)

SCHEMA = pa.schema([("n", pa.int64())])
TIMEOUT_S = 60


class Numbers(Split, frozen=True, kw_only=True):
    """The numbers of one split; the position is the number of those read."""

    position: int = 0


ReaderType = type[SourceReaderBase[Numbers]]
ALL = (SequentialReader, MultiplexedReader, MultithreadedReader)
MULTI_SPLIT = (MultiplexedReader, MultithreadedReader)


class Script:
    """What a test feeds and what the split readers of one source reader did."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.fed: dict[str, list[list[int] | Exception | str]] = {}
        self.fetches = 0
        self.waiting = 0
        self.wake_ups = 0
        self.closed: list[ScriptedSplitReader] = []
        self.made: list[ScriptedSplitReader] = []
        self.ignores_wake_up = False
        self.trouble: str | None = None
        self.has_positions = False
        """Whether batches have the positions of single rows."""
        self.can_be_polled = False
        self.signal: Signal | None = None
        """Of a split reader that is polled."""
        self.released = threading.Event()

    def feed(self, split_id: str, *items: list[int] | Exception | str) -> None:
        """Queue rows, an error or ``"end"`` for a split."""
        with self.changed:
            was_empty = not self.has_waiting()
            self.fed.setdefault(split_id, []).extend(items)
            self.changed.notify_all()
            if self.signal is not None and was_empty:
                os.write(*self.signal)

    def has_waiting(self) -> bool:
        return any(self.fed.values())

    def make(self) -> ScriptedSplitReader:
        reader = ScriptedSplitReader(self)
        self.made.append(reader)
        return reader

    def wait_for(self, what: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(what, TIMEOUT_S), "waited in vain"


class ScriptedSplitReader(SplitReader[Numbers]):
    def __init__(self, script: Script) -> None:
        self.script = script
        self.splits: dict[str, Numbers] = {}
        self.paused: set[str] = set()
        self.woken = False
        self.threads: set[str] = set()
        self.calls: list[tuple[str, object]] = []

    def trouble(self) -> str | None:
        return self.script.trouble

    def _next(self) -> list[FetchedBatch[Numbers]]:
        for split_id in list(self.splits):
            items = self.script.fed.get(split_id)
            while items and items[0] == "odd":
                items.pop(0)
            if items and split_id not in self.paused:
                return self._next_of(split_id)
        return []

    def _next_of(self, split_id: str) -> list[FetchedBatch[Numbers]]:
        item, split = self.script.fed[split_id].pop(0), self.splits[split_id]
        if isinstance(item, Exception):
            raise item
        if item == "end":
            return [FetchedBatch(split=self.splits.pop(split_id), finished=True)]
        assert isinstance(item, list)
        batch = pa.record_batch([pa.array(item, pa.int64())], schema=SCHEMA)
        self.splits[split_id] = Numbers(split_id=split_id, position=split.position + len(item))
        position_at = _positions_from(split) if self.script.has_positions else None
        return [FetchedBatch(split=self.splits[split_id], batch=batch, position_at=position_at)]

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Numbers]]:
        self.threads.add(threading.current_thread().name)
        script = self.script
        if script.ignores_wake_up:
            with script.changed:
                script.waiting += 1
                script.changed.notify_all()
            script.released.wait(TIMEOUT_S)
        with script.changed:
            script.fetches += 1
            fetched = self._next()
            script.waiting += 1
            script.changed.notify_all()
            while not fetched and not self.woken:
                script.changed.wait(TIMEOUT_S)
                fetched = self._next()
            script.waiting -= 1
            self.woken = False
            return fetched

    def begin_polling(self, signal: Signal) -> bool:
        with self.script.changed:
            if self.script.can_be_polled:
                self.script.signal = signal
                self.calls.append(("lend", []))
            return self.script.can_be_polled

    def poll(self) -> Sequence[FetchedBatch[Numbers]] | None:
        """Return what was fed first of each split; ``"odd"`` is for `fetch`."""
        self.threads.add(threading.current_thread().name)
        fetched: list[FetchedBatch[Numbers]] = []
        with self.script.changed:
            self.script.changed.notify_all()
            for split_id in list(self.splits):
                if items := self.script.fed.get(split_id):
                    if items[0] == "odd":
                        if fetched and self.script.signal is not None:
                            os.write(*self.script.signal)  # something is left
                        return fetched or None
                    fetched += self._next_of(split_id)
            if self.has_waiting() and self.script.signal is not None:
                os.write(*self.script.signal)
        return fetched

    def has_waiting(self) -> bool:
        return self.script.has_waiting()

    def end_polling(self) -> None:
        self.threads.add(threading.current_thread().name)
        with self.script.changed:
            self.script.signal = None
            self.calls.append(("take back", []))
            self.script.changed.notify_all()

    def handle_splits_changes(self, added: Sequence[Numbers]) -> None:
        self.threads.add(threading.current_thread().name)
        with self.script.changed:
            self.calls.append(("add", [split.split_id for split in added]))
            self.splits.update((split.split_id, split) for split in added)
            self.script.changed.notify_all()

    def pause_or_resume_splits(self, splits_to_pause: Sequence[Numbers], splits_to_resume: Sequence[Numbers]) -> None:
        self.threads.add(threading.current_thread().name)
        with self.script.changed:
            self.calls.append(("pause", (list(splits_to_pause), list(splits_to_resume))))
            self.paused |= {split.split_id for split in splits_to_pause}
            self.paused -= {split.split_id for split in splits_to_resume}
            self.script.changed.notify_all()

    def wake_up(self) -> None:
        with self.script.changed:
            self.script.wake_ups += 1
            self.woken = True
            self.script.changed.notify_all()

    def close(self) -> None:
        self.threads.add(threading.current_thread().name)
        with self.script.changed:
            self.script.closed.append(self)
            self.script.changed.notify_all()


def _positions_from(split: Numbers) -> Callable[[int], Numbers]:
    return lambda rows: Numbers(split_id=split.split_id, position=split.position + rows)


class CannotPause(ScriptedSplitReader):
    pause_or_resume_splits = SplitReader.pause_or_resume_splits  # type: ignore[assignment]


class _SplitOutput(SourceOutput):
    def __init__(self, log: list[tuple[str, object]], split_id: str) -> None:
        self.log = log
        self.split_id = split_id

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self.log.append((self.split_id, batch.column(0).to_pylist()))

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.log.append((self.split_id, ("watermark", timestamp_ms)))

    def mark_idle(self) -> None:
        self.log.append((self.split_id, "idle"))


class LoggingOutput(_SplitOutput, ReaderOutput):
    """Remembers what was emitted and released, by split, in order. Lets through the numbers below ``bounds``."""

    def __init__(self) -> None:
        super().__init__([], "reader")
        self.bounds: dict[str, int] = {}
        self.asked = 0

    def rows_allowed(self, split_id: str, batch: pa.RecordBatch) -> int:
        self.asked += 1
        numbers = batch.column(0).to_pylist()
        bound = self.bounds.get(split_id)
        return next((n for n, each in enumerate(numbers) if bound is not None and each >= bound), len(numbers))

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        return _SplitOutput(self.log, split_id)

    def release_output_for_split(self, split_id: str) -> None:
        self.log.append((split_id, "released"))

    def rows(self, split_id: str | None = None) -> list[int]:
        return [n for each, rows in self.log if isinstance(rows, list) and split_id in (None, each) for n in rows]


class Driven:
    """A source reader, its script, its output and what it requested."""

    def __init__(
        self,
        reader_type: type[SourceReaderBase[Numbers]],
        options: ReaderOptions | None = None,
        *,
        allow_unaligned_splits: bool = False,
        signal: Signal | None = None,
    ) -> None:
        self.script = Script()
        self.output = LoggingOutput()
        self.requests = 0
        context = SourceReaderContext(
            subtask=0, schema=SCHEMA, host=None, request_split=self._request, send_event=lambda event: None,
            allow_unaligned_splits=allow_unaligned_splits, signal=signal,
        )  # fmt: skip
        self.reader = reader_type(self.script.make, context, options)
        self.reader.start()

    def _request(self) -> None:
        self.requests += 1

    def add(self, *split_ids: str) -> None:
        self.reader.add_splits([Numbers(split_id=split_id) for split_id in split_ids])

    def poll(self) -> InputStatus:
        return self.reader.poll_next(self.output)

    def poll_until(self, what: Callable[[], bool]) -> None:
        """Poll as a task does, waiting on `available`, until ``what`` holds."""
        while not what():
            if self.poll() is InputStatus.NOTHING_AVAILABLE and not what():
                self.reader.available().result(TIMEOUT_S)

    def poll_to_end(self) -> None:
        while (status := self.poll()) is not InputStatus.END_OF_INPUT:
            if status is InputStatus.NOTHING_AVAILABLE:
                self.reader.available().result(TIMEOUT_S)


Drive = Callable[..., Driven]
