"""The one door to the machines of the coordinator: what happens outside goes in, what is to be done comes out.

Never: decide anything of its own beyond who is told: it routes between `Scheduler`, one `SourceCoordinator` per
source, `CheckpointCoordinator`, one `AlignmentGroup` per group of the query's sources, and one `Session` per attempt of
a slot.

It has no states of its own, so no table: what it does for an order of one machine is to tell the others.

    order of                 is told to
    -----------------------  -----------------------------------------------------------------------------------------
    Scheduler                slots (accept, fence, deploy, cancel, shut down), sources (reset, restore, close),
                             CheckpointCoordinator (all run, not all run, all input ended)
    SourceCoordinator        slots (letters to readers), CheckpointCoordinator (states), Scheduler (readers reset,
                             global failover)
    CheckpointCoordinator    sources (snapshot, barriers sent, completed, aborted), slots (barriers, the same),
                             Scheduler (query ends, global failover)
    AlignmentGroup           slots (how far readers may read), the other queries of the application (our minimum)

Exchanges make regions of what restarts together. Where one of them is not `forward`, all subtasks are one region: any
failure restarts them all, in place, as `full` does. With `forward` ones only, the subtasks of a slot are one. Channels
connect subtasks of one generation, which is one deployment of a region: when all of it is deployed, everybody in it is
told where the others are (`SlotsLocated`). A slot that only lost its stream gets that letter with all others that it
missed, and its data plane is where it was.

A group hears of a new execution of a reader by its registration, or by a report that came before that.

What follows from an order is carried out before the next order of the same list, so that nobody hears of a failure
twice or of a barrier too early. An order to all sources is given to all of them before what they answer is heard.

Follows FLIP-27, "Where to run the enumerator"; FLIP-547, 4.3.1; Flink's JobMaster.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import assert_never

import msgspec

from headgate.checkpoint import coordinator as cp
from headgate.checkpoint.channel_assignment import ExchangePlan, assign_channels, relocated_exchanges
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator import alignment as al
from headgate.coordinator import scheduler as sch
from headgate.coordinator import slots as slt
from headgate.coordinator import source_coordinator as src
from headgate.errors import InternalError
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind, Envelope, ErrorReport, SubtaskId, SubtaskProgress
from headgate.protocol.session import Session
from headgate.protocol.state import InlineState, RecoveredChannel
from headgate.source.watermark import WatermarkAlignment


class SourcePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A source of the query.

    Parameters
    ----------
    name, fixed
        Its format's name, and the options that may not change.
    reassigns_on_recovery
        Whether it has FLIP-537's marker.
    keeps_subtask
        Whether splits that a reader gives back wait for that reader (event time is in use).
    alignment
        Its alignment group; None: it is read at full speed.
    """

    name: str
    reassigns_on_recovery: bool
    fixed: dict[str, object] = {}
    keeps_subtask: bool = False
    alignment: WatermarkAlignment | None = None


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
    query_id, run
        Whose it is.
    exchanges
        The exchanges between its stages, by uid; what a stage consumes comes from stages of lower numbers.
    signatures
        By uid: what keyed state, and rows on their way by key, are of.
    """

    sources: dict[str, SourcePlan]
    stages: tuple[tuple[str, ...], ...]
    parallelism: int
    max_parallelism: int
    query_id: str
    run: int
    exchanges: dict[str, ExchangePlan] = {}
    signatures: dict[str, str] = {}

    @property
    def is_connected(self) -> bool:
        """Whether exchanges connect subtasks of different slots."""
        return any(exchange.kind != "forward" for exchange in self.exchanges.values())


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


class OthersMoved(msgspec.Struct, frozen=True):
    """The lowest watermark of a group's readers in the application's other queries is another; None: no vote."""

    group: str
    watermark_ms: int | None


class StopRequested(msgspec.Struct, frozen=True):
    """``query.stop()``: end now, without a checkpoint."""


class TimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    sch.QueryStarted | LetterReceived | ConnectionClosed | FromSource | sch.JobEnded | cp.CheckpointRequested
    | cp.ManifestWritten | cp.ManifestWriteFailed | cp.Committed | cp.CommitFailed | OthersMoved | StopRequested
    | TimePassed
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
    """Tell the application's other queries the lowest watermark of a group's readers in this one; None: no vote."""

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


class Log(msgspec.Struct, frozen=True):
    """Something worth a line in the log: a fenced attempt, a failover, a failed checkpoint."""

    level: str
    text: str


Action = (
    Transmit | CloseConnection | ForSource | ShareMinimum | ShowProgress | ShowCheckpoint | ShowSource | Log
    | sch.SubmitJob | sch.CancelJob | sch.FailQuery | sch.QueryOver | cp.WriteManifest | cp.DeleteCheckpoint | cp.Commit
    | cp.AnswerRequest
)  # fmt: skip


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user set.

    Parameters
    ----------
    checkpoints, scheduler
        What those machines are told.
    unaligned
        Whether barriers pass rows; those of savepoints never do.
    alignment_timeout_ms
        How long such a barrier keeps its place first, in milliseconds.
    recover_output_downstream
        Whether rows under way are recovered by who was to get them.
    stuck_timeout_ms
        How long a call of an enumerator may take, in milliseconds.
    """

    checkpoints: cp.CheckpointOptions
    scheduler: sch.SchedulerOptions = sch.SchedulerOptions()
    unaligned: bool = True
    alignment_timeout_ms: int = 0
    recover_output_downstream: bool = True
    stuck_timeout_ms: int = 30_000


