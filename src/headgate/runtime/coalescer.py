"""Decides when rows for a consumer are sent: small pieces are put together, large ones are cut, nobody waits long.

Never: read a clock (who calls says what time it is), or change the order of a consumer's rows.

A buffer on a channel costs about the same whether it holds ten rows or ten thousand, and credits count buffers. A
producer among many subtasks has few rows for each, so a fixed time-out would send small buffers exactly where there are
most of them. So size decides, and time only where there is time:

    a buffer leaves                                           because
    --------------------------------------------------------  --------------------------------------------------------
    when it is large enough                                   more rows would make it no cheaper
    when the producer has nothing else to do (`rest`), unless  nothing is saved by waiting for rows that may not come;
    others left so within the time-out                        the time-out bounds how many small buffers there are
    when its first row is old: `PATIENCE` time-outs           a producer that is always busy may have few rows
    before an event                                           a watermark or a barrier comes after the rows before it

- What waits is put together in one copy, right before it is sent. A piece that is large enough by itself is not copied,
  unless it is a small slice: what is sent to others would stay in memory as long as a slow consumer's part of it does.
- What is larger than a buffer may be is cut; a row that is so by itself goes alone.
- The more channels a subtask has, the smaller the buffers, so that what all of them may hold does not grow with their
  number (`buffer_bytes`); and the longer the patience of a busy producer, since each of them costs a buffer then.

Follows docs/decisions/028; Flink's `execution.buffer-timeout`. A batch's size is that of the slice, not of what it is
cut from.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa

from headgate.protocol.channels import CREDITS, Buffer

MAX_BYTES = 1 << 20
"""No buffer is larger, but for a single row: it is what a credit may cost. Half of it is a few hundred microseconds of
work on either side, which is enough."""
MIN_BYTES = 32 << 10
"""However many channels there are, buffers are not made smaller: each costs about as much as its rows then."""
MEMORY_BYTES = 32 << 20
"""The default of `exchange.memory`."""
TIMEOUT_MS = 5
"""The default of `exchange.buffer-timeout`."""
PATIENCE = 20
"""A busy producer keeps rows for so many time-outs at most: 100 ms, as long as Flink's default."""
_PATIENCE_PER_CHANNEL = 2
"""Or for so many time-outs and channel, if that is longer: a small buffer for each of them costs 50 us or so, which is
half a hundredth of that time."""

Sent = list[tuple[int, Buffer]]


