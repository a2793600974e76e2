"""`RestoredRows`: the rows of restored chunks, until somebody asks for their keys; and the timers among them.

Never: make an object for a key that nobody asks for, or give the rows of a key twice.

A restore indexes the chunks (`HashIndex`) and no more, so that it does not take longer than reading them. The rows of a
key apply in their order, those of the older chunk first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_hash
from headgate.operators.transform_with_state.indexed_rows import IndexedRows, hashes_of
from headgate.operators.transform_with_state.state_rows import SET, TIMERS
from headgate.state.hash_index import HashIndex, Places, Store

KeyRow = tuple[int, int, bytes | None, int, bytes | None, int | None]
"""Key group, state, entry, operation, value and expiry."""
Timer = tuple[int, bytes, int]
"""Time, key and key group."""

ROWS_OF_INDEX = 1 << 22
"""An index of so many rows is made in a good part of a second."""
_COLUMNS = ("group", "state", "entry", "op", "value", "expiry")


class RestoredRows:
    """What chunks hold of keys that nobody has asked for.

    Parameters
    ----------
    store
        Stores a table where it takes no memory, or returns it as it is.
    """

    def __init__(self, store: Store = lambda table: table) -> None:
        self._store = store
        self._parts: list[IndexedRows] = []
        self._timers: list[pa.Table] = []
        self.timers = RestoredTimers([])

    def add_in_steps(self, table: pa.Table) -> Iterator[None]:
        """Add the rows of a chunk, the older chunks first."""
        for batch in _batches(table):
            self._parts.append(IndexedRows(batch, HashIndex(key_hash([batch["key"]]), self._store)))
            is_timer = (batch["state"].to_numpy() == TIMERS) & (batch["op"].to_numpy() == SET)
            if is_timer.any():
                timers = batch.select(["entry", "key", "group"]).filter(pa.array(is_timer))
                self._timers.append(pa.Table.from_batches([timers]))
            yield

    def end(self) -> None:
        """Take note that there are no more chunks: `timers` has all of them."""
        self.timers, self._timers = RestoredTimers(self._timers, self._store), []

    def take(self, keys: Sequence[bytes]) -> dict[bytes, list[KeyRow]]:
        """Return the rows of keys that there are any of, and forget them. Each key comes once."""
        found: dict[bytes, list[KeyRow]] = {}
        if not self._parts or not keys:
            return found
        hashes = hashes_of(keys)
        for part in self._parts:
            for key, row in part.take(keys, hashes, _COLUMNS):
                found.setdefault(key, []).append(row)
        if not all(part.left for part in self._parts):
            self._parts = [part for part in self._parts if part.left]
        return found


class RestoredTimers:
    """The timers of chunks, the first one first. Some of them may have been deleted, or come twice.

    Parameters
    ----------
    tables
        Their times as they are stored, keys and key groups.
    store
        Stores a table where it takes no memory, or returns it as it is.
    """

    def __init__(self, tables: Sequence[pa.Table], store: Store = lambda table: table) -> None:
        self._times: Places = np.zeros(0, np.int64)
        self._next = 0
        if not tables:
            return
        timers = pa.concat_tables(tables).combine_chunks()
        entries = timers["entry"].chunk(0)
        times = np.frombuffer(entries.buffers()[2], ">i8", len(entries), entries.offset * 8).astype(np.int64)
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._keys = store(timers.select(["key", "group"]).take(pa.array(order)))

    def next_ms(self) -> int | None:
        """Return the time of the first one; None: there is none left."""
        return int(self._times[self._next]) if self._next < len(self._times) else None

    def first(self) -> Timer:
        """Return the first one, which there is."""
        return next(self._between(self._next, self._next + 1))

    def take_until(self, now_ms: int) -> Iterator[Timer]:
        """Return those up to a time, and forget them."""
        begin, self._next = self._next, int(np.searchsorted(self._times, now_ms, side="right"))
        return self._between(begin, self._next)

    def skip(self) -> None:
        """Forget the first one."""
        self._next += 1

    def _between(self, begin: int, end: int) -> Iterator[Timer]:
        if begin >= end:
            return iter(())
        found = self._keys.slice(begin, end - begin)
        times = self._times[begin:end].tolist()
        return zip(times, found["key"].to_pylist(), found["group"].to_pylist(), strict=True)


def _batches(table: pa.Table) -> Iterator[pa.RecordBatch]:
    for batch in table.to_batches():
        for begin in range(0, batch.num_rows, ROWS_OF_INDEX):
            yield batch.slice(begin, ROWS_OF_INDEX)
