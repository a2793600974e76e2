"""The queue between fetcher threads and the task's thread, bounded in bytes, and in batches.

Never: let a paused split stop the others. What is queued of a paused split is held aside, outside the bound, until
the split is resumed; its fetcher stops at the next fetch, or soon (`held_bytes`), so that what is held stays bounded.

Follows FLIP-27, "High-level Readers" (element queue).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch

SplitT = TypeVar("SplitT", bound=Split)

MOST_BATCHES = 16
"""So many batches may be queued: while the task is busy, clients gather records, and a fetch brings larger batches."""
_Buffers = dict[int, int]
"""Memory that a batch keeps alive: size in bytes by address."""


class ElementQueue(Generic[SplitT]):
    """Hands fetched batches from fetcher threads to the task's thread, in order for each split.

    Parameters
    ----------
    max_bytes
        How much memory the queued batches may keep alive, in bytes. A batch that is larger passes alone, when
        nothing else is queued. Memory shared by several batches (slices of one parent) counts once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        # Guarded by _lock, as is all that follows:
        self._space = threading.Condition(self._lock)
        self._ready: deque[tuple[FetchedBatch[SplitT], _Buffers]] = deque()
        self._held: dict[str, deque[tuple[FetchedBatch[SplitT], _Buffers]]] = {}  # its keys are the paused splits
        self._uses: dict[int, int] = {}
        self._bytes = 0
        self._error: BaseException | None = None
        self._closed = False
        self._waiting: Future[None] | None = None

    def put(self, fetched: FetchedBatch[SplitT]) -> bool:
        """Enqueue a batch; called by fetchers. Blocks while the queue is full.

        Returns
        -------
        False when the queue was closed and the batch is dropped.
        """
        buffers = {} if fetched.batch is None else _pinned_buffers(fetched.batch)
        split_id = fetched.split.split_id
        with self._lock:
            while not (self._closed or split_id in self._held or self._fits_locked(buffers)):
                self._space.wait()
            if self._closed:
                return False
            if split_id in self._held:
                self._held[split_id].append(_without_parent(fetched, buffers))
                return True
            self._ready.append((fetched, buffers))
            self._count_locked(buffers)
            waiting = self._take_waiting_locked()
        _complete(waiting)
        return True

    def fail(self, error: BaseException) -> None:
        """Let `take` raise ``error`` from now on; the first one counts. Called by fetchers."""
        with self._lock:
            if self._error is None:
                self._error = error
            waiting = self._take_waiting_locked()
        _complete(waiting)

    def take(self) -> tuple[FetchedBatch[SplitT] | None, bool]:
        """Return the next batch, or None, and whether more are ready. Does not block.

        Raises
        ------
        HeadgateError
            A fetcher failed, at once and whatever is queued: the reader is to be restored.
        """
        with self._lock:
            if self._error is not None:
                raise self._error
            if not self._ready:
                return None, False
            fetched, buffers = self._ready.popleft()
            self._discount_locked(buffers)
            self._space.notify_all()
            return fetched, bool(self._ready)

    def has_ready(self) -> bool:
        """Return whether `take` has something to return or to raise."""
        with self._lock:
            return bool(self._ready) or self._error is not None

    def take_held(self, split_id: str) -> FetchedBatch[SplitT] | None:
        """Return the next batch that is held aside of a split, or None. Does not block."""
        with self._lock:
            held = self._held.get(split_id)
            return held.popleft()[0] if held else None

    def splits(self) -> set[str]:
        """Return of which splits something is queued or held aside."""
        with self._lock:
            held = {split_id for split_id, batches in self._held.items() if batches}
            return held | {fetched.split.split_id for fetched, _ in self._ready}

    @property
    def size(self) -> tuple[int, int]:
        """How many batches `take` would return, and how many bytes these keep alive. What is held aside is left out."""
        with self._lock:
            return len(self._ready), self._bytes

    def held_bytes(self, split_id: str) -> int:
        """Return how much memory is held aside of a split, in bytes. Called by fetchers."""
        with self._lock:
            return sum(sum(buffers.values()) for _, buffers in self._held.get(split_id, ()))

    def pause_or_resume(self, to_pause: Collection[str], to_resume: Collection[str]) -> None:
        """Hold aside what is and will be queued of some splits, and put that of others back to the front."""
        with self._lock:
            paused = {split_id for split_id in to_pause if split_id not in self._held}
            if paused:
                self._held.update((split_id, deque()) for split_id in paused)
                self._hold_ready_locked(paused)
            for split_id in to_resume:
                for fetched, buffers in reversed(self._held.pop(split_id, ())):
                    self._ready.appendleft((fetched, buffers))
                    self._count_locked(buffers)
            self._space.notify_all()
            waiting = self._take_waiting_locked() if self._ready else None
        _complete(waiting)

    def available(self) -> Future[None]:
        """Return a future that is done once `take` has something to return or to raise, or `notify` was called."""
        with self._lock:
            if self._ready or self._error is not None:
                return done_future()
            if self._waiting is None:
                self._waiting = Future()
            return self._waiting

    def notify(self) -> None:
        """Complete the future that `available` returned, because the reader has other news."""
        with self._lock:
            waiting = self._take_waiting_locked()
        _complete(waiting)

    def close(self) -> None:
        """Drop everything; blocked and later calls of `put` return False."""
        with self._lock:
            self._closed = True
            self._ready.clear()
            self._held.clear()
            self._uses.clear()
            self._bytes = 0
            self._space.notify_all()

    def _fits_locked(self, buffers: _Buffers) -> bool:
        assert self._lock.locked()
        if not self._ready:
            return True
        added = sum(size for address, size in buffers.items() if address not in self._uses)
        return len(self._ready) < MOST_BATCHES and self._bytes + added <= self._max_bytes

    def _count_locked(self, buffers: _Buffers) -> None:
        assert self._lock.locked()
        for address, size in buffers.items():
            uses = self._uses.get(address, 0)
            self._uses[address] = uses + 1
            if not uses:
                self._bytes += size

    def _discount_locked(self, buffers: _Buffers) -> None:
        assert self._lock.locked()
        for address, size in buffers.items():
            self._uses[address] -= 1
            if not self._uses[address]:
                del self._uses[address]
                self._bytes -= size

    def _hold_ready_locked(self, paused: Collection[str]) -> None:
        assert self._lock.locked()
        ready, self._ready = self._ready, deque()
        for fetched, buffers in ready:
            if fetched.split.split_id in paused:
                self._discount_locked(buffers)
                self._held[fetched.split.split_id].append(_without_parent(fetched, buffers))
            else:
                self._ready.append((fetched, buffers))

    def _take_waiting_locked(self) -> Future[None] | None:
        assert self._lock.locked()
        waiting, self._waiting = self._waiting, None
        return waiting


