"""From produce to consume: a record's way through Kafka, the query and Kafka again.

A process of its own produces 5,000 records a second, each of which is the time of that, reads what comes out and takes
the difference. The broker, that process, Spark and the query share two cores. A case's figure is the 99th percentile,
unless its name ends in p50; the tables below have those and p99.9 too, and p99 of each round with the highest. Broker
and client are warmed up by the bare loop first. --rounds 10 --only CASE is ten runs of a case and its peer, in turns.

kafka is at-least-once with checkpoints every second, beside Structured Streaming with its default trigger, and
kafka-real-time beside its real-time mode, where this Spark can run the job. kafka-floor: beside 1.5 times what a bare
loop of confluent-kafka takes, which consumes and produces. kafka-exactly-once is what the transactional sink costs:
rows come out with the checkpoint, every second or (-100ms) every 100 ms, for which 130 ms are required. python has a
Python UDF in the way, beside Structured Streaming: real-time mode has none. window counts by key, in update mode.

With --all, or by name: kafka-profile is kafka-real-time with the latency profile (the sink's client lingers 0 ms and
has one request in flight), kafka-profile-floor the same beside 1.5 times a bare loop with these settings. stateful is
transformWithState, in Python: each row comes out with the number of rows that its key had. static-join is a join with a
table of 5,000 rows. window-append counts by key in windows of 100 ms of event time, which is when a record was
produced, in append mode. Its latency is that of each window's row: when it is consumed, less the time at which the
record was produced that let the watermark pass the window's end: the first one of that time or later in the partition
that has such a record last. What real-time mode cannot do stands beside micro-batches; why it cannot is printed.

--rates measures each case at other rates. A side of which less came out than went in (the column "out") does not keep
up: what is missing 3 s after the end counts as the slowest that came out, and as 3 s at least. Cores are those that
were busy with the whole side: this process, Java and Python workers, or the bare loop. Of ours the table has the
processor time of the slots, too, in cores and for each fetch that brought records.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import queue
import re
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

from pyspark.sql import SparkSession
from rich.table import Table

from bench.frame import CACHE, CORES, Case, Result, WorkerMemory, chosen, console, measure, report, result_of, session
from bench.latency_load import PARTITIONS, UNDERWAY_S, WARM_UP_S, Load, Processor, Spent, through
from bench.latency_sides import (
    AT_LEAST_ONCE,
    AT_LEAST_ONCE_PROFILE,
    COUNT,
    EXACTLY_ONCE,
    EXACTLY_ONCE_100MS,
    FLOOR,
    FLOOR_PROFILE,
    JOINED,
    MICRO_BATCHES,
    PYTHON,
    REAL_TIME,
    STATEFUL,
    WINDOWS,
    Program,
    Side,
    start,
)
from local.jars import spark_kafka
from local.kafka import Broker, running_broker
from local.topics import create_topic, delete_topic

SUMMARY = "Kafka in, Kafka out: milliseconds from produce to consume"
ROWS_PER_SECOND = 5_000
SLOTS = 4
"""Tasks at a time, on two cores: in real-time mode the tasks of all stages run at once."""
SECONDS, QUICK_SECONDS = 20.0, 5.0
REQUIRED_EXACTLY_ONCE_MS = 130.0


@dataclass(frozen=True)
class Figures:
    """What one measurement of a side found, in milliseconds, and what it took.

    ``out`` is the share of the records that came out, nan where they are not rows for rows; ``offered`` how many were
    produced in a second.
    """

    p50: float
    p99: float
    p999: float
    spent: Spent
    out: float
    offered: float


Found = dict[tuple[str, int], list[Figures]]
"""Of each side at each rate, by round."""


def _rates(text: str) -> list[int]:
    rates = [int(each.replace("_", "")) for each in text.split(",")]
    if min(rates) < 100:
        raise ValueError
    return rates


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options that only this bench has."""
    command.add_argument(
        "--rates", type=_rates, default=[ROWS_PER_SECOND], metavar="N,N",
        help="records a second, each of which is measured: 1000,5000,50000 (default 5000)",
    )  # fmt: skip
    command.add_argument("--seconds", type=float, help=f"how long each measurement is ({SECONDS:.0f}, quick: 5)")
    command.add_argument("--all", action="store_true", help="the cases, too, that are measured by name only")


