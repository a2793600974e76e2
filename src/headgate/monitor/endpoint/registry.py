"""The queries that a driver process serves over HTTP: those that run, and for a while how the others ended.

Never: keep a query from being forgotten: of one that has ended only its last documents stay.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

_SAME_MS = 500
"""For so long a snapshot is good for whoever asks: any number of pages costs the driver two snapshots a second."""
_ENDED = 20
"""How many ended queries are remembered at most."""
KEEP_MS = 600_000
"""How long an ended query stays visible."""

_encode = msgspec.json.Encoder().encode


class ServedQuery(Protocol):
    """A query as the endpoint sees it. All methods may be called by any thread; those without a result wait."""

    @property
    def id(self) -> str:
        """The same for all starts from one checkpoint location."""

    @property
    def runId(self) -> str:
        """Names this start."""

    @property
    def name(self) -> str | None:
        """The name that its user gave it."""

    def snapshot(self) -> dict[str, Any]:
        """Return what is known of it now; also after its end."""

    def history(self) -> dict[str, Any]:
        """Return the series that the charts of the page begin with."""

    def checkpoint(self) -> int:
        """Take a checkpoint and return its number once it is complete."""

    def savepoint(self, location: str) -> int:
        """Write a savepoint into a folder."""

    def rescale(self, parallelism: int) -> None:
        """Continue with another number of slots."""

    def stop(self, savepoint: str | None = None, *, drain: bool = False) -> None:
        """End the query."""


class ServedEntry:
    """A query that is or was served. Any thread.

    Parameters
    ----------
    query
        The query; it is let go when it has ended.
    clock_ms
        A clock that only moves forward.
    """

    def __init__(self, query: ServedQuery, clock_ms: Callable[[], int]) -> None:
        self.id, self.run_id, self.name = query.id, query.runId, query.name or ""
        self.query: ServedQuery | None = query
        self.ended_ms: int | None = None
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._made_ms: int | None = None
        self._snapshot: dict[str, Any] = {}
        self._bytes = b"{}"
        self._history = b"{}"

    def snapshot(self) -> dict[str, Any]:
        """Return the query's snapshot, at most half a second old; after its end the last one."""
        with self._lock:
            self._look_locked()
            return self._snapshot

    def snapshot_bytes(self) -> bytes:
        """Return the same as JSON."""
        with self._lock:
            self._look_locked()
            return self._bytes

    def history_bytes(self) -> bytes:
        """Return the query's history as JSON."""
        query = self.query
        if query is None:
            return self._history
        return _encode(query.history())

    def _look_locked(self) -> None:
        assert self._lock.locked()
        query, now_ms = self.query, self._clock_ms()
        if query is None or (self._made_ms is not None and now_ms - self._made_ms < _SAME_MS):
            return
        self._snapshot = query.snapshot()
        self._bytes, self._made_ms = _encode(self._snapshot), now_ms

    def end(self) -> None:
        """Take the last snapshot, and let the query go."""
        query = self.query
        if query is None:
            return
        with self._lock:
            self._made_ms = None
            self._look_locked()
            self._history = _encode(query.history())
            self.ended_ms, self.query = self._clock_ms(), None


class Registry:
    """All queries that are served. Any thread."""

    def __init__(self, clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000) -> None:
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._entries: list[ServedEntry] = []  # guarded by _lock; the newest last

    def enter(self, query: ServedQuery) -> None:
        """Serve a query from now on."""
        entry = ServedEntry(query, self._clock_ms)
        with self._lock:
            self._entries.append(entry)

    def leave(self, query: ServedQuery) -> None:
        """Note that a query has ended: how it did stays visible for a while."""
        with self._lock:
            ended = [entry for entry in self._entries if entry.query is query]
        try:
            for entry in ended:
                entry.end()
        except BaseException:  # it did not get so far that there is anything to see
            with self._lock:
                self._entries = [entry for entry in self._entries if entry not in ended]
            raise
        self.forget_old()

    def entries(self) -> list[ServedEntry]:
        """Return all that are visible: first those that run, of each kind the newest first."""
        with self._lock:
            newest = list(reversed(self._entries))
        return sorted(newest, key=lambda entry: entry.query is None)

    def find(self, name: str) -> ServedEntry | None:
        """Return the query with an id, a run's id or a name: one that runs rather than one that has ended."""
        entries = self.entries()
        for matches in (
            [entry for entry in entries if name in (entry.id, entry.run_id)],
            [entry for entry in entries if name == entry.name],
        ):
            if matches:
                return matches[0]
        return None

    def forget_old(self) -> bool:
        """Forget those that ended long ago; return whether any is left."""
        now_ms = self._clock_ms()
        with self._lock:
            ended = [entry for entry in self._entries if entry.ended_ms is not None]
            old = {id(entry) for entry in ended if now_ms - (entry.ended_ms or 0) >= KEEP_MS}
            old |= {id(entry) for entry in ended[:-_ENDED]}
            self._entries = [entry for entry in self._entries if id(entry) not in old]
            return bool(self._entries)
