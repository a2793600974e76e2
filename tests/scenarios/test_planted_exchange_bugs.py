"""Bugs of others in exchanges, unaligned checkpoints and recovery, planted one at a time: some seed finds each.

FLIP-547's own bug and those of public tickets, then bugs of our own. A bug is a subclass or a changed function or
method of production, in this file only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from headgate.checkpoint.channel_assignment import assign_channels
from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.coordinator.job import regions
from headgate.coordinator.job.job_plan import JobPlan
from headgate.protocol.channels import Buffer, ProducerActive, ProducerIdle, WatermarkPassed
from headgate.runtime import execution
from headgate.runtime.channel_recovery_thread import Recovery
from headgate.simulation.fault_kinds import MoreFaults
from headgate.simulation.running import simulate
from headgate.simulation.scenario import PHASE_MS, Scenario
from headgate.simulation.scripted_sink import ScriptedWriter
from headgate.simulation.topic import SourceScript
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task.exchange import channel_recovery as cr
from headgate.task.exchange import input_gate as ig
from headgate.task.exchange import result_partition as rp
from headgate.task.exchange.channel_recovery import ChannelRecovery
from headgate.task.exchange.gate_channel import CreditAllowed
from headgate.task.exchange.input_gate import InputGate
from headgate.task.exchange.result_partition import ResultPartition
from headgate.task.exchange.watermark_valve import WatermarkValve
from headgate.task.watermark_flow import WatermarkFlow
from tests.scenarios.pipelines import pipeline, rescales, source
from tests.scenarios.planted import Unchecked, first_found, has

LOST, TWICE, ANOTHERS = "lost: |not published|no end after|rows of .* missing", "twice", "another subtask's"
SPLITS = source(60, 60, 60, keys=2, batch_rows=8)
SLOW, ORDER, LATE = "slow: ", "order: |lost: ", "late: "


def keyed(each: Scenario) -> bool:
    return each.is_keyed


def in_time(each: Scenario) -> bool:
    return each.in_time


def rescaled(each: Scenario) -> bool:
    return any(fault.kind is MoreFaults.RESCALE_AT_CHECKPOINT for fault in each.faults)


# The document's own bug.


def test_the_documents_own_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovered buffers are filtered when they are processed, so that every new subtask stores all of them."""
    read, packed = Recovery._read, Recovery._packed

    def whole(recovery: Any, stored: int) -> cr.Event:
        recovered = recovery._recovered
        recovery._recovered = tuple(msgspec.structs.replace(each, filter_owned=None) for each in recovered)
        event = read(recovery, stored)
        recovery._recovered = recovered
        if not isinstance(event, cr.BufferRead) or recovered[stored].filter_owned is None:
            return event
        buffer = event.buffer
        return cr.BufferRead(stored, Buffer(buffer.rows, buffer.num_rows, buffer.size_bytes, unfiltered=True))

    def still_whole(recovery: Any, parts: tuple[Buffer, ...]) -> Buffer:
        buffer = packed(recovery, parts)
        unfiltered = any(part.unfiltered for part in parts)
        return Buffer(buffer.rows, buffer.num_rows, buffer.size_bytes, unfiltered=unfiltered)

    monkeypatch.setattr(Recovery, "_read", whole)
    monkeypatch.setattr(Recovery, "_packed", still_whole)
    first_found(f"{ANOTHERS}|{TWICE}|{ORDER}|{LOST}", 145, {InputGate: Unchecked}, of=keyed)


def test_a_checkpoint_before_the_old_recovery_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both switches off a checkpoint is taken although buffers are still filtered when they are processed."""
    monkeypatch.setattr(execution, "checkpoints_during_recovery", lambda options: True)
    off = lambda each: any(not switches.on_downstream for switches in each.switches)  # noqa: E731
    first_found(f"{ANOTHERS}|{TWICE}|{ORDER}", 3539, {InputGate: Unchecked}, of=off)


# Bugs of public tickets.


class ForgetsWhenConnected(Unchecked):
    """FLINK-38544: buffers that were recovered before a channel connects are lost when it does."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        actions = super().handle(event, now_ms)
        if isinstance(event, ig.ChannelConnected) and self.recovery == "reading":
            channel = self._channels[event.channel]
            self._recovery._buffers_left -= len(channel.recovered)
            channel.recovered.clear()
            self._set_ready(channel)
        return actions


def test_flink_38544_records_lost_when_channels_are_rewired_is_found() -> None:
    first_found(LOST, 3, {InputGate: ForgetsWhenConnected}, of=keyed)


