"""One execution of a subtask: readers with their outputs, the chain, exchanges, and the sink's writer.

Never: decide what is next (`headgate.task.task_loop` does), or touch any of it on another thread than the subtask's.

A batch that a reader emitted waits at the entry of the chain, which takes a slice of it at a time; the reader's
position is after all of it already. After exchanges there is a gate instead of readers
(`headgate.runtime.input_exchanges`), which holds what is left of a buffer. Either way a snapshot waits for one slice,
and what is left belongs to it.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-547.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, assert_never

import pyarrow as pa

from headgate.errors import HeadgateError, TransportError
from headgate.event_log import describe
from headgate.graph.query_options import alignment_timeout_ms, checkpoints_during_recovery
from headgate.operators.exchange import Exchange
from headgate.protocol import messages as msg
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.error_reports import peer_of
from headgate.protocol.operator_context import HelperUse
from headgate.protocol.state import OperatorState, RecoveredChannel, SplitState, SubtaskState
from headgate.readers import SourceReaderBase
from headgate.runtime.chain import MAIL_MS, StageChain
from headgate.runtime.channel_recovery_thread import BufferPool
from headgate.runtime.execution_context import ExecutionContext
from headgate.runtime.input_exchanges import InputExchanges
from headgate.runtime.mailbox import Mail
from headgate.runtime.output_exchange import OutputExchange
from headgate.runtime.overdue_progress import UnderWay
from headgate.runtime.restored import RestoredState, read_rows, recovered_input
from headgate.runtime.snapshot_parts import StoredRows
from headgate.runtime.snapshots import SafeSnapshot, Snapshots
from headgate.runtime.source_figures import SourceFigures
from headgate.runtime.source_input import SourceInput
from headgate.source import InputStatus
from headgate.task import subtask as machine
from headgate.task import task_loop as loop
from headgate.task.exchange.input_gate import GateInput
from headgate.task.thread_time import ThreadTime

_log = logging.getLogger(__name__)

_BROKEN_PATIENCE_MS = 5000
"""How long a subtask whose link broke waits to be cancelled before it fails: it is seldom the cause."""


class ExecutionUser(Protocol):
    """Who runs an execution; called on the subtask's thread."""

    def handle(self, event: machine.Event) -> None:
        """Give an event to the subtask machine."""

    def post(self, message: msg.FromSlot) -> None:
        """Send a message to the coordinator."""


