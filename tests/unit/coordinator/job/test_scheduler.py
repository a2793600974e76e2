"""Slots and subtasks of a query: deployed, restarted alone or together, and given up; then all short histories."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from headgate.coordinator.job.restart_strategy import ExponentialDelay, FixedDelay, NoRestart, RestartOptions
from headgate.coordinator.job.scheduler import Scheduler, SchedulerOptions
from headgate.coordinator.job.scheduler_events import (
    Action,
    AnnounceInputEnded,
    AnnounceNotRunning,
    AnnounceRunning,
    CancelExecution,
    CancelJob,
    DeploySubtask,
    Event,
    FailQuery,
    GlobalFailure,
    JobEnded,
    LinkBroke,
    QueryEnding,
    QueryOver,
    QueryStarted,
    ReleaseSlots,
    ReportFailure,
    ReportMissingSlots,
    ResetReaders,
    RestoreSources,
    SchedulerTimePassed,
    SourcesRestored,
    SubmitJob,
    SubtaskBroke,
    SubtaskInputEnded,
    SubtaskReset,
    SubtaskStarted,
)
from headgate.coordinator.slots.slots import (
    ATTEMPT_BITS,
    AcceptSlot,
    FenceSlot,
    SlotDisconnected,
    SlotHeard,
    SlotRegistered,
)
from headgate.errors import InvalidTransitionError
from headgate.protocol.messages import ErrorReport, SubtaskId
from tests.machines import Later, explore

ERROR = ErrorReport(error_type="UserFunctionError", message="it divided by zero")
OTHER = ErrorReport(error_type="UserFunctionError", message="it divided by nothing")
KILLED = ErrorReport(error_type="SparkException", message="Task 0 in stage 0.0 failed 4 times")
PLAIN = ExponentialDelay(jitter_factor=0)


class Machine:
    """A scheduler that is checked after each event."""

    def __init__(
        self,
        parallelism: int = 2,
        restart: RestartOptions = PLAIN,
        *,
        full: bool = False,
        restored: bool = False,
    ) -> None:
        options = SchedulerOptions(
            failover_strategy="full" if full else "region", restart=restart, registration_timeout_ms=12_000
        )
        self.machine = Scheduler(1, parallelism, options, restored=restored, random=random.Random(0))
        self.parallelism = parallelism

    def __call__(self, event: Event, now_ms: int = 0) -> list[Action]:
        actions = self.machine.handle(event, now_ms)
        self.machine.check()
        return actions

    def run(self, now_ms: int = 0) -> list[Action]:
        """Start, let all slots come and all subtasks run; return the last actions."""
        self(QueryStarted(), now_ms)
        self(SourcesRestored(), now_ms)
        actions: list[Action] = []
        for slot in range(self.parallelism):
            self(SlotRegistered(slot, 0, {}), now_ms)
        for slot in range(self.parallelism):
            actions = self(started(slot), now_ms)
        return actions


def sub(number: int) -> SubtaskId:
    """Return a subtask of the only stage."""
    return SubtaskId(0, number)


def started(number: int, execution: int = 1) -> SubtaskStarted:
    """Return that a subtask runs."""
    return SubtaskStarted(sub(number), execution)


def broke(number: int, execution: int = 1, error: ErrorReport = ERROR) -> SubtaskBroke:
    """Return that a subtask failed."""
    return SubtaskBroke(sub(number), execution, error)


def kinds(actions: list[Action]) -> list[str]:
    """Return the names of actions."""
    return [type(action).__name__ for action in actions]


def test_the_job_is_submitted_and_the_sources_started_at_once() -> None:
    machine = Machine()
    assert machine.machine.state == "created"

    assert machine(QueryStarted()) == [RestoreSources(), SubmitJob(0)]
    assert machine.machine.state == "starting"


def test_nothing_is_deployed_before_all_slots_have_come() -> None:
    machine = Machine()
    machine(QueryStarted())
    machine(SourcesRestored())
    assert machine(SlotRegistered(0, 0, {})) == [AcceptSlot(0, 0)]

    assert machine(SlotRegistered(1, 0, {})) == [
        AcceptSlot(1, 0),
        DeploySubtask(sub(0), 1),
        DeploySubtask(sub(1), 1),
    ]


def test_nothing_is_deployed_before_the_sources_are_started() -> None:
    machine = Machine(parallelism=1)
    machine(QueryStarted())
    assert machine(SlotRegistered(0, 0, {})) == [AcceptSlot(0, 0)]

    assert machine(SourcesRestored()) == [DeploySubtask(sub(0), 1)]


@pytest.mark.parametrize("restored", [False, True])
def test_running_is_announced_when_the_last_subtask_runs(restored: bool) -> None:
    machine = Machine(restored=restored)

    assert machine.run() == [AnnounceRunning({sub(0): 1, sub(1): 1}, restored)]
    assert machine.machine.state == "running"


def test_a_failed_subtask_restarts_alone_and_the_others_keep_their_execution() -> None:
    machine = Machine(parallelism=3)
    machine.run()

    assert machine(broke(1), 1_000) == [
        ReportFailure(ERROR, (1,), 100),
        AnnounceNotRunning(ERROR.message),
        ResetReaders(1),
    ]
    assert machine(SubtaskReset(1), 1_010) == []
    assert machine.machine.next_time_ms() == 1_100
    assert machine(SchedulerTimePassed(), 1_100) == [DeploySubtask(sub(1), 2)]
    assert machine(started(1, 2), 1_300) == [AnnounceRunning({sub(0): 1, sub(1): 2, sub(2): 1}, True)]


def test_a_subtask_is_not_deployed_before_its_sources_have_its_splits_back() -> None:
    machine = Machine()
    machine.run()
    machine(broke(0), 1_000)

    assert machine(SchedulerTimePassed(), 5_000) == []
    assert machine(SubtaskReset(0), 5_001) == [DeploySubtask(sub(0), 2)]


def test_under_full_everything_restarts() -> None:
    machine = Machine(full=True)
    machine.run()

    assert machine(broke(0), 1_000) == [
        ReportFailure(ERROR, (0, 1), 100),
        AnnounceNotRunning(ERROR.message),
        CancelExecution(sub(1), 1),
    ]
    assert machine(SchedulerTimePassed(), 1_100) == [RestoreSources()]
    assert machine(SourcesRestored(), 1_100) == [DeploySubtask(sub(0), 2), DeploySubtask(sub(1), 2)]


def test_a_global_failure_restores_everything_and_voids_what_was_under_way() -> None:
    machine = Machine()
    machine.run()
    machine(broke(0), 1_000)

    assert machine(GlobalFailure(OTHER), 1_050) == [ReportFailure(OTHER, (0, 1), 50), CancelExecution(sub(1), 1)]
    assert machine(GlobalFailure(OTHER), 1_060) == []
    assert machine(SubtaskReset(0), 1_070) == []
    assert machine(SchedulerTimePassed(), 1_100) == [RestoreSources()]
    assert kinds(machine(SourcesRestored(), 1_110)) == ["DeploySubtask", "DeploySubtask"]


def test_a_source_that_cannot_be_restored_either_is_tried_again_later() -> None:
    machine = Machine()
    machine.run()
    machine(GlobalFailure(ERROR), 1_000)
    assert machine(SchedulerTimePassed(), 1_100) == [RestoreSources()]

    assert machine(GlobalFailure(ERROR), 1_110) == [ReportFailure(ERROR, (0, 1), 200)]
    assert machine(SchedulerTimePassed(), 1_310) == [RestoreSources()]


def test_a_killed_worker_is_a_failure_as_soon_as_its_next_attempt_comes() -> None:
    machine = Machine()
    machine.run()
    assert machine(SlotDisconnected(1, 0), 1_000) == []

    actions = machine(SlotRegistered(1, 1, {}), 1_400)
    assert kinds(actions) == ["FenceSlot", "AcceptSlot", "ReportFailure", "AnnounceNotRunning", "ResetReaders"]
    machine(SubtaskReset(1), 1_401)
    assert machine(SchedulerTimePassed(), 1_500) == [DeploySubtask(sub(1), 2)]


@pytest.mark.parametrize("stream_first", [False, True])
def test_a_slot_that_neither_the_driver_nor_another_slot_reaches_is_a_failure_at_once(stream_first: bool) -> None:
    """The others let go while Spark starts a new process, and are there when it comes."""
    machine = Machine(3, full=True)
    machine.run()
    ends = [SlotDisconnected(1, 0), LinkBroke(sub(0), 1, peer=1)]
    first, second = ends if stream_first else reversed(ends)
    assert machine(first, 1_000) == []

    report, *actions = machine(second, 1_001)
    assert isinstance(report, ReportFailure) and "slot 1" in report.error.message and report.restarted == (0, 1, 2)
    assert kinds(actions) == ["AnnounceNotRunning", "CancelExecution", "CancelExecution", "CancelExecution"]
    assert machine(SchedulerTimePassed(), 1_101) == [RestoreSources()]
    assert machine(SourcesRestored(), 1_102) == [DeploySubtask(sub(0), 2), DeploySubtask(sub(2), 2)]
    assert kinds(machine(SlotRegistered(1, 1, {}), 1_400)) == ["FenceSlot", "AcceptSlot", "DeploySubtask"]


def test_a_slot_that_was_taken_for_dead_and_comes_back_gets_its_subtask_anew() -> None:
    machine = Machine(full=True)
    machine.run()
    machine(SlotDisconnected(1, 0), 1_000)
    assert CancelExecution(sub(1), 1) in machine(LinkBroke(sub(0), 1, peer=1), 1_001)
    machine(SchedulerTimePassed(), 1_101)
    machine(SourcesRestored(), 1_102)
    assert machine(SlotRegistered(1, 0, {0: 1}), 1_400) == [AcceptSlot(1, 0), DeploySubtask(sub(1), 2)]


def test_one_broken_link_alone_and_one_of_an_earlier_execution_take_no_slot_for_dead() -> None:
    machine = Machine(full=True)
    machine.run()
    assert machine(LinkBroke(sub(0), 1, peer=1), 1_000) == []  # the peer's stream is open
    machine(broke(0, 1), 1_001)
    machine(SchedulerTimePassed(), 1_101)
    machine(SourcesRestored(), 1_102)
    assert machine(SlotDisconnected(1, 0), 2_000) == []  # what runs now has its connection


def test_a_slot_that_comes_back_keeps_its_subtask() -> None:
    machine = Machine()
    machine.run()
    machine(SlotDisconnected(1, 0), 1_000)

    assert machine(SlotRegistered(1, 0, {0: 1}), 3_000) == [AcceptSlot(1, 0)]
    assert machine.machine.execution(sub(1)) == 1


def test_a_silent_slot_costs_the_job_at_once_for_spark_takes_it_for_well() -> None:
    """A host that is cut off: Spark's own time-out is two minutes, and cores are free elsewhere."""
    machine = Machine()
    machine.run()
    machine(SlotHeard(0, 0), 9_000)
    lost, again, *failed = machine(SchedulerTimePassed(), 10_000)
    assert isinstance(lost, FenceSlot) and lost.slot == 1
    assert again == FenceSlot(0, 0, "the job is submitted again")
    assert kinds(failed) == ["CancelJob", "ReportFailure", "AnnounceNotRunning", "ResetReaders", "ResetReaders"]

    machine(SubtaskReset(0), 10_010)
    machine(SubtaskReset(1), 10_010)
    assert machine(JobEnded(0, KILLED), 10_020) == [SubmitJob(1)]
    first = 1 << ATTEMPT_BITS
    assert machine(SlotRegistered(1, first, {}), 10_900) == [AcceptSlot(1, first), DeploySubtask(sub(1), 2)]
    assert kinds(machine(SlotRegistered(1, 0, {}), 60_000)) == ["FenceSlot"]  # it is back, and late


