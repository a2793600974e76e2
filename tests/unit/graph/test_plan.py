"""How a program becomes a graph: order, uids that hold when another branch changes, and where a column comes from."""

from __future__ import annotations

import pickle
from collections import Counter

import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound, Column
from headgate.graph.plan import PlanNode, source_column, stage_graph, with_strategy
from headgate.graph.stage_graph import SINK_UID, StageGraph
from headgate.operators.catalyst_project import CatalystProject
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.map_in_arrow import MapInArrow
from headgate.operators.project import Project
from headgate.operators.stream_join.condition import PairCondition
from headgate.operators.stream_join.operator import Side, StreamJoin
from headgate.operators.transform_with_state.transform_with_state import TransformWithState
from headgate.operators.union import Union
from headgate.operators.user_functions import UserFunctions
from headgate.operators.windows.aggregates import Aggregate, accumulator_of
from headgate.operators.windows.assigner import NoWindow
from headgate.operators.windows.catalyst_aggregate import CatalystAggregate
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.windowed import Aggregated
from headgate.source import WatermarkStrategy
from tests.unit.expressions.nodes import call
from tests.unit.operators.collecting_sink import NUMBERS, Recording, source


def kept(node: PlanNode) -> PlanNode:
    return node.then(Filter(node.schema, Column(call("isnotnull", Bound(0, node.schema.names[0]))), "UTC"))


def united(*nodes: PlanNode) -> PlanNode:
    return PlanNode(of=Union(*(node.schema for node in nodes)), inputs=nodes)


def test_uids_are_counted_from_the_nearest_name() -> None:
    left = kept(kept(source(uid="kafka")))
    right = kept(source(uid="kafka").named("rides"))
    graph = stage_graph(kept(united(left, right)))
    assert graph.uids == (
        "kafka", "rides", "kafka.1.filter", "kafka.2.filter", "rides.1.filter", "union", "union.1.filter", SINK_UID,
    )  # fmt: skip
    assert graph.output == "union.1.filter"


def test_a_change_in_one_branch_leaves_the_other_alone() -> None:
    def program(left: PlanNode) -> set[str]:
        return set(stage_graph(united(left, kept(source(uid="files")))).uids)

    short, long = program(source(uid="kafka")), program(kept(kept(source(uid="kafka"))))
    assert short < long
    assert long - short == {"kafka.1.filter", "kafka.2.filter"}


def test_a_name_holds_what_follows() -> None:
    def program(node: PlanNode) -> set[str]:
        graph = stage_graph(kept(node.then(Recording()).named("parse")))
        assert graph.named == {"parse"}
        return set(graph.uids)

    assert program(kept(source(uid="kafka"))) - program(source(uid="kafka")) == {"kafka.1.filter"}


def test_derived_names_give_way_to_those_of_the_user() -> None:
    graph = stage_graph(kept(united(source(uid="kafka"), source(uid="kafka").named("kafka-2"), source(uid="kafka"))))
    assert [each.uid for each in graph.sources] == ["kafka", "kafka-2", "kafka-3"]


@pytest.mark.parametrize("taken", ["mine", SINK_UID, "bad-records"])
def test_a_name_twice(taken: str) -> None:
    with pytest.raises(OptionError, match=f"names '{taken}' more than once"):
        stage_graph(kept(kept(source().named("mine"))).named(taken))


