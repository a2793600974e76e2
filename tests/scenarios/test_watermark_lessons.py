"""What others shipped wrong about watermarks and alignment, by name, on the machines that decide about them here.

One test or more for each public ticket, then FLIP-217's policy, word for
word.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headgate.coordinator.alignment import alignment_group as gr
from headgate.coordinator.alignment.alignment_group import AlignmentGroup, ReaderJoined, ReaderLost, ReaderReported
from headgate.protocol.messages import SplitEventTime
from headgate.source import WatermarkAlignment, WatermarkStrategy
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from headgate.task import StreamingOutput
from headgate.task import split_alignment as al
from headgate.task import watermarks as wm
from headgate.task.split_alignment import PauseOrResumeSplits, PauseSource, ResumeSource, SplitAlignment
from headgate.task.watermarks import SplitWatermarks
from tests import search

DRIFT, IDLE, INTERVAL = 100, 1000, 10**9  # reports never wait for a clock here
ALIGNMENT = WatermarkAlignment(group="g", max_drift_ms=DRIFT, update_interval_ms=INTERVAL)
STRATEGY = WatermarkStrategy(event_time_column="at", idle_timeout_ms=IDLE, alignment=ALIGNMENT)


class Reader:
    """One reader: its watermarks and its alignment, wired as a task does it, and what came out of both."""

    def __init__(self, *splits: str, held: bool = False) -> None:
        self.watermarks = SplitWatermarks(STRATEGY, held=held, reports_votes=True)
        self.alignment = SplitAlignment(ALIGNMENT)
        self.now_ms = 0
        self.emitted: list[int] = []
        self.idle = True
        self.reports: list[al.ReportWatermark] = []
        self.orders: list[al.Action] = []
        for split_id in splits:
            self.add(split_id)

    def add(self, split_id: str) -> None:
        self.mark(wm.SplitAdded(split_id))
        self.align(al.SplitAdded(split_id))

    def rows(self, split_id: str, max_event_time_ms: int | None) -> None:
        """Emit a batch; a reader never does of a split that is paused."""
        assert split_id not in self.paused
        self.mark(wm.RowsEmitted(split_id, max_event_time_ms))

    def finish(self, split_id: str) -> None:
        self.mark(wm.SplitFinished(split_id))
        self.align(al.SplitFinished(split_id))

    def end(self) -> None:
        self.mark(wm.InputEnded())
        self.align(al.InputEnded())

    def wait(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.mark(wm.TimePassed())

    def announce(self, others_ms: int, max_watermark_ms: int = MAX_WATERMARK_MS) -> None:
        self.align(al.AllowedAnnounced(max_watermark_ms, others_ms))

    @property
    def paused(self) -> frozenset[str]:
        return self.alignment.paused

    def mark(self, event: wm.Event) -> None:
        for action in self.watermarks.handle(event, self.now_ms):
            match action:
                case wm.EmitWatermark(timestamp_ms):
                    self.emitted.append(timestamp_ms)
                case wm.SplitVoteChanged(split_id, watermark_ms, idle):
                    self.align(al.SplitMoved(split_id, watermark_ms, idle))
                case _:
                    self.idle = isinstance(action, wm.EmitIdle)
        self.watermarks.check()

    def align(self, event: al.Event) -> None:
        for action in self.alignment.handle(event, self.now_ms):
            match action:
                case al.ReportWatermark():
                    self.reports.append(action)
                    continue
                case PauseSource(split_id):
                    self.mark(wm.SplitPaused(split_id))
                case ResumeSource(split_id):
                    self.mark(wm.SplitResumed(split_id))
                case PauseOrResumeSplits(pause, resume):
                    for split_id in pause:
                        self.mark(wm.SplitPaused(split_id))
                    for split_id in resume:
                        self.mark(wm.SplitResumed(split_id))
            self.orders.append(action)
        self.alignment.check()
        clocks = {split_id for split_id, each in self.watermarks.splits().items() if each.paused}
        assert clocks == self.alignment.paused


class Query:
    """Readers of one source and their group; messages arrive at once."""

    def __init__(self, *readers: Reader) -> None:
        self.group = AlignmentGroup("g", {"source": DRIFT}, parallelism=len(readers))
        self.readers = list(readers)
        self.announced: list[gr.Announce] = []
        self.now_ms = 0
        for subtask in range(len(readers)):
            self.notify(ReaderJoined("source", subtask))
        self.settle()

    def notify(self, event: gr.Event) -> None:
        for action in self.group.handle(event, self.now_ms):
            if isinstance(action, gr.Announce):
                self.announced.append(action)
                self.readers[action.subtask].announce(action.others_ms, action.max_watermark_ms)
        self.group.check()

    def settle(self) -> None:
        """Carry messages until there are none."""
        while any(reader.reports for reader in self.readers):
            for subtask, reader in enumerate(self.readers):
                reports, reader.reports = reader.reports, []
                for each in reports:
                    self.notify(ReaderReported("source", subtask, each.watermark_ms, each.slowest))

    def rows(self, subtask: int, split_id: str, max_event_time_ms: int) -> None:
        self.readers[subtask].rows(split_id, max_event_time_ms)
        self.settle()

    def replay(self, batches: dict[tuple[int, str], Sequence[int]]) -> int:
        """Read what may be read until all is read, without any time passing; return how many turns that took."""
        left = {key: list(times) for key, times in batches.items()}
        turns = 0
        while left:
            turns += 1
            before = sum(map(len, left.values()))
            for (subtask, split_id), times in list(left.items()):
                if split_id not in self.readers[subtask].paused:
                    if times:
                        self.rows(subtask, split_id, times.pop(0))
                    else:
                        del left[subtask, split_id]
                        self.readers[subtask].finish(split_id)
                        self.settle()
            assert sum(map(len, left.values())) < before or len(left) < len(batches), "nobody may read"
        return turns


# FLINK-32414: a subtask without any split reported an initial watermark and held the whole group for ever.


def test_flink_32414_a_reader_without_splits_has_no_vote() -> None:
    without, reading = Reader(), Reader("a")
    query = Query(without, reading)
    assert without.idle
    query.rows(1, "a", 50_000)

    assert query.group.minimum_ms == 50_000
    assert reading.paused == frozenset()


def test_flink_32414_a_reader_that_comes_back_without_splits_gives_up_the_vote_it_had() -> None:
    failing, reading = Reader("a"), Reader("b")
    query = Query(failing, reading)
    query.rows(0, "a", 50)
    query.rows(1, "b", 500)
    assert reading.paused == {"b"}
    query.notify(ReaderLost("source", 0))
    assert reading.paused == {"b"}, "what it read is read again"

    query.readers[0] = Reader()
    query.notify(ReaderJoined("source", 0))
    query.settle()
    assert query.group.minimum_ms == 500
    assert reading.paused == frozenset()


def test_flink_32414_a_reader_that_finished_its_last_split_gives_up_its_vote() -> None:
    ending, reading = Reader("a"), Reader("b")
    query = Query(ending, reading)
    query.rows(0, "a", 0)
    query.rows(1, "b", 500)
    ending.finish("a")
    query.settle()

    assert ending.idle
    assert reading.paused == frozenset()


# FLINK-32496: an idle source's watermark became the maximum, and its later records could never resume it.


def test_flink_32496_idle_is_no_vote_and_never_the_maximum() -> None:
    idle, reading = Reader("a"), Reader("b")
    query = Query(idle, reading)
    query.rows(0, "a", 50)
    query.rows(1, "b", 60)
    idle.wait(IDLE)
    query.settle()

    assert idle.idle
    assert idle.emitted == [50]
    assert idle.watermarks.splits() == {"a": SplitEventTime(watermark_ms=50, idle=True)}
    assert query.group.minimum_ms == 60
    assert idle.paused == frozenset()


def test_flink_32496_later_rows_of_an_idle_source_make_it_active_again() -> None:
    idle, reading = Reader("a"), Reader("b")
    query = Query(idle, reading)
    query.rows(0, "a", 50)
    query.rows(1, "b", 60)
    idle.wait(IDLE)
    query.settle()
    query.rows(1, "b", 5000)
    assert reading.paused == frozenset()
    query.rows(0, "a", 70)

    assert (idle.idle, idle.emitted[-1]) == (False, 70)
    assert query.group.minimum_ms == 70
    assert (idle.paused, reading.paused) == (frozenset(), {"b"})


# FLINK-31632: the allowed watermark overflowed when everything was idle.


def test_flink_31632_arithmetic_saturates_when_all_are_idle() -> None:
    first, second = Reader("a"), Reader("b")
    query = Query(first, second)
    query.rows(0, "a", 0)
    query.rows(1, "b", 500)
    for reader in (first, second):
        reader.wait(IDLE)  # b is paused, and so it is not idle
    query.settle()
    second.wait(IDLE)
    query.settle()

    assert query.group.minimum_ms is None
    assert {each.max_watermark_ms for each in query.announced[-2:]} == {MAX_WATERMARK_MS}
    assert [reader.alignment.bound_ms for reader in (first, second)] == [MAX_WATERMARK_MS] * 2
    assert first.paused == second.paused == frozenset()


@pytest.mark.parametrize("at_ms", [MIN_WATERMARK_MS, MIN_WATERMARK_MS + 1, MAX_WATERMARK_MS - 1, MAX_WATERMARK_MS])
def test_flink_31632_arithmetic_saturates_at_both_ends(at_ms: int) -> None:
    far = Reader("a")
    query = Query(far)
    query.rows(0, "a", at_ms)

    assert far.emitted == [at_ms]
    bound = far.alignment.bound_ms
    assert bound == min(at_ms + DRIFT, MAX_WATERMARK_MS)
    assert all(MIN_WATERMARK_MS <= each.max_watermark_ms <= MAX_WATERMARK_MS for each in query.announced)
    assert far.paused == frozenset()


# FLINK-37670: alignment messages stopped once there were no more splits to assign: deadlock.


def test_flink_37670_alignment_lives_as_long_as_any_split_is_being_read() -> None:
    first, second = Reader("a"), Reader("b")
    query = Query(first, second)
    for reader in (first, second):
        reader.mark(wm.UnassignedChanged(None))  # and nothing will ever be assigned again
    turns = query.replay({(0, "a"): range(0, 2000, 40), (1, "b"): range(0, 8000, 160)})

    assert turns >= 50
    assert first.emitted[-1] == 1960
    assert second.emitted[-1] == 7840
    assert query.group.minimum_ms is None


def test_flink_37670_a_reader_that_has_ended_does_not_end_the_alignment_of_others() -> None:
    readers = [Reader("a"), Reader("b"), Reader("c")]
    query = Query(*readers)
    for subtask, split_id in enumerate("abc"):
        query.rows(subtask, split_id, 0)
    query.rows(2, "c", 500)
    readers[0].finish("a")
    readers[0].end()
    query.settle()
    assert readers[2].paused == {"c"}
    query.rows(1, "b", 450)

    assert readers[2].paused == frozenset()


# FLINK-40093: a paused split was marked idle by a late timer and never resumed.


@pytest.mark.parametrize("splits", ["a", "ab"], ids=["source paused", "split paused"])
def test_flink_40093_a_late_timer_does_not_make_a_paused_split_idle(splits: str) -> None:
    reader = Reader(*splits)
    reader.announce(0)
    for split_id in reversed(splits):
        reader.rows(split_id, 500 if split_id == "a" else 0)
    assert reader.paused == {"a"}
    reader.wait(100 * IDLE)

    assert not reader.watermarks.splits()["a"].idle
    assert not reader.idle
    reader.announce(500)
    if len(splits) > 1:
        reader.rows("b", 450)
    assert reader.paused == frozenset()


def test_flink_40093_an_idle_split_is_resumed_by_alignment() -> None:
    reader = Reader("a", "b")
    reader.announce(MAX_WATERMARK_MS)
    reader.rows("b", 0)
    reader.rows("a", 500)
    reader.mark(wm.IdleMarked("a"))  # by its source, about the rows that were emitted last
    assert reader.paused == {"a"}
    reader.rows("b", 450)

    assert reader.orders[-1] == PauseOrResumeSplits(pause=(), resume=("a",))
    reader.mark(wm.WatermarkEmitted("a", 510))
    assert reader.reports[-1] == al.ReportWatermark(450, "b")
    reader.finish("b")
    assert reader.reports[-1] == al.ReportWatermark(510, "a")


def test_flink_40093_a_split_that_became_idle_and_was_paused_then_is_resumed() -> None:
    reader = Reader("a", "b")
    reader.announce(600)
    reader.rows("a", 590)
    reader.rows("b", 600)
    reader.wait(IDLE)
    reader.rows("b", 600)
    assert reader.watermarks.splits()["a"].idle
    reader.announce(200)
    assert reader.paused == {"a", "b"}
    reader.announce(600)
    assert reader.paused == frozenset()
    reader.rows("a", 610)
    assert not reader.watermarks.splits()["a"].idle


# FLINK-35886 (FLIP-471): idleness was counted while a source was blocked: wrong watermarks, records dropped as late.


def test_flink_35886_time_under_back_pressure_does_not_count_as_idleness() -> None:
    reader = Reader("a", "b")
    reader.announce(MAX_WATERMARK_MS)
    reader.rows("a", 50)
    reader.rows("b", 60)
    reader.mark(wm.Blocked())
    reader.wait(100 * IDLE)
    reader.mark(wm.Unblocked())
    reader.rows("b", 70)

    assert reader.emitted == [50]
    reader.wait(IDLE - 1)
    assert reader.emitted == [50]
    reader.wait(1)
    assert reader.idle


def test_flink_35886_time_in_which_alignment_paused_a_split_does_not_count_as_idleness() -> None:
    reader = Reader("a", "b")
    reader.announce(MAX_WATERMARK_MS)
    reader.rows("a", 0)
    reader.rows("b", 500)
    for at_ms in range(0, 400, 10):
        reader.wait(IDLE // 2)
        reader.rows("a", at_ms)
    assert reader.paused == {"b"}
    reader.rows("a", 450)
    assert reader.paused == frozenset()
    reader.wait(IDLE - 1)

    assert reader.watermarks.splits()["b"] == SplitEventTime(watermark_ms=500)
    assert reader.emitted[-1] == 450


# FLINK-37399: periodic announcements capped a backlog's speed to the maximum drift per update interval.


def test_flink_37399_a_backlog_is_read_without_waiting_for_a_clock() -> None:
    readers = [Reader("a", "b"), Reader("c")]
    query = Query(*readers)
    hours = 10 if search.exhaustive else 1
    far = range(0, hours * 3_600_000, 40_000)  # steps far above the drift
    query.replay({(0, "a"): far, (0, "b"): range(0, hours * 360_000, 30), (1, "c"): far})

    assert query.group.minimum_ms is None


def test_flink_37399_nothing_is_announced_while_the_minimum_stands_still() -> None:
    first, second = Reader("a"), Reader("b")
    query = Query(first, second)
    query.rows(0, "a", 0)
    query.rows(1, "b", 50)
    announced = len(query.announced)
    for at_ms in range(1000, 60_000, 1000):
        query.now_ms = at_ms
        query.notify(gr.TimePassed())
        second.align(al.TimePassed())
        query.settle()
    query.rows(1, "b", 90)

    assert len(query.announced) == announced


# FLINK-39167: the final watermark was emitted before the output existed.


class Downstream:
    """Records what a task's output lets through."""

    def __init__(self) -> None:
        self.log: list[object] = []

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        self.log.append(batch.num_rows)

    def on_watermark(self, timestamp_ms: int) -> None:
        self.log.append(timestamp_ms)

    def on_idle(self) -> None:
        self.log.append("idle")

    def on_active(self) -> None:
        self.log.append("active")


