"""The checkpoint coordinator: its table, and what it promises across failures, requests and restores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.coordinator import CheckpointCoordinator, CheckpointOptions, StoredCheckpoints
from headgate.checkpoint.manifest import Manifest, SourceEntry, UncommittedEpoch
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.errors import InvalidTransitionError
from headgate.protocol.messages import CheckpointKind, ErrorReport, SubtaskId
from headgate.protocol.state import InlineState, OperatorState, SubtaskState
from tests.machines import Later, explore

FIRST, SECOND = SubtaskId(0, 0), SubtaskId(0, 1)
RUNNING = cp.SubtasksRunning({FIRST: 1, SECOND: 1}, restored=True)
EMPTY = SubtaskState()
OPTIONS = CheckpointOptions(interval_ms=1000, timeout_ms=5000)


def plan(sources: tuple[str, ...] = ("rides",)) -> JobPlan:
    return JobPlan(
        sources={uid: SourcePlan(name="numbers", reassigns_on_recovery=False, fixed={"topic": uid}) for uid in sources},
        stages=(("rides", "sink"),), parallelism=2, max_parallelism=128, query_id="q", run=3,
    )  # fmt: skip


def manifest(checkpoint_id: int = 7, epoch: int = 5, **fields: Any) -> Manifest:
    return Manifest(
        checkpoint_id=checkpoint_id, epoch=epoch, kind=CheckpointKind.CHECKPOINT, query_id="q", run=2, created_ms=0,
        parallelism=2, max_parallelism=128, stages=(("rides", "sink"),),
        sources={"rides": SourceEntry(name="numbers", enumerator=InlineState(b"e"))},
        subtasks=((SubtaskState(), SubtaskState()),), **fields,
    )  # fmt: skip


def staged(*committables: bytes) -> SubtaskState:
    return SubtaskState(operators={"sink": OperatorState(items=(InlineState(b"i"),), committables=committables)})


def machine(
    options: CheckpointOptions = OPTIONS, restored: Manifest | None = None, **more: Any
) -> CheckpointCoordinator:
    return CheckpointCoordinator(options, plan(), restored, **more)


class Run:
    """A machine that is driven forward, with a clock; `check` runs after every event."""

    def __init__(self, made: CheckpointCoordinator) -> None:
        self.machine = made
        self.now_ms = 0
        self.gone: frozenset[str] = frozenset()  # as the last barriers carried it

    def notify(self, *events: cp.Event) -> list[cp.Action]:
        """Return what follows from the last of these events."""
        actions: list[cp.Action] = []
        for event in events:
            actions = self.machine.handle(event, self.now_ms)
            self.machine.check()
        return actions

    def wait(self) -> list[cp.Action]:
        """Let time pass until the machine wants to know it."""
        due_ms = self.machine.next_time_ms()
        assert due_ms is not None
        self.now_ms = max(self.now_ms, due_ms)
        return self.notify(cp.CheckpointTimePassed())

    def barriers(self) -> int:
        """Begin the next checkpoint, up to its barriers; return its number."""
        assert [type(action) for action in self.wait()] == [cp.SnapshotSources]
        checkpoint_id = self.machine.pending_id
        assert checkpoint_id is not None
        (barriers,) = self.notify(cp.SourceStateReady("rides", checkpoint_id, b"{}", {0: 4}))
        assert isinstance(barriers, cp.SendBarriers)
        self.gone = barriers.gone
        return checkpoint_id

    def acknowledge(self, first: SubtaskState = EMPTY) -> Manifest:
        """Let both subtasks acknowledge; return the manifest."""
        checkpoint_id = self.machine.pending_id
        assert checkpoint_id is not None
        (write,) = self.notify(
            cp.SubtaskAcknowledged(FIRST, 1, checkpoint_id, first),
            cp.SubtaskAcknowledged(SECOND, 1, checkpoint_id, EMPTY),
        )
        assert isinstance(write, cp.WriteManifest)
        return write.manifest

    def complete(self, *committables: bytes) -> list[cp.Action]:
        """Take a whole checkpoint; return what follows from its completion."""
        checkpoint_id = self.barriers()
        self.acknowledge(staged(*committables))
        return self.notify(cp.ManifestWritten(checkpoint_id, 10))


def running(options: CheckpointOptions = OPTIONS, **more: Any) -> Run:
    run = Run(machine(options, **more))
    run.notify(cp.CheckpointingStarted(), RUNNING)
    return run


def of(kind: type, actions: list[cp.Action]) -> list[Any]:
    return [action for action in actions if isinstance(action, kind)]


# The table.

RESTORED = manifest(commits={"sink": (b"5",)}, uncommitted=(UncommittedEpoch(4, {"sink": (b"4",)}),))
SAVEPOINT = cp.CheckpointRequested(1, CheckpointKind.SAVEPOINT, "s")
SUSPEND = cp.CheckpointRequested(2, CheckpointKind.SUSPEND)


def events(made: CheckpointCoordinator) -> Iterator[cp.Event | Later]:
    """Yield what may happen next; in a second checkpoint little but what goes well."""
    newest, pending = made._last_id, made._pending
    failures: list[cp.Event] = [
        cp.SourceRefused("rides", newest, "it fails"),
        cp.SubtaskDeclined(FIRST, 1, newest, "no"),
        cp.ManifestWriteFailed(newest, "disk full"),
    ]
    if made._gone:
        yield from [] if made._abandoned else [*failures, Later(cp.CheckpointTimePassed(), 6000)]
        return  # all else goes on as without
    yield cp.FilesLooked(newest)
    if made.latest is RESTORED and not (made._abandoned or made._requests or made._input_ended):
        yield cp.FilesLooked(newest, ("shared/a",))
    yield from (RUNNING, cp.CheckpointTimePassed(), cp.SubtaskRecovered(FIRST, 1))
    if made._commits.epochs:
        yield cp.Committed(made._commits.epochs[0].epoch, {})
    yield cp.SourceStateReady("rides" if pending is None or not pending.sources else "taxis", newest, b"", {})
    yield cp.SubtaskAcknowledged(
        FIRST if pending is None or not pending.subtasks else SECOND, 1, newest, SubtaskState()
    )
    yield from (cp.ManifestWritten(newest, 1), Later(cp.CheckpointTimePassed(), 6000))
    if newest >= 9:
        yield from failures if len(made._abandoned) == 1 else []
        yield from [cp.CommitFailed(each.epoch, "no") for each in made._commits.epochs[:1] if pending is not None]
        return
    yield cp.SourceStateReady("rides", newest, b"", {})
    asked = (*(() if pending is None else pending.requests), *made._requests)
    if asked or made.state in ("ending", "suspended"):
        yield from map(cp.RequestWithdrawn, {0, *(each.request_id for each in asked)})
    if made.state == "stopped" and made.latest is RESTORED:
        yield cp.CheckpointingStarted()
    if not made._input_ended and not made._requests:
        yield from (SAVEPOINT, SUSPEND, cp.InputAllEnded())
    if not made._abandoned or made.state not in ("snapshotting", "pending", "completing"):
        yield cp.SubtasksNotRunning("a subtask failed")
        yield from failures
        if made._commits.epochs:
            yield cp.CommitFailed(made._commits.epochs[0].epoch, "no")


def test_the_table_is_what_the_machine_does() -> None:
    options = CheckpointOptions(interval_ms=1000, timeout_ms=5000, tolerable_failed=1, look_interval_ms=0)

    def make() -> CheckpointCoordinator:
        return CheckpointCoordinator(options, plan(("rides", "taxis")), RESTORED)

    explore(
        make,
        events,
        depth=24,
        limit=4000,
        ignore=("_due_ms", "_asked_ms", "_look_ms"),
    )


# When one begins.


def test_the_first_checkpoint_comes_early_and_the_others_at_the_interval() -> None:
    run = running(CheckpointOptions(interval_ms=60_000))
    assert run.machine.next_time_ms() == 500
    run.complete()
    assert run.machine.next_time_ms() == 60_500
    run.notify(cp.SubtasksNotRunning("a subtask failed"))
    assert run.machine.next_time_ms() is None
    run.now_ms = 10_000
    run.notify(RUNNING)
    assert run.machine.next_time_ms() == 10_500


def test_without_an_interval_only_requests_and_the_end_begin_one() -> None:
    run = running(CheckpointOptions(interval_ms=None))
    assert run.machine.next_time_ms() is None
    run.notify(cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT))
    assert cp.AnswerRequest(1, 1) in run.complete()
    assert run.machine.next_time_ms() is None
    run.notify(cp.Committed(1, {}), cp.InputAllEnded())
    assert of(cp.Commit, run.complete())[0].final


def test_requests_wait_for_the_one_under_way_and_share_the_next() -> None:
    run = running()
    run.barriers()
    requests = [cp.CheckpointRequested(n, CheckpointKind.CHECKPOINT) for n in (1, 2)]
    assert run.notify(*requests, cp.CheckpointRequested(3, CheckpointKind.SAVEPOINT, "there")) == []
    run.acknowledge()
    assert not of(cp.AnswerRequest, run.notify(cp.ManifestWritten(1, 10)))
    run.notify(cp.Committed(1, {}))
    assert of(cp.AnswerRequest, run.complete()) == [cp.AnswerRequest(1, 2), cp.AnswerRequest(2, 2)]
    assert run.barriers() == 3


def test_ids_go_on_after_everything_that_was_there_and_epochs_have_no_gaps() -> None:
    run = running(restored=manifest(7, 5), stored=StoredCheckpoints((7,), (8, 9)))
    run.notify(cp.Committed(5, {}))
    run.barriers()
    run.notify(cp.SubtasksNotRunning("a subtask failed"), RUNNING)
    assert run.barriers() == 11
    assert run.acknowledge().epoch == 6


# Failures.


def test_failures_in_a_row_count_but_not_savepoints_and_failovers() -> None:
    run = running(CheckpointOptions(interval_ms=1000, tolerable_failed=1))
    for _ in range(5):
        run.barriers()
        run.notify(cp.SubtasksNotRunning("a subtask failed"), RUNNING)
        run.notify(cp.CheckpointRequested(1, CheckpointKind.SAVEPOINT, "there"))
        refused = run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
        assert of(cp.AnswerRequest, refused)[0].reason.endswith("disk full")
    for _ in range(2):
        declined = run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
        assert not of(cp.CheckpointFailureLimitReached, declined)
        run.notify(*[cp.Committed(each.epoch, {}) for each in run.machine._commits.epochs])
        run.complete()
        run.notify(cp.Committed(run.machine.epoch, {}))
    run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
    (limit,) = of(
        cp.CheckpointFailureLimitReached, run.notify(cp.SubtaskDeclined(SECOND, 1, run.barriers(), "disk full"))
    )
    assert "number 2 in a row: subtask 1 of stage 0 declined: disk full" in limit.reason
    assert run.machine.state == "stopped"


def test_failures_in_a_row_are_counted_on_across_failovers() -> None:
    run = running()
    for number in (1, 2, 3):
        limits = of(
            cp.CheckpointFailureLimitReached, run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
        )
        assert [f"number {number} in a row" in limit.reason for limit in limits] == [True]
        run.notify(RUNNING)
    run.complete()
    run.notify(cp.Committed(run.machine.epoch, {}))
    (limit,) = of(
        cp.CheckpointFailureLimitReached, run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
    )
    assert "number 1 in a row" in limit.reason


def test_a_source_that_cannot_take_part_yet_puts_a_checkpoint_off_and_nothing_counts_as_failed() -> None:
    run = running()
    run.notify(cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT), SUSPEND)
    for checkpoint_id in range(1, 6):
        assert run.wait() == [cp.SnapshotSources(checkpoint_id)]
        reason = "source 'rides' could not take part: it is being restored"
        refused = run.notify(cp.SourceRefused("rides", checkpoint_id, "it is being restored"))
        assert refused == [cp.NotifyAborted(checkpoint_id, reason, put_off=True, began_ms=run.now_ms)]
        assert run.machine.next_time_ms() == run.now_ms + 200
    assert of(cp.AnswerRequest, run.complete()) == [cp.AnswerRequest(1, 6)]
    run.notify(cp.Committed(1, {}))
    assert of(cp.AnswerRequest, run.complete()) == [cp.AnswerRequest(2, 7)]
    assert run.machine.state == "ending"


def test_what_is_put_off_for_longer_than_a_checkpoint_may_take_has_failed() -> None:
    run = running(CheckpointOptions(interval_ms=1000, timeout_ms=500))
    run.notify(cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT))
    actions: list[cp.Action] = []
    while not of(cp.CheckpointFailureLimitReached, actions):
        run.wait()
        assert run.now_ms <= 600
        actions = run.notify(cp.SourceRefused("rides", run.machine._last_id, "it is being restored"))
    assert of(cp.AnswerRequest, actions)[0].checkpoint_id is None
    assert run.now_ms == 600


def test_a_source_that_refuses_when_its_part_is_there_is_not_heard() -> None:
    run = running()
    checkpoint_id = run.barriers()
    assert run.notify(cp.SourceRefused("rides", checkpoint_id, "it failed since")) == []
    assert run.machine.state == "pending"


def test_what_was_raised_comes_with_the_failover() -> None:
    error = ErrorReport(error_type="SinkError", message="no", traceback="...", final=True)
    run = running()
    checkpoint_id = run.barriers()
    run.acknowledge()
    (limit,) = of(
        cp.CheckpointFailureLimitReached, run.notify(cp.ManifestWriteFailed(checkpoint_id, "SinkError: no", error))
    )
    assert limit.error == error
    run.notify(RUNNING)
    run.complete()
    (limit,) = of(cp.CheckpointFailureLimitReached, run.notify(cp.CommitFailed(1, "SinkError: no", error)))
    assert limit.error == error


@pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.SUSPEND, CheckpointKind.DRAIN])
def test_a_folder_that_is_refused_neither_suspends_the_query_nor_counts(kind: CheckpointKind) -> None:
    run = running()
    for request in range(3):
        run.notify(cp.CheckpointRequested(request, kind, "taken"))
        checkpoint_id = run.barriers()
        last = run.acknowledge()
        reason = "its manifest could not be written: there is one already"
        assert run.notify(cp.ManifestWriteFailed(checkpoint_id, "there is one already")) == [
            cp.NotifyAborted(checkpoint_id, reason, began_ms=run.now_ms),
            cp.DeleteSavepoint(last, "taken", (cp.AnswerRequest(request, None, reason),)),
        ]  # fmt: skip
        assert run.machine.state == "idle"


@pytest.mark.parametrize("failure", ["a failover", "a time-out", "a commit", "our own manifest"])
@pytest.mark.parametrize("written", [False, True])
def test_who_asked_for_a_savepoint_that_fails_late_is_answered_when_nothing_of_it_is_there(
    written: bool, failure: str
) -> None:
    """Its manifest is on its way, or there, and only that of the query's own location is missing."""
    run = running(CheckpointOptions(interval_ms=1000, timeout_ms=5000, tolerable_failed=1))
    run.complete(b"1")
    run.notify(SAVEPOINT)
    checkpoint_id = run.barriers()
    last = run.acknowledge()
    if written:
        assert run.notify(cp.ManifestWritten(checkpoint_id, 10)) == [cp.WriteManifest(checkpoint_id, last, "")]
    match failure:
        case "a failover":
            actions = run.notify(cp.SubtasksNotRunning("a subtask failed"))
        case "a time-out":
            actions = run.wait()
        case "a commit":
            actions = run.notify(cp.CommitFailed(1, "no"))
        case _:
            actions = run.notify(cp.ManifestWriteFailed(checkpoint_id, "disk full"))
    assert not of(cp.AnswerRequest, actions)
    (deletion,) = of(cp.DeleteSavepoint, actions)
    assert (deletion.manifest, deletion.location) == (last, "s")
    assert [(each.request_id, each.checkpoint_id) for each in deletion.answers] == [(1, None)]
    assert run.notify(cp.ManifestWritten(checkpoint_id, 10)) == []


@pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.SUSPEND, CheckpointKind.DRAIN])
def test_what_nobody_waits_for_any_longer_is_given_up_and_the_query_goes_on(kind: CheckpointKind) -> None:
    """Whatever has come of it, and though others wait for another; nothing has failed."""
    why = "nobody waits for it any longer"
    for steps in range(5):
        run = running(CheckpointOptions(interval_ms=None, tolerable_failed=0))
        run.notify(cp.CheckpointRequested(1, kind, "s" if kind is CheckpointKind.SAVEPOINT else ""))
        other = cp.CheckpointRequested(2, CheckpointKind.CHECKPOINT)
        if steps == 0:
            assert run.notify(cp.RequestWithdrawn(1)) == [cp.AnswerRequest(1, None, why)]
        else:
            if steps == 1:
                run.wait()
            else:
                run.barriers()
            last = run.acknowledge() if steps >= 3 else None
            if steps == 4 and kind is CheckpointKind.SAVEPOINT:
                run.notify(cp.ManifestWritten(1, 10))
            run.notify(other)
            answer: cp.Action = cp.AnswerRequest(1, None, why)
            if last is not None and kind is CheckpointKind.SAVEPOINT:
                answer = cp.DeleteSavepoint(last, "s", (cp.AnswerRequest(1, None, why),))
            assert run.notify(cp.RequestWithdrawn(1)) == [cp.NotifyAborted(1, why, began_ms=0), answer]
            assert run.notify(cp.ManifestWritten(1, 10)) == []
        assert run.machine.state == "idle" and run.notify(cp.RequestWithdrawn(1)) == []
        if steps == 0:
            run.notify(other)
        assert of(cp.AnswerRequest, run.complete()) == [cp.AnswerRequest(2, run.machine._last_id)]


