"""Decides when a producer's rows are sent: small batches are put together, large parts are cut, nobody waits long.

Never: read a clock (who calls says what time it is), or change the order of rows.

A buffer on a channel costs about the same whether it holds ten rows or ten thousand, and credits count buffers. A
producer among many subtasks has few rows for each, so a fixed time-out would send small buffers exactly where there are
most of them. So size decides, and time only where there is time:

    rows leave                                                because
    --------------------------------------------------------  --------------------------------------------------------
    when each consumer may expect a buffer that is worth it   more rows would make it no cheaper
    when the producer has nothing else to do (`rest`), unless  nothing is saved by waiting for rows that may not come;
    others left so within the time-out                        the time-out bounds how many small buffers there are
    when the first is old: `PATIENCE` time-outs               a producer that is always busy may have few rows
    before an event                                           a watermark or a barrier comes after the rows before it

All of them leave together: they are sorted by consumer at once, which costs less than to sort each batch and to put
pieces together. What is larger than a buffer may be is cut; a row that is so by itself goes alone. The more channels
a subtask has, the smaller the buffers, so that what all of them may hold does not grow with their number
(`buffer_bytes`); and the longer the patience of a busy producer, since each of them costs a buffer then.

Follows docs/decisions/031-size-first-time-when-there-is-time.md; Flink's `execution.buffer-timeout`. A batch's size is
that of the slice, not of what it is cut from.
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
PATIENCE = 20
"""A busy producer keeps rows for so many time-outs at most: 100 ms, as long as Flink's default."""
_PATIENCE_PER_CHANNEL = 2
"""Or for so many time-outs and channel, if that is longer: a small buffer for each of them costs 50 us or so, which is
half a hundredth of that time."""


def buffer_bytes(channels: int, memory_bytes: int = MEMORY_BYTES) -> int:
    """Return how large a buffer may be, where a subtask has so many channels and so much memory for their credit.

    Examples
    --------
    >>> [buffer_bytes(channels) >> 10 for channels in (2, 8, 64, 1_000)]
    [1024, 1024, 128, 32]
    """
    return max(MIN_BYTES, min(MAX_BYTES, memory_bytes // (channels * CREDITS)))


class Coalescer:
    """Gathers the rows of one producing subtask.

    Parameters
    ----------
    timeout_ms
        How long rows of a producer that has nothing else to do may wait, in milliseconds; 0: everything is sent as it
        comes.
    channels
        How many consumers there are.
    target_bytes
        With so many bytes for each channel rows are sent at once.

    Examples
    --------
    >>> coalescer, rows = Coalescer(timeout_ms=5), pa.record_batch({"v": [1, 2]})
    >>> coalescer.add(rows, now_ms=100), coalescer.add(rows, now_ms=102), coalescer.due_ms()
    (False, False, 200)
    >>> coalescer.take().num_rows
    4
    """

    def __init__(self, *, timeout_ms: int = TIMEOUT_MS, channels: int = 1, target_bytes: int = MAX_BYTES // 2) -> None:
        assert target_bytes > 0 and timeout_ms >= 0
        self.patience_ms = timeout_ms * max(PATIENCE, _PATIENCE_PER_CHANNEL * channels)
        """How long rows of a busy producer wait, in milliseconds."""
        self._timeout_ms = timeout_ms
        self._target_bytes = target_bytes * channels if timeout_ms else 0
        self._batches: list[pa.RecordBatch] = []
        self._size_bytes = 0
        self._since_ms: int | None = None  # since when rows wait, or an event
        self._rested_ms: int | None = None  # when all was sent because there was nothing else to do
        self._rest_due_ms: int | None = None  # when it is next, unless rows come before

    def add(self, batch: pa.RecordBatch, now_ms: int) -> bool:
        """Take rows at a time in milliseconds, which does not go back; return whether they are to be sent now."""
        self.follow(now_ms)
        self._rest_due_ms = None
        self._batches.append(batch)
        self._size_bytes += batch.nbytes
        return self._size_bytes >= self._target_bytes

    def follow(self, now_ms: int) -> None:
        """Take note that an event is to be sent after the rows, which waits as rows do."""
        if self._since_ms is None:
            self._since_ms = now_ms

    def rest(self, now_ms: int) -> bool:
        """Take note that the producer has nothing else to do; return whether what waits is to be sent now."""
        if self._since_ms is None:
            return False
        due_ms = now_ms if self._rested_ms is None else self._rested_ms + self._timeout_ms
        if now_ms < due_ms:
            self._rest_due_ms = due_ms
            return False
        self._rested_ms = now_ms
        return True

    def due(self, now_ms: int) -> bool:
        """Return whether what waits is to be sent at a time in milliseconds, whatever the producer does."""
        due_ms = self.due_ms()
        if due_ms is None or now_ms < due_ms:
            return False
        self._rested_ms = now_ms
        return True

    def due_ms(self) -> int | None:
        """Return when what waits is to be sent at the latest, in milliseconds; None: nothing waits."""
        if self._since_ms is None:
            return None
        return self._since_ms + self.patience_ms if self._rest_due_ms is None else self._rest_due_ms

    def take(self) -> pa.RecordBatch | None:
        """Return all rows that wait, to be sent; what follows them may be, too."""
        batches, self._batches, self._size_bytes = self._batches, [], 0
        self._since_ms = self._rest_due_ms = None
        if not batches:
            return None
        return pa.concat_batches(batches) if len(batches) > 1 else batches[0]


def buffers_of(batch: pa.RecordBatch, max_bytes: int) -> list[Buffer]:
    """Return the rows of one consumer as buffers that are small enough.

    None of them keeps much more than its rows in memory: a slow consumer's part of a batch would else keep all of it.
    """
    rows, size_bytes = batch.num_rows, batch.nbytes
    if size_bytes <= max_bytes or rows == 1:
        whole = batch.get_total_buffer_size() <= 2 * size_bytes
        return [Buffer(batch if whole else pa.concat_batches([batch]), rows, size_bytes)]
    pieces = min(rows, -(-size_bytes // max_bytes))
    each = -(-rows // pieces)
    found = []
    for begin in range(0, rows, each):
        found += buffers_of(batch.slice(begin, each), max_bytes)  # rows differ in size: it may still be too large
    return found