def test_slots_that_fall_silent_again_and_again_end_the_query() -> None:
    machine = Machine(parallelism=1, restart=FixedDelay(attempts=1, delay_ms=0))
    machine.run()
    machine(SchedulerTimePassed(), 10_000)
    machine(SubtaskReset(0), 10_000)
    machine(JobEnded(0, KILLED), 10_000)
    machine(SlotRegistered(0, 1 << ATTEMPT_BITS, {}), 10_000)

    machine(SchedulerTimePassed(), 15_000)
    assert machine(SchedulerTimePassed(), 20_000) == [], "its subtasks have not begun"
    assert kinds(machine(SchedulerTimePassed(), 22_000)) == ["FenceSlot", "FailQuery", "ReleaseSlots", "CancelJob"]


def test_a_lost_executor_is_waited_for_with_a_warning() -> None:
    machine = Machine()
    machine.run()
    machine(SlotDisconnected(1, 0), 1_000)
    machine(SlotHeard(0, 0), 10_000)
    machine(SchedulerTimePassed(), 11_000)
    machine(SlotHeard(0, 0), 20_000)

    assert machine(SchedulerTimePassed(), 23_000) == [ReportMissingSlots(2, (1,))]
    assert machine(SlotRegistered(1, 1, {}), 24_000)[0] == AcceptSlot(1, 1)


