"""What the coordinator of checkpoints hears, and what it orders.

Never: decide anything. `headgate.checkpoint.coordinator` does.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint.manifest import Committables, Manifest
from headgate.protocol.messages import CheckpointKind, ErrorReport, SubtaskId
from headgate.protocol.state import SplitState, SubtaskState

# What happened.


class CheckpointingStarted(msgspec.Struct, frozen=True):
    """The run begins: what the restored checkpoint may not have published is published before anything runs."""


class SubtasksRunning(msgspec.Struct, frozen=True):
    """Every subtask is running. ``restored``: they just were (a start or a failover): the first checkpoint is early.

    ``recovering``: those that have recovered rows to process.
    """

    executions: dict[SubtaskId, int]
    restored: bool
    recovering: frozenset[SubtaskId] = frozenset()


class SubtaskRecovered(msgspec.Struct, frozen=True):
    """A subtask has processed all that it recovered."""

    subtask: SubtaskId
    execution: int


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


class RequestWithdrawn(msgspec.Struct, frozen=True):
    """Who asked for a checkpoint gave up waiting. What was for that alone is given up; the query goes on."""

    request_id: int


class InputAllEnded(msgspec.Struct, frozen=True):
    """All input has ended: take the last checkpoint."""


class SourceStateReady(msgspec.Struct, frozen=True):
    """An enumerator's part is there. ``finished_known`` by subtask; ``unassigned`` as in `SourceEntry`."""

    source: str
    checkpoint_id: int
    state: bytes
    finished_known: dict[int, int]
    unassigned: tuple[SplitState, ...] = ()


class SourceRefused(msgspec.Struct, frozen=True):
    """A source cannot contribute now."""

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
    """It could not be written. It may exist all the same. ``error``: what was raised, if something was."""

    checkpoint_id: int
    reason: str
    error: ErrorReport | None = None


class FilesLooked(msgspec.Struct, frozen=True):
    """It was looked which of the files of a complete checkpoint are there: ``missing`` are not, by their paths."""

    checkpoint_id: int
    missing: tuple[str, ...] = ()


class Committed(msgspec.Struct, frozen=True):
    """Sinks published an epoch. ``left`` (by sink uid): what they will publish later; it stays in checkpoints."""

    epoch: int
    left: Committables


class CommitFailed(msgspec.Struct, frozen=True):
    """Sinks could not publish. ``error``: what was raised, if something was."""

    epoch: int
    reason: str
    error: ErrorReport | None = None


class CheckpointTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    CheckpointingStarted | SubtasksRunning | SubtaskRecovered | SubtasksNotRunning | CheckpointRequested
    | RequestWithdrawn | InputAllEnded
    | SourceStateReady | SourceRefused | SubtaskAcknowledged | SubtaskDeclined | ManifestWritten | ManifestWriteFailed
    | FilesLooked
    | Committed | CommitFailed | CheckpointTimePassed
)  # fmt: skip

# What is to be done.


class SnapshotSources(msgspec.Struct, frozen=True):
    """Let every source coordinator begin the checkpoint."""

    checkpoint_id: int


class SendBarriers(msgspec.Struct, frozen=True):
    """Send the barrier to every subtask, then notify the source coordinators that it is out.

    ``completed`` is the newest complete checkpoint, 0 if there is none. ``location`` is a savepoint's folder; state
    files go to the query's own location all the same, and are copied. ``gone`` are the paths of files that are to be
    written again.
    """

    checkpoint_id: int
    completed: int
    kind: CheckpointKind
    location: str
    gone: frozenset[str] = frozenset()


class WriteManifest(msgspec.Struct, frozen=True):
    """Write a manifest, last of all files of its checkpoint. Answered by `ManifestWritten` or `ManifestWriteFailed`.

    ``location`` is a savepoint's folder; empty for the query's own location.
    """

    checkpoint_id: int
    manifest: Manifest
    location: str


class NotifyCompleted(msgspec.Struct, frozen=True):
    """Notify subtasks and sources that a checkpoint is durable.

    Parameters
    ----------
    checkpoint_id, epoch
        Which one.
    finished_known
        By subtask, by source.
    duration_ms, size_bytes
        From its beginning to now, in milliseconds; of its manifest.
    """

    checkpoint_id: int
    finished_known: dict[int, dict[str, int]]
    epoch: int = 0
    duration_ms: int = 0
    size_bytes: int = 0


class NotifyAborted(msgspec.Struct, frozen=True):
    """Notify subtasks and sources that a checkpoint will not complete.

    Parameters
    ----------
    checkpoint_id, reason
        Which one, and why.
    began_ms
        When it began, in milliseconds of the coordinator's clock.
    put_off
        Another takes its place soon.
    """

    checkpoint_id: int
    reason: str
    began_ms: int
    put_off: bool = False


class DeleteCheckpoint(msgspec.Struct, frozen=True):
    """Delete a checkpoint that nobody needs: its manifest first; after what was ordered to be written before."""

    checkpoint_id: int


class LookForFiles(msgspec.Struct, frozen=True):
    """Look whether the files that a complete checkpoint names are there.

    Answered by `FilesLooked`; by nothing if that fails, and then it is ordered again after a later checkpoint.
    """

    manifest: Manifest


class ReportLostFiles(msgspec.Struct, frozen=True):
    """Report that files of a checkpoint are gone, or that some are missed no longer.

    Parameters
    ----------
    checkpoint_id
        The complete one whose files were looked for.
    gone, back
        The paths of those that were there when it was last looked, and are not; and of those that were not: now they
        are, or it names them no longer.
    """

    checkpoint_id: int
    gone: tuple[str, ...]
    back: tuple[str, ...] = ()


class Commit(msgspec.Struct, frozen=True):
    """Let the sinks publish. Answered by `Committed` or `CommitFailed`. ``final``: publish everything, keep nothing."""

    epoch: int
    committables: Committables
    final: bool


class AnswerRequest(msgspec.Struct, frozen=True):
    """Answer a `CheckpointRequested`: the checkpoint's number, or why there is none."""

    request_id: int
    checkpoint_id: int | None
    reason: str = ""


class DeleteSavepoint(msgspec.Struct, frozen=True):
    """Delete what there may be of a savepoint that failed, after what was ordered to be written before; then answer.

    Parameters
    ----------
    manifest, location
        As they were ordered to be written.
    answers
        To who asked for it.
    """

    manifest: Manifest
    location: str
    answers: tuple[AnswerRequest, ...]


class QuerySuspended(msgspec.Struct, frozen=True):
    """The last checkpoint (savepoint with stop, drain, or end of all input) is complete and committed: end."""

    checkpoint_id: int


class CheckpointFailureLimitReached(msgspec.Struct, frozen=True):
    """More checkpoints in a row failed than are tolerated, or a commit did: fail over. ``error``: what was raised."""

    reason: str
    error: ErrorReport | None = None


Action = (
    SnapshotSources | SendBarriers | WriteManifest | NotifyCompleted | NotifyAborted | DeleteCheckpoint | Commit
    | LookForFiles | ReportLostFiles | AnswerRequest | DeleteSavepoint | QuerySuspended | CheckpointFailureLimitReached
)  # fmt: skip
