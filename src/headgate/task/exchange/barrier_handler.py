"""Decides when a subtask takes its snapshot of a checkpoint, and what of its input channels belongs to it.

The consumer's half of a barrier that overtakes rows; the producer's is `consumer_queue`.

Never: look into rows, read a clock, or look at a channel: `input_gate` reports what is at their heads.

- A barrier keeps its place in its channel. *Aligned*, the channel is not read past it until the snapshot is taken.
  *Unaligned*, it is seen the moment it arrives; what precedes it in the channel, and is not processed yet when the
  snapshot is taken, is the channel's state. Channels whose exchange does not support unaligned barriers, and all of
  them with an aligned one, are aligned. With a timeout an unaligned barrier is aligned until that is over, here or
  upstream, since the first one arrived.
- `TakeSnapshot` is due when a barrier of the checkpoint has been seen and every aligned channel has its barrier at its
  head. Ended channels still deliver barriers, and are waited for.
- Unaligned channels whose barrier has not come when the snapshot is taken are read on; all that arrives on them until
  it comes is stored, too (a copy: it is processed all the same). `StoreChannels` follows when the last barrier is in,
  at once for an aligned checkpoint (empty).
- A newer checkpoint replaces an older one, whose `StoreChannels` then never comes.

Follows Flink's SingleCheckpointBarrierHandler; FLINK-20645 and -37870.
"""

from __future__ import annotations

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Row
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.task.exchange.gate_channel import Spilled as Spilled

# What happened.


class BarrierSeen(msgspec.Struct, frozen=True):
    """An unaligned barrier has come; rows may precede it."""

    channel: ChannelId
    barrier: Barrier


class BarrierReached(msgspec.Struct, frozen=True):
    """A barrier is at the head of its channel: all that stood before it is processed."""

    channel: ChannelId
    barrier: Barrier


class ChannelsAligned(msgspec.Struct, frozen=True):
    """The snapshot can be taken now (`BarrierHandler.is_aligned`).

    Parameters
    ----------
    standing
        What precedes the barrier in the channels that it may pass, or all that they hold if it has not come.
    relocated
        The exchanges of which recovered rows are left that follow upon those of other channels.
    """

    standing: dict[ChannelId, list[Buffer | Spilled]]
    relocated: frozenset[str]


class RowsFollowed(msgspec.Struct, frozen=True):
    """Rows came after the snapshot, in a channel whose barrier is yet to come."""

    channel: ChannelId
    buffer: Buffer


class SpilledReplayed(msgspec.Struct, frozen=True):
    """A spilled buffer is in memory."""

    channel: ChannelId
    number: int
    buffer: Buffer


class LateBarrierArrived(msgspec.Struct, frozen=True):
    """The barrier came after the snapshot."""

    channel: ChannelId


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete."""

    checkpoint_id: int


class GateTimePassed(msgspec.Struct, frozen=True):
    """Time went on: `InputGate.next_time_ms` is over."""


Event = (
    BarrierSeen | BarrierReached | ChannelsAligned | RowsFollowed | SpilledReplayed | LateBarrierArrived
    | CheckpointGivenUp | GateTimePassed
)  # fmt: skip

# What is to be done.


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Take the snapshot of the operators, and send the barrier on, before anything else is processed."""

    barrier: Barrier


class StoreChannels(msgspec.Struct, frozen=True):
    """Store the input's channel state of a checkpoint, all of it; channels without any are left out.

    A spilled buffer is named by its number only while it was not replayed: then it is there itself. Of ``relocated``
    exchanges, rows that follow upon those of one channel may come through another.
    """

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer | Spilled, ...]]
    relocated: frozenset[str] = frozenset()


Action = TakeSnapshot | StoreChannels


