"""`KeyGroupWatermarks`: how far event time has come for each key group, which is part of the state.

Never: go back.

After a rescale a subtask may have key groups of several, which stood at different watermarks when the barrier came.
What was late, or over, before a restore is so after it, and what was in time is in time: the watermark that counts is
that of the subtask or that of the key group, whichever is greater.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from headgate.protocol.key_groups import KeyGroupRange

LEAST_US = -(1 << 63)
"""The watermark before there is one."""

Ranges = list[tuple[int, int, int]]
"""First and last key group, and their watermark in microseconds: what is stored."""


class KeyGroupWatermarks:
    """The watermarks of a subtask's key groups, in microseconds.

    Parameters
    ----------
    own
        The key groups.
    max_parallelism
        How many there are in all.
    """

    def __init__(self, own: KeyGroupRange, max_parallelism: int) -> None:
        self._own = own
        self._reached = np.full(max_parallelism, LEAST_US, np.int64)
        self.most_restored_us = LEAST_US
        """The latest that a key group had where it was restored from."""
        self.now_us = LEAST_US
        """That of the subtask."""

    def advance(self, watermark_us: int) -> bool:
        """Take note of a watermark; return whether it is a later one."""
        if watermark_us <= self.now_us:
            return False
        self.now_us = watermark_us
        return True

    @property
    def are_one(self) -> bool:
        """Whether the subtask's counts for all key groups."""
        return self.now_us >= self.most_restored_us

    def of(self, groups: Callable[[], Any]) -> Any:
        """Return what counts: one for all rows, or an array; ``groups`` returns the key group of each row."""
        return self.now_us if self.are_one else self.at(groups())

    def at(self, groups: Any) -> Any:
        """Return what counts for each of some key groups."""
        return np.maximum(self._reached[groups], self.now_us)

    def restored(self, groups: Any) -> Any:
        """Return what each of some key groups had where it was restored from."""
        return self._reached[groups]

    def ranges(self) -> Ranges:
        """Return what is stored."""
        own = self._own
        reached = self.at(slice(own.first, own.last + 1))
        (changes,) = np.nonzero(reached[1:] != reached[:-1])
        bounds = [0, *(int(each) + 1 for each in changes), len(reached)]
        return [(own.first + begin, own.first + end - 1, int(reached[begin])) for begin, end in pairwise(bounds)]

    def take_on(self, ranges: Sequence[tuple[int, int, int]]) -> None:
        """Take on what one former subtask stored."""
        for first, last, reached in ranges:
            self._reached[first : last + 1] = reached

    def settle(self) -> None:
        """Take note that all former subtasks were taken on."""
        mine = self._reached[self._own.first : self._own.last + 1]
        self.now_us, self.most_restored_us = int(mine.min()), int(mine.max())
