"""The entry point: who is notified of what, in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_events import (
    Action,
    CloseConnection,
    ConnectionClosed,
    Event,
    ForSource,
    FromSource,
    Log,
    ShowFailedCheckpoint,
    ShowProgress,
    ShowRestart,
    ShowSource,
    SlotMessageReceived,
    StopRequested,
    TimePassed,
    Transmit,
)
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobOptions, JobPlan, SourcePlan
from headgate.coordinator.job.restart_strategy import ExponentialDelay, NoRestart, RestartOptions
from headgate.coordinator.job.scheduler import SchedulerOptions
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.source_state import SourceState, encode_source_state
from headgate.errors import InternalError
from headgate.protocol import messages as msg
from headgate.protocol.lost_files import may_be_lost
from headgate.protocol.messages import CheckpointKind, ErrorReport
from headgate.protocol.session import Session
from headgate.protocol.state import FinishedSplit, ReaderState, SplitState, SubtaskState
from headgate.source.watermark import WatermarkAlignment
from tests.unit.coordinator.job.job_world import FAILED

PLAIN = ExponentialDelay(jitter_factor=0)
KILLED = ErrorReport(error_type="SparkException", message="Task 0 in stage 0.0 failed 4 times")


def options(restart: RestartOptions = PLAIN, *, interval_ms: int | None = 1_000, full: bool = False) -> JobOptions:
    return JobOptions(
        checkpoints=CheckpointOptions(interval_ms=interval_ms, first_after_restore_ms=100),
        scheduler=SchedulerOptions(restart=restart, failover_strategy="full" if full else "region"),
    )


def plan(parallelism: int, *sources: str, groups: Mapping[str, WatermarkAlignment] = MappingProxyType({})) -> JobPlan:
    return JobPlan(
        sources={
            uid: SourcePlan(name="toy", reassigns_on_recovery=False, alignment=groups.get(uid)) for uid in sources
        },
        stages=((*sources, "sink"),),
        parallelism=parallelism,
        max_parallelism=128,
        query_id="q",
        run=1,
    )


class Master:
    """A master that is checked after each event, with the slots' ends of its streams."""

    def __init__(
        self,
        parallelism: int = 1,
        *sources: str,
        restored: Manifest | None = None,
        groups: Mapping[str, WatermarkAlignment] = MappingProxyType({}),
    ) -> None:
        self.sources = sources or ("a",)
        made = plan(parallelism, *self.sources, groups=groups)
        self.machine = JobMaster(made, options(), restored, random.Random(0))
        self.parallelism = parallelism
        self.sessions: dict[int, Session] = {}  # by connection

    def __call__(self, event: Event, now_ms: int = 0) -> list[Action]:
        actions = self.machine.handle(event, now_ms)
        self.machine.check()
        for action in actions:
            if isinstance(action, Transmit) and action.connection in self.sessions:
                self.sessions[action.connection].receive(action.envelope)
        return actions

    def register(self, connection: int, slot: int = 0, attempt: int = 0, now_ms: int = 0) -> list[Action]:
        session = self.sessions[connection] = Session(run=1, slot=slot, attempt=attempt)
        return self(SlotMessageReceived(connection, session.send_uncounted(msg.RegisterSlot(host=f"h{slot}"))), now_ms)

    def hear(self, connection: int, message: msg.FromSlot, now_ms: int = 0) -> list[Action]:
        return self(SlotMessageReceived(connection, self.sessions[connection].send(message)), now_ms)

    def run(self) -> list[Action]:
        """Start, let all slots come on connections 1 and up, and all subtasks run; return the last actions."""
        self(sch.QueryStarted())
        for uid in self.sources:
            self.from_source(src.LogAppended(1), uid)
        actions: list[Action] = []
        for slot in range(self.parallelism):
            self.register(slot + 1, slot)
        for slot in range(self.parallelism):
            actions = self.start(slot + 1)
        return actions

    def start(self, connection: int, execution: int = 1, now_ms: int = 0) -> list[Action]:
        """Let a subtask register its readers and be running."""
        for uid in self.sources:
            came = msg.ReaderRegistered(stage=0, execution=execution, source=uid, host="h")
            self.hear(connection, came, now_ms)
        return self.hear(connection, msg.SubtaskRunning(stage=0, execution=execution), now_ms)

    def from_source(self, incarnation_event: src.Event, source: str = "a", now_ms: int = 0) -> list[Action]:
        return self(FromSource(source, incarnation_event), now_ms)