def buffer_bytes(channels: int, memory_bytes: int = MEMORY_BYTES) -> int:
    """Return how large a buffer may be, where a subtask has so many channels and so much memory for their credit.

    Examples
    --------
    >>> [buffer_bytes(channels) >> 10 for channels in (2, 8, 64, 1_000)]
    [1024, 1024, 128, 32]
    """
    return max(MIN_BYTES, min(MAX_BYTES, memory_bytes // (channels * CREDITS)))


class _Waiting:
    """What waits for one consumer."""

    __slots__ = ("batches", "since_bytes", "since_ms", "size_bytes")

    def __init__(self, since_ms: int, since_bytes: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = 0
        self.since_ms = since_ms
        self.since_bytes = since_bytes  # what all consumers had got


class Coalescer:
    """Gathers the rows of one producing subtask, consumer by consumer.

    Parameters
    ----------
    timeout_ms
        How long rows of a producer that has nothing else to do may wait, in milliseconds; 0: everything is sent as it
        comes.
    channels
        How many consumers there are.
    memory_bytes
        For their credit; half as much is let go of once it came after a row that waits.
    max_bytes
        No buffer is larger; None: `buffer_bytes`.
    target_bytes
        With so many bytes a buffer is sent at once; None: half of ``max_bytes``.

    Examples
    --------
    >>> coalescer, rows = Coalescer(timeout_ms=5), pa.record_batch({"v": [1, 2]})
    >>> [coalescer.add([(0, rows)], 8, now_ms) for now_ms in (100, 102)], coalescer.due_ms()
    ([[], []], 200)
    >>> [(consumer, buffer.num_rows) for consumer, buffer in coalescer.flush()]
    [(0, 4)]
    """

    def __init__(
        self,
        *,
        timeout_ms: int = TIMEOUT_MS,
        channels: int = 1,
        memory_bytes: int = MEMORY_BYTES,
        max_bytes: int | None = None,
        target_bytes: int | None = None,
    ) -> None:
        max_bytes = max_bytes or buffer_bytes(channels, memory_bytes)
        target_bytes = target_bytes or max_bytes // 2
        assert 0 < target_bytes <= max_bytes and timeout_ms >= 0
        self.patience_ms = timeout_ms * max(PATIENCE, _PATIENCE_PER_CHANNEL * channels)
        """How long rows of a busy producer wait, in milliseconds."""
        self._timeout_ms = timeout_ms
        self._target_bytes = target_bytes if timeout_ms else 0
        self._max_bytes = max_bytes
        self._most_bytes = memory_bytes // 2
        self._came_bytes = 0
        self._waiting: dict[int, _Waiting] = {}
        self._follows_since_ms: int | None = None  # an event
        self._rested_ms: int | None = None  # when all was sent because there was nothing else to do
        self._rest_due_ms: int | None = None  # when it is next, unless rows come before

    @property
    def waiting(self) -> Collection[int]:
        """The consumers that rows wait for."""
        return self._waiting

    def add(self, parts: Sequence[tuple[int, pa.RecordBatch]], row_bytes: float, now_ms: int) -> Sent:
        """Take the rows of a batch, consumer by consumer, and return what is to be sent now, in order.

        Parameters
        ----------
        parts
            Consumers and their rows, of which there are some.
        row_bytes
            How large a row is, on an average of the batch. It will do until they are sent: the true size of each small
            piece would cost more than what is done with it.
        now_ms
            Which time it is, in milliseconds. It does not go back from one call to the next.
        """
        self._rest_due_ms = None
        sent: Sent = []
        for consumer, batch in parts:
            piece_bytes = int(row_bytes * batch.num_rows)
            self._came_bytes += piece_bytes
            waiting = self._waiting.get(consumer)
            if piece_bytes >= self._target_bytes:  # what waits goes before it, by itself: a large piece is not copied
                sent += self.send(consumer)
                sent += ((consumer, each) for each in self._cut(_on_its_own(batch)))
                continue
            if waiting is None:
                waiting = self._waiting[consumer] = _Waiting(now_ms, self._came_bytes)
            waiting.batches.append(batch)
            waiting.size_bytes += piece_bytes
            if waiting.size_bytes >= self._target_bytes:
                sent += self.send(consumer)
        return sent + self._let_go() if self._waiting else sent

    def follow(self, now_ms: int) -> None:
        """Take note that an event is to be sent after the rows, which waits as rows do."""
        if self._follows_since_ms is None:
            self._follows_since_ms = now_ms

    def rest(self, now_ms: int) -> bool:
        """Take note that the producer has nothing else to do; return whether `flush` is wanted."""
        if not self._waiting and self._follows_since_ms is None:
            return False
        due_ms = now_ms if self._rested_ms is None else self._rested_ms + self._timeout_ms
        if now_ms < due_ms:
            self._rest_due_ms = due_ms
            return False
        self._rested_ms = now_ms
        return True

    def due(self, now_ms: int) -> bool:
        """Return whether `flush` is wanted at a time in milliseconds, whatever the producer does."""
        due_ms = self.due_ms()
        if due_ms is None or now_ms < due_ms:
            return False
        self._rested_ms = now_ms
        return True

    def due_ms(self) -> int | None:
        """Return when `flush` is wanted at the latest, in milliseconds; None: nothing waits."""
        since_ms = self._follows_since_ms
        if self._waiting:
            first = next(iter(self._waiting.values()))  # they are in the order in which they came
            since_ms = first.since_ms if since_ms is None else min(since_ms, first.since_ms)
        if since_ms is None:
            return None
        return since_ms + self.patience_ms if self._rest_due_ms is None else self._rest_due_ms

    def flush(self) -> Sent:
        """Return all that waits; an event may follow."""
        self._follows_since_ms = self._rest_due_ms = None
        return [sent for consumer in sorted(self._waiting) for sent in self.send(consumer)]

    def send(self, consumer: int) -> Sent:
        """Return what waits for one consumer."""
        waiting = self._waiting.pop(consumer, None)
        if waiting is None:
            return []
        batches = waiting.batches
        batch = pa.concat_batches(batches) if len(batches) > 1 else _on_its_own(batches[0])
        return [(consumer, buffer) for buffer in self._cut(batch)]

    def _let_go(self) -> Sent:
        """Return what has waited while too much came: a small piece holds all of the batch that it is a slice of."""
        sent: Sent = []
        while self._waiting:
            consumer, waiting = next(iter(self._waiting.items()))
            if self._came_bytes - waiting.since_bytes <= self._most_bytes:
                break
            sent += self.send(consumer)
        return sent

    def _cut(self, batch: pa.RecordBatch) -> list[Buffer]:
        """Return rows as buffers that are small enough."""
        rows, size_bytes = batch.num_rows, batch.nbytes
        if size_bytes <= self._max_bytes or rows == 1:
            return [Buffer(batch, rows, size_bytes)]
        pieces = min(rows, -(-size_bytes // self._max_bytes))
        each = -(-rows // pieces)
        found = []
        for begin in range(0, rows, each):
            found += self._cut(batch.slice(begin, each))  # rows differ in size: a piece may still be too large
        return found


def _on_its_own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that holds in memory not much more than its rows."""
    return pa.concat_batches([batch]) if batch.get_total_buffer_size() > 2 * batch.nbytes else batch
