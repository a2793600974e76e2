"""Reads several shards in turn on one thread; `KinesisSource` runs a few of these over many shards.

Never: wait longer than asked, save for an answer that is under way: a client of boto3 cannot be woken up.

Follows FLIP-27, "High-level Readers" (multi-split multi-threaded).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from headgate.connectors.kinesis.columns import KinesisColumns
from headgate.connectors.kinesis.cursor import ShardCursor, monotonic_ms
from headgate.connectors.kinesis.split import KinesisSplit
from headgate.source.metrics import MetricGroup
from headgate.source.split_reader import FetchedBatch, SplitReader


class KinesisSplitReader(SplitReader[KinesisSplit]):
    """Asks the shard whose turn it is and that may be asked now.

    Parameters
    ----------
    open_cursor
        Makes the cursor of a split. Must not block.
    columns
        Makes the batches.
    records_per_call
        How many records to ask for at a time.
    metric_group
        Takes how many requests there were and how many of them were throttled, and of each shard how old what was read
        last is.
    clock_ms
        The clock of the cursors.
    """

    def __init__(
        self,
        open_cursor: Callable[[KinesisSplit], ShardCursor],
        columns: KinesisColumns,
        *,
        records_per_call: int,
        metric_group: MetricGroup,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._open_cursor = open_cursor
        self._columns = columns
        self._records_per_call = records_per_call
        self._clock_ms = clock_ms
        self._metric_group = metric_group
        self._requests = metric_group.counter("requests")
        self._throttled = metric_group.counter("throttledRequests")
        self._turns: deque[ShardCursor] = deque()
        self._paused: set[str] = set()
        self._woken = threading.Event()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[KinesisSplit]]:
        """Make one call for the next shard in turn that may be asked; wait for one otherwise."""
        cursor = self._next_due()
        if cursor is None:
            due_ms = [each.due_ms for each in self._turns if each.split.split_id not in self._paused]
            left_ms = min(due_ms, default=1 << 60) - self._clock_ms()
            self._woken.wait(max(0, min(timeout_ms, left_ms)) / 1000)
            cursor = self._next_due()
        self._woken.clear()
        return [] if cursor is None else self._ask(cursor)

    def handle_splits_changes(self, added: Sequence[KinesisSplit]) -> None:
        """Take splits; their shards are opened when it is their turn."""
        for split in added:
            cursor = self._open_cursor(split)
            self._turns.append(cursor)
            self._metric_group.split(split.split_id).gauge("millisBehindLatest", partial(_lag_ms, cursor), "max")

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[KinesisSplit], splits_to_resume: Sequence[KinesisSplit]
    ) -> None:
        """Pass over paused shards. An iterator that expires meanwhile is made anew."""
        known = {each.split.split_id for each in self._turns}
        self._paused.update(split.split_id for split in splits_to_pause if split.split_id in known)
        self._paused.difference_update(split.split_id for split in splits_to_resume)

    def wake_up(self) -> None:
        """End the wait of `fetch`."""
        self._woken.set()

    def close(self) -> None:
        """Nothing to release: the client belongs to the process."""

    def _next_due(self) -> ShardCursor | None:
        now_ms = self._clock_ms()
        for _ in range(len(self._turns)):
            cursor = self._turns[0]
            self._turns.rotate(-1)
            if cursor.split.split_id not in self._paused and cursor.due_ms <= now_ms:
                return cursor
        return None

    def _ask(self, cursor: ShardCursor) -> Sequence[FetchedBatch[KinesisSplit]]:
        rows, throttled = cursor.split.rows, cursor.throttled
        self._requests.inc()
        answer = cursor.call(self._records_per_call if not rows else min(rows, self._records_per_call))
        self._throttled.inc(cursor.throttled - throttled)
        if answer is None or not (answer.records or answer.ended):
            return []
        split = cursor.split
        if answer.ended:
            self._turns.remove(cursor)
        batch = self._columns.batch(split.split_id, answer.records) if answer.records else None
        return [FetchedBatch(split=split, batch=batch, finished=answer.ended)]


def _lag_ms(cursor: ShardCursor) -> int | None:
    return cursor.lag_ms
