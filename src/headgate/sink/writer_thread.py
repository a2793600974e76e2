"""A thread beside a sink's writer, for what may block: jobs in order, one at a time, with back pressure.

Never: run a job after one that failed, or hide its error: it is raised by the next call of any kind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from headgate.errors import HeadgateError, SinkError
from headgate.serial_executor import SerialExecutor

T = TypeVar("T")


class WriterThread:
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
        self._executor = SerialExecutor(name)
        self._limit_bytes = limit_bytes
        self._when_idle = when_idle
        self._idle_s = idle_s
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._bytes = 0
        self._jobs = 0  # that wait or run
        self._failure: BaseException | None = None
        self._room: Future[None] | None = None
        self._begun = False  # on the owner's thread only

    def submit(self, job: Callable[[], T], size_bytes: int = 0) -> Future[T]:
        """Queue a job; the future is done when it has run or never will.

        Parameters
        ----------
        job
            May block.
        size_bytes
            What it holds in memory until it has run.
        """
        future: Future[T] = Future()
        with self._lock:
            self._bytes += size_bytes
            self._jobs += 1
        self._executor.do(lambda: self._run(job, future, size_bytes), lambda: self._drop(future))
        self.begin()
        return future

    def begin(self) -> None:
        """Begin to call ``when_idle``, if there is one, though no job came yet."""
        if self._begun:
            return
        self._begun = True
        if self._when_idle is not None:
            self._executor.do_after(self._idle_s, self._idle)

    @property
    def is_idle(self) -> bool:
        """Whether all jobs have run: what is done by whoever asks is done after them, until the next is queued."""
        return not self._jobs

    def raise_failure(self) -> None:
        """Raise what a job raised."""
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
        if self._failure is not None:
            raise self._failure
        if self._bytes <= self._limit_bytes:
            return None
        with self._lock:
            if self._bytes <= self._limit_bytes:
                return None
            self._room = self._room or Future()
            return self._room

    def stop(self, timeout_s: float) -> bool:
        """Let the thread end after the job that it runs; those after it never run. Return whether it ended in time.

        Waits at most ``timeout_s`` seconds; a thread that goes on is abandoned.
        """
        ended = self._executor.abandon(timeout_s)
        self._end_room(_stopped())
        return ended

    # On the thread, but for `_drop`.

    def _run(self, job: Callable[[], T], future: Future[T], size_bytes: int) -> None:
        with self._lock:
            failure = self._failure
        if failure is not None:
            future.set_exception(failure)
            return
        try:
            result = job()
        except BaseException as error:
            # Whatever it is: an error that stayed in this thread would be rows that are never written.
            self._fail(error)  # before anybody hears of it: whoever does finds the sink broken
            future.set_exception(error)
            return
        with self._lock:
            self._jobs -= 1
        future.set_result(result)
        with self._lock:
            self._bytes -= size_bytes
            room = self._room if self._bytes * 2 <= self._limit_bytes else None
            if room is not None:
                self._room = None
        if room is not None:
            room.set_result(None)

    def _idle(self) -> None:
        assert self._when_idle is not None
        if self._failure is not None:
            return
        try:
            self._when_idle()
        except BaseException as error:
            self._fail(error)
        else:
            self._executor.do_after(self._idle_s, self._idle)

    def _drop(self, future: Future[T]) -> None:
        future.set_exception(self._failure or _stopped())

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._failure = error
        self._end_room(error)

    def _end_room(self, error: BaseException) -> None:
        with self._lock:
            room, self._room = self._room, None
        if room is not None:
            room.set_exception(error)


def _stopped() -> HeadgateError:
    return SinkError("The sink's writer was closed before these rows were written.")