def test_flink_39167_a_source_that_ends_at_once_still_emits_its_final_watermark() -> None:
    downstream = Downstream()
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    output = StreamingOutput(schema, WatermarkStrategy(event_time_column="at"), downstream, 0)
    output.end_input()

    assert downstream.log == ["active", MAX_WATERMARK_MS]


@pytest.mark.parametrize("held", [False, True], ids=["at once", "before it heard of unassigned work"])
def test_flink_39167_it_ends_its_vote_as_well(held: bool) -> None:
    reader = Reader(held=held)
    reader.end()
    assert reader.emitted == [MAX_WATERMARK_MS]
    assert reader.reports == [al.ReportWatermark(None, "")]


# Spark: one global maximum is the watermark: a partition that lags is dropped as late.


def test_spark_a_partition_that_lags_is_not_late() -> None:
    delay = 60_000
    strategy = WatermarkStrategy(event_time_column="at", max_out_of_orderness_ms=delay)
    partitions = {"on time": 7_200_000, "late": 0}
    watermarks = SplitWatermarks(strategy)
    for name in partitions:
        watermarks.handle(wm.SplitAdded(name), 0)
    watermark_ms, highest_ms, late, late_in_spark = MIN_WATERMARK_MS, MIN_WATERMARK_MS, 0, 0
    for minute in range(120):
        for name, begin_ms in partitions.items():
            at_ms = begin_ms + minute * 60_000
            late += at_ms < watermark_ms
            late_in_spark += at_ms < highest_ms - delay
            highest_ms = max(highest_ms, at_ms)
            for action in watermarks.handle(wm.RowsEmitted(name, at_ms), 0):
                if isinstance(action, wm.EmitWatermark):
                    watermark_ms = action.timestamp_ms

    assert (late, late_in_spark) == (0, 120)
    assert watermark_ms == 119 * 60_000 - delay


