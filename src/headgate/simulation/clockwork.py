"""Virtual time: what is to happen, in the order in which it does, and who it happens to.

Never: let something happen to a process that is dead.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any


class Process:
    """Something that lives, is frozen at times, and dies. What was to happen to it then does not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.frozen_until_ms = 0

    def freeze(self, until_ms: int) -> None:
        """Let nothing happen to it for a while; then everything that was to, in order."""
        self.frozen_until_ms = max(self.frozen_until_ms, until_ms)


class Clockwork:
    """The one queue of a cluster."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.steps = 0
        self._count = 0
        self._queue: list[tuple[int, int, Process, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_ms: int, process: Process, what: Callable[..., None], *arguments: Any) -> None:
        """Let something happen to a process later."""
        self.at(self.now_ms + delay_ms, process, what, *arguments)

    def at(self, time_ms: int, process: Process, what: Callable[..., None], *arguments: Any) -> None:
        """Let something happen to a process at a time in milliseconds."""
        self._count += 1
        heapq.heappush(self._queue, (time_ms, self._count, process, what, arguments))

    def step(self) -> bool:
        """Let the next thing happen; return whether there was one."""
        while self._queue:
            time_ms, number, process, what, arguments = heapq.heappop(self._queue)
            if not process.alive:
                continue
            if process.frozen_until_ms > time_ms:  # in order, as soon as it moves again
                heapq.heappush(self._queue, (process.frozen_until_ms, number, process, what, arguments))
                continue
            self.now_ms = max(self.now_ms, time_ms)
            self.steps += 1
            what(*arguments)
            return True
        return False
