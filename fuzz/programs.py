"""``./run fuzz programs``: runs random continuous programs on real Spark until the time is over, or one again.

    --minutes N     how long; a program that is under way is ended
    --seed S        the first seed; without it a random one
    --replay SEED   one program again. What it is and what happens to it is the same; when exactly is up to the machine

Never: decide what is right: Spark's batch of the same rows does.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

from pyspark.sql import SparkSession

from fuzz.random_programs import Program, shrunk
from fuzz.runner import run_in_new_folder
from local.kafka import running_broker

MAX_PARALLELISM = 4
_TRIES = 12
"""Runs that make a failing program smaller."""


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if a program failed."""
    parser = argparse.ArgumentParser(prog="./run fuzz programs", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="the first seed")
    parser.add_argument("--replay", type=int, default=None, metavar="SEED", help="one program again")
    options = parser.parse_args(arguments)
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
            return int(not _all_hold(seed, options.minutes, spark, Path(folder), broker.plain))
        finally:
            spark.stop()


def _all_hold(first: int, minutes: float, spark: SparkSession, folder: Path, broker: str) -> bool:
    end, seed, failed = time.monotonic() + 60 * minutes, first, list[int]()
    while time.monotonic() < end:
        if not _holds(seed, spark, folder, broker):
            failed.append(seed)
        seed += 1
    print(f"seeds {first} to {seed - 1}: {len(failed)} failed{''.join(f', {each}' for each in failed)}")
    return not failed


def _holds(seed: int, spark: SparkSession, folder: Path, broker: str) -> bool:
    program = Program.of(seed, MAX_PARALLELISM)
    began = time.monotonic()
    error = run_in_new_folder(program, spark, folder, broker)
    kinds = ", ".join(fault.kind for fault in program.faults) or "no faults"
    print(f"seed {seed}: {program.ending}, {kinds}: {error or 'equal'} ({time.monotonic() - began:.0f} s)", flush=True)
    if not error:
        return True
    print(program.described(), flush=True)
    smallest = shrunk(program, lambda smaller: bool(run_in_new_folder(smaller, spark, folder, broker)), _TRIES)
    if smallest != program:
        print(f"this fails as well:\n{smallest.described()}")
    print(f"again: ./run fuzz programs --replay {seed}", flush=True)
    return False
