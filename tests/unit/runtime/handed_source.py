"""A source whose split reader gives what a test hands it, to a fetcher's thread or to the task's, which polls it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import pyarrow as pa

from headgate.readers import MultiplexedReader, ReaderOptions
from headgate.source import FetchedBatch, Signal, SourceReader, SourceReaderContext, SplitReader
from tests.unit.runtime.toy_query import ToySource, ToySplit


class Handed(SplitReader[ToySplit]):
    """Gives what a test hands it."""

    def __init__(self) -> None:
        self.splits: dict[str, ToySplit] = {}
        self.changed = threading.Condition()
        self.handed: list[pa.RecordBatch] = []
        self.signal: Signal | None = None
        self.woken = False

    def hand(self, batch: pa.RecordBatch) -> None:
        with self.changed:
            self.handed.append(batch)
            self.changed.notify_all()
            if self.signal is not None:
                os.write(*self.signal)

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[ToySplit]]:
        with self.changed:
            self.changed.wait_for(lambda: self.handed or self.woken, timeout_ms / 1000)
            self.woken = False
            return self.poll()

    def begin_polling(self, signal: Signal) -> bool:
        self.signal = signal
        return True

    def poll(self) -> Sequence[FetchedBatch[ToySplit]]:
        handed, self.handed = self.handed, []
        if not handed:
            return []
        (split,) = self.splits.values()
        return [FetchedBatch(split=split, batch=each) for each in handed]

    def has_waiting(self) -> bool:
        return bool(self.handed)

    def end_polling(self) -> None:
        self.signal = None

    def handle_splits_changes(self, added: Sequence[ToySplit]) -> None:
        self.splits.update((split.split_id, split) for split in added)

    def wake_up(self) -> None:
        with self.changed:
            self.woken = True
            self.changed.notify_all()

    def close(self) -> None:
        """There is nothing to close."""


class HandedSource(ToySource):
    def __init__(self) -> None:
        super().__init__()
        self.split_reader = Handed()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[ToySplit]:  # type: ignore[override]
        return MultiplexedReader(lambda: self.split_reader, context, ReaderOptions(request_splits=False))
