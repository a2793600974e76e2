"""What the scheduler hears, and what it orders.

Never: decide anything. `scheduler` does.
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.slots.slots import AcceptSlot, FenceSlot, SlotDisconnected, SlotHeard, SlotRegistered
from headgate.protocol.messages import ErrorReport, SubtaskId

# What happened.


class QueryStarted(msgspec.Struct, frozen=True):
    """Begin."""


class JobEnded(msgspec.Struct, frozen=True):
    """Spark's job ended; ``error`` is None when all its tasks did without an error."""

    submission: int
    error: ErrorReport | None


class SubtaskStarted(msgspec.Struct, frozen=True):
    """A subtask is running."""

    subtask: SubtaskId
    execution: int


class SubtaskBroke(msgspec.Struct, frozen=True):
    """A subtask ended by an error; its slot lives. ``peer``: the slot to which a connection failed; None: none did."""

    subtask: SubtaskId
    execution: int
    error: ErrorReport
    peer: int | None = None


class LinkBroke(msgspec.Struct, frozen=True):
    """The connection of a subtask to another slot, ``peer``, is gone; the subtask runs on for a while."""

    subtask: SubtaskId
    execution: int
    peer: int


class SubtaskInputEnded(msgspec.Struct, frozen=True):
    """A subtask read all its input."""

    subtask: SubtaskId
    execution: int


class SubtaskReset(msgspec.Struct, frozen=True):
    """All sources have the splits of a failed subtask back."""

    subtask: int


class SourcesRestored(msgspec.Struct, frozen=True):
    """All sources were restored for a global failover."""


class GlobalFailure(msgspec.Struct, frozen=True):
    """Something that concerns everything failed: restore all from the last completed checkpoint."""

    error: ErrorReport


class QueryEnding(msgspec.Struct, frozen=True):
    """The last checkpoint is complete, or the user stops: let all slots end."""


class SchedulerTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    QueryStarted | SlotRegistered | SlotDisconnected | SlotHeard | JobEnded | SubtaskStarted | SubtaskBroke
    | LinkBroke | SubtaskInputEnded | SubtaskReset | SourcesRestored | GlobalFailure | QueryEnding
    | SchedulerTimePassed
)  # fmt: skip

# What is to be done.


class SubmitJob(msgspec.Struct, frozen=True):
    """Submit Spark's job, for the first time or again. Answered by `JobEnded`, some day.

    ``avoid``: slots of the submission before whose hosts are to get no slot now, if there are cores elsewhere.
    """

    submission: int
    avoid: tuple[int, ...] = ()


class DeploySubtask(msgspec.Struct, frozen=True):
    """Deploy a subtask from the last completed checkpoint."""

    subtask: SubtaskId
    execution: int


class CancelExecution(msgspec.Struct, frozen=True):
    """Let a subtask end without a snapshot."""

    subtask: SubtaskId
    execution: int


class ResetReaders(msgspec.Struct, frozen=True):
    """Notify all sources that the readers of a subtask failed. Answered by `SubtaskReset`."""

    subtask: int


class RestoreSources(msgspec.Struct, frozen=True):
    """Start all sources, or restore them, from the last completed checkpoint. Answered by `SourcesRestored`."""


class AnnounceRunning(msgspec.Struct, frozen=True):
    """All subtasks run."""

    executions: dict[SubtaskId, int]
    restored: bool


class AnnounceNotRunning(msgspec.Struct, frozen=True):
    """Not all subtasks run any longer."""

    reason: str


class AnnounceInputEnded(msgspec.Struct, frozen=True):
    """All subtasks read all their input."""


class ReleaseSlots(msgspec.Struct, frozen=True):
    """Let all slots end."""


class CancelJob(msgspec.Struct, frozen=True):
    """Cancel Spark's job: its tasks did not end on their own, or the query failed."""

    submission: int


class FailQuery(msgspec.Struct, frozen=True):
    """The query ends with this error.

    Parameters
    ----------
    error
        What happened.
    given_up
        Why the restart strategy gives up, for people; empty: it was not asked.
    """

    error: ErrorReport
    given_up: str = ""


class ReportFailure(msgspec.Struct, frozen=True):
    """Report a failure and what is done about it.

    Parameters
    ----------
    error
        What happened.
    restarted
        What starts again: the numbers of subtasks.
    delay_ms
        After how many milliseconds.
    """

    error: ErrorReport
    restarted: tuple[int, ...]
    delay_ms: int


class ReportMissingSlots(msgspec.Struct, frozen=True):
    """Report that slots have been awaited for long."""

    wanted: int
    missing: tuple[int, ...]


class QueryOver(msgspec.Struct, frozen=True):
    """Spark's job has ended and nothing is left to do."""


Action = (
    SubmitJob | AcceptSlot | FenceSlot | DeploySubtask | CancelExecution | ResetReaders | RestoreSources
    | AnnounceRunning | AnnounceNotRunning | AnnounceInputEnded | ReleaseSlots | CancelJob | ReportFailure
    | ReportMissingSlots | FailQuery | QueryOver
)  # fmt: skip
