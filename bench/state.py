"""Keyed state that does not fit in memory, and a start from a savepoint with many keys.

spilled is a transformWithState program, a count and a sum for each key, whose state is ten times state.memory, beside
the same with all of it in memory: half as many rows/s is what is required. Every key has as many rows as any other, and
they come in turn: no cache of a tenth of the keys is ever right.

restore-state and restore-aggregate stop a query with a savepoint and start it from that: millions of keys per second
and slot, from the slot's first chunk until the operator is open, beside the million that is required; first-row-state
and first-row-aggregate are the seconds from start() until a row of the restored operator comes out, beside those of the
same query that starts without state.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import Row

import headgate
from bench.frame import CACHE, CORES, Case, Result, WorkerMemory, console, measure, report, result_of, session, wait_for
from bench.keyed_rows import MULTIPLIER, PARTITIONS, PRIME
from headgate.operators.transform_with_state.keyed_store import CELL_BYTES, ENTRY_BYTES

SUMMARY = "state beyond state.memory, and a start from a savepoint with many keys"
CASES = ("spilled", "restore-state", "restore-aggregate")
SPILLED_KEYS, QUICK_SPILLED_KEYS = 500_000, 100_000
ROWS_EACH = 4
KEYS, QUICK_KEYS = 10_000_000, 500_000
TIMES_MEMORY = 10
REQUIRED_KEYS_PER_S = 1e6
PATIENCE_S = 900
_BYTES_EACH = CELL_BYTES + ENTRY_BYTES + 18
"""About what `state.memory` counts of a key with its state of two numbers."""
_NOTE = "<qq"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


class Totals(StatefulProcessor):
    """Counts and sums the rows of each key; gives a row for every ``every``-th.

    Parameters
    ----------
    every
        After how many rows of a key.
    """

    def __init__(self, every: int) -> None:
        self._every = every

    def init(self, handle: Any) -> None:
        """Declare the state."""
        self._total = handle.getValueState("total", "n bigint, total bigint")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        """Count and sum."""
        n, total = self._total.get() or (0, 0)
        out = []
        for row in rows:
            n, total = n + 1, total + row.v
            if n % self._every == 0:
                out.append(Row(key=key[0], n=n, total=total))
        self._total.update((n, total))
        return iter(out)

    def close(self) -> None:
        """There is nothing to close."""


class Noted:
    """Notes when rows came, and how many, for ``mapInArrow``; nothing comes out.

    Parameters
    ----------
    folder
        Where each subtask writes its notes: the time of the machine's monotonic clock, and rows.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def open(self) -> None:
        """Begin a file of this subtask's own."""
        self._file = tempfile.NamedTemporaryFile(dir=self._folder, buffering=0, delete=False)  # noqa: SIM115

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Note the rows of a call."""
        for batch in batches:
            self._file.write(struct.pack(_NOTE, time.monotonic_ns(), batch.num_rows))
        return iter(())


def _notes(folder: str) -> list[tuple[int, int]]:
    return [note for path in Path(folder).iterdir() for note in struct.iter_unpack(_NOTE, path.read_bytes())]


def _rows(spark: SparkSession, keys: int, rows: int | None) -> DataFrame:
    """Return rows of which the first ``keys`` have keys of their own, and as many after them the same in turn."""
    reader = (
        spark.readStream.format("headgate.datagen")
        .option("numPartitions", PARTITIONS).option("rowsPerSecond", 1_000_000_000)
    )  # fmt: skip
    reader = reader if rows is None else reader.option("numRows", rows)
    return reader.schema("value bigint").load().selectExpr(
        f"(value % {keys} + 1) * {MULTIPLIER} % {PRIME} AS key", "value AS v"
    )  # fmt: skip


def _totals(rows: DataFrame, every: int) -> DataFrame:
    grouped: Any = rows.groupBy("key")
    out: DataFrame = grouped.transformWithState(Totals(every), "key bigint, n bigint, total bigint", "update", "None")
    return out.alias("totals")


def _aggregate(rows: DataFrame, every: int) -> DataFrame:
    return rows.groupBy("key").agg(F.count("*").alias("n"), F.sum("v").alias("total")).alias("totals")


@contextlib.contextmanager
def _folders() -> Iterator[tuple[str, str]]:
    """Return a folder for notes and one for checkpoints."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="state-") as folder:
        notes, checkpoints = os.path.join(folder, "notes"), os.path.join(folder, "checkpoints")
        os.mkdir(notes)
        yield notes, checkpoints


def _start(program: DataFrame, notes: str, checkpoints: str, mode: str, options: dict[str, str], **start: Any) -> Any:
    writer = headgate.continuous(program.mapInArrow(Noted(notes), "n long"), parallelism=CORES).writeStream
    writer = writer.format("noop").outputMode(mode).option("checkpointLocation", checkpoints).options(**options)
    return writer.trigger(continuous="5 seconds").start(**start)


