"""The members of alignment groups: their table, and that nobody is held by one who is gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from headgate.machine import steps_of
from headgate.microbatch.alignment import group_membership
from headgate.microbatch.alignment.group_membership import (
    LEASE_MS,
    Answer,
    EventTimesReported,
    GroupMembership,
    Member,
    MemberJoined,
    MemberLeft,
    Renewed,
    TimePassed,
    VoteCast,
)
from headgate.microbatch.alignment.messages import Standing, Vote
from headgate.source.watermark import MIN_WATERMARK_MS
from tests.machines import Later, explore


def notify(machine: GroupMembership, event: group_membership.Event, now_ms: int = 0) -> Standing:
    (action,) = machine.handle(event, now_ms)
    assert isinstance(action, Answer)
    return action.standing


def events(machine: GroupMembership) -> Iterator[Any]:
    for name in ("a", "b"):
        for connection in (0, 1):
            yield MemberJoined(member=name, connection=connection, group="g")
            yield VoteCast(member=name, connection=connection, vote=Vote(5, seen=1))
            yield Renewed(member=name, connection=connection)
            yield MemberLeft(member=name, connection=connection)
        yield EventTimesReported(member=name, event_times={"s": 3})
    yield Later(TimePassed(), by_ms=LEASE_MS // 2)


def test_the_table_is_what_the_machine_does() -> None:
    explore(
        lambda: GroupMembership(["a"], 0), events, steps=steps_of(Member.TRANSITIONS),
        state=lambda machine, event: machine.state(getattr(event, "member", "a")), depth=5, limit=3000,
        ignore=["_reports"],
    )  # fmt: skip


def test_until_it_votes_a_member_may_have_anything() -> None:
    machine = GroupMembership((), 0)
    notify(machine, MemberJoined(member="a", group="g"))
    assert notify(machine, MemberJoined(member="b", group="g")).others == {"a": Vote(MIN_WATERMARK_MS)}
    notify(machine, VoteCast(member="a", vote=Vote(7, 1, "x")))
    assert notify(machine, Renewed(member="b")).others == {"a": Vote(7, 1, "x")}


def test_groups_do_not_see_each_other() -> None:
    machine = GroupMembership((), 0)
    notify(machine, MemberJoined(member="a", group="g"))
    assert notify(machine, MemberJoined(member="b", group="h")).others == {}


def test_a_member_that_left_or_whose_lease_ran_out_holds_nobody() -> None:
    machine = GroupMembership((), 0)
    for name in "abc":
        notify(machine, MemberJoined(member=name, group="g"))
    machine.handle(MemberLeft(member="a"), 0)
    for now_ms in range(0, LEASE_MS, 1000):
        assert notify(machine, Renewed(member="b"), now_ms).others.keys() == {"c"}
    assert notify(machine, Renewed(member="b"), LEASE_MS + 1).others == {}


def test_while_the_host_stood_still_nobody_s_lease_ran_out() -> None:
    machine = GroupMembership((), 0)
    for name in "ab":
        notify(machine, MemberJoined(member=name, group="g"))
    notify(machine, VoteCast(member="a", vote=Vote(7)))
    late_ms = 10 * LEASE_MS
    assert notify(machine, Renewed(member="b"), late_ms).others == {"a": Vote(7)}
    for now_ms in range(late_ms, late_ms + LEASE_MS, 1000):
        assert notify(machine, Renewed(member="b"), now_ms).others == {"a": Vote(7)}
    assert notify(machine, Renewed(member="b"), late_ms + LEASE_MS + 1).others == {}, "it hangs, and the host does not"


def test_a_busy_planner_that_renews_keeps_its_vote() -> None:
    machine = GroupMembership((), 0)
    notify(machine, MemberJoined(member="a", group="g"))
    notify(machine, VoteCast(member="a", vote=Vote(7)))
    for now_ms in range(0, 600_000, 1000):
        notify(machine, Renewed(member="a"), now_ms)
    assert notify(machine, MemberJoined(member="b", group="g"), 600_000).others == {"a": Vote(7)}


def test_members_of_a_dead_host_are_waited_for_until_they_are_back_but_not_for_ever() -> None:
    machine = GroupMembership(["old", "hanging"], 0)
    others = notify(machine, MemberJoined(member="a", group="g")).others
    assert others == dict.fromkeys(["old", "hanging"], Vote(MIN_WATERMARK_MS))
    notify(machine, MemberJoined(member="old", group="other"), 10)
    for now_ms in range(10, LEASE_MS, 1000):
        assert notify(machine, Renewed(member="a"), now_ms).others.keys() == {"hanging"}
    assert notify(machine, Renewed(member="a"), LEASE_MS + 1).others == {}


def test_reports_are_given_until_their_number_comes_back() -> None:
    machine = GroupMembership((), 0)
    notify(machine, MemberJoined(member="a", group="g"))
    machine.handle(EventTimesReported(member="a", event_times={"s": 5, "t": 1}), 0)
    machine.handle(EventTimesReported(member="a", event_times={"s": 3}), 0)
    standing = notify(machine, VoteCast(member="a", vote=Vote(None)))
    assert (standing.event_times, standing.seen) == ({"s": 5, "t": 1}, 2)
    again = notify(machine, VoteCast(member="a", vote=Vote(None)))
    assert again.event_times == standing.event_times, "the first answer may have been lost"
    assert notify(machine, VoteCast(member="a", vote=Vote(None, seen=2))).event_times == {}