def test_a_checkpoint_goes_on_without_one_who_asked_for_it_and_what_is_complete_is_not_given_up() -> None:
    run = running()
    run.notify(
        cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT), cp.CheckpointRequested(2, CheckpointKind.CHECKPOINT)
    )
    run.barriers()
    assert [type(each) for each in run.notify(cp.RequestWithdrawn(1))] == [cp.AnswerRequest]
    run.acknowledge()
    assert of(cp.AnswerRequest, run.notify(cp.ManifestWritten(1, 10))) == [cp.AnswerRequest(2, 1)]
    run.notify(SUSPEND)
    run.complete()
    assert run.notify(cp.RequestWithdrawn(SUSPEND.request_id)) == [] and run.machine.state == "ending"


def test_who_gives_up_waiting_leaves_the_time_of_what_was_put_off_to_who_still_waits() -> None:
    run = running(CheckpointOptions(interval_ms=None, timeout_ms=500))
    run.notify(SAVEPOINT)
    actions: list[cp.Action] = []
    for other in range(10, 20):
        if not of(cp.AnswerRequest, actions):
            run.wait()
            assert run.now_ms <= 600, "however often others ask and give up"
            actions = run.notify(cp.SourceRefused("rides", run.machine._last_id, "it is being restored"))
            run.notify(cp.CheckpointRequested(other, CheckpointKind.CHECKPOINT), cp.RequestWithdrawn(other))
    assert [each.request_id for each in of(cp.AnswerRequest, actions)] == [SAVEPOINT.request_id]
    run.notify(SAVEPOINT)
    run.wait()
    run.notify(cp.SourceRefused("rides", run.machine._last_id, "it is being restored"), SUSPEND)
    run.notify(cp.RequestWithdrawn(SAVEPOINT.request_id))
    run.wait()
    assert run.machine.next_time_ms() == run.now_ms + 500, "nothing was put off for this one"


