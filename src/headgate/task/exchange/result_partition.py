"""Decides what a producing subtask sends to whom and when, and which rows an unaligned barrier overtakes in its queues.

Never: look into rows, read a clock, block.

One `consumer_queue.ConsumerQueue` per consumer. `StoreChannels` of a checkpoint follows when its barrier
has left, or has passed the rows, in every queue.

- An aligned barrier, and that of an exchange that does not support unaligned ones, takes its place at the end.
- An unaligned one goes to the head of every queue (after barriers that are there) and what it passed is channel state:
  a copy, which is sent all the same. With a timeout it takes its place at the end, and if it has not left when the time
  is over, it goes to the head then, and is sent without a timeout: nobody downstream need wait for the same time again.
- Events are not channel state: whoever restores the rows finds them out again.
- A barrier that a newer one passes stays, and its `StoreChannels` follows: consumers drop it.
- Recovered buffers (``recover-output-on-downstream`` off) are emitted before all others by the driver, then
  `ProducerRecovered`; this machine does not know.

Follows FLIP-547, sections 2.1 and 4.2; Flink's PipelinedResultPartition; FLINK-37870.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headgate.machine import SAME, Maybe, Row
from headgate.protocol.channels import Barrier, Buffer, ChannelId, ProducerEnded
from headgate.task.exchange.buffer_machine import BufferMachine
from headgate.task.exchange.consumer_queue import Action as QueueAction
from headgate.task.exchange.consumer_queue import BarrierEmitted as BarrierEmitted
from headgate.task.exchange.consumer_queue import BarrierPasses as BarrierPasses
from headgate.task.exchange.consumer_queue import CheckpointGivenUp as CheckpointGivenUp
from headgate.task.exchange.consumer_queue import ConsumerConnected as ConsumerConnected
from headgate.task.exchange.consumer_queue import ConsumerQueue as ConsumerQueue
from headgate.task.exchange.consumer_queue import CreditGranted as CreditGranted
from headgate.task.exchange.consumer_queue import EventEmitted as EventEmitted
from headgate.task.exchange.consumer_queue import RowsEmitted as RowsEmitted
from headgate.task.exchange.consumer_queue import Transmit as Transmit

# What happened.


class PartitionTimePassed(msgspec.Struct, frozen=True):
    """Time went on: `ResultPartition.next_time_ms` is over."""


Event = (
    ConsumerConnected | CreditGranted | RowsEmitted | EventEmitted | BarrierEmitted | CheckpointGivenUp
    | PartitionTimePassed
)  # fmt: skip

# What is to be done.


class StoreChannels(msgspec.Struct, frozen=True):
    """All of the output's channel state of a checkpoint; channels without any are left out."""

    checkpoint_id: int
    channels: dict[ChannelId, tuple[Buffer, ...]]


Action = Transmit | StoreChannels


class _Pending(msgspec.Struct):
    """A barrier that has not left, or passed the rows, in every queue."""

    barrier: Barrier
    waiting: set[int]  # the consumers in whose queues it is yet to do so
    passes_at_ms: int | None  # when it does, if it has not left; None: never
    stored: dict[ChannelId, tuple[Buffer, ...]]


