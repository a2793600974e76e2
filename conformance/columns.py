"""Expressions over generated columns, evaluated as a continuous query does, beside Spark's own batch over the same
rows, with `spark.sql.ansi.enabled` and without.

The expressions are those of column_expressions.txt, at least one for each function and operator of Spark's that a row
can have, the rows those of column_values.py. In ANSI mode an expression may fail on some rows: then the same rows fail,
the first of them with the same error, and the others are equal. Aggregates, keys and windows, which are not of one row,
are in `conformance.column_groups`.

Texts that are no UTF-8 are compared as a continuous query shows them (docs/continuous.md).
"""

from __future__ import annotations

import argparse
import collections
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from conformance.spark import changed_settings, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SUMMARY = "expressions over generated columns, in both settings of spark.sql.ansi.enabled"
ROWS, SEED = 64, 1
TIME_ZONES = ("America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "UTC", "Pacific/Apia", "Asia/Kathmandu")
AT_ONCE = 40
"""So many expressions are a projection of Spark's."""
_EXPRESSIONS = Path(__file__).parent / "column_expressions.txt"
_NAMED = re.compile(r"(?:([^\s(]+): )?((\w+)?.*)")
OF_A_GROUP = {
    "agg_funcs": "it aggregates rows", "window_funcs": "it is of a window", "generator_funcs": "it makes rows",
    "table_funcs": "it makes a table",
}  # fmt: skip
OF_A_NAME = {
    r"(hll|kll|theta|tuple)_.*|approx_top_k_estimate": "it takes a sketch, which an aggregate makes",
    r".*_(avro|protobuf)": "it is in a jar that Spark does not come with",
    r"schema_of_variant_agg|vector_(avg|sum)": OF_A_GROUP["agg_funcs"],
    r"(session_)?window|window_time": "it is a window, not a value",
}
"""Why a function has no expression: by its group in Spark, or its name."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what the command takes."""
    parser.add_argument("--only", action="append", metavar="FUNCTION", help="only its expressions; may be given again")
    parser.add_argument("--seed", type=int, default=SEED, metavar="N", help="other rows, in another time zone")


@dataclass(frozen=True)
class Expression:
    """An expression over the columns, and the function or operator of Spark's that it is for."""

    function: str
    text: str


@dataclass(frozen=True)
class Outcome:
    """What became of an expression.

    Parameters
    ----------
    expression, ansi
        Which, and with which setting.
    by
        ``arrow`` or ``catalyst`` if the results are equal; ``refused``; ``unknown`` if Spark refuses it, too; or
        ``different``.
    failed
        On how many rows it failed, on both sides.
    why
        Of the three last: the error, or both results.
    """

    expression: Expression
    ansi: bool
    by: str
    failed: int = 0
    why: str = ""


def expressions(only: Sequence[str] = ()) -> list[Expression]:
    """Return all expressions, or those of some functions."""
    found = []
    for line in _EXPRESSIONS.read_text().splitlines():
        if line and not line.startswith("#"):
            given, text, first = _NAMED.fullmatch(line).groups()  # type: ignore[union-attr]
            found.append(Expression(given or first, text))
    return [each for each in found if not only or each.function in only]


def run(arguments: argparse.Namespace) -> int:
    """Compare all; 1: a result was different."""
    spark = session()
    chosen = expressions(arguments.only or ())
    outcomes = compare(spark, chosen, ROWS, arguments.seed)
    if arguments.only:
        return report(outcomes, [])
    return report([*outcomes, *in_groups(spark, arguments.seed)], without(spark, chosen))


def compare(spark: SparkSession, chosen: Sequence[Expression], rows: int, seed: int) -> list[Outcome]:
    """Return what became of expressions over so many rows, in both settings."""
    from conformance.column_rows import ColumnRows

    outcomes: list[Outcome] = []
    shown = time.monotonic()
    for ansi in (True, False):
        with settings(spark, ansi, TIME_ZONES[seed % len(TIME_ZONES)]):
            columns = ColumnRows(spark, rows, seed, ansi)
            for first in range(0, len(chosen), AT_ONCE):
                outcomes += columns.outcomes(chosen[first : first + AT_ONCE])
                if time.monotonic() - shown > 5:
                    shown = time.monotonic()
                    console.print(f"{len(outcomes)} of {2 * len(chosen)}", style="dim")
    return outcomes


def in_groups(spark: SparkSession, seed: int) -> list[Outcome]:
    """Return what became of aggregates, keys and windows, in both settings."""
    from conformance import column_groups

    outcomes: list[Outcome] = []
    shown = time.monotonic()
    for ansi in (True, False):
        for each in column_groups.compare(spark, seed, ansi=ansi):
            outcomes.append(Outcome(Expression(each.function, each.query), ansi, each.by, why=each.why))
            if time.monotonic() - shown > 5:
                shown = time.monotonic()
                console.print(f"{len(outcomes)} aggregates, keys and windows", style="dim")
    return outcomes


@contextmanager
def settings(spark: SparkSession, ansi: bool, time_zone: str) -> Iterator[None]:
    """Set what counts for expressions, for a while."""
    wanted = {
        "spark.sql.ansi.enabled": str(ansi).lower(), "spark.sql.session.timeZone": time_zone,
        "spark.sql.timeType.enabled": "true",
    }  # fmt: skip
    with changed_settings(spark, wanted):
        yield


def without(spark: SparkSession, chosen: Sequence[Expression]) -> list[tuple[str, str]]:
    """Return the functions of Spark's that have no expression, and why."""
    from headgate.spark.analyzed.scala import singleton, sql_class

    registry = singleton("catalyst.analysis.FunctionRegistry").builtin()
    covered, found = {each.function for each in chosen}, []
    for (name,) in spark.sql("SHOW SYSTEM FUNCTIONS").collect():
        if name not in covered:
            info = registry.lookupFunction(sql_class("catalyst.FunctionIdentifier")(name))
            group = str(info.get().getGroup()) if info.isDefined() else "table_funcs"
            by_name = [why for pattern, why in OF_A_NAME.items() if re.fullmatch(pattern, name)]
            found.append((name, OF_A_GROUP.get(group) or [*by_name, "nobody has written one"][0]))
    return found


def report(outcomes: Sequence[Outcome], left_out: Sequence[tuple[str, str]]) -> int:
    """Print the tables and the line of JSON; return 1 if a result was different."""
    for kind in ("unknown", "refused", "different"):
        listed = [each for each in outcomes if each.by == kind]
        if listed:
            table = Table("expression", "ANSI", "why", title={"unknown": "refused by Spark"}.get(kind, kind))
            for each in listed:
                table.add_row(escape(each.expression.text), "yes" if each.ansi else "no", escape(each.why))
            console.print(table)
    for why, names in _by_reason(left_out).items():
        console.print(f"{len(names)} functions without an expression ({why}): {', '.join(names)}", highlight=False)
    counts = collections.Counter(each.by for each in outcomes)
    table = Table("evaluated by", "expressions", title="Expressions over columns, with ANSI mode and without")
    for by, text in (
        ("arrow", "Arrow kernels: equal"),
        ("catalyst", "Spark's own code in the helper: equal"),
        ("refused", "refused by name"),
        ("unknown", "refused by Spark"),
        ("different", "different"),
    ):
        table.add_row(text, str(counts[by]))
    console.print(table)
    equal = _equal_functions(outcomes)
    compared = {each.expression.function for each in outcomes if each.by != "unknown"}
    case = {
        "case": "columns", "headgate": len(equal), "peer": len(compared),
        "ratio": round(len(equal) / max(len(compared), 1), 4), "different": counts["different"],
        "arrow": counts["arrow"], "catalyst": counts["catalyst"], "refused": counts["refused"],
        "failed_rows": sum(each.failed for each in outcomes),
    }  # fmt: skip
    print(json.dumps({"bench": "conformance", "cases": [case]}))
    return int(counts["different"] > 0)


def _by_reason(left_out: Sequence[tuple[str, str]]) -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, why in left_out:
        found.setdefault(why, []).append(name)
    return found


def _equal_functions(outcomes: Sequence[Outcome]) -> set[str]:
    """Return the functions of which an expression is compared, and none is different or refused."""
    known = [each for each in outcomes if each.by != "unknown"]
    other = {each.expression.function for each in known if each.by in ("different", "refused")}
    return {each.expression.function for each in known} - other
