"""Decides who is in an alignment group of the application, and what each member is told of the others.

Never: read a clock or a socket; `headgate.spark.alignment.host` does, and says what time it is.

Each source of a micro-batch query has a planner process of its own, which is a *member*. It votes with the earliest
event time that it has still to read. A member stays for as long as its connection does and its lease is renewed.

    state          event               next      actions  why
    -------------  ------------------  --------  -------  -----------------------------------------------------------
    unknown        MemberJoined        joined    Tell     until it votes nobody reads ahead of what it may have
    expected       MemberJoined        joined    Tell     the host before this one died: it is back
    joined, voted  MemberJoined        joined    Tell     its old connection broke before the host noticed; it repeats
                                                          its vote at once
    joined, voted  VoteCast            voted     Tell
    joined, voted  VoteCast old        same      Refuse   it has a newer connection
    unknown        VoteCast            unknown   Refuse   its lease ran out: it is to join again
    expected       VoteCast            expected  Refuse   it is to join this host first
    joined, voted  Renewed             same      Tell     its process lives, though a plan or a batch takes long
    joined, voted  Renewed old         same      Refuse   as VoteCast
    unknown        Renewed             unknown   Refuse   as VoteCast
    expected       Renewed             expected  Refuse   as VoteCast
    joined, voted  MemberLeft          unknown            its connection is closed: the query stopped
    joined, voted  MemberLeft old      same               it has a newer connection
    unknown        MemberLeft          unknown            its lease ran out before
    expected       MemberLeft          expected           that was a connection of the host before
    joined, voted  EventTimesReported  same               kept until its planner asks
    unknown        EventTimesReported  unknown            a hint that comes too late is lost
    expected       EventTimesReported  expected           the same
    joined, voted  TimePassed          same               its lease still runs
    unknown        TimePassed          unknown
    expected       TimePassed          expected           its process lives: it will be back
    joined, voted  TimePassed late     unknown            its process hangs: it holds nobody
    expected       TimePassed late     unknown            it has not come back

Follows FLIP-182 (one combined watermark of a group).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import msgspec

from headgate.source.watermark import MIN_WATERMARK_MS
from headgate.spark.alignment.letters import Standing, Vote

LEASE_MS = 15_000
"""How long a member counts without a sign of life although its connection stands, in milliseconds."""


class MemberEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A fact about one member, on one of its connections."""

    member: str
    connection: int = 0


class MemberJoined(MemberEvent, frozen=True, kw_only=True):
    """A planner joined a group on a new connection."""

    group: str


class VoteCast(MemberEvent, frozen=True, kw_only=True):
    """A planner voted."""

    vote: Vote


class Renewed(MemberEvent, frozen=True, kw_only=True):
    """A planner's process lives."""


class MemberLeft(MemberEvent, frozen=True, kw_only=True):
    """A planner's connection is closed."""


class EventTimesReported(MemberEvent, frozen=True, kw_only=True):
    """A task of a planner's query ended, having read up to these event times."""

    event_times: dict[str, int]


class TimePassed(msgspec.Struct, frozen=True):
    """A lease may have run out."""


class Tell(msgspec.Struct, frozen=True):
    """Answer a member."""

    member: str
    standing: Standing


class Refuse(msgspec.Struct, frozen=True):
    """Tell a member to join again."""

    member: str


Event = MemberEvent | TimePassed
Action = Tell | Refuse


class _Member(msgspec.Struct):
    """What is known of one member. ``group`` None: it is expected back."""

    lease_until_ms: int
    connection: int = -1
    group: str | None = None
    vote: Vote = Vote(MIN_WATERMARK_MS)
    event_times: dict[str, tuple[int, int]] = {}
    reports: int = 0
    seen: int = 0


class Rendezvous:
    """The alignment groups of one application.

    Parameters
    ----------
    expected
        Members of the host before this one whose processes live: until they are back they may vote for anything.
    now_ms
        The time, in milliseconds of any clock that only goes forward.
    """

    def __init__(self, expected: Iterable[str], now_ms: int) -> None:
        self._members = {member: _Member(lease_until_ms=now_ms + LEASE_MS) for member in expected}

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be said, in order."""
        gone = [name for name, member in self._members.items() if member.lease_until_ms < now_ms]
        for name in gone:
            del self._members[name]
        if isinstance(event, TimePassed):
            return []
        return self._HANDLERS[type(event)](self, event, now_ms)

    def check(self) -> None:
        """Assert what always holds."""
        for member in self._members.values():
            assert (member.group is None) == (member.connection < 0)
            assert all(number > member.seen for number, _ in member.event_times.values())

    def _on_joined(self, event: MemberJoined, now_ms: int) -> list[Action]:
        before = self._members.get(event.member)
        member = _Member(lease_until_ms=now_ms + LEASE_MS, connection=event.connection, group=event.group)
        if before is not None:
            member.event_times, member.reports, member.seen = before.event_times, before.reports, before.seen
        self._members[event.member] = member
        return self._tell(event.member)

    def _on_vote(self, event: VoteCast, now_ms: int) -> list[Action]:
        member = self._known(event)
        if member is None:
            return [Refuse(event.member)]
        member.vote, member.lease_until_ms = event.vote, now_ms + LEASE_MS
        # A number that this host never gave is one of the host before: nothing of it is here.
        member.seen = event.vote.seen if event.vote.seen <= member.reports else 0
        member.event_times = {name: seen for name, seen in member.event_times.items() if seen[0] > member.seen}
        return self._tell(event.member)

    def _on_renewed(self, event: Renewed, now_ms: int) -> list[Action]:
        member = self._known(event)
        if member is None:
            return [Refuse(event.member)]
        member.lease_until_ms = now_ms + LEASE_MS
        return self._tell(event.member)

    def _on_left(self, event: MemberLeft, now_ms: int) -> list[Action]:
        if self._known(event) is not None:
            del self._members[event.member]
        return []

    def _on_reported(self, event: EventTimesReported, now_ms: int) -> list[Action]:
        member = self._members.get(event.member)
        if member is not None and member.group is not None:
            member.reports += 1
            times = dict(member.event_times)
            for name, event_time_ms in event.event_times.items():
                _, before_ms = times.get(name, (0, event_time_ms))
                times[name] = (member.reports, max(before_ms, event_time_ms))
            member.event_times = times
        return []

    def _known(self, event: MemberEvent) -> _Member | None:
        """Return the member if this is its newest connection."""
        member = self._members.get(event.member)
        return member if member is not None and member.connection == event.connection else None

    def _tell(self, name: str) -> list[Action]:
        told = self._members[name]
        others = {
            each: member.vote
            for each, member in self._members.items()
            if each != name and member.group in (told.group, None)
        }
        event_times = {split: seen[1] for split, seen in told.event_times.items()}
        return [Tell(name, Standing(others, event_times, told.reports))]

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, int], list[Action]]]] = {
        MemberJoined: _on_joined,
        VoteCast: _on_vote,
        Renewed: _on_renewed,
        MemberLeft: _on_left,
        EventTimesReported: _on_reported,
    }
