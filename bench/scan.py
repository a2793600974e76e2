"""Batch reads of CSV, JSON lines and Parquet: Headgate beside Spark's own reader.

Both sides run the same program; only the format's name differs. The cases *-noop read all five columns into Spark's
noop sink. The cases *-sum add up one column by another; their schema has the two columns where Spark can find columns
by name (JSON, Parquet) and all five where it cannot (CSV).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench import data
from bench.frame import QUICK_NOTE, Case, WorkerMemory, chosen, measure, report, session

SUMMARY = "batch reads of CSV, JSON lines and Parquet"
FORMATS = ("csv", "json", "parquet")
FILES = 8
SUM_SCHEMA = {"csv": data.SCHEMA, "json": "key string, amount double", "parquet": "key string, amount double"}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Scan has no options of its own."""


def _to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sum_by_key(frame: DataFrame) -> Any:
    rows = frame.groupBy("key").agg(F.count("*").alias("rows"), F.sum("amount").alias("total")).collect()
    return sorted((row["key"], row["rows"], row["total"]) for row in rows)


def _cases(spark: SparkSession, rows: int) -> list[Case]:
    cases = []
    for file_format in FORMATS:

        def read(schema: str, peer: bool, file_format: str = file_format) -> DataFrame:
            reader = spark.read.schema(schema)
            reader = reader.format(file_format) if peer else reader.format("headgate.files")
            if file_format == "csv":
                reader = reader.option("header", True)
            if not peer:
                reader = reader.option("fileFormat", file_format)
            return reader.load(str(data.folder(file_format, rows, FILES)))  # made by the first warm-up

        def run(act: Callable[[DataFrame], Any], schema: str, peer: bool, read: Any = read) -> Any:
            return act(read(schema, peer))

        for name, act, schema in (("noop", _to_noop, data.SCHEMA), ("sum", _sum_by_key, SUM_SCHEMA[file_format])):
            ours, theirs = partial(run, act, schema, False), partial(run, act, schema, True)
            cases.append(Case(f"{file_format}-{name}", ours, theirs, f"spark {file_format}", rows))
    return cases


def run(arguments: argparse.Namespace) -> None:
    """Measure and report."""
    rows = arguments.rows or (300_000 if arguments.quick else 10_000_000)
    spark = session("scan")
    try:
        memory = WorkerMemory()
        cases = chosen(_cases(spark, rows), arguments.only)
        results = [measure(case, arguments.rounds, memory) for case in cases]
    finally:
        spark.stop()
    footer = f"{rows:,} rows of five columns in {FILES} files, local[2], {arguments.rounds} rounds."
    report("scan", results, memory, footer + (QUICK_NOTE if arguments.quick else ""))
