"""Decides who is in an alignment group of the application, and what each member learns of the others.

Never: read a clock or a socket; `headgate.microbatch.alignment.host` does, and says what time it is.

Each source of a micro-batch query has a planner process of its own, which is a *member*. It votes with the earliest
event time that it has still to read. A member stays for as long as its process does and its lease is renewed. Time in
which nothing at all was heard does not count for leases: members renew them every second, so the host stood still. It
is *expected* when it was a member of the host before this one and its process lives. An *old* event is one of a
connection that the member has replaced.

Follows FLIP-182 (one combined watermark of a group).
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Row
from headgate.microbatch.alignment.messages import Standing, Vote
from headgate.source.watermark import MIN_WATERMARK_MS

LEASE_MS = 15_000
"""How long a member counts without a sign of life although its connection stands, in milliseconds."""

# What happened.


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
    """A planner's process ended, or it left. (A connection that only broke is not an event: it will make another.)"""


class EventTimesReported(MemberEvent, frozen=True, kw_only=True):
    """A task of a planner's query ended, having read up to these event times."""

    event_times: dict[str, int]


class TimePassed(msgspec.Struct, frozen=True):
    """A lease may have run out."""


Event = MemberEvent | TimePassed

# What is to be done.


class Answer(msgspec.Struct, frozen=True):
    """Answer a member."""

    member: str
    standing: Standing


class Refuse(msgspec.Struct, frozen=True):
    """Have a member join again."""

    member: str


Action = Answer | Refuse


_Votes = dict[str, tuple[str | None, Vote]]
"""By member: its group, None while it is expected, and its vote."""