def test_too_few_cores_are_an_error_with_both_numbers() -> None:
    machine = Machine(parallelism=4)
    machine(QueryStarted())
    machine(SourcesRestored())
    machine(SlotRegistered(0, 0, {}), 300)
    machine(SlotHeard(0, 0), 11_000)

    actions = machine(SchedulerTimePassed(), 12_000)
    assert kinds(actions) == ["FailQuery", "ReleaseSlots", "CancelJob"]
    assert isinstance(actions[0], FailQuery)
    assert "needs 4 slots" in actions[0].error.message
    assert "only 1 started" in actions[0].error.message
    assert machine.machine.state == "failing"
    assert kinds(machine(JobEnded(0, KILLED), 12_100)) == ["FenceSlot", "QueryOver"]
    assert machine.machine.state == "failed"


def test_five_kills_of_one_slot_are_survived_though_spark_gives_up_at_the_fourth() -> None:
    machine = Machine()
    machine.run()

    def restart(now_ms: int, attempt: int, execution: int) -> None:
        assert machine(SlotRegistered(1, attempt, {}), now_ms)[-1] == ResetReaders(1)
        machine(SubtaskReset(1), now_ms + 10)
        assert machine(SchedulerTimePassed(), now_ms + 100) == [DeploySubtask(sub(1), execution)]
        assert kinds(machine(started(1, execution), now_ms + 200)) == ["AnnounceRunning"]

    for kill in (1, 2, 3):
        machine(SlotHeard(0, 0), kill * 15_000)
        machine(SlotDisconnected(1, kill - 1), kill * 15_000)
        restart(kill * 15_000 + 400, attempt=kill, execution=kill + 1)
    machine(SlotDisconnected(1, 3), 60_000)
    assert kinds(machine(JobEnded(0, KILLED), 60_300)) == [
        "FenceSlot", "FenceSlot", "ReportFailure", "AnnounceNotRunning", "ResetReaders", "ResetReaders",
    ]  # fmt: skip
    machine(SubtaskReset(0), 60_310)
    machine(SubtaskReset(1), 60_310)
    assert machine(SchedulerTimePassed(), 60_400) == [SubmitJob(1)]

    first = 1 << ATTEMPT_BITS
    assert kinds(machine(SlotRegistered(1, 4, {}), 60_500)) == ["FenceSlot"]
    assert machine(SlotRegistered(0, first, {}), 60_600) == [AcceptSlot(0, first), DeploySubtask(sub(0), 2)]
    assert machine(SlotRegistered(1, first, {}), 60_600) == [AcceptSlot(1, first), DeploySubtask(sub(1), 5)]
    machine(started(0, 2), 60_700)
    assert machine(started(1, 5), 60_700) == [AnnounceRunning({sub(0): 2, sub(1): 5}, True)]
    machine(SlotHeard(0, first), 75_000)
    machine(SlotDisconnected(1, first), 75_000)
    restart(75_400, attempt=first + 1, execution=6)


