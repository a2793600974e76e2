"""Aligned reading in a subtask: who is paused and when, FLIP-217's list of what stays compatible, and what goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.map_in_arrow import MapInArrow
from headgate.protocol import messages as msg
from headgate.protocol.error_reports import error_of
from headgate.protocol.messages import CheckpointKind, SplitEventTime
from headgate.readers import MultiplexedReader, MultithreadedReader, ReaderOptions
from headgate.source import (
    FetchedBatch,
    SourceReader,
    SourceReaderContext,
    SplitReader,
    WatermarkAlignment,
    WatermarkStrategy,
)
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.testing import VirtualClock
from tests.unit.runtime.toy_query import (
    PATIENCE_S,
    SCHEMA,
    SPLITS,
    PausableToyReader,
    Running,
    Start,
    ToyOperator,
    ToySource,
    ToySplit,
    rows,
    started,
)
from tests.waiting import wait_until

ALLOWED = {"pipeline.watermark-alignment.allow-unaligned-source-splits": "true"}


def strategy(idle_timeout_ms: int | None = None) -> WatermarkStrategy:
    return WatermarkStrategy(
        event_time_column="at",
        idle_timeout_ms=idle_timeout_ms,
        alignment=WatermarkAlignment(group="g", max_drift_ms=10),
    )


@pytest.fixture
def start() -> Iterator[Start]:
    with started(strategy=strategy()) as make:
        yield make


def polls(running: Running, source: ToySource) -> int:
    """Let the subtask handle all messages, and return how often the reader was polled."""
    running.settle()
    return source.reader.polls


def emitted(running: Running, *numbers: int) -> None:
    wait_until(lambda: running.sink.numbers == list(numbers))


# FLIP-217, Compatibility, Deprecation, and Migration Plan.


def test_a_reader_that_cannot_pause_reads_several_splits_without_alignment(start: Start) -> None:
    source = ToySource(("s", (1,)), ("t", (1000,)), ("s", (2,)))
    running = start(a=source, strategy=WatermarkStrategy(event_time_column="at"))
    running.start("s", "t")
    emitted(running, 1, 1000, 2)


def test_a_reader_that_cannot_pause_is_aligned_with_one_split_by_pausing_the_source(start: Start) -> None:
    source = ToySource(("s", (5,)), ("s", (50,)), ("s", (60,)))
    running = start(a=source)
    running.start("s")
    running.announce(20, 10)
    emitted(running, 5, 50)
    before = polls(running, source)
    source.reader.wake()
    assert polls(running, source) == before
    running.announce(40, 30)
    assert polls(running, source) == before
    running.announce(50, 40)
    emitted(running, 5, 50, 60)


def test_a_reader_that_cannot_pause_raises_when_its_second_split_arrives(start: Start) -> None:
    running = start(a=ToySource())
    running.start("s")
    running.messages()
    running.assign("t", number=2)
    wait_until(lambda: any(isinstance(message, msg.SubtaskFailed) for message in running.posted))
    (failed,) = [message for message in running.posted if isinstance(message, msg.SubtaskFailed)]
    assert failed.error.error_type == "UnsupportedOperationError"
    assert failed.error.final, "trying again would not help"
    assert "The source a is aligned" in failed.error.message
    assert "pipeline.watermark-alignment.allow-unaligned-source-splits" in failed.error.message
    assert error_of(failed.error).facts["source"] == "a"


def test_example_1_a_reader_that_cannot_pause_ignores_split_alignment_where_that_is_allowed(start: Start) -> None:
    source = ToySource(("t", (1000,)), ("s", (1,)), ("t", (2000,)), ("s", (2,)))
    running = start(a=source, options=ALLOWED)
    running.start("s", "t")
    running.announce(20, 10)
    emitted(running, 1000, 1, 2000, 2)


class Scripted(SplitReader[ToySplit]):
    """Gives what a test feeds, number by number, each a batch."""

    def __init__(self, fed: dict[str, list[int]], whole: bool) -> None:
        self.fed = fed
        self.whole = whole
        self.splits: dict[str, ToySplit] = {}
        self.paused: set[str] = set()
        self.calls: list[tuple[list[str], list[str]]] = []
        self.woken = threading.Event()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[ToySplit]]:
        for split_id, split in self.splits.items():
            numbers = self.fed.get(split_id)
            if numbers and split_id not in self.paused:
                fed = list(numbers) if self.whole else numbers[:1]
                del numbers[: len(fed)]
                return [self._fetched(split, fed)]
        self.woken.wait(min(timeout_ms, 5) / 1000)
        self.woken.clear()
        return []

    def _fetched(self, split: ToySplit, fed: list[int]) -> FetchedBatch[ToySplit]:
        def position_at(count: int) -> ToySplit:
            return ToySplit(split_id=split.split_id, position=split.position + count)

        after = self.splits[split.split_id] = position_at(len(fed))
        return FetchedBatch(split=after, batch=rows(*fed), position_at=position_at if self.whole else None)

    def handle_splits_changes(self, added: Sequence[ToySplit]) -> None:
        self.splits.update((split.split_id, split) for split in added)

    def wake_up(self) -> None:
        self.woken.set()

    def close(self) -> None:
        pass


class Pausable(Scripted):
    def pause_or_resume_splits(self, splits_to_pause: Sequence[ToySplit], splits_to_resume: Sequence[ToySplit]) -> None:
        to_pause, to_resume = ([each.split_id for each in some] for some in (splits_to_pause, splits_to_resume))
        self.calls.append((to_pause, to_resume))
        self.paused = (self.paused | set(to_pause)) - set(to_resume)


class ScriptedSource(ToySource):
    """Read by a ready-made reader; split readers are made in the order of the splits. ``whole``: in large batches."""

    def __init__(self, *kinds: type[Scripted], whole: bool = False) -> None:
        super().__init__()
        self.kinds = list(kinds)
        self.whole = whole
        self.made: list[Scripted] = []
        self.fed: dict[str, list[int]] = {}
        self.source_reader: MultithreadedReader[ToySplit]

    def create_reader(self, context: SourceReaderContext) -> SourceReader[ToySplit]:  # type: ignore[override]
        def make() -> Scripted:
            self.made.append(self.kinds[len(self.made) % len(self.kinds)](self.fed, self.whole))
            return self.made[-1]

        self.source_reader = MultithreadedReader(make, context)
        return self.source_reader


def test_example_2_a_split_reader_that_cannot_pause_reads_on_while_the_others_of_its_reader_pause(
    start: Start,
) -> None:
    source = ScriptedSource(Scripted, Pausable, Pausable)
    running = start(a=source, options=ALLOWED)
    source.fed |= {"slow": [1], "rash": [1000, 1001, 1002], "fast": [500, 501]}
    running.start("rash", "slow", "fast")
    running.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    wait_until(lambda: {1, 500, 1000, 1001, 1002} == set(running.sink.numbers))
    cannot, slow, fast = source.made
    wait_until(lambda: (["fast"], []) in fast.calls and not slow.paused)  # type: ignore[attr-defined]
    assert (cannot.calls, slow.paused, fast.paused) == ([], set(), {"fast"})  # type: ignore[attr-defined]
    source.fed["slow"].append(600)
    wait_until(lambda: 501 in running.sink.numbers)
    wait_until(lambda: ([], ["fast"]) in fast.calls)


@pytest.mark.parametrize("kinds", [(Scripted,), (Scripted, Pausable)], ids=["none can pause", "one can pause"])
def test_what_is_allowed_switches_off_alignment_between_the_splits_of_a_reader_and_not_between_sources(
    start: Start, kinds: tuple[type[Scripted], ...]
) -> None:
    source = ScriptedSource(*kinds)
    running = start(a=source, options=ALLOWED, now_ms=VirtualClock())
    source.fed |= {"rash": [1000], "fast": [500]}
    running.start("rash", "fast")
    running.announce(20, 10)
    wait_until(lambda: set(running.sink.numbers) == {500, 1000})
    source.fed["rash"].append(1001)
    source.fed["fast"].append(501)
    running.settle()
    _, figures = running.checkpoint(1)
    assert {split_id: each.paused for split_id, each in figures.event_times["a"].items()} == {
        "rash": True,
        "fast": True,
    }
    running.settle()
    assert set(running.sink.numbers) == {500, 1000}, "another source lags far"
    running.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    wait_until(lambda: set(running.sink.numbers) == {500, 501, 1000, 1001})


def test_split_readers_that_cannot_pause_raise_when_the_second_split_arrives(start: Start) -> None:
    running = start(a=ScriptedSource(Scripted))
    running.start("s", "t")
    wait_until(lambda: any(isinstance(message, msg.SubtaskFailed) for message in running.posted))
    (failed,) = [message for message in running.posted if isinstance(message, msg.SubtaskFailed)]
    assert failed.error.error_type == "UnsupportedOperationError"


def test_a_reader_is_not_asked_to_pause_before_it_has_several_splits_and_a_group(start: Start) -> None:
    alone, unaligned, aligned = (ToySource(can_pause=True) for _ in range(3))
    for source, splits, of in (
        (alone, ("s",), strategy()),
        (unaligned, ("s", "t"), WatermarkStrategy(event_time_column="at")),
        (aligned, ("s", "t"), strategy()),
    ):
        running = start(a=source, strategy=of)
        running.start(*splits)
        running.messages()
    assert [source.reader.pauses for source in (alone, unaligned, aligned)] == [[], [], [((), ())]]  # type: ignore[attr-defined]


# FLIP-217, Proposed Changes.


def paused_ms(running: Running) -> int:
    """Return for how long splits were paused, as reported last."""
    times = [each.time for each in running.posted if isinstance(each, msg.SubtaskProgress) and each.time is not None]
    return times[-1].paused_ms if times else 0


def test_exactly_the_splits_ahead_are_paused_and_resumed_by_an_announcement(start: Start) -> None:
    source = ToySource(("s", (15,)), ("t", (12,)), ("u", (50,)), can_pause=True)
    running = start(a=source)
    running.start("s", "t", "u")
    running.announce(1000, 990)
    emitted(running, 15, 12, 50)
    running.messages()
    reader = source.reader
    assert isinstance(reader, PausableToyReader)
    assert reader.paused == {"u"}
    reader.offer("u", 51)
    reader.offer("s", 20)
    emitted(running, 15, 12, 50, 20)
    running.announce(15, 5)
    running.messages()
    assert reader.paused == {"s", "u"}, "somebody slow has come: t may go on up to 15"
    wait_until(lambda: paused_ms(running) > 0)
    running.announce(1000, 990)
    running.messages()
    assert reader.paused == {"u"}
    reader.offer("t", 45)
    emitted(running, 15, 12, 50, 20, 45)
    running.messages()
    assert reader.paused == {"t", "u"}
    reader.offer("s", 44)
    emitted(running, 15, 12, 50, 20, 45, 44, 51)


def test_a_second_split_turns_the_pause_of_the_source_into_that_of_its_split(start: Start) -> None:
    source = ToySource(("s", (50,)), ("s", (51,)), ("t", (5,)), can_pause=True)
    running = start(a=source)
    running.start("s")
    running.announce(20, 10)
    emitted(running, 50)
    before = polls(running, source)
    running.assign("t", number=2)
    emitted(running, 50, 5)
    assert source.reader.polls > before
    assert isinstance(source.reader, PausableToyReader)
    assert source.reader.pauses == [((), ()), (("s",), ())]
    running.messages()
    source.reader.offer("t")  # ends: one is left, whose source is paused
    running.next(msg.SplitsFinished)
    before = polls(running, source)
    source.reader.wake()
    assert polls(running, source) == before
    running.announce(50, 40)
    emitted(running, 50, 5, 51)


def test_rows_stop_at_the_bound_and_a_checkpoint_is_after_exactly_these(start: Start) -> None:
    source = ScriptedSource(Pausable, whole=True)
    running = start(a=source)
    source.fed |= {"s": list(range(100)), "t": list(range(50, 150))}
    running.start("s", "t")
    running.announce(60, 50)
    wait_until(lambda: sorted(running.sink.numbers) == sorted([*range(61), *range(50, 61)]))
    state, _ = running.checkpoint(1)
    positions = {split.split_id: SPLITS.deserialize(split.data).position for split in state.readers["a"].splits}
    assert positions == {"s": 61, "t": 11}
    running.announce(62, 52)
    wait_until(lambda: max(running.sink.numbers) == 62)
    running.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    wait_until(lambda: sorted(running.sink.numbers) == sorted([*range(100), *range(50, 110)]))
    source.fed["s"].append(200)  # the slowest one goes on, and with it the bound
    wait_until(lambda: sorted(running.sink.numbers) == sorted([*range(100), *range(50, 150)]))
    running.messages()
    assert 200 not in running.sink.numbers, "t is at 149 and silent: nobody is more than the drift ahead of it"


def test_a_source_of_a_union_that_is_ahead_waits_while_the_other_is_read(start: Start) -> None:
    fast, slow = ToySource(("s", (5,)), ("s", (50,)), ("s", (51,))), ToySource(("t", (1,)), ("t", (2,)), ("t", (3,)))
    running = start(a=fast, b=slow)
    running.start("s")
    running.assign("t", source="b")
    running.announce(20, 10)
    running.announce(1000, 990, source="b")
    wait_until(lambda: sorted(running.sink.numbers) == [1, 2, 3, 5, 50])
    running.announce(100, 90)
    wait_until(lambda: 51 in running.sink.numbers)


def test_an_announcement_counts_between_two_slices(start: Start) -> None:
    source = ToySource(("s", tuple(range(40))), can_pause=True)
    seen: list[object] = []

    def process(batch: pa.RecordBatch) -> None:
        if not seen:
            running.announce(-50, -60)
        seen.append(any(isinstance(each, msg.SourceReported) for each in running.posted))
        running.deliver(msg.ReportSource, source="a", incarnation=1000)
        time.sleep(0.02)

    running = start(a=source, operator=ToyOperator(process=process))
    running.start("s")
    running.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    wait_until(lambda: len(running.sink.numbers) == 40)
    before = polls(running, source)
    source.reader.offer("s", 41)
    assert polls(running, source) == before, "paused since the first slice"
    running.announce(100, 90)
    wait_until(lambda: len(running.sink.numbers) == 41)


# What goes on while a source is paused.


def paused_source(start: Start, **of: Any) -> tuple[Running, ToySource]:
    source = ToySource(("s", (50,)), ("s", (51,)))
    running = start(a=source, operator=ToyOperator(), **of)
    running.start("s")
    running.announce(20, 10)
    emitted(running, 50)
    polls(running, source)
    return running, source


def test_a_paused_source_takes_part_in_checkpoints_and_hears_messages(start: Start) -> None:
    running, source = paused_source(start)
    state, _ = running.checkpoint(1)
    assert [SPLITS.deserialize(split.data).position for split in state.readers["a"].splits] == [1]
    running.deliver(msg.CheckpointCompleted, checkpoint_id=1)
    running.deliver(msg.NoMoreSplits, source="a")
    running.messages()
    assert source.reader.log[-2:] == ["complete 1", "no more"]
    running.announce(60, 50)
    emitted(running, 50, 51, -1)
    running.next(msg.InputEnded)


def test_a_paused_source_can_be_drained_suspended_and_cancelled(start: Start) -> None:
    running, _ = paused_source(start)
    _, figures = running.checkpoint(1, CheckpointKind.DRAIN)
    assert (running.sink.numbers, figures.watermark_ms) == ([50, -1], MAX_WATERMARK_MS)

    running, _ = paused_source(start)
    running.checkpoint(1, CheckpointKind.SUSPEND)
    running.announce(60, 50)
    running.messages()
    running.deliver(msg.CheckpointAborted, checkpoint_id=1)
    emitted(running, 50, 51)

    running, source = paused_source(start)
    running.deliver(msg.CancelSubtask)
    assert running.ended.get(timeout=PATIENCE_S) == 1
    assert source.reader.log[-1] == "close"


def test_a_restarted_reader_begins_unpaused_and_without_a_bound(start: Start) -> None:
    running, source = paused_source(start)
    source.reader.source.offered = (("s", (70,)), ("s", (71,)))
    running.sink.batches.clear()
    running.start("s")
    emitted(running, 70)
    before = polls(running, source)
    source.reader.wake()
    assert polls(running, source) == before, "one batch without a bound"
    running.announce(70, 60)
    emitted(running, 70, 71)


def test_neither_a_paused_split_nor_that_of_a_paused_source_becomes_idle(start: Start) -> None:
    clock = VirtualClock()
    for splits in (("s",), ("s", "t")):
        source = ToySource(("s", (50,)), can_pause=True)
        running = start(a=source, strategy=strategy(idle_timeout_ms=100), now_ms=clock)
        running.start(*splits)
        running.announce(20, 10)
        emitted(running, 50)
        for _ in range(40):
            clock.advance(25)
            polls(running, source)
        _, figures = running.checkpoint(1)
        assert figures.event_times["a"]["s"] == SplitEventTime(watermark_ms=50, paused=True)
        if "t" in splits:
            assert figures.event_times["a"]["t"] == SplitEventTime(idle=True)


def test_a_split_that_is_resumed_was_not_silent_until_its_announcement_was_read(start: Start) -> None:
    clock = VirtualClock()
    source = ToySource(("s", (50,)), can_pause=True)
    running = start(a=source, strategy=strategy(idle_timeout_ms=100), now_ms=clock)
    running.start("s")
    running.announce(20, 10)
    emitted(running, 50)
    polls(running, source)
    clock.advance(1000)  # the process was stopped, say: the message comes before any timer
    running.announce(50, 40)
    polls(running, source)
    _, figures = running.checkpoint(1)
    assert figures.event_times["a"] == {"s": SplitEventTime(watermark_ms=50)}


class AfterFullQueue(ScriptedSource):
    """Read by one fetcher, which waits for the task most of the time."""

    def create_reader(self, context: SourceReaderContext) -> SourceReader[ToySplit]:  # type: ignore[override]
        return MultiplexedReader(lambda: Pausable(self.fed, self.whole), context, ReaderOptions(queue_bytes=1))


@pytest.mark.parametrize("source", [ScriptedSource(Pausable), AfterFullQueue(Pausable)], ids=["ahead", "full"])
def test_an_empty_split_beside_a_backlog_becomes_idle_however_busy_the_operators_are(
    start: Start, source: ScriptedSource
) -> None:
    clock = VirtualClock()
    of = WatermarkStrategy(event_time_column="at", idle_timeout_ms=5000)
    source.fed["busy"] = list(range(1_000_000))
    running = start(a=source, strategy=of, operator=ToyOperator(process=lambda batch: clock.advance(20)), now_ms=clock)
    running.start("empty", "busy")
    wait_until(lambda: any(isinstance(each, msg.SubtaskProgress) and each.watermark_ms for each in running.posted))


# What the coordinator receives.


def reports(running: Running) -> list[tuple[int | None, str]]:
    found = [message for message in running.posted if isinstance(message, msg.WatermarkReported)]
    return [(message.watermark_ms, message.slowest) for message in found]


def test_reports_follow_the_registration_and_are_made_when_the_vote_changes(start: Start) -> None:
    source = ToySource()
    running = start(a=source)
    running.start("s")
    running.messages()
    assert reports(running) == [(MIN_WATERMARK_MS, "s")]
    kinds = [type(message).__name__ for message in running.posted if not isinstance(message, msg.SubtaskProgress)]
    assert kinds[:3] == ["ReaderRegistered", "SubtaskRunning", "WatermarkReported"]
    running.announce(1000, 990)
    source.reader.offer("s", 5)
    emitted(running, 5)
    source.reader.offer("s")
    running.next(msg.SplitsFinished)
    running.messages()
    assert reports(running)[-2:] == [(5, "s"), (None, "")]


def test_a_report_that_was_put_off_is_made_by_a_timer(start: Start) -> None:
    clock = VirtualClock()
    source = ToySource()
    running = start(a=source, now_ms=clock)
    running.start("s")
    running.announce(1000, 990)
    for number in (5, 6):
        source.reader.offer("s", number)
    emitted(running, 5, 6)
    running.messages()
    assert reports(running)[-1] == (5, "s")
    clock.advance(1000)
    running.messages()
    running.messages()
    assert reports(running)[-1] == (6, "s")


def test_without_a_group_nothing_is_reported(start: Start) -> None:
    source = ToySource(("s", (5,)))
    clock = VirtualClock()  # stands still: of a checkpoint that takes long, others report where the splits are
    running = start(a=source, strategy=WatermarkStrategy(event_time_column="at"), now_ms=clock)
    running.start("s")
    running.announce(0, 0)
    emitted(running, 5)
    assert reports(running) == []
    _, figures = running.checkpoint(1)
    assert figures.event_times == {"a": {"s": SplitEventTime(watermark_ms=5)}}


def test_sources_without_event_time_report_none(start: Start) -> None:
    running = start(a=ToySource(("s", (5,))), strategy=None)
    running.start("s")
    emitted(running, 5)
    assert running.checkpoint(1)[1].event_times == {}


# What is not assigned.


def test_a_watermark_waits_until_it_is_known_what_is_not_assigned_and_stays_there(start: Start) -> None:
    source = ToySource(("s", (50,)))
    running = start(a=source, strategy=WatermarkStrategy(event_time_column="at"))
    running.start("s", unassigned=True)
    emitted(running, 50)
    assert running.checkpoint(1)[1].watermark_ms is None
    running.deliver(msg.UnassignedWork, source="a", event_time_ms=30)
    assert running.checkpoint(2)[1].watermark_ms == 29  # a row of 30 may be unassigned, and is not late
    source.reader.offer("s")
    running.next(msg.SplitsFinished)
    assert running.checkpoint(3)[1].watermark_ms == 29, "not idle: it waits for what is not assigned"
    running.deliver(msg.UnassignedWork, source="a", event_time_ms=None)
    assert running.checkpoint(4)[1].watermark_ms is None


# Event times of a column that a function made.


class Shifts:
    """Moves event times by a minute: what they are is known only after this function."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            numbers = [number + 60_000 for number in batch.column("n").to_pylist()]
            yield rows(*numbers)


