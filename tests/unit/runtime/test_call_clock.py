"""How long calls take of their own: others that have the processors make no call shorter that it is measured by."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from headgate.runtime.call_clock import LONG_MS, CallClock
from headgate.runtime.slices import CALL_MS, SliceController


class World:
    """A clock, and a thread that gets every eighth of it."""

    def __init__(self) -> None:
        self.now_ms = self.delay_ms = 0.0
        self.asked = 0
        self.calls = CallClock(lambda: self.now_ms, self._ask)

    def _ask(self) -> float:
        self.asked += 1
        return self.delay_ms

    def call(self, part: str, own_ms: float, delay_ms: float = 0.0) -> tuple[float, float]:
        self.now_ms += 3
        self.delay_ms += 2  # between two calls
        self.calls.begin(part)
        self.now_ms += own_ms + delay_ms
        self.delay_ms += delay_ms
        return self.calls.end()


def test_only_what_a_call_took_of_its_own_counts_also_between_short_ones_of_others() -> None:
    world = World()
    assert world.call("window", 10, 70) == (80, 80), "nobody asked before it"
    for _ in range(3):
        world.call("sink", 1)
        took, own = world.call("window", 10, 70)
        assert (round(took, 6), round(own, 6)) == (80, 10)
    took, own = world.call("window", 200)
    assert round(took, 6) == round(own, 6) == 200, "what it waits for itself counts"


def test_of_short_calls_nothing_is_asked() -> None:
    world = World()
    for _ in range(5):
        world.call("window", LONG_MS / 2)
    assert world.asked == 0
    world.call("window", 2 * LONG_MS)
    world.call("window", LONG_MS / 2)
    asked = world.asked
    world.call("window", LONG_MS / 2)
    assert world.asked == asked <= 2


def test_a_subtask_among_many_gets_as_many_rows_as_one_alone() -> None:
    """A call of 4 ms, and 0.4 us a row: as time goes by, with an eighth of a processor that is 32 ms and 3.2 us."""
    rows = {}
    for share in (1, 8):
        world, slices = World(), SliceController(call_ms=CALL_MS)
        for _ in range(200):
            own_ms = 4 + 0.0004 * slices.rows
            slices.took(slices.rows, world.call("dedup", own_ms, (share - 1) * own_ms)[1])
        rows[share] = slices.rows
    assert rows[8] > rows[1] // 3 > 20_000


def test_the_system_counts_how_long_a_thread_waits_for_a_processor() -> None:
    program = """
    import os, subprocess, sys, time
    from headgate.runtime.call_clock import ProcessorDelay

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        delay = ProcessorDelay()
        before, began = delay.ms(), time.thread_time()
        while time.thread_time() - began < 0.2:
            pass
        print(delay.ms() > before)
        delay.close()
        print(delay.ms())
    finally:
        other.kill()
        other.wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert made.stdout.split() == ["True", "0.0"]
