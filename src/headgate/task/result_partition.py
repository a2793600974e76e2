"""Decides what a producing subtask sends to whom and when, and what of its queues belongs to a checkpoint.

Never: look into rows, read a clock, block.

One queue per consumer. A buffer leaves its queue when the consumer is connected and has granted credit; an event when
it is at the head and the consumer is connected. So a connected consumer's queue is empty, or rows without credit are at
its head. As one consumer sees it:

    state        event                next         actions                   why
    -----------  -------------------  -----------  ------------------------  -------------------------------------------
    unconnected  ConsumerConnected    flowing      Transmit?, StoreChannels? what waited leaves, barriers with it
    unconnected  ConsumerConnected    blocked      Transmit?                 rows without credit stay, and what is
                                                                             behind them
    unconnected  ConsumerConnected    blocked      Transmit, StoreChannels   an aligned barrier stood before them
                 with a barrier
    unconnected  CreditGranted        same                                   it may be told before the connection is
    unconnected  RowsEmitted          same
    unconnected  EventEmitted         same
    unconnected  BarrierEmitted       same         StoreChannels?            unaligned: it passes the rows already here
    unconnected  CheckpointGivenUp    same                                   its barrier is taken out
    unconnected  PartitionTimePassed  same         StoreChannels?            a barrier passes that was to be aligned
    flowing      CreditGranted        same
    flowing      RowsEmitted          same         Transmit
    flowing      RowsEmitted          blocked                                no credit
    flowing      EventEmitted         same         Transmit
    flowing      BarrierEmitted       same         Transmit, StoreChannels   there is nothing to pass
    flowing      CheckpointGivenUp    same                                   late
    flowing      PartitionTimePassed  same                                   late
    blocked      CreditGranted        same         Transmit, StoreChannels?
    blocked      CreditGranted        flowing      Transmit, StoreChannels?
    blocked      RowsEmitted          same
    blocked      EventEmitted         same                                   an event does not pass rows
    blocked      BarrierEmitted       same                                   aligned, or not yet unaligned
    blocked      BarrierEmitted       same         Transmit, StoreChannels   unaligned: it passes them
                 unaligned
    blocked      CheckpointGivenUp    same                                   its barrier is taken out
    blocked      PartitionTimePassed  same                                   too early
    blocked      PartitionTimePassed  same         Transmit, StoreChannels   it was aligned too long: it passes them
                 in time

Where several consumers wait for one barrier, `StoreChannels` follows when it has left, or has passed the rows, in every
queue.

- An aligned barrier, and that of an exchange that does not support unaligned ones, takes its place at the end.
- An unaligned one goes to the head of every queue (behind barriers that are there) and what it passed is channel state:
  a copy, which is sent all the same. With a timeout it takes its place at the end, and if it has not left when the time
  is over, it goes to the head then, and is sent without a timeout: nobody behind need wait for the same time again.
- Events never wait for credit, but never pass rows either, barriers aside. They are no channel state: whoever restores
  the rows finds them out again.
- A barrier that a newer one passes stays, and its `StoreChannels` follows: consumers drop it.
- Recovered buffers (``recover-output-on-downstream`` off) are emitted before all others by the driver, then
  `ProducerRecovered`; this machine does not know.

Follows FLIP-547, sections 2.1 and 4.2; Flink's PipelinedSubpartition; FLINK-37870.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError
from headgate.protocol.channels import Barrier, Buffer, ChannelEvent, ChannelId, Element, ProducerEnded
from headgate.task.history import told_before

_HISTORY = 64

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
    """All of the output's channel state of a checkpoint; channels without any are left out."""

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer, ...]]


Action = Transmit | StoreChannels


class _Queue(msgspec.Struct):
    """What waits for one consumer."""

    elements: deque[Element]
    connected: bool = False
    credits: int = 0
    buffers: int = 0
    size_bytes: int = 0


