"""What `JobMaster.handle` routes for event time: alignment groups, other queries, warnings, and unassigned work."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_events import (
    ForSource,
    Log,
    OthersMoved,
    ShareMinimum,
    SlotMessageReceived,
    StopRequested,
    TimePassed,
)
from headgate.coordinator.sources import source_events as src
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import SplitState, SubtaskState
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS, WatermarkAlignment
from tests.unit.coordinator.job.job_world import FAILED, World
from tests.unit.coordinator.job.test_job_master import Master, kinds, messages, options
from tests.unit.coordinator.sources.toy_sources import PushedToySource, ToySource, ToySplit

NARROW = WatermarkAlignment(group="g", max_drift_ms=10)
WIDE = WatermarkAlignment(group="g", max_drift_ms=1_000)


def aligned(parallelism: int = 2, **groups: WatermarkAlignment) -> Master:
    """Return a master whose readers run, and have no vote."""
    groups = groups or {"a": NARROW}
    master = Master(parallelism, *groups, groups=groups)
    master.run()
    for connection in range(1, parallelism + 1):
        for source in groups:
            report(master, connection, None, source=source)
    return master


def report(
    master: Master,
    connection: int,
    watermark_ms: int | None,
    *,
    source: str = "a",
    execution: int = 1,
    slowest: str | None = None,
) -> list[Any]:
    slowest = f"of {connection}" if slowest is None else slowest
    message = msg.WatermarkReported(
        stage=0, execution=execution, source=source, watermark_ms=watermark_ms, slowest=slowest
    )
    return master.hear(connection, message)


def announced(max_watermark_ms: int, others_ms: int, *, source: str = "a", execution: int = 1) -> msg.Message:
    return msg.AlignmentAnnounced(
        stage=0, execution=execution, source=source, max_watermark_ms=max_watermark_ms, others_ms=others_ms
    )


# -- alignment ------------------------------------------------------------------------------------------------------


def test_a_reader_receives_the_bound_when_it_registers() -> None:
    master = Master(1, "a", groups={"a": NARROW})
    master(sch.QueryStarted())
    master.register(1)
    came = msg.ReaderRegistered(stage=0, execution=1, source="a", host="h")
    assert messages(master.hear(1, came)) == [(1, announced(MIN_WATERMARK_MS + 10, MAX_WATERMARK_MS))]
    assert kinds(master.hear(1, msg.SubtaskRunning(stage=0, execution=1))) == ["Log"]


def test_a_report_that_moves_the_minimum_is_announced_to_all_readers_on_their_streams() -> None:
    master = aligned()
    report(master, 1, 100)
    assert messages(report(master, 2, 40)) == [(1, announced(50, 40)), (2, announced(50, 100))]
    assert report(master, 1, 300) == []


def test_reports_of_an_older_execution_are_ignored() -> None:
    master = aligned()
    assert report(master, 1, 5, execution=2) == []
    assert report(master, 1, 5, execution=0) == []


def test_sources_of_one_group_are_aligned_with_one_another() -> None:
    master = aligned(1, a=NARROW, b=WIDE)
    report(master, 1, 100)
    assert messages(report(master, 1, 40, source="b")) == [
        (1, announced(50, 40)),
        (1, announced(1_040, 100, source="b")),
    ]


def test_groups_and_sources_without_one_are_none_of_each_others_business() -> None:
    other = WatermarkAlignment(group="other", max_drift_ms=10)
    master = Master(1, "a", "b", "c", groups={"a": NARROW, "b": other})
    master.run()
    assert messages(report(master, 1, 100)) == [(1, announced(110, MAX_WATERMARK_MS))]
    assert messages(report(master, 1, 40, source="b")) == [(1, announced(50, MAX_WATERMARK_MS, source="b"))]


def redeployed(master: Master) -> None:
    """Let the second subtask fail and be deployed again, in execution 2."""
    master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 200)
    master.from_source(src.ReaderForgotten(1, 1), now_ms=210)
    master(TimePassed(), 400)
    assert "Deploy" in kinds(master.from_source(src.SplitsTakenBack(1, 1), now_ms=400))


def test_a_failed_reader_keeps_its_vote_until_its_next_execution_reports() -> None:
    master = aligned()
    report(master, 1, 100)
    report(master, 2, 40)
    master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 200)
    assert report(master, 2, 900) == [], "a message of the execution that failed"
    master.from_source(src.ReaderForgotten(1, 1), now_ms=210)
    master(TimePassed(), 400)
    master.from_source(src.SplitsTakenBack(1, 1), now_ms=400)
    came = msg.ReaderRegistered(stage=0, execution=2, source="a", host="h")
    assert messages(master.hear(2, came, 410)) == [(2, announced(50, 100, execution=2))]
    assert messages(report(master, 2, 30, execution=2)) == [
        (1, announced(40, 30)),
        (2, announced(40, 100, execution=2)),
    ]


def test_a_report_that_comes_before_the_registration_counts() -> None:
    """Splits of a checkpoint are in the reader before it registers."""
    master = aligned()
    report(master, 1, 100)
    report(master, 2, 40)
    redeployed(master)
    assert (2, announced(30, 100, execution=2)) in messages(report(master, 2, 20, execution=2))
    assert report(master, 2, 21, execution=2)[:1] != [], "it is not lost any longer"
    came = msg.ReaderRegistered(stage=0, execution=2, source="a", host="h")
    assert messages(master.hear(2, came, 410)) == [(2, announced(31, 100, execution=2))]


def test_after_everything_was_restored_the_votes_stand_until_readers_report_again() -> None:
    master = aligned()
    report(master, 1, 100)
    report(master, 2, 40)
    master.from_source(src.EnumeratorFailed(1, FAILED), now_ms=200)
    master.from_source(src.LogLoaded(None, "it is gone", 2), now_ms=210)
    master(TimePassed(), 310)
    for connection in (1, 2):
        came = msg.ReaderRegistered(stage=0, execution=2, source="a", host="h")
        others_ms = 40 if connection == 1 else 100
        assert messages(master.hear(connection, came, 320)) == [(connection, announced(50, others_ms, execution=2))]
    assert messages(report(master, 2, 20, execution=2)) == [
        (1, announced(30, 20, execution=2)),
        (2, announced(30, 100, execution=2)),
    ]


def test_other_queries_hear_our_minimum_and_we_theirs() -> None:
    master = aligned(1)
    assert report(master, 1, 100)[-1] == ShareMinimum("g", 100)
    assert messages(master(OthersMoved("g", 60))) == [(1, announced(70, 60))]
    assert ShareMinimum("g", 120) in report(master, 1, 120)
    assert messages(master(OthersMoved("g", None))) == [(1, announced(130, MAX_WATERMARK_MS))]


def test_when_the_query_ends_nobody_waits_for_it_while_its_slots_end() -> None:
    master = aligned(2)
    report(master, 1, 100)
    assert ShareMinimum("g", None) in master(StopRequested(), 50)
    assert "ShareMinimum" not in kinds(report(master, 1, 200))
    assert "ShareMinimum" not in kinds(master(OthersMoved("g", 7), 60))


def with_last_checkpoint(master: Master, location: str = "") -> None:
    """Let the last checkpoint complete, and not be committed."""
    master(cp.CheckpointRequested(1, CheckpointKind.SUSPEND, location), 50)
    master(TimePassed(), 50)
    master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), now_ms=60)
    master.from_source(src.LogAppended(2), now_ms=60)
    acknowledged = msg.CheckpointAcknowledged(stage=0, execution=1, checkpoint_id=1, state=SubtaskState())
    master.hear(1, acknowledged, 70)
    master(cp.ManifestWritten(1, 10), 80)
    if location:
        master(cp.ManifestWritten(1, 10), 80)  # that of the query's own folder, too


def suspended(master: Master, location: str = "") -> list[Any]:
    """Let the last checkpoint complete; return what follows its commit."""
    with_last_checkpoint(master, location)
    return master(cp.Committed(1, {}), 90)


def test_a_query_that_is_rescaled_stays_in_its_group_where_it_was() -> None:
    """The votes of its next run take the place of this one's; slots that do not end hold nobody for ever."""
    master = aligned(1)
    report(master, 1, 100)
    released = suspended(master)
    assert "ShutDownSlot" in kinds(released) and "ShareMinimum" not in kinds(released)
    assert "ShareMinimum" not in kinds(report(master, 1, 400))
    *_, share, warning = master(TimePassed(), 90 + 300_000)
    assert share == ShareMinimum("g", None)
    assert "no reader for 300 s" in warning.text and "'g'" in warning.text


