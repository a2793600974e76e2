"""Runs what blocks beside a split reader, on a few threads, and brings the results back as events.

Never: outlive its owner's wish: threads are daemons, and what comes after `close` is let go of.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")

Event = Callable[[], None]
"""What is to be done on the owner's thread."""

_WAIT_MS = 1000


class Jobs:
    """Threads that run jobs, and the queue of events for the owner's thread.

    Parameters
    ----------
    threads
        How many jobs run at once; a thread is started when a job finds all others busy.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._threads: list[threading.Thread] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._pending = 0
        self.closed = False

    def run(self, work: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        """Run ``work`` on a thread, and ``then`` with its result or error as an event."""

        def job() -> None:
            try:
                result, error = work(), None
            except Exception as raised:
                result, error = None, raised
            self.post(lambda: self._done(then, result, error))

        self._pending += 1
        if self._pending > len(self._threads) < self._most:
            thread = threading.Thread(target=self._work, name="headgate-pulsar-job", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(job)

    def post(self, event: Event) -> None:
        """Leave an event for the owner's thread, from any other; it ends `wait`."""
        self._events.put(event)

    def wait(self, timeout_ms: int) -> int:
        """Handle all events that are there; if there are none, wait for one. Return how many there were."""
        count = 0
        try:
            event = self._events.get(timeout=timeout_ms / 1000) if timeout_ms > 0 else self._events.get_nowait()
            while True:
                count += 1
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            return count

    def close(self) -> None:
        """Let the threads end, without waiting for them."""
        self.closed = True
        for _ in self._threads:
            self._jobs.put(None)

    def _done(self, then: Callable[[Any, Exception | None], None], result: Any, error: Exception | None) -> None:
        self._pending -= 1
        then(result, error)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and not self.closed:
            job()


def in_parallel(work: Sequence[Callable[[], T]], threads: int) -> list[T]:
    """Run calls on so many threads at most, and return their results in order; raise the first error. Blocks.

    Unlike those of an executor of Python's, its threads hold up no process that ends.
    """
    if len(work) == 1:
        return [work[0]()]
    results: dict[int, tuple[Any, Exception | None]] = {}

    def note(number: int, result: Any, error: Exception | None) -> None:
        results[number] = result, error

    jobs = Jobs(threads)
    for number, each in enumerate(work):
        jobs.run(each, partial(note, number))
    while len(results) < len(work):
        jobs.wait(_WAIT_MS)
    jobs.close()
    for _, error in results.values():
        if error is not None:
            raise error
    return [results[number][0] for number in range(len(work))]
