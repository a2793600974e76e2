"""The keyed part of the demo: flights counted per day and carrier while the query is rescaled under load, twice.

Never: wait for the rows that are under way: a checkpoint takes them along, and the next run's slots go on with them.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.table import Table

import headgate
from demo.query import SCHEMA
from headgate.checkpoint.storage import CheckpointStorage

ROW_MS = 0.06  # what the slow function takes for one flight
SLOTS = (2, 4, 3)  # at first, and after each rescale
LOAD_S = 1.5  # how long the query runs before it is rescaled
PATIENCE_S = 180


@dataclass(frozen=True)
class Rescale:
    """One rescale as it was measured; durations in seconds.

    Parameters
    ----------
    before, after
        Slots.
    seconds
        From the call until every new subtask ran.
    under_way
        Rows between the stages in the checkpoint that the new slots went on from.
    first_checkpoint
        From the order of a checkpoint then until it was complete.
    still_under_way
        Rows between the stages in that one.
    """

    before: int
    after: int
    seconds: float
    under_way: int
    first_checkpoint: float
    still_under_way: int


@dataclass(frozen=True)
class Totals:
    """Spark's batch and the query's output, compared group by group."""

    groups_expected: int
    groups_found: int
    flights_expected: int
    flights_found: int
    missing: int
    surplus: int

    @property
    def hold(self) -> bool:
        """Whether every group is there once, with Spark's values."""
        return self.missing == self.surplus == 0 and self.groups_expected == self.groups_found > 0


def start(spark: SparkSession, folder: Path, sink: Path, checkpoint: Path) -> headgate.ContinuousQuery:
    """Start the query: a program as a user writes it."""
    row_s = ROW_MS / 1000

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stand for work that takes its time over every flight."""
        for batch in batches:
            time.sleep(row_s * batch.num_rows)
            yield batch

    flights = (
        spark.read.format("headgate.files")
        .option("fileFormat", "csv")
        .option("header", True)
        .option("nullValue", "NA")
        .schema(SCHEMA)
        .load(str(folder))
    )
    by_carrier = (
        flights.repartition(max(SLOTS))
        .mapInArrow(slowly, SCHEMA)
        .groupBy(F.window("time_hour", "1 day"), "carrier")
        .agg(F.count("*").alias("flights"), F.sum("distance").alias("miles"))
    )
    return (
        headgate.continuous(by_carrier, parallelism=SLOTS[0])
        .writeStream.queryName("flights-by-carrier")
        .format("parquet")
        .option("path", str(sink))
        .option("publishInterval", "1 second")
        .option("checkpointLocation", str(checkpoint))
        .trigger(continuous="1 second")
        .start()
    )


def run(
    spark: SparkSession, out: Path, folder: Path, console: Console
) -> tuple[headgate.ContinuousQuery, list[Rescale], Totals]:
    """Run it to the end, rescale it on the way, and compare what it wrote with a batch of Spark's."""
    sink, checkpoint = out / "flights-by-carrier.parquet", out / "checkpoint-keyed"
    began = time.monotonic()
    query = start(spark, folder, sink, checkpoint)

    def say(text: str) -> None:
        console.print(f"   {time.monotonic() - began:5.1f} s  {text}", soft_wrap=True)

    say(f"its dashboard: {query.dashboard()}")
    rescales = []
    for before, after in itertools.pairwise(SLOTS):
        _wait_until_running(query)
        time.sleep(LOAD_S)
        rescales.append(_rescaled(query, checkpoint, before, after))
        say(f"rescaled from {before} to {after} slots with {rescales[-1].under_way:,} flights under way")
    if not query.awaitTermination(PATIENCE_S):
        raise SystemExit(f"The keyed query did not end in {PATIENCE_S} s: {query.status}")
    say("all files are read, all windows are over, the last checkpoint is committed")
    _show(rescales, console)
    return query, rescales, compare(spark, folder, sink)


def compare(spark: SparkSession, folder: Path, sink: Path) -> Totals:
    """Let Spark, with its own reader, group the same files, and compare both as multisets."""
    flights = spark.read.csv(str(folder), header=True, nullValue="NA")
    batch = flights.groupBy(F.window(F.col("time_hour").cast("timestamp"), "1 day"), "carrier").agg(
        F.count("*").alias("flights"), F.sum(F.col("distance").cast("int")).alias("miles")
    )
    expected, found = _groups(batch), _groups(spark.read.parquet(str(sink)))
    return Totals(
        groups_expected=expected.total(),
        groups_found=found.total(),
        flights_expected=_flights(expected),
        flights_found=_flights(found),
        missing=(expected - found).total(),
        surplus=(found - expected).total(),
    )


def _rescaled(query: headgate.ContinuousQuery, checkpoint: Path, before: int, after: int) -> Rescale:
    began = time.monotonic()
    query.rescale(after)
    under_way = _under_way(checkpoint)
    _wait_until_running(query)
    running = time.monotonic()
    query.checkpoint()
    complete = time.monotonic()
    return Rescale(before, after, running - began, under_way, complete - running, _under_way(checkpoint))


def _under_way(checkpoint: Path) -> int:
    """Return how many rows the newest checkpoint holds that were between two stages."""
    manifest = CheckpointStorage(str(checkpoint)).load_newest()
    return 0 if manifest is None else sum(channel.rows for channel in manifest.channels)


def _wait_until_running(query: headgate.ContinuousQuery) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while query.status["message"] != "running" or query.status["rowsIn"] == 0:
        if not query.isActive:
            raise SystemExit(f"The keyed query ended on its own: {query.exception()}")
        if time.monotonic() > deadline:
            raise SystemExit(f"The keyed query did not get on in {PATIENCE_S} s: {query.status}")
        time.sleep(0.02)


def _show(rescales: list[Rescale], console: Console) -> None:
    table = Table("slots", header_style="bold")
    for heading in ("rescaled in", "rows under way", "first checkpoint", "still under way"):
        table.add_column(heading, justify="right")
    for each in rescales:
        table.add_row(
            f"{each.before} to {each.after}", f"{each.seconds:.1f} s", f"{each.under_way:,}",
            f"{each.first_checkpoint:.1f} s", f"{each.still_under_way:,}",
        )  # fmt: skip
    console.print(table)


Group = tuple[object, str, int, int]


def _groups(frame: DataFrame) -> Counter[Group]:
    rows = frame.select("window.start", "carrier", "flights", "miles").collect()
    return Counter((row[0], row[1], row[2], row[3]) for row in rows)


def _flights(groups: Counter[Group]) -> int:
    return sum(flights * times for (_, _, flights, _), times in groups.items())