class SourceInfo(msgspec.Struct, frozen=True):
    """A source for people: ``state`` as in `source_coordinator`, and what keeps its enumerator from its work."""

    state: str
    troubles: tuple[str, ...]


class SlotInfo(msgspec.Struct, frozen=True):
    """A slot for people: ``state`` as in `slots`, and what its newest attempt said of itself."""

    slot: int
    state: str
    attempt: int | None
    host: str
    pid: int
    executor: str


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the query is.

    Parameters
    ----------
    state
        ``created``, ``starting``, ``running``, ``restarting``, ``ending``, ``ended``, ``failing`` or ``failed``.
    slots, subtasks
        How they are, in order.
    checkpoint
        What the coordinator of checkpoints is doing.
    completed_checkpoint, epoch
        The last completed checkpoint and its epoch; None and 0: there is none.
    pending_checkpoint
        The one under way.
    sources
        How they are, by uid.
    """

    state: str
    slots: tuple[SlotInfo, ...]
    subtasks: tuple[sch.SubtaskStatus, ...]
    checkpoint: str
    completed_checkpoint: int | None
    epoch: int
    pending_checkpoint: int | None
    sources: dict[str, SourceInfo] = {}


class _Aligned(msgspec.Struct, frozen=True):
    """The execution of a reader that its alignment group heard of last."""

    stage: int
    execution: int


class _Region(msgspec.Struct):
    """Subtasks that exchanges connect: how often they were deployed, and which of them are."""

    generation: int = 0
    deployed: dict[SubtaskId, int] = {}  # their executions


class _Channels(msgspec.Struct, frozen=True):
    """Who takes on which channel state of a checkpoint, and of which exchanges it is relocated."""

    manifest: Manifest | None
    assigned: dict[SubtaskId, tuple[RecoveredChannel, ...]]
    relocated: frozenset[str]


class _Stream(msgspec.Struct):
    """The stream of an attempt: its session, its connection while there is one, and what it said of itself."""

    session: Session
    connection: int | None
    about: msg.RegisterSlot
    received: int = 0  # what the slot had of ours when it registered
    released: bool = False


class JobMaster:
    """The coordinator of one run of a query.

    Parameters
    ----------
    plan
        The query.
    options
        What the user set.
    restored
        The checkpoint to start from, made for this plan; None: afresh.
    random
        For the delays between restarts.
    stored
        What lies at the checkpoint location; None: nothing.
    clock_offset_ms
        What is added to the machine's time to have milliseconds since 1970-01-01 UTC.
    """

    def __init__(
        self,
        plan: JobPlan,
        options: JobOptions,
        restored: Manifest | None,
        random: random.Random,
        *,
        stored: cp.StoredCheckpoints | None = None,
        clock_offset_ms: int = 0,
    ) -> None:
        shape = (len(plan.stages), plan.parallelism)
        if restored is not None and {(len(restored.subtasks), len(each)) for each in restored.subtasks} != {shape}:
            raise InternalError(f"checkpoint {restored.checkpoint_id} was not made for {shape} stages and subtasks.")
        self._plan = plan
        self._options = options
        scheduling = options.scheduler
        if plan.is_connected:
            scheduling = msgspec.structs.replace(scheduling, failover_strategy="full")
        self._scheduler = sch.Scheduler(*shape, scheduling, restored=restored is not None, random=random)
        self._checkpoints = cp.CheckpointCoordinator(options.checkpoints, plan, restored, stored, clock_offset_ms)
        self._sources = {
            uid: src.SourceCoordinator(
                uid,
                reassigns_on_recovery=source.reassigns_on_recovery,
                parallelism=plan.parallelism,
                keeps_subtask=source.keeps_subtask,
                stuck_timeout_ms=options.stuck_timeout_ms,
            )
            for uid, source in plan.sources.items()
        }
        self._troubles: dict[str, tuple[str, ...]] = {}  # as they were shown last
        self._groups = _groups(plan)
        self._group_of = {
            uid: self._groups[source.alignment.group]
            for uid, source in plan.sources.items()
            if source.alignment is not None
        }
        self._aligned: dict[tuple[str, int], _Aligned] = {}
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._connections: dict[int, tuple[int, int]] = {}
        self._resetting: dict[int, set[str]] = {}  # by subtask: the sources that have not got its splits back
        self._reset_to: dict[int, int] = {}  # by subtask: the checkpoint that its splits were taken back to
        self._regions = [_Region() for _ in range(1 if plan.is_connected else plan.parallelism)]
        self._channels = _Channels(None, {}, frozenset())
        self._recovering: set[SubtaskId] = set()  # whose recovered rows are not all processed
        self._requests: set[int] = set()  # that were not answered
        self._job: int | None = None  # that was submitted and has not ended
        self._released = self._is_over = False
        self._beat_ms: int | None = None
        self._beat_every_ms = max(1, options.scheduler.heartbeat_timeout_ms // 4)
        self._checked: Manifest | None = None
        self._now_ms = 0
        self._out: list[Action] = []

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            A machine has no row for it: the query cannot go on.
        StoredStateError
            From `QueryStarted`: a source's state in the checkpoint cannot be read.
        """
        self._now_ms, self._out = now_ms, []
        if self._is_over:
            return self._after_the_end(event)
        match event:
            case sch.QueryStarted():
                self._beat_ms = now_ms + self._beat_every_ms
                self._tell_checkpoints(cp.CheckpointingStarted())
                self._tell_scheduler(event)
            case LetterReceived():
                self._on_letter_received(event)
            case ConnectionClosed():
                self._on_connection_closed(event)
            case FromSource():
                self._tell_sources({event.source: event.event})
            case sch.JobEnded():
                self._on_job_ended(event)
            case cp.CheckpointRequested():
                self._on_checkpoint_requested(event)
            case cp.ManifestWritten() | cp.ManifestWriteFailed() | cp.Committed() | cp.CommitFailed():
                self._tell_checkpoints(event)
            case OthersMoved(group=group, watermark_ms=watermark_ms):
                self._tell_group(self._groups[group], al.OthersMoved(watermark_ms))
            case StopRequested():
                self._tell_scheduler(sch.QueryEnding())
            case TimePassed():
                self._on_time_passed()
            case _:
                assert_never(event)
        return self._out

    def next_time_ms(self) -> int | None:
        """Return when `TimePassed` is due, in milliseconds; it may be past. None: not before an event."""
        if self._is_over:
            return None
        times = [self._scheduler.next_time_ms(), self._checkpoints.next_time_ms(), self._beat_ms]
        times.extend(source.next_time_ms() for source in self._sources.values())
        times.extend(group.next_time_ms() for group in self._groups.values())
        return min((time for time in times if time is not None), default=None)

    def status(self) -> JobStatus:
        """Return how the query is."""
        latest = self._checkpoints.latest
        return JobStatus(
            state=self._scheduler.state,
            slots=tuple(self._slot_info(status) for status in self._scheduler.slots()),
            subtasks=tuple(self._scheduler.subtasks()),
            checkpoint=self._checkpoints.state,
            completed_checkpoint=None if latest is None else latest.checkpoint_id,
            epoch=self._checkpoints.epoch,
            pending_checkpoint=self._checkpoints.pending_id,
            sources={uid: SourceInfo(of.state, self._troubles.get(uid, ())) for uid, of in self._sources.items()},
        )

    def check(self) -> None:
        """Assert what always holds, in each machine and between them."""
        self._scheduler.check()
        self._checkpoints.check()
        for source in self._sources.values():
            source.check()
        for group in self._groups.values():
            group.check()
        present = {
            (slot.slot, slot.attempt)
            for slot in self._scheduler.slots()
            if slot.state in ("registered", "disconnected")
        }
        assert self._streams.keys() == present, "an attempt has a stream if and only if it counts"
        bound = {stream.connection: key for key, stream in self._streams.items() if stream.connection is not None}
        assert bound == self._connections
        deployed = {status.subtask.subtask for status in self._scheduler.deployed()}
        assert not deployed & self._resetting.keys(), "a subtask runs whose splits are being taken back"
        for region in self._regions:
            for subtask, execution in region.deployed.items():
                assert self._scheduler.execution(subtask) in (None, execution), f"{subtask} is of another generation"
        self._check_manifest(self._checkpoints.latest)

    def _check_manifest(self, manifest: Manifest | None) -> None:
        """Assert that no split is in two readers' states of a completed checkpoint."""
        if manifest is None or manifest is self._checked:
            return
        self._checked = manifest
        for uid in manifest.sources:
            ids = [
                split.split_id
                for stage in manifest.subtasks
                for subtask in stage
                if uid in subtask.readers
                for split in subtask.readers[uid].splits
            ]
            assert len(ids) == len(set(ids)), f"checkpoint {manifest.checkpoint_id} has a split of {uid} twice: {ids}"

    # Connections and letters.

    def _on_letter_received(self, event: LetterReceived) -> None:
        envelope, connection = event.envelope, event.connection
        key = (envelope.slot, envelope.attempt)
        letter = envelope.message
        if envelope.run != self._plan.run or not 0 <= envelope.slot < self._plan.parallelism:
            self._refuse(connection, envelope, f"this is run {self._plan.run} of {self._plan.parallelism} slots")
        elif connection not in self._connections and isinstance(letter, msg.RegisterSlot):
            self._register(connection, envelope, letter)
        elif self._connections.get(connection) != key or isinstance(letter, msg.RegisterSlot):
            # Late, of an attempt that was fenced; or nothing that we ever send.
            self._close(connection)
        else:
            self._tell_scheduler(slt.SlotHeard(*key))
            for message in self._streams[key].session.receive(envelope):
                self._on_message(envelope.slot, message)

    def _register(self, connection: int, envelope: Envelope, letter: msg.RegisterSlot) -> None:
        key = (envelope.slot, envelope.attempt)
        stream = self._streams.get(key)
        if stream is None:
            session = Session(run=self._plan.run, slot=envelope.slot, attempt=envelope.attempt)
            stream = self._streams[key] = _Stream(session, None, letter)
        elif stream.connection is not None:
            self._close(stream.connection)
        stream.connection, stream.about, stream.received = connection, letter, envelope.received
        self._connections[connection] = key
        self._tell_scheduler(slt.SlotRegistered(*key, letter.running))

    def _refuse(self, connection: int, envelope: Envelope, reason: str) -> None:
        self._log("warning", f"Refused slot {envelope.slot} of run {envelope.run}: {reason}.")
        fenced = Envelope(
            run=envelope.run,
            slot=envelope.slot,
            attempt=envelope.attempt,
            number=0,
            received=0,
            message=msg.SlotFenced(reason=reason),
        )
        self._out.append(Transmit(connection, fenced))
        self._close(connection)

    def _on_connection_closed(self, event: ConnectionClosed) -> None:
        key = self._connections.pop(event.connection, None)
        if key is not None:
            self._streams[key].connection = None
            self._tell_scheduler(slt.SlotDisconnected(*key))

    def _on_message(self, slot: int, letter: msg.Message) -> None:
        """Hear a letter; those of another execution than the current are ignored."""
        if isinstance(letter, msg.SlotHeartbeat):
            return
        if isinstance(letter, msg.RegisterSlot | msg.ToSlot):
            self._log("warning", f"Slot {slot} sent a {type(letter).__name__}, which is not for us: ignored.")
            return
        subtask, execution = SubtaskId(letter.stage, slot), letter.execution
        if self._scheduler.execution(subtask) != execution:
            return
        match letter:
            case (
                msg.ReaderRegistered()
                | msg.SplitRequested()
                | msg.SplitsFinished()
                | msg.EventToEnumerator()
                | msg.SourceReported()
            ):
                self._tell_sources({letter.source: src.FromReader(slot, letter)})
                if isinstance(letter, msg.ReaderRegistered):
                    self._join_group(slot, letter)  # what it was told before, it may not have been open for
            case msg.WatermarkReported():
                self._on_watermark_reported(slot, letter)
            case msg.SubtaskProgress():
                self._out.append(ShowProgress(slot, letter))
                self._note_paused(slot, letter)
            case msg.SubtaskRunning():
                self._tell_scheduler(sch.SubtaskStarted(subtask, execution))
            case msg.SubtaskRecovered():
                self._recovering.discard(subtask)
                self._tell_checkpoints(cp.SubtaskRecovered(subtask, execution))
            case msg.InputEnded():
                self._tell_scheduler(sch.SubtaskInputEnded(subtask, execution))
            case msg.SubtaskFailed():
                peer = _peer_of(subtask.subtask, letter.error)
                self._tell_scheduler(sch.SubtaskBroke(subtask, execution, letter.error, peer))
            case msg.CheckpointAcknowledged():
                self._tell_checkpoints(cp.SubtaskAcknowledged(subtask, execution, letter.checkpoint_id, letter.state))
            case msg.CheckpointDeclined():
                self._tell_checkpoints(cp.SubtaskDeclined(subtask, execution, letter.checkpoint_id, letter.reason))
            case _:
                assert_never(letter)

    def _send(self, slot: int, letter: msg.ToSlot) -> None:
        """Put a letter on the stream of the slot's attempt that counts; without one nobody misses it."""
        stream = self._stream(slot)
        if stream is not None:
            envelope = stream.session.send(letter)
            if stream.connection is not None:
                self._out.append(Transmit(stream.connection, envelope))

    def _send_uncounted(self, stream: _Stream, letter: msg.ToSlot) -> None:
        if stream.connection is not None:
            self._out.append(Transmit(stream.connection, stream.session.send_uncounted(letter)))

    def _stream(self, slot: int) -> _Stream | None:
        attempt = self._scheduler.attempt(slot)
        return None if attempt is None else self._streams.get((slot, attempt))

    def _close(self, connection: int) -> None:
        self._connections.pop(connection, None)
        self._out.append(CloseConnection(connection))

    def _log(self, level: str, text: str) -> None:
        self._out.append(Log(level, text))

    # Other events.

    def _on_job_ended(self, event: sch.JobEnded) -> None:
        if event.submission == self._job:
            self._job = None
            self._tell_scheduler(event)

    def _after_the_end(self, event: Event) -> list[Action]:
        """Shut out and answer whoever comes when the query is over."""
        match event:
            case LetterReceived(connection=connection):
                return [CloseConnection(connection)]
            case cp.CheckpointRequested(request_id=request_id):
                return [cp.AnswerRequest(request_id, None, "the query ended")]
        return []

    def _on_checkpoint_requested(self, event: cp.CheckpointRequested) -> None:
        if self._released:
            self._out.append(cp.AnswerRequest(event.request_id, None, "the query ends"))
            return
        self._requests.add(event.request_id)
        self._tell_checkpoints(event)

    def _on_time_passed(self) -> None:
        if self._beat_ms is not None and self._now_ms >= self._beat_ms:
            self._beat_ms = self._now_ms + self._beat_every_ms
            for stream in self._streams.values():
                self._send_uncounted(stream, msg.CoordinatorHeartbeat())
        if self._scheduler.state != "created":
            self._tell_scheduler(sch.SchedulerTimePassed())
        self._tell_checkpoints(cp.CheckpointTimePassed())
        self._tell_sources({uid: src.SourceTimePassed() for uid, of in self._sources.items() if self._is_due(of)})
        for group in self._groups.values():
            if self._is_due(group):
                self._tell_group(group, al.TimePassed())

    def _is_due(self, machine: src.SourceCoordinator | al.AlignmentGroup) -> bool:
        due_ms = machine.next_time_ms()
        return due_ms is not None and due_ms <= self._now_ms

    # What the scheduler orders.

    def _tell_scheduler(self, event: sch.Event) -> None:
        for action in self._scheduler.handle(event, self._now_ms):
            self._on_scheduler_action(action)

    def _on_scheduler_action(self, action: sch.Action) -> None:
        match action:
            case sch.SubmitJob(submission=submission):
                self._job = submission
                self._out.append(action)
            case sch.CancelJob():
                self._out.append(action)
            case slt.AcceptSlot():
                self._accept(action)
            case slt.FenceSlot():
                self._fence(action)
            case sch.DeploySubtask():
                self._deploy(action)
            case sch.CancelExecution(subtask=subtask):
                cancel = msg.CancelSubtask(stage=subtask.stage, execution=action.execution)
                self._send(subtask.subtask, cancel)
            case sch.ResetReaders(subtask=number):
                self._reset_readers(number)
            case sch.RestoreSources():
                self._restore_sources()
            case sch.AnnounceRunning():
                self._log("info", "All subtasks are running.")
                recovering = frozenset(self._recovering)
                self._tell_checkpoints(cp.SubtasksRunning(action.executions, action.restored, recovering))
            case sch.AnnounceNotRunning():
                self._tell_checkpoints(cp.SubtasksNotRunning(action.reason))
            case sch.AnnounceInputEnded():
                self._tell_checkpoints(cp.InputAllEnded())
            case sch.ReleaseSlots():
                self._release()
            case sch.ReportFailure() | sch.ReportMissingSlots():
                connected = isinstance(action, sch.ReportFailure) and self._plan.is_connected
                stay = "; slots that live stay" if self._scheduler.keeps_slots else ""
                why = f" They are all, since exchanges connect them{stay}." if connected else ""
                self._log("warning", _told(action) + why)
            case sch.FailQuery() | sch.QueryOver():
                self._on_end(action)
            case _:
                assert_never(action)

    def _accept(self, action: slt.AcceptSlot) -> None:
        stream = self._streams[action.slot, action.attempt]
        self._send_uncounted(stream, msg.SlotAccepted())
        if stream.connection is not None:
            for envelope in stream.session.resend(stream.received):
                self._out.append(Transmit(stream.connection, envelope))

    def _fence(self, action: slt.FenceSlot) -> None:
        stream = self._streams.pop((action.slot, action.attempt))
        if self._scheduler.state not in ("ended", "failed"):
            self._log("warning", f"Fenced attempt {action.attempt} of slot {action.slot}: {action.reason}.")
        self._send_uncounted(stream, msg.SlotFenced(reason=action.reason))
        if stream.connection is not None:
            self._close(stream.connection)

    def _deploy(self, action: sch.DeploySubtask) -> None:
        subtask, latest = action.subtask, self._checkpoints.latest
        checkpoint_id = 0 if latest is None else latest.checkpoint_id
        suspended = self._checkpoints.is_past_the_last
        assert self._reset_to.get(subtask.subtask, checkpoint_id) == checkpoint_id, "its splits went back to another"
        region = self._region_of(subtask.subtask)
        if self._plan.exchanges and not region.deployed:
            region.generation += 1
        # Who only is there processes nothing: what was on its way is the next run's.
        channels = self._channels_of(None if suspended else latest)
        deploy = msg.Deploy(
            stage=subtask.stage,
            execution=action.execution,
            parallelism=self._plan.parallelism,
            restore=None if latest is None else latest.subtasks[subtask.stage][subtask.subtask],
            checkpoint_id=checkpoint_id,
            suspended=suspended,
            generation=region.generation,
            recovered=channels.assigned.get(subtask, ()),
            relocated=channels.relocated,
        )
        # Where producers recover, a subtask is running when all that is processed.
        recovers = bool(deploy.recovered) and self._options.recover_output_downstream
        (self._recovering.add if recovers else self._recovering.discard)(subtask)
        self._send(subtask.subtask, deploy)
        if self._plan.exchanges:
            region.deployed[subtask] = action.execution
            self._connect(region)

    def _region_of(self, slot: int) -> _Region:
        return self._regions[0 if self._plan.is_connected else slot]

    def _connect(self, region: _Region) -> None:
        """Tell the subtasks of a region where they all are, when they all are deployed."""
        slots = sorted({subtask.subtask for subtask in region.deployed})
        if len(region.deployed) != len(self._plan.stages) * (self._plan.parallelism if self._plan.is_connected else 1):
            return
        streams = {slot: self._stream(slot) for slot in slots}
        addresses = {slot: stream.about.data_address for slot, stream in streams.items() if stream is not None}
        exchanges = self._plan.exchanges.values()
        stages = {stage for each in exchanges for stage in (each.producer_stage, each.consumer_stage)}
        for subtask, execution in sorted(region.deployed.items()):
            if subtask.stage in stages:
                located = msg.SlotsLocated(
                    stage=subtask.stage, execution=execution, generation=region.generation, addresses=addresses
                )
                self._send(subtask.subtask, located)

    def _channels_of(self, manifest: Manifest | None) -> _Channels:
        """Return which subtask takes on which of a checkpoint's channel state."""
        if manifest is None:
            return _Channels(None, {}, frozenset())
        if self._channels.manifest is not manifest:
            old, parallelism = manifest.channels_parallelism, self._plan.parallelism
            assigned = assign_channels(
                manifest.channels,
                self._plan.exchanges,
                old_parallelism=old,
                parallelism=parallelism,
                max_parallelism=self._plan.max_parallelism,
                on_downstream=self._options.recover_output_downstream,
            )
            relocated = relocated_exchanges(manifest.channels, old_parallelism=old, parallelism=parallelism)
            self._channels = _Channels(manifest, assigned, relocated)
        return self._channels

    def _reset_readers(self, number: int) -> None:
        latest = self._checkpoints.latest
        checkpoint_id = 0 if latest is None else latest.checkpoint_id
        self._resetting[number], self._reset_to[number] = set(self._sources), checkpoint_id
        self._region_of(number).deployed.clear()
        self._lose_readers(key for key in self._aligned if key[1] == number)
        self._tell_sources(dict.fromkeys(self._sources, src.ReaderFailed(number, checkpoint_id)))

    def _restore_sources(self) -> None:
        """Start the sources from the last completed checkpoint; what was under way with them is void."""
        self._resetting.clear()
        self._reset_to.clear()
        for region in self._regions:
            region.deployed.clear()
        self._lose_readers(self._aligned)
        self._tell_sources({uid: self._start_of(uid) for uid in self._sources})
        self._tell_scheduler(sch.SourcesRestored())

    def _start_of(self, uid: str) -> src.SourceStarted:
        latest = self._checkpoints.latest
        if latest is None:
            return src.SourceStarted()
        entry = latest.sources.get(uid)
        state = None if entry is None else entry.enumerator
        if state is not None and not isinstance(state, InlineState):
            raise InternalError(f"the state of source {uid} in checkpoint {latest.checkpoint_id} was not read in.")
        finished = dict.fromkeys(
            split.split_id
            for stage in latest.subtasks
            for subtask in stage
            if uid in subtask.readers
            for split in subtask.readers[uid].finished
        )
        return src.SourceStarted(latest.checkpoint_id, None if state is None else state.data, tuple(finished))

    def _release(self) -> None:
        """Let slots end, those too that come only now, and sources."""
        for slot in range(self._plan.parallelism):
            stream = self._stream(slot)
            if stream is not None and not stream.released:
                stream.released = True
                self._send(slot, msg.ShutDownSlot())
        if not self._released:
            self._released = True
            # Slots may take long to end, and nobody is to wait for them.
            self._out.extend(ShareMinimum(group, None) for group in self._groups)
            self._tell_sources(dict.fromkeys(self._sources, src.SourceClosed()))

    def _on_end(self, action: sch.FailQuery | sch.QueryOver) -> None:
        self._out.append(action)
        if isinstance(action, sch.QueryOver):
            self._is_over = True
            answers = [cp.AnswerRequest(request, None, "the query ended") for request in sorted(self._requests)]
            self._out[-1:-1] = answers
            self._requests.clear()

    # What sources order.

    def _tell_sources(self, events: dict[str, src.Event]) -> None:
        ordered = [
            (uid, action) for uid, event in events.items() for action in self._sources[uid].handle(event, self._now_ms)
        ]
        for uid, action in ordered:
            self._on_source_action(uid, action)
        for uid in events:
            troubles = self._sources[uid].troubles()
            if troubles != self._troubles.get(uid, ()):
                self._troubles[uid] = troubles
                self._out.append(ShowSource(uid, troubles))

    def _on_source_action(self, uid: str, action: src.Action) -> None:
        match action:
            case (
                src.StartEnumerator()
                | src.CallEnumerator()
                | src.StopEnumerator()
                | src.AppendLog()
                | src.DropLog()
                | src.LoadLog()
            ):
                self._out.append(ForSource(uid, action))
            case src.SendToReader():
                self._send(action.subtask, action.letter)
            case src.EnumeratorStateReady():
                self._tell_checkpoints(
                    cp.SourceStateReady(uid, action.checkpoint_id, action.state, action.finished_known)
                )
            case src.CheckpointRefused():
                self._tell_checkpoints(cp.SourceRefused(uid, action.checkpoint_id, action.reason))
            case src.ReaderReset():
                self._on_reader_reset(uid, action.subtask)
            case src.RequestGlobalFailover():
                self._tell_scheduler(sch.GlobalFailure(action.error))
            case src.WarnOfEnumerator():
                self._log("warning", _sentence(action.text))
            case _:
                assert_never(action)

    def _on_reader_reset(self, uid: str, subtask: int) -> None:
        awaited = self._resetting.get(subtask, set())
        awaited.discard(uid)
        if not awaited and self._resetting.pop(subtask, None) is not None:
            self._tell_scheduler(sch.SubtaskReset(subtask))

    # Alignment.

    def _join_group(self, slot: int, letter: msg.ReaderRegistered | msg.WatermarkReported) -> None:
        """Let a group know of a new execution of a reader."""
        group = self._group_of.get(letter.source)
        if group is not None:
            self._aligned[letter.source, slot] = _Aligned(letter.stage, letter.execution)
            self._tell_group(group, al.ReaderJoined(letter.source, slot))

    def _on_watermark_reported(self, slot: int, letter: msg.WatermarkReported) -> None:
        if self._aligned.get((letter.source, slot)) != _Aligned(letter.stage, letter.execution):
            self._join_group(slot, letter)
        group = self._group_of[letter.source]
        self._tell_group(group, al.ReaderReported(letter.source, slot, letter.watermark_ms, letter.slowest))

    def _note_paused(self, slot: int, letter: SubtaskProgress) -> None:
        for uid, splits in letter.event_times.items():
            if (group := self._group_of.get(uid)) is not None:
                paused = any(split.paused for split in splits.values())
                self._tell_group(group, al.ReaderPaused(uid, slot, paused))

    def _lose_readers(self, keys: Iterable[tuple[str, int]]) -> None:
        """Let groups know that readers failed; what these executions still say does not count."""
        for source, slot in list(keys):
            self._tell_group(self._group_of[source], al.ReaderLost(source, slot))

    def _tell_group(self, group: al.AlignmentGroup, event: al.Event) -> None:
        for action in group.handle(event, self._now_ms):
            match action:
                case al.Announce(source=source, subtask=subtask):
                    aligned = self._aligned[source, subtask]
                    letter = msg.AlignmentAnnounced(
                        stage=aligned.stage,
                        execution=aligned.execution,
                        source=source,
                        max_watermark_ms=action.max_watermark_ms,
                        others_ms=action.others_ms,
                    )
                    self._send(subtask, letter)
                case al.ShareMinimum(watermark_ms=watermark_ms):
                    if not self._released:
                        self._out.append(ShareMinimum(group.group, watermark_ms))
                case al.WarnOfHolder():
                    self._log("warning", _held_by(group.group, action))
                case _:
                    assert_never(action)

    # What the coordinator of checkpoints orders.

    def _tell_checkpoints(self, event: cp.Event) -> None:
        for action in self._checkpoints.handle(event, self._now_ms):
            self._on_checkpoint_action(action)

    def _on_checkpoint_action(self, action: cp.Action) -> None:
        match action:
            case cp.WriteManifest() | cp.DeleteCheckpoint() | cp.Commit():
                self._out.append(action)
            case cp.AnswerRequest():
                self._requests.discard(action.request_id)
                self._out.append(action)
            case cp.SnapshotSources(checkpoint_id=checkpoint_id):
                self._tell_sources(dict.fromkeys(self._sources, src.CheckpointStarted(checkpoint_id)))
            case cp.SendBarriers():
                self._send_barriers(action)
            case cp.NotifyCompleted():
                self._notify_completed(action)
            case cp.NotifyAborted():
                self._notify_aborted(action)
            case cp.QuerySuspended():
                self._tell_scheduler(sch.QueryEnding())
            case cp.CheckpointFailureLimitReached(reason=reason, error=error):
                error = error or ErrorReport(error_type="HeadgateError", message="")
                self._tell_scheduler(sch.GlobalFailure(msgspec.structs.replace(error, message=_sentence(reason))))
            case _:
                assert_never(action)

    def _send_barriers(self, action: cp.SendBarriers) -> None:
        # A savepoint holds no rows on their way; who is rescaled takes them along.
        may_pass = action.kind is CheckpointKind.CHECKPOINT or (
            action.kind is CheckpointKind.SUSPEND and not action.location
        )
        unaligned = may_pass and self._options.unaligned and self._plan.is_connected
        for status in self._scheduler.deployed():
            if self._sources.keys().isdisjoint(self._plan.stages[status.subtask.stage]):
                continue  # its barriers come through its channels
            barrier = msg.TriggerCheckpoint(
                stage=status.subtask.stage,
                execution=status.execution,
                checkpoint_id=action.checkpoint_id,
                kind=action.kind,
                location=action.location,
                unaligned=unaligned,
                alignment_timeout_ms=self._options.alignment_timeout_ms if unaligned else 0,
            )
            self._send(status.subtask.subtask, barrier)
        self._tell_sources(dict.fromkeys(self._sources, src.BarriersSent(action.checkpoint_id)))

    def _notify_completed(self, action: cp.NotifyCompleted) -> None:
        for status in self._scheduler.deployed():
            stage = self._plan.stages[status.subtask.stage]
            known = action.finished_known.get(status.subtask.subtask, {})
            completed = msg.CheckpointCompleted(
                stage=status.subtask.stage,
                execution=status.execution,
                checkpoint_id=action.checkpoint_id,
                finished_known={uid: end for uid, end in known.items() if uid in stage},
            )
            self._send(status.subtask.subtask, completed)
        self._tell_sources(dict.fromkeys(self._sources, src.SourceCheckpointCompleted(action.checkpoint_id)))
        self._out.append(ShowCheckpoint(action.checkpoint_id, action.epoch, action.duration_ms, action.size_bytes))

    def _notify_aborted(self, action: cp.NotifyAborted) -> None:
        if action.put_off or self._scheduler.state == "ending":
            became = "is put off" if action.put_off else "is given up"
            self._log("info", f"Checkpoint {action.checkpoint_id} {became}: {_sentence(action.reason)}")
        else:
            self._log("warning", f"Checkpoint {action.checkpoint_id} failed: {_sentence(action.reason)}")
        for status in self._scheduler.deployed() if not action.put_off else ():  # then no barrier is out
            aborted = msg.CheckpointAborted(
                stage=status.subtask.stage, execution=status.execution, checkpoint_id=action.checkpoint_id
            )
            self._send(status.subtask.subtask, aborted)
        self._tell_sources(dict.fromkeys(self._sources, src.SourceCheckpointAborted(action.checkpoint_id)))

    def _slot_info(self, status: slt.SlotStatus) -> SlotInfo:
        stream = self._stream(status.slot)
        about = msg.RegisterSlot(host="") if stream is None else stream.about
        return SlotInfo(status.slot, status.state, status.attempt, about.host, about.pid, about.executor)


