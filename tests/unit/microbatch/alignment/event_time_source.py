"""A source for the tests of alignment: splits are lists of event times; one kind knows where they are, one does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from headgate.microbatch.alignment import group_membership as machine
from headgate.microbatch.alignment.group_membership import GroupMembership
from headgate.microbatch.alignment.messages import Standing, Vote
from headgate.source import PlanLimits, PlannedRange
from tests.unit.microbatch.counting_source import CountingSource, RangeSplit, World


class Times(World):
    """What exists outside: for each split the event times of its rows; None is a row without one."""

    def __init__(self, **times: list[int | None]) -> None:
        super().__init__()
        self.times = times
        self.arriving: dict[str, list[int | None]] = {}
        """What comes later."""

    @property  # type: ignore[override]
    def lengths(self) -> dict[str, int]:
        return {name: len(rows) for name, rows in self.times.items()}

    @lengths.setter
    def lengths(self, value: Any) -> None:
        pass


class LearningSource(CountingSource):
    """Is asked for ranges, and does not know what is in them."""

    world: Times


class SeekingSource(LearningSource):
    """Knows the event time of every row; says a lower bound that is ``slack`` too low."""

    slack = 0

    def next_event_times(self, splits: Sequence[RangeSplit]) -> Mapping[str, int | None] | None:
        answers: dict[str, int | None] = {}
        for split in splits:
            rows = self.world.times[split.split_id][split.position : split.stop]
            if rows:
                answers[split.split_id] = None if rows[0] is None else rows[0] - self.slack
        return answers

    def plan_ranges(
        self, splits: Sequence[RangeSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[RangeSplit]]:
        before_ms = limits.before_event_time_ms
        if before_ms is None:
            return super().plan_ranges(splits, limits, now_ms)
        left: Any = limits.max_rows if limits.max_rows is not None else 10**9
        planned = []
        for split in splits:
            rows = self.world.times[split.split_id]
            end = len(rows) if split.stop is None else split.stop
            stop = split.position
            while stop < min(end, split.position + left) and ((time := rows[stop]) is None or time < before_ms):
                stop += 1
            if stop > split.position:
                left -= stop - split.position
                rest = None if stop == split.stop else msgspec.structs.replace(split, position=stop)
                planned.append(PlannedRange(split=msgspec.structs.replace(split, stop=stop), rest=rest))
        return planned


class VagueSource(SeekingSource):
    """Knows lower bounds that are far too low."""

    slack = 5000


class ScriptedMember:
    """A member of a group whose host is in the same thread, on a clock that the test moves."""

    def __init__(
        self, membership: GroupMembership, name: str, clock: Callable[[], int], while_waiting: Callable[[], None]
    ) -> None:
        self._membership, self.name, self._clock, self._while_waiting = membership, name, clock, while_waiting
        self._vote = Vote(None)
        self._seen = 0
        self.waited = 0
        self._say(machine.MemberJoined(member=name, group="g"))

    def _say(self, event: machine.Event) -> Standing:
        (action,) = self._membership.handle(event, self._clock())
        self._membership.check()
        assert isinstance(action, machine.Answer)
        return action.standing

    def exchange(self, vote: Vote) -> Standing:
        self._vote = msgspec.structs.replace(vote, seen=self._seen)
        standing = self._say(machine.VoteCast(member=self.name, vote=self._vote))
        self._seen = standing.seen
        return standing

    def wait(self, standing: Standing, timeout_ms: int) -> Standing:
        self.waited += 1
        self._while_waiting()
        return self._say(machine.VoteCast(member=self.name, vote=self._vote))

    def report(self, event_times: dict[str, int]) -> None:
        self._membership.handle(machine.EventTimesReported(member=self.name, event_times=event_times), self._clock())

    def leave(self) -> None:
        self._membership.handle(machine.MemberLeft(member=self.name), self._clock())
