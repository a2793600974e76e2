"""Decides what a subtask behind exchanges processes next, and what of its channels belongs to a checkpoint.

Never: look into rows, read a clock, block.

(TABLE OF STATES to be written here, as in `headgate.task.subtask`; the rules it follows:)

A channel holds, in this order: recovered buffers, those that recovery spilled to disk, and what its producer sent.

- A barrier keeps its place in its channel. *Aligned*, the channel is not read past it until the snapshot is taken.
  *Unaligned*, it is seen the moment it arrives; what stands before it in the channel, and is not processed yet when the
  snapshot is taken, is the channel's state. Channels whose exchange does not support unaligned barriers, and all of them
  with an aligned one, are aligned. With a timeout an unaligned barrier is aligned until it is over.
- `TakeSnapshot` is due when a barrier of the checkpoint has been seen and every aligned channel has its barrier at its
  head. Ended channels still deliver barriers, and are waited for.
- Unaligned channels whose barrier has not come when the snapshot is taken are read on; all that arrives on them until it
  comes is stored, too (a copy: it is processed all the same). `StoreChannels` follows when the last barrier is in, at once
  for an aligned checkpoint (empty).
- Phase 1 of recovery (rows are still read from the checkpoint): rows are processed already; an unaligned snapshot
  waits for its end (`PhaseOneEnded`). In phase 2 the state of a channel is its recovered buffers in memory, then the
  spilled ones, then what else stands before the barrier.
- Until `RecoveryEnded` no credit is granted, events of producers wait behind recovered buffers (but unaligned barriers
  are seen at once), so that no new row and no watermark comes before a recovered one (trap 30).
- A barrier of an older checkpoint than the newest seen, or of an aborted one, is dropped; a newer one replaces an older.
- The watermark of an exchange is the minimum of its channels that are neither idle nor ended; all idle: `MarkIdle`. All
  ended: the watermark is MAX, then `EndInput`. It never goes back.
- `Polled` takes turns among channels; a buffer that was put back is its channel's next one. A credit is granted when a
  producer's buffer was processed to its end (the next poll tells), never for a recovered one.

Follows FLIP-547, sections 2.1 and 4.3 to 4.6; Flink's SingleCheckpointBarrierHandler and StatusWatermarkValve; traps 30
and 31; lessons FLINK-20645 and -37870.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element


class GateInput(msgspec.Struct, frozen=True, kw_only=True):
    """One exchange that a subtask consumes.

    Parameters
    ----------
    producers
        The producing subtasks: one channel each.
    supports_unaligned
        Whether barriers may pass its rows.
    """

    producers: tuple[int, ...]
    supports_unaligned: bool


# What happened.


class ChannelConnected(msgspec.Struct, frozen=True):
    """The producer's end of a channel is there."""

    channel: ChannelId


class ElementArrived(msgspec.Struct, frozen=True):
    """The producer sent something."""

    channel: ChannelId
    element: Element


class RowsRecovered(msgspec.Struct, frozen=True):
    """A recovered (and filtered) buffer is in memory. ``spilled``: the number that it was spilled under, or None."""

    channel: ChannelId
    buffer: Buffer
    spilled: int | None = None


class RowsSpilled(msgspec.Struct, frozen=True):
    """A recovered buffer went to the local disk. ``number`` counts the spilled ones of this execution, from 1."""

    channel: ChannelId
    number: int


class PhaseOneEnded(msgspec.Struct, frozen=True):
    """All of the checkpoint's channel state was read: it is in memory or on the local disk."""


class RecoveryEnded(msgspec.Struct, frozen=True):
    """All of it is in memory, or processed."""


class RowsPutBack(msgspec.Struct, frozen=True):
    """The rest of the buffer that was polled last was not processed."""

    buffer: Buffer


class Polled(msgspec.Struct, frozen=True):
    """The subtask can process something; what was polled before is done."""


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete."""

    checkpoint_id: int


class GateTimePassed(msgspec.Struct, frozen=True):
    """Time went on: `InputGate.next_time_ms` is over."""


Event = (
    ChannelConnected | ElementArrived | RowsRecovered | RowsSpilled | PhaseOneEnded | RecoveryEnded | RowsPutBack
    | Polled | CheckpointGivenUp | GateTimePassed
)  # fmt: skip

# What is to be done.


class ProcessRows(msgspec.Struct, frozen=True):
    """Process a buffer, or put its rest back."""

    channel: ChannelId
    buffer: Buffer


class AdvanceWatermark(msgspec.Struct, frozen=True):
    """The watermark of an exchange is this, in milliseconds."""

    exchange: str
    timestamp_ms: int


class MarkIdle(msgspec.Struct, frozen=True):
    """Do not wait for an exchange's watermark."""

    exchange: str


class MarkActive(msgspec.Struct, frozen=True):
    """Wait for it again."""

    exchange: str


class EndInput(msgspec.Struct, frozen=True):
    """All producers of an exchange have ended."""

    exchange: str


class GrantCredit(msgspec.Struct, frozen=True):
    """Allow the producer so many buffers more."""

    channel: ChannelId
    credits: int


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Take the snapshot of the operators, and send the barrier on, before anything else is processed."""

    barrier: Barrier


class Spilled(msgspec.Struct, frozen=True):
    """Stands for a spilled buffer in `StoreChannels`: its number."""

    number: int


class StoreChannels(msgspec.Struct, frozen=True):
    """This is the input's channel state of a checkpoint, all of it; channels without any are left out."""

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer | Spilled, ...]]


class RecoveredProcessed(msgspec.Struct, frozen=True):
    """Everything recovered has been processed, that of the producers' side (`ProducerRecovered`) included. Told once."""


Action = (
    ProcessRows | AdvanceWatermark | MarkIdle | MarkActive | EndInput | GrantCredit | TakeSnapshot | StoreChannels
    | RecoveredProcessed
)  # fmt: skip


class InputGate:
    """The channels that a subtask consumes.

    Parameters
    ----------
    consumer
        The subtask.
    inputs
        By the uid of the exchange.
    recovering
        Whether there is channel state to recover: then `PhaseOneEnded` and `RecoveryEnded` follow.
    producers_recover
        Whether every producer sends `ProducerRecovered` first (``recover-output-on-downstream`` off, after a restore).
    credits
        How many buffers a producer may have under way or waiting here.
    """

    def __init__(
        self,
        consumer: int,
        inputs: Mapping[str, GateInput],
        *,
        recovering: bool = False,
        producers_recover: bool = False,
        credits: int = 4,
    ) -> None:
        raise NotImplementedError

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        `Polled` returns one element's worth of actions; an empty list: there is nothing to do now.

        Raises
        ------
        InvalidTransitionError
            It cannot have happened.
        """
        raise NotImplementedError

    def next_time_ms(self) -> int | None:
        """Return when `GateTimePassed` is due, in milliseconds; None: not by itself."""
        raise NotImplementedError

    def check(self) -> None:
        """Assert what always holds."""
        raise NotImplementedError
