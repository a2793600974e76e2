"""Decides when checkpoints begin, complete, fail and are deleted, and when what they hold is committed.

Never: start one before every subtask is running, two at a time, or write a manifest before everything in it is safe.

Follows FLIP-27, "Where to run the enumerator"; Flink's CheckpointCoordinator; traps 29 and 34.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.messages import CheckpointKind, SubtaskId
from headgate.protocol.state import SubtaskState

# What happened.


class SubtasksRunning(msgspec.Struct, frozen=True):
    """Every subtask is running. ``restored``: they just were (a start or a failover): the first checkpoint is early."""

    executions: dict[SubtaskId, int]
    restored: bool


class SubtasksNotRunning(msgspec.Struct, frozen=True):
    """Some subtask is not running any longer: what is pending cannot complete."""

    reason: str


class CheckpointRequested(msgspec.Struct, frozen=True):
    """Somebody wants one now.

    Parameters
    ----------
    request_id
        Names the request in the `AnswerRequest`.
    kind
        What kind.
    location
        Folder of a savepoint; empty for a checkpoint at the query's own location.
    """

    request_id: int
    kind: CheckpointKind
    location: str = ""


class InputAllEnded(msgspec.Struct, frozen=True):
    """All input has ended: take the last checkpoint."""


class SourceStateReady(msgspec.Struct, frozen=True):
    """An enumerator's part is there. ``finished_known`` by subtask."""

    source: str
    checkpoint_id: int
    state: bytes
    finished_known: dict[int, int]


class SourceRefused(msgspec.Struct, frozen=True):
    """A source cannot contribute."""

    source: str
    checkpoint_id: int
    reason: str


class SubtaskAcknowledged(msgspec.Struct, frozen=True):
    """A subtask's part is safe."""

    subtask: SubtaskId
    execution: int
    checkpoint_id: int
    state: SubtaskState


class SubtaskDeclined(msgspec.Struct, frozen=True):
    """A subtask could not make its part."""

    subtask: SubtaskId
    execution: int
    checkpoint_id: int
    reason: str


class ManifestWritten(msgspec.Struct, frozen=True):
    """The manifest is durable: the checkpoint is complete."""

    checkpoint_id: int
    size_bytes: int


class ManifestWriteFailed(msgspec.Struct, frozen=True):
    """It could not be written. It may exist all the same."""

    checkpoint_id: int
    reason: str


class Committed(msgspec.Struct, frozen=True):
    """Sinks published an epoch. ``left`` (by sink uid): what they will publish later; it stays in checkpoints."""

    epoch: int
    left: dict[str, tuple[bytes, ...]]


class CommitFailed(msgspec.Struct, frozen=True):
    """Sinks could not publish."""

    epoch: int
    reason: str


class CheckpointTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    SubtasksRunning | SubtasksNotRunning | CheckpointRequested | InputAllEnded | SourceStateReady | SourceRefused
    | SubtaskAcknowledged | SubtaskDeclined | ManifestWritten | ManifestWriteFailed | Committed | CommitFailed
    | CheckpointTimePassed
)  # fmt: skip

# What is to be done.


class SnapshotSources(msgspec.Struct, frozen=True):
    """Let every source coordinator begin the checkpoint."""

    checkpoint_id: int


class SendBarriers(msgspec.Struct, frozen=True):
    """Send the barrier to every subtask, then tell the source coordinators that it is out."""

    checkpoint_id: int
    kind: CheckpointKind
    location: str


class WriteManifest(msgspec.Struct, frozen=True):
    """Write a manifest, last of all files of its checkpoint. Answered by `ManifestWritten` or `ManifestWriteFailed`.

    ``location`` is a savepoint's folder; empty for the query's own location.
    """

    checkpoint_id: int
    manifest: Manifest
    location: str


class NotifyCompleted(msgspec.Struct, frozen=True):
    """Tell subtasks and sources that a checkpoint is durable. ``finished_known``: by subtask, by source."""

    checkpoint_id: int
    finished_known: dict[int, dict[str, int]]


class NotifyAborted(msgspec.Struct, frozen=True):
    """Tell subtasks and sources that a checkpoint will not complete."""

    checkpoint_id: int


class DeleteCheckpoint(msgspec.Struct, frozen=True):
    """Delete a checkpoint that nobody needs: its manifest first."""

    checkpoint_id: int


class Commit(msgspec.Struct, frozen=True):
    """Let the sinks publish. Answered by `Committed` or `CommitFailed`. ``final``: publish everything, keep nothing."""

    epoch: int
    committables: dict[str, tuple[bytes, ...]]
    final: bool


class AnswerRequest(msgspec.Struct, frozen=True):
    """Answer a `CheckpointRequested`: the checkpoint's number, or why there is none."""

    request_id: int
    checkpoint_id: int | None
    reason: str = ""


class QuerySuspended(msgspec.Struct, frozen=True):
    """The last checkpoint (savepoint with stop, drain, or end of all input) is complete and committed: end."""

    checkpoint_id: int


class CheckpointFailureLimitReached(msgspec.Struct, frozen=True):
    """More checkpoints in a row failed than are tolerated, or a commit did: fail over."""

    reason: str


Action = (
    SnapshotSources | SendBarriers | WriteManifest | NotifyCompleted | NotifyAborted | DeleteCheckpoint | Commit
    | AnswerRequest | QuerySuspended | CheckpointFailureLimitReached
)  # fmt: skip
