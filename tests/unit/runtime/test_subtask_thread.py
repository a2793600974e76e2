"""A subtask's thread: order of messages and rows, snapshots between slices, figures, and nothing left over."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headgate.checkpoint.channel_bytes import read_split, split_chunks
from headgate.connectors.datagen import DatagenSource
from headgate.errors import SinkError
from headgate.operators.operator import KeyedOperator
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import (
    ChunkState,
    FileState,
    FinishedSplit,
    InFlightRows,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)
from headgate.runtime.mailbox import Mail
from headgate.runtime.source_input import MOST_POSITIONS
from headgate.source import SourceEvent
from headgate.source.serialization import VersionedSerializer
from headgate.state.chunks import KeyedChunk, RestoredChunk
from headgate.testing import EnumeratorHarness, VirtualClock
from tests.unit.runtime import toy_query
from tests.unit.runtime.toy_query import (
    LAST,
    PATIENCE_S,
    SCHEMA,
    SPLITS,
    ReassignedToySource,
    Running,
    Start,
    ToyOperator,
    ToySource,
    ToySplit,
    rows,
    state_of,
)
from tests.waiting import wait_until

start = toy_query.start
MAIL_S = 0.02
"""Longer than a step of the chain takes slices together."""


def names(messages: list[msg.FromSlot]) -> list[str]:
    return [type(message).__name__ for message in messages]


# Deployment.


def test_a_restored_subtask_registers_what_it_has_and_only_then_runs(start: Start) -> None:
    source = ToySource(pulls=True)
    running = start(a=source, files={"f": b"of a file"})
    reader = ReaderState(splits=(state_of("s", 3),), finished=(FinishedSplit("over", 9),))
    sink = OperatorState(items=(InlineState(b"inline"), FileState("f", 9, 0)))
    running.deploy(SubtaskState(readers={"a": reader}, operators={"sink": sink}))

    assert running.messages() == [
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

    registered, is_running = running.messages()
    assert registered == msg.ReaderRegistered(stage=0, execution=1, source="a", host="h", reported_splits=(held,))
    assert isinstance(is_running, msg.SubtaskRunning)
    assert source.reader.log == ["start"]
    running.assign("s")
    running.messages()
    assert source.reader.log == ["start", "add s"]


class Restoring(ToyOperator, KeyedOperator):
    """Has state without end to restore."""

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        raise NotImplementedError

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        for chunk in chunks[:1]:
            chunk.read()
        while not self.does["is_restored"]():
            yield

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        return ()


def test_a_subtask_that_restores_much_is_not_stuck_and_handles_its_messages(start: Start) -> None:
    restored = threading.Event()
    running = start(a=ToySource(), operator=Restoring(is_restored=restored.is_set))
    running.deploy()
    for _ in range(2):
        handled = threading.Event()
        running.runner.post(Mail(handled.set))
        assert handled.wait(PATIENCE_S)
    assert names(running.posted) == []
    running.deliver(msg.CancelSubtask)
    assert running.ended.get(timeout=PATIENCE_S) == 1
    running.deploy()
    restored.set()
    running.next(msg.SubtaskRunning)


def test_how_far_a_restore_is_is_reported_before_the_operators_are_open(start: Start) -> None:
    restored = threading.Event()
    running = start(a=ToySource(), operator=Restoring(is_restored=restored.is_set))
    chunks = [
        ChunkState(chunk_id=str(n), handle=InlineState(b"x" * n), first_key_group=0, last_key_group=127) for n in (3, 4)
    ]
    running.deploy(SubtaskState(keyed={"function": KeyedState(chunks=tuple(chunks))}))

    def reported() -> list[msg.RestoreProgress]:
        running.runner.post(Mail(running.runner.subtask.on_progress_due))
        return [each.restore for each in running.posted if isinstance(each, msg.SubtaskProgress) and each.restore]

    wait_until(lambda: any(each.bytes_left == 4 for each in reported()))
    assert {(each.bytes_to_read, each.is_over) for each in reported()} == {(7, False)}
    restored.set()
    running.next(msg.SubtaskRunning)
    wait_until(lambda: any(each.is_over for each in reported()))


def test_one_thread_calls_reader_operator_and_sink_whoever_posts(start: Start) -> None:
    threads_of_function = set()
    operator = ToyOperator(process=lambda batch: threads_of_function.add(threading.current_thread()))
    source = ToySource()
    running = start(a=source, operator=operator)
    running.start("s")
    running.messages()
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

    assert threads_of_function == {running.thread._thread}
    assert names(running.messages()) == ["EventToEnumerator"] * 25  # and `start` checks the rules of reader and sink


# Rows and snapshots.


def test_a_snapshot_does_not_wait_for_the_batch_that_a_reader_gave_and_holds_what_is_left_of_it(start: Start) -> None:
    source = ToySource(("s", tuple(range(40))), ("s", (100,)))
    at_barrier: list[int] = []  # rows that the function was given up to then
    given = 0

    def process(batch: pa.RecordBatch) -> None:
        nonlocal given
        given += batch.num_rows
        if not at_barrier:
            at_barrier.append(given)
            running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
            running.assign("later", number=2)
        elif 1 not in running.sink.prepared_at:
            raise AssertionError("another slice was begun before the snapshot")
        time.sleep(MAIL_S)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    running.prepared(1).set_result(OperatorState())
    state = running.next(msg.CheckpointAcknowledged).state

    (split,) = state.readers["a"].splits
    assert split.data == state_of("s", 1).data, "one batch was read, and the later split is not in it"
    assert split.in_flight is not None and not split.ended
    (left,) = read_split(split.in_flight.handle.data, "a", "s")
    assert running.sink.prepared_at[1] == at_barrier[0] < 40
    assert left.column(0).to_pylist() == list(range(at_barrier[0], 40))
    assert (split.in_flight.rows, split.in_flight.buffers) == (40 - at_barrier[0], 1)
    wait_until(lambda: running.sink.numbers == [*range(40), 100])
    assert source.reader.log == ["start", "add s", "add later"]
    state, _ = running.checkpoint(2)
    assert set(state.readers["a"].splits) == {state_of("s", 2), state_of("later")}, "nothing is left"


def in_flight_of(*batches: tuple[int, ...], split_id: str = "s") -> InFlightRows:
    """Return rows in flight of a split of source ``a``, as a checkpoint has them."""
    made = [rows(*numbers) for numbers in batches]
    count = sum(map(len, batches))
    data = b"".join(split_chunks("a", split_id, SCHEMA, made, buffers=len(made), rows=count))
    return InFlightRows(handle=InlineState(data), buffers=len(made), rows=count, size_bytes=1)


def with_rows(split: SplitState, rows_in_flight: InFlightRows | None, *, ended: bool = False) -> SplitState:
    return msgspec.structs.replace(split, in_flight=rows_in_flight, ended=ended)


def test_rows_in_flight_come_before_what_is_read_on_of_their_split(start: Start) -> None:
    source = ToySource(("s", (100, 101)))
    running = start(a=source)
    split = with_rows(state_of("s", 7), in_flight_of((1, 2), (3,)))
    running.start(restore=SubtaskState(readers={"a": ReaderState(splits=(split,))}))
    wait_until(lambda: running.sink.numbers == [1, 2, 3, 100, 101])

    assert source.reader.log == ["start", "add s"]
    state, progress = running.checkpoint(1)
    assert state.readers["a"].splits == (state_of("s", 8),)
    assert progress.rows_in == {"a": 5}


def test_rows_in_flight_of_a_split_that_waits_for_its_start_are_in_the_next_snapshot_as_they_were(start: Start) -> None:
    """A failure right after the restore, or a savepoint after which nothing is to be emitted, loses none of them."""
    running = start(a=ToySource())
    running.start("s")
    running.checkpoint(1, CheckpointKind.SUSPEND)
    split = with_rows(state_of("later", 3), in_flight_of((1, 2), split_id="later"))
    running.deliver(msg.AssignSplits, source="a", number=2, splits=(split,))
    running.messages()
    running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    wait_until(lambda: running.sink.numbers == [1, 2])


def test_a_split_that_was_read_to_its_end_ends_when_its_rows_are_processed_and_no_reader_gets_it(start: Start) -> None:
    processed_at_end: list[Any] = []

    def process(batch: pa.RecordBatch) -> None:
        ends = [each for each in running.posted if isinstance(each, msg.SplitsFinished)]
        processed_at_end.append(any(end.split_id == "s" for each in ends for end in each.finished))

    source = ToySource()
    running = start(a=source, operator=ToyOperator(process=process))
    ended = with_rows(state_of("s", 7), in_flight_of((1, 2), (3,)), ended=True)
    without = with_rows(state_of("t", 7), None, ended=True)
    running.start(restore=SubtaskState(readers={"a": ReaderState(splits=(ended, without))}))
    finished: set[str] = set()
    while finished != {"s", "t"}:
        finished |= {end.split_id for end in running.next(msg.SplitsFinished).finished}
    assert running.sink.numbers == [1, 2, 3]
    assert processed_at_end and not any(processed_at_end)
    assert source.reader.log == ["start"]


def test_the_end_of_a_split_whose_rows_wait_is_in_the_snapshot_and_is_reported_after_it(start: Start) -> None:
    """Else its end would be in no checkpoint: the barrier has fixed which ends belong to it."""
    taken: list[int] = []

    def process(batch: pa.RecordBatch) -> None:
        if not taken:
            taken.extend(batch.column(0).to_pylist())
            running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
        time.sleep(MAIL_S)

    source = ToySource(("s", (*range(40), LAST)))
    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    running.prepared(1).set_result(OperatorState())
    state = running.next(msg.CheckpointAcknowledged).state.readers["a"]
    (split,) = state.splits
    assert split.ended and split.in_flight is not None and state.finished == ()
    assert running.next(msg.SplitsFinished).finished == (FinishedSplit("s", 1),)
    assert running.sink.numbers == list(range(40))
    state, _ = running.checkpoint(2)
    assert state.readers["a"] == ReaderState(finished=(FinishedSplit("s", 1),))


def test_a_reader_that_asked_and_was_given_only_ended_splits_asks_again(start: Start) -> None:
    source = ToySource(pulls=True)
    running = start(a=source)
    running.deploy()
    running.next(msg.SplitRequested)
    ended = with_rows(state_of("s", 7), in_flight_of((1,)), ended=True)
    running.deliver(msg.AssignSplits, source="a", number=1, splits=(ended,))
    running.next(msg.SplitRequested)
    assert running.next(msg.SplitsFinished).finished == (FinishedSplit("s", 1),)


def test_no_more_splits_and_events_reach_a_reader_after_the_splits_before_them(start: Start) -> None:
    source = ToySource(("s", (5,)))
    running = start(a=source)
    split = with_rows(state_of("s", 7), in_flight_of((1,)))
    running.deploy()
    running.next(msg.SubtaskRunning)
    running.deliver(msg.AssignSplits, source="a", number=1, splits=(split,))
    running.deliver(msg.NoMoreSplits, source="a")
    wait_until(lambda: running.sink.numbers == [1, 5])
    assert source.reader.log[:3] == ["start", "add s", "no more"]


def at_a_barrier_in_the_first_slice(start: Start, split_id: str, **given: Any) -> tuple[SplitState, int]:
    """Return the split in a snapshot that was ordered early in a batch of 40 rows, and the rows that precede it."""
    first: list[int] = []

    def process(batch: pa.RecordBatch) -> None:
        if not first:
            first.append(batch.num_rows)
            running.deliver(msg.TriggerCheckpoint, checkpoint_id=1)
        time.sleep(0.005)

    source = ToySource((split_id, tuple(range(40))))
    running = start(a=source, operator=ToyOperator(process=process), **given)
    running.start("s")
    running.prepared(1).set_result(OperatorState())
    (split,) = running.next(msg.CheckpointAcknowledged).state.readers["a"].splits
    return split, running.sink.prepared_at[1]


def test_rows_that_a_reader_emits_for_no_split_are_processed_before_the_snapshot(start: Start) -> None:
    split, preceding = at_a_barrier_in_the_first_slice(start, "")
    assert split.in_flight is None
    assert preceding == 40


def test_with_aligned_checkpoints_a_snapshot_waits_for_the_batch(start: Start) -> None:
    aligned = {"execution.checkpointing.unaligned.enabled": "false"}
    split, preceding = at_a_barrier_in_the_first_slice(start, "s", options=aligned)
    assert split == state_of("s", 1)
    assert preceding == 40


def test_rows_in_flight_without_a_column_that_is_read_now_are_an_error_that_says_what_to_do(start: Start) -> None:
    was = pa.schema([SCHEMA.field("n")])
    data = b"".join(split_chunks("a", "s", was, [pa.record_batch([[1]], schema=was)], buffers=1, rows=1))
    lacking = InFlightRows(handle=InlineState(data), buffers=1, rows=1, size_bytes=1)
    running = start(a=ToySource())
    running.deploy(SubtaskState(readers={"a": ReaderState(splits=(with_rows(state_of("s"), lacking),))}))
    error = running.failure()
    assert error.error_type == "StoredStateError"
    assert "'a'" in error.message and "unaligned.enabled' set to false" in error.message, error.message


def test_a_position_is_after_exactly_the_rows_that_the_sink_has(start: Start) -> None:
    source = ToySource(*[("s", (number,)) for number in range(50)])
    running = start(a=source)
    running.start("s")
    state, _ = running.checkpoint(1)
    (split,) = state.readers["a"].splits

    assert SPLITS.deserialize(split.data).position == running.sink.prepared_at[1]


def test_messages_are_answered_between_the_slices_of_a_large_batch(start: Start) -> None:
    source = ToySource(("s", tuple(range(200))))
    answered: list[int] = []

    def process(batch: pa.RecordBatch) -> None:
        answered.append(sum(isinstance(message, msg.SourceReported) for message in running.posted))
        running.deliver(msg.ReportSource, source="a", incarnation=1000)
        time.sleep(MAIL_S)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    wait_until(lambda: len(running.sink.numbers) == 200)

    assert len(answered) > 2
    assert answered == list(range(len(answered))), "each slice found the message of the one before it answered"
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
    running.messages()
    source.reader.offer("s", 1)
    running.messages()
    assert running.sink.numbers == []
    polls = source.reader.polls
    running.sink.room = other_room
    room.set_result(None)
    running.messages()
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

    error = running.failure()
    assert (error.error_type, error.message) == ("SinkError", "rows are lost")
    assert not any(isinstance(message, msg.CheckpointDeclined) for message in running.posted)


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
    assert running.messages() == []
    running.deliver(msg.CancelSubtask)
    assert running.ended.get(timeout=PATIENCE_S) == 2


def test_readers_and_sinks_learn_that_a_checkpoint_is_complete(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.checkpoint(1)
    running.deliver(msg.CheckpointCompleted, checkpoint_id=1)
    running.messages()

    assert "complete 1" in source.reader.log
    assert ("complete", 1) in running.sink.calls


def test_ends_are_reported_before_the_request_that_follows_and_kept_until_they_are_known(start: Start) -> None:
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


def test_nothing_is_emitted_after_a_savepoint_that_suspends_until_it_is_aborted(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.checkpoint(1, CheckpointKind.SUSPEND)
    source.reader.offer("s", 1)
    running.messages()
    running.messages()
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
            time.sleep(MAIL_S)

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


def notify(running: Running, times: int, clock: VirtualClock, by_ms: int) -> list[msg.SubtaskProgress]:
    """Let time pass and then the figures be due so many times, and by their timer, and return what was reported."""
    running.settle()  # its timers have run
    before = len(running.posted)
    clock.advance(by_ms)
    for _ in range(times):
        running.runner.post(Mail(running.runner.subtask.on_progress_due))
    running.settle()
    return [message for message in running.posted[before:] if isinstance(message, msg.SubtaskProgress)]


def test_positions_are_looked_for_once_a_second_whatever_is_reported_meanwhile(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start("s", "t")
    messages = notify(running, 5, clock, 1000)
    assert [message.splits for message in messages if message.splits] == [{"a": 2}]
    assert source.counting.written <= 2 * 2
    before = source.counting.written
    assert not [message for message in notify(running, 5, clock, 999) if message.splits or message.positions]
    assert source.counting.written == before
    (reported,) = [message for message in notify(running, 5, clock, 1) if message.splits]
    assert reported.positions == {"a": {"s": state_of("s").data, "t": state_of("t").data}}
    assert source.counting.written == before + 2


def test_a_connectors_metrics_are_sent_once_a_second_and_with_frequent_checkpoints_too(start: Start) -> None:
    clock = VirtualClock(5000)
    source = ToySource()
    running = start(a=source, now_ms=clock)
    running.start("s", "t")
    group = source.reader.context.metric_group
    group.counter("requests").inc(3)
    group.split("t").gauge("pendingRecords", lambda: 12)
    notify(running, 1, clock, 1000)
    for checkpoint_id in range(1, 4):
        clock.advance(300)
        _, figures = running.checkpoint(checkpoint_id)
        assert figures.metrics == {}
    (sent,) = [each for each in notify(running, 3, clock, 100) if each.metrics]
    assert {name: each.value for name, each in sent.metrics["a"].items()} == {"requests": 3, "pendingRecords": 12}
    assert sent.pending_records == {"a": {"t": 12}}


def test_what_a_snapshot_wrote_is_reported_and_not_written_again(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start("s")
    notify(running, 1, clock, 0)
    clock.advance(999)
    before = source.counting.written
    _, figures = running.checkpoint(1)
    assert figures.positions == {"a": {"s": state_of("s").data}}
    assert source.counting.written == before + 1, "for the checkpoint"


def test_of_as_many_splits_as_are_reported_all_positions_are(start: Start) -> None:
    running = start(a=CountedToySource(), now_ms=VirtualClock(5000))  # the timer reports nothing meanwhile
    running.start(*[f"s{number}" for number in range(MOST_POSITIONS)])
    _, figures = running.checkpoint(1)
    assert (figures.splits, len(figures.positions["a"])) == ({"a": MOST_POSITIONS}, MOST_POSITIONS)


def test_of_very_many_splits_only_their_number_is_reported_and_none_is_written(start: Start) -> None:
    clock = VirtualClock(5000)
    source = CountedToySource()
    running = start(a=source, now_ms=clock)
    running.start(*[f"s{number}" for number in range(MOST_POSITIONS + 1)])
    for _ in range(3):
        (reported,) = [message for message in notify(running, 4, clock, 1000) if message.splits]
        assert (reported.splits, reported.positions) == ({"a": MOST_POSITIONS + 1}, {"a": {}})
    assert source.counting.written == 0
    _, figures = running.checkpoint(1)
    assert (figures.splits, figures.positions) == ({"a": MOST_POSITIONS + 1}, {"a": {}})


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
    looks = iter([False])  # whoever waits on fails at the second look
    give_up = threading.Event()
    give_up.is_set = lambda: next(looks)  # type: ignore[method-assign]
    assert not running.runner.finish(PATIENCE_S, give_up), "it is too late"


def test_close_does_not_wait_for_a_reader_that_hangs(start: Start) -> None:
    source, released = ToySource(), threading.Event()
    source.fails["close"] = lambda: released.wait(PATIENCE_S)
    running = start(a=source)
    running.start("s")
    running.thread.close(0.05)

    assert running.thread._thread.is_alive()
    released.set()


def test_whoever_watches_sees_since_when_a_call_runs(start: Start) -> None:
    source, released = ToySource(), threading.Event()
    source.fails["poll"] = lambda: released.wait(PATIENCE_S)
    running = start(a=source)
    before_s = time.monotonic_ns() // 1_000_000 / 1000
    running.start("s")
    wait_until(lambda: source.reader.polls > 0)

    since_s = running.runner.busy_since()
    assert since_s is not None and since_s >= before_s
    released.set()
    wait_until(lambda: running.runner.busy_since() is None)
