"""From 2 to 64 real slots with an exchange of all with all on two cores: what a slot needs, and how long things take.

A generator that is never done, an exchange whose every channel is full, a function that takes 4 ms per row: nearly all
of the time everything sleeps. Slots are Spark tasks, each a process, or threads of this process. Per slot: threads,
connections to others, memory of its own (the largest slot's; of threads the mean of what the process gained), files of
a checkpoint. In all: seconds of a checkpoint, of a rescale to one slot less, and of a checkpoint after it.
lost-worker: one slot of a query that is not held up is killed: seconds until the stage downstream of it has new rows.

A figure's peer is that of two slots: what a slot needs should not grow at all; seconds in all may grow as slots do.
driver-* is what the driver does for a thousand slots and two stages, without Spark (`bench.scale_driver`).
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.table import Table

import headgate
from bench import scale_driver
from bench.frame import CACHE, Result, WorkerMemory, console, report, result_of, session, wait_for
from bench.unaligned import Slowly, fill

SUMMARY = "2 to 64 slots, all to all: threads, connections, memory, files, seconds"
SLOTS, QUICK_SLOTS = (2, 4, 8, 16, 32, 64), (2, 8)
KINDS = {"tasks": "spark", "threads": "threads"}
ROW_S = 0.004
ROWS_PER_SECOND = 100_000
"""Several times what the slots take, and no more: two cores that generate rows for 64 do nothing else."""
QUIET_S = 2.0
"""So long no further row must have come in: 64 slots that share two cores come on by fits and starts."""
PATIENCE_S = 300.0
REQUIRED_LOST_S = 3.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this bench alone."""
    command.add_argument("--slots", type=int, action="append", help="so many; may be given again")
    command.add_argument("--kind", choices=KINDS, action="append", help="only slots that are tasks, or threads")


@dataclass
class Figures:
    """What was measured with so many slots.

    Parameters
    ----------
    threads, connections, memory_mib, files
        Of a slot.
    checkpoint_s, rescale_s, next_checkpoint_s, lost_s
        In all; None: not measured.
    """

    threads: float
    connections: float
    memory_mib: float
    files: float
    checkpoint_s: float
    rescale_s: float
    next_checkpoint_s: float
    lost_s: float | None = None


def _start(spark: SparkSession, slots: int, kind: str, folder: str, row_s: float, rate: int) -> Any:
    rows = (
        spark.readStream.format("headgate.datagen").option("rowsPerSecond", rate).option("numPartitions", slots)
        .option("fields.k.min", 0).option("fields.k.max", 1_000_000).option("fields.payload.length", 1000)
        .option("fields.payload.cardinality", 4)
        .schema("k long, payload string").load().repartition(F.col("k"))
    )  # fmt: skip
    program = rows.mapInArrow(Slowly(1000 * row_s), "k long") if row_s else rows
    writer = headgate.continuous(program, parallelism=slots).writeStream.format("noop")
    options = {
        "slots": KINDS[kind], "checkpointLocation": folder,
        # 64 processes on two cores are not heard of for ten seconds while they begin.
        "heartbeat.timeout": "60 seconds", "task.stuck.timeout": "2 minutes",
    }  # fmt: skip
    return writer.options(**options).trigger(continuous="10 minutes" if row_s else "1 second").start()


def _wait(query: Any, condition: Callable[[dict[str, Any]], bool]) -> None:
    if not wait_for(query, lambda: condition(query.status), PATIENCE_S):
        raise SystemExit(f"waited in vain: {query.status}")


def _seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _of_process(process: psutil.Process) -> tuple[int, int, float]:
    """Return the threads, the connections and the memory of its own, in MiB, of a process."""
    there = [each for each in process.net_connections(kind="tcp") if each.status == psutil.CONN_ESTABLISHED]
    return process.num_threads(), len(there), process.memory_full_info().uss / 2**20


def _needed(query: Any, slots: int, before: tuple[int, int, float]) -> tuple[float, float, float]:
    """Return what a slot has: the one that has most, or, of threads, the mean of what this process has gained."""
    pids = {each["pid"] for each in query.status["slots"]}
    if pids == {os.getpid()}:
        now = _of_process(psutil.Process())
        return tuple((mine - his) / slots for mine, his in zip(now, before))  # type: ignore[return-value]
    found = [_of_process(psutil.Process(pid)) for pid in pids]
    return tuple(map(max, zip(*found)))  # type: ignore[return-value]


