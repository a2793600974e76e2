"""What a subtask does next: its table, and the orders of snapshots, rows and readers that follow from it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator

import pytest

from headgate.errors import InvalidTransitionError
from headgate.source import InputStatus
from headgate.task import subtask
from headgate.task import task_loop as tl
from headgate.task.task_loop import ChainEmpty, Ordered, Poll, Process, Room, RowsWait, SetReadable, Snapshot, TaskLoop
from tests.machines import explore

SNAPSHOT = subtask.TakeSnapshot(1, drain=False, suspend=False)
SUSPEND = subtask.TakeSnapshot(2, drain=False, suspend=True)
DRAIN = subtask.TakeSnapshot(3, drain=True, suspend=False)
START, RESUME = subtask.StartReading(), subtask.ResumeReading()
COMPLETED = subtask.NotifyOperators(checkpoint_id=1)


def reading(*sources: str) -> TaskLoop:
    """Return a loop that reads."""
    loop = TaskLoop(sources)
    assert loop.handle(tl.ExecutionOpened(recovers_first=False), 0) == [tl.ReportOpened()]
    assert loop.handle(Ordered(START), 0) == []
    return loop


def test_the_table_is_what_the_machine_does() -> None:
    asked: set[str | None] = set()

    def events(loop: TaskLoop) -> Iterator[tl.Event]:
        asked.add(loop.reads_on)
        if loop.reads_on is not None:  # what is not asked about then is just that
            assert copy.deepcopy(loop).handle(ChainEmpty(Room.ALL), 0) == [Poll(loop.reads_on)]
        yield tl.OpeningContinues()
        yield tl.ExecutionOpened(recovers_first=False, rows_to_recover=True)
        yield tl.ExecutionOpened(recovers_first=True, rows_to_recover=True)
        yield tl.InputsRecovered()
        if len(loop._orders) < 3:
            for order in (START, COMPLETED, SNAPSHOT, SUSPEND, DRAIN):
                if order not in loop._orders:
                    yield Ordered(order)
        for checkpoint_id in (1, 2, 3):
            yield tl.CheckpointGivenUp(checkpoint_id)
        for room in Room:
            for barrier_waits in (False, True):
                yield RowsWait(room, barrier_waits)
                yield ChainEmpty(room, barrier_waits)
            yield ChainEmpty(room, entry_ms=math.inf)
        yield ChainEmpty(Room.ALL, outputs_empty=False)
        yield ChainEmpty(Room.ALL, entry_ms=1.0)
        for status in InputStatus:
            yield tl.SourcePolled("a", status)
        yield tl.SourceAvailable("a")
        yield tl.SourcePaused("a", True)
        yield tl.SourcePaused("a", False)
        yield tl.InputsEnded()

    explore(lambda: TaskLoop(["a"]), events, depth=9, limit=4000, ignore=("_polled",))
    assert asked == {"a", None}


def test_a_loop_is_asked_while_several_sources_may_have_something() -> None:
    loop = reading("a", "b")
    assert loop.reads_on is None, "they take turns"
    loop.handle(tl.SourcePolled("a", InputStatus.NOTHING_AVAILABLE), 0)
    assert loop.reads_on == "b"
    loop.handle(tl.SourcePaused("b", True), 0)
    assert loop.reads_on is None
    loop.handle(tl.SourceAvailable("a"), 0)
    assert loop.reads_on == "a"
    loop.handle(Ordered(SNAPSHOT), 0)
    assert loop.reads_on is None, "a snapshot is due"


def test_rows_come_before_a_snapshot_and_orders_after_it() -> None:
    loop = reading("a")
    assert loop.handle(Ordered(SNAPSHOT), 0) == []
    assert loop.handle(Ordered(COMPLETED), 0) == []
    assert loop.handle(RowsWait(Room.ALL), 0) == [Process(overdraft=True, entry=False)]
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [tl.PrepareSnapshot()]
    emitted = loop.handle(RowsWait(Room.ALL), 0)
    assert emitted == [Process(overdraft=True, entry=False)], "what operators emitted before the barrier"
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Snapshot(SNAPSHOT), tl.CarryOut(COMPLETED)]
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Poll("a")]


def test_a_full_exchange_holds_up_rows_but_no_snapshot() -> None:
    loop = reading("a")
    assert loop.handle(RowsWait(Room.SINKS), 0) == [SetReadable(False)]
    assert loop.handle(Ordered(SNAPSHOT), 0) == []
    assert loop.handle(RowsWait(Room.SINKS), 0) == [SetReadable(True), Process(overdraft=True, entry=False)]
    assert loop.handle(RowsWait(Room.NOBODY), 0) == [SetReadable(False)]


def test_a_snapshot_does_not_wait_for_rows_of_which_no_slice_was_begun() -> None:
    loop = reading("a")
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=0.0), 0) == [Process(overdraft=False)], "rows before the next poll"
    loop.handle(Ordered(SNAPSHOT), 0)
    assert loop.handle(RowsWait(Room.ALL), 5) == [Process(overdraft=True, entry=False)], "what was begun, and no more"
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=60_000.0), 60) == [tl.PrepareSnapshot()]
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=60_000.0), 60) == [Snapshot(SNAPSHOT)]
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=0.0), 60) == [Process(overdraft=False)], "they go on"


@pytest.mark.parametrize("room", Room)
def test_a_sink_that_takes_no_rows_holds_up_no_snapshot_of_rows_that_were_not_begun(room: Room) -> None:
    loop = reading("a")
    loop.handle(Ordered(SNAPSHOT), 0)
    assert tl.PrepareSnapshot() in loop.handle(ChainEmpty(room, entry_ms=math.inf), 0)
    assert Snapshot(SNAPSHOT) in loop.handle(ChainEmpty(room, entry_ms=math.inf), 0)


def test_a_snapshot_waits_for_what_is_processed_at_once_but_no_longer_than_a_call_may_take() -> None:
    loop = reading("a")
    loop.handle(Ordered(SNAPSHOT), 100)
    assert loop.handle(ChainEmpty(Room.SINKS, entry_ms=30.0), 110) == [Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=30.0), 111) == [tl.PrepareSnapshot()], "it took longer than that"


def test_rows_that_no_split_can_keep_are_processed_before_a_snapshot() -> None:
    loop = reading("a")
    loop.handle(Ordered(SNAPSHOT), 0)
    of_no_split = ChainEmpty(Room.ALL, entry_ms=math.inf, storable=False)
    assert loop.handle(of_no_split, 1_000_000) == [Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.NOBODY, entry_ms=math.inf, storable=False), 2_000_000) == [SetReadable(False)]


def test_barriers_that_keep_their_place_wait_for_all_rows_before_them() -> None:
    loop = TaskLoop(["a"], None)
    loop.handle(tl.ExecutionOpened(recovers_first=False), 0)
    loop.handle(Ordered(START), 0)
    loop.handle(Ordered(SNAPSHOT), 0)
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 1_000_000) == [Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.ALL), 1_000_001) == [tl.PrepareSnapshot()]

    loop = TaskLoop(["a"], 500)
    loop.handle(tl.ExecutionOpened(recovers_first=False), 0)
    loop.handle(Ordered(START), 0)
    loop.handle(Ordered(SNAPSHOT), 1000)
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 1499) == [Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 1500) == [tl.PrepareSnapshot()]


def test_a_drain_processes_what_was_emitted_and_a_suspension_keeps_it_for_the_next_run() -> None:
    loop = reading("a")
    loop.handle(Ordered(DRAIN), 0)
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 1_000_000) == [Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.ALL), 1_000_001) == [tl.DrainInput()]
    watermark_waits = loop.handle(ChainEmpty(Room.ALL, entry_ms=0.0), 2_000_000)
    assert watermark_waits == [SetReadable(False), Process(overdraft=True)], "the final watermark is no state"

    loop = reading("a")
    loop.handle(Ordered(SUSPEND), 0)
    for expected in (tl.PrepareSnapshot(), Snapshot(SUSPEND)):
        assert expected in loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 0)
    assert loop.handle(ChainEmpty(Room.ALL, entry_ms=math.inf), 1) == [SetReadable(False)], "nothing is begun any more"


def test_a_barrier_that_stays_aligned_gets_the_rows_before_it_through() -> None:
    loop = reading()
    assert loop.handle(RowsWait(Room.SINKS, barrier_waits=True), 0) == [SetReadable(False), Process(overdraft=True)]
    assert loop.handle(ChainEmpty(Room.SINKS, barrier_waits=True), 0) == [Poll(None, overdraft=True)]
    assert loop.handle(ChainEmpty(Room.NOBODY, barrier_waits=True), 0) == []


def test_sources_take_turns_but_for_those_that_are_paused_or_have_nothing() -> None:
    loop = reading("a", "b", "c")
    assert [loop.handle(ChainEmpty(Room.ALL), 0) for _ in range(3)] == [[Poll("b")], [Poll("c")], [Poll("a")]]
    loop.handle(tl.SourcePaused("a", True), 0)
    loop.handle(tl.SourcePolled("b", InputStatus.NOTHING_AVAILABLE), 0)
    assert [loop.handle(ChainEmpty(Room.ALL), 0) for _ in range(2)] == [[Poll("c")], [Poll("c")]]
    loop.handle(tl.SourceAvailable("b"), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) in ([Poll("b")], [Poll("c")])


def test_the_input_ends_when_all_sources_have() -> None:
    loop = reading("a", "b")
    loop.handle(tl.SourcePolled("a", InputStatus.END_OF_INPUT), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Poll("b")]
    loop.handle(tl.SourcePolled("b", InputStatus.END_OF_INPUT), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [tl.EndInput()]
    assert loop.state == "ended"
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [SetReadable(False)]


def test_a_drain_ends_the_input_before_its_barrier_and_a_suspension_stops_after_it() -> None:
    loop = reading("a")
    loop.handle(Ordered(DRAIN), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [tl.DrainInput()]
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [SetReadable(False), tl.PrepareSnapshot()]
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Snapshot(DRAIN)]
    assert loop.state == "ended"

    loop = reading("a")
    loop.handle(Ordered(SUSPEND), 0)
    loop.handle(Ordered(RESUME), 0)
    loop.handle(ChainEmpty(Room.ALL), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Snapshot(SUSPEND)]
    assert loop.reads, "its checkpoint was aborted meanwhile"


def test_a_snapshot_that_nobody_waits_for_is_not_taken() -> None:
    loop = reading("a")
    for order in (SNAPSHOT, COMPLETED, SUSPEND):
        loop.handle(Ordered(order), 0)
    assert loop.handle(tl.CheckpointGivenUp(1), 0) == [tl.CarryOut(COMPLETED)]
    assert loop.state == "snapshot due"
    assert loop.handle(tl.CheckpointGivenUp(2), 0) == []
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [Poll("a")]


def test_recovered_rows_are_processed_and_sent_before_the_subtask_runs() -> None:
    loop = TaskLoop([])
    assert loop.handle(tl.OpeningContinues(), 0) == [tl.OpenMore()]
    assert loop.handle(tl.ExecutionOpened(recovers_first=True, rows_to_recover=True), 0) == []
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [SetReadable(False), Poll(None)]
    loop.handle(tl.InputsRecovered(), 0)
    assert loop.handle(ChainEmpty(Room.ALL, outputs_empty=False), 0) == []
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [tl.ReportOpened()]


def in_each_state() -> Iterator[TaskLoop]:
    """Yield a loop in each state but opening."""
    recovering = TaskLoop([])
    recovering.handle(tl.ExecutionOpened(recovers_first=True, rows_to_recover=True), 0)
    yield recovering
    idle = TaskLoop([])
    idle.handle(tl.ExecutionOpened(recovers_first=False, rows_to_recover=True), 0)
    yield idle
    yield reading()
    ended = reading()
    ended.handle(tl.InputsEnded(), 0)
    yield ended
    due = reading()
    due.handle(Ordered(SNAPSHOT), 0)
    yield due
    prepared = reading()
    prepared.handle(Ordered(SNAPSHOT), 0)
    prepared.handle(ChainEmpty(Room.ALL), 0)
    yield prepared


@pytest.mark.parametrize("loop", list(in_each_state()), ids=lambda loop: loop.state)
def test_recovery_may_be_over_at_any_time(loop: TaskLoop) -> None:
    """The last recovered row may be gone without a poll: filtered away, while a snapshot is being taken."""
    state = loop.state
    assert loop.handle(tl.InputsRecovered(), 0) == []
    assert loop.state == state


def test_an_end_that_follows_recovered_rows_at_once_waits_until_the_subtask_runs() -> None:
    loop = TaskLoop([])
    loop.handle(tl.ExecutionOpened(recovers_first=True, rows_to_recover=True), 0)
    loop.handle(tl.InputsRecovered(), 0)
    assert loop.handle(tl.InputsEnded(), 0) == []
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [SetReadable(False), tl.ReportOpened()]
    loop.handle(Ordered(START), 0)
    assert loop.handle(ChainEmpty(Room.ALL), 0) == [SetReadable(True), tl.EndInput()]
    assert loop.state == "ended"


def test_what_cannot_have_happened_is_refused() -> None:
    with pytest.raises(InvalidTransitionError, match="is opening and cannot take Ordered"):
        TaskLoop([]).handle(Ordered(START), 0)
