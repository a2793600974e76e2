"""The recovery of channels: the table, then every schedule of room and no room against what FLIP-547 promises."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import InvalidTransitionError
from headgate.machine import steps_of
from headgate.protocol.channels import Buffer, ChannelId
from headgate.task.exchange import channel_recovery
from headgate.task.exchange.channel_recovery import (
    AskForRoom,
    Begun,
    BufferRead,
    ChannelRead,
    ChannelRecovery,
    DiskFull,
    EndPhaseOne,
    EndRecovery,
    Event,
    ReadNext,
    Replay,
    RoomFound,
    RoomMissing,
    Spill,
    Spilled,
    StoredChannel,
    TakeIntoMemory,
)
from tests.machines import explore

X, Y = ChannelId("keys", 0, 0), ChannelId("keys", 1, 0)


def rows(*names: str) -> Buffer:
    """Ten bytes a row."""
    return Buffer(list(names), len(names), 10 * len(names))


def plain(channel: ChannelId = X) -> StoredChannel:
    return StoredChannel(channel, filtered=False)


def filtered(channel: ChannelId = X) -> StoredChannel:
    return StoredChannel(channel, filtered=True)


class Run:
    """Carries out what the machine orders, as the thread does, on lists; and asserts what always holds.

    ``room`` answers whether there is room, each time that is asked without waiting; ``free`` whether the disk has some.
    """

    def __init__(
        self,
        stored: list[tuple[StoredChannel, list[Buffer]]],
        room: Iterator[bool],
        target: int,
        free: Iterator[bool] | None = None,
    ) -> None:
        self.machine = ChannelRecovery([channel for channel, _ in stored], target_bytes=target)
        self.unread = [list(buffers) for _, buffers in stored]
        self.room = room
        self.free = free or iter(())
        self.full = False
        self.disk: list[tuple[ChannelId, int]] = []
        self.on_disk: dict[int, tuple[Buffer, ...]] = {}
        self.memory: list[tuple[ChannelId, list[Any]]] = []  # channel and rows, in the order in which they came there
        self.made: list[tuple[ChannelId, list[Any]]] = []  # the same, in the order in which they were made
        self.processes: list[str] = []
        self.states = ["new"]
        self.reported: list[str] = []
        self.granted = 0

    def run(self) -> Run:
        event: Event | None = Begun()
        while event is not None:
            actions, event = self.machine.handle(event, 0), None
            self.machine.check()
            self.states.append(self.machine.state)
            for action in actions:
                assert event is None, "an action after one that is to be answered"
                event = self.do(action)
        return self

    def do(self, action: channel_recovery.Action) -> Event | None:
        match action:
            case ReadNext(stored):
                assert not self.reported, "nothing is read in phase 2"
                return BufferRead(stored, self.unread[stored].pop(0)) if self.unread[stored] else ChannelRead(stored)
            case AskForRoom(size_bytes, wait):
                assert wait == (bool(self.reported) or self.full), "phase 1 waits if the disk is full, phase 2 always"
                self.full = False
                self.granted = size_bytes
                return RoomFound() if wait or next(self.room, True) else RoomMissing()
            case TakeIntoMemory(channel, parts):
                assert not self.disk, "P3 comes before P1"
                assert not self.reported
                self.take("P1", channel, parts)
                self.made.append(self.memory[-1])
            case Spill(channel, parts, _, number):
                assert not self.reported and number == len(self.on_disk) + 1
                if not next(self.free, True):
                    self.full = True
                    return DiskFull()
                self.disk.append((channel, number))
                self.on_disk[number] = parts
                self.processes.append("P2")
                self.made.append((channel, [name for part in parts for name in part.rows]))
                return Spilled()
            case Replay(channel, number):
                assert self.disk.pop(0) == (channel, number), "the oldest first"
                self.take("P3", channel, self.on_disk[number])
            case EndPhaseOne():
                assert not any(self.unread)
                self.reported.append("phase 1")
            case EndRecovery():
                assert self.reported == ["phase 1"] and not self.disk
                self.reported.append("recovery")
        return None

    def take(self, process: str, channel: ChannelId, parts: tuple[Buffer, ...]) -> None:
        assert sum(part.size_bytes for part in parts) == self.granted, "as large as what room was found for"
        self.processes.append(process)
        self.memory.append((channel, [name for part in parts for name in part.rows]))


def named(sizes: list[tuple[StoredChannel, list[int]]]) -> list[tuple[StoredChannel, list[Buffer]]]:
    """Return stored channels whose buffers have so many rows, each with a name of its own."""
    return [
        (channel, [rows(*(f"{place}.{at}.{row}" for row in range(size))) for at, size in enumerate(buffers)])
        for place, (channel, buffers) in enumerate(sizes)
    ]


def assert_recovered(run: Run, stored: list[tuple[StoredChannel, list[Buffer]]]) -> None:
    """Order per channel is kept, nothing is lost or repeated, phases are irreversible, all order is global."""
    for channel in {each.channel for each, _ in stored}:
        wanted = [name for each, buffers in stored if each.channel == channel for rows in buffers for name in rows.rows]
        assert [name for at, names in run.memory if at == channel for name in names] == wanted
    assert run.memory == run.made
    order = ["new", "phase 1", "phase 2", "over"]
    assert run.states == sorted(run.states, key=order.index) and run.states[-1] == "over"
    assert run.reported == ["phase 1", "recovery"]


def test_the_table_is_what_the_machine_does() -> None:
    """No step without a row, no row that cannot happen."""

    def events(machine: ChannelRecovery) -> Iterator[Event]:
        yield Begun()
        for place in range(len(machine._stored)):
            yield BufferRead(place, rows("a"))
            yield BufferRead(place, rows("a", "b"))
            yield BufferRead(place, rows())
            yield ChannelRead(place)
        yield RoomFound()
        yield RoomMissing()
        yield from (Spilled(), DiskFull())

    some = [row for row in ChannelRecovery.TRANSITIONS if row.why != "there is nothing to recover"]
    explore(
        lambda: ChannelRecovery([plain(), filtered(Y)], target_bytes=20),
        events,
        steps=steps_of(some),
        depth=11,
    )
    nothing = ChannelRecovery([])
    assert nothing.handle(Begun(), 0) == [EndPhaseOne(), EndRecovery()] and nothing.state == "over"


SHAPES = {
    "as it was": [(plain(X), [1, 1, 1]), (plain(Y), [1, 0])],
    "filtered": [(filtered(X), [2, 0, 1]), (filtered(Y), [1, 3]), (filtered(X), [1])],
    "nothing is its own": [(filtered(X), [0, 0]), (filtered(Y), [])],
    "both in one channel": [(filtered(X), [1, 1]), (plain(X), [2, 1])],
    "nothing": [],
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_schedule_of_room(shape: str) -> None:
    """Exhaustive: whatever room there is when, no row is lost, repeated, or out of order."""
    stored = named(SHAPES[shape])
    for schedule in itertools.product([True, False], repeat=10):
        assert_recovered(Run(stored, iter(schedule), target=20).run(), stored)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_schedule_of_room_and_disk(shape: str) -> None:
    """A full disk changes when buffers come, not which, or in what order."""
    stored = named(SHAPES[shape])
    for schedule, free in itertools.product(itertools.product([True, False], repeat=5), repeat=2):
        assert_recovered(Run(stored, iter(schedule), target=20, free=iter(free)).run(), stored)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.builds(StoredChannel, st.sampled_from([X, Y]), st.booleans()), st.lists(st.integers(0, 4), max_size=6)
        ),
        max_size=6,
    ),
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 100),
)
def test_long_schedules(sizes: list[tuple[StoredChannel, list[int]]], schedule: list[bool], target: int) -> None:
    """The same for many channels, buffers and sizes; packed buffers are not larger than they should be."""
    stored = named(sizes)
    run = Run(stored, iter(schedule), target).run()
    assert_recovered(run, stored)
    assert all(10 * len(names) <= max(target, 40) for _, names in run.memory)


def test_with_room_everything_takes_the_memory_path() -> None:
    """P1 only: nothing is spilled."""
    run = Run(named([(plain(), [1, 1, 1])]), iter([]), target=20).run()
    assert run.processes == ["P1", "P1", "P1"]


def test_without_room_everything_is_spilled_and_phase_one_still_ends() -> None:
    """P2 only, without waiting; then P3 with waiting."""
    run = Run(named([(plain(), [1, 1, 1])]), itertools.repeat(False), target=20).run()
    assert run.processes == ["P2", "P2", "P2", "P3", "P3", "P3"]
    assert run.states.count("phase 2") == 3


def test_room_that_comes_back_is_for_what_was_spilled_first() -> None:
    """P3 before P1 while the disk holds data; P1 again once it is empty."""
    # read 1: no room; the disk's: no, read 2; the disk's: yes, then none is left there; 2's: yes; 3's: yes
    run = Run(named([(plain(), [1, 1, 1])]), iter([False, False, True, True, True]), target=20).run()
    assert run.processes == ["P2", "P3", "P1", "P1"]


def test_at_unchanged_parallelism_the_very_same_buffers_come() -> None:
    """Neither filtered nor packed: empty ones and small ones stay what they are."""
    stored = named([(plain(), [1, 0, 1]), (plain(Y), [1])])
    run = Run(stored, itertools.cycle([True, False]), target=1000).run()
    assert run.memory == [(each.channel, buffer.rows) for each, buffers in stored for buffer in buffers]


def test_parts_of_one_buffer_become_one_buffer_again() -> None:
    """FLIP-547, 4.1: 100 rows in ten stored parts, of ten old subtasks, are exactly one buffer."""
    stored = named([(filtered(), [10]) for _ in range(10)])
    run = Run(stored, iter([]), target=1000).run()
    assert [len(names) for _, names in run.memory] == [100]
    assert_recovered(run, stored)


def test_what_lands_in_one_channel_is_read_together() -> None:
    """Two channels by turns do not cut each other's buffers short; input stays before output."""
    stored = named([(filtered(X), [1]), (filtered(Y), [1]), (filtered(X), [1]), (filtered(Y), [1])])
    run = Run(stored, iter([]), target=1000).run()
    assert run.memory == [(X, ["0.0.0", "2.0.0"]), (Y, ["1.0.0", "3.0.0"])]


