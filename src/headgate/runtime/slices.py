"""Decides how many rows a call gets, so that it takes about as long as it may.

Never: read a clock; who makes the call says how long it took.

A call costs something by itself (a model's start-up, a request over the network) and something for each row. Only the
part of the rows can be made smaller, so a line is fitted through calls of different sizes. Where the fixed part alone
takes nearly all the time there is, rows may still lengthen the call by a quarter: smaller calls would answer hardly
sooner, and get nothing done.

Follows FLIP-27, "Reader Interface and Threading Model": a task answers its mailbox between two calls.
"""

from __future__ import annotations

import math

import msgspec

CALL_MS = 40.0
"""How long a call may take, in milliseconds: with what surrounds it a mail stays below 50."""
LONGEST_TRIAL_MS = 5000.0
_GROWTH = 8
_MOST_ROWS = 1 << 20
_ROWS_SHARE = 0.25
"""What rows may take in any case, as a share of the fixed part."""
_NEWEST, _KEPT, _FORGOTTEN = 0.25, 0.97, 0.02
"""The weight of a call among those of its size; what a size keeps of it with each call; when it is forgotten."""
_TRIAL_CALLS = 32
"""So often a call is made half as large, or else nothing would be known of other sizes after a while."""


class _Size(msgspec.Struct):
    """The calls of about one size: their mean, of which newer ones have more, and its weight."""

    rows: float
    duration_ms: float
    weight: float = 1.0


class SliceController:
    """The size of the next call.

    It begins with one row, because nothing is known, and grows eightfold a call. A call that took more than twice
    as long as expected shrinks the next one at once; two in a row, and what was known is forgotten.

    Parameters
    ----------
    call_ms
        How long a call may take, in milliseconds.
    longest_trial_ms
        A call of one row that takes too long is followed by one of two, to find out what rows cost, and calls that one
        row led to by twice as many rows; unless they took longer than this, in milliseconds.

    Examples
    --------
    >>> slices = SliceController(call_ms=40)
    >>> slices.took(1, 0.1); slices.rows
    8
    >>> slices.took(8, 0.8); slices.rows
    64
    >>> model = SliceController(call_ms=40)
    >>> for _ in range(20):
    ...     model.took(model.rows, 45.0 + 0.001 * model.rows)
    >>> model.rows > 10_000  # smaller calls would take 45 ms too
    True
    """

    def __init__(self, call_ms: float = CALL_MS, *, longest_trial_ms: float = LONGEST_TRIAL_MS) -> None:
        self._call_ms = call_ms
        self._longest_trial_ms = longest_trial_ms
        self._sizes: dict[int, _Size] = {}  # by the bits of their rows, or of those that led to them
        self._fixed_ms = 0.0
        self._row_ms = 0.0
        self._surprised = False  # by the last call
        self._calls = 0
        self.rows = 1
        """How many rows the next call gets at most."""

    def expected_ms(self, rows: float) -> float:
        """Return how long a call with so many rows is expected to take, in milliseconds; infinite before the first."""
        return self._fixed_ms + self._row_ms * rows if self._sizes else math.inf

    def expected_call_ms(self, rows: int) -> float:
        """Return the same of the next call; infinite also if it may not have so many rows."""
        return self._fixed_ms + self._row_ms * rows if self._sizes and rows <= self.rows else math.inf

    def took(self, rows: int, duration_ms: float, of: int | None = None) -> None:
        """Take note of how long a call with so many rows took, in milliseconds.

        ``of``: it is several calls, which so many rows of an input led to: those that as many led to are alike.
        """
        of = rows if of is None else of
        expected_ms = self._fixed_ms + self._row_ms * rows
        slow = bool(self._sizes) and duration_ms > max(2 * expected_ms, self._call_ms / 2)
        known = of.bit_length() in self._sizes
        if slow and known and not self._surprised and duration_ms > self._call_ms:
            self._surprised = True  # the machine may have been busy with something else: it is not counted
            self.rows = max(1, min(self.rows, int(rows * self._call_ms / duration_ms)))
            return
        if slow and self._surprised:
            self._sizes.clear()
        self._surprised = False
        self._count(of.bit_length(), rows, duration_ms)
        self._fit()
        for_rows_ms = max(self._call_ms - self._fixed_ms, self._fixed_ms * _ROWS_SHARE)
        fitting = int(min(for_rows_ms / self._row_ms, _MOST_ROWS)) if self._row_ms > 0 else _MOST_ROWS
        allowed = self.rows
        self.rows = max(1, min(fitting, max(allowed, _GROWTH * rows), _MOST_ROWS))
        self._calls += 1
        alone = len(self._sizes) == 1  # then a call of another size has to be tried
        if alone and of == 1 and self.rows < 2 * rows:
            if duration_ms <= self._longest_trial_ms:
                self.rows = 2 * rows
        elif self.rows > 1 and (
            (alone and self.rows.bit_length() == rows.bit_length())
            or (2 * rows > allowed and self._calls % _TRIAL_CALLS == 0)
        ):
            self.rows //= 2

    def _count(self, bits: int, rows: int, duration_ms: float) -> None:
        for each in self._sizes.values():
            each.weight *= _KEPT
        size = self._sizes.setdefault(bits, _Size(rows, duration_ms))
        size.rows += _NEWEST * (rows - size.rows)
        size.duration_ms += _NEWEST * (duration_ms - size.duration_ms)
        size.weight = 1.0
        self._sizes = {bits: each for bits, each in self._sizes.items() if each.weight > _FORGOTTEN}

    def _fit(self) -> None:
        """Find the fixed part and that of a row, with the smallest errors in relation to what calls take."""
        sum_w = sum_r = sum_d = sum_rr = sum_rd = 0.0
        for each in self._sizes.values():
            weight = each.weight / max(each.duration_ms, 0.01) ** 2
            sum_w += weight
            sum_r += weight * each.rows
            sum_d += weight * each.duration_ms
            sum_rr += weight * each.rows * each.rows
            sum_rd += weight * each.rows * each.duration_ms
        spread = sum_w * sum_rr - sum_r * sum_r
        row_ms = (sum_w * sum_rd - sum_r * sum_d) / spread if len(self._sizes) > 1 and spread > 0 else sum_rd / sum_rr
        fixed_ms = (sum_d - row_ms * sum_r) / sum_w
        if row_ms < 0:
            row_ms, fixed_ms = 0.0, sum_d / sum_w
        elif fixed_ms < 0:
            row_ms, fixed_ms = sum_rd / sum_rr, 0.0
        self._row_ms, self._fixed_ms = row_ms, fixed_ms
