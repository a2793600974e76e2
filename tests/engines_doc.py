"""Writes ``docs/engines.md``: what of PySpark runs continuously, how, and what does not. ``./run docs``.

Never: say what the translation does not: nodes, kernels and refusals are those of `headgate.spark.analyzed`.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headgate.spark import analyzed
from headgate.spark.analyzed import aggregates, plan, rules
from headgate.spark.analyzed.expressions import RULES
from headgate.spark.compatibility import TRANSFORM_WITH_STATE
from tests import refused_programs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DOCUMENT = Path(__file__).resolve().parents[1] / "docs/engines.md"

OPENING = """# What runs on which engine

`./run docs` makes this page of the code that translates programs: do not edit it. A test fails when it is out of date.

A program over Headgate's sources is run by Spark as a batch (`spark.read` and an action) and in micro-batches
(`df.writeStream`): there it may be whatever Spark allows. `headgate.continuous(df)` runs what is on this page; anything
else is an `UnsupportedOperationError` at `explain()` and `start()` that names the part, and nothing is started.
[continuous.md](continuous.md) describes how.
"""
PROGRAMS = {
    "StreamingRelationV2": "`spark.readStream.format(...).load()` of Headgate's sources and registered ones",
    "DataSourceV2Relation": "`spark.read.format(...).load()` of the same: the query ends when all is read",
    "Project": "`select`, `selectExpr`, `withColumn`, `drop`, `toDF`",
    "Filter": "`where`, `filter`, `HAVING`",
    "Expand": "sliding windows; `rollup`, `cube`, `GROUPING SETS`",
    "Aggregate": "`groupBy(...).agg(...)`, with windows, session windows or without",
    "Generate": "`explode`, `posexplode`, `inline`, `stack`, `LATERAL VIEW`",
    "Deduplicate": "`dropDuplicates`",
    "DeduplicateWithinWatermark": "`dropDuplicatesWithinWatermark`",
    "Distinct": "`distinct`",
    "Join": "`join`, of two streams and with rows that end",
    "TransformWithStateInPySpark": "`transformWithState`, `transformWithStateInPandas`",
    "UpdateEventTimeWatermarkColumn": "their `eventTimeColumnName`",
    "FlatMapGroupsInPandasWithState": "`applyInPandasWithState`",
    "SubqueryAlias": "`alias`, temporary views: the name of the source or operator below, in checkpoints too",
    "View": "views",
    "ResolvedHint": "hints, which have no effect",
    "WithCTE": "`WITH`",
    "CTERelationRef": "the same",
    "Union": "`union`, `unionByName`",
    "EventTimeWatermark": "`withWatermark`",
    "Repartition": "`repartition(n)`, `coalesce`",
    "RepartitionByExpression": "`repartition(n, columns)`, `repartitionById`",
    "Sort": "`orderBy`, `sort`, after an aggregation in the output mode `complete`",
    "GlobalLimit": "`limit`",
    "LocalLimit": "the same",
    "MapInArrow": "`mapInArrow`",
    "MapInPandas": "`mapInPandas`",
}
"""What each node of Spark's plan is in a program."""


def document(spark: SparkSession) -> str:
    """Return what docs/engines.md must be, for the functions that a session has."""
    nodes = plan._NODES.keys() - set(TRANSFORM_WITH_STATE[1:])  # what Spark 4.0 calls the first of them
    assert PROGRAMS.keys() == nodes, PROGRAMS.keys() ^ nodes
    known = sorted(_functions(spark))
    on_arrow = _names(name for name, of in known if of in RULES)
    by_arrow = _names(name for name, of in known if of in aggregates._FUNCTIONS)
    nodes = "\n".join(f"| {words} | `{node}` |" for node, words in PROGRAMS.items())
    refused = "\n".join(
        f"| {each.text} | `{each.mode}` | {each.why} | {each.in_spark} |" for each in refused_programs.PROGRAMS
    )
    return f"""{OPENING}
## Programs

| in PySpark | node of Spark's plan |
| --- | --- |
{nodes}

## Functions

These have kernels of Arrow, where types and arguments are such that the result is Spark's to the last digit
(`{Path(rules.__file__).name}` has the conditions):

{on_arrow}

All other functions of one row are evaluated by Spark's own code in a Java process beside the slots, as are these
where a condition is not met; `explain()` marks them `[Catalyst]`.

These aggregates are computed by Arrow, all others, and sums without ANSI mode, by Spark's own code:

{by_arrow}

## What is refused

Each of these is an `UnsupportedOperationError` with these words. The last column says what Structured Streaming does
with the program.

| program | output mode | cannot run continuously, because | Structured Streaming |
| --- | --- | --- | --- |
{refused}
"""


def _functions(spark: SparkSession) -> Iterator[tuple[str, str]]:
    """Yield the name of each function of Spark's, and the expression that it is."""
    infos = spark._jvm.org.apache.spark.sql.api.python.PythonSQLUtils.listBuiltinFunctionInfos()  # type: ignore[union-attr]
    for each in infos:
        of = each.getClassName().rpartition(".")[2].removesuffix("ExpressionBuilder")
        yield each.getName(), of if of in RULES else f"String{of}" if f"String{of}" in RULES else of


def _names(names: Iterator[str]) -> str:
    return textwrap.fill(", ".join(f"`{each}`" for each in names), 120, break_on_hyphens=False)


def refusals() -> Iterator[str]:
    """Yield the reasons with which the modules of the translation refuse nodes."""
    for path in sorted(Path(analyzed.__file__).parent.glob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "unsupported":
                why = call.args[1]
                if isinstance(why, ast.Constant | ast.JoinedStr):
                    yield re.sub(r"\{[^}]*\}", "…", ast.unparse(why).removeprefix("f")[1:-1])


def main() -> None:
    """Write the document."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
    DOCUMENT.write_text(document(spark))
    spark.stop()


if __name__ == "__main__":
    main()
