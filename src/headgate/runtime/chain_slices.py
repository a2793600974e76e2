"""Decides how many rows of an input make one slice of a chain, and how many rows each call has.

Never: read a clock.

A call and a slice are not the same: a slow operator may follow a fast one, and what makes many batches of one, as
windows and unions with branches of one stream do, leads to many calls of what is downstream. A snapshot waits for all
of them, so they are measured together wherever they are several.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headgate.runtime.slices import SliceController

FIRST_ROWS = 64
"""So many rows at most reach an operator before anything is known of it, as far as rows before them show."""


class _Calls(msgspec.Struct):
    """Calls of a part that one slice led to."""

    calls: int = 0
    rows: int = 0
    duration_ms: float = 0.0


class ChainSlices:
    """The rows of calls and slices of one chain.

    Parameters
    ----------
    parts
        The uids of its operators, outputs and sink.
    feeds
        To which of them the rows of each input go, and of each part.
    inputs
        The uids of its inputs.
    longest_trial_ms
        See `SliceController`.
    """

    def __init__(
        self, parts: Iterable[str], feeds: Mapping[str, Sequence[str]], inputs: Iterable[str], longest_trial_ms: float
    ) -> None:
        self._longest_trial_ms = longest_trial_ms
        self._feeds = feeds
        self._calls = {uid: SliceController(longest_trial_ms=longest_trial_ms) for uid in parts}
        self._several: dict[str, SliceController] = {}  # of those parts that a slice led to several calls of
        self._made: dict[str, _Calls] = {}  # for the slice that is under way
        self.entered = dict.fromkeys(inputs, 0)
        """How many rows of each input were taken."""
        self._arrived = {  # and how many rows came of them to all that is downstream
            uid: {each: 0 for first in feeds[uid] for each in self._fed_by(first)} for uid in self.entered
        }

    def call_rows(self, uid: str) -> int:
        """Return how many rows the next call of a part may have."""
        return self._calls[uid].rows

    def entry_rows(self, uid: str) -> int:
        """Return how many rows of an input make one slice: for whatever is downstream of it, too.

        Of the rows of an input a part gets as many as it did so far: a filter's successor fewer, an explosion's more.
        """
        entered = self.entered[uid]
        most = min(self._at_once(each).rows for each in self._feeds[uid])
        for each, came in self._arrived[uid].items():
            rows = self._at_once(each).rows * entered // came if came else FIRST_ROWS * max(1, entered)
            most = min(most, max(1, rows))
        return most

    def expected_ms(self, uid: str, rows: int) -> float:
        """Return how long so many rows of an input are expected to take, in milliseconds; infinite before the first."""
        entered = self.entered[uid]
        if not entered:
            return math.inf
        came = ((each, count) for each, count in self._arrived[uid].items() if count)
        return sum((self._at_once(each).expected_ms(rows * count / entered) for each, count in came), 0.0)

    def arrived(self, source: str, uid: str, rows: int) -> None:
        """Take note of rows that a part got, which came of those of an input."""
        self._arrived[source][uid] += rows

    def took(self, uid: str, rows: int, duration_ms: float) -> None:
        """Take note of how long a call of a part took, in milliseconds."""
        self._calls[uid].took(rows, duration_ms)
        made = self._made.setdefault(uid, _Calls())
        made.calls += 1
        made.rows += rows
        made.duration_ms += duration_ms

    def went_through(self) -> None:
        """Take note that nothing waits any more of what was begun."""
        for uid, made in self._made.items():
            if made.calls > 1 and uid not in self._several:
                self._several[uid] = SliceController(longest_trial_ms=self._longest_trial_ms, growth=2)
            if uid in self._several:
                self._several[uid].took(made.rows, made.duration_ms)
        self._made.clear()

    def _at_once(self, uid: str) -> SliceController:
        """Return what decides how many rows a part may get by one slice of an input."""
        return self._several.get(uid) or self._calls[uid]

    def _fed_by(self, uid: str) -> list[str]:
        """Return the uids of all that rows of a part, or what comes of them, go to; itself the first."""
        reached = [uid]
        for each in reached:
            reached += (to for to in self._feeds.get(each, ()) if to not in reached)
        return reached
