"""The enumerator of headgate.kinesis, driven step by step over a stream that is a list of shards."""

import pyarrow as pa
import pytest

from headgate.connectors.kinesis.api import Shard
from headgate.connectors.kinesis.shards import new_shards
from headgate.connectors.kinesis.source import KinesisSource
from headgate.connectors.kinesis.split import KinesisSplit, KinesisState, after
from headgate.errors import SourceError, SourceUnavailableError
from headgate.source import Boundedness
from headgate.source.watermark import MIN_WATERMARK_MS
from headgate.testing import EnumeratorHarness

SCHEMA = pa.schema({"data": pa.binary()})
NOW = 1_767_225_600_000


class ListedSource(KinesisSource):
    """Its stream is a list in memory: only the looking is replaced."""

    shards: list[Shard]

    def _discover(self, boundedness, known, initial):
        start = self.options["startingPosition"] if initial else None
        return new_shards(self.shards, known, start, NOW)


def source(*shards, start="trim_horizon"):
    made = ListedSource({"streamName": "rides", "startingPosition": start})
    made.shards = list(shards)
    return made


def harness(of, parallelism=1, state=None, boundedness=Boundedness.CONTINUOUS_UNBOUNDED):
    made = EnumeratorHarness(of, schema=SCHEMA, boundedness=boundedness, parallelism=parallelism, state=state)
    made.start()
    return made


def running(of, parallelism=1, state=None):
    """Return an enumerator whose readers are all there, and which has looked once."""
    made = harness(of, parallelism, state)
    for subtask in range(parallelism):
        made.register_reader(subtask)
    made.run_due_calls()
    return made


def held(of):
    return {subtask: sorted(splits) for subtask, splits in of.assigned.items()}


def finish(of, subtask, split_id):
    of.finish_split(subtask, split_id)
    of.enumerator.notify_splits_finished([split_id])


def checkpoint(of):
    snapshot = of.snapshot()
    of.complete_checkpoint()
    return snapshot


def test_nothing_is_assigned_before_all_readers_are_there_then_counts_differ_by_one_at_most():
    enumerator = harness(source(*(Shard(str(number)) for number in range(5))), parallelism=2)
    enumerator.register_reader(0)
    enumerator.run_due_calls()
    assert held(enumerator) == {0: []}
    enumerator.register_reader(1)
    assert held(enumerator) == {0: ["0", "2", "4"], 1: ["1", "3"]}


def test_children_follow_their_parents_and_a_snapshot_between_the_two_holds_them():
    stream = source(Shard("0"), Shard("1"))
    enumerator = running(stream)
    stream.shards = [Shard("0", is_open=False), Shard("1", is_open=False), Shard("2", ("0", "1"))]
    enumerator.run_next_call()
    finish(enumerator, 0, "0")
    checkpoint(enumerator)
    assert held(enumerator) == {0: ["1"]}
    finish(enumerator, 0, "1")
    snapshot = checkpoint(enumerator)  # FLINK-37627: whoever knows that the parents are read knows the child as well
    assert held(enumerator) == {0: ["2"]}
    restored = harness(stream, state=snapshot)
    restored.register_reader(0)
    checkpoint(restored)
    assert held(restored) == {0: ["2"]}


def test_children_wait_until_nobody_reads_their_parent_again():
    """Its reader may fail alone until a completed checkpoint has its end."""
    stream = source(Shard("0"), Shard("1"))
    enumerator = running(stream, parallelism=2)
    parent = enumerator.assigned[0]["0"].read_up_to("50", 1)
    enumerator.snapshot()  # checkpoint 1 does not complete before the end
    stream.shards = [Shard("0", is_open=False), Shard("1"), Shard("2", ("0",))]
    enumerator.run_next_call()
    finish(enumerator, 0, "0")
    enumerator.complete_checkpoint()
    enumerator.run_due_calls()
    assert held(enumerator) == {0: [], 1: ["1"]}, "checkpoint 1 does not have its end"
    enumerator.fail_reader(0, [parent])
    enumerator.register_reader(0)
    checkpoint(enumerator)
    assert held(enumerator) == {0: ["0"], 1: ["1"]}
    finish(enumerator, 0, "0")
    enumerator.snapshot()
    checkpoint(enumerator)
    assert held(enumerator) == {0: ["2"], 1: ["1"]}


