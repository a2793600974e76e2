"""Decides how many rows of an input make one slice of a chain, and how many rows each call has.

Never: read a clock.

A call and a slice are not the same: a slow operator may follow a fast one, and what makes many batches of one, as
windows and unions with branches of one stream do, leads to many calls of what is downstream. A snapshot waits for all
of them, so they are measured together wherever they are several.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from headgate.runtime.slices import SliceController

FIRST_ROWS = 64
"""So many rows at most reach an operator before anything is known of it, as far as rows before them show."""
_SLICES = 64
"""After so many slices what came of rows before counts half."""


class _Spent(msgspec.Struct):
    """What the slice that is under way, with all that came of it, took of one part."""

    calls: int = 0
    duration_ms: float = 0.0


class _Shares(msgspec.Struct):
    """How many rows of one input went through, and how many rows came of them to each part; later ones count more."""

    parts: tuple[str, ...]
    entered: float = 0.0
    came: dict[str, float] = {}
    slices: int = 0
    latest: dict[str, float] = {}
    """How many rows came of each of the last slice's."""

    def count(self, entered: int, came: Mapping[str, int]) -> None:
        """Take note of a slice."""
        if self.slices % _SLICES == 0:
            self.entered /= 2
            self.came = {uid: rows / 2 for uid, rows in self.came.items()}
        self.slices += 1
        self.entered += entered
        for uid, rows in came.items():
            self.came[uid] = self.came.get(uid, 0.0) + rows
        self.latest = {uid: rows / entered for uid, rows in came.items()}

    def of_one(self, uid: str) -> float:
        """Return how many rows come to a part of one of the input's: of all, or of the last if these were more."""
        return max(self.came.get(uid, 0.0) / self.entered, self.latest.get(uid, 0.0))


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
        self.calls = {uid: SliceController(longest_trial_ms=longest_trial_ms) for uid in parts}
        """By the uid of a part: how many rows its next call may have."""
        self._several: dict[str, SliceController] = {}  # of those parts that a slice led to several calls of
        self._spent: dict[str, _Spent] = {}
        self._taken: Counter[str] = Counter()  # rows of each input that have not gone through
        self._came: defaultdict[str, Counter[str]] = defaultdict(Counter)  # and of them to each part
        self._entry_rows: dict[str, int] = {}  # as long as nothing was learnt
        self.entered = dict.fromkeys(inputs, 0)
        """How many rows of each input were taken."""
        self._shares = {uid: _Shares(_fed_by(uid, feeds)) for uid in self.entered}

    def call_rows(self, uid: str) -> int:
        """Return how many rows the next call of a part may have."""
        return self.calls[uid].rows

    def entry_rows(self, uid: str) -> int:
        """Return how many rows of an input make one slice: for whatever is downstream of it, too.

        Of the rows of an input a part gets as many as it did so far: a filter's successor fewer, an explosion's more.
        """
        known = self._entry_rows.get(uid)
        if known is None:
            known = self._entry_rows[uid] = self._find_entry_rows(uid)
        return known

    def _find_entry_rows(self, uid: str) -> int:
        shares, most = self._shares[uid], min(self._at_once(each).rows for each in self._feeds[uid])
        if not shares.entered:
            return most
        for each in shares.parts:
            of_one = shares.of_one(each)
            rows = self._at_once(each).rows / of_one if of_one else FIRST_ROWS * max(1, shares.entered)
            most = min(most, max(1, int(rows)))
        return most

    def expected_ms(self, uid: str, rows: int) -> float:
        """Return how long so many rows of an input are expected to take, in milliseconds; infinite before the first."""
        shares = self._shares[uid]
        if not shares.entered:
            return math.inf
        came = ((each, shares.of_one(each)) for each in shares.came)
        return sum((self._at_once(each).expected_ms(rows * of_one) for each, of_one in came), 0.0)

    def take(self, uid: str, rows: int) -> None:
        """Take note of rows of an input that are begun."""
        self.entered[uid] += rows
        self._taken[uid] += rows

    def took(self, uid: str, rows: int, duration_ms: float, source: str) -> None:
        """Take note of how long a call of a part took, in milliseconds.

        ``source``: the input that the rows came of; empty: a watermark or the time brought them.
        """
        self._entry_rows.clear()
        self.calls[uid].took(rows, duration_ms)
        if source:
            self._came[source][uid] += rows
            self._count(uid, duration_ms)

    def failed(self, uid: str, duration_ms: float, source: str) -> None:
        """Take note of how long a call took that is made again with fewer rows, in milliseconds."""
        if source:
            self._count(uid, duration_ms)

    def went_through(self) -> None:
        """Take note that nothing waits any more of what was begun."""
        if not self._taken:
            return
        for uid, spent in self._spent.items():
            if spent.calls > 1 and uid not in self._several:
                self._several[uid] = SliceController(longest_trial_ms=self._longest_trial_ms)
            rows = sum(came[uid] for came in self._came.values())
            if uid in self._several and rows:
                self._several[uid].took(rows, spent.duration_ms, self._taken.total())
        self._entry_rows.clear()
        for uid, rows in self._taken.items():
            self._shares[uid].count(rows, self._came[uid])
        self._spent.clear()
        self._taken.clear()
        self._came.clear()

    def _count(self, uid: str, duration_ms: float) -> None:
        spent = self._spent.setdefault(uid, _Spent())
        spent.calls += 1
        spent.duration_ms += duration_ms

    def _at_once(self, uid: str) -> SliceController:
        """Return what decides how many rows a part may get by one slice of an input."""
        return self._several.get(uid) or self.calls[uid]


def _fed_by(uid: str, feeds: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the uids of all that rows of an input, or what comes of them, go to."""
    reached = [*feeds[uid]]
    for each in reached:
        reached += (to for to in feeds.get(each, ()) if to not in reached)
    return tuple(dict.fromkeys(reached))
