"""Decides that a slot is stuck, and ends it: with its process where that is its own, since no thread can be killed.

Never (the machine): read a clock, end anything. Never (the driver): wait for what it watches.

There are two signals. *Liveness*: the watchdog's thread beats. Code that holds the GIL stops it; then the slot's own
process writes all stacks to stderr and ends (`headgate.runtime.process`); a process that others share cannot.
*Progress*: each call that is watched (a mail of a mailbox, a fetch) ends in time, or the slot is ended.

Only time in which the watchdog itself ran counts: a process that was stopped, or a machine that slept, is not stuck.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping

import msgspec

from headgate.machine import IGNORED, Machine, Row
from headgate.runtime.process import SlotProcess

_log = logging.getLogger(__name__)


class Looked(msgspec.Struct, frozen=True):
    """The calls that are under way: since when, by name, in milliseconds of the clock that ``now_ms`` is of."""

    calls: Mapping[str, int]


class ReportStuck(msgspec.Struct, frozen=True):
    """Report to the coordinator which call is stuck, and for how long it has been, in milliseconds."""

    name: str
    for_ms: int


class EndSlot(msgspec.Struct, frozen=True):
    """End the slot at once, and its process if that is its own."""


Event = Looked
Action = ReportStuck | EndSlot


class ProgressMachine(Machine):
    """Distinguishes slow from stuck.

    Parameters
    ----------
    stuck_timeout_ms
        How long a call may take (``task.stuck.timeout``), in milliseconds.
    look_ms
        The period of `Looked`, in milliseconds: of a longer gap only twice that much counts.

    Examples
    --------
    >>> machine = ProgressMachine(stuck_timeout_ms=2000, look_ms=1000)
    >>> machine.handle(Looked({"mail": 0}), 1000), machine.handle(Looked({"mail": 0}), 2000)
    ([], [])
    >>> machine.handle(Looked({"mail": 0}), 3000)
    [ReportStuck(name='mail', for_ms=3000), EndSlot()]
    """

    # fmt: off
    TRANSITIONS = (
        Row("watching", Looked, "watching", [], "every call under way is younger than the time-out"),
        Row("watching", Looked, "stuck", [ReportStuck, EndSlot],
            "the subtask is lost, and in another slot only it comes back"),
        Row("stuck",    Looked, "stuck", IGNORED, "reported already"),
    )
    # fmt: on

    def __init__(self, *, stuck_timeout_ms: int, look_ms: int) -> None:
        super().__init__()
        self.state = "watching"
        self._stuck_timeout_ms = stuck_timeout_ms
        self._longest_step_ms = 2 * look_ms
        self._looked_ms: int | None = None
        self._calls: dict[str, tuple[int, int]] = {}  # since when, and how much of it counts

    def check(self) -> None:
        """Assert what always holds."""
        if self.state == "watching":
            assert all(counted_ms <= self._stuck_timeout_ms for _, counted_ms in self._calls.values())
        assert all(counted_ms >= 0 for _, counted_ms in self._calls.values())

    def _on_looked(self, event: Looked, now_ms: int) -> list[Action]:
        gone_ms = self._longest_step_ms if self._looked_ms is None else max(0, now_ms - self._looked_ms)
        step_ms = min(gone_ms, self._longest_step_ms)
        calls = {}
        for name, since_ms in event.calls.items():
            was = self._calls.get(name)
            counted_ms = was[1] if was is not None and was[0] == since_ms else 0
            calls[name] = (since_ms, counted_ms + min(step_ms, max(0, now_ms - since_ms)))
        self._looked_ms, self._calls = now_ms, calls
        stuck = [name for name, (_, counted_ms) in calls.items() if counted_ms > self._stuck_timeout_ms]
        if not stuck:
            return []
        oldest = min(stuck, key=lambda name: event.calls[name])
        self.state = "stuck"
        return [ReportStuck(oldest, now_ms - event.calls[oldest]), EndSlot()]


class Watchdog:
    """A thread that beats, and ends its slot when that is stuck. One for each slot.

    Parameters
    ----------
    process
        The slot's, notified of every beat on the watchdog's thread.
    stuck_timeout_ms
        How long a watched call may take (``task.stuck.timeout``), in milliseconds.
    heartbeat_timeout_ms
        A process of the slot's own ends when no beat was possible for so long (``heartbeat.timeout``), in
        milliseconds.
    start_timeout_ms
        The same until the slot has begun: what it imports may hold the GIL, on cores that it shares with others that
        start.
    report
        Called before the slot ends because a watched call is stuck, with a sentence that says which, and all
        stacks. It may block until the report is out; not longer than the heartbeat's time-out.
    end
        Ends the slot; called once, after ``report``.
    look
        Called on the watchdog's thread once a second or so; must not block.
    """

    def __init__(
        self,
        process: SlotProcess,
        *,
        stuck_timeout_ms: int,
        heartbeat_timeout_ms: int,
        start_timeout_ms: int = 0,
        report: Callable[[str, str], object],
        end: Callable[[], object],
        look: Callable[[], object] = lambda: None,
    ) -> None:
        look_ms = max(1, min(1000, stuck_timeout_ms // 4, heartbeat_timeout_ms // 4))
        self._machine = ProgressMachine(stuck_timeout_ms=stuck_timeout_ms, look_ms=look_ms)
        self._look_s = look_ms / 1000
        self._heartbeat_timeout_s = heartbeat_timeout_ms / 1000
        self._beat_timeout_s = max(start_timeout_ms, heartbeat_timeout_ms) / 1000
        self._process = process
        self._report = report
        self._end = end
        self._look_too = look
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._watched: dict[str, Callable[[], float | None]] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headgate-watchdog", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def slot_began(self) -> None:
        """Let the heartbeat's time-out count from now on: all of the slot's subtasks run. Any thread."""
        self._beat_timeout_s = self._heartbeat_timeout_s

    def watch(self, name: str, since_s: Callable[[], float | None]) -> None:
        """Watch calls of a kind, from any thread.

        Parameters
        ----------
        name
            What the calls are, for the report. Another of the same name is watched no longer.
        since_s
            Returns when the oldest call under way began, in seconds of ``time.monotonic``, or None, as
            `headgate.readers.SourceReaderBase.stuck_since` does for fetches. Called on the watchdog's thread; must not
            block.
        """
        with self._lock:
            self._watched[name] = since_s

    def forget(self, name: str) -> None:
        """Watch these calls no longer: what makes them was closed, or abandoned."""
        with self._lock:
            self._watched.pop(name, None)

    def close(self) -> None:
        """Stop; nothing ends the slot any more."""
        self._closing.set()
        self._thread.join()

    # From here on: on the thread.

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._process.beat(self._beat_timeout_s)
                self._look()
                self._look_too()
                self._closing.wait(self._look_s)
        finally:
            self._process.rest()

    def _look(self) -> None:
        with self._lock:
            watched = list(self._watched.items())
        calls = {name: since_s for name, read in watched if (since_s := read()) is not None}
        looked = Looked({name: int(since_s * 1000) for name, since_s in calls.items()})
        for action in self._machine.handle(looked, int(time.monotonic() * 1000)):
            match action:
                case ReportStuck(name, for_ms):
                    self._report_stuck(name, for_ms)
                case EndSlot():
                    self._end()

    def _report_stuck(self, name: str, for_ms: int) -> None:
        message = (
            f"{name} has not ended for {for_ms / 1000:.1f} s; task.stuck.timeout is exceeded: "
            f"{self._process.when_stuck}."
        )
        stacks = _stacks()
        _log.error("%s\n%s", message, stacks)
        try:
            self._report(message, stacks)
        except Exception:
            _log.exception("The report was not sent.")


def _stacks() -> str:
    """Return where each thread is."""
    frames = sys._current_frames()
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threading.enumerate()
        if thread.ident in frames
    )
