"""Runs seeds of keyed pipelines: one, many in several processes, and a failing one again with fewer faults.

Never: catch what is no failure of the simulated pipeline (a keyboard interrupt, a broken simulator's import).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator

from headgate.protocol.channels import Buffer, ChannelId
from headgate.protocol.state import FileState, SplitState
from headgate.simulation.coverage import Coverage
from headgate.simulation.keyed.cluster import KeyedCluster
from headgate.simulation.keyed.coverage import keyed_coverage
from headgate.simulation.keyed.parts import KeyedParts
from headgate.simulation.keyed.scenario import KeyedScenario
from headgate.simulation.running import Known, Outcome, lines_of, spread


def simulate(scenario: KeyedScenario, parts: KeyedParts | None = None) -> tuple[Outcome, KeyedCluster]:
    """Run a scenario; return what became of it, and the pipeline as it is then."""
    cluster = KeyedCluster(scenario, parts or KeyedParts())
    error: str | None = None
    try:
        cluster.run()
    except Exception as caught:
        where = traceback.format_exception(caught)[-8:]
        error = f"{type(caught).__name__}: {caught}\n{''.join(where)}"
    return Outcome(scenario.seed, error, cluster.events, cluster.faults, cluster.clock.now_ms), cluster


def trace_of(cluster: KeyedCluster) -> list[str]:
    """Return what happened, a line for each event and action; rows as ``split:number``, with their key."""
    return lines_of(cluster.trace, _KNOWN)


def shrink(scenario: KeyedScenario, parts: KeyedParts | None = None) -> KeyedScenario:
    """Return the failing scenario with as few faults as fail, one taken away after the other."""
    smallest = scenario
    for fault in reversed(scenario.faults):
        fewer = smallest.with_faults(tuple(each for each in smallest.faults if each is not fault))
        if simulate(fewer, parts)[0].error is not None:
            smallest = fewer
    return smallest


def simulate_many(seeds: Iterable[int], processes: int) -> Iterator[tuple[Outcome, Coverage]]:
    """Run seeds in several processes; yield outcomes in their order, each chunk's coverage with its last one."""
    for outcomes, coverage in spread(_run_chunk, seeds, processes):
        for outcome in outcomes[:-1]:
            yield outcome, keyed_coverage()
        if outcomes:
            yield outcomes[-1], coverage


def _brief_buffer(buffer: Buffer) -> str:
    rows = " ".join(f"{row.split}:{row.number}({row.key})" for row in buffer.rows)
    return f"<{type(buffer.rows).__name__[0]} {rows}>" if not buffer.unfiltered else f"<unfiltered {rows}>"


_KNOWN: Known = {
    Buffer: _brief_buffer,
    ChannelId: lambda channel: f"{channel.exchange} {channel.producer}>{channel.consumer}",
    SplitState: lambda split: f"{split.split_id}@{split.data.decode()}",
    FileState: lambda file: file.path,
}


def _run_chunk(seeds: list[int]) -> tuple[list[Outcome], Coverage]:
    coverage = keyed_coverage()
    with coverage.recording():
        return [simulate(KeyedScenario.of(seed))[0] for seed in seeds], coverage
