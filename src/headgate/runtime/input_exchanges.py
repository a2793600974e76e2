"""The consuming end of a subtask's exchanges: links and recovered rows in, slices of rows for the chain out.

Never: decide what is next or what belongs to a checkpoint (`InputGate` does); touch anything on another thread than the
subtask's: what links and the recovery thread report is posted to its mailbox.

A buffer is given to the chain a slice at a time; the rest goes back to the gate before anything else happens, so that a
barrier finds it there however slow the operator is. Small buffers are put together before, whichever channel they came
on: a call of an operator costs about the same for ten rows as for a thousand.

Follows FLIP-547, sections 4.3 to 4.6.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, assert_never

import pyarrow as pa

from headgate.errors import TransportError
from headgate.operators.exchange import Exchange, Partitioner
from headgate.protocol import messages as msg
from headgate.protocol.channels import Barrier, Buffer, ChannelId, Element
from headgate.runtime.channel_recovery_thread import BufferPool, RecoveredInput, Recovery, RecoveryFigures
from headgate.runtime.coalescer import MAX_BYTES
from headgate.runtime.mailbox import Mail, Mailbox
from headgate.runtime.snapshot_parts import StoredRows
from headgate.task.exchange import input_gate as ig
from headgate.transport.data_plane import ConsumerLink, DataPlane

_GATHERED_BYTES = MAX_BYTES // 2
"""Buffers are put together up to this size; a larger one would cost more to copy than a call of its own does."""


class GateUser(Protocol):
    """Who carries out what the gate decides, on the subtask's thread."""

    def entry_rows(self, exchange: str) -> int:
        """Return how many rows of an exchange make one slice."""

    def on_rows(self, exchange: str, batch: pa.RecordBatch) -> None:
        """Take a slice."""

    def on_watermark(self, exchange: str, timestamp_ms: int) -> None:
        """Take the watermark of an exchange, in milliseconds."""

    def on_idle(self, exchange: str) -> None:
        """Do not wait for an exchange's watermark."""

    def on_active(self, exchange: str) -> None:
        """Wait for it again."""

    def on_inputs_ended(self) -> None:
        """All exchanges have ended."""

    def on_barrier(self, barrier: Barrier) -> None:
        """Take a snapshot before anything else is processed."""

    def on_input_stored(
        self, checkpoint_id: int, channels: Mapping[ChannelId, Sequence[StoredRows]], relocated: frozenset[str]
    ) -> None:
        """Take the input's channel state of a checkpoint: for each channel its buffers, in order.

        ``relocated``: the exchanges whose state `headgate.protocol.state.ChannelState` calls so.
        """

    def on_recovered(self) -> None:
        """Everything that was recovered is processed."""

    def on_broken(self, error: TransportError) -> None:
        """A link is gone."""


