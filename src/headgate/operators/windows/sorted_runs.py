"""The columnar state of windows: partial results in immutable sorted runs, which are merged as they grow and spilled.

Never: change a run, keep an object per key or per group, or rewrite much for the sake of little.

A *sorted run* is a table of partial results: a bucket, the keys, a column for each partial result; it has each group
once, and its rows are in the order of their buckets. What comes is a run of its own. They are in the order of arrival,
and only neighbours are merged, several of about the same size at a time: a row is rewritten once each time that the run
it is in becomes four times as large, and a large run is left alone while small ones come. So a checkpoint stores what
came since the one before, and what was merged meanwhile.

    of a run     in memory                         spilled
    -----------  --------------------------------  --------------------------------------------------------
    rows         a table                           a file in the spill folder, read by mapping it into memory
    order        bucket                            bucket, then key group
    merged with  others, at once                   others, a slab of key groups after the other
    fired        at once                           a slab of key groups after the other

Beyond ``memory_bytes`` the largest runs, which hold what is fired last, are spilled. A slab is small enough that its
merging takes a quarter of that memory.

Sorted runs are cut into *parts*, each of which is a chunk of a checkpoint (`headgate.operators.operator.KeyedChunk`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_groups, key_hash
from headgate.operators.mapped_files import give_back, mapped_table
from headgate.operators.windows.aggregates import Partial, merge
from headgate.operators.windows.dense_groups import one_array

BUCKET = "bucket"
GROUP = "group"
PART_BYTES = 32 << 20
"""The size of a chunk, at most, in bytes."""
FAN_IN = 4
"""So many runs of about one size are merged."""
_SMALL_ROWS = 4096
_SMALLEST_PART_BYTES = 1 << 20
_FEW_WANTED = 8
"""A group of so many is looked for by its key; if more of them are wanted, all are merged."""


class Part(msgspec.Struct, frozen=True):
    """A piece of a run.

    Parameters
    ----------
    chunk_id
        Its name in checkpoints.
    table
        Its rows.
    """

    chunk_id: str
    table: Any


class SortedRun:
    """Partial results, each group once, in the order of their buckets.

    Parameters
    ----------
    parts
        Its pieces, in order.
    spilled
        The files in which they are, if they are not in memory: their rows of a bucket are in the order of their key
        groups, which are in one more column.
    """

    def __init__(self, parts: Sequence[Part], *, spilled: tuple[str, ...] = ()) -> None:
        self.parts = tuple(parts)
        self.spilled = spilled
        self.table = pa.concat_tables([part.table for part in parts])
        self.nbytes = int(self.table.nbytes)
        self._buckets, self._starts = _bounds(self.table.column(BUCKET))
        self._live = 0
        self._by_hash: tuple[Any, Any] | None = None

    @property
    def buckets(self) -> Any:
        """The buckets that it has rows of, in order."""
        return self._buckets[self._live :]

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return int(self._starts[-1] - self._starts[self._live])

    @property
    def rows_dropped(self) -> int:
        """How many rows it holds in vain."""
        return int(self._starts[self._live])

    def drop(self, bucket: int) -> None:
        """Forget the rows of buckets up to this one."""
        self._live = max(self._live, int(np.searchsorted(self._buckets, bucket, side="right")))

    def live(self) -> Any:
        """Return the rows."""
        return self.table.slice(self.rows_dropped)

    def of(self, first: int, last: int) -> Any:
        """Return the rows of buckets from ``first`` to ``last``; None: there are none."""
        low = max(self._live, int(np.searchsorted(self._buckets, first, side="left")))
        high = int(np.searchsorted(self._buckets, last, side="right"))
        if low >= high:
            return None
        begin, end = int(self._starts[low]), int(self._starts[high])
        return self.table.slice(begin, end - begin)

    def with_keys(self, hashes: Any, keys: Sequence[str]) -> Any:
        """Return the rows whose keys have one of some different hashes, in their order."""
        if self._by_hash is None:
            all_hashes = key_hash([one_array(self.table.column(name)) for name in keys])
            order = np.argsort(all_hashes, kind="stable")
            self._by_hash = all_hashes[order], order.astype(np.int32)
            self.nbytes += sum(each.nbytes for each in self._by_hash)
        known, rows = self._by_hash
        begins = np.searchsorted(known, hashes, side="left")
        counts = np.searchsorted(known, hashes, side="right") - begins
        within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        found = np.sort(rows[np.repeat(begins, counts) + within])
        return self.table.take(found[found >= self.rows_dropped])

    def live_parts(self) -> list[Part]:
        """Return the parts that have rows."""
        found, end, dead = [], 0, self.rows_dropped
        for part in self.parts:
            end += part.table.num_rows
            if end > dead:
                found.append(part)
        return found


def _bounds(column: Any) -> tuple[Any, Any]:
    """Return the values of a sorted column, and where the rows of each begin; after them, how many rows there are."""
    starts, begin, last = [], 0, None
    values = []
    for chunk in column.chunks:
        numbers = chunk.to_numpy()
        if len(numbers) == 0:
            continue
        (changes,) = np.nonzero(numbers[1:] != numbers[:-1])
        places = np.concatenate([[0], changes + 1])
        if last is not None and numbers[0] == last:
            places = places[1:]
        values.append(numbers[places])
        starts.append(places + begin)
        begin, last = begin + len(numbers), numbers[-1]
    return np.concatenate([np.empty(0, np.int64), *values]), np.concatenate([*starts, [begin]]).astype(np.int64)


class SortedRuns:
    """The runs of an operator's state.

    Parameters
    ----------
    keys
        The names of the key columns.
    partials
        By the name of its column.
    name
        Returns a name for a new part.
    max_parallelism
        How many key groups there are.
    memory_bytes
        How much may be in memory; 0: any amount.
    spill_folder
        Where the rest goes.
    """

    def __init__(
        self,
        *,
        keys: Sequence[str],
        partials: dict[str, Partial],
        name: Callable[[], str],
        max_parallelism: int,
        memory_bytes: int = 0,
        spill_folder: str = "",
    ) -> None:
        self._keys = list(keys)
        self._partials = partials
        self._name = name
        self._max_parallelism = max_parallelism
        self._memory_bytes = memory_bytes
        self._folder = spill_folder
        self._files = 0
        self.runs: list[SortedRun] = []

    @property
    def memory_bytes(self) -> int:
        """How many bytes are in memory."""
        return sum(run.nbytes for run in self.runs if not run.spilled)

    @property
    def spilled_bytes(self) -> int:
        """How many bytes are in local files."""
        return sum(run.nbytes for run in self.runs if run.spilled)

    @property
    def first_bucket(self) -> int | None:
        """The earliest bucket; None: there is no state."""
        return min((int(run.buckets[0]) for run in self.runs), default=None)

    def buckets(self, last: int) -> Any:
        """Return the buckets up to this one that have rows, in order."""
        found = [run.buckets[: int(np.searchsorted(run.buckets, last, side="right"))] for run in self.runs]
        return np.unique(np.concatenate(found)) if found else np.empty(0, np.int64)

    # What comes, what goes.

    def append(self, table: Any) -> None:
        """Take partial results, each group once."""
        if table.num_rows == 0:
            return
        self.runs.append(self._made(table))
        self._compact()
        self._spill()

    def adopt(self, parts: Iterable[Part]) -> SortedRun | None:
        """Take a run of a checkpoint, after the existing ones; return it, or None if it has no parts."""
        names: list[str] = []
        held: list[Part] = []
        files: list[str] = []
        size = self.memory_bytes
        for part in parts:
            names.append(part.chunk_id)
            held.append(part)
            size += part.table.nbytes
            if self._memory_bytes and (files or size > self._memory_bytes):
                files += [self._write(each.table) for each in held]
                held = []
        if not names:
            return None
        run = self._opened(names, files) if files else SortedRun(held)
        self.runs.append(run)
        return run

    def drop(self, bucket: int) -> None:
        """Forget buckets up to this one."""
        kept = []
        for run in self.runs:
            run.drop(bucket)
            if run.rows == 0:
                self._forget(run)
            elif not run.spilled and run.rows_dropped > run.rows:
                kept.append(self._made(run.live().take(np.arange(run.rows))))  # a slice would keep all of it
            else:
                kept.append(run)
        self.runs = kept

    def rows_of(self, bucket: int) -> int:
        """Return how many rows of a bucket there are, before they are merged."""
        return sum(rows.num_rows for run in self.runs if (rows := run.of(bucket, bucket)) is not None)

    def is_spilled(self, buckets: Sequence[int]) -> bool:
        """Return whether rows of these buckets are in files."""
        return any(run.spilled and run.of(each, each) is not None for run in self.runs for each in buckets)

    def merged(self, buckets: Sequence[int], keys: Sequence[str]) -> Iterator[Any]:
        """Yield the merged partial results of buckets, by these keys; each group is in one of the tables."""
        found = [(run, rows) for run in self.runs for each in buckets if (rows := run.of(each, each)) is not None]
        yield from self._merged(found, keys)

    def merged_with_keys(self, wanted: Any) -> Any:
        """Return the merged partial results of groups with these keys, and perhaps of others; None: look for buckets.

        It is worth it where few groups of a bucket are wanted. Of a run that is spilled nothing is known in memory.
        """
        rows = sum(run.rows for run in self.runs)
        if rows < _FEW_WANTED * wanted.num_rows or any(run.spilled for run in self.runs):
            return None
        hashes = np.unique(key_hash([one_array(wanted.column(name)) for name in self._keys]))
        found = pa.concat_tables([run.with_keys(hashes, self._keys) for run in self.runs])
        return merge(found, [BUCKET, *self._keys], self._partials)

    def _merged(self, found: Sequence[tuple[SortedRun, Any]], keys: Sequence[str]) -> Iterator[Any]:
        columns = [*dict.fromkeys([*keys, *self._keys, *self._partials])]
        if not any(run.spilled for run, _ in found):
            if len({id(run) for run, _ in found}) == 1 and BUCKET in keys:
                yield pa.concat_tables([rows for _, rows in found])
            elif found:
                yield merge(pa.concat_tables([rows for _, rows in found]), keys, self._partials)
            return
        size = sum(rows.nbytes for _, rows in found)
        many = max(1, min(self._max_parallelism, -(-size * 4 // self._memory_bytes)))
        pieces = [piece for run, rows in found for piece in self._by_group(run, rows)]
        bounds = [-(-slab * self._max_parallelism // many) for slab in range(many + 1)]
        for first, end in pairwise(bounds):
            taken = []
            for rows, groups in pieces:
                low, high = np.searchsorted(groups, [first, end])
                if low < high:
                    taken.append(rows.slice(int(low), int(high - low)).select(columns))
            if taken:
                yield merge(pa.concat_tables(taken), keys, self._partials)
            give_back()

    def _by_group(self, run: SortedRun, rows: Any) -> list[tuple[Any, Any]]:
        """Return rows of a bucket in the order of their key groups, with these."""
        if run.spilled:
            pieces = [pa.Table.from_batches([each]) for each in rows.to_batches()]
            return [(piece, one_array(piece.column(GROUP)).to_numpy()) for piece in pieces]
        groups = self._groups(rows)
        order = np.argsort(groups, kind="stable")
        return [(rows.take(order), groups[order])]

    def _groups(self, table: Any) -> Any:
        """Return the key group of each row."""
        keys = [one_array(table.column(name)) for name in self._keys]
        return key_groups(keys, self._max_parallelism).to_numpy()

    def _made(self, table: Any) -> SortedRun:
        """Return a run of these rows, in memory."""
        buckets = one_array(table.column(BUCKET)).to_numpy()
        if (buckets[1:] < buckets[:-1]).any():
            table = table.take(np.argsort(buckets, kind="stable"))
        rows = table.num_rows
        step = -(-rows // max(1, -(-table.nbytes // part_bytes(self._memory_bytes))))
        return SortedRun([Part(self._name(), table.slice(begin, step)) for begin in range(0, rows, step)])

    # Merging and spilling.

    def _compact(self) -> None:
        """Merge the latest runs while there are several of about the same size."""
        while True:
            size = tier(self.runs[-1].rows)
            many = 1
            while many < len(self.runs) and tier(self.runs[-many - 1].rows) <= size:
                many += 1
            if many < FAN_IN:
                return
            merged = self.runs[-many:]
            self.runs[-many:] = [self._one_run(merged)]
            for run in merged:
                self._forget(run)

    def _one_run(self, runs: Sequence[SortedRun]) -> SortedRun:
        keys = [BUCKET, *self._keys]
        size = sum(run.nbytes for run in runs)
        if self._memory_bytes == 0 or (size * 2 <= self._memory_bytes and not any(run.spilled for run in runs)):
            return self._made(merge(pa.concat_tables([run.live() for run in runs]), keys, self._partials))
        buckets = np.unique(np.concatenate([run.buckets for run in runs]))

        def merged() -> Iterator[Any]:
            for bucket in map(int, buckets):
                found = [(run, rows) for run in runs if (rows := run.of(bucket, bucket)) is not None]
                yield from self._merged(found, keys)

        return self._written(merged())

    def _spill(self) -> None:
        """Write the largest runs to files, if there is more in memory than may be."""
        while self._memory_bytes and self.memory_bytes > self._memory_bytes:
            place = max(
                (place for place, run in enumerate(self.runs) if not run.spilled),
                key=lambda place: self.runs[place].nbytes,
            )
            run = self.runs[place]
            files = [self._write(part.table) for part in run.parts]
            self.runs[place] = self._opened([part.chunk_id for part in run.parts], files)
            self.runs[place].drop(int(run.buckets[0]) - 1)

    def _written(self, tables: Iterable[Any]) -> SortedRun:
        """Return a spilled run of tables, each of one bucket, in order."""
        names, files = [], []
        for table in _joined(tables, min(PART_BYTES, self._memory_bytes // 4)):
            names.append(self._name())
            files.append(self._write(table))
        return self._opened(names, files)

    def _write(self, table: Any) -> str:
        self._files += 1
        os.makedirs(self._folder, exist_ok=True)
        path = os.path.join(self._folder, f"run-{self._files}.arrow")
        groups = self._groups(table)
        order = np.lexsort((groups, one_array(table.column(BUCKET)).to_numpy()))
        rows = table.take(order).append_column(GROUP, pa.array(groups[order]))
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        return path

    def _opened(self, names: Sequence[str], files: Sequence[str]) -> SortedRun:
        tables = [mapped_table(path) for path in files]
        return SortedRun([Part(name, table) for name, table in zip(names, tables)], spilled=tuple(files))

    def _forget(self, run: SortedRun) -> None:
        """Delete the files of a run; who still reads them has them mapped."""
        for path in run.spilled:
            os.unlink(path)

    def close(self) -> None:
        """Delete all files."""
        for run in self.runs:
            self._forget(run)
        self.runs = []


def part_bytes(memory_bytes: int) -> int:
    """Return how large a chunk may be, where so much of the state may be in memory: four are uploaded at once.

    Examples
    --------
    >>> [part_bytes(mebibytes << 20) >> 20 for mebibytes in (0, 1, 16, 256)]
    [32, 1, 4, 32]
    """
    return max(_SMALLEST_PART_BYTES, min(PART_BYTES, memory_bytes // 4)) if memory_bytes else PART_BYTES


def tier(rows: int) -> int:
    """Return how large a run is, in steps of four."""
    return max(0, (rows // _SMALL_ROWS).bit_length() + 1) // 2


def _joined(tables: Iterable[Any], size: int) -> Iterator[Any]:
    """Yield tables together, until they have a size."""
    held: list[Any] = []
    held_bytes = 0
    for table in tables:
        held.append(table)
        held_bytes += table.nbytes
        if held_bytes >= size:
            yield pa.concat_tables(held)
            held, held_bytes = [], 0
    if held:
        yield pa.concat_tables(held)
