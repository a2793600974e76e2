"""The thread that does one piece of work after another."""

from __future__ import annotations

import logging
import threading

import pytest

from headgate.serial_executor import SerialExecutor

PATIENCE_S = 60


def test_work_is_done_in_order_on_one_thread_of_that_name() -> None:
    worker, done = SerialExecutor("a worker"), []
    for number in range(20):
        worker.do(lambda number=number: done.append((number, threading.current_thread().name)))  # type: ignore[misc]
    worker.close(PATIENCE_S)
    assert done == [(number, "a worker") for number in range(20)]
    assert "a worker" not in {thread.name for thread in threading.enumerate()}


def test_work_that_raises_is_logged_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    worker, done = SerialExecutor("a worker"), threading.Event()

    def fail() -> None:
        raise SystemExit("enough")

    with caplog.at_level(logging.ERROR):
        worker.do(fail)
        worker.do(done.set)
        worker.close(PATIENCE_S)
    assert done.is_set()
    assert "a worker: a piece of work raised" in caplog.text and "enough" in caplog.text


def test_close_does_not_wait_for_work_that_hangs_nor_for_itself() -> None:
    worker, released, ended = SerialExecutor("a worker"), threading.Event(), threading.Event()

    def hang() -> None:
        released.wait(PATIENCE_S)

    worker.do(hang)
    worker.close(0.01)
    assert not released.is_set()
    released.set()

    other = SerialExecutor("another worker")

    def close_itself() -> None:
        other.close()
        ended.set()

    other.do(close_itself)
    assert ended.wait(PATIENCE_S)
    worker.close(PATIENCE_S)


def test_what_is_abandoned_is_not_done() -> None:
    worker, released, began, done = SerialExecutor("a worker"), threading.Event(), threading.Event(), []

    def hang() -> None:
        began.set()
        released.wait(PATIENCE_S)

    worker.do(hang)
    worker.do(lambda: done.append("late"))
    assert began.wait(PATIENCE_S)
    assert not worker.abandon(0.01), "it hangs"
    released.set()
    assert worker.abandon(PATIENCE_S)
    assert done == []