class _Pending(msgspec.Struct):
    """A barrier that has not left, or passed the rows, in every queue."""

    barrier: Barrier
    waiting: set[int]  # the consumers in whose queues it is yet to do so
    passes_at_ms: int | None  # when it does, if it has not left; None: never
    stored: dict[ChannelId, tuple[Buffer, ...]]


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

    Examples
    --------
    >>> partition = ResultPartition("keys", 0, [0], supports_unaligned=True)
    >>> rows = Buffer(["a"], 1, 10)
    >>> partition.handle(ConsumerConnected(0), 0), partition.handle(RowsEmitted(0, rows), 0)
    ([], [])
    >>> sent, stored = partition.handle(BarrierEmitted(Barrier(checkpoint_id=1, unaligned=True)), 0)
    >>> sent.element.checkpoint_id, stored.channels[ChannelId("keys", 0, 0)] == (rows,)
    (1, True)
    >>> partition.handle(CreditGranted(0, 1), 0) == [Transmit(0, rows)]
    True
    """

    def __init__(self, exchange: str, producer: int, consumers: Sequence[int], *, supports_unaligned: bool) -> None:
        self._exchange = exchange
        self._producer = producer
        self._supports_unaligned = supports_unaligned
        self._queues = {consumer: _Queue(deque()) for consumer in consumers}
        self._pending: dict[int, _Pending] = {}
        self._newest_checkpoint = 0
        self._ended = False
        self._history: deque[tuple[int | None, Event]] = deque(maxlen=_HISTORY)  # for errors: rows left out

    def state_of(self, consumer: int) -> str:
        """Return the state of a consumer's queue, as in the module's table."""
        queue = self._queues[consumer]
        if not queue.connected:
            return "unconnected"
        return "blocked" if queue.elements else "flowing"

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            It cannot have happened: an unknown consumer, one that connects twice, rows or events behind the end, a
            barrier that is not newer than the last.
        """
        actions = self._HANDLERS[type(event)](self, event, now_ms)
        if not isinstance(event, RowsEmitted | CreditGranted):
            self._history.append((now_ms, event))
        return actions

    @property
    def queued_bytes(self) -> int:
        """How many bytes of rows wait in the fullest queue."""
        return max(queue.size_bytes for queue in self._queues.values())

    @property
    def queued_buffers(self) -> int:
        """How many buffers wait in all queues."""
        return sum(queue.buffers for queue in self._queues.values())

    def next_time_ms(self) -> int | None:
        """Return when `PartitionTimePassed` is due, in milliseconds; None: not by itself."""
        return min(
            (pending.passes_at_ms for pending in self._pending.values() if pending.passes_at_ms is not None),
            default=None,
        )

    def check(self) -> None:
        """Assert what always holds."""
        for consumer, queue in self._queues.items():
            buffers = [each for each in queue.elements if isinstance(each, Buffer)]
            assert queue.credits >= 0
            assert (queue.buffers, queue.size_bytes) == (len(buffers), sum(each.size_bytes for each in buffers))
            if queue.connected and queue.elements:  # else its head would have left
                assert isinstance(queue.elements[0], Buffer) and queue.credits == 0
            aligned = {each.checkpoint_id for each in queue.elements if isinstance(each, Barrier)}
            assert {key for key, pending in self._pending.items() if consumer in pending.waiting} <= aligned
        for pending in self._pending.values():
            assert pending.waiting and pending.waiting <= set(self._queues)
            assert pending.barrier.checkpoint_id <= self._newest_checkpoint
            assert not pending.stored or pending.passes_at_ms is None

    def _on_connected(self, event: ConsumerConnected, now_ms: int) -> list[Action]:
        queue = self._queue(event, event.consumer)
        if queue.connected:
            raise self._invalid(event, "it is connected")
        queue.connected = True
        return self._drain(event.consumer, queue)

    def _on_credit(self, event: CreditGranted, now_ms: int) -> list[Action]:
        queue = self._queue(event, event.consumer)
        if event.credits <= 0:
            raise self._invalid(event, "that is no credit")
        queue.credits += event.credits
        return self._drain(event.consumer, queue)

    def _on_rows(self, event: RowsEmitted, now_ms: int) -> list[Action]:
        queue = self._queue(event, event.consumer)
        if self._ended:
            raise self._invalid(event, "the subtask has ended")
        queue.elements.append(event.buffer)
        queue.buffers += 1
        queue.size_bytes += event.buffer.size_bytes
        return self._drain(event.consumer, queue)

    def _on_event(self, event: EventEmitted, now_ms: int) -> list[Action]:
        if self._ended or isinstance(event.event, Barrier):
            raise self._invalid(event, "the subtask has ended" if self._ended else "a barrier is no such event")
        self._ended = isinstance(event.event, ProducerEnded)
        return self._append(event.event)

    def _on_barrier(self, event: BarrierEmitted, now_ms: int) -> list[Action]:
        barrier = event.barrier
        if barrier.checkpoint_id <= self._newest_checkpoint:
            raise self._invalid(event, f"barrier {self._newest_checkpoint} was before")
        self._newest_checkpoint = barrier.checkpoint_id
        passes = barrier.unaligned and self._supports_unaligned
        timeout_ms = barrier.alignment_timeout_ms
        pending = _Pending(barrier, set(self._queues), now_ms + timeout_ms if passes else None, {})
        self._pending[barrier.checkpoint_id] = pending
        if not passes or timeout_ms > 0:
            return self._append(barrier)
        for queue in self._queues.values():
            queue.elements.append(barrier)
        return self._pass(pending)

    def _on_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        """Take the barrier out of the queues in which it still is; rows are at their heads, if anything is."""
        self._pending.pop(event.checkpoint_id, None)
        for queue in self._queues.values():
            at = _place_of(event.checkpoint_id, queue.elements)
            if at is not None:
                del queue.elements[at]
        return []

    def _on_time(self, event: PartitionTimePassed, now_ms: int) -> list[Action]:
        actions: list[Action] = []
        for pending in list(self._pending.values()):
            if pending.passes_at_ms is not None and pending.passes_at_ms <= now_ms:
                actions += self._pass(pending)
        return actions

    def _pass(self, pending: _Pending) -> list[Action]:
        """Let a barrier pass the rows before it, in the queues where it is among them."""
        barrier = msgspec.structs.replace(pending.barrier, alignment_timeout_ms=0)
        pending.barrier, pending.passes_at_ms = barrier, None
        for consumer in sorted(pending.waiting):
            elements = self._queues[consumer].elements
            at = _place_of(barrier.checkpoint_id, elements)
            assert at is not None
            before = [elements.popleft() for _ in range(at)]
            elements.popleft()
            head = next((i for i, each in enumerate(before) if not isinstance(each, Barrier)), at)
            before.insert(head, barrier)
            elements.extendleft(reversed(before))
            passed = tuple(each for each in before[head:] if isinstance(each, Buffer))
            if passed:
                pending.stored[ChannelId(self._exchange, self._producer, consumer)] = passed
        passing, pending.waiting = sorted(pending.waiting), set()
        actions: list[Action] = []
        for consumer in passing:
            actions += self._drain(consumer, self._queues[consumer])
        return [*actions, self._finish(pending)]

    def _append(self, element: ChannelEvent) -> list[Action]:
        actions: list[Action] = []
        for consumer, queue in self._queues.items():
            queue.elements.append(element)
            actions += self._drain(consumer, queue)
        return actions

    def _drain(self, consumer: int, queue: _Queue) -> list[Action]:
        """Send what may leave."""
        actions: list[Action] = []
        while queue.connected and queue.elements:
            element = queue.elements[0]
            if isinstance(element, Buffer):
                if queue.credits == 0:
                    break
                queue.credits -= 1
                queue.buffers -= 1
                queue.size_bytes -= element.size_bytes
            queue.elements.popleft()
            actions.append(Transmit(consumer, element))
            pending = self._pending.get(element.checkpoint_id) if isinstance(element, Barrier) else None
            if pending is not None and consumer in pending.waiting:
                pending.waiting.discard(consumer)
                if not pending.waiting:
                    actions.append(self._finish(pending))
        return actions

    def _finish(self, pending: _Pending) -> StoreChannels:
        checkpoint_id = pending.barrier.checkpoint_id
        del self._pending[checkpoint_id]
        return StoreChannels(checkpoint_id, pending.stored)

    def _queue(self, event: Event, consumer: int) -> _Queue:
        queue = self._queues.get(consumer)
        if queue is None:
            raise self._invalid(event, "there is no such consumer")
        return queue

    def _invalid(self, event: Event, why: str) -> InvalidTransitionError:
        before = told_before(self._history, event)
        return InvalidTransitionError(
            f"The output {self._exchange!r} of subtask {self._producer} cannot take {event!r}: {why}. "
            f"Before: {', '.join(before[-10:]) or 'nothing'}.",
            state=", ".join(f"{consumer}: {self.state_of(consumer)}" for consumer in self._queues),
            event=repr(event),
            history=before,
        )

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, int], list[Action]]]] = {
        ConsumerConnected: _on_connected,
        CreditGranted: _on_credit,
        RowsEmitted: _on_rows,
        EventEmitted: _on_event,
        BarrierEmitted: _on_barrier,
        CheckpointGivenUp: _on_given_up,
        PartitionTimePassed: _on_time,
    }


def _place_of(checkpoint_id: int, elements: deque[Element]) -> int | None:
    for at, element in enumerate(elements):
        if isinstance(element, Barrier) and element.checkpoint_id == checkpoint_id:
            return at
    return None
