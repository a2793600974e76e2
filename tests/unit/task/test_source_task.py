"""The task that runs a reader: everything on one thread, letters before rows, errors and the end reach who waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import CancelledError, Future

import pyarrow as pa
import pytest

from headgate.errors import UnsupportedOperationError
from headgate.source import (
    InputStatus,
    ReaderOutput,
    SourceEvent,
    SourceReader,
    SourceReaderContext,
    Split,
    WatermarkStrategy,
)
from headgate.task import MAX_WATERMARK_MS, BatchOutput, SourceTask, StreamingOutput
from headgate.testing import VirtualClock, assert_single_threaded

TIMEOUT_S = 20
SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("ms", "UTC"))])


class Rows(Split, frozen=True, kw_only=True):
    position: int = 0


class ManualReader(SourceReader[Rows]):
    """Emits a row for each `offer` of a test, from any thread; logs its calls."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.splits: dict[str, Rows] = {}
        self.no_more = False
        self.lock = threading.Lock()
        self.offered: list[tuple[str, int]] = []
        self.waiting: Future[None] = Future()
        self.fails: Exception | None = None

    def offer(self, split_id: str, number: int) -> None:
        with self.lock:
            self.offered.append((split_id, number))
            waiting, self.waiting = self.waiting, Future()
        waiting.set_result(None)

    def wake(self) -> None:
        with self.lock:
            waiting, self.waiting = self.waiting, Future()
        waiting.set_result(None)

    def start(self) -> None:
        self.log.append("start")

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if self.fails is not None:
            raise self.fails
        with self.lock:
            offered = self.offered.pop(0) if self.offered else None
        if offered is not None:
            split_id, number = offered
            batch = pa.record_batch([[number], pa.array([number], pa.timestamp("ms", "UTC"))], schema=SCHEMA)
            output.create_output_for_split(split_id).emit_batch(batch)
            self.splits[split_id] = Rows(split_id=split_id, position=self.splits[split_id].position + 1)
            self.log.append(f"emit {number}")
            return InputStatus.MORE_AVAILABLE
        return InputStatus.END_OF_INPUT if self.no_more else InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None]:
        with self.lock:
            if self.offered or self.no_more:
                done: Future[None] = Future()
                done.set_result(None)
                return done
            return self.waiting

    def add_splits(self, splits: Sequence[Rows]) -> None:
        self.log.append("add")
        self.splits.update((split.split_id, split) for split in splits)

    def notify_no_more_splits(self) -> None:
        self.log.append("no more")
        self.no_more = True
        self.wake()

    def snapshot_state(self, checkpoint_id: int) -> list[Rows]:
        self.log.append(f"checkpoint {checkpoint_id}")
        if self.fails is not None:
            raise self.fails
        return list(self.splits.values())

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.log.append(f"complete {checkpoint_id}")

    def handle_source_event(self, event: SourceEvent) -> None:
        self.log.append("event")

    def close(self) -> None:
        self.log.append("close")


class Running:
    """A task on its own thread."""

    def __init__(self, task: SourceTask[Rows]) -> None:
        self.error: BaseException | None = None
        self.task = task
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.task.run()
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self.thread.join(TIMEOUT_S)
        assert not self.thread.is_alive()


class Log:
    def __init__(self) -> None:
        self.events: list[object] = []

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        self.events.append((split_id, batch.column(0).to_pylist()))

    def on_watermark(self, timestamp_ms: int) -> None:
        self.events.append(timestamp_ms)

    def on_idle(self) -> None:
        self.events.append("idle")

    def on_active(self) -> None:
        self.events.append("active")


def test_a_task_reads_to_the_end_and_closes_its_reader() -> None:
    reader, output = ManualReader(), BatchOutput()
    task = SourceTask(reader, output)
    task.add_splits([Rows(split_id="a")])
    reader.offered += [("a", 1), ("a", 2)]
    task.notify_no_more_splits()

    task.run()

    assert reader.log == ["start", "add", "no more", "emit 1", "emit 2", "close"]
    assert [output.take().column(0).to_pylist() for _ in range(2)] == [[1], [2]]


def test_one_thread_calls_all_of_the_reader_whoever_posts() -> None:
    reader = assert_single_threaded(ManualReader(), free=("available", "offer", "wake"))
    task = SourceTask(reader, BatchOutput())
    running = Running(task)
    task.add_splits([Rows(split_id="a")])
    posters: list[Callable[[], object]] = [
        lambda: reader.offer("a", 1),
        lambda: task.trigger_checkpoint(1).result(TIMEOUT_S),
        lambda: task.notify_checkpoint_complete(1),
        lambda: task.handle_source_event(SourceEvent()),
    ] * 25
    threads = [threading.Thread(target=post) for post in posters]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    task.notify_no_more_splits()
    running.join()

    assert running.error is None
    assert sum(each.startswith("emit") for each in reader.log) == 25
    assert reader.log[-1] == "close"


