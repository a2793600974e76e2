"""What is stuck and what is only slow; and that a process which is stuck ends, whatever its threads do."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator

import pytest

from headgate.runtime import watchdog
from headgate.runtime.process import STUCK_STATUS
from headgate.runtime.watchdog import EndSlot, Looked, ProgressMachine, ReportStuck
from tests.machines import Later, explore


def machine() -> ProgressMachine:
    return ProgressMachine(stuck_timeout_ms=3000, look_ms=1000)


def events(of: ProgressMachine) -> Iterator[Later]:
    since_ms = 0 if of._looked_ms is None else of._looked_ms
    known = {name: since for name, (since, _) in of._calls.items()}
    for by_ms in (1000, 60_000):
        yield Later(Looked({}), by_ms)
        yield Later(Looked({"mail": since_ms}), by_ms)
        yield Later(Looked({"fetch": since_ms} | known), by_ms)


def test_the_table_is_what_the_machine_does() -> None:
    explore(machine, events, depth=6)


def look(at: ProgressMachine, *times_ms: int, **calls: int) -> list[watchdog.Action]:
    return [action for now_ms in times_ms for action in at.handle(Looked(calls), now_ms)]


def test_many_short_calls_are_no_long_one() -> None:
    made = machine()
    for now_ms in range(1000, 60_000, 1000):
        assert look(made, now_ms, mail=now_ms - 900) == []


def test_a_call_that_takes_too_long_ends_the_process_once() -> None:
    made = machine()
    assert look(made, *range(1000, 4000, 1000), mail=500) == []
    assert look(made, 4000, mail=500, fetch=3900) == [ReportStuck("mail", 3500), EndSlot()]
    assert look(made, 5000, mail=500, fetch=3900) == []


def test_the_oldest_of_several_is_named() -> None:
    made = machine()
    assert look(made, 1000, 2000, 3000, 4000, 5000, fetch=100, mail=200)[0] == ReportStuck("fetch", 3900)


def test_a_process_that_was_stopped_is_not_stuck() -> None:
    """SIGSTOP, or a laptop that slept, in the middle of a mail: only what the watchdog saw counts."""
    made = machine()
    assert look(made, 1000, mail=900) == []
    assert look(made, 3_600_000, mail=900) == []
    assert look(made, 3_601_000, mail=3_600_500) == []


PROGRAM = """
    import ctypes, os, signal, sys, threading, time
    from headgate.runtime.process import OwnProcess
    from headgate.runtime.watchdog import Watchdog

    class Process(OwnProcess):
        def beat(self, timeout_s):
            super().beat(timeout_s)
            beats.append(1)

    def report(message, stacks):
        print("REPORT", message)
        print(stacks)
        sys.stdout.flush()

    dog = Watchdog(
        Process(), stuck_timeout_ms={stuck}, heartbeat_timeout_ms={heartbeat}, report=report, end=lambda: os._exit(87)
    )
    beats, since = [], None
    dog.watch("mail 'poll' of subtask 3", lambda: since)
    dog.start()
"""


def run(body: str, *, stuck_ms: int, heartbeat_ms: int) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM.format(stuck=stuck_ms, heartbeat=heartbeat_ms)) + textwrap.dedent(body)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600)


def test_a_mail_that_hangs_ends_the_process_after_a_report() -> None:
    ended = run(
        """
        def hangs():
            global since
            since = time.monotonic()
            time.sleep(100)
        hangs()
        """,
        stuck_ms=400, heartbeat_ms=60_000,
    )  # fmt: skip
    assert ended.returncode == STUCK_STATUS, ended.stderr
    assert "REPORT mail 'poll' of subtask 3 has not ended for" in ended.stdout
    assert "in hangs" in ended.stdout, "the stacks say where"


@pytest.mark.parametrize(
    "body",
    [
        "ctypes.PyDLL(None).sleep(100)",
        "import re\nre.match('(a+)+b', 'a' * 60)",
    ],
    ids=["c", "regex"],
)
def test_a_function_that_holds_the_gil_ends_the_process(body: str) -> None:
    """No Python runs any more, so that nothing is reported but the stacks on stderr."""
    ended = run(f"while not beats: time.sleep(0.001)\n{body}", stuck_ms=60_000, heartbeat_ms=1000)
    assert ended.returncode == 1, ended.stderr
    assert "Timeout (0:00:01)!" in ended.stderr
    assert "most recent call first" in ended.stderr


def test_a_report_that_hangs_ends_the_process_all_the_same() -> None:
    ended = run(
        """
        dog._report = lambda *_: time.sleep(100)
        since = time.monotonic()
        time.sleep(100)
        """,
        stuck_ms=200, heartbeat_ms=800,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stderr


def test_a_process_that_goes_on_is_let_be() -> None:
    """Short mails for longer than the time-out; and when it is closed, nothing is left that ends the process."""
    ended = run(
        """
        import faulthandler

        cancelled, cancel = [], faulthandler.cancel_dump_traceback_later
        faulthandler.cancel_dump_traceback_later = lambda: cancelled.append(cancel())
        forgotten = False
        dog.watch("abandoned", lambda: 0.0 if forgotten else None)
        dog.forget("abandoned")
        forgotten = True
        dog.watch("mail 'poll' of subtask 3", time.monotonic)  # another one with every look, however slow this is
        before = len(beats)
        while len(beats) < before + 6:
            time.sleep(0.001)
        dog.close()
        assert len(cancelled) == 1
        assert not [each for each in threading.enumerate() if each.name == "headgate-watchdog"]
        """,
        stuck_ms=1000, heartbeat_ms=60_000,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ""
