"""Decides what of a producing subtask's queue for one consumer leaves when, and what of it a barrier overtakes.

Never: look into rows, read a clock, block.

A buffer leaves when it is at the head, the consumer is connected and has granted credit; an event when it is at the
head and the consumer is connected. So a connected consumer's queue is empty (*flowing*), or rows without credit are at
its head (*blocked*). Events never wait for credit, but never pass rows either, barriers aside.

Follows Flink's PipelinedSubpartition.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headgate.machine import IGNORED, SAME, Maybe, Row
from headgate.protocol.channels import Barrier, Buffer, ChannelEvent, Element
from headgate.task.exchange.buffer_machine import BufferMachine

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


class BarrierPasses(msgspec.Struct, frozen=True):
    """A barrier must not wait for rows, or no longer: it is a new one, or in the queue."""

    barrier: Barrier


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete."""

    checkpoint_id: int


Event = (
    ConsumerConnected | CreditGranted | RowsEmitted | EventEmitted | BarrierEmitted | BarrierPasses | CheckpointGivenUp
)

# What is to be done.


class Transmit(msgspec.Struct, frozen=True):
    """Send to a consumer, after what was sent to it before."""

    consumer: int
    element: Element


class BarrierCleared(msgspec.Struct, frozen=True):
    """Count the queue as one that no row delays a barrier in: it has left, or passed the rows that are given."""

    consumer: int
    checkpoint_id: int
    passed: tuple[Buffer, ...] = ()


Action = Transmit | BarrierCleared