def messages(actions: list[Action]) -> list[tuple[int, msg.Message]]:
    """Return what is sent, by connection."""
    return [(each.connection, each.envelope.message) for each in actions if isinstance(each, Transmit)]


def kinds(actions: list[Action]) -> list[str]:
    """Return the names of actions, of what is sent and of what is asked of sources."""
    names = []
    for action in actions:
        match action:
            case Transmit(envelope=envelope):
                names.append(type(envelope.message).__name__)
            case ForSource(action=src.CallEnumerator(call=call)):
                names.append(type(call).__name__)
            case ForSource(action=order):
                names.append(type(order).__name__)
            case _:
                names.append(type(action).__name__)
    return names


def manifest(checkpoint_id: int, *states: SubtaskState) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id, epoch=1, kind=CheckpointKind.CHECKPOINT, query_id="q", run=0, created_ms=0,
        parallelism=len(states), max_parallelism=128, sources={}, stages=(("a", "sink"),), subtasks=(states,),
    )  # fmt: skip


# Slots and streams.


def test_the_start_orders_sources_and_the_job() -> None:
    master = Master(1, "a", "b")

    assert kinds(master(sch.QueryStarted())) == [
        "DropLog", "AppendLog", "StartEnumerator", "DropLog", "AppendLog", "StartEnumerator", "SubmitJob",
    ]  # fmt: skip


def test_a_slot_is_accepted_and_its_subtask_deployed_on_the_same_stream() -> None:
    master = Master()
    master(sch.QueryStarted())

    assert messages(master.register(7)) == [
        (7, msg.SlotAccepted()),
        (7, msg.Deploy(stage=0, execution=1, parallelism=1)),
    ]


def test_a_subtask_is_deployed_with_its_part_of_the_restored_checkpoint() -> None:
    state = SubtaskState(readers={"a": ReaderState(splits=(SplitState("x", b"1"),))})
    master = Master(2, restored=manifest(9, SubtaskState(), state))
    master(sch.QueryStarted())
    master.register(1, 0)

    assert messages(master.register(2, 1))[-2:] == [
        (1, msg.Deploy(stage=0, execution=1, parallelism=2, restore=SubtaskState(), checkpoint_id=9)),
        (2, msg.Deploy(stage=0, execution=1, parallelism=2, restore=state, checkpoint_id=9)),
    ]


def test_a_checkpoint_that_was_made_for_another_parallelism_is_refused() -> None:
    with pytest.raises(InternalError, match="checkpoint 9 was not made for"):
        Master(2, restored=manifest(9, SubtaskState()))


@pytest.mark.parametrize(("run", "slot"), [(2, 0), (1, 5), (1, -1)])
def test_a_slot_of_another_run_or_of_none_is_refused(run: int, slot: int) -> None:
    master = Master()
    master(sch.QueryStarted())
    envelope = Session(run=run, slot=slot, attempt=0).send_uncounted(msg.RegisterSlot(host="h"))

    actions = master(SlotMessageReceived(1, envelope))
    assert kinds(actions) == ["Log", "SlotFenced", "CloseConnection"]
    assert isinstance(actions[1], Transmit)
    assert (actions[1].envelope.run, actions[1].envelope.slot) == (run, slot)


def test_whoever_does_not_register_first_is_shut_out() -> None:
    master = Master()
    master(sch.QueryStarted())
    stranger = Session(run=1, slot=0, attempt=0)

    assert master(SlotMessageReceived(1, stranger.send(msg.SubtaskRunning(stage=0, execution=1)))) == [
        CloseConnection(1)
    ]


def test_a_newer_attempt_fences_the_older_on_its_own_connection() -> None:
    master = Master()
    master.run()

    actions = master.register(2, attempt=1, now_ms=1_000)
    reason = "its process died or Spark gave it up: attempt 1 of slot 0 is there"
    assert actions[0] == Log("warning", f"Fenced attempt 0 of slot 0: {reason}.", slot=0)
    assert kinds(actions) == [
        "Log",
        "SlotFenced",
        "CloseConnection",
        "SlotAccepted",
        "Log",
        "ShowRestart",
        "ForgetReader",
    ]
    assert [connection for connection, _ in messages(actions)] == [1, 2]


