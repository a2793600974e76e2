"""Where ranges end by what the index and a look at records say, and when a look is over."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pytest

from headgate.connectors.kafka import event_times
from headgate.connectors.kafka.consumer import PARTITION_EOF, ClientEvent, Consumed
from headgate.connectors.kafka.event_times import FieldOfValues, NextRecord, TimeStamps, _Known, _Walk, range_ends
from headgate.connectors.kafka.records import Records
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
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
    walk = _Walk(TimeStamps(), {A: 5, B: 5}, {A: 20, B: 20}, MIN_WATERMARK_MS, 1)
    assert walk.note(Consumed([records([7, 8], [30, 10])], [])) == [A]
    assert walk.note(Consumed([records([9], [5])], [])) == [], "more of what is done means nothing"
    assert (walk.found, walk.left) == ({A: NextRecord(7, 30)}, {B: 5})


def test_a_time_stamp_that_is_not_in_milliseconds_holds_nothing_back() -> None:
    walk = _Walk(TimeStamps(), {A: 5, B: 5}, {A: 20, B: 20}, MIN_WATERMARK_MS + 1, 1)
    assert walk.note(Consumed([records([7], [2**50]), records([7, 8], [2**50, 30], B)], [])) == [A, B]
    assert walk.found == {A: NextRecord(8, None), B: NextRecord(8, 30)}, "the task that reads it refuses it"


def test_a_look_ends_at_the_first_record_that_is_late_enough() -> None:
    walk = _Walk(TimeStamps(), {A: 5}, {A: 20}, 100, 50)
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
        walk = _Walk(TimeStamps(), {A: 5}, {A: 20}, 100, 50)
        assert walk.note(consumed) == [A]
        assert walk.found == {A: NextRecord(offset, None)}


def test_an_end_before_that_one_is_waited_past() -> None:
    """A follower, or the last stable offset, may lag."""
    walk = _Walk(TimeStamps(), {A: 5}, {A: 20}, 100, 50)
    assert walk.note(Consumed([], [at_end(12), at_end(99, B)])) == []
    assert walk.left == {A: 5}


def test_a_look_ends_after_as_many_records_as_it_may_have() -> None:
    walk = _Walk(TimeStamps(), {A: 5}, {A: 20}, 100, 3)
    assert walk.note(Consumed([records([5, 8], [1, 1])], [])) == []
    assert walk.note(Consumed([records([11, 13], [1, 1])], [])) == [A]
    assert walk.found == {A: NextRecord(14, None)}


def values(*lines: str | None) -> Records:
    text = b"".join((each or "").encode() + b"\n" for each in lines)
    ends = np.cumsum([0, *(len((each or "").encode()) + 1 for each in lines)]).astype(np.int32)
    valid = pa.array([each is not None for each in lines]).buffers()[1]
    array = pa.Array.from_buffers(pa.binary(), len(lines), [valid, pa.py_buffer(ends), pa.py_buffer(text)])
    return Records(A, np.arange(len(lines)), values=array)


@pytest.mark.parametrize("mode", ["PERMISSIVE", "FAILFAST", "DROPMALFORMED"])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_a_field_of_values_and_none_where_there_is_none(mode: str, zone: str | None) -> None:
    given = {"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "t", "valueFormat": "json", "mode": mode}
    field = FieldOfValues(pa.field("at", pa.timestamp("us", zone)), KafkaSource(given).options)
    at, before_1970 = '{"at": "1970-01-01T00:00:01.234567"}', '{"at": "1969-12-31T23:59:59.999999"}'
    found = field.of(values(at, None, "", "{", '{"n": 1}', before_1970, at))
    assert found.tolist() == [1234, *[event_times._NO_TIME] * 4, -1, 1234]
    walk = _Walk(field, {A: 0}, {A: 20}, event_times._NO_TIME + 1, field.most_without)
    assert walk.note(Consumed([values(None, "[]", at, before_1970)], [])) == [A]
    assert walk.found == {A: NextRecord(2, 1234)}, "what has no event time is passed over"


def test_few_records_are_parsed_to_find_one_among_the_first() -> None:
    parsed: list[int] = []

    class Counting(TimeStamps):
        def of(self, records: Records) -> np.typing.NDArray[np.int64]:
            parsed.append(len(records.offsets))
            return super().of(records)

    for late, sizes in ((3, [64]), (100, [64, 256]), (999, [64, 256, 680])):
        walk = _Walk(Counting(), {A: 0}, {A: 1000}, 100, 5000)
        times = [1] * 1000
        times[late] = 500
        assert walk.note(Consumed([records([*range(1000)], times)], [])) == [A]
        assert walk.found == {A: NextRecord(late, 500)}
        assert parsed == sizes
        parsed.clear()


def test_where_a_plan_ended_is_known_to_the_next_one_and_to_no_other_topic() -> None:
    def at(position: int, topic_id: str = "first") -> NextRecord | None:
        split = KafkaSplit(split_id="t-0", topic="t", partition=0, position=position, topic_id=topic_id)
        return known.at(split)

    known = _Known("first", 5, NextRecord(6, 10), NextRecord(9, 100))
    assert (at(5), at(6), at(9), at(9, "second"), at(5, "second")) == (known.record, None, known.too_late, None, None)
    known = _Known("first", 5, NextRecord(6, 10), NextRecord(9, None))
    assert at(9) is None, "it ended after what was looked at: what follows is not known"
