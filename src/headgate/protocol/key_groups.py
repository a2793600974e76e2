"""Which subtask a key group belongs to: part of the checkpoint format, as the hash is that finds a key's group.

Never: change a result. Ranges and the hash (`headgate.operators.key_hash`) are version 1.

Follows docs/architecture.md, "Stages and exchanges"; Flink's KeyGroupRangeAssignment.
"""

from __future__ import annotations

from typing import Any

import msgspec


class KeyGroupRange(msgspec.Struct, frozen=True, order=True):
    """The key groups from ``first`` to ``last``, both included."""

    first: int
    last: int

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group <= self.last

    def holds(self, key_groups: Any) -> Any:
        """Return which key groups of an array are among these."""
        return (key_groups >= self.first) & (key_groups <= self.last)

    def __len__(self) -> int:
        return self.last - self.first + 1

    def overlaps(self, other: KeyGroupRange) -> bool:
        """Return whether a group is in both."""
        return self.first <= other.last and other.first <= self.last


def key_group_range(subtask: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """Return the key groups of a subtask.

    Examples
    --------
    >>> [key_group_range(subtask, 3, 128) for subtask in range(3)]
    [KeyGroupRange(first=0, last=42), KeyGroupRange(first=43, last=85), KeyGroupRange(first=86, last=127)]
    """
    assert 0 <= subtask < parallelism <= max_parallelism
    first = -(-subtask * max_parallelism // parallelism)
    last = -(-(subtask + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(first, last)


def subtask_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """Return the subtask that a key group belongs to."""
    return key_group * parallelism // max_parallelism
