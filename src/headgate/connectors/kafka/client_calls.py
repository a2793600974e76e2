"""Calls into librdkafka that may outlive the time-out which they were given: they are waited for on a second thread.

Never: cancel a call, which nothing can. One that is overdue is left alone with its thread and its client, for good, and
whoever waited goes on with a client of its own.

librdkafka 2.16 has calls whose time-out does not work once a broker was killed and came back, among them
``send_offsets_to_transaction``: they never return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

GRACE_S = 5.0
"""How much longer than its own time-out a call may take, in seconds: a busy machine is slow."""


class CallOverdueError(Exception):
    """A call did not return in time, and may never do so. What it was to do may happen yet."""


def call_within(timeout_s: float, call: Callable[[], T]) -> T:
    """Return what a call returns, or raise what it raises.

    Parameters
    ----------
    timeout_s
        The time-out that the call was given, in seconds; it may take `GRACE_S` longer.
    call
        Runs on a thread of its own. It should refer to the client, so that nothing frees that while the call runs.

    Raises
    ------
    CallOverdueError
        It has not returned by then.
    """
    done: Future[T] = Future()
    thread = threading.Thread(target=_run, args=(call, done), name="headgate-kafka-call", daemon=True)
    thread.start()
    thread.join(timeout_s + GRACE_S)
    if not done.done():
        raise CallOverdueError
    try:
        return done.result()
    finally:
        del done, thread  # the error's traceback holds this frame, which would hold the error, and with it the client


def _run(call: Callable[[], T], done: Future[T]) -> None:
    try:
        result = call()
    except BaseException as error:
        done.set_exception(error.with_traceback(None))  # it would hold `done`, as above
    else:
        done.set_result(result)
