"""Decides which attempt of a slot counts, when subtasks are deployed and restarted, and when the query has failed.

Never: know what a source or a checkpoint holds.

Follows FLIP-27, "Where to run the enumerator"; Flink's scheduler and its restart strategies; traps 19 to 21.
"""

from __future__ import annotations

import msgspec

from headgate.protocol.messages import ErrorReport, SubtaskId

# What happened.


class QueryStarted(msgspec.Struct, frozen=True):
    """Begin."""


class SlotRegistered(msgspec.Struct, frozen=True):
    """An attempt of a slot opened a stream. ``running``: its living executions, by stage."""

    slot: int
    attempt: int
    running: dict[int, int]


class SlotDisconnected(msgspec.Struct, frozen=True):
    """The stream of an attempt broke. The slot may read on and come back."""

    slot: int
    attempt: int


class SlotHeard(msgspec.Struct, frozen=True):
    """Something came from an attempt: it lives."""

    slot: int
    attempt: int


class JobEnded(msgspec.Struct, frozen=True):
    """Spark's job ended; ``error`` is None when all its tasks did without an error."""

    submission: int
    error: ErrorReport | None


class SubtaskStarted(msgspec.Struct, frozen=True):
    """A subtask is running."""

    subtask: SubtaskId
    execution: int


class SubtaskBroke(msgspec.Struct, frozen=True):
    """A subtask ended by an error; its slot lives."""

    subtask: SubtaskId
    execution: int
    error: ErrorReport


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
    | SubtaskInputEnded | SubtaskReset | SourcesRestored | GlobalFailure | QueryEnding | SchedulerTimePassed
)  # fmt: skip

# What is to be done.


class SubmitJob(msgspec.Struct, frozen=True):
    """Submit Spark's job, for the first time or again. Answered by `JobEnded`, some day."""

    submission: int


class AcceptSlot(msgspec.Struct, frozen=True):
    """Tell an attempt that it counts."""

    slot: int
    attempt: int


class FenceSlot(msgspec.Struct, frozen=True):
    """Tell an attempt to exit, and close its stream."""

    slot: int
    attempt: int
    reason: str


class DeploySubtask(msgspec.Struct, frozen=True):
    """Deploy a subtask from the last completed checkpoint."""

    subtask: SubtaskId
    execution: int


class CancelExecution(msgspec.Struct, frozen=True):
    """Let a subtask end without a snapshot."""

    subtask: SubtaskId
    execution: int


class ResetReaders(msgspec.Struct, frozen=True):
    """Tell all sources that the readers of a subtask failed. Answered by `SubtaskReset`."""

    subtask: int


class RestoreSources(msgspec.Struct, frozen=True):
    """Restore all sources from the last completed checkpoint. Answered by `SourcesRestored`."""


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
    """Tell all slots to end."""


class CancelJob(msgspec.Struct, frozen=True):
    """Cancel Spark's job: its tasks did not end by themselves, or the query failed."""

    submission: int


class FailQuery(msgspec.Struct, frozen=True):
    """The restart strategy has given up: the query ends with this error."""

    error: ErrorReport


class QueryOver(msgspec.Struct, frozen=True):
    """Spark's job has ended and nothing is left to do."""


Action = (
    SubmitJob | AcceptSlot | FenceSlot | DeploySubtask | CancelExecution | ResetReaders | RestoreSources
    | AnnounceRunning | AnnounceNotRunning | AnnounceInputEnded | ReleaseSlots | CancelJob | FailQuery | QueryOver
)  # fmt: skip
