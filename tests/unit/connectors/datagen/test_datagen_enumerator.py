"""The enumerator of `headgate.datagen`, and the whole source against the promises of the contract."""

import pyarrow as pa
import pytest

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.datagen.split import DatagenSplit
from headgate.errors import OptionError
from headgate.source import Boundedness
from headgate.source.watermark import MIN_WATERMARK_MS
from headgate.testing import EnumeratorHarness, SourceHarness, VirtualClock, assert_same_rows
from headgate.testing.conformance import conformance_test

SCHEMA = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64()), ("name", pa.string())])
UNBOUNDED = Boundedness.CONTINUOUS_UNBOUNDED


def source(clock: VirtualClock | None = None, **options: object) -> DatagenSource:
    return DatagenSource({name: str(value) for name, value in options.items()}, clock or VirtualClock(5000))


def drive(made: DatagenSource, boundedness: Boundedness, parallelism: int, state: bytes | None = None):
    return EnumeratorHarness(made, schema=SCHEMA, boundedness=boundedness, parallelism=parallelism, state=state)


test_generated_data_keeps_the_promises_of_the_contract = conformance_test(
    lambda: DatagenSource(
        {
            "numRows": "30",
            "numPartitions": "3",
            "partitionSkew": "1",
            "rowsPerSecond": "1000",
            "fields.name.null-rate": "0.2",
            "eventTimeColumn": "timestamp",
        }
    ),
    schema=SCHEMA,
)
test_endless_data_keeps_the_promises_of_waiting = conformance_test(
    lambda: DatagenSource({"rowsPerSecond": "1"}),
    only=["fetch-keeps-its-time-out", "fetch-returns-when-woken", "idle-readers-sleep"],
)


def test_a_bounded_read_is_pulled_piece_by_piece() -> None:
    harness = drive(source(numRows=5_000_000, numPartitions=2), Boundedness.BOUNDED, 2)
    harness.start()
    harness.register_reader(0)
    harness.register_reader(1)
    assert not harness.outbox
    while 0 not in harness.no_more_splits:
        harness.request_split(0)
    splits = list(harness.assigned[0].values())
    assert [(each.partition, each.position, each.stop) for each in splits] == [
        (partition, first, min(first + 1_000_000, 2_500_000))
        for first in (0, 1_000_000, 2_000_000)
        for partition in (0, 1)
    ]
    harness.request_split(1)
    assert 1 in harness.no_more_splits


def test_the_earliest_rows_that_nobody_has_are_known_and_only_become_later() -> None:
    made = source(
        numRows=5_000_000, numPartitions=2, rowsPerSecond=1000, startTimestamp=7000, eventTimeColumn="timestamp"
    )
    harness = drive(made, Boundedness.BOUNDED, 2)
    unassigned = harness.enumerator.unassigned_event_time_ms
    assert unassigned() == MIN_WATERMARK_MS
    harness.start()
    harness.register_reader(0)
    harness.register_reader(1)
    reported = []
    while 0 not in harness.no_more_splits:
        reported.append(unassigned())
        harness.request_split(0)
    # Rows 0 and 1, then rows 2,000,000 and 2,000,001, each of two partitions: a row is a millisecond.
    assert reported == [7000, 7001, 2_007_000, 2_007_001, 4_007_000, 4_007_001, None]


def test_what_a_failed_reader_had_is_the_earliest_again() -> None:
    made = source(numRows=5_000_000, numPartitions=2, rowsPerSecond=1000, eventTimeColumn="timestamp")
    harness = drive(made, Boundedness.BOUNDED, 2)
    harness.start()
    harness.register_reader(0)
    harness.register_reader(1)
    for subtask in (0, 1, 1):
        harness.request_split(subtask)
    assert harness.enumerator.unassigned_event_time_ms() == 2_000_001
    harness.fail_reader(0)
    assert harness.enumerator.unassigned_event_time_ms() == 0
    harness.request_split(1)
    assert "partition-0-from-0" in harness.assigned[1]
    assert harness.enumerator.unassigned_event_time_ms() == 2_000_001


def test_an_unbounded_read_holds_watermarks_until_all_readers_are_there() -> None:
    harness = drive(source(numPartitions=2, startTimestamp=7000, eventTimeColumn="timestamp"), UNBOUNDED, 2)
    harness.start()
    harness.register_reader(0)
    assert harness.enumerator.unassigned_event_time_ms() == 7000
    harness.register_reader(1)
    assert harness.enumerator.unassigned_event_time_ms() is None