def test_processing_starts_with_the_first_buffer() -> None:
    """It is in memory before the next one is read."""
    machine = ChannelRecovery([plain()])
    machine.handle(Begun(), 0)
    assert machine.handle(BufferRead(0, rows("a")), 0) == [AskForRoom(10, wait=False)]
    actions = machine.handle(RoomFound(), 0)
    assert actions == [TakeIntoMemory(X, (rows("a"),), repacked=False), ReadNext(0)]


@pytest.mark.parametrize("event", [Begun(), BufferRead(1, rows()), ChannelRead(1), RoomFound(), RoomMissing()])
def test_what_was_not_asked_is_refused(event: Event) -> None:
    """Another channel's buffer, room that nobody asked for."""
    machine = ChannelRecovery([plain(), plain(Y)])
    machine.handle(Begun(), 0)
    with pytest.raises(InvalidTransitionError, match="ReadNext"):
        machine.handle(event, 0)


def test_phase_two_cannot_be_refused_room() -> None:
    """It waits as long as it takes."""
    machine = ChannelRecovery([plain()])
    for event in (Begun(), BufferRead(0, rows("a")), RoomMissing(), Spilled(), RoomMissing(), ChannelRead(0)):
        machine.handle(event, 0)
    with pytest.raises(InvalidTransitionError, match="phase 2"):
        machine.handle(RoomMissing(), 0)
