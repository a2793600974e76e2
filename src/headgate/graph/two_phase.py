"""Makes an aggregation two: rows are aggregated before they cross the exchange, and what crosses once more after it.

So it does with ``dropDuplicates`` without event time, after which rows cross that are the first of their batch.

Never: change the uid of what is there, which names state, or look at rows.

It is done to a graph whose uids are known, so that a checkpoint of before finds its state: the first phase has none. An
aggregation whose late rows are kept is left alone, since these are rows; and one that `WindowAggregate.two_phases`
leaves alone. Sessions are: whether a row is late is decided for each of their rows, after the exchange.

Follows docs/decisions/032-rows-are-aggregated-before-the-exchange.md, and Flink's option of the same name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

from headgate.graph.stage_graph import OperatorNode, StageGraph
from headgate.operators.deduplicate import Deduplicate
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Operator
from headgate.operators.windows.operator import WindowAggregate

AGG_PHASE_STRATEGY = "table.optimizer.agg-phase-strategy"
"""The option."""
Strategy = Literal["AUTO", "TWO_PHASE", "ONE_PHASE"]


def with_two_phases(graph: StageGraph, strategy: Strategy, *, late_rows_of: str | None = None) -> StageGraph:
    """Return the same query, in which aggregations have two phases that can.

    Parameters
    ----------
    graph
        The query.
    strategy
        With ``AUTO`` rows are grouped before the exchange while their keys repeat, with ``TWO_PHASE`` always, with
        ``ONE_PHASE`` never.
    late_rows_of
        The uid of the operator whose late rows are kept.
    """
    if strategy == "ONE_PHASE":
        return graph
    made: dict[str, list[tuple[Operator, tuple[str, ...]]]] = {}
    for node in graph.operators:
        exchange = graph.exchanges.get(node.inputs[0])
        if exchange is None or exchange.exchange_kind != "hash" or graph.consumers(exchange.uid) != (node.uid,):
            continue
        phases = None if node.uid == late_rows_of else _phases(node.operator, exchange, strategy == "TWO_PHASE")
        if phases is None:
            continue
        first, between, last = phases
        first.uid, between.uid = _free(f"{node.uid}-partial", graph), exchange.uid
        (before,) = (each.inputs for each in graph.operators if each.uid == exchange.uid)
        made[exchange.uid] = [(first, before), (between, (first.uid,))]
        made[node.uid] = [(last, node.inputs)]
    return replace(graph, operators=tuple(each for node in graph.operators for each in _replaced(node, made)))


def _phases(operator: Operator, exchange: Exchange, always: bool) -> tuple[Operator, Exchange, Operator] | None:
    """Return what comes before the exchange, the exchange, and what comes after it; None: there is one phase only."""
    match operator:
        case WindowAggregate():
            return operator.two_phases(always=always)
        case Deduplicate():
            first = operator.first_phase(always=always)
            return None if first is None else (first, copy.copy(exchange), operator)
    return None


def _replaced(node: OperatorNode, made: dict[str, list[tuple[Operator, tuple[str, ...]]]]) -> Iterator[OperatorNode]:
    for operator, inputs in made.get(node.uid, [(node.operator, node.inputs)]):
        yield OperatorNode(operator=operator, inputs=inputs, named=node.named and operator.uid == node.uid)


def _free(wanted: str, graph: StageGraph) -> str:
    uid, number = wanted, 1
    while uid in graph.uids:
        number += 1
        uid = f"{wanted}-{number}"
    return uid
