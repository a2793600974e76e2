"""The split reader of `headgate.datagen`: the same rows however they are cut, restored and interleaved; and in time."""

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.datagen.columns import RowGenerator
from headgate.connectors.datagen.partitions import Pace, Partitions
from headgate.connectors.datagen.source import DatagenSource
from headgate.connectors.datagen.split import DatagenSplit
from headgate.connectors.datagen.split_reader import DatagenSplitReader
from headgate.testing import VirtualClock

SCHEMA = pa.schema(
    [("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64()), ("user", pa.string()), ("x", pa.float64())]
)
OPTIONS = {"fields.user.cardinality": "9", "fields.user.skew": "1.0", "fields.x.null-rate": "0.3", "seed": "5"}


def reader(partitions: Partitions, batch_rows: int | None = None, rate: int = 10, clock: VirtualClock | None = None):
    pace = Pace(rows_per_second=rate)
    options = DatagenSource(OPTIONS).options
    return DatagenSplitReader(
        lambda start_us: RowGenerator(SCHEMA, options, pace, start_us),
        partitions,
        pace,
        batch_rows=batch_rows,
        clock_ms=clock or VirtualClock(),
    )


def read_all(made: DatagenSplitReader, splits: Sequence[DatagenSplit]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    made.handle_splits_changes(splits)
    left = {split.split_id for split in splits}
    while left:
        for each in made.fetch(0):
            rows += [] if each.batch is None else each.batch.to_pylist()
            if each.finished:
                left.discard(each.split.split_id)
    return rows


def by_value(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: row["value"])


EXPECTED = by_value(
    read_all(reader(Partitions(1)), [DatagenSplit(split_id="all", partition=0, stop=700)]),
)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 7),
    skew=st.sampled_from([0.0, 1.0]),
    batch_rows=st.integers(1, 300),
    cuts=st.lists(st.integers(1, 699), max_size=4),
    restores=st.lists(st.integers(1, 4), max_size=5),
)
def test_the_rows_are_the_same_however_they_are_read(
    count: int, skew: float, batch_rows: int, cuts: list[int], restores: list[int]
) -> None:
    partitions = Partitions(count, skew)
    edges = [0, *sorted(set(cuts)), 700]
    state: dict[str, DatagenSplit] = {}
    for p in range(count):
        for low, high in pairwise(edges):
            first, stop = partitions.rows_below(p, low), partitions.rows_below(p, high)
            split_id = f"{p}-{low}"
            state[split_id] = DatagenSplit(split_id=split_id, partition=p, position=first, stop=stop)
    rows: list[dict[str, object]] = []
    for fetches in [*restores, 1 << 30]:
        made = reader(partitions, batch_rows)
        made.handle_splits_changes(list(state.values()))
        for _ in range(fetches):
            for each in made.fetch(0) if state else ():
                rows += [] if each.batch is None else each.batch.to_pylist()
                state[each.split.split_id] = each.split
                if each.finished:
                    del state[each.split.split_id]
            if not state:
                break
        made.close()
    assert by_value(rows) == EXPECTED


def test_splits_take_turns() -> None:
    made = reader(Partitions(3), batch_rows=2)
    made.handle_splits_changes([DatagenSplit(split_id=str(p), partition=p, stop=4) for p in range(3)])
    assert [made.fetch(0)[0].split.split_id for _ in range(6)] == ["0", "1", "2", "0", "1", "2"]


def test_an_empty_split_ends_without_a_batch() -> None:
    made = reader(Partitions(1))
    made.handle_splits_changes([DatagenSplit(split_id="0", partition=0, position=4, stop=4)])
    (fetched,) = made.fetch(0)
    assert fetched.finished and fetched.batch is None


@pytest.mark.parametrize(
    ("length", "rows"),
    [(1, 65_536), (12, 65_536), (500, (2 << 20) // (8 + 8 + 4 + 500))],
)
def test_a_batch_is_65536_rows_or_two_mebibytes(length: int, rows: int) -> None:
    schema = pa.schema([("value", pa.int64()), ("user", pa.string()), ("at", pa.timestamp("us", "UTC"))])
    options, pace = DatagenSource({"fields.user.length": str(length)}).options, Pace(rows_per_second=10)
    made = DatagenSplitReader(lambda start_us: RowGenerator(schema, options, pace, start_us), Partitions(1), pace)
    made.handle_splits_changes([DatagenSplit(split_id="0", partition=0, stop=1_000_000)])
    (fetched,) = made.fetch(0)
    assert fetched.batch is not None
    assert fetched.batch.num_rows == rows


def test_a_paced_split_waits_for_the_clock() -> None:
    clock = VirtualClock(10_000)
    made = reader(Partitions(1), clock=clock)
    made.handle_splits_changes([DatagenSplit(split_id="0", partition=0, paced_since_ms=10_000)])
    assert made.fetch(0) == []
    clock.advance(350)
    (fetched,) = made.fetch(0)
    assert fetched.batch is not None
    assert fetched.batch.num_rows == 3 and not fetched.finished
    assert made.fetch(0) == []
    clock.advance_to(20_000)
    (fetched,) = made.fetch(0)
    assert fetched.split.position == 100


def test_a_paced_split_with_a_stop_ends_there() -> None:
    clock = VirtualClock(60_000)
    made = reader(Partitions(1), clock=clock)
    made.handle_splits_changes([DatagenSplit(split_id="0", partition=0, stop=5, paced_since_ms=0)])
    (fetched,) = made.fetch(0)
    assert fetched.finished and fetched.split.position == 5


def test_a_wake_up_ends_the_wait() -> None:
    made = reader(Partitions(1))
    made.handle_splits_changes([DatagenSplit(split_id="0", partition=0, paced_since_ms=0)])
    made.wake_up()
    assert made.fetch(600_000) == []  # the test's own time-out would end a wait


def test_every_row_of_a_batch_has_a_position() -> None:
    made = reader(Partitions(2), batch_rows=5)
    made.handle_splits_changes([DatagenSplit(split_id="1", partition=1, position=3, stop=20)])
    (fetched,) = made.fetch(0)
    assert fetched.batch is not None and fetched.position_at is not None
    for rows in range(5):
        again = reader(Partitions(2), batch_rows=5)
        again.handle_splits_changes([fetched.position_at(rows)])
        (rest,) = again.fetch(0)
        assert rest.batch is not None
        assert rest.batch.column("value")[0] == fetched.batch.column("value")[rows]
    assert fetched.position_at(5) == fetched.split


def test_paused_splits_emit_nothing_and_resume_where_they_were() -> None:
    made = reader(Partitions(2), batch_rows=2)
    splits = [DatagenSplit(split_id=str(p), partition=p, stop=6) for p in range(2)]
    made.handle_splits_changes(splits)
    unknown = DatagenSplit(split_id="gone", partition=0)
    made.pause_or_resume_splits([splits[0], unknown], [])
    assert [made.fetch(0)[0].split.split_id for _ in range(3)] == ["1", "1", "1"]
    assert made.fetch(0) == []
    made.pause_or_resume_splits([], [splits[0], unknown])
    (fetched,) = made.fetch(0)
    assert fetched.batch is not None
    assert fetched.batch.column("value").to_pylist() == [0, 2]


@pytest.mark.parametrize("rate", [1, 1_000_000])
def test_the_wait_ends_when_the_next_row_is_due(rate: int) -> None:
    clock = VirtualClock()
    made = reader(Partitions(2), rate=rate, clock=clock)
    made.handle_splits_changes([DatagenSplit(split_id="1", partition=1, paced_since_ms=0)])
    assert made._wait_ms() == (2000 if rate == 1 else 5)
