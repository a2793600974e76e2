"""A daemon thread that runs functions one after another: what is asked for now, in order, and what is due later.

Never: run two at a time, wake up without need, or keep the process from ending.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

_log = logging.getLogger(__name__)


def _nobody_minds() -> None:
    """Do nothing."""


class SerialExecutor:
    """Runs functions on one thread, which begins with the first of them. An error of one is logged; the others go on.

    Parameters
    ----------
    name
        The thread's.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._changed = threading.Condition(self._lock)
        self._now: deque[tuple[Callable[[], None], Callable[[], None]]] = deque()
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._closing = False
        self._thread: threading.Thread | None = None

    def do(self, work: Callable[[], None], discard: Callable[[], None] = _nobody_minds) -> None:
        """Run this soon; ``discard`` is called instead after `close`, or when it is abandoned. Any thread; no wait."""
        with self._lock:
            closed = self._closing
            if not closed:
                self._now.append((work, discard))
                self._wake_locked()
        if closed:
            discard()

    def do_after(self, delay_s: float, work: Callable[[], None]) -> None:
        """Run this in so many seconds, unless `close` is called before. Any thread."""
        with self._lock:
            if not self._closing:
                heapq.heappush(self._later, (time.monotonic() + delay_s, next(self._numbers), work))
                self._wake_locked()

    def close(self, timeout_s: float | None = None) -> bool:
        """Run what was asked for until now, drop what is due later, and end the thread.

        Waits at most this long, in seconds (None: as long as it takes), unless it is called on the thread itself.
        Returns whether the thread has ended, or ends next.
        """
        with self._lock:
            self._closing = True
            self._later.clear()
            self._changed.notify()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def abandon(self, timeout_s: float) -> bool:
        """Do the same, but drop what waits."""
        with self._lock:
            self._closing = True
            dropped = [discard for _, discard in self._now]
            self._now.clear()
        ended = self.close(timeout_s)
        for discard in dropped:
            discard()
        return ended

    def _wake_locked(self) -> None:
        assert self._lock.locked()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._changed.notify()

    # On the thread.

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except BaseException:
                _log.exception("%s: a piece of work raised", self._name)
            del work  # which may hold what is to be released while the thread waits

    def _next(self) -> Callable[[], None] | None:
        """Wait for something to do; None: there will be nothing."""
        with self._lock:
            while True:
                if self._now:
                    return self._now.popleft()[0]
                if self._closing:
                    return None
                wait_s = self._later[0][0] - time.monotonic() if self._later else None
                if wait_s is not None and wait_s <= 0:
                    return heapq.heappop(self._later)[2]
                self._changed.wait(wait_s)
