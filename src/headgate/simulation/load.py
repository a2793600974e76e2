"""How a load changes: how fast what is read grows, and when it has grown so far.

Never: round a row away: all is counted in whole thousandths of a millisecond.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property

import msgspec

_NORMAL = 1000


class Load(msgspec.Struct, frozen=True, dict=True):
    """A load in steps.

    Parameters
    ----------
    steps
        From when on, in milliseconds, it is how many thousandths of the normal one; the first from 0 on, none is 0.

    Examples
    --------
    >>> load = Load(((0, 1000), (100, 2000)))
    >>> load.grown_ms(150), load.reached_ms(150), load.reached_ms(200)
    (200, 125, 150)
    """

    steps: tuple[tuple[int, int], ...]

    def grown_ms(self, now_ms: int) -> int:
        """Return how long the normal load takes for what there is by then, in whole milliseconds."""
        number = bisect_right(self._begins, now_ms) - 1
        begin_ms, pace = self.steps[number]
        return (self._grown[number] + (now_ms - begin_ms) * pace) // _NORMAL

    def reached_ms(self, grown_ms: int) -> int:
        """Return when there is as much for the first time."""
        number = bisect_right(self._grown, grown_ms * _NORMAL) - 1
        begin_ms, pace = self.steps[number]
        left = grown_ms * _NORMAL - self._grown[number]
        return begin_ms + -(-left // pace)

    @cached_property
    def _begins(self) -> list[int]:
        return [begin_ms for begin_ms, _ in self.steps]

    @cached_property
    def _grown(self) -> list[int]:
        """By step: what there was before it, in thousandths."""
        grown = [0]
        for (begin_ms, pace), (end_ms, _) in zip(self.steps, self.steps[1:]):
            grown.append(grown[-1] + (end_ms - begin_ms) * pace)
        return grown


def noisy(draw: random.Random, phases: Iterable[tuple[int, int]], *, noise: int, step_ms: int) -> Load:
    """Return a load of phases that varies within each.

    Parameters
    ----------
    draw
        Decides.
    phases
        How long each takes, in milliseconds, and how many thousandths of the normal load it has.
    noise
        By how many thousandths of that it varies at most.
    step_ms
        How often it does.
    """
    steps, begin_ms = list[tuple[int, int]](), 0
    for length_ms, pace in phases:
        for at_ms in range(begin_ms, begin_ms + length_ms, step_ms):
            steps.append((at_ms, max(1, pace * (_NORMAL + draw.randint(-noise, noise)) // _NORMAL)))
        begin_ms += length_ms
    return Load(tuple(steps))
