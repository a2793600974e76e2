"""A thread beside a sink's writer, for what may block: jobs in order, one at a time, with back pressure.

Never: run a job after one that failed, or hide its error: it is raised by the next call of any kind.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from headgate.errors import HeadgateError, SinkError

T = TypeVar("T")


class WorkerThread:
    """Runs jobs on one daemon thread, which begins with the first of them.

    Parameters
    ----------
    name
        The thread's name.
    limit_bytes
        How many bytes may wait before `room` asks for a pause.
    when_idle
        Called on the thread every ``idle_s`` seconds while no job waits; an error of it is one of a job.
    idle_s
        See there.
    """

    def __init__(
        self, name: str, *, limit_bytes: int = 0, when_idle: Callable[[], object] | None = None, idle_s: float = 0.2
    ) -> None:
        self._name = name
        self._limit_bytes = limit_bytes
        self._when_idle = when_idle
        self._idle_s = idle_s
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._changed = threading.Condition(self._lock)
        self._jobs: deque[tuple[Callable[[], None], Callable[[BaseException], object], int]] = deque()
        self._bytes = 0
        self._failure: BaseException | None = None
        self._room: Future[None] | None = None
        self._stopping = False
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], T], size_bytes: int = 0) -> Future[T]:
        """Queue a job; the future is done, on this thread, when it has run or never will.

        Parameters
        ----------
        job
            May block.
        size_bytes
            What it holds in memory until it has run.
        """
        future: Future[T] = Future()

        def run() -> None:
            try:
                result = job()
            except BaseException as error:
                with self._lock:
                    self._failure = error  # before anybody hears of it: whoever does finds the sink broken
                future.set_exception(error)
                raise
            future.set_result(result)

        with self._lock:
            failure = self._failure
            if failure is None and not self._stopping:
                self._jobs.append((run, future.set_exception, size_bytes))
                self._bytes += size_bytes
                self._start_locked()
                self._changed.notify_all()
                return future
        future.set_exception(failure or _stopped())
        return future

    def raise_failure(self) -> None:
        """Raise what a job raised."""
        with self._lock:
            failure = self._failure
        if failure is not None:
            raise failure

    def room(self) -> Future[None] | None:
        """Return None if there is room for more, else a future that is done when half of it is free again.

        Raises
        ------
        BaseException
            What a job raised.
        """
        self.raise_failure()
        with self._lock:
            if self._bytes <= self._limit_bytes:
                return None
            self._room = self._room or Future()
            return self._room

    def stop(self, timeout_s: float) -> bool:
        """Let the thread end after the job that it runs; those behind it never run. Return whether it ended in time.

        Waits at most ``timeout_s`` seconds; a thread that goes on is abandoned.
        """
        with self._lock:
            self._stopping = True
            self._changed.notify_all()
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _start_locked(self) -> None:
        assert self._lock.locked()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()

    # From here on: on the thread.

    def _run(self) -> None:
        try:
            while (next_job := self._next()) is not None:
                run, size_bytes = next_job
                run()
                self._ran(size_bytes)
            self._end(_stopped())
        except BaseException as error:
            # Whatever it is: an error that stayed in this thread would be rows that are never written.
            with self._lock:
                self._failure = error
            self._end(error)

    def _next(self) -> tuple[Callable[[], None], int] | None:
        """Return the next job; None: it is time to end."""
        idle_at_s = time.monotonic() + self._idle_s
        while True:
            with self._lock:
                if self._stopping:
                    return None
                if self._jobs:
                    run, _, size_bytes = self._jobs.popleft()
                    return run, size_bytes
                self._changed.wait(None if self._when_idle is None else max(0.0, idle_at_s - time.monotonic()))
            if self._when_idle is not None and time.monotonic() >= idle_at_s:
                self._when_idle()
                idle_at_s = time.monotonic() + self._idle_s

    def _ran(self, size_bytes: int) -> None:
        with self._lock:
            self._bytes -= size_bytes
            room = self._room if self._bytes * 2 <= self._limit_bytes else None
            if room is not None:
                self._room = None
        if room is not None:
            room.set_result(None)

    def _end(self, error: BaseException) -> None:
        with self._lock:
            self._stopping = True
            dropped = list(self._jobs)
            self._jobs.clear()
            room, self._room = self._room, None
        for _, drop, _ in dropped:
            drop(error)
        if room is not None:
            room.set_exception(error)


def _stopped() -> HeadgateError:
    return SinkError("The sink's writer was closed before these rows were written.")
