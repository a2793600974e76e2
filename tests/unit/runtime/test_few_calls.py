"""How many calls of Python's a small batch costs on its way: they, and not its rows, are what it takes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from headgate.expressions.expressions import Column
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.filter import Filter
from headgate.protocol import messages as msg
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mailboxes
from headgate.runtime.subtask import Subtask
from headgate.source import Boundedness
from tests.unit.expressions.nodes import N, call
from tests.unit.operators.collecting_sink import CollectingSink
from tests.unit.runtime.handed_source import HandedSource
from tests.unit.runtime.toy_query import SCHEMA, rows, state_of

MOST_CALLS = 80
UID = "numbers"


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
        self.mailboxes = Mailboxes(lambda: 0)  # no timer is ever due: what comes with time is not what is counted
        place = SlotPlace(
            run=1, slot=0, attempt=0, host="h", query_id="q", time_zone="UTC", checkpoint_location="/none"
        )
        mailbox = self.mailboxes.new()
        self.subtask = Subtask(
            definition,
            0,
            place,
            SlotServices(),
            mailbox,
            lambda: 0,
            posted.append,
            lambda _: None,
            lambda _: b"",
        )
        self.deliver(msg.Deploy(stage=0, execution=1, parallelism=1))
        self.deliver(msg.AssignSplits(stage=0, execution=1, source=UID, number=1, splits=(state_of("s"),)))
        self.deliver(msg.UnassignedWork(stage=0, execution=1, source=UID, event_time_ms=None))
        assert any(isinstance(each, msg.SubtaskRunning) for each in posted)

    def deliver(self, message: msg.ToSlot) -> None:
        self.subtask.deliver(message)
        self.settle()

    def settle(self) -> None:
        while self.subtask.turn(0):
            pass

    def hand(self, *values: int) -> None:
        """Hand over a batch, and let it go through."""
        written = self.written + len(values)
        self.source.split_reader.hand(rows(*values))
        while self.written < written:
            self.mailboxes.wait()
            self.settle()

    @property
    def written(self) -> int:
        return sum(batch.num_rows for batch in self.sink.batches)

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
    made.mailboxes.close()


def test_a_small_batch_costs_few_calls(driven: Driven) -> None:
    for _ in range(100):
        driven.hand(*range(1, 200))
    assert driven.is_lent
    counted: list[Counter[str]] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call":
            counted[-1][frame.f_code.co_qualname] += 1

    for _ in range(20):  # among them one that is measured, which costs more
        written = driven.written
        driven.source.split_reader.hand(rows(1, 2, 3))
        counted.append(Counter())
        sys.setprofile(count)
        driven.mailboxes.wait()
        driven.settle()
        sys.setprofile(None)
        assert driven.written == written + 3
    middle = sorted(counted, key=Counter.total)[len(counted) // 2]
    assert middle.total() <= MOST_CALLS, middle.most_common()
