"""The thread beside a writer: jobs in order, errors once and for all, room. Nothing here waits for a time."""

from __future__ import annotations

import threading

import pytest

from headgate.errors import SinkError
from headgate.sink.writer_thread import WriterThread


def test_jobs_run_in_order_on_one_thread() -> None:
    worker = WriterThread("in-order")
    seen: list[tuple[int, str]] = []
    futures = [
        worker.submit(lambda number=number: seen.append((number, threading.current_thread().name)))  # type: ignore[misc]
        for number in range(5)
    ]
    assert [each.result(60) for each in futures] == [None] * 5
    assert seen == [(number, "in-order") for number in range(5)]
    assert worker.stop(60)


def test_no_job_runs_after_one_that_failed() -> None:
    worker = WriterThread("fails", limit_bytes=0)
    go_on = threading.Event()
    ran: list[int] = []
    failing = worker.submit(lambda: (go_on.wait(60), 1 / 0), size_bytes=1)
    after = worker.submit(lambda: ran.append(1))
    room = worker.room()
    assert room is not None
    go_on.set()
    for each in (failing, after, room):
        assert isinstance(each.exception(60), ZeroDivisionError)
    worker.stop(60)
    with pytest.raises(ZeroDivisionError):
        worker.raise_failure()
    with pytest.raises(ZeroDivisionError):
        worker.room()
    assert isinstance(worker.submit(lambda: ran.append(2)).exception(0), ZeroDivisionError)
    assert ran == []


def test_there_is_room_again_when_half_of_it_is_free() -> None:
    worker = WriterThread("room", limit_bytes=100)
    gates = [threading.Event() for _ in range(3)]
    for gate in gates:
        worker.submit(lambda gate=gate: gate.wait(60), size_bytes=40)  # type: ignore[misc]
    room = worker.room()
    assert room is not None
    gates[0].set()
    gates[1].set()
    room.result(60)
    assert worker.room() is None
    gates[2].set()
    assert worker.stop(60)


def test_what_waits_when_it_is_stopped_never_runs() -> None:
    worker = WriterThread("stopped")
    begun, go_on = threading.Event(), threading.Event()
    running = worker.submit(lambda: (begun.set(), go_on.wait(60)))
    waiting = worker.submit(lambda: None)
    assert begun.wait(60)
    assert not worker.stop(0), "it is abandoned while it runs"
    go_on.set()
    assert worker.stop(60)
    assert running.exception(60) is None
    assert isinstance(waiting.exception(60), SinkError)
    assert isinstance(worker.submit(lambda: None).exception(0), SinkError)


def test_an_error_of_what_runs_when_idle_counts() -> None:
    worker = WriterThread("idle", when_idle=lambda: 1 / 0, idle_s=0)
    worker.submit(lambda: None).result(60)
    with pytest.raises(ZeroDivisionError):
        while True:
            worker.raise_failure()


def test_a_thread_that_was_never_needed_is_never_there() -> None:
    worker = WriterThread("unneeded")
    assert worker.stop(0)
    assert not [each for each in threading.enumerate() if each.name == "unneeded"]