def measure_latency(spark: SparkSession, broker: Broker, side: Side, load: Load, found: Found) -> float:
    """Return the 99th percentile in milliseconds; note the others."""
    topics = _topics(broker)
    load = replace(load, windows=side.program.windows)
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=through, args=(broker.plain, topics, load, answers), daemon=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
        query = start(spark, broker, topics, side, folder)
        process.start()

        def answer(patience_s: float) -> Any:
            deadline = time.monotonic() + patience_s
            while query.exception() is None and time.monotonic() < deadline:
                with contextlib.suppress(queue.Empty):
                    return answers.get(timeout=0.5)
            process.terminate()
            raise SystemExit(f"{side.name}: nothing came out: {query.exception()}")

        answer(90)
        time.sleep(WARM_UP_S)
        assert broker.process is not None
        processor = Processor(query, (broker.process.pid, process.pid))
        time.sleep(load.seconds)
        spent = processor.spent()
        measured, offered = answer(load.seconds + 60)
        process.join()
        query.stop()
    for topic in topics:
        delete_topic(broker.plain, topic)
    figures = _figures(side, load, measured, spent, offered)
    found.setdefault((side.name, load.rate), []).append(figures)
    return figures.p99


def _figures(side: Side, load: Load, measured: Sequence[float], spent: Spent, offered: float) -> Figures:
    """Return the figures of a measurement.

    If too little came out it is an error at a rate that all sides keep up with. At a higher one the records that did
    not come out count as those that came last.
    """
    out = len(measured) / (load.rate * load.seconds) if side.program.row_for_row else math.nan
    missing = math.ceil(side.program.rows(load.rate) * load.seconds) - len(measured)
    if missing > 0:
        message = f"{side.name}: only {len(measured)} records came out of {load.rate * load.seconds:.0f}"
        if load.rate <= ROWS_PER_SECOND:
            raise SystemExit(message)
        measured = [*measured, *[max(1000.0 * UNDERWAY_S, max(measured, default=0.0))] * missing]
        console.print(f"{message}: it does not keep up with {load.rate:,} a second", soft_wrap=True)
    if offered < 0.95 * load.rate:
        console.print(f"{side.name}: only {offered:,.0f} records a second were produced", soft_wrap=True)
    at = statistics.quantiles(measured, n=1000, method="inclusive")
    return Figures(at[499], at[989], at[998], spent, out, offered)


def _topics(broker: Broker) -> tuple[str, str]:
    topics = (f"in-{uuid.uuid4().hex}", f"out-{uuid.uuid4().hex}")
    for topic in topics:
        create_topic(broker.plain, topic, PARTITIONS)
    return topics


def _refusal(spark: SparkSession, broker: Broker, side: Side) -> str | None:
    """Return why this Spark cannot run a side in real-time mode; None: it can."""
    try:
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True) as folder:
            query = start(spark, broker, _topics(broker), side, folder)
            query.awaitTermination(5)
            query.stop()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return None


@dataclass(frozen=True)
class Comparison:
    """A case: two sides, or ours and a figure that is required.

    Parameters
    ----------
    name, ours, theirs, peer_name
        As in the table.
    times
        So many times the peer's figure is what ours is compared with.
    instead
        What stands in for a peer in real-time mode that cannot do it.
    by_name
        Whether it is measured only if it is asked for.
    """

    name: str
    ours: Side
    theirs: Side | float | None
    peer_name: str = ""
    times: float = 1
    instead: Side | None = None
    by_name: bool = False


