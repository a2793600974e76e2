"""A checkpoint at an input gate: its table; what it is for is tested with the gate."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.task.exchange.barrier_handler import (
    BarrierHandler,
    BarrierReached,
    BarrierSeen,
    ChannelsAligned,
    CheckpointGivenUp,
    Event,
    GateTimePassed,
    LateBarrierArrived,
    RowsFollowed,
    Spilled,
    SpilledReplayed,
)
from tests.machines import Later, explore

ROWS = Buffer(["a"], 1, 10)
X, Y, Z = (ChannelId(each, 0, 7) for each in "xyz")  # in z barriers never pass


def events(machine: BarrierHandler) -> Iterator[Event | Later]:
    """What a gate may report: no barrier twice, and none that is over."""
    for number in (1, 2):
        yield CheckpointGivenUp(number)
        if machine.is_over(number):
            continue
        for channel in (X, Y, Z):
            if number == machine.newest and channel in machine.at_head:
                continue
            yield BarrierReached(channel, Barrier(checkpoint_id=number))
            if number != machine.newest or channel not in machine._arrived:
                for timeout_ms in (0, 10):
                    yield BarrierSeen(
                        channel, Barrier(checkpoint_id=number, unaligned=True, alignment_timeout_ms=timeout_ms)
                    )
    if machine.is_aligned:
        standing: dict[ChannelId, list[Buffer | Spilled]] = {X: [ROWS, Spilled(1)], Y: []}
        yield ChannelsAligned({} if machine.state == "aligning" else standing, frozenset("x"))
    for channel in machine.missing:
        yield RowsFollowed(channel, ROWS)
        yield LateBarrierArrived(channel)
    if machine.state == "storing" and Spilled(1) in machine._stored[X]:
        yield SpilledReplayed(X, 1, ROWS)
    yield GateTimePassed()
    yield Later(GateTimePassed(), by_ms=10)


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""
    explore(lambda: BarrierHandler(3, frozenset({Z})), events, depth=7, limit=3_000)


def test_barriers_of_a_checkpoint_are_over_once_it_is_newer_taken_or_given_up() -> None:
    """Late ones, which the snapshot was taken without, say what else is to be stored."""
    machine = BarrierHandler(2, frozenset())
    machine.handle(CheckpointGivenUp(3), 0)
    machine.handle(BarrierSeen(X, Barrier(checkpoint_id=2, unaligned=True)), 0)
    assert [machine.is_over(number) for number in (1, 2, 3, 4)] == [True, False, True, False]
    machine.handle(ChannelsAligned({X: [], Y: []}, frozenset()), 0)
    assert machine.is_over(2) and machine.is_late(2) and machine.missing == {Y}
