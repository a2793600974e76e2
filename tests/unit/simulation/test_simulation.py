"""The simulator itself: production machines, the same trace for the same seed, short traces, its command."""

from __future__ import annotations

from typing import get_args

import msgspec
import pytest

from headgate.connectors.kafka.enumerator import KafkaEnumerator
from headgate.connectors.kafka.split import KafkaState
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.sources.enumerator_runner import EnumeratorRunner
from headgate.operators.exchange import ExchangeKind
from headgate.runtime.subtask import Subtask
from headgate.simulation import scripted_source
from headgate.simulation.__main__ import main
from headgate.simulation.coverage import MACHINES, Coverage
from headgate.simulation.fault_kinds import (
    ConnectionFaults,
    FaultKind,
    MoreFaults,
    SinkFaults,
    StorageFaults,
    UserFaults,
)
from headgate.simulation.running import shrink, simulate, simulate_many, trace_of
from headgate.simulation.scenario import PHASE_MS, Scenario
from headgate.simulation.topic import Kind
from headgate.task.slot import SlotMachine

SEED = 20


class Forgetful(KafkaEnumerator):
    """Says that somebody has a split that nobody has."""

    def snapshot_state(self, checkpoint_id: int) -> KafkaState:
        state = super().snapshot_state(checkpoint_id)
        return msgspec.structs.replace(state, assigned={**state.assigned, "never-seen": ((0, 0),)})


def test_the_machines_are_those_of_production() -> None:
    _, cluster = simulate(Scenario.of(SEED))
    assert cluster.driver is not None
    assert type(cluster.driver.master) is JobMaster
    assert {type(slot.machine) for slot in cluster.slots} == {SlotMachine}
    assert {type(each.subtask) for slot in cluster.slots for each in slot.subtasks.values()} == {Subtask}
    assert {type(each.runner) for each in cluster.driver.enumerators.values()} <= {EnumeratorRunner}


def test_a_seed_decides_everything() -> None:
    first, again = simulate(Scenario.of(SEED)), simulate(Scenario.of(SEED))
    assert trace_of(first[1]) == trace_of(again[1])
    assert first[0] == again[0]
    assert trace_of(simulate(Scenario.of(SEED + 1))[1]) != trace_of(first[1])


def test_seeds_meet_all_that_there_is() -> None:
    """Every exchange, fault, option of recovery and kind of source is in some scenario."""
    scenarios = [Scenario.of(seed) for seed in range(400)]
    assert {each.first_exchange for each in scenarios} == {None, *get_args(ExchangeKind)}
    assert {each.second_exchange for each in scenarios} == {None, *get_args(ExchangeKind)}
    kinds = {fault.kind for each in scenarios for fault in each.faults}
    assert kinds == {*FaultKind, *MoreFaults, *StorageFaults, *ConnectionFaults, *UserFaults, *SinkFaults}
    assert len({switches for each in scenarios for switches in each.switches}) == 3
    assert {(each.in_time, each.holds) for each in scenarios} == {(False, False), (True, False), (True, True)}
    assert {each.phase_ms for each in scenarios} == {round(pace * PHASE_MS) for pace in (0.2, 0.3, 0.4, 0.5, 0.7, 1)}
    kinds = {(source.kind, source.bounded) for each in scenarios for source in each.sources}
    assert kinds == {(kind, bounded) for kind in get_args(Kind) for bounded in (False, True)}


def test_a_failing_seed_gets_a_shorter_scenario_that_still_fails() -> None:
    bugs = {KafkaEnumerator: Forgetful}
    scenario = Scenario.of(SEED)
    outcome, _ = simulate(scenario, bugs)
    assert outcome.error is not None

    smallest = shrink(scenario, bugs)
    assert smallest.faults == ()  # it fails without any
    assert "never-seen-0 in 0 places" in (simulate(smallest, bugs)[0].error or "")


def test_many_seeds_run_in_two_processes_and_come_in_order() -> None:
    coverage = Coverage()
    outcomes = []
    for outcome, part in simulate_many(range(50, 74), 2):
        outcomes.append(outcome)
        coverage.add(part)
    assert [outcome.seed for outcome in outcomes] == list(range(50, 74))
    assert all(outcome.error is None for outcome in outcomes), [each for each in outcomes if each.error]
    assert coverage.share() > 0.4


def test_what_coverage_watches_is_put_back() -> None:
    handles = [machine.handle for machine in MACHINES]
    with Coverage().recording():
        assert [machine.handle for machine in MACHINES] != handles
    assert [machine.handle for machine in MACHINES] == handles


def test_the_command_runs_seeds_and_replays_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--first", "20"]) == 0
    assert "seeds 20 to 22: 0 failed" in capsys.readouterr().out

    assert main(["--replay", "20"]) == 0
    assert "seed 20:" in capsys.readouterr().out


def test_the_command_prints_a_failing_seed_with_its_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripted_source, "KafkaEnumerator", Forgetful)

    assert main(["--replay", str(SEED), "--lines", "30"]) == 1
    printed = capsys.readouterr().out
    assert "WriteManifest" in printed
    assert f"--replay {SEED}" in printed