class Execution:
    """What one deployment holds.

    Parameters
    ----------
    context
        What it is made of.
    operators
        By uid of operator and sink: the state that the checkpoint holds for this subtask.
    user
        Who runs it.
    """

    def __init__(self, context: ExecutionContext, operators: Mapping[str, OperatorState], user: ExecutionUser) -> None:
        self.context = context
        self.number = context.number
        self.is_over = False
        """Whether it is closed, or being closed."""
        self.called: str | None = None
        """The source whose reader is being called, or raised."""
        self.time = ThreadTime(context.services.work_ms())
        """What its thread does with its time; whoever takes the turns says when it waits."""
        self.lacks_room = False
        """Whether the last step found that not all outputs take rows."""
        self._user = user
        self._stage = context.stage
        uids = (source.uid for source in self._stage.sources)
        self._loop = loop.TaskLoop(uids, alignment_timeout_ms(context.definition.options))
        self._opening: Iterator[None] | None = self._open_in_steps(operators)
        self._located: msg.SlotsLocated | None = None  # came before the gate was there
        self._recovers_first = False
        self._rows_to_recover = False
        self._suspended = context.deployed.suspended
        self._finishing = False
        self._timer_ms: int | None = None  # when the timer of exchanges is due
        self._clock_timer_ms: int | None = None  # when that of operators is, by the wall clock
        self._awaited: list[Future[None]] = []  # the room that is waited for
        self._unreached: set[int] = set()  # slots to which links broke
        self.inputs: dict[str, SourceInput] = {}
        self._sources = SourceFigures(self.inputs)
        self._outputs: dict[str, OutputExchange] = {}
        self._gate: InputExchanges | None = None
        self._chain: StageChain | None = None
        self._may_be_quick = False
        self._has_times = True
        self._helper_use = HelperUse()
        self._restored: RestoredState | None = None
        self._snapshots: Snapshots | None = None

    # Opening.

    def _open_in_steps(self, operators: Mapping[str, OperatorState]) -> Iterator[None]:
        """Make readers, operators and sink, with the state of a checkpoint, in steps well below a second each."""
        context = self.context
        items = {uid: [context.bytes_of(item) for item in state.items] for uid, state in operators.items()}
        self._open_outputs()
        self._restored = restored = RestoredState(context, (context.deployed.restore or SubtaskState()).keyed)
        self._chain = chain = StageChain(
            context.definition,
            context.operator(helper_use=self._helper_use),
            items,
            stage=context.deployed.stage,
            keyed=restored.chunks,
            outputs=self._outputs,
            clock_ms=context.services.work_ms,
        )
        yield from chain.open_in_steps()
        restored.end()
        chain.position_of = self._position_of
        for source in self._stage.sources:
            self.inputs[source.uid] = SourceInput(context, source, chain, self)
            self.inputs[source.uid].start()
        context.mailbox.on_ready = self._on_ready
        self._may_be_quick = not (self._stage.inputs or chain.finds_event_times)
        self._has_times = bool(self._stage.inputs or self._outputs or chain.has_times)
        self._snapshots = Snapshots(
            context,
            has_gate=bool(self._stage.inputs) and not self._suspended,
            has_keyed_state=chain.has_keyed_state,
            on_safe=self._on_safe,
        )
        self._open_gate()
        if self._located is not None:
            self.connect(self._located)

    def _open_outputs(self) -> None:
        context = self.context
        for uid, exchange in self._stage.outputs.items():
            self._outputs[uid] = OutputExchange(
                uid,
                exchange,
                context.place.slot,
                context.neighbours(exchange),
                context.deployed.generation,
                context.partitioner(exchange),
                context.definition.options["exchange.buffer-timeout"],
                context.plane,
                context.mailbox,
                context.now_ms,
                on_stored=partial(self._on_output_stored, uid),
                on_broken=self.on_broken,
                memory_bytes=context.definition.options["exchange.memory"],
            )

    def _open_gate(self) -> None:
        """Make the gate, and recover what is recovered on this side."""
        context, options = self.context, self.context.definition.options
        deployed = context.deployed
        if self._suspended:
            return
        on_downstream = bool(options["execution.checkpointing.unaligned.recover-output-on-downstream.enabled"])
        from_producers = not on_downstream and deployed.checkpoint_id > 0
        waits = not checkpoints_during_recovery(options) and deployed.checkpoint_id > 0
        if self._stage.inputs:
            recovered = [each for each in deployed.recovered if each.state.exchange in self._stage.inputs]
            self._gate = self._make_gate(recovered, producers_recover=from_producers)
            self._rows_to_recover = bool(recovered or from_producers)
            self._recovers_first = waits and self._rows_to_recover
            self._gate.start()
        if from_producers and self._outputs:
            self._emit_recovered([each for each in deployed.recovered if each.state.exchange in self._outputs])
            self._recovers_first = self._recovers_first or waits

    def _make_gate(self, recovered: Sequence[RecoveredChannel], *, producers_recover: bool) -> InputExchanges:
        context, inputs = self.context, self._stage.inputs
        partitioners = {uid: context.partitioner(exchange) for uid, exchange in inputs.items()}
        return InputExchanges(
            context.place.slot,
            inputs,
            {uid: self._gate_input(uid, exchange) for uid, exchange in inputs.items()},
            partitioners,
            context.deployed.generation,
            context.plane,
            context.mailbox,
            context.now_ms,
            self,
            [recovered_input(context, each, partitioners[each.state.exchange]) for each in recovered],
            producers_recover=producers_recover,
            recovery=partial(
                context.services.recovery, spill_folders=[f"{each}/channels" for each in context.spill_folders]
            ),
            pool=BufferPool(context.services.recovery_memory_bytes),
        )

    def _gate_input(self, uid: str, exchange: Exchange) -> GateInput:
        graph = self.context.definition.graph
        stage = graph.stage_of(uid)
        return GateInput(
            stage=stage,
            producers=self.context.neighbours(exchange),
            supports_unaligned=exchange.supports_unaligned,
            idle_together=graph.idles_together(stage),
            relocated=uid in self.context.deployed.relocated,
        )

    def _emit_recovered(self, recovered: Sequence[RecoveredChannel]) -> None:
        for each in recovered:
            for batch in read_rows(self.context, each.state):
                buffer = Buffer(batch, batch.num_rows, batch.nbytes, unfiltered=each.filtered)
                self._outputs[each.state.exchange].emit_recovered(each.channel, buffer)
        for output in self._outputs.values():
            output.end_recovered()

    def open_more(self) -> None:
        """Open some more of it. Mail is handled in between, however much there is."""
        assert self._opening is not None
        began_ms = self.context.services.work_ms()
        for _ in self._opening:
            if self.context.services.work_ms() - began_ms >= MAIL_MS:
                return
        self._opening = None
        self._handle(loop.ExecutionOpened(self._recovers_first, self._rows_to_recover))

    def connect(self, located: msg.SlotsLocated) -> None:
        """Connect the channels that this subtask consumes."""
        self._located = located
        if self._gate is not None and located.generation == self.context.deployed.generation:
            self._gate.connect(located.addresses)

    # What is ordered.

    def note_barrier(self, barrier: Barrier) -> None:
        """Remember a barrier, of which the subtask machine orders the snapshot."""
        if self._snapshots is not None:
            self._snapshots.barriers[barrier.checkpoint_id] = barrier

    def order(self, order: loop.Order) -> None:
        """Carry an order out: at once, or after the snapshot that was ordered before."""
        self._handle(loop.Ordered(order))

    def give_up(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will not complete."""
        if self._snapshots is not None:
            self._snapshots.give_up(checkpoint_id)
        if self.context.services.uploader is not None:
            self.context.services.uploader.give_up(checkpoint_id)
        if self._gate is not None:
            self._gate.give_up(checkpoint_id)
        for output in self._outputs.values():
            output.give_up(checkpoint_id)
        self._handle(loop.CheckpointGivenUp(checkpoint_id))

    def step(self, now_ms: int) -> bool:
        """Do the next piece of work; return whether there was one."""
        try:
            return self._step(now_ms)
        finally:
            self._arm_timers()

    def _step(self, now_ms: int) -> bool:
        if self._opening is not None:
            return self._handle(loop.OpeningContinues())
        if self._chain is None:
            return False
        source = self._loop.reads_on if self._may_be_quick else None
        if source is not None and self._chain.is_empty and self._chain.ready() is None:
            return self._read_on(self._chain, self.inputs[source], now_ms)
        room, blocked = self._room()
        barrier_waits = self._gate is not None and self._gate.waits_for_aligned
        if self._chain.waits:
            busy = self._handle(loop.RowsWait(room, barrier_waits))
        else:
            for each in self.inputs.values():
                each.align()  # what event times that an operator found gave rise to
                if self.may_end_splits:
                    each.report_ended()
            busy = self._handle(self._chain_empty(room, barrier_waits))
            if (self._chain.waits or self._chain.entry_waits) and not self.context.mailbox.has_mail:
                room, blocked = self._room()  # small batches take a turn, and not two
                begun = loop.RowsWait(room, barrier_waits) if self._chain.waits else None
                busy = self._handle(begun or self._chain_empty(room, barrier_waits))
        self.lacks_room = bool(blocked)
        if not busy and not self.context.mailbox.has_mail:
            busy = self._rest()
        if not busy:
            self._await(blocked)
        return busy

    def _read_on(self, chain: StageChain, source: SourceInput, now_ms: int) -> bool:
        """Do what the loop would order, turn by turn, while a reader has little: poll it, and process that."""
        status = source.poll(now_ms)
        self._loop.handle(loop.SourcePolled(source.uid, status), now_ms)
        if not chain.process_few() or status is not InputStatus.NOTHING_AVAILABLE or chain.ready() is not None:
            return True  # the loop has to know, of an end and of missing room, too
        busy = self.context.mailbox.has_mail
        for each in self.inputs.values():
            busy = busy or each.owes_report
        self.lacks_room = False
        return busy or (bool(self._outputs) and self._rest())

    def _rest(self) -> bool:
        """Send what need not wait, as there is nothing else to do; return whether not all take rows any more."""
        sent = False
        for each in self._outputs.values():
            sent = each.rest() or sent
        return sent and self._room()[0] is not loop.Room.ALL

    def _chain_empty(self, room: loop.Room, barrier_waits: bool) -> loop.ChainEmpty:
        """Return what the loop must know when no slice that was begun waits."""
        assert self._chain is not None
        outputs_empty = not self._recovers_first or all(each.is_empty for each in self._outputs.values())
        if not self._chain.entry_waits:
            return loop.ChainEmpty(room, barrier_waits, outputs_empty)
        if not self._loop.is_snapshot_due:
            return loop.ChainEmpty(room, barrier_waits, outputs_empty, 0.0)
        storable = all(each.can_store_rows() for each in self.inputs.values())
        return loop.ChainEmpty(room, barrier_waits, outputs_empty, self._chain.entry_ms(), storable)

    @property
    def has_room(self) -> bool:
        """Whether rows that sources emit would be taken."""
        return self._chain is None or self._room()[0] is loop.Room.ALL

    def _room(self) -> tuple[loop.Room, list[Future[None]]]:
        """Return who takes rows, and the futures of the room that others have not."""
        assert self._chain is not None
        ready = self._chain.ready()
        if ready is None or ready.done():
            return loop.Room.ALL, []
        sinks = self._chain.sinks_ready()
        if sinks is None or sinks.done():
            return loop.Room.SINKS, [ready]
        return loop.Room.NOBODY, [ready, sinks]

    def _await(self, blocked: list[Future[None]]) -> None:
        """Have the mailbox wake this thread when there is room."""
        self._awaited = [each for each in self._awaited if not each.done()]
        for room in blocked:
            if not any(room is each for each in self._awaited):
                self._awaited.append(room)
                room.add_done_callback(lambda _: self.context.mailbox.post(Mail(lambda: None)))

    def _handle(self, event: loop.Event) -> bool:
        """Carry out what the loop decides; return whether that was work."""
        busy = False
        for action in self._loop.handle(event, self.context.now_ms()):
            busy = self._carry_out(action) or busy
        return busy

    def _carry_out(self, action: loop.Action) -> bool:
        chain = self._chain
        match action:
            case loop.OpenMore():
                self.open_more()
                return True
            case loop.SetReadable(readable=readable):
                self._set_readable(readable)
                return False
            case loop.CarryOut(order=order):
                self._carry_out_order(order)
                return True
        assert chain is not None
        match action:
            case loop.Process(overdraft=overdraft, entry=entry):
                chain.process_some(overdraft=overdraft, entry=entry)
            case loop.Poll(source=source, overdraft=overdraft):
                if source is None:
                    return self._gate is not None and self._gate.poll(overdraft=overdraft)
                status = self.inputs[source].poll(self.context.now_ms())
                self._handle(loop.SourcePolled(source, status))
            case loop.PrepareSnapshot():
                chain.prepare_snapshot()
            case loop.Snapshot(order=order):
                self._take_snapshot(order)
            case loop.DrainInput():
                self._end_input()
            case loop.EndInput():
                self._end_input()
                self._user.handle(machine.AllInputEnded())
            case loop.ReportOpened():
                self._recovers_first = False
                self._user.handle(machine.OperatorsOpened())
            case _:
                assert_never(action)
        return True

    def _carry_out_order(self, order: loop.Order) -> None:
        match order:
            case machine.AddSplits(source=uid, splits=splits):
                self.inputs[uid].add_splits(splits)
            case machine.NotifyNoMoreSplits(source=uid):
                self.inputs[uid].notify_no_more_splits()
            case machine.HandEvent(source=uid, payload=payload):
                self.inputs[uid].handle_event(payload)
            case machine.SetUnassigned(source=uid, event_time_ms=event_time_ms):
                self.inputs[uid].set_unassigned(event_time_ms)
            case machine.Announce(source=uid, max_watermark_ms=max_watermark_ms, others_ms=others_ms):
                self.inputs[uid].announce(max_watermark_ms, others_ms)
            case machine.NotifyOperators(checkpoint_id=checkpoint_id):
                self._notify_checkpoint_complete(checkpoint_id)
            case machine.StartReading() | machine.ResumeReading() | machine.TakeSnapshot():
                raise AssertionError("the loop carries these out by itself")
            case _:
                assert_never(order)

    def _end_input(self) -> None:
        assert self._chain is not None
        for each in self.inputs.values():
            each.output.end_input()
        self._chain.end_input()

    def _set_readable(self, readable: bool) -> None:
        """Let the idleness clocks of splits run unless rows are not wanted, because of back pressure above all."""
        now_ms = self.context.now_ms()
        for each in self.inputs.values():
            if not each.output.ended:
                (each.output.unblock if readable else each.output.block)(now_ms)

    def _notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        assert self._chain is not None
        for each in self.inputs.values():
            each.notify_checkpoint_complete(checkpoint_id)
        self._chain.notify_checkpoint_complete(checkpoint_id)

    # Snapshots.

    def _take_snapshot(self, order: machine.TakeSnapshot) -> None:
        assert self._chain is not None and self._snapshots is not None
        checkpoint_id = order.checkpoint_id
        splits = {uid: each.snapshot(checkpoint_id, self._snapshots) for uid, each in self.inputs.items()}
        final = self._loop.has_ended
        operators = self._chain.snapshot(checkpoint_id, final=final)
        keyed = self._chain.snapshot_keyed(checkpoint_id)
        barrier = self._snapshots.take(checkpoint_id, splits, self._sources.looked_ms, operators, keyed)
        for output in self._outputs.values():
            assert barrier is not None, f"no barrier of checkpoint {checkpoint_id} came"
            output.barrier(barrier)

    def _on_safe(self, checkpoint_id: int, made: SafeSnapshot | BaseException) -> None:
        if self.is_over:
            return
        assert self._chain is not None
        if isinstance(made, BaseException):
            self._chain.ready()  # raises where the sink is broken for good: then the subtask fails, with its error
            _log.warning("subtask %d declines checkpoint %d: %s", self.context.place.slot, checkpoint_id, made)
            self._user.handle(machine.SnapshotFailed(checkpoint_id, f"{type(made).__name__}: {made}"))
            return
        self._user.post(self.progress(made.splits if self._sources.looked_ms == made.looked_ms else None))
        self._user.handle(machine.SnapshotMade(checkpoint_id, made.splits, made.operators, made.keyed, made.channels))

    def _on_output_stored(self, uid: str, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[Buffer]]) -> None:
        assert self._snapshots is not None
        self._snapshots.store_output(uid, checkpoint_id, channels)

    # What readers report (`InputUser`).

    def _on_ready(self) -> None:
        """Poll the readers, of one of which a client gave the signal."""
        for each in () if self.is_over else self.inputs.values():
            each.wake()

    @property
    def may_end_splits(self) -> bool:
        """See `InputUser`."""
        return self._loop.reads and not self._loop.is_snapshot_due

    def handle(self, event: machine.Event) -> None:
        """See `InputUser`."""
        self._user.handle(event)

    def on_source_available(self, source: str) -> None:
        """See `InputUser`."""
        self._handle(loop.SourceAvailable(source))

    def on_source_paused(self, source: str, paused: bool) -> None:
        """See `InputUser`."""
        self._handle(loop.SourcePaused(source, paused))

    def on_splits_paused(self, source: str, paused: bool) -> None:
        """See `InputUser`."""
        self.time.set_paused(source, paused, self.context.services.work_ms())

    # What the gate and the links report (`GateUser`).

    def entry_rows(self, exchange: str) -> int:
        """See `GateUser`."""
        assert self._chain is not None
        return self._chain.entry_rows(exchange)

    def on_rows(self, exchange: str, batch: pa.RecordBatch) -> None:
        """See `GateUser`."""
        assert self._chain is not None
        self._chain.take_rows(exchange, batch, "")

    def on_watermark(self, exchange: str, timestamp_ms: int) -> None:
        """See `GateUser`."""
        assert self._chain is not None
        self._chain.input(exchange).on_watermark(timestamp_ms)

    def on_idle(self, exchange: str) -> None:
        """See `GateUser`."""
        assert self._chain is not None
        self._chain.input(exchange).on_idle()

    def on_active(self, exchange: str) -> None:
        """See `GateUser`."""
        assert self._chain is not None
        self._chain.input(exchange).on_active()

    def on_inputs_ended(self) -> None:
        """See `GateUser`."""
        self._handle(loop.InputsEnded())

    def on_barrier(self, barrier: Barrier) -> None:
        """See `GateUser`."""
        self.note_barrier(barrier)
        trigger = msg.TriggerCheckpoint(
            stage=self.context.deployed.stage,
            execution=self.number,
            checkpoint_id=barrier.checkpoint_id,
            completed=barrier.completed,
            kind=barrier.kind,
            location=barrier.location,
            unaligned=barrier.unaligned,
            alignment_timeout_ms=barrier.alignment_timeout_ms,
            lost=barrier.lost,
        )
        self._user.handle(machine.MessageReceived(trigger))

    def on_recovered(self) -> None:
        """See `GateUser`."""
        self._handle(loop.InputsRecovered())
        self._user.post(msg.SubtaskRecovered(stage=self.context.deployed.stage, execution=self.number))

    def on_input_stored(
        self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[StoredRows]], relocated: frozenset[str]
    ) -> None:
        """See `GateUser`."""
        assert self._snapshots is not None
        self._snapshots.store_input(checkpoint_id, channels, relocated)

    def on_broken(self, error: TransportError) -> None:
        """Report it, and fail after a while unless the coordinator knows why: the other side failed or ended."""
        if self._loop.has_ended or self._suspended:
            return
        peer = peer_of(self.context.place.slot, error.facts)
        if peer is not None and peer not in self._unreached:
            self._unreached.add(peer)
            stage = self.context.deployed.stage
            self._user.post(msg.LinkBroken(stage=stage, execution=self.number, peer=peer))
        self.context.mailbox.run_after(_BROKEN_PATIENCE_MS, Mail(lambda: self._fail_broken(error)))

    def _fail_broken(self, error: TransportError) -> None:
        if not (self.is_over or self._loop.has_ended or self._finishing):
            raise error

    # Timers.

    def _on_exchange_time(self) -> None:
        self._timer_ms = None
        if self.is_over:
            return
        for output in self._outputs.values():
            output.on_time()
        if self._gate is not None:
            self._gate.on_time()

    def _on_clock_time(self) -> None:
        self._clock_timer_ms = None
        if self.is_over or self._chain is None:
            return
        now_ms, due_ms = self.context.services.wall_clock_ms(), self._chain.due_ms()
        if due_ms is not None and now_ms >= due_ms and self._loop.has_started and not self._loop.has_ended:
            self._chain.process_time(now_ms)

    def _arm_timers(self) -> None:
        """Have the timers of exchanges and operators run when they are due."""
        if self.is_over or not self._has_times:
            return
        mailbox = self.context.mailbox
        due_ms = None if self._gate is None else self._gate.due_ms()
        for output in self._outputs.values():
            output_ms = output.due_ms()
            if output_ms is not None and (due_ms is None or output_ms < due_ms):
                due_ms = output_ms
        if due_ms is not None and (self._timer_ms is None or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            mailbox.run_after(max(0, due_ms - self.context.now_ms()), Mail(self._on_exchange_time))
        chain, wanted_ms = self._chain, None
        if chain is not None and self._loop.reads and not chain.waits:
            wanted_ms = chain.due_ms()  # while rows wait, an operator may not have been given the time yet
        if wanted_ms is not None and (self._clock_timer_ms is None or wanted_ms < self._clock_timer_ms):
            self._clock_timer_ms = wanted_ms
            mailbox.run_after(max(0, wanted_ms - self.context.services.wall_clock_ms()), Mail(self._on_clock_time))

    # Figures and ends.

    @property
    def under_way(self) -> UnderWay | None:
        """The call that an operator or the sink is in. Any thread."""
        return None if self._chain is None else self._chain.under_way

    @property
    def reports(self) -> bool:
        """Whether there are figures to report: not while nothing is read, as after the last checkpoint. Any thread."""
        return self._loop.has_started or self._restore_progress() is not None

    def progress(self, splits: Mapping[str, tuple[SplitState, ...]] | None = None) -> msg.SubtaskProgress:
        """Return the figures since the deployment, and now and then where the splits are.

        ``splits`` is where a snapshot found them, if nothing newer was reported since.
        """
        if self._opening is not None:
            stage, restore = self.context.deployed.stage, self._restore_progress()
            return msg.SubtaskProgress(stage=stage, execution=self.number, restore=restore)
        assert self._chain is not None
        figures = self._chain.figures()
        return msg.SubtaskProgress(
            stage=self.context.deployed.stage,
            execution=self.number,
            rows_in=figures.rows_in,
            rows_out=figures.rows_out,
            busy_ms=figures.busy_ms,
            watermark_ms=figures.watermark_ms,
            skipped=figures.skipped,
            late=figures.late,
            unpublished_ms=figures.unpublished_ms,
            recovery=None if self._gate is None else self._gate.recovery_progress(),
            restore=self._restore_progress(),
            time=self.time.spent(self.context.services.work_ms()),
            rows_received=figures.rows_received,
            rows_sent=figures.rows_sent,
            buffer_pool_use=max((round(each.use, 3) for each in self._outputs.values()), default=None),
            helper=self._helper_use.progress(),
            **self._sources.report(self.context.now_ms(), splits),
        )

    def _restore_progress(self) -> msg.RestoreProgress | None:
        return None if self._restored is None else self._restored.progress()

    def facts_of(self, error: BaseException) -> dict[str, Any]:
        """Return where this is, for an error's report: stage, subtask, and what was being read where known."""
        facts: dict[str, Any] = {"stage": self.context.deployed.stage, "subtask": self.context.place.slot}
        known = error.facts if isinstance(error, HeadgateError) else {}
        source = known.get("source") if known.get("source") in self.inputs else self.called
        if source is not None:
            facts["source"] = source
            facts["position"] = self._position_of(source, known.get("split", ""))
        return {name: value for name, value in facts.items() if value is not None}

    def _position_of(self, source: str, split: str) -> str | None:
        """Return the position of a split after the batch that its rows are in, as text."""
        position = self.inputs[source].position_of(split) if source in self.inputs else None
        return None if position is None else position.decode(errors="replace")

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch blocks (monotonic seconds); None: none does. Any thread."""
        readers = [each.reader for each in list(self.inputs.values())]
        since = [reader.stuck_since() for reader in readers if isinstance(reader, SourceReaderBase)]
        return min((each for each in since if each is not None), default=None)

    def finish(self) -> Future[None] | None:
        """Return a future that is done when the sinks have published what they owe; None: they owe nothing."""
        self._finishing = True  # other slots may end before that
        return None if self._chain is None else self._chain.finish()

    def close(self) -> None:
        """Close everything, whatever raises."""
        self.is_over = True
        closings: list[Callable[[], None]] = [each.reader.close for each in self.inputs.values()]
        if self._gate is not None:
            closings.append(self._gate.close)
        closings += [output.close for output in self._outputs.values()]
        if self._chain is not None:
            closings.append(self._chain.close)
        closings += [partial(shutil.rmtree, each, ignore_errors=True) for each in self.context.spill_folders]
        for close in closings:
            try:
                close()
            except Exception as error:
                _log.warning("closing a part of subtask %d failed: %s", self.context.place.slot, describe(error))
