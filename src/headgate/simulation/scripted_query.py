"""The query of a simulated cluster: its program, and a model of a sink.

Never: forget rows that were staged and not confirmed.

    source-0 .. source-n [-> a slow function each, for all that follow] -> union -> observed -> sink
    source-0 .. source-n -> union [-> first exchange -> observed or held] -> by key -> counted -> sink
    source-0 -> first exchange, source-1 .. source-n -> second exchange: their union -> observed or held -> by key ...

Follows the contract (`headgate.sink`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import pyarrow as pa

from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.exchange import Exchange, ExchangeKind
from headgate.operators.union import Union
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import OperatorState
from headgate.simulation.durable import Committable, Row, encode_committable
from headgate.simulation.scenario import Scenario
from headgate.simulation.scripted_functions import HELD, Counted, Held, Observed, dealt_by_key
from headgate.simulation.scripted_reader import Surroundings
from headgate.simulation.scripted_source import ScriptedSource
from headgate.simulation.topic import SCHEMA
from headgate.sink import Sink, SinkWriter
from headgate.source import Boundedness


class ScriptedWriter(SinkWriter):
    """Stages rows at each barrier; has no room at times.

    Parameters
    ----------
    name
        Of this writer alone.
    around
        The process.
    """

    def __init__(self, name: str, around: Surroundings) -> None:
        self._name = name
        self._around = around
        self._rows: list[Row] = []
        self._staged: list[tuple[int, bytes]] = []  # by the checkpoint they were staged for
        self._count = 0
        self._room: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Take rows."""
        splits, offsets = batch.column(1).to_pylist(), batch.column(2).to_pylist()
        self._rows += [(self._around.uid_of(split_id), split_id, offset) for split_id, offset in zip(splits, offsets)]
        if self._room is None and self._around.choose.random() < 0.1:
            self._around.count_quiet()
            room: Future[None] = Future()
            self._room = room
            self._around.later(self._around.choose.randrange(100), lambda: self._make_room(room))

    def ready(self) -> Future[None] | None:
        """Return None, or when there is room."""
        return self._room

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        """Stage what was written; what was staged before and is not confirmed stands there again."""
        if self._rows:
            self._count += 1
            committable = Committable(f"{self._name}-{self._count}", tuple(self._rows))
            self._staged.append((checkpoint_id, encode_committable(committable)))
            self._rows = []
        state = OperatorState(committables=tuple(data for _, data in self._staged))
        prepared: Future[OperatorState] = Future()
        error = OSError("a fault") if self._around.declines() else None
        safe = partial(prepared.set_result, state) if error is None else partial(prepared.set_exception, error)
        self._around.later(self._around.snapshot_ms(), safe)
        return prepared

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Forget what is in a completed checkpoint."""
        self._staged = [(staged, data) for staged, data in self._staged if staged > checkpoint_id]

    def _make_room(self, room: Future[None]) -> None:
        self._around.count_quiet()
        self._around.room_made()
        self._room = None
        room.set_result(None)


class ScriptedSink(Sink):
    """A sink whose writers the simulator makes."""

    name = "scripted"

    def __init__(self, make: Callable[[OperatorContext], ScriptedWriter]) -> None:
        self._make = make

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> ScriptedWriter:
        """Return a subtask's writer."""
        return self._make(context)


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
    return QueryDefinition(
        graph=stage_graph(output),
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
