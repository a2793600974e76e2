"""Decides what may arrive on one channel of an input gate, and keeps what has arrived until it is processed.

Never: look into rows, or decide whose turn it is. What a barrier overtakes waits in the producer's `consumer_queue`.

A channel holds, in this order: recovered buffers, those that recovery spilled to disk, and what its producer sent.

Follows FLIP-547, section 4.3; Flink's credit-based flow control.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from headgate.machine import IGNORED, SAME, Row
from headgate.protocol.channels import (
    Barrier,
    Buffer,
    ChannelEvent,
    ChannelId,
    Element,
    ProducerActive,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.task.exchange.buffer_machine import BufferMachine

# What happened, beside the elements that arrive.


class ChannelConnected(msgspec.Struct, frozen=True):
    """The producer's end of a channel is there."""

    channel: ChannelId


class CreditAllowed(msgspec.Struct, frozen=True):
    """Nothing that was recovered keeps the producer from sending any longer."""


class BufferProcessed(msgspec.Struct, frozen=True):
    """Buffers that the producer sent are processed to their end."""

    buffers: int = 1


Event = ChannelConnected | CreditAllowed | BufferProcessed | Element

# What is to be done.


class GrantCredit(msgspec.Struct, frozen=True):
    """Allow the producer so many buffers more."""

    channel: ChannelId
    credits: int


class Spilled(msgspec.Struct, frozen=True):
    """Stands for a spilled buffer in the state of a channel: its number."""

    number: int


class GateExchange:
    """What was recovered of an exchange that a gate consumes.

    Parameters
    ----------
    recovering
        The producers whose `ProducerRecovered` is yet to be reached.
    relocated
        Whether the rows that follow upon recovered ones may come through other channels.
    """

    def __init__(self, uid: str, recovering: Iterable[int], *, relocated: bool) -> None:
        self.uid = uid
        self.relocated = relocated
        self.recovering = set(recovering)
        self.left = 0
        """Recovered buffers that are not processed to their end."""

    @property
    def is_held(self) -> bool:
        """Whether no channel is read, but for what was recovered on this side."""
        return self.relocated and self.left > 0

    def holds(self, producer: int) -> bool:
        """Return whether what a producer sent next waits for what was recovered, here or by other producers."""
        if not self.relocated:
            return False
        return self.left > 0 or (bool(self.recovering) and producer not in self.recovering)


class GateChannel(BufferMachine):
    """One channel of a gate.

    Parameters
    ----------
    channel, exchange
        Which one it is, and of which exchange.
    supports_unaligned
        Whether barriers may pass its rows.
    credits
        How many buffers the producer may have under way or waiting here.
    """

    # fmt: off
    TRANSITIONS = (
        Row("unconnected",              ChannelConnected,  "connected", [], "no new rows yet"),
        Row("connected",                CreditAllowed,     "granted", [GrantCredit]),
        Row("unconnected",              CreditAllowed,     SAME, IGNORED, "asked again when it is connected"),
        Row("ended",                    CreditAllowed,     SAME, IGNORED, "it has no use for it"),
        Row("granted",                  Buffer,            SAME, [], "takes one credit"),
        Row("granted",                  BufferProcessed,   SAME, [GrantCredit], "gives it back"),
        Row("ended",                    BufferProcessed,   SAME, IGNORED, "it has no use for it"),
        Row("connected, granted",       WatermarkPassed,   SAME, by="_on_event"),
        Row("connected, granted",       ProducerIdle,      SAME, by="_on_event"),
        Row("connected, granted",       ProducerActive,    SAME, by="_on_event"),
        Row("connected, granted",       ProducerRecovered, SAME, [], "once"),
        Row("connected, granted",       ProducerEnded,     "ended"),
        Row("connected, granted",       Barrier,           SAME, [], "the gate keeps it if its checkpoint is wanted"),
        Row("ended",                    Barrier,           SAME, [], "whoever ended still takes part"),
    )
    # fmt: on
    UNRECORDED = frozenset({Buffer, BufferProcessed})

    def __init__(self, channel: ChannelId, exchange: GateExchange, *, supports_unaligned: bool, credits: int) -> None:
        super().__init__()
        self.state = "unconnected"
        self.id = channel
        self.exchange = exchange
        self.supports_unaligned = supports_unaligned
        self.recovered: deque[Buffer] = deque()
        self.spilled: deque[int] = deque()
        self.sent: deque[Element] = deque()
        self.credits = 0
        """How many buffers more the producer may send."""
        self.recovers = channel.producer in exchange.recovering
        """Whether its `ProducerRecovered` is yet to come."""
        self.last_barrier = 0
        """The newest checkpoint whose barrier has come."""
        self._most_credits = credits

    def standing_before(self, checkpoint_id: int) -> list[Buffer | Spilled]:
        """Return the buffers up to a checkpoint's barrier, or all if that has not come."""
        waiting: list[Buffer | Spilled] = [*self.recovered, *map(Spilled, self.spilled)]
        for element in self.sent:
            if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
                break
            if isinstance(element, Buffer):
                waiting.append(element)
        return waiting

    def check_credits(self, *, polled: int) -> None:
        """Assert that each of its credits is with the producer or a buffer that waits, or one of those ``polled``."""
        waiting = sum(type(each) is Buffer for each in self.sent)
        assert self.credits >= 0
        match self.state:
            case "granted":
                assert self.credits + waiting + polled == self._most_credits
            case "unconnected" | "connected":
                assert self.credits == waiting == 0, "new rows came before recovered ones"

    def brief(self, event: Event, kind: type) -> str:
        """Return an event as the history shows it."""
        return f"{event}" if isinstance(event, Barrier) else type(event).__name__

    def __str__(self) -> str:
        return f"The channel {self.id.exchange!r} from subtask {self.id.producer} to {self.id.consumer}"

    def _on_channel_connected(self, event: ChannelConnected, now_ms: int) -> list[GrantCredit]:
        self.state = "connected"
        return []

    def _on_credit_allowed(self, event: CreditAllowed, now_ms: int) -> list[GrantCredit]:
        self.state, self.credits = "granted", self._most_credits
        return [GrantCredit(self.id, self._most_credits)]

    def _on_buffer(self, event: Buffer, now_ms: int) -> list[GrantCredit]:
        if not self.credits:
            raise self.invalid(event, "the producer had no credit")
        self.credits -= 1
        self.sent.append(event)
        return []

    def _on_buffer_processed(self, event: BufferProcessed, now_ms: int) -> list[GrantCredit]:
        self.credits += event.buffers
        return [GrantCredit(self.id, event.buffers)]

    def _on_event(self, event: ChannelEvent, now_ms: int) -> list[GrantCredit]:
        self.sent.append(event)
        return []

    def _on_producer_recovered(self, event: ProducerRecovered, now_ms: int) -> list[GrantCredit]:
        if not self.recovers:
            raise self.invalid(event, "the producer does not recover, or has done so")
        self.recovers = False
        return self._on_event(event, now_ms)

    def _on_producer_ended(self, event: ProducerEnded, now_ms: int) -> list[GrantCredit]:
        self.state = "ended"
        return self._on_event(event, now_ms)

    def _on_barrier(self, event: Barrier, now_ms: int) -> list[GrantCredit]:
        if event.checkpoint_id == self.last_barrier:
            raise self.invalid(event, "the channel has had this barrier")
        self.last_barrier = max(self.last_barrier, event.checkpoint_id)
        return []