def _in_both(name: str, program: Program, *, by_name: bool = True) -> Comparison:
    """Return a program beside real-time mode, or what that cannot do beside micro-batches."""
    theirs = [replace(each, name=f"{each.name}-{name}", program=program) for each in (REAL_TIME, MICRO_BATCHES)]
    ours = replace(AT_LEAST_ONCE, name=name, program=program)
    return Comparison(
        name, ours, theirs[0], "spark real-time mode", instead=theirs[1] if by_name else None, by_name=by_name
    )


def comparisons() -> list[Comparison]:
    """Return all cases."""
    python = replace(AT_LEAST_ONCE, name="python", program=PYTHON)
    return [
        Comparison("kafka", AT_LEAST_ONCE, MICRO_BATCHES, "spark kafka"),
        Comparison("kafka-floor", AT_LEAST_ONCE, FLOOR, "1.5 times a bare loop", 1.5),
        Comparison("kafka-exactly-once", EXACTLY_ONCE, None),
        Comparison("kafka-exactly-once-100ms", EXACTLY_ONCE_100MS, REQUIRED_EXACTLY_ONCE_MS, "required"),
        Comparison("python", python, replace(python, name="spark-python", engine="spark"), "spark kafka"),
        Comparison("kafka-real-time", AT_LEAST_ONCE, REAL_TIME, "spark real-time mode"),
        _in_both("window", COUNT, by_name=False),
        Comparison("kafka-profile", AT_LEAST_ONCE_PROFILE, REAL_TIME, "spark real-time mode", by_name=True),
        Comparison(
            "kafka-profile-floor", AT_LEAST_ONCE_PROFILE, FLOOR_PROFILE, "1.5 times a bare loop", 1.5, by_name=True
        ),
        _in_both("window-append", WINDOWS),
        _in_both("stateful", STATEFUL),
        _in_both("static-join", JOINED),
    ]


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    found: Found = {}
    memory = WorkerMemory()
    wanted = _wanted(arguments)
    with running_broker(CACHE / "kafka") as broker:
        spark = session("latency", jars=spark_kafka(), master=f"local[{SLOTS}]")

        def figure(side: Side, rate: int, times: float = 1) -> Callable[[], float]:
            return lambda: times * measure_latency(spark, broker, side, Load(rate, seconds), found)

        def case(one: Comparison, rate: int) -> Case:
            theirs = one.theirs
            required = None if theirs is None else lambda: theirs
            peer = figure(theirs, rate, one.times) if isinstance(theirs, Side) else required
            return Case(_name(one, rate), figure(one.ours, rate), peer, one.peer_name, unit="ms")

        able = [_able(spark, broker, each) for each in wanted]
        # A broker is slow until its Java has compiled its code.
        measure_latency(spark, broker, FLOOR, Load(max(arguments.rates), SECONDS), {})
        rounds = 1 if arguments.quick else arguments.rounds
        pairs = [(each, rate) for each in able for rate in arguments.rates]
        results = [measure(case(each, rate), rounds, memory, warm_up=False) for each, rate in pairs]
        spark.stop()
    results += [
        _medians(found, each, rate)
        for each, rate in pairs
        if isinstance(each.theirs, Side) and each.theirs.engine == "real-time"
    ]
    _print(found)
    rates = " and ".join(f"{rate:,}" for rate in arguments.rates)
    report(
        "latency", results, memory,
        f"local[{SLOTS}] on {CORES} cores, parallelism 1, {PARTITIONS} partitions, {rates} records/s "
        f"for {seconds:.0f} s after {WARM_UP_S:.0f} s of warm-up, checkpoints every second, locally; a process "
        "that produces and consumes, and the broker, beside it.",
        {"sides": [_as_json(*side, rounds_of) for side, rounds_of in found.items()]},
    )  # fmt: skip


def _wanted(arguments: argparse.Namespace) -> list[Comparison]:
    """Return the cases that the user asked for."""
    everything = comparisons()
    cases = [Case(each.name, lambda: None, None, "") for each in everything]
    names = {case.name for case in chosen(cases, arguments.only)}
    if arguments.only:
        return [each for each in everything if each.name in names]
    if arguments.quick:
        return everything[:1]
    return [each for each in everything if arguments.all or not each.by_name]


