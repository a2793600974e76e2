"""Programs of hundreds of columns: how long start() takes, beside what Spark takes to analyze and plan the same.

Each figure is the best of five starts, or plans, of a DataFrame that is new each time; the session is warm. Spark's
includes the analysis, which Headgate's DataFrame had before start() is called.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from bench.frame import CACHE, Case, WorkerMemory, chosen, measure, report, session

SUMMARY = "start() of programs of hundreds of columns, beside Spark's analysis and planning"
TIMES = 5
REST_S = 0.5


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _rows(spark: SparkSession, columns: int) -> DataFrame:
    schema = ", ".join(["at timestamp", *(f"c{place} bigint" for place in range(columns))])
    return spark.read.format("headgate.datagen").schema(schema).option("numRows", 10).load()


def _program(rows: DataFrame, name: str, count: int) -> Callable[[], DataFrame]:
    """Return what makes a new DataFrame; the columns, which are Python's, are there already."""
    of: list[Column]
    match name:
        case "aggregates":
            of = [F.sum(f"c{place}").alias(f"s{place}") for place in range(count)]
            return lambda: rows.groupBy("c0").agg(*of)
        case "expressions":
            of = [(F.col(f"c{place}") + 1).alias(f"c{place}") for place in range(count)]
            return lambda: rows.select(of)
        case _:
            window = F.window("at", "10 seconds")
            return lambda: rows.groupBy(window, "c0").agg(F.count("*").alias("n"))


def _planned(make: Callable[[], DataFrame]) -> float:
    """Return the best time of Spark's analysis and planning."""
    best = float("inf")
    for _ in range(TIMES):
        time.sleep(REST_S / TIMES)
        begin = time.perf_counter()
        make()._jdf.queryExecution().executedPlan()
        best = min(best, time.perf_counter() - begin)
    return best


def _started(make: Callable[[], DataFrame], mode: str) -> float:
    """Return the best time of ``start()``."""
    best = float("inf")
    for _ in range(TIMES):
        frame = make()
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="wide-", ignore_cleanup_errors=True) as folder:
            time.sleep(REST_S)  # what is left of the query before
            begin = time.perf_counter()
            program = headgate.continuous(frame, parallelism=1).writeStream.format("noop").outputMode(mode)
            query = program.option("checkpointLocation", folder).start()
            best = min(best, time.perf_counter() - begin)
            query.awaitTermination()
    return best


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    spark = session("wide")

    def case(name: str, count: int, columns: int, mode: str) -> Case:
        make = _program(_rows(spark, columns), name, count)
        label = f"{name}-{count}" if count else name
        return Case(label, lambda: _started(make, mode), lambda: _planned(make), "Spark's analysis and planning")

    cases = [
        case("windows", 0, 5, "append"),
        case("aggregates", 400, 401, "complete"),
        case("expressions", 2_000, 2_000, "append"),
    ]
    memory = WorkerMemory()
    rounds = 1 if arguments.quick else arguments.rounds
    results = [measure(each, rounds, memory) for each in chosen(cases, arguments.only)]
    spark.stop()
    report("wide", results, memory, f"local[2]; each figure is the best of {TIMES}.")
