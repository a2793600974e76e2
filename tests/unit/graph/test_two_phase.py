"""Which aggregations have two phases, and what stays as it was."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.expressions.expressions import Bound, Column
from headgate.graph.explain import explained, function_names
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.two_phase import with_two_phases
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.exchange import Exchange
from headgate.operators.windows.aggregates import Aggregate
from headgate.operators.windows.assigner import SessionWindow
from headgate.operators.windows.partial import PartialAggregate, PartialExchange
from tests.unit.spark.continuous.programs import AMOUNT, AT, TEN, TOTAL, USER, counted, definition, read, timed

COUNTED = counted(timed(), TEN, Column(USER), aggregates=(TOTAL, Aggregate("count", name="rides")))


def phases(node: PlanNode, strategy: Any = "AUTO", **kept: str) -> list[str]:
    """Return the uids of first phases."""
    graph = with_two_phases(stage_graph(node), strategy, **kept)
    return [each.uid for each in graph.operators if isinstance(each.operator, PartialAggregate)]


def test_rows_are_aggregated_before_the_exchange_and_after_it() -> None:
    """All that was there keeps its name: state is found by these."""
    before = stage_graph(COUNTED)
    graph = with_two_phases(before, "AUTO")
    assert explained(graph).splitlines()[2:8] == [
        "  datagen.1.select: user, at, amount",
        "  datagen.3.window-partial: PartialAggregate(keys=[window, user], "
        "functions=[partial_sum(amount), partial_count(1)])",
        "  datagen.2.key-by: to stage 1 by the hash of user",
        "Stage 1",
        "  datagen.3.window: groupBy(window, user).agg(...)",
        "    state by key: sum(amount) of int64, count(1) in window(at, 10 s, 10 s, 0 s) by user string",
    ]
    assert [uid for uid in graph.uids if uid not in before.uids] == ["datagen.3.window-partial"]
    assert graph.signatures["datagen.3.window"] == before.signatures["datagen.3.window"]
    assert graph.state_schemas["datagen.3.window"] == before.state_schemas["datagen.3.window"]
    assert graph.schema == before.schema
    assert isinstance(graph.exchanges["datagen.2.key-by"], PartialExchange)
    assert isinstance(before.exchanges["datagen.2.key-by"], Exchange), "the other graph is as it was"
    assert not isinstance(before.exchanges["datagen.2.key-by"], PartialExchange)
    assert "datagen.3.window-partial" in function_names(graph)


def test_what_a_user_named_keeps_its_name() -> None:
    graph = with_two_phases(stage_graph(COUNTED.named("totals")), "TWO_PHASE")
    assert [each.uid for each in graph.operators if each.named] == ["totals"]
    assert phases(COUNTED.named("totals")) == ["totals-partial"]
    taken = counted(timed().named("totals-partial"), Column(USER)).named("totals")
    assert phases(taken) == ["totals-partial-2"]


def test_who_wants_one_phase_has_one() -> None:
    assert phases(COUNTED, "ONE_PHASE") == []
    assert phases(COUNTED, late_rows_of="datagen.3.window") == []
    assert phases(COUNTED, late_rows_of="other") == ["datagen.3.window-partial"]


@pytest.mark.parametrize(
    "node",
    [
        counted(timed(), SessionWindow(AT, 10_000_000), Column(USER)),
        counted(timed(), TEN, Column(USER), aggregates=(Aggregate("first", AMOUNT, {"ignorenulls": False}, "f"),)),
        timed().then(Exchange(timed().schema, "hash", keys=("user",))),
    ],
    ids=["sessions", "order", "no aggregation"],
)
def test_what_cannot_have_two_has_one(node: PlanNode) -> None:
    assert phases(node, "TWO_PHASE") == []


def test_groups_of_groups_have_two_each() -> None:
    again = counted(counted(read(), Column(USER)), Column(Bound(1, "rides"), "rides"))
    assert phases(again) == ["datagen.3.window-partial", "datagen.6.window-partial"]
    assert phases(counted(read())) == ["datagen.3.window-partial"], "all rows are one group"


def test_duplicates_are_dropped_before_the_exchange_unless_rows_may_be_late() -> None:
    schema = read().schema

    def dropped(**options: Any) -> PlanNode:
        keyed = timed().then(Exchange(schema, "hash", keys=("user",)))
        return keyed.then(Deduplicate(schema, ["user"], **options))

    graph = with_two_phases(stage_graph(dropped()), "AUTO")
    assert explained(graph).splitlines()[2:4] == [
        "  datagen.2.deduplicate-partial: PartialDeduplicate(keys=[user])",
        "  datagen.1.key-by: to stage 1 by the hash of user",
    ]
    assert graph.signatures == stage_graph(dropped()).signatures
    assert with_two_phases(stage_graph(dropped(time="at")), "AUTO").uids == stage_graph(dropped()).uids


def test_the_option_decides_and_so_does_who_keeps_late_rows() -> None:
    """What is kept are rows, which are known after the exchange only."""

    def uids(**options: str) -> tuple[str, ...]:
        return definition(COUNTED, **options).graph.uids

    strategy = "table.optimizer.agg-phase-strategy"
    for phases in ("auto", "TWO_PHASE"):
        assert "datagen.3.window-partial" in uids(**{strategy: phases})
        assert "datagen.3.window-partial" not in uids(**{strategy: phases}, lateRows="noop")
    assert "datagen.3.window-partial" not in uids()
    late = definition(COUNTED, lateRows="noop").late_rows
    assert late is not None and late.uid == "datagen.3.window"
