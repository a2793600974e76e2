"""Where ranges end by what the index and a look at records say, and when a look is over."""

from __future__ import annotations

import re

import numpy as np
import pytest

from headgate.connectors.kafka import event_times
from headgate.connectors.kafka.consumers import PARTITION_EOF, ClientEvent, Consumed
from headgate.connectors.kafka.event_times import NextRecord, _Walk, range_ends
from headgate.connectors.kafka.records import Records
from headgate.connectors.kafka.split import TopicPartition
from headgate.source.watermark import MIN_WATERMARK_MS

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.mark.parametrize(
    ("record", "by_index", "before", "unknown"),
    [
        (NextRecord(7, None), None, {A: 7}, {}),
        (NextRecord(7, None), 3, {A: 7}, {}),
        (NextRecord(7, 100), None, {A: 0}, {}),
        (NextRecord(7, 150), 3, {A: 0}, {}),
        (NextRecord(7, 99), None, {}, {}),
        (NextRecord(7, 99), 8, {A: 8}, {}),
        (NextRecord(7, 99), 7, {}, {A: 7}),
        (NextRecord(7, 99), 3, {}, {A: 7}),
    ],
)
def test_where_a_range_ends(
    record: NextRecord, by_index: int | None, before: dict[TopicPartition, int], unknown: dict[TopicPartition, int]
) -> None:
    assert range_ends({A: record}, {A: by_index}, 100) == (before, unknown)


def test_what_the_brokers_were_not_asked_is_looked_at() -> None:
    assert range_ends({A: NextRecord(7, -20)}, {}, -10) == ({}, {A: 7})


def test_every_case_has_a_row_in_the_table() -> None:
    rows = re.findall(r"^    (none|too late|early enough) +(?=\S)", event_times.__doc__ or "", re.MULTILINE)
    assert rows == ["none", "too late", "early enough", "early enough", "early enough"]


def records(offsets: list[int], times: list[int], source: TopicPartition = A) -> Records:
    return Records(source, np.array(offsets), timestamps_ms=np.array(times))


def at_end(offset: int, source: TopicPartition = A) -> ClientEvent:
    return ClientEvent(PARTITION_EOF, "", source, offset)


def test_the_first_record_ends_a_look_for_any() -> None:
    walk = _Walk({A: 5, B: 5}, {A: 20, B: 20}, MIN_WATERMARK_MS, 1)
    assert walk.note(Consumed([records([7, 8], [30, 10])], [])) == [A]
    assert walk.note(Consumed([records([9], [5])], [])) == [], "more of what is done means nothing"
    assert (walk.found, walk.left) == ({A: NextRecord(7, 30)}, {B: 5})


def test_a_look_ends_at_the_first_record_that_is_late_enough() -> None:
    walk = _Walk({A: 5}, {A: 20}, 100, 50)
    assert walk.note(Consumed([records([5, 6, 9], [1, 99, 2])], [])) == []
    assert walk.left == {A: 10}
    assert walk.note(Consumed([records([10, 12, 13], [3, 100, 500])], [])) == [A]
    assert walk.found == {A: NextRecord(12, 100)}


def test_a_look_ends_where_the_partition_did_when_it_was_asked_for() -> None:
    for consumed, offset in (
        (Consumed([records([19], [1])], []), 20),
        (Consumed([records([6, 25], [1, 500])], []), 20),
        (Consumed([records([20], [500])], []), 20),
        (Consumed([], [at_end(20)]), 20),
        (Consumed([records([6], [1])], [at_end(31)]), 20),
    ):
        walk = _Walk({A: 5}, {A: 20}, 100, 50)
        assert walk.note(consumed) == [A]
        assert walk.found == {A: NextRecord(offset, None)}


def test_an_end_before_that_one_is_waited_past() -> None:
    """A follower, or the last stable offset, may be behind."""
    walk = _Walk({A: 5}, {A: 20}, 100, 50)
    assert walk.note(Consumed([], [at_end(12), at_end(99, B)])) == []
    assert walk.left == {A: 5}


def test_a_look_ends_behind_as_many_records_as_it_may_have() -> None:
    walk = _Walk({A: 5}, {A: 20}, 100, 3)
    assert walk.note(Consumed([records([5, 8], [1, 1])], [])) == []
    assert walk.note(Consumed([records([11, 13], [1, 1])], [])) == [A]
    assert walk.found == {A: NextRecord(14, None)}
