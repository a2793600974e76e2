"""Decides in which order rows that were in flight go to memory (P1), to local disk (P2), and from there to memory (P3).

Never: read a file, look into rows, wait: `headgate.runtime.channel_recovery_thread` reads the rows and filters them.

Phase 1 ends when all is read. It waits for memory only where the disk is full: rows are processed in phase 1, too, so
that there will be some; only checkpoints wait for it. Whether there is disk again is found out with the next buffer
that finds no memory.

Room is asked for what comes next: the oldest spilled buffer, or else what was read (so P1 has read by then). Phases are
irreversible. Because P3 comes before P1, and P2 appends, all buffers reach memory in the order in which they were made.

What is read is the next buffer of a channel, channels in the order given (of one old pair of subtasks, input before
output), those that land in one channel together: their order is all that counts. Filtered rows are packed again, with
their neighbours in the channel that they land in, up to ``target_bytes``, so that a buffer that was stored in many
parts becomes one again (FLIP-547's example); what is not filtered is taken as it is.

Follows FLIP-547, section 4.5.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import msgspec

from headgate.machine import Machine, Row
from headgate.protocol.channels import Buffer, ChannelId


class StoredChannel(msgspec.Struct, frozen=True):
    """Channel state to be recovered.

    Parameters
    ----------
    channel
        The channel that it lands in.
    filtered
        Whether the rows are filtered, and then packed again.
    """

    channel: ChannelId
    filtered: bool


# What happened.


class Begun(msgspec.Struct, frozen=True):
    """The thread runs."""


class BufferRead(msgspec.Struct, frozen=True):
    """The next buffer of the stored channel (its place in the order given): what of it is the subtask's own."""

    stored: int
    buffer: Buffer


class ChannelRead(msgspec.Struct, frozen=True):
    """The stored channel has no more buffers."""

    stored: int


class RoomFound(msgspec.Struct, frozen=True):
    """There is the room that was asked for; it is taken."""


class RoomMissing(msgspec.Struct, frozen=True):
    """There is not, now."""


class Spilled(msgspec.Struct, frozen=True):
    """What was to be spilled is on the disk."""


class DiskFull(msgspec.Struct, frozen=True):
    """It is not: the disk has no room for it."""


Event = Begun | BufferRead | ChannelRead | RoomFound | RoomMissing | Spilled | DiskFull

# What is to be done. The last action of a list is answered by an event; `EndRecovery` is not.


class ReadNext(msgspec.Struct, frozen=True):
    """Read the next buffer of a stored channel, and filter it if need be: `BufferRead`, `ChannelRead`."""

    stored: int


class AskForRoom(msgspec.Struct, frozen=True):
    """Ask for room: `RoomFound`, `RoomMissing`. With ``wait`` until there is some, however long."""

    size_bytes: int
    wait: bool


class TakeIntoMemory(msgspec.Struct, frozen=True):
    """P1: hand the subtask a buffer, made of these parts. ``repacked``: they are what a filter left."""

    channel: ChannelId
    parts: tuple[Buffer, ...]
    repacked: bool


class Spill(msgspec.Struct, frozen=True):
    """P2: write a buffer, made of these parts, to the local disk, and report to the subtask: `Spilled`, `DiskFull`.

    ``number`` counts from 1.
    """

    channel: ChannelId
    parts: tuple[Buffer, ...]
    repacked: bool
    number: int


class Replay(msgspec.Struct, frozen=True):
    """P3: read a spilled buffer, and hand it to the subtask."""

    channel: ChannelId
    number: int


class EndPhaseOne(msgspec.Struct, frozen=True):
    """Notify the subtask: `input_gate.PhaseOneEnded`."""


class EndRecovery(msgspec.Struct, frozen=True):
    """Notify the subtask: `input_gate.RecoveryEnded`."""


Action = ReadNext | AskForRoom | TakeIntoMemory | Spill | Replay | EndPhaseOne | EndRecovery


class _Packed(msgspec.Struct, frozen=True):
    """A buffer to be, of these parts."""

    channel: ChannelId
    parts: tuple[Buffer, ...]
    repacked: bool

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)


class _OnDisk(msgspec.Struct, frozen=True):
    """A buffer on the local disk."""

    channel: ChannelId
    number: int
    size_bytes: int


