"""Errors of a subtask's parts: what is closed, what the report says, and that the next execution runs."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

from headgate.errors import SinkError, SourceError
from headgate.protocol import messages as msg
from headgate.protocol.state import (
    FileState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)
from headgate.source import SourceEvent
from tests.unit.runtime import toy_query
from tests.unit.runtime.toy_query import (
    Start,
    ToyOperator,
    ToySource,
    state_of,
)
from tests.waiting import wait_until

start = toy_query.start


def raise_os_error(*arguments: object) -> None:
    raise OSError("broken")


PLACES = (
    "reader start", "reader add", "reader poll", "reader snapshot", "reader complete", "reader event",
    "operator open", "operator process", "operator end",
    "sink create", "sink write", "sink ready", "sink prepare",
)  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_an_error_fails_the_execution_closes_all_of_it_and_leaves_the_next_one_alone(start: Start, place: str) -> None:
    part, call = place.split()
    source, operator = ToySource(), ToyOperator()
    running = start(a=source, operator=operator)
    match part:
        case "reader":
            source.fails[call] = OSError("broken")
        case "sink":
            running.sink.fails[call] = SinkError("broken", sink="toy")
        case _:
            operator.does[call] = raise_os_error

    source.offered = (("s", (7,)),)
    running.deploy()
    running.assign("s")
    running.deliver(msg.EventToReader, source="a", payload=pickle.dumps(SourceEvent()))
    running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
    running.deliver(msg.CheckpointCompleted, checkpoint_id=1)
    if call == "end":
        running.prepared(1)
        running.deliver(msg.NoMoreSplits, source="a")
    error = running.failure()

    expected = {"reader": "OSError", "sink": "SinkError", "operator": "UserFunctionError"}[part]
    assert error.error_type == expected
    assert "broken" in error.message
    assert (error.facts["stage"], error.facts["subtask"]) == (0, 2)
    if part == "reader":
        assert error.facts["source"] == "a"
        assert source.reader.log[-1] == "close"
    if place not in ("operator open", "sink create"):
        assert running.sink.calls[-1] == "close"

    source.fails, running.sink.fails, source.offered = {}, {}, (("s", (8,)),)
    operator.does.clear()
    running.sink.batches.clear()
    running.start("s")
    wait_until(lambda: running.sink.numbers == [8])


def test_the_report_of_a_function_says_what_was_being_read(start: Start) -> None:
    operator = ToyOperator(process=lambda batch: 1 // (batch.column(0)[0].as_py() - 3))
    source = ToySource(("s", (1, 2)), ("s", (3, 4)))
    running = start(a=source, operator=operator)
    running.start("s")

    facts = running.failure().facts
    position = state_of("s", 2).data.decode()
    assert facts == {
        "stage": 0, "subtask": 2, "source": "a", "split": "s", "position": position,
        "operator": "function", "function": "ToyOperator",
    }  # fmt: skip


def test_the_report_of_a_split_that_has_ended_says_where_it_was_last(start: Start) -> None:
    class Ending(ToySource):
        def create_reader(self, context: Any) -> Any:
            reader = super().create_reader(context)
            poll = reader.poll_next

            def both(output: Any) -> Any:
                poll(output)
                return poll(output)

            reader.poll_next = both  # type: ignore[method-assign]
            return reader

    running = start(a=Ending(("s", (1,)), ("s", ())), operator=ToyOperator(process=raise_os_error))
    running.start("s")

    facts = running.failure().facts
    assert (facts["split"], facts["position"]) == ("s", state_of("s").data.decode())


def test_the_report_of_a_source_keeps_what_the_source_says(start: Start) -> None:
    source = ToySource()
    source.fails["poll"] = SourceError("gone", split="s", position=17)
    running = start(a=source)
    running.start("s")

    facts = running.failure().facts
    assert facts == {"stage": 0, "subtask": 2, "source": "a", "split": "s", "position": 17}


def test_a_part_that_ends_its_thread_fails_the_subtask(start: Start) -> None:
    source = ToySource()
    source.fails["poll"] = sys.exit
    running = start(a=source)
    running.start("s")

    assert running.failure().error_type == "SystemExit"


def test_a_state_that_cannot_be_read_fails_the_deployment(start: Start) -> None:
    running = start(a=ToySource())
    lost = OperatorState(items=(FileState("lost", 1, 1),))
    running.deploy(SubtaskState(operators={"sink": lost}))
    assert running.failure().error_type == "KeyError"

    running = start(a=ToySource())
    running.deploy(SubtaskState(readers={"a": ReaderState(splits=(SplitState("s", b"no split"),))}))
    error = running.failure()
    assert (error.error_type, error.facts["subtask"]) == ("CorruptStateError", 2)


def test_a_message_that_makes_no_sense_fails_the_subtask_and_not_its_thread(start: Start) -> None:
    running = start(a=ToySource())
    running.start("s")
    running.assign("t", number=7)

    assert running.failure().error_type == "InvalidTransitionError"
    running.start("s")
