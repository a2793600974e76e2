"""A thread for short work of many: what is asked for now, in order, and what is due later.

Never: run what may take long: all else waits behind it. Wake up without need.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Errands:
    """Runs functions on one thread. An error of one is logged; the others go on.

    Parameters
    ----------
    name
        The thread's.
    """

    def __init__(self, name: str) -> None:
        # Guards the fields below.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._now: deque[Callable[[], None]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Run this soon. Does not block; dropped after `close`."""
        with self._lock:
            if not self._closing:
                self._now.append(work)
                self._changed.notify()

    def do_after(self, delay_s: float, work: Callable[[], None]) -> None:
        """Run this in so many seconds, unless `close` is called before."""
        with self._lock:
            if not self._closing:
                heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._numbers), work))
                self._changed.notify()

    def close(self) -> None:
        """Run what was asked for until now, drop what is due later, end the thread. Blocks until it has ended."""
        with self._lock:
            self._closing = True
            self._later.clear()
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                logger.exception("An errand of the data plane failed.")
            del work  # which may hold a channel's ends while the thread waits

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do; None: there will be nothing."""
        with self._lock:
            while True:
                if self._now:
                    return self._now.popleft()
                if self._closing:
                    return None
                wait_s = self._later[0][0] - time.monotonic() if self._later else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._later)[2]
                self._changed.wait(wait_s)
