"""Bugs of others in exchanges, unaligned checkpoints and recovery, planted one at a time: some seed finds each.

FLIP-547's own bug and those of public tickets, then bugs of our own. A bug is a subclass or a changed method,
in this file only. Where a machine would notice by itself, its `check` is turned off, so that what finds the bug is what
must hold of the whole pipeline.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan, assign_channels
from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.protocol.channels import Buffer, ProducerActive, ProducerIdle, WatermarkPassed
from headgate.simulation.keyed.cluster import KeyedCluster
from headgate.simulation.keyed.parts import KeyedParts
from headgate.simulation.keyed.recovery import RecoveryThread
from headgate.simulation.keyed.rows import Recovered, buffer_of
from headgate.simulation.keyed.running import simulate
from headgate.simulation.keyed.scenario import Fault, FaultKind, KeyedScenario, SplitScript, Switches
from headgate.simulation.keyed.stages import WindowStage
from headgate.simulation.keyed.subtask import KeyedSubtask
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.task import channel_recovery as cr
from headgate.task import input_gate as ig
from headgate.task import result_partition as rp
from headgate.task.channel_recovery import ChannelRecovery
from headgate.task.gate_channel import CreditAllowed
from headgate.task.input_gate import InputGate
from headgate.task.result_partition import ResultPartition
from headgate.task.watermark_flow import WatermarkFlow
from headgate.task.watermark_valve import WatermarkValve
from tests import search
from tests.seeds import KEYED_FAILED

SEEDS = range(400)
LOST, TWICE, ANOTHERS, SLOW = "rows are lost", "are there twice|is published twice", "another's", "slow: "


def first_found(
    what: str,
    parts: KeyedParts | None = None,
    seeds: Sequence[int] = SEEDS,
    change: Callable[[KeyedScenario], KeyedScenario] = lambda scenario: scenario,
    kind: str = "hash",
) -> int:
    """Return the first seed that fails with what the pattern says, of those with an exchange of a kind.

    An ordinary run begins with seeds that often do.
    """
    other: list[str] = []
    for seed in search.beginning_with(KEYED_FAILED, seeds):
        scenario = change(KeyedScenario.of(seed))
        if all(plan.kind != kind for plan in scenario.exchanges.values()):
            continue
        error = simulate(scenario, parts)[0].error
        if error is not None:
            if re.search(what, error):
                return seed
            other.append(f"{seed}: {error.splitlines()[0]}")
    raise AssertionError(f"not found in {len(seeds)} seeds; found instead: {other[:5]}")


class Unchecked(InputGate):
    """A gate that does not notice by itself."""

    def check(self) -> None:
        pass


# The document's own bug.


def test_the_documents_own_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recovered buffers are filtered when they are processed, so that every new subtask stores all of them."""
    process = KeyedSubtask._process

    def read(thread: RecoveryThread, stored: int) -> cr.Event:
        buffers = thread._rows[stored]
        return cr.BufferRead(stored, buffer_of(Recovered(buffers.pop(0)))) if buffers else cr.ChannelRead(stored)

    def filtering(subtask: KeyedSubtask, channel: Any, buffer: Buffer, count: int) -> None:
        routing = subtask.deployment.routings[channel.exchange]
        if isinstance(buffer.rows, Recovered) and routing.kind in ("hash", "custom"):
            own = Recovered(routing.own(buffer.rows[:count], subtask.id.subtask))
            buffer = buffer_of(Recovered((*own, *buffer.rows[count:])))
            count = len(own)
        process(subtask, channel, buffer, count)

    monkeypatch.setattr(RecoveryThread, "_read", read)
    monkeypatch.setattr(KeyedSubtask, "_process", filtering)
    first_found(f"{ANOTHERS}|{TWICE}")


def test_a_checkpoint_before_the_old_recovery_is_over_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both switches off a checkpoint is taken although buffers are still filtered when they are processed."""
    tell = KeyedCluster._tell_if_running

    def at_once(cluster: KeyedCluster, deployment: Any) -> None:
        deployment.switches = Switches(on_downstream=False, during_recovery=True)
        tell(cluster, deployment)

    monkeypatch.setattr(KeyedCluster, "_tell_if_running", at_once)
    monkeypatch.setattr(InputGate, "check", lambda gate: None)
    off = (Switches(on_downstream=False, during_recovery=False),)
    first_found(f"{ANOTHERS}|{TWICE}", change=lambda scenario: msgspec.structs.replace(scenario, switches=off))


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
    first_found(LOST, KeyedParts(gate=ForgetsWhenConnected))


def test_flink_31963_a_stateless_stage_beside_an_exchange_is_found() -> None:
    """What was on its way to a subtask that is gone is nobody's, where no key groups say whose it is."""

    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        kept = [
            each
            for each in channels
            if exchanges[each.exchange].kind != "rebalance" or each.consumer < options["parallelism"]
        ]
        return assign_channels(kept, exchanges, **options)

    first_found(LOST, KeyedParts(assign=assign), kind="rebalance")


