"""A daemon thread that does pieces of work one after another, and tells each outcome.

Never: run two pieces at a time, or keep the process from ending.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

_log = logging.getLogger(__name__)


class Worker:
    """Runs what is given to `do`, in order, on a thread of its own.

    Parameters
    ----------
    name
        The thread's name.
    """

    def __init__(self, name: str) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Callable[[], None]) -> None:
        """Queue a piece of work. It tells its outcome, an error too, by itself; one that escapes is logged."""
        self._work.put(work)

    def close(self, timeout_s: float = 1.0) -> None:
        """Let the thread end behind what is queued; wait for that at most this long, in seconds."""
        self._work.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def abandon(self, timeout_s: float) -> bool:
        """Drop what is queued; wait for what runs at most this long, in seconds. Return whether the thread ended."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        self.close(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException:
                _log.exception("%s: a piece of work raised", self._thread.name)
