"""`IndexedRows`: rows of keys, each of which is given once, found by the hashes of their keys.

Never: hold an object for each key, or move a row: a `HashIndex` says where the rows of each key are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_hash
from headgate.state.hash_index import Hashes, HashIndex


def hashes_of(keys: Sequence[bytes]) -> Hashes:
    """Return the hash of each key."""
    return key_hash([pa.array(keys, pa.large_binary())])


class IndexedRows:
    """Rows with a key, each of which is given once.

    Parameters
    ----------
    rows
        With a column ``key``.
    index
        Where the rows of each key are.
    """

    def __init__(self, rows: pa.RecordBatch, index: HashIndex) -> None:
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
