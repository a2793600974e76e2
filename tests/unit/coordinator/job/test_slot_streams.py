"""The streams of slots: which attempt is on which connection, and what is sent again."""

from __future__ import annotations

import random

from headgate.coordinator.job import job_events as job
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.scheduler import Scheduler, SchedulerOptions
from headgate.coordinator.job.slot_streams import SlotStreams
from headgate.coordinator.slots.slots import SlotRegistered
from headgate.protocol import messages as msg
from headgate.protocol.messages import Envelope

REGISTER = msg.RegisterSlot(host="h")


def envelope(attempt: int = 0, run: int = 1) -> Envelope:
    return Envelope(run=run, slot=0, attempt=attempt, number=0, received=0, message=REGISTER)


def streams() -> SlotStreams:
    """Return the streams of a run whose only slot is on connection 5."""
    scheduler = Scheduler(1, 1, SchedulerOptions(), restored=False, random=random.Random(0))
    scheduler.handle(sch.QueryStarted(), 0)
    made = SlotStreams(1, scheduler)
    assert made.register(5, envelope(), REGISTER) == []
    scheduler.handle(SlotRegistered(0, 0, {}), 0)
    made.check()
    return made


def test_what_was_sent_while_a_slot_was_away_is_sent_when_it_is_back() -> None:
    made = streams()
    assert made.lose(5) == (0, 0)
    assert made.send(0, msg.ShutDownSlot()) == []
    assert made.register(6, envelope(), REGISTER) == []
    accepted, again = made.accept(0, 0)
    assert isinstance(accepted, job.Transmit) and isinstance(again, job.Transmit)
    assert (accepted.envelope.message, again.envelope.message) == (msg.SlotAccepted(), msg.ShutDownSlot())


def test_an_attempt_has_one_connection_and_a_fenced_one_has_none() -> None:
    made = streams()
    assert made.register(6, envelope(), REGISTER) == [job.CloseConnection(5)]
    assert (made.key_of(5), made.key_of(6)) == (None, (0, 0))
    fenced, closed = made.fence(0, 0, "older")
    assert isinstance(fenced, job.Transmit) and closed == job.CloseConnection(6)
    assert made.current(0) is None and made.send(0, msg.ShutDownSlot()) == []


def test_what_an_older_connection_brings_later_does_not_take_its_place() -> None:
    made = streams()
    late = msg.RegisterSlot(host="h", running={0: 1})
    assert made.register(4, envelope(), late) == [job.CloseConnection(4)]
    assert (made.key_of(4), made.key_of(5)) == (None, (0, 0))
    stream = made.current(0)
    assert stream is not None and stream.about == REGISTER


def test_who_is_of_another_run_is_refused_without_a_session() -> None:
    kinds = [type(action) for action in streams().refuse(9, envelope(run=2), "this is run 1")]
    assert kinds == [job.Log, job.Transmit, job.CloseConnection]