def test_flink_31963_a_stateless_stage_beside_an_exchange_is_found() -> None:
    """What was on its way to a subtask that is gone is nobody's, where no key groups say whose it is."""

    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        kept = [
            each
            for each in channels
            if exchanges[each.exchange].kind != "rebalance" or each.consumer < options["parallelism"]
        ]
        return assign_channels(kept, exchanges, **options)

    first_found(LOST, 255, {assign_channels: assign}, of=has("rebalance"))


def test_flink_35351_a_custom_partitioner_that_is_not_evaluated_again_is_found() -> None:
    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        as_rebalance = {
            uid: msgspec.structs.replace(plan, kind="rebalance") if plan.kind == "custom" else plan
            for uid, plan in exchanges.items()
        }
        return assign_channels(channels, as_rebalance, **options)

    first_found(ANOTHERS, 884, {assign_channels: assign}, of=has("custom"))


def test_flink_38483_subtasks_without_state_is_found() -> None:
    """Subtasks that were not there before get nothing."""

    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        assigned = assign_channels(channels, exchanges, **options)
        return {each: got for each, got in assigned.items() if each.subtask < options["old_parallelism"]}

    first_found(LOST, 192, {assign_channels: assign}, of=keyed)


class StoresOnlyWhatWasThere(Unchecked):
    """FLINK-20645: what comes between the snapshot and a later barrier is in no checkpoint."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        checkpoint = self._checkpoint
        actions = super().handle(event, now_ms)
        new = isinstance(event, ig.ElementArrived) and isinstance(event.element, Buffer)
        if new and event.channel in checkpoint.missing:
            checkpoint._stored[event.channel].pop()
        return actions


def test_flink_20645_an_order_of_barriers_that_misses_buffers_is_found() -> None:
    first_found(LOST, 0, {InputGate: StoresOnlyWhatWasThere}, of=keyed)


class AlignsAllOrNone(InputGate):
    """FLINK-37870: one connection that cannot be unaligned disables it for all."""

    def __init__(self, consumer: int, inputs: Any, **options: Any) -> None:
        supported = all(each.supports_unaligned for each in inputs.values())
        each_or_none = {
            uid: msgspec.structs.replace(each, supports_unaligned=supported) for uid, each in inputs.items()
        }
        super().__init__(consumer, each_or_none, **options)


def test_flink_37870_one_aligned_connection_that_aligns_all_is_found() -> None:
    def mixed(each: Scenario) -> bool:
        kinds = each.first_exchange, each.second_exchange
        return "forward" in kinds and kinds[0] != kinds[1] and None not in kinds and each.row_ms > 0

    first_found(SLOW, 183, {InputGate: AlignsAllOrNone}, of=mixed)


class ForgetsStaged(ScriptedWriter):
    """Iceberg 15846: rows that were staged for a checkpoint that failed are in none."""

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Any:
        self._staged.clear()
        return super().prepare_commit(checkpoint_id, final=final)


def test_iceberg_15846_rows_staged_for_a_failed_checkpoint_are_found() -> None:
    first_found(LOST, 2, {ScriptedWriter: ForgetsStaged}, of=keyed)


class WaitsForTheInterval(CheckpointCoordinator):
    """FLINK-38939: sources run far ahead before the first barrier after a restore."""

    def _soon(self, now_ms: int) -> int:
        return now_ms + (self._options.interval_ms or 0)


def test_flink_38939_a_first_checkpoint_that_comes_late_is_found() -> None:
    first_found("before the first checkpoint", 0, {CheckpointCoordinator: WaitsForTheInterval}, of=keyed)


# Our own.


class GrantsAtOnce(Unchecked):
    """Producers may send before what was recovered is in."""

    def __init__(self, consumer: int, inputs: Any, **options: Any) -> None:
        super().__init__(consumer, inputs, **options)
        self._recovery._grants = lambda channels, now_ms: [
            grant for each in channels if each.state != "granted" for grant in each.handle(CreditAllowed(), now_ms)
        ]

    def _is_ready(self, channel: Any) -> bool:
        return bool(channel.recovered) or (bool(channel.sent) and not isinstance(channel.sent[0], ig.Barrier))


def test_credit_before_recovery_is_over_is_found() -> None:
    first_found(f"{ORDER}|{LOST}|{TWICE}", 174, {InputGate: GrantsAtOnce}, of=keyed)


class PassesWatermarks(Unchecked):
    """Event time goes on while rows are recovered."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        if not isinstance(event, ig.ElementArrived) or self.recovery in ("processing", "over"):
            return super().handle(event, now_ms)
        if not isinstance(event.element, WatermarkPassed | ProducerIdle | ProducerActive):
            return super().handle(event, now_ms)
        received = ig.ProducerEventReceived(event.channel.producer, event.element)
        return [*self._valves[event.channel.exchange].handle(received, now_ms)]


