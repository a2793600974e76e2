"""Routes between what happens outside and the machines of the coordinator, by the table in `routes`.

Never: decide anything of its own beyond who is notified: that do `Scheduler`, one `SourceCoordinator` per source,
`CheckpointCoordinator`, and one `AlignmentGroup` per group of the query's sources.

Since it only routes, its table has destinations and no actions: what a machine orders, a slot sends or happens outside
goes to the others by its type, and by one of three states: *open*, *releasing* (slots are to end) or *over*.

When all of a region (`regions`) is deployed, everybody in it hears where the others are (`SlotsLocated`). A slot that
only lost its stream gets that message with all others that it missed, and its data plane is where it was. A group hears
of a new execution of a reader by its registration, or by a report that came before that.

What follows from an order is carried out before the next order of the same list, so that nobody hears of a failure
twice or of a barrier too early. An order to all sources is given to all of them before what they answer is heard.

Follows FLIP-27, "Where to run the enumerator"; FLIP-547, 4.3.1; Flink's JobMaster.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import msgspec

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.coordinator import CheckpointCoordinator, StoredCheckpoints
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.alignment import alignment_group as al
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_log import absent_from, held_by, news_of_files, sentence, trouble
from headgate.coordinator.job.job_plan import JobOptions, JobPlan
from headgate.coordinator.job.job_status import JobStatus, SlotInfo, SourceInfo
from headgate.coordinator.job.regions import Region, Regions
from headgate.coordinator.job.routes import ROUTES, dispatch_of
from headgate.coordinator.job.scheduler import Scheduler
from headgate.coordinator.job.slot_streams import SlotStreams
from headgate.coordinator.slots import slots as slt
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.errors import InternalError
from headgate.protocol import messages as msg
from headgate.protocol.error_reports import peer_of
from headgate.protocol.lost_files import lost_files
from headgate.protocol.messages import CheckpointKind, ErrorReport, SubtaskId, SubtaskProgress
from headgate.protocol.state import InlineState

ReaderMessage = (
    msg.ReaderRegistered | msg.SplitRequested | msg.SplitsFinished | msg.EventToEnumerator | msg.SourceReported
)
ForEnumerator = (
    src.StartEnumerator | src.CallEnumerator | src.StopEnumerator | src.AppendLog | src.DropLog | src.LoadLog
)


class _Aligned(msgspec.Struct, frozen=True):
    """The execution of a reader that its alignment group heard of last."""

    stage: int
    execution: int


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

    _DISPATCH = dispatch_of(ROUTES)

    def __init__(
        self,
        plan: JobPlan,
        options: JobOptions,
        restored: Manifest | None,
        random: random.Random,
        *,
        stored: StoredCheckpoints | None = None,
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
        self._scheduler = Scheduler(*shape, scheduling, restored=restored is not None, random=random)
        self._checkpoints = CheckpointCoordinator(options.checkpoints, plan, restored, stored, clock_offset_ms)
        self._sources = {
            uid: SourceCoordinator(
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
        self._slots = SlotStreams(plan.run, self._scheduler)
        self._resetting: dict[int, set[str]] = {}  # by subtask: the sources that have not got its splits back
        self._reset_to: dict[int, int] = {}  # by subtask: the checkpoint that its splits were taken back to
        self._regions = Regions(plan, on_downstream=options.recover_output_downstream)
        self._recovering: set[SubtaskId] = set()  # whose recovered rows are not all processed
        self._requests: set[int] = set()  # that were not answered
        self._job: int | None = None  # that was submitted and has not ended
        self._is_rescaled = False  # by the last checkpoint, if it completes
        self._state = "open"
        self._beat_ms: int | None = None
        self._beat_every_ms = max(1, options.scheduler.heartbeat_timeout_ms // 4)
        self._checked: Manifest | None = None
        self._now_ms = 0
        self._out: list[job.Action] = []

    def handle(self, event: job.Event, now_ms: int) -> list[job.Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            A machine has no row for it: the query cannot go on.
        StoredStateError
            From `QueryStarted`: a source's state in the checkpoint cannot be read.
        """
        self._now_ms, self._out = now_ms, []
        self._route(event, event)
        return self._out

    def _route(self, what: object, *of: object) -> None:
        """Let those hear of it whom the table names."""
        method = self._DISPATCH[self._state, type(what)]
        if method:
            getattr(self, method)(*of)

    def next_time_ms(self) -> int | None:
        """Return when `TimePassed` is due, in milliseconds; it may be past. None: not before an event."""
        if self._state == "over":
            return None
        times = [self._scheduler.next_time_ms(), self._checkpoints.next_time_ms(), self._beat_ms]
        times += [source.next_time_ms() for source in self._sources.values()]
        times += [group.next_time_ms() for group in self._groups.values()]
        return min([time for time in times if time is not None], default=None)

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
            pending_since_ms=self._checkpoints.pending_since_ms,
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
        self._slots.check()
        if self._resetting:
            deployed = {status.subtask.subtask for status in self._scheduler.deployed()}
            assert not deployed & self._resetting.keys(), "a subtask runs whose splits are being taken back"
        self._regions.check(self._scheduler)
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

    # What happens outside.

    def _on_query_started(self, event: sch.QueryStarted) -> None:
        self._beat_ms = self._now_ms + self._beat_every_ms
        self._notify_checkpoints(cp.CheckpointingStarted())
        self._notify_scheduler(event)
        for group in self._groups.values():
            self._notify_group(group, al.TimePassed())

    def _on_slot_message_received(self, event: job.SlotMessageReceived) -> None:
        envelope, connection = event.envelope, event.connection
        key = (envelope.slot, envelope.attempt)
        message, bound = envelope.message, self._slots.key_of(connection)
        if envelope.run != self._plan.run or not 0 <= envelope.slot < self._plan.parallelism:
            reason = f"this is run {self._plan.run} of {self._plan.parallelism} slots"
            self._out += self._slots.refuse(connection, envelope, reason)
        elif bound is None and isinstance(message, msg.RegisterSlot):
            self._out += self._slots.register(connection, envelope, message)
            if self._slots.key_of(connection) is not None:
                self._notify_scheduler(slt.SlotRegistered(*key, message.running))
        elif bound != key or isinstance(message, msg.RegisterSlot):
            # Late, of an attempt that was fenced; or nothing that we ever send.
            self._out += self._slots.close(connection)
        else:
            self._notify_scheduler(slt.SlotHeard(*key))
            for message in self._slots.receive(key, envelope):
                self._on_message(envelope.slot, message)

    def _shut_out(self, event: job.SlotMessageReceived) -> None:
        self._out.append(job.CloseConnection(event.connection))

    def _on_connection_closed(self, event: job.ConnectionClosed) -> None:
        key = self._slots.lose(event.connection)
        if key is not None:
            self._notify_scheduler(slt.SlotDisconnected(*key))

    def _on_from_source(self, event: job.FromSource) -> None:
        self._notify_sources({event.source: event.event})

    def _on_job_ended(self, event: sch.JobEnded) -> None:
        if event.submission == self._job:
            self._job = None
            self._notify_scheduler(event)

    def _on_checkpoint_requested(self, event: cp.CheckpointRequested) -> None:
        self._requests.add(event.request_id)
        self._notify_checkpoints(event)

    def _refuse_request(self, event: cp.CheckpointRequested) -> None:
        reason = "the query ended" if self._state == "over" else "the query ends"
        self._out.append(cp.AnswerRequest(event.request_id, None, reason))

    def _on_others_moved(self, event: job.OthersMoved) -> None:
        self._notify_group(self._groups[event.group], al.OthersMoved(event.watermark_ms))

    def _on_stop_requested(self, event: job.StopRequested) -> None:
        self._notify_scheduler(sch.QueryEnding())

    def _on_time_passed(self, event: job.TimePassed) -> None:
        if self._beat_ms is not None and self._now_ms >= self._beat_ms:
            self._beat_ms = self._now_ms + self._beat_every_ms
            self._out += self._slots.beat()
        if self._scheduler.state != "created":
            self._notify_scheduler(sch.SchedulerTimePassed())
        self._notify_checkpoints(cp.CheckpointTimePassed())
        self._notify_sources({uid: src.SourceTimePassed() for uid, of in self._sources.items() if self._is_due(of)})
        for group in self._groups.values():
            if self._is_due(group):
                self._notify_group(group, al.TimePassed())

    def _is_due(self, machine: SourceCoordinator | al.AlignmentGroup) -> bool:
        due_ms = machine.next_time_ms()
        return due_ms is not None and due_ms <= self._now_ms

    # What slots send.

    def _on_message(self, slot: int, message: msg.Message) -> None:
        """Hear a message; those of another execution than the current are ignored."""
        if isinstance(message, msg.SlotHeartbeat):
            return
        if isinstance(message, msg.RegisterSlot | msg.ToSlot):
            self._log(
                "warning", f"Slot {slot} sent a {type(message).__name__}, which is not for the coordinator: ignored."
            )
            return
        subtask = SubtaskId(message.stage, slot)
        if self._scheduler.execution(subtask) == message.execution:
            self._route(message, subtask, message)

    def _on_reader_registered(self, subtask: SubtaskId, message: msg.ReaderRegistered) -> None:
        self._on_reader_message(subtask, message)
        self._join_group(subtask.subtask, message)  # what was announced before, it may not have been open for

    def _on_reader_message(self, subtask: SubtaskId, message: ReaderMessage) -> None:
        self._notify_sources({message.source: src.FromReader(subtask.subtask, message)})

    def _on_subtask_progress(self, subtask: SubtaskId, message: SubtaskProgress) -> None:
        self._out.append(job.ShowProgress(subtask.subtask, message))
        for uid, splits in message.event_times.items():
            if (group := self._group_of.get(uid)) is not None:
                paused = any(split.paused for split in splits.values())
                self._notify_group(group, al.ReaderPaused(uid, subtask.subtask, paused))

    def _on_subtask_running(self, subtask: SubtaskId, message: msg.SubtaskRunning) -> None:
        self._notify_scheduler(sch.SubtaskStarted(subtask, message.execution))

    def _on_subtask_recovered(self, subtask: SubtaskId, message: msg.SubtaskRecovered) -> None:
        self._recovering.discard(subtask)
        self._notify_checkpoints(cp.SubtaskRecovered(subtask, message.execution))

    def _on_link_broken(self, subtask: SubtaskId, message: msg.LinkBroken) -> None:
        self._notify_scheduler(sch.LinkBroke(subtask, message.execution, message.peer))

    def _on_input_ended(self, subtask: SubtaskId, message: msg.InputEnded) -> None:
        self._notify_scheduler(sch.SubtaskInputEnded(subtask, message.execution))

    def _on_subtask_failed(self, subtask: SubtaskId, message: msg.SubtaskFailed) -> None:
        error = message.error
        peer = peer_of(subtask.subtask, error.facts) if error.error_type == "TransportError" else None
        self._notify_scheduler(sch.SubtaskBroke(subtask, message.execution, error, peer))

    def _on_checkpoint_acknowledged(self, subtask: SubtaskId, message: msg.CheckpointAcknowledged) -> None:
        self._notify_checkpoints(
            cp.SubtaskAcknowledged(subtask, message.execution, message.checkpoint_id, message.state)
        )

    def _on_checkpoint_declined(self, subtask: SubtaskId, message: msg.CheckpointDeclined) -> None:
        self._notify_checkpoints(cp.SubtaskDeclined(subtask, message.execution, message.checkpoint_id, message.reason))

    def _send(self, slot: int, message: msg.ToSlot) -> None:
        """Put a message on the stream of the slot's attempt that counts; without one nobody misses it."""
        self._out += self._slots.send(slot, message)

    def _log(self, level: str, text: str, **where: int | None) -> None:
        self._out.append(job.Log(level, text, **where))

    def _pass_on(self, action: job.Action) -> None:
        self._out.append(action)

    # What the scheduler orders.

    def _notify_scheduler(self, event: sch.Event) -> None:
        for action in self._scheduler.handle(event, self._now_ms):
            self._route(action, action)

    def _on_submit_job(self, action: sch.SubmitJob) -> None:
        self._job = action.submission
        self._out.append(action)

    def _accept(self, action: slt.AcceptSlot) -> None:
        self._out += self._slots.accept(action.slot, action.attempt)

    def _fence(self, action: slt.FenceSlot) -> None:
        if self._scheduler.state not in ("ended", "failed"):
            self._log(
                "warning", f"Fenced attempt {action.attempt} of slot {action.slot}: {action.reason}.", slot=action.slot
            )
        self._out += self._slots.fence(action.slot, action.attempt, action.reason)

    def _cancel(self, action: sch.CancelExecution) -> None:
        cancel = msg.CancelSubtask(stage=action.subtask.stage, execution=action.execution)
        self._send(action.subtask.subtask, cancel)

    def _announce_running(self, action: sch.AnnounceRunning) -> None:
        self._log("info", "All subtasks are running.")
        recovering = frozenset(self._recovering)
        self._notify_checkpoints(cp.SubtasksRunning(action.executions, action.restored, recovering))

    def _announce_not_running(self, action: sch.AnnounceNotRunning) -> None:
        self._notify_checkpoints(cp.SubtasksNotRunning(action.reason))

    def _announce_input_ended(self, action: sch.AnnounceInputEnded) -> None:
        self._notify_checkpoints(cp.InputAllEnded())

    def _report(self, action: sch.ReportFailure | sch.ReportMissingSlots) -> None:
        stay = "; slots that live stay" if self._scheduler.keeps_slots else ""
        why = f" They are all, since exchanges connect them{stay}." if self._plan.is_connected else ""
        if isinstance(action, sch.ReportFailure):
            self._lose_readers(key for key in self._aligned if key[1] in action.restarted)
            restart = _restart(action)
            self._log("warning", trouble(action) + why, slot=restart.slot, stage=restart.stage, subtask=restart.subtask)
            self._out.append(restart)
        else:
            self._log("warning", trouble(action))

    def _deploy(self, action: sch.DeploySubtask) -> None:
        subtask, latest = action.subtask, self._checkpoints.latest
        checkpoint_id = 0 if latest is None else latest.checkpoint_id
        suspended = self._checkpoints.is_past_the_last
        assert self._reset_to.get(subtask.subtask, checkpoint_id) == checkpoint_id, "its splits went back to another"
        generation = self._regions.generation(subtask.subtask)
        # Who only is there processes nothing: what was on its way is the next run's.
        channels = self._regions.channels_of(None if suspended else latest)
        deploy = msg.Deploy(
            stage=subtask.stage,
            execution=action.execution,
            parallelism=self._plan.parallelism,
            restore=None if latest is None else latest.subtasks[subtask.stage][subtask.subtask],
            checkpoint_id=checkpoint_id,
            suspended=suspended,
            generation=generation,
            recovered=channels.assigned.get(subtask, ()),
            relocated=channels.relocated,
        )
        # Where producers recover, a subtask is running when all that is processed.
        recovers = bool(deploy.recovered) and self._options.recover_output_downstream
        (self._recovering.add if recovers else self._recovering.discard)(subtask)
        self._send(subtask.subtask, deploy)
        region = self._regions.deployed(subtask, action.execution)
        if region is not None:
            self._connect(region)

    def _connect(self, region: Region) -> None:
        """Let the subtasks of a region know where they all are."""
        slots = sorted({subtask.subtask for subtask in region.deployed})
        streams = {slot: self._slots.current(slot) for slot in slots}
        addresses = {slot: stream.about.data_address for slot, stream in streams.items() if stream is not None}
        for subtask, execution in sorted(region.deployed.items()):
            if subtask.stage in self._regions.connected_stages:
                located = msg.SlotsLocated(
                    stage=subtask.stage, execution=execution, generation=region.generation, addresses=addresses
                )
                self._send(subtask.subtask, located)

    def _reset_readers(self, action: sch.ResetReaders) -> None:
        number = action.subtask
        latest = self._checkpoints.latest
        checkpoint_id = 0 if latest is None else latest.checkpoint_id
        self._resetting[number], self._reset_to[number] = set(self._sources), checkpoint_id
        self._regions.forget(number)
        self._notify_sources(dict.fromkeys(self._sources, src.ReaderFailed(number, checkpoint_id)))

    def _restore_sources(self, action: sch.RestoreSources) -> None:
        """Start the sources from the last completed checkpoint; what was under way with them is void."""
        self._resetting.clear()
        self._reset_to.clear()
        self._regions.forget_all()
        self._notify_sources({uid: self._start_of(uid) for uid in self._sources})
        self._notify_scheduler(sch.SourcesRestored())

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
        unassigned = () if entry is None else entry.unassigned
        return src.SourceStarted(
            latest.checkpoint_id, None if state is None else state.data, tuple(finished), unassigned
        )

    def _release(self, action: sch.ReleaseSlots) -> None:
        """Let slots end, those too that come only now, and sources."""
        for slot in range(self._plan.parallelism):
            stream = self._slots.current(slot)
            if stream is not None and not stream.released:
                stream.released = True
                self._send(slot, msg.ShutDownSlot())
        if self._state == "open":
            self._state = "releasing"
            if self._is_rescaled and self._checkpoints.state == "suspended":
                self._lose_readers(self._aligned)  # those of the next run take their places: others wait for them
            else:  # slots may take long to end, and nobody is to wait for them
                self._out.extend(job.ShareMinimum(group, None) for group in self._groups)
            self._notify_sources(dict.fromkeys(self._sources, src.SourceClosed()))

    def _on_query_over(self, action: sch.QueryOver) -> None:
        self._state = "over"
        self._out += [cp.AnswerRequest(request, None, "the query ended") for request in sorted(self._requests)]
        self._requests.clear()
        self._out.append(action)

    # What sources order.

    def _notify_sources(self, events: dict[str, src.Event]) -> None:
        ordered = [
            (uid, action) for uid, event in events.items() for action in self._sources[uid].handle(event, self._now_ms)
        ]
        for uid, action in ordered:
            self._route(action, uid, action)
        for uid in events:
            troubles = self._sources[uid].troubles()
            if troubles != self._troubles.get(uid, ()):
                self._troubles[uid] = troubles
                self._out.append(job.ShowSource(uid, troubles))

    def _for_source(self, uid: str, action: ForEnumerator) -> None:
        self._out.append(job.ForSource(uid, action))

    def _send_to_reader(self, uid: str, action: src.SendToReader) -> None:
        self._send(action.subtask, action.message)

    def _on_state_ready(self, uid: str, action: src.EnumeratorStateReady) -> None:
        self._notify_checkpoints(
            cp.SourceStateReady(uid, action.checkpoint_id, action.state, action.finished_known, action.unassigned)
        )

    def _on_refused(self, uid: str, action: src.CheckpointRefused) -> None:
        self._notify_checkpoints(cp.SourceRefused(uid, action.checkpoint_id, action.reason))

    def _on_reader_reset(self, uid: str, action: src.ReaderReset) -> None:
        awaited = self._resetting.get(action.subtask, set())
        awaited.discard(uid)
        if not awaited and self._resetting.pop(action.subtask, None) is not None:
            self._notify_scheduler(sch.SubtaskReset(action.subtask))

    def _on_source_failed(self, uid: str, action: src.RequestGlobalFailover) -> None:
        self._notify_scheduler(sch.GlobalFailure(action.error))

    def _warn_of_enumerator(self, uid: str, action: src.WarnOfEnumerator) -> None:
        self._log("warning", sentence(action.text))

    # Alignment.

    def _join_group(self, slot: int, message: msg.ReaderRegistered | msg.WatermarkReported) -> None:
        """Let a group know of a new execution of a reader."""
        group = self._group_of.get(message.source)
        if group is not None:
            self._aligned[message.source, slot] = _Aligned(message.stage, message.execution)
            self._notify_group(group, al.ReaderJoined(message.source, slot))

    def _on_watermark_reported(self, subtask: SubtaskId, message: msg.WatermarkReported) -> None:
        slot = subtask.subtask
        if self._aligned.get((message.source, slot)) != _Aligned(message.stage, message.execution):
            self._join_group(slot, message)
        group = self._group_of[message.source]
        self._notify_group(group, al.ReaderReported(message.source, slot, message.watermark_ms, message.slowest))

    def _lose_readers(self, keys: Iterable[tuple[str, int]]) -> None:
        """Let groups know that readers failed; what these executions still say does not count."""
        for source, slot in list(keys):
            self._notify_group(self._group_of[source], al.ReaderLost(source, slot))

    def _notify_group(self, group: al.AlignmentGroup, event: al.Event) -> None:
        for action in group.handle(event, self._now_ms):
            self._route(action, group, action)

    def _announce(self, group: al.AlignmentGroup, action: al.Announce) -> None:
        aligned = self._aligned[action.source, action.subtask]
        message = msg.AlignmentAnnounced(
            stage=aligned.stage,
            execution=aligned.execution,
            source=action.source,
            max_watermark_ms=action.max_watermark_ms,
            others_ms=action.others_ms,
        )
        self._send(action.subtask, message)

    def _share_minimum(self, group: al.AlignmentGroup, action: al.ShareMinimum) -> None:
        if self._state == "open" or action.watermark_ms is None:  # who ends votes no longer
            self._out.append(job.ShareMinimum(group.group, action.watermark_ms))

    def _warn_of_absence(self, group: al.AlignmentGroup, action: al.WarnOfAbsence) -> None:
        self._log("warning", absent_from(group.group, action))

    def _warn_of_holder(self, group: al.AlignmentGroup, action: al.WarnOfHolder) -> None:
        self._log("warning", held_by(group.group, action))

    # What the coordinator of checkpoints orders.

    def _notify_checkpoints(self, event: cp.Event) -> None:
        for action in self._checkpoints.handle(event, self._now_ms):
            self._route(action, action)

    def _answer_request(self, action: cp.AnswerRequest) -> None:
        self._requests.discard(action.request_id)
        self._out.append(action)

    def _delete_savepoint(self, action: cp.DeleteSavepoint) -> None:
        self._requests.difference_update(each.request_id for each in action.answers)
        self._out.append(action)

    def _report_lost_files(self, action: cp.ReportLostFiles) -> None:
        for level, text in news_of_files(action):
            self._log(level, text)

    def _snapshot_sources(self, action: cp.SnapshotSources) -> None:
        self._notify_sources(dict.fromkeys(self._sources, src.CheckpointStarted(action.checkpoint_id)))

    def _on_query_suspended(self, action: cp.QuerySuspended) -> None:
        self._notify_scheduler(sch.QueryEnding())

    def _on_failure_limit(self, action: cp.CheckpointFailureLimitReached) -> None:
        error = action.error or ErrorReport(error_type="HeadgateError", message="")
        self._notify_scheduler(sch.GlobalFailure(msgspec.structs.replace(error, message=sentence(action.reason))))

    def _send_barriers(self, action: cp.SendBarriers) -> None:
        # A savepoint holds no rows on their way; who is rescaled takes them along.
        self._is_rescaled = action.kind is CheckpointKind.SUSPEND and not action.location
        may_pass = action.kind is CheckpointKind.CHECKPOINT or self._is_rescaled
        unaligned = may_pass and self._options.unaligned and self._plan.is_connected
        lost = lost_files(action.gone)
        for status in self._scheduler.deployed():
            if self._sources.keys().isdisjoint(self._plan.stages[status.subtask.stage]):
                continue  # its barriers come through its channels
            barrier = msg.TriggerCheckpoint(
                stage=status.subtask.stage,
                execution=status.execution,
                checkpoint_id=action.checkpoint_id,
                completed=action.completed,
                kind=action.kind,
                location=action.location,
                unaligned=unaligned,
                alignment_timeout_ms=self._options.alignment_timeout_ms if unaligned else 0,
                lost=lost,
            )
            self._send(status.subtask.subtask, barrier)
        self._notify_sources(dict.fromkeys(self._sources, src.BarriersSent(action.checkpoint_id)))

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
        self._notify_sources(dict.fromkeys(self._sources, src.SourceCheckpointCompleted(action.checkpoint_id)))
        self._out.append(job.ShowCheckpoint(action.checkpoint_id, action.epoch, action.duration_ms, action.size_bytes))

    def _notify_aborted(self, action: cp.NotifyAborted) -> None:
        if action.put_off or self._scheduler.state == "ending":
            became = "is put off" if action.put_off else "is given up"
            self._log("info", f"Checkpoint {action.checkpoint_id} {became}: {sentence(action.reason)}")
        else:
            self._log("warning", f"Checkpoint {action.checkpoint_id} failed: {sentence(action.reason)}")
            took_ms = self._now_ms - action.began_ms
            self._out.append(job.ShowFailedCheckpoint(action.checkpoint_id, sentence(action.reason), took_ms))
        for status in self._scheduler.deployed() if not action.put_off else ():  # then no barrier is out
            aborted = msg.CheckpointAborted(
                stage=status.subtask.stage, execution=status.execution, checkpoint_id=action.checkpoint_id
            )
            self._send(status.subtask.subtask, aborted)
        self._notify_sources(dict.fromkeys(self._sources, src.SourceCheckpointAborted(action.checkpoint_id)))

    def _slot_info(self, status: slt.SlotStatus) -> SlotInfo:
        stream = self._slots.current(status.slot)
        about = msg.RegisterSlot(host="") if stream is None else stream.about
        job_number, attempt = (None, None) if status.attempt is None else slt.job_and_attempt(status.attempt)
        return SlotInfo(status.slot, status.state, job_number, attempt, about.host, about.pid, about.executor)


def _restart(action: sch.ReportFailure) -> job.ShowRestart:
    error = action.error
    stage, subtask, slot = (error.facts.get(fact) for fact in ("stage", "subtask", "slot"))
    return job.ShowRestart(
        kind="subtask" if subtask is not None else "job" if slot is None else "slot",
        cause=f"{error.error_type}: {sentence(error.message)}",
        stage=stage,
        subtask=subtask,
        slot=subtask if slot is None else slot,  # a subtask's number is that of its slot
        restarted=action.restarted,
    )


def _groups(plan: JobPlan) -> dict[str, al.AlignmentGroup]:
    """Return the alignment groups of a query's sources, by name."""
    drifts: dict[str, dict[str, int]] = {}
    for uid, source in plan.sources.items():
        if source.alignment is not None:
            drifts.setdefault(source.alignment.group, {})[uid] = source.alignment.max_drift_ms
    return {group: al.AlignmentGroup(group, of, parallelism=plan.parallelism) for group, of in drifts.items()}