class ChannelRecovery(Machine):
    """The recovery of a subtask's channels.

    Parameters
    ----------
    stored
        What is to be recovered, in the order in which the coordinator gave it.
    target_bytes
        How large packed buffers become at most (one that is larger when it is read stays so).

    Examples
    --------
    >>> recovery = ChannelRecovery([StoredChannel(ChannelId("keys", 0, 0), filtered=False)])
    >>> recovery.handle(Begun(), 0)
    [ReadNext(stored=0)]
    >>> recovery.handle(BufferRead(0, Buffer(["a"], 1, 10)), 0)
    [AskForRoom(size_bytes=10, wait=False)]
    >>> [type(action).__name__ for action in recovery.handle(RoomMissing(), 0)]
    ['Spill']
    >>> recovery.handle(Spilled(), 0)
    [AskForRoom(size_bytes=10, wait=False)]
    >>> recovery.handle(RoomMissing(), 0)
    [ReadNext(stored=0)]
    >>> recovery.handle(ChannelRead(0), 0)
    [EndPhaseOne(), AskForRoom(size_bytes=10, wait=True)]
    >>> [type(action).__name__ for action in recovery.handle(RoomFound(), 0)]
    ['Replay', 'EndRecovery']
    """

    # fmt: off
    TRANSITIONS = (
        Row("new",     Begun,       "phase 1", [ReadNext], "P1 and P2 begin alike"),
        Row("new",     Begun,       "over", [EndPhaseOne, EndRecovery], "there is nothing to recover"),
        Row("phase 1", BufferRead,  "phase 1", [ReadNext],
            "none of it is the subtask's own, or it waits for more, to be packed with it"),
        Row("phase 1", BufferRead,  "phase 1", [AskForRoom], "without waiting"),
        Row("phase 1", ChannelRead, "phase 1", [ReadNext], "the next one"),
        Row("phase 1", ChannelRead, "phase 1", [AskForRoom], "for the rest of what was packed"),
        Row("phase 1", ChannelRead, "phase 2", [EndPhaseOne, AskForRoom],
            "all is read and some is spilled: now it waits"),
        Row("phase 1", ChannelRead, "over", [EndPhaseOne, EndRecovery], "all is read, and in memory"),
        Row("phase 1", RoomFound,   "phase 1", [TakeIntoMemory, ReadNext], "P1: nothing is spilled"),
        Row("phase 1", RoomFound,   "phase 1", [TakeIntoMemory, AskForRoom], "P1, and more was made of what was read"),
        Row("phase 1", RoomFound,   "over", [TakeIntoMemory, EndPhaseOne, EndRecovery], "P1 was the last"),
        Row("phase 1", RoomFound,   "phase 1", [Replay, AskForRoom], "P3, before P1: more is spilled, or waits"),
        Row("phase 1", RoomFound,   "phase 1", [Replay, ReadNext], "P3: the disk is empty again"),
        Row("phase 1", RoomMissing, "phase 1", [ReadNext], "P2: read on, filter"),
        Row("phase 1", RoomMissing, "phase 1", [Spill], "P2: what was read goes after what is spilled"),
        Row("phase 1", Spilled,     "phase 1", [AskForRoom]),
        Row("phase 1", Spilled,     "phase 2", [EndPhaseOne, AskForRoom], "P2 was the last"),
        Row("phase 1", DiskFull,    "phase 1", [AskForRoom], "it waits: there is no other room"),
        Row("phase 2", RoomFound,   "phase 2", [Replay, AskForRoom], "P3"),
        Row("phase 2", RoomFound,   "over", [Replay, EndRecovery], "P3 was the last"),
    )
    # fmt: on

    def __init__(self, stored: Sequence[StoredChannel], *, target_bytes: int = 256 * 1024) -> None:
        super().__init__()
        landing = {each.channel: place for place, each in reversed(list(enumerate(stored)))}
        self._stored = tuple(stored)
        self._to_read = deque(sorted(range(len(stored)), key=lambda place: landing[stored[place].channel]))
        self._target_bytes = target_bytes
        self._parts: list[Buffer] = []  # filtered, all of the channel that is being read: not enough for a buffer yet
        self._parts_bytes = 0
        self._made: deque[_Packed] = deque()  # to go into memory, or to the disk
        self._spilled: deque[_OnDisk] = deque()  # oldest first
        self._number = 0
        self._asked: Action | None = None  # what the thread is at
        self.state = "new"
        """Where it is, as in the module's table."""

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an answer to what was ordered last, and return what is to be done, in order."""
        actions: list[Action] = super().handle(event, now_ms)
        self._asked = actions[-1]
        return actions

    def refused(self, event: Event) -> str | None:
        """Return why an event is not an answer to what was ordered."""
        return None if self._is_answer(event) else "it does not answer what was ordered"

    def __str__(self) -> str:
        return f"The recovery of channels (ordered: {self._asked!r})"

    def check(self) -> None:
        """Assert what always holds."""
        first = self._number - len(self._spilled) + 1
        assert [each.number for each in self._spilled] == list(range(first, self._number + 1))
        assert all(part.num_rows for part in self._parts)
        assert self._parts_bytes == sum(part.size_bytes for part in self._parts)
        assert not self._parts or self._to_read
        assert self.state in ("new", "phase 1") or not (self._to_read or self._made)
        assert (self.state == "over") <= (not self._spilled)
        match self._asked:
            case ReadNext():
                assert self.state == "phase 1" and self._asked.stored == self._to_read[0] and not self._made
            case AskForRoom():
                size_bytes = (self._spilled or self._made)[0].size_bytes
                assert self._asked.size_bytes == size_bytes
                assert self._asked.wait or self.state == "phase 1"
            case Spill():
                assert self.state == "phase 1" and self._asked.parts == self._made[0].parts
            case _:
                assert self.state in ("new", "over")

    def _on_begun(self, event: Begun, now_ms: int) -> list[Action]:
        self.state = "phase 1"
        return self._go_on()

    def _on_buffer_read(self, event: BufferRead, now_ms: int) -> list[Action]:
        stored, buffer = self._stored[event.stored], event.buffer
        if not stored.filtered:
            self._pack(stored.channel)
            self._made.append(_Packed(stored.channel, (buffer,), repacked=False))
        elif buffer.num_rows:
            if self._parts_bytes + buffer.size_bytes > self._target_bytes:
                self._pack(stored.channel)
            self._parts.append(buffer)
            self._parts_bytes += buffer.size_bytes
            if self._parts_bytes >= self._target_bytes:
                self._pack(stored.channel)
        return self._go_on()

    def _on_channel_read(self, event: ChannelRead, now_ms: int) -> list[Action]:
        self._to_read.popleft()
        channel = self._stored[event.stored].channel
        if not self._to_read or self._stored[self._to_read[0]].channel != channel:
            self._pack(channel)
        return self._go_on()

    def _on_room_found(self, event: RoomFound, now_ms: int) -> list[Action]:
        if self._spilled:
            spilled = self._spilled.popleft()
            return [Replay(spilled.channel, spilled.number), *self._go_on()]
        made = self._made.popleft()
        return [TakeIntoMemory(made.channel, made.parts, made.repacked), *self._go_on()]

    def _on_room_missing(self, event: RoomMissing, now_ms: int) -> list[Action]:
        if not self._made:
            return [ReadNext(self._to_read[0])]
        made = self._made[0]
        return [Spill(made.channel, made.parts, made.repacked, self._number + 1)]

    def _on_spilled(self, event: Spilled, now_ms: int) -> list[Action]:
        made = self._made.popleft()
        self._number += 1
        self._spilled.append(_OnDisk(made.channel, self._number, made.size_bytes))
        return self._go_on()

    def _on_disk_full(self, event: DiskFull, now_ms: int) -> list[Action]:
        return [AskForRoom((self._spilled or self._made)[0].size_bytes, wait=True)]

    def _go_on(self) -> list[Action]:
        """Order what follows: room for what is next in order, else to read on; else the end."""
        actions: list[Action] = []
        if self.state == "phase 1" and not self._to_read and not self._made:
            self.state = "phase 2"
            actions.append(EndPhaseOne())
        if self._spilled or self._made:
            return [*actions, AskForRoom((self._spilled or self._made)[0].size_bytes, wait=self.state == "phase 2")]
        if self._to_read:
            return [*actions, ReadNext(self._to_read[0])]
        self.state = "over"
        return [*actions, EndRecovery()]

    def _pack(self, channel: ChannelId) -> None:
        """Make a buffer of the parts that wait."""
        if self._parts:
            self._made.append(_Packed(channel, tuple(self._parts), repacked=True))
            self._parts, self._parts_bytes = [], 0

    def _is_answer(self, event: Event) -> bool:
        match event:
            case BufferRead() | ChannelRead():
                return self._asked == ReadNext(event.stored)
            case RoomFound() | RoomMissing():
                return isinstance(self._asked, AskForRoom) and not (self._asked.wait and isinstance(event, RoomMissing))
            case Spilled() | DiskFull():
                return isinstance(self._asked, Spill)
        return True
