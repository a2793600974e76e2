"""Spark documents its functions with examples. Each that is one row of expressions is evaluated as a continuous query
does, beside Spark's answer.

An example's literals become columns of a batch, since Spark itself computes what has none, as far as the function takes
a column there. What a query would run, Arrow's kernels and the operator of Spark's own code, runs here on that batch.
"""

from __future__ import annotations

import argparse
import collections
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "the examples in the documentation of Spark's functions"
_NOT_ONE_ROW = re.compile(r"\bFROM\b", re.IGNORECASE)
_FROM_OF_A_FUNCTION = re.compile(r"(extract|trim|substring|overlay)\s*\([^)]*FROM", re.IGNORECASE)

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--only", action="append", metavar="FUNCTION", help="only its examples; may be given again")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each N-th example")


@dataclass(frozen=True)
class Outcome:
    """What became of an example.

    Parameters
    ----------
    function, query
        Which it is.
    by
        ``arrow``, ``catalyst`` or ``spark`` (it has no columns: computed when the query is planned) if the results are
        equal; ``refused`` or ``different`` otherwise.
    why
        Of the two last: the error, or both results.
    """

    function: str
    query: str
    by: str
    why: str = ""


def examples(spark: SparkSession, only: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield Spark's examples that may be one row, of some functions or of all: the function's name, and the query."""
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if only and name not in only:
            continue
        try:
            described = spark.sql(f"DESCRIBE FUNCTION EXTENDED `{name}`").collect()
        except Exception:  # operators that have a name of their own only
            continue
        for query in re.findall(r"> (SELECT .*?);\s*\n", "\n".join(row[0] for row in described)):
            if not _NOT_ONE_ROW.search(query) or _FROM_OF_A_FUNCTION.search(query):
                yield name, query


def session() -> SparkSession:
    """Start Spark; neither it nor PySpark nor a query prints the errors that examples are to end with."""
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[1]")
        .appName("conformance")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True
    logging.getLogger("headgate").setLevel(logging.CRITICAL)
    return spark


@contextmanager
def changed_settings(spark: SparkSession, changed: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield the session with other settings; put back what was there before."""
    before = {name: spark.conf.get(name, None) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name, known in before.items():
            spark.conf.unset(name) if known is None else spark.conf.set(name, known)


def run(arguments: argparse.Namespace) -> int:
    """Compare all examples; 1: a result was different."""
    spark = session()
    outcomes = compare(spark, arguments.only or (), arguments.every)
    return report(outcomes)


def compare(spark: SparkSession, only: Sequence[str] = (), every: int = 1) -> list[Outcome]:
    """Return what became of the examples."""
    from conformance.single_rows import NotOneRowError, SingleRow

    outcomes: list[Outcome] = []
    shown = time.monotonic()
    for index, (name, query) in enumerate(examples(spark, only)):
        if index % every:
            continue
        try:
            outcomes.append(SingleRow(spark, name, query).outcome())
        except NotOneRowError:
            continue
        if time.monotonic() - shown > 5:
            shown = time.monotonic()
            console.print(f"{len(outcomes)} examples, at {name}", style="dim")
    return outcomes


def report(outcomes: list[Outcome]) -> int:
    """Print the table and the line of JSON; return 1 if a result was different."""
    counts = collections.Counter(each.by for each in outcomes)
    for kind in ("refused", "different"):
        listed = [each for each in outcomes if each.by == kind]
        if listed:
            table = Table("function", "example", "why", title=kind)
            for each in listed:
                table.add_row(*map(escape, (each.function, each.query, each.why)))
            console.print(table)
    equal = counts["arrow"] + counts["catalyst"] + counts["spark"]
    table = Table("evaluated by", "examples", title="Examples of Spark's functions")
    for by, text in (
        ("arrow", "Arrow kernels: equal"),
        ("catalyst", "Spark's own code in the helper: equal"),
        ("spark", "Spark, when the query is planned (no columns): equal"),
        ("refused", "refused by name"),
        ("different", "different"),
    ):
        table.add_row(text, str(counts[by]))
    console.print(table)
    case = {
        "case": "functions", "headgate": equal, "peer": len(outcomes),
        "ratio": round(equal / max(len(outcomes), 1), 4), "different": counts["different"], "arrow": counts["arrow"],
        "catalyst": counts["catalyst"], "refused": counts["refused"],
    }  # fmt: skip
    print(json.dumps({"bench": "conformance", "cases": [case]}))
    return int(counts["different"] > 0)