def test_messages_of_a_zombie_are_not_heard() -> None:
    master = Master()
    master.run()
    zombie = master.sessions[1]
    master.register(2, attempt=1, now_ms=1_000)

    assert master(SlotMessageReceived(1, zombie.send(msg.InputEnded(stage=0, execution=1)))) == [CloseConnection(1)]
    assert kinds(master(SlotMessageReceived(3, zombie.send_uncounted(msg.RegisterSlot(host="h"))))) == [
        "Log", "SlotFenced", "CloseConnection",
    ]  # fmt: skip


def test_what_a_broken_connection_lost_is_sent_again_on_the_next() -> None:
    master = Master()
    master(sch.QueryStarted())
    lost = master.sessions[1] = Session(run=1, slot=0, attempt=0)
    master(SlotMessageReceived(1, lost.send_uncounted(msg.RegisterSlot(host="h"))))
    master(ConnectionClosed(1), 100)

    assert messages(master.register(2, now_ms=200)) == [
        (2, msg.SlotAccepted()),
        (2, msg.Deploy(stage=0, execution=1, parallelism=1)),
    ]
    assert kinds(master(ConnectionClosed(1), 300)) == []


def test_a_second_connection_of_an_attempt_replaces_the_first() -> None:
    master = Master()
    master.run()
    session = master.sessions[1]

    actions = master(SlotMessageReceived(2, session.send_uncounted(msg.RegisterSlot(host="h"))), 100)
    assert kinds(actions)[:2] == ["CloseConnection", "SlotAccepted"]
    assert master(ConnectionClosed(1), 200) == []


def test_heartbeats_go_out_four_times_in_a_timeout_and_say_what_came() -> None:
    master = Master()
    master.run()

    assert master.machine.next_time_ms() == 100  # a checkpoint is due
    master.hear(1, msg.InputEnded(stage=0, execution=9), 2_000)
    actions = [action for action in master(TimePassed(), 2_500) if isinstance(action, Transmit)]
    assert kinds(list(actions)) == ["CoordinatorHeartbeat"]
    assert (actions[0].envelope.number, actions[0].envelope.received) == (0, 3)


def test_messages_of_an_older_execution_are_ignored() -> None:
    master = Master()
    master.run()
    progress = msg.SubtaskProgress(stage=0, execution=1, rows_in={"a": 3})
    assert master.hear(1, progress) == [ShowProgress(0, progress)]

    for message in (
        msg.SubtaskProgress(stage=0, execution=2),
        msg.SplitRequested(stage=0, execution=2, source="a", host="h"),
        msg.SubtaskRunning(stage=0, execution=2),
        msg.InputEnded(stage=0, execution=2),
        msg.SubtaskFailed(stage=0, execution=2, error=FAILED),
    ):
        assert master.hear(1, message) == []


# Sources and checkpoints.


def test_a_pull_goes_to_the_enumerator_and_its_answer_to_the_reader() -> None:
    master = Master()
    master.run()
    asked = msg.SplitRequested(stage=0, execution=1, source="a", host="h0")
    assert kinds(master.hear(1, asked)) == ["HandleSplitRequest"]

    logged = master.from_source(src.SplitsAssigned(1, {0: (SplitState("x", b"1"),)}))
    assert kinds(logged) == ["AppendLog"]
    assert isinstance(logged[0], ForSource) and isinstance(logged[0].action, src.AppendLog)
    given = msg.AssignSplits(stage=0, execution=1, source="a", number=1, splits=(SplitState("x", b"1"),))
    assert messages(master.from_source(src.LogAppended(logged[0].action.number))) == [(1, given)]


def checkpoint(master: Master, checkpoint_id: int, now_ms: int) -> list[Action]:
    """Take a checkpoint up to its manifest; return the actions of the last acknowledgement."""
    assert set(kinds(master(TimePassed(), now_ms))) >= {"SnapshotEnumerator"}
    for uid in master.sources:
        for action in master.from_source(src.EnumeratorSnapshotted(1, checkpoint_id, b"s"), uid, now_ms):
            if isinstance(action, ForSource) and isinstance(action.action, src.AppendLog):
                master.from_source(src.LogAppended(action.action.number), uid, now_ms)
    actions: list[Action] = []
    for connection in range(1, master.parallelism + 1):
        acknowledged = msg.CheckpointAcknowledged(
            stage=0, execution=1, checkpoint_id=checkpoint_id, state=SubtaskState()
        )
        actions = master.hear(connection, acknowledged, now_ms)
    return actions


