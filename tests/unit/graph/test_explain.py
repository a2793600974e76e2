"""What a query says of itself: its stages, in the order of the data."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pyarrow as pa

from headgate.expressions.expressions import Bound, Column
from headgate.graph.explain import explained, function_names
from headgate.graph.plan import PlanNode, stage_graph, watermarked
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import TimeWindow
from headgate.source import Boundedness, WatermarkAlignment
from headgate.spark.analyzed.grouping import grouped
from tests.unit.expressions.nodes import call
from tests.unit.operators.collecting_sink import source

TIMED = pa.schema([("user", pa.string()), ("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def test_windows_by_key() -> None:
    node = watermarked(source(TIMED).named("rides"), 2, 5000)
    condition = call("and", call(">", Bound(1, "n"), 4), call("<", Bound(0, "user"), "x"))
    node = node.then(Filter(TIMED, Column(condition), "UTC"))
    windows, user = TimeWindow(Bound(2, "at"), 10_000_000, 10_000_000), Column(Bound(0, "user"))
    aggregates = [Aggregate("sum", Bound(1, "n"), name="sum"), Aggregate("count", name="rows")]
    made = grouped(node, [windows, user], windows, aggregates, "UTC")
    columns = [Column(Bound(1, "user")), Column(call("*", Bound(2, "sum"), 2), "double")]
    made = made.then(Project(made.schema, columns, "UTC"))
    assert explained(stage_graph(made)).splitlines() == [
        "Stage 0",
        "  rides: datagen, until the query is stopped; watermark: 5 s below the latest 'at'",
        "  rides.1.filter: ((n > 4) AND (user < x))  [Arrow]",
        "  rides.2.select: user, at, n",
        "  rides.3.key-by: to stage 1 by the hash of user",
        "Stage 1",
        "  rides.4.window: groupBy(window, user).agg(...)",
        "    state by key: sum(n) of int64, count(1) in window(at, 10 s, 10 s, 0 s) by user string",
        "  rides.5.select: user, (sum * 2) AS double  [Arrow]",
        "  sink: user string, double int64",
    ]


def test_several_sources_functions_and_other_exchanges() -> None:
    first, second = source(TIMED, "first"), source(TIMED, "second")
    assert isinstance(second.of, SourceDefinition)
    second = replace(second, of=replace(second.of, boundedness=Boundedness.BOUNDED))
    second = watermarked(second, 2, 0)
    assert isinstance(second.of, SourceDefinition) and second.of.watermark_strategy is not None
    alignment = WatermarkAlignment(group="g", max_drift_ms=1000, update_interval_ms=1000)
    strategy = msgspec.structs.replace(second.of.watermark_strategy, alignment=alignment)
    second = replace(second, of=replace(second.of, watermark_strategy=strategy))
    node = PlanNode(of=Union(TIMED, TIMED), inputs=(first, second))
    node = node.then(MapInArrow(print, TIMED)).then(Exchange(TIMED, "rebalance", targets=2))
    node = node.then(Exchange(TIMED, "broadcast")).then(Exchange(TIMED, "custom", partition=lambda rows, n: rows))
    assert explained(stage_graph(node)).splitlines() == [
        "Stage 0",
        "  first: datagen, until the query is stopped",
        "  second: datagen, to its end; watermark: 0 s below the latest 'at'; aligned with the group 'g'",
        "  union: union of first, second",
        "  union.1.map-in-arrow: print",
        "  union.2.repartition: to stage 1 in turn, to 2 subtasks",
        "Stage 1",
        "  union.3.broadcast: to stage 2 to every subtask",
        "Stage 2",
        "  union.4.partition-by: to stage 3 to the subtasks that a function names",
        "Stage 3",
        "  sink: user string, n int64, at timestamp[us, tz=UTC]",
    ]


def test_columns_by_place_are_shown_by_name() -> None:
    node = source(TIMED)
    columns = [Column(Bound(1, "n")), Column(Bound(1, "n"), "m")]
    assert "  numbers.1.select: n, n AS m" in explained(stage_graph(node.then(Project(TIMED, columns, "UTC"))))


def test_operators_are_called_by_the_functions_that_they_call() -> None:
    node = source(TIMED).named("rides").then(MapInArrow(print, TIMED))
    node = node.then(Filter(TIMED, Column(call(">", Bound(1, "n"), 4)), "UTC"))
    node = node.then(MapInArrow(print, TIMED)).named("own")
    assert function_names(stage_graph(node)) == {"rides.1.map-in-arrow": "print"}
