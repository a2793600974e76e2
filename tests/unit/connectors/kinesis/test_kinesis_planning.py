"""What was seen is planned once, in order, and fairly; a range begins and ends at records that were seen."""

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kinesis.cursor import Answer
from headgate.connectors.kinesis.scout import Seen, shares
from headgate.connectors.kinesis.split import KinesisSplit, after, at

SHARD = KinesisSplit(split_id="shardId-000000000000")


class Standing:
    """A cursor that stands where it was opened: `Seen` only looks at its split."""

    def __init__(self, split):
        self.split = split


def answer(*numbers, arrived_s=1, at_tip=False, ended=False, answered_ms=5000):
    arrived = datetime.datetime.fromtimestamp(arrived_s, datetime.UTC)
    records = [{"SequenceNumber": str(each), "ApproximateArrivalTimestamp": arrived} for each in numbers]
    return Answer(records, at_tip=at_tip, ended=ended, answered_ms=answered_ms)


@given(st.lists(st.integers(1, 9), max_size=6), st.lists(st.integers(0, 12), max_size=30), st.booleans())
def test_ranges_hold_every_record_once_and_in_order(answers, takes, ended):
    seen, split, number = Seen(Standing(SHARD)), SHARD, 0
    for count in answers:
        seen.add(answer(*range(number + 1, number + count + 1)), keep=True)
        number += count
    if ended:
        seen.add(answer(ended=True), keep=True)
    position = 0
    for rows in (*takes, 1000):
        planned = seen.take(split, rows)
        if planned is None:
            continue
        if planned.split.ended:
            assert ended and position == number and planned.rest is None
            break
        first, last = int(planned.split.position.sequence_number), int(planned.split.stop)
        assert planned.split.position.kind == "AT_SEQUENCE_NUMBER"
        assert (first, planned.split.rows) == (position + 1, last - position)
        position = last
        if planned.rest is None:
            assert ended and position == number
            break
        split = planned.rest
        assert split.position == after(str(last)) == seen.position
    assert position == number


def test_a_shard_that_ended_without_records_is_planned_as_such():
    seen = Seen(Standing(SHARD))
    assert seen.take(SHARD, 10) is None
    seen.add(answer(ended=True), keep=True)
    planned = seen.take(SHARD, 10)
    assert planned.split.ended and planned.split.is_read and planned.rest is None


def test_rows_of_a_cut_range_are_subtracted():
    split = KinesisSplit(split_id="shardId-000000000000", position=at("1"), stop="9", rows=9)
    seen = Seen(Standing(split))
    seen.add(answer(*range(1, 10), ended=True), keep=True)
    planned = seen.take(split, 4)
    assert (planned.split.stop, planned.split.rows) == ("4", 4)
    assert (planned.rest.stop, planned.rest.rows, planned.rest.position) == ("9", 5, after("4"))
    assert seen.take(planned.rest, 9).rest is None


def test_without_keeping_numbers_all_is_planned_together():
    seen = Seen(Standing(SHARD))
    for start in range(1, 1000, 10):
        seen.add(answer(*range(start, start + 10)), keep=False)
    planned = seen.take(SHARD, seen.count)
    assert (planned.split.position, planned.split.stop, planned.split.rows) == (at("1"), "1000", 1000)
    assert len(seen._numbers) <= 10


def test_a_busy_shard_is_read_up_to_now_and_no_further():
    seen = Seen(Standing(SHARD))
    seen.begin()
    seen.add(answer(1, arrived_s=4, answered_ms=5000), keep=False)
    assert not seen.at_tip
    seen.add(answer(2, arrived_s=5.9, answered_ms=7000), keep=False)
    assert not seen.at_tip
    seen.add(answer(3, arrived_s=6, answered_ms=8000), keep=False)
    assert seen.at_tip


@given(
    st.dictionaries(st.text("abcdef", min_size=1), st.integers(0, 50), max_size=6),
    st.none() | st.integers(1, 100),
    st.none() | st.integers(1, 20),
)
def test_limits_are_shared_fairly(available, most, most_each):
    granted = shares(available, most, most_each)
    assert granted.keys() == available.keys()
    wanted = {name: min(count, most_each or count) for name, count in available.items()}
    assert all(0 <= granted[name] <= wanted[name] for name in available)
    assert sum(granted.values()) == min(sum(wanted.values()), most or 1000)
    cut = [granted[name] for name in available if granted[name] < wanted[name]]
    assert not cut or max(granted.values()) - min(cut) <= 1
