"""Which shards are new, where they start, and that parents are read before their children."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headgate.connectors.kinesis.api import Shard
from headgate.connectors.kinesis.options import StartingPosition
from headgate.connectors.kinesis.shards import Discovered, ShardTable, new_shards
from headgate.connectors.kinesis.split import (
    STATE_SERIALIZER,
    TRIM_HORIZON,
    KinesisSplit,
    KinesisState,
    after,
    at_timestamp,
)

LISTED = [
    Shard("0", is_open=False), Shard("1", is_open=False), Shard("2", ("0",)), Shard("3", ("0",), is_open=False),
    Shard("4", ("3", "1")),
]  # fmt: skip
NOW = 1_767_225_600_000


def ids(found: Discovered) -> list[str]:
    return [split.split_id for split in found.splits]


def test_trim_horizon_reads_all_shards_from_their_beginning():
    found = new_shards(LISTED, (), StartingPosition("trim_horizon"), NOW)
    assert ids(found) == ["0", "1", "2", "3", "4"] and not found.skipped
    assert {split.position for split in found.splits} == {TRIM_HORIZON}
    assert found.splits[4].parents == ("3", "1")


def test_latest_reads_open_shards_only_from_the_time_of_the_listing():
    found = new_shards(LISTED, (), StartingPosition("latest"), NOW)
    assert ids(found) == ["2", "4"] and found.skipped == {"0", "1", "3"}
    assert {split.position for split in found.splits} == {at_timestamp(NOW)}


def test_a_time_applies_to_all_shards_that_are_there_at_the_start():
    found = new_shards(LISTED, (), StartingPosition("at_timestamp", 5), NOW)
    assert ids(found) == ["0", "1", "2", "3", "4"]
    assert {split.position for split in found.splits} == {at_timestamp(5)}


def test_shards_that_appear_later_are_read_from_their_beginning():
    found = new_shards(LISTED, {"0", "1", "2", "3"}, None, NOW)
    assert ids(found) == ["4"] and found.splits[0].position == TRIM_HORIZON


def test_a_shard_that_a_listing_missed_is_not_read_again():
    found = new_shards(LISTED, {"2", "4"}, None, NOW)
    assert ids(found) == [] and found.skipped == {"0", "1", "3"}


def test_finished_shards_are_forgotten_when_kinesis_forgets_them():
    table = ShardTable(KinesisState(initial_discovery_finished=True, finished=("0", "1"), assigned={"2": 0}))
    table.discovered(Discovered(frozenset({"1", "2"}), ()))
    assert table.snapshot(1, 1).finished == ("1",)
    assert table.snapshot(2, 1).assigned == {"2": 0}


def test_what_another_reader_has_is_not_taken_from_it():
    table = ShardTable(KinesisState(unassigned=(KinesisSplit(split_id="0"), KinesisSplit(split_id="1"))))
    table.assign("0", 1)
    assert not table.report(KinesisSplit(split_id="0", position=after("1")), 0)
    assert not table.report(KinesisSplit(split_id="1", position=after("1")), 0)
    assert table.report(KinesisSplit(split_id="0", position=after("2")), 1)
    assert table.unassigned["0"].position == after("2")


class Resharding(RuleBasedStateMachine):
    """A stream is split, merged and expires while it is read, with restores in between; a parent is read first.

    A reader that fails alone reads again what ended since the last completed checkpoint.
    """

    @initialize(shards=st.integers(1, 3), kind=st.sampled_from(["latest", "trim_horizon"]))
    def begin(self, shards, kind):
        self.stream = {str(number): Shard(str(number)) for number in range(shards)}
        self.parents = {}
        self.start = StartingPosition(kind)
        self.table = ShardTable(KinesisState())
        self.reading, self.done = set(), []
        self.made_before_start = None
        self.checkpoints, self.confirmed = {}, set()  # which ends each one has

    def close(self, *ids):
        for each in ids:
            self.stream[each] = Shard(each, self.stream[each].parents, is_open=False)

    def add(self, *parents):
        name = str(len(self.parents) + 100)
        self.parents[name] = parents
        self.stream[name] = Shard(name, parents)

    def open_shards(self):
        return sorted(name for name, shard in self.stream.items() if shard.is_open)

    @rule(data=st.data())
    def split(self, data):
        chosen = data.draw(st.sampled_from(self.open_shards()))
        self.close(chosen)
        self.add(chosen)
        self.add(chosen)

    @precondition(lambda self: len(self.open_shards()) > 1)
    @rule(data=st.data())
    def merge(self, data):
        chosen = data.draw(st.permutations(self.open_shards()))[:2]
        self.close(*chosen)
        self.add(*chosen)

    @precondition(lambda self: self.done)
    @rule(data=st.data())
    def expire(self, data):
        self.stream.pop(data.draw(st.sampled_from(self.done)), None)

    @rule()
    def discover(self):
        initial = not self.table.initial_discovery_finished
        if initial:
            skipped = self.start.kind == "latest"
            self.made_before_start = {name for name, each in self.stream.items() if skipped and not each.is_open}
        start = self.start if initial else None
        self.table.discovered(new_shards(list(self.stream.values()), self.table.known(), start, NOW))

    @rule()
    def assign(self):
        for split in self.table.ready():
            unread = {parent for parent in split.parents if parent not in self.done}
            assert unread <= self.made_before_start, f"{split} before its parents {unread}"
            self.table.assign(split.split_id, 0)
            self.reading.add(split.split_id)

    @precondition(lambda self: any(not self.stream[name].is_open for name in self.reading))
    @rule(data=st.data())
    def finish(self, data):
        closed = sorted(name for name in self.reading if not self.stream[name].is_open)
        chosen = data.draw(st.sampled_from(closed))
        self.reading.remove(chosen)
        self.done.append(chosen)
        self.table.end([chosen])

    @rule()
    def snapshot(self):
        number = len(self.checkpoints) + 1
        self.checkpoints[number] = set(self.done)
        self.table.snapshot(number, 1)

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data())
    def complete(self, data):
        number = data.draw(st.sampled_from(sorted(self.checkpoints)))
        self.confirmed |= self.checkpoints[number]
        self.table.finish(number)

    @precondition(lambda self: set(self.done) - self.confirmed)
    @rule(data=st.data())
    def fail(self, data):
        again = data.draw(st.sampled_from(sorted(set(self.done) - self.confirmed)))
        self.done.remove(again)
        self.table.give_back([KinesisSplit(split_id=again, parents=self.parents.get(again, ()))])

    @rule()
    def restore(self):
        data = STATE_SERIALIZER.serialize(self.table.snapshot(len(self.checkpoints) + 1, 1))
        self.table = ShardTable(STATE_SERIALIZER.deserialize(data))
        for name in sorted(self.reading):
            assert self.table.report(KinesisSplit(split_id=name, parents=self.parents.get(name, ())), 0)
        self.reading.clear()

    @invariant()
    def every_shard_is_in_one_place_and_read_once(self):
        places = Counter((*self.table.unassigned, *self.table.assigned, *self.table.ended, *self.table.finished))
        assert not places or max(places.values()) == 1, places
        assert max(Counter(self.done).values(), default=1) == 1, self.done

    @invariant()
    def no_parent_is_read_beside_its_child(self):
        for name in (*self.reading, *self.done):
            again = set(self.parents.get(name, ())) - set(self.done) - (self.made_before_start or set())
            assert not again, f"{name} is read, and {again} is to be read again"

    def teardown(self):
        """In the end, everything that was made since the start is read, and nothing long gone is remembered."""
        if not hasattr(self, "table"):
            return
        self.discover()
        for _ in range(len(self.stream) + 1):
            self.assign()
            for name in sorted(self.reading):
                if not self.stream[name].is_open:
                    self.reading.remove(name)
                    self.done.append(name)
                    self.table.end([name])
            self.table.finish()
        self.discover()
        assert not self.table.unassigned
        assert set(self.stream) == self.reading | (set(self.done) & set(self.stream)) | (
            self.made_before_start & set(self.stream)
        )
        assert set(self.table.finished) <= set(self.stream)


Resharding.TestCase.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestResharding = Resharding.TestCase
