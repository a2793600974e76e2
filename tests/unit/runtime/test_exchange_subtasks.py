"""Two stages in one process, wired by a data plane: what is under way is in a checkpoint once, whatever happens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from headgate.protocol import messages as msg
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import OperatorState
from headgate.runtime.channel_recovery_thread import RECOVERY_MEMORY_BYTES
from headgate.runtime.mailbox import Mail
from headgate.task.exchange import input_gate as ig
from headgate.task.exchange import result_partition as rp
from headgate.transport.channel_ends import broken
from tests.unit.runtime import two_stages
from tests.unit.runtime.toy_query import (
    PATIENCE_S,
    Running,
    ToyOperator,
    ToySource,
    rows,
)
from tests.unit.runtime.two_stages import (
    CREDITS,
    NOW_DUE_MS,
    OFF,
    QUEUED,
    Pair,
    Start,
    TimedOperator,
    numbers_in,
    position,
)
from tests.waiting import wait_until

start = two_stages.start


def test_rows_and_checkpoints_pass_both_stages(start: Start) -> None:
    """With nothing under way a checkpoint holds no rows."""
    pair = start()
    pair.offer(1, 2, 3)
    wait_until(lambda: pair.sink.numbers == [1, 2, 3])
    pair.trigger(1)
    producer, consumer = pair.acknowledged(1)
    assert (position(producer), producer.channels, consumer.channels) == (3, (), ())


def test_a_producer_that_has_nothing_else_to_do_sends_at_once(start: Start) -> None:
    """Whatever the time-out is, which first counts from there on; a barrier is sent after what waits then."""
    pair = start(options={"exchange.buffer-timeout": "1 hour"})
    pair.offer(1)
    wait_until(lambda: pair.sink.numbers == [1])
    pair.offer(2)
    wait_until(lambda: pair._emitted() == 2)
    pair.settle(0)
    pair.settle(1)
    assert pair.sink.numbers == [1]
    pair.trigger(1)
    pair.acknowledged(1)
    assert pair.sink.numbers == [1, 2]


def test_a_checkpoint_holds_what_is_under_way_on_both_sides(start: Start) -> None:
    """The barrier passes the rows that the consumer has, and those that the producer has."""
    pair = start()
    numbers, (producer, consumer) = pair.checkpoint_in_flight()
    assert position(producer) == QUEUED
    assert numbers_in(pair, producer.channels) == {True: numbers[CREDITS:]}
    assert numbers_in(pair, consumer.channels) == {False: numbers[:CREDITS]}
    wait_until(lambda: pair.sink.numbers == numbers)


def test_the_stage_that_a_slow_one_holds_up_is_back_pressured_and_not_idle(start: Start) -> None:
    """And the slow one, which waits for its sink, is so, too; without rows both are idle."""
    pair = start()

    def waited(after: int) -> list[list[int]]:
        """Return how long each stage waited for room, and for rows, in messages after so many, from first to last."""
        of_stages = [
            [each.time for each in pair.posted[after:] if isinstance(each, msg.SubtaskProgress) and each.stage == stage]
            for stage in (0, 1)
        ]
        return [
            [last.back_pressured_ms - first.back_pressured_ms, last.idle_ms - first.idle_ms]
            for first, *_, last in (of for of in of_stages if len(of) > 2)
            if first is not None and last is not None
        ]

    wait_until(lambda: len(shares := waited(0)) == 2 and all(idle > 0 == room for room, idle in shares))
    pair.block()
    pair.fill()
    for stage in (0, 1):
        pair.settle(stage)
    before = len(pair.posted)
    wait_until(lambda: len(shares := waited(before)) == 2 and all(room > 0 == idle for room, idle in shares))
    sent, received = (
        [each for each in pair.posted if isinstance(each, msg.SubtaskProgress) and each.stage == stage][-1]
        for stage in (0, 1)
    )
    assert (sent.buffer_pool_use, sent.rows_sent, sent.rows_received) == (1.0, QUEUED, 0)
    assert (received.buffer_pool_use, received.rows_sent, received.rows_received) == (None, 0, 0)
    pair.unblock()
    wait_until(lambda: isinstance(last := pair.posted[-1], msg.SubtaskProgress) and last.rows_received == QUEUED)


def test_a_stage_is_not_busy_while_another_one_has_the_thread(start: Start) -> None:
    """That which reads has little to do, and goes on after each row; the other one takes long for each."""
    pair = start(operator=ToyOperator(process=lambda batch: time.sleep(0.02)))
    for number in range(60):
        pair.offer(number)
        wait_until(lambda: pair.sink.numbers[-1:] == [number])  # noqa: B023
    reads, takes_long = (
        [each.time for each in pair.posted if isinstance(each, msg.SubtaskProgress) and each.stage == stage][-1]
        for stage in (0, 1)
    )
    assert reads is not None and takes_long is not None
    busy = [each.elapsed_ms - each.idle_ms - each.back_pressured_ms for each in (reads, takes_long)]
    assert busy[0] < busy[1] / 2


def test_an_aligned_checkpoint_holds_no_rows(start: Start) -> None:
    """It waits for them."""
    pair = start()
    pair.block()
    numbers = pair.fill()
    pair.trigger(1, unaligned=False)
    pair.settle(0)
    pair.unblock()
    producer, consumer = pair.acknowledged(1)
    assert (producer.channels, consumer.channels) == ((), ())
    assert pair.sink.numbers[: pair.sink.prepared_at[1]] == numbers


def test_an_aligned_barrier_passes_when_its_time_is_over(start: Start) -> None:
    """On the producer's side, and so without a timeout on the consumer's."""
    pair = start()
    numbers, (producer, consumer) = pair.checkpoint_in_flight(alignment_timeout_ms=30)
    found = numbers_in(pair, (*consumer.channels, *producer.channels))
    assert found[False] + found[True] == numbers


def fail_at_a_row(pair: Pair) -> None:
    pair.offer(13)


def fail_at_a_mail(pair: Pair) -> None:
    pair.runners[1].post(Mail(lambda: refuse_thirteen(rows(13))))


def refuse_thirteen(batch: pa.RecordBatch) -> None:
    if 13 in batch.column("n").to_pylist():
        raise ValueError("thirteen")


@pytest.mark.parametrize("fail", [fail_at_a_row, fail_at_a_mail])
def test_an_error_of_a_stage_is_that_of_no_other(start: Start, fail: Callable[[Pair], None]) -> None:
    """Whether they have a thread together or not: the other one goes on."""
    pair = start(operator=ToyOperator(process=refuse_thirteen))
    pair.offer(1)
    wait_until(lambda: pair.sink.numbers == [1])
    fail(pair)
    wait_until(lambda: bool(pair.failures()))
    pair.settle(0)
    pair.settle(1)
    assert [(each.stage, "thirteen" in each.error.message) for each in pair.failures()] == [(1, True)]
    assert [each.subtask.execution is None for each in pair.runners.values()] == [False, True]
    wait_until(lambda: not any(each.busy_since() for each in pair.runners.values()))


@pytest.mark.parametrize("options", [{}, OFF], ids=["on", "off"])
def test_a_restart_in_place_loses_nothing_and_repeats_nothing(start: Start, options: dict[str, str]) -> None:
    """Rows under way, of the old execution and of the checkpoint; and once more, from a checkpoint after it."""
    pair = start(options=options)
    numbers, first = pair.checkpoint_in_flight()
    wait_until(lambda: pair.sink.numbers == numbers)
    done = pair.sink.numbers[: pair.sink.prepared_at[1]]

    pair.block()
    pair.offer(*range(500, 520))  # after the checkpoint: the source reads other numbers when it is restored
    wait_until(lambda: pair._emitted() >= QUEUED + 5)
    pair.restart(first, 1, unblocks=True)
    more = list(range(QUEUED, QUEUED + 3))
    pair.offer(*more)
    wait_until(lambda: len(pair.sink.numbers) >= len(numbers) - len(done) + len(more))
    assert done + pair.sink.numbers == numbers + more

    pair.trigger(2)
    second = pair.acknowledged(2)
    done += pair.sink.numbers[: pair.sink.prepared_at[2]]
    pair.restart(second, 2)
    pair.offer(777)
    wait_until(lambda: bool(pair.sink.numbers) and pair.sink.numbers[-1] == 777)
    assert done + pair.sink.numbers == [*numbers, *more, 777]
    assert not pair.failures()


def abort_before_the_barrier(pair: Pair) -> None:
    """The consumer hears of the abort first."""
    pair.deliver(1, msg.CheckpointAborted, checkpoint_id=1)
    pair.trigger(1)
    pair.deliver(0, msg.CheckpointAborted, checkpoint_id=1)
    pair.settle(0)
    pair.settle(1)
    pair.unblock()


def abort_while_the_order_waits(pair: Pair) -> None:
    """The snapshot is ordered, and the sink has no room for what is to be processed before it."""
    pair.trigger(1)
    pair.wait_for_order()
    pair.both(msg.CheckpointAborted, checkpoint_id=1)
    pair.settle(1)
    pair.unblock()


def abort_while_operators_prepare(pair: Pair) -> None:
    """The channels' part is there, the sink's is not."""
    pair.trigger(1)
    pair.wait_for_order()
    pair.unblock()
    wait_until(lambda: pair.prepares(1))
    pair.both(msg.CheckpointAborted, checkpoint_id=1)
    pair.settle(1)
    pair.sink.prepared[-1].set_result(OperatorState())


def abort_while_uploads_run(pair: Pair) -> None:
    """The channels' part is not there."""
    pair.storage.open.clear()
    pair.trigger(1)
    pair.wait_for_order()
    pair.unblock()
    wait_until(lambda: pair.prepares(1))
    pair.sink.prepared[-1].set_result(OperatorState())
    pair.both(msg.CheckpointAborted, checkpoint_id=1)
    pair.settle(1)
    pair.storage.open.set()


