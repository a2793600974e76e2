"""What a row costs as the slots become more: processor time, from 2 to 64 slots on two cores.

Slots are Spark tasks, each a process. A generator that is never done feeds a continuous query; when every subtask has
had rows, the first checkpoint and some seconds are over, the operating system's count of the processor time of all
slots' processes is read, and again two to five seconds later, --rounds times. It is divided by the rows that went
through meanwhile: those that came out of the exchange, as rows of the source. Neither start nor end is in it, nor the
driver, nor a checkpoint, unless the first takes longer than 20 s.

passthrough has no exchange. exchange sends rows to the slot of their key, and nothing is done with them there. windows
counts and adds up by 10,000 keys in windows of ten seconds, sessions adds up in sessions of fifty rows, dedup drops
duplicates and finds none, join joins two streams within two seconds (two rows come out for a row of the left one),
state counts and adds up by key in transformWithState. A row of a case should cost the same at any number of slots: its
peer is the same case at 2, and the ratio is the cost there over the cost here.

skew is the windows with one key in half of all rows, beside Structured Streaming, in rows/s, at two slots.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.table import Table

import headgate
from bench import keyed, state
from bench.frame import CACHE, CORES, Result, WorkerMemory, console, measure, report, result_of, session, wait_for
from bench.keyed_rows import KEYS, ROW_US, key_of

SUMMARY = "processor time a row, from 2 to 64 slots"
SLOTS, QUICK_SLOTS = (2, 4, 8, 16, 32, 64), (2, 16)
SKEW = "skew"
LEAST_S, MOST_S = 2.0, 5.0
"""Of a round: longer with more slots, each of which has less of the cores."""
PATIENCE_S, CHECKPOINT_S = 600.0, 20.0
BURST_ROWS, BURST_KEYS = 50_000, 1_000
"""Of sessions: so many rows have so many keys, which ten times as many rows later come again."""
PICTURE = Path(__file__).resolve().parent.parent / "docs" / "images" / "growth.png"


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of this bench alone."""
    command.add_argument("--slots", type=int, action="append", help="2 and so many; may be given again")
    command.add_argument("--picture", action="store_true", help=f"draw {PICTURE.name} for the docs")


# The cases.


def _rows(spark: SparkSession, slots: int, prefix: str = "") -> DataFrame:
    """Return rows without end, with the keys and event times of the bench keyed; each slot makes its own."""
    return (
        spark.readStream.format("headgate.datagen")
        .option("numPartitions", slots).option("rowsPerSecond", 1_000_000_000)
        .schema("value bigint").load()
        .selectExpr(f"{key_of()} AS {prefix}key", f"value AS {prefix}v",
                    f"timestamp_micros(value * {ROW_US}) AS {prefix}at")
    )  # fmt: skip


def _dedup(spark: SparkSession, slots: int) -> DataFrame:
    return _rows(spark, slots).withWatermark("at", "10 seconds").dropDuplicates(["key", "at"])


def _join(spark: SparkSession, slots: int) -> DataFrame:
    left, right = (_rows(spark, slots, side).withWatermark(f"{side}at", "0 seconds") for side in ("", "r"))
    return left.join(right, F.expr("key = rkey AND rat BETWEEN at AND at + INTERVAL 2 SECONDS"))


def _sessions(spark: SparkSession, slots: int) -> DataFrame:
    burst = F.expr(f"v DIV {BURST_ROWS} % {KEYS // BURST_KEYS} * {BURST_KEYS} + key % {BURST_KEYS}")
    rows = _rows(spark, slots).withColumn("key", burst).withWatermark("at", "0 seconds")
    return rows.groupBy(F.session_window("at", "5 seconds"), "key").agg(F.sum("v").alias("total"))


def _state(spark: SparkSession, slots: int) -> DataFrame:
    grouped: Any = _rows(spark, slots).groupBy("key")
    program: DataFrame = grouped.transformWithState(
        state.Totals(100), "key bigint, n bigint, total bigint", "update", "None"
    )
    return program


