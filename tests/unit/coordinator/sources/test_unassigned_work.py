"""When readers hear of unassigned work, and of which."""

from __future__ import annotations

from headgate.coordinator.sources.outbox import Unassigned
from headgate.coordinator.sources.unassigned_work import UnassignedWork
from headgate.source.watermark import MIN_WATERMARK_MS


def test_a_rise_waits_with_very_many_readers_and_a_fall_never_does() -> None:
    work = UnassignedWork(10_000)
    assert work.take(Unassigned(10), 0), "the first holds nobody"
    work.all_hear(0)
    assert not work.take(Unassigned(20), 100)
    assert work.next_time_ms() == 200
    assert work.take(Unassigned(5), 101)
    assert not work.take(Unassigned(None), 102), "no work at all is the latest"
    work.all_hear(200)
    assert work.next_time_ms() is None


def test_until_a_restored_enumerator_knows_what_readers_have_the_later_report_counts() -> None:
    work = UnassignedWork(1)
    work.take(Unassigned(50), 0)
    work.lose_enumerator()
    assert work.to_put(is_early=True) is None, "it has not reported"
    work.reported = Unassigned(10)
    assert work.to_put(is_early=True) == Unassigned(50)
    assert work.to_put(is_early=False) == Unassigned(10)
    work.reported = Unassigned(None)
    assert work.to_put(is_early=True) == Unassigned(None)


def test_rows_in_flight_of_unassigned_splits_hold_all_watermarks() -> None:
    """The enumerator knows only where these splits are read on, which is after those rows."""
    work = UnassignedWork(1)
    assert work.to_put(is_early=False, has_rows=True) is None, "nothing was reported, so nobody has a watermark"
    work.reported = Unassigned(50)
    assert work.to_put(is_early=False, has_rows=True) == Unassigned(MIN_WATERMARK_MS)
    assert work.to_put(is_early=False) == Unassigned(50)
