"""A subtask whose input ends, is drained or silent: its watermark, and what still takes part in checkpoints."""

from __future__ import annotations

from concurrent.futures import Future

from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind
from headgate.source import WatermarkStrategy
from headgate.task import MAX_WATERMARK_MS
from headgate.testing import VirtualClock
from tests.unit.runtime import toy_query
from tests.unit.runtime.toy_query import (
    PATIENCE_S,
    Start,
    ToyOperator,
    ToySource,
    state_of,
)
from tests.waiting import wait_until

start = toy_query.start


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
    assert "did not complete" in running.failure().message


def test_a_cancelled_subtask_is_closed_without_a_final_watermark(start: Start) -> None:
    source = ToySource()
    running = start(a=source, operator=ToyOperator())
    running.start("s")
    running.deliver(msg.CancelSubtask)

    assert running.ended.get(timeout=PATIENCE_S) == 1
    assert source.reader.log[-1] == "close"
    assert running.sink.calls[-1] == "close"
    assert running.sink.numbers == []
    assert not any(isinstance(each, msg.SplitRequested) for each in running.posted), (
        "what a reader wants while it is closed means nothing"
    )


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
    running.messages()
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
            self.running.settle()  # the timers, too, are looked at after the messages

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
    idle.running.messages()
    room: Future[None] = Future()
    idle.running.sink.room = room
    idle.running.messages()
    idle.running.messages()
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
        idle.running.messages()
        idle.running.messages()
    assert idle.watermark_ms() is None, "split t could not be read while the function ran"


def test_a_split_is_not_idle_because_the_subtask_is_suspended(start: Start) -> None:
    idle = Idle(start)
    idle.running.checkpoint(1, CheckpointKind.SUSPEND)
    idle.running.messages()
    idle.advance(1000, step_ms=250)
    idle.running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    idle.offer()
    wait_until(lambda: idle.running.sink.numbers == [1])
    assert idle.watermark_ms() is None
