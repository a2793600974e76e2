"""`SpilledCells`: what is known of keys that are not in memory, by key, in files of the local disk.

Never: be what a checkpoint depends on: the files are of this execution, and have no names. Hold a key twice: what is
asked for is given, and forgotten.

What is put together is a segment: a file that is mapped into memory, and a `HashIndex` of its keys. Keys are in one of
a few parts, by their hash; a segment that is not larger than twice those after it becomes one with them, in its part,
without what was given. So there are few segments, and each merge is of a part only. One call merges a few times as much
as it puts; what is left is left to the next ones.

Follows O'Neil et al., "The Log-Structured Merge-Tree".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_hash
from headgate.operators.transform_with_state.indexed_rows import IndexedRows, hashes_of
from headgate.operators.transform_with_state.sorted_runs import SPILL_BYTES, mapped
from headgate.state.hash_index import Hashes, HashIndex, Places

_PART_BITS = 3
_MERGED_PER_PUT = 8
"""A call merges at most so many times as many cells as it puts, and a segment more."""


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
        self._parts: list[list[IndexedRows]] = [[] for _ in range(1 << _PART_BITS)]
        self._turn = 0  # the part that is merged next

    def put(self, cells: Sequence[tuple[bytes, bytes]]) -> None:
        """Store what is known of keys, of which it knows nothing."""
        if not cells:
            return
        keys, data = zip(*cells, strict=True)
        table = pa.record_batch([pa.array(keys, pa.large_binary()), pa.array(data, pa.large_binary())], ["key", "data"])
        hashes = key_hash([table["key"]])
        order, ends = _by_part(hashes)
        stored = self._mapped(pa.Table.from_batches([table.take(pa.array(order))]))
        hashes = hashes[order]
        for segments, begin, end in zip(self._parts, (0, *ends), ends, strict=False):
            if end > begin:
                index = HashIndex(hashes[begin:end], self._index_store)
                segments.append(IndexedRows(stored.slice(begin, end - begin), index))
        self._merge(_MERGED_PER_PUT * len(cells))

    def take(self, keys: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """Yield what is known of keys, and forget it."""
        if not keys or not len(self):
            return
        hashes = hashes_of(keys)
        order, ends = _by_part(hashes)
        hashes, of_part = hashes[order], [keys[place] for place in order.tolist()]
        for number, (begin, end) in enumerate(zip((0, *ends), ends, strict=False)):
            if end > begin:
                for segment in self._parts[number]:
                    for key, (data,) in segment.take(of_part[begin:end], hashes[begin:end], ("data",)):
                        yield key, data

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

    def _merged(self, segments: Sequence[IndexedRows]) -> IndexedRows:
        table = pa.Table.from_batches([segment.rest() for segment in segments]).combine_chunks()
        stored = self._mapped(table)
        return IndexedRows(stored, HashIndex(key_hash([stored["key"]]), self._index_store))

    def _mapped(self, table: pa.Table) -> pa.RecordBatch:
        (batch,) = mapped(table, self._folder / f"cells-{next(self._numbers)}.arrow").to_batches()
        return batch

    def _index_store(self, table: pa.Table) -> pa.Table:
        if table.nbytes < SPILL_BYTES:
            return table
        return mapped(table, self._folder / f"index-{next(self._numbers)}.arrow")


def _by_part(hashes: Hashes) -> tuple[Places, list[int]]:
    """Return the order in which hashes stand by their parts, and where in it each part ends."""
    part = (hashes >> np.uint64(64 - _PART_BITS)).astype(np.uint8)
    return np.argsort(part, kind="stable"), np.cumsum(np.bincount(part, minlength=1 << _PART_BITS)).tolist()