def test_flink_35351_a_custom_partitioner_that_is_not_evaluated_again_is_found() -> None:
    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        as_rebalance = {
            uid: msgspec.structs.replace(plan, kind="rebalance") if plan.kind == "custom" else plan
            for uid, plan in exchanges.items()
        }
        return assign_channels(channels, as_rebalance, **options)

    first_found(ANOTHERS, KeyedParts(assign=assign), kind="custom")


def test_flink_38483_subtasks_without_state_is_found() -> None:
    """Subtasks that were not there before get nothing."""

    def assign(channels: Any, exchanges: Any, **options: Any) -> Any:
        assigned = assign_channels(channels, exchanges, **options)
        if not options["on_downstream"]:
            return assigned
        return {each: got for each, got in assigned.items() if each.subtask < options["old_parallelism"]}

    first_found(f"{LOST}|with the switch turned", KeyedParts(assign=assign))


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
    first_found(LOST, KeyedParts(gate=StoresOnlyWhatWasThere))


class AlignsAllOrNone(InputGate):
    """FLINK-37870: one connection that cannot be unaligned disables it for all."""

    def __init__(self, consumer: int, inputs: Any, **options: Any) -> None:
        supported = all(each.supports_unaligned for each in inputs.values())
        each_or_none = {
            uid: msgspec.structs.replace(each, supports_unaligned=supported) for uid, each in inputs.items()
        }
        super().__init__(consumer, each_or_none, **options)


def test_flink_37870_one_aligned_connection_that_aligns_all_is_found() -> None:
    exchanges = {
        "left": ExchangePlan(kind="rebalance", producer_stage=0, consumer_stage=2),
        "right": ExchangePlan(kind="forward", producer_stage=1, consumer_stage=2),
        "windows": ExchangePlan(kind="hash", producer_stage=2, consumer_stage=3),
    }

    def slow_union(scenario: KeyedScenario) -> KeyedScenario:
        return msgspec.structs.replace(
            scenario,
            exchanges=exchanges,
            sources={stage: (SplitScript(number=stage, rows=40, keys=7, first_ms=0, step_ms=5),) for stage in (0, 1)},
            cost_ms={2: 8, 3: 0},
            read_rows=8,
            slice_ms=1,
            link_ms=1,
            credits=4,
            watermark_reads=100,
            unaligned=True,
            alignment_timeout_ms=0,
            parallelism=1 + scenario.seed % 3,
            interval_ms=60,
            faults=(),
        )

    assert all(simulate(slow_union(KeyedScenario.of(seed)))[0].error is None for seed in range(20))
    first_found(SLOW, KeyedParts(gate=AlignsAllOrNone), change=slow_union)


def test_iceberg_15846_rows_staged_for_a_failed_checkpoint_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetting(stage: WindowStage, checkpoint_id: int) -> None:
        stage._staged.pop(checkpoint_id, None)

    monkeypatch.setattr(WindowStage, "on_aborted", forgetting)
    first_found(LOST)


class WaitsForTheInterval(CheckpointCoordinator):
    """FLINK-38939: sources run far ahead before the first barrier after a restore."""

    def _soon(self, now_ms: int) -> int:
        return now_ms + (self._options.interval_ms or 0)


def test_flink_38939_a_first_checkpoint_that_comes_late_is_found() -> None:
    first_found("before the first barrier", KeyedParts(coordinator=WaitsForTheInterval))


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
    first_found("before its recovery is over", KeyedParts(gate=GrantsAtOnce))


