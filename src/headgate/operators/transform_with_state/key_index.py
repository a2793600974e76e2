"""`KeyIndex`: where in a table the rows of each key are, found by the hash of the key.

Never: hold an object for each key: of a row it has eight bytes, in order, which may be on the local disk.

They are as many of the upper bits of the key's hash as there is room for, and below them the row's number: so one sort
of numbers makes the index, rows of one key are in the order of the table, and a binary search finds them. What it finds
may be rows of another key, whose hash is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.key_hash import key_hash

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    """Return the hash of each key."""
    return key_hash([pa.array(keys, pa.large_binary())])


class KeyIndex:
    """The rows of a table by their keys.

    Parameters
    ----------
    keys
        The key of each row.
    store
        Stores a table where it takes no memory, or returns it as it is.
    """

    def __init__(self, keys: pa.Array, store: Callable[[pa.Table], pa.Table]) -> None:
        self._shift = np.uint64(max(1, len(keys).bit_length()))
        entries = key_hash([keys])
        entries >>= self._shift
        entries <<= self._shift
        entries |= np.arange(len(keys), dtype=np.uint64)
        entries.sort()
        self._entries: Hashes = store(pa.table({"entry": entries}))["entry"].to_numpy()

    def rows(self, hashes: Hashes) -> tuple[Places, Places]:
        """Return rows that may be of keys with these hashes, and whose each is, as a place in ``hashes``.

        Those of one come in the order of the table.
        """
        low = (hashes >> self._shift) << self._shift
        first = np.searchsorted(self._entries, low)
        # What is beyond the last hash wraps around to 0; all entries from the first one are below it.
        after = low + (np.uint64(1) << self._shift)
        end = np.where(after == 0, len(self._entries), np.searchsorted(self._entries, after))
        counts = end - first
        owner = np.repeat(np.arange(len(hashes)), counts)
        place = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(first, counts)
        row: Any = self._entries[place] & ((np.uint64(1) << self._shift) - np.uint64(1))
        return row.astype(np.int64), owner
