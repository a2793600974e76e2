"""The queries of Nexmark, each a PySpark program that runs as a batch, by Structured Streaming and continuously.

On few rows: what the continuous query writes equals Spark's batch. On many: how long the continuous query and
Structured Streaming (a micro-batch of all rows, availableNow) take from start() to the end, in turn, rows thrown away
(q10: into partitioned files). Both read the same generated events. Rows are the events of those streams that a query
reads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.table import Table

from bench.frame import CORES, console, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from conformance.nexmark_queries import Query, Tables

SUMMARY = "the queries of Nexmark: equal to Spark's batch, and how fast beside Structured Streaming"
EVENTS, QUICK_EVENTS, COMPARED_EVENTS = 2_000_000, 100_000, 100_000
QUICK = ("q0", "q3", "q5", "q7", "q10", "q13", "q17")
PEER = "structured streaming"
PATIENCE_S = 900


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--only", action="append", metavar="QUERY", help="only this one: q5; may be given again")
    parser.add_argument("--quick", action="store_true", help=f"few rows, once, and only {', '.join(QUICK)}")
    parser.add_argument("--events", type=int, metavar="N", help=f"how many events; {EVENTS:,} if it is left out")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each side is timed")


@dataclass
class Outcome:
    """What became of a query.

    Parameters
    ----------
    name
        Which.
    equal
        Whether its rows are those of Spark's batch; None: it was refused.
    compared
        How many rows these are.
    headgate, peer
        Rows per second.
    refused, peer_refused
        Why an engine does not run it.
    """

    name: str
    equal: bool | None = None
    compared: int = 0
    headgate: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    refused: str = ""
    peer_refused: str = ""


def run(arguments: argparse.Namespace) -> int:
    """Compare and time the queries; 1: a result was different."""
    from conformance.nexmark_queries import LEFT_OUT, QUERIES

    only = arguments.only or (QUICK if arguments.quick else None)
    names = [each.name for each in QUERIES]
    if unknown := sorted(set(only or ()) - set(names)):
        raise SystemExit(f"no query {', '.join(unknown)}; there are {', '.join(names)}; left out: {LEFT_OUT}")
    events = arguments.events or (QUICK_EVENTS if arguments.quick else EVENTS)
    spark = session("conformance-queries")
    prepare(spark)
    outcomes = []
    for query in QUERIES:
        if only and query.name not in only:
            continue
        console.print(query.name, style="dim")
        outcome = compared(spark, query, min(events, COMPARED_EVENTS))
        timed(spark, query, outcome, events, 1 if arguments.quick else arguments.rounds)
        outcomes.append(outcome)
    spark.stop()
    return report(outcomes, events)


def prepare(spark: SparkSession) -> None:
    """Make the events known to Spark."""
    import headgate
    from conformance.nexmark import SOURCES

    for each in SOURCES:
        headgate.register(spark, each)


def tables(spark: SparkSession, events: int, *, stream: bool) -> Tables:
    """Return the three streams, or tables of the same rows."""
    from conformance.nexmark_queries import DELAY, Tables

    def of(kind: str) -> DataFrame:
        reader: Any = spark.readStream if stream else spark.read
        return reader.format(f"nexmark.{kind}").option("events", events).load().withWatermark("dateTime", DELAY)

    return Tables(of("person"), of("auction"), of("bid"))


def compared(spark: SparkSession, query: Query, events: int) -> Outcome:
    """Run a query continuously and as a batch, and say whether their rows are equal."""
    import headgate
    from headgate.errors import OptionError, UnsupportedOperationError

    outcome = Outcome(query.name)
    with tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True) as folder:
        try:
            program = query.program(tables(spark, events, stream=False))
            writer = headgate.continuous(program, CORES).writeStream.partitionBy(query.partition_by)
            options = {"path": f"{folder}/out", "checkpointLocation": f"{folder}/checkpoint", "slots": "threads"}
            running = writer.format("parquet").options(**options).start()
        except (UnsupportedOperationError, OptionError) as error:
            outcome.refused = error.message
            return outcome
        _wait(running)
        found = spark.read.schema(program.schema).parquet(f"{folder}/out").select(*program.columns)
        counts = program.groupBy(*program.columns).count()
        counts_found = found.groupBy(*found.columns).count()
        outcome.compared = found.count()
        outcome.equal = not counts.exceptAll(counts_found).head(1) and not counts_found.exceptAll(counts).head(1)
    return outcome


def timed(spark: SparkSession, query: Query, outcome: Outcome, events: int, rounds: int) -> None:
    """Time both engines in turn, each first every other time, after a warm-up on few rows."""
    from pyspark.errors import AnalysisException

    sides: list[tuple[Callable[..., float], list[float]]] = []
    if outcome.equal is not None:
        sides.append((continuous, outcome.headgate))
    try:
        micro_batches(spark, query, QUICK_EVENTS // 10)
        sides.append((micro_batches, outcome.peer))
    except AnalysisException as error:
        outcome.peer_refused = str(error).partition("\n")[0].removesuffix(";").strip()
    for number in range(rounds if outcome.equal is not None else 0):
        for side, figures in sides if number % 2 == 0 else reversed(sides):
            figures.append(rows_of(query, events) / side(spark, query, events))


def rows_of(query: Query, events: int) -> int:
    """Return how many rows a query reads of so many events."""
    from conformance.nexmark import AUCTIONS, BIDS, CYCLE

    kinds = {"person": 1, "auction": AUCTIONS, "bid": BIDS}
    read: set[str] = set()

    class Seen:
        def __getattr__(self, kind: str) -> Any:
            read.add(kind)
            return getattr(whole, kind)

    from pyspark.sql import SparkSession

    spark = SparkSession.getActiveSession()
    assert spark is not None
    whole = tables(spark, events, stream=False)
    query.program(Seen())  # type: ignore[arg-type]
    return sum(events * kinds[kind] // CYCLE for kind in read)


def continuous(spark: SparkSession, query: Query, events: int) -> float:
    """Return the seconds that the continuous query takes, from its start to its end."""
    import headgate

    program = query.program(tables(spark, events, stream=False))
    return _seconds(query, headgate.continuous(program, CORES).writeStream.trigger(continuous="1 second"))


def micro_batches(spark: SparkSession, query: Query, events: int) -> float:
    """Return the seconds that Structured Streaming takes."""
    return _seconds(query, query.program(tables(spark, events, stream=True)).writeStream.trigger(availableNow=True))


def _seconds(query: Query, writer: Any) -> float:
    with tempfile.TemporaryDirectory(prefix="nexmark-", ignore_cleanup_errors=True) as folder:
        writer = writer.outputMode(query.mode).option("checkpointLocation", f"{folder}/checkpoint").format("noop")
        if query.partition_by:
            writer = writer.format("parquet").option("path", f"{folder}/out").partitionBy(*query.partition_by)
        began = time.perf_counter()
        _wait(writer.start())
        return time.perf_counter() - began


def _wait(running: Any) -> None:
    if not running.awaitTermination(PATIENCE_S):
        running.stop()
        raise SystemExit(f"a query did not end within {PATIENCE_S} s: {running.status}")


def report(outcomes: Sequence[Outcome], events: int) -> int:
    """Print the table and the line of JSON; return 1 if a result was different."""
    from conformance.nexmark_queries import LEFT_OUT

    table = Table(title=f"Nexmark, {events:,} events: rows/s, median (min to max)", title_justify="left")
    for heading in ("query", "rows equal", "headgate", PEER, "ratio"):
        table.add_column(heading, justify="left" if heading == "query" else "right")
    cases = []
    for each in outcomes:
        ours, theirs = (statistics.median(figures) if figures else None for figures in (each.headgate, each.peer))
        ratio = None if ours is None or theirs is None else round(ours / theirs, 2)
        equal = "refused" if each.equal is None else f"{each.compared:,}" if each.equal else "DIFFERENT"
        peer = "refused" if each.peer_refused else _figures(each.peer)
        table.add_row(each.name, equal, _figures(each.headgate), peer, "" if ratio is None else f"{ratio:.2f}")
        case = {
            "case": each.name, "unit": "rows/s", "headgate": None if ours is None else round(ours),
            "peer": None if theirs is None else round(theirs), "peer_name": PEER, "ratio": ratio, "equal": each.equal,
        }  # fmt: skip
        reasons = {"refused": each.refused, "peer_refused": each.peer_refused}
        cases.append(case | {key: why for key, why in reasons.items() if why})
    console.print(table)
    for each in outcomes:
        for engine, why in (("headgate", each.refused), (PEER, each.peer_refused)):
            if why:
                console.print(f"{each.name}: {engine} refuses it: {why}", soft_wrap=True, markup=False)
    for name, why in LEFT_OUT.items():
        console.print(f"{name} is left out: {why}.")
    load = os.getloadavg()[2]
    console.print(f"The machine's load over the last 15 minutes was {load:.1f} on {os.cpu_count()} cores.")
    print(json.dumps({"bench": "conformance-queries", "load": round(load, 1), "cases": cases}))
    return int(any(each.equal is False for each in outcomes))


def _figures(values: Sequence[float]) -> str:
    if not values:
        return ""
    median, low, high = (each / 1000 for each in (statistics.median(values), min(values), max(values)))
    return f"{median:,.0f} k ({low:,.0f} to {high:,.0f})"