@pytest.mark.parametrize("options", [{}, {"eventTimeColumn": "Timestamp", "fields.timestamp.kind": "random"}])
def test_without_event_times_watermarks_are_held_until_all_splits_are_assigned(options) -> None:
    harness = drive(source(numPartitions=2, **options), UNBOUNDED, 2)
    assert harness.enumerator.unassigned_event_time_ms() == MIN_WATERMARK_MS
    harness.start()
    harness.register_reader(0)
    assert harness.enumerator.unassigned_event_time_ms() == MIN_WATERMARK_MS
    harness.register_reader(1)
    assert harness.enumerator.unassigned_event_time_ms() is None


def test_very_many_rows_are_few_pieces() -> None:
    harness = drive(source(numRows=10**15), Boundedness.BOUNDED, 1)
    harness.start()
    assert harness.snapshot().count(b"split_id") == 1024


def test_a_batch_read_without_an_end_is_an_error() -> None:
    with pytest.raises(OptionError, match="Set the option 'numRows'"):
        drive(source(), Boundedness.BOUNDED, 1)


@pytest.mark.parametrize("name", ["fields.nmae.length", "fields.name.min"])
def test_options_of_columns_are_checked_before_anything_is_read(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        drive(source(**{name: "1"}), UNBOUNDED, 1)


def test_an_unbounded_read_is_pushed_when_all_readers_are_there() -> None:
    harness = drive(source(numPartitions=5), UNBOUNDED, 2)
    harness.start()
    harness.register_reader(1)
    harness.request_split(1)
    assert not harness.outbox
    harness.register_reader(0)
    assert sorted(harness.assigned[0]) == ["partition-0", "partition-2", "partition-4"]
    assert sorted(harness.assigned[1]) == ["partition-1", "partition-3"]
    assert harness.no_more_splits == {0, 1}


def test_a_failed_readers_partitions_come_back_to_it() -> None:
    harness = drive(source(numPartitions=3), UNBOUNDED, 2)
    harness.start()
    harness.register_reader(0)
    harness.register_reader(1)
    harness.fail_reader(1)
    assert b"partition-1" in harness.snapshot()
    harness.register_reader(1)
    assert list(harness.assigned[1]) == ["partition-1"]
    assert b"partition-" not in harness.snapshot()


def test_reported_splits_are_in_the_snapshot_until_they_are_assigned_again() -> None:
    """FLINK-40469, FLINK-40710: a checkpoint in between must not lose them."""
    splits = [DatagenSplit(split_id=f"partition-{p}", partition=p, position=7, paced_since_ms=1) for p in range(4)]
    fresh = drive(source(numPartitions=4), UNBOUNDED, 1)
    fresh.start()
    fresh.register_reader(0)
    harness = drive(source(numPartitions=4), UNBOUNDED, 2, fresh.snapshot())
    harness.start()
    harness.register_reader(0, reported_splits=splits[:3])
    state = harness.snapshot()
    assert all(f"partition-{p}".encode() in state for p in range(3))
    harness.register_reader(1, reported_splits=splits[3:])
    assert {subtask: list(held.values()) for subtask, held in harness.assigned.items()} == {
        0: [splits[0], splits[2]],
        1: [splits[1], splits[3]],
    }


def test_start_times_are_resolved_once() -> None:
    """FLINK-38453: what "now" means is part of the state."""
    harness = drive(source(VirtualClock(5000), startTimestamp="now"), UNBOUNDED, 1)
    harness.start()
    restored = drive(source(VirtualClock(9000), startTimestamp="now"), UNBOUNDED, 1, harness.snapshot())
    restored.start()
    restored.register_reader(0)
    (split,) = restored.assigned[0].values()
    assert (split.event_start_us, split.paced_since_ms) == (5_000_000, 5000)


def test_a_restored_bounded_read_ends() -> None:
    """FLINK-31006: also when nothing is pending any more."""
    harness = drive(source(numRows=10), Boundedness.BOUNDED, 1)
    harness.start()
    harness.register_reader(0)
    harness.request_split(0)
    restored = drive(source(numRows=10), Boundedness.BOUNDED, 1, harness.snapshot())
    restored.start()
    restored.register_reader(0)
    restored.request_split(0)
    assert restored.no_more_splits == {0} and not restored.assigned[0]


@pytest.mark.parametrize("parallelism", [1, 2, 4])
def test_a_paced_read_with_an_end_gives_the_rows_of_a_batch_read(parallelism: int) -> None:
    options = {"numRows": 1000, "rowsPerSecond": 100, "numPartitions": 3}
    late = VirtualClock(0)
    paced = source(late, **options)
    with SourceHarness(source(**options), schema=SCHEMA) as harness:
        harness.run_to_end()
        expected = harness.rows()
    with SourceHarness(paced, schema=SCHEMA, boundedness=UNBOUNDED, parallelism=parallelism) as harness:
        late.advance_to(60_000)
        harness.run_to_end()
        assert_same_rows(harness.rows(), expected)
    assert len(expected) == 1000
