"""What a source's coordinator hears, and what it orders.

Never: decide anything. `source_coordinator` does.

Follows FLIP-27, "Where to run the enumerator" (option 3).
"""

from __future__ import annotations

import msgspec

from headgate.coordinator.sources.log_records import LogRecord
from headgate.protocol import messages as msg
from headgate.protocol.state import SplitState

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
        Ends that the readers' states in that checkpoint hold: the enumerator is notified of them again.
    unassigned
        Of the splits that the enumerator has, those with rows in flight or read to their ends.
    """

    checkpoint_id: int = 0
    state: bytes | None = None
    finished: tuple[str, ...] = ()
    unassigned: tuple[SplitState, ...] = ()


class FromReader(msgspec.Struct, frozen=True):
    """A message of a reader: ReaderRegistered, SplitRequested, SplitsFinished, EventToEnumerator or SourceReported."""

    subtask: int
    message: msg.ReaderRegistered | msg.SplitRequested | msg.SplitsFinished | msg.EventToEnumerator | msg.SourceReported


class ReaderFailed(msgspec.Struct, frozen=True):
    """A reader is gone. It will be restored from ``checkpoint_id`` (0: it will start without state)."""

    subtask: int
    checkpoint_id: int


class EnumeratorStarted(msgspec.Struct, frozen=True):
    """The enumerator was made and its ``start`` returned.

    ``took_assignments``: the splits in `StartEnumerator.assigned` are in its state no longer.
    """

    incarnation: int
    took_assignments: bool = False


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
    """The enumerator's state for a checkpoint. What it assigned before precedes it in the order of events."""

    incarnation: int
    checkpoint_id: int
    state: bytes


class EnumeratorStateChanged(msgspec.Struct, frozen=True):
    """What no call orders again changed the enumerator's state: slow work (resolved positions), a notification."""

    incarnation: int
    state: bytes


class ReaderAdded(msgspec.Struct, frozen=True):
    """The enumerator's ``add_reader`` returned: its states know what the reader reported from now on."""

    incarnation: int
    subtask: int


class SourceEventHandled(msgspec.Struct, frozen=True):
    """The enumerator's ``handle_source_event`` returned: its states know that event of a reader from now on."""

    incarnation: int
    subtask: int


class UnassignedChanged(msgspec.Struct, frozen=True):
    """The enumerator's ``unassigned_event_time_ms`` is another. What it assigned before precedes it."""

    incarnation: int
    event_time_ms: int | None


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


class SlowWorkTried(msgspec.Struct, frozen=True):
    """Slow work (discovery) failed and is retried, or did not fail any longer.

    ``failures``: how often in a row; 0: it succeeded after such failures. ``reason``: the last error.
    """

    incarnation: int
    name: str
    failures: int
    reason: str = ""


class BusyCall(msgspec.Struct, frozen=True):
    """A call of the connector's code that has not returned yet: a method, or slow work in the background."""

    name: str
    for_ms: int
    is_slow_work: bool = False


class EnumeratorBusy(msgspec.Struct, frozen=True):
    """Which calls of the enumerator take long. Comes every second while there are any, and once with none."""

    incarnation: int
    calls: tuple[BusyCall, ...]


class LogAppended(msgspec.Struct, frozen=True):
    """All records up to this number are durable."""

    number: int


class LogAppendFailed(msgspec.Struct, frozen=True):
    """Records could not be written."""

    number: int
    reason: str


class LogLoaded(msgspec.Struct, frozen=True):
    """What the log holds since a checkpoint, in order; None: it cannot be used (lost, corrupt), with the reason.

    ``incarnation`` is that of the `LoadLog`.
    """

    records: tuple[LogRecord, ...] | None
    reason: str = ""
    incarnation: int = 0


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


class SourceTimePassed(msgspec.Struct, frozen=True):
    """It is as late as `SourceCoordinator.next_time_ms` returned."""


class SourceClosed(msgspec.Struct, frozen=True):
    """The query ends."""


Event = (
    SourceStarted | FromReader | ReaderFailed | EnumeratorStarted | SplitsAssigned | NoMoreSplitsSignalled | EventSent
    | EnumeratorSnapshotted | EnumeratorStateChanged | ReaderAdded | SourceEventHandled | UnassignedChanged
    | ReaderForgotten | SplitsTakenBack | EnumeratorFailed | SlowWorkTried | EnumeratorBusy | LogAppended
    | LogAppendFailed | LogLoaded | CheckpointStarted | BarriersSent | SourceCheckpointCompleted
    | SourceCheckpointAborted | SourceTimePassed | SourceClosed
)  # fmt: skip

# What is to be done.


class AddReader(msgspec.Struct, frozen=True):
    """Register the reader in the enumerator's context, then call ``add_reader``.

    ``held``: the ids of the splits that it has, beside those that it reported.
    """

    subtask: int
    host: str
    reported_splits: tuple[SplitState, ...] = ()
    held: tuple[str, ...] = ()


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
    """Call ``handle_source_event``. Answered by `SourceEventHandled`."""

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

    Parameters
    ----------
    incarnation
        Stands in all that it says.
    state
        What its source's ``state_serializer`` wrote; None: afresh.
    checkpoint_id
        No checkpoint after this one has a state of this source yet.
    holders
        Readers that have splits, by split id, as far as that is known: it must not give them to others.
    assigned
        Splits that readers were given since its state was taken, by reader: it is asked to take note of them.
    returned
        Splits that it gets back before, by the reader that they were with: its state knows their ends, and readers were
        given them again.
    """

    incarnation: int
    state: bytes | None
    checkpoint_id: int = 0
    holders: dict[str, int] = {}
    assigned: dict[int, tuple[SplitState, ...]] = {}
    returned: dict[int, tuple[SplitState, ...]] = {}


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
    """Delete the segments before this one; None: all. In order with `AppendLog` and `LoadLog`."""

    before_segment: int | None


class LoadLog(msgspec.Struct, frozen=True):
    """Read this segment and those after it, after all that was ordered before. Answered by `LogLoaded`.

    Parameters
    ----------
    from_segment
        The first segment.
    through
        The number of the last record that is known to be durable: a log that ends before it is not whole.
    incarnation
        Of the enumerator that is to be restored from it; `LogLoaded` repeats it.
    """

    from_segment: int
    through: int = 0
    incarnation: int = 0


class SendToReader(msgspec.Struct, frozen=True):
    """Put a message on the stream of the reader's slot."""

    subtask: int
    message: msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader | msg.UnassignedWork | msg.ReportSource


class EnumeratorStateReady(msgspec.Struct, frozen=True):
    """The source's part of a checkpoint.

    Parameters
    ----------
    checkpoint_id, state
        The checkpoint, and the source's state.
    finished_known
        By subtask, the number up to which it knows ends.
    unassigned
        As in `SourceStarted`.
    """

    checkpoint_id: int
    state: bytes
    finished_known: dict[int, int]
    unassigned: tuple[SplitState, ...] = ()


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


class WarnOfEnumerator(msgspec.Struct, frozen=True):
    """A call of the enumerator takes long: a line for the log."""

    text: str


Action = (
    StartEnumerator | CallEnumerator | StopEnumerator | AppendLog | DropLog | LoadLog | SendToReader
    | EnumeratorStateReady | CheckpointRefused | ReaderReset | RequestGlobalFailover | WarnOfEnumerator
)  # fmt: skip