def test_a_restored_enumerator_does_not_take_an_end_for_confirmed_that_no_completed_checkpoint_may_have():
    stream = source(Shard("0"))
    enumerator = running(stream)
    lost = list(enumerator.assigned[0].values())
    stream.shards = [Shard("0", is_open=False), Shard("1", ("0",))]
    enumerator.run_next_call()
    finish(enumerator, 0, "0")
    restored = harness(stream, state=enumerator.snapshot())  # a state of the log: its checkpoint failed
    restored.register_reader(0)
    restored.run_due_calls()
    assert held(restored) == {0: []}
    restored.fail_reader(0, lost)
    restored.register_reader(0)
    assert held(restored) == {0: ["0"]}


def test_with_latest_closed_shards_are_not_read_not_even_later():
    stream = source(Shard("0", is_open=False), Shard("1", ("0",)), start="latest")
    enumerator = running(stream)
    assert held(enumerator) == {0: ["1"]}
    assert enumerator.assigned[0]["1"].position.timestamp_ms == NOW
    restored = harness(stream, state=enumerator.snapshot())
    restored.register_reader(0, reported_splits=list(enumerator.assigned[0].values()))
    restored.run_next_call()
    assert held(restored) == {0: ["1"]}


def test_an_empty_first_look_is_a_look():
    stream = source(start="latest")
    enumerator = running(stream)
    stream.shards = [Shard("0", is_open=False), Shard("1", ("0",))]
    restored = harness(stream, state=enumerator.snapshot())
    restored.register_reader(0)
    restored.run_next_call()
    assert held(restored) == {0: ["0"]}  # what appeared since is read from its beginning, parents first
    assert restored.assigned[0]["0"].position.kind == "TRIM_HORIZON"


@pytest.mark.parametrize("parallelism", [2, 3])
def test_after_a_restore_readers_keep_what_they_had_unless_their_number_changes(parallelism):
    stream = source(*(Shard(str(number)) for number in range(4)))
    enumerator = harness(stream, parallelism=2)
    for subtask in (1, 0):
        enumerator.register_reader(subtask)
    enumerator.run_due_calls()
    before = held(enumerator)
    splits = {subtask: list(each.values()) for subtask, each in enumerator.assigned.items()}
    restored = harness(stream, parallelism=parallelism, state=enumerator.snapshot())
    for subtask in range(parallelism):
        reported = [split.read_up_to("7", 1) for split in splits.get(subtask, ())]
        restored.register_reader(subtask, reported_splits=reported)
    if parallelism == 2:
        assert held(restored) == before
    counts = [len(each) for each in held(restored).values()]
    assert sum(counts) == 4 and max(counts) - min(counts) <= 1
    assert {split.position for each in restored.assigned.values() for split in each.values()} == {after("7")}


def test_new_shards_go_to_those_that_have_the_fewest_though_the_enumerator_alone_was_restored():
    """Readers that read on report nothing: only the state says who has what."""
    stream = source(*(Shard(str(number)) for number in range(3)))
    before = running(stream, parallelism=4)
    again = harness(stream, parallelism=4, state=before.snapshot())
    for subtask in range(4):
        again.register_reader(subtask)
    stream.shards += [Shard(str(number)) for number in range(3, 8)]
    again.run_due_calls()
    assert [len(before.assigned[subtask]) + len(again.assigned[subtask]) for subtask in range(4)] == [2, 2, 2, 2]


def test_a_reported_shard_returns_to_its_reader_though_the_enumerator_failed_before_it_assigned_it_again():
    """The reader, which failed meanwhile too, reports it a second time."""
    stream = source(Shard("1"), Shard("2"))
    before = running(stream, parallelism=2)
    splits = {subtask: list(each.values()) for subtask, each in before.assigned.items()}
    stream.shards.append(Shard("0"))
    restored = harness(stream, parallelism=2, state=before.snapshot())
    restored.register_reader(1, reported_splits=splits[1])
    restored.run_next_call()
    again = harness(stream, parallelism=2, state=restored.snapshot())
    again.register_reader(1, reported_splits=splits[1])
    again.register_reader(0, reported_splits=splits[0])
    assert held(again) in ({0: ["0", "1"], 1: ["2"]}, {0: ["1"], 1: ["0", "2"]})


