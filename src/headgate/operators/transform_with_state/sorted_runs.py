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
from itertools import pairwise
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
    groups
        The key groups that it has of its parts, both included; None: all.
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
        groups: tuple[int, int] | None = None,
    ) -> None:
        assert (table is None) == bool(parts)
        self.chunk_id = chunk_id
        self.size_bytes = size_bytes
        self.groups = groups
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
            parts = [_of_groups(part.table(), self.groups) for part in self._parts]
            self._table = compact(parts, lowest=self._lowest, now_ms=self._now_ms)
            self._parts = ()
            self.size_bytes = self._table.nbytes
        return self._table

    def spill(self) -> None:
        """Let the rows wait on the local disk."""
        with self._lock:
            if self._table is not None and self._spill_folder:
                self._spill_locked(self._table)

    def _spill_locked(self, table: pa.Table) -> None:
        assert self._lock.locked()
        path = Path(self._spill_folder) / f"{self.chunk_id.replace('/', '_')}.arrow"
        path.parent.mkdir(parents=True, exist_ok=True)
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        self._table, self._spilled = None, path
        weakref.finalize(self, path.unlink, missing_ok=True)  # with the last checkpoint that may ask for it


class SortedRuns:
    """The runs of a subtask, the oldest first; those of a level have different key groups.

    Parameters
    ----------
    name_chunk
        Returns a new name.
    spill_folder
        Where rows may wait for their next merge; empty: in memory.
    memory_bytes
        Merged runs have a quarter of that at most, if key groups are no larger; 0: any amount.
    groups
        The first and the last key group.
    """

    def __init__(
        self,
        name_chunk: Callable[[], str],
        spill_folder: str,
        memory_bytes: int = 0,
        groups: tuple[int, int] = (0, 0),
    ) -> None:
        self._name_chunk = name_chunk
        self._spill_folder = spill_folder
        self._slab_bytes = max(SPILL_BYTES, memory_bytes // 4) if memory_bytes and spill_folder else 0
        self._groups = groups
        self._levels: list[list[SortedRun]] = []
        self._settled = 0  # so many levels were there after the last merge

    @property
    def runs(self) -> list[SortedRun]:
        """The runs, the oldest first."""
        return [run for level in self._levels for run in level]

    def add(self, table: pa.Table, chunk_id: str | None = None) -> SortedRun:
        """Add rows, those of a chunk that is stored already if it is named, as a level; return their run."""
        run = SortedRun(chunk_id or self._name_chunk(), table.nbytes, table, spill_folder=self._spill_folder)
        self._levels.append([run])
        return run

    def add_level(self, runs: Sequence[tuple[pa.Table, str | None]]) -> None:
        """Add runs, and the names of the chunks that they are already; neighbours of rising key groups are a level."""
        last = None
        for table, chunk_id in runs:
            groups = table["group"].to_numpy()
            self.add(table, chunk_id)
            if last is not None and len(groups) and int(groups.min()) > last:
                self._levels[-2:] = [self._levels[-2] + self._levels[-1]]
            last = int(groups.max()) if len(groups) else None
        self._settled = len(self._levels)

    def merge(self, now_ms: int) -> None:
        """Let what was added become one level, with those below that it has grown as large as."""
        sizes = self._sizes()
        first = min(self._settled, len(sizes) - 1)
        size_bytes = sum(sizes[first:])
        while first > 0 and sizes[first - 1] <= 2 * size_bytes:
            first -= 1
            size_bytes += sizes[first]
        if first < len(sizes) - 1:
            self._merge_from(first, size_bytes, now_ms)
        self._settled = len(self._levels)

    def merge_all(self, now_ms: int) -> None:
        """Let all runs become one level, whatever their sizes."""
        if self._levels:
            self._merge_from(0, sum(self._sizes()), now_ms)
            self._settled = len(self._levels)

    def _sizes(self) -> list[int]:
        return [sum(run.size_bytes for run in level) for level in self._levels]

    def _merge_from(self, first: int, size_bytes: int, now_ms: int) -> None:
        """Let the levels from this one on become one."""
        parts = [run for level in self._levels[first:] for run in level]
        slabs = self._slabs(size_bytes)
        self._levels[first:] = [
            [
                SortedRun(
                    self._name_chunk(), size_bytes // len(slabs), parts=parts,
                    lowest=first == 0, now_ms=now_ms, spill_folder=self._spill_folder, groups=groups,
                )
                for groups in slabs
            ]
        ]  # fmt: skip

    def _slabs(self, size_bytes: int) -> Sequence[tuple[int, int] | None]:
        """Return the key groups of runs that so many bytes become; None: all."""
        first, last = self._groups
        many = min(-(-size_bytes // self._slab_bytes), last - first + 1) if self._slab_bytes else 1
        if many <= 1:
            return [None]
        bounds = [first + slab * (last - first + 1) // many for slab in range(many + 1)]
        return [(begin, end - 1) for begin, end in pairwise(bounds)]


def _of_groups(table: pa.Table, groups: tuple[int, int] | None) -> pa.Table:
    if groups is None:
        return table
    of = table["group"].to_numpy()
    return table.filter(pa.array((of >= groups[0]) & (of <= groups[1])))


def mapped(table: pa.Table, path: Path) -> pa.Table:
    """Return a table that is on the local disk, and no file there: it is gone with the table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    read = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    path.unlink()
    return read
