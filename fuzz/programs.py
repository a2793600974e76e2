"""``./run fuzz programs``: runs 200 random continuous programs on real Spark, or others for some time, or one again.

    --programs N    how many; 200 without it and without --minutes
    --minutes N     how long at most; a program that is under way is ended
    --seed S        the first seed; without it a random one
    --replay SEED   one program again. What it is and what happens to it is the same; when exactly is up to the machine

Never: decide what is right: Spark's batch of the same rows does.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession

from fuzz.random_programs import Program, shrunk
from fuzz.runner import run_in_new_folder
from local.kafka import running_broker

MAX_PARALLELISM = 4
PROGRAMS = 200
"""How many run if nobody says how many, or for how long."""
_TRIES = 12
"""Runs that make a failing program smaller."""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return what the arguments say: ``programs`` is None if only the time ends it."""
    parser = argparse.ArgumentParser(prog="./run fuzz programs", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=None, help=f"how many (default {PROGRAMS})")
    parser.add_argument("--minutes", type=float, default=None, help="how long at most (default: until all have run)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed (default: a random one)")
    parser.add_argument("--replay", type=int, default=None, metavar="SEED", help="one program again")
    options = parser.parse_args(arguments)
    if options.programs is None and options.minutes is None:
        options.programs = PROGRAMS
    return options


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if a program failed."""
    options = parsed(arguments)
    spark = (
        # A worker that is killed is tried again. Slots of a job that ends and of the next one may be there together.
        SparkSession.builder.master(f"local[{3 * MAX_PARALLELISM},100]").appName("headgate-fuzz")
        .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )  # fmt: skip
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="headgate-fuzz-") as folder, running_broker() as broker:
        try:
            if options.replay is not None:
                return int(not _holds(options.replay, spark, Path(folder), broker.plain))
            seed = random.SystemRandom().randrange(10**9) if options.seed is None else options.seed
            end = None if options.minutes is None else time.monotonic() + 60 * options.minutes

            def holds(each: int) -> bool:
                return _holds(each, spark, Path(folder), broker.plain)

            return int(not all_hold(seed, options.programs, end, holds))
        finally:
            spark.stop()


def all_hold(first: int, programs: int | None, end: float | None, holds: Callable[[int], bool]) -> bool:
    """Try one seed after the other until so many were tried or it is that late; print how many failed."""
    failed = list[int]()
    tried = 0
    for tried in itertools.count():
        if tried == programs or (end is not None and time.monotonic() >= end):
            break
        print(f"{tried + 1}{'' if programs is None else f' of {programs}'}: ", end="", flush=True)
        if not holds(first + tried):
            failed.append(first + tried)
    print(f"{tried} programs from seed {first} on: {len(failed)} failed{''.join(f', {each}' for each in failed)}")
    return not failed


def _holds(seed: int, spark: SparkSession, folder: Path, broker: str) -> bool:
    program = Program.of(seed, MAX_PARALLELISM)
    began = time.monotonic()
    error = run_in_new_folder(program, spark, folder, broker)
    kinds = ", ".join(fault.kind for fault in program.faults) or "no faults"
    took_s = time.monotonic() - began
    print(f"seed {seed}: {program.ending}, {program.slots}, {kinds}: {error or 'equal'} ({took_s:.0f} s)", flush=True)
    if not error:
        return True
    print(program.described(), flush=True)
    smallest = shrunk(program, lambda smaller: bool(run_in_new_folder(smaller, spark, folder, broker)), _TRIES)
    if smallest != program:
        print(f"this fails as well:\n{smallest.described()}")
    print(f"again: ./run fuzz programs --replay {seed}", flush=True)
    return False