class Member(Machine):
    """One planner.

    Parameters
    ----------
    name
        Its name.
    votes
        Those of all members, which it keeps its own in.
    """

    # fmt: off
    TRANSITIONS = (
        Row("unknown",           MemberJoined,       "joined", [Answer],
            "until it votes nobody reads ahead of what it may have"),
        Row("expected",          MemberJoined,       "joined", [Answer], "the host before this one died: it is back"),
        Row("joined, voted",     MemberJoined,       "joined", [Answer],
            "its old connection broke before the host noticed; it repeats its vote at once"),
        Row("joined, voted",     VoteCast,           "voted", [Answer]),
        Row("joined, voted",     VoteCast,           SAME, [Refuse], "it has a newer connection", when="old"),
        Row("unknown",           VoteCast,           SAME, [Refuse], "its lease ran out: it is to join again",
            by="_on_stranger"),
        Row("expected",          VoteCast,           SAME, [Refuse], "it is to join this host first",
            by="_on_stranger"),
        Row("joined, voted",     Renewed,            SAME, [Answer],
            "its process lives, though a plan or a batch takes long"),
        Row("joined, voted",     Renewed,            SAME, [Refuse], "as VoteCast", when="old"),
        Row("unknown, expected", Renewed,            SAME, [Refuse], "as VoteCast", by="_on_stranger"),
        Row("joined, voted",     MemberLeft,         "unknown", [], "its process ended, or the query stopped"),
        Row("joined, voted",     MemberLeft,         SAME, [], "it has a newer connection", when="old"),
        Row("unknown",           MemberLeft,         SAME, IGNORED, "its lease ran out before"),
        Row("expected",          MemberLeft,         SAME, IGNORED, "that was a connection of the host before"),
        Row("joined, voted",     EventTimesReported, SAME, [], "kept until its planner asks"),
        Row("unknown, expected", EventTimesReported, SAME, IGNORED, "a hint that comes too late is lost"),
        Row("joined, voted",     TimePassed,         "unknown", [], "its process hangs: it holds nobody", when="late"),
        Row("expected",          TimePassed,         "unknown", [], "it has not come back", when="late"),
        Row("joined, voted, expected", TimePassed,   SAME, [], "its lease still runs"),
        Row("unknown",           TimePassed,         SAME, IGNORED),
    )
    # fmt: on

    def __init__(self, name: str, votes: _Votes) -> None:
        super().__init__()
        self.state = "unknown"
        self.name = name
        self._votes = votes
        self.lease_until_ms = 0
        self._connection = -1
        self._event_times: dict[str, tuple[int, int]] = {}  # by split: the number of the report, the time
        self._reports = 0
        self._seen = 0

    def expect(self, now_ms: int) -> None:
        """Wait for a member of the host before this one."""
        self.state, self.lease_until_ms = "expected", now_ms + LEASE_MS
        self._votes[self.name] = None, Vote(MIN_WATERMARK_MS)

    def check(self) -> None:
        """Assert what always holds."""
        assert (self.state in ("joined", "voted")) == (self._connection >= 0)
        assert (self.state == "unknown") == (self.name not in self._votes)
        assert all(number > self._seen for number, _ in self._event_times.values())

    def __str__(self) -> str:
        return f"Member {self.name}"

    def _on_member_joined(self, event: MemberJoined, now_ms: int) -> list[Action]:
        self.state, self._connection, self.lease_until_ms = "joined", event.connection, now_ms + LEASE_MS
        self._votes[self.name] = event.group, Vote(MIN_WATERMARK_MS)
        return self._answer()

    def _on_vote_cast(self, event: VoteCast, now_ms: int) -> list[Action]:
        if event.connection != self._connection:
            return [Refuse(self.name)]
        self.state, self.lease_until_ms = "voted", now_ms + LEASE_MS
        self._votes[self.name] = self._votes[self.name][0], event.vote
        # A number that this host never gave is one of the host before: nothing of it is here.
        self._seen = event.vote.seen if event.vote.seen <= self._reports else 0
        self._event_times = {name: each for name, each in self._event_times.items() if each[0] > self._seen}
        return self._answer()

    def _on_renewed(self, event: Renewed, now_ms: int) -> list[Action]:
        if event.connection != self._connection:
            return [Refuse(self.name)]
        self.lease_until_ms = now_ms + LEASE_MS
        return self._answer()

    def _on_stranger(self, event: MemberEvent, now_ms: int) -> list[Action]:
        return [Refuse(self.name)]

    def _on_member_left(self, event: MemberLeft, now_ms: int) -> list[Action]:
        return self._leave() if event.connection == self._connection else []

    def _on_event_times_reported(self, event: EventTimesReported, now_ms: int) -> list[Action]:
        self._reports += 1
        times = dict(self._event_times)
        for name, event_time_ms in event.event_times.items():
            _, before_ms = times.get(name, (0, event_time_ms))
            times[name] = (self._reports, max(before_ms, event_time_ms))
        self._event_times = times
        return []

    def _on_time_passed(self, event: TimePassed, now_ms: int) -> list[Action]:
        return self._leave() if self.lease_until_ms < now_ms else []

    def _leave(self) -> list[Action]:
        self.state, self._connection = "unknown", -1
        del self._votes[self.name]
        return []

    def _answer(self) -> list[Action]:
        own, _ = self._votes[self.name]
        others = {
            name: vote for name, (group, vote) in self._votes.items() if name != self.name and group in (own, None)
        }
        event_times = {split: seen[1] for split, seen in self._event_times.items()}
        return [Answer(self.name, Standing(others, event_times, self._reports))]


class GroupMembership:
    """The alignment groups of one application.

    Parameters
    ----------
    expected
        Members of the host before this one whose processes live: until they are back they may vote for anything.
    now_ms
        The time, in milliseconds of any clock that only goes forward.
    """

    def __init__(self, expected: Iterable[str], now_ms: int) -> None:
        self._votes: _Votes = {}
        self._members = {name: Member(name, self._votes) for name in expected}
        for member in self._members.values():
            member.expect(now_ms)
        self._heard_ms = now_ms

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return the answers, in order."""
        silent_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        for member in list(self._members.values()):
            if silent_ms > LEASE_MS // 2:
                member.lease_until_ms += silent_ms
            self._handle_one(member, TimePassed(), now_ms)
        if isinstance(event, TimePassed):
            return []
        return self._handle_one(self._members.get(event.member) or Member(event.member, self._votes), event, now_ms)

    def state(self, name: str) -> str:
        """Return the state of a member."""
        member = self._members.get(name)
        return "unknown" if member is None else member.state

    def check(self) -> None:
        """Assert what always holds."""
        assert self._votes.keys() == self._members.keys()
        for member in self._members.values():
            member.check()

    def _handle_one(self, member: Member, event: Event, now_ms: int) -> list[Action]:
        actions = member.handle(event, now_ms)
        if member.state == "unknown":
            self._members.pop(member.name, None)
        else:
            self._members[member.name] = member
        return actions