def abort_a_suspension(pair: Pair) -> None:
    """Nothing is emitted, and then everything again."""
    pair.trigger(1, kind=CheckpointKind.SUSPEND)
    pair.wait_for_order()
    pair.unblock()
    wait_until(lambda: pair.prepares(1))
    pair.both(msg.CheckpointAborted, checkpoint_id=1)


def abort_that_is_slower_than_the_next_barrier(pair: Pair) -> None:
    """The consumer is still suspended by it when the next one's barrier comes through its channel."""
    pair.trigger(1, kind=CheckpointKind.SUSPEND)
    pair.wait_for_order()
    pair.unblock()
    wait_until(lambda: pair.prepares(1))
    pair.deliver(0, msg.CheckpointAborted, checkpoint_id=1)
    pair.trigger(2)
    pair.settle(0)
    pair.settle(1)
    pair.deliver(1, msg.CheckpointAborted, checkpoint_id=1)


@pytest.mark.parametrize(
    "abort",
    [
        abort_before_the_barrier,
        abort_while_the_order_waits,
        abort_while_operators_prepare,
        abort_while_uploads_run,
        abort_a_suspension,
        abort_that_is_slower_than_the_next_barrier,
    ],
)
def test_a_checkpoint_that_is_aborted_at_any_moment_costs_nothing(start: Start, abort: Callable[[Pair], None]) -> None:
    """The next one is complete, and what is restored from it has every row once."""
    pair = start()
    pair.block()
    numbers = pair.fill()
    abort(pair)
    if abort is not abort_that_is_slower_than_the_next_barrier:
        pair.trigger(2)
    states = pair.acknowledged(2)
    wait_until(lambda: pair.sink.numbers == numbers)
    done = pair.sink.numbers[: pair.sink.prepared_at[2]]
    pair.restart(states, 2)
    pair.offer(777)
    wait_until(lambda: bool(pair.sink.numbers) and pair.sink.numbers[-1] == 777)
    assert done + pair.sink.numbers == [*numbers, 777]
    assert not pair.failures()
    assert all(
        not runner.subtask._execution._snapshots._parts  # type: ignore[union-attr]
        for runner in pair.runners.values()
        if runner.subtask._execution is not None
    )
    assert not [
        message for message in pair.posted if isinstance(message, msg.CheckpointAcknowledged)
        and (message.checkpoint_id, message.stage) == (1, 1)
    ]  # fmt: skip


