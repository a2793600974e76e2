"""`KeyIndex`: where in a table the rows of each key are, found by the hash of the key; `IndexedRows` gives them out.

Never: hold an object for each key: of a row it has eight bytes, in order, which may be on the local disk.

They are as many of the upper bits of the key's hash as there is room for, and below them the row's number: so one sort
of numbers makes the index, rows of one key are in the order of the table, and a binary search finds them. What it finds
may be rows of another key, whose hash is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.key_hash import key_hash

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Store = Callable[[pa.Table], pa.Table]
"""Stores a table where it takes no memory, or returns it as it is."""

_NONE: Places = np.zeros(0, np.int64)


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    """Return the hash of each key."""
    return key_hash([pa.array(keys, pa.large_binary())])


class KeyIndex:
    """The rows of a table by their keys.

    Parameters
    ----------
    hashes
        That of each row's key.
    store
        Stores the index.
    """

    def __init__(self, hashes: Hashes, store: Store) -> None:
        bits = max(1, len(hashes).bit_length())
        self._shift, self._mask = np.uint64(bits), np.uint64((1 << bits) - 1)
        entries = hashes & ~self._mask
        entries |= np.arange(len(hashes), dtype=np.uint64)
        entries.sort()
        self._entries: Hashes = store(pa.table({"entry": entries}))["entry"].to_numpy()

    def rows(self, hashes: Hashes) -> tuple[Places, Places]:
        """Return rows that may be of keys with these hashes, and whose each is, as a place in ``hashes``.

        Those of one come in the order of the table.
        """
        entries = self._entries
        low = hashes & ~self._mask
        first = np.searchsorted(entries, low)
        (hit,) = np.nonzero(entries.take(first, mode="clip") & ~self._mask == low)
        if not len(hit):
            return _NONE, _NONE
        first = first[hit]
        counts = np.searchsorted(entries, low[hit] | self._mask) - first  # no row has the number of all ones
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        rows: Any = entries[place] & self._mask
        return rows.astype(np.int64), np.repeat(hit, counts)


class IndexedRows:
    """Rows with a key, each of which is given once.

    Parameters
    ----------
    rows
        With a column ``key``.
    index
        Where the rows of each key are.
    """

    def __init__(self, rows: pa.RecordBatch, index: KeyIndex) -> None:
        self._rows = rows
        self._index = index
        self._given = np.zeros(rows.num_rows, np.bool_)
        self.left = rows.num_rows
        """How many were not given."""

    def take(self, keys: Sequence[bytes], hashes: Hashes, columns: Sequence[str]) -> Iterator[tuple[bytes, Any]]:
        """Yield the rows of keys: the key, and what the columns have; those of one in the order of the table."""
        rows, owners = self._index.rows(hashes)
        fresh = ~self._given[rows]
        rows, owners = rows[fresh], owners[fresh]
        if not len(rows):
            return
        found = self._rows.take(pa.array(rows))
        given = []
        values = (found[name].to_pylist() for name in ("key", *columns))
        for row, owner, (key, *of_key) in zip(rows.tolist(), owners.tolist(), zip(*values, strict=True), strict=True):
            if key == keys[owner]:
                given.append(row)
                yield key, tuple(of_key)
        self._given[given] = True
        self.left -= len(given)

    def rest(self) -> pa.RecordBatch:
        """Return what was not given."""
        return self._rows.filter(pa.array(~self._given)) if self.left < self._rows.num_rows else self._rows
