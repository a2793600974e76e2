"""Runs one subtask of a stage on its mailbox thread: readers, operators and sink, as the subtask machine orders.

Never: let a letter take much longer than one slice of rows, or touch a reader, an operator or the sink on
another thread.

    loop: letters -> a slice that waits -> a snapshot that is due -> poll a reader, or the gate -> wait for a letter

A batch that a reader emitted is cut into slices, which wait in the chain; the reader's position is behind them already,
so a snapshot is taken when none waits. Letters are read between two slices; what they order behind a barrier waits with
its snapshot, because it does not belong to the checkpoint: a split that is in both, the enumerator's state and the
reader's, would be read twice.

A subtask behind exchanges has a gate instead of readers (`headgate.spark.continuous.input_exchanges`): it holds what is
left of a buffer, so that a snapshot waits for one slice at most.

What alignment decides while a reader is called is carried out when it has returned. A source that is paused is not
polled; its letters, timers, snapshots and end go on.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-217.
"""

from __future__ import annotations

import logging
import os
import pickle
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any, ParamSpec, TypeVar, assert_never

import msgspec
import pyarrow as pa

from headgate.checkpoint.channel_bytes import read_channel
from headgate.checkpoint.state_uploader import StateUploader
from headgate.errors import HeadgateError, InternalError, TransportError, UnsupportedOperationError
from headgate.operators.chain import LETTER_MS, StageChain
from headgate.operators.exchange import Exchange, Partitioner
from headgate.operators.operator import OperatorContext, RestoredChunk
from headgate.operators.partitioners import partitioner_of
from headgate.operators.query_options import checkpoints_during_recovery
from headgate.operators.stage_graph import QueryDefinition, SourceDefinition
from headgate.protocol import messages as msg
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    FileState,
    InlineState,
    KeyedState,
    OperatorState,
    RecoveredChannel,
    SplitState,
    StateHandle,
    SubtaskState,
)
from headgate.readers import AskedInVain, SourceReaderBase
from headgate.source import Boundedness, InputStatus, SourceEvent, SourceReader, SourceReaderContext
from headgate.spark.continuous.error_reports import report_of
from headgate.spark.continuous.exchange import OutputExchange
from headgate.spark.continuous.input_exchanges import InputExchanges
from headgate.spark.continuous.snapshot_parts import SnapshotParts, StoredRows, gathered, store_channels
from headgate.task import subtask as machine
from headgate.task.mailbox import Letter, Mailbox, monotonic_ms
from headgate.task.outputs import StreamingOutput
from headgate.task.recovery_thread import RecoveredInput
from headgate.transport.data_plane import DataPlane

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

PROGRESS_PERIOD_MS = 250
"""How often a subtask tells its figures."""
POSITIONS_PERIOD_MS = 1000
"""How often it looks where its splits are, which takes its thread's time, for these figures."""
ALLOW_UNALIGNED_SPLITS = "pipeline.watermark-alignment.allow-unaligned-source-splits"
_BROKEN_PATIENCE_MS = 5000
"""How long a subtask whose link broke waits to be cancelled before it fails: it is seldom the cause."""
_SPLITS, _OPERATORS, _KEYED, _GATE = "/splits", "/operators", "/keyed", "/gate"
"""Parts of a snapshot; the others are called after their exchange."""
MOST_POSITIONS = 1000
"""A subtask with more splits of a source tells only how many they are."""


class SlotPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a subtask runs: its names and numbers, for contexts and errors."""

    run: int
    slot: int
    attempt: int
    host: str
    query_id: str
    time_zone: str
    checkpoint_location: str


class SlotServices(msgspec.Struct, frozen=True, kw_only=True):
    """What the subtasks of a slot share.

    Parameters
    ----------
    plane
        Its data plane; None for a query without an exchange.
    uploader
        Stores keyed and channel state; None for a query without an exchange.
    spill_folders
        A folder on each local disk: operators use the first, and channel state the first that has room.
    """

    plane: DataPlane | None = None
    uploader: StateUploader | None = None
    spill_folders: tuple[str, ...] = ()


class SubtaskRunner:
    """A subtask's thread. It lives as long as its slot, through all executions of the subtask.

    Parameters
    ----------
    definition
        What the query does.
    stage
        The stage's number.
    place
        Where this is.
    post
        Takes letters to the coordinator; called on the subtask's thread.
    on_ended
        Called with an execution that is closed.
    read_state
        Reads state that lies in a file of the checkpoint.
    services
        The slot's.
    now_ms
        Reads the clock, in milliseconds.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        stage: int,
        place: SlotPlace,
        post: Callable[[msg.FromSlot], None],
        on_ended: Callable[[int], None],
        read_state: Callable[[FileState], bytes],
        services: SlotServices | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._definition = definition
        self._stage = stage
        self._place = place
        self._post = post
        self._on_ended = on_ended
        self._read_state = read_state
        self._services = services or SlotServices()
        self._deployed = msg.Deploy(stage=stage, execution=0, parallelism=1)  # the last one
        self._now_ms = now_ms
        self._machine = machine.SubtaskMachine(
            msg.SubtaskId(stage, place.slot),
            sources={each.uid: each.reassigns_on_recovery for each in definition.graph.stages[stage].sources},
            host=place.host,
        )
        self._mailbox = Mailbox(now_ms)
        self._execution: _Execution | None = None
        self._events: deque[machine.Event] = deque()
        self._handling = False
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"headgate-subtask-{stage}-{place.slot}", daemon=True)
        self._thread.start()

    def deliver(self, letter: Any) -> None:
        """Hand over a letter of the coordinator; called by any thread."""
        self._mailbox.post(Letter(lambda: self._on_letter(letter)))

    def finish(self, timeout_s: float) -> bool:
        """Let the sink publish what the last checkpoint left to it; return whether it did so in time. Another thread.

        Raises
        ------
        HeadgateError
            It failed.
        """
        finished: Future[None] = Future()
        self._mailbox.post(Letter(lambda: self._begin_finish(finished), finished.cancel))
        try:
            finished.result(timeout_s)
        except (TimeoutError, CancelledError):
            return False
        return True

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread, closing what runs; wait for that at most this long, in seconds. Called by another thread."""
        self._mailbox.post(Letter(self._begin_close))
        self._thread.join(timeout_s)

    def busy_since(self) -> float | None:
        """Return since when the current letter, slice or poll runs (monotonic seconds); None: it waits. Any thread."""
        return self._busy_since

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch of a reader blocks (monotonic seconds); None: none does. Any thread."""
        execution = self._execution
        return None if execution is None else execution.fetching_since()

    @property
    def number(self) -> int:
        """The execution that was deployed last. Any thread."""
        return self._machine.execution

    # From here on: on the subtask's thread.

    def _run(self) -> None:
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Letter(self._on_progress_due))
        while not self._closing:
            self._busy_since = time.monotonic()
            busy = self._guarded(self._turn)
            self._busy_since = None
            if not busy and not self._closing:
                self._mailbox.wait()
        self._close_execution()
        self._mailbox.close()

    def _turn(self) -> bool:
        """Run waiting letters, then one step of the execution; return whether there may be more at once."""
        self._mailbox.run_letters()
        execution = self._execution
        return execution is not None and not self._closing and execution.step(self._now_ms())

    def _guarded(self, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except BaseException as error:  # sys.exit() of a connector's, too, would end the thread without a word
            self._on_error(error)
            return True

    def _on_error(self, error: BaseException) -> None:
        """Fail the execution, whatever raised. What is still to be handled came of it, and makes no sense without."""
        facts = {} if self._execution is None else self._execution.facts_of(error)
        _log.warning("subtask %d.%d failed: %s", self._stage, self._place.slot, error)
        self._events.clear()
        self.handle(machine.SomethingFailed(report_of(error, **facts)))

    def _begin_finish(self, finished: Future[None]) -> None:
        try:
            under_way = None if self._execution is None else self._execution.finish()
        except Exception as error:
            finished.set_exception(error)
            return
        if under_way is None:
            finished.set_result(None)
        else:
            under_way.add_done_callback(lambda future: _hand_over(future, finished))

    def _begin_close(self) -> None:
        self._closing = True

    def _on_letter(self, letter: Any) -> None:
        execution = self._execution
        if execution is None or letter.execution != execution.number:
            execution = None
        match letter:
            case msg.SlotsLocated():
                if execution is not None:
                    execution.connect(letter)
                return
            case msg.Deploy():
                self._deployed = letter
            case msg.TriggerCheckpoint():
                if execution is not None:
                    execution.barriers[letter.checkpoint_id] = _barrier_of(letter)
            case msg.CheckpointAborted():
                if execution is not None:
                    execution.give_up(letter.checkpoint_id)
        self.handle(machine.LetterCame(letter))

    def handle(self, event: machine.Event) -> None:
        """Give an event to the machine and carry out what it decides, behind what is being carried out."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                try:
                    for action in self._machine.handle(self._events.popleft(), self._now_ms()):
                        self._carry_out(action)
                except BaseException as error:
                    self._on_error(error)
        finally:
            self._handling = False

    def _carry_out(self, action: machine.Action) -> None:
        match action:
            case machine.OpenOperators(parallelism=parallelism, operators=operators):
                self._open(parallelism, operators)
            case machine.CloseAll():
                self._close_execution()
            case machine.Post(letter=letter):
                self._post(letter)
            case _:
                if self._execution is None:
                    raise InternalError(f"{action!r} was ordered of subtask {self._place.slot}, which is not open.")
                self._execution.order(action)

    def _open(self, parallelism: int, operators: Mapping[str, OperatorState]) -> None:
        self._close_execution()
        execution = self._execution = _Execution(self, parallelism)
        items = {uid: [self.bytes_of(item) for item in state.items] for uid, state in operators.items()}
        execution.opening = execution.open_in_steps(items)
        execution.go_on_opening()

    def bytes_of(self, handle: StateHandle) -> bytes:
        """Return the bytes of stored state. Any thread."""
        return handle.data if isinstance(handle, InlineState) else self._read_state(handle)

    def _close_execution(self) -> None:
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.close()
            self._on_ended(execution.number)

    def _on_progress_due(self) -> None:
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Letter(self._on_progress_due))
        execution = self._execution
        if execution is not None and (execution.reading or execution.recovers_first):
            self._post(execution.progress())


_Order = (
    machine.AddSplits | machine.TellNoMoreSplits | machine.HandEvent | machine.SetUnassigned | machine.Announce
    | machine.StartReading | machine.TakeSnapshot | machine.ResumeReading | machine.NotifyOperators
)  # fmt: skip
"""What the machine wants of the readers and of the chain."""


class _Execution:
    """What one deployment holds: readers with their outputs, the chain, the sink's writer."""

    def __init__(self, runner: SubtaskRunner, parallelism: int) -> None:
        self._runner = runner
        self.number = runner.number
        self.reading = False
        self.called: str | None = None
        """The source whose reader is being called, or raised."""
        self._parallelism = parallelism
        self._orders: deque[_Order] = deque()  # none, or first a snapshot
        self._ended = False
        self._readable = True
        self.opening: Iterator[None] | None = None
        """What is left of opening it; None: nothing."""
        self._located: msg.SlotsLocated | None = None  # came before the gate was there
        self.recovers_first = False
        """Whether it is running only once everything recovered is processed (``during-recovery`` off)."""
        self.barriers: dict[int, Barrier] = {}  # of the snapshots that are ordered
        self._given_up: set[int] = set()  # checkpoints whose snapshots are ordered and not taken yet
        self._prepared = False  # for the snapshot that is due
        self._parts: dict[int, SnapshotParts] = {}
        self._outputs: dict[str, OutputExchange] = {}
        self._gate: InputExchanges | None = None
        self._suspended = runner._deployed.suspended
        self._finishing = False
        self._inputs_recovered = True
        self._timer_ms: int | None = None  # when the timer of exchanges is due
        self._clock_timer_ms: int | None = None  # when that of operators is, by the wall clock
        self._stage = runner._definition.graph.stages[runner._stage]
        services = runner._services
        own_folder = f"{runner._stage}-{runner._place.slot}-{self.number}"
        self._spill_folders = [os.path.join(each, own_folder) for each in services.spill_folders]
        self._room: Future[None] | None = None
        self._turn = 0
        self._looked_ms: int | None = None  # when positions were told last
        self.inputs: dict[str, _Input] = {}
        self._chain: StageChain | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is closed, or being closed."""
        return self._runner._execution is not self

    def go_on_opening(self) -> None:
        """Open some more of it, and be running when all is open. Letters are handled in between, however much it is."""
        assert self.opening is not None
        began_s = time.monotonic()
        for _ in self.opening:
            if (time.monotonic() - began_s) * 1000 >= LETTER_MS:
                return
        self.opening = None
        if not self.recovers_first:
            self._runner.handle(machine.OperatorsOpened())

    def open_in_steps(self, items: Mapping[str, list[bytes]]) -> Iterator[None]:
        """Make readers, operators and sink, with the list state of a checkpoint."""
        runner, definition = self._runner, self._runner._definition
        context = OperatorContext(
            uid="",
            subtask=runner._place.slot,
            parallelism=self._parallelism,
            run=runner._place.run,
            attempt=runner._place.attempt,
            execution=self.number,
            query_id=runner._place.query_id,
            options={"checkpointLocation": runner._place.checkpoint_location},
            max_parallelism=definition.options["max-parallelism"],
            time_zone=runner._place.time_zone,
            spill_folder=next(iter(self._spill_folders), ""),
            memory_bytes=definition.options["state.memory"],
        )
        self._open_outputs()
        restore = runner._deployed.restore or SubtaskState()
        keyed = {uid: self._restored(uid, state) for uid, state in restore.keyed.items()}
        self._chain = chain = definition.make_chain(
            context, items, stage=runner._stage, keyed=keyed, outputs=self._outputs
        )
        yield from chain.open_in_steps()
        chain.position_of = self._position_of
        for source in self._stage.sources:
            self.inputs[source.uid] = _Input(self, source.uid, source, chain)
            self.inputs[source.uid].start()
        self._open_gate()
        if self._located is not None:
            self.connect(self._located)

    # Exchanges.

    def _partitioner(self, exchange: Exchange) -> Partitioner:
        return partitioner_of(
            exchange,
            producer=self._runner._place.slot,
            parallelism=self._parallelism,
            max_parallelism=self._runner._definition.options["max-parallelism"],
        )

    def _neighbours(self, exchange: Exchange) -> tuple[int, ...]:
        """Return the subtasks at the other ends of an exchange."""
        return (self._runner._place.slot,) if exchange.exchange_kind == "forward" else tuple(range(self._parallelism))

    def _open_outputs(self) -> None:
        runner = self._runner
        plane = runner._services.plane
        for uid, exchange in self._stage.outputs.items():
            assert plane is not None, "a slot of a query with an exchange has a data plane"
            self._outputs[uid] = OutputExchange(
                uid,
                exchange,
                runner._place.slot,
                self._neighbours(exchange),
                runner._deployed.generation,
                self._partitioner(exchange),
                runner._definition.options["exchange.buffer-timeout"],
                plane,
                runner._mailbox,
                runner._now_ms,
                on_stored=partial(self._on_output_stored, uid),
                on_broken=self.on_broken,
            )

    def _open_gate(self) -> None:
        """Make the gate, and hand over what is recovered: that of this side, and that of the producers' by them."""
        runner, options = self._runner, self._runner._definition.options
        deployed = runner._deployed
        if self._suspended:
            return
        on_downstream = bool(options["execution.checkpointing.unaligned.recover-output-on-downstream.enabled"])
        from_producers = not on_downstream and deployed.checkpoint_id > 0
        waits = not checkpoints_during_recovery(options) and deployed.checkpoint_id > 0
        if self._stage.inputs:
            plane = runner._services.plane
            assert plane is not None, "a slot of a query with an exchange has a data plane"
            partitioners = {uid: self._partitioner(exchange) for uid, exchange in self._stage.inputs.items()}
            mine = [each for each in deployed.recovered if each.state.exchange in self._stage.inputs]
            graph = runner._definition.graph
            self._gate = InputExchanges(
                runner._place.slot,
                {uid: self._neighbours(exchange) for uid, exchange in self._stage.inputs.items()},
                self._stage.inputs,
                partitioners,
                deployed.generation,
                plane,
                runner._mailbox,
                runner._now_ms,
                self,
                [self._recovered_input(each, partitioners[each.state.exchange]) for each in mine],
                [os.path.join(each, "channels") for each in self._spill_folders],
                producers_recover=from_producers,
                relocated=deployed.relocated,
                idle_together=frozenset(uid for uid in self._stage.inputs if graph.idles_together(graph.stage_of(uid))),
            )
            self._inputs_recovered = not (mine or from_producers)
            self.recovers_first = waits and not self._inputs_recovered
            self._gate.start()
        if from_producers and self._outputs:
            self._emit_recovered([each for each in deployed.recovered if each.state.exchange in self._outputs])
            self.recovers_first = self.recovers_first or waits

    def _recovered_input(self, recovered: RecoveredChannel, partitioner: Partitioner) -> RecoveredInput:
        consumer = self._runner._place.slot
        return RecoveredInput(
            ChannelId(recovered.state.exchange, recovered.channel, consumer),
            lambda: self._read_channel(recovered.state),
            (lambda batch: partitioner.own(batch, consumer)) if recovered.filtered else None,
            recovered.state.rows,
        )

    def _read_channel(self, state: ChannelState) -> Iterator[pa.RecordBatch]:
        channel = ChannelId(state.exchange, state.producer, state.consumer)
        uploader = self._runner._services.uploader
        assert uploader is not None, "a slot of a query with an exchange has an uploader"
        return read_channel(uploader.open_channel(state.handle), channel, output=state.output)

    def _emit_recovered(self, recovered: Sequence[RecoveredChannel]) -> None:
        for each in recovered:
            for batch in self._read_channel(each.state):
                buffer = Buffer(batch, batch.num_rows, batch.nbytes, unfiltered=each.filtered)
                self._outputs[each.state.exchange].emit_recovered(each.channel, buffer)
        for output in self._outputs.values():
            output.end_recovered()

    def _restored(self, uid: str, state: KeyedState) -> list[RestoredChunk]:
        """Return the chunks of an operator's keyed state; those that are its own as they are may be named again."""
        runner = self._runner
        uploader = runner._services.uploader
        groups = OperatorContext(
            uid=uid,
            subtask=runner._place.slot,
            parallelism=self._parallelism,
            max_parallelism=runner._definition.options["max-parallelism"],
        ).key_groups
        assert uploader is not None, "a slot of a query with keyed state has an uploader"

        def restored(chunk: ChunkState) -> RestoredChunk:
            own = chunk.first_key_group >= groups.first and chunk.last_key_group <= groups.last
            whole = own and uploader.adopt(uid, chunk)
            return RestoredChunk(chunk.chunk_id, whole, lambda: runner.bytes_of(chunk.handle))

        return [restored(chunk) for chunk in state.chunks]

    def connect(self, located: msg.SlotsLocated) -> None:
        """Connect the channels that this subtask consumes."""
        self._located = located
        if self._gate is not None and located.generation == self._runner._deployed.generation:
            self._gate.connect(located.addresses)

    def give_up(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will not complete."""
        self._parts.pop(checkpoint_id, None)
        if self.barriers.pop(checkpoint_id, None) is not None:
            self._given_up.add(checkpoint_id)
        if self._runner._services.uploader is not None:
            self._runner._services.uploader.give_up(checkpoint_id)
        if self._gate is not None:
            self._gate.give_up(checkpoint_id)
        for output in self._outputs.values():
            output.give_up(checkpoint_id)

    # What the gate and the links tell.

    def entry_rows(self, exchange: str) -> int:
        assert self._chain is not None
        return self._chain.entry_rows(exchange)

    def on_rows(self, exchange: str, batch: pa.RecordBatch) -> None:
        assert self._chain is not None
        self._chain.take_rows(exchange, batch, "")

    def on_watermark(self, exchange: str, timestamp_ms: int) -> None:
        assert self._chain is not None
        self._chain.input(exchange).on_watermark(timestamp_ms)

    def on_idle(self, exchange: str) -> None:
        assert self._chain is not None
        self._chain.input(exchange).on_idle()

    def on_active(self, exchange: str) -> None:
        assert self._chain is not None
        self._chain.input(exchange).on_active()

    def on_inputs_ended(self) -> None:
        self._end_input()
        self._runner.handle(machine.AllInputEnded())

    def on_barrier(self, barrier: Barrier) -> None:
        self.barriers[barrier.checkpoint_id] = barrier
        trigger = msg.TriggerCheckpoint(
            stage=self._runner._stage,
            execution=self.number,
            checkpoint_id=barrier.checkpoint_id,
            kind=barrier.kind,
            location=barrier.location,
            unaligned=barrier.unaligned,
            alignment_timeout_ms=barrier.alignment_timeout_ms,
        )
        self._runner.handle(machine.LetterCame(trigger))

    def on_recovered(self) -> None:
        self._inputs_recovered = True
        self._runner._post(msg.SubtaskRecovered(stage=self._runner._stage, execution=self.number))

    def on_input_stored(
        self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[StoredRows]], relocated: frozenset[str]
    ) -> None:
        self._store(_GATE, checkpoint_id, self._stage.inputs, channels, relocated, output=False)

    def _on_output_stored(self, uid: str, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[Buffer]]) -> None:
        reads = {
            channel: [StoredRows(buffer.num_rows, partial(_rows_of, buffer)) for buffer in held]
            for channel, held in channels.items()
        }
        self._store(uid, checkpoint_id, self._stage.outputs, reads, frozenset(), output=True)

    def _store(
        self,
        part: str,
        checkpoint_id: int,
        exchanges: Mapping[str, Exchange],
        channels: Mapping[ChannelId, Sequence[StoredRows]],
        relocated: frozenset[str],
        *,
        output: bool,
    ) -> None:
        uploader = self._runner._services.uploader
        assert uploader is not None
        schemas = {uid: exchange.schema for uid, exchange in exchanges.items()}
        prefix = f"{self._runner._stage}-{self.number}"
        stored = store_channels(uploader, checkpoint_id, prefix, schemas, channels, relocated, output=output)
        self._parts_of(checkpoint_id).add(part, stored)

    def on_broken(self, error: TransportError) -> None:
        """Fail, unless the coordinator has found out why within a while: the other side may have failed, or ended."""
        if not (self._ended or self._suspended):
            self._runner._mailbox.run_after(_BROKEN_PATIENCE_MS, Letter(lambda: self._fail_broken(error)))

    def _fail_broken(self, error: TransportError) -> None:
        if not (self.is_over or self._ended or self._finishing):
            raise error

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
        now_ms, due_ms = _wall_clock_ms(), self._chain.due_ms()
        if due_ms is not None and now_ms >= due_ms and (self.reading or self.recovers_first) and not self._ended:
            self._chain.process_time(now_ms)

    def _arm_timers(self) -> None:
        """Have the timers of exchanges and operators run when they are due."""
        if self.is_over:
            return
        mailbox, now_ms = self._runner._mailbox, self._runner._now_ms()
        parts = (*self._outputs.values(), *(() if self._gate is None else (self._gate,)))
        due_ms = min((due for each in parts if (due := each.due_ms()) is not None), default=None)
        if due_ms is not None and (self._timer_ms is None or due_ms < self._timer_ms):
            self._timer_ms = due_ms
            mailbox.run_after(max(0, due_ms - now_ms), Letter(self._on_exchange_time))
        chain, wanted_ms = self._chain, None
        if chain is not None and self.reading and not (self._ended or chain.waits):
            wanted_ms = chain.due_ms()  # while something waits, an operator may not have been told the time yet
        if wanted_ms is not None and (self._clock_timer_ms is None or wanted_ms < self._clock_timer_ms):
            self._clock_timer_ms = wanted_ms
            mailbox.run_after(max(0, wanted_ms - _wall_clock_ms()), Letter(self._on_clock_time))

    def _end_recovery(self) -> bool:
        """Be running once what was recovered on this side is sent, too; return whether it is."""
        if not all(output.is_empty for output in self._outputs.values()):
            return False
        self.recovers_first = False
        self._runner.handle(machine.OperatorsOpened())
        return True

    # Its turn.

    def order(self, order: _Order) -> None:
        """Carry an order out: at once, or behind the snapshot that was ordered before and waits for slices."""
        self._orders.append(order)
        self._carry_out_orders()

    def step(self, now_ms: int) -> bool:
        """Do the next piece of work; return whether there was one."""
        try:
            return self._step(now_ms)
        finally:
            self._arm_timers()

    def _step(self, now_ms: int) -> bool:
        chain, overdraft = self._chain, bool(self._orders)
        if self.opening is not None:
            self.go_on_opening()
            return True
        if chain is None:
            return False
        if self._has_room(overdraft):
            self._set_readable(self.reading and not self._ended)
        else:
            # Of those behind nobody takes rows any more, perhaps, and the snapshot waits for some.
            overdraft = self._gate is not None and self._gate.waits_for_aligned and self._has_room(True)
            if not overdraft:
                return False
        if chain.process_some(overdraft=overdraft):
            return True
        for each in self.inputs.values():
            each.align()  # what event times behind an operator gave rise to
        if self._orders:
            self._begin_snapshot()
            return True
        if self.recovers_first and self._inputs_recovered:
            return self._end_recovery()
        if not (self.reading or self.recovers_first) or self._ended:
            return False
        return self._poll(now_ms) if self._gate is None else self._gate.poll(overdraft=overdraft)

    def _carry_out_orders(self) -> None:
        while self._orders and not isinstance(self._orders[0], machine.TakeSnapshot):
            match self._orders.popleft():
                case machine.AddSplits(source=uid, splits=splits):
                    self.inputs[uid].add_splits(splits)
                case machine.TellNoMoreSplits(source=uid):
                    self.inputs[uid].notify_no_more_splits()
                case machine.HandEvent(source=uid, payload=payload):
                    self.inputs[uid].handle_event(payload)
                case machine.SetUnassigned(source=uid, event_time_ms=event_time_ms):
                    self.inputs[uid].set_unassigned(event_time_ms)
                case machine.Announce(source=uid, max_watermark_ms=max_watermark_ms, others_ms=others_ms):
                    self.inputs[uid].announce(max_watermark_ms, others_ms)
                case machine.StartReading() | machine.ResumeReading():
                    self.reading = True
                case machine.NotifyOperators(checkpoint_id=checkpoint_id):
                    self._notify_checkpoint_complete(checkpoint_id)
                case machine.TakeSnapshot():
                    raise InternalError("A snapshot is taken by `step`, between two batches.")
                case order:
                    assert_never(order)

    def _poll(self, now_ms: int) -> bool:
        inputs = list(self.inputs.values())
        self._turn += 1
        for offset in range(len(inputs)):
            each = inputs[(self._turn + offset) % len(inputs)]
            if each.status is InputStatus.MORE_AVAILABLE and not each.paused:
                each.poll(now_ms)
                return True
        if all(each.status is InputStatus.END_OF_INPUT for each in inputs):
            self._end_input()
            self._runner.handle(machine.AllInputEnded())
            return True
        return False

    def _end_input(self) -> None:
        assert self._chain is not None
        self._ended = True
        for each in self.inputs.values():
            each.output.end_input()
        self._chain.end_input()

    def _has_room(self, snapshot_due: bool) -> bool:
        """Return whether rows can be processed; those that a snapshot waits for need no room of an exchange's."""
        assert self._chain is not None
        room = self._chain.sinks_ready() if snapshot_due else self._chain.ready()
        if room is None or room.done():
            return True
        self._set_readable(False)
        if room is not self._room:
            self._room = room
            room.add_done_callback(lambda _: self._runner._mailbox.post(Letter(lambda: None)))
        return False

    def _set_readable(self, readable: bool) -> None:
        """Let the idleness clocks of splits run unless rows are not wanted, because of back pressure above all."""
        if readable != self._readable:
            self._readable = readable
            now_ms = self._runner._now_ms()
            for each in self.inputs.values():
                if not each.output.ended:
                    (each.output.unblock if readable else each.output.block)(now_ms)

    def _begin_snapshot(self) -> None:
        """Take the snapshot that is due, now that nothing waits, and do what was ordered behind it."""
        order = self._orders[0]
        assert self._chain is not None and isinstance(order, machine.TakeSnapshot)
        if order.drain and not self._ended:
            self._end_input()
            return
        if not self._prepared:
            self._prepared = True
            self._chain.prepare_snapshot()
            return
        self._prepared = False
        self._orders.popleft()
        checkpoint_id = order.checkpoint_id
        if checkpoint_id in self._given_up:
            self._given_up.discard(checkpoint_id)
            self._carry_out_orders()
            return
        splits = {uid: each.snapshot(checkpoint_id) for uid, each in self.inputs.items()}
        looked_ms = self._looked_ms
        if order.suspend:
            self.reading = False
        parts = self._parts_of(checkpoint_id, splits, looked_ms)
        parts.add(_OPERATORS, self._chain.snapshot(checkpoint_id, final=self._ended))
        keyed = self._chain.snapshot_keyed(checkpoint_id)
        uploader = self._runner._services.uploader
        if keyed:
            assert uploader is not None
            uids, stored = list(keyed), [uploader.store_keyed(uid, chunks) for uid, chunks in keyed.items()]
            parts.add(_KEYED, _mapped(gathered(stored), lambda states: dict(zip(uids, states))))
        barrier = self.barriers.pop(checkpoint_id, None)
        for output in self._outputs.values():
            assert barrier is not None, f"no barrier of checkpoint {checkpoint_id} came"
            output.barrier(barrier)
        self._carry_out_orders()

    def _parts_of(
        self,
        checkpoint_id: int,
        splits: dict[str, tuple[SplitState, ...]] | None = None,
        looked_ms: int | None = None,
    ) -> SnapshotParts:
        """Return the parts of a checkpoint; with ``splits`` when the snapshot is taken."""
        assert self._chain is not None
        parts = self._parts.get(checkpoint_id)
        if parts is None:
            names = {_SPLITS, _OPERATORS, *self._outputs}
            if self._gate is not None:
                names.add(_GATE)
            if self._chain.has_keyed_state:
                names.add(_KEYED)

            def done(results: dict[str, Any] | None, error: BaseException | None) -> None:
                self._runner._mailbox.post(Letter(lambda: self._on_safe(checkpoint_id, results, error)))

            parts = self._parts[checkpoint_id] = SnapshotParts(names, done)
        if splits is not None:
            read: Future[_Splits] = Future()
            read.set_result(_Splits(splits, looked_ms))
            parts.add(_SPLITS, read)
        return parts

    def _on_safe(self, checkpoint_id: int, results: dict[str, Any] | None, error: BaseException | None) -> None:
        if self.is_over or self._parts.pop(checkpoint_id, None) is None:
            return
        assert self._chain is not None
        if results is not None:
            splits: _Splits = results[_SPLITS]
            channels = [state for uid in (_GATE, *self._outputs) for state in results.get(uid, ())]
            self._runner._post(self.progress(splits.read if self._looked_ms == splits.looked_ms else None))
            self._runner.handle(
                machine.SnapshotMade(
                    checkpoint_id,
                    splits.read,
                    results[_OPERATORS],
                    results.get(_KEYED, {}),
                    tuple(channels),
                )
            )
            return
        self._chain.ready()  # raises where the sink is broken for good: then the subtask fails, with the sink's error
        _log.warning("subtask %d declines checkpoint %d: %s", self._runner._place.slot, checkpoint_id, error)
        self._runner.handle(machine.SnapshotFailed(checkpoint_id, f"{type(error).__name__}: {error}"))

    def _notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        assert self._chain is not None
        for each in self.inputs.values():
            each.notify_checkpoint_complete(checkpoint_id)
        self._chain.notify_checkpoint_complete(checkpoint_id)

    def finish(self) -> Future[None] | None:
        """Return a future that is done when the sinks have published what they owe; None: they owe nothing."""
        self._finishing = True  # other slots may end before that
        return None if self._chain is None else self._chain.finish()

    def progress(self, splits: Mapping[str, tuple[SplitState, ...]] | None = None) -> msg.SubtaskProgress:
        """Return the figures since the deployment, and now and then where the splits are.

        ``splits`` is where a snapshot found them, if nothing newer was told since.
        """
        assert self._chain is not None
        figures = self._chain.figures()
        now_ms = self._runner._now_ms()
        told: dict[str, tuple[int, dict[str, bytes]]] = {}
        event_times: dict[str, dict[str, msg.SplitEventTime]] = {}
        if splits is not None:
            told = {uid: _few(of_source) for uid, of_source in splits.items()}
        elif self._looked_ms is None or now_ms - self._looked_ms >= POSITIONS_PERIOD_MS:
            told = {uid: each.positions() for uid, each in self.inputs.items()}
        if told:
            self._looked_ms = now_ms
            of_sources = {uid: each.output.event_times() for uid, each in self.inputs.items()}
            event_times = {uid: splits for uid, splits in of_sources.items() if 0 < len(splits) <= MOST_POSITIONS}
        return msg.SubtaskProgress(
            stage=self._runner._stage,
            execution=self.number,
            rows_in=figures.rows_in,
            rows_out=figures.rows_out,
            splits={uid: count for uid, (count, _) in told.items()},
            positions={uid: positions for uid, (_, positions) in told.items()},
            busy_ms=figures.busy_ms,
            watermark_ms=figures.watermark_ms,
            event_times=event_times,
            skipped=figures.skipped,
            late=figures.late,
            unpublished_ms=figures.unpublished_ms,
            recovery=None if self._gate is None else self._gate.recovery_progress(),
            troubles={uid: troubles for uid, each in self.inputs.items() if (troubles := each.troubles())},
        )

    def facts_of(self, error: BaseException) -> dict[str, Any]:
        """Return where this is, for an error's report: stage, subtask, and what was being read where known."""
        facts: dict[str, Any] = {"stage": self._runner._stage, "subtask": self._runner._place.slot}
        known = error.facts if isinstance(error, HeadgateError) else {}
        source = known.get("source") if known.get("source") in self.inputs else self.called
        if source is not None:
            facts["source"] = source
            facts["position"] = self._position_of(source, known.get("split", ""))
        return {name: value for name, value in facts.items() if value is not None}

    def _position_of(self, source: str, split: str) -> str | None:
        """Return the position of a split behind the batch that its rows stand in, as text."""
        position = self.inputs[source].position_of(split) if source in self.inputs else None
        return None if position is None else position.decode(errors="replace")

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch blocks (monotonic seconds)."""
        readers = [each.reader for each in list(self.inputs.values())]
        since = [reader.stuck_since() for reader in readers if isinstance(reader, SourceReaderBase)]
        return min((each for each in since if each is not None), default=None)

    def close(self) -> None:
        """Close everything, whatever raises."""
        self.reading = False
        closings: list[Callable[[], None]] = [each.reader.close for each in self.inputs.values()]
        if self._gate is not None:
            closings.append(self._gate.close)
        closings += [output.close for output in self._outputs.values()]
        if self._chain is not None:
            closings.append(self._chain.close)
        closings += [partial(shutil.rmtree, each, ignore_errors=True) for each in self._spill_folders]
        for close in closings:
            try:
                close()
            except Exception:
                _log.warning("closing a part of subtask %d failed", self._runner._place.slot, exc_info=True)


class _Splits(msgspec.Struct, frozen=True):
    """Where a snapshot found the splits, and when positions had been told last then."""

    read: dict[str, tuple[SplitState, ...]]
    looked_ms: int | None


def _barrier_of(letter: msg.TriggerCheckpoint) -> Barrier:
    return Barrier(
        checkpoint_id=letter.checkpoint_id,
        kind=letter.kind,
        location=letter.location,
        unaligned=letter.unaligned,
        alignment_timeout_ms=letter.alignment_timeout_ms,
    )


def _rows_of(buffer: Buffer) -> pa.RecordBatch:
    return buffer.rows


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


def _mapped(future: Future[T], made: Callable[[T], Any]) -> Future[Any]:
    """Return a future of what is made of a result."""
    mapped: Future[Any] = Future()

    def on_done(done: Future[T]) -> None:
        error = done.exception()
        if error is None:
            mapped.set_result(made(done.result()))
        else:
            mapped.set_exception(error)

    future.add_done_callback(on_done)
    return mapped


def _few(splits: tuple[SplitState, ...]) -> tuple[int, dict[str, bytes]]:
    """Return how many splits there are, and if these are few enough to be told: the positions of all."""
    return len(splits), {split.split_id: split.data for split in splits} if len(splits) <= MOST_POSITIONS else {}


def _hand_over(future: Future[None], to: Future[None]) -> None:
    error = future.exception()
    if error is None:
        to.set_result(None)
    else:
        to.set_exception(error)


class _Input:
    """One source's reader in a subtask, and its output."""

    def __init__(self, execution: _Execution, uid: str, source: SourceDefinition, chain: StageChain) -> None:
        self.uid = uid
        self._execution = execution
        self._runner = runner = execution._runner
        self._source = source.source
        self.status = InputStatus.MORE_AVAILABLE
        self._known: dict[str, bytes] = {}  # splits as they were seen last; of those that ended, until the next poll
        self._ended: list[str] = []  # by the last poll
        self._untold: list[str] = []  # of those, what the machine does not know yet
        self._available: Future[None] | None = None  # the last that was waited for
        self.paused = False
        self._pausing: deque[tuple[Collection[str], Collection[str]]] = deque()  # what alignment decided of splits
        self._allow_unaligned = bool(runner._definition.options[ALLOW_UNALIGNED_SPLITS])
        self._asked_to_pause = False
        self._alignment_timer_ms: int | None = None  # when the one that runs is due
        self._polled = AskedInVain()
        self.reader: SourceReader[Any] = source.source.create_reader(
            SourceReaderContext(
                subtask=runner._place.slot,
                schema=source.schema,
                host=runner._place.host,
                request_split=lambda: self._tell(machine.RequestMade(uid)),
                send_event=lambda event: self._tell(machine.EventMade(uid, pickle.dumps(event))),
                time_zone=runner._place.time_zone,
                query=runner._definition.name or runner._place.query_id,
                allow_unaligned_splits=self._allow_unaligned,
            )
        )
        self.output = _Output(self, source, chain, runner._now_ms())

    def start(self) -> None:
        self._call(self.reader.start)
        self._arm_timer()

    def add_splits(self, splits: tuple[SplitState, ...]) -> None:
        read = [self._source.split_serializer.deserialize(split.data) for split in splits]
        self._known |= {split.split_id: split.data for split in splits}
        self._polled.forget()
        if not self.output.ended:  # else the input was drained: they are kept, and not read
            for split in read:
                self.output.add_split(split.split_id)
        self._call(self.reader.add_splits, read)
        if self.output.aligns_splits and not (self._asked_to_pause or self.output.ended):
            self._ask_to_pause()
        self.align()
        self._wake()

    def set_unassigned(self, event_time_ms: int | None) -> None:
        if not self.output.ended:
            self.output.set_unassigned(event_time_ms)

    def announce(self, max_watermark_ms: int, others_ms: int) -> None:
        if not self.output.ended:
            self.output.advance_time(self._runner._now_ms())  # else what resumes would have been readable until now
            self.output.announce(max_watermark_ms, others_ms)
            self.align()

    def notify_no_more_splits(self) -> None:
        self._call(self.reader.notify_no_more_splits)
        self._wake()

    def handle_event(self, payload: bytes) -> None:
        event: SourceEvent = pickle.loads(payload)
        self._call(self.reader.handle_source_event, event)
        self._wake()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._call(self.reader.notify_checkpoint_complete, checkpoint_id)

    def poll(self, now_ms: int) -> None:
        for split_id in self._ended:
            self._known.pop(split_id, None)
        self._ended.clear()
        self.output.advance_time(now_ms)
        splits = len(self.output.split_ids())
        self.status = self._call(self.reader.poll_next, self.output)
        self._polled.returned(began_ms=now_ms, splits=splits, empty=self.status is InputStatus.NOTHING_AVAILABLE)
        self._tell_ended()
        self.align()
        if self.status is InputStatus.END_OF_INPUT:
            self.output.end_input()
        elif self.status is InputStatus.NOTHING_AVAILABLE:
            self._wait()

    def snapshot(self, checkpoint_id: int) -> tuple[SplitState, ...]:
        return tuple(self._state_of(split) for split in self._call(self.reader.snapshot_state, checkpoint_id))

    def positions(self) -> tuple[int, dict[str, bytes]]:
        """Return how many splits are being read, and if these are few enough to be told: where each is."""
        splits = self._splits()
        if len(splits) > MOST_POSITIONS:
            return len(splits), {}
        count, found = _few(tuple(map(self._state_of, splits)))
        self._known |= found
        return count, found

    def troubles(self) -> tuple[str, ...]:
        """Return what the reader waits for beside data."""
        return self.reader.troubles() if isinstance(self.reader, SourceReaderBase) else ()

    def asked_ms(self, now_ms: int) -> Mapping[str, int]:
        """Return until when splits were asked for rows in vain, in milliseconds: by fetchers, or else by polls."""
        if isinstance(self.reader, SourceReaderBase):
            return self.reader.asked_until_ms(now_ms)
        available = None if self.status is not InputStatus.NOTHING_AVAILABLE else self._available
        waits = available is not None and not available.done()  # the reader would say that there is something
        until_ms = now_ms if waits else self._polled.until_ms
        return {} if until_ms is None else dict.fromkeys(self.output.split_ids(), until_ms)

    def position_of(self, split_id: str) -> bytes | None:
        """Return where a split is; of one that has ended, or whose reader raised, where it was known to be last."""
        if self._execution.called is None:
            found = next((split for split in self._splits() if split.split_id == split_id), None)
            if found is not None:
                self._known[split_id] = self._state_of(found).data
        return self._known.get(split_id)

    # Alignment: what is decided while the reader is called waits until it returns.

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        self._pausing.append((splits_to_pause, splits_to_resume))

    def on_source_paused(self, paused: bool) -> None:
        self.paused = paused
        if not paused:
            self._wake()

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        if not self._execution.is_over:
            self._runner.handle(machine.WatermarkFound(self.uid, watermark_ms, slowest))

    def align(self) -> None:
        """Carry out what alignment decided of splits."""
        while self._pausing:
            splits_to_pause, splits_to_resume = self._pausing.popleft()
            self._call(self.reader.pause_or_resume_splits, splits_to_pause, splits_to_resume)
            if splits_to_resume:
                self._wake()
        due_ms = self.output.due_ms
        if due_ms is not None and self._alignment_timer_ms is None:
            self._alignment_timer_ms = due_ms
            delay_ms = max(0, due_ms - self._runner._now_ms())
            self._runner._mailbox.run_after(delay_ms, Letter(self._on_alignment_timer))

    def _ask_to_pause(self) -> None:
        """Find out whether the reader can pause splits, now that it has several and is to be aligned."""
        self._asked_to_pause = True
        try:
            self._call(self.reader.pause_or_resume_splits, (), ())
        except UnsupportedOperationError as error:
            self._execution.called = None
            if not self._allow_unaligned:
                raise UnsupportedOperationError(
                    f"The source {self.uid} is to be aligned and a reader of it has more than one split, but it cannot "
                    f"pause splits: {error} Or give each reader one split, or set the option "
                    f"{ALLOW_UNALIGNED_SPLITS!r} to true: then its splits are read without regard to one another.",
                    operation="pause_or_resume_splits", source=self.uid,
                ) from error  # fmt: skip
            self.output.read_splits_unaligned()
            self._pausing.clear()
        else:
            if self._allow_unaligned and isinstance(self.reader, SourceReaderBase):
                can_pause = self.reader.can_pause
                self.output.read_splits_unaligned(lambda split_id: not can_pause(split_id))

    def _on_alignment_timer(self) -> None:
        self._alignment_timer_ms = None
        if not self._execution.is_over and not self.output.ended:
            self.output.advance_time(self._runner._now_ms())
            self.align()

    def _splits(self) -> Sequence[Any]:
        # A snapshot without a checkpoint: readers promise that taking one changes nothing.
        splits: Sequence[Any] = self._call(self.reader.snapshot_state, 0)
        return splits

    def end(self, split_id: str) -> None:
        """Note that a split was read to its end."""
        self._ended.append(split_id)
        self._untold.append(split_id)

    def _tell_ended(self) -> None:
        ended, self._untold = tuple(self._untold), []
        if ended:
            self._runner.handle(machine.SplitsEnded(self.uid, ended))

    def _tell(self, event: machine.RequestMade | machine.EventMade) -> None:
        """Tell what the reader wants, behind the ends that led to it; a reader that is being closed wants nothing."""
        if not self._execution.is_over:
            self._tell_ended()
            self._runner.handle(event)

    def _call(self, method: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call the reader; if it raises, the error's report names the source."""
        outer, self._execution.called = self._execution.called, self.uid
        result = method(*arguments, **keywords)
        self._execution.called = outer
        return result

    def _state_of(self, split: Any) -> SplitState:
        return SplitState(split.split_id, self._source.split_serializer.serialize(split))

    def _wait(self) -> None:
        available = self.reader.available()
        if available.done():
            self.status = InputStatus.MORE_AVAILABLE
        elif available is not self._available:
            self._available = available
            available.add_done_callback(lambda _: self._runner._mailbox.post(Letter(self._wake)))

    def _wake(self) -> None:
        if self.status is InputStatus.NOTHING_AVAILABLE:
            self.status = InputStatus.MORE_AVAILABLE

    def _arm_timer(self) -> None:
        if self.output.timer_period_ms is not None:
            self._runner._mailbox.run_after(self.output.timer_period_ms, Letter(self._on_timer))

    def _on_timer(self) -> None:
        if not self._execution.is_over and not self.output.ended:
            self.output.advance_time(self._runner._now_ms())
            self.align()
            self._arm_timer()


class _Output(StreamingOutput):
    """Notes which splits ended beside handing rows on."""

    def __init__(self, of: _Input, source: SourceDefinition, chain: StageChain, now_ms: int) -> None:
        self._of = of
        behind = chain.input(of.uid)
        behind_rows = None if chain.event_time_operator(of.uid) is None else behind.behind_rows
        super().__init__(
            source.schema,
            source.watermark_strategy,
            behind,
            now_ms,
            control=of,
            held=True,
            bounded=source.boundedness is Boundedness.BOUNDED,
            behind_rows=behind_rows,
            asked_ms=of.asked_ms,
            asked_by_others=isinstance(of.reader, SourceReaderBase),
        )
        behind.rows_passed = self.rows_passed
        self.ended = False

    def release_output_for_split(self, split_id: str) -> None:
        super().release_output_for_split(split_id)
        self._of.end(split_id)

    def end_input(self) -> None:
        if not self.ended:
            self.ended = True
            super().end_input()
