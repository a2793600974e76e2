"""Slots as threads: one that fails ends the others, one that does not end is left alone, and the program ends them."""

from __future__ import annotations

import queue
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator

import pytest

from headgate.driver import slot_threads
from headgate.driver.slot_threads import SlotThreads
from headgate.errors import DeploymentError, HeadgateError
from headgate.protocol.error_reports import report_of
from headgate.protocol.messages import ErrorReport
from tests.waiting import wait_until

PATIENCE_S = 60


class ScriptedSlot:
    """Ends when the test says how: None, or an error. One that is deaf does not end when it is cancelled."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf
        self.cancelled: list[str] = []
        self.end: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def run(self) -> None:
        error = self.end.get()
        if error is not None:
            raise error

    def cancel(self, reason: str) -> None:
        self.cancelled.append(reason)
        if not self.deaf:
            self.end.put(HeadgateError(reason))


class Submission:
    """Three slots, and how their job ended."""

    def __init__(self, make: Callable[[int], ScriptedSlot] | None = None) -> None:
        self.slots = [ScriptedSlot() for _ in range(3)]
        self.ended: queue.SimpleQueue[ErrorReport | None] = queue.SimpleQueue()
        self.session: ErrorReport | None = None
        make = make or self.slots.__getitem__
        self.job = SlotThreads("q", lambda: make, 3, self.ended.put, lambda: self.session)

    def outcome(self) -> ErrorReport | None:
        return self.ended.get(timeout=PATIENCE_S)


@pytest.fixture(autouse=True)
def no_threads_are_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    wait_until(lambda: not [thread for thread in set(threading.enumerate()) - before if thread.is_alive()])


def test_slots_that_all_end_well_end_the_job_well() -> None:
    submission = Submission()
    for slot in submission.slots:
        slot.end.put(None)
    assert submission.outcome() is None
    assert not any(slot.cancelled for slot in submission.slots)


def test_the_first_error_ends_the_others() -> None:
    submission = Submission()
    submission.slots[1].end.put(ValueError("broken"))
    report = submission.outcome()
    assert report is not None and not report.final
    assert (report.error_type, report.message) == (
        "HeadgateError", "The threads of the slots ended: ValueError: broken",
    )  # fmt: skip
    assert [len(slot.cancelled) for slot in submission.slots][::2] == [1, 1]


def test_an_exit_of_a_slot_is_an_error() -> None:
    submission = Submission()
    submission.slots[0].end.put(SystemExit(3))
    report = submission.outcome()
    assert report is not None and "SystemExit: 3" in report.message


def test_a_cancelled_job_ends_with_an_error() -> None:
    submission = Submission()
    submission.job.cancel()
    submission.job.cancel()
    report = submission.outcome()
    assert report is not None and "cancelled" in report.message
    submission.job.join(PATIENCE_S)


def test_slots_that_are_made_after_the_job_was_cancelled_end_at_once() -> None:
    go_on = threading.Event()
    slots = [ScriptedSlot() for _ in range(3)]

    def make(number: int) -> ScriptedSlot:
        go_on.wait(PATIENCE_S)
        return slots[number]

    submission = Submission(make)
    submission.job.cancel()
    go_on.set()
    assert submission.outcome() is not None
    assert [len(slot.cancelled) for slot in slots] == [1, 1, 1]


def test_a_slot_that_cannot_be_made_ends_the_job() -> None:
    def make(number: int) -> ScriptedSlot:
        raise DeploymentError(f"no slot {number}")

    report = Submission(make).outcome()
    assert report is not None and report.final
    assert (report.error_type, report.message[:7]) == ("DeploymentError", "no slot")


def test_slots_that_do_not_end_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_threads, "_TIME_TO_END_S", 0.05)
    monkeypatch.setattr(slot_threads, "_LOOK_S", 0.01)
    submission = Submission()
    for slot in submission.slots[:2]:
        slot.deaf = True
    submission.job.cancel()
    report = submission.outcome()
    assert report is not None and "cancelled" in report.message
    for slot in submission.slots[:2]:
        slot.end.put(None)


def test_the_slots_end_with_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_threads, "_LOOK_S", 0.01)
    submission = Submission()
    submission.session = report_of(DeploymentError("the session was stopped"))
    assert submission.outcome() == submission.session
    assert [len(slot.cancelled) for slot in submission.slots] == [1, 1, 1]


def test_a_program_that_ends_ends_its_slots_first() -> None:
    """No function of a user's runs while the interpreter is taken apart, and nobody submits the slots again."""
    program = """
        import os, threading
        import pyarrow as pa
        import pyarrow.compute as pc
        from headgate.driver.slot_threads import SlotThreads

        class Slot:
            going = True

            def run(self):
                while self.going:
                    pc.sum(pc.add(numbers, 1))
                    running.set()
                os.write(1, b"ended ")

            def cancel(self, reason):
                self.going = False

        numbers, running = pa.array(range(100_000)), threading.Event()
        SlotThreads("q", lambda: lambda number: Slot(), 3, lambda error: os.write(1, b"reported "), lambda: None)
        running.wait()
    """
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=600
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.split() == ["ended"] * 3


def test_a_job_that_fails_beside_its_slots_ends_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_while_it_looks() -> None:
        sys.exit("gone")

    monkeypatch.setattr(slot_threads, "_LOOK_S", 0.01)
    submission = Submission()
    submission.job._look = exit_while_it_looks
    outcome = submission.outcome()
    assert outcome is not None and "gone" in outcome.message
    assert all(slot.cancelled == ["its submission failed"] for slot in submission.slots)