def test_a_query_that_fails_after_it_was_suspended_leaves_its_group() -> None:
    master = aligned(1)
    report(master, 1, 100)
    with_last_checkpoint(master)
    assert ShareMinimum("g", None) in master(StopRequested(), 85), "it is not committed"


def test_a_query_whose_readers_all_restart_has_none_from_the_failure_on() -> None:
    master = aligned(1)
    report(master, 1, 100)
    master.hear(1, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 1_000)
    assert ShareMinimum("g", None) not in master(TimePassed(), 300_999)
    assert ShareMinimum("g", None) in master(TimePassed(), 301_000)


def test_a_query_that_is_suspended_for_good_leaves_its_group() -> None:
    master = aligned(1)
    report(master, 1, 100)
    assert ShareMinimum("g", None) in suspended(master, "savepoint")


def test_after_the_end_other_queries_are_not_heard() -> None:
    master = aligned(1)
    master(StopRequested(), 50)
    assert "QueryOver" in kinds(master(sch.JobEnded(0, None), 60))
    assert master(OthersMoved("g", 7), 70) == []


def warnings(master: Master, now_ms: int) -> list[str]:
    """Let time pass for slots that live; return what is logged about alignment."""
    for connection, session in master.sessions.items():
        master(SlotMessageReceived(connection, session.send_uncounted(msg.SlotHeartbeat())), now_ms)
    return [
        each.text
        for each in master(TimePassed(), now_ms)
        if isinstance(each, Log) and each.level == "warning" and "alignment group" in each.text
    ]