def _measured(spark: SparkSession, slots: int, kind: str) -> Figures:
    before = _of_process(psutil.Process())
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="scale-", ignore_cleanup_errors=True) as folder:
        query = _start(spark, slots, kind, folder, ROW_S, ROWS_PER_SECOND)
        fill(query, QUIET_S, PATIENCE_S)
        threads, connections, memory = _needed(query, slots, before)
        began = time.monotonic()
        checkpoint = query.checkpoint()
        checkpoint_s = time.monotonic() - began
        files = sum(len(names) for _, _, names in os.walk(Path(folder) / f"chk-{checkpoint}")) / slots
        rescale_s = _seconds(lambda: query.rescale(slots - 1))
        next_s = _seconds(query.checkpoint)
        query.stop()
    figures = Figures(threads, connections, memory, files, checkpoint_s, rescale_s, next_s)
    if kind == "tasks":
        figures.lost_s = _lost(spark, slots)
    return figures


def _lost(spark: SparkSession, slots: int) -> float:
    """Return the seconds from the death of a slot until rows come out of the query again."""
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="scale-", ignore_cleanup_errors=True) as folder:
        query = _start(spark, slots, "tasks", folder, 0, 20_000)
        _wait(query, lambda status: status["rowsOut"] > 0 and status["completed_checkpoint"] is not None)
        time.sleep(QUIET_S)
        (victim, *_) = [each["pid"] for each in query.status["slots"]]
        os.kill(victim, signal.SIGKILL)
        began = time.monotonic()
        _wait(query, lambda status: victim not in {each["pid"] for each in status["slots"]})
        rows = query.status["rowsOut"]
        _wait(query, lambda status: status["message"] == "running" and status["rowsOut"] > rows)
        lost_s = time.monotonic() - began
        query.stop()
    return lost_s


_NAMES = [each.name for each in fields(Figures) if each.name != "lost_s"]


def _show(found: dict[tuple[str, int], Figures]) -> None:
    table = Table(title="of a slot, and in all", title_justify="left", header_style="bold")
    for heading in ("slots", "", "threads", "connections", "own MiB", "files", "checkpoint s", "rescale s", "next s",
                    "lost s"):  # fmt: skip
        table.add_column(heading, justify="right")
    for (kind, slots), each in found.items():
        figures = [f"{getattr(each, name):.2f}".removesuffix(".00") for name in _NAMES]
        table.add_row(str(slots), kind, *figures, "" if each.lost_s is None else f"{each.lost_s:.2f}")
    console.print(table)


def _driver() -> list[Result]:
    """Return what a thousand slots cost the driver, beside what is required."""
    found = scale_driver.run(1_000, 10)
    checkpoint, required_s = found["checkpoint"], scale_driver.REQUIRED_S
    figures = (
        ("assign", found["assign"]["seconds"], required_s, "s"), ("checkpoint", checkpoint["seconds"], required_s, "s"),
        ("manifest", checkpoint["manifest bytes"] / 1e6, scale_driver.REQUIRED_MANIFEST_BYTES / 1e6, "MB"),
        ("messages", found["messages"]["messages/s"], scale_driver.REQUIRED_PER_S, "rows/s"),
    )  # fmt: skip
    return [result_of(f"driver-{name}", [figure], [needed], "required", unit) for name, figure, needed, unit in figures]


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    numbers = arguments.slots or (QUICK_SLOTS if arguments.quick else SLOTS)
    kinds = arguments.kind or (["tasks"] if arguments.quick else list(KINDS))
    spark = session("scale", master=f"local[{2 * max(numbers)},100]")
    found = {}
    for kind in kinds:
        for slots in sorted(numbers):
            console.print(f"{slots} slots ({kind})", style="dim")
            found[kind, slots] = _measured(spark, slots, kind)
    spark.stop()
    _show(found)
    results, times = [], max(numbers) / min(numbers)
    for kind in kinds:
        least, most = (found[kind, edge(numbers)] for edge in (min, max))
        for name in _NAMES:
            allowed = getattr(least, name) * (times if name.endswith("_s") else 1)
            unit = "s" if name.endswith("_s") else "MiB" if name == "memory_mib" else "a slot"
            case = f"{kind}-{name.removesuffix('_s').removesuffix('_mib')}"
            results.append(result_of(case, [getattr(most, name)], [allowed], "2 slots", unit))
        if most.lost_s is not None:
            results.append(result_of("lost-worker", [most.lost_s], [REQUIRED_LOST_S], "required"))
    results += _driver()
    report(
        "scale", results, WorkerMemory(),
        f"{max(numbers)} slots beside {min(numbers)}: what a slot needs is to be the same, seconds may be "
        f"{times:.0f} times as many. Rows of 1 KB, every channel full.",
    )  # fmt: skip
