"""Two thousand schedules of a whole simulated cluster: faults with safety checked, then none and it converges."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from headgate.coordinator.job_master import FromSource
from headgate.coordinator.source_coordinator import EnumeratorFailed
from headgate.simulation.coverage import Coverage
from headgate.simulation.running import Outcome, simulate, simulate_many
from headgate.simulation.scenario import Fault, FaultKind, Scenario

SCHEDULES, EVENTS, FAULTS = 2_000, 200, 3
SEEDS = 2_400  # some end before so much has happened


@pytest.mark.timeout(1800)  # two minutes of both cores, which other tests may want as well
def test_two_thousand_schedules_hold_and_converge() -> None:
    coverage, eventful, failed = Coverage(), 0, list[Outcome]()
    for outcome, of_chunk in simulate_many(range(SEEDS), 2):
        coverage.add(of_chunk)
        eventful += outcome.events >= EVENTS and outcome.faults >= FAULTS
        if outcome.error is not None:
            failed.append(outcome)
    print(f"{eventful} schedules, (state, event) pairs: {100 * coverage.share():.1f} %")
    told = itertools.islice((f"./run simulate --replay {each.seed}: {each.error}" for each in failed), 3)
    assert not failed, f"{len(failed)} of {SEEDS}:\n" + "\n".join(told)
    assert eventful >= SCHEDULES
    # Not all: a newer barrier at a suspended subtask, for example, takes channels (`test_exchange_subtasks`).
    assert coverage.share() >= 0.945, coverage.missing()


def test_enumerators_that_fail_change_no_execution_whatever_checkpoint_is_under_way() -> None:
    crashes = 0
    for seed in range(60):
        scenario = Scenario.of(seed)
        kinds = (FaultKind.CRASH_ENUMERATOR, FaultKind.CHECKPOINT, FaultKind.SAVEPOINT, FaultKind.CRASH_ENUMERATOR)
        faults = tuple(
            Fault(each.at_ms, kind, 3 * seed + 1, scenario.parallelism) for each, kind in zip(scenario.faults, kinds)
        )
        outcome, cluster = simulate(
            msgspec.structs.replace(
                scenario, faults=faults, checkpoint_timeout_ms=60_000, failover_strategy="region", interval_ms=100
            )
        )
        assert outcome.error is None, outcome.error
        told = [event.event for *_, event in cluster.trace if isinstance(event, FromSource)]
        crashes += sum(isinstance(event, EnumeratorFailed) for event in told)
        executions = [slot.subtask.execution for slot in cluster.slots]
        assert (cluster.run_number, executions) == (1, [1] * scenario.parallelism), f"seed {seed}"
    assert crashes > 40
