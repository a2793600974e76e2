"""A query in words: its stages, what each does with the rows, how they go from one to the next, and what is kept.

Never: run or change anything.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headgate.expressions.expressions import Bound, text_of
from headgate.graph.stage_graph import SINK_UID, SourceDefinition, Stage, StageGraph
from headgate.operators.catalyst_project import CatalystProject
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.operator import KeyedOperator, Operator
from headgate.operators.project import Project
from headgate.source import Boundedness

_LONGEST_NAME = 60
_DERIVED = re.compile(r"\.\d+\.[a-z-]+$")
"""A uid that is derived from the way from the source."""


def explained(graph: StageGraph) -> str:
    """Return a text of several lines, for people to read.

    Examples
    --------
    Stage 0
      rides: kafka, until the query is stopped; watermark: 5 s below the latest 'at'
      rides.1.filter: (amount > 40)  [Arrow]
      rides.2.key-by: to stage 1 by the hash of user
    Stage 1
      rides.3.window: groupBy(window, user).agg(...)
        state by key: sum(amount) of int64 in window(at, 10 s, 10 s, 0 s) by user string
      sink: window struct<...>, user string, total int64
    """
    return "\n".join(line for stage in graph.stages for line in _stage(graph, stage))


def function_names(graph: StageGraph) -> dict[str, str]:
    """Return by uid what operators are called whose function a user knows: not filters and selected columns.

    One whose uid is an alias of the user's is called by that.
    """
    named: dict[str, str] = {}
    for stage in graph.stages:
        for node in stage.operators:
            function = getattr(node.operator, "function", None)
            if not isinstance(function, str) or isinstance(node.operator, Filter | Project):
                continue
            if _DERIVED.search(node.uid):
                named[node.uid] = function if len(function) <= _LONGEST_NAME else f"{function[:_LONGEST_NAME]}…"
    return named


def _stage(graph: StageGraph, stage: Stage) -> Iterator[str]:
    yield f"Stage {stage.number}"
    for source in stage.sources:
        yield f"  {source.uid}: {_source(source)}"
    for node in stage.operators:
        fed = ", ".join(node.inputs) if len(node.inputs) > 1 else ""
        yield f"  {node.uid}: {_operator(node.operator)}{f' of {fed}' if fed else ''}"
        if isinstance(node.operator, KeyedOperator):
            yield f"    state by key: {node.operator.signature}"
    for uid, exchange in stage.outputs.items():
        yield f"  {uid}: to stage {graph.consumer_stage(uid)} {_exchange(exchange)}"
    if stage.has_sink:
        yield f"  {SINK_UID}: {', '.join(f'{field.name} {field.type}' for field in graph.schema)}"


def _source(source: SourceDefinition) -> str:
    ends = "to its end" if source.boundedness is Boundedness.BOUNDED else "until the query is stopped"
    strategy = source.watermark_strategy
    if strategy is None:
        return f"{source.source.name.removeprefix('headgate.')}, {ends}"
    below = f"{strategy.max_out_of_orderness_ms / 1000:g} s below the latest {strategy.event_time_column!r}"
    aligned = "" if strategy.alignment is None else f"; aligned with the group {strategy.alignment.group!r}"
    return f"{source.source.name.removeprefix('headgate.')}, {ends}; watermark: {below}{aligned}"


def _operator(operator: Operator) -> str:
    match operator:
        case CatalystProject(function=function):
            return f"{function}  [Catalyst]"
        case Filter(condition=condition):
            return f"{text_of(condition)}  [Arrow]"
        case Project(nodes=nodes, schema=schema):
            computed = any(not isinstance(node, Bound) for node in nodes)
            made = [(text_of(node), name) for node, name in zip(nodes, schema.names)]
            columns = ", ".join(text if text == name else f"{text} AS {name}" for text, name in made)
            return f"{columns}{'  [Arrow]' if computed else ''}"
    return str(getattr(operator, "function", operator.kind if hasattr(operator, "kind") else type(operator).__name__))


def _exchange(exchange: Exchange) -> str:
    match exchange.exchange_kind:
        case "hash":
            return f"by the hash of {', '.join(exchange.keys)}"
        case "rebalance" if exchange.aligned:
            return "in one subtask, before barriers"
        case "rebalance":
            return "in turn" if exchange.targets is None else f"in turn, to {exchange.targets} subtasks"
        case "broadcast":
            return "to every subtask"
        case "custom":
            return "to the subtasks that a function names"
        case "forward":
            return "within each slot"
