"""The chunks of which the state of one subtask consists: what changed since each snapshot, merged as they grow.

Never: merge on the thread of the operator: it only says which runs become one, and the thread that stores it does it.

Each snapshot adds a sorted run with what changed. A run that is not larger than twice those after it becomes one with
them: so there are few runs, each less than half of the one below it, a row is stored again a few times while the state
doubles, and the lowest run is stored again only when half as much as it holds has changed.

Follows O'Neil et al., "The Log-Structured Merge-Tree".
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from headgate.operators.transform_with_state.state_rows import ChunkHeader, compact, write_chunk

SPILL_BYTES = 1 << 20
"""A run that is stored and has as many bytes waits for its next merge on the local disk."""


class SortedRun:
    """Rows of state that are one chunk.

    Parameters
    ----------
    chunk_id
        The chunk's name.
    size_bytes
        How large the rows are; of those that are not merged yet, at most.
    table
        The rows; None: they are those of ``parts``.
    parts
        The runs that it replaces, the oldest first.
    lowest
        Whether nothing lies below it.
    now_ms
        When it was made, in milliseconds since 1970-01-01 UTC.
    spill_folder
        Where its rows may wait; empty: in memory.
    """

    def __init__(
        self,
        chunk_id: str,
        size_bytes: int,
        table: pa.Table | None = None,
        parts: Sequence[SortedRun] = (),
        *,
        lowest: bool = False,
        now_ms: int = 0,
        spill_folder: str = "",
    ) -> None:
        assert (table is None) == bool(parts)
        self.chunk_id = chunk_id
        self.size_bytes = size_bytes
        self._lowest = lowest
        self._now_ms = now_ms
        self._spill_folder = spill_folder
        self._lock = threading.Lock()  # for the three below
        self._table = table
        self._parts = tuple(parts)
        self._spilled: Path | None = None

    def table(self) -> pa.Table:
        """Return the rows. Called on any thread; takes its time."""
        with self._lock:
            return self._table_locked()

    def serialize(self, header: ChunkHeader) -> bytes:
        """Return the chunk's bytes. Called on any thread; takes its time."""
        with self._lock:
            table = self._table_locked()
            data = write_chunk(table, header)
            if self._spill_folder and self._spilled is None and table.nbytes >= SPILL_BYTES:
                self._spill_locked(table)
            return data

    def _table_locked(self) -> pa.Table:
        assert self._lock.locked()
        if self._spilled is not None:
            with pa.memory_map(str(self._spilled)) as file:
                return pa.ipc.open_file(file).read_all()
        if self._table is None:
            parts = [part.table() for part in self._parts]
            self._table = compact(parts, lowest=self._lowest, now_ms=self._now_ms)
            self._parts = ()
            self.size_bytes = self._table.nbytes
        return self._table

    def _spill_locked(self, table: pa.Table) -> None:
        assert self._lock.locked()
        path = Path(self._spill_folder) / f"{self.chunk_id.replace('/', '_')}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        self._table, self._spilled = None, path
        weakref.finalize(self, path.unlink, missing_ok=True)  # with the last checkpoint that may ask for it


class SortedRuns:
    """The runs of a subtask, the oldest first.

    Parameters
    ----------
    name_chunk
        Returns a new name.
    spill_folder
        Where rows may wait for their next merge; empty: in memory.
    """

    def __init__(self, name_chunk: Callable[[], str], spill_folder: str) -> None:
        self._name_chunk = name_chunk
        self._spill_folder = spill_folder
        self.runs: list[SortedRun] = []

    def add(self, table: pa.Table, chunk_id: str | None = None) -> None:
        """Add rows, those of a chunk that is stored already if it is named."""
        self.runs.append(
            SortedRun(chunk_id or self._name_chunk(), table.nbytes, table, spill_folder=self._spill_folder)
        )

    def merge(self, now_ms: int) -> None:
        """Let runs become one that have grown as large as those below them."""
        last = len(self.runs) - 1
        first, size_bytes = last, self.runs[last].size_bytes
        while first > 0 and self.runs[first - 1].size_bytes <= 2 * size_bytes:
            first -= 1
            size_bytes += self.runs[first].size_bytes
        if first < last:
            merged = SortedRun(
                self._name_chunk(), size_bytes, parts=self.runs[first:],
                lowest=first == 0, now_ms=now_ms, spill_folder=self._spill_folder,
            )  # fmt: skip
            self.runs[first:] = [merged]