def test_a_checkpoint_goes_from_the_sources_to_the_barriers_to_the_manifest_to_the_commit() -> None:
    master = Master(2, "a", "b")
    master.run()

    assert kinds(master(TimePassed(), 100)) == ["SnapshotEnumerator", "SnapshotEnumerator"]
    assert "TriggerCheckpoint" not in kinds(master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), "a", 110))
    barriers = master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), "b", 120)
    barrier = msg.TriggerCheckpoint(stage=0, execution=1, checkpoint_id=1)
    assert messages(barriers) == [(1, barrier), (2, barrier)]
    acknowledged = msg.CheckpointAcknowledged(stage=0, execution=1, checkpoint_id=1, state=SubtaskState())
    assert kinds(master.hear(1, acknowledged, 130)) == []
    assert kinds(master.hear(2, acknowledged, 140)) == ["WriteManifest"]
    assert kinds(master(cp.ManifestWritten(1, 77), 150)) == [
        "CheckpointCompleted", "CheckpointCompleted", "DropLog", "NotifyEnumerator", "DropLog", "NotifyEnumerator",
        "ShowCheckpoint", "Commit",
    ]  # fmt: skip
    assert master(cp.Committed(1, {}), 160) == []
    status = master.machine.status()
    assert (status.state, status.completed_checkpoint, status.epoch) == ("running", 1, 1)


def test_an_assignment_made_after_the_snapshot_follows_the_barrier() -> None:
    master = Master()
    master.run()
    master(TimePassed(), 100)
    master.from_source(src.SplitsAssigned(1, {0: (SplitState("x", b"1"),)}), now_ms=110)
    master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), now_ms=110)
    master.from_source(src.SplitsAssigned(1, {0: (SplitState("y", b"1"),)}), now_ms=110)

    assert kinds(master.from_source(src.LogAppended(2), now_ms=120)) == [
        "AppendLog", "AssignSplits", "TriggerCheckpoint",
    ]  # fmt: skip
    assert kinds(master.from_source(src.LogAppended(4), now_ms=130)) == ["AssignSplits"]


def test_when_one_source_cannot_take_part_the_others_hear_that_the_checkpoint_is_put_off() -> None:
    master = Master(1, "a", "b")
    master.run()
    master.from_source(src.EnumeratorFailed(1, FAILED), "a", 50)

    actions = master(TimePassed(), 100)
    assert "SnapshotEnumerator" in kinds(actions) and messages(actions) == []  # no barrier was out
    (logged,) = (action for action in actions if isinstance(action, Log))
    assert (logged.level, logged.text[:24]) == ("info", "Checkpoint 1 is put off:")
    assert master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), "b", 110) == []
    assert kinds(master(TimePassed(), 300)) == ["Log", "SnapshotEnumerator"]  # they are asked anew


def test_a_checkpoint_that_the_end_of_the_query_cuts_off_is_no_warning() -> None:
    """Whoever stops a query has nothing to look into."""
    master = Master()
    master.run()
    master(TimePassed(), 100)
    master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), now_ms=110)
    logged = [action for action in master(StopRequested(), 120) if isinstance(action, Log)]
    assert [(each.level, each.text[:24]) for each in logged] == [("info", "Checkpoint 1 is given up")]


def test_what_the_driver_reports_of_a_failed_commit_ends_the_query_if_only_the_user_can_help() -> None:
    master = Master(1, restored=manifest(9, SubtaskState()))
    master(sch.QueryStarted())
    refused = ErrorReport(error_type="SinkError", message="No such table.", traceback="...", final=True)

    actions = master(cp.CommitFailed(1, "SinkError: No such table.", refused))
    message = "epoch 1 could not be committed: SinkError: No such table."
    assert sch.FailQuery(msgspec.structs.replace(refused, message=message)) in actions


def test_what_only_the_user_can_mend_in_an_enumerator_ends_the_query_the_first_time() -> None:
    master = Master(1)
    master(sch.QueryStarted())
    mistyped = ErrorReport(error_type="OptionError", message="ridez does not exist", final=True)

    actions = master.from_source(src.EnumeratorFailed(1, mistyped), now_ms=5)
    assert sch.FailQuery(mistyped) in actions
    assert not [
        action for action in actions if isinstance(action, ForSource) and "Start" in type(action.action).__name__
    ]
    assert master.machine.status().state in ("failing", "failed")


def test_a_call_of_an_enumerator_that_takes_long_is_shown_and_logged() -> None:
    master = Master(1)
    master(sch.QueryStarted())
    busy = src.EnumeratorBusy(1, (src.BusyCall("add_reader", 12_000),))
    master.from_source(busy, now_ms=12_000)
    assert "add_reader" in master.machine.status().sources["a"].troubles[0]
    shown = master.from_source(src.EnumeratorBusy(1, ()), now_ms=13_000)
    assert shown == [ShowSource("a", ())]