def test_a_kill_that_ends_the_job_too_counts_once() -> None:
    machine = Machine(restart=ExponentialDelay(jitter_factor=0, attempts=1))
    machine.run()
    machine(SlotRegistered(1, 1, {}), 1_000)

    actions = machine(JobEnded(0, KILLED), 1_040)
    assert ReportFailure(KILLED, (0, 1), 60) in actions
    assert machine(SchedulerTimePassed(), 1_100) == [SubmitJob(1)]


def restarts(machine: Machine, number: int, failed_ms: int, execution: int, started_ms: int) -> list[Action]:
    """Let a subtask fail, and be restarted if it is; return the actions of the failure."""
    actions = machine(broke(number, execution), failed_ms)
    if "FailQuery" not in kinds(actions):
        machine(SlotHeard(number, 0), failed_ms)
        machine(SubtaskReset(number), failed_ms)
        machine(SchedulerTimePassed(), failed_ms + 1_000)
        machine(started(number, execution + 1), started_ms)
    return actions


def test_a_start_that_takes_longer_than_a_query_must_run_well_is_no_time_without_failures() -> None:
    """A function that loads a model, and then fails on its first row."""
    machine = Machine(parallelism=1, restart=ExponentialDelay(jitter_factor=0, attempts=2))
    machine.run()
    for execution in (1, 2):
        failed_ms = execution * 15_000
        assert "FailQuery" not in kinds(restarts(machine, 0, failed_ms, execution, failed_ms + 14_900))
    assert "FailQuery" in kinds(restarts(machine, 0, 45_000, 3, 45_000))