class PassesWatermarks(Unchecked):
    """Event time goes on while rows are recovered."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        if not isinstance(event, ig.ElementArrived) or self.recovery in ("processing", "over"):
            return super().handle(event, now_ms)
        if not isinstance(event.element, WatermarkPassed | ProducerIdle | ProducerActive):
            return super().handle(event, now_ms)
        told = ig.ProducerTold(event.channel.producer, event.element)
        return [*self._valves[event.channel.exchange].handle(told, now_ms)]


def test_a_watermark_that_is_not_held_while_rows_are_recovered_is_found() -> None:
    def with_one_that_ended(scenario: KeyedScenario) -> KeyedScenario:
        """Return the same with a split that is read to its end, and another that is far ahead, for other subtasks."""
        return msgspec.structs.replace(
            scenario,
            parallelism=2 + scenario.seed % 3,
            max_parallelism=8,
            exchanges={"windows": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
            sources={
                0: (
                    SplitScript(number=0, rows=8, keys=1, first_ms=0, step_ms=5),
                    SplitScript(number=1, rows=20, keys=4, first_ms=400, step_ms=50, first_key=4),
                )
            },
            cost_ms={1: 20},
            read_ms=1,
            read_rows=1,
            window_ms=40,
            interval_ms=60,
            switches=(Switches(),),
            faults=(Fault(100, FaultKind.RESCALE, parallelism=2 + scenario.seed % 2),),
        )

    assert all(simulate(with_one_that_ended(KeyedScenario.of(seed)))[0].error is None for seed in range(20))
    first_found("late: ", KeyedParts(gate=PassesWatermarks), change=with_one_that_ended)


def windows_of_windows(scenario: KeyedScenario) -> KeyedScenario:
    """Return the same with readers that are idle before they end, and a stage that holds rows before the windows."""
    exchanges = {
        "first": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1),
        "windows": ExchangePlan(kind="hash", producer_stage=1, consumer_stage=2),
    }
    return msgspec.structs.replace(
        scenario,
        exchanges=exchanges,
        sources={0: next(iter(scenario.sources.values()))},
        cost_ms={1: 0, 2: 0},
        idle_ms=50,
        holds=True,
    )


def test_a_final_watermark_that_passes_idle_producers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that holds rows is idle when another one has heard the end of all: what it still fires comes late."""
    vote_ms = WatermarkValve._vote_ms

    def passing(valve: WatermarkValve) -> int | None:
        left = [each for each in valve._producers.values() if each.state != "final"]
        if len(left) < valve._count and all(each.state == "idle" for each in left):
            return MAX_WATERMARK_MS
        return vote_ms(valve)

    def passing_together(valve: WatermarkValve) -> int | None:
        return passing(valve) if valve._idle_together else vote_ms(valve)

    monkeypatch.setattr(WatermarkValve, "_vote_ms", passing)
    first_found(f"late: .* is at {MAX_WATERMARK_MS}", KeyedParts(gate=Unchecked))
    monkeypatch.setattr(WatermarkValve, "_vote_ms", passing_together)
    first_found(f"late: .* is at {MAX_WATERMARK_MS}", KeyedParts(gate=Unchecked), change=windows_of_windows)


class IdleOneByOne(InputGate):
    """Nobody waits for a producer that is idle, though those beside it are not, and it holds rows as they do."""

    def __init__(self, consumer: int, inputs: Any, **options: Any) -> None:
        alone = {uid: msgspec.structs.replace(each, idle_together=False) for uid, each in inputs.items()}
        super().__init__(consumer, alone, **options)


def test_a_valve_that_waits_for_nobody_who_is_idle_together_is_found() -> None:
    """The sources were idle, and one of them is heard of again: first by one subtask, then by the others."""
    first_found("late: ", KeyedParts(gate=IdleOneByOne))
    first_found("late: ", KeyedParts(gate=IdleOneByOne), change=windows_of_windows)


class PassesIdleInputs(WatermarkFlow):
    """The final watermark of one input passes another one that is idle."""

    @property
    def watermark_ms(self) -> int | None:
        votes = [vote for uid, vote in self._inputs.items() if vote == MAX_WATERMARK_MS or uid not in self._idle]
        known = [vote for vote in votes if vote is not None]
        return min(known) if known and len(known) == len(votes) else None


def test_a_final_watermark_that_passes_an_idle_input_is_found() -> None:
    """One exchange of a union has ended, the other one is idle for a while."""
    first_found("late: ", KeyedParts(flow=PassesIdleInputs))


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

    first_found("order: ", KeyedParts(assign=assign))