def _groups(plan: JobPlan) -> dict[str, al.AlignmentGroup]:
    """Return the alignment groups of a query's sources, by name."""
    drifts: dict[str, dict[str, int]] = {}
    for uid, source in plan.sources.items():
        if source.alignment is not None:
            drifts.setdefault(source.alignment.group, {})[uid] = source.alignment.max_drift_ms
    return {group: al.AlignmentGroup(group, of, parallelism=plan.parallelism) for group, of in drifts.items()}


def _held_by(group: str, holder: al.WarnOfHolder) -> str:
    if not holder.source:
        who = "Another query of this Spark application"
    elif not holder.split_id:
        who = (
            f"Reader {holder.subtask} of the source {holder.source!r}, which has not said yet how far it is or waits "
            "for its next split,"
        )
    else:
        who = f"The split {holder.split_id!r} of the source {holder.source!r} (reader {holder.subtask})"
    return (
        f"{who} has held the alignment group {group!r} back for {holder.held_ms // 1000} s, and others wait for it. If "
        "a split may be without rows for so long, set the option scan.watermark.idle-timeout; if the others may be "
        "read further ahead of it, set a larger max drift: withWatermarkAlignment, or the option "
        "scan.watermark.alignment.max-drift."
    )


def _peer_of(slot: int, error: ErrorReport) -> int | None:
    """Return the other slot, where a connection between two failed."""
    if error.error_type != "TransportError":
        return None
    ends = {error.facts.get("producer"), error.facts.get("consumer")} - {None}
    others = ends - {slot}
    return others.pop() if slot in ends and others else None


def _told(action: sch.ReportFailure | sch.ReportMissingSlots) -> str:
    match action:
        case sch.ReportFailure(error=error, restarted=restarted, delay_ms=delay_ms):
            return (
                f"{error.error_type}: {_sentence(error.message)} In {delay_ms} ms subtasks {_some(restarted)} restart "
                "from the last completed checkpoint."
            )
        case sch.ReportMissingSlots(wanted=wanted, missing=missing):
            return f"Of {wanted} slots these have not come for long: {_some(missing)}. The query waits for them."


def _some(numbers: Iterable[int]) -> str:
    shown = [str(number) for number in numbers]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20} more" if len(shown) > 20 else "")


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."


__all__ = ["Action", "CheckpointKind", "ErrorReport", "Event", "JobMaster", "JobOptions", "JobPlan", "SourcePlan"]
