"""``python -m headgate.simulation``: runs fresh seeds, or one again, and prints what fails with its shortest trace.

    --seeds N [--first S]   N seeds from S on, in two processes; without S from a random one
    --replay SEED           one seed again, exactly as it was
    --lines N               how many of the last lines of a trace are printed

Never: decide what is wrong: the machines' checks and the invariants do.
"""

from __future__ import annotations

import argparse
import random
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from headgate.simulation.coverage import Coverage
from headgate.simulation.running import Outcome, shrink, simulate, simulate_many, trace_of
from headgate.simulation.scenario import Scenario

_PROCESSES = 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return 1 if a seed failed."""
    parser = argparse.ArgumentParser(prog="python -m headgate.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2000, help="how many seeds")
    parser.add_argument("--first", type=int, default=None, help="the first of them")
    parser.add_argument("--replay", type=int, default=None, help="one seed, again")
    parser.add_argument("--lines", type=int, default=80, help="how many lines of a trace are printed")
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    if options.replay is not None:
        outcome, _ = simulate(Scenario.of(options.replay))
        _notify(console, outcome, options.lines)
        return int(outcome.error is not None)
    first = random.SystemRandom().randrange(10**9) if options.first is None else options.first
    failed = _run(console, first, options.seeds)
    for outcome in failed:
        _notify(console, outcome, options.lines)
    return int(bool(failed))


def _run(console: Console, first: int, count: int) -> list[Outcome]:
    """Run seeds up to the first that fails, and show how far it is; print the sums; return what failed."""
    coverage, began, seen, failed = Coverage(), time.monotonic(), list[Outcome](), list[Outcome]()
    columns = (TextColumn("seeds"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("seeds", total=count)
        for outcome, of_chunk in simulate_many(range(first, first + count), _PROCESSES):
            progress.advance(task)
            coverage.add(of_chunk)
            seen.append(outcome)
            if outcome.error is not None:
                failed.append(outcome)
                break
    seconds = time.monotonic() - began
    events, faults = sum(each.events for each in seen), sum(each.faults for each in seen)
    console.print(
        f"seeds {first} to {first + len(seen) - 1}: {len(failed)} failed; {events:,} events, {faults:,} faults, "
        f"{sum(each.virtual_ms for each in seen) / 3_600_000:.1f} hours of virtual time in {seconds:.0f} s"
    )
    console.print(f"(state, event) pairs met: {100 * coverage.share():.1f} %")
    for name, pairs in coverage.missing().items():
        if pairs:
            console.print(f"  {name} without: {', '.join(f'{state}/{event}' for state, event in pairs)}")
    return failed


def _notify(console: Console, outcome: Outcome, lines: int) -> None:
    """Print an outcome; of a failing one the fewest faults that fail, and what happened last."""
    events, faults, virtual_ms = outcome.events, outcome.faults, outcome.virtual_ms
    console.print(f"seed {outcome.seed}: {events} events, {faults} faults, {virtual_ms} ms of virtual time")
    if outcome.error is None:
        return
    smallest = shrink(Scenario.of(outcome.seed))
    again, cluster = simulate(smallest)
    console.print(f"{smallest}; the faults:", markup=False)
    for fault in smallest.faults:
        console.print(f"  {fault}", markup=False)
    for line in trace_of(cluster)[-lines:]:
        console.print(line, markup=False)
    console.print(again.error or "", markup=False)
    console.print(f"again: ./run simulate --replay {outcome.seed}")


if __name__ == "__main__":
    sys.exit(main())
