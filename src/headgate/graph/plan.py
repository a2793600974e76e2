"""A program as a tree of sources and operators, and how it becomes a `StageGraph`: order, and a uid for each part.

Never: import pyspark, or let a uid depend on more than the way from the nearest name to it: a change in one branch of a
program must not rename the state of another.

A source is called after its format (``kafka``, the second one ``kafka-2``), a union ``union``; what follows is counted
from there (``kafka.1.filter``, ``kafka.2.map-in-arrow``). A name that the user gives replaces that, and what follows is
counted from it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pyarrow as pa

from headgate.errors import OptionError
from headgate.expressions.expressions import Bound
from headgate.graph.stage_graph import OperatorNode, SourceDefinition, StageGraph
from headgate.operators.exchange import Exchange
from headgate.operators.filter import Filter
from headgate.operators.operator import Operator
from headgate.operators.project import Project
from headgate.operators.union import Union
from headgate.operators.with_watermark import WithWatermark
from headgate.source import WatermarkStrategy

_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanNode:
    """A source or an operator of a program, which is itself: the same node in two places is read once.

    Parameters
    ----------
    of
        The source (whose uid is the format's name, until it is known) or the operator (which has none yet).
    inputs
        What feeds it.
    name
        What the user calls it.
    """

    of: SourceDefinition | Operator
    inputs: tuple[PlanNode, ...] = ()
    name: str | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.of.schema

    def then(self, operator: Operator) -> PlanNode:
        """Return an operator that this feeds."""
        return PlanNode(of=operator, inputs=(self,))

    def named(self, name: str) -> PlanNode:
        """Return it under a name of the user's.

        Raises
        ------
        OptionError
            The name cannot be part of a file's name.
        """
        if not can_be_named(name):
            raise OptionError(
                f"The name {name!r} cannot be used: it must be 1 to 100 of a-z, A-Z, 0-9, '.', '_' and '-', "
                "and begin with one of a-z, A-Z and 0-9.",
                option="name", value=name,
            )  # fmt: skip
        return replace(self, name=name)

    def sources(self) -> Iterator[SourceDefinition]:
        """Yield the sources that it reads."""
        if isinstance(self.of, SourceDefinition):
            yield self.of
        for each in self.inputs:
            yield from each.sources()


def can_be_named(name: str) -> bool:
    """Return whether a name can be part of a file's name, as `PlanNode.named` needs it."""
    return _UID.fullmatch(name) is not None


def source_column(node: PlanNode, index: int) -> str | None:
    """Return which column of its source a column is, unchanged.

    None: it is a field of one, an operator made it, or there are two sources.
    """
    match node.of:
        case SourceDefinition():
            return str(node.schema.names[index])
        case Filter():
            return source_column(node.inputs[0], index)
        case Project() as project:
            made = project.nodes[index]
            return source_column(node.inputs[0], made.index) if isinstance(made, Bound) else None
    return None


def with_strategy(node: PlanNode, strategy_of: Callable[[SourceDefinition], WatermarkStrategy]) -> PlanNode:
    """Return the same plan with other watermark strategies at its sources."""
    made: dict[PlanNode, PlanNode] = {}  # a node in two places stays one

    def remade(each: PlanNode) -> PlanNode:
        if each not in made:
            if isinstance(each.of, SourceDefinition):
                made[each] = replace(each, of=replace(each.of, watermark_strategy=strategy_of(each.of)))
            else:
                made[each] = replace(each, inputs=tuple(map(remade, each.inputs)))
        return made[each]

    return remade(node)


def watermarked(node: PlanNode, index: int, delay_ms: int) -> PlanNode:
    """Return rows whose event time is in a column: watermarks are so far below the highest of each split.

    Idle time-outs and alignment stay those of the sources.

    Raises
    ------
    OptionError
        The column is no timestamp.
    """
    name = node.schema.names[index]
    operator = WithWatermark(node.schema, name)
    column = source_column(node, index)

    def delayed(source: SourceDefinition) -> WatermarkStrategy:
        before = source.watermark_strategy
        return WatermarkStrategy(
            event_time_column=column or name,
            max_out_of_orderness_ms=delay_ms,
            idle_timeout_ms=source.source.options["scan.watermark.idle-timeout"],
            alignment=None if before is None else before.alignment,
        )

    made = with_strategy(node, delayed)
    return made if column is not None else made.then(operator)


def stage_graph(output: PlanNode) -> StageGraph:
    """Return the graph of all that leads to a node.

    Raises
    ------
    OptionError
        Two parts have the same name.
    """
    order: list[PlanNode] = []
    _visit(output, order)
    uids = _uids(order)
    sources, operators = [], []
    for node in order:
        if isinstance(node.of, SourceDefinition):
            sources.append(replace(node.of, uid=uids[node]))
        else:
            operator = copy.copy(node.of)  # a node may be part of several programs
            operator.uid = uids[node]
            inputs = tuple(uids[each] for each in node.inputs)
            operators.append(OperatorNode(operator=operator, inputs=inputs, named=node.name is not None))
    operators = _with_forwards({source.uid: source.schema for source in sources}, operators)
    graph = StageGraph(sources=tuple(sources), operators=tuple(operators), output=uids[output])
    return replace(graph, sources=tuple(_with_event_time(source, graph) for source in graph.sources))


def _with_forwards(sources: dict[str, pa.Schema], operators: list[OperatorNode]) -> list[OperatorNode]:
    """Return the operators, with forward exchanges, from stage to stage, wherever one would be fed by several."""
    stage = dict.fromkeys(sources, 0)  # the stage in which a node's rows are when they leave it
    schemas = dict(sources)
    made: list[OperatorNode] = []
    for node in operators:
        number = max(stage[uid] for uid in node.inputs)
        forwarded: dict[str, str] = {}
        for uid in dict.fromkeys(node.inputs):
            forwarded[uid] = uid
            for left in reversed(range(number - stage[uid])):
                forward = Exchange(schemas[uid], "forward")
                forward.uid = f"{node.uid}.from.{uid}" + (f".{left}" if left else "")
                made.append(OperatorNode(operator=forward, inputs=(forwarded[uid],)))
                forwarded[uid] = forward.uid
        made.append(replace(node, inputs=tuple(forwarded[uid] for uid in node.inputs)))
        stage[node.uid] = number + isinstance(node.operator, Exchange)
        schemas[node.uid] = node.operator.schema
    return made


def _with_event_time(definition: SourceDefinition, graph: StageGraph) -> SourceDefinition:
    """Return a source that knows which of its columns holds the event time: it may find work in that order."""
    strategy = definition.watermark_strategy
    if strategy is None:
        return definition
    made = graph.event_time_operator(definition.uid) is not None
    source = copy.copy(definition.source)
    source.options = source.options.replaced("eventTimeColumn", None if made else strategy.event_time_column)
    return replace(definition, source=source)


def _visit(node: PlanNode, order: list[PlanNode]) -> None:
    if node not in order:
        for each in node.inputs:
            _visit(each, order)
        order.append(node)


def _uids(order: list[PlanNode]) -> dict[PlanNode, str]:
    taken = {node.name for node in order if node.name is not None}
    uids: dict[PlanNode, str] = {}
    place: dict[PlanNode, tuple[str, int]] = {}  # from which name it is counted, and its number
    for node in order:
        if node.name is not None:
            uids[node], place[node] = node.name, (node.name, 0)
            continue
        if isinstance(node.of, SourceDefinition):
            uid = _free(node.of.uid, taken)
            place[node] = (uid, 0)
        elif isinstance(node.of, Union):
            uid = _free(node.of.kind, taken)
            place[node] = (uid, 0)
        else:
            root, number = place[node.inputs[0]]
            uid = _free(f"{root}.{number + 1}.{getattr(node.of, 'kind', 'operator')}", taken)
            place[node] = (root, number + 1)
        taken.add(uid)
        uids[node] = uid
    return uids


def _free(wanted: str, taken: set[str]) -> str:
    uid, number = wanted, 1
    while uid in taken:
        number += 1
        uid = f"{wanted}-{number}"
    return uid
