"""What exchanges connect, and when all of it is deployed."""

from __future__ import annotations

import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.coordinator.job.job_plan import JobPlan, SourcePlan
from headgate.coordinator.job.regions import Regions
from headgate.protocol.messages import SubtaskId


def regions(kind: str | None) -> Regions:
    """Return the regions of two stages with two subtasks each."""
    exchanges = {} if kind is None else {"e": ExchangePlan(kind=kind, producer_stage=0, consumer_stage=1)}
    plan = JobPlan(
        sources={}, stages=(("a",), ("b",)), parallelism=2, max_parallelism=4, query_id="q", run=1, exchanges=exchanges
    )
    return Regions(plan, on_downstream=True)


@pytest.mark.parametrize(("kind", "complete_after"), [("hash", [4]), ("forward", [2, 4]), (None, [])])
def test_a_region_is_deployed_when_all_that_is_connected_is(kind: str | None, complete_after: list[int]) -> None:
    made, complete = regions(kind), []
    subtasks = [SubtaskId(stage, slot) for slot in range(2) for stage in range(2)]
    for number, subtask in enumerate(subtasks, 1):
        assert made.generation(subtask.subtask) == (0 if kind is None else 1)
        if made.deployed(subtask, 1) is not None:
            complete.append(number)
    assert complete == complete_after


def test_each_deployment_of_a_region_is_another_generation() -> None:
    made = regions("forward")
    made.generation(0)
    made.deployed(SubtaskId(0, 0), 1)
    assert made.generation(0) == 1, "it is being deployed"
    made.forget(0)
    assert (made.generation(0), made.generation(1)) == (2, 1)


@pytest.mark.parametrize(
    ("reassigns", "first", "moving"),
    [(False, "hash", set()), (True, "hash", {"first"}), (True, "forward", {"first", "second"})],
)
def test_rows_may_come_from_another_producer_after_any_restart_where_splits_are_reassigned(
    reassigns: bool, first: str, moving: set[str]
) -> None:
    """What a stage sends by key it sends to the same subtask, whoever reads; ``forward`` ones follow their readers."""
    plan = JobPlan(
        sources={"a": SourcePlan(name="a", reassigns_on_recovery=reassigns)},
        stages=(("a",), ("b",), ("c",), ("d",)),
        parallelism=2,
        max_parallelism=4,
        query_id="q",
        run=1,
        exchanges={
            "third": ExchangePlan(kind="hash", producer_stage=2, consumer_stage=3),
            "second": ExchangePlan(kind="hash", producer_stage=1, consumer_stage=2),
            "first": ExchangePlan(kind=first, producer_stage=0, consumer_stage=1),
        },
    )
    assert plan.moving_exchanges == moving
