"""A subtask's thread: order of letters and rows, snapshots between slices, errors, ends, and nothing left behind."""

from __future__ import annotations

import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa
import pytest

from headgate.connectors.datagen import DatagenSource
from headgate.errors import SinkError, SourceError
from headgate.operators.operator import KeyedChunk, KeyedOperator, RestoredChunk
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    FileState,
    FinishedSplit,
    InlineState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)
from headgate.runtime.mailbox import Letter
from headgate.runtime.source_input import MOST_POSITIONS
from headgate.source import SourceEvent, WatermarkStrategy
from headgate.source.serialization import VersionedSerializer
from headgate.task import MAX_WATERMARK_MS
from headgate.testing import EnumeratorHarness, VirtualClock
from tests.unit.runtime.toy_query import (
    PATIENCE_S,
    SCHEMA,
    SPLITS,
    ReassignedToySource,
    Running,
    ToyOperator,
    ToySource,
    ToySplit,
    state_of,
)
from tests.waiting import wait_until

Start = Callable[..., Running]
LETTER_S = 0.02
"""Longer than a step of the chain takes slices together."""


@pytest.fixture
def start() -> Iterator[Start]:
    made: list[Running] = []

    def make(**of: Any) -> Running:
        made.append(Running(**of))
        return made[-1]

    yield make
    for each in made:
        each.close()
        each.sink.rule.check()
        for source in each.runner.subtask._definition.sources.values():
            if isinstance(source.source, ToySource):
                source.source.rule.check()


def names(letters: list[msg.FromSlot]) -> list[str]:
    return [type(letter).__name__ for letter in letters]


# Deployment.


def test_a_restored_subtask_registers_what_it_has_and_only_then_runs(start: Start) -> None:
    source = ToySource(pulls=True)
    running = start(a=source, files={"f": b"of a file"})
    reader = ReaderState(splits=(state_of("s", 3),), finished=(FinishedSplit("over", 9),))
    sink = OperatorState(items=(InlineState(b"inline"), FileState("f", 9, 0)))
    running.deploy(SubtaskState(readers={"a": reader}, operators={"sink": sink}))

    assert running.letters() == [
        msg.ReaderRegistered(stage=0, execution=1, source="a", host="h", held=("s",)),
        msg.SplitsFinished(stage=0, execution=1, source="a", finished=(FinishedSplit("over", 1),)),
        msg.SubtaskRunning(stage=0, execution=1),
        msg.SplitRequested(stage=0, execution=1, source="a", host="h"),
    ]
    assert source.reader.log == ["start", "add s"]
    assert source.reader.splits["s"].position == 3
    assert running.sink.items == [b"inline", b"of a file"]


def test_a_source_with_the_marker_reports_its_splits_and_gets_them_by_assignment(start: Start) -> None:
    source = ReassignedToySource()
    running = start(a=source)
    held = state_of("s", 3)
    running.deploy(SubtaskState(readers={"a": ReaderState(splits=(held,))}))

    registered, is_running = running.letters()
    assert registered == msg.ReaderRegistered(stage=0, execution=1, source="a", host="h", reported_splits=(held,))
    assert isinstance(is_running, msg.SubtaskRunning)
    assert source.reader.log == ["start"]
    running.assign("s")
    running.letters()
    assert source.reader.log == ["start", "add s"]


class Restoring(ToyOperator, KeyedOperator):
    """Has state without end to restore."""

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        raise NotImplementedError

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        while not self.does["is_restored"]():
            yield

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        return ()


def test_a_subtask_that_restores_much_is_not_stuck_and_handles_its_letters(start: Start) -> None:
    restored = threading.Event()
    running = start(a=ToySource(), operator=Restoring(is_restored=restored.is_set))
    running.deploy()
    for _ in range(2):
        handled = threading.Event()
        running.runner._mailbox.post(Letter(handled.set))
        assert handled.wait(PATIENCE_S)
    assert names(running.posted) == []
    running.deliver(msg.CancelSubtask)
    assert running.ended.get(timeout=PATIENCE_S) == 1
    running.deploy()
    restored.set()
    running.next(msg.SubtaskRunning)