def test_what_is_deployed_after_the_last_checkpoint_reads_nothing() -> None:
    master = Master()
    master.run()
    master(cp.CheckpointRequested(1, CheckpointKind.SUSPEND), 50)
    master(TimePassed(), 50)
    logged = master.from_source(src.EnumeratorSnapshotted(1, 1, encode_source_state(SourceState(b"s"))), now_ms=60)
    assert isinstance(logged[0], ForSource) and isinstance(logged[0].action, src.AppendLog)
    master.from_source(src.LogAppended(logged[0].action.number), now_ms=60)
    master.hear(1, msg.CheckpointAcknowledged(stage=0, execution=1, checkpoint_id=1, state=SubtaskState()), 70)
    master(cp.ManifestWritten(1, 10), 80)

    master(cp.CommitFailed(1, "broker away"), 90)
    (deploy,) = (message for _, message in messages(master(TimePassed(), 5_000)) if isinstance(message, msg.Deploy))
    assert (deploy.execution, deploy.checkpoint_id, deploy.suspended) == (2, 1, True)


def test_a_failure_aborts_the_checkpoint_before_splits_go_back() -> None:
    master = Master(2)
    master.run()
    master(TimePassed(), 100)

    actions = master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 200)
    assert kinds(actions) == [
        "Log", "ShowRestart", "Log", "ShowFailedCheckpoint", "CheckpointAborted", "ForgetReader",
    ]  # fmt: skip
    assert messages(actions) == [(1, msg.CheckpointAborted(stage=0, execution=1, checkpoint_id=1))]
    [failed] = [each for each in actions if isinstance(each, ShowFailedCheckpoint)]
    assert (failed.checkpoint_id, failed.duration_ms) == (1, 100)


def test_what_failed_and_where_is_shown() -> None:
    master = Master(3)
    master.run()
    error = msgspec.structs.replace(FAILED, facts={"stage": 0, "subtask": 1})
    actions = master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=error), 200)
    actions += master.register(4, attempt=1, now_ms=1_000)
    shown = [each for each in actions if isinstance(each, ShowRestart)]
    assert [(each.kind, each.stage, each.subtask, each.slot) for each in shown] == [
        ("subtask", 0, 1, 1), ("slot", None, None, 0),
    ]  # fmt: skip
    assert [each.restarted for each in shown] == [(1,), (0,)]


def test_a_failed_subtask_is_deployed_from_the_last_checkpoint_when_all_sources_have_its_splits() -> None:
    master = Master(2, "a", "b")
    master.run()
    checkpoint(master, 1, 100)
    master(cp.ManifestWritten(1, 1), 150)
    master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 200)

    for uid in ("a", "b"):
        assert "AddSplitsBack" in kinds(master.from_source(src.ReaderForgotten(1, 1), uid, 210))
    assert kinds(master(TimePassed(), 300)) == []
    assert "Deploy" not in kinds(master.from_source(src.SplitsTakenBack(1, 1), "a", 310))
    deploy = msg.Deploy(stage=0, execution=2, parallelism=2, restore=SubtaskState(), checkpoint_id=1)
    assert messages(master.from_source(src.SplitsTakenBack(1, 1), "b", 320)) == [(2, deploy)]
    assert [each.execution for each in master.machine.status().subtasks] == [1, 2]


def test_a_source_without_a_log_restores_everything() -> None:
    master = Master(2)
    master.run()
    master.from_source(src.EnumeratorFailed(1, FAILED), now_ms=200)

    actions = master.from_source(src.LogLoaded(None, "it is gone", 2), now_ms=210)
    assert kinds(actions) == ["StopEnumerator", "Log", "ShowRestart", "CancelSubtask", "CancelSubtask"]
    assert kinds(master(TimePassed(), 310))[-5:] == [
        "DropLog", "AppendLog", "StartEnumerator", "Deploy", "Deploy",
    ]  # fmt: skip
    assert [each.execution for each in master.machine.status().subtasks] == [2, 2]


def test_a_global_failover_voids_a_reset_that_was_under_way() -> None:
    master = Master(2)
    master.run()
    master.hear(2, msg.SubtaskFailed(stage=0, execution=1, error=FAILED), 200)
    master.from_source(src.EnumeratorFailed(1, FAILED), now_ms=200)
    master.from_source(src.LogLoaded(None, "it is gone", 2), now_ms=210)

    assert kinds(master(TimePassed(), 300))[-2:] == ["Deploy", "Deploy"]