def _able(spark: SparkSession, broker: Broker, one: Comparison) -> Comparison:
    """Return a case with a peer that can do it."""
    if not isinstance(one.theirs, Side) or one.theirs.engine != "real-time":
        return one
    reason = _refusal(spark, broker, one.theirs)
    if reason is None:
        return one
    console.print(f"Spark's real-time mode cannot run {one.name}: {reason[:300]}", soft_wrap=True)
    instead = "none" if one.instead is None else "spark kafka"
    conditions = re.findall(r"\[([A-Z_.]+)\]", reason)  # what Spark calls it, the cause last
    why = conditions[-1].rpartition(".")[2].lower().replace("_", " ") if conditions else reason[:60]
    return replace(one, theirs=one.instead, peer_name=f"{instead}; real-time mode cannot: {why}")


def _medians(found: Found, one: Comparison, rate: int) -> Result:
    """Return the medians of a case."""
    assert isinstance(one.theirs, Side)
    ours, theirs = ([each.p50 for each in found[side.name, rate]] for side in (one.ours, one.theirs))
    return result_of(f"{_name(one, rate)}-p50", ours, theirs, one.peer_name, "ms")


def _name(one: Comparison, rate: int) -> str:
    return one.name if rate == ROWS_PER_SECOND else f"{one.name}@{rate}"


def _print(found: Found) -> None:
    """Print what was found of each side: medians over the rounds, and p99 of each round."""
    table = Table(title="latency: milliseconds, medians over the rounds", title_justify="left", header_style="bold")
    for heading in ("side", "records/s", "p50", "p99", "p99.9", "cores", "slots' cores", "µs a fetch", "out"):
        table.add_column(heading, justify="left" if heading == "side" else "right")
    each_round = Table(title="latency: p99 of each round", title_justify="left", header_style="bold")
    for heading in ("side", "records/s", "highest", "ms, in the order of the rounds"):
        each_round.add_column(heading, justify="right" if heading in ("records/s", "highest") else "left")
    for (name, rate), rounds_of in found.items():
        one = [
            statistics.median(each)
            for each in zip(*((f.p50, f.p99, f.p999, *astuple(f.spent), f.out) for f in rounds_of), strict=True)
        ]
        texts = [f"{each:.1f}" for each in one[:3]] + [f"{each:.2f}" for each in one[3:5]] + [f"{one[5]:.0f}"]
        texts = ["" if text.startswith("nan") else text for text in (*texts, f"{one[6]:.0%}")]
        table.add_row(name, f"{rate:,}", *texts)
        p99 = [figures.p99 for figures in rounds_of]
        each_round.add_row(name, f"{rate:,}", f"{max(p99):.1f}", " ".join(f"{each:.1f}" for each in p99))
    console.print(table)
    console.print(each_round)


def _as_json(name: str, rate: int, rounds_of: Sequence[Figures]) -> dict[str, Any]:
    """Return what was found of a side, by round."""

    def rounded(figure: Callable[[Figures], float], digits: int = 3) -> list[float] | None:
        values = [figure(each) for each in rounds_of]
        return None if any(map(math.isnan, values)) else [round(value, digits) for value in values]

    return {
        "side": name,
        "records_per_second": rate,
        "p50_ms": rounded(lambda each: each.p50),
        "p99_ms": rounded(lambda each: each.p99),
        "p99_9_ms": rounded(lambda each: each.p999),
        "highest_p99_ms": round(max(each.p99 for each in rounds_of), 3),
        "cores": rounded(lambda each: each.spent.cores),
        "slot_cores": rounded(lambda each: each.spent.slot_cores),
        "fetch_us": rounded(lambda each: each.spent.fetch_us, 1),
        "out": rounded(lambda each: each.out),
        "offered": rounded(lambda each: each.offered, 0),
    }
