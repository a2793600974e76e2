"""Finds the time by which all silent splits of a reader had been asked for rows in vain: they are idle, not unasked.

Never: read a clock. Whoever makes the calls says when they began.

A call may serve one split only, each in its turn. So a split is known to have been asked once as many calls as there
are splits have returned: what had come of it when the first of them began would have been among their rows. A call
that returns empty-handed has asked all of them.

Follows invariant 3 of docs/architecture.md; FLIP-471.
"""

from __future__ import annotations


class AskedInVain:
    """Counts rounds of calls. A split whose rows came meanwhile is not silent: whoever uses this knows of them.

    Examples
    --------
    >>> asked = AskedInVain()
    >>> asked.returned(began_ms=10, splits=2, empty=False); asked.until_ms
    >>> asked.returned(began_ms=20, splits=2, empty=False); asked.until_ms
    10
    >>> asked.returned(began_ms=30, splits=2, empty=True); asked.until_ms
    30
    """

    def __init__(self) -> None:
        self.until_ms: int | None = None
        """Nothing had come of silent splits by this time, in milliseconds; None: they have not all been asked yet."""
        self._round_began_ms: int | None = None
        self._calls = 0

    def returned(self, *, began_ms: int | None, splits: int, empty: bool) -> None:
        """Take note of a call that returned.

        Parameters
        ----------
        began_ms
            When it began, or earlier, in milliseconds; None: nobody knows.
        splits
            How many splits it might have served.
        empty
            Whether it returned no rows.
        """
        if empty:
            self._calls = 0
            self.until_ms = self.until_ms if began_ms is None else began_ms
            return
        if self._calls == 0:
            self._round_began_ms = began_ms
        self._calls += 1
        if self._calls >= splits:
            self._calls = 0
            self.until_ms = self.until_ms if self._round_began_ms is None else self._round_began_ms

    def forget(self) -> None:
        """Begin anew: a split has come, which was asked by none of these calls."""
        self.until_ms = None
        self._calls = 0