CASES: dict[str, Callable[[SparkSession, int], DataFrame]] = {
    "passthrough": _rows,
    "exchange": lambda spark, slots: _rows(spark, slots).repartition("key"),
    "windows": lambda spark, slots: keyed.windows(_rows(spark, slots)),
    "dedup": _dedup,
    "join": _join,
    "sessions": _sessions,
    "state": _state,
}


# The measurement.


@dataclass
class Figures:
    """What was measured of a case with so many slots.

    Parameters
    ----------
    row_ns
        Processor time a row, in nanoseconds, of each round.
    waits
        By stage: the share of the last seconds that its subtasks waited, for rows or for room.
    start_s
        Seconds from ``start()`` until every subtask had had rows.
    """

    row_ns: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    start_s: float = 0.0


def _start(program: DataFrame, slots: int, name: str, folder: str) -> Any:
    writer = headgate.continuous(program, parallelism=slots).writeStream.format("noop")
    options = {
        "checkpointLocation": folder,
        # 64 processes on two cores are not heard of for long while they begin, and are in a call for long.
        "heartbeat.timeout": "2 minutes", "task.stuck.timeout": "10 minutes",
    }  # fmt: skip
    mode = "update" if name == "state" else "append"
    return writer.options(**options).outputMode(mode).trigger(continuous="1 hour").start()


def _by_stage(query: Any) -> list[list[dict[str, Any]]]:
    """Return by stage what is known of its subtasks."""
    subtasks = query.snapshot()["subtasks"]
    return [[each for each in subtasks if each["stage"] == stage] for stage in sorted({e["stage"] for e in subtasks})]


def _all_had_rows(query: Any, slots: int) -> bool:
    stages = _by_stage(query)
    return bool(stages) and all(len(of) == slots and all(each["rowsIn"] for each in of) for of in stages)


def _through(query: Any) -> float:
    """Return the rows of the source that went through the last stage: not those that lie in the exchange."""
    first, *others = _by_stage(query)
    read, sent = (sum(each[name] for each in first) for name in ("rowsIn", "rowsOut"))
    return read * sum(each["rowsIn"] for each in others[-1]) / sent if others else read


def _processor_s(pids: list[int]) -> float:
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def _round(query: Any, pids: list[int], seconds: float, rows: int) -> float:
    """Return the nanoseconds a row of so many seconds, or longer: of so many rows."""
    began_s, began_rows, began = _processor_s(pids), _through(query), time.monotonic()
    wait_for(query, lambda: time.monotonic() - began >= seconds, every_s=0.1)
    wait_for(query, lambda: _through(query) > began_rows + rows, PATIENCE_S, every_s=0.5)
    spent_s, now_rows = _processor_s(pids) - began_s, _through(query)
    return 1e9 * spent_s / (now_rows - began_rows)


def _measured(spark: SparkSession, name: str, slots: int, arguments: argparse.Namespace) -> Figures:
    figures = Figures()
    seconds = min(max(LEAST_S, slots / 10), MOST_S)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="growth-", ignore_cleanup_errors=True) as folder:
        began = time.monotonic()
        query = _start(CASES[name](spark, slots), slots, name, folder)
        if not wait_for(query, lambda: _all_had_rows(query, slots), PATIENCE_S, every_s=0.25):
            raise SystemExit(f"{name}-{slots} is not under way: {query.status}")
        figures.start_s = time.monotonic() - began
        # The one checkpoint, half a second after the start: of 64 slots it may take minutes, but little processor time
        wait_for(query, lambda: query.status["completed_checkpoint"] is not None, CHECKPOINT_S, every_s=0.25)
        time.sleep(seconds if arguments.quick else 2 * seconds)
        pids = [each["pid"] for each in query.status["slots"]]
        for _ in range(arguments.rounds):
            figures.row_ns.append(_round(query, pids, seconds, arguments.rows or 0))
        if [each["pid"] for each in query.status["slots"]] != pids:
            raise SystemExit(f"{name}-{slots}: a slot was lost meanwhile: {query.status}")
        stages = _by_stage(query)
        figures.waits = [statistics.mean(each["idle"] + each["backPressured"] for each in of) for of in stages]
        query.stop()
    return figures


# What is asked for, and what is shown.


