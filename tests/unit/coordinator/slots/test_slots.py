"""The slots of a query: which attempt counts, who is fenced, who is lost and who is missed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.coordinator.slots.slots import (
    ATTEMPT_BITS,
    AcceptSlot,
    Action,
    Event,
    FenceSlot,
    SlotAttempts,
    SlotBegan,
    SlotDisconnected,
    SlotHeard,
    SlotRegistered,
    Slots,
    SlotsAwaited,
    SlotsDropped,
    SlotsLost,
    SlotsMissed,
    SlotStatus,
    SlotsTimePassed,
)
from headgate.machine import steps_of
from tests.machines import Later, explore

SECOND_JOB = 1 << ATTEMPT_BITS


class Machine:
    """Slots that are checked after each event; their job is submitted, and each begins as soon as it has come."""

    def __init__(self, parallelism: int = 1, *, begin: bool = True) -> None:
        self.machine = Slots(parallelism, heartbeat_timeout_ms=10_000, registration_timeout_ms=15_000)
        self._begin = begin
        assert self(SlotsAwaited(0)) == []

    def __call__(self, event: Event, now_ms: int = 0) -> list[Action]:
        actions = self.machine.handle(event, now_ms)
        self.machine.check()
        if self._begin and any(isinstance(each, AcceptSlot) for each in actions):
            assert isinstance(event, SlotRegistered)
            assert self.machine.handle(SlotBegan(event.slot), now_ms) == []
            self.machine.check()
        return actions


def came(attempt: int, slot: int = 0) -> SlotRegistered:
    """Return the registration of an attempt."""
    return SlotRegistered(slot, attempt, {})


def kinds(actions: list[Action]) -> list[str]:
    """Return the names of actions."""
    return [type(action).__name__ for action in actions]


def test_a_newer_attempt_fences_the_older_and_counts_as_its_loss() -> None:
    machine = Machine()
    assert machine(came(0)) == [AcceptSlot(0, 0)]

    reason = "its process died or Spark gave it up: attempt 1 of slot 0 is there"
    assert machine(came(1)) == [FenceSlot(0, 0, reason), AcceptSlot(0, 1), SlotsLost((0,), reason)]


def test_a_zombie_is_fenced_and_changes_nothing() -> None:
    machine = Machine()
    machine(came(1))

    assert kinds(machine(came(0))) == ["FenceSlot"]
    assert machine.machine.status() == [SlotStatus(0, "registered", 1)]


def test_a_slot_that_comes_back_in_time_has_lost_nothing() -> None:
    machine = Machine()
    machine(came(0), 0)
    assert machine(SlotDisconnected(0, 0), 5_000) == []

    assert machine(SlotsTimePassed(), 14_999) == []
    assert machine(came(0), 14_999) == [AcceptSlot(0, 0)]
    assert machine.machine.state(0) == "registered"


def test_a_slot_that_does_not_come_back_in_time_is_lost_and_may_not_come_back_later() -> None:
    machine = Machine()
    machine(came(0), 0)
    machine(SlotDisconnected(0, 0), 5_000)
    assert machine(SlotsTimePassed(), 14_999) == []
    assert machine.machine.next_time_ms() == 15_000

    assert kinds(machine(SlotsTimePassed(), 15_000)) == ["FenceSlot", "SlotsLost"]
    assert kinds(machine(came(0), 15_001)) == ["FenceSlot"]
    assert machine(came(1), 15_002) == [AcceptSlot(0, 1)]


def test_a_silent_slot_is_lost_though_its_stream_is_open() -> None:
    machine = Machine()
    machine(came(0), 0)
    machine(SlotHeard(0, 0), 4_000)

    assert machine(SlotsTimePassed(), 13_999) == []
    fence, lost = machine(SlotsTimePassed(), 14_000)
    assert isinstance(fence, FenceSlot)
    assert lost == SlotsLost((0,), fence.reason, silent=True)


@pytest.mark.parametrize("leaves", [False, True], ids=["silent", "disconnected"])
def test_a_slot_that_has_not_begun_may_be_silent_for_as_long_as_slots_may_take_to_come(leaves: bool) -> None:
    """Many processes that start at once on a few cores are not lost; once one has begun, its heartbeats count."""
    machine = Machine(2, begin=False)
    for slot in range(2):
        machine(came(0, slot), 0)
        if leaves:
            machine(SlotDisconnected(slot, 0), 0)
    assert machine(SlotBegan(1), 500) == []
    assert machine.machine.next_time_ms() == 10_000
    for now_ms in (4_000, 8_000):
        assert machine(SlotsTimePassed(), now_ms) == []
    fence, lost = machine(SlotsTimePassed(), 10_000)
    assert isinstance(lost, SlotsLost) and lost.slots == (1,) and "10000 ms (heartbeat.timeout)" in lost.reason
    assert machine(SlotsTimePassed(), 14_999) == [] and machine.machine.is_present(0)
    fence, lost = machine(SlotsTimePassed(), 15_000)
    assert isinstance(fence, FenceSlot) and "15000 ms (its subtasks had not begun)" in fence.reason
    assert isinstance(lost, SlotsLost) and lost.slots == (0,)


def test_a_newer_attempt_begins_anew_and_one_that_is_back_has_begun() -> None:
    machine = Machine(begin=False)
    machine(came(0), 0)
    machine(SlotBegan(0), 0)
    machine(SlotDisconnected(0, 0), 1_000)
    machine(came(0), 2_000)
    assert machine.machine.next_time_ms() == 10_000  # earlier than need be
    assert machine(SlotsTimePassed(), 5_000) == machine(SlotsTimePassed(), 10_000) == []
    assert machine.machine.next_time_ms() == 12_000
    machine(came(1), 11_000)
    for now_ms in (15_000, 20_000, 25_000):
        assert machine(SlotsTimePassed(), now_ms) == []
    assert kinds(machine(SlotsTimePassed(), 26_000)) == ["FenceSlot", "SlotsLost"]


def test_slots_that_are_lost_together_are_one_loss() -> None:
    machine = Machine(3)
    for slot in range(3):
        machine(came(0, slot), 0)
    machine(SlotHeard(1, 0), 5_000)

    actions = machine(SlotsTimePassed(), 10_000)
    assert kinds(actions) == ["FenceSlot", "FenceSlot", "SlotsLost"]
    assert isinstance(actions[-1], SlotsLost)
    assert actions[-1].slots == (0, 2)


def test_slots_that_never_came_are_missed_once() -> None:
    machine = Machine(3)
    machine(came(0, 1), 10)

    assert machine(SlotHeard(1, 0), 14_000) == []
    assert machine(SlotsTimePassed(), 15_000) == [SlotsMissed((0, 2))]
    assert machine(SlotsTimePassed(), 15_001) == []
    assert not machine.machine.all_came


def test_an_attempt_of_an_ended_job_is_a_zombie_before_and_after_the_next_submission() -> None:
    machine = Machine()
    machine(came(0))
    assert kinds(machine(SlotsDropped("Spark's job ended"))) == ["FenceSlot"]

    assert kinds(machine(came(1))) == ["FenceSlot"]
    machine(SlotsAwaited(1))
    assert kinds(machine(came(2))) == ["FenceSlot"]
    assert machine(came(SECOND_JOB)) == [AcceptSlot(0, SECOND_JOB)]


def test_who_was_asleep_does_not_take_the_others_for_dead() -> None:
    machine = Machine()
    machine(came(0), 0)
    machine(SlotsTimePassed(), 2_500)

    assert machine(SlotsTimePassed(), 60_000) == []
    assert machine.machine.next_time_ms() == 67_500


@pytest.mark.parametrize("asleep_ms", [5_001, 9_000, 14_000])
def test_the_time_that_a_machine_stood_still_is_not_silence_of_its_slots(asleep_ms: int) -> None:
    """Nobody could hear or say anything in it; what came before and comes after it counts."""
    machine = Machine()
    machine(came(0), 0)
    for now_ms in (2_500, 5_000):
        assert machine(SlotsTimePassed(), now_ms) == []
    awake_ms = 5_000 + asleep_ms

    for now_ms in (awake_ms, awake_ms + 2_500, awake_ms + 4_999):
        assert machine(SlotsTimePassed(), now_ms) == []
    assert kinds(machine(SlotsTimePassed(), awake_ms + 5_000)) == ["FenceSlot", "SlotsLost"]


def test_the_table_is_what_the_machine_does() -> None:
    def events(machine: Slots) -> Iterator[Event | Later]:
        if machine._job.submission is None:
            yield SlotsAwaited(0)
            yield SlotsAwaited(1)
        for attempt in (0, 1, SECOND_JOB):
            yield came(attempt)
        yield SlotDisconnected(0, machine.attempt(0) or 0)
        yield SlotHeard(0, machine.attempt(0) or 0)
        if machine.is_present(0):
            yield SlotBegan(0)
        yield SlotsDropped("test")
        yield Later(SlotsTimePassed(), 500)
        yield Later(SlotsTimePassed(), 1_000)

    explore(
        lambda: Slots(1, heartbeat_timeout_ms=1_000, registration_timeout_ms=1_500),
        events,
        steps=steps_of(SlotAttempts.TRANSITIONS),
        state=lambda machine, _: machine.state(0),
        depth=7,
    )
