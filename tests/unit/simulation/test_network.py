"""Connections of the simulator: first in, first out, and nothing after a break."""

from __future__ import annotations

import random

from headgate.protocol.messages import Envelope, SlotHeartbeat
from headgate.simulation.clockwork import Clockwork, Process
from headgate.simulation.network import Network


def messages(count: int) -> list[Envelope]:
    return [
        Envelope(run=1, slot=0, attempt=0, number=number, received=0, message=SlotHeartbeat())
        for number in range(1, count + 1)
    ]


def test_what_travels_on_one_connection_keeps_its_order() -> None:
    clock, came = Clockwork(), []
    network = Network(clock, random.Random(3))
    connection = network.connect(Process("slot"), Process("driver"))
    for envelope in messages(20):
        network.to_driver(connection, envelope, lambda number, each: came.append((number, each.number)))

    while clock.step():
        pass
    assert came == [(1, number) for number in range(1, 21)]


def test_a_break_loses_what_is_under_way_and_both_ends_notice_once() -> None:
    clock, seen = Clockwork(), []
    network = Network(clock, random.Random(3))
    connection = network.connect(Process("slot"), Process("driver"))
    network.to_slot(connection, messages(1)[0], lambda each: seen.append("message"))
    for _ in range(2):
        network.break_(connection, lambda: seen.append("slot"), lambda: seen.append("driver"))

    while clock.step():
        pass
    assert sorted(seen) == ["driver", "slot"]


def test_a_connection_that_is_closed_delivers_first_what_was_sent_before() -> None:
    clock, seen = Clockwork(), []
    network = Network(clock, random.Random(3))
    connection = network.connect(Process("slot"), Process("driver"))
    network.to_slot(connection, messages(1)[0], lambda each: seen.append("message"))
    network.close(connection, lambda: seen.append("closed"))

    while clock.step():
        pass
    assert seen == ["message", "closed"]
