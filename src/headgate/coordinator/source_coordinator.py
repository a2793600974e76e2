"""Knows which reader was given which splits since which checkpoint, and stands between enumerator and readers.

Never: call an enumerator, send or store anything: it orders that, and is told the outcome.

What the enumerator says comes in the order in which it said it and goes out in that order: an assignment when it is in
the log, the state for a checkpoint when all before it is out. What follows is held back until the barriers are out.

    state                event                      next        actions                  why
    -------------------  -------------------------  ----------  -----------------------  --------------------------
    new, running,        SourceStarted              running     DropLog, AppendLog,      nothing older counts
    recovering, failed                                          StartEnumerator,
                                                                CallEnumerator?
    new, failed          SourceClosed               closed                               nothing runs
    running, recovering  SourceClosed               closed      StopEnumerator           the query ends
    running              FromReader registered      same        CallEnumerator,          its report is nowhere else
                                                                AppendLog?,
                                                                SendToReader?
    running              FromReader other           same        CallEnumerator?,         ignored if it failed, or
                                                                AppendLog?,              is to report all of it
                                                                SendToReader?
    running              FromReader event           same        AppendLog?,              logged first; waits until the
                                                                CallEnumerator?          reader has reported
    recovering           FromReader registered      same        AppendLog?               it is asked to report, too
    recovering           FromReader other           same                                 its report will say it
    recovering           FromReader event           same        AppendLog?               its report will not say it
    running              ReaderFailed               same        CallEnumerator           forget it before all else
    running, recovering  ReaderFailed unknown       same        ReaderReset              it was given nothing
    recovering           ReaderFailed               same                                 the next enumerator does
                                                                                         it
    running              ReaderForgotten            same        CallEnumerator?          give back what it had
    running              SplitsTakenBack            same        AppendLog?,              it may be deployed again
                                                                ReaderReset?
    running              EnumeratorStarted          same        CallEnumerator?,         readers report to one that
                                                                SendToReader?            knows what it assigned
    running              SplitsAssigned             same        AppendLog?,              what a reader has already
                                                                SendToReader?,           is swallowed; asks again
                                                                CallEnumerator?
    running              SplitsAssigned             failed      StopEnumerator,          not what the log says
                                                                RequestGlobalFailover
    running              NoMoreSplitsSignalled      same        AppendLog?,              once is enough
                                                                SendToReader?
    running              EventSent                  same        SendToReader?            in order with the others
    running              EnumeratorSnapshotted      same        AppendLog?,              a new segment; nothing if
                                                                EnumeratorStateReady?    it was aborted
    running              EnumeratorStateChanged     same        AppendLog?               resolved positions, say
    running              ReaderAdded                same        SendToReader?            its report is in the next
                                                                                         state; now it hears of
                                                                                         unassigned work
    running              SourceEventHandled         same                                 it is in the next state
    running              UnassignedChanged          same        SendToReader?            behind what was assigned
                                                                                         before it
    running              SourceTimePassed           same        SendToReader?            to very many readers a rise
                                                                                         goes later
    running              EnumeratorFailed           recovering  LoadLog,                 readers read on
                                                                CheckpointRefused?
    running              EnumeratorFailed           failed      StopEnumerator,          the log is not whole, it
                                                                RequestGlobalFailover,   fails again and again, or
                                                                CheckpointRefused?       only the user can help
    running              EnumeratorFailed late      same                                 of an older incarnation
    running              SlowWorkTried              same                                 what is assigned is read on
    running              EnumeratorBusy             same        WarnOfEnumerator?        slow, perhaps for ever
    running              EnumeratorBusy             recovering  LoadLog,                 too long: it failed
                                                                CheckpointRefused?
    running              EnumeratorBusy             failed      StopEnumerator,          likewise, and the log is not
                                                                RequestGlobalFailover,   whole, or once too often
                                                                CheckpointRefused?
    running              LogAppended                same        SendToReader?,           it is durable
                                                                EnumeratorStateReady?
    running              LogAppendFailed            same        SendToReader?,           without a log until the
                                                                EnumeratorStateReady?    next snapshot
    running              LogLoaded                  same                                 of an older incarnation
    recovering           LogAppended                same                                 what waited is discarded
    recovering           LogAppendFailed            failed      StopEnumerator,          the log is not whole
                                                                RequestGlobalFailover
    recovering           LogAppendFailed late       same                                 of a log that was dropped
    recovering           LogLoaded                  running     StartEnumerator,         readers say what they have
                                                                CallEnumerator?,         (now or once it started)
                                                                SendToReader?
    recovering           LogLoaded unusable         failed      StopEnumerator,          lost or corrupt
                                                                RequestGlobalFailover
    recovering           LogLoaded late             same                                 of an older incarnation
    running              CheckpointStarted          same        CallEnumerator           snapshot, in order
    running,             CheckpointStarted          same        CheckpointRefused        something is being
    recovering, failed                                                                   restored
    running              BarriersSent               same        SendToReader?            what was held back goes
    recovering           BarriersSent               same                                 nothing was held back
    running              SourceCheckpointCompleted  same        DropLog, CallEnumerator  what is older is forgotten
    recovering           SourceCheckpointCompleted  same        DropLog                  likewise
    running              SourceCheckpointAborted    same        SendToReader?            what was held back goes
    recovering           SourceCheckpointAborted    same                                 nothing was held back
    recovering, failed,  EnumeratorStarted          same                                 of an older incarnation
    closed
    recovering, failed,  SplitsAssigned             same                                 of an older incarnation
    closed
    recovering, failed,  NoMoreSplitsSignalled      same                                 of an older incarnation
    closed
    recovering, failed,  EventSent                  same                                 of an older incarnation
    closed
    recovering, failed,  EnumeratorSnapshotted      same                                 of an older incarnation
    closed
    recovering, failed,  EnumeratorStateChanged     same                                 of an older incarnation
    closed
    recovering, failed,  ReaderAdded                same                                 of an older incarnation
    closed
    recovering, failed,  SourceEventHandled         same                                 of an older incarnation
    closed
    recovering, failed,  UnassignedChanged          same                                 of an older incarnation
    closed
    recovering, failed,  ReaderForgotten            same                                 of an older incarnation
    closed
    recovering, failed,  SplitsTakenBack            same                                 of an older incarnation
    closed
    recovering, failed,  EnumeratorFailed           same                                 of an older incarnation
    closed
    recovering, failed,  SlowWorkTried              same                                 of an older incarnation
    closed
    recovering, failed,  EnumeratorBusy             same                                 of an older incarnation
    closed
    failed, closed       LogAppended                same                                 too late
    failed, closed       LogAppendFailed            same                                 too late
    failed, closed       LogLoaded                  same                                 too late
    failed, closed       FromReader                 same                                 too late
    failed, closed       ReaderFailed               same                                 too late
    failed, closed       BarriersSent               same                                 too late
    failed, closed       SourceCheckpointCompleted  same                                 too late
    failed, closed       SourceCheckpointAborted    same                                 too late
    closed               CheckpointStarted          same                                 too late

A reader is *registered*, *reporting* (after a restoration: `ReportSource` is under way) or *failed* (until its splits
are back). A split is with the enumerator, or in one of these:

    place      meaning
    ---------  -----------------------------------------------------------------------------------------------------
    assigned   given to a reader since the last completed checkpoint (`SplitAssignmentTracker`)
    swallowed  a restored enumerator has it though a reader does: its next assignment of it is not carried out
    parked     a failed reader had it and the enumerator may not give it to another one: it waits for that reader

No watermark passes what is *unassigned*. A reader hears of that when the enumerator has seen it, so that what it
reported or is given on that occasion comes first; its watermark is held until then. Unlike an assignment it is not
logged: a restored enumerator says it anew. While such a one has splits that readers have (*swallowed*), what it says is
too early, maybe for ever: then what was told before it failed counts, until the enumerator says something later. What
is *parked* waits for a reader that is down, and holds nobody else. With very many readers a rise is told a little
later, at most `_LETTERS_PER_MS` of them: else each split that is assigned would be a letter to every reader.

(Long, because events, actions and machine stand together: whoever talks to it imports this one module.)

Follows FLIP-27, "Where to run the enumerator" (option 3); FLIP-537; Flink's SourceCoordinator, SplitAssignmentTracker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, assert_never

import msgspec

from headgate.coordinator.assignments import SplitAssignmentTracker
from headgate.coordinator.log_records import (
    AssignedRecord,
    FinishedRecord,
    GivenBackRecord,
    LogRecord,
    NoMoreSplitsRecord,
    RegisteredRecord,
    SourceEventRecord,
    StateRecord,
)
from headgate.coordinator.source_recovery import Recovered
from headgate.coordinator.source_state import SourceState, decode_source_state, encode_source_state
from headgate.errors import InvalidTransitionError, StoredStateError
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
        Ends that the readers' states in that checkpoint hold: the enumerator is told them again.
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
    """The enumerator's state for a checkpoint. What it assigned before stands before it in the order of events."""

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
    """The enumerator's ``unassigned_event_time_ms`` is another. What it assigned before stands before it."""

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
    """Slow work (discovery) failed and is tried again, or did not fail any longer.

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
    """It is as late as `SourceCoordinator.next_time_ms` said."""


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
    """

    incarnation: int
    state: bytes | None
    checkpoint_id: int = 0
    holders: dict[str, int] = {}
    assigned: dict[int, tuple[SplitState, ...]] = {}


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
    """Put a letter on the stream of the reader's slot."""

    subtask: int
    letter: msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader | msg.UnassignedWork | msg.ReportSource


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


