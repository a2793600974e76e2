"""What went wrong elsewhere when jobs failed over or were restored (lessons, "Split ownership" and "Checkpoints").

Each story runs the coordinator, the slots and their subtasks back to back, with a seed that decides who is next.
"""

from __future__ import annotations

from collections import Counter

import pytest

from headgate.checkpoint.checkpoint_events import CheckpointRequested
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.job.job_plan import JobOptions
from headgate.protocol.messages import CheckpointKind
from headgate.task.subtask import SomethingFailed
from tests.unit.coordinator.job.job_world import FAILED, UID, World
from tests.unit.coordinator.sources.toy_sources import PushedToySource, ToySource, ToySplit

SPLITS = [ToySplit(split_id=f"s{number}", stop=20) for number in range(6)]
ALL = Counter({(split.split_id, position): 1 for split in SPLITS for position in range(split.stop)})
BOTH = pytest.mark.parametrize("source", [ToySource, PushedToySource])


def world(
    source: type[ToySource],
    parallelism: int,
    *,
    seed: int = 0,
    interval_ms: int | None = 50,
    tolerable: int = 0,
    restored: Manifest | None = None,
) -> World:
    checkpoints = CheckpointOptions(interval_ms=interval_ms, tolerable_failed=tolerable)
    return World(source(SPLITS), parallelism, JobOptions(checkpoints=checkpoints), seed=seed, restored=restored)


def suspended(source: type[ToySource], parallelism: int, after_ms: int, seed: int = 0) -> tuple[World, Manifest]:
    """Return a query that was suspended after some time, and its savepoint."""
    query = world(source, parallelism, seed=seed)
    query.pass_time(after_ms)
    query.notify(CheckpointRequested(1, CheckpointKind.SUSPEND, "savepoints/x"))
    query.pass_time(10_000)
    savepoint = query.answers[1].checkpoint_id
    assert query.over and savepoint is not None
    return query, query.stored[savepoint]


@BOTH
def test_flink_31006_a_bounded_query_ends_after_a_restore_that_finds_nothing_new(source: type[ToySource]) -> None:
    first, savepoint = suspended(source, 2, after_ms=100)
    later = world(source, 2, restored=savepoint)
    later.committed = first.committed
    later.pass_time(10_000)

    assert later.over
    assert later.rows == ALL


@pytest.mark.parametrize("fails_at_ms", range(0, 60, 10))
def test_flink_40710_ownership_survives_a_reader_that_fails_before_the_first_checkpoint(fails_at_ms: int) -> None:
    first, savepoint = suspended(PushedToySource, 3, after_ms=100)
    later = world(PushedToySource, 3, restored=savepoint, seed=fails_at_ms)
    later.committed = first.committed
    later.pass_time(fails_at_ms)
    later.settle()
    later.processes[1].task.later(SomethingFailed(FAILED))
    later.pass_time(10_000)

    assert later.rows == ALL


@BOTH
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 4), (4, 2)])
def test_flink_21817_pending_work_is_stored_by_split_and_survives_rescaling(
    source: type[ToySource], before: int, after: int
) -> None:
    first, savepoint = suspended(source, before, after_ms=60, seed=before)
    later = world(source, after, restored=savepoint, seed=after)
    later.committed = first.committed
    later.pass_time(60)
    later.kill(after - 1)
    later.pass_time(10_000)

    assert later.rows == ALL


def test_flip_537_while_parallelism_stays_the_same_no_split_changes_its_reader() -> None:
    def owners(manifest: Manifest) -> dict[str, int]:
        return {
            split.split_id: number
            for number, subtask in enumerate(manifest.subtasks[0])
            for split in subtask.readers[UID].splits
        }

    query, savepoint = suspended(PushedToySource, 3, after_ms=60)
    before = owners(savepoint)
    assert before
    for restart in range(3):
        later = world(PushedToySource, 3, restored=savepoint, seed=restart)
        later.committed = dict(query.committed)
        later.pass_time(10 * restart + 10)
        later.kill(restart)
        later.crash_enumerator()
        later.pass_time(600)
        for manifest in later.stored.values():
            assert owners(manifest).items() <= before.items()


def test_flink_38939_the_first_checkpoint_after_a_restore_comes_early() -> None:
    query = world(ToySource, 2, interval_ms=600_000)
    query.pass_time(100)
    query.kill(0)
    query.pass_time(1_500, reading=False)

    assert query.stored


def test_iceberg_15846_what_a_failed_checkpoint_staged_is_carried_into_the_next() -> None:
    query = world(ToySource, 2, tolerable=100)
    query.fail_manifest = True
    query.pass_time(600)
    assert not query.stored
    query.fail_manifest = False
    query.pass_time(10_000)

    assert query.executions() == [1, 1]
    assert query.rows == ALL
