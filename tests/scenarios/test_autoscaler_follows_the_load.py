"""A simulated query whose load doubles and halves is rescaled with it: within bounds, not to and fro, each row once."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headgate.simulation.autoscaling import SimulatedAutoscaler
from headgate.simulation.cluster import Cluster
from headgate.simulation.running import simulate
from headgate.simulation.scenario import LOAD_PHASES, Scenario
from tests import search

SEEDS = 24


def simulated(scenario: Scenario) -> tuple[Cluster, SimulatedAutoscaler]:
    """Return a cluster in which everything held, as it was in the end: rows were published exactly once."""
    outcome, cluster = simulate(scenario)
    assert outcome.error is None, f"seed {scenario.seed}: {outcome.error}"
    assert cluster.autoscaler is not None
    return cluster, cluster.autoscaler


@pytest.mark.parametrize("seed", range(SEEDS) if search.exhaustive else [0])
def test_parallelism_follows_a_load_that_doubles_and_halves(seed: int) -> None:
    scenario = Scenario.of_load(seed)
    cluster, autoscaler = simulated(scenario)
    path = [parallelism for _, parallelism in autoscaler.parallelism]
    assert scenario.autoscaler is not None
    assert all(1 <= each <= scenario.autoscaler.max_parallelism for each in path)
    assert max(path) >= 3, f"four times the load needs more than two slots: {path}"
    assert path[-1] < max(path), f"the load halved twice: {path}"
    ups = [before < after for before, after in pairwise(path)]
    assert ups == sorted(ups, reverse=True), f"to and fro: {path}"
    assert len(cluster.table.rows) > 500


@pytest.mark.parametrize("seed", range(SEEDS) if search.exhaustive else [0])
def test_whatever_fails_meanwhile_it_stays_within_bounds(seed: int) -> None:
    """Slots, checkpoints and commits fail, and a user rescales: the user's number counts, and no row is lost."""
    cluster, autoscaler = simulated(Scenario.of_load(seed, with_faults=True))
    assert cluster.faults > 0
    for decision in autoscaler.decisions:
        assert 1 <= decision.to <= 6, decision
    numbers = [parallelism for _, parallelism in autoscaler.parallelism]
    ordered = {(each.before, each.to) for each in autoscaler.decisions if each.before != each.to}
    by_others = {fault.parallelism for fault in cluster.scenario.faults}
    for before, after in pairwise(numbers):
        assert before == after or (before, after) in ordered or after in by_others, f"nobody wanted {after}: {numbers}"


@pytest.mark.parametrize("seed", search.rotating(2, SEEDS))
def test_this_commits_loads_are_followed(seed: int) -> None:
    """What breaks it breaks
    `tests/scenarios/test_autoscaler_follows_the_load.py::test_parallelism_follows_a_load_that_doubles_and_halves` or
    `tests/scenarios/test_autoscaler_follows_the_load.py::test_whatever_fails_meanwhile_it_stays_within_bounds` too,
    unless only few loads show it.
    """
    test_parallelism_follows_a_load_that_doubles_and_halves(seed)
    test_whatever_fails_meanwhile_it_stays_within_bounds(seed)


def test_the_load_of_these_scenarios_is_what_they_are_called() -> None:
    paces = [pace for _, pace in LOAD_PHASES]
    assert [after / before for before, after in pairwise(paces)] == [2, 2, 0.5, 0.5]
    rows = {Scenario.of_load(seed).sources[0].load for seed in range(SEEDS)}
    assert len(rows) == SEEDS, "each seed has its own noise"
