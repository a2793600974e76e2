"""Whole stories of a query: slots, subtasks and a source back to back, with faults of all kinds."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from headgate.checkpoint import checkpoint_events as cp
from headgate.coordinator.job.job_events import (
    TimePassed,
)
from headgate.coordinator.job.restart_strategy import ExponentialDelay
from headgate.protocol.messages import CheckpointKind
from headgate.task import subtask as sub
from tests.unit.coordinator.job.job_world import FAILED, World
from tests.unit.coordinator.job.test_job_master import options
from tests.unit.coordinator.sources.toy_sources import PushedToySource, ToySource, ToySplit


def splits(count: int, stop: int = 20) -> list[ToySplit]:
    return [ToySplit(split_id=f"s{number}", stop=stop) for number in range(count)]


def world(
    source: type[ToySource] = ToySource, parallelism: int = 2, *, seed: int = 0, stop: int = 20, **kwargs: Any
) -> World:
    return World(source(splits(6, stop)), parallelism, options(interval_ms=50), seed=seed, **kwargs)


def assert_exactly_once(query: World, stop: int = 20) -> None:
    """Assert that the query ended on its own and committed each row once."""
    assert query.over and query.error is None, query.logged[-5:]
    assert query.rows == Counter({(f"s{number}", position): 1 for number in range(6) for position in range(stop)})
    assert sorted(query.committed) == list(range(1, len(query.committed) + 1))


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
def test_a_bounded_query_reads_everything_once_and_ends(source: type[ToySource]) -> None:
    query = world(source)
    query.pass_time(20_000)

    assert_exactly_once(query)
    assert not query.processes
    assert query.runner is None


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
def test_a_killed_worker_restarts_alone_while_the_other_reads_on(source: type[ToySource]) -> None:
    query = world(source)
    query.pass_time(100)
    query.kill(1)
    before = query.emitted[0]
    query.pass_time(60)

    assert query.emitted[0] > before
    query.pass_time(20_000)
    assert query.executions() == [1, 2]
    assert_exactly_once(query)


def test_five_kills_of_one_slot_are_survived_though_spark_gives_up_on_the_job() -> None:
    query = world(stop=100)
    for _ in range(5):
        query.pass_time(60)
        query.kill(1)
        query.pass_time(10)
        while query.master.status().state != "running":
            query.pass_time(10)
    query.pass_time(20_000)

    assert query.submissions == 2
    assert query.executions() == [2, 6]
    assert_exactly_once(query, stop=100)


def test_a_function_that_fails_restarts_its_subtask_in_the_living_worker() -> None:
    query = world()
    query.pass_time(100)
    process = query.processes[0]
    process.task.later(sub.SomethingFailed(FAILED))
    query.pass_time(20_000)

    assert query.failures == {}
    assert query.executions() == [2, 1]
    assert_exactly_once(query)


def test_a_slot_that_loses_the_coordinator_for_a_while_reads_on_and_loses_nothing() -> None:
    query = world()
    query.pass_time(80)
    query.cut(0)
    before = query.emitted[0]
    query.pass_time(30)
    assert query.emitted[0] > before
    query.pass_time(20_000)

    assert query.executions() == [1, 1]
    assert_exactly_once(query)


def test_a_zombie_is_fenced_and_what_it_wrote_is_not_committed() -> None:
    query = world()
    query.pass_time(100)
    zombie = query.lose(1)
    query.pass_time(20_000)

    assert zombie.dead
    assert query.executions() == [1, 2]
    assert_exactly_once(query)


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
def test_an_enumerator_that_dies_restarts_alone_and_readers_keep_their_execution(source: type[ToySource]) -> None:
    query = world(source)
    query.pass_time(80)
    query.crash_enumerator()
    query.pass_time(20_000)

    assert query.executions() == [1, 1]
    assert_exactly_once(query)


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
def test_an_enumerator_that_dies_at_any_moment_of_a_checkpoint_restarts_nobody_and_the_checkpoint_comes(
    source: type[ToySource],
) -> None:
    for steps in range(24):
        query = world(source, seed=steps, stop=60)
        query.pass_time(70)
        query.notify(cp.CheckpointRequested(1, CheckpointKind.SAVEPOINT, "savepoints/x"))
        query.notify(TimePassed())
        assert query.master.status().pending_checkpoint is not None
        query.step(steps)
        query.crash_enumerator()
        query.pass_time(1_000)

        assert query.executions() == [1, 1]
        assert query.answers[1].checkpoint_id is not None
        query.pass_time(20_000)
        assert_exactly_once(query, stop=60)


def test_an_enumerator_whose_log_is_lost_restores_everything() -> None:
    query = world()
    query.pass_time(80)
    query.log.clear()
    query.crash_enumerator()
    query.pass_time(20_000)

    assert query.executions() == [2, 2]
    assert_exactly_once(query)


def test_too_many_failed_checkpoints_and_failed_commits_restore_everything() -> None:
    query = world()
    query.fail_manifest = True
    query.pass_time(400)
    query.fail_manifest, query.fail_commit = False, True
    query.pass_time(600)
    query.fail_commit = False
    query.pass_time(30_000)

    assert min(query.executions()) > 2
    assert_exactly_once(query)


def test_the_first_checkpoint_after_a_restart_comes_early() -> None:
    query = World(ToySource(splits(6, stop=1_000)), 2, options(interval_ms=60_000), seed=1)
    query.pass_time(2_000)
    assert set(query.stored) == {1}
    query.kill(0)
    query.pass_time(1_000)

    assert set(query.stored) == {2}


def test_a_suspended_query_goes_on_from_its_savepoint_at_once() -> None:
    query = world()
    query.pass_time(100)
    query.notify(cp.CheckpointRequested(1, CheckpointKind.SUSPEND, "savepoints/x"))
    query.pass_time(20_000)
    savepoint = query.answers[1].checkpoint_id
    assert query.over and query.error is None and savepoint is not None
    assert sum(query.rows.values()) < 120

    later = world(restored=query.stored[savepoint])
    later.committed = query.committed
    later.pass_time(20_000)
    assert_exactly_once(later)


@pytest.mark.parametrize("what", ["a commit fails", "a worker is killed"])
@pytest.mark.parametrize("kind", [CheckpointKind.SUSPEND, CheckpointKind.DRAIN])
def test_after_the_last_checkpoint_nothing_is_emitted_whoever_starts_again(
    kind: CheckpointKind, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = world(stop=1_000)
    query.pass_time(100)
    slow: list[cp.Commit] = []
    monkeypatch.setattr(query, "commit", slow.append)
    query.notify(cp.CheckpointRequested(1, kind, "savepoints/x"))
    while 1 not in query.answers or not slow:
        query.pass_time(10)
    emitted = query.emitted.copy()
    if what == "a commit fails":
        query.notify(cp.CommitFailed(slow.pop().epoch, "planned"))
    else:
        query.kill(1)
    query.pass_time(5_000)
    assert max(query.executions()) > 1 and query.emitted == emitted

    monkeypatch.undo()
    for order in slow:
        query.commit(order)
    query.pass_time(10_000)
    assert query.over and query.error is None and query.emitted == emitted
    assert sum(query.rows.values()) == sum(emitted.values())


def test_under_full_one_failure_restarts_everything() -> None:
    query = World(ToySource(splits(6)), 2, options(interval_ms=50, full=True))
    query.pass_time(100)
    query.kill(1)
    query.pass_time(20_000)

    assert query.executions() == [2, 2]
    assert_exactly_once(query)


def test_a_query_without_faults_loses_nobody() -> None:
    query = world(stop=10_000)
    query.pass_time(25_000)

    assert query.executions() == [1, 1]
    assert query.logged == ["All subtasks are running."]


def test_a_worker_that_hangs_is_replaced_by_a_new_job() -> None:
    query = world(stop=100)
    query.pass_time(100)
    query.processes[1].silent = True
    query.pass_time(40_000)

    assert query.submissions == 2
    assert_exactly_once(query, stop=100)


def fault(query: World, kind: str, slot: int) -> None:
    """Let something go wrong."""
    if kind == "manifest":
        query.fail_manifest = not query.fail_manifest
    elif kind == "commit":
        query.fail_commit = not query.fail_commit
    elif kind == "enumerator":
        if query.runner is not None and not query.runner.failed:
            query.crash_enumerator()
    elif slot in query.processes:
        match kind:
            case "kill":
                query.kill(slot)
            case "cut":
                query.cut(slot)
            case "zombie":
                query.lose(slot)
            case "hang":
                query.processes[slot].silent = True
            case "function":
                query.processes[slot].task.later(sub.SomethingFailed(FAILED))


@pytest.mark.parametrize("source", [ToySource, PushedToySource])
@pytest.mark.parametrize("seed", range(15))
def test_after_faults_of_all_kinds_each_row_is_there_once(source: type[ToySource], seed: int) -> None:
    restart = ExponentialDelay(attempts=None, max_backoff_ms=200)
    query = World(source(splits(6)), 3, options(restart, interval_ms=100, full=seed % 5 == 0), seed=seed)
    chance = random.Random(seed)
    kinds = ["kill", "cut", "zombie", "hang", "function", "manifest", "commit", "enumerator"]
    for _ in range(12):
        query.pass_time(chance.choice([10, 30, 70, 400]))
        for _ in range(chance.randrange(1, 3)):
            fault(query, chance.choice(kinds), chance.randrange(3))
            query.step(chance.randrange(30))
    query.fail_manifest = query.fail_commit = False
    for process in query.alive:
        process.wake_up()
    query.pass_time(60_000)

    assert_exactly_once(query)
