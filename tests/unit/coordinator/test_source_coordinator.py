"""The coordinator of a source: its table, what must hold in any order of events, and short stories."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from headgate.coordinator import source_coordinator as src
from headgate.coordinator.log_records import AssignedRecord, FinishedRecord, NoMoreSplitsRecord, StateRecord
from headgate.coordinator.source_coordinator import SourceCoordinator
from headgate.coordinator.source_state import SourceState, decode_source_state, encode_source_state
from headgate.errors import CorruptStateError, InvalidTransitionError, UnsupportedVersionError
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, SplitState
from tests.machines import explore
from tests.unit.coordinator.source_world import World
from tests.unit.coordinator.toy_sources import PushedToySource, ToySource, ToySplit

A, B = SplitState("a", b"a"), SplitState("b", b"b")
ERROR = msg.ErrorReport(error_type="OSError", message="gone")


def machine(**options: Any) -> SourceCoordinator:
    return SourceCoordinator("uid", **{"reassigns_on_recovery": False, "parallelism": 2, **options})


def registered(subtask: int = 0, execution: int = 1, reported: tuple[SplitState, ...] = ()) -> src.FromReader:
    letter = msg.ReaderRegistered(
        stage=0, execution=execution, source="uid", host="h", reported_splits=reported
    )
    return src.FromReader(subtask, letter)


def requested(subtask: int = 0, execution: int = 1) -> src.FromReader:
    return src.FromReader(subtask, msg.SplitRequested(stage=0, execution=execution, source="uid", host="h"))


def finished(*split_ids: str, subtask: int = 0) -> src.FromReader:
    ends = tuple(FinishedSplit(split_id, number) for number, split_id in enumerate(split_ids, 1))
    return src.FromReader(subtask, msg.SplitsFinished(stage=0, execution=1, source="uid", finished=ends))


def reported(incarnation: int, highest_number: int = 0, subtask: int = 0, **more: Any) -> src.FromReader:
    letter = msg.SourceReported(
        stage=0, execution=1, source="uid", host="h", incarnation=incarnation, highest_number=highest_number, **more
    )
    return src.FromReader(subtask, letter)


def kind(of: SourceCoordinator, event: src.Event) -> str:
    return type(event).__name__


# -- the table ------------------------------------------------------------------------------------------------------


def events(of: SourceCoordinator) -> Iterator[src.Event]:
    """Yield what may come: one reader, one split, an older enumerator's words, and answers to what was ordered."""
    current = of._incarnation
    if of.state != "closed":
        if of.state in ("new", "failed") or len(of._history) < 4:
            yield src.SourceStarted()
            yield src.SourceStarted(1, encode_source_state(SourceState(b"s", ("a",))), ("done",))
    yield src.SourceClosed()
    if of.state == "new" or of.state == "closed" and len(of._history) > 3:
        return
    reader = of._readers.get(0)
    if reader is None:
        yield registered()
        yield registered(reported=(A,))
    elif of.state == "running":
        yield reported(current, request_pending=True)
    yield requested()
    if reader is None or reader.state != "failed":
        yield src.ReaderFailed(0, of._completed)
    for incarnation in (current, current - 1):
        yield src.EnumeratorFailed(incarnation, ERROR)
        yield src.EnumeratorSnapshotted(incarnation, of._completed + 1, b"s")
        if reader is None or incarnation != current:
            yield src.EnumeratorStateChanged(incarnation, b"t")
        if reader is not None and reader.state != "reporting" or incarnation != current:
            if "a" in of._swallowed or not len(of._tracker) and not of._parked or incarnation != current:
                yield src.SplitsAssigned(incarnation, {0: (A,)})
            yield src.NoMoreSplitsSignalled(incarnation, 0)
            yield src.EventSent(incarnation, 0, b"e")
        if reader is not None and reader.state == "failed" or incarnation != current:
            yield src.ReaderForgotten(incarnation, 0)
            yield src.SplitsTakenBack(incarnation, 0)
    yield src.EnumeratorStarted(current)
    yield src.LogAppended(of._number)
    yield src.LogAppendFailed(of._number, "full")
    yield src.LogAppendFailed(of._first_number - 1, "late")
    first = StateRecord(None, of._completed)
    for records in ((first, AssignedRecord(0, 1, 1, (A,)), FinishedRecord(0, ())), (first,), None):
        yield src.LogLoaded(records, "corrupt", current)
    yield src.LogLoaded(None, "late", current - 1)
    yield src.CheckpointStarted(of._completed + 1)
    for checkpoint_id in (of._completed, of._completed + 1):
        yield src.BarriersSent(checkpoint_id)
        yield src.SourceCheckpointAborted(checkpoint_id)
    yield src.SourceCheckpointCompleted(of._completed)
