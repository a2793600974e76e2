"""Streams of files: Headgate beside Spark's own file source.

files-available-now reads 1,000 files with Trigger.AvailableNow and maxFilesPerTrigger 250 into the noop sink, each time
with a fresh checkpoint. plan-100k-files is the planning of a batch over 100,000 files without the time of listing them,
in seconds: for Headgate from the listing to the tasks' splits, for Spark from the DataFrame (which lists) to its tasks.
plan-100k-files-stream is Headgate's planning of a whole micro-batch of 100,000 files.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from bench import data
from bench.frame import CACHE, QUICK_NOTE, Case, WorkerMemory, chosen, console, measure, report, session

SUMMARY = "AvailableNow over 1,000 files; planning 100,000 files"
FILES_PER_TRIGGER = 250


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the option that only this bench has."""
    command.add_argument("--format", default="csv", choices=("csv", "json", "parquet"), help="of the 1,000 files")


def _available_now(spark: SparkSession, file_format: str, rows: int, files: int, peer: bool) -> int:
    path = str(data.folder(file_format, rows, files))  # made by the first warm-up
    reader = spark.readStream.schema(data.SCHEMA).option("maxFilesPerTrigger", FILES_PER_TRIGGER)
    reader = reader.format(file_format) if peer else reader.format("headgate.files").option("fileFormat", file_format)
    if file_format == "csv":
        reader = reader.option("header", True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-") as checkpoint:
        writer = reader.load(path).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        read = sum(progress["numInputRows"] for progress in query.recentProgress)
    if read != rows:
        raise SystemExit(f"the {'peer' if peer else 'Headgate'} read {read:,} rows of {rows:,}")
    return read


def _many_files(count: int) -> Path:
    """Return a folder with so many small files."""
    target = CACHE / f"tiny-{count}-files"
    if not target.exists():
        console.print(f"making {count:,} small files (kept in {target.parent})", soft_wrap=True)
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        for number in range(count):
            (unfinished / f"part-{number:06}.csv").write_text(f"key-01,{number},1.5,2026-01-01T00:00:00Z,note\n")
        unfinished.rename(target)
    return target


@contextmanager
def _listing_time() -> Iterator[list[float]]:
    """Collect how long each listing of Headgate's takes, in seconds."""
    from headgate.connectors.files.listing import FileListing

    taken: list[float] = []
    original = FileListing.list_files

    def timed(self):  # type: ignore[no-untyped-def]
        begin = time.perf_counter()
        try:
            return original(self)
        finally:
            taken.append(time.perf_counter() - begin)

    FileListing.list_files = timed  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        FileListing.list_files = original  # type: ignore[method-assign]


def _headgate_plan(files: int, stream: bool) -> float:
    """Plan as Spark's planner process does, in this process, and return the seconds without the listing."""
    from pyspark.sql.types import StructType

    from pyspark_headgate_files import DefaultSource

    schema = StructType.fromDDL(data.SCHEMA)
    with _listing_time() as listing, tempfile.TemporaryDirectory(dir=CACHE, prefix="state-") as state:
        begin = time.perf_counter()
        options = {"path": str(_many_files(files)), "fileFormat": "csv", **({"stateLocation": state} if stream else {})}
        source = DefaultSource(options)
        if stream:
            reader = source.streamReader(schema)
            start = reader.initialOffset()
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            partitions = reader.partitions(start, end)
        else:
            partitions = source.reader(schema).partitions()
        seconds = time.perf_counter() - begin
    assert partitions and listing, "nothing was planned"
    return seconds - sum(listing)


def _spark_plan(spark: SparkSession, files: int) -> float:
    frame = spark.read.schema(data.SCHEMA).csv(str(_many_files(files)))  # lists the files
    begin = time.perf_counter()
    partitions = frame._jdf.queryExecution().toRdd().getNumPartitions()
    assert partitions > 0, "nothing was planned"
    return time.perf_counter() - begin


def run(arguments: argparse.Namespace) -> None:
    """Measure and report."""
    rows = arguments.rows or (200_000 if arguments.quick else 10_000_000)
    files, many = (100, 20_000) if arguments.quick else (1000, 100_000)
    spark = session("stream")
    try:
        memory = WorkerMemory()
        read = partial(_available_now, spark, arguments.format, rows, files)
        planning = f"plan-{many // 1000}k-files"
        peer_name = f"spark {arguments.format}"
        cases = [
            Case("files-available-now", partial(read, False), partial(read, True), f"{peer_name} stream", rows),
            Case(planning, partial(_headgate_plan, many, False), partial(_spark_plan, spark, many), "spark csv"),
            Case(f"{planning}-stream", partial(_headgate_plan, many, True), None, ""),
        ]
        results = [measure(case, arguments.rounds, memory) for case in chosen(cases, arguments.only)]
    finally:
        spark.stop()
    footer = (
        f"{rows:,} rows of {arguments.format} in {files:,} files, maxFilesPerTrigger {FILES_PER_TRIGGER}, local[2], "
        f"{arguments.rounds} rounds. Planning is without the listing." + (QUICK_NOTE if arguments.quick else "")
    )
    report("stream", results, memory, footer)
