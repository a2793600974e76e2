"""Plans the ranges of a micro-batch so that no split is read further than the drift beyond the slowest of its group.

Never: keep a plan, or read a clock. What others vote and what tasks report shapes later plans only; a plan that stands
in an offset is never looked at again.

Two ways:

- A source that knows where event times are (`SupportsEventTimeSeek`) is planned up to the bound, to the row.
- Any other learns: what the tasks of the last batch report makes its splits known, and those that are beyond the
  slowest by more than the drift are left out. So a split is at most one plan beyond. One of which nothing is known is
  planned first, alone, so that it becomes known before others go on. Files are not: they are read one after the other,
  and the next one is begun when nothing that was begun has to wait, for it is likely to be further still.

That it always progresses: the slowest split of a group is never held, and if it turns out that it has
nothing to read it is not the slowest any longer. Under `Trigger.AvailableNow` Spark ends a query in which no source
has planned anything; so a source that is held by another one writes an empty plan, but only when that one has moved
since: its progress, not a clock, bounds how many there are. If it does not move it belongs to another query; it is
waited for, `PATIENCE_MS` at most, and then passed.

Follows FLIP-182 and FLIP-217.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from headgate.microbatch.alignment.member import Group
from headgate.microbatch.alignment.messages import Standing, Vote
from headgate.microbatch.alignment.votes import SplitVotes, earliest_of
from headgate.source import PlanLimits, PlannedRange, Source, Split, SupportsEventTimeSeek, WatermarkAlignment
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, saturated_ms

logger = logging.getLogger(__name__)

PATIENCE_MS = 30_000
"""How long a query under ``AvailableNow`` waits for one that does not move, in milliseconds."""
WARN_AFTER_MS = 60_000
"""A split that holds others back for so long without being read is named in a warning, in milliseconds."""
SPLITS_SHOWN = 20
"""How many splits, the slowest ones, ``lastProgress`` shows."""

Ranges = Sequence[PlannedRange[Split]]
PlanRanges = Callable[[Sequence[Split], PlanLimits], Ranges]


class AlignedPlan(msgspec.Struct, frozen=True):
    """What a micro-batch reads.

    Parameters
    ----------
    ranges
        At most one per split.
    is_cut
        More could be read, were it not for the others: nothing is gained by waiting for more rows.
    must_go_on
        Nothing may be read now, but later: this is not the end of an ``AvailableNow`` query.
    """

    ranges: Ranges
    is_cut: bool = False
    must_go_on: bool = False


class AlignedPlans:
    """The part of one source's planner in its alignment group.

    Parameters
    ----------
    source
        What is read.
    alignment
        The group and the drift.
    idle_timeout_ms
        After this time without a row, in milliseconds, a split that is caught up holds nobody back; None: it does.
    group
        The group's other members.
    """

    def __init__(
        self, source: Source[Any, Any], alignment: WatermarkAlignment, idle_timeout_ms: int | None, group: Group
    ) -> None:
        self._source = source
        self._alignment = alignment
        self._group = group
        self._votes = SplitVotes(alignment.max_drift_ms, idle_timeout_ms)
        self._learns: bool | None = None if isinstance(source, SupportsEventTimeSeek) else True
        self._looked: dict[str, Split] = {}
        self._tried: set[str] = set()
        self._first_read: frozenset[str] = frozenset()
        self._moves = 0
        self._cast: Vote | None = None
        self._standing = Standing()
        self._stamp: dict[str, Vote] | None = None
        self._passed: dict[str, Vote] = {}
        self._holder: tuple[str, int] | None = None

    @property
    def learns(self) -> bool:
        """Whether what tasks read is to be reported: the source does not know event times in advance."""
        if self._learns is None:
            self._learns = self._source.next_event_times(()) is None  # type: ignore[attr-defined]
        return self._learns

    def restore(self, event_times: Mapping[str, int]) -> None:
        """Begin with what an offset says of its splits; nothing else is known."""
        self._votes.keep(())
        self._votes.keep(event_times)
        for split_id, event_time_ms in event_times.items():
            self._votes.highest_read(split_id, event_time_ms)
        self._looked, self._tried = {}, set()

    def event_times(self) -> dict[str, int]:
        """Return what is known of the splits in progress, for the offset."""
        return self._votes.event_times()

    def is_earliest(self, event_time_ms: int, splits: Sequence[Split], now_ms: int) -> bool:
        """Return whether no split that can be read is earlier: then what has this time is to be read first."""
        if event_time_ms == MIN_WATERMARK_MS or not self._look(splits, now_ms):
            return False
        times = self._votes.event_times()
        earliest = min((times[name] for name in self._votes.readable() if name in times), default=MAX_WATERMARK_MS)
        return event_time_ms < earliest

    def plan(
        self, splits: Sequence[Split], limits: PlanLimits, plan_ranges: PlanRanges, now_ms: int, *, frozen: bool
    ) -> AlignedPlan:
        """Return the ranges of the next micro-batch. May block.

        Parameters
        ----------
        splits
            The splits in progress that are not at their target.
        limits
            How much the batch may hold.
        plan_ranges
            The source's own, checked.
        now_ms
            The time, in milliseconds.
        frozen
            `Trigger.AvailableNow`.
        """
        self._take(self._group.exchange(self._cast or Vote(MIN_WATERMARK_MS)))
        while True:
            seeks = self._look(splits, now_ms)
            plan = self._plan_seeking if seeks else self._plan_learning
            ranges = plan(splits, limits, plan_ranges, now_ms, frozen)
            if ranges:
                self._holder = None
                return AlignedPlan(ranges, is_cut=self._is_cut(splits, ranges, limits, now_ms, frozen))
            self._vote(now_ms, frozen)
            is_held = self._holds_any(splits, now_ms, frozen)
            if not frozen:
                self._watch_holder(is_held, now_ms)
                return AlignedPlan((), is_cut=is_held)
            if not is_held:
                return AlignedPlan(())
            others, (earliest, holder) = self._others(), self._slowest(now_ms, frozen)
            if others != self._stamp:
                self._stamp = others
                return AlignedPlan((), is_cut=True, must_go_on=True)
            self._take(self._group.wait(self._standing, PATIENCE_MS))
            if self._others() == others:
                logger.warning(
                    "%s has waited %d s for the alignment group %r, in which %s is not advancing, and continues "
                    "without it: a query with AvailableNow must end.",
                    self._source.name, PATIENCE_MS // 1000, self._alignment.group, holder,
                )  # fmt: skip
                # Not all others: one that waits as well may be a source of the same query.
                self._passed |= {name: vote for name, vote in others.items() if vote.vote_ms == earliest}

    def planned(self, splits: Sequence[Split], ranges: Ranges, now_ms: int, *, frozen: bool) -> None:
        """Report to the group where the splits are after a plan, which has become an offset.

        Parameters
        ----------
        splits
            The splits in progress after the plan.
        ranges
            What was planned.
        now_ms, frozen
            As for `plan`.
        """
        if not self._look(splits, now_ms):
            self._votes.keep(split.split_id for split in splits)
        self._moves += bool(ranges)
        # Until the first report of these nobody reads ahead of what they may hold.
        self._vote(now_ms, frozen, unreported=self._first_read & {split.split_id for split in splits})

    def figures(self, now_ms: int, *, frozen: bool) -> dict[str, Any]:
        """Return what ``lastProgress`` shows: per split its event time and whether it is held; the drift."""
        times, votes = self._votes.event_times(), self._votes.votes(now_ms, frozen=frozen)
        earliest, _ = self._slowest(now_ms, frozen)
        slowest_first = sorted(times, key=lambda name: (times[name], name))
        bound_ms = self._votes.bound_ms(earliest)
        if self._learns:
            held = votes.keys() - self._votes.within(list(votes), earliest)
        else:
            held = {name for name, vote_ms in votes.items() if bound_ms is not None and vote_ms >= bound_ms}
        return {
            "group": self._alignment.group,
            "maxDriftMs": self._alignment.max_drift_ms,
            "driftMs": 0 if earliest is None or not votes else max(0, max(votes.values()) - earliest),
            "held": len(held),
            "splits": {
                name: {"eventTimeMs": times[name], "held": name in held} for name in slowest_first[:SPLITS_SHOWN]
            },
        }

    # -- the two ways ---------------------------------------------------------------------------------------------

    def _plan_seeking(
        self, splits: Sequence[Split], limits: PlanLimits, plan_ranges: PlanRanges, now_ms: int, frozen: bool
    ) -> Ranges:
        by_id = {split.split_id: split for split in splits}
        while True:
            own = self._votes.votes(now_ms, frozen=frozen)
            earliest, _ = self._slowest(now_ms, frozen)
            bound_ms = self._votes.bound_ms(earliest)
            if bound_ms is None and not self._votes.readable():
                # All are idle. Rows that have come since they were looked at are of unknown event times: the next plan
                # looks at them first. A range that holds no row at all is planned.
                bound_ms = MIN_WATERMARK_MS
            ranges = plan_ranges(splits, msgspec.structs.replace(limits, before_event_time_ms=bound_ms))
            slowest = [by_id[name] for name in self._votes.readable() if own.get(name) == earliest and name in by_id]
            if ranges or earliest is None or not slowest:
                return ranges
            # What the source knew was a lower bound only, and its next row lies after a gap.
            for wider_ms in (*_widening(earliest, self._alignment.max_drift_ms), None):
                ranges = plan_ranges(slowest, msgspec.structs.replace(limits, before_event_time_ms=wider_ms))
                if ranges:
                    return ranges
            for split in slowest:
                self._votes.nothing_to_read(split.split_id, now_ms)

    def _plan_learning(
        self, splits: Sequence[Split], limits: PlanLimits, plan_ranges: PlanRanges, now_ms: int, frozen: bool
    ) -> Ranges:
        ids = [split.split_id for split in splits]
        self._votes.keep(ids)
        self._tried &= set(ids)
        self._first_read = frozenset()
        new = [each for each in splits if self._votes.is_new(each.split_id) and each.split_id not in self._tried]
        in_turn = len(new) < len(splits) and all(each.remaining().file is not None for each in new)
        unknown = {each.split_id for each in new} if in_turn else set()
        if new and not in_turn:
            ranges = plan_ranges(new, limits)
            names = [planned.split.split_id for planned in ranges] or [each.split_id for each in new]
            self._tried.update(names)
            self._note(new, ranges, limits, now_ms)
            if ranges:
                self._first_read = frozenset(names)
                return ranges
        tried: list[str] = []
        while True:
            earliest, _ = self._slowest(now_ms, frozen)
            within = self._votes.within(ids, earliest)
            if len(within) < len(ids):
                within = [name for name in within if name not in unknown]
            if within == tried or not within:
                return ()
            tried = within
            allowed = [split for split in splits if split.split_id in set(within)]
            ranges = plan_ranges(allowed, limits)
            self._note(allowed, ranges, limits, now_ms)
            if ranges:
                self._first_read = frozenset(unknown & {planned.split.split_id for planned in ranges})
                self._tried |= self._first_read
                return ranges

    def _note(self, asked: Sequence[Split], ranges: Ranges, limits: PlanLimits, now_ms: int) -> None:
        """Note which of the splits that were asked have nothing to read."""
        planned = {planned.split.split_id for planned in ranges}
        is_limited = (limits.max_rows, limits.max_bytes, limits.max_files) != (None, None, None)
        for split in asked:
            if split.split_id in planned:
                self._votes.rows_planned(split.split_id)
            elif not (ranges and is_limited):  # else what the limits allow may have gone to others
                self._votes.nothing_to_read(split.split_id, now_ms)

    def _look(self, splits: Sequence[Split], now_ms: int) -> bool:
        """Find the event times of next rows that are not known; return False if the source does not know them."""
        if self.learns:
            return False
        self._votes.keep(split.split_id for split in splits)
        self._looked = {
            split.split_id: split
            for split in splits
            if self._looked.get(split.split_id) == split and not self._votes.is_quiet(split.split_id)
        }
        asked = [split for split in splits if split.split_id not in self._looked]
        if not asked:
            return True
        answers = self._source.next_event_times(asked)  # type: ignore[attr-defined]
        if answers is None:
            self._learns = True
            return False
        for split in asked:
            if split.split_id in answers:
                self._votes.next_row(split.split_id, answers[split.split_id])
                self._looked[split.split_id] = split
            else:
                self._votes.nothing_to_read(split.split_id, now_ms)
        return True

    # -- the group ------------------------------------------------------------------------------------------------

    def _take(self, standing: Standing) -> None:
        self._standing = standing
        self._passed = {name: vote for name, vote in self._passed.items() if standing.others.get(name) == vote}
        for split_id, event_time_ms in standing.event_times.items():
            if self._learns:
                self._votes.highest_read(split_id, event_time_ms)

    def _others(self) -> dict[str, Vote]:
        """Return the votes of others that count."""
        return {
            name: vote
            for name, vote in self._standing.others.items()
            if vote.vote_ms is not None and name not in self._passed
        }

    def _slowest(self, now_ms: int, frozen: bool) -> tuple[int | None, str]:
        """Return the earliest vote of the group, and whose it is."""
        own = self._votes.votes(now_ms, frozen=frozen)
        others = self._others()
        earliest = earliest_of(own, (vote.vote_ms for vote in others.values()))
        names = [f"the split {name!r} of {self._source.name}" for name, vote_ms in own.items() if vote_ms == earliest]
        names += [vote.slowest or "another source" for vote in others.values() if vote.vote_ms == earliest]
        return earliest, names[0] if names else ""

    def _holds_any(self, splits: Sequence[Split], now_ms: int, frozen: bool) -> bool:
        """Return whether a split that may have something to read is beyond the bound."""
        earliest, _ = self._slowest(now_ms, frozen)
        bound_ms = self._votes.bound_ms(earliest)
        if earliest is None or bound_ms is None:
            return False
        maybe = [split.split_id for split in splits if not self._votes.is_quiet(split.split_id)]
        if self._learns:
            return len(self._votes.within(maybe, earliest)) < len(maybe)
        times = self._votes.event_times()
        return any(times.get(name, earliest) >= bound_ms for name in maybe)

    def _is_cut(self, splits: Sequence[Split], ranges: Ranges, limits: PlanLimits, now_ms: int, frozen: bool) -> bool:
        """Return whether alignment keeps something out of a plan. Only asked where a plan may wait for more rows."""
        if limits.min_rows is None or self._learns:
            return self._holds_any(splits, now_ms, frozen)
        bound_ms = self._votes.bound_ms(self._slowest(now_ms, frozen)[0])
        rests = {planned.split.split_id: planned.rest for planned in ranges}
        rest_of = [rest for split in splits if (rest := rests.get(split.split_id, split)) is not None]
        if bound_ms is None or not self._look(rest_of, now_ms):
            return False
        times = self._votes.event_times()
        return any(times.get(name, MIN_WATERMARK_MS) >= bound_ms for name in self._votes.readable())

    def _vote(self, now_ms: int, frozen: bool, unreported: frozenset[str] = frozenset()) -> None:
        own = self._votes.votes(now_ms, frozen=frozen)
        slowest = min(own, key=lambda name: (own[name], name), default=None)
        vote_ms = None if slowest is None else own[slowest]
        if unreported:
            slowest, vote_ms = min(unreported), MIN_WATERMARK_MS
        name = "" if slowest is None else f"the split {slowest!r} of {self._source.name}"
        vote = Vote(vote_ms, self._moves, name)
        if vote != self._cast:
            self._cast = vote
            self._take(self._group.exchange(vote))

    def _watch_holder(self, is_held: bool, now_ms: int) -> None:
        """Warn of who holds this source back for long, once."""
        if not is_held:
            self._holder = None
            return
        _, name = self._slowest(now_ms, False)
        if self._holder is None or self._holder[0] != name:
            self._holder = (name, now_ms)
        elif 0 <= self._holder[1] <= now_ms - WARN_AFTER_MS:
            self._holder = (name, MAX_WATERMARK_MS)
            logger.warning(
                "%s holds the alignment group %r back: for %d s nothing has been read of %s, which waits for it. If it "
                "may stay silent, set 'scan.watermark.idle-timeout' for its source; its later rows may then be late.",
                name, self._alignment.group, WARN_AFTER_MS // 1000, self._source.name,
            )  # fmt: skip


def _widening(earliest_ms: int, max_drift_ms: int) -> Iterator[int]:
    """Yield bounds further and further after an event time, until there is none further."""
    width_ms = max(1000, max_drift_ms) * 2
    while (bound := saturated_ms(earliest_ms + width_ms)) < MAX_WATERMARK_MS:
        yield bound
        width_ms *= 2