def test_a_drain_goes_through_both_stages(start: Start) -> None:
    """What operators emit at the end is processed, and in the last checkpoint; who ended takes part in later ones."""
    pair = start(operator=ToyOperator(), feeding=ToyOperator())
    pair.offer(1, 2)
    wait_until(lambda: pair.sink.numbers == [1, 2])
    pair.trigger(1, unaligned=False, kind=CheckpointKind.DRAIN)
    producer, consumer = pair.acknowledged(1)
    assert producer.input_ended and consumer.input_ended
    assert pair.sink.numbers == [1, 2, -1, -1]
    assert ("prepare", 1, True) in pair.sink.calls
    pair.trigger(2)
    pair.acknowledged(2)


def test_a_channel_that_is_connected_late_loses_nothing(start: Start) -> None:
    """A checkpoint that begins before is complete after that."""
    pair = start(connect=False)
    pair.offer(1, 2, 3)
    pair.trigger(1)
    pair.settle(0)
    pair.connect()
    pair.acknowledged(1)
    wait_until(lambda: pair.sink.numbers == [1, 2, 3])


def test_where_the_slots_were_is_not_where_they_are(start: Start) -> None:
    """A message of another generation or execution connects nothing."""
    pair = start(connect=False)
    pair.offer(1)
    pair.both(msg.SlotsLocated, generation=pair.generation + 1, addresses={0: "nowhere:1"})
    pair.execution -= 1
    pair.connect()
    pair.execution += 1
    pair.settle(1)
    pair.connect()
    wait_until(lambda: pair.sink.numbers == [1])
    assert not pair.failures()