def test_a_request_that_is_withdrawn_brings_no_checkpoint_about() -> None:
    run = running(CheckpointOptions(interval_ms=60_000))
    run.complete()
    run.notify(cp.Committed(1, {}))
    asked, withdrawn = cp.CheckpointRequested(9, CheckpointKind.SAVEPOINT, "s"), cp.RequestWithdrawn(9)
    run.notify(asked)
    assert run.machine.next_time_ms() == run.now_ms
    run.notify(withdrawn)
    assert run.machine.next_time_ms() == 60_500, "before it began"
    run.notify(asked)
    run.barriers()
    run.notify(withdrawn)
    assert run.machine.next_time_ms() == 60_500, "under way"
    run.notify(asked)
    run.wait()
    run.notify(cp.SourceRefused("rides", run.machine._last_id, "it is being restored"), withdrawn)
    assert run.machine.next_time_ms() == 60_500, "put off"
    run.notify(asked, cp.FilesLooked(1, ("shared/a",)), withdrawn)
    assert run.machine.next_time_ms() == run.now_ms, "due for another reason"


def test_a_timeout_names_what_is_missing() -> None:
    run = running(CheckpointOptions(interval_ms=1000, timeout_ms=3000, tolerable_failed=9))
    run.wait()
    assert "source 'rides'" in of(cp.NotifyAborted, run.wait())[0].reason
    run.notify(cp.SubtaskAcknowledged(FIRST, 1, run.barriers(), SubtaskState()))
    assert "missing: subtask 1 of stage 0" in of(cp.NotifyAborted, run.wait())[0].reason


