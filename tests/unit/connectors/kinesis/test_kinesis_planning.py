"""What was seen is planned once, in order, and fairly; a range begins and ends at records that were seen."""

import datetime

from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kinesis.cursor import Answer
from headgate.connectors.kinesis.scout import Scout, Seen, shares
from headgate.connectors.kinesis.split import KinesisSplit, after, at
from headgate.testing import VirtualClock

SHARD = KinesisSplit(split_id="shardId-000000000000")


class Standing:
    """A cursor that stands where it was opened: `Seen` only looks at its split."""

    def __init__(self, split):
        self.split = split


class Counting(Standing):
    """A cursor over a shard of so many records, whose calls take time on a clock of the test's."""

    def __init__(self, split, records, clock, takes_ms=0):
        super().__init__(split)
        self.left, self.clock, self.takes_ms = list(range(1, records + 1)), clock, takes_ms
        self.due_ms = self.calls = 0

    def call(self, limit):
        self.calls += 1
        self.clock.advance(self.takes_ms)
        self.due_ms = self.clock() + 200
        taken, self.left = self.left[:limit], self.left[limit:]
        return answer(*taken, at_tip=not self.left)


def scouting(records, takes_ms=0):
    clock = VirtualClock(1)
    splits = [KinesisSplit(split_id=str(number)) for number in range(len(records))]
    cursors = {each.split_id: Counting(each, count, clock, takes_ms) for each, count in zip(splits, records)}
    scout = Scout(lambda split: cursors[split.split_id], 1, records_per_call=10, clock_ms=clock)
    return scout, splits, cursors


def look(scout, splits, *, most=None, each=None, budget_ms=1000, now_ms=0):
    return scout.read_ahead(splits, most=most, most_per_split=each, budget_ms=budget_ms, now_ms=now_ms)


def test_a_budget_is_kept_and_those_that_had_to_wait_come_first():
    scout, splits, cursors = scouting([5] * 50, takes_ms=100)
    for now_ms in range(5):
        look(scout, splits, now_ms=now_ms)
    assert [cursor.calls for cursor in cursors.values()] == [1] * 50


def test_an_idle_shard_is_asked_once_a_second():
    scout, splits, cursors = scouting([0, 0])
    for now_ms in range(0, 5000, 10):
        cursors["0"].clock.advance_to(now_ms)
        look(scout, splits, now_ms=now_ms)
    assert [cursor.calls for cursor in cursors.values()] == [5, 5]


def test_no_more_is_seen_than_may_be_planned_and_what_is_left_needs_no_call():
    scout, splits, cursors = scouting([100, 100, 0])
    seen = look(scout, splits, most=6)
    assert [seen[split.split_id].count for split in splits] == [6, 6, 0]
    calls = [cursor.calls for cursor in cursors.values()]
    splits = [seen[split.split_id].take(split, 3).rest for split in splits[:2]]
    seen = look(scout, splits, most=6, now_ms=1)
    assert [seen[split.split_id].count for split in splits] == [3, 3]
    assert [cursor.calls for cursor in cursors.values()] == calls == [1, 1, 1]


def test_a_split_that_moved_elsewhere_is_looked_at_anew():
    scout, splits, cursors = scouting([5])
    assert look(scout, splits)["0"].count == 5
    cursors["0"].clock.advance(1000)
    moved = KinesisSplit(split_id="0", position=after("77"))
    cursors["0"] = Counting(moved, 2, VirtualClock(1))
    assert look(scout, [moved])["0"].count == 2


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