def test_one_thread_calls_reader_operator_and_sink_whoever_posts(start: Start) -> None:
    threads_of_function = set()
    operator = ToyOperator(process=lambda batch: threads_of_function.add(threading.current_thread()))
    source = ToySource()
    running = start(a=source, operator=operator)
    running.start("s")
    running.letters()
    posters: list[Callable[[], object]] = [
        lambda: source.reader.offer("s", 1),
        lambda: running.deliver(msg.EventToReader, source="a", payload=pickle.dumps(SourceEvent())),
        lambda: running.deliver(msg.CheckpointCompleted, checkpoint_id=1),
        lambda: running.deliver(msg.CheckpointAborted, checkpoint_id=1),
    ] * 25
    posting = [threading.Thread(target=post) for post in posters]
    for thread in posting:
        thread.start()
    for thread in posting:
        thread.join()
    wait_until(lambda: len(running.sink.numbers) == 25)

    assert threads_of_function == {running.runner._thread}
    assert names(running.letters()) == ["EventToEnumerator"] * 25  # and `start` checks the rules of reader and sink


# Rows and snapshots.


def test_a_snapshot_lies_behind_the_batch_whose_slices_wait_and_before_what_was_sent_behind_the_barrier(
    start: Start,
) -> None:
    source = ToySource(("s", tuple(range(40))), ("s", (100,)))
    rows_at_barrier: list[int] = []

    def process(batch: pa.RecordBatch) -> None:
        if not rows_at_barrier:
            rows_at_barrier.append(batch.num_rows)
            running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
            running.assign("later", number=2)
            time.sleep(LETTER_S)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    running.prepared(1).set_result(OperatorState())
    state = running.next(msg.CheckpointAcknowledged).state

    assert rows_at_barrier[0] < 40, "the barrier came between two slices"
    assert running.sink.prepared_at[1] == 40, "all of them are in"
    assert state.readers["a"].splits == (state_of("s", 1),), "one batch was read, and the later split is not in it"
    wait_until(lambda: running.sink.numbers == [*range(40), 100])
    assert source.reader.log == ["start", "add s", "add later"]
    state, _ = running.checkpoint(2)
    assert set(state.readers["a"].splits) == {state_of("s", 2), state_of("later")}


def test_a_position_is_behind_exactly_the_rows_that_the_sink_has(start: Start) -> None:
    source = ToySource(*[("s", (number,)) for number in range(50)])
    running = start(a=source)
    running.start("s")
    state, _ = running.checkpoint(1)
    (split,) = state.readers["a"].splits

    assert SPLITS.deserialize(split.data).position == running.sink.prepared_at[1]


def test_letters_are_answered_between_the_slices_of_a_large_batch(start: Start) -> None:
    source = ToySource(("s", tuple(range(200))))
    answered: list[int] = []

    def process(batch: pa.RecordBatch) -> None:
        answered.append(sum(isinstance(letter, msg.SourceReported) for letter in running.posted))
        running.deliver(msg.ReportSource, source="a", incarnation=1000)
        time.sleep(LETTER_S)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    wait_until(lambda: len(running.sink.numbers) == 200)

    assert len(answered) > 2
    assert answered == list(range(len(answered))), "each slice found the letter of the one before it answered"
    assert running.sink.numbers == list(range(200))