# FLIP-217, Proposed Changes: "if numSplits <= 1: return // If there is only a single split, we do not pause the split
# but the source. for each SplitReader x: if x's watermark > maxDesiredWatermark: pause x else if x is paused: resume x"


def test_flip_217_a_single_split_is_not_paused_but_the_source_is() -> None:
    reader = Reader("x")
    reader.announce(0)
    reader.rows("x", DRIFT + 1)
    reader.announce(DRIFT)

    assert reader.orders == [PauseSource("x"), ResumeSource("x")]


def test_flip_217_without_a_split_nothing_is_paused() -> None:
    reader = Reader()
    for others_ms in (0, MIN_WATERMARK_MS, MAX_WATERMARK_MS):
        reader.announce(others_ms)
    assert reader.orders == []


WATERMARKS = {"v": 0, "w": DRIFT, "x": DRIFT + 1, "y": 5 * DRIFT, "z": 9 * DRIFT}


def beside_others(**watermarks: int) -> Reader:
    """Return a reader whose splits are at these watermarks, none of which the others hold back yet."""
    reader = Reader(*watermarks)
    reader.announce(MAX_WATERMARK_MS)
    for split_id in watermarks:
        reader.align(al.SplitMoved(split_id, watermarks[split_id]))
    reader.orders.clear()
    return reader


