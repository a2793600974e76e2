"""The producing end of one exchange in one subtask: batches in, elements for the consumers out, within their credit.

Never: block, or decide what is sent when (`ResultPartition` does); touch anything on another thread than the subtask's:
what links report is posted to its mailbox.

    write -> Coalescer (when) -> Partitioner (whose rows) -> ResultPartition (queues) -> ProducerLink per consumer

Until each consumer has granted credit for the first time, which it does when all that it recovers is in its memory, no
rows are asked for: else every rescale would add what the queues hold to what is under way.

A watermark waits for the rows before it, and so for the coalescer: of several that come meanwhile the last one counts.
While there is no room, they leave early only if some consumer takes rows at once: others would find them in a queue.

Follows docs/architecture.md, "Stages and exchanges"; FLIP-547, sections 2.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import assert_never

import pyarrow as pa

from headgate.errors import TransportError
from headgate.operators.exchange import Exchange, Partitioner
from headgate.protocol.channels import (
    Barrier,
    Buffer,
    ChannelEvent,
    ChannelId,
    ProducerActive,
    ProducerEnded,
    ProducerIdle,
    ProducerRecovered,
    WatermarkPassed,
)
from headgate.runtime.coalescer import MEMORY_BYTES, Coalescer, buffer_bytes, buffers_of
from headgate.runtime.mailbox import Mail, Mailbox
from headgate.task.exchange import result_partition as rp
from headgate.transport.data_plane import DataPlane, ProducerLink

MAX_QUEUED_BUFFERS = 8
"""A subtask whose queues hold so many buffers for each consumer waits for room."""
_QUEUED_SHARE = 4
"""So does one whose queues hold this part of `exchange.memory`, all of them together."""
_QUEUED_FOR_EACH = 2
"""So does one whose queues hold this part of a full buffer for each consumer, which has several of them at hand: what
waits is written with each unaligned checkpoint."""

OnStored = Callable[[int, Mapping[ChannelId, Sequence[Buffer]]], None]
"""Takes a checkpoint's number and the channel state of this output, all of it."""


