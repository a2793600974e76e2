"""Decides when rows for a consumer are sent: small pieces are put together, large ones are cut, nobody waits long.

Never: read a clock (who calls says what time it is), or change the order of a consumer's rows.

A buffer on a channel costs about the same whether it holds ten rows or ten thousand, and credits count buffers. So rows
wait until there are enough of them, or until the first has waited for `exchange.buffer-timeout`:

- What waits is put together in one copy, right before it is sent. A piece that is large enough by itself is not copied,
  unless it is a small slice: what is sent to others would stay in memory as long as a slow consumer's part of it does.
- What is larger than a buffer may be is cut; a row that is so by itself goes alone.
- The more channels a subtask has, the smaller the buffers, so that what all of them may hold does not grow with their
  number (`buffer_bytes`).
- Before an event `flush` sends everything: a watermark or a barrier comes after the rows that were sent before it.

Follows docs/architecture.md, "Stages and exchanges"; Flink's
`execution.buffer-timeout`. A batch's size is that of the slice, not of what it is cut from.
"""

from __future__ import annotations

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

    __slots__ = ("batches", "since_ms", "size_bytes")

    def __init__(self, since_ms: int) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.size_bytes = 0
        self.since_ms = since_ms


class Coalescer:
    """Gathers the rows of one producing subtask, consumer by consumer.

    Parameters
    ----------
    timeout_ms
        How long a row may wait, in milliseconds; 0: everything is sent as it comes.
    max_bytes
        No buffer is larger.
    target_bytes
        With so many bytes a buffer is sent at once; None: half of ``max_bytes``.

    Examples
    --------
    >>> coalescer, rows = Coalescer(timeout_ms=5), pa.record_batch({"v": [1, 2]})
    >>> coalescer.add(0, rows, now_ms=100), coalescer.add(0, rows, now_ms=102), coalescer.due_ms()
    ([], [], 105)
    >>> [(consumer, buffer.num_rows) for consumer, buffer in coalescer.flush()]
    [(0, 4)]
    """

    def __init__(
        self, *, timeout_ms: int = TIMEOUT_MS, max_bytes: int = MAX_BYTES, target_bytes: int | None = None
    ) -> None:
        target_bytes = target_bytes or max_bytes // 2
        assert 0 < target_bytes <= max_bytes and timeout_ms >= 0
        self._timeout_ms = timeout_ms
        self._target_bytes = target_bytes
        self._max_bytes = max_bytes
        self._waiting: dict[int, _Waiting] = {}

    def add(self, consumer: int, batch: pa.RecordBatch, now_ms: int) -> Sent:
        """Take rows for a consumer at a time in milliseconds, and return what is to be sent now, in order.

        Time does not go back from one call to the next.
        """
        if batch.num_rows == 0:
            return []
        size_bytes = batch.nbytes
        waiting = self._waiting.get(consumer)
        if size_bytes >= self._target_bytes:  # what waits goes before it, by itself: the large piece is not copied
            return [*self._send(consumer), *((consumer, each) for each in self._cut(_on_its_own(batch), size_bytes))]
        if waiting is None:
            waiting = self._waiting[consumer] = _Waiting(now_ms)
        waiting.batches.append(batch)
        waiting.size_bytes += size_bytes
        if waiting.size_bytes >= self._target_bytes or now_ms - waiting.since_ms >= self._timeout_ms:
            return self._send(consumer)
        return []

    def flush(self) -> Sent:
        """Return all that waits: an event follows, or `due_ms` is over."""
        return [sent for consumer in sorted(self._waiting) for sent in self._send(consumer)]

    def due_ms(self) -> int | None:
        """Return when `flush` is wanted, in milliseconds; None: nothing waits."""
        if not self._waiting:
            return None
        first = next(iter(self._waiting.values()))  # they are in the order in which they came
        return first.since_ms + self._timeout_ms

    def _send(self, consumer: int) -> Sent:
        waiting = self._waiting.pop(consumer, None)
        if waiting is None:
            return []
        batches = waiting.batches
        if len(batches) == 1:
            return [(consumer, buffer) for buffer in self._cut(_on_its_own(batches[0]), waiting.size_bytes)]
        return [(consumer, buffer) for buffer in self._cut(pa.concat_batches(batches), waiting.size_bytes)]

    def _cut(self, batch: pa.RecordBatch, size_bytes: int) -> list[Buffer]:
        """Return rows as buffers that are small enough."""
        rows = batch.num_rows
        if size_bytes <= self._max_bytes or rows == 1:
            return [Buffer(batch, rows, size_bytes)]
        pieces = min(rows, -(-size_bytes // self._max_bytes))
        each = -(-rows // pieces)
        found = []
        for begin in range(0, rows, each):
            piece = batch.slice(begin, each)
            found += self._cut(piece, piece.nbytes)  # rows differ in size: a piece may still be too large
        return found


def _on_its_own(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch that holds in memory not much more than its rows."""
    return pa.concat_batches([batch]) if batch.get_total_buffer_size() > 2 * batch.nbytes else batch
