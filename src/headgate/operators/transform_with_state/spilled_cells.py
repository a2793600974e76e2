"""`SpilledCells`: what is known of keys that are not in memory, by key, in files of the local disk.

Never: be what a checkpoint depends on: the files are of this execution, and have no names. Hold a key twice: what is
asked for is given, and forgotten.

What is put together is a segment: a file that is mapped into memory, and an index of its keys (`KeyIndex`). Keys are in
one of a few parts, by their hash; a segment that is not larger than twice those after it becomes one with them, in its
part, without what was given. So there are few segments, and each merge is of a part only. One call merges a few times
as much as it puts; what is left is left to the next ones.

Follows O'Neil et al., "The Log-Structured Merge-Tree".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_hash
from headgate.operators.transform_with_state.key_index import Hashes, KeyIndex, hashes_of
from headgate.operators.transform_with_state.sorted_runs import SPILL_BYTES, mapped

_PART_BITS = 3
_MERGED_PER_PUT = 8
"""A call merges at most so many times as many cells as it puts, and a segment more."""


class _Segment:
    """Keys and what is known of them."""

    def __init__(self, cells: pa.RecordBatch, index: KeyIndex) -> None:
        self.cells = cells
        self._index = index
        self._given = np.zeros(cells.num_rows, np.bool_)
        self.left = cells.num_rows

    def take(self, keys: Sequence[bytes], hashes: Hashes) -> Iterator[tuple[bytes, bytes]]:
        rows, owners = self._index.rows(hashes)
        if not len(rows):
            return
        fresh = ~self._given[rows]
        rows, owners = rows[fresh], owners[fresh]
        found = self.cells.take(pa.array(rows))
        given = []
        columns = (found[name].to_pylist() for name in ("key", "data"))
        for row, owner, (key, data) in zip(rows.tolist(), owners.tolist(), zip(*columns, strict=True), strict=True):
            if key == keys[owner]:
                given.append(row)
                yield key, data
        self._given[given] = True
        self.left -= len(given)

    def rest(self) -> pa.RecordBatch:
        """Return what was not given."""
        return self.cells.filter(pa.array(~self._given)) if self.left < self.cells.num_rows else self.cells


class SpilledCells:
    """Bytes by key. For one thread at a time.

    Parameters
    ----------
    folder
        Where the files are made.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._numbers = count()
        self._parts: list[list[_Segment]] = [[] for _ in range(1 << _PART_BITS)]
        self._turn = 0  # the part that is merged next

    def put(self, cells: Sequence[tuple[bytes, bytes]]) -> None:
        """Store what is known of keys, of which it knows nothing."""
        if not cells:
            return
        keys, data = zip(*cells, strict=True)
        table = pa.record_batch([pa.array(keys, pa.large_binary()), pa.array(data, pa.large_binary())], ["key", "data"])
        hashes = key_hash([table["key"]])
        part = (hashes >> np.uint64(64 - _PART_BITS)).astype(np.uint8)
        order = np.argsort(part, kind="stable")
        stored = self._mapped(pa.Table.from_batches([table.take(pa.array(order))]))
        hashes, ends = hashes[order], np.cumsum(np.bincount(part, minlength=len(self._parts))).tolist()
        for segments, begin, end in zip(self._parts, (0, *ends), ends, strict=False):
            if end > begin:
                index = KeyIndex(hashes[begin:end], self._index_store)
                segments.append(_Segment(stored.slice(begin, end - begin), index))
        self._merge(_MERGED_PER_PUT * len(cells))

    def take(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is known of keys, and forget it."""
        if not keys or not len(self):
            return
        hashes = hashes_of(keys)
        part = (hashes >> np.uint64(64 - _PART_BITS)).astype(np.uint8)
        order = np.argsort(part, kind="stable")
        hashes, of_part = hashes[order], [keys[place] for place in order.tolist()]
        ends = np.cumsum(np.bincount(part, minlength=len(self._parts))).tolist()
        for number, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
            if end > begin:
                for segment in self._parts[number]:
                    yield from segment.take(of_part[begin:end], hashes[begin:end])

    def __len__(self) -> int:
        return sum(segment.left for segments in self._parts for segment in segments)

    def close(self) -> None:
        """Forget everything; with the last table that is of a file, that is gone."""
        self._parts = [[] for _ in self._parts]

    def _merge(self, cells: int) -> None:
        """Merge where it is due, of one part after the other, until so many cells are merged."""
        for _ in self._parts:
            if cells <= 0:
                return
            segments = self._parts[self._turn]
            segments[:] = [segment for segment in segments if segment.left]
            first = len(segments) - 1
            left = segments[first].left if segments else 0
            while first > 0 and segments[first - 1].left <= 2 * left:
                first -= 1
                left += segments[first].left
            if first < len(segments) - 1:
                segments[first:] = [self._merged(segments[first:])]
                cells -= left
            self._turn = (self._turn + 1) % len(self._parts)

    def _merged(self, segments: Sequence[_Segment]) -> _Segment:
        table = pa.Table.from_batches([segment.rest() for segment in segments]).combine_chunks()
        stored = self._mapped(table)
        return _Segment(stored, KeyIndex(key_hash([stored["key"]]), self._index_store))

    def _mapped(self, table: pa.Table) -> pa.RecordBatch:
        (batch,) = mapped(table, self._folder / f"cells-{next(self._numbers)}.arrow").to_batches()
        return batch

    def _index_store(self, table: pa.Table) -> pa.Table:
        if table.nbytes < SPILL_BYTES:
            return table
        return mapped(table, self._folder / f"index-{next(self._numbers)}.arrow")