def test_a_restart_while_rows_are_being_recovered_begins_anew(start: Start) -> None:
    """Recovered buffers of the old execution, and its thread's messages, do not reach the new one."""
    pair = start()
    numbers, states = pair.checkpoint_in_flight()
    wait_until(lambda: pair.sink.numbers == numbers)
    done = pair.sink.numbers[: pair.sink.prepared_at[1]]
    pair.sink.room = Future()
    for _ in range(5):
        pair.restart(states, 1)
    pair.unblock()
    wait_until(lambda: len(pair.sink.numbers) >= len(numbers) - len(done))
    pair.offer(777)
    wait_until(lambda: pair.sink.numbers[-1] == 777)
    assert done + pair.sink.numbers == [*numbers, 777]
    assert not pair.failures()


@pytest.mark.parametrize("relocated", [False, True])
@pytest.mark.parametrize("memory_bytes", [RECOVERY_MEMORY_BYTES, 1], ids=["in memory", "spilled"])
def test_a_checkpoint_during_recovery_holds_what_is_not_processed_yet(
    start: Start, relocated: bool, memory_bytes: int
) -> None:
    """Once, whichever side it was on, on the disk too; and whether new rows of its keys come through other channels."""
    pair = start(memory_bytes=memory_bytes)
    numbers, states = pair.checkpoint_in_flight()
    done = pair.sink.numbers[: pair.sink.prepared_at[1]]
    wait_until(lambda: pair.sink.numbers == numbers)
    moved = [msgspec.structs.replace(each, relocated=relocated) for each in states[1].channels]
    states = states[0], msgspec.structs.replace(states[1], channels=tuple(moved))
    for checkpoint_id in (2, 3, 4):
        pair.sink.room = Future()
        pair.restart(states, checkpoint_id - 1)
        progress = pair.recovery_that_waits("processing" if memory_bytes > 1 else "replaying")
        assert (progress.rows_to_read, progress.rows_left) == (0, len(numbers) - len(done))
        assert progress.memory_bytes > 0 and (progress.disk_bytes > 0) == (memory_bytes == 1)
        pair.trigger(checkpoint_id)
        pair.wait_for_order()
        pair.unblock()
        states = pair.acknowledged(checkpoint_id)
        done += pair.sink.numbers[: pair.sink.prepared_at[checkpoint_id]]
        found = numbers_in(pair, (*states[1].channels, *states[0].channels))
        assert done + found.get(False, []) + found.get(True, []) == numbers
        assert {each.relocated for each in states[1].channels} == {relocated}
        assert position(states[0]) == QUEUED
        recovered = msg.SubtaskRecovered(stage=1, execution=pair.execution)
        wait_until(lambda recovered=recovered: recovered in pair.posted)  # type: ignore[misc]


def test_what_is_spilled_on_another_disk_is_deleted_with_the_execution(start: Start) -> None:
    pair = start(memory_bytes=1)
    pair.disks[0].parent.mkdir(exist_ok=True)
    pair.disks[0].write_text("a disk that cannot be written")
    _, states = pair.checkpoint_in_flight()
    pair.sink.room = Future()
    pair.restart(states, 1)
    assert pair.recovery_that_waits("replaying").disk_bytes > 0
    assert [each.name for each in pair.disks[1].iterdir()] == [f"1-0-{pair.execution}"]
    pair.unblock()
    pair.close()
    assert list(pair.disks[1].iterdir()) == []


def test_an_operator_gets_the_time_once_however_long_its_output_has_no_room(start: Start) -> None:
    """Not again in every turn: what waits would grow without end."""
    operator = TimedOperator()
    pair = start(feeding=operator)
    pair.block()
    pair.fill()
    operator.does["due"] = lambda: NOW_DUE_MS
    reported: list[int] = []
    operator.does["time"] = lambda: (reported.append(1), operator.does.pop("due"))
    for _ in range(20):
        pair.settle(0)
    pair.unblock()
    wait_until(lambda: bool(reported))
    pair.settle(0)
    assert reported == [1]