def test_a_subtask_that_fails_while_the_manifest_is_written_restores_from_the_checkpoint_before() -> None:
    """Its sources were ordered to give back what it got since then: the new one may not count any longer."""
    run = running(restored=manifest(7, 5))
    run.notify(cp.Committed(5, {}))
    run.barriers()
    run.acknowledge(staged(b"a"))
    [aborted] = run.notify(cp.SubtasksNotRunning("a subtask failed"))
    assert aborted == cp.NotifyAborted(8, "a subtask failed", began_ms=run.now_ms)
    assert run.notify(cp.ManifestWritten(8, 10)) == []
    assert run.machine.latest is not None and run.machine.latest.checkpoint_id == 7
    run.notify(RUNNING)
    run.barriers()
    assert run.acknowledge(staged(b"a", b"b")).commits == {"sink": (b"a", b"b")}
    assert of(cp.DeleteCheckpoint, run.notify(cp.ManifestWritten(9, 10))) == [cp.DeleteCheckpoint(8)]


def test_a_message_of_an_older_execution_is_no_part_of_the_checkpoint() -> None:
    run = running()
    checkpoint_id = run.barriers()
    run.notify(cp.SubtaskAcknowledged(FIRST, 1, checkpoint_id, SubtaskState()))
    assert run.notify(cp.SubtaskAcknowledged(SECOND, 0, checkpoint_id, staged(b"zombie"))) == []
    assert run.notify(cp.SubtaskDeclined(SECOND, 2, checkpoint_id, "zombie")) == []
    assert run.machine.state == "pending"


