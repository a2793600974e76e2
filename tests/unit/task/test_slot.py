"""A slot's stream: the table first, then what must not get lost, as short stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.errors import InvalidTransitionError
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope, Message
from headgate.task import slot
from headgate.task.slot import SlotMachine
from tests.machines import Later, explore

MESSAGE = msg.SubtaskRunning(stage=0, execution=1)


def machine() -> SlotMachine:
    return SlotMachine(run=7, slot=2, attempt=3, host="h", pid=11, executor="e", heartbeat_timeout_ms=1000)


def envelope(message: Message, *, number: int = 0, received: int = 0) -> Envelope:
    return Envelope(run=7, slot=2, attempt=3, number=number, received=received, message=message)


def connected() -> SlotMachine:
    made = machine()
    made.handle(slot.SlotStarted(), 0)
    made.handle(slot.StreamOpened(1), 0)
    made.handle(slot.EnvelopeReceived(1, envelope(msg.SlotAccepted())), 0)
    return made


def events(of: SlotMachine) -> Iterator[slot.Event | Later]:
    connection = of._connection
    yield slot.SlotStarted()
    for number in (connection, connection - 1):
        yield slot.StreamOpened(number)
        yield slot.StreamBroken(number)
        yield slot.EnvelopeReceived(number, envelope(msg.SlotAccepted()))
        yield slot.EnvelopeReceived(number, envelope(msg.SlotFenced(reason="older")))
        yield slot.EnvelopeReceived(number, envelope(msg.Deploy(stage=0, execution=1, parallelism=4), number=1))
        yield slot.EnvelopeReceived(number, envelope(msg.ShutDownSlot(), number=2))
        yield slot.EnvelopeReceived(number, envelope(msg.CoordinatorHeartbeat()))
    yield slot.MessagePosted(MESSAGE)
    yield slot.MessagePosted(msg.SubtaskProgress(stage=0, execution=1))
    yield slot.SubtaskEnded(0, 1)
    yield slot.SlotCancelled("the job is over")
    for by_ms in (0, 250, 1000):
        yield Later(slot.SlotTimePassed(), by_ms)


def test_the_table_is_what_the_machine_does() -> None:
    explore(
        machine,
        events,
        ignore=("_connection", "_delay_ms", "_connect_ms", "_heard_ms", "_beat_ms"),
        depth=6,
    )


def sent(actions: list[slot.Action]) -> list[Envelope]:
    """Return the envelopes of actions that send and do nothing else."""
    return [action.envelope for action in actions if isinstance(action, slot.SendEnvelope)]


def test_a_slot_registers_with_what_it_is_and_what_it_runs() -> None:
    made = connected()
    made.handle(slot.EnvelopeReceived(1, envelope(msg.Deploy(stage=0, execution=4, parallelism=4), number=1)), 1)
    made.handle(slot.StreamBroken(1), 2)
    made.handle(slot.SlotTimePassed(), 52)

    assert sent(made.handle(slot.StreamOpened(2), 53)) == [
        envelope(msg.RegisterSlot(host="h", pid=11, executor="e", running={0: 4}), received=1)
    ]


def test_an_ended_subtask_is_not_reported_but_a_newer_one_is() -> None:
    made = connected()
    made.handle(slot.EnvelopeReceived(1, envelope(msg.Deploy(stage=0, execution=4, parallelism=4), number=1)), 1)
    made.handle(slot.EnvelopeReceived(1, envelope(msg.Deploy(stage=0, execution=5, parallelism=4), number=2)), 1)
    made.handle(slot.SubtaskEnded(0, 4), 1)
    made.handle(slot.StreamBroken(1), 2)
    made.handle(slot.SlotTimePassed(), 52)

    register = sent(made.handle(slot.StreamOpened(2), 53))[0].message
    assert isinstance(register, msg.RegisterSlot)
    assert register.running == {0: 5}


def test_what_a_broken_connection_lost_is_sent_again_in_order_and_once() -> None:
    made = connected()
    first = sent(made.handle(slot.MessagePosted(MESSAGE), 1))
    made.handle(slot.StreamBroken(1), 2)
    assert made.handle(slot.MessagePosted(msg.InputEnded(stage=0, execution=1)), 3) == []
    made.handle(slot.SlotTimePassed(), 52)
    made.handle(slot.StreamOpened(2), 53)

    again = sent(made.handle(slot.EnvelopeReceived(2, envelope(msg.SlotAccepted(), received=1)), 54))
    assert [each.number for each in first] == [1]
    assert [(each.number, type(each.message)) for each in again] == [(2, msg.InputEnded)]


def test_a_message_that_came_before_is_not_delivered_again() -> None:
    made = connected()
    deploy = envelope(msg.Deploy(stage=0, execution=1, parallelism=4), number=1)

    assert made.handle(slot.EnvelopeReceived(1, deploy), 1) == [slot.Deliver(deploy.message)]
    assert made.handle(slot.EnvelopeReceived(1, deploy), 2) == []


def test_a_slot_that_is_out_of_reach_tries_less_and_less_often_and_then_fresh_again() -> None:
    made = machine()
    made.handle(slot.SlotStarted(), 0)
    now_ms, delays = 0, []
    for connection in range(1, 8):
        made.handle(slot.StreamBroken(connection), now_ms)
        due_ms = made.next_time_ms()
        assert due_ms is not None
        delays.append(due_ms - now_ms)
        now_ms = due_ms
        assert made.handle(slot.SlotTimePassed(), now_ms) == [slot.OpenStream(connection + 1)]
    assert delays == [50, 100, 200, 400, 800, 1000, 1000]

    made.handle(slot.StreamOpened(8), now_ms)
    made.handle(slot.EnvelopeReceived(8, envelope(msg.SlotAccepted())), now_ms)
    made.handle(slot.StreamBroken(8), now_ms)
    assert made.next_time_ms() == now_ms + 50


def test_a_silent_coordinator_is_given_up_and_a_slot_is_never_silent_itself() -> None:
    made = connected()
    assert made.next_time_ms() == 250

    assert sent(made.handle(slot.SlotTimePassed(), 250)) == [envelope(msg.SlotHeartbeat())]
    assert sent(made.handle(slot.SlotTimePassed(), 500)) == [envelope(msg.SlotHeartbeat())]
    made.handle(slot.EnvelopeReceived(1, envelope(msg.CoordinatorHeartbeat())), 600)
    assert made.handle(slot.SlotTimePassed(), 1599) != []
    assert made.state == "connected"
    assert made.handle(slot.SlotTimePassed(), 1600) == []
    assert made.state == "waiting"


def test_figures_do_not_pile_up_while_nobody_listens() -> None:
    made = connected()
    made.handle(slot.StreamBroken(1), 1)
    for _ in range(100):
        made.handle(slot.MessagePosted(msg.SubtaskProgress(stage=0, execution=1)), 1)
    made.handle(slot.SlotTimePassed(), 51)
    made.handle(slot.StreamOpened(2), 52)

    assert made.handle(slot.EnvelopeReceived(2, envelope(msg.SlotAccepted())), 53) == []


def test_a_fenced_slot_exits_with_the_reason_and_a_released_one_without() -> None:
    fenced, released = connected(), connected()

    assert fenced.handle(slot.EnvelopeReceived(1, envelope(msg.SlotFenced(reason="older"))), 1) == [
        slot.ExitSlot("older")
    ]
    assert released.handle(slot.EnvelopeReceived(1, envelope(msg.ShutDownSlot(), number=1)), 1) == [slot.ExitSlot(None)]
    assert fenced.next_time_ms() is None


def test_an_event_without_a_row_is_an_error_with_the_history() -> None:
    made = connected()

    with pytest.raises(InvalidTransitionError) as caught:
        made.handle(slot.SlotStarted(), 5)
    assert caught.value.state == "connected"
    assert len(caught.value.history) == 3