def test_reported_splits_are_state_until_they_are_assigned_again():
    stream = source(Shard("0"), Shard("1"))
    enumerator = running(stream, parallelism=2)
    splits = {subtask: list(each.values()) for subtask, each in enumerator.assigned.items()}
    restored = harness(stream, parallelism=2, state=enumerator.snapshot())
    restored.register_reader(0, reported_splits=splits[0])
    again = restored.source.state_serializer.deserialize(restored.snapshot())
    assert [split.split_id for split in again.unassigned] == ["0"]  # FLINK-40469
    restored.fail_reader(0)
    restored.register_reader(0)  # FLINK-40710: it comes back with nothing
    restored.register_reader(1, reported_splits=splits[1])
    assert held(restored) == {0: ["0"], 1: ["1"]}


def test_a_failed_reader_gets_its_shards_back_and_its_finished_ones_are_read_again():
    stream = source(Shard("0"), Shard("1"))
    enumerator = running(stream, parallelism=2)
    lost = list(enumerator.assigned[0].values())
    finish(enumerator, 0, "0")
    enumerator.fail_reader(0, lost)
    enumerator.run_due_calls()
    assert held(enumerator) == {1: ["1"]}
    enumerator.register_reader(0)
    assert held(enumerator) == {0: ["0"], 1: ["1"]}


def test_a_failed_look_is_tried_again_once_there_was_one():
    stream = source(Shard("0"))
    enumerator = running(stream)
    enumerator.fail_next_call(SourceUnavailableError("Kinesis is away"))
    stream.shards.append(Shard("1"))
    enumerator.run_next_call()
    assert held(enumerator) == {0: ["0", "1"]}
    with pytest.raises(SourceError, match="no entry"):
        enumerator.fail_next_call(SourceError("no entry"))


def test_the_first_look_must_succeed():
    enumerator = harness(source(Shard("0")))
    with pytest.raises(SourceUnavailableError):
        enumerator.fail_next_call(SourceUnavailableError("Kinesis is away"))


def test_a_bounded_read_is_pulled_and_ends():
    enumerator = harness(source(Shard("0"), Shard("1", ("0",))), parallelism=2, boundedness=Boundedness.BOUNDED)
    for subtask in range(2):
        enumerator.register_reader(subtask)
        enumerator.request_split(subtask)
    assert enumerator.requests == {0, 1}
    enumerator.run_due_calls()
    assert held(enumerator) == {0: ["0"], 1: ["1"]}
    for subtask in range(2):
        enumerator.request_split(subtask)
    assert enumerator.no_more_splits == {0, 1} and not enumerator.calls


def test_a_bounded_read_gives_nothing_to_a_reader_that_asked_and_is_gone():
    enumerator = harness(source(Shard("0")), boundedness=Boundedness.BOUNDED)
    enumerator.register_reader(0)
    enumerator.request_split(0)
    enumerator.forget_reader(0)
    enumerator.run_due_calls()
    enumerator.register_reader(0)
    assert held(enumerator) == {0: []}
    enumerator.request_split(0)
    assert held(enumerator) == {0: ["0"]}


def test_a_bounded_read_without_shards_ends_after_a_restore_too():
    enumerator = harness(source(), boundedness=Boundedness.BOUNDED)
    enumerator.run_due_calls()
    restored = harness(source(Shard("0")), state=enumerator.snapshot(), boundedness=Boundedness.BOUNDED)
    restored.register_reader(0)
    restored.request_split(0)
    assert restored.no_more_splits == {0}


def test_children_follow_a_parent_whose_end_is_reported_before_it_is_assigned_again():
    """A restored enumerator's state may be older than the assignment and the end of a shard."""
    stream = source(Shard("0", is_open=False), Shard("1", ("0",)))
    enumerator = harness(stream)
    enumerator.run_due_calls()
    before = enumerator.snapshot()
    restored = harness(stream, state=before)
    restored.enumerator.notify_splits_finished(["0"])
    restored.register_reader(0)  # shard 0 is assigned again, which the coordinator does not carry out
    checkpoint(restored)
    assert held(restored) == {0: ["0", "1"]}
    del restored.assigned[0]["0"]
    assert b'"finished":["0"]' in restored.snapshot()


