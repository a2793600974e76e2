"""Decides how far a plan may go: the earliest event time that anybody has still to read, and the drift.

Never: read a clock, ask a source, or remember a bound: it is found anew for each plan, of what is *next* to be read.
So where every next row lies beyond a gap, the bound is beyond it too.

Each split of a source is known by one event time: that of its next row where the source knows it, else the highest
that was read of it. It votes with it, or it has no vote:

    split is                          votes              why
    --------------------------------  -----------------  --------------------------------------------------------
    new: no event time is known       no                 it may be read; what is read of it makes it known
    readable                          yes                nobody reads further than the drift beyond it
    readable, the row has no time     no                 it holds nobody back, and nothing can be beyond it
    caught up, it had rows            until idle         its next row is not earlier than that; with the time-out
                                                         set it is idle after so long without a row, else never
    caught up, it never had a row     no                 FLINK-32414: nobody waits for what may never come
    caught up, under AvailableNow     no                 what comes later belongs to a later run
    at its target, finished           no                 it is not among those that are asked

Follows FLIP-182 and FLIP-217 (FLINK-31632: sums saturate).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from headgate.source.watermark import saturated_ms


def bound_ms(earliest_ms: int, max_drift_ms: int) -> int:
    """Return the event time that no row of a plan has or passes. With no drift at all the earliest row is read."""
    return saturated_ms(earliest_ms + max(1, max_drift_ms))


class Known(msgspec.Struct):
    """What is known of one split.

    Parameters
    ----------
    event_time_ms
        Of its next row, or the highest read of it; None: not known.
    has_rows
        Whether it has something to read, as far as is known.
    without_time
        Its next row has no event time.
    quiet_since_ms
        Since when it is known to have nothing to read; None: it may have.
    """

    event_time_ms: int | None = None
    has_rows: bool = False
    without_time: bool = False
    quiet_since_ms: int | None = None


class SplitVotes:
    """The votes of one source's splits.

    Parameters
    ----------
    max_drift_ms
        How far any split may be read ahead of the slowest, in milliseconds.
    idle_timeout_ms
        After this time without a row, in milliseconds, a split that is caught up holds nobody back; None: it does.
    """

    def __init__(self, max_drift_ms: int, idle_timeout_ms: int | None) -> None:
        self._max_drift_ms = max_drift_ms
        self._idle_timeout_ms = idle_timeout_ms
        self._splits: dict[str, Known] = {}

    def keep(self, split_ids: Iterable[str]) -> None:
        """Know these splits and no others."""
        self._splits = {split_id: self._splits.get(split_id) or Known() for split_id in split_ids}

    def next_row(self, split_id: str, event_time_ms: int | None) -> None:
        """Note that a split has a row to read, with this event time or none at all."""
        known = self._splits[split_id]
        known.has_rows, known.quiet_since_ms = True, None
        known.without_time = event_time_ms is None
        if event_time_ms is not None:
            known.event_time_ms = event_time_ms

    def rows_planned(self, split_id: str) -> None:
        """Note that a split was not silent: rows of it are read, of what event time is still to be seen."""
        known = self._splits[split_id]
        known.has_rows, known.quiet_since_ms = True, None

    def highest_read(self, split_id: str, event_time_ms: int) -> None:
        """Note the highest event time that was read of a split. One that is not known is ignored: it finished."""
        known = self._splits.get(split_id)
        if known is not None:
            before = known.event_time_ms
            known.event_time_ms = event_time_ms if before is None else max(before, event_time_ms)

    def nothing_to_read(self, split_id: str, now_ms: int) -> None:
        """Note that a split has nothing to read at this time, in milliseconds."""
        known = self._splits[split_id]
        known.has_rows = known.without_time = False
        if known.quiet_since_ms is None:
            known.quiet_since_ms = now_ms

    def event_times(self) -> dict[str, int]:
        """Return what is known, by split."""
        return {name: known.event_time_ms for name, known in self._splits.items() if known.event_time_ms is not None}

    def is_new(self, split_id: str) -> bool:
        """Return whether no event time of a split is known."""
        return self._splits[split_id].event_time_ms is None

    def is_quiet(self, split_id: str) -> bool:
        """Return whether a split has nothing to read, as far as is known."""
        return self._splits[split_id].quiet_since_ms is not None

    def readable(self) -> list[str]:
        """Return the splits that have something to read."""
        return [name for name, known in self._splits.items() if known.has_rows]

    def votes(self, now_ms: int, *, frozen: bool) -> dict[str, int]:
        """Return the votes at a time in milliseconds, by split.

        Parameters
        ----------
        now_ms
            The time.
        frozen
            `Trigger.AvailableNow`: what comes later is not waited for.
        """
        return {
            name: vote
            for name, known in self._splits.items()
            if (vote := self._vote(known, now_ms, frozen)) is not None
        }

    def bound_ms(self, earliest_ms: int | None) -> int | None:
        """Return how far to plan where this is the earliest vote of the group; None: nobody votes, no bound."""
        return None if earliest_ms is None else bound_ms(earliest_ms, self._max_drift_ms)

    def within(self, split_ids: Collection[str], earliest_ms: int | None) -> list[str]:
        """Return those splits of which not more than the drift beyond ``earliest_ms`` was read."""
        if earliest_ms is None:
            return list(split_ids)
        limit_ms = saturated_ms(earliest_ms + self._max_drift_ms)
        times = {name: self._splits[name].event_time_ms for name in split_ids}
        return [name for name, event_time_ms in times.items() if event_time_ms is None or event_time_ms <= limit_ms]

    def _vote(self, known: Known, now_ms: int, frozen: bool) -> int | None:
        if known.without_time:
            return None
        if known.quiet_since_ms is not None:
            waited_ms = now_ms - known.quiet_since_ms
            if frozen or (self._idle_timeout_ms is not None and waited_ms >= self._idle_timeout_ms):
                return None
        return known.event_time_ms


def earliest_of(own: Mapping[str, int], others: Iterable[int | None]) -> int | None:
    """Return the lowest of all votes, or None when nobody votes."""
    return min((*own.values(), *(vote for vote in others if vote is not None)), default=None)