@pytest.mark.parametrize("name", ["", "a/b", ".hidden", "x" * 101, "ü"])
def test_a_name_that_no_file_can_have(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be used"):
        source().named(name)


def test_one_source_in_two_branches_is_read_once() -> None:
    start = source()
    graph = stage_graph(united(kept(start), start))
    assert len(graph.sources) == 1
    assert graph.consumers("numbers") == ("numbers.1.filter", "union")


def test_what_feeds_the_sink() -> None:
    graph = stage_graph(source())
    assert graph.consumers("numbers") == (SINK_UID,)
    assert graph.schema == NUMBERS


def test_programs_share_no_operator() -> None:
    node = kept(source())
    first, second = (stage_graph(each).operators[0].operator for each in (node, node.named("other")))
    assert (first.uid, second.uid) == ("numbers.1.filter", "other")


def test_a_graph_is_pickled() -> None:
    graph: StageGraph = pickle.loads(pickle.dumps(stage_graph(kept(source()))))
    assert graph.uids == ("numbers", "numbers.1.filter", SINK_UID)


def test_where_a_column_comes_from() -> None:
    at = source(pa.schema([("at", pa.timestamp("us", "UTC")), ("n", pa.int64())]))
    columns = [Column(Bound(0, "at"), "when"), Column(call("+", Bound(1, "n"), 1), "n")]
    filtered = kept(at.then(Project(at.schema, columns, "UTC")))
    assert source_column(filtered, 0) == "at"
    bound = [Column(Bound(1, "n")), Column(Bound(0, "when"), "then")]
    assert source_column(filtered.then(Project(filtered.schema, bound, "UTC")), 1) == "at"
    assert source_column(filtered, 1) is None
    assert source_column(filtered.then(Recording()), 0) is None
    assert source_column(united(at, at), 0) is None
    strategy = WatermarkStrategy(event_time_column="at")
    assert stage_graph(with_strategy(filtered, lambda _: strategy)).sources[0].watermark_strategy == strategy


def test_a_strategy_for_each_source_keeps_one_source_in_two_branches_one() -> None:
    left, right = source(uid="left"), source(uid="right")
    both = united(united(left, kept(left)), right)
    made = stage_graph(with_strategy(both, lambda of: WatermarkStrategy(event_time_column=of.uid)))
    assert [(each.uid, each.watermark_strategy) for each in made.sources] == [
        ("left", WatermarkStrategy(event_time_column="left")),
        ("right", WatermarkStrategy(event_time_column="right")),
    ]


def test_a_union_needs_the_same_types() -> None:
    with pytest.raises(OptionError, match="n int64 and n string"):
        Union(NUMBERS, pa.schema([("n", pa.string())]))


def spread(node: PlanNode) -> PlanNode:
    return node.then(Exchange(node.schema, "rebalance"))


def test_rows_that_skip_several_stages_are_forwarded_through_each() -> None:
    """Once, however often they are used there."""
    rows = source()
    far = spread(spread(rows))
    graph = stage_graph(united(far, rows, rows, spread(rows)))
    kinds = Counter((each.exchange_kind, graph.stage_of(uid)) for uid, each in graph.exchanges.items())
    assert kinds == {("rebalance", 0): 2, ("rebalance", 1): 1, ("forward", 0): 1, ("forward", 1): 2}
    assert [len(stage.inputs) for stage in graph.stages] == [0, 3, 3]
    assert len(stage_graph(united(far, united(rows, rows))).stages) == 3


def test_who_is_downstream_of_exchanges_is_idle_together_with_its_neighbours() -> None:
    """Except after only a forward exchange of a source: each consumer has the state of one reader."""
    graph = stage_graph(spread(spread(source())))
    assert [graph.idles_together(stage.number) for stage in graph.stages] == [False, True, True]
    assert all(map(graph.is_broadcast, graph.exchanges))

    rows = source()
    graph = stage_graph(spread(united(rows, spread(rows))))
    assert [graph.idles_together(stage.number) for stage in graph.stages] == [False, True, True]
    assert [each.exchange_kind for uid, each in graph.exchanges.items() if not graph.is_broadcast(uid)] == ["forward"]


class Waiting(Recording):
    """An operator that waits for others."""

    blocks = True


@pytest.mark.parametrize(
    ("waiting", "threads"),
    [
        ((), ((0, 1, 2),)),
        ((0,), ((0,), (1, 2))),
        ((1,), ((0, 2), (1,))),
        ((1, 2), ((0,), (1,), (2,))),
        ((0, 1, 2), ((0,), (1,), (2,))),
    ],
)
def test_stages_share_a_thread_but_for_those_that_wait_for_others(
    waiting: tuple[int, ...], threads: tuple[tuple[int, ...], ...]
) -> None:
    node = source()
    for stage in range(3):
        node = node.then(Waiting() if stage in waiting else Recording())
        node = spread(node) if stage < 2 else node
    assert stage_graph(node).threads == threads


def test_functions_of_the_user_and_spark_s_own_code_have_a_thread_of_their_own() -> None:
    assert all(each.blocks for each in (CatalystProject, MapInArrow, TransformWithState, UserFunctions))
    assert not any(each.blocks for each in (Deduplicate, Filter, Project, StreamJoin, Union))
    is_there, side = call("isnotnull", Bound(0, NUMBERS.names[0])), Side(NUMBERS, (0,))
    for steps in ([], [Recording()], [Recording(), Waiting()]):
        condition = PairCondition(NUMBERS, steps, is_there, "UTC")
        joined = StreamJoin(side, side, NUMBERS, "inner", condition)
        assert joined.blocks == any(each.blocks for each in steps)
    count = accumulator_of(Aggregate("count"), None)
    for accumulator, blocks in ((count, False), (CatalystAggregate("a", pa.int64(), b"", conditional=False), True)):
        counted = Aggregated("a", accumulator, None)
        operator = WindowAggregate(NUMBERS, NoWindow(), time=None, keys=(), aggregates=[counted], columns=["a"])
        assert operator.blocks == blocks