class OutputExchange:
    """Where a chain's rows for the next stage go: a `headgate.runtime.chain.StageOutput`.

    Parameters
    ----------
    uid, exchange
        The exchange.
    producer, consumers
        This subtask, and those it feeds.
    generation
        The deployment's.
    partitioner
        Whose rows are whose.
    buffer_timeout_ms
        How long rows and watermarks wait to be gathered where there is nothing else to do, in milliseconds.
    plane
        The slot's.
    mailbox
        The subtask's.
    now_ms
        Reads the clock, in milliseconds.
    on_stored
        Takes channel state.
    on_broken
        Called when a link is gone.
    memory_bytes
        For rows that have credit of the channels of one subtask, on either side.
    """

    def __init__(
        self,
        uid: str,
        exchange: Exchange,
        producer: int,
        consumers: Sequence[int],
        generation: int,
        partitioner: Partitioner,
        buffer_timeout_ms: int,
        plane: DataPlane,
        mailbox: Mailbox,
        now_ms: Callable[[], int],
        on_stored: OnStored,
        on_broken: Callable[[TransportError], None],
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._partitioner = partitioner
        self._buffer_timeout_ms = buffer_timeout_ms
        # Each consumer has as many producers as there are consumers: a stage has a subtask in each slot.
        self._max_bytes = buffer_bytes(len(consumers), memory_bytes)
        # Consumers do not get equal parts, and one that gets more than a buffer holds would get two small ones.
        self._coalescer = Coalescer(
            timeout_ms=buffer_timeout_ms, channels=len(consumers), target_bytes=self._max_bytes * 3 // 4
        )
        self._max_queued_bytes = min(
            memory_bytes // _QUEUED_SHARE, self._max_bytes * len(consumers) // _QUEUED_FOR_EACH
        )
        self._mailbox = mailbox
        self._now_ms = now_ms
        self._on_stored = on_stored
        self._on_broken = on_broken
        self._partition = rp.ResultPartition(uid, producer, consumers, supports_unaligned=exchange.supports_unaligned)
        self._watermark_ms: int | None = None  # that waits to be sent
        self._room: Future[None] | None = None
        self._without_credit = set(consumers)  # which have never granted any
        self._closed = False
        self._links: dict[int, ProducerLink] = {}
        for consumer in consumers:
            channel = ChannelId(uid, producer, consumer)
            self._links[consumer] = plane.offer(channel, generation, exchange.schema, _ProducerEnd(self, consumer))

    # For the chain.

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        if self._coalescer.add(batch, self._now_ms()):
            self.flush()

    def ready(self) -> Future[None] | None:
        """Return None if there is room, else a future that is done when there is."""
        if self._has_room():
            return None
        if self._room is None:
            self._room = Future()
        return self._room

    def on_watermark(self, timestamp_ms: int) -> None:
        """Send the watermark after the rows before it, in milliseconds."""
        self._watermark_ms = timestamp_ms
        if self._buffer_timeout_ms == 0:
            self.flush()
        else:
            self._coalescer.follow(self._now_ms())

    def on_idle(self) -> None:
        """Let nobody wait for this producer's watermark."""
        self._send_after_rows(ProducerIdle())

    def on_active(self) -> None:
        """Let consumers wait for it again."""
        self._send_after_rows(ProducerActive())

    def on_ended(self) -> None:
        """Announce that no rows follow."""
        self._send_after_rows(ProducerEnded())

    # For the subtask.

    def barrier(self, barrier: Barrier) -> None:
        """Send a barrier; `on_stored` follows, perhaps at once."""
        self.flush()
        self._handle(rp.BarrierEmitted(barrier))

    def give_up(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will not complete."""
        self._handle(rp.CheckpointGivenUp(checkpoint_id))

    def emit_recovered(self, consumer: int, buffer: Buffer) -> None:
        """Send a buffer that was recovered on this side, before all others."""
        self._handle(rp.RowsEmitted(consumer, buffer))

    def end_recovered(self) -> None:
        """Say that all recovered buffers were sent."""
        self._handle(rp.EventEmitted(ProducerRecovered()))

    @property
    def is_empty(self) -> bool:
        """Whether no buffer waits to be sent."""
        return self._partition.queued_buffers == 0

    @property
    def use(self) -> float:
        """The part of the room for what has no credit yet that is taken, from 0 to 1."""
        buffers = self._partition.queued_buffers / (MAX_QUEUED_BUFFERS * len(self._links))
        return min(1.0, max(buffers, self._partition.queued_bytes / self._max_queued_bytes))

    def due_ms(self) -> int | None:
        """Return when `on_time` is wanted, in milliseconds."""
        due_ms, partition_ms = self._coalescer.due_ms(), self._partition.next_time_ms()
        return partition_ms if due_ms is None else due_ms if partition_ms is None else min(due_ms, partition_ms)

    def rest(self) -> bool:
        """Send what need not wait, now that the subtask has nothing else to do; return whether there was anything."""
        sends = (self._has_room() or self._partition.takes_rows) and self._coalescer.rest(self._now_ms())
        if sends:
            self.flush()
        return sends

    def on_time(self) -> None:
        """Do what is due."""
        now_ms = self._now_ms()
        if self._coalescer.due(now_ms):
            self.flush()
        due_ms = self._partition.next_time_ms()
        if due_ms is not None and now_ms >= due_ms:
            self._handle(rp.PartitionTimePassed())

    def flush(self) -> None:
        """Send what is gathered, and the watermark after it."""
        batch = self._coalescer.take()
        for consumer, rows in [] if batch is None else self._partitioner.split(batch):
            for buffer in buffers_of(rows, self._max_bytes):
                self._handle(rp.RowsEmitted(consumer, buffer))
        watermark_ms, self._watermark_ms = self._watermark_ms, None
        if watermark_ms is not None:
            self._handle(rp.EventEmitted(WatermarkPassed(watermark_ms)))

    def close(self) -> None:
        """End all channels."""
        self._closed = True
        for link in self._links.values():
            link.close()

    def _send_after_rows(self, event: ChannelEvent) -> None:
        self.flush()
        self._handle(rp.EventEmitted(event))

    def _has_room(self) -> bool:
        if self._without_credit:
            return False
        queued = self._partition.queued_buffers
        if not queued:
            return True
        return queued < MAX_QUEUED_BUFFERS * len(self._links) and self._partition.queued_bytes < self._max_queued_bytes

    def _handle(self, event: rp.Event) -> None:
        if self._closed:
            return
        if isinstance(event, rp.CreditGranted):
            self._without_credit.discard(event.consumer)
        for action in self._partition.handle(event, self._now_ms()):
            match action:
                case rp.Transmit(consumer=consumer, element=element):
                    self._links[consumer].send(element)
                case rp.StoreChannels(checkpoint_id=checkpoint_id, channels=channels):
                    self._on_stored(checkpoint_id, channels)
                case _:
                    assert_never(action)
        if self._room is not None and self._has_room():
            room, self._room = self._room, None
            room.set_result(None)

    def post_event(self, event: rp.Event) -> None:
        """Take note of an event of a link. Any thread."""
        self._mailbox.post(Mail(lambda: self._handle(event)))

    def post_broken(self, error: TransportError) -> None:
        """Take note of a link's end. Any thread."""
        self._mailbox.post(Mail(lambda: None if self._closed else self._on_broken(error)))


class _ProducerEnd:
    """The producer's end of one channel."""

    def __init__(self, output: OutputExchange, consumer: int) -> None:
        self._output = output
        self._consumer = consumer

    def on_connected(self) -> None:
        self._output.post_event(rp.ConsumerConnected(self._consumer))

    def on_credit(self, credits: int) -> None:
        self._output.post_event(rp.CreditGranted(self._consumer, credits))

    def on_broken(self, error: TransportError) -> None:
        self._output.post_broken(error)
