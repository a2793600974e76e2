"""What readers hear of unassigned work, and when: no watermark passes it."""

from __future__ import annotations

from typing import Any

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import (
    AssignedRecord,
    StateRecord,
)
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.protocol import messages as msg
from tests.unit.coordinator.sources.test_source_coordinator import (
    ERROR,
    A,
    B,
    assign_message,
    handled,
    recovered,
    registered,
    reported,
    running,
)


def work(subtask: int, event_time_ms: int | None, execution: int = 1) -> src.SendToReader:
    message = msg.UnassignedWork(stage=0, execution=execution, source="uid", event_time_ms=event_time_ms)
    return src.SendToReader(subtask, message)


def admitted(event_time_ms: int | None = 50, **options: Any) -> SourceCoordinator:
    """Return a coordinator whose enumerator has seen two readers, and has work of a certain time."""
    made = running(**options)
    handled(made, src.UnassignedChanged(1, event_time_ms), src.ReaderAdded(1, 0), src.ReaderAdded(1, 1))
    return made


def test_a_reader_hears_of_unassigned_work_when_the_enumerator_has_seen_it() -> None:
    made = running()
    assert handled(made, src.UnassignedChanged(1, None)) == [], "it may have splits to report, or to get first"
    assert handled(made, src.ReaderAdded(1, 0)) == [work(0, None)]
    assert handled(made, src.ReaderAdded(1, 1)) == [work(1, None)]
    assert handled(made, src.UnassignedChanged(1, 30)) == [work(0, 30), work(1, 30)]


def test_a_reader_that_comes_gets_what_is_assigned_to_it_before_it_hears_of_the_rest() -> None:
    made = admitted(50)
    handled(made, src.ReaderFailed(0, 0), src.ReaderForgotten(1, 0), src.SplitsTakenBack(1, 0))
    handled(made, src.LogAppended(2), registered(execution=2), src.SplitsAssigned(1, {0: (A,)}))
    assert handled(made, src.UnassignedChanged(1, 60), src.ReaderAdded(1, 0)) == []
    assert [each.message for each in handled(made, src.LogAppended(3))] == [
        msg.AssignSplits(stage=0, execution=2, source="uid", number=1, splits=(A,)),
        work(0, 60, execution=2).message,
        work(1, 60).message,
    ]


def test_what_waited_for_a_failed_reader_comes_before_it_hears_of_the_rest() -> None:
    """Parked splits are in no enumerator: it cannot speak for them."""
    made = admitted(50, keeps_subtask=True)
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.LogAppended(2), src.ReaderFailed(0, 0))
    handled(made, src.ReaderForgotten(1, 0), src.SplitsTakenBack(1, 0), src.LogAppended(3))
    assert handled(made, src.UnassignedChanged(1, 70)) == [work(1, 70)], "who is there is not held for who is not"
    handled(made, registered(execution=2))
    assert handled(made, src.ReaderAdded(1, 0)) == []
    assigned, unassigned = handled(made, src.LogAppended(4))
    assert assigned.message.splits == (A,)
    assert unassigned == work(0, 70, execution=2)


def test_what_is_assigned_together_is_reported_once() -> None:
    made = admitted(50)
    handled(made, src.EnumeratorStateChanged(1, b"s"))
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.UnassignedChanged(1, 60))
    handled(made, src.SplitsAssigned(1, {1: (B,)}), src.UnassignedChanged(1, 70))
    assert [type(each) for each in handled(made, src.LogAppended(2))] == [src.AppendLog]
    assert handled(made, src.LogAppended(4)) == [
        src.SendToReader(0, assign_message(A)),
        src.SendToReader(1, assign_message(B)),
        work(0, 70),
        work(1, 70),
    ]


def test_with_thousands_of_readers_a_rise_is_reported_a_little_later_and_once() -> None:
    """Every split that is assigned would be a message to each of them."""
    made = admitted(50, parallelism=10_000)
    assert made.next_time_ms() is None
    for event_time_ms in range(51, 90):
        assert handled(made, src.UnassignedChanged(1, event_time_ms)) == []
    assert made.next_time_ms() == 200
    assert made.handle(src.SourceTimePassed(), 199) == []
    assert made.handle(src.SourceTimePassed(), 200) == [work(0, 89), work(1, 89)]
    assert made.next_time_ms() is None
    assert made.handle(src.UnassignedChanged(1, 20), 201) == [work(0, 20), work(1, 20)], "a fall is reported at once"


