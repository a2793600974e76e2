"""Decides what a producing subtask sends to whom and when, and what of its queues belongs to a checkpoint.

Never: look into rows, read a clock, block.

(TABLE OF STATES to be written here; the rules it follows:)

One queue per consumer. A buffer leaves its queue when the consumer is connected and has granted credit; an event when it
is at the head and the consumer is connected.

- An aligned barrier, and that of an exchange that does not support unaligned ones, takes its place at the end. An
  unaligned one goes to the head of every queue (behind earlier barriers there) and what it passed is channel state: a
  copy, which is sent all the same. With a timeout it takes its place at the end, and if it has not left when the time is
  over, it goes to the head then. `StoreChannels` follows when it has left, or passed, in every queue.
- Events are never held by credit, but never pass rows either, barriers aside.
- Recovered buffers (``recover-output-on-downstream`` off) are emitted before all others by the driver, then
  `ProducerRecovered`; this machine does not know.

Follows FLIP-547, sections 2.1 and 4.2; Flink's PipelinedSubpartition; lessons FLINK-37870.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element, ChannelEvent

# What happened.


class ConsumerConnected(msgspec.Struct, frozen=True):
    """A consumer's end of its channel is there."""

    consumer: int


class CreditGranted(msgspec.Struct, frozen=True):
    """A consumer has room for so many buffers more."""

    consumer: int
    credits: int


class RowsEmitted(msgspec.Struct, frozen=True):
    """There are rows for a consumer."""

    consumer: int
    buffer: Buffer


class EventEmitted(msgspec.Struct, frozen=True):
    """There is an event for all consumers; not a barrier."""

    event: ChannelEvent


class BarrierEmitted(msgspec.Struct, frozen=True):
    """The subtask took its snapshot."""

    barrier: Barrier


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete."""

    checkpoint_id: int


class PartitionTimePassed(msgspec.Struct, frozen=True):
    """Time went on: `ResultPartition.next_time_ms` is over."""


Event = (
    ConsumerConnected | CreditGranted | RowsEmitted | EventEmitted | BarrierEmitted | CheckpointGivenUp
    | PartitionTimePassed
)  # fmt: skip

# What is to be done.


class Transmit(msgspec.Struct, frozen=True):
    """Send to a consumer, behind what was sent to it before."""

    consumer: int
    element: Element


class StoreChannels(msgspec.Struct, frozen=True):
    """This is the output's channel state of a checkpoint, all of it; channels without any are left out."""

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer, ...]]


Action = Transmit | StoreChannels


class ResultPartition:
    """The queues of one exchange in one producing subtask.

    Parameters
    ----------
    exchange, producer
        Whose they are.
    consumers
        The consuming subtasks.
    supports_unaligned
        Whether barriers may pass its rows.
    """

    def __init__(self, exchange: str, producer: int, consumers: Sequence[int], *, supports_unaligned: bool) -> None:
        raise NotImplementedError

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            It cannot have happened.
        """
        raise NotImplementedError

    @property
    def queued_bytes(self) -> int:
        """How many bytes of rows wait in the fullest queue."""
        raise NotImplementedError

    @property
    def queued_buffers(self) -> int:
        """How many buffers wait in all queues."""
        raise NotImplementedError

    def next_time_ms(self) -> int | None:
        """Return when `PartitionTimePassed` is due, in milliseconds; None: not by itself."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what always holds."""
        raise NotImplementedError
