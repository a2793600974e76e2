"""``python -m headgate.simulation``: runs fresh seeds, or one again, and prints what fails with its shortest trace.

    --seeds N [--first S]   N seeds from S on, in two processes; without S from a random one; then as many keyed ones
    --keyed                 keyed pipelines only (`headgate.simulation.keyed`): seeds of theirs are others
    --replay SEED           one seed again, exactly as it was; a keyed one with --keyed
    --lines N               how many of the last lines of a trace are printed

Never: decide what is wrong: the machines' checks and the invariants do.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.simulation.coverage import Coverage
from headgate.simulation.keyed import running as keyed
from headgate.simulation.keyed.coverage import keyed_coverage
from headgate.simulation.keyed.scenario import KeyedScenario, describe
from headgate.simulation.running import Outcome, shrink, simulate, simulate_many, trace_of
from headgate.simulation.scenario import Scenario

_PROCESSES = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m headgate.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds")
    parser.add_argument("--first", type=int, default=None, help="the first of them")
    parser.add_argument("--replay", type=int, default=None, help="one seed, again")
    parser.add_argument("--keyed", action="store_true", help="keyed pipelines only")
    parser.add_argument("--lines", type=int, default=80, help="how many lines of a trace are printed")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if options.replay is not None:
        if options.keyed:
            keyed_outcome, _ = keyed.simulate(KeyedScenario.of(options.replay))
            _tell_keyed(console, keyed_outcome, options.lines)
            return int(keyed_outcome.error is not None)
        outcome, _ = simulate(Scenario.of(options.replay))
        _tell(console, outcome, options.lines)
        return int(outcome.error is not None)
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    failed = not options.keyed and _run(console, first, options.seeds, options.lines)
    return int(failed or _run_keyed(console, first, options.seeds, options.lines))


def _run(console: Console, first: int, count: int, lines: int) -> bool:
    """Run seeds; return whether one failed."""
    outcomes = simulate_many(range(first, first + count), _PROCESSES)
    failed = _watch(console, "seeds", outcomes, Coverage(), first, count)
    for outcome in failed:
        _tell(console, outcome, lines)
    return bool(failed)


def _run_keyed(console: Console, first: int, count: int, lines: int) -> bool:
    """Run seeds of keyed pipelines; return whether one failed."""
    outcomes = keyed.simulate_many(range(first, first + count), _PROCESSES)
    failed = _watch(console, "keyed seeds", outcomes, keyed_coverage(), first, count)
    for outcome in failed:
        _tell_keyed(console, outcome, lines)
    return bool(failed)


def _watch(
    console: Console,
    what: str,
    outcomes: Iterator[tuple[Outcome, Coverage]],
    coverage: Coverage,
    first: int,
    count: int,
) -> list[Outcome]:
    """Show how far it is, up to the first that fails; print the sums; return what failed."""
    began, seen, failed = time.monotonic(), list[Outcome](), list[Outcome]()
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=count)
        for outcome, of_chunk in outcomes:
            progress.advance(task)
            coverage.add(of_chunk)
            seen.append(outcome)
            if outcome.error is not None:
                failed.append(outcome)
                break
    seconds = time.monotonic() - began
    events, faults = sum(each.events for each in seen), sum(each.faults for each in seen)
    console.print(
        f"{what} {first} to {first + len(seen) - 1}: {len(failed)} failed; {events:,} events, {faults:,} faults, "
        f"{sum(each.virtual_ms for each in seen) / 3_600_000:.1f} hours of virtual time in {seconds:.0f} s"
    )
    console.print(f"(state, event) pairs met: {100 * coverage.share():.1f} %")
    for name, pairs in coverage.missing().items():
        if pairs:
            console.print(f"  {name} without: {', '.join(f'{state}/{event}' for state, event in pairs)}")
    return failed


def _tell(console: Console, outcome: Outcome, lines: int) -> None:
    """Print an outcome; of a failing one the fewest faults that fail, and what happened last."""
    _tell_sums(console, outcome)
    if outcome.error is None:
        return
    smallest = shrink(Scenario.of(outcome.seed))
    again, cluster = simulate(smallest)
    console.print(f"parallelism {smallest.parallelism}, failover-strategy {smallest.failover_strategy}; the faults:")
    _tell_story(console, smallest.faults, trace_of(cluster)[-lines:], again.error)
    console.print(f"again: ./run simulate --replay {outcome.seed}")


def _tell_keyed(console: Console, outcome: Outcome, lines: int) -> None:
    """The same of a keyed pipeline."""
    _tell_sums(console, outcome)
    if outcome.error is None:
        return
    smallest = keyed.shrink(KeyedScenario.of(outcome.seed))
    again, cluster = keyed.simulate(smallest)
    console.print(f"{describe(smallest)}; the faults:", markup=False)
    _tell_story(console, smallest.faults, keyed.trace_of(cluster)[-lines:], again.error)
    console.print(f"again: ./run simulate --keyed --replay {outcome.seed}")


def _tell_sums(console: Console, outcome: Outcome) -> None:
    events, faults, virtual_ms = outcome.events, outcome.faults, outcome.virtual_ms
    console.print(f"seed {outcome.seed}: {events} events, {faults} faults, {virtual_ms} ms of virtual time")


def _tell_story(console: Console, faults: Sequence[object], lines: Sequence[str], error: str | None) -> None:
    for fault in faults:
        console.print(f"  {fault}", markup=False)
    for line in lines:
        console.print(line, markup=False)
    console.print(error or "", markup=False)


if __name__ == "__main__":
    sys.exit(main())