class WarnOfEnumerator(msgspec.Struct, frozen=True):
    """A call of the enumerator takes long: a line for the log."""

    text: str


Action = (
    StartEnumerator | CallEnumerator | StopEnumerator | AppendLog | DropLog | LoadLog | SendToReader
    | EnumeratorStateReady | CheckpointRefused | ReaderReset | RequestGlobalFailover | WarnOfEnumerator
)  # fmt: skip

# The machine.

_HISTORY = 64
_MAX_RECOVERIES = 3
"""How often an enumerator is restored from the log between two checkpoints; one more failure is everybody's."""

_LETTERS_PER_MS = 50
"""What readers are told of unassigned work at most, unless somebody has to stop for it."""

_SLOW_WORK_FACTOR = 20
"""Slow work may take so many times ``stuck_timeout_ms``: a listing of millions of files takes minutes."""

_LONGEST_STEP_MS = 2000
"""Of the time between two looks at a call at most so much counts: a process that was stopped is not stuck."""

_ReaderState = Literal["registered", "reporting", "failed"]
Letter = msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader
_OF_ENUMERATOR = (
    EnumeratorStarted, SplitsAssigned, NoMoreSplitsSignalled, EventSent, EnumeratorSnapshotted, EnumeratorStateChanged,
    ReaderAdded, SourceEventHandled, UnassignedChanged, ReaderForgotten, SplitsTakenBack, EnumeratorFailed,
    SlowWorkTried, EnumeratorBusy,
)  # fmt: skip
_OF_ANYBODY = (
    *_OF_ENUMERATOR, LogAppended, LogAppendFailed, LogLoaded, FromReader, ReaderFailed, BarriersSent,
    SourceCheckpointCompleted, SourceCheckpointAborted,
)  # fmt: skip


class _Reader(msgspec.Struct):
    """What is known of one reader."""

    stage: int
    execution: int
    host: str
    state: _ReaderState = "registered"
    reported: tuple[SplitState, ...] = ()  # to be handed to the enumerator with the next `AddReader`
    unconfirmed: tuple[SplitState, ...] = ()  # reported, and maybe not known to the enumerator yet
    number: int = 0  # of the last assignment
    told: int = 0  # the number of the last end that the enumerator was told
    requested: bool = False  # it waits for an answer
    promised: bool = False  # that nothing follows
    checkpoint_id: int = 0  # it will be restored from, once it failed
    logged: list[AssignedRecord] = []  # may not have arrived; asked for while reporting
    admitted: bool = False  # the enumerator has seen it, and what followed is out
    told_work: msg.UnassignedWork | None = None  # the last that it was sent