def done_future() -> Future[None]:
    """Return a future that is done."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def detached(fetched: FetchedBatch[SplitT]) -> FetchedBatch[SplitT]:
    """Return a batch to be kept for long, outside of the queue: without a parent that is much larger than it."""
    return fetched if fetched.batch is None else _without_parent(fetched, _pinned_buffers(fetched.batch))[0]


def _complete(future: Future[None] | None) -> None:
    """Complete a future taken out under the lock; outside of it, because callbacks run here."""
    if future is not None and future.set_running_or_notify_cancel():
        future.set_result(None)


def _without_parent(fetched: FetchedBatch[SplitT], buffers: _Buffers) -> tuple[FetchedBatch[SplitT], _Buffers]:
    """Return a batch to be held for long: a copy, if it is a small part of the memory that it keeps alive."""
    batch = fetched.batch
    if batch is None or sum(buffers.values()) <= 2 * batch.nbytes:
        return fetched, buffers
    copied = batch.take(pa.array(range(batch.num_rows), pa.int64()))
    return msgspec.structs.replace(fetched, batch=copied), _pinned_buffers(copied)


def _pinned_buffers(batch: pa.RecordBatch) -> _Buffers:
    """Return what ``batch`` keeps alive: a slice keeps its whole parent, which its ``nbytes`` hides."""
    pinned: _Buffers = {}
    for column in batch.columns:
        buffers = column.buffers()
        if pa.types.is_dictionary(column.type):
            buffers += column.dictionary.buffers()
        for buffer in buffers:
            while buffer is not None and buffer.parent is not None:
                buffer = buffer.parent
            if buffer is not None:
                pinned[buffer.address] = max(buffer.size, pinned.get(buffer.address, 0))
    return pinned
