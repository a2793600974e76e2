"""Finds rows by the hashes of their keys: `HashIndex` where they are in another order, `HashFilter` before a search.

Never: hold an object for each row, or take a hash for a key: what is found may be rows of another key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.state.arrays import numbers_from, packed

Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
Store = Callable[[pa.Table], pa.Table]
"""Stores a table where it takes no memory, or returns it as it is."""

_NONE: Places = np.zeros(0, np.int64)


class HashIndex:
    """Where the rows of each hash are: eight bytes a row, which may be on the local disk.

    One sort of numbers makes it, rows of one hash are in their order, and a binary search finds them. Rows of which
    only the upper bits of the hash are the same are found, too.

    Parameters
    ----------
    hashes
        That of each row.
    store
        Stores the index.
    """

    def __init__(self, hashes: Hashes, store: Store = lambda table: table) -> None:
        numbers, self._mask = packed(hashes)
        self._numbers: Hashes = store(pa.table({"number": numbers}))["number"].to_numpy()
        self.nbytes = numbers.nbytes

    def rows(self, hashes: Hashes) -> tuple[Places, Places]:
        """Return rows that may have these hashes, and the place among these for each: those of one in order."""
        numbers = self._numbers
        if not len(numbers):
            return _NONE, _NONE
        low = hashes & ~self._mask
        first = np.searchsorted(numbers, low)
        (hit,) = np.nonzero(numbers.take(first, mode="clip") & ~self._mask == low)
        if not len(hit):
            return _NONE, _NONE
        counts = np.searchsorted(numbers, low[hit] | self._mask) - first[hit]  # no row has the number of all ones
        place = numbers_from(first[hit], counts)
        rows: Any = numbers[place] & self._mask
        return rows.astype(np.int64), np.repeat(hit, counts)


class HashFilter:
    """Says of hashes which ones are surely not among some, for a byte of each of these: a bit for their upper bits.

    Parameters
    ----------
    hashes
        Those that it knows, in order.
    """

    def __init__(self, hashes: Hashes) -> None:
        bits = len(hashes).bit_length() + 2
        self._shift = np.uint64(64 - bits)
        there = np.zeros(1 << bits, np.bool_)
        there[hashes >> self._shift] = True
        self._bits = np.packbits(there, bitorder="little")
        self.nbytes = self._bits.nbytes

    def may_have(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return which hashes may be among them: all that are, and one of five or more of the others."""
        places = hashes >> self._shift
        found = self._bits[places >> np.uint64(3)]
        found >>= places.astype(np.uint8) & np.uint8(7)
        found &= np.uint8(1)
        among: npt.NDArray[np.bool_] = found.view(np.bool_)
        return among
