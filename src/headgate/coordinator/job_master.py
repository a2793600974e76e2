"""The one door to the machines of the coordinator: what happens outside goes in, what is to be done comes out.

Never: decide anything of its own beyond who is told: it routes between `Scheduler`, one `SourceCoordinator` per
source, `CheckpointCoordinator` and one `Session` per attempt of a slot.

Follows FLIP-27, "Where to run the enumerator"; Flink's JobMaster.
"""

from __future__ import annotations

import msgspec

from headgate.checkpoint import coordinator as cp
from headgate.coordinator import scheduler as sch
from headgate.coordinator import source_coordinator as src
from headgate.protocol.messages import CheckpointKind, Envelope, ErrorReport, SubtaskProgress


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A source of the query: its name and fixed options, and whether it has FLIP-537's marker."""

    name: str
    reassigns_on_recovery: bool
    fixed: dict[str, object] = {}


class JobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the query is made of.

    Parameters
    ----------
    sources
        By uid.
    stages
        The uids of each stage's operators (sources and sinks included), in the order of the data.
    parallelism, max_parallelism
        How many slots; how many there may ever be.
    regions
        Stages that restart together, by the lowest stage's number; without an exchange each subtask restarts alone.
    query_id, run
        Whose it is.
    """

    sources: dict[str, SourcePlan]
    stages: tuple[tuple[str, ...], ...]
    parallelism: int
    max_parallelism: int
    query_id: str
    run: int


# What happened outside, beside the answers to actions.


class LetterReceived(msgspec.Struct, frozen=True):
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


class StopRequested(msgspec.Struct, frozen=True):
    """``query.stop()``: end now, without a checkpoint."""


class TimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    sch.QueryStarted | LetterReceived | ConnectionClosed | FromSource | sch.JobEnded | cp.CheckpointRequested
    | cp.ManifestWritten | cp.ManifestWriteFailed | cp.Committed | cp.CommitFailed | StopRequested | TimePassed
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
    action: (
        src.StartEnumerator | src.CallEnumerator | src.StopEnumerator | src.AppendLog | src.DropLog | src.LoadLog
    )


class ShowProgress(msgspec.Struct, frozen=True):
    """A subtask's figures came."""

    subtask: int
    progress: SubtaskProgress


class Log(msgspec.Struct, frozen=True):
    """Something worth a line in the log: a fenced attempt, a failover, a failed checkpoint."""

    level: str
    text: str


Action = (
    Transmit | CloseConnection | ForSource | ShowProgress | Log | sch.SubmitJob | sch.CancelJob | sch.FailQuery
    | sch.QueryOver | cp.WriteManifest | cp.DeleteCheckpoint | cp.Commit | cp.AnswerRequest
)  # fmt: skip

__all__ = ["Action", "CheckpointKind", "ErrorReport", "Event", "JobPlan", "SourcePlan"]
