"""Schedules of keyed pipelines, and scenarios that have a name: rescales in a row, FLIP-547's example."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.simulation.coverage import Coverage
from headgate.simulation.keyed.cluster import KeyedCluster
from headgate.simulation.keyed.coverage import keyed_coverage
from headgate.simulation.keyed.running import simulate, simulate_many
from headgate.simulation.keyed.scenario import Fault, FaultKind, KeyedScenario, SplitScript, Switches
from headgate.simulation.running import Outcome
from tests import search
from tests.seeds import KEYED_FAILED

SCHEDULES = 5_000
ORDINARY = 200
OFF = Switches(on_downstream=False, during_recovery=False)


def assert_all_hold(outcomes: Iterable[tuple[Outcome, Coverage]], seeds: int) -> Coverage:
    """Return what so many seeds met; whatever fails, each row is counted once, in order, in time."""
    coverage, events, faults, failed = keyed_coverage(), 0, 0, list[Outcome]()
    for outcome, of_chunk in outcomes:
        coverage.add(of_chunk)
        events, faults = events + outcome.events, faults + outcome.faults
        if outcome.error is not None:
            failed.append(outcome)
    told = itertools.islice((f"./run simulate --keyed --replay {each.seed}: {each.error}" for each in failed), 3)
    assert not failed, f"{len(failed)} of {seeds}:\n" + "\n".join(told)
    print(f"{events:,} events, {faults:,} faults, (state, event) pairs: {100 * coverage.share():.1f} %")
    assert events > 1_000 * seeds and faults > 2 * seeds
    return coverage


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)  # two minutes of both cores, which other tests may want as well
def test_five_thousand_schedules_hold_and_converge() -> None:
    """Whatever fails, and however often the query is rescaled."""
    coverage = assert_all_hold(simulate_many(range(SCHEDULES), 2), SCHEDULES)
    assert coverage.share() >= 0.95, coverage.missing()


def test_this_commits_schedules_and_those_that_once_failed_hold_and_converge() -> None:
    """Whatever fails, and however often the query is rescaled."""
    seeds = dict.fromkeys([*KEYED_FAILED, *search.rotating(ORDINARY, SCHEDULES)])
    coverage = keyed_coverage()
    with coverage.recording():
        assert_all_hold(((simulate(KeyedScenario.of(seed))[0], coverage) for seed in seeds), len(seeds))
    assert coverage.share() >= 0.9, coverage.missing()


def pipeline(**changes: Any) -> KeyedScenario:
    """Return a source that is read to its end at once before windows that nothing reaches until all else is over."""
    scenario = KeyedScenario(
        seed=1,
        parallelism=1,
        max_parallelism=100,
        exchanges={"windows": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
        sources={0: (SplitScript(number=0, rows=400, keys=100, first_ms=0, step_ms=1),)},
        read_ms=1,
        read_rows=20,
        cost_ms={1: 0},
        window_ms=1_000,
        queue_buffers=1_000,
        buffer_rows=20,
        room=2,
        interval_ms=10_000,
        first_after_restore_ms=30,
        held_ms=5_000,
    )
    return msgspec.structs.replace(scenario, **changes)


def rescales(*parallelisms: int) -> tuple[Fault, ...]:
    """Return rescales, each soon after the first checkpoint in the recovery from the one before."""
    return tuple(
        Fault(200 * (number + 1), FaultKind.RESCALE, parallelism=parallelism)
        for number, parallelism in enumerate(parallelisms)
    )


def completed(scenario: KeyedScenario) -> tuple[list[tuple[int, int, int]], KeyedCluster]:
    """Run a scenario; return parallelism, rows and bytes of channel state of its checkpoints."""
    outcome, cluster = simulate(scenario)
    assert outcome.error is None, outcome.error
    return [each[1:] for each in cluster.invariants.checkpoints], cluster


def test_ten_rescales_in_a_row_with_a_checkpoint_during_each_recovery() -> None:
    """Channel state does not grow, however often it is recovered and stored again before it is processed."""
    wide = (2, 7, 3, 8, 1, 5, 2, 4, 6, 1)
    checkpoints, cluster = completed(pipeline(faults=rescales(*wide)))

    assert [parallelism for parallelism, _, _ in checkpoints[:11]] == [1, *wide]
    assert {rows for _, rows, _ in checkpoints[:11]} == {400}
    assert 1.0 <= checkpoints[10][2] / checkpoints[0][2] <= 1.05
    assert cluster.filtered and cluster.spilled


def test_the_documents_example_keeps_its_records_and_its_buffer() -> None:
    """Max parallelism 100, one buffer of 100 records, 1 to 10 to 1, twice: 100 records and one buffer's bytes."""
    checkpoints, _ = completed(
        pipeline(
            sources={0: (SplitScript(number=0, rows=100, keys=100, first_ms=0, step_ms=1),)},
            read_rows=100,
            buffer_rows=120,
            faults=rescales(10, 1, 10, 1),
        )
    )
    before, *after = checkpoints[:5]
    assert before[:2] == (1, 100)
    assert [each[:2] for each in after] == [(10, 100), (1, 100), (10, 100), (1, 100)]
    assert [each for each in after if each[0] == 1] == [before, before]


