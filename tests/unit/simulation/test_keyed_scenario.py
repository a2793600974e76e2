"""Scenarios of keyed pipelines: which stages hold rows, who is idle together, where a split may be idle."""

from __future__ import annotations

import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.simulation.keyed.scenario import KeyedScenario, SplitScript


def chain(*kinds: str, **changes: int) -> KeyedScenario:
    """Return a source and a stage behind each exchange, in a row."""
    exchanges = {
        str(stage): ExchangePlan(kind=kind, producer_stage=stage, consumer_stage=stage + 1)
        for stage, kind in enumerate(kinds)
    }
    scripts = (
        SplitScript(number=0, rows=10, keys=1, first_ms=0, step_ms=5),
        SplitScript(number=1, rows=20, keys=1, first_ms=3, step_ms=changes.get("step_ms", 5)),
    )
    sources = {0: scripts[: changes.get("splits", 2)]}
    return KeyedScenario(
        seed=0, parallelism=1, max_parallelism=8, exchanges=exchanges, sources=sources, cost_ms={}, holds=True
    )


@pytest.mark.parametrize(
    ("kinds", "together"),
    [
        (("hash", "hash"), [False, True]),
        (("rebalance", "hash"), [False, True]),
        (("forward", "hash"), [False, False]),
        (("hash", "forward", "hash"), [False, True, True]),
        (("forward", "forward", "hash"), [False, False, False]),
    ],
)
def test_who_is_idle_together(kinds: tuple[str, ...], together: list[bool]) -> None:
    """Whoever stands behind exchanges that tell all the same; sources do not."""
    scenario = chain(*kinds)
    assert [scenario.idles_together(each.producer_stage) for each in scenario.exchanges.values()] == together


def test_only_stages_behind_nothing_but_keys_hold_rows() -> None:
    """Neither sources nor the windows at the end do."""
    scenario = chain("hash", "rebalance", "hash")
    assert [scenario.holds_at(stage) for stage in range(4)] == [False, True, False, False]


def test_a_split_is_idle_only_before_rows_that_are_no_earlier_than_others() -> None:
    """Nobody waits for it: what is left would be late otherwise."""
    shorter, longer = (scenario := chain("hash")).sources[0]
    assert (scenario.pause_of(shorter), scenario.pause_of(longer)) == (None, 10)
    latest_ms = shorter.row(9).event_ms
    slow = (scenario := chain("hash", step_ms=3)).sources[0][1]
    assert scenario.pause_of(slow) == 14
    assert slow.row(13).event_ms < latest_ms <= slow.row(14).event_ms
    assert chain("hash", splits=1).pause_of(shorter) == 5