def test_an_end_reported_after_a_restore_is_undone_if_the_shard_is_given_back():
    stream = source(Shard("0", is_open=False), Shard("1", ("0",)))
    enumerator = harness(stream)
    enumerator.run_due_calls()
    restored = harness(stream, state=enumerator.snapshot())
    (shard,) = [split for split in restored.enumerator._table.unassigned.values() if split.split_id == "0"]
    restored.enumerator.notify_splits_finished(["0"])
    restored.enumerator.add_splits_back([shard], 0)
    restored.register_reader(0)
    restored.run_due_calls()
    assert held(restored) == {0: ["0"]}


def test_watermarks_wait_for_shards_that_may_be_read_and_have_no_reader():
    stream = source(Shard("0"))
    enumerator = harness(stream)
    unassigned = enumerator.enumerator.unassigned_event_time_ms
    assert unassigned() == MIN_WATERMARK_MS  # anything may be found
    enumerator.run_due_calls()
    assert unassigned() == MIN_WATERMARK_MS  # its reader is not there
    enumerator.register_reader(0)
    assert unassigned() is None
    stream.shards = [Shard("0", is_open=False), Shard("1", ("0",))]
    enumerator.run_next_call()
    assert unassigned() is None  # its records are later than those of shard 0, which is being read
    finish(enumerator, 0, "0")
    assert unassigned() == MIN_WATERMARK_MS  # nor are they read while it waits for a checkpoint
    enumerator.run_due_calls()
    assert unassigned() == MIN_WATERMARK_MS
    checkpoint(enumerator)
    assert held(enumerator) == {0: ["1"]}
    assert unassigned() is None
    enumerator.fail_reader(0)
    assert unassigned() == MIN_WATERMARK_MS


def test_a_restarted_enumerator_takes_note_of_what_it_assigned_since_its_state():
    stream = source(Shard("0"), Shard("1"), Shard("2", ("0",)))
    state = KinesisState(
        initial_discovery_finished=True,
        unassigned=(KinesisSplit(split_id="0"), KinesisSplit(split_id="1"), KinesisSplit(split_id="2", parents=("0",))),
    )
    enumerator = harness(stream, parallelism=4, state=KinesisSource.state_serializer.serialize(state)).enumerator
    assert enumerator.take_assignments({3: [KinesisSplit(split_id="0")], 1: [KinesisSplit(split_id="9")]})
    snapshot = enumerator.snapshot_state(1)
    assert snapshot.assigned == {"0": 3, "9": 1}, "one that its state does not know yet, too"
    assert [split.split_id for split in snapshot.unassigned] == ["1", "2"]
    enumerator.notify_splits_finished(["0"])
    assert enumerator.snapshot_state(2).ended == ("0",)
    enumerator.notify_checkpoint_complete(2)
    assert enumerator.snapshot_state(3).finished == ("0",)


def test_shards_that_no_reader_has_after_a_restore_are_known_and_those_that_one_has_are_not_lost():
    stream = source(Shard("0"), Shard("1"), Shard("2"))
    before = running(stream, parallelism=2)
    splits = {subtask: list(each.values()) for subtask, each in before.assigned.items()}
    restored = harness(stream, parallelism=2, state=before.snapshot())
    lost = {split.split_id for each in splits.values() for split in each}
    assert set(restored.enumerator.unreported_splits()) == lost
    restored.register_reader(0, reported_splits=splits[0][:1])
    restored.register_reader(1, held_split_ids=[split.split_id for split in splits[1]])
    lost -= {split.split_id for split in (*splits[0][:1], *splits[1])}
    assert set(restored.enumerator.unreported_splits()) == lost and len(lost) == 1


@pytest.mark.parametrize("boundedness", [Boundedness.BOUNDED, Boundedness.CONTINUOUS_UNBOUNDED])
def test_a_state_has_the_parallelism_among_which_its_shards_are_shared_out(boundedness):
    """Not that of a query which has not got that far: at the old one again readers keep what they have."""
    stream = source(Shard("0"), Shard("1"))

    def parallelism(enumerator):
        return enumerator.source.state_serializer.deserialize(enumerator.snapshot()).parallelism

    fresh = harness(stream, parallelism=2, boundedness=boundedness)
    assert parallelism(fresh) is None
    for subtask in (0, 1):
        fresh.register_reader(subtask)
    assert parallelism(fresh) == 2
    same, wider = (harness(stream, each, fresh.snapshot(), boundedness) for each in (2, 3))
    assert (parallelism(same), parallelism(wider)) == (2, None)
    for subtask in range(3):
        wider.register_reader(subtask)
    assert parallelism(wider) == 3
