"""The split reader of a `SimpleSource`: one iterator of the author's for each split, one batch of each in turn.

Never: go on with an iterator after it raised, or read a range beyond its stop.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa

from headgate.connectors.simple.split import SimpleSplit
from headgate.connectors.simple.user_code import UserSource
from headgate.errors import DataLossError
from headgate.source.split_reader import FetchedBatch, SplitReader


def monotonic_ms() -> int:
    """Return a time that never goes back, in milliseconds since nothing in particular."""
    return time.monotonic_ns() // 1_000_000


@dataclass
class _Reading:
    split: SimpleSplit
    batches: Iterator[tuple[pa.RecordBatch, Any]] | None = None
    due_ms: int = 0


class SimpleSplitReader(SplitReader[SimpleSplit]):
    """Reads splits by the author's ``read``.

    A ``read`` that blocks is not interrupted: `fetch` takes as long as it does, whatever the time-out.

    Parameters
    ----------
    source_name
        For errors.
    make_user_source
        Makes the instance that is read from; called by the first `fetch`, because it may block.
    poll_interval_ms
        Time until an exhausted split is read again, in milliseconds.
    clock_ms
        A monotonic time in milliseconds.
    """

    def __init__(
        self,
        source_name: str,
        make_user_source: Callable[[], UserSource],
        poll_interval_ms: int,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._source_name = source_name
        self._make_user_source = make_user_source
        self._user_source: UserSource | None = None
        self._poll_interval_ms = poll_interval_ms
        self._clock_ms = clock_ms
        self._turns: deque[_Reading] = deque()
        self._paused: set[str] = set()
        self._woken = threading.Event()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[SimpleSplit]]:
        """Read a batch of the next split in turn; wait until one is to be polled again if there is nothing."""
        fetched = self._next()
        if fetched is None:
            now_ms = self._clock_ms()
            due_ms = [each.due_ms for each in self._turns if each.split.split_id not in self._paused]
            self._woken.wait(max(0, min([timeout_ms, *(due - now_ms for due in due_ms)])) / 1000)
            fetched = self._next()
        self._woken.clear()
        return [] if fetched is None else [fetched]

    def handle_splits_changes(self, added: Sequence[SimpleSplit]) -> None:
        """Take splits; each is read from its position on."""
        self._turns.extend(_Reading(split) for split in added)

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[SimpleSplit], splits_to_resume: Sequence[SimpleSplit]
    ) -> None:
        """Pass over paused splits; their iterators stay where they are."""
        known = {each.split.split_id for each in self._turns}
        self._paused.update(split.split_id for split in splits_to_pause if split.split_id in known)
        self._paused.difference_update(split.split_id for split in splits_to_resume)

    def wake_up(self) -> None:
        """End the wait of `fetch`; the author's code is not interrupted."""
        self._woken.set()

    def close(self) -> None:
        """End the author's iterators, so that their ``finally`` blocks run."""
        for reading in self._turns:
            _end(reading)
        self._turns.clear()

    def _next(self) -> FetchedBatch[SimpleSplit] | None:
        """Return what the first split in turn gives, and let it be the last in turn."""
        for _ in range(len(self._turns)):
            reading = self._turns.popleft()
            fetched = None
            if reading.split.split_id not in self._paused and reading.due_ms <= self._clock_ms():
                fetched = self._read(reading)
            if fetched is not None and fetched.finished:
                _end(reading)
                self._paused.discard(reading.split.split_id)
                return fetched
            self._turns.append(reading)
            if fetched is not None:
                return fetched
        return None

    def _read(self, reading: _Reading) -> FetchedBatch[SimpleSplit] | None:
        """Return the split's next batch or its end; None when it is exhausted for now."""
        split = reading.split
        if split.has_stop and split.position == split.stop:
            return FetchedBatch(split=split, finished=True)
        if self._user_source is None:
            self._user_source = self._make_user_source()
        if reading.batches is None:
            reading.batches = self._user_source.read(split.split_id, split.position)
        pair = next(reading.batches, None)
        if pair is None:
            reading.batches = None
            return self._on_exhausted(reading)
        batch, position = pair
        reading.split = msgspec.structs.replace(split, position=position)
        return FetchedBatch(
            split=reading.split,
            batch=batch if batch.num_rows else None,
            finished=split.has_stop and position == split.stop,
        )

    def _on_exhausted(self, reading: _Reading) -> FetchedBatch[SimpleSplit] | None:
        split = reading.split
        if split.has_stop:
            raise DataLossError(
                f"{self._source_name}: split {split.split_id!r} ended at position {split.position!r:.200}, before the "
                f"position {split.stop!r:.200} that was there when the read was planned. The data in between is gone, "
                "or 'read' and 'latest' do not give the same positions every time.",
                source=self._source_name,
                split=split.split_id,
                position=split.position,
                stop=split.stop,
            )
        if split.finite:
            return FetchedBatch(split=split, finished=True)
        reading.due_ms = self._clock_ms() + self._poll_interval_ms
        return None


def _end(reading: _Reading) -> None:
    if reading.batches is not None:
        reading.batches.close()  # type: ignore[attr-defined]
        reading.batches = None
