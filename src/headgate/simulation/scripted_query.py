"""The query of a simulated cluster: its program.

Never: let a row be changed on its way.

    source-0 .. source-n [-> a slow function each, for all that follow] -> union -> observed -> sink
    source-0 .. source-n -> union [-> first exchange -> observed or held] -> by key -> counted -> sink
    source-0 -> first exchange, source-1 .. source-n -> second exchange: their union -> observed or held -> by key ...
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.exchange import Exchange, ExchangeKind
from headgate.operators.union import Union
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_functions import HELD, Counted, Held, Observed, dealt_by_key
from headgate.simulation.scripted_reader import Surroundings
from headgate.simulation.scripted_source import ScriptedSource
from headgate.simulation.topic import SCHEMA
from headgate.sink import Sink
from headgate.source import Boundedness


def definition_of(
    scenario: Scenario,
    sources: Sequence[tuple[str, ScriptedSource]],
    opened: Callable[[], Surroundings],
    sink: Sink,
    run: int,
    parallelism: int,
) -> QueryDefinition:
    """Return the program of a run at a parallelism."""
    nodes = [
        PlanNode(
            of=SourceDefinition(
                uid=uid,
                source=source,
                schema=SCHEMA,
                boundedness=Boundedness.BOUNDED if source.topic.script.bounded else Boundedness.CONTINUOUS_UNBOUNDED,
                watermark_strategy=source.topic.script.strategy,
            ),
            name=uid,
        )
        for uid, source in sources
    ]
    if scenario.source_row_ms:
        nodes = [node.then(Observed(opened, at_source=True)).named(f"read-{node.name}") for node in nodes]
    first, second = scenario.first_exchange, scenario.second_exchange
    kinds: dict[str, ExchangeKind | None] = {uid: first for uid, _ in sources}
    if second is None:
        output = _exchanged(_united(nodes), first, "first", scenario)
    else:
        left, right = _exchanged(nodes[0], first, "first", scenario), _united(nodes[1:])
        kinds |= {uid: second for uid, _ in sources[1:]}
        output = _united([left, _exchanged(right, second, "second", scenario)])
    if scenario.holds:
        output = output.then(Held(opened)).named(HELD)
    elif first is not None or not scenario.is_keyed:
        output = output.then(Observed(opened, kinds)).named("observed")
    if scenario.is_keyed:
        output = output.then(Exchange(SCHEMA, "hash", keys=("key",))).named("keys")
        output = output.then(Counted(opened, in_order="rebalance" not in (first, second))).named("counted")
    graph = stage_graph(output)
    for node in graph.operators:
        if isinstance(node.operator, Observed):
            node.operator.blocks = not scenario.shares_threads
    return QueryDefinition(
        graph=graph,
        sink=sink,
        sink_format="scripted",
        options=parse_query_options(scenario.query_options(run), {}),
        parallelism=parallelism,
    )


def _united(nodes: Sequence[PlanNode]) -> PlanNode:
    others = [SCHEMA] * (len(nodes) - 1)
    return nodes[0] if not others else PlanNode(of=Union(SCHEMA, *others), inputs=tuple(nodes))


def _exchanged(node: PlanNode, kind: ExchangeKind | None, name: str, scenario: Scenario) -> PlanNode:
    if kind is None:
        return node
    keys = () if kind != "hash" else ("split",) if scenario.holds else ("key",)
    return node.then(Exchange(SCHEMA, kind, partition=dealt_by_key if kind == "custom" else None, keys=keys)).named(
        name
    )
