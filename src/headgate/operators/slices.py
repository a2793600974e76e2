"""Decides how many rows a call gets, so that it takes about as long as it may.

Never: read a clock; who makes the call says how long it took.

Follows traps, 18: a slow function times a large batch is a mailbox that does not answer.
"""

from __future__ import annotations

CALL_MS = 40.0
"""How long a call may take, in milliseconds: with what surrounds it a letter stays below 50."""
_FIRST_ROWS = 16
_GROWTH = 8
_MOST_ROWS = 1 << 20


class SliceController:
    """The size of the next call.

    It begins with few rows, because nothing is known, and grows up to eightfold a call. A call that was slower per row
    than expected counts at once, a faster one by half.

    Parameters
    ----------
    call_ms
        How long a call may take, in milliseconds.

    Examples
    --------
    >>> slices = SliceController(call_ms=40)
    >>> slices.took(16, 0.1); slices.rows
    128
    >>> slices.took(128, 128.0); slices.rows  # a millisecond a row
    40
    """

    def __init__(self, call_ms: float = CALL_MS) -> None:
        self._call_ms = call_ms
        self._row_ms = 0.0
        self.rows = _FIRST_ROWS
        """How many rows the next call gets at most."""

    def took(self, rows: int, duration_ms: float) -> None:
        """Take note of how long a call with so many rows took, in milliseconds."""
        seen_ms = duration_ms / rows
        self._row_ms = seen_ms if seen_ms >= self._row_ms else (self._row_ms + seen_ms) / 2
        fitting = int(self._call_ms / self._row_ms) if self._row_ms > 0 else _MOST_ROWS
        # Only a call that was as large as allowed says that larger ones are well.
        most = min(_MOST_ROWS, self.rows * _GROWTH if rows >= self.rows else self.rows)
        self.rows = max(1, min(fitting, most))