def shifted(start: Start, **of: Any) -> tuple[Running, ToySource]:
    source = ToySource(can_pause=True)
    running = start(a=source, operator=MapInArrow(Shifts(), SCHEMA), finds="at", **of)
    running.start("s", "t")
    return running, source


def test_a_column_that_a_function_made_keeps_one_watermark_for_each_of_two_skewed_splits(start: Start) -> None:
    of = WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=5)
    running, source = shifted(start, strategy=of, now_ms=VirtualClock())
    source.reader.offer("s", 5000, 4000)
    wait_until(lambda: len(running.sink.numbers) == 2)
    assert running.checkpoint(1)[1].watermark_ms is None, "t has no rows yet"
    source.reader.offer("t", *range(10, 100))
    wait_until(lambda: len(running.sink.numbers) == 92)
    _, figures = running.checkpoint(2)
    assert figures.watermark_ms == 60_000 + 99 - 5
    assert figures.event_times["a"] == {
        "s": SplitEventTime(watermark_ms=64_995), "t": SplitEventTime(watermark_ms=60_094),
    }  # fmt: skip
    source.reader.offer("t", 200)
    source.reader.offer("t")
    running.next(msg.SplitsFinished)
    assert running.checkpoint(3)[1].watermark_ms == 64_995


def test_a_column_that_a_function_made_has_the_idle_time_out_of_its_source(start: Start) -> None:
    clock = VirtualClock()
    of = WatermarkStrategy(event_time_column="at", idle_timeout_ms=100)
    running, source = shifted(start, strategy=of, now_ms=clock)
    source.reader.offer("s", 5)
    wait_until(lambda: running.sink.numbers == [60_005])
    for number in range(6, 12):
        clock.advance(25)
        source.reader.offer("s", number)
        wait_until(lambda: running.sink.numbers[-1] == 60_000 + number)  # noqa: B023
        polls(running, source)
    assert running.checkpoint(1)[1].watermark_ms == 60_011


def test_splits_are_aligned_by_a_column_that_a_function_made_in_whole_batches(start: Start) -> None:
    running, source = shifted(start)
    reader = source.reader
    assert isinstance(reader, PausableToyReader)
    running.announce(MAX_WATERMARK_MS, MAX_WATERMARK_MS)
    for numbers in ((5, 500), (501,), (502,)):
        reader.offer("s", *numbers)
    reader.offer("t", 20)
    wait_until(lambda: sorted(running.sink.numbers) == [60_005, 60_020, 60_500])
    running.settle()
    assert reader.paused == {"s"}
    reader.offer("t", 490)
    wait_until(lambda: sorted(running.sink.numbers)[-2:] == [60_500, 60_501])
    running.settle()
    assert reader.paused == {"s"}
    reader.offer("t")
    wait_until(lambda: 60_502 in running.sink.numbers)
    running.deliver(msg.NoMoreSplits, source="a")
    reader.offer("s")
    running.next(msg.InputEnded)
    assert running.checkpoint(1)[1].watermark_ms == MAX_WATERMARK_MS
    assert reports(running)[-1] == (None, "")