class InputExchanges:
    """What a subtask downstream of exchanges reads.

    Parameters
    ----------
    consumer
        This subtask.
    exchanges
        What it consumes, by uid.
    inputs
        What the gate must know of these.
    partitioners
        By uid: they know which rows of a recovered buffer are the subtask's.
    generation
        The deployment's.
    plane
        The slot's.
    mailbox
        The subtask's.
    now_ms
        Reads the clock, in milliseconds.
    user
        Who carries out what the gate decides.
    recovered
        The channel state that the subtask takes on.
    producers_recover
        Whether the producers send recovered buffers first.
    recovery
        What recovers: as `headgate.runtime.channel_recovery_thread.ChannelRecoveryThread`, but for where it spills to.
    pool
        The memory for what is recovered.
    """

    def __init__(
        self,
        consumer: int,
        exchanges: Mapping[str, Exchange],
        inputs: Mapping[str, ig.GateInput],
        partitioners: Mapping[str, Partitioner],
        generation: int,
        plane: DataPlane,
        mailbox: Mailbox,
        now_ms: Callable[[], int],
        user: GateUser,
        recovered: Sequence[RecoveredInput],
        *,
        producers_recover: bool,
        recovery: Callable[..., Recovery],
        pool: BufferPool,
    ) -> None:
        self._consumer = consumer
        self._inputs = inputs
        self._exchanges = exchanges
        self._partitioners = partitioners
        self._generation = generation
        self._plane = plane
        self._mailbox = mailbox
        self._now_ms = now_ms
        self._user = user
        self._links: dict[ChannelId, ConsumerLink] = {}
        self._ended: set[str] = set()
        self._closed = False
        self._gate = ig.InputGate(consumer, inputs, recovering=bool(recovered), producers_recover=producers_recover)
        self._pool = pool
        self._in_memory: dict[ChannelId, deque[list[int]]] = {}  # recovered, not processed: rows left, and bytes
        self._on_disk: dict[int, tuple[int, int]] = {}  # by number: rows and bytes of what is spilled
        self._rows_to_recover = sum(each.rows for each in recovered)
        self._recovered = not recovered
        self._recovery: Recovery | None = None
        if recovered:
            self._recovery = recovery(
                str(consumer),
                recovered,
                pool=self._pool,
                post=self._post_recovery,
                on_error=self._post_failure,
            )

    def start(self) -> None:
        """Begin to recover."""
        if self._recovery is not None:
            self._recovery.start()

    def connect(self, addresses: Mapping[int, str]) -> None:
        """Connect the channels; ``addresses`` by slot."""
        for uid, each in self._inputs.items():
            for producer in each.producers:
                channel = ChannelId(uid, producer, self._consumer)
                self._links[channel] = self._plane.connect(
                    addresses[producer],
                    channel,
                    self._generation,
                    self._exchanges[uid].schema,
                    _ConsumerEnd(self, channel),
                )

    @property
    def recovery(self) -> RecoveryFigures:
        """What recovery has done so far."""
        return RecoveryFigures() if self._recovery is None else self._recovery.figures

    def recovery_progress(self) -> msg.RecoveryProgress | None:
        """Return what is left to be recovered on this side; None: nothing."""
        if self._recovered:
            return None
        in_memory = sum(rows for buffers in self._in_memory.values() for rows, _ in buffers)
        return msg.RecoveryProgress(
            phase=self._gate.recovery,
            rows_to_read=max(0, self._rows_to_recover - self.recovery.rows_read),
            rows_left=in_memory + sum(rows for rows, _ in self._on_disk.values()),
            memory_bytes=self._pool.used_bytes,
            disk_bytes=sum(size_bytes for _, size_bytes in self._on_disk.values()),
        )

    @property
    def waits_for_aligned(self) -> bool:
        """Whether a snapshot waits for rows that need no room: `input_gate.InputGate`."""
        return self._gate.waits_for_aligned

    def poll(self, *, overdraft: bool) -> bool:
        """Give the chain the next slice, or what else is next; return whether there was anything.

        ``overdraft``: only what a snapshot waits for.
        """
        actions = self._gate.handle(ig.Polled(overdraft), self._now_ms())
        self._carry_out(actions, gathers=not overdraft)
        return bool(actions)

    def give_up(self, checkpoint_id: int) -> None:
        """Forget a checkpoint that will not complete."""
        self._handle(ig.CheckpointGivenUp(checkpoint_id))

    def due_ms(self) -> int | None:
        """Return when `on_time` is wanted, in milliseconds."""
        return self._gate.next_time_ms()

    def on_time(self) -> None:
        """Do what is due."""
        due_ms = self._gate.next_time_ms()
        if due_ms is not None and self._now_ms() >= due_ms:
            self._handle(ig.GateTimePassed())

    def close(self) -> None:
        """End all channels, and recovery."""
        self._closed = True
        if self._recovery is not None:
            self._recovery.close()
        for link in self._links.values():
            link.close()

    def _handle(self, event: ig.Event) -> None:
        if not self._closed:
            self._carry_out(self._gate.handle(event, self._now_ms()))

    def _carry_out(self, actions: Iterable[ig.Action], *, gathers: bool = False) -> None:
        user = self._user
        for action in actions:
            match action:
                case ig.ProcessRows():
                    self._process(action, gathers=gathers)
                case ig.AdvanceWatermark(exchange=exchange, timestamp_ms=timestamp_ms):
                    user.on_watermark(exchange, timestamp_ms)
                case ig.MarkIdle(exchange=exchange):
                    user.on_idle(exchange)
                case ig.MarkActive(exchange=exchange):
                    user.on_active(exchange)
                case ig.EndInput(exchange=exchange):
                    self._ended.add(exchange)
                    if self._ended == set(self._exchanges):
                        user.on_inputs_ended()
                case ig.GrantCredit(channel=channel, credits=credits):
                    self._links[channel].grant(credits)
                case ig.TakeSnapshot(barrier=barrier):
                    user.on_barrier(barrier)
                case ig.StoreChannels(checkpoint_id=checkpoint_id, channels=channels, relocated=relocated):
                    user.on_input_stored(
                        checkpoint_id,
                        {channel: [self._stored(each) for each in held] for channel, held in channels.items()},
                        relocated,
                    )
                case ig.RecoveredProcessed():
                    self._recovered = True
                    user.on_recovered()
                case _:
                    assert_never(action)

    def _stored(self, held: Buffer | ig.Spilled) -> StoredRows:
        if isinstance(held, Buffer):
            return StoredRows(held.num_rows, lambda: held.rows)
        recovery, number = self._recovery, held.number
        assert recovery is not None
        return StoredRows(recovery.size_spilled(number)[0], lambda: recovery.read_spilled(number))

    def _process(self, first: ig.ProcessRows, *, gathers: bool) -> None:
        """Give the chain the rows of a buffer, or of several small ones, up to one slice, and the gate what is left."""
        exchange = first.channel.exchange
        room, size_bytes = self._user.entry_rows(exchange), 0
        batches: list[pa.RecordBatch] = []
        polled: ig.ProcessRows | None = first
        while polled is not None:
            batch, buffer = self._own_rows(polled), polled.buffer
            rows = min(batch.num_rows, room)
            if left := batch.num_rows - rows:
                rest = Buffer(batch.slice(rows), left, buffer.size_bytes * left // batch.num_rows)
                self._handle(ig.RowsPutBack(rest))
            self._release(polled.channel, rows)
            if rows:
                batches.append(batch.slice(0, rows))
            room -= rows
            size_bytes += buffer.size_bytes
            polled = self._more() if gathers and room and size_bytes < _GATHERED_BYTES else None
        if batches:
            self._user.on_rows(exchange, pa.concat_batches(batches) if len(batches) > 1 else batches[0])

    def _more(self) -> ig.ProcessRows | None:
        """Return what can be processed together with what was polled."""
        for action in self._gate.handle(ig.MorePolled(), self._now_ms()):
            assert isinstance(action, ig.ProcessRows)
            return action
        return None

    def _own_rows(self, polled: ig.ProcessRows) -> pa.RecordBatch:
        batch: pa.RecordBatch = polled.buffer.rows
        if polled.buffer.unfiltered:
            batch = self._partitioners[polled.channel.exchange].filter_owned(batch, self._consumer)
        return batch

    def _release(self, channel: ChannelId, rows: int) -> None:
        """Give the recovery thread the room of what was processed: recovered buffers are the first of a channel."""
        in_memory = self._in_memory.get(channel)
        if not in_memory:
            return
        in_memory[0][0] -= rows
        if in_memory[0][0] <= 0:
            self._pool.release(in_memory.popleft()[1])

    def _on_recovery(self, event: ig.Event) -> None:
        if isinstance(event, ig.RowsRecovered):
            buffer = event.buffer
            self._in_memory.setdefault(event.channel, deque()).append([buffer.num_rows, buffer.size_bytes])
            self._on_disk.pop(event.spilled or 0, None)
        elif isinstance(event, ig.RowsSpilled) and self._recovery is not None and not self._closed:
            self._on_disk[event.number] = self._recovery.size_spilled(event.number)
        self._handle(event)

    # On any thread.

    def _post_recovery(self, event: ig.Event) -> None:
        self._mailbox.post(Mail(lambda: self._on_recovery(event)))

    def _post_failure(self, error: BaseException) -> None:
        self._mailbox.post(Mail(lambda: self._fail(error)))

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            raise error

    def post_event(self, event: ig.Event) -> None:
        """Take note of an event of a link."""
        self._mailbox.post(Mail(lambda: self._handle(event)))

    def post_broken(self, error: TransportError) -> None:
        """Take note of a link's end."""
        self._mailbox.post(Mail(lambda: None if self._closed else self._user.on_broken(error)))


class _ConsumerEnd:
    """The consumer's end of one channel."""

    def __init__(self, inputs: InputExchanges, channel: ChannelId) -> None:
        self._inputs = inputs
        self._channel = channel

    def on_connected(self) -> None:
        self._inputs.post_event(ig.ChannelConnected(self._channel))

    def on_element(self, element: Element) -> None:
        self._inputs.post_event(ig.ElementArrived(self._channel, element))

    def on_broken(self, error: TransportError) -> None:
        self._inputs.post_broken(error)