def test_a_subtask_without_rows_waits_and_is_woken_by_them(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    for number in range(100):
        source.reader.offer("s", number)
        wait_until(lambda wanted=number + 1: len(running.sink.numbers) == wanted)  # type: ignore[misc]

    assert running.sink.numbers == list(range(100))
    assert source.reader.polls <= 3 * 100, "it waited between them"
    wait_until(lambda: running.runner.busy_since() is None)


def test_two_sources_of_a_union_take_turns(start: Start) -> None:
    first = ToySource(*[("s", (number,)) for number in range(5)])
    second = ToySource(*[("t", (number,)) for number in range(100, 105)])
    running = start(a=first, b=second)
    restore = {"a": ReaderState(splits=(state_of("s"),)), "b": ReaderState(splits=(state_of("t"),))}
    running.start(restore=SubtaskState(readers=restore))
    wait_until(lambda: len(running.sink.numbers) == 10)

    assert [number >= 100 for number in running.sink.numbers] in ([False, True] * 5, [True, False] * 5)


def test_nothing_is_read_while_the_sink_has_no_room(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    room, other_room = Future[None](), Future[None]()
    running.sink.room = room
    running.letters()
    source.reader.offer("s", 1)
    running.letters()
    assert running.sink.numbers == []
    polls = source.reader.polls
    running.sink.room = other_room
    room.set_result(None)
    running.letters()
    assert source.reader.polls == polls, "another of the sinks has no room"
    running.sink.room = None
    other_room.set_result(None)
    wait_until(lambda: running.sink.numbers == [1])


def test_a_ready_made_reader_is_run_to_its_end(start: Start) -> None:
    source = DatagenSource({"numRows": "20000", "numPartitions": "4"})
    running = start(a=source)
    enumerator: EnumeratorHarness[Any, Any] = EnumeratorHarness(source, schema=SCHEMA)
    enumerator.start()
    enumerator.register_reader(0)
    running.start()
    number, over = 0, False
    while not over:
        running.next(msg.SplitRequested)
        enumerator.request_split(0)
        for _, splits in enumerator.outbox:
            if splits is None:
                running.deliver(msg.NoMoreSplits, source="a")
                over = True
            else:
                assert isinstance(splits, list)
                number += 1
                states = tuple(SplitState(each.split_id, source.split_serializer.serialize(each)) for each in splits)
                running.deliver(msg.AssignSplits, source="a", number=number, splits=states)
        enumerator.outbox.clear()
    running.next(msg.InputEnded)
    _, figures = running.checkpoint(1)

    assert figures.rows_out == {"sink": 20_000}
    assert not any(figures.positions.values())
    assert running.runner.fetching_since() is None


# Checkpoints.


def test_a_snapshot_that_could_not_be_made_safe_is_declined_and_the_subtask_reads_on(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
    running.prepared(1).set_exception(SinkError("the disk is full"))

    declined = running.next(msg.CheckpointDeclined)
    assert declined.checkpoint_id == 1
    assert declined.reason == "SinkError: the disk is full"
    source.reader.offer("s", 1)
    state, _ = running.checkpoint(2)
    assert len(state.readers["a"].splits) == 1
    assert running.ended.empty()


def test_a_sink_that_is_broken_for_good_fails_the_subtask_with_its_own_error(start: Start) -> None:
    running = start(a=ToySource())
    running.start("s")
    running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
    prepared = running.prepared(1)
    running.sink.fails["ready"] = SinkError("rows are lost", sink="toy")
    prepared.set_exception(SinkError("rows are lost"))

    error = fail_of(running)
    assert (error.error_type, error.message) == ("SinkError", "rows are lost")
    assert not any(isinstance(letter, msg.CheckpointDeclined) for letter in running.posted)


def test_a_snapshot_of_an_execution_that_is_over_is_ignored(start: Start) -> None:
    running = start(a=ToySource())
    running.start("s")
    running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
    late = running.prepared(1)
    running.deliver(msg.TriggerCheckpoint, checkpoint_id=2)
    also_late = running.prepared(2)
    running.start("s")
    late.set_result(OperatorState())
    also_late.set_exception(SinkError("late"))

    assert running.ended.get(timeout=PATIENCE_S) == 1
    assert running.letters() == []
    running.deliver(msg.CancelSubtask)
    assert running.ended.get(timeout=PATIENCE_S) == 2


def test_readers_and_sinks_learn_that_a_checkpoint_is_complete(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.checkpoint(1)
    running.deliver(msg.CheckpointCompleted, checkpoint_id=1)
    running.letters()

    assert "complete 1" in source.reader.log
    assert ("complete", 1) in running.sink.calls


def test_ends_are_told_before_the_request_that_follows_and_kept_until_they_are_known(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s", "t")
    source.reader.offer("s")
    finished, requested = running.next(msg.SplitsFinished), running.next(msg.SplitRequested)

    assert finished.finished == (FinishedSplit("s", 1),)
    assert running.posted.index(finished) < running.posted.index(requested)
    state, _ = running.checkpoint(1)
    assert state.readers["a"] == ReaderState(splits=(state_of("t"),), finished=(FinishedSplit("s", 1),))
    running.deliver(msg.CheckpointCompleted, checkpoint_id=1, finished_known={"a": 1})
    state, _ = running.checkpoint(2)
    assert state.readers["a"].finished == ()


def test_nothing_is_emitted_behind_a_savepoint_that_suspends_until_it_is_aborted(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.checkpoint(1, CheckpointKind.SUSPEND)
    source.reader.offer("s", 1)
    running.letters()
    running.letters()
    assert running.sink.numbers == []
    running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    wait_until(lambda: running.sink.numbers == [1])
    assert ("prepare", 1, False) in running.sink.calls, "rows may follow"


def test_a_savepoint_that_is_aborted_while_slices_wait_suspends_nothing(start: Start) -> None:
    source = ToySource(("s", tuple(range(40))), ("s", (100,)))
    triggered: list[CheckpointKind] = []

    def process(batch: pa.RecordBatch) -> None:
        if not triggered:
            triggered.append(CheckpointKind.SUSPEND)
            running.deliver(msg.TriggerCheckpoint, checkpoint_id=1, kind=CheckpointKind.SUSPEND)
            running.deliver(msg.CheckpointAborted, checkpoint_id=1)
            time.sleep(LETTER_S)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    wait_until(lambda: running.sink.numbers == [*range(40), 100])


# Figures.


class CountingSerializer(VersionedSerializer[ToySplit]):
    """Counts what it writes."""

    def __init__(self) -> None:
        super().__init__(ToySplit, version=1, what="a split of a toy")
        self.written = 0

    def serialize(self, value: ToySplit) -> bytes:
        self.written += 1
        return super().serialize(value)


class CountedToySource(ToySource):
    def __init__(self) -> None:
        super().__init__()
        self.counting = CountingSerializer()

    @property
    def split_serializer(self) -> CountingSerializer:  # type: ignore[override]
        return self.counting


def tell(running: Running, times: int, clock: VirtualClock, by_ms: int) -> list[msg.SubtaskProgress]:
    """Let time pass and then the figures be due so many times, and by their timer, and return what was told."""
    running.settle()  # its timers have run
    before = len(running.posted)
    clock.advance(by_ms)
    for _ in range(times):
        running.runner._mailbox.post(Letter(running.runner.subtask.on_progress_due))
    running.settle()
    return [letter for letter in running.posted[before:] if isinstance(letter, msg.SubtaskProgress)]


def test_positions_are_looked_for_once_a_second_whatever_is_told_meanwhile(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start("s", "t")
    letters = tell(running, 5, clock, 1000)
    assert [letter.splits for letter in letters if letter.splits] == [{"a": 2}]
    assert source.counting.written <= 2 * 2
    before = source.counting.written
    assert not [letter for letter in tell(running, 5, clock, 999) if letter.splits or letter.positions]
    assert source.counting.written == before
    (told,) = [letter for letter in tell(running, 5, clock, 1) if letter.splits]
    assert told.positions == {"a": {"s": state_of("s").data, "t": state_of("t").data}}
    assert source.counting.written == before + 2


def test_what_a_snapshot_wrote_is_told_and_not_written_again(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start("s")
    tell(running, 1, clock, 0)
    clock.advance(999)
    before = source.counting.written
    _, figures = running.checkpoint(1)
    assert figures.positions == {"a": {"s": state_of("s").data}}
    assert source.counting.written == before + 1, "for the checkpoint"


def test_of_very_many_splits_only_their_number_is_told_and_none_is_written(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start(*[f"s{number}" for number in range(MOST_POSITIONS + 1)])
    for _ in range(3):
        (told,) = [letter for letter in tell(running, 4, clock, 1000) if letter.splits]
        assert (told.splits, told.positions) == ({"a": MOST_POSITIONS + 1}, {"a": {}})
    assert source.counting.written == 0
    _, figures = running.checkpoint(1)
    assert (figures.splits, figures.positions) == ({"a": MOST_POSITIONS + 1}, {"a": {}})


# The end of the input.


def test_a_source_that_ends_at_once_emits_its_final_watermark_and_still_takes_part_in_checkpoints(
    start: Start,
) -> None:
    source = ToySource()
    running = start(a=source, operator=ToyOperator())
    running.start()
    running.deliver(msg.NoMoreSplits, source="a")
    running.next(msg.InputEnded)
    state, figures = running.checkpoint(1)

    assert state.input_ended and state.readers["a"].splits == ()
    assert figures.watermark_ms == MAX_WATERMARK_MS
    assert running.sink.numbers == [-1], "the operator's last rows come before the snapshot"
    assert ("prepare", 1, True) in running.sink.calls
    state, _ = running.checkpoint(2)
    assert state.input_ended


def test_a_drained_subtask_ends_its_input_first_and_keeps_what_it_gets_later(start: Start) -> None:
    source = ToySource()
    running = start(a=source, operator=ToyOperator())
    running.start("s")
    source.reader.offer("s", 1)
    wait_until(lambda: running.sink.numbers == [1])
    state, figures = running.checkpoint(1, CheckpointKind.DRAIN)

    assert state.input_ended and state.readers["a"].splits == (state_of("s", 1),)
    assert figures.watermark_ms == MAX_WATERMARK_MS
    assert running.sink.numbers == [1, -1]
    assert ("prepare", 1, True) in running.sink.calls
    source.reader.offer("s", 2)
    running.assign("t", number=2)
    state, _ = running.checkpoint(2)
    assert state_of("t") in state.readers["a"].splits
    assert running.sink.numbers == [1, -1]
    running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    assert "did not complete" in fail_of(running).message


def test_a_cancelled_subtask_is_closed_without_a_final_watermark(start: Start) -> None:
    source = ToySource()
    running = start(a=source, operator=ToyOperator())
    running.start("s")
    running.deliver(msg.CancelSubtask)

    assert running.ended.get(timeout=PATIENCE_S) == 1
    assert source.reader.log[-1] == "close"
    assert running.sink.calls[-1] == "close"
    assert running.sink.numbers == []
    assert names(running.posted).count("SplitRequested") == 0, "what a reader wants while it is closed means nothing"


# Watermarks.


def test_a_split_votes_from_the_moment_it_is_added(start: Start) -> None:
    source = ToySource()
    running = start(a=source, strategy=WatermarkStrategy(event_time_column="at"))
    running.start("s", "t")
    source.reader.offer("s", 100)
    wait_until(lambda: running.sink.numbers == [100])
    _, figures = running.checkpoint(1)
    assert figures.watermark_ms is None
    source.reader.offer("t", 50)
    wait_until(lambda: running.sink.numbers == [100, 50])
    _, figures = running.checkpoint(2)
    assert figures.watermark_ms == 50


def test_a_source_that_ended_holds_no_other_back(start: Start) -> None:
    first, second = ToySource(), ToySource()
    running = start(a=first, b=second, strategy=WatermarkStrategy(event_time_column="at"))
    running.start("s")
    running.assign("t", source="b")
    running.letters()
    first.reader.offer("", 5)  # on the output of the reader itself, which no split's end releases
    first.reader.offer("s")
    second.reader.offer("t", 50)
    running.deliver(msg.NoMoreSplits, source="a")
    wait_until(lambda: sorted(running.sink.numbers) == [5, 50])
    first.reader.wake()
    wait_until(lambda: running.checkpoint(len(running.sink.prepared) + 1)[1].watermark_ms == 50)


class Idle:
    """Split s has rows, t has none and holds the watermark until it is idle."""

    def __init__(self, start: Start, operator: ToyOperator | None = None) -> None:
        self.clock = VirtualClock()
        self.source = ToySource()
        strategy = WatermarkStrategy(event_time_column="at", idle_timeout_ms=100)
        self.running = start(a=self.source, strategy=strategy, operator=operator, now_ms=self.clock)
        self.running.start("s", "t")
        self.rows = 0

    def offer(self) -> None:
        self.rows += 1
        self.source.reader.offer("s", self.rows)

    def advance(self, by_ms: int, step_ms: int = 25) -> None:
        for _ in range(by_ms // step_ms):
            self.clock.advance(step_ms)
            self.running.settle()  # the timers, too, are looked at behind the letters

    def watermark_ms(self) -> int | None:
        found = self.running.checkpoint(len(self.running.sink.prepared) + 1)[1].watermark_ms
        self.running.settle()  # idleness is not counted before it asks for rows again
        return found


def test_silence_is_noticed_by_a_timer_though_nothing_happens(start: Start) -> None:
    idle = Idle(start)
    idle.offer()
    wait_until(lambda: idle.running.sink.numbers == [1])
    assert idle.watermark_ms() is None
    idle.advance(75)
    assert idle.watermark_ms() is None
    idle.advance(25)
    idle.offer()
    wait_until(lambda: idle.running.sink.numbers == [1, 2])
    assert idle.watermark_ms() == 2


def test_a_split_is_not_idle_because_the_sink_has_no_room(start: Start) -> None:
    idle = Idle(start)
    idle.running.letters()
    room: Future[None] = Future()
    idle.running.sink.room = room
    idle.running.letters()
    idle.running.letters()
    idle.offer()
    idle.advance(1000, step_ms=250)
    idle.running.sink.room = None
    room.set_result(None)
    wait_until(lambda: idle.running.sink.numbers == [1])
    assert idle.watermark_ms() is None
    idle.advance(100)
    idle.offer()
    wait_until(lambda: idle.running.sink.numbers == [1, 2])
    assert idle.watermark_ms() == 2


def test_a_split_without_rows_beside_a_backlog_becomes_idle_though_each_batch_takes_its_time(start: Start) -> None:
    idle = Idle(start, ToyOperator(process=lambda batch: idle.clock.advance(20)))
    for _ in range(20):
        idle.offer()
    wait_until(lambda: len(idle.running.sink.numbers) == 20)
    assert idle.watermark_ms() == 20


def test_a_split_is_not_idle_because_a_function_is_slow(start: Start) -> None:
    takes_ms = iter((1000, 0))
    idle = Idle(start, ToyOperator(process=lambda batch: idle.clock.advance(next(takes_ms))))
    for numbers in ([1], [1, 2]):
        idle.offer()
        wait_until(lambda wanted=numbers: idle.running.sink.numbers == wanted)  # type: ignore[misc]
        idle.running.letters()
        idle.running.letters()
    assert idle.watermark_ms() is None, "split t could not be read while the function ran"


def test_a_split_is_not_idle_because_the_subtask_is_suspended(start: Start) -> None:
    idle = Idle(start)
    idle.running.checkpoint(1, CheckpointKind.SUSPEND)
    idle.running.letters()
    idle.advance(1000, step_ms=250)
    idle.running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    idle.offer()
    wait_until(lambda: idle.running.sink.numbers == [1])
    assert idle.watermark_ms() is None


# Errors.


def fail_of(running: Running) -> msg.ErrorReport:
    """Return the error with which the subtask failed, when all of it is closed."""
    wait_until(lambda: any(isinstance(letter, msg.SubtaskFailed) for letter in running.posted))
    running.ended.get(timeout=PATIENCE_S)
    (failed,) = [letter for letter in running.posted if isinstance(letter, msg.SubtaskFailed)]
    return failed.error


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
    error = fail_of(running)

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

    facts = fail_of(running).facts
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

    facts = fail_of(running).facts
    assert (facts["split"], facts["position"]) == ("s", state_of("s").data.decode())


def test_the_report_of_a_source_keeps_what_the_source_says(start: Start) -> None:
    source = ToySource()
    source.fails["poll"] = SourceError("gone", split="s", position=17)
    running = start(a=source)
    running.start("s")

    facts = fail_of(running).facts
    assert facts == {"stage": 0, "subtask": 2, "source": "a", "split": "s", "position": 17}


def test_a_part_that_ends_its_thread_fails_the_subtask(start: Start) -> None:
    source = ToySource()
    source.fails["poll"] = sys.exit
    running = start(a=source)
    running.start("s")

    assert fail_of(running).error_type == "SystemExit"


def test_a_state_that_cannot_be_read_fails_the_deployment(start: Start) -> None:
    running = start(a=ToySource())
    lost = OperatorState(items=(FileState("lost", 1, 1),))
    running.deploy(SubtaskState(operators={"sink": lost}))
    assert fail_of(running).error_type == "KeyError"

    running = start(a=ToySource())
    running.deploy(SubtaskState(readers={"a": ReaderState(splits=(SplitState("s", b"no split"),))}))
    error = fail_of(running)
    assert (error.error_type, error.facts["subtask"]) == ("CorruptStateError", 2)


def test_a_letter_that_makes_no_sense_fails_the_subtask_and_not_its_thread(start: Start) -> None:
    running = start(a=ToySource())
    running.start("s")
    running.assign("t", number=7)

    assert fail_of(running).error_type == "InvalidTransitionError"
    running.start("s")


# Its own end.


def test_finish_waits_for_what_the_sink_owes(start: Start) -> None:
    running = start(a=ToySource())
    assert running.runner.finish(PATIENCE_S), "nothing is deployed"
    running.start("s")
    assert running.runner.finish(PATIENCE_S), "the sink owes nothing"
    running.sink.finished = Future()
    assert not running.runner.finish(0.01)
    running.sink.finished.set_result(None)
    assert running.runner.finish(PATIENCE_S)
    running.sink.finished = Future()
    running.sink.finished.set_exception(SinkError("refused"))
    with pytest.raises(SinkError, match="refused"):
        running.runner.finish(PATIENCE_S)
    running.sink.fails["finish"] = SinkError("broken")
    with pytest.raises(SinkError, match="broken"):
        running.runner.finish(PATIENCE_S)


def test_close_closes_what_runs_and_ends_the_thread(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.close()

    assert running.ended.get_nowait() == 1
    assert source.reader.log[-1] == "close"
    assert running.sink.calls[-1] == "close"
    assert not running.runner.finish(PATIENCE_S), "it is too late"


def test_close_does_not_wait_for_a_reader_that_hangs(start: Start) -> None:
    source, released = ToySource(), threading.Event()
    source.fails["close"] = lambda: released.wait(PATIENCE_S)
    running = start(a=source)
    running.start("s")
    running.runner.close(0.05)

    assert running.runner._thread.is_alive()
    released.set()


def test_whoever_watches_sees_since_when_a_call_runs(start: Start) -> None:
    source, released = ToySource(), threading.Event()
    source.fails["poll"] = lambda: released.wait(PATIENCE_S)
    running = start(a=source)
    before_s = time.monotonic()
    running.start("s")
    wait_until(lambda: source.reader.polls > 0)

    since_s = running.runner.busy_since()
    assert since_s is not None and since_s >= before_s
    released.set()
    wait_until(lambda: running.runner.busy_since() is None)
