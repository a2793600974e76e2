"""What happens outside of a query's coordinator, and what is to be done there.

Never: name what its machines order of one another: that stays in `job_master`.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.sources import source_events as src
from headgate.protocol.messages import Envelope, SubtaskProgress

# What happened outside, beside the answers to actions.


class SlotMessageReceived(msgspec.Struct, frozen=True):
    """An envelope came on a connection."""

    connection: int
    envelope: Envelope


class ConnectionClosed(msgspec.Struct, frozen=True):
    """A connection broke or was closed by the other side."""

    connection: int


class FromSource(msgspec.Struct, frozen=True):
    """Something of a source's enumerator or log: any of `source_coordinator`'s events that answer an action."""

    source: str
    event: src.Event


class OthersMoved(msgspec.Struct, frozen=True):
    """The lowest watermark of a group's readers in the application's other queries is another; None: no vote."""

    group: str
    watermark_ms: int | None


class StopRequested(msgspec.Struct, frozen=True):
    """``query.stop()``: end now, without a checkpoint."""


class TimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    sch.QueryStarted | SlotMessageReceived | ConnectionClosed | FromSource | sch.JobEnded | cp.CheckpointRequested
    | cp.RequestWithdrawn | cp.ManifestWritten | cp.ManifestWriteFailed | cp.FilesLooked | cp.Committed
    | cp.CommitFailed | OthersMoved | StopRequested | TimePassed
)  # fmt: skip

# What is to be done outside.


class Transmit(msgspec.Struct, frozen=True):
    """Send an envelope on a connection, after those before. Lost with the connection, it is sent again by us."""

    connection: int
    envelope: Envelope


class CloseConnection(msgspec.Struct, frozen=True):
    """Close a connection, after what was sent on it."""

    connection: int


class ForSource(msgspec.Struct, frozen=True):
    """An action of a source coordinator that concerns its enumerator or its log."""

    source: str
    action: src.StartEnumerator | src.CallEnumerator | src.StopEnumerator | src.AppendLog | src.DropLog | src.LoadLog


class ShareMinimum(msgspec.Struct, frozen=True):
    """Report the lowest watermark of a group's readers here to the application's other queries; None: no vote."""

    group: str
    watermark_ms: int | None


class ShowSource(msgspec.Struct, frozen=True):
    """What keeps a source's enumerator from its work, as sentences; none: nothing does any longer."""

    source: str
    troubles: tuple[str, ...]


class ShowCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint is complete: its number, its epoch, how long it took, and how large its manifest is."""

    checkpoint_id: int
    epoch: int
    duration_ms: int
    size_bytes: int


class ShowProgress(msgspec.Struct, frozen=True):
    """A subtask's figures came."""

    subtask: int
    progress: SubtaskProgress


class ShowFailedCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint failed: why, as a sentence, and how long it took. One put off, or given up at the end, did not."""

    checkpoint_id: int
    reason: str
    duration_ms: int


class ShowRestart(msgspec.Struct, frozen=True, kw_only=True):
    """Subtasks restart from the last completed checkpoint.

    Parameters
    ----------
    kind
        What failed: a ``subtask``; a ``slot``, with all subtasks in it; or something of the whole ``job``: Spark's job,
        a source's enumerator, checkpoints.
    cause
        Its error, as a sentence.
    stage, subtask, slot
        Where, as far as that is known.
    restarted
        The numbers of the subtasks that start again.
    """

    kind: str
    cause: str
    stage: int | None
    subtask: int | None
    slot: int | None
    restarted: tuple[int, ...]


class Log(msgspec.Struct, frozen=True):
    """Something worth a line in the log, and where it happened, if that is known: a fenced attempt, a failover."""

    level: str
    text: str
    slot: int | None = None
    stage: int | None = None
    subtask: int | None = None


Action = (
    Transmit | CloseConnection | ForSource | ShareMinimum | ShowProgress | ShowCheckpoint | ShowSource | ShowRestart
    | ShowFailedCheckpoint | Log | sch.SubmitJob | sch.CancelJob | sch.FailQuery | sch.QueryOver | cp.WriteManifest
    | cp.DeleteCheckpoint | cp.LookForFiles | cp.Commit | cp.AnswerRequest | cp.DeleteSavepoint
)  # fmt: skip
