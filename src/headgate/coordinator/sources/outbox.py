"""Holds what is on its way to readers and checkpoints, in order, until the log is durable up to it.

Never: let something overtake what was put before it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headgate.coordinator.sources.log_segments import LogSegments
from headgate.coordinator.sources.source_events import EnumeratorStateReady
from headgate.protocol import messages as msg

Message = msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader


class Admission(msgspec.Struct, frozen=True):
    """The reader hears of unassigned work from here on."""


class Unassigned(msgspec.Struct, frozen=True):
    """What is unassigned from here on."""

    event_time_ms: int | None


class Held(msgspec.Struct, frozen=True):
    """Something on its way out: for an execution of a reader, or (None) for all or a checkpoint."""

    log_number: int
    subtask: int | None
    execution: int
    what: Message | EnumeratorStateReady | Admission | Unassigned


class Outbox:
    """What is on its way out of one source's coordinator.

    Parameters
    ----------
    log
        What is put goes out once all that was logged by then is durable.
    """

    def __init__(self, log: LogSegments) -> None:
        self._log = log
        self._held: deque[Held] = deque()

    def put(
        self,
        what: Message | EnumeratorStateReady | Admission | Unassigned,
        subtask: int | None = None,
        execution: int = 0,
        *,
        log_number: int | None = None,
    ) -> None:
        """Let something go out after all before it, once the log is durable; ``log_number``: up to there only."""
        number = self._log.number if log_number is None else log_number
        self._held.append(Held(number, subtask, execution, what))

    def pop(self) -> Held | None:
        """Take the next that can go; None: there is none."""
        return self._held.popleft() if self.can_go else None

    @property
    def can_go(self) -> bool:
        """Whether the log is durable up to the next."""
        return bool(self._held) and self._held[0].log_number <= self._log.durable

    def clear(self) -> None:
        """Discard all."""
        self._held.clear()

    def __len__(self) -> int:
        return len(self._held)
