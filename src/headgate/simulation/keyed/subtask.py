"""A subtask of a simulated keyed pipeline: the production machines of its channels, and models of all around them.

Never: decide anything that a machine decides. While a slice of rows is being processed nothing else happens in it: what
comes meanwhile waits, as in a mailbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headgate.protocol.channels import Barrier, Buffer, ChannelEvent, ChannelId, Element, ProducerRecovered
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, RecoveredChannel, SubtaskState
from headgate.simulation.clockwork import Process
from headgate.simulation.keyed.recovery import RecoveryThread
from headgate.simulation.keyed.rows import BUFFER_BYTES, ROW_BYTES, Recovered, RecoveredUpstream, Row, buffer_of
from headgate.simulation.keyed.stages import Stage
from headgate.task import input_gate as ig
from headgate.task import result_partition as rp

if TYPE_CHECKING:
    from headgate.simulation.keyed.cluster import KeyedCluster
    from headgate.simulation.keyed.deployment import Deployment


class _Part(msgspec.Struct):
    """What there is of a checkpoint; None: not yet."""

    state: SubtaskState
    input: dict[ChannelId, tuple[Buffer, ...]] | None
    output: dict[ChannelId, tuple[Buffer, ...]] | None
    relocated: frozenset[str] = frozenset()


class KeyedSubtask(Process):
    """One subtask of one deployment.

    Parameters
    ----------
    cluster, deployment
        Where it lives.
    subtask
        Which one.
    restore
        Its state; None: it starts afresh.
    recovered
        The channel state that it takes on.
    """

    def __init__(
        self,
        cluster: KeyedCluster,
        deployment: Deployment,
        subtask: SubtaskId,
        restore: SubtaskState | None,
        recovered: tuple[RecoveredChannel, ...],
    ) -> None:
        super().__init__(f"{subtask.stage}.{subtask.subtask} of deployment {deployment.number}")
        self.cluster: KeyedCluster = cluster
        self.deployment: Deployment = deployment
        self.id: SubtaskId = subtask
        self.crash_in: int | None = None
        """After how many more actions it dies; None: it does not."""
        self.decline_next = False
        scenario = cluster.scenario
        self.cost_ms = scenario.cost_ms.get(subtask.stage, 0)
        self.longest_slice_ms = 0
        self.blocked_ms = 0
        """When it last waited for those that consume its rows."""
        self.in_memory = 0
        """Recovered buffers that take up memory."""
        self.phase_one_ended_ms: int | None = None
        self.recovery_ended = self.recovered_processed = False
        self.opened = False
        self.input_ended = False
        self._mail: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._busy = self._pumping = False
        self._parts: dict[int, _Part] = {}
        self._turn = 0
        self._wake_ms: dict[str, int] = {}
        inputs = scenario.inputs_of(subtask.stage)
        self.output_uid = scenario.output_of(subtask.stage)
        consumed = tuple(each for each in recovered if each.state.exchange in inputs)
        self._produced = tuple(each for each in recovered if each not in consumed)
        self.gate: ig.InputGate | None = None
        if inputs:
            self.gate = cluster.parts.gate(
                subtask.subtask,
                {
                    uid: ig.GateInput(
                        producers=deployment.producers(uid, subtask.subtask),
                        supports_unaligned=plan.kind != "forward",
                        idle_together=scenario.idles_together(plan.producer_stage),
                        relocated=uid in deployment.relocated,
                    )
                    for uid, plan in inputs.items()
                },
                recovering=bool(consumed),
                producers_recover=deployment.producers_recover,
                credits=scenario.credits,
            )
        self.partition: rp.ResultPartition | None = None
        if self.output_uid is not None:
            kind = scenario.exchanges[self.output_uid].kind
            self.partition = cluster.parts.partition(
                self.output_uid,
                subtask.subtask,
                deployment.consumers(self.output_uid, subtask.subtask),
                supports_unaligned=kind != "forward",
            )
        self.recovered_processed = self.gate is None or not (consumed or deployment.producers_recover)
        self.recovery_ended = not consumed
        self.stage: Stage = deployment.stage_of(self, restore)
        self.recovery = RecoveryThread(self, consumed) if consumed else None

    def open(self) -> None:
        """Begin: the machines are there, nothing is processed yet."""
        self.opened = True
        now_ms = self.cluster.clock.now_ms
        if self.recovery is None:
            self.phase_one_ended_ms = now_ms
        for recovered in self._produced:  # as before FLIP-547: output is recovered where it was
            for rows in self.cluster.storage.get(recovered.state.handle):
                self._to_partition(
                    rp.RowsEmitted(recovered.channel, buffer_of(RecoveredUpstream(rows), unfiltered=recovered.filtered))
                )
        if self.deployment.producers_recover and self.partition is not None:
            self._to_partition(rp.EventEmitted(ProducerRecovered()))
        self.cluster.subtask_opened(self)
        if self.recovery is not None:
            self.recovery.start()
        self.stage.open()
        held_ms = self.cluster.scenario.held_ms
        if now_ms < held_ms:
            self.cluster.clock.at(held_ms, self, self.tell, self._arm)
        self._pump()

    # The mailbox.

    def tell(self, what: Callable[..., object], *arguments: Any) -> None:
        """Let something be done by the subtask's thread."""
        if not self.alive:
            return
        if self._busy or self._pumping or not self.opened:
            self._mail.append((what, arguments))
            return
        self._mail.append((what, arguments))
        self._pump()

    def _pump(self) -> None:
        """Work until there is nothing to do, or a slice takes its time."""
        self._pumping = True
        while self.alive and not self._busy:
            if self._mail:
                what, arguments = self._mail.popleft()
                what(*arguments)
            elif not self._poll():
                break
        self._pumping = False
        self._arm()

    def _arm(self) -> None:
        """Let machines know when a time that they wait for is over."""
        if not self.alive:
            return
        for name, machine, event in (
            ("gate", self.gate, ig.GateTimePassed()),
            ("partition", self.partition, rp.PartitionTimePassed()),
        ):
            due_ms = None if machine is None else machine.next_time_ms()
            if due_ms is not None and self._wake_ms.get(name) != due_ms:
                self._wake_ms[name] = due_ms
                to = self.to_gate if name == "gate" else self._to_partition
                clock = self.cluster.clock
                clock.at(max(due_ms, clock.now_ms), self, self.tell, to, event)

    # The gate.

    def to_gate(self, event: ig.Event) -> bool:
        """Give the gate an event and do what it orders; return whether that was anything."""
        gate, cluster = self.gate, self.cluster
        assert gate is not None
        cluster.note(self, event)
        actions = gate.handle(event, cluster.clock.now_ms)
        if actions or type(event) is not ig.Polled:
            gate.check()
        for action in actions:
            if not self._survives():
                return True
            cluster.note_action(self, action)
            self._carry_out(action)
        return bool(actions)

    def _carry_out(self, action: ig.Action) -> None:
        match action:
            case ig.ProcessRows(channel=channel, buffer=buffer):
                self._begin_slice(channel, buffer)
            case ig.GrantCredit(channel=channel, credits=credits):
                self.cluster.credit_granted(self, channel, credits)
            case ig.TakeSnapshot(barrier=barrier):
                self.snapshot(barrier)
            case ig.StoreChannels(checkpoint_id=checkpoint_id, channels=channels, relocated=relocated):
                stored = {
                    channel: tuple(self._in_memory(each) for each in buffers) for channel, buffers in channels.items()
                }
                self.cluster.invariants.on_input_stored(self, checkpoint_id)
                self._parts[checkpoint_id].input = stored
                self._parts[checkpoint_id].relocated = relocated
                self._acknowledge(checkpoint_id)
            case ig.RecoveredProcessed():
                assert not self.recovered_processed, "told twice that everything recovered is processed"
                self.recovered_processed = True
                self.cluster.recovered_processed(self)
            case _:
                self.stage.on_event_time(action)

    def _in_memory(self, buffer: Buffer | ig.Spilled) -> Buffer:
        if isinstance(buffer, Buffer):
            return buffer
        assert self.recovery is not None
        return self.recovery.spilled(buffer.number)

    def _poll(self) -> bool:
        if self.gate is None or self.cluster.clock.now_ms < self.cluster.scenario.held_ms:
            return False
        if self.is_blocked:
            self.blocked_ms = self.cluster.clock.now_ms
            return False
        return self.to_gate(ig.Polled())

    @property
    def is_blocked(self) -> bool:
        """Whether it waits for those that consume its rows."""
        return self.partition is not None and self.partition.queued_buffers >= self.cluster.scenario.queue_buffers

    def _processed(self, channel: ChannelId, buffer: Buffer) -> None:
        """Note that a buffer was processed to its end."""
        if isinstance(buffer.rows, Recovered) and not isinstance(buffer.rows, RecoveredUpstream):
            assert self.recovery is not None
            self.in_memory -= 1
            self.recovery.room_freed()
        else:
            self.deployment.links[channel].processed_ms.append(self.cluster.clock.now_ms)

    def _begin_slice(self, channel: ChannelId, buffer: Buffer) -> None:
        assert not self._busy
        self.cluster.invariants.before_rows(self, channel, buffer)
        cost_ms, rows = self.cost_ms, len(buffer.rows)
        if cost_ms:
            rows = min(rows, max(1, self.cluster.scenario.slice_ms // cost_ms))
            slice_ms = rows * cost_ms
            self.longest_slice_ms = max(self.longest_slice_ms, slice_ms)
            self._busy = True
            self.cluster.clock.after(slice_ms, self, self._end_slice, channel, buffer, rows)
        else:
            self._process(channel, buffer, rows)

    def _end_slice(self, channel: ChannelId, buffer: Buffer, rows: int) -> None:
        self._busy = False
        self._pumping = True
        self._process(channel, buffer, rows)
        if self.alive:
            self._pump()

    def _process(self, channel: ChannelId, buffer: Buffer, count: int) -> None:
        rows: Sequence[Row] = buffer.rows
        now, rest = rows[:count], rows[count:]
        if buffer.unfiltered:
            now = self.deployment.routings[channel.exchange].own(now, self.id.subtask)
        self.cluster.rows_processed += len(now)
        self.stage.process(channel, now)
        if rest and self.alive:
            kept = type(rows)(rest) if isinstance(rows, Recovered) else rest
            self.to_gate(ig.RowsPutBack(buffer_of(kept, unfiltered=buffer.unfiltered)))
        else:
            self._processed(channel, buffer)

    # The partition.

    def emit(self, rows: Sequence[Row]) -> None:
        """Send rows on."""
        assert self.output_uid is not None
        routing = self.deployment.routings[self.output_uid]
        way = (self.deployment.era << 8) | (self.id.subtask << 4)
        for consumer, part in routing.split(rows, self.id.subtask, self._turn):
            sent = tuple(part) if routing.keeps_order else tuple(row.sent(way | consumer) for row in part)
            self._to_partition(rp.RowsEmitted(consumer, buffer_of(sent)))
        self._turn += 1

    def emit_event(self, event: ChannelEvent) -> None:
        """Send an event to all consumers."""
        if self.partition is not None:
            self._to_partition(rp.EventEmitted(event))

    def _to_partition(self, event: rp.Event) -> None:
        partition, cluster = self.partition, self.cluster
        assert partition is not None
        cluster.note(self, event)
        actions = partition.handle(event, cluster.clock.now_ms)
        partition.check()
        for action in actions:
            if not self._survives():
                return
            cluster.note_action(self, action)
            match action:
                case rp.Transmit(consumer=consumer, element=element):
                    assert self.output_uid is not None
                    cluster.transmit(self, ChannelId(self.output_uid, self.id.subtask, consumer), element)
                case rp.StoreChannels(checkpoint_id=checkpoint_id, channels=channels):
                    cluster.invariants.on_output_stored(self, checkpoint_id)
                    self._parts[checkpoint_id].output = channels
                    self._acknowledge(checkpoint_id)
        self.stage.on_room()

    # Checkpoints.

    def snapshot(self, barrier: Barrier) -> None:
        """Take the snapshot, and send the barrier on."""
        checkpoint_id = barrier.checkpoint_id
        self.cluster.invariants.on_snapshot(self, barrier)
        state = self.stage.snapshot(checkpoint_id)
        self._parts = {each: part for each, part in self._parts.items() if each > checkpoint_id}
        self._parts[checkpoint_id] = _Part(
            state, None if self.gate is not None else {}, None if self.partition is not None else {}
        )
        if self.partition is not None:
            self._to_partition(rp.BarrierEmitted(barrier))
        else:
            self._acknowledge(checkpoint_id)

    def _acknowledge(self, checkpoint_id: int) -> None:
        """Tell the coordinator, if all parts are there."""
        part = self._parts[checkpoint_id]
        if part.input is None or part.output is None:
            return
        del self._parts[checkpoint_id]
        if self.decline_next:
            self.decline_next = False
            self.cluster.decline(self, checkpoint_id)
            return
        channels = (
            *self._written(checkpoint_id, part.input, part.relocated, output=False),
            *self._written(checkpoint_id, part.output, frozenset(), output=True),
        )
        self.cluster.acknowledge(self, checkpoint_id, msgspec.structs.replace(part.state, channels=channels))

    def _written(
        self,
        checkpoint_id: int,
        channels: dict[ChannelId, tuple[Buffer, ...]],
        relocated: frozenset[str],
        *,
        output: bool,
    ) -> Iterable[ChannelState]:
        """Write channel state."""
        for channel, buffers in channels.items():
            rows = tuple(tuple(buffer.rows) for buffer in buffers)
            assert rows and all(rows), f"checkpoint {checkpoint_id} stores an empty buffer of {channel}"
            size_bytes = sum(BUFFER_BYTES + ROW_BYTES * len(each) for each in rows)
            yield ChannelState(
                exchange=channel.exchange,
                producer=channel.producer,
                consumer=channel.consumer,
                output=output,
                handle=self.cluster.storage.put(rows, size_bytes),
                buffers=len(rows),
                rows=sum(map(len, rows)),
                size_bytes=size_bytes,
                relocated=channel.exchange in relocated,
            )

    def checkpoint_completed(self, checkpoint_id: int) -> None:
        """Forget what is published."""
        self.stage.on_completed(checkpoint_id)

    def checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Forget a checkpoint; what was staged for it is carried into the next one."""
        self._parts.pop(checkpoint_id, None)
        self.stage.on_aborted(checkpoint_id)
        if self.gate is not None:
            self.to_gate(ig.CheckpointGivenUp(checkpoint_id))
        if self.partition is not None and self.alive:
            self._to_partition(rp.CheckpointGivenUp(checkpoint_id))

    # What channels tell.

    def connected_to_producer(self, channel: ChannelId) -> None:
        """Note that a channel's producer is there."""
        self.to_gate(ig.ChannelConnected(channel))

    def connected_to_consumer(self, channel: ChannelId) -> None:
        """Note that a channel's consumer is there."""
        self._to_partition(rp.ConsumerConnected(channel.consumer))

    def arrived(self, channel: ChannelId, element: Element) -> None:
        """Take what a producer sent."""
        self.to_gate(ig.ElementArrived(channel, element))

    def credited(self, channel: ChannelId, credits: int) -> None:
        """Take credit."""
        self._to_partition(rp.CreditGranted(channel.consumer, credits))

    def _survives(self) -> bool:
        """Return whether it lives on; a fault may end it between two actions."""
        if self.crash_in is not None:
            self.crash_in -= 1
            if self.crash_in < 0:
                self.crash_in = None
                self.cluster.crash(self)
        return self.alive