class BarrierHandler(Machine):
    """The newest checkpoint of which a barrier has come to a gate.

    *Aligning*: all channels are read up to their barriers. *Passing*: only those that are always aligned. *Storing*:
    the snapshot is taken, and barriers are still to come.

    Parameters
    ----------
    channels
        How many the gate has.
    always_aligned
        Those in which no barrier passes rows.
    """

    # fmt: off
    TRANSITIONS = (
        Row("none, storing", BarrierSeen,        "aligning", [], "of a new checkpoint, with a timeout",
            by="_on_first_seen"),
        Row("none, storing", BarrierSeen,        "passing", [], "of a new checkpoint, without one",
            by="_on_first_seen"),
        Row("aligning",      BarrierSeen,        SAME, [], "another one, or a newer checkpoint's, which replaces it"),
        Row("aligning",      BarrierSeen,        "passing", [], "one without a timeout: it was over upstream"),
        Row("passing",       BarrierSeen,        SAME),
        Row("passing",       BarrierSeen,        "aligning", [], "a newer checkpoint's, with a timeout"),
        Row("none, storing", BarrierReached,     "aligning", [], "an aligned one of a new checkpoint"),
        Row("aligning",      BarrierReached,     SAME, [], "another one, or a newer checkpoint's, which replaces it"),
        Row("passing",       BarrierReached,     SAME),
        Row("passing",       BarrierReached,     "aligning", [], "an aligned one of a newer checkpoint"),
        Row("aligning",      ChannelsAligned,    "none", [TakeSnapshot, StoreChannels], "nothing was passed"),
        Row("passing",       ChannelsAligned,    "none", [TakeSnapshot, StoreChannels], "all barriers are in"),
        Row("passing",       ChannelsAligned,    "storing", [TakeSnapshot]),
        Row("storing",       RowsFollowed,       SAME, [], "they precede the barrier"),
        Row("storing",       SpilledReplayed,    SAME, [], "stored as it is instead of by its number"),
        Row("storing",       LateBarrierArrived, SAME),
        Row("storing",       LateBarrierArrived, "none", [StoreChannels], "the last one"),
        Row("none",          CheckpointGivenUp,  SAME, [], "its barriers are dropped when they come",
            by="_on_another_given_up"),
        Row("aligning",      CheckpointGivenUp,  "none"),
        Row("passing",       CheckpointGivenUp,  "none"),
        Row("storing",       CheckpointGivenUp,  "none", [], "nothing is stored"),
        Row("aligning, passing, storing", CheckpointGivenUp, SAME, [], "another one"),
        Row("aligning",      GateTimePassed,     "passing", [], "from now on barriers pass, here and further on"),
        Row("aligning",      GateTimePassed,     SAME, [], "too early, or there is no timeout"),
        Row("none, passing, storing", GateTimePassed, SAME, IGNORED, "late"),
    )
    # fmt: on

    def __init__(self, channels: int, always_aligned: frozenset[ChannelId]) -> None:
        super().__init__()
        self.state = "none"
        self.newest = 0
        """The newest checkpoint that was begun."""
        self.missing: set[ChannelId] = set()
        """While storing: the channels whose barriers are yet to come."""
        self.at_head: set[ChannelId] = set()
        """Until the snapshot: the channels in which nothing precedes the barrier."""
        self._channels = channels
        self._always_aligned = always_aligned
        self._given_up: set[int] = set()  # newer ones that will not complete
        self._barrier = Barrier(checkpoint_id=0)  # as it is sent on
        self._deadline_ms: int | None = None
        self._arrived: set[ChannelId] = set()  # where an unaligned barrier has come
        self._stored: dict[ChannelId, list[Buffer | Spilled]] = {}
        self._relocated: frozenset[str] = frozenset()

    @property
    def is_aligned(self) -> bool:
        """Whether every channel that has to be has its barrier at its head."""
        match self.state:
            case "aligning":
                return len(self.at_head) == self._channels
            case "passing":
                return self._always_aligned <= self.at_head
        return False

    @property
    def deadline_ms(self) -> int | None:
        """When `GateTimePassed` makes a difference, in milliseconds; None: nothing is due."""
        return self._deadline_ms if self.state == "aligning" else None

    def is_late(self, checkpoint_id: int) -> bool:
        """Return whether the snapshot of a checkpoint is taken, and barriers of it are still to come."""
        return checkpoint_id == self.newest and self.state == "storing"

    def is_over(self, checkpoint_id: int) -> bool:
        """Return whether barriers of a checkpoint in channels have done their work, or nobody wants them any longer."""
        if checkpoint_id == self.newest:
            return self.state in ("none", "storing")
        return checkpoint_id < self.newest or checkpoint_id in self._given_up

    def check(self) -> None:
        """Assert what always holds."""
        assert all(each > self.newest for each in self._given_up)
        assert bool(self.missing) == (self.state == "storing")
        assert not self.missing & self._always_aligned
        assert self.state == "none" or self.newest == self._barrier.checkpoint_id
        assert self.state == "storing" or not self._stored
        assert not self.at_head or self.state in ("aligning", "passing")
        for stored in self._stored.values():
            assert not any(isinstance(each, Buffer) and each.unfiltered for each in stored), (
                "rows that others keep as well are about to be stored"
            )

    def brief(self, event: Event, kind: type) -> str:
        """Return an event as the history shows it."""
        match event:
            case BarrierSeen() | BarrierReached():
                channel = event.channel
                return f"{type(event).__name__}({event.barrier.checkpoint_id}, {channel.exchange}/{channel.producer})"
            case CheckpointGivenUp():
                return f"{event}"
        return super().brief(event, kind)

    def __str__(self) -> str:
        return f"Checkpoint {self.newest} at an input gate"

    def _on_first_seen(self, event: BarrierSeen, now_ms: int) -> list[Action]:
        self._begin(event.barrier)
        return self._on_barrier_seen(event, now_ms)

    def _on_barrier_seen(self, event: BarrierSeen, now_ms: int) -> list[Action]:
        barrier = event.barrier
        if barrier.checkpoint_id > self.newest:
            self._begin(barrier)
        self._arrived.add(event.channel)
        if not barrier.alignment_timeout_ms:
            self._let_pass()
        elif self._deadline_ms is None:
            self._deadline_ms = now_ms + barrier.alignment_timeout_ms
        return []

    def _on_barrier_reached(self, event: BarrierReached, now_ms: int) -> list[Action]:
        if event.barrier.checkpoint_id > self.newest:
            self._begin(event.barrier)
        self.at_head.add(event.channel)
        return []

    def _on_channels_aligned(self, event: ChannelsAligned, now_ms: int) -> list[Action]:
        snapshot = TakeSnapshot(self._barrier)
        self._relocated = event.relocated
        if self.state == "passing":
            self._stored = event.standing
            self.missing = {each for each in event.standing if each not in self._arrived}
        self.state, self.at_head = "storing", set()
        return [snapshot, *self._complete()]

    def _on_rows_followed(self, event: RowsFollowed, now_ms: int) -> list[Action]:
        self._stored[event.channel].append(event.buffer)
        return []

    def _on_spilled_replayed(self, event: SpilledReplayed, now_ms: int) -> list[Action]:
        stored = self._stored.get(event.channel)
        if stored is not None:
            stored[stored.index(Spilled(event.number))] = event.buffer
        return []

    def _on_late_barrier_arrived(self, event: LateBarrierArrived, now_ms: int) -> list[Action]:
        self.missing.remove(event.channel)
        return self._complete()

    def _on_checkpoint_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        if event.checkpoint_id != self.newest:
            return self._on_another_given_up(event, now_ms)
        self._forget()
        return []

    def _on_another_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        if event.checkpoint_id > self.newest:
            self._given_up.add(event.checkpoint_id)
        return []

    def _on_gate_time_passed(self, event: GateTimePassed, now_ms: int) -> list[Action]:
        if self._deadline_ms is not None and now_ms >= self._deadline_ms:
            self._let_pass()
        return []

    def _begin(self, barrier: Barrier) -> None:
        """Let a newer checkpoint replace the one before."""
        self._forget()
        self.state, self.newest, self._barrier = "aligning", barrier.checkpoint_id, barrier
        self._given_up = {each for each in self._given_up if each > self.newest}

    def _let_pass(self) -> None:
        """Let barriers pass rows from now on, here and further on."""
        self.state = "passing"
        self._barrier = msgspec.structs.replace(self._barrier, alignment_timeout_ms=0)

    def _complete(self) -> list[Action]:
        """End a checkpoint whose last barrier is in."""
        if self.missing:
            return []
        stored = {each: tuple(rows) for each, rows in self._stored.items() if rows}
        relocated = self._relocated & {each.exchange for each in stored}
        self._forget()
        return [StoreChannels(self.newest, stored, relocated)]

    def _forget(self) -> None:
        self.state, self._deadline_ms, self._relocated = "none", None, frozenset()
        self.missing, self._arrived, self.at_head, self._stored = set(), set(), set(), {}
