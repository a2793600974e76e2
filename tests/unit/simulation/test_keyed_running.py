"""The simulator of keyed pipelines itself: production machines, the same trace for the same seed, its command."""

from __future__ import annotations

import msgspec
import pytest

from headgate.checkpoint.channel_assignment import assign_channels
from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.simulation.__main__ import main
from headgate.simulation.keyed.coverage import keyed_coverage
from headgate.simulation.keyed.parts import KeyedParts
from headgate.simulation.keyed.running import shrink, simulate, simulate_many, trace_of
from headgate.simulation.keyed.scenario import FaultKind, KeyedScenario
from headgate.simulation.keyed.stages import WindowStage
from headgate.task.channel_recovery import ChannelRecovery
from headgate.task.input_gate import InputGate
from headgate.task.result_partition import ResultPartition

SEEDS = range(100, 112)


def test_the_machines_are_those_of_production() -> None:
    """Nothing stands in for a machine: what is simulated is what runs."""
    parts = KeyedParts()
    assert (parts.gate, parts.partition, parts.recovery) == (InputGate, ResultPartition, ChannelRecovery)
    assert (parts.coordinator, parts.assign) == (CheckpointCoordinator, assign_channels)
    recovered = 0
    for seed in SEEDS:
        _, cluster = simulate(KeyedScenario.of(seed))
        assert cluster.deployment is not None
        for subtask in cluster.deployment.subtasks.values():
            assert type(subtask.gate) in (InputGate, type(None))
            assert type(subtask.partition) in (ResultPartition, type(None))
            if subtask.recovery is not None:
                recovered += 1
                assert type(subtask.recovery.machine) is ChannelRecovery
    assert recovered


def test_a_seed_decides_everything() -> None:
    """The same seed gives the same trace, another one another."""
    first, again = (simulate(KeyedScenario.of(SEEDS[0])) for _ in range(2))
    assert trace_of(first[1]) == trace_of(again[1])
    assert first[0] == again[0]
    assert trace_of(simulate(KeyedScenario.of(SEEDS[1]))[1]) != trace_of(first[1])


def test_seeds_meet_all_that_there_is() -> None:
    """Every exchange, fault and switch is in some scenario; rows are filtered and spilled in some."""
    scenarios = [KeyedScenario.of(seed) for seed in range(200)]
    kinds = {plan.kind for scenario in scenarios for plan in scenario.exchanges.values()}
    assert kinds == {"hash", "rebalance", "broadcast", "custom", "forward"}
    assert {fault.kind for scenario in scenarios for fault in scenario.faults} == set(FaultKind)
    assert len({switches for scenario in scenarios for switches in scenario.switches}) == 3
    assert {scenario.parallelism for scenario in scenarios} == set(range(1, 9))
    held = [any(map(each.holds_at, range(each.stages))) for each in scenarios]
    assert 0 < sum(each.idle_ms > 0 for each, holds in zip(scenarios, held) if holds) < sum(held)
    clusters = [simulate(scenario)[1] for scenario in scenarios[:25]]
    assert any(cluster.filtered for cluster in clusters) and any(cluster.spilled for cluster in clusters)
    stored = [rows for cluster in clusters for _, _, rows, _ in cluster.invariants.checkpoints]
    assert sum(rows > 0 for rows in stored) > len(stored) // 4


def test_a_failing_seed_gets_a_shorter_scenario_that_still_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Faults that a failure does not need are left out."""
    monkeypatch.setattr(WindowStage, "owns", lambda stage, key, salt: False)
    scenario = next(each for each in map(KeyedScenario.of, SEEDS) if simulate(each)[0].error)
    smallest = shrink(scenario)
    assert 0 < len(smallest.faults) < len(scenario.faults)  # without any nothing is restored
    assert "rows are lost" in (simulate(smallest)[0].error or "")


def test_many_seeds_run_in_two_processes_and_come_in_order() -> None:
    """What comes back is what one process would have found."""
    coverage, outcomes = keyed_coverage(), []
    for outcome, part in simulate_many(range(50, 74), 2):
        outcomes.append(outcome)
        coverage.add(part)
    assert coverage.share() > 0.7
    assert [outcome.seed for outcome in outcomes] == list(range(50, 74))
    assert [outcome.error for outcome in outcomes] == [None] * 24
    assert outcomes[:3] == [simulate(KeyedScenario.of(seed))[0] for seed in range(50, 53)]


def test_the_command_runs_keyed_seeds_and_replays_one(capsys: pytest.CaptureFixture[str]) -> None:
    """`--keyed` runs keyed pipelines only; without it they come after the others."""
    assert main(["--keyed", "--seeds", "3", "--first", "20"]) == 0
    told = capsys.readouterr().out
    assert "keyed seeds 20 to 22: 0 failed" in told and "\nseeds" not in told

    assert main(["--keyed", "--replay", "20"]) == 0
    assert "seed 20:" in capsys.readouterr().out

    assert main(["--seeds", "1", "--first", "20"]) == 0
    told = capsys.readouterr().out
    assert "seeds 20 to 20: 0 failed" in told and "keyed seeds 20 to 20: 0 failed" in told


def test_the_command_prints_a_failing_keyed_seed_with_its_trace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails is shown with the last lines of its trace, and how to see it again."""
    snapshot = WindowStage.snapshot

    def forgetful(stage: WindowStage, checkpoint_id: int) -> object:
        return msgspec.structs.replace(snapshot(stage, checkpoint_id), operators={})

    monkeypatch.setattr(WindowStage, "snapshot", forgetful)
    assert main(["--keyed", "--replay", str(SEEDS[0]), "--lines", "200"]) == 1
    told = capsys.readouterr().out
    assert "rows are lost" in told and "WriteManifest" in told
    assert f"./run simulate --keyed --replay {SEEDS[0]}" in told