def _wanted(only: list[str] | None, sizes: list[int]) -> dict[str, list[int]]:
    """Return by case at how many slots it is to be measured; ``only`` has names with a number, or without."""
    if not only:
        return dict.fromkeys(CASES, sizes) | {SKEW: [CORES]}
    wanted: dict[str, set[int]] = {}
    for each in only:
        name, _, number = each.partition("-")
        if name not in {*CASES, SKEW} or each == f"{name}-" or (number and not number.isdigit()):
            names = ", ".join([*CASES, SKEW])
            raise SystemExit(f"no case {each}; there are {names}, and {next(iter(CASES))}-{sizes[-1]} and the like")
        wanted.setdefault(name, set()).update([CORES, int(number)] if number else sizes)
    return {name: sorted(of) for name, of in wanted.items()}


def _show(found: dict[str, dict[int, Figures]], sizes: list[int]) -> None:
    table = Table(
        title="ns of processor time a row, and what share the subtasks of each stage wait",
        title_justify="left", header_style="bold",
    )  # fmt: skip
    table.add_column("slots")
    for slots in sizes:
        table.add_column(str(slots), justify="right")
    for name, of in found.items():
        texts = [
            f"{statistics.median(of[slots].row_ns):,.0f} ({' '.join(f'{wait:.0%}' for wait in of[slots].waits)})"
            if slots in of else "" for slots in sizes
        ]  # fmt: skip
        table.add_row(name, *texts)
    starts = [max((of[slots].start_s for of in found.values() if slots in of), default=0.0) for slots in sizes]
    table.add_row("start, s", *(f"{each:.1f}" for each in starts), style="dim")
    console.print(table)


def draw(found: dict[str, dict[int, Figures]], path: Path) -> None:
    """Write a picture: nanoseconds a row over slots, a line for each case."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 5.5), layout="constrained")
    for name, of in found.items():
        medians = [statistics.median(each.row_ns) for each in of.values()]
        (line,) = axis.plot(list(of), medians, marker="o")
        at, color = (max(of), medians[-1]), line.get_color()
        axis.annotate(name, at, (6, 0), textcoords="offset points", va="center", color=color)
    sizes = sorted({slots for of in found.values() for slots in of})
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xticks(sizes, map(str, sizes))
    axis.margins(x=0.16)
    axis.set_xlabel("slots, on two cores")
    axis.set_ylabel("ns of processor time a row")
    axis.grid(axis="y", color="#e6eaee")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _results(found: dict[str, dict[int, Figures]]) -> list[Result]:
    """Return each case at each number of slots beside the same at 2."""
    return [
        result_of(f"{name}-{slots}", figures.row_ns, of[CORES].row_ns, f"{CORES} slots", unit="ns")
        for name, of in found.items()
        for slots, figures in of.items()
    ]


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    sizes = sorted({CORES, *(arguments.slots or (QUICK_SLOTS if arguments.quick else SLOTS))})
    wanted = _wanted(arguments.only, sizes)
    for module in (keyed, state):
        cloudpickle.register_pickle_by_value(module)  # slots do not have it
    memory, found, skewed = WorkerMemory(), {}, []
    most = max(slots for of in wanted.values() for slots in of)
    spark = session("growth", master=f"local[{2 * most},100]")
    for name, of in wanted.items():
        if name == SKEW:
            case = keyed.window_case(SKEW, spark, arguments, skewed=True)
            skewed.append(measure(case, 1 if arguments.quick else arguments.rounds, memory))
            continue
        found[name] = {}
        for slots in of:
            found[name][slots] = figures = _measured(spark, name, slots, arguments)
            console.print(f"{name}, {slots} slots: {statistics.median(figures.row_ns):,.0f} ns", style="dim")
    spark.stop()
    if found:
        _show(found, sorted({slots for of in found.values() for slots in of}))
        path = PICTURE if arguments.picture else CACHE / PICTURE.name
        draw(found, path)
        console.print(f"The picture is in {path}.", soft_wrap=True)
    report(
        "growth", _results(found) + skewed, memory,
        f"local[{2 * most}] on {CORES} cores. ns: processor time a row of the slots' processes, without start and "
        "end; a ratio is the cost at 2 slots over the cost here: 0.8 is required at 16, 0.67 at 64.",
    )  # fmt: skip