def test_what_nobody_asked_for_is_refused_with_the_history() -> None:
    run = running()
    run.wait()
    for event in (
        cp.SubtaskAcknowledged(FIRST, 1, 1, SubtaskState()), cp.ManifestWritten(1, 1), cp.SourceRefused("taxis", 1, ""),
        cp.ManifestWritten(2, 1), cp.Committed(1, {}), RUNNING,
    ):  # fmt: skip
        with pytest.raises(InvalidTransitionError) as caught:
            run.notify(event)
        assert any("SubtasksRunning" in each for each in caught.value.history)


# Commits.


def test_a_slow_commit_blocks_no_checkpoint_and_stands_in_manifests_as_it_was_ordered() -> None:
    run = running()
    assert of(cp.Commit, run.complete(b"1")) == [cp.Commit(1, {"sink": (b"1",)}, False)]
    assert of(cp.Commit, run.complete(b"2")) == []
    run.barriers()
    third = run.acknowledge(staged(b"3"))
    assert third.commits == {"sink": (b"3",)}
    assert third.uncommitted == (UncommittedEpoch(1, {"sink": (b"1",)}), UncommittedEpoch(2, {"sink": (b"2",)}))
    assert all(not state.operators["sink"].committables for state in third.subtasks[0] if state.operators)
    run.notify(cp.ManifestWritten(3, 10))
    assert run.notify(cp.Committed(1, {"sink": (b"1",)})) == [cp.Commit(2, {"sink": (b"1", b"2")}, False)]
    run.barriers()
    assert run.acknowledge().uncommitted[0] == UncommittedEpoch(2, {"sink": (b"1", b"2")})

    again = running(restored=third)
    assert again.notify(cp.SubtasksNotRunning("a subtask failed")) == []
    for epoch in (1, 2):
        (commit,) = again.notify(cp.Committed(epoch, {}))
        assert commit == cp.Commit(epoch + 1, {"sink": (b"%d" % (epoch + 1),)}, False)


def test_what_a_commit_left_stays_in_manifests_until_it_is_published() -> None:
    run = running()
    run.complete(b"1")
    run.notify(cp.Committed(1, {"sink": (b"1",)}))
    run.barriers()
    assert run.acknowledge().commits == {"sink": (b"1",)}
    assert of(cp.Commit, run.notify(cp.ManifestWritten(2, 1))) == [cp.Commit(2, {"sink": (b"1",)}, False)]
    run.notify(cp.Committed(2, {"sink": ()}))
    run.barriers()
    assert run.acknowledge().commits == {}


def test_no_checkpoint_begins_before_what_was_restored_is_published() -> None:
    run = Run(machine(restored=manifest(commits={"sink": (b"5",)})))
    assert run.notify(cp.CheckpointingStarted()) == [cp.Commit(5, {"sink": (b"5",)}, False)]
    run.notify(RUNNING)
    assert run.machine.next_time_ms() is None
    assert run.notify(cp.CommitFailed(5, "broker away")) == [
        cp.CheckpointFailureLimitReached("epoch 5 could not be committed: broker away")
    ]
    assert run.notify(RUNNING) == [cp.Commit(5, {"sink": (b"5",)}, False)]
    run.notify(cp.Committed(5, {}))
    assert run.machine.next_time_ms() is not None


# Files that are gone.


def test_files_are_looked_for_from_time_to_time_and_what_is_gone_is_written_again() -> None:
    run = running(CheckpointOptions(interval_ms=1000, look_interval_ms=2500, tolerable_failed=1))
    looked = []
    for number in range(1, 8):
        orders = of(cp.LookForFiles, run.complete())
        looked += [each.manifest.checkpoint_id for each in orders]
        run.notify(cp.Committed(number, {}))
    assert looked == [4, 7], "not at first: all was read or written just now; again, where there is no answer"
    assert run.notify(cp.FilesLooked(7)) == []
    due_ms = run.machine.next_time_ms()
    assert due_ms is not None and due_ms > run.now_ms
    assert run.notify(cp.FilesLooked(7, ("shared/b", "shared/a"))) == [cp.ReportLostFiles(7, ("shared/a", "shared/b"))]
    assert run.machine.next_time_ms() == run.now_ms, "the next checkpoint is due at once"
    assert not run.gone
    run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
    assert of(cp.LookForFiles, run.complete()), "whether all is there again"
    assert run.gone == {"shared/a", "shared/b"}, "the one before has not written them"
    run.notify(cp.Committed(8, {}))
    assert of(cp.LookForFiles, run.complete()) and not run.gone, "until it is looked they count as written"
    assert run.notify(cp.FilesLooked(9, ("shared/b",))) == [cp.ReportLostFiles(9, (), ("shared/a",))]
    due_ms = run.machine.next_time_ms()
    assert due_ms is not None and due_ms > run.now_ms, "what nobody can write again is no reason for haste"
    run.notify(cp.Committed(9, {}))
    assert of(cp.LookForFiles, run.complete()) and run.gone == {"shared/b"}
    assert run.notify(cp.FilesLooked(11, ("shared/b",))) == []
    assert run.notify(cp.FilesLooked(11)) == [cp.ReportLostFiles(11, (), ("shared/b",))]
    run.notify(cp.Committed(10, {}))
    assert not of(cp.LookForFiles, run.complete()) and not run.gone
    run.notify(cp.Committed(11, {}), SUSPEND)
    assert not of(cp.LookForFiles, run.complete()), "who starts from the last one finds out"


