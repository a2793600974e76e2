"""A thread of a slot's subtasks, whose turns are taken by the cluster's clock.

Never: decide anything: this is `headgate.runtime.subtask_thread.SubtaskThread` without a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from headgate.runtime.mailbox import Mailbox, Mailboxes, Pipe
from headgate.runtime.subtask_thread import TakesTurns, take_turns
from headgate.simulation.clockwork import Process
from headgate.simulation.world import World
from headgate.source import Signal


class _Signal(Signal):
    """A signal of a pipe that is none."""

    pipe: SimulatedPipe

    def give(self) -> None:
        self.pipe.write(self.byte)


class SimulatedPipe(Pipe):
    """A pipe whose owner is woken by the cluster's clock."""

    write_end = -1

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._written = b""

    @property
    def signal(self) -> Signal:
        """What writes into it."""
        given = _Signal(*super().signal)
        given.pipe = self
        return given

    def write(self, byte: bytes) -> None:
        """Write a byte, and have the owner look."""
        self._written += byte
        self._wake()

    def wait(self, timeout_ms: int | None) -> bytes:
        """Return what was written, at once."""
        written, self._written = self._written, b""
        return written


class Member(TakesTurns, Protocol):
    """A subtask of a thread."""

    def check_woken(self, written: bytes) -> None:
        """Check that what wakes a subtask that waits has been written into the pipe."""

    def count_quiet(self) -> None:
        """Count how long splits have been silent."""

    def look(self) -> None:
        """Look at what a turn led to."""


class SimulatedThread:
    """A thread that subtasks of a slot share.

    Parameters
    ----------
    cluster
        Where it lives.
    slot
        The process that it is in.
    """

    def __init__(self, cluster: World, slot: Process) -> None:
        self._cluster = cluster
        self._clock = cluster.clock
        self._slot = slot
        self._pipe = SimulatedPipe(self._wake)
        self._mailboxes = Mailboxes(lambda: self._clock.now_ms, self._pipe)
        self._members: list[Member] = []
        self.worked_ms = 0.0
        """How long its subtasks have worked in this turn."""
        self.is_over = False
        self._turn_ms: int | None = None  # when its next turn is
        self._armed_ms: set[int] = set()  # when the clock has it look
        self._busy_until_ms = 0
        self._is_in_turn = self._waits = False

    def new_mailbox(self, member: Member) -> Mailbox:
        """Take a subtask, and return its mailbox. Before its first turn."""
        mailbox = self._mailboxes.new()
        self._members.append(member)
        self._waits = self._mailboxes.begin_wait()
        return mailbox

    def _wake(self) -> None:
        """Have it look at the mailboxes; a turn that goes on sees to it itself."""
        if not self._is_in_turn:
            self._arm(self._clock.now_ms)

    def _arm(self, at_ms: int) -> None:
        at_ms = max(at_ms, self._busy_until_ms)
        if self._turn_ms is None or at_ms < self._turn_ms:
            self._turn_ms = at_ms
            if at_ms not in self._armed_ms:
                self._armed_ms.add(at_ms)
                self._clock.at(at_ms, self._slot, self._turn, at_ms)

    def _turn(self, at_ms: int) -> None:
        self._armed_ms.discard(at_ms)
        if self._turn_ms is None or at_ms < self._turn_ms or self.is_over:
            return
        self._turn_ms = None
        self._wake_up()
        for each in self._members:
            each.count_quiet()
        self._is_in_turn, self.worked_ms, busy = True, 0.0, True
        try:
            while busy and not self.worked_ms:
                busy = take_turns(self._members)
        finally:
            self._is_in_turn = False
        self._busy_until_ms = self._clock.now_ms + round(self.worked_ms)
        self._cluster.longest_turn_ms = max(self._cluster.longest_turn_ms, self.worked_ms)
        for each in self._members:
            each.look()
        self._waits = not busy and self._mailboxes.begin_wait()
        due_ms = self._mailboxes.due_ms()
        if not self._waits:
            self._arm(self._clock.now_ms)
        elif due_ms is not None:
            self._arm(max(due_ms, self._clock.now_ms))

    def _wake_up(self) -> None:
        """Take what is in the pipe: without it there is no mail that came while the thread waited."""
        written = self._pipe.wait(0)
        for each in self._members if self._waits else ():
            each.check_woken(written)
        self._mailboxes.end_wait(written)
