"""Runs seeds: one, many in several processes, and a failing one again and again with fewer faults.

Never: catch what is no failure of the simulated cluster (a keyboard interrupt, a broken simulator's import).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from enum import Enum
from multiprocessing import get_context
from typing import Any

import msgspec

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.messages import Envelope
from headgate.protocol.state import SplitState
from headgate.simulation.cluster import Cluster
from headgate.simulation.coverage import Coverage
from headgate.simulation.faults import inject
from headgate.simulation.planted import Bugs, planted
from headgate.simulation.scenario import Scenario

_CHUNK = 20  # seeds that a process takes at a time


class Outcome(msgspec.Struct, frozen=True):
    """What became of a seed.

    Parameters
    ----------
    seed
        Which one.
    error
        What does not hold; None: everything does.
    events, faults
        How many events machines were given, and how many faults happened.
    virtual_ms
        How long it took the cluster.
    """

    seed: int
    error: str | None
    events: int
    faults: int
    virtual_ms: int


def simulate(scenario: Scenario, bugs: Bugs | None = None) -> tuple[Outcome, Cluster]:
    """Run a scenario; return what became of it, and the cluster as it is then."""
    cluster = Cluster(scenario, inject)
    error: str | None = None
    logging.disable(logging.ERROR)  # subtasks log each fault
    try:
        with planted(bugs or {}):
            cluster.run()
    except Exception as caught:
        where = traceback.format_exception(caught)[-8:]
        error = f"{type(caught).__name__}: {caught}\n{''.join(where)}"
    finally:
        logging.disable(logging.NOTSET)
    outcome = Outcome(scenario.seed, error, cluster.events, cluster.faults, cluster.clock.now_ms)
    return outcome, cluster


def trace_of(cluster: Cluster) -> list[str]:
    """Return what happened, a line for each event and action."""
    return [f"{now_ms:6} ms  {who:24} {arrow} {_brief(what)}" for now_ms, who, arrow, what in cluster.trace]


def _brief(what: Any) -> str:
    """Return an event, action or message in few words: splits as ``id@position``, bytes by their number."""
    if isinstance(what, SplitState):
        split = msgspec.json.decode(what.data)
        return f"{what.split_id}@{split.get('unit', split.get('position'))}"
    if isinstance(what, Envelope):
        return f"#{what.number} {_brief(what.message)}"
    if isinstance(what, Manifest):
        return f"epoch {what.epoch}"
    if isinstance(what, bytes):
        return f"{len(what)} bytes"
    if isinstance(what, Enum):
        return str(what.value)
    if isinstance(what, dict):
        return "{" + ", ".join(f"{_brief(key)}: {_brief(each)}" for key, each in what.items()) + "}"
    if isinstance(what, tuple):
        return "[" + ", ".join(map(_brief, what)) + "]"
    if isinstance(what, msgspec.Struct):
        fields = ((name, getattr(what, name)) for name in what.__struct_fields__ if name not in ("stage", "pickled"))
        shown = [f"{name}={_brief(each)}" for name, each in fields if each not in ((), {}, None, "")]
        return f"{type(what).__name__}({', '.join(shown)})"
    return str(what)


def shrink(scenario: Scenario, bugs: Bugs | None = None) -> Scenario:
    """Return the failing scenario with as few faults as fail, one taken away after the other."""
    smallest = scenario
    for fault in reversed(scenario.faults):
        fewer = smallest.with_faults(tuple(each for each in smallest.faults if each is not fault))
        if simulate(fewer, bugs)[0].error is not None:
            smallest = fewer
    return smallest


def simulate_many(seeds: Iterable[int], processes: int) -> Iterator[tuple[Outcome, Coverage]]:
    """Run seeds in several processes; yield outcomes as they come, each chunk's coverage with its last one."""
    seeds = list(seeds)
    chunks = [seeds[begin : begin + _CHUNK] for begin in range(0, len(seeds), _CHUNK)]
    # Not forked: what a process with threads of gRPC's forks hangs as soon as it frees one of gRPC's objects.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for outcomes, coverage in pool.map(_run_chunk, chunks):
            for outcome in outcomes[:-1]:
                yield outcome, Coverage()
            yield outcomes[-1], coverage


def _run_chunk(seeds: list[int]) -> tuple[list[Outcome], Coverage]:
    coverage = Coverage()
    with coverage.recording():
        return [simulate(Scenario.of(seed))[0] for seed in seeds], coverage