def test_flip_217_of_several_splits_exactly_those_beyond_the_maximum_are_paused() -> None:
    reader = beside_others(**WATERMARKS)
    assert reader.paused == {"x", "y", "z"}
    reader.announce(-DRIFT)
    assert reader.paused == {"w", "x", "y", "z"}
    assert reader.orders == [PauseOrResumeSplits(pause=("w",), resume=())]
    reader.announce(-DRIFT - 1)
    assert reader.paused == set(WATERMARKS)


def test_flip_217_a_paused_split_is_resumed_when_it_is_beyond_the_maximum_no_longer() -> None:
    reader = beside_others(**WATERMARKS)
    for at_ms in (1, 2 * DRIFT, 3 * DRIFT, 4 * DRIFT):
        for split_id in "vwx":
            if split_id not in reader.paused:
                reader.align(al.SplitMoved(split_id, max(at_ms, WATERMARKS[split_id])))

    assert reader.orders == [
        PauseOrResumeSplits(pause=(), resume=("x",)),
        PauseOrResumeSplits(pause=(), resume=("y",)),
    ]
    assert reader.paused == {"z"}


def test_flip_217_nothing_is_ordered_about_splits_that_stay_as_they_are() -> None:
    reader = beside_others(**WATERMARKS)
    for others_ms in (MAX_WATERMARK_MS, 5 * DRIFT, DRIFT, 0):
        reader.announce(others_ms)
    reader.align(al.SplitMoved("z", 20 * DRIFT))
    assert reader.orders == []