def test_a_checkpoint_letter_gets_the_state_between_two_batches() -> None:
    reader = ManualReader()
    task = SourceTask(reader, BatchOutput())
    task.add_splits([Rows(split_id="a")])
    reader.offered += [("a", 1), ("a", 2), ("a", 3)]
    assert task.step()
    before = task.trigger_checkpoint(7)
    assert task.step()
    assert task.step()

    assert before.result(0) == [Rows(split_id="a", position=1)]
    assert reader.log == ["start", "add", "emit 1", "checkpoint 7", "emit 2", "emit 3"]
    task.close()


def test_a_task_without_rows_waits_and_is_woken_by_them() -> None:
    reader = ManualReader()
    task = SourceTask(reader, BatchOutput())
    task.add_splits([Rows(split_id="a")])
    running = Running(task)
    for number in range(200):
        reader.offer("a", number)
        assert task.trigger_checkpoint(number).result(TIMEOUT_S)
    task.notify_no_more_splits()
    running.join()

    assert [each for each in reader.log if each.startswith("emit")] == [f"emit {number}" for number in range(200)]


def test_an_error_of_the_reader_ends_the_task_and_fails_waiting_checkpoints() -> None:
    reader = ManualReader()
    reader.fails = OSError("broken")
    task = SourceTask(reader, BatchOutput())
    waiting = task.trigger_checkpoint(1)

    with pytest.raises(OSError, match="broken"):
        task.run()

    with pytest.raises(OSError, match="broken"):
        waiting.result(0)
    assert reader.log[-1] == "close"
    with pytest.raises(CancelledError):
        task.trigger_checkpoint(2).result(0)


def test_a_reader_that_cannot_pause_ends_the_task() -> None:
    task = SourceTask(ManualReader(), BatchOutput())
    task.pause_or_resume_splits(["a"], [])

    with pytest.raises(UnsupportedOperationError, match="ManualReader does not support pausing"):
        task.run()


def test_a_cancelled_task_closes_its_reader_without_a_final_watermark() -> None:
    reader, log = ManualReader(), Log()
    running = Running(SourceTask(reader, StreamingOutput(SCHEMA, None, log, 0)))
    running.task.cancel()
    running.join()

    assert running.error is None
    assert log.events == []
    assert reader.log[-1] == "close"


def test_a_source_that_ends_at_once_emits_its_final_watermark() -> None:
    reader, log = ManualReader(), Log()
    task = SourceTask(reader, StreamingOutput(SCHEMA, None, log, 0))
    task.notify_no_more_splits()
    task.run()

    assert log.events == ["active", MAX_WATERMARK_MS]


def test_a_split_votes_from_the_moment_it_is_added() -> None:
    reader, log = ManualReader(), Log()
    strategy = WatermarkStrategy(event_time_column="at")
    task = SourceTask(reader, StreamingOutput(SCHEMA, strategy, log, 0))
    task.add_splits([Rows(split_id="a"), Rows(split_id="b")])
    reader.offered += [("a", 100), ("b", 50)]
    for _ in range(3):
        task.step()

    assert log.events == ["active", ("a", [100]), ("b", [50]), 50]
    task.close()


def test_silence_is_noticed_by_a_timer_though_nothing_happens() -> None:
    clock = VirtualClock()
    reader, log = ManualReader(), Log()
    strategy = WatermarkStrategy(event_time_column="at", idle_timeout_ms=100)
    task = SourceTask(reader, StreamingOutput(SCHEMA, strategy, log, clock()), clock)
    task.add_splits([Rows(split_id="a")])
    reader.offered.append(("a", 5))
    task.step()
    task.step()
    for _ in range(5):
        clock.advance(25)
        assert task.step()

    assert log.events == ["active", ("a", [5]), 5, "idle"]
    task.close()


class PausingReader(ManualReader):
    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        self.log.append(f"pause {sorted(splits_to_pause)} {sorted(splits_to_resume)}")


def test_a_paused_split_does_not_become_idle() -> None:
    clock = VirtualClock()
    reader, log = PausingReader(), Log()
    strategy = WatermarkStrategy(event_time_column="at", idle_timeout_ms=100)
    task = SourceTask(reader, StreamingOutput(SCHEMA, strategy, log, clock()), clock)
    task.add_splits([Rows(split_id="a")])
    task.pause_or_resume_splits(["a"], [])
    for _ in range(20):
        clock.advance(25)
        task.step()

    assert log.events == ["active"]
    assert "pause ['a'] []" in reader.log
    task.close()


def test_a_task_runs_a_ready_made_reader() -> None:
    from headgate.connectors.datagen import DatagenSource
    from headgate.testing import EnumeratorHarness

    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    source = DatagenSource({"numRows": "100000", "numPartitions": "4"})
    enumerator = EnumeratorHarness(source, schema=schema)
    enumerator.start()
    enumerator.register_reader(0)
    output = BatchOutput()

    def request() -> None:
        enumerator.request_split(0)
        for _, letter in enumerator.outbox:
            if letter is None:
                task.notify_no_more_splits()
            else:
                task.add_splits(letter)
        enumerator.outbox.clear()

    context = SourceReaderContext(
        subtask=0, schema=schema, host=None, request_split=request, send_event=lambda event: None
    )
    task = SourceTask(source.create_reader(context), output)
    task.run()

    rows = 0
    while (batch := output.take()) is not None:
        rows += batch.num_rows
    assert rows == 100_000