def test_no_failure_ends_what_runs_while_nothing_whole_could_be_restored() -> None:
    """Whoever clears a folder step by step still does while slots write again what is gone."""
    run = running(CheckpointOptions(interval_ms=1000, look_interval_ms=0, tolerable_failed=0))
    for number in (1, 2):
        run.complete()
        run.notify(cp.Committed(number, {}))
    run.notify(cp.FilesLooked(2, ("shared/a",)))
    for _ in range(3):
        actions = run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "its folder is gone"))
        assert [type(each) for each in actions] == [cp.NotifyAborted, cp.LookForFiles]
        assert run.gone == {"shared/a"}
        assert run.notify(cp.FilesLooked(2, ("shared/a",))) == []
        due_ms = run.machine.next_time_ms()
        assert due_ms is not None and due_ms > run.now_ms, "not again and again without a rest"
    next_id = run.barriers()
    assert run.notify(cp.FilesLooked(2)) == [cp.ReportLostFiles(2, (), ("shared/a",))], "somebody put it back"
    assert of(cp.CheckpointFailureLimitReached, run.notify(cp.SubtaskDeclined(FIRST, 1, next_id, "disk full")))


def test_what_is_deleted_again_before_it_was_looked_is_written_again_at_once() -> None:
    run = running(CheckpointOptions(interval_ms=3_600_000, look_interval_ms=0))
    for number in (1, 2):
        run.complete()
        run.notify(cp.Committed(number, {}))
    run.notify(cp.FilesLooked(2, ("shared/a",)))
    assert of(cp.LookForFiles, run.complete()) and run.gone == {"shared/a"}
    run.notify(cp.Committed(3, {}), cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT))
    next_id = run.barriers()
    assert run.notify(cp.FilesLooked(3, ("shared/a",))) == [], "it was there, but by now it is gone again"
    run.acknowledge()
    run.notify(cp.ManifestWritten(next_id, 10), cp.Committed(4, {}))
    assert not run.gone and run.notify(cp.FilesLooked(4, ("shared/a",))) == []
    assert run.machine.next_time_ms() == run.now_ms
    run.complete()
    assert run.gone == {"shared/a"}


# The end.


@pytest.mark.parametrize("kind", [CheckpointKind.SUSPEND, CheckpointKind.DRAIN])
def test_a_stop_with_a_savepoint_writes_both_commits_and_ends(kind: CheckpointKind) -> None:
    run = running()
    run.complete(b"1")
    run.notify(cp.CheckpointRequested(9, kind, "there"))
    checkpoint_id = run.barriers()
    last = run.acknowledge(staged(b"2"))
    assert run.notify(cp.ManifestWritten(checkpoint_id, 10)) == [cp.WriteManifest(checkpoint_id, last, "")]
    actions = run.notify(cp.ManifestWritten(checkpoint_id, 10))
    assert cp.AnswerRequest(9, checkpoint_id) in actions and run.machine.next_time_ms() is None
    assert run.notify(cp.SubtasksNotRunning("a slot was lost")) == []
    assert run.notify(cp.Committed(1, {})) == [cp.Commit(2, {"sink": (b"2",)}, True)]
    assert run.notify(cp.Committed(2, {})) == [cp.QuerySuspended(checkpoint_id)]
    assert of(cp.AnswerRequest, run.notify(SUSPEND))[0].checkpoint_id is None


def test_a_last_checkpoint_that_fails_is_tried_again_until_the_input_has_not_ended_any_longer() -> None:
    run = running(CheckpointOptions(interval_ms=None, tolerable_failed=5))
    run.notify(cp.InputAllEnded())
    run.notify(cp.SubtaskDeclined(FIRST, 1, run.barriers(), "disk full"))
    run.barriers()
    run.notify(cp.SubtasksNotRunning("a subtask failed"), RUNNING)
    assert run.machine.next_time_ms() is None  # its successor reads what is left, then the end is reported anew
    run.notify(cp.InputAllEnded())
    assert of(cp.Commit, run.complete()) == [cp.Commit(1, {}, True)]