def test_without_a_rescale_nothing_is_filtered() -> None:
    """At unchanged parallelism recovered buffers are taken as they are: the counter stays 0."""
    checkpoints, cluster = completed(pipeline(parallelism=3, faults=rescales(3, 3)))
    assert [each[0] for each in checkpoints[:3]] == [3, 3, 3]
    assert checkpoints[0] == checkpoints[1] == checkpoints[2]
    assert cluster.filtered == 0


def test_with_both_switches_off_there_is_no_checkpoint_until_recovery_is_over() -> None:
    """The old behaviour: output is recovered upstream, and the first checkpoint waits for all that was recovered."""
    faults = rescales(2, 1)
    on, _ = completed(pipeline(faults=faults))
    off, cluster = completed(pipeline(faults=faults, switches=(OFF,)))

    assert [each[0] for each in on[:3]] == [1, 2, 1]
    # Nothing completes at 2: the first checkpoint there would come after 5 s.
    assert [each[0] for each in off[:2]] == [1, 1]
    assert off[1][1] == 0
    assert cluster.era == 3


def test_a_recovery_that_takes_longer_than_a_checkpoint_may_is_not_begun_anew() -> None:
    """Checkpoints time out while channel state is read, and none is tolerated: recovery ends all the same."""
    checkpoints, cluster = completed(
        pipeline(
            seed=3,
            read_rows=4,
            read_state_ms=8,
            timeout_ms=60,
            interval_ms=100,
            tolerable_failed=0,
            held_ms=1_500,
            faults=(Fault(400, FaultKind.RESCALE, parallelism=2),),
        )
    )
    assert cluster.deployments == 2
    assert checkpoints[0][0] == 1
    assert any(parallelism == 2 and rows == 400 for parallelism, rows, _ in checkpoints)


@pytest.mark.parametrize("kind", ["hash", "rebalance", "broadcast", "custom"])
@pytest.mark.parametrize("switches", [Switches(), Switches(during_recovery=False), OFF], ids=["on", "late", "off"])
def test_every_exchange_survives_every_direction(kind: str, switches: Switches) -> None:
    """Up, down and sideways, with rows on their way through two exchanges (FLINK-31963, -35351, -38483)."""
    for seed, way in enumerate(((1, 8), (8, 1), (3, 5), (5, 3), (1, 2))):
        scenario = pipeline(
            seed=seed,
            parallelism=2,
            exchanges={
                "first": ExchangePlan(kind=kind, producer_stage=0, consumer_stage=1),
                "windows": ExchangePlan(kind="hash", producer_stage=1, consumer_stage=2),
            },
            sources={0: tuple(SplitScript(number=each, rows=20, keys=7, first_ms=0, step_ms=10) for each in range(3))},
            read_rows=3,
            cost_ms={1: 3, 2: 7},
            queue_buffers=4,
            buffer_rows=3,
            window_ms=50,
            interval_ms=40,
            first_after_restore_ms=10,
            faults=rescales(*way),
            switches=(switches,),
            held_ms=0,
        )
        completed(
            msgspec.structs.replace(
                scenario,
                faults=tuple(
                    msgspec.structs.replace(fault, at_ms=30 * (number + 1))
                    for number, fault in enumerate(scenario.faults)
                ),
            )
        )