class ConsumerQueue(BufferMachine):
    """What waits for one consumer of an exchange.

    Parameters
    ----------
    name
        The exchange and the producing subtask, for errors.
    consumer
        The consuming subtask.
    """

    # fmt: off
    TRANSITIONS = (
        Row("unconnected",          ConsumerConnected, "flowing", [Maybe(Transmit), Maybe(BarrierCleared)],
            "what waited leaves, barriers with it"),
        Row("unconnected",          ConsumerConnected, "blocked", [Maybe(Transmit), Maybe(BarrierCleared)],
            "rows without credit stay, and what follows them"),
        Row("unconnected, flowing", CreditGranted,     SAME, [], "it may come before the connection"),
        Row("blocked",              CreditGranted,     SAME, [Transmit, Maybe(BarrierCleared)],
            by="_on_credit_blocked"),
        Row("blocked",              CreditGranted,     "flowing", [Transmit, Maybe(BarrierCleared)],
            by="_on_credit_blocked"),
        Row("flowing",              RowsEmitted,       SAME, [Transmit]),
        Row("flowing",              RowsEmitted,       "blocked", [], "no credit"),
        Row("unconnected, blocked", RowsEmitted,       SAME, [], by="_on_rows_kept"),
        Row("flowing",              EventEmitted,      SAME, [Transmit]),
        Row("unconnected, blocked", EventEmitted,      SAME, [], "an event does not pass rows", by="_on_event_kept"),
        Row("flowing",              BarrierEmitted,    SAME, [Transmit, BarrierCleared]),
        Row("unconnected, blocked", BarrierEmitted,    SAME, [], "it takes its place at the end",
            by="_on_barrier_kept"),
        Row("unconnected",          BarrierPasses,     SAME, [BarrierCleared], "it leaves first, later"),
        Row("flowing, blocked",     BarrierPasses,     SAME, [Transmit, BarrierCleared]),
        Row("unconnected, blocked", CheckpointGivenUp, SAME, [], "its barrier is taken out"),
        Row("flowing",              CheckpointGivenUp, SAME, IGNORED, "it has left"),
    )
    # fmt: on
    UNRECORDED = frozenset({RowsEmitted, CreditGranted, EventEmitted})

    def __init__(self, name: str, consumer: int) -> None:
        super().__init__()
        self.state = "unconnected"
        self.credits = 0
        self.buffers = 0
        """How many wait."""
        self.size_bytes = 0
        """Of those that wait."""
        self._name = name
        self._consumer = consumer
        self._elements: deque[Element] = deque()

    def check(self) -> None:
        """Assert what always holds."""
        buffers = [each for each in self._elements if isinstance(each, Buffer)]
        assert self.credits >= 0
        assert (self.buffers, self.size_bytes) == (len(buffers), sum(each.size_bytes for each in buffers))
        match self.state:
            case "flowing":
                assert not self._elements
            case "blocked":  # else its head would have left
                assert isinstance(self._elements[0], Buffer) and self.credits == 0

    @property
    def takes_rows(self) -> bool:
        """Whether a buffer would leave at once."""
        return self.state == "flowing" and self.credits > 0

    def holds_barrier(self, checkpoint_id: int) -> bool:
        """Return whether a checkpoint's barrier is in the queue."""
        return self._place_of(checkpoint_id) is not None

    def __str__(self) -> str:
        return f"The queue of {self._name} for consumer {self._consumer}"

    def _on_consumer_connected(self, event: ConsumerConnected, now_ms: int) -> list[Action]:
        return self._drain()

    def _on_credit_granted(self, event: CreditGranted, now_ms: int) -> list[Action]:
        if event.credits <= 0:
            raise self.invalid(event, "that is not a credit")
        self.credits += event.credits
        return []

    def _on_credit_blocked(self, event: CreditGranted, now_ms: int) -> list[Action]:
        if event.credits <= 0:
            raise self.invalid(event, "that is not a credit")
        self.credits += event.credits
        return self._drain()

    def _on_rows_emitted(self, event: RowsEmitted, now_ms: int) -> list[Action]:
        if self.credits:
            self.credits -= 1
            return [Transmit(self._consumer, event.buffer)]
        self.state = "blocked"
        return self._on_rows_kept(event, now_ms)

    def _on_rows_kept(self, event: RowsEmitted, now_ms: int) -> list[Action]:
        self._elements.append(event.buffer)
        self.buffers += 1
        self.size_bytes += event.buffer.size_bytes
        return []

    def _on_event_emitted(self, event: EventEmitted, now_ms: int) -> list[Action]:
        return [Transmit(self._consumer, event.event)]

    def _on_event_kept(self, event: EventEmitted, now_ms: int) -> list[Action]:
        self._elements.append(event.event)
        return []

    def _on_barrier_emitted(self, event: BarrierEmitted, now_ms: int) -> list[Action]:
        return self._sent(event.barrier)

    def _on_barrier_kept(self, event: BarrierEmitted, now_ms: int) -> list[Action]:
        self._elements.append(event.barrier)
        return []

    def _on_barrier_passes(self, event: BarrierPasses, now_ms: int) -> list[Action]:
        """Put the barrier before the rows that it is among; it goes after barriers that are there."""
        barrier = event.barrier
        at = self._place_of(barrier.checkpoint_id)
        if at is not None:
            del self._elements[at]
        before = list(self._elements)[:at]
        head = next((i for i, each in enumerate(before) if not isinstance(each, Barrier)), len(before))
        passed = tuple(each for each in before[head:] if isinstance(each, Buffer))
        if self.state != "unconnected":  # no barrier waits at the head of a connected one's
            return self._sent(barrier, passed)
        self._elements.insert(head, barrier)
        return [BarrierCleared(self._consumer, barrier.checkpoint_id, passed)]

    def _on_checkpoint_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        at = self._place_of(event.checkpoint_id)
        if at is not None:
            del self._elements[at]  # in a blocked queue it is not at the head
        return []

    def _drain(self) -> list[Action]:
        """Send what may leave."""
        actions: list[Action] = []
        elements = self._elements
        while elements:
            element = elements[0]
            if isinstance(element, Buffer):
                if not self.credits:
                    self.state = "blocked"
                    return actions
                self.credits -= 1
                self.buffers -= 1
                self.size_bytes -= element.size_bytes
                actions.append(Transmit(self._consumer, element))
            else:
                actions += self._sent(element)
            elements.popleft()
        self.state = "flowing"
        return actions

    def _sent(self, event: ChannelEvent, passed: tuple[Buffer, ...] = ()) -> list[Action]:
        transmit = Transmit(self._consumer, event)
        if not isinstance(event, Barrier):
            return [transmit]
        return [transmit, BarrierCleared(self._consumer, event.checkpoint_id, passed)]

    def _place_of(self, checkpoint_id: int) -> int | None:
        for at, element in enumerate(self._elements):
            if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
                return at
        return None