# Retention.


def test_so_many_are_kept_and_never_fewer() -> None:
    run = running(
        CheckpointOptions(interval_ms=1000, num_retained=2, tolerable_failed=9),
        restored=manifest(7, 5), stored=StoredCheckpoints((5, 6, 7, 9), (8,)),
    )  # fmt: skip
    run.notify(cp.Committed(5, {}))
    assert run.barriers() == 10
    run.acknowledge()
    run.notify(cp.ManifestWriteFailed(10, "disk full"))
    # 9 is newer than what was restored: it was corrupt.
    assert [each.checkpoint_id for each in of(cp.DeleteCheckpoint, run.complete())] == [8, 9, 10, 5, 6]
    run.notify(cp.Committed(6, {}))
    assert [each.checkpoint_id for each in of(cp.DeleteCheckpoint, run.complete())] == [7]


def test_finished_splits_are_reported_by_subtask_with_the_completion() -> None:
    (notify,) = of(cp.NotifyCompleted, running().complete())
    assert notify == cp.NotifyCompleted(1, {0: {"rides": 4}}, epoch=1, duration_ms=0, size_bytes=10)


def test_a_time_out_in_recovery_counts_for_no_failure() -> None:
    """It would restart the recovery from its beginning, for ever if that takes longer than a checkpoint may."""
    run = Run(machine(CheckpointOptions(interval_ms=1000, timeout_ms=3000)))
    recovering = cp.SubtasksRunning({FIRST: 1, SECOND: 1}, restored=True, recovering=frozenset((FIRST, SECOND)))
    run.notify(cp.CheckpointingStarted(), recovering)
    for checkpoint_id in (1, 2, 3):
        run.now_ms += 1000
        run.notify(cp.CheckpointTimePassed())
        run.now_ms += 3000
        (aborted,) = run.notify(cp.CheckpointTimePassed())
        assert aborted.checkpoint_id == checkpoint_id and "2 subtasks still process" in aborted.reason
        assert run.machine.state == "idle"
    run.notify(cp.SubtaskRecovered(FIRST, 1), cp.SubtaskRecovered(SECOND, 7))  # the latter of another execution
    run.now_ms += 1000
    run.notify(cp.CheckpointTimePassed())
    assert of(cp.CheckpointFailureLimitReached, run.notify(cp.SubtaskRecovered(SECOND, 1))) == []
    run.now_ms += 3000
    assert of(cp.CheckpointFailureLimitReached, run.notify(cp.CheckpointTimePassed()))
    assert run.machine.state == "stopped"


@given(st.lists(st.integers(0, 14), max_size=80), st.booleans(), st.integers(0, 2))
def test_whatever_happens_epochs_are_committed_once_in_order_and_the_newest_checkpoint_stays(
    choices: list[int], old: bool, tolerable: int
) -> None:
    run = running(
        CheckpointOptions(interval_ms=1000, timeout_ms=5000, tolerable_failed=tolerable),
        restored=manifest(7, 5) if old else None,
    )
    existing = {7} if old else set()
    committed: list[int] = []
    for choice in choices:
        newest = run.machine._last_id
        uncommitted = run.machine._commits.epochs
        possible: list[cp.Event] = [
            cp.CheckpointTimePassed(), cp.SourceStateReady("rides", newest, b"", {}),
            cp.SubtaskAcknowledged(FIRST, 1, newest, staged(b"x")), cp.SubtaskAcknowledged(SECOND, 1, newest, staged()),
            cp.ManifestWritten(newest, 1), cp.ManifestWriteFailed(newest, ""), cp.SubtasksNotRunning(""), RUNNING,
            cp.SubtaskDeclined(FIRST, 1, newest, ""), SUSPEND, SAVEPOINT, cp.InputAllEnded(),
            cp.Committed(uncommitted[0].epoch if uncommitted else 0, {}),
            cp.CommitFailed(uncommitted[0].epoch if uncommitted else 0, ""), cp.SourceRefused("rides", newest, ""),
        ]  # fmt: skip
        run.now_ms += 700
        event = possible[choice]
        if isinstance(event, cp.ManifestWritten) and run.machine.pending_id == newest:
            existing.add(newest)
        try:
            actions = run.notify(event)
        except InvalidTransitionError:
            continue
        committed += [event.epoch] if isinstance(event, cp.Committed) else []
        existing -= {each.checkpoint_id for each in of(cp.DeleteCheckpoint, actions)}
        assert run.machine.latest is None or run.machine.latest.checkpoint_id in existing
    assert committed == list(range(5 if old else 1, len(committed) + (5 if old else 1)))
