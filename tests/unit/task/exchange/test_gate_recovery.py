"""The recovery of an input gate: its table; what it is for is tested with the gate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from headgate.machine import steps_of
from headgate.protocol.channels import Buffer, ChannelId, ProducerRecovered
from headgate.task.exchange.gate_channel import ChannelConnected, GateChannel, GateExchange
from headgate.task.exchange.gate_recovery import (
    Event,
    GateRecovery,
    PhaseOneEnded,
    ProducerCaughtUp,
    RecoveredRowsProcessed,
    RecoveryEnded,
    RowsRecovered,
    RowsSpilled,
)
from tests.machines import explore

ROWS = Buffer(["a"], 1, 10)
X, Y = ChannelId("x", 0, 7), ChannelId("y", 0, 7)


class Started(msgspec.Struct, frozen=True):
    """The recovery is made. Producers that recover have announced it."""

    recovering: bool
    producers_recover: bool


class AnyRecovery:
    """A recovery that is made by the first event, and the channels as its gate has them; y is relocated."""

    def __init__(self) -> None:
        self.machine: GateRecovery | None = None
        self.channels: dict[ChannelId, GateChannel] = {}

    def handle(self, event: Event | Started, now_ms: int) -> list[Any]:
        if isinstance(event, Started):
            self._start(event)
            return []
        assert self.machine is not None
        if isinstance(event, ChannelConnected):
            self.channels[event.channel].handle(event, now_ms)
        actions = self.machine.handle(event, now_ms)
        if isinstance(event, RecoveredRowsProcessed):
            self.channels[event.channel].recovered.popleft()
        elif isinstance(event, ProducerCaughtUp):
            self.channels[event.channel].sent.popleft()
        return actions

    def check(self) -> None:
        if self.machine is not None:
            self.machine.check()

    def _start(self, event: Started) -> None:
        for each in (X, Y):
            exchange = GateExchange(each.exchange, [0] if event.producers_recover else [], relocated=each is Y)
            self.channels[each] = channel = GateChannel(each, exchange, supports_unaligned=True, credits=1)
            if event.producers_recover:
                channel.recovers = False
                channel.sent.append(ProducerRecovered())
        self.machine = GateRecovery(
            self.channels, recovering=event.recovering, producers_recover=event.producers_recover
        )


def events(machine: AnyRecovery) -> Iterator[Event | Started]:
    if machine.machine is None:
        yield from (Started(*each) for each in itertools.product((True, False), repeat=2))
        return
    yield PhaseOneEnded()
    yield RecoveryEnded()
    for channel in machine.channels.values():
        yield ChannelConnected(channel.id)
        yield RowsRecovered(channel.id, ROWS)
        for number in (1, 2):
            yield RowsSpilled(channel.id, number)
            yield RowsRecovered(channel.id, ROWS, number)
        if channel.recovered:
            yield RecoveredRowsProcessed(channel.id)
        elif channel.sent and not channel.spilled and machine.machine.state != "reading":
            yield ProducerCaughtUp(channel.id)


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""
    explore(
        AnyRecovery,
        events,
        steps=steps_of(GateRecovery.TRANSITIONS),
        state=lambda machine, event: None if machine.machine is None else machine.machine.state,
        depth=8,
        limit=4_000,
    )
