"""Where whole results are sorted and cut: between what a program says and the stages that do it.

Never: import pyspark, or put a result together anywhere but in one subtask.

A translated program has `SortRows` and `LimitRows` where Spark's plan has ``Sort`` and ``Limit``. What these need
depends on the output mode, which is known when the query is started: see `headgate.operators.complete_results` for
``complete``. In ``append``, and before an aggregation, a limit is of all rows that there ever are:
`headgate.operators.first_rows`.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Column, Constant
from headgate.graph.plan import PlanNode
from headgate.graph.stage_graph import StageGraph
from headgate.operators.complete_results import CollectResults, LimitRows, MarkResults, SortRows, unused_name
from headgate.operators.exchange import Exchange
from headgate.operators.first_rows import FirstRows
from headgate.operators.project import Project
from headgate.operators.windows.windowed import OutputMode, WindowedAggregate


def has_results(node: PlanNode) -> bool:
    """Return whether anything that leads to a node is done with whole results."""
    return isinstance(node.of, SortRows) or any(map(has_results, node.inputs))


def placed(node: PlanNode, output_mode: OutputMode) -> PlanNode:
    """Return a program in which results are sorted and cut as a whole.

    Raises
    ------
    UnsupportedOperationError
        It is not possible in this output mode, or at this place.
    """
    made: dict[PlanNode, PlanNode] = {}  # a node in two places stays one

    def remade(each: PlanNode) -> PlanNode:
        if each not in made:
            inputs = each.inputs
            if isinstance(each.of, LimitRows):
                inputs = (_first_only(inputs[0], each.of.most_rows),)
            inputs = tuple(map(remade, inputs))
            made[each] = _placed(replace(each, inputs=inputs), output_mode)
        return made[each]

    return remade(node)


def check_complete(graph: StageGraph) -> None:
    """Check that in the output mode ``complete`` no rows of an aggregation leave its slot, but to be put together.

    Raises
    ------
    UnsupportedOperationError
        They do: a union, or a join with rows that end, also takes results that are put together.
    """
    after: set[str] = set()
    for node in graph.operators:
        if not after.isdisjoint(node.inputs):
            after.add(node.uid)
            if isinstance(node.operator, Exchange) and not node.operator.aligned:
                raise UnsupportedOperationError(
                    f"{node.uid} cannot run continuously in the output mode 'complete': rows of an aggregation are "
                    "united with results that are sorted or limited. Sort and limit after the union.",
                    operation="Union",
                )  # fmt: skip
        if isinstance(node.operator, WindowedAggregate):
            after.add(node.uid)


def _placed(node: PlanNode, output_mode: OutputMode) -> PlanNode:
    operator = node.of
    if not isinstance(operator, SortRows | LimitRows | Exchange):
        return node
    (before,) = node.inputs
    parts = _parts(before)
    is_of_result = bool(parts) and output_mode == "complete"
    if isinstance(operator, SortRows) and not is_of_result:
        raise UnsupportedOperationError(
            f"{operator.function} cannot run continuously: rows are sorted only after an aggregation, in the output "
            f"mode 'complete', as in Structured Streaming; the output mode is {output_mode!r}"
            f"{'' if parts else ', and there is no aggregation before it'}. Call outputMode('complete'), or sort what "
            "the sink has written.",
            operation="Sort",
        )  # fmt: skip
    if isinstance(operator, LimitRows) and output_mode == "update":
        raise UnsupportedOperationError(
            f"{operator.function} cannot run continuously in the output mode 'update', as in Structured Streaming: "
            "rows that are updated are not the first ones. Call outputMode('append') or outputMode('complete').",
            operation="GlobalLimit",
        )  # fmt: skip
    if not is_of_result:
        return _first_of_stream(node, operator) if isinstance(operator, LimitRows) else node
    if parts == {True}:
        return before if isinstance(operator, Exchange) else node
    if parts == {True, False}:
        raise UnsupportedOperationError(
            f"{operator.kind} cannot run continuously: it follows a union of rows that are sorted or limited and of "
            "rows that are not. Sort and limit after the union only.",
            operation=operator.kind,
        )  # fmt: skip
    if isinstance(operator, Exchange):  # a repartition: a result has one part then
        return _collected(before)
    if isinstance(operator, LimitRows) or operator.most_rows is not None:
        before = before.then(copy.copy(operator))
    return replace(node, inputs=(_collected(before),))


def _collected(before: PlanNode) -> PlanNode:
    marked = before.then(MarkResults(before.schema))
    sent = marked.then(Exchange(marked.schema, "rebalance", targets=1, aligned=True))
    return sent.then(CollectResults(marked.schema, before.schema))


def _first_of_stream(node: PlanNode, limit: LimitRows) -> PlanNode:
    """Return a limit of rows that are emitted once: of all that there ever are."""
    key = unused_name("all", node.schema)
    columns = [Column(Bound(place, name), name) for place, name in enumerate(node.schema.names)]
    columns.append(Column(Constant(0, pa.int32()), key))
    (before,) = node.inputs
    keyed = before.then(limit).then(Project(node.schema, columns, "UTC"))
    sent = keyed.then(Exchange(keyed.schema, "hash", keys=(key,)))
    return replace(node, of=FirstRows(keyed.schema, limit.most_rows), inputs=(sent,))


def _first_only(node: PlanNode, most_rows: int) -> PlanNode:
    """Return rows of which only the first are wanted: if they are sorted, where that is done."""
    if isinstance(node.of, Project):
        return replace(node, inputs=(_first_only(node.inputs[0], most_rows),))
    if isinstance(node.of, SortRows):
        return replace(node, of=SortRows(node.schema, node.of.keys, most_rows))
    return node


def _parts(node: PlanNode) -> set[bool]:
    """Return of the aggregations that lead to a node: whether their results are in one subtask there."""
    if isinstance(node.of, CollectResults):
        return {True}
    if isinstance(node.of, WindowedAggregate):
        return {False}
    return {part for each in node.inputs for part in _parts(each)}
