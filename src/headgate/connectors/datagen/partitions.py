"""Which rows of the generated data belong to which partition, and when each row is due.

Never: read a clock, or depend on how many rows were read before: everything here is arithmetic on row numbers.

Rows are numbered from 0 over the whole source (their *row index*). A pattern of partition numbers repeats over the
row indices: ``0 1 2 0 1 2 ...`` without skew. So the rows of the source are the same for every number of partitions;
only their owner differs, and every partition advances in event time at the same pace.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
import numpy.typing as npt

_PATTERN_ROWS = 1024
"""Least length of a pattern with skew, in rows: shares are exact to about a thousandth."""


class Partitions:
    """The rows of each partition.

    Parameters
    ----------
    count
        How many partitions there are.
    skew
        Exponent of the shares: partition p gets rows in proportion to ``1 / (p + 1) ** skew``; 0: equal shares.
    """

    def __init__(self, count: int, skew: float = 0.0) -> None:
        self.count = count
        if skew == 0:
            self._pattern_rows = count
            self._slots = [np.array([partition], dtype=np.int64) for partition in range(count)]
            return
        weights = 1.0 / np.arange(1, count + 1) ** skew
        shares = np.maximum(1, np.round(weights / weights.sum() * max(_PATTERN_ROWS, 16 * count))).astype(np.int64)
        owner = np.repeat(np.arange(count), shares)
        # Each partition's slots are spread evenly over the pattern, so that none lags in event time.
        wanted = np.concatenate([(np.arange(share) + 0.5) / share for share in shares])
        owner = owner[np.lexsort((owner, wanted))]
        self._pattern_rows = len(owner)
        self._slots = [np.flatnonzero(owner == partition).astype(np.int64) for partition in range(count)]

    def row_indices(self, partition: int, position: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the row indices of a partition's own rows ``position`` to ``stop`` (not included)."""
        own = np.arange(position, stop, dtype=np.int64)
        slots = self._slots[partition]
        if len(slots) == 1:
            own *= self._pattern_rows
            own += slots[0]
            return own
        indices: npt.NDArray[np.int64] = (own // len(slots)) * self._pattern_rows + slots[own % len(slots)]
        return indices

    def row_index(self, partition: int, position: int) -> int:
        """Return the row index of one of a partition's own rows."""
        patterns, slot = divmod(position, len(self._slots[partition]))
        return patterns * self._pattern_rows + int(self._slots[partition][slot])

    def rows_below(self, partition: int, row_index: int) -> int:
        """Return how many rows of a partition have a row index below this one."""
        patterns, slot = divmod(max(0, row_index), self._pattern_rows)
        slots = self._slots[partition]
        return patterns * len(slots) + int(np.searchsorted(slots, slot))


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """When rows are due: linearly faster up to the full rate, then at the full rate.

    Parameters
    ----------
    rows_per_second
        The full rate, over all partitions.
    ramp_up_ms
        How long it takes to reach it, in milliseconds. As in Spark's ``rate`` source, half as many rows come in
        this time as at the full rate.
    """

    rows_per_second: int
    ramp_up_ms: int = 0

    def rows_due(self, elapsed_ms: int) -> int:
        """Return how many rows are due so many milliseconds after the start; the rows below this row index."""
        if elapsed_ms <= 0:
            return 0
        if elapsed_ms < self.ramp_up_ms:
            return self.rows_per_second * elapsed_ms * elapsed_ms // (2000 * self.ramp_up_ms)
        return self.rows_per_second * (2 * elapsed_ms - self.ramp_up_ms) // 2000

    def due_ms(self, row_index: int) -> int:
        """Return how many milliseconds after the start a row is due: the least for which `rows_due` counts it."""
        rows = row_index + 1
        square = -(-2000 * self.ramp_up_ms * rows // self.rows_per_second)
        in_ramp_up_ms = math.isqrt(square - 1) + 1 if square else 0
        if 0 < in_ramp_up_ms <= self.ramp_up_ms:
            return in_ramp_up_ms
        rate = 2 * self.rows_per_second
        return -(-(2000 * rows + self.rows_per_second * self.ramp_up_ms) // rate)

    def event_us(self, row_indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the event times of rows, in microseconds after that of row 0."""
        seconds, rows = np.divmod(row_indices, self.rows_per_second)
        result: npt.NDArray[np.int64] = seconds * 1_000_000 + rows * 1_000_000 // self.rows_per_second
        return result

    def row_index_at(self, event_us: int) -> int:
        """Return the first row index whose event time is so many microseconds after that of row 0, or later."""
        return max(0, -(-event_us * self.rows_per_second // 1_000_000))
