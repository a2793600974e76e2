"""Where results are sorted and cut: in one subtask, after an aligned exchange, once; and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Column
from headgate.graph.explain import explained
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.results import check_complete, has_results, placed
from headgate.graph.stage_graph import StageGraph
from headgate.operators.complete_results import LimitRows, SortRows
from headgate.operators.exchange import Exchange
from headgate.operators.project import Project
from headgate.operators.row_order import SortKey
from headgate.operators.union import Union
from headgate.operators.windows.windowed import OutputMode
from tests.unit.spark.continuous.programs import AMOUNT, USER, counted, read, writer


def by_user(name: str = "datagen") -> PlanNode:
    return counted(read().named(name), Column(USER))


def sorted_rows(node: PlanNode) -> PlanNode:
    return node.then(SortRows(node.schema, [SortKey("rides", descending=True), SortKey("user")]))


def limited(node: PlanNode, most: int = 2) -> PlanNode:
    return node.then(LimitRows(node.schema, most))


def named(node: PlanNode) -> PlanNode:
    return node.then(Project(node.schema, [Column(Bound(0, "user"), "name")], "UTC"))


def united(*nodes: PlanNode) -> PlanNode:
    return PlanNode(of=Union(*(each.schema for each in nodes)), inputs=nodes)


def graph_of(node: PlanNode, mode: OutputMode = "complete") -> StageGraph:
    graph = stage_graph(placed(node, mode))
    if mode == "complete":
        check_complete(graph)
    return graph


def test_the_first_rows_of_a_sorted_result() -> None:
    """Each subtask sends no more than what may be among them; what follows is where the result is."""
    node = limited(named(sorted_rows(by_user())))
    assert has_results(node) and not has_results(by_user())
    assert explained(graph_of(node)).splitlines()[5:] == [
        "  datagen.3.window: groupBy(user).agg(...)",
        "    state by key: count(1) in no window by user string",
        "  datagen.4.sort: orderBy(rides DESC NULLS FIRST, user ASC NULLS FIRST)",
        "  datagen.5.mark-results: results of each subtask",
        "  datagen.6.repartition: to stage 2 in one subtask, before barriers",
        "Stage 2",
        "  datagen.7.collect-results: the results of all subtasks",
        "  datagen.8.sort: orderBy(rides DESC NULLS FIRST, user ASC NULLS FIRST)",
        "  datagen.9.select: user AS name",
        "  datagen.10.limit: limit(2)",
        "  sink: name string",
    ]
    (_, gathered) = graph_of(node).exchanges.values()
    assert (gathered.targets, gathered.supports_unaligned) == (1, False)


def test_a_result_is_put_together_once() -> None:
    assert len(graph_of(sorted_rows(limited(sorted_rows(by_user()), 5))).stages) == 3
    both = graph_of(limited(united(sorted_rows(by_user("a")), limited(by_user("b")))))
    assert len(both.stages) == 3 and len(both.exchanges) == 4


@pytest.mark.parametrize("mode", ["append", "complete"])
def test_a_limit_of_rows_that_come_once_is_one_of_all_of_them(mode: OutputMode) -> None:
    """In ``append``, and before an aggregation: no subtask sends more than are wanted."""
    renamed = pa.schema([("all 0", pa.int64())])
    before = read().then(Project(read().schema, [Column(AMOUNT, "all 0")], "UTC"))
    assert explained(graph_of(limited(before), mode)).splitlines()[1:] == [
        "  datagen: datagen, until the query is stopped",
        "  datagen.1.select: amount AS all 0",
        "  datagen.2.limit: limit(2)",
        "  datagen.3.select: all 0, 0 AS all 1  [Arrow]",
        "  datagen.4.key-by: to stage 1 by the hash of all 1",
        "Stage 1",
        "  datagen.5.limit: limit(2)",
        "    state by key: the first rows",
        "  sink: all 0 int64",
    ]
    assert graph_of(limited(before), mode).schema == renamed
    twice = limited(counted(limited(read()), Column(USER)))
    kinds = [type(each.operator).__name__ for each in graph_of(twice, mode).operators]
    assert kinds.count("FirstRows") == (2 if mode == "append" else 1)
    assert kinds.count("CollectResults") == (0 if mode == "append" else 1)


def test_a_repartition_of_a_result_puts_it_together() -> None:
    """So that rows which the program wants in one place are."""
    spread = by_user().then(Exchange(by_user().schema, "rebalance"))
    assert [each.aligned for each in graph_of(spread).exchanges.values()] == [False, True]
    again = sorted_rows(spread).then(Exchange(by_user().schema, "hash", keys=("user",)))
    assert len(graph_of(again).stages) == 3
    assert (
        len(graph_of(spread, "append").stages) == 3
        and not graph_of(spread, "append").exchanges["datagen.4.repartition"].aligned
    )


def test_only_groups_that_go_on_elsewhere_are_emitted_before_the_end() -> None:
    for node, expected in ((by_user(), False), (sorted_rows(by_user()), True)):
        made = writer(node).outputMode("complete").definition()
        windows = [each.operator for each in made.graph.operators if hasattr(each.operator, "goes_on_elsewhere")]
        assert [each.goes_on_elsewhere for each in windows] == [expected]


@pytest.mark.parametrize(
    ("message", "node", "mode"),
    [
        ("Call outputMode..complete..", sorted_rows(by_user()), "append"),
        ("Call outputMode..complete..", sorted_rows(by_user()), "update"),
        ("in the output mode 'update', as in Structured", limited(by_user()), "update"),
        ("in the output mode 'update', as in Structured", limited(read()), "update"),
        ("no aggregation before it", read().then(SortRows(read().schema, [SortKey("user")])), "complete"),
        ("a union of rows that are sorted", limited(united(sorted_rows(by_user("a")), by_user("b"))), "complete"),
        (
            "repartition cannot run continuously: it follows a union",
            united(sorted_rows(by_user("a")), by_user("b")).then(Exchange(by_user().schema, "rebalance")),
            "complete",
        ),
        ("united with results", united(sorted_rows(by_user("a")), by_user("b")), "complete"),
    ],
)
def test_what_is_refused(message: str, node: PlanNode, mode: OutputMode) -> None:
    with pytest.raises(UnsupportedOperationError, match=message):
        graph_of(node, mode)
