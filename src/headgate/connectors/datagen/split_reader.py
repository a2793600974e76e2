"""The split reader of `headgate.datagen`: rows as fast as possible, or when they are due.

Never: wait longer than asked, or generate a row before it is due.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from headgate.connectors.datagen.columns import RowGenerator
from headgate.connectors.datagen.partitions import Pace, Partitions
from headgate.connectors.datagen.split import DatagenSplit
from headgate.source.split_reader import FetchedBatch, SplitReader

_BATCH_BYTES = 2 << 20
"""A batch costs the same on its way, between threads above all, however many rows it has."""
_BATCH_ROWS = 65_536
_LEAST_WAIT_MS = 5
"""Rows that are due within this time come as one batch; without it a fast source would be all tiny batches."""


def wall_clock_ms() -> int:
    """Return the time in milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000


class DatagenSplitReader(SplitReader[DatagenSplit]):
    """Generates the rows of several splits, one batch of each in turn.

    Parameters
    ----------
    generator_for
        Makes the rows for a given event time of row 0, in microseconds.
    partitions, pace
        Which rows there are, and when they are due.
    batch_rows
        Most rows in a batch; None: by the width of a row.
    clock_ms
        The time, in milliseconds since 1970-01-01 UTC.
    """

    def __init__(
        self,
        generator_for: Callable[[int], RowGenerator],
        partitions: Partitions,
        pace: Pace,
        *,
        batch_rows: int | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._generator_for = generator_for
        self._generators: dict[int, RowGenerator] = {}
        self._partitions = partitions
        self._pace = pace
        self._batch_rows = batch_rows
        self._clock_ms = clock_ms
        self._turns: deque[DatagenSplit] = deque()
        self._paused: set[str] = set()
        self._woken = threading.Event()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[DatagenSplit]]:
        """Generate a batch of the next split in turn that has rows due; wait for one otherwise."""
        fetched = self._next_due()
        if fetched is None:
            self._woken.wait(min(timeout_ms, self._wait_ms()) / 1000)
            fetched = self._next_due()
        self._woken.clear()
        return [] if fetched is None else [fetched]

    def handle_splits_changes(self, added: Sequence[DatagenSplit]) -> None:
        """Take splits; each is read from its position on."""
        self._turns.extend(added)

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[DatagenSplit], splits_to_resume: Sequence[DatagenSplit]
    ) -> None:
        """Pass over paused splits; rows that become due meanwhile are generated once it resumes."""
        known = {split.split_id for split in self._turns}
        self._paused.update(split.split_id for split in splits_to_pause if split.split_id in known)
        self._paused.difference_update(split.split_id for split in splits_to_resume)

    def wake_up(self) -> None:
        """End the wait of `fetch`."""
        self._woken.set()

    def close(self) -> None:
        """Nothing to release."""

    def _next_due(self) -> FetchedBatch[DatagenSplit] | None:
        """Return a batch of the first split in turn that has rows due, and let it be the last in turn."""
        now_ms = self._clock_ms()
        for _ in range(len(self._turns)):
            split = self._turns.popleft()
            fetched = None if split.split_id in self._paused else self._generate(split, now_ms)
            if fetched is None:
                self._turns.append(split)
                continue
            if not fetched.finished:
                self._turns.append(fetched.split)
            return fetched
        return None

    def _generate(self, split: DatagenSplit, now_ms: int) -> FetchedBatch[DatagenSplit] | None:
        """Return the split's next batch; None when no row is due."""
        if split.position == split.stop:
            return FetchedBatch(split=split, finished=True)
        generator = self._generators.get(split.event_start_us)
        if generator is None:
            generator = self._generators[split.event_start_us] = self._generator_for(split.event_start_us)
        rows = self._batch_rows or min(_BATCH_ROWS, max(1, _BATCH_BYTES // max(1, generator.row_bytes)))
        end = split.position + rows
        if split.stop is not None:
            end = min(end, split.stop)
        if split.paced_since_ms is not None:
            due = self._pace.rows_due(now_ms - split.paced_since_ms)
            end = min(end, self._partitions.rows_below(split.partition, due))
        if end <= split.position:
            return None
        batch = generator.batch(self._partitions.row_indices(split.partition, split.position, end))
        after = msgspec.structs.replace(split, position=end)
        return FetchedBatch(
            split=after,
            batch=batch,
            finished=end == split.stop,
            position_at=lambda rows: msgspec.structs.replace(split, position=split.position + rows),
        )

    def _wait_ms(self) -> int:
        """Return how long nothing will be due, in milliseconds."""
        due_ms = [
            split.paced_since_ms + self._pace.due_ms(self._partitions.row_index(split.partition, split.position))
            for split in self._turns
            if split.paced_since_ms is not None and split.split_id not in self._paused
        ]
        return max(_LEAST_WAIT_MS, min(due_ms) - self._clock_ms()) if due_ms else 1 << 31
