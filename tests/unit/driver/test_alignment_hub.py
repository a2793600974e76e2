"""Queries of one application in one alignment group: the hub alone, then real groups that meet in it."""

from __future__ import annotations

import itertools
import threading

from headgate.coordinator.alignment.alignment_group import (
    AlignmentGroup,
    Announce,
    Event,
    OthersMoved,
    ReaderJoined,
    ReaderReported,
    ShareMinimum,
)
from headgate.driver.alignment_hub import AlignmentHub, Membership, OnOthersMoved
from headgate.source.watermark import MAX_WATERMARK_MS


def joined(
    hub: AlignmentHub, on_others_moved: OnOthersMoved, *, application: str = "app", group: str = "g"
) -> Membership:
    member = hub.join(application, group)
    member.listen(on_others_moved)
    return member


def test_each_query_hears_the_lowest_of_the_others_and_only_when_it_moved() -> None:
    hub = AlignmentHub()
    heard: dict[str, list[int | None]] = {name: [] for name in "abc"}
    a, b, c = (joined(hub, heard[name].append) for name in "abc")
    a.share(10)
    b.share(20)
    c.share(30)
    a.share(25)
    a.share(25)
    assert heard == {"a": [20], "b": [10, 25], "c": [10, 20]}


def test_a_query_without_a_vote_holds_nobody() -> None:
    hub = AlignmentHub()
    heard: list[int | None] = []
    joined(hub, heard.append)
    other = joined(hub, heard.append)
    other.share(None)
    assert heard == []
    other.share(5)
    other.share(None)
    assert heard == [5, None]


def test_who_joins_later_hears_at_once_how_far_the_others_are() -> None:
    hub = AlignmentHub()
    hub.join("app", "g").share(7)
    heard: list[int | None] = []
    joined(hub, heard.append)
    assert heard == [7]


def test_who_left_holds_nobody_and_hears_nothing() -> None:
    hub = AlignmentHub()
    stays, left = [], []  # type: ignore[var-annotated]
    first = joined(hub, stays.append)
    second = joined(hub, left.append)
    second.share(5)
    second.leave()
    second.share(3)
    second.leave()
    first.share(9)
    assert (stays, left) == ([5, None], [])


def test_what_a_query_shared_counts_until_its_next_run_shares_and_that_hears_how_far_the_others_are() -> None:
    hub = AlignmentHub()
    first, second, others = [], [], []  # type: ignore[var-annotated]
    rescaled = joined(hub, first.append)
    joined(hub, others.append).share(7)
    rescaled.share(5)
    rescaled.listen(second.append)
    rescaled.share(6)
    assert (first, second, others) == ([7], [7], [5, 6])


def test_groups_and_applications_do_not_meet() -> None:
    hub = AlignmentHub()
    heard: list[int | None] = []
    joined(hub, heard.append)
    joined(hub, heard.append, group="h").share(1)
    joined(hub, heard.append, application="another app").share(2)
    assert heard == []


def test_what_is_heard_last_is_how_it_is_whoever_shares_at_the_same_time() -> None:
    hub = AlignmentHub()
    heard: list[int | None] = []
    joined(hub, heard.append)
    sharing = [hub.join("app", "g") for _ in range(4)]

    def share(number: int) -> None:
        for watermark_ms in range(300):
            sharing[number].share(watermark_ms * 4 + number)

    threads = [threading.Thread(target=share, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard[-1] == 299 * 4
    assert all(one != other for one, other in itertools.pairwise(heard)), "it received what it knew"


class Query:
    """A query with one reader in the group, whose driver carries out what is ordered at once."""

    def __init__(self, hub: AlignmentHub, drift_ms: int = 10) -> None:
        self.group = AlignmentGroup("g", {"source": drift_ms}, parallelism=1)
        self.bound_ms: int | None = None
        self.heard: list[OthersMoved] = []
        self.membership = joined(hub, lambda watermark_ms: self.heard.append(OthersMoved(watermark_ms)))

    def notify(self, event: Event) -> None:
        for action in self.group.handle(event, 0):
            if isinstance(action, Announce):
                self.bound_ms = action.max_watermark_ms
            elif isinstance(action, ShareMinimum):
                self.membership.share(action.watermark_ms)
        self.group.check()

    def read_to(self, watermark_ms: int | None) -> None:
        self.notify(ReaderReported("source", 0, watermark_ms, "split"))

    def hear(self) -> None:
        while self.heard:
            self.notify(self.heard.pop(0))


def queries(hub: AlignmentHub, *watermarks_ms: int) -> list[Query]:
    """Return queries that have reported these."""
    made = [Query(hub) for _ in watermarks_ms]
    for query, watermark_ms in zip(made, watermarks_ms):
        query.notify(ReaderJoined("source", 0))
        query.read_to(watermark_ms)
    hear(*made)
    return made


def hear(*made: Query) -> None:
    while any(query.heard for query in made):
        for query in made:
            query.hear()


def test_no_query_reads_further_than_the_slowest_of_all_and_the_drift() -> None:
    after, ahead = queries(AlignmentHub(), 100, 5_000)
    assert (after.bound_ms, ahead.bound_ms) == (110, 110)
    for watermark_ms in (110, 3_000, 4_995):
        after.read_to(watermark_ms)
        hear(after, ahead)
        assert (after.bound_ms, ahead.bound_ms) == (watermark_ms + 10, watermark_ms + 10)
    after.read_to(9_000)
    hear(after, ahead)
    assert (after.bound_ms, ahead.bound_ms) == (5_010, 5_010)


def test_a_query_that_starts_late_holds_the_ones_that_run() -> None:
    hub = AlignmentHub()
    (running,) = queries(hub, 5_000)
    newcomer = Query(hub)
    hear(running, newcomer)
    assert running.bound_ms == 5_010, "it has not read anything yet"
    newcomer.notify(ReaderJoined("source", 0))
    newcomer.read_to(40)
    hear(running, newcomer)
    assert running.bound_ms == 50


def test_when_a_query_stops_the_others_resume() -> None:
    first, second, third = queries(AlignmentHub(), 100, 5_000, 6_000)
    assert third.bound_ms == 110
    first.membership.leave()
    hear(first, second, third)
    assert (second.bound_ms, third.bound_ms) == (5_010, 5_010)
    second.membership.leave()
    hear(second, third)
    assert third.bound_ms == 6_010
    assert third.group.minimum_ms == 6_000


def test_when_all_splits_of_a_query_are_idle_the_others_resume() -> None:
    after, ahead = queries(AlignmentHub(), 100, 5_000)
    after.read_to(None)
    hear(after, ahead)
    assert (after.bound_ms, ahead.bound_ms) == (5_010, 5_010)
    ahead.read_to(None)
    hear(after, ahead)
    assert (after.bound_ms, ahead.bound_ms) == (MAX_WATERMARK_MS, MAX_WATERMARK_MS)