def test_a_watermark_that_is_not_held_while_rows_are_recovered_is_found() -> None:
    """Of datagen, where what is not assigned holds watermarks back no longer than its first row must."""

    def slow(each: Scenario) -> Scenario:
        generated = tuple(msgspec.structs.replace(source, kind="datagen", bounded=True) for source in each.sources)
        return msgspec.structs.replace(
            each, row_ms=20, interval_ms=100, first_checkpoint_ms=10, faults=rescales(3, 2, 4), phase_ms=PHASE_MS,
            sources=generated,
        )  # fmt: skip

    first_found(LATE, 62, {InputGate: PassesWatermarks}, of=in_time, change=slow)


def test_a_final_watermark_that_passes_idle_producers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds rows is idle when another one has heard the end of all: what it still fires comes late."""
    votes = WatermarkValve._votes

    def passing(valve: WatermarkValve) -> list[int]:
        left = [each for each in valve._producers.values() if each.state != "final"]
        if len(left) < valve._count and all(each.state == "idle" for each in left):
            return [MAX_WATERMARK_MS]
        return votes(valve)

    def passing_together(valve: WatermarkValve) -> list[int]:
        return passing(valve) if valve._idle_together else votes(valve)

    monkeypatch.setattr(WatermarkValve, "_votes", passing)
    first_found(f"late: .*after {MAX_WATERMARK_MS}", 21, {InputGate: Unchecked}, of=in_time)
    monkeypatch.setattr(WatermarkValve, "_votes", passing_together)
    first_found(f"late: .*after {MAX_WATERMARK_MS}", 893, {InputGate: Unchecked}, of=in_time)


class IdleOneByOne(InputGate):
    """Nobody waits for a producer that is idle, though those beside it are not, and it holds rows as they do."""

    def __init__(self, consumer: int, inputs: Any, **options: Any) -> None:
        alone = {uid: msgspec.structs.replace(each, idle_together=False) for uid, each in inputs.items()}
        super().__init__(consumer, alone, **options)


def test_a_valve_that_waits_for_nobody_who_is_idle_together_is_found() -> None:
    """The sources were idle, and one of them is heard of again: first by one subtask, then by the others."""
    first_found(LATE, 106, {InputGate: IdleOneByOne}, of=in_time)


class PassesIdleInputs(WatermarkFlow):
    """The final watermark of one input passes another one that is idle."""

    @property
    def watermark_ms(self) -> int | None:
        votes = [vote for uid, vote in self._inputs.items() if vote == MAX_WATERMARK_MS or uid not in self._idle]
        known = [vote for vote in votes if vote is not None]
        return min(known) if known and len(known) == len(votes) else None


def test_a_final_watermark_that_passes_an_idle_input_is_found() -> None:
    """One exchange of a union has ended, the other one is idle for a while."""
    first_found(LATE, 21, {WatermarkFlow: PassesIdleInputs}, of=in_time)


def test_output_before_input_is_found() -> None:
    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        turned = [msgspec.structs.replace(each, output=not each.output) for each in channels]
        assigned = assign_channels(turned, exchanges, **{**options, "on_downstream": True})
        back = {
            subtask: tuple(
                msgspec.structs.replace(each, state=msgspec.structs.replace(each.state, output=not each.state.output))
                for each in recovered
            )
            for subtask, recovered in assigned.items()
        }
        return back if options["on_downstream"] else assign_channels(channels, exchanges, **options)

    first_found(ORDER, 118, {assign_channels: assign}, of=keyed)


def test_new_rows_that_pass_recovered_ones_after_a_rescale_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come through another channel, since another reader has their split."""
    monkeypatch.setattr(regions, "relocated_exchanges", lambda *_, **__: frozenset())
    first_found(ORDER, 363, of=rescaled)


def moving(each: Scenario, parallelisms: tuple[int, ...], of: SourceScript) -> Scenario:
    """Return a scenario of the same seed with splits that other readers may read on after a restart."""
    return pipeline(
        seed=each.seed, parallelism=2, sources=(of,), row_ms=20, interval_ms=100, first_checkpoint_ms=1,
        target_bytes=400, faults=rescales(*parallelisms), phase_ms=4_000,
    )  # fmt: skip


