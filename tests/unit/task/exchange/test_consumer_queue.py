"""The queue of one consumer: its table. What it is for is tested with `headgate.task.exchange.result_partition`."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.protocol.channels import Barrier, Buffer, WatermarkPassed
from headgate.task.exchange.consumer_queue import (
    BarrierCleared,
    BarrierEmitted,
    BarrierPasses,
    CheckpointGivenUp,
    ConsumerConnected,
    ConsumerQueue,
    CreditGranted,
    Event,
    EventEmitted,
    RowsEmitted,
    Transmit,
)
from tests.machines import explore

ROWS = Buffer(["a"], 1, 10)


def queue() -> ConsumerQueue:
    return ConsumerQueue("'keys' of subtask 0", 1)


def events(machine: ConsumerQueue) -> Iterator[Event]:
    standing = [each.checkpoint_id for each in machine._elements if isinstance(each, Barrier)]
    yield ConsumerConnected(1)
    yield CreditGranted(1, 0)
    yield CreditGranted(1, 1)
    yield RowsEmitted(1, ROWS)
    yield EventEmitted(WatermarkPassed(5))
    for checkpoint_id in (max(standing, default=0) + 1, *standing[:1]):
        yield BarrierPasses(Barrier(checkpoint_id=checkpoint_id))
        yield CheckpointGivenUp(checkpoint_id)
    yield BarrierEmitted(Barrier(checkpoint_id=max(standing, default=0) + 1))


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""
    explore(queue, events, depth=6, limit=1_500)


def test_a_barrier_passes_rows_but_neither_barriers_nor_what_comes_after_it() -> None:
    """What it passes it says; a barrier that stood in the queue keeps no second place in it."""
    made, first, second = queue(), Barrier(checkpoint_id=1), Barrier(checkpoint_id=2)
    for event in (RowsEmitted(1, ROWS), BarrierEmitted(second), EventEmitted(WatermarkPassed(5))):
        assert made.handle(event, 0) == []
    assert made.handle(BarrierPasses(first), 0) == [BarrierCleared(1, 1, (ROWS,))]
    assert made.handle(BarrierPasses(second), 0) == [BarrierCleared(1, 2, (ROWS,))]
    assert made.handle(ConsumerConnected(1), 0) == [
        Transmit(1, first), BarrierCleared(1, 1), Transmit(1, second), BarrierCleared(1, 2)
    ]  # fmt: skip
    assert made.handle(CreditGranted(1, 1), 0) == [Transmit(1, ROWS), Transmit(1, WatermarkPassed(5))]
