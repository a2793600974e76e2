"""Knows which reader was given which splits since which checkpoint, and stands between enumerator and readers.

Never: call an enumerator, send or store anything: it orders that, and is told the outcome.

Follows FLIP-27, "Where to run the enumerator" (option 3); FLIP-537; Flink's SourceCoordinator, SplitAssignmentTracker.
"""

from __future__ import annotations

import msgspec

from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, SplitState

# What happened.


class SourceStarted(msgspec.Struct, frozen=True):
    """Start the source afresh, or restore it with everything else (a start of the query, a global failover).

    Parameters
    ----------
    checkpoint_id
        The checkpoint that is restored; 0: none.
    state
        The enumerator's state in it; None: it starts afresh.
    finished
        Ends that the readers' states in that checkpoint hold: the enumerator is told them again (traps, 25).
    """

    checkpoint_id: int = 0
    state: bytes | None = None
    finished: tuple[str, ...] = ()


class FromReader(msgspec.Struct, frozen=True):
    """A letter of a reader: ReaderRegistered, SplitRequested, SplitsFinished, EventToEnumerator or SourceReported."""

    subtask: int
    letter: msg.ReaderRegistered | msg.SplitRequested | msg.SplitsFinished | msg.EventToEnumerator | msg.SourceReported


class ReaderFailed(msgspec.Struct, frozen=True):
    """A reader is gone. It will be restored from ``checkpoint_id`` (0: it will start without state)."""

    subtask: int
    checkpoint_id: int


class EnumeratorStarted(msgspec.Struct, frozen=True):
    """The enumerator was made and its ``start`` returned."""

    incarnation: int


class SplitsAssigned(msgspec.Struct, frozen=True):
    """The enumerator assigned splits."""

    incarnation: int
    assignment: dict[int, tuple[SplitState, ...]]


class NoMoreSplitsSignalled(msgspec.Struct, frozen=True):
    """The enumerator promised a reader that nothing follows."""

    incarnation: int
    subtask: int


class EventSent(msgspec.Struct, frozen=True):
    """The enumerator sent a reader an event of the connector's own."""

    incarnation: int
    subtask: int
    payload: bytes


class EnumeratorSnapshotted(msgspec.Struct, frozen=True):
    """The enumerator's state for a checkpoint. What it assigned before stands before it in the order of events."""

    incarnation: int
    checkpoint_id: int
    state: bytes


class EnumeratorStateChanged(msgspec.Struct, frozen=True):
    """The outcome of slow work (discovery) changed the enumerator's state: resolved positions are to be logged."""

    incarnation: int
    state: bytes


class ReaderForgotten(msgspec.Struct, frozen=True):
    """The enumerator's context dropped a reader: nothing it assigned to it before is still under way."""

    incarnation: int
    subtask: int


class SplitsTakenBack(msgspec.Struct, frozen=True):
    """The enumerator's ``add_splits_back`` returned."""

    incarnation: int
    subtask: int


class EnumeratorFailed(msgspec.Struct, frozen=True):
    """The enumerator raised, or its thread or client died."""

    incarnation: int
    error: msg.ErrorReport


class LogAppended(msgspec.Struct, frozen=True):
    """All records up to this number are durable."""

    number: int


class LogAppendFailed(msgspec.Struct, frozen=True):
    """Records could not be written."""

    number: int
    reason: str


class LogLoaded(msgspec.Struct, frozen=True):
    """What the log holds since a checkpoint, in order; None: it cannot be used (lost, corrupt), with the reason."""

    records: tuple[LogRecord, ...] | None
    reason: str = ""


class CheckpointStarted(msgspec.Struct, frozen=True):
    """Snapshot the enumerator; hold back what it sends to readers afterwards until the barriers are out."""

    checkpoint_id: int


class BarriersSent(msgspec.Struct, frozen=True):
    """The checkpoint's barriers are on their streams: what was held back may follow."""

    checkpoint_id: int


class SourceCheckpointCompleted(msgspec.Struct, frozen=True):
    """A checkpoint is durable: assignments up to it need not be remembered."""

    checkpoint_id: int


class SourceCheckpointAborted(msgspec.Struct, frozen=True):
    """A checkpoint will not complete: what was held back for it may go."""

    checkpoint_id: int


class SourceClosed(msgspec.Struct, frozen=True):
    """The query ends."""


Event = (
    SourceStarted | FromReader | ReaderFailed | EnumeratorStarted | SplitsAssigned | NoMoreSplitsSignalled | EventSent
    | EnumeratorSnapshotted | EnumeratorStateChanged | ReaderForgotten | SplitsTakenBack | EnumeratorFailed
    | LogAppended | LogAppendFailed | LogLoaded | CheckpointStarted | BarriersSent | SourceCheckpointCompleted
    | SourceCheckpointAborted | SourceClosed
)  # fmt: skip

# What stands in the write-ahead log.


