"""A subtask's life: the table first, then what exactly-once hangs on, as short stories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from headgate.errors import InvalidTransitionError
from headgate.machine import steps_of
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind, ErrorReport, SubtaskId
from headgate.protocol.state import (
    FinishedSplit,
    InlineState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)
from headgate.task import subtask
from headgate.task.subtask import MessageReceived, SubtaskMachine
from tests.machines import explore

A, B = SplitState("a", b"at 3"), SplitState("b", b"at 5")
ERROR = ErrorReport(error_type="ValueError", message="no")


def machine(*, reassigns: bool = False) -> SubtaskMachine:
    return SubtaskMachine(SubtaskId(0, 1), sources={"s": reassigns}, host="h")


def deploy(execution: int = 1, **reader: tuple[SplitState, ...] | tuple[FinishedSplit, ...]) -> MessageReceived:
    restore = SubtaskState(readers={"s": ReaderState(**reader)}) if reader else None  # type: ignore[arg-type]
    return MessageReceived(msg.Deploy(stage=0, execution=execution, parallelism=2, restore=restore))


def suspended(execution: int = 1, splits: tuple[SplitState, ...] = ()) -> MessageReceived:
    restored = SubtaskState(readers={"s": ReaderState(splits=splits)})
    return MessageReceived(
        msg.Deploy(stage=0, execution=execution, parallelism=2, restore=restored, checkpoint_id=7, suspended=True)
    )


def trigger(
    checkpoint_id: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT, completed: int = 0
) -> MessageReceived:
    return MessageReceived(
        msg.TriggerCheckpoint(stage=0, execution=1, checkpoint_id=checkpoint_id, completed=completed, kind=kind)
    )


def assign(number: int, *splits: SplitState) -> MessageReceived:
    return MessageReceived(msg.AssignSplits(stage=0, execution=1, source="s", number=number, splits=splits))


def completed(checkpoint_id: int, known: int) -> MessageReceived:
    return MessageReceived(
        msg.CheckpointCompleted(stage=0, execution=1, checkpoint_id=checkpoint_id, finished_known={"s": known})
    )


def snapshot(checkpoint_id: int, *splits: SplitState) -> subtask.SnapshotMade:
    return subtask.SnapshotMade(checkpoint_id, {"s": splits}, {"sink": OperatorState(committables=(b"c",))})


def aborted(checkpoint_id: int) -> MessageReceived:
    return MessageReceived(msg.CheckpointAborted(stage=0, execution=1, checkpoint_id=checkpoint_id))


def running(*, reassigns: bool = False) -> SubtaskMachine:
    made = machine(reassigns=reassigns)
    made.handle(deploy(), 0)
    made.handle(subtask.OperatorsOpened(), 0)
    return made


def posted(actions: list[subtask.Action]) -> list[msg.FromSlot]:
    return [action.message for action in actions if isinstance(action, subtask.Post)]


def acknowledged(actions: list[subtask.Action]) -> SubtaskState:
    message = posted(actions)[0]
    assert isinstance(message, msg.CheckpointAcknowledged)
    return message.state


def events(of: SubtaskMachine) -> Iterator[subtask.Event]:
    execution = of.execution
    about: dict[str, Any] = {"stage": 0, "execution": execution}
    yield deploy(execution)
    if execution < 2:
        yield deploy(execution + 1)
        yield deploy(execution + 1, splits=(A,), finished=(FinishedSplit("z", 9),))
        yield suspended(execution + 1)
        yield suspended(execution + 1, splits=(A,))
    yield MessageReceived(msg.CancelSubtask(**about))
    yield subtask.OperatorsOpened()
    yield subtask.RequestMade("s")
    yield subtask.EventMade("s", b"")
    yield subtask.SplitsEnded("s", ("a",))
    yield subtask.AllInputEnded()
    yield subtask.SomethingFailed(ERROR)
    for number in (1, 2):
        yield MessageReceived(msg.AssignSplits(source="s", number=number, splits=(B,), **about))
        for kind in (CheckpointKind.CHECKPOINT, CheckpointKind.SUSPEND, CheckpointKind.DRAIN):
            for newest in range(number):
                yield MessageReceived(msg.TriggerCheckpoint(checkpoint_id=number, completed=newest, kind=kind, **about))
        yield snapshot(number)
        yield subtask.SnapshotFailed(number, "disk full")
        yield MessageReceived(msg.CheckpointCompleted(checkpoint_id=number, finished_known={"s": 1}, **about))
        yield MessageReceived(msg.CheckpointAborted(checkpoint_id=number, **about))
    yield MessageReceived(msg.NoMoreSplits(source="s", **about))
    yield MessageReceived(msg.EventToReader(source="s", payload=b"", **about))
    yield MessageReceived(msg.ReportSource(source="s", incarnation=2, **about))
    yield MessageReceived(msg.AlignmentAnnounced(source="s", max_watermark_ms=30, others_ms=20, **about))
    yield MessageReceived(msg.UnassignedWork(source="s", event_time_ms=5, **about))
    yield subtask.WatermarkFound("s", 7, "a")


@pytest.mark.parametrize("reassigns", [False, True])
def test_the_table_is_what_the_machine_does(reassigns: bool) -> None:
    steps = steps_of(subtask.SubtaskMachine.TRANSITIONS)
    if reassigns:  # then no splits are added at the opening
        steps = [
            msgspec.structs.replace(each, optional=frozenset()) if each.event == "OperatorsOpened" else each
            for each in steps
        ]
    explore(
        lambda: machine(reassigns=reassigns),
        events,
        steps=steps,
        depth=5,
    )


def test_operators_know_of_a_complete_checkpoint_before_the_next_barrier_whichever_comes_first() -> None:
    """Through a channel the barrier may be faster; they would report again what is committed."""
    made = running()
    assert made.handle(trigger(4, completed=3), 0) == [take(4)], "3 was before this execution"
    assert made.handle(trigger(5, completed=4), 0) == [subtask.NotifyOperators(4), take(5)]
    assert made.handle(completed(4, 0), 0) == []
    assert made.handle(completed(5, 0), 0) == [subtask.NotifyOperators(5)]
    assert made.handle(trigger(6, completed=5), 0) == [take(6)]
    assert made.handle(trigger(7, completed=5), 0) == [take(7)], "6 was aborted"


def take(checkpoint_id: int) -> subtask.TakeSnapshot:
    return subtask.TakeSnapshot(checkpoint_id, drain=False, suspend=False)


def test_splits_from_state_are_in_the_reader_before_it_is_running() -> None:
    made = machine()
    made.handle(deploy(splits=(A, B)), 0)

    assert made.handle(subtask.OperatorsOpened(), 0) == [
        subtask.AddSplits("s", (A, B)),
        subtask.Post(msg.ReaderRegistered(stage=0, execution=1, source="s", host="h", held=("a", "b"))),
        subtask.Post(msg.SubtaskRunning(stage=0, execution=1)),
        subtask.StartReading(),
    ]


def test_a_source_that_reassigns_reports_its_splits_and_does_not_read_them() -> None:
    made = machine(reassigns=True)
    made.handle(deploy(splits=(A, B)), 0)

    assert made.handle(subtask.OperatorsOpened(), 0) == [
        subtask.Post(msg.ReaderRegistered(stage=0, execution=1, source="s", host="h", reported_splits=(A, B))),
        subtask.Post(msg.SubtaskRunning(stage=0, execution=1)),
        subtask.StartReading(),
    ]


def test_a_registration_precedes_running_and_a_request_made_at_the_start_follows_both() -> None:
    made = machine()
    made.handle(deploy(), 0)
    assert made.handle(subtask.RequestMade("s"), 0) == []

    messages = posted(made.handle(subtask.OperatorsOpened(), 0))
    assert [type(each) for each in messages] == [msg.ReaderRegistered, msg.SubtaskRunning, msg.SplitRequested]


def test_what_is_deployed_after_the_last_checkpoint_is_there_and_never_reads() -> None:
    made = machine()
    made.handle(suspended(splits=(A,)), 0)
    assert made.handle(subtask.OperatorsOpened(), 0) == [
        subtask.AddSplits("s", (A,)),
        subtask.Post(msg.ReaderRegistered(stage=0, execution=1, source="s", host="h", held=("a",))),
        subtask.Post(msg.SubtaskRunning(stage=0, execution=1)),
    ]
    made.check()
    assert made.handle(assign(1, B), 0) == [subtask.AddSplits("s", (B,))]
    assert made.handle(aborted(6), 0) == []  # of an earlier one
    assert made.state == "suspended"


def test_a_barrier_cannot_come_while_the_subtask_is_opened() -> None:
    made = machine()
    made.handle(deploy(), 0)

    with pytest.raises(InvalidTransitionError) as caught:
        made.handle(trigger(1), 0)
    assert caught.value.state == "opening"


def test_an_assignment_that_comes_again_is_not_read_twice() -> None:
    made = running()

    assert made.handle(assign(1, A), 0) == [subtask.AddSplits("s", (A,))]
    assert made.handle(assign(1, A), 0) == []
    assert made.handle(assign(2, B), 0) == [subtask.AddSplits("s", (B,))]


def test_a_missing_assignment_is_noticed() -> None:
    with pytest.raises(InvalidTransitionError):
        running().handle(assign(2, A), 0)


def test_ends_at_the_barrier_belong_to_the_checkpoint_and_later_ones_do_not() -> None:
    made = running()
    made.handle(subtask.SplitsEnded("s", ("a",)), 0)
    made.handle(trigger(1), 0)
    made.handle(subtask.SplitsEnded("s", ("b",)), 0)

    state = acknowledged(made.handle(snapshot(1), 0))
    assert state.readers["s"].finished == (FinishedSplit("a", 1),)


def test_the_end_of_input_after_the_barrier_is_not_in_the_checkpoint() -> None:
    made = running()
    made.handle(trigger(1), 0)
    made.handle(subtask.AllInputEnded(), 0)

    assert not acknowledged(made.handle(snapshot(1), 0)).input_ended
    made.handle(trigger(2), 0)
    assert acknowledged(made.handle(snapshot(2), 0)).input_ended


def test_finished_splits_stay_in_the_state_until_a_complete_checkpoint_knows_them() -> None:
    """FLINK-37627: an end between the enumerator's snapshot and the reader's was in neither."""
    made = running()
    made.handle(subtask.SplitsEnded("s", ("a", "b")), 0)
    made.handle(trigger(1), 0)
    made.handle(snapshot(1), 0)
    made.handle(completed(1, known=1), 0)
    made.handle(trigger(2), 0)
    assert acknowledged(made.handle(snapshot(2), 0)).readers["s"].finished == (FinishedSplit("b", 2),)

    made.handle(completed(2, known=2), 0)
    made.handle(trigger(3), 0)
    assert acknowledged(made.handle(snapshot(3), 0)).readers["s"].finished == ()


def test_restored_ends_are_reported_again_with_new_numbers() -> None:
    made = machine()
    made.handle(deploy(finished=(FinishedSplit("y", 7), FinishedSplit("z", 9))), 0)

    messages = posted(made.handle(subtask.OperatorsOpened(), 0))
    reported = msg.SplitsFinished(
        stage=0, execution=1, source="s", finished=(FinishedSplit("y", 1), FinishedSplit("z", 2))
    )
    assert messages[1] == reported
    later = posted(made.handle(subtask.SplitsEnded("s", ("a",)), 0))[0]
    assert isinstance(later, msg.SplitsFinished)
    assert later.finished == (FinishedSplit("a", 3),)


def test_what_a_restored_source_coordinator_asks_is_answered() -> None:
    made = running()
    made.handle(assign(1, A), 0)
    made.handle(subtask.SplitsEnded("s", ("a",)), 0)
    made.handle(subtask.RequestMade("s"), 0)

    report = MessageReceived(msg.ReportSource(stage=0, execution=1, source="s", incarnation=2))
    expected = msg.SourceReported(
        stage=0,
        execution=1,
        source="s",
        host="h",
        incarnation=2,
        highest_number=1,
        finished=(FinishedSplit("a", 1),),
        request_pending=True,
    )
    assert posted(made.handle(report, 0)) == [expected]
    made.handle(assign(2, B), 0)
    assert posted(made.handle(report, 0)) == [
        msg.SourceReported(
            stage=0,
            execution=1,
            source="s",
            host="h",
            incarnation=2,
            highest_number=2,
            finished=expected.finished,
            held=("b",),
        )
    ]


def test_a_snapshot_that_was_aborted_is_not_acknowledged() -> None:
    made = running()
    made.handle(trigger(1), 0)
    made.handle(aborted(1), 0)

    assert made.handle(snapshot(1), 0) == []


def test_a_savepoint_to_stop_at_holds_the_reading_until_it_fails() -> None:
    made = running()
    assert made.handle(trigger(1, CheckpointKind.SUSPEND), 0) == [subtask.TakeSnapshot(1, drain=False, suspend=True)]
    made.handle(subtask.SnapshotFailed(1, "disk full"), 0)
    assert made.handle(aborted(1), 0) == [subtask.ResumeReading()]
    assert made.state == "running"


def test_a_drained_subtask_keeps_splits_that_come_after_the_barrier() -> None:
    made = running()
    assert made.handle(trigger(1, CheckpointKind.DRAIN), 0) == [subtask.TakeSnapshot(1, drain=True, suspend=False)]

    assert made.handle(assign(1, A), 0) == [subtask.AddSplits("s", (A,))]
    assert acknowledged(made.handle(snapshot(1), 0)).input_ended


def test_a_drain_that_fails_starts_the_subtask_again_for_its_input_has_not_ended() -> None:
    made = running()
    made.handle(trigger(1, CheckpointKind.DRAIN), 0)

    actions = made.handle(aborted(1), 0)
    assert isinstance(posted(actions)[0], msg.SubtaskFailed)
    assert actions[1:] == [subtask.CloseAll()]


def test_a_newer_execution_ends_the_older_one_first_and_restores_its_own_state() -> None:
    made = running()
    made.handle(trigger(1), 0)
    state = {"sink": OperatorState(items=(InlineState(b"i"),))}
    newer = msg.Deploy(stage=0, execution=2, parallelism=2, restore=SubtaskState(operators=state), checkpoint_id=5)

    assert made.handle(MessageReceived(newer), 0) == [subtask.CloseAll(), subtask.OpenOperators(2, state)]
    assert made.handle(snapshot(1), 0) == []
    assert made.handle(assign(1, A), 0) == []  # of the older execution


def test_a_failed_subtask_says_so_once_and_ignores_what_is_late() -> None:
    made = running()
    made.handle(trigger(1), 0)

    assert made.handle(subtask.SomethingFailed(ERROR), 0) == [
        subtask.Post(msg.SubtaskFailed(stage=0, execution=1, error=ERROR)),
        subtask.CloseAll(),
    ]
    assert made.handle(subtask.SomethingFailed(ERROR), 0) == []
    assert made.handle(snapshot(1), 0) == []
    assert made.handle(assign(1, A), 0) == []
    assert made.handle(MessageReceived(msg.CancelSubtask(stage=0, execution=1)), 0) == []


def test_what_concerns_event_time_passes_through() -> None:
    made, about = running(), {"stage": 0, "execution": 1}
    announced = MessageReceived(msg.AlignmentAnnounced(source="s", max_watermark_ms=30, others_ms=20, **about))
    unassigned = MessageReceived(msg.UnassignedWork(source="s", event_time_ms=None, **about))

    assert made.handle(announced, 0) == [subtask.Announce("s", 30, 20)]
    assert made.handle(unassigned, 0) == [subtask.SetUnassigned("s", None)]
    assert posted(made.handle(subtask.WatermarkFound("s", 7, "a"), 0)) == [
        msg.WatermarkReported(source="s", watermark_ms=7, slowest="a", **about)
    ]


def test_a_reader_that_ended_still_says_that_it_has_no_vote() -> None:
    made = running()
    made.handle(subtask.AllInputEnded(), 0)
    assert posted(made.handle(subtask.WatermarkFound("s", None, ""), 0)) == [
        msg.WatermarkReported(stage=0, execution=1, source="s", watermark_ms=None)
    ]