def test_a_slot_that_does_not_come_back_does_not_add_up_the_failures_of_others() -> None:
    """They ran well in between, though not all of the query did."""
    machine = Machine(restart=ExponentialDelay(jitter_factor=0, attempts=2))
    machine.run()
    machine(SlotDisconnected(1, 0), 1_000)
    machine(SlotHeard(0, 0), 11_000)
    assert "ReportFailure" in kinds(machine(SchedulerTimePassed(), 11_000))
    machine(SubtaskReset(1), 11_000)
    for execution in range(1, 6):
        failed_ms = execution * 30_000
        assert "FailQuery" not in kinds(restarts(machine, 0, failed_ms, execution, failed_ms + 1_000))


def test_a_job_that_ends_without_an_error_is_submitted_again() -> None:
    machine = Machine()
    machine.run()

    assert "ReportFailure" in kinds(machine(JobEnded(0, None), 1_000))
    assert machine(SchedulerTimePassed(), 1_100) == [SubmitJob(1)]


@pytest.mark.parametrize("event", [JobEnded(0, KILLED), broke(0, execution=1), started(0, execution=1)])
def test_what_is_over_is_not_reported_here(event: Event) -> None:
    machine = Machine()
    machine.run()
    machine(JobEnded(0, KILLED), 1_000)
    machine(SubtaskReset(0), 1_000)
    machine(SchedulerTimePassed(), 1_100)
    machine(SlotRegistered(0, 1 << ATTEMPT_BITS, {}), 1_200)

    with pytest.raises(InvalidTransitionError):
        machine(event, 1_300)


GIVEN_UP = (
    "The query is not restarted: it has failed 2 times since it began, and restart-strategy.attempts is 1. "
    "When you start it again it goes on from its last checkpoint."
)


def test_when_restarting_is_in_vain_the_query_fails_with_the_first_error() -> None:
    machine = Machine(restart=FixedDelay(attempts=1, delay_ms=100))
    machine.run()
    machine(broke(0), 1_000)
    machine(SubtaskReset(0), 1_000)
    machine(SchedulerTimePassed(), 1_100)

    assert machine(broke(0, 2, OTHER), 1_200) == [FailQuery(ERROR, GIVEN_UP), ReleaseSlots(), CancelJob(0)]


def test_an_error_of_a_subtask_says_more_than_a_lost_slot() -> None:
    machine = Machine(restart=FixedDelay(attempts=1, delay_ms=100))
    machine.run()
    machine(SlotRegistered(0, 1, {}), 1_000)
    machine(SubtaskReset(0), 1_000)
    machine(SchedulerTimePassed(), 1_100)

    assert FailQuery(ERROR, GIVEN_UP) in machine(broke(0, 2), 1_200)


