"""A channel of an input gate: its table, and what it holds; the rest is tested with the gate."""

from __future__ import annotations

from collections.abc import Iterator

from headgate.machine import steps_of
from headgate.protocol.channels import (
    Barrier,
    Buffer,
    ChannelId,
    ProducerActive,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.task.exchange.gate_channel import (
    BufferProcessed,
    ChannelConnected,
    CreditAllowed,
    Event,
    GateChannel,
    GateExchange,
    Spilled,
)
from tests.machines import explore

ID = ChannelId("x", 0, 1)
ROWS = Buffer(["a"], 1, 10)


def made() -> GateChannel:
    return GateChannel(ID, GateExchange("x", [0], relocated=False), supports_unaligned=True, credits=1)


class Checked:
    """A channel whose buffers are processed where they are."""

    def __init__(self) -> None:
        self.channel = made()

    def handle(self, event: Event, now_ms: int) -> list[object]:
        actions = self.channel.handle(event, now_ms)
        if isinstance(event, BufferProcessed):
            self.channel.sent.remove(ROWS)
        return actions

    def check(self) -> None:
        self.channel.check_credits(polled=False)


def events(checked: Checked) -> Iterator[Event]:
    machine = checked.channel
    yield ChannelConnected(ID)
    if machine.state != "granted":
        yield CreditAllowed()
    if ROWS in machine.sent:
        yield BufferProcessed()
    yield ROWS
    yield WatermarkPassed(5)
    yield ProducerIdle()
    yield ProducerActive()
    yield ProducerRecovered()
    yield ProducerEnded()
    yield Barrier(checkpoint_id=1)
    yield Barrier(checkpoint_id=2)


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""
    explore(
        Checked,
        events,
        steps=steps_of(GateChannel.TRANSITIONS),
        state=lambda checked, event: checked.channel.state,
        depth=6,
        limit=1_500,
    )


def test_what_stands_before_a_barrier_is_recovered_then_spilled_then_sent() -> None:
    """Up to the barrier; rows only."""
    channel, barrier = made(), Barrier(checkpoint_id=1)
    channel.recovered.append(ROWS)
    channel.spilled.append(3)
    channel.sent += [ROWS, WatermarkPassed(5), barrier, ROWS]
    assert channel.standing_before(1) == [ROWS, Spilled(3), ROWS]
    assert channel.standing_before(2) == [ROWS, Spilled(3), ROWS, ROWS]


def test_rows_of_a_relocated_exchange_wait_for_what_every_producer_recovered() -> None:
    """And for all that is recovered here; others wait for nobody."""
    exchange = GateExchange("x", [0, 1], relocated=True)
    assert (exchange.is_held, exchange.holds(0), exchange.holds(2)) == (False, False, True)
    exchange.left = 1
    assert exchange.is_held and exchange.holds(0)
    assert not GateExchange("x", [0], relocated=False).holds(1)
