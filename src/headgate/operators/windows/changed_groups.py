"""`ChangedGroups`: which groups changed since they were emitted, by their buckets and the hashes of their keys.

Never: hold a key. A group whose hash is that of one that changed is taken for it: it is emitted once more, as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from headgate.state.arrays import order_of

_MANY = 16
"""Additions, beyond which they are made one."""
_ODD = np.uint64(0x9E3779B97F4A7C15)


class Groups:
    """Groups, each once as far as their numbers differ. Made by `ChangedGroups`.

    Parameters
    ----------
    buckets, hashes
        Those of each.
    """

    def __init__(self, buckets: Any, hashes: Any) -> None:
        numbers = numbers_of(buckets, hashes)
        order = order_of(numbers)
        first = np.arange(len(order)) == 0
        for each in (buckets[order], hashes[order]):
            first[1:] |= each[1:] != each[:-1]
        order = order[first]
        self.buckets, self.hashes = buckets[order], hashes[order]
        self._numbers = numbers[order]

    def __len__(self) -> int:
        return len(self._numbers)

    def contain(self, buckets: Any, hashes: Any) -> Any:
        """Return which of some groups are among these, of which there is one at least, by their numbers."""
        numbers = numbers_of(buckets, hashes)
        order = order_of(numbers)  # neighbours are found near each other
        numbers = numbers[order]
        found = np.empty(len(order), np.bool_)
        found[order] = self._numbers.take(np.searchsorted(self._numbers, numbers), mode="clip") == numbers
        return found


class ChangedGroups:
    """Collects groups that change."""

    def __init__(self) -> None:
        self._added: list[tuple[Any, Any]] = []

    def __bool__(self) -> bool:
        return bool(self._added)

    def add(self, buckets: Any, hashes: Any) -> None:
        """Take groups."""
        self._added.append((buckets, hashes))
        if len(self._added) > _MANY:
            groups = self._together()
            self._added = [(groups.buckets, groups.hashes)]

    def take(self, last_us: int) -> Groups:
        """Return the groups of buckets up to this one, and forget them."""
        if not self._added:
            return Groups(np.empty(0, np.int64), np.empty(0, np.uint64))
        groups = self._together()
        due = groups.buckets <= last_us
        self._added = [] if due.all() else [(groups.buckets[~due], groups.hashes[~due])]
        return Groups(groups.buckets[due], groups.hashes[due])

    def _together(self) -> Groups:
        buckets, hashes = zip(*self._added)
        return Groups(np.concatenate(buckets), np.concatenate(hashes))


def numbers_of(buckets: Any, hashes: Any) -> Any:
    """Return a number of each group."""
    return hashes ^ (buckets.view(np.uint64) * _ODD)
