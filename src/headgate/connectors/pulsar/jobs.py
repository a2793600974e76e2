"""Runs what blocks beside a split reader, on a few threads, and brings the results back as events.

Never: outlive its owner's wish: threads are daemons, and what comes after `close` is let go of.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Event = Callable[[], None]
"""What is to be done on the owner's thread."""
_Answer = tuple[int, Any, Exception | None]
_Calls = queue.SimpleQueue[tuple[int, Callable[[], Any], queue.SimpleQueue[_Answer]] | None]


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


class Parallel:
    """Threads that make calls for others, which wait for them. They end when nobody has this object any more.

    Unlike those of an executor of Python's, they hold up no process that ends.

    Parameters
    ----------
    threads
        How many there are at most. They are started when there is work for them, and stay.
    """

    def __init__(self, threads: int) -> None:
        self._most = threads
        self._lock = threading.Lock()
        self._started = 0  # guarded by lock
        self._calls: _Calls = queue.SimpleQueue()
        weakref.finalize(self, _end, self._calls, threads).atexit = False

    def results(self, work: Sequence[Callable[[], T]]) -> list[T]:
        """Return what calls return, in their order, or raise the first error. Blocks; any thread may call it."""
        if len(work) == 1:
            return [work[0]()]
        with self._lock:
            while self._started < min(self._most, len(work)):
                self._started += 1
                threading.Thread(target=_make, args=(self._calls,), name="headgate-pulsar-call", daemon=True).start()
        answers: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        for number, each in enumerate(work):
            self._calls.put((number, each, answers))
        results: dict[int, Any] = {}
        failed: Exception | None = None
        for _ in work:
            number, results[number], error = answers.get()
            failed = failed or error
        if failed is not None:
            raise failed
        return [results[number] for number in range(len(work))]


def _make(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        number, work, answers = call
        try:
            answers.put((number, work(), None))
        except Exception as error:
            answers.put((number, None, error))
        del call, work  # by which it might have the object whose end is its own


def _end(calls: _Calls, threads: int) -> None:
    for _ in range(threads):
        calls.put(None)