def _spilled(spark: SparkSession, keys: int, memory_bytes: int) -> float:
    """Return rows/s of a query whose rows are all there."""
    rows = keys * ROWS_EACH
    with _folders() as (notes, checkpoints):
        program = _totals(_rows(spark, keys, rows), ROWS_EACH)
        query = _start(program, notes, checkpoints, "update", {"state.memory": str(memory_bytes)})
        while query.status["message"] == "starting":
            time.sleep(0.002)
        began = time.monotonic_ns()
        if not query.awaitTermination(PATIENCE_S) or query.exception() is not None:
            query.stop()
            raise SystemExit(f"the query failed, or did not end: {query.exception()}")
        found = _notes(notes)
    if sum(rows for _, rows in found) != keys:
        raise SystemExit(f"{sum(rows for _, rows in found):,} rows came out; it must be {keys:,}, one for each key")
    return rows / (max(at for at, _ in found) - began) * 1e9


_PROGRAMS = {"restore-state": _totals, "restore-aggregate": _aggregate}


def _savepoint(spark: SparkSession, case: str, keys: int) -> str:
    """Return a savepoint of a query that saw every key, made if it is not there yet."""
    folder = str(CACHE / f"{case}-{keys}")
    done = Path(f"{folder}.done")
    if done.exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was interrupted
    console.print(f"{case}: making a savepoint with {keys:,} keys (kept in {folder})", soft_wrap=True)
    with _folders() as (notes, checkpoints):
        query = _start(_PROGRAMS[case](_rows(spark, keys, None), 1), notes, checkpoints, "update", {})
        wait_for(query, lambda: query.status["rowsIn"] > keys * 1.05, within_s=PATIENCE_S, every_s=0.2)
        query.stop(savepoint=folder)
    done.touch()
    return folder


def _first_row(spark: SparkSession, case: str, keys: int, savepoint: str | None) -> tuple[float, float | None]:
    """Return the seconds from a start to the first row out, and those that the slowest slot took for its state."""
    with _folders() as (notes, checkpoints):
        program = _PROGRAMS[case](_rows(spark, keys, None), 1)
        start = {} if savepoint is None else {"fromSavepoint": savepoint}
        began = time.monotonic_ns()
        query = _start(program, notes, checkpoints, "update", {}, **start)
        wait_for(query, lambda: any(rows for _, rows in _notes(notes)), within_s=PATIENCE_S, every_s=0.01)
        if savepoint is not None:
            wait_for(query, lambda: _restored(query) is not None, within_s=PATIENCE_S, every_s=0.1)
        seconds = _restored(query)
        first = min(at for at, rows in _notes(notes) if rows)
        query.stop()
    return (first - began) / 1e9, seconds


def _restored(query: Any) -> float | None:
    """Return the seconds that the slowest slot took for its state; None: one is not through."""
    stages = query.status["restore"]
    if not stages or any(stage["subtasks"] for stage in stages):
        return None
    return max(stage["durationMs"] for stage in stages) / 1000


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    unknown = set(arguments.only or ()) - set(CASES)
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots do not have this module
    rounds = 1 if arguments.quick else arguments.rounds
    memory = WorkerMemory()
    results: list[Result] = []
    spark = session("state")
    for case in arguments.only or CASES:
        if case == "spilled":
            keys = (arguments.rows or 0) // ROWS_EACH or (QUICK_SPILLED_KEYS if arguments.quick else SPILLED_KEYS)
            little = keys * _BYTES_EACH // CORES // TIMES_MEMORY
            sides = [partial(_spilled, spark, keys, size) for size in (little, TIMES_MEMORY * TIMES_MEMORY * little)]
            results.append(measure(Case(case, *sides, "all in memory", unit="rows/s"), rounds, memory, warm_up=False))
        else:
            results += _restores(
                spark, case, arguments.rows or (QUICK_KEYS if arguments.quick else KEYS), rounds, memory
            )
    spark.stop()
    report(
        "state", results, memory,
        f"local[{CORES}], parallelism {CORES}, a count and a sum for each key, a checkpoint every five seconds in a "
        "local folder. rows/s of restore-* are keys per second and slot, until its operator is open; first-row-* are "
        "seconds from start() to the first row out.",
    )  # fmt: skip


def _restores(spark: SparkSession, case: str, keys: int, rounds: int, memory: WorkerMemory) -> list[Result]:
    savepoint = _savepoint(spark, case, keys)
    with memory.watch() as peak:
        found = [_first_row(spark, case, keys, savepoint) for _ in range(rounds)]
        fresh = [_first_row(spark, case, keys, None)[0] for _ in range(rounds)]
    rates = [keys / CORES / seconds for _, seconds in found if seconds is not None]
    rate = result_of(case, rates, [REQUIRED_KEYS_PER_S] * rounds, "required", unit="rows/s")
    rate.worker_mb = peak.megabytes
    first = case.replace("restore", "first-row")
    return [rate, result_of(first, [seconds for seconds, _ in found], fresh, "a start without state")]
