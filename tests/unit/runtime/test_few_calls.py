"""How many calls of Python's a small batch costs on its way: they, and not its rows, are what it takes."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

from headgate.expressions.expressions import Column
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.filter import Filter
from headgate.protocol import messages as msg
from headgate.readers import MultiplexedReader, ReaderOptions
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mailbox
from headgate.runtime.subtask import Subtask
from headgate.source import Boundedness, FetchedBatch, Signal, SourceReader, SourceReaderContext, SplitReader
from tests.unit.expressions.nodes import N, call
from tests.unit.operators.collecting_sink import CollectingSink
from tests.unit.runtime.toy_query import SCHEMA, ToySource, ToySplit, rows, state_of

MOST_CALLS = 80
UID = "numbers"


class Handed(SplitReader[ToySplit]):
    """Gives what a test hands it."""

    def __init__(self) -> None:
        self.splits: dict[str, ToySplit] = {}
        self.changed = threading.Condition()
        self.handed: list[pa.RecordBatch] = []
        self.signal: Signal | None = None
        self.woken = False

    def hand(self, batch: pa.RecordBatch) -> None:
        with self.changed:
            self.handed.append(batch)
            self.changed.notify_all()
            if self.signal is not None:
                os.write(*self.signal)

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[ToySplit]]:
        with self.changed:
            self.changed.wait_for(lambda: self.handed or self.woken, timeout_ms / 1000)
            self.woken = False
            return self.poll()

    def begin_polling(self, signal: Signal) -> bool:
        self.signal = signal
        return True

    def poll(self) -> Sequence[FetchedBatch[ToySplit]]:
        handed, self.handed = self.handed, []
        if not handed:
            return []
        (split,) = self.splits.values()
        return [FetchedBatch(split=split, batch=each) for each in handed]

    def has_waiting(self) -> bool:
        return bool(self.handed)

    def end_polling(self) -> None:
        self.signal = None

    def handle_splits_changes(self, added: Sequence[ToySplit]) -> None:
        self.splits.update((split.split_id, split) for split in added)

    def wake_up(self) -> None:
        with self.changed:
            self.woken = True
            self.changed.notify_all()

    def close(self) -> None:
        """There is nothing to close."""


class HandedSource(ToySource):
    def __init__(self) -> None:
        super().__init__()
        self.split_reader = Handed()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[ToySplit]:  # type: ignore[override]
        return MultiplexedReader(lambda: self.split_reader, context, ReaderOptions(request_splits=False))


class Driven:
    """A subtask with a filter and a sink, whose turns the test takes."""

    def __init__(self) -> None:
        self.source, self.sink = HandedSource(), CollectingSink()
        start = PlanNode(
            of=SourceDefinition(
                uid=UID, source=self.source, schema=SCHEMA, boundedness=Boundedness.CONTINUOUS_UNBOUNDED,
                watermark_strategy=None,
            ),
            name=UID,
        )  # fmt: skip
        definition = QueryDefinition(
            graph=stage_graph(start.then(Filter(SCHEMA, Column(call(">", N, 0)), "UTC"))),
            sink=self.sink, sink_format="collecting", options=parse_query_options({}, {}), parallelism=1,
        )  # fmt: skip
        posted: list[msg.FromSlot] = []
        self.mailbox = Mailbox(lambda: 0)  # no timer is ever due: what comes with time is not what is counted
        place = SlotPlace(
            run=1, slot=0, attempt=0, host="h", query_id="q", time_zone="UTC", checkpoint_location="/none"
        )
        self.subtask = Subtask(
            definition, 0, place, SlotServices(), self.mailbox, lambda: 0, posted.append, lambda _: None, lambda _: b""
        )
        self.deliver(msg.Deploy(stage=0, execution=1, parallelism=1))
        self.deliver(msg.AssignSplits(stage=0, execution=1, source=UID, number=1, splits=(state_of("s"),)))
        self.deliver(msg.UnassignedWork(stage=0, execution=1, source=UID, event_time_ms=None))
        assert any(isinstance(each, msg.SubtaskRunning) for each in posted)

    def deliver(self, message: msg.ToSlot) -> None:
        self.subtask.deliver(message)
        self.settle()

    def settle(self) -> None:
        while self.subtask.turn():
            pass

    def hand(self, *values: int) -> None:
        """Hand over a batch, and let it go through."""
        written = len(self.sink.rows) + len(values)
        self.source.split_reader.hand(rows(*values))
        while len(self.sink.rows) < written:
            self.mailbox.wait()
            self.settle()

    @property
    def is_lent(self) -> bool:
        assert self.subtask.execution is not None
        reader: Any = self.subtask.execution.inputs[UID].reader
        return any(each.is_lent for each in reader._fetchers.values())


@pytest.fixture
def driven() -> Iterator[Driven]:
    made = Driven()
    yield made
    made.subtask.close()
    made.mailbox.close()


def test_a_small_batch_costs_few_calls(driven: Driven) -> None:
    for _ in range(100):
        driven.hand(*range(1, 200))
    assert driven.is_lent
    counted: list[Counter[str]] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            counted[-1][frame.f_code.co_qualname] += 1

    for _ in range(20):  # among them one that is measured, which costs more
        written = len(driven.sink.rows)
        driven.source.split_reader.hand(rows(1, 2, 3))
        counted.append(Counter())
        sys.setprofile(count)
        driven.mailbox.wait()
        driven.settle()
        sys.setprofile(None)
        assert len(driven.sink.rows) == written + 3
    middle = sorted(counted, key=Counter.total)[len(counted) // 2]
    assert middle.total() <= MOST_CALLS, middle.most_common()
