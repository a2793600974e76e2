"""Checkpoints, restarts and commits: the newest are kept, the others counted."""

from __future__ import annotations

from headgate.monitor.recent_events import (
    RECENT_CHECKPOINTS,
    RECENT_RESTARTS,
    CheckpointEvent,
    RecentEvents,
    RestartEvent,
)


def completed(number: int) -> CheckpointEvent:
    return CheckpointEvent(id=number, status="completed", duration_ms=5, size_bytes=10, completed_ms=number)


def test_the_newest_are_kept_and_all_are_counted() -> None:
    events = RecentEvents(started_ms=0)
    for number in range(1, 71):
        events.checkpoint(completed(number))
    events.checkpoint(
        CheckpointEvent(id=71, status="failed", duration_ms=9, size_bytes=None, completed_ms=71, reason="full")
    )
    for number in range(30):
        events.restart(RestartEvent(at_ms=number, kind="slot", cause="lost", slot=1))
    assert (events.completed_checkpoints, events.failed_checkpoints, events.restarts) == (70, 1, 30)
    assert [each.id for each in events.checkpoints] == list(range(72 - RECENT_CHECKPOINTS, 72))
    assert [each.at_ms for each in events.recent_restarts] == list(range(30 - RECENT_RESTARTS, 30))


def test_the_share_of_commits_is_of_the_last_minute_only() -> None:
    events = RecentEvents(started_ms=0)
    for second in range(0, 300, 5):
        events.commit_ordered(1000 * second)
        events.committed(1000 * second + 4000)
    assert (events.commits, events.last_commit_ms) == (60, 4000)
    assert events.commit_share(300_000) == 0.8
    assert events.commit_share(330_000) == 0.4
    assert events.commit_share(400_000) == 0.0


def test_a_commit_under_way_counts_until_its_run_is_over() -> None:
    events = RecentEvents(started_ms=0)
    events.commit_ordered(30_000)
    events.commit_ordered(50_000)  # once more: it has been owed since the first order
    assert events.commit_share(60_000) == 0.5
    events.run_began()
    events.committed(61_000)
    assert (events.commits, events.commit_share(60_000)) == (0, 0.0)


def test_no_share_before_any_time_has_passed() -> None:
    assert RecentEvents(started_ms=7).commit_share(7) is None


def test_a_rescale_is_kept_and_is_no_restart() -> None:
    """An alert on restarts must not be the autoscaler's doing."""
    events = RecentEvents(started_ms=0)
    events.restart(RestartEvent(at_ms=1, kind="subtask", cause="ValueError: 7.", stage=0, subtask=1))
    events.restart(RestartEvent(at_ms=2, kind="rescale", cause="The parallelism was 2 and is 1."))
    assert (events.restarts, len(events.recent_restarts)) == (1, 2)


def test_the_end_of_the_job_right_after_a_lost_slot_is_the_same_restart() -> None:
    events = RecentEvents(started_ms=0)
    events.restart(RestartEvent(at_ms=1_000, kind="slot", cause="slot 3 is lost", slot=3))
    events.restart(RestartEvent(at_ms=2_300, kind="job", cause="Python worker exited unexpectedly"))
    assert events.restarts == 1
    assert [each.cause for each in events.recent_restarts] == ["slot 3 is lost"]
    events.restart(RestartEvent(at_ms=60_000, kind="job", cause="the executor is gone"))
    assert events.restarts == 2
