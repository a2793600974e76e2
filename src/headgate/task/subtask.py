"""Decides the life of one subtask: restore, register, run, snapshot at barriers, end, fail.

Never: read a record or hold one; know a connector's types: splits are ids and bytes.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537, "New Source Base Contract"; traps 25, 26 and 29.
"""

from __future__ import annotations

import msgspec

from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, OperatorState, ReaderState, SplitState

# What happened.


class LetterCame(msgspec.Struct, frozen=True):
    """A letter of the coordinator's for this subtask (`Deploy` and everything with a stage)."""

    letter: (
        msg.Deploy | msg.CancelSubtask | msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader
        | msg.TriggerCheckpoint | msg.CheckpointCompleted | msg.CheckpointAborted | msg.ReportSource
    )  # fmt: skip


class OperatorsOpened(msgspec.Struct, frozen=True):
    """Readers, operators and sinks are made, opened and restored; the readers hold no splits yet."""


class RequestMade(msgspec.Struct, frozen=True):
    """A reader asks for a split."""

    source: str


class EventMade(msgspec.Struct, frozen=True):
    """A reader sends its enumerator an event."""

    source: str
    payload: bytes


class SplitsEnded(msgspec.Struct, frozen=True):
    """A reader read splits to their end."""

    source: str
    split_ids: tuple[str, ...]


class SnapshotMade(msgspec.Struct, frozen=True):
    """Everything of a snapshot is safe: the readers' splits at the barrier, and the operators' state."""

    checkpoint_id: int
    splits: dict[str, tuple[SplitState, ...]]
    operators: dict[str, OperatorState]


class SnapshotFailed(msgspec.Struct, frozen=True):
    """The snapshot could not be made safe; the subtask itself is well."""

    checkpoint_id: int
    reason: str


class AllInputEnded(msgspec.Struct, frozen=True):
    """All readers ended and the operators emitted what they had."""


class SomethingFailed(msgspec.Struct, frozen=True):
    """Code of the subtask raised."""

    error: msg.ErrorReport


Event = (
    LetterCame | OperatorsOpened | RequestMade | EventMade | SplitsEnded | SnapshotMade | SnapshotFailed
    | AllInputEnded | SomethingFailed
)  # fmt: skip

# What is to be done.


class OpenOperators(msgspec.Struct, frozen=True):
    """Make and open readers, operators and sinks with their restored state. Answered by `OperatorsOpened`."""

    parallelism: int
    operators: dict[str, OperatorState]


class AddSplits(msgspec.Struct, frozen=True):
    """Give splits to a reader."""

    source: str
    splits: tuple[SplitState, ...]


class TellNoMoreSplits(msgspec.Struct, frozen=True):
    """Tell a reader that it gets no more splits."""

    source: str


class HandEvent(msgspec.Struct, frozen=True):
    """Hand an event to a reader."""

    source: str
    payload: bytes


class StartReading(msgspec.Struct, frozen=True):
    """Poll the readers from now on."""


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Snapshot all readers and operators now, between two batches. Answered by `SnapshotMade` or `SnapshotFailed`.

    ``drain``: end the input first. ``suspend``: poll no reader afterwards, until `ResumeReading`.
    """

    checkpoint_id: int
    drain: bool
    suspend: bool


class ResumeReading(msgspec.Struct, frozen=True):
    """Poll the readers again: the savepoint after which nothing was to be emitted failed."""


class NotifyOperators(msgspec.Struct, frozen=True):
    """Tell readers, operators and sinks that a checkpoint is durable."""

    checkpoint_id: int


class Post(msgspec.Struct, frozen=True):
    """Send a letter to the coordinator."""

    letter: msg.FromSlot


class CloseAll(msgspec.Struct, frozen=True):
    """Close readers, operators and sinks; what was staged and is in no checkpoint is thrown away."""


Action = (
    OpenOperators | AddSplits | TellNoMoreSplits | HandEvent | StartReading | TakeSnapshot | ResumeReading
    | NotifyOperators | Post | CloseAll
)  # fmt: skip

__all__ = ["FinishedSplit", "ReaderState"]
