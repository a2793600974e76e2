"""``./run bench align``: its topics have the shapes that it names, and what it says of a run follows from its notes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.align_data import BEGIN_MS, DISORDER_MS, PARTITIONS, SHAPES, WINDOW_MS, EventTimes, Topic
from bench.align_observed import Note, Observed, Observer, measure, notes_in

HOUR_MS = 3_600_000
DELAY_MS, DRIFT_MS = 10_000, 50_000


def minutes(*each: float) -> EventTimes:
    """Return event times in milliseconds."""
    return np.array([round(minute * WINDOW_MS) for minute in each], np.int64)


def replay(
    truth: list[EventTimes], *calls: tuple[int, int, int], reported: tuple[tuple[int, int], ...] = ()
) -> Observed:
    """Measure calls at times 0, 1, 2 ...: of which partition, from which row to which. Even ones share a slot."""
    notes = [
        Note(number, f"slot-{partition % 2}", partition, truth[partition][begin:end])
        for number, (partition, begin, end) in enumerate(calls)
    ]
    return measure(notes, truth, DELAY_MS, DRIFT_MS, reported)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_topic_has_all_its_rows_and_only_a_little_disorder(shape: str) -> None:
    times = Topic(shape, 20_001, 10 * HOUR_MS).event_times()
    assert len(times) == PARTITIONS
    assert sum(map(len, times)) == 20_001
    for each in times:
        after = np.maximum.accumulate(each) - each
        assert 0 < after.max() <= DISORDER_MS


@pytest.mark.parametrize("shape", SHAPES)
def test_a_topic_is_the_same_whenever_it_is_made(shape: str) -> None:
    one, other = (Topic(shape, 1000, HOUR_MS).event_times() for _ in range(2))
    assert all(map(np.array_equal, one, other))


def test_burst_has_four_times_the_rows_in_one_partition_and_most_of_them_within_an_hour() -> None:
    first, *others = Topic("burst", 70_000, 10 * HOUR_MS).event_times()
    assert [len(first), *map(len, others)] == [40_000, 10_000, 10_000, 10_000]
    loud = (first >= BEGIN_MS + 4 * HOUR_MS) & (first < BEGIN_MS + 5 * HOUR_MS)
    assert 0.75 < loud.mean() < 0.8


def test_lagging_has_one_partition_that_begins_and_ends_two_hours_earlier() -> None:
    first, *others = Topic("lagging", 40_000, 10 * HOUR_MS).event_times()
    for each in others:
        assert abs(each.min() - first.min() - 2 * HOUR_MS) < 60_000
        assert abs(each.max() - first.max() - 2 * HOUR_MS) < 60_000


def test_silent_has_one_partition_without_rows_for_an_hour_and_as_dense_as_the_others_else() -> None:
    first, *others = Topic("silent", 39_000, 10 * HOUR_MS).event_times()
    begin, end = BEGIN_MS + 4 * HOUR_MS, BEGIN_MS + 5 * HOUR_MS
    assert not ((first > begin) & (first < end - DISORDER_MS)).any()
    assert [len(first), *map(len, others)] == [9000, 10_000, 10_000, 10_000]
    assert first.max() > BEGIN_MS + 9.9 * HOUR_MS


def test_partitions_in_step_are_not_beyond_and_hold_few_windows() -> None:
    truth = [minutes(*range(10)), minutes(*range(10))]
    observed = replay(truth, *[(partition, row, row + 1) for row in range(10) for partition in (0, 1)])
    assert (observed.rows, observed.dropped, observed.largest_call) == (20, 0, 1)
    assert (observed.overshoot_rows, observed.overshoot_ms) == (0, 0)
    assert observed.peak_windows == 3  # of the first, of the second, and one that ended less than the delay before


def test_rows_beyond_the_slowest_and_the_drift_are_counted_where_they_are_most() -> None:
    truth = [minutes(0, 1, 2, 3), minutes(0, 0.5, 0.8, 0.9, 2, 3, 4)]
    observed = replay(truth, (0, 0, 1), (1, 0, 6), (0, 1, 4), (1, 6, 7))
    assert observed.overshoot_rows == 2  # 2 and 3 minutes, beyond the other's next row, at 1, and 50 seconds
    assert observed.overshoot_ms == 2 * 60_000 - DRIFT_MS


def test_a_partition_that_was_not_read_yet_is_as_slow_as_its_first_row() -> None:
    truth = [minutes(0, 5), minutes(4, 5)]
    assert replay(truth, (1, 0, 1), (0, 0, 2), (1, 1, 2)).overshoot_rows == 1


def test_a_gap_is_where_its_end_is() -> None:
    truth = [minutes(0, 60), minutes(*range(60))]
    assert replay(truth, (0, 0, 1), (1, 0, 60), (0, 1, 2)).overshoot_rows == 0


def test_who_is_alone_or_the_slowest_is_ahead_of_nobody() -> None:
    truth = [minutes(0, 60), minutes(*range(60, 120))]
    assert replay(truth, (0, 0, 2), (1, 0, 60)).overshoot_rows == 0


def test_windows_are_held_until_the_lowest_watermark_has_passed_them() -> None:
    truth = [minutes(0, 61), minutes(*range(61))]
    ahead = replay(truth, (0, 0, 1), (1, 0, 61), (0, 1, 2))
    assert (ahead.peak_windows, ahead.peak_windows_in_call) == (61, 62)  # the last row closes them, itself included
    one_by_one = [(1, row, row + 1) for row in range(61)]
    assert replay(truth, (0, 0, 1), *one_by_one, (0, 1, 2)).peak_windows == 61  # nobody knows of the gap's end
    assert replay(truth, (0, 0, 2), *one_by_one).peak_windows == 3


def test_a_slot_counts_its_own_windows_only() -> None:
    truth = [minutes(0, 1), minutes(5, 6, 7)]
    observed = replay(truth, (0, 0, 1), (1, 0, 2), (0, 1, 2), (1, 2, 3))
    assert (observed.peak_windows, observed.peak_windows_in_slot) == (3, 2)


def test_the_idle_time_out_that_ended_the_wait_for_a_partition_is_no_time_of_reading() -> None:
    truth = [minutes(0), minutes(0, 1, 2)]
    first, *others = (Note(round(at_s * 1e9), "a", 1, truth[1][row : row + 1]) for row, at_s in enumerate((1, 4.5, 5)))
    waited = measure([Note(0, "a", 0, truth[0]), first, *others], truth, DELAY_MS, DRIFT_MS, idle_timeout_ms=3000)
    assert waited.seconds == 0.5  # nothing came for 1 s and for 3.5 s, until a row that is further came
    assert waited.watermarks[1] == [(0.0, -10_000), (0.0, 50_000), (0.5, 110_000)]
    slow = measure([first, *others, Note(10**10, "a", 0, truth[0])], truth, DELAY_MS, DRIFT_MS, idle_timeout_ms=3000)
    assert slow.seconds == 9.0


def test_rows_that_never_came_are_dropped() -> None:
    truth = [minutes(0, 1, 2), minutes(0, 1)]
    assert replay(truth, (0, 0, 1), (1, 0, 2)).dropped == 2


def test_rows_after_the_query_s_own_watermark_are_dropped() -> None:
    truth = [minutes(0, 1), minutes(0, 1, 2, 3)]
    calls = (1, 0, 4), (0, 0, 2)
    assert replay(truth, *calls).dropped == 0
    assert replay(truth, *calls, reported=((1, 1 * WINDOW_MS),)).dropped == 1
    assert replay(truth, *calls, reported=((1, 2 * WINDOW_MS),)).dropped == 2
    assert replay(truth, *calls, reported=((2, 2 * WINDOW_MS),)).dropped == 0  # heard of after the last call


def test_rows_that_the_topic_does_not_have_there_are_an_error() -> None:
    truth = [minutes(0, 1), minutes(0, 1)]
    with pytest.raises(ValueError, match="rows 1 to 3"):
        measure([Note(0, "a", 0, truth[0][:1]), Note(1, "a", 0, truth[0])], truth, DELAY_MS, DRIFT_MS)


def test_what_the_operator_notes_is_read_back_in_the_order_of_time(tmp_path: Path) -> None:
    schema = pa.schema([("partition", pa.int32()), ("timestamp", pa.timestamp("us", "UTC"))])
    observers = [Observer(str(tmp_path)), Observer(str(tmp_path))]
    for each in observers:
        each.open()
    for number in range(6):
        times = [number * 1_000_000, number * 1_000_000 + 1000]
        batch = pa.record_batch([[number % 4] * 2, times], schema=schema)
        assert list(observers[number % 2](iter((batch,)))) == []
    for each in observers:
        each.close()
    notes = notes_in(str(tmp_path))
    assert [note.partition for note in notes] == [0, 1, 2, 3, 0, 1]
    assert [note.times.tolist() for note in notes] == [[number * 1000, number * 1000 + 1] for number in range(6)]
    assert len({note.slot for note in notes}) == 2
    assert [note.at_ns for note in notes] == sorted(note.at_ns for note in notes)