def test_without_restarts_the_first_failure_ends_the_query() -> None:
    machine = Machine(restart=NoRestart())
    machine.run()

    assert kinds(machine(broke(0), 1_000)) == ["AnnounceNotRunning", "FailQuery", "ReleaseSlots", "CancelJob"]


def test_the_end_of_all_input_is_announced_once_and_again_after_a_restart() -> None:
    machine = Machine()
    machine.run()
    assert machine(SubtaskInputEnded(sub(0), 1)) == []
    assert machine(SubtaskInputEnded(sub(1), 1)) == [AnnounceInputEnded()]

    machine(broke(1), 1_000)
    machine(SubtaskReset(1), 1_000)
    machine(SchedulerTimePassed(), 1_100)
    assert kinds(machine(started(1, 2), 1_200)) == ["AnnounceRunning"]
    assert machine(SubtaskInputEnded(sub(1), 2), 1_300) == [AnnounceInputEnded()]


def test_the_query_ends_when_its_tasks_have_ended() -> None:
    machine = Machine()
    machine.run()

    assert machine(QueryEnding(), 1_000) == [AnnounceNotRunning("the query ends"), ReleaseSlots()]
    assert machine.machine.state == "ending"
    assert QueryOver() in machine(JobEnded(0, None), 1_100)
    assert machine.machine.state == "ended"
    assert machine.machine.next_time_ms() is None


def test_tasks_that_do_not_end_are_cancelled_and_in_the_end_left_alone() -> None:
    machine = Machine()
    machine.run()
    machine(QueryEnding(), 1_000)

    assert machine(SchedulerTimePassed(), 10_999) == []
    assert machine(SchedulerTimePassed(), 11_000) == [CancelJob(0)]
    assert machine(SchedulerTimePassed(), 20_999) == []
    assert machine(SchedulerTimePassed(), 21_000)[-1] == QueryOver()


def test_a_slot_that_comes_when_the_query_ends_is_shut_down() -> None:
    machine = Machine()
    machine.run()
    machine(QueryEnding(), 1_000)

    assert kinds(machine(SlotRegistered(1, 1, {}), 1_100)) == ["FenceSlot", "AcceptSlot", "ReleaseSlots"]
    assert kinds(machine(SlotRegistered(1, 0, {}), 1_200)) == ["FenceSlot"]


def test_an_impossible_event_is_an_error_with_the_history() -> None:
    machine = Machine()
    with pytest.raises(InvalidTransitionError, match="created") as caught:
        machine(SourcesRestored())
    assert caught.value.history == ()


def test_the_tables_are_what_the_machine_does() -> None:
    options = SchedulerOptions(
        restart=FixedDelay(attempts=1, delay_ms=100),
        heartbeat_timeout_ms=200,
        registration_timeout_ms=100,
        release_timeout_ms=100,
    )

    def events(machine: Scheduler) -> Iterator[Event | Later]:
        if machine.state == "created":
            yield QueryStarted()
            return
        phase, subtask = machine.state_of(QueryEnding()), machine.subtasks()[0]
        if phase == "over":
            return
        attempt, first = machine.attempt(0), machine._submission << ATTEMPT_BITS
        early = subtask.execution == 0  # some events only here: they would only multiply the states
        yield Later(SchedulerTimePassed(), 100)
        if phase in ("ending", "resubmitting"):
            yield Later(SchedulerTimePassed(), 50)
        yield SubtaskStarted(sub(0), subtask.execution)
        yield SubtaskInputEnded(sub(0), subtask.execution)
        yield broke(0, subtask.execution)
        if subtask.execution < 3:
            yield SubtaskBroke(sub(0), subtask.execution, ERROR, peer=0)
            yield LinkBroke(sub(0), subtask.execution, peer=0)
        yield SubtaskReset(0)
        yield SourcesRestored()
        yield GlobalFailure(ERROR)
        yield SlotRegistered(0, first, {})
        if attempt == first:
            yield SlotRegistered(0, first + 1, {})
        if attempt is not None and (early or phase != "submitted" or subtask.state in ("running", "deploying")):
            yield SlotDisconnected(0, attempt)
        if early or phase != "submitted":
            yield SlotHeard(0, first)
        if early or phase != "submitted" or subtask.execution == 1:
            yield QueryEnding()
        if phase == "resubmitting":
            yield Later(GlobalFailure(ERROR), 100)
        if subtask.execution < 2:
            yield JobEnded(machine._submission, KILLED)

    def made() -> Scheduler:
        machine = Scheduler(1, 1, options, restored=False, random=random.Random(0))
        machine._apart = (frozenset({0}), 0)  # a connection failed before: one slot has nobody else to lose
        return machine

    explore(
        made,
        events,
        depth=13,
        limit=1_600,
    )


