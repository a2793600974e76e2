"""Decides how far the recovery of an input gate is, and which producers may send meanwhile.

Never: look into rows, read a file: `channel_recovery_thread` reads and filters channel state, in the order
that `channel_recovery` decides.

- Until `RecoveryEnded` no credit is granted, so that no new row comes before a recovered one.
- Where recovered rows came through other channels than their successors do (`GateExchange.relocated`: after a rescale),
  none is granted, and nothing of the producers processed, before all that was recovered of the exchange is: rows of a
  key stay in their order, and what a checkpoint stores of the exchange meanwhile is recovered rows only. Others are not
  held up.

Follows FLIP-547, sections 4.4 and 4.5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from headgate.machine import SAME, Maybe, Row
from headgate.protocol.channels import Buffer, ChannelId, ProducerRecovered
from headgate.task.exchange.buffer_machine import BufferMachine
from headgate.task.exchange.gate_channel import ChannelConnected, CreditAllowed, GateChannel, GrantCredit

# What happened.


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


class RecoveredRowsProcessed(msgspec.Struct, frozen=True):
    """A recovered buffer of a channel is processed to its end."""

    channel: ChannelId


class ProducerCaughtUp(msgspec.Struct, frozen=True):
    """The `ProducerRecovered` of a channel was reached: what precedes it is processed."""

    channel: ChannelId


Event = (
    ChannelConnected | RowsRecovered | RowsSpilled | PhaseOneEnded | RecoveryEnded | RecoveredRowsProcessed
    | ProducerCaughtUp
)  # fmt: skip

# What is to be done.


class RecoveredProcessed(msgspec.Struct, frozen=True):
    """Everything recovered has been processed, that of the producers' side (`ProducerRecovered`) included.

    Once, if there was anything to recover.
    """


Action = GrantCredit | RecoveredProcessed


class GateRecovery(BufferMachine):
    """What was recovered of a gate's channels: *reading* is phase 1, *replaying* phase 2.

    Parameters
    ----------
    channels
        The gate's.
    recovering
        Whether there is channel state to recover: then `PhaseOneEnded` and `RecoveryEnded` follow.
    producers_recover
        Whether every producer sends `ProducerRecovered` first.
    """

    # fmt: off
    TRANSITIONS = (
        Row("reading, replaying", ChannelConnected,       SAME, [], "no new rows yet"),
        Row("processing",         ChannelConnected,       SAME, [Maybe(GrantCredit)], "held: relocated rows are left"),
        Row("over",               ChannelConnected,       SAME, [GrantCredit]),
        Row("reading",            RowsRecovered,          SAME, [], "P1 or P3"),
        Row("replaying",          RowsRecovered,          SAME, [], "P3"),
        Row("reading",            RowsSpilled,            SAME, [], "P2"),
        Row("reading",            PhaseOneEnded,          "replaying"),
        Row("replaying",          RecoveryEnded,          "processing", [Maybe(GrantCredit)],
            "to those that are connected and not held"),
        Row("replaying",          RecoveryEnded,          "over", [Maybe(GrantCredit), RecoveredProcessed],
            "to those that are connected; all was processed before"),
        Row("reading, replaying", RecoveredRowsProcessed, SAME),
        Row("processing",         RecoveredRowsProcessed, SAME, [Maybe(GrantCredit)], "the last one of an exchange"),
        Row("processing",         RecoveredRowsProcessed, "over", [Maybe(GrantCredit), RecoveredProcessed]),
        Row("replaying",          ProducerCaughtUp,       SAME),
        Row("processing",         ProducerCaughtUp,       SAME),
        Row("processing",         ProducerCaughtUp,       "over", [RecoveredProcessed]),
    )
    # fmt: on
    UNRECORDED = frozenset({RowsRecovered, RowsSpilled, RecoveredRowsProcessed})

    def __init__(self, channels: Mapping[ChannelId, GateChannel], *, recovering: bool, producers_recover: bool) -> None:
        super().__init__()
        self.state = "reading" if recovering else "processing" if producers_recover else "over"
        self._gate_channels = channels
        self._spilled = self._replayed = 0  # the last numbers
        self._buffers_left = 0  # that are not processed to their end
        self._producers_left = len(channels) if producers_recover else 0  # whose `ProducerRecovered` is not reached

    def check(self) -> None:
        """Assert what always holds; what is being processed is not in its channel."""
        exchanges = {channel.exchange.uid: channel.exchange for channel in self._gate_channels.values()}
        assert self._buffers_left == sum(each.left for each in exchanges.values())
        producers_left = waiting = 0
        for channel in self._gate_channels.values():
            waiting += len(channel.recovered) + len(channel.spilled)
            producers_left += channel.recovers or any(type(each) is ProducerRecovered for each in channel.sent)
            if self.state in ("reading", "replaying") or channel.exchange.is_held:
                assert channel.state != "granted", "new rows come before recovered ones"
            if channel.spilled:
                assert self.state in ("reading", "replaying")
                assert list(channel.spilled) == sorted(channel.spilled)
                assert self._replayed < channel.spilled[0] <= channel.spilled[-1] <= self._spilled
        assert 0 <= self._buffers_left - waiting <= 1
        assert producers_left == self._producers_left
        if self.state in ("processing", "over"):
            assert (self.state == "over") == (not self._buffers_left and not self._producers_left)

    def __str__(self) -> str:
        return "The recovery of an input gate"

    def _on_channel_connected(self, event: ChannelConnected, now_ms: int) -> list[Action]:
        return self._grants([self._gate_channels[event.channel]], now_ms)

    def _on_rows_recovered(self, event: RowsRecovered, now_ms: int) -> list[Action]:
        channel = self._gate_channels[event.channel]
        if event.spilled is None:
            if self.state != "reading" or channel.spilled:
                raise self.invalid(event, "all of the checkpoint is read, or spilled ones come first")
            self._count(channel)
        elif not channel.spilled or channel.spilled[0] != event.spilled or event.spilled != self._replayed + 1:
            raise self.invalid(event, "it was not spilled, or is not the oldest one")
        else:
            self._replayed = channel.spilled.popleft()
        channel.recovered.append(event.buffer)
        return []

    def _on_rows_spilled(self, event: RowsSpilled, now_ms: int) -> list[Action]:
        if event.number != self._spilled + 1:
            raise self.invalid(event, "one before it is missing")
        channel = self._gate_channels[event.channel]
        self._spilled = event.number
        channel.spilled.append(event.number)
        self._count(channel)
        return []

    def _count(self, channel: GateChannel) -> None:
        self._buffers_left += 1
        channel.exchange.left += 1

    def _on_phase_one_ended(self, event: PhaseOneEnded, now_ms: int) -> list[Action]:
        self.state = "replaying"
        return []

    def _on_recovery_ended(self, event: RecoveryEnded, now_ms: int) -> list[Action]:
        if self._replayed != self._spilled:
            raise self.invalid(event, "spilled buffers are left")
        self.state = "processing"
        return [*self._grants(self._gate_channels.values(), now_ms), *self._end()]

    def _on_recovered_rows_processed(self, event: RecoveredRowsProcessed, now_ms: int) -> list[Action]:
        exchange = self._gate_channels[event.channel].exchange
        exchange.left -= 1
        self._buffers_left -= 1
        if not exchange.relocated or exchange.left:
            return self._end()
        held = [each for each in self._gate_channels.values() if each.exchange is exchange]
        return [*self._grants(held, now_ms), *self._end()]

    def _on_producer_caught_up(self, event: ProducerCaughtUp, now_ms: int) -> list[Action]:
        self._producers_left -= 1
        self._gate_channels[event.channel].exchange.recovering.discard(event.channel.producer)
        return self._end()

    def _grants(self, channels: Iterable[GateChannel], now_ms: int) -> list[Action]:
        """Let producers send for the first time, where nothing that was recovered comes before it."""
        if self.state in ("reading", "replaying"):
            return []
        allowed = [each for each in channels if not each.exchange.is_held]
        return [grant for each in allowed for grant in each.handle(CreditAllowed(), now_ms)]

    def _end(self) -> list[Action]:
        if self.state != "processing" or self._buffers_left or self._producers_left:
            return []
        self.state = "over"
        return [RecoveredProcessed()]
