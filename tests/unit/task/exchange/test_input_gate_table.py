"""The input gate's table is what it does: with recovery and without, with connections that stay aligned.

Those of the machines that it is made of are explored in their own tests.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from headgate.machine import steps_of
from headgate.protocol.channels import (
    Barrier,
    ChannelId,
    Element,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.task.exchange.input_gate import (
    Action,
    ChannelConnected,
    CheckpointGivenUp,
    ElementArrived,
    Event,
    GateInput,
    GateTimePassed,
    InputGate,
    MorePolled,
    PhaseOneEnded,
    Polled,
    RecoveryEnded,
    RowsPutBack,
    RowsRecovered,
    RowsSpilled,
)
from tests.machines import Later, explore
from tests.unit.task.exchange.gate_world import CONSUMER, channel, forget_history, rows

X, Y = channel(0), channel(0, "y")  # y stays aligned
CONNECTED = (ChannelConnected(X), ChannelConnected(Y))
ALIGNED = Barrier(checkpoint_id=1)
NEXT = Barrier(checkpoint_id=2)
UNALIGNED = Barrier(checkpoint_id=1, unaligned=True)
TIMEOUT = Barrier(checkpoint_id=1, unaligned=True, alignment_timeout_ms=10)
WATERMARK = WatermarkPassed(5)
SENT = (rows("a"), WATERMARK, ProducerIdle(), ProducerRecovered(), ProducerEnded(), ALIGNED, UNALIGNED, NEXT)
RECOVERED = (RowsRecovered(X, rows("r")), PhaseOneEnded())
AFTER = (ProducerRecovered(), ALIGNED)


def on(channel: ChannelId, *elements: Element) -> tuple[Event, ...]:
    return tuple(ElementArrived(channel, each) for each in elements)


STARTS: dict[str, tuple[tuple[Event, ...], bool, bool]] = {
    "new": ((), False, False),
    "running": (CONNECTED, False, False),
    "rows wait": ((*CONNECTED, *on(X, rows("a"), WATERMARK)), False, False),
    "one is ended": ((*CONNECTED, *on(X, ProducerEnded()), Polled()), False, False),
    "rows are processed": ((*CONNECTED, *on(X, rows("a")), Polled()), False, False),
    "two buffers": ((*CONNECTED, *on(X, rows("a"), rows("b")), Polled()), False, False),
    "aligning": ((*CONNECTED, *on(X, ALIGNED)), False, False),
    "aligning, last rows": ((*CONNECTED, *on(X, rows("a"), ALIGNED), *on(Y, ALIGNED), Polled()), False, False),
    "aligning, rows": ((*CONNECTED, *on(Y, rows("a")), *on(X, UNALIGNED), Polled()), False, False),
    "aligning, watermark": ((*CONNECTED, *on(Y, WATERMARK, UNALIGNED), *on(X, UNALIGNED)), False, False),
    "aligning, until time": ((*CONNECTED, *on(Y, TIMEOUT)), False, False),
    "aligning, until time x": ((*CONNECTED, *on(X, TIMEOUT)), False, False),
    "aligning, rows and time": ((*CONNECTED, *on(Y, TIMEOUT), *on(X, rows("a")), Polled()), False, False),
    "storing": ((*CONNECTED, *on(Y, UNALIGNED)), False, False),
    "reading": ((RowsRecovered(X, rows("r")),), True, False),
    "reading, spilled": ((*CONNECTED, RowsSpilled(X, 1), RowsSpilled(Y, 2)), True, False),
    "reading, aligning": ((*CONNECTED, *on(X, UNALIGNED)), True, False),
    "replaying": ((*CONNECTED, RowsRecovered(X, rows("r")), RowsSpilled(X, 1), PhaseOneEnded()), True, False),
    "replaying, aligning": ((*CONNECTED, RowsRecovered(X, rows("r")), PhaseOneEnded(), *on(X, UNALIGNED)), True, False),
    "replaying, storing": ((*CONNECTED, RowsSpilled(X, 1), PhaseOneEnded(), *on(Y, UNALIGNED)), True, False),
    "replayed": ((*CONNECTED, RowsRecovered(X, rows("r")), PhaseOneEnded(), RecoveryEnded()), True, False),
    "producers recover": ((*CONNECTED, *on(X, ProducerRecovered())), False, True),
    "idle": ((*CONNECTED, *on(X, ProducerIdle(), WATERMARK), Polled()), False, False),
    "reading, aligned": ((*CONNECTED, *on(Y, ALIGNED)), True, False),
    "reading, passing": ((*CONNECTED, *on(Y, UNALIGNED)), True, False),
    "reading, two": ((*CONNECTED, *on(Y, UNALIGNED), *on(X, UNALIGNED, NEXT)), True, False),
    "storing, next": ((*CONNECTED, *on(Y, UNALIGNED, rows("a"), NEXT), Polled()), False, False),
    "aligning, next": ((*CONNECTED, *on(Y, rows("a"), UNALIGNED, NEXT), Polled()), False, False),
    "after events": ((*CONNECTED, *on(X, *AFTER), *on(Y, *AFTER)), False, True),
    "relocated": ((ChannelConnected(Y), RowsRecovered(X, rows("r")), PhaseOneEnded(), RecoveryEnded()), True, False),
    "one is connected": ((ChannelConnected(X), *on(X, rows("a")), Polled()), False, False),
    "reading, passing, rows": ((*CONNECTED, *on(Y, UNALIGNED), RowsRecovered(X, rows("r")), Polled()), True, False),
    "two recovered": ((RowsRecovered(X, rows("r")), RowsRecovered(X, rows("s")), Polled()), True, False),
    "replaying, none is connected": ((*RECOVERED, Polled()), True, False),
    "recovered, then rows": ((*CONNECTED, *RECOVERED, Polled(), RecoveryEnded(), *on(Y, rows("a"))), True, False),
    "recovered, and time": ((*CONNECTED, *RECOVERED, RecoveryEnded(), Polled(), *on(Y, TIMEOUT)), True, False),
    "idle, rows": (
        (*CONNECTED, *on(X, ProducerIdle(), rows("a"), WATERMARK), Polled(), Polled()),
        False,
        False,
    ),
    "all barriers, and time": ((*CONNECTED, *on(X, rows("a"), TIMEOUT), *on(Y, TIMEOUT)), False, False),
    "both recover": (
        (*CONNECTED, *on(X, ProducerRecovered()), *on(Y, ProducerRecovered()), PhaseOneEnded()),
        True,
        True,
    ),
}


class Started(msgspec.Struct, frozen=True):
    """The gate is made, and this is what it received."""

    how: str


class AnyGate:
    """A gate that is made by the first event."""

    def __init__(self) -> None:
        self.gate: InputGate | None = None

    def handle(self, event: Event | Started, now_ms: int) -> list[Action]:
        if isinstance(event, Started):
            ordered, recovering, producers_recover = STARTS[event.how]
            inputs = {
                "x": GateInput(stage=0, producers=(0,), supports_unaligned=True, relocated=event.how == "relocated"),
                "y": GateInput(stage=1, producers=(0,), supports_unaligned=False),
            }
            self.gate = InputGate(
                CONSUMER,
                inputs,
                credits=1 + (event.how == "two buffers"),
                recovering=recovering,
                producers_recover=producers_recover,
            )
            for each in ordered:
                self.gate.handle(each, now_ms)
            return []
        assert self.gate is not None
        actions = self.gate.handle(event, now_ms)
        forget_history(self.gate)
        return actions

    def check(self) -> None:
        if self.gate is not None:
            self.gate.check()


def events(machine: AnyGate) -> Iterator[Event | Started | Later]:
    if machine.gate is None:
        yield from map(Started, STARTS)
        return
    yield Polled()
    yield Polled(overdraft=True)
    yield MorePolled()
    yield RowsPutBack(rows("a"))
    yield PhaseOneEnded()
    yield RecoveryEnded()
    yield CheckpointGivenUp(1)
    yield Later(GateTimePassed(), by_ms=10)
    for where in (X, Y):
        yield ChannelConnected(where)
        for each in SENT:
            yield ElementArrived(where, each)
    yield RowsRecovered(X, rows("r"))
    yield RowsSpilled(X, 1)
    yield RowsRecovered(X, rows("s"), 1)


def test_the_table_is_what_the_gate_does() -> None:
    """Every step from many a place has its row, and every row happens."""
    explore(
        AnyGate,
        events,
        steps=steps_of(InputGate.TRANSITIONS),
        state=lambda machine, event: None if machine.gate is None else machine.gate.state,
        ignore=("_gate_channels",),
        depth=3,
    )