APART = ErrorReport(error_type="TransportError", message="the slot at 10.0.0.1:1 cannot reach the slot at 10.0.0.2:1")


def apart(machine: Machine, now_ms: int, execution: int) -> list[Action]:
    """Let slots 0 and 1 not reach one another, while both live; return what follows."""
    for slot in range(machine.parallelism):
        machine(SlotHeard(slot, machine.machine.attempt(slot) or 0), now_ms)
    return machine(SubtaskBroke(sub(0), execution, APART, peer=1), now_ms)


def test_two_slots_that_do_not_reach_one_another_twice_are_placed_elsewhere() -> None:
    """Both reach the coordinator: in place they would be restarted for ever."""
    machine = Machine(parallelism=3, full=True)
    machine.run()
    assert "CancelJob" not in kinds(apart(machine, 1_000, execution=1))
    assert kinds(machine(SchedulerTimePassed(), 1_100)) == ["RestoreSources"]
    machine(SourcesRestored(), 1_100)

    assert "CancelJob" in kinds(apart(machine, 6_000, execution=2))
    assert SubmitJob(1, avoid=(1,)) in machine(JobEnded(0, KILLED), 6_010)


def test_a_connection_that_fails_once_is_no_reason_to_go_elsewhere() -> None:
    machine = Machine(parallelism=3, full=True)
    machine.run()
    apart(machine, 1_000, execution=1)
    machine(SchedulerTimePassed(), 1_100)
    machine(SourcesRestored(), 1_100)
    for now_ms in range(2_000, 200_000, 2_000):
        for slot in range(3):
            machine(SlotHeard(slot, 0), now_ms)
        machine(SchedulerTimePassed(), now_ms)

    assert "CancelJob" not in kinds(apart(machine, 200_000, execution=2))


def test_slots_that_never_reach_one_another_end_the_query_with_both_ends_in_the_error() -> None:
    """Each attempt takes longer to fail than a query must run well for its failures to be forgotten."""
    machine = Machine(parallelism=2, restart=ExponentialDelay(jitter_factor=0, attempts=3), full=True)
    machine.run()
    now_ms, failed = 0, []
    for _ in range(6):
        now_ms += 11_000
        execution = machine.machine.subtasks()[0].execution
        failed = apart(machine, now_ms, execution)
        if any(isinstance(action, FailQuery) for action in failed):
            break
        if "CancelJob" in kinds(failed):
            machine(JobEnded(machine.machine._submission, KILLED), now_ms)
            first = machine.machine._submission << ATTEMPT_BITS
            for slot in range(2):
                machine(SlotRegistered(slot, first, {}), now_ms)
        machine(SchedulerTimePassed(), now_ms + 1_000)
        machine(SourcesRestored(), now_ms + 1_000)
        for status in machine.machine.subtasks():
            machine(SubtaskStarted(status.subtask, status.execution), now_ms + 1_000)
    assert [action.error for action in failed if isinstance(action, FailQuery)] == [APART]


def test_an_error_that_only_the_user_can_mend_is_not_tried_again() -> None:
    """However patient the restart strategy is: a wrong option stays wrong."""
    machine = Machine()
    machine.run()
    final = ErrorReport(error_type="OptionError", message="the column 'at' is missing", final=True)
    assert FailQuery(final) in machine(SubtaskBroke(sub(0), 1, final), 1_000)
