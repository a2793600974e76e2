"""A sink that keeps what it gets, sources that are never read, and chains made of them: for tests of operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from headgate.connectors.datagen.source import DatagenSource
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import BAD_RECORDS_UID, QueryDefinition, SourceDefinition
from headgate.operators.operator import Operator
from headgate.protocol.operator_context import OperatorContext
from headgate.protocol.state import InlineState, OperatorState
from headgate.runtime.chain import StageChain
from headgate.sink import Sink, SinkWriter
from headgate.source import Boundedness

NUMBERS = pa.schema([("n", pa.int64())])


class CollectingSink(Sink):
    """Keeps all batches, of all its writers, and the futures of what is prepared."""

    name = "collecting"

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []
        self.prepared: list[Future[OperatorState]] = []
        self.room: Future[None] | None = None
        self.finished: Future[None] | None = None
        self.items: list[bytes] = []
        self.calls: list[object] = []

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        self.items += items
        self.calls.append(context.uid)
        return CollectingWriter(self)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.batches for row in batch.to_pylist()]


class CollectingWriter(SinkWriter):
    def __init__(self, sink: CollectingSink) -> None:
        self._sink = sink

    def write(self, batch: pa.RecordBatch) -> None:
        self._sink.batches.append(batch)

    def ready(self) -> Future[None] | None:
        return self._sink.room

    def prepare_commit(self, checkpoint_id: int, *, final: bool) -> Future[OperatorState]:
        future: Future[OperatorState] = Future()
        self._sink.prepared.append(future)
        self._sink.calls.append(("prepare", checkpoint_id, final))  # last: who sees it takes the future
        return future

    def discard_rows(self) -> None:
        self._sink.batches.clear()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._sink.calls.append(("complete", checkpoint_id))

    def finish(self) -> Future[None] | None:
        return self._sink.finished

    def close(self) -> None:
        self._sink.calls.append("close")


STAGED = OperatorState(items=(InlineState(b"staged"),))


def source(schema: pa.Schema = NUMBERS, uid: str = "numbers") -> PlanNode:
    """Return a source with these columns."""
    return PlanNode(
        of=SourceDefinition(
            uid=uid,
            source=DatagenSource({"rowsPerSecond": "1"}),
            schema=schema,
            boundedness=Boundedness.CONTINUOUS_UNBOUNDED,
        )
    )


def chain_of(
    output: PlanNode,
    *,
    handling: str = "fail",
    bad: CollectingSink | None = None,
    sink: CollectingSink | None = None,
    clock_ms: Callable[[], float] = lambda: 0.0,
    items: dict[str, Sequence[bytes]] | None = None,
    stage: int = 0,
    spill_folder: str = "",
) -> tuple[StageChain, CollectingSink]:
    """Return an opened chain and its sink."""
    sink = sink or CollectingSink()
    if bad is not None:
        bad.uid = BAD_RECORDS_UID
    definition = QueryDefinition(
        graph=stage_graph(output),
        sink=sink,
        sink_format="collecting",
        options=parse_query_options({}, {}),
        parallelism=1,
        bad_records=handling,
        bad_records_sink=bad,
    )
    context = OperatorContext(uid="", subtask=3, parallelism=4, spill_folder=spill_folder)
    chain = StageChain(definition, context, items or {}, stage=stage, clock_ms=clock_ms)
    chain.open()
    return chain, sink


def numbers(*values: int | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"n": list(values)}, schema=NUMBERS)


def drain(chain: StageChain) -> None:
    """Let a chain do all that waits."""
    while chain.process_some():
        pass


class Recording(Operator):
    """Lets rows through and notes the size of each call."""

    def __init__(self, schema: pa.Schema = NUMBERS, took: Callable[[int], None] = lambda rows: None) -> None:
        self.schema = schema
        self.sizes: list[int] = []
        self._took = took

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Callable[[pa.RecordBatch, str], None]) -> None:
        self.sizes.append(batch.num_rows)
        self._took(batch.num_rows)
        emit(batch, split_id)


class WorkClock:
    """The time of a subtask's thread: it passes while calls are made."""

    def __init__(self) -> None:
        self.now_ms = 0.0

    def __call__(self) -> float:
        return self.now_ms

    def takes(self, call_ms: float = 0.0, row_ms: float = 0.0) -> Callable[[int], None]:
        """Return what lets the time pass that a call with so many rows takes."""

        def took(rows: int) -> None:
            self.now_ms += call_ms + rows * row_ms

        return took
