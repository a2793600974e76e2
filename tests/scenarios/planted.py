"""Looks for a seed of the simulator that finds a planted bug."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from headgate.simulation.planted import Bugs
from headgate.simulation.running import simulate
from headgate.simulation.scenario import Scenario
from headgate.task.exchange.input_gate import InputGate
from tests import search

_SEEDS = range(4_000)


@cache
def _scenarios() -> tuple[Scenario, ...]:
    return tuple(map(Scenario.of, _SEEDS))


def any_of(scenario: Scenario) -> bool:
    return True


def as_it_is(scenario: Scenario) -> Scenario:
    return scenario


def has(kind: str) -> Callable[[Scenario], bool]:
    """Return what is true of scenarios with such an exchange."""
    return lambda each: kind in (each.first_exchange, each.second_exchange)


class Unchecked(InputGate):
    """A gate that does not notice by itself: what must hold of the whole cluster does."""

    def check(self) -> None:
        pass


def first_found(
    what: str,
    seed: int,
    bugs: Bugs | None = None,
    *,
    of: Callable[[Scenario], bool] = any_of,
    change: Callable[[Scenario], Scenario] = as_it_is,
) -> int:
    """Return the first seed, of some, that fails with what the pattern says; an ordinary run tries the given one.

    If that does not find the bug any more, as schedules have changed, or the simulator is weaker, the test fails with
    the seed that does. ``change`` makes the scenario of a seed another one.
    """
    if search.exhaustive:
        return _search(what, bugs, of, change)
    if re.search(what, simulate(change(Scenario.of(seed)), bugs)[0].error or ""):
        return seed
    raise AssertionError(f"seed {seed} finds it no longer; seed {_search(what, bugs, of, change)} does")


def _search(
    what: str, bugs: Bugs | None, of: Callable[[Scenario], bool], change: Callable[[Scenario], Scenario]
) -> int:
    other: list[str] = []
    for scenario in filter(of, _scenarios()):
        error = simulate(change(scenario), bugs)[0].error
        if error is not None:
            if re.search(what, error):
                return scenario.seed
            assert not re.search(r"\b(Attribute|Name|Type)Error: ", error), f"what is planted does not work: {error}"
            other.append(f"{scenario.seed}: {error.splitlines()[0]}")
    raise AssertionError(f"not found in {len(_SEEDS)} seeds; found instead: {other[:5]}")