def test_new_rows_of_a_split_that_another_reader_has_at_the_same_parallelism_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its source reassigns splits on recovery, to whoever asks first."""

    def of_datagen(each: Scenario) -> Scenario:
        splits = msgspec.structs.replace(SPLITS, kind="datagen", bounded=True)
        return moving(each, (2, 2, 2, 2), splits)

    monkeypatch.setattr(JobPlan, "moving_exchanges", frozenset())
    first_found(ORDER, 1, change=of_datagen)


class ForgetsRelocated(InputGate):
    """What is stored of rows that were relocated does not say so."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        return [
            msgspec.structs.replace(each, relocated=frozenset()) if isinstance(each, ig.StoreChannels) else each
            for each in super().handle(event, now_ms)
        ]


def test_new_rows_that_pass_rows_relocated_before_the_last_restart_are_found() -> None:
    """The parallelism is that of the checkpoint, but rows in it were relocated before it."""
    assert all(simulate(moving(Scenario.of(seed), (3, 3, 2, 2), SPLITS))[0].error is None for seed in range(3))
    first_found(ORDER, 1, {InputGate: ForgetsRelocated}, change=lambda each: moving(each, (3, 3, 2, 2), SPLITS))


class TakesBeforeReplaying(ChannelRecovery):
    """P1 before P3: what is read overtakes what is spilled."""

    def _on_room(self, event: cr.RoomFound, now_ms: int) -> list[cr.Action]:
        spilled, self._spilled = self._spilled, deque()
        if not self._made:
            self._spilled = spilled
            return self._on_room_found(event, now_ms)
        made = self._made.popleft()
        self._spilled = spilled
        return [cr.TakeIntoMemory(made.channel, made.parts, made.repacked), *self._go_on()]

    _DISPATCH: ClassVar = {**ChannelRecovery._DISPATCH, ("phase 1", cr.RoomFound): _on_room}


def test_memory_before_replay_is_found() -> None:
    first_found(f"spilled ones come first|{ORDER}", 284, {ChannelRecovery: TakesBeforeReplaying}, of=keyed)


class SnapshotsInPhaseOne(Unchecked):
    """A snapshot does not wait for what is still to be read."""

    def _is_due(self) -> bool:
        return self._checkpoint.is_aligned


def test_a_snapshot_in_phase_one_is_found() -> None:
    first_found(LOST, 174, {InputGate: SnapshotsInPhaseOne}, of=keyed)


class LeavesOutSpilled(Unchecked):
    """What was spilled is in no checkpoint."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        return [
            ig.StoreChannels(action.checkpoint_id, _without_spilled(action.channels))
            if isinstance(action, ig.StoreChannels)
            else action
            for action in super().handle(event, now_ms)
        ]


def _without_spilled(channels: Mapping[Any, Sequence[Any]]) -> dict[Any, tuple[Buffer, ...]]:
    kept = {
        channel: tuple(each for each in buffers if isinstance(each, Buffer)) for channel, buffers in channels.items()
    }
    return {channel: buffers for channel, buffers in kept.items() if buffers}


def test_spilled_buffers_that_are_not_stored_are_found() -> None:
    first_found(LOST, 292, {InputGate: LeavesOutSpilled}, of=rescaled)


class LeavesOutOutput(ResultPartition):
    """What a barrier passes on the producer's side is in no checkpoint."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        return [
            rp.StoreChannels(action.checkpoint_id, {}) if isinstance(action, rp.StoreChannels) else action
            for action in super().handle(event, now_ms)
        ]


def test_output_that_is_not_stored_is_found() -> None:
    first_found(LOST, 0, {ResultPartition: LeavesOutOutput}, of=keyed)


class SendsWithoutCredit(ResultPartition):
    """Rows leave whether there is room for them or not."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        actions = super().handle(event, now_ms)
        for consumer, queue in self._queues.items():
            if queue.state == "blocked":
                actions += super().handle(rp.CreditGranted(consumer, 1), now_ms)
        return actions


def test_rows_without_credit_are_found() -> None:
    first_found("had no credit", 0, {ResultPartition: SendsWithoutCredit}, of=keyed)


class TakesBarriersForRows(ResultPartition):
    """A barrier waits for credit as rows do."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        if isinstance(event, rp.BarrierEmitted):
            event = rp.BarrierEmitted(msgspec.structs.replace(event.barrier, unaligned=False))
        return super().handle(event, now_ms)


def test_a_barrier_that_waits_for_a_slow_operator_is_found() -> None:
    first_found(SLOW, 21, {ResultPartition: TakesBarriersForRows}, of=keyed)