def moving(scenario: KeyedScenario) -> KeyedScenario:
    """Return a scenario with several splits, which other readers read on after each of its rescales."""
    split = SplitScript(number=0, rows=20, keys=2, first_ms=0, step_ms=5)
    return msgspec.structs.replace(
        scenario,
        parallelism=2,
        sources={
            stage: tuple(msgspec.structs.replace(split, number=10 * stage + each) for each in range(3))
            for stage in scenario.sources
        },
        cost_ms=dict.fromkeys(scenario.cost_ms, 8),
        interval_ms=60,
        timeout_ms=5000,
        unaligned=True,
        alignment_timeout_ms=0,
        switches=(Switches(),),
        faults=(
            Fault(150, FaultKind.RESCALE, parallelism=3),
            Fault(300, FaultKind.CRASH),
            Fault(450, FaultKind.RESCALE, parallelism=2),
        ),
    )


def test_new_rows_that_pass_recovered_ones_after_a_rescale_are_found() -> None:
    """They come through another channel, since another reader has their split."""
    first_found("order: ", KeyedParts(relocated=lambda *_, **__: frozenset()), change=moving)


class ForgetsRelocated(InputGate):
    """What is stored of rows that were relocated does not say so."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        return [
            msgspec.structs.replace(each, relocated=frozenset()) if isinstance(each, ig.StoreChannels) else each
            for each in super().handle(event, now_ms)
        ]


def test_new_rows_that_pass_rows_relocated_before_the_last_restart_are_found() -> None:
    """The parallelism is that of the checkpoint, but rows in it were relocated before it."""
    first_found("order: ", KeyedParts(gate=ForgetsRelocated), change=moving)


class TakesBeforeReplaying(ChannelRecovery):
    """P1 before P3: what is read overtakes what is spilled."""

    def check(self) -> None:
        pass

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
    first_found("spilled ones come first", KeyedParts(recovery=TakesBeforeReplaying))


class SnapshotsInPhaseOne(Unchecked):
    """A snapshot does not wait for what is still to be read."""

    def _is_due(self) -> bool:
        return self._checkpoint.is_aligned


def test_a_snapshot_in_phase_one_is_found() -> None:
    first_found("in phase 1", KeyedParts(gate=SnapshotsInPhaseOne))


class LeavesOutSpilled(Unchecked):
    """What was spilled is in no checkpoint."""

    def handle(self, event: ig.Event, now_ms: int) -> list[ig.Action]:
        return [
            ig.StoreChannels(action.checkpoint_id, kept) if isinstance(action, ig.StoreChannels) else action
            for action in super().handle(event, now_ms)
            for kept in [_without_spilled(action)]
        ]


def _without_spilled(action: ig.Action) -> Any:
    if not isinstance(action, ig.StoreChannels):
        return {}
    kept = {
        channel: tuple(each for each in buffers if isinstance(each, Buffer))
        for channel, buffers in action.channels.items()
    }
    return {channel: buffers for channel, buffers in kept.items() if buffers}


def test_spilled_buffers_that_are_not_stored_are_found() -> None:
    first_found(LOST, KeyedParts(gate=LeavesOutSpilled))


class LeavesOutOutput(ResultPartition):
    """What a barrier passes on the producer's side is in no checkpoint."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        return [
            rp.StoreChannels(action.checkpoint_id, {}) if isinstance(action, rp.StoreChannels) else action
            for action in super().handle(event, now_ms)
        ]


def test_output_that_is_not_stored_is_found() -> None:
    first_found(LOST, KeyedParts(partition=LeavesOutOutput))


class SendsWithoutCredit(ResultPartition):
    """Rows leave whether there is room for them or not."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        actions = super().handle(event, now_ms)
        for consumer, queue in self._queues.items():
            if queue.state == "blocked":
                actions += super().handle(rp.CreditGranted(consumer, 1), now_ms)
        return actions


def test_rows_without_credit_are_found() -> None:
    first_found("memory: |had no credit", KeyedParts(partition=SendsWithoutCredit))


class TakesBarriersForRows(ResultPartition):
    """A barrier waits for credit as rows do."""

    def handle(self, event: rp.Event, now_ms: int) -> list[rp.Action]:
        if isinstance(event, rp.BarrierEmitted):
            event = rp.BarrierEmitted(msgspec.structs.replace(event.barrier, unaligned=False))
        return super().handle(event, now_ms)


def test_a_barrier_that_waits_for_a_slow_operator_is_found() -> None:
    first_found(SLOW, KeyedParts(partition=TakesBarriersForRows))