def test_unassigned_work_waits_for_the_barriers_like_everything_else() -> None:
    made = admitted(50)
    handled(made, src.CheckpointStarted(1))
    assert isinstance(handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))[-1], src.EnumeratorStateReady)
    assert handled(made, src.UnassignedChanged(1, 60), src.LogAppended(2)) == []
    assert handled(made, src.BarriersSent(1)) == [work(0, 60), work(1, 60)]


def test_what_was_reported_before_the_snapshot_goes_before_the_barriers() -> None:
    made = admitted(50)
    handled(made, src.CheckpointStarted(1), src.SplitsAssigned(1, {0: (A,)}), src.UnassignedChanged(1, 60))
    handled(made, src.EnumeratorSnapshotted(1, 1, b"s"))
    _, *sent = handled(made, src.LogAppended(2))
    assert sent[:3] == [src.SendToReader(0, assign_message(A)), work(0, 60), work(1, 60)]
    assert isinstance(sent[3], src.EnumeratorStateReady)


def test_without_a_log_readers_hear_of_it_all_the_same() -> None:
    made = running()
    handled(made, src.SplitsAssigned(1, {0: (A,)}), src.UnassignedChanged(1, 60), src.ReaderAdded(1, 0))
    assert handled(made, src.LogAppendFailed(2, "full")) == [src.SendToReader(0, assign_message(A)), work(0, 60)]


def test_after_an_enumerators_failure_readers_keep_what_they_know_until_it_is_otherwise() -> None:
    made = admitted(50)
    recovered(made)
    handled(made, reported(2), reported(2, subtask=1))
    assert handled(made, src.UnassignedChanged(2, 50), src.ReaderAdded(2, 0)) == []
    assert handled(made, src.UnassignedChanged(2, 40)) == [work(0, 40)], (
        "the other one may have splits that it gets again"
    )
    assert handled(made, src.ReaderAdded(2, 1)) == [work(1, 40)]


def test_a_restored_enumerator_that_still_has_what_readers_have_does_not_hold_them() -> None:
    """A split without an end is never asked for again: its reader would be held at its beginning for ever."""
    made = admitted(50)
    recovered(made, AssignedRecord(0, 1, 1, (A,)))
    handled(made, reported(2, 1), reported(2, subtask=1), src.ReaderAdded(2, 0), src.ReaderAdded(2, 1))
    assert handled(made, src.UnassignedChanged(2, 10)) == [], "of the time of the split that reader 0 has"
    assert handled(made, src.UnassignedChanged(2, 80)) == [work(0, 80), work(1, 80)], "that is true whatever it has"
    handled(made, src.UnassignedChanged(2, 10))
    assert handled(made, src.SplitsAssigned(2, {0: (A,)})) == [work(0, 10), work(1, 10)], "now it knows better"


def test_a_reader_that_fails_while_the_enumerator_is_restored_hears_of_it_when_it_is_back() -> None:
    made = admitted(None)
    handled(made, src.EnumeratorFailed(1, ERROR), src.ReaderFailed(0, 0))
    handled(made, src.LogLoaded((StateRecord(None, 0),), "", 2), reported(2, subtask=1))
    handled(made, src.UnassignedChanged(2, None), src.ReaderForgotten(2, 0), src.SplitsTakenBack(2, 0))
    handled(made, src.LogAppended(made._log.number), registered(execution=2))
    assert handled(made, src.ReaderAdded(2, 0)) == [work(0, None, execution=2)]


def test_after_everything_was_restored_readers_are_held_until_the_enumerator_has_seen_them() -> None:
    made = admitted(50)
    handled(made, src.SourceStarted(), registered(execution=2))
    handled(made, src.LogAppended(made._log.number))
    assert handled(made, src.ReaderAdded(1, 0)) == [], "of the enumerator before"
    assert handled(made, src.ReaderAdded(2, 0)) == []
    assert handled(made, src.UnassignedChanged(2, 50)) == [work(0, 50, execution=2)]