class ResultPartition(BufferMachine):
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

    # fmt: off
    TRANSITIONS = (
        Row("open, ended", ConsumerConnected,   SAME, [Maybe(Transmit), Maybe(StoreChannels)], "what waited for it",
            by="_on_consumer"),
        Row("open, ended", CreditGranted,       SAME, [Maybe(Transmit), Maybe(StoreChannels)], by="_on_consumer"),
        Row("open",        RowsEmitted,         SAME, [Maybe(Transmit)]),
        Row("open",        EventEmitted,        SAME, [Maybe(Transmit)], "not before rows"),
        Row("open",        EventEmitted,        "ended", [Maybe(Transmit)], "ProducerEnded: only barriers follow"),
        Row("open, ended", BarrierEmitted,      SAME, [Maybe(Transmit), Maybe(StoreChannels)],
            "stored at once: it has left, or passed the rows, everywhere"),
        Row("open, ended", CheckpointGivenUp,   SAME, [], "its barrier is taken out"),
        Row("open, ended", PartitionTimePassed, SAME, [Maybe(Transmit), Maybe(StoreChannels)],
            "barriers pass that were aligned for too long"),
    )
    # fmt: on
    UNRECORDED = frozenset({RowsEmitted, CreditGranted})

    def __init__(self, exchange: str, producer: int, consumers: Sequence[int], *, supports_unaligned: bool) -> None:
        super().__init__()
        self.state = "open"
        self._exchange = exchange
        self._producer = producer
        self._supports_unaligned = supports_unaligned
        self._queues = {
            consumer: ConsumerQueue(f"{exchange!r} of subtask {producer}", consumer) for consumer in consumers
        }
        self.queued_buffers = 0
        """How many buffers wait in all queues."""
        self.queued_bytes = 0
        """How many bytes of rows wait in all queues."""
        self._pending: dict[int, _Pending] = {}
        self._newest_checkpoint = 0

    @property
    def takes_rows(self) -> bool:
        """Whether a buffer for some consumer would leave at once."""
        return any(queue.takes_rows for queue in self._queues.values())

    def next_time_ms(self) -> int | None:
        """Return when `PartitionTimePassed` is due, in milliseconds; None: nothing is due."""
        if not self._pending:
            return None
        return min(
            (pending.passes_at_ms for pending in self._pending.values() if pending.passes_at_ms is not None),
            default=None,
        )

    def check(self) -> None:
        """Assert what always holds."""
        queues = self._queues.values()
        for queue in queues:
            queue.check()
        assert self.queued_buffers == sum(queue.buffers for queue in queues)
        assert self.queued_bytes == sum(queue.size_bytes for queue in queues)
        for checkpoint_id, pending in self._pending.items():
            assert pending.waiting and all(self._queues[each].holds_barrier(checkpoint_id) for each in pending.waiting)
            assert checkpoint_id == pending.barrier.checkpoint_id <= self._newest_checkpoint
            assert not pending.stored

    def __str__(self) -> str:
        return f"The output {self._exchange!r} of subtask {self._producer}"

    def _on_consumer(self, event: ConsumerConnected | CreditGranted, now_ms: int) -> list[Action]:
        actions = self._on_queue(event, now_ms)
        return self._counted(actions) if len(actions) > 1 else actions  # a barrier leaves with two

    def _on_rows_emitted(self, event: RowsEmitted, now_ms: int) -> list[Action]:
        return self._on_queue(event, now_ms)  # no barrier leaves with them

    def _on_queue(self, event: ConsumerConnected | CreditGranted | RowsEmitted, now_ms: int) -> list[Any]:
        """Let one queue take note; nothing else changes how much waits."""
        queue = self._queues.get(event.consumer)
        if queue is None:
            raise self.invalid(event, "there is no such consumer")
        buffers, size_bytes = queue.buffers, queue.size_bytes
        actions = queue.handle(event, now_ms)
        self.queued_buffers += queue.buffers - buffers
        self.queued_bytes += queue.size_bytes - size_bytes
        return actions

    def _on_event_emitted(self, event: EventEmitted, now_ms: int) -> list[Action]:
        if isinstance(event.event, Barrier):
            raise self.invalid(event, "a barrier is emitted by `BarrierEmitted`")
        if isinstance(event.event, ProducerEnded):
            self.state = "ended"
        return [action for queue in self._queues.values() for action in queue.handle(event, now_ms)]

    def _on_barrier_emitted(self, event: BarrierEmitted, now_ms: int) -> list[Action]:
        barrier = event.barrier
        if barrier.checkpoint_id <= self._newest_checkpoint:
            raise self.invalid(event, f"barrier {self._newest_checkpoint} was before")
        self._newest_checkpoint = barrier.checkpoint_id
        passes = barrier.unaligned and self._supports_unaligned
        timeout_ms = barrier.alignment_timeout_ms
        pending = _Pending(barrier, set(self._queues), now_ms + timeout_ms if passes else None, {})
        self._pending[barrier.checkpoint_id] = pending
        if passes and timeout_ms <= 0:
            return self._pass(pending, now_ms)
        return self._counted([action for queue in self._queues.values() for action in queue.handle(event, now_ms)])

    def _on_checkpoint_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        self._pending.pop(event.checkpoint_id, None)
        for queue in self._queues.values():
            queue.handle(event, now_ms)
        return []

    def _on_partition_time_passed(self, event: PartitionTimePassed, now_ms: int) -> list[Action]:
        due = [each for each in self._pending.values() if each.passes_at_ms is not None and each.passes_at_ms <= now_ms]
        return [action for pending in due for action in self._pass(pending, now_ms)]

    def _pass(self, pending: _Pending, now_ms: int) -> list[Action]:
        """Let a barrier pass the rows before it, in the queues where it has not left."""
        event = BarrierPasses(msgspec.structs.replace(pending.barrier, alignment_timeout_ms=0))
        waiting = sorted(pending.waiting)
        return self._counted([action for each in waiting for action in self._queues[each].handle(event, now_ms)])

    def _counted(self, actions: list[QueueAction]) -> list[Action]:
        """Return what queues order, with `StoreChannels` where a barrier is out of the last one."""
        counted: list[Action] = []
        for action in actions:
            if isinstance(action, Transmit):
                counted.append(action)
                continue
            pending = self._pending.get(action.checkpoint_id)
            if pending is None:
                continue  # it passed the rows before, and leaves now
            pending.waiting.discard(action.consumer)
            if action.passed:
                pending.stored[ChannelId(self._exchange, self._producer, action.consumer)] = action.passed
            if not pending.waiting:
                del self._pending[action.checkpoint_id]
                counted.append(StoreChannels(action.checkpoint_id, pending.stored))
        return counted