def test_nobody_gets_the_time_after_the_end(start: Start) -> None:
    """Nor asked for it over and over."""
    operator = TimedOperator()
    pair = start(feeding=operator)
    pair.trigger(1, kind=CheckpointKind.DRAIN, unaligned=False)
    pair.acknowledged(1)
    asked: list[int] = []
    operator.does["due"] = lambda: asked.append(1) or NOW_DUE_MS
    for _ in range(20):
        pair.settle(0)
    assert not asked


def test_a_slot_that_ends_first_does_not_disturb_one_that_publishes(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links break, which is not a failure then."""
    monkeypatch.setattr("headgate.runtime.execution._BROKEN_PATIENCE_MS", 0)
    pair = start()
    pair.offer(1)
    wait_until(lambda: pair.sink.numbers == [1])
    pair.trigger(1, kind=CheckpointKind.SUSPEND)
    pair.acknowledged(1)
    pair.sink.finished = Future()
    finishing = threading.Thread(target=lambda: finished.append(pair.runners[1].finish(PATIENCE_S)))
    finished: list[bool] = []
    finishing.start()
    consumer = pair.runners[1].subtask._execution
    assert consumer is not None
    wait_until(lambda: consumer._finishing)
    pair.runners[0].post(Mail(pair.runners[0].subtask.close))
    for _ in range(5):
        pair.settle(1)
    pair.sink.finished.set_result(None)
    finishing.join(PATIENCE_S)
    assert finished == [True]
    assert not pair.failures()


def test_a_subtask_reports_once_to_which_slot_it_lost_its_connection_and_runs_on(start: Start) -> None:
    """The driver knows what became of that slot."""
    pair = start()
    pair.offer(1)
    wait_until(lambda: pair.sink.numbers == [1])
    consumer = pair.runners[1].subtask._execution
    assert consumer is not None
    for producer in (3, 3, 5, 0):
        error = broken(ChannelId("keys", producer, 0), "planned")
        consumer.context.mailbox.post(Mail(partial(consumer.on_broken, error)))
    pair.settle(1)
    reports = [message for message in pair.posted if isinstance(message, msg.LinkBroken)]
    assert reports == [msg.LinkBroken(stage=1, execution=pair.execution, peer=peer) for peer in (3, 5)]
    pair.offer(2)
    wait_until(lambda: pair.sink.numbers == [1, 2])
    assert not pair.failures()


def test_a_query_without_an_exchange_deletes_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no folder of its own, and least of all one where it happens to be started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "0-2-1").mkdir()
    running = Running(s=ToySource())
    running.start()
    running.close()
    assert (tmp_path / "0-2-1").exists()


def test_a_barrier_that_a_newer_one_passed_is_dropped() -> None:
    """The message that its checkpoint was aborted may be slower than the newer barrier."""
    channel = ChannelId("keys", 0, 0)
    partition = rp.ResultPartition("keys", 0, [0], supports_unaligned=True)
    gate = ig.InputGate(0, {"keys": ig.GateInput(stage=0, producers=(0,), supports_unaligned=True)}, credits=1)

    def sent(event: rp.Event) -> list[str]:
        done = []
        for action in partition.handle(event, 0):
            if isinstance(action, rp.Transmit):
                done += [type(each).__name__ for each in gate.handle(ig.ElementArrived(channel, action.element), 0)]
                gate.check()
        return done

    sent(rp.ConsumerConnected(0))
    gate.handle(ig.ChannelConnected(channel), 0)
    sent(rp.CreditGranted(0, 1))
    for n in (1, 2):
        sent(rp.RowsEmitted(0, Buffer([n], 1, 8)))
    assert sent(rp.BarrierEmitted(Barrier(checkpoint_id=1))) == []
    assert sent(rp.BarrierEmitted(Barrier(checkpoint_id=2, unaligned=True))) == ["TakeSnapshot", "StoreChannels"]
    gate.handle(ig.Polled(), 0)
    gate.handle(ig.Polled(), 0)
    assert sent(rp.CreditGranted(0, 1)) == []
    gate.handle(ig.Polled(), 0)
    gate.handle(ig.Polled(), 0)
    assert sent(rp.BarrierEmitted(Barrier(checkpoint_id=3))) == ["TakeSnapshot", "StoreChannels"]
