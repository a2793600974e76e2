"""Futures made of others, without a thread that waits for them.

Never: block, or hold a lock while callbacks run. Any thread may complete what is waited for.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")
MadeT = TypeVar("MadeT")


def done_with(result: T) -> Future[T]:
    """Return a future that has its result."""
    done: Future[T] = Future()
    done.set_result(result)
    return done


def mapped(future: Future[T], make: Callable[[T], MadeT]) -> Future[MadeT]:
    """Return a future of what is made of a result, on the thread that completes it; it fails with the other."""
    made: Future[MadeT] = Future()

    def arrived(future: Future[T]) -> None:
        try:
            result = make(future.result())
        except BaseException as error:  # else whoever waits would wait for ever
            made.set_exception(error)
        else:
            made.set_result(result)

    future.add_done_callback(arrived)
    return made


def gathered(futures: Sequence[Future[T]]) -> Future[list[T]]:
    """Return a future of all results in their order, which fails as soon as one does, with the first error."""
    if not futures:
        return done_with([])
    whole: Future[list[T]] = Future()
    lock = threading.Lock()
    missing = len(futures)  # guarded by lock; below 1: it is complete, or has failed

    def arrived(future: Future[T]) -> None:
        nonlocal missing
        error = future.exception()
        with lock:
            was, missing = missing, missing - 1 if error is None else 0
            if was < 1 or missing:
                return
        if error is None:
            whole.set_result([each.result() for each in futures])
        else:
            whole.set_exception(error)

    for future in futures:
        future.add_done_callback(arrived)
    return whole