class _Pending(msgspec.Struct):
    """A checkpoint between its start and its barriers."""

    checkpoint_id: int
    finished_known: dict[int, int]
    ready: bool = False  # the state is out, what follows is held back


class _Admission(msgspec.Struct, frozen=True):
    """The reader hears of unassigned work from here on."""


class _Unassigned(msgspec.Struct, frozen=True):
    """What is unassigned from here on."""

    event_time_ms: int | None


class _Busy(msgspec.Struct, frozen=True):
    """A call that takes long: when it was looked at, how much of its time counts, and when to warn of it (again)."""

    seen_ms: int
    counted_ms: int
    warn_ms: int


class _Held(msgspec.Struct, frozen=True):
    """Something on its way out: a letter, or the state for a checkpoint, once the log is durable up to a number."""

    log_number: int
    subtask: int | None
    execution: int
    what: Letter | EnumeratorStateReady | _Admission | _Unassigned


class SourceCoordinator:
    """The coordinator of one source.

    Parameters
    ----------
    source
        The source's uid.
    reassigns_on_recovery
        Whether it has FLIP-537's marker.
    parallelism
        How many readers there are.
    keeps_subtask
        Whether splits of a failed reader wait for that reader instead of going to whoever asks: with event time in
        use another reader's watermark may be past them. A source with the marker sees to that by itself.
    stuck_timeout_ms
        How long a call of the enumerator may take before it counts as failed, in milliseconds.

    Examples
    --------
    >>> machine = SourceCoordinator("numbers", reassigns_on_recovery=False, parallelism=1)
    >>> machine.handle(SourceStarted(), 0)[-1]
    StartEnumerator(incarnation=1, state=None, checkpoint_id=0, holders={}, assigned={})
    >>> came = msg.ReaderRegistered(stage=0, execution=1, source="numbers", host="here")
    >>> machine.handle(FromReader(0, came), 0)
    [CallEnumerator(incarnation=1, call=AddReader(subtask=0, host='here', reported_splits=(), held=()))]
    >>> machine.handle(SplitsAssigned(1, {0: (SplitState("a", b"..."),)}), 0)  # logged first, and sent once it is durable
    [AppendLog(segment=0, number=2, records=(AssignedRecord(subtask=0, execution=1, number=1, splits=(SplitState(split_id='a', data=b'...'),)),))]
    """  # noqa: E501

    def __init__(
        self,
        source: str,
        *,
        reassigns_on_recovery: bool,
        parallelism: int,
        keeps_subtask: bool = False,
        stuck_timeout_ms: int = 30_000,
    ) -> None:
        self.source = source
        self.parallelism = parallelism
        self.state: Literal["new", "running", "recovering", "failed", "closed"] = "new"
        self._reassigns = reassigns_on_recovery
        self._keeps_subtask = keeps_subtask and not reassigns_on_recovery
        self._stuck_timeout_ms = stuck_timeout_ms
        self._incarnation = 0
        self._number = 0  # of the last record of the log
        self._history: deque[str] = deque(maxlen=_HISTORY)
        self._now_ms = 0
        self._begin(0)

    def _begin(self, checkpoint_id: int) -> None:
        """Forget everything but the numbers, which are not used twice."""
        self._readers: dict[int, _Reader] = {}
        self._tracker = SplitAssignmentTracker(checkpoint_id)
        self._swallowed: dict[str, int | None] = {}  # see `source_recovery`
        self._parked: dict[int, dict[str, SplitState]] = {}
        self._outbox: deque[_Held] = deque()
        self._pending: _Pending | None = None
        self._completed = self._segment = checkpoint_id
        self._first_number = self._number + 1
        self._durable = self._number
        self._loading = checkpoint_id  # the segment from which the log is being read
        self._broken_segment: int | None = None  # the last one that misses records
        self._recoveries = 0
        # Events of readers that no state of the enumerator is known to know: it is handling them, or they wait until it
        # has been restored and knows the reader.
        self._handled: dict[int, deque[bytes]] = {}
        self._unhandled: dict[int, list[bytes]] = {}
        self._failing: dict[str, str] = {}  # slow work that is tried again: its trouble
        self._busy: dict[str, _Busy] = {}
        self._slow_calls: tuple[BusyCall, ...] = ()
        self._offered: dict[int, tuple[SplitState, ...]] = {}  # assignments that a restored enumerator may take note of
        self._given_again = 0  # answers outstanding to what a restored enumerator got back
        self._said: _Unassigned | None = None  # by this incarnation
        self._told: _Unassigned | None = None  # to all that are admitted, or to be told when time has passed
        self._told_late = False  # not all of them know
        self._quiet_until_ms = 0
        self._told_before: _Unassigned | None = None  # when the enumerator failed

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The table has no row for it. Nothing has changed.
        CorruptStateError, UnsupportedVersionError
            The state in a `SourceStarted` cannot be read.
        """
        handler = self._HANDLERS.get((self.state, type(event)))
        if handler is None:
            raise self._invalid(event, f"it is {self.state}")
        was, self._now_ms = self.state, now_ms
        actions: list[Action] = handler(self, event)
        self._history.append(f"{type(event).__name__} while {was} at {now_ms} ms")
        return actions

    def next_time_ms(self) -> int | None:
        """Return when `SourceTimePassed` is due, in milliseconds; None: not before another event."""
        return self._quiet_until_ms if self._told_late else None

    def troubles(self) -> tuple[str, ...]:
        """Return what keeps the enumerator from its work now, as sentences for people."""
        return (*self._failing.values(), *map(self._trouble_of, self._slow_calls))

    def check(self) -> None:
        """Assert what always holds: a split is in one place, and nothing is held back without a reason."""
        places = [split.split_id for _, split in self._tracker]
        places.extend(split_id for parked in self._parked.values() for split_id in parked)
        assert len(places) == len(set(places)), f"a split is in two places: {sorted(places)}"
        assert self._durable <= self._number
        if self._outbox and not (self._pending is not None and self._pending.ready):
            assert self._outbox[0].log_number > self._durable, "what could be sent is not"
        if self.state == "recovering":
            assert not self._outbox and not len(self._tracker)
        assert not self._told_late or self.state == "running"

    # The source as a whole.

    def _on_source_started(self, event: SourceStarted) -> list[Action]:
        state = None if event.state is None else decode_source_state(event.state)
        self._begin(event.checkpoint_id)
        self.state = "running"
        self._incarnation += 1
        if state is not None:
            self._swallowed = dict.fromkeys(state.assigned)
            assert not state.parked, "a checkpoint was taken while a reader was away"
        actions: list[Action] = [
            DropLog(None),
            *self._append(StateRecord(event.state, event.checkpoint_id)),
            StartEnumerator(self._incarnation, None if state is None else state.enumerator, event.checkpoint_id),
        ]
        if event.finished:
            actions.append(self._call(NotifySplitsFinished(event.finished)))
        return actions

    def _on_source_closed(self, event: SourceClosed) -> list[Action]:
        was, self.state, self._told_late = self.state, "closed", False
        return [] if was in ("new", "failed") else [StopEnumerator(self._incarnation)]

    def _give_up(self, error: msg.ErrorReport) -> list[Action]:
        self._begin(self._completed)
        self.state = "failed"
        return [StopEnumerator(self._incarnation), RequestGlobalFailover(error)]

    # Readers.

    def _on_from_reader(self, event: FromReader) -> list[Action]:
        reader = self._readers.get(event.subtask)
        letter = event.letter
        if isinstance(letter, msg.ReaderRegistered):
            if reader is not None:
                raise self._invalid(event, f"the reader is {reader.state} in execution {reader.execution}")
            return self._on_reader_registered(event.subtask, letter)
        if reader is None or reader.execution != letter.execution or reader.state == "failed":
            return []
        if isinstance(letter, msg.SourceReported):
            return self._on_source_reported(event.subtask, reader, letter)
        if isinstance(letter, msg.EventToEnumerator):
            return self._on_event_to_enumerator(event.subtask, reader, letter.payload)
        if reader.state == "reporting":  # the report that follows has it all
            return []
        match letter:
            case msg.SplitRequested():
                reader.requested, reader.host = True, letter.host
                return [self._call(HandleSplitRequest(event.subtask, letter.host))]
            case msg.SplitsFinished():
                return self._tell_finished(event.subtask, reader, letter.finished)
            case _:
                assert_never(letter)

    def _on_event_to_enumerator(self, subtask: int, reader: _Reader, payload: bytes) -> list[Action]:
        """Log an event before it is handled: who sent it does not send it again if the enumerator fails meanwhile."""
        actions = self._append(SourceEventRecord(subtask, payload))
        self._unhandled.setdefault(subtask, []).append(payload)
        return [*actions, *self._handle_events(subtask)] if reader.state == "registered" else actions

    def _handle_events(self, subtask: int) -> list[Action]:
        payloads = self._unhandled.pop(subtask, [])
        if payloads:
            self._handled.setdefault(subtask, deque()).extend(payloads)
        return [self._call(HandleSourceEvent(subtask, payload)) for payload in payloads]

    def _on_reader_registered(self, subtask: int, letter: msg.ReaderRegistered) -> list[Action]:
        reported = letter.reported_splits
        reader = self._readers[subtask] = _Reader(letter.stage, letter.execution, letter.host, reported=reported)
        actions = self._append(RegisteredRecord(subtask, letter.execution, reported)) if reported else []
        if self.state == "recovering":
            reader.state = "reporting"
            return actions
        return [*actions, *self._join(subtask, reader, letter.held)]

    def _join(self, subtask: int, reader: _Reader, held: tuple[str, ...]) -> list[Action]:
        """Make a reader known to the enumerator, with what waits for it."""
        parked = self._parked.pop(subtask, {})
        actions = self._deliver({subtask: tuple(parked.values())})
        reported = reader.reported
        if not self._tracker.is_empty:
            # Another reader has been given it since, or this one just was: then that counts, and not the report.
            reported = tuple(
                split
                for split in reported
                if self._tracker.holder(split.split_id) is None or split.split_id in self._swallowed
            )
        reader.reported, reader.unconfirmed = (), reader.reported
        added = self._call(AddReader(subtask, reader.host, reported, (*held, *parked)))
        return [*actions, added, *self._handle_events(subtask), *self._release()]

    def _on_source_reported(self, subtask: int, reader: _Reader, letter: msg.SourceReported) -> list[Action]:
        if reader.state != "reporting" or letter.incarnation != self._incarnation:
            return []
        reader.state, reader.host = "registered", letter.host
        missing = [record for record in reader.logged if record.number > letter.highest_number]
        reader.number = max(letter.highest_number, *(record.number for record in reader.logged), 0)
        reader.logged = []
        for record in missing:
            self._put(subtask, reader, self._assign_letter(reader, record))
        if reader.promised and not letter.no_more_splits:
            self._put(subtask, reader, self._no_more_letter(reader))
        reader.promised = reader.promised or letter.no_more_splits
        reader.requested = letter.request_pending and not missing and not reader.promised
        held = (*letter.held, *(split.split_id for record in missing for split in record.splits))
        actions = [*self._join(subtask, reader, held), *self._tell_finished(subtask, reader, letter.finished)]
        if reader.requested:
            actions.append(self._call(HandleSplitRequest(subtask, reader.host)))
        return actions

    def _tell_finished(self, subtask: int, reader: _Reader, finished: tuple[FinishedSplit, ...]) -> list[Action]:
        if not finished:
            return []
        reader.told = max(reader.told, *(each.number for each in finished))
        told = NotifySplitsFinished(tuple(each.split_id for each in finished))
        return [*self._append(FinishedRecord(subtask, finished)), self._call(told)]

    def _on_reader_failed(self, event: ReaderFailed) -> list[Action]:
        reader = self._readers.get(event.subtask)
        if reader is None:  # it never came: it was given nothing
            return [ReaderReset(event.subtask)]
        if reader.state == "failed":
            raise self._invalid(event, "its splits are on their way back already")
        reader.state, reader.checkpoint_id = "failed", event.checkpoint_id
        if self._pending is not None:
            self._pending.finished_known.pop(event.subtask, None)
        if self.state == "recovering":
            return []
        return [self._call(ForgetReader(event.subtask)), *self._release()]

    def _on_reader_forgotten(self, event: ReaderForgotten) -> list[Action]:
        reader = self._failed_reader(event)
        if reader is None:
            return []
        back = []
        parked = self._parked.get(event.subtask, {})
        for split in self._tracker.take_back(event.subtask, reader.checkpoint_id):
            if self._keeps_subtask or split.split_id in self._swallowed:
                parked[split.split_id] = split
            else:
                back.append(split)
        if parked:
            self._parked[event.subtask] = parked
        return [self._call(AddSplitsBack(event.subtask, tuple(back)))]

    def _on_splits_taken_back(self, event: SplitsTakenBack) -> list[Action]:
        if event.incarnation == self._incarnation and self._given_again:
            self._given_again -= 1  # answers what was ordered when it was restored, before anything else
            return []
        reader = self._failed_reader(event)
        if reader is None:
            return []
        del self._readers[event.subtask]
        return [*self._append(GivenBackRecord(event.subtask, reader.checkpoint_id)), ReaderReset(event.subtask)]

    def _failed_reader(self, event: ReaderForgotten | SplitsTakenBack) -> _Reader | None:
        """Return the reader of an answer to what was ordered for its failure; None: of an older enumerator."""
        if event.incarnation != self._incarnation:
            return None
        reader = self._readers.get(event.subtask)
        if reader is None or reader.state != "failed":
            raise self._invalid(event, "the reader did not fail")
        return reader

    # What the enumerator says.

    def _on_enumerator_started(self, event: EnumeratorStarted) -> list[Action]:
        offered, self._offered = self._offered, {}
        if event.incarnation != self._incarnation or not offered:
            return []  # calls were ordered after the start already
        actions: list[Action] = []
        if event.took_assignments:
            for subtask, splits in offered.items():
                parked = self._parked.get(subtask, {})
                back = [split for split in splits if parked.pop(split.split_id, None) is not None]
                if not parked:
                    self._parked.pop(subtask, None)
                if back:  # it was given back since
                    self._given_again += 1
                    actions.append(self._call(AddSplitsBack(subtask, tuple(back))))
                for split in splits:
                    self._swallowed.pop(split.split_id, None)
        return [*actions, *self._ask_for_reports()]

    def _on_splits_assigned(self, event: SplitsAssigned) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        given, asking = {}, []
        for subtask, splits in event.assignment.items():
            reader = self._registered(event, subtask)
            new = splits
            if self._swallowed:
                for split in splits:
                    holder = self._swallowed.get(split.split_id)
                    if self._reassigns and holder not in (None, subtask):
                        return self._give_up(_owner_changed(self.source, split.split_id, subtask))
                new = tuple(split for split in splits if split.split_id not in self._swallowed)
            if new and reader.promised:
                return self._give_up(_promise_broken(self.source, new[0].split_id, subtask))
            if splits and not new and reader.requested:
                asking.append(self._call(HandleSplitRequest(subtask, reader.host)))
            given[subtask] = new
        was_behind = bool(self._swallowed)
        if was_behind:
            for splits in event.assignment.values():
                for split in splits:
                    self._swallowed.pop(split.split_id, None)
        actions = self._deliver(given)
        if was_behind:
            self._put_unassigned()
        return [*actions, *asking, *self._release()]

    def _on_no_more_splits(self, event: NoMoreSplitsSignalled) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        reader = self._registered(event, event.subtask)
        if reader.promised or reader.state == "failed":
            return []
        reader.promised, reader.requested = True, False
        actions = self._append(NoMoreSplitsRecord(event.subtask))
        self._put(event.subtask, reader, self._no_more_letter(reader))
        return [*actions, *self._release()]

    def _on_event_sent(self, event: EventSent) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        reader = self._registered(event, event.subtask)
        letter = msg.EventToReader(
            stage=reader.stage, execution=reader.execution, source=self.source, payload=event.payload
        )
        self._put(event.subtask, reader, letter)
        return self._release()

    def _on_enumerator_snapshotted(self, event: EnumeratorSnapshotted) -> list[Action]:
        pending = self._pending
        if event.incarnation != self._incarnation or pending is None or pending.checkpoint_id != event.checkpoint_id:
            return []
        state, before = self._encode(event.state), self._number
        self._tracker.begin(event.checkpoint_id)
        self._segment = event.checkpoint_id
        actions = self._append(*self._state_records(state, event.checkpoint_id))
        self._outbox.append(_Held(before, None, 0, EnumeratorStateReady(event.checkpoint_id, state, {})))
        return [*actions, *self._release()]

    def _on_enumerator_state_changed(self, event: EnumeratorStateChanged) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        return self._append(*self._state_records(self._encode(event.state), None))

    def _state_records(self, state: bytes, checkpoint_id: int | None) -> list[LogRecord]:
        """Return the record of a state, with the reports and events that are not in it: it was taken before them."""
        reports = [
            RegisteredRecord(subtask, reader.execution, reader.unconfirmed)
            for subtask, reader in self._readers.items()
            if reader.unconfirmed
        ]
        events = [
            SourceEventRecord(subtask, payload)
            for of in (self._handled, self._unhandled)
            for subtask, payloads in of.items()
            for payload in payloads
        ]
        return [StateRecord(state, checkpoint_id), *reports, *events]

    def _on_reader_added(self, event: ReaderAdded) -> list[Action]:
        reader = self._readers.get(event.subtask)
        if event.incarnation != self._incarnation or reader is None:
            return []
        reader.unconfirmed = ()
        self._outbox.append(_Held(self._number, event.subtask, reader.execution, _Admission()))
        return self._release()

    def _on_source_event_handled(self, event: SourceEventHandled) -> list[Action]:
        if event.incarnation == self._incarnation:
            handled = self._handled.get(event.subtask)
            if not handled:
                raise self._invalid(event, "no event of that reader is being handled")
            handled.popleft()
        return []

    def _on_unassigned_changed(self, event: UnassignedChanged) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        self._said = _Unassigned(event.event_time_ms)
        self._put_unassigned()
        return self._release()

    def _on_time_passed(self, event: SourceTimePassed) -> list[Action]:
        if not self._told_late or self._now_ms < self._quiet_until_ms:
            return []
        return self._tell_unassigned(self._everybody())

    def _put_unassigned(self) -> None:
        """Let what is unassigned be told after all before it."""
        if self._said is None:
            return
        now = self._said
        if self._swallowed and self._told_before is not None:
            now = max(now, self._told_before, key=_how_late)
        self._outbox.append(_Held(self._number, None, 0, now))

    def _on_enumerator_failed(self, event: EnumeratorFailed) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        actions: list[Action] = []
        if self._pending is not None and not self._pending.ready:
            actions.append(
                CheckpointRefused(self._pending.checkpoint_id, f"the enumerator failed: {event.error.message}")
            )
            self._pending = None
        self._failing, self._busy, self._slow_calls = {}, {}, ()
        is_whole = self._broken_segment is None or self._broken_segment < self._completed
        if not is_whole or event.error.final or self._recoveries == _MAX_RECOVERIES:
            return [*actions, *self._give_up(event.error)]
        self.state = "recovering"
        self._recoveries += 1
        self._incarnation += 1
        self._loading = self._completed
        self._tracker = SplitAssignmentTracker(self._completed)
        self._swallowed, self._parked, self._offered, self._given_again = {}, {}, {}, 0
        self._handled, self._unhandled = {}, {}  # the log has them
        self._outbox.clear()
        self._said, self._told_before, self._told_late = None, self._told, False
        for reader in self._readers.values():
            reader.logged, reader.unconfirmed, reader.admitted = [], (), False
            if reader.state == "registered":
                reader.state = "reporting"
        return [*actions, LoadLog(self._loading, self._number, self._incarnation)]

    def _on_slow_work_tried(self, event: SlowWorkTried) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        if event.failures:
            times = "once" if event.failures == 1 else f"{event.failures} times in a row"
            self._failing[event.name] = f"{event.name} failed {times} and is tried again: {event.reason}"
        else:
            self._failing.pop(event.name, None)
        return []

    def _on_enumerator_busy(self, event: EnumeratorBusy) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        busy: dict[str, _Busy] = {}
        actions: list[Action] = []
        for call in event.calls:
            limit_ms = self._stuck_timeout_ms * (_SLOW_WORK_FACTOR if call.is_slow_work else 1)
            was = self._busy.get(call.name)
            if was is None or call.for_ms < was.seen_ms:
                was = _Busy(0, 0, self._stuck_timeout_ms if call.is_slow_work else limit_ms // 3)
            counted_ms = was.counted_ms + min(call.for_ms - was.seen_ms, _LONGEST_STEP_MS)
            if counted_ms > limit_ms:
                error = _stuck(self.source, call, limit_ms)
                return self._on_enumerator_failed(EnumeratorFailed(event.incarnation, error))
            warn_ms = was.warn_ms
            if counted_ms >= warn_ms:
                warn_ms = max(2 * warn_ms, 1)
                actions.append(WarnOfEnumerator(self._trouble_of(call)))
            busy[call.name] = _Busy(call.for_ms, counted_ms, warn_ms)
        self._busy, self._slow_calls = busy, event.calls
        return actions

    def _trouble_of(self, call: BusyCall) -> str:
        text = f"{call.name} of the source {self.source!r} has not returned for {call.for_ms // 1000} s: "
        if call.is_slow_work:
            return text + "no new splits are found meanwhile; what is assigned is read on"
        failed = [subtask for subtask, reader in sorted(self._readers.items()) if reader.state == "failed"]
        waits = f", the failed readers {failed[:20]} are not restarted" if failed else ""
        return text + f"nothing is assigned, no checkpoint completes{waits} until it does"

    def _on_stale(self, event: Event) -> list[Action]:
        return []

    # The log.

    def _on_log_appended(self, event: LogAppended) -> list[Action]:
        self._durable = max(self._durable, event.number)
        return self._release()

    def _on_log_append_failed(self, event: LogAppendFailed) -> list[Action]:
        if event.number < self._first_number:
            return []  # of what was dropped since
        # Go on without: it matters only if the enumerator fails before the next checkpoint.
        self._broken_segment, self._durable = self._segment, self._number
        if self.state == "recovering":
            return self._give_up(_log_unusable(self.source, event.reason))
        return self._release()

    def _on_log_loaded(self, event: LogLoaded) -> list[Action]:
        if event.incarnation != self._incarnation:
            return []
        first = event.records[0] if event.records else None
        if event.records is None or not isinstance(first, StateRecord) or first.checkpoint_id != self._loading:
            return self._give_up(_log_unusable(self.source, event.reason or "its beginning is missing"))
        recovered = Recovered(self._loading, keeps_subtask=self._keeps_subtask)
        try:
            recovered.replay(event.records)
        except StoredStateError as error:
            return self._give_up(_log_unusable(self.source, error.message))
        self._adopt(recovered)
        return self._restart(recovered)

    def _adopt(self, recovered: Recovered) -> None:
        self.state = "running"
        self._tracker, self._swallowed = recovered.tracker, recovered.swallowed
        self._tracker.complete(self._completed)
        for subtask, split in recovered.parked.values():
            self._parked.setdefault(subtask, {})[split.split_id] = split
        for subtask, payloads in recovered.events.items():
            self._unhandled[subtask] = [*payloads, *self._unhandled.get(subtask, ())]
        for subtask, reader in self._readers.items():
            registered = recovered.registered.get(subtask)
            if registered is not None and registered.execution == reader.execution:
                reader.reported = registered.reported_splits
            reader.promised = subtask in recovered.promised
            logged = recovered.logged.get(subtask, ())
            reader.logged = [record for record in logged if record.execution == reader.execution]

    def _restart(self, recovered: Recovered) -> list[Action]:
        state = recovered.state
        back_again = recovered.given_back.keys() | recovered.swallowed.keys()
        holders = {split.split_id: subtask for subtask, split in self._tracker if split.split_id not in back_again}
        self._offered = recovered.assigned_since() if self._reassigns else {}
        enumerator = None if state is None else state.enumerator
        actions: list[Action] = [StartEnumerator(self._incarnation, enumerator, self._segment, holders, self._offered)]
        if recovered.finished:
            actions.append(self._call(NotifySplitsFinished(tuple(recovered.finished))))
        back: dict[int, list[SplitState]] = {}
        for subtask, split in recovered.given_back.values():
            back.setdefault(subtask, []).append(split)
        self._given_again = len(back)
        actions.extend(self._call(AddSplitsBack(subtask, tuple(splits))) for subtask, splits in back.items())
        actions.extend(
            self._call(ForgetReader(subtask)) for subtask, reader in self._readers.items() if reader.state == "failed"
        )
        # What readers report depends on what the enumerator knows by itself.
        return actions if self._offered else [*actions, *self._ask_for_reports()]

    def _ask_for_reports(self) -> list[Action]:
        actions: list[Action] = []
        for subtask, reader in self._readers.items():
            if reader.state == "reporting":
                report = msg.ReportSource(
                    stage=reader.stage, execution=reader.execution, source=self.source, incarnation=self._incarnation
                )
                actions.append(SendToReader(subtask, report))
        return actions

    # Checkpoints.

    def _on_checkpoint_started(self, event: CheckpointStarted) -> list[Action]:
        if self._pending is not None:
            raise self._invalid(event, f"checkpoint {self._pending.checkpoint_id} is under way")
        reason = self._why_not_now()
        if reason is not None:
            return [CheckpointRefused(event.checkpoint_id, reason)]
        told = {subtask: reader.told for subtask, reader in self._readers.items() if reader.told}
        self._pending = _Pending(event.checkpoint_id, told)
        return [self._call(SnapshotEnumerator(event.checkpoint_id))]

    def _why_not_now(self) -> str | None:
        """Return why no checkpoint can begin; None: it can."""
        if self.state == "recovering":
            return "the enumerator is being restored"
        for subtask, reader in self._readers.items():
            if reader.state == "failed":
                return f"reader {subtask} failed"
            if reader.state == "reporting":  # what was logged and is not there is sent again: no barrier before it
                return f"reader {subtask} has not said yet what it has"
        if self._parked:
            return f"splits wait for the readers {sorted(self._parked)}"
        if self._reassigns and self._swallowed:  # readers would report what the enumerator has as well
            return "the restored enumerator has not assigned again yet what it had assigned"
        return None

    def _on_checkpoint_refused(self, event: CheckpointStarted) -> list[Action]:
        return [CheckpointRefused(event.checkpoint_id, "the source is to be restored with everything else")]

    def _on_checkpoint_over(self, event: BarriersSent | SourceCheckpointAborted) -> list[Action]:
        if self._pending is None or self._pending.checkpoint_id != event.checkpoint_id:
            return []
        self._pending = None
        return self._release()

    def _on_checkpoint_completed(self, event: SourceCheckpointCompleted) -> list[Action]:
        self._completed, self._recoveries = event.checkpoint_id, 0
        self._tracker.complete(event.checkpoint_id)
        actions: list[Action] = [DropLog(event.checkpoint_id)]
        if self.state == "running":
            actions.append(self._call(NotifyEnumerator(event.checkpoint_id)))
        return actions

    # Shared.

    def _call(self, call: EnumeratorCall) -> CallEnumerator:
        return CallEnumerator(self._incarnation, call)

    def _encode(self, enumerator: bytes) -> bytes:
        parked = {subtask: tuple(splits.values()) for subtask, splits in self._parked.items()}
        return encode_source_state(SourceState(enumerator, tuple(self._swallowed), parked))

    def _append(self, *records: LogRecord) -> list[Action]:
        if not records or self._segment == self._broken_segment:
            return []
        self._number += len(records)
        return [AppendLog(self._segment, self._number, records)]

    def _deliver(self, given: dict[int, tuple[SplitState, ...]]) -> list[Action]:
        """Note, log and put assignments; those to a failed reader go back with the others that it had."""
        records = []
        for subtask, splits in given.items():
            if splits:
                reader = self._readers[subtask]
                reader.number += 1
                records.append(AssignedRecord(subtask, reader.execution, reader.number, splits))
                self._tracker.assign(subtask, splits)
        actions = self._append(*records)
        for record in records:
            reader = self._readers[record.subtask]
            reader.requested = False
            self._put(record.subtask, reader, self._assign_letter(reader, record))
        return actions

    def _assign_letter(self, reader: _Reader, record: AssignedRecord) -> msg.AssignSplits:
        return msg.AssignSplits(
            stage=reader.stage,
            execution=reader.execution,
            source=self.source,
            number=record.number,
            splits=record.splits,
        )

    def _no_more_letter(self, reader: _Reader) -> msg.NoMoreSplits:
        return msg.NoMoreSplits(stage=reader.stage, execution=reader.execution, source=self.source)

    def _put(self, subtask: int, reader: _Reader, letter: Letter) -> None:
        """Let a letter go out after all before it, once what is logged by now is durable."""
        self._outbox.append(_Held(self._number, subtask, reader.execution, letter))

    def _release(self) -> list[Action]:
        """Send what can go."""
        actions: list[Action] = []
        untold: set[int] = set()  # who is to hear of unassigned work, behind what goes now
        while self._outbox and self._outbox[0].log_number <= self._durable:
            pending = self._pending
            if pending is not None and pending.ready:
                break
            held = self._outbox.popleft()
            if isinstance(held.what, EnumeratorStateReady):
                actions.extend(self._tell_unassigned(untold))
                untold.clear()
                if pending is not None and pending.checkpoint_id == held.what.checkpoint_id:
                    pending.ready = True
                    actions.append(msgspec.structs.replace(held.what, finished_known=pending.finished_known))
                continue
            if isinstance(held.what, _Unassigned):
                rose = self._told is not None and _how_late(held.what) > _how_late(self._told)
                self._told, self._told_late = held.what, True
                if not rose or self._now_ms >= self._quiet_until_ms:
                    untold.update(self._everybody())
                continue
            assert held.subtask is not None
            reader = self._readers.get(held.subtask)
            if reader is None or reader.execution != held.execution or reader.state == "failed":
                continue
            if isinstance(held.what, _Admission):
                reader.admitted = True
                untold.add(held.subtask)
            else:
                actions.append(SendToReader(held.subtask, held.what))
        return [*actions, *self._tell_unassigned(untold)]

    def _everybody(self) -> Iterable[int]:
        """Return all readers, to be told now."""
        self._told_late = False
        self._quiet_until_ms = self._now_ms + self.parallelism // _LETTERS_PER_MS
        return self._readers

    def _tell_unassigned(self, subtasks: Iterable[int]) -> list[Action]:
        """Tell readers of unassigned work, those that have not heard it."""
        actions: list[Action] = []
        for subtask in sorted(subtasks):
            reader = self._readers[subtask]
            if self._told is None or not reader.admitted or reader.state == "failed":
                continue
            before, event_time_ms = reader.told_work, self._told.event_time_ms
            if before is None or before.event_time_ms != event_time_ms:
                reader.told_work = msg.UnassignedWork(
                    stage=reader.stage, execution=reader.execution, source=self.source, event_time_ms=event_time_ms
                )
                actions.append(SendToReader(subtask, reader.told_work))
        return actions

    def _registered(self, event: Event, subtask: int) -> _Reader:
        """Return a reader that the enumerator may speak to: one that failed may still be in its context."""
        reader = self._readers.get(subtask)
        if reader is None or reader.state == "reporting":
            raise self._invalid(event, f"reader {subtask} is not registered")
        return reader

    def _invalid(self, event: Event, why: str) -> InvalidTransitionError:
        return InvalidTransitionError(
            f"The coordinator of the source {self.source} cannot take {str(event)[:300]}: {why}. "
            f"Before: {', '.join(list(self._history)[-10:]) or 'nothing'}.",
            state=self.state,
            event=str(event)[:1000],
            history=tuple(self._history),
        )

    _HANDLERS: ClassVar[dict[tuple[str, type], Callable[[Any, Any], list[Action]]]] = {
        ("new", SourceStarted): _on_source_started,
        ("new", SourceClosed): _on_source_closed,
        ("running", SourceStarted): _on_source_started,
        ("running", FromReader): _on_from_reader,
        ("running", ReaderFailed): _on_reader_failed,
        ("running", EnumeratorStarted): _on_enumerator_started,
        ("running", SplitsAssigned): _on_splits_assigned,
        ("running", NoMoreSplitsSignalled): _on_no_more_splits,
        ("running", EventSent): _on_event_sent,
        ("running", EnumeratorSnapshotted): _on_enumerator_snapshotted,
        ("running", EnumeratorStateChanged): _on_enumerator_state_changed,
        ("running", ReaderAdded): _on_reader_added,
        ("running", SourceEventHandled): _on_source_event_handled,
        ("running", UnassignedChanged): _on_unassigned_changed,
        ("running", ReaderForgotten): _on_reader_forgotten,
        ("running", SplitsTakenBack): _on_splits_taken_back,
        ("running", EnumeratorFailed): _on_enumerator_failed,
        ("running", SlowWorkTried): _on_slow_work_tried,
        ("running", EnumeratorBusy): _on_enumerator_busy,
        ("running", LogAppended): _on_log_appended,
        ("running", LogAppendFailed): _on_log_append_failed,
        ("running", LogLoaded): _on_stale,
        ("running", CheckpointStarted): _on_checkpoint_started,
        ("running", BarriersSent): _on_checkpoint_over,
        ("running", SourceCheckpointCompleted): _on_checkpoint_completed,
        ("running", SourceCheckpointAborted): _on_checkpoint_over,
        ("running", SourceTimePassed): _on_time_passed,
        ("running", SourceClosed): _on_source_closed,
        ("recovering", SourceStarted): _on_source_started,
        ("recovering", FromReader): _on_from_reader,
        ("recovering", ReaderFailed): _on_reader_failed,
        ("recovering", LogAppended): _on_log_appended,
        ("recovering", LogAppendFailed): _on_log_append_failed,
        ("recovering", LogLoaded): _on_log_loaded,
        ("recovering", CheckpointStarted): _on_checkpoint_started,
        ("recovering", BarriersSent): _on_checkpoint_over,
        ("recovering", SourceCheckpointCompleted): _on_checkpoint_completed,
        ("recovering", SourceCheckpointAborted): _on_checkpoint_over,
        ("recovering", SourceClosed): _on_source_closed,
        **dict.fromkeys((("recovering", event) for event in _OF_ENUMERATOR), _on_stale),
        ("failed", SourceStarted): _on_source_started,
        ("failed", CheckpointStarted): _on_checkpoint_refused,
        ("failed", SourceClosed): _on_source_closed,
        **dict.fromkeys((("failed", event) for event in _OF_ANYBODY), _on_stale),
        **dict.fromkeys((("closed", event) for event in (*_OF_ANYBODY, CheckpointStarted)), _on_stale),
    }


def _how_late(unassigned: _Unassigned) -> tuple[bool, int]:
    time_ms = unassigned.event_time_ms
    return time_ms is None, time_ms or 0


def _stuck(source: str, call: BusyCall, limit_ms: int) -> msg.ErrorReport:
    limit = f"{call.name} of the source {source!r} has not returned for {limit_ms // 1000} s"
    if call.is_slow_work:
        return msg.ErrorReport(
            error_type="SourceUnavailableError",
            message=f"{limit}, which is {_SLOW_WORK_FACTOR} times task.stuck.timeout: it counts as failed.",
            facts={"source": source},
        )
    return msg.ErrorReport(
        error_type="ConnectorContractError",
        message=f"{limit} (task.stuck.timeout): it counts as failed. No method of an enumerator may block; slow work "
        "belongs into call_async.",
        facts={"source": source, "method": call.name},
    )


def _owner_changed(source: str, split_id: str, subtask: int) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="ConnectorContractError",
        message=f"The restored enumerator of {source} assigns {split_id} to reader {subtask}, but another one has it.",
        facts={"source": source, "split": split_id},
    )


def _promise_broken(source: str, split_id: str, subtask: int) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="ConnectorContractError",
        message=f"The enumerator of {source} assigns {split_id} to reader {subtask}, which was told that nothing "
        "follows.",
        facts={"source": source, "split": split_id},
    )


def _log_unusable(source: str, reason: str) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="CorruptStateError",
        message=f"The enumerator of {source} failed, and its write-ahead log cannot be used: {reason}.",
        facts={"source": source},
    )