def test_readers_ends_in_the_restored_checkpoint_are_reported_to_the_enumerator_again() -> None:
    ended = SubtaskState(readers={"a": ReaderState(finished=(FinishedSplit("x", 4),))})
    master = Master(restored=manifest(9, ended))

    calls = [each.action for each in master(sch.QueryStarted()) if isinstance(each, ForSource)]
    assert src.CallEnumerator(1, src.NotifySplitsFinished(("x",))) in calls


# The end.


def test_stop_lets_slots_end_and_sources_close_and_answers_whoever_waits() -> None:
    master = Master(2)
    master.run()
    master(cp.CheckpointRequested(5, CheckpointKind.CHECKPOINT), 50)

    actions = master(StopRequested(), 60)
    assert kinds(actions) == ["ShutDownSlot", "ShutDownSlot", "StopEnumerator"]
    assert master(cp.CheckpointRequested(6, CheckpointKind.CHECKPOINT), 70) == [
        cp.AnswerRequest(6, None, "the query ends")
    ]
    assert master(sch.JobEnded(0, None), 80)[-2:] == [cp.AnswerRequest(5, None, "the query ended"), sch.QueryOver()]
    assert master.machine.next_time_ms() is None
    assert master.machine.status().state == "ended"


def test_when_the_query_is_over_nothing_is_done_any_more() -> None:
    master = Master()
    master.run()
    zombie = master.sessions[1]
    master(StopRequested(), 60)
    master(sch.JobEnded(0, None), 80)

    register = zombie.send_uncounted(msg.RegisterSlot(host="h"))
    assert master(SlotMessageReceived(2, register), 90) == [CloseConnection(2)]
    assert master(cp.CheckpointRequested(7, CheckpointKind.CHECKPOINT), 90) == [
        cp.AnswerRequest(7, None, "the query ended")
    ]
    for late in (sch.JobEnded(0, None), StopRequested(), TimePassed(), cp.CommitFailed(1, "late")):
        assert master(late, 10**6) == []


def test_the_end_of_a_job_is_heard_once() -> None:
    master = Master()
    master.run()

    assert "ForgetReader" in kinds(master(sch.JobEnded(0, KILLED), 100))
    assert master(sch.JobEnded(0, KILLED), 110) == []
    master(TimePassed(), 200)
    assert master(sch.JobEnded(0, KILLED), 210) == []


def test_a_slot_that_comes_late_is_shut_down_once() -> None:
    master = Master()
    master.run()
    master(StopRequested(), 60)

    assert kinds(master.register(2, attempt=1, now_ms=70))[-2:] == ["SlotAccepted", "ShutDownSlot"]


def test_when_the_strategy_gives_up_the_query_fails_with_the_cause() -> None:
    machine = JobMaster(plan(1, "a"), options(NoRestart()), None, random.Random(0))
    machine.handle(sch.QueryStarted(), 0)

    actions = machine.handle(sch.JobEnded(0, KILLED), 10)
    assert [action.error for action in actions if isinstance(action, sch.FailQuery)] == [KILLED]
    assert actions[-1] == sch.QueryOver()


def test_what_is_gone_of_a_checkpoint_is_logged_and_the_next_barriers_carry_it() -> None:
    """A message of its own would be slower than a barrier that comes through a channel."""
    master = Master(2)
    master.run()
    assert master(cp.FilesLooked(0), 70) == []
    (warning,) = master(cp.FilesLooked(0, ("shared/window/a",)), 80)
    assert isinstance(warning, Log) and warning.level == "warning"
    assert "gone from the checkpoint location: shared/window/a." in warning.text
    master(TimePassed(), 110)
    barriers = messages(master.from_source(src.EnumeratorSnapshotted(1, 1, b"s"), now_ms=120))
    assert [connection for connection, _ in barriers] == [1, 2]
    for _, barrier in barriers:
        assert isinstance(barrier, msg.TriggerCheckpoint) and may_be_lost("shared/window/a", barrier.lost)
        assert not may_be_lost("shared/window/b", barrier.lost)
    (back,) = master(cp.FilesLooked(0), 130)
    assert isinstance(back, Log) and back.level == "info"
    assert "are there again, or checkpoint 0 names them no longer: shared/window/a." in back.text