def test_who_holds_the_group_back_for_a_minute_is_named_with_what_to_set() -> None:
    master = aligned(2)
    report(master, 1, 100)
    report(master, 2, 110)
    for now_ms in range(1_000, 60_000, 1_000):
        assert warnings(master, now_ms) == []
    (text,) = warnings(master, 60_000)
    assert text == (
        "The split 'of 1' of the source 'a' (reader 0) has held the alignment group 'g' back for 60 s, and others wait "
        "for it. If a split may be without rows for so long, set the option scan.watermark.idle-timeout; if the others "
        "may be read further ahead of it, set a larger max drift: withWatermarkAlignment, or the option "
        "scan.watermark.alignment.max-drift."
    )


def test_a_reader_that_holds_the_group_back_without_a_split_is_named() -> None:
    master = aligned(2)
    report(master, 1, 100, slowest="")
    report(master, 2, 110)
    (text,) = [text for now_ms in range(1_000, 61_000, 1_000) for text in warnings(master, now_ms)]
    who = "Reader 0 of the source 'a', which has not reported yet how far it is or waits for its next split, has held"
    assert text.startswith(who)


def test_a_paused_split_in_a_readers_figures_is_somebody_who_waits() -> None:
    master = aligned(1)
    report(master, 1, 100)
    waiting = {"a": {"x": msg.SplitEventTime(watermark_ms=100), "y": msg.SplitEventTime(watermark_ms=111, paused=True)}}
    master.hear(1, msg.SubtaskProgress(stage=0, execution=1, event_times=waiting))
    texts = [text for now_ms in range(0, 61_000, 1_000) for text in warnings(master, now_ms)]
    assert len(texts) == 1


def test_the_time_of_a_warning_is_waited_for() -> None:
    master = aligned(2)
    report(master, 1, 100)
    now_ms = 0
    while now_ms < 60_000:
        due_ms = master.machine.next_time_ms()
        assert due_ms is not None and now_ms < due_ms <= 60_000
        now_ms = due_ms
        master(TimePassed(), now_ms)


# -- unassigned work ------------------------------------------------------------------------------------------------


def appended(actions: list[Any]) -> src.LogAppended:
    (number,) = [
        each.action.number for each in actions if isinstance(each, ForSource) and isinstance(each.action, src.AppendLog)
    ]
    return src.LogAppended(number)


def test_unassigned_work_goes_out_after_the_assignment_it_follows_from() -> None:
    master = Master(2)
    master.run()
    master.from_source(src.LogAppended(1))
    for event in (src.UnassignedChanged(1, 5), src.ReaderAdded(1, 0)):
        actions = master.from_source(event)
    reported = msg.UnassignedWork(stage=0, execution=1, source="a", event_time_ms=5)
    assert messages(actions) == [(1, reported)], "the enumerator has not seen the other one yet"
    assert messages(master.from_source(src.ReaderAdded(1, 1))) == [(2, reported)]
    done = appended(master.from_source(src.SplitsAssigned(1, {0: (SplitState("x", b"1"),)})))
    assert master.from_source(src.UnassignedChanged(1, 9)) == []
    assert [(to, type(message).__name__) for to, message in messages(master.from_source(done))] == [
        (1, "AssignSplits"), (1, "UnassignedWork"), (2, "UnassignedWork"),
    ]  # fmt: skip


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_fails_every_execution_of_a_reader_learns_in_the_end_that_nothing_holds_it(
    source: type[ToySource], seed: int
) -> None:
    query = World(
        source([ToySplit(split_id=f"s{n}", stop=40) for n in range(6)]), 2, options(interval_ms=50), seed=seed
    )
    query.pass_time(150 + 10 * seed)
    query.crash_enumerator()
    query.pass_time(20 * seed)
    query.kill(seed % 2)
    query.pass_time(60_000)
    assert query.over and query.error is None
    last = {
        (slot, message.execution): message.event_time_ms
        for slot, message in query.event_time_messages
        if isinstance(message, msg.UnassignedWork)
    }
    assert last.keys() >= {(slot, execution) for slot, execution in enumerate(query.executions())}
    newest = {slot: last[slot, execution] for slot, execution in enumerate(query.executions())}
    assert newest == {0: None, 1: None}
