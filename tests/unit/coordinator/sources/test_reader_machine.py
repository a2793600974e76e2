"""One reader of a source: its table, and what it is not asked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headgate.coordinator.sources import reader_machine as rd
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.reader_machine import ReaderMachine, Shared
from headgate.errors import InvalidTransitionError
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, SplitState
from tests.machines import explore

A = SplitState("a", b"a")


class LogBroke:
    """The log misses records from here on."""


class RecoveryBegan:
    """There is no enumerator from here on."""


class RecoveryEnded:
    """There is one again."""


class Surrounded(ReaderMachine):
    """A reader with what happens around it."""

    def handle(self, event: Any, now_ms: int) -> list[Any]:
        match event:
            case LogBroke():
                self._shared.log.go_on_without()
            case RecoveryBegan() | RecoveryEnded():
                self._shared.is_recovering = isinstance(event, RecoveryBegan)
            case _:
                return super().handle(event, now_ms)
        return []

    def state_of(self, event: Any) -> str:
        """Return None for what is around it: that is not for its table."""
        around = isinstance(event, LogBroke | RecoveryBegan | RecoveryEnded)
        return None if around else super().state_of(event)  # type: ignore[return-value]


def machine() -> Surrounded:
    shared = Shared("uid", keeps_subtask=True)
    shared.incarnation = 1
    return Surrounded(0, shared)


def of(kind: Any, execution: int = 1, **fields: Any) -> Any:
    return kind(stage=0, execution=execution, source="uid", **fields)


def events(made: Surrounded) -> Iterator[Any]:
    if not made._shared.log.is_broken:
        yield LogBroke()
    if made._shared.is_recovering:
        yield RecoveryEnded()
    elif made.state in ("absent", "reporting"):
        yield RecoveryBegan()
    if made.state == "absent" and made.execution:
        return  # another machine is made for its next execution
    yield of(msg.ReaderRegistered, host="h")
    yield of(msg.ReaderRegistered, host="h", reported_splits=(A,))
    for execution in (1, 2):
        yield of(msg.SplitRequested, execution, host="h")
        yield of(msg.SplitsFinished, execution, finished=(FinishedSplit("a", 1),))
        yield of(msg.EventToEnumerator, execution, payload=b"e")
    if made.state != "reporting" or not made._shared.is_recovering:  # there is nobody who would have asked
        for incarnation in (0, 1):
            yield of(msg.SourceReported, host="h", incarnation=incarnation, highest_number=0, request_pending=True)
        ends = (FinishedSplit("z", 1),)
        yield of(msg.SourceReported, host="h", incarnation=1, highest_number=0, finished=ends)
    yield src.ReaderFailed(0, 0)
    yield src.ReaderForgotten(1, 0)
    yield src.SplitsTakenBack(1, 0)
    yield src.NoMoreSplitsSignalled(1, 0)
    yield src.EventSent(1, 0, b"e")
    yield src.ReaderAdded(1, 0)
    yield rd.SplitsGiven((A,), swallowed=False)
    yield rd.SplitsGiven((), swallowed=True)
    yield rd.EnumeratorLost()
    yield rd.EnumeratorReady()


def test_the_table_is_what_the_machine_does() -> None:
    explore(machine, events, depth=7, limit=4000, ignore=("number", "durable", "_number"))


def test_a_second_registration_is_refused_and_leaves_no_trace() -> None:
    made = machine()
    made.handle(of(msg.ReaderRegistered, host="h"), 0)
    again = of(msg.ReaderRegistered, 2, host="h")
    assert made.refusal(again) == "the reader is registered in execution 1"
    with pytest.raises(InvalidTransitionError, match="Reader 0 of the source uid is registered and cannot take"):
        made.handle(again, 0)


def test_what_an_old_execution_says_changes_nothing() -> None:
    made = machine()
    made.handle(of(msg.ReaderRegistered, execution=2, host="h"), 0)
    assert made.handle(of(msg.SplitRequested, execution=1, host="there"), 0) == []
    assert (made.host, made.requested) == ("h", False)
