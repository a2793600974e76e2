"""Decides which batches are grouped before the exchange: those whose keys repeat, as far as recent ones show.

Never: read a clock, or look at a row.

Grouping a batch costs about a fifth of what a row costs that crosses and is merged downstream. So it is worth it unless
nearly every row is a group of its own. Whether that is so is looked at now and then:

    rows are  until
    --------  -----------------------------------------------------------------------------------------------------
    grouped   of `PROBED_ROWS` rows or more more than `MOST_GROUPS` were groups: then the next ones pass
    passed    `FIRST_PASSED_ROWS` have, or twice as many each time in a row that it is so, up to `MOST_PASSED_ROWS`

Small batches pass: what a call costs by itself is more than it saves.

Follows docs/decisions/032-rows-are-aggregated-before-the-exchange.md, and DuckDB's adaptive partial aggregation.
"""

from __future__ import annotations

LEAST_ROWS = 2048
"""Smaller batches pass."""
PROBED_ROWS = 16_384
"""So many rows are grouped before it is decided."""
MOST_GROUPS = 0.6
"""The largest share of rows that may be groups."""
FIRST_PASSED_ROWS, MOST_PASSED_ROWS = 1 << 18, 1 << 22
"""How many rows pass before it is tried again: at first, and at most."""


class Repetition:
    """Whether keys repeat within batches.

    Examples
    --------
    >>> repetition = Repetition()
    >>> repetition.is_worth_grouping(20_000), repetition.is_worth_grouping(10)
    (True, False)
    >>> repetition.grouped(20_000, 19_000)
    >>> repetition.is_worth_grouping(20_000)
    False
    """

    def __init__(self) -> None:
        self._rows = self._groups = 0
        self._to_pass = 0
        self._next_to_pass = FIRST_PASSED_ROWS

    def is_worth_grouping(self, rows: int) -> bool:
        """Return whether the next batch, of so many rows, is to be grouped: `grouped` follows, or it passes."""
        if rows < LEAST_ROWS:
            return False
        if self._to_pass > 0:
            self._to_pass -= rows
            return False
        return True

    def grouped(self, rows: int, groups: int) -> None:
        """Take note of how many groups the rows of a batch were."""
        assert 0 < groups <= rows, f"{groups} groups of {rows} rows"
        self._rows += rows
        self._groups += groups
        if self._rows < PROBED_ROWS:
            return
        if self._groups > MOST_GROUPS * self._rows:
            self._to_pass = self._next_to_pass
            self._next_to_pass = min(2 * self._next_to_pass, MOST_PASSED_ROWS)
        else:
            self._next_to_pass = FIRST_PASSED_ROWS
        self._rows = self._groups = 0