class StateRecord(msgspec.Struct, frozen=True, tag="state"):
    """The enumerator's state. ``checkpoint_id`` is set on the first record of a segment, which a snapshot begins."""

    state: bytes
    checkpoint_id: int | None = None


class AssignedRecord(msgspec.Struct, frozen=True, tag="assigned"):
    """Splits were given to a reader's execution with this number."""

    subtask: int
    execution: int
    number: int
    splits: tuple[SplitState, ...]


class GivenBackRecord(msgspec.Struct, frozen=True, tag="given-back"):
    """All that a reader was given since ``checkpoint_id`` went back to the enumerator."""

    subtask: int
    checkpoint_id: int


class FinishedRecord(msgspec.Struct, frozen=True, tag="finished"):
    """The enumerator was told of ends."""

    subtask: int
    finished: tuple[FinishedSplit, ...]


class NoMoreSplitsRecord(msgspec.Struct, frozen=True, tag="no-more-splits"):
    """A reader was promised that nothing follows."""

    subtask: int


LogRecord = StateRecord | AssignedRecord | GivenBackRecord | FinishedRecord | NoMoreSplitsRecord

# What is to be done.


class AddReader(msgspec.Struct, frozen=True):
    """Register the reader in the enumerator's context, then call ``add_reader``."""

    subtask: int
    host: str
    reported_splits: tuple[SplitState, ...] = ()


class ForgetReader(msgspec.Struct, frozen=True):
    """Unregister the reader from the enumerator's context. Answered by `ReaderForgotten`."""

    subtask: int


class AddSplitsBack(msgspec.Struct, frozen=True):
    """Call ``add_splits_back``. Answered by `SplitsTakenBack`."""

    subtask: int
    splits: tuple[SplitState, ...]


class HandleSplitRequest(msgspec.Struct, frozen=True):
    """Call ``handle_split_request``."""

    subtask: int
    host: str


class HandleSourceEvent(msgspec.Struct, frozen=True):
    """Call ``handle_source_event``."""

    subtask: int
    payload: bytes


class NotifySplitsFinished(msgspec.Struct, frozen=True):
    """Call ``notify_splits_finished``."""

    split_ids: tuple[str, ...]


class SnapshotEnumerator(msgspec.Struct, frozen=True):
    """Call ``snapshot_state``. Answered by `EnumeratorSnapshotted`."""

    checkpoint_id: int


class NotifyEnumerator(msgspec.Struct, frozen=True):
    """Call ``notify_checkpoint_complete``."""

    checkpoint_id: int


EnumeratorCall = (
    AddReader | ForgetReader | AddSplitsBack | HandleSplitRequest | HandleSourceEvent | NotifySplitsFinished
    | SnapshotEnumerator | NotifyEnumerator
)  # fmt: skip


class StartEnumerator(msgspec.Struct, frozen=True):
    """Make an enumerator, of this state or afresh, and call ``start``. Answered by `EnumeratorStarted`.

    An older incarnation is closed first; whatever it still says is ignored.
    """

    incarnation: int
    state: bytes | None


class CallEnumerator(msgspec.Struct, frozen=True):
    """Call the enumerator, after all calls ordered before."""

    incarnation: int
    call: EnumeratorCall


class StopEnumerator(msgspec.Struct, frozen=True):
    """Close the enumerator."""

    incarnation: int


class AppendLog(msgspec.Struct, frozen=True):
    """Make records durable, in order. Answered by `LogAppended` with ``number``, the number of the last of them.

    ``segment`` is the checkpoint whose snapshot began the segment (0: the start).
    """

    segment: int
    number: int
    records: tuple[LogRecord, ...]


class DropLog(msgspec.Struct, frozen=True):
    """Delete the segments before this one."""

    before_segment: int


class LoadLog(msgspec.Struct, frozen=True):
    """Read this segment and those after it. Answered by `LogLoaded`."""

    from_segment: int


class SendToReader(msgspec.Struct, frozen=True):
    """Put a letter on the stream of the reader's slot."""

    subtask: int
    letter: msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader | msg.ReportSource


class EnumeratorStateReady(msgspec.Struct, frozen=True):
    """The source's part of a checkpoint. ``finished_known``: by subtask, the number up to which it knows ends."""

    checkpoint_id: int
    state: bytes
    finished_known: dict[int, int]


class CheckpointRefused(msgspec.Struct, frozen=True):
    """The source cannot contribute to this checkpoint."""

    checkpoint_id: int
    reason: str


class ReaderReset(msgspec.Struct, frozen=True):
    """The enumerator has all splits of the failed reader back: it may be deployed again."""

    subtask: int


class RequestGlobalFailover(msgspec.Struct, frozen=True):
    """The source cannot go on alone: restore everything from the last completed checkpoint."""

    error: msg.ErrorReport


Action = (
    StartEnumerator | CallEnumerator | StopEnumerator | AppendLog | DropLog | LoadLog | SendToReader
    | EnumeratorStateReady | CheckpointRefused | ReaderReset | RequestGlobalFailover
)  # fmt: skip
