"""Scenarios of a simulated cluster that have a name: rescales in a row, FLIP-547's example, every exchange."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.operators.exchange import ExchangeKind
from headgate.runtime.channel_recovery_thread import Recovery
from headgate.runtime.input_exchanges import InputExchanges
from headgate.simulation.fault_kinds import Fault, FaultKind
from headgate.simulation.invariants import Invariants
from headgate.simulation.running import simulate
from headgate.simulation.scenario import Scenario, Switches
from headgate.simulation.slot_process import SlotProcess
from tests.scenarios.pipelines import HELD_MS, pipeline, rescales, source

OFF = Switches(on_downstream=False, during_recovery=False)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing that comes through an exchange be processed until all else is over."""
    poll = InputExchanges.poll

    def later(inputs: InputExchanges, *, overdraft: bool) -> bool:
        return inputs._now_ms() > HELD_MS and poll(inputs, overdraft=overdraft)

    monkeypatch.setattr(InputExchanges, "poll", later)


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, int]]:
    """Return a list that is filled with the parallelism, the rows and the bytes of channel state of checkpoints."""
    seen: list[tuple[int, int, int]] = []
    on_manifest = Invariants.on_manifest

    def noting(invariants: Invariants, manifest: Any) -> None:
        channels = manifest.channels
        seen.append(
            (manifest.parallelism, sum(each.rows for each in channels), sum(each.size_bytes for each in channels))
        )
        on_manifest(invariants, manifest)

    monkeypatch.setattr(Invariants, "on_manifest", noting)
    return seen


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return what recoveries count, of all subtasks."""
    counted: dict[str, int] = {}
    count = Recovery._count

    def counting(recovery: Recovery, **counts: int) -> None:
        for name, number in counts.items():
            counted[name] = counted.get(name, 0) + number
        count(recovery, **counts)

    monkeypatch.setattr(Recovery, "_count", counting)
    return counted


def run(scenario: Scenario) -> None:
    outcome, _ = simulate(scenario)
    assert outcome.error is None, outcome.error


@pytest.mark.usefixtures("held")
def test_ten_rescales_in_a_row_with_a_checkpoint_during_each_recovery(
    stored: list[tuple[int, int, int]], counts: dict[str, int]
) -> None:
    """Channel state does not grow, however often it is recovered and stored again before it is processed."""
    wide = (2, 7, 3, 8, 1, 5, 2, 4, 6, 1)
    run(pipeline(target_bytes=1_500, faults=rescales(*wide)))

    assert [parallelism for parallelism, _, _ in stored[:11]] == [1, *wide]
    assert {rows for _, rows, _ in stored[:11]} == {400}
    assert 1.0 <= stored[10][2] / stored[0][2] <= 1.05
    assert counts["rows_filtered"] and counts["buffers_spilled"]


@pytest.mark.usefixtures("held")
def test_the_documents_example_keeps_its_records_and_its_buffer(stored: list[tuple[int, int, int]]) -> None:
    """Max parallelism 100, one buffer of 100 records, 1 to 10 to 1, twice: 100 records and one buffer's bytes."""
    run(pipeline(sources=(source(100, keys=100, batch_rows=100_000),), faults=rescales(10, 1, 10, 1)))
    before, *after = stored[:5]
    assert before[:2] == (1, 100)
    assert [each[:2] for each in after] == [(10, 100), (1, 100), (10, 100), (1, 100)]
    assert [each for each in after if each[0] == 1] == [before, before]


@pytest.mark.usefixtures("held")
def test_without_a_rescale_nothing_is_filtered(stored: list[tuple[int, int, int]], counts: dict[str, int]) -> None:
    """At unchanged parallelism recovered buffers are taken as they are: the counter stays 0."""
    run(pipeline(parallelism=3, faults=rescales(3, 3)))
    assert [parallelism for parallelism, _, _ in stored[:3]] == [3, 3, 3]
    assert stored[0] == stored[1] == stored[2]
    assert counts["rows_read"] and "rows_filtered" not in counts


@pytest.mark.usefixtures("held")
def test_with_both_switches_off_there_is_no_checkpoint_until_recovery_is_over(
    stored: list[tuple[int, int, int]],
) -> None:
    """The old behaviour: output is recovered upstream, and the first checkpoint waits for all that was recovered."""
    run(pipeline(faults=rescales(2, 1)))
    assert [rows for _, rows, _ in stored[:3]] == [400, 400, 400]
    stored.clear()

    run(pipeline(faults=(*rescales(2), Fault(5_000, FaultKind.STOP, 0, 1)), switches=(OFF,)))
    assert [each[:2] for each in stored[:2]] == [(1, 400), (1, 0)]  # none at 2


@pytest.mark.usefixtures("held")
def test_a_recovery_that_takes_longer_than_a_checkpoint_may_is_not_begun_anew(
    stored: list[tuple[int, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints time out while channel state is read, and none is tolerated: recovery ends all the same."""
    monkeypatch.setattr(SlotProcess, "read_ms", lambda slot: 900 if len(stored) == 1 else 1)
    run(
        pipeline(
            seed=3, sources=(source(400, keys=100, batch_rows=100),), checkpoint_timeout_ms=600, interval_ms=700,
            faults=rescales(2),
        )
    )  # fmt: skip
    assert [parallelism for parallelism, _, _ in stored[:2]] == [1, 2]
    assert stored[1][1] == stored[0][1]


@pytest.mark.parametrize("kind", ["hash", "rebalance", "broadcast", "custom"])
@pytest.mark.parametrize("switches", [Switches(), Switches(during_recovery=False), OFF], ids=["on", "late", "off"])
def test_every_exchange_survives_every_direction(kind: ExchangeKind, switches: Switches) -> None:
    """Up, down and sideways, with rows on their way through two exchanges (FLINK-31963, -35351, -38483)."""
    for seed, way in enumerate(((1, 6), (6, 1), (3, 5))):
        run(
            pipeline(
                seed=seed, parallelism=2, first_exchange=kind, row_ms=5, switches=(switches,),
                sources=(source(20, 20, 20, keys=7, batch_rows=3),), interval_ms=100, first_checkpoint_ms=10,
                target_bytes=400, faults=rescales(*way), phase_ms=4_000,
            )
        )  # fmt: skip
