"""Plans, lag, seeking, options and stored bytes of `headgate.datagen`."""

import pickle
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.datagen.columns import RowGenerator
from headgate.connectors.datagen.partitions import Pace
from headgate.connectors.datagen.split import SPLIT_SERIALIZER, STATE_SERIALIZER, DatagenSplit, DatagenState
from headgate.errors import CorruptStateError, OptionError, UnsupportedVersionError
from headgate.source import (
    PlanLimits,
    SupportsBoundedPlans,
    SupportsEventTimeSeek,
    SupportsLag,
    SupportsSplitReassignmentOnRecovery,
)

GOLDEN = Path(__file__).parents[3] / "golden"
START_MS = 1_767_225_600_000


def partition(number: int, position: int = 0, stop: int | None = None) -> DatagenSplit:
    return DatagenSplit(
        split_id=f"partition-{number}", partition=number, position=position, stop=stop, paced_since_ms=START_MS
    )


def source(**options: object) -> DatagenSource:
    return DatagenSource({name: str(value) for name, value in options.items()})


def test_what_the_source_can_do() -> None:
    made = source()
    for ability in (SupportsBoundedPlans, SupportsLag, SupportsEventTimeSeek, SupportsSplitReassignmentOnRecovery):
        assert isinstance(made, ability)
    assert made.schema() == "timestamp timestamp, value bigint"
    assert pickle.loads(pickle.dumps(made)).options["rowsPerSecond"] == 1


def test_a_plan_ends_at_the_rows_that_are_due() -> None:
    made = source(rowsPerSecond=10, numPartitions=2)
    ranges = made.plan_ranges([partition(0), partition(1)], PlanLimits(), START_MS + 1050)
    assert [(each.split.position, each.split.stop) for each in ranges] == [(0, 5), (0, 5)]
    assert all(each.split.paced_since_ms is None for each in ranges)
    assert [each.rest for each in ranges] == [partition(0, 5), partition(1, 5)]
    assert made.plan_ranges([partition(0, 5), partition(1, 5)], PlanLimits(), START_MS + 1050) == []


def test_a_plan_during_ramp_up_is_slower() -> None:
    made = source(rowsPerSecond=100, rampUpTime="10 seconds")
    (planned,) = made.plan_ranges([partition(0)], PlanLimits(), START_MS + 5000)
    assert planned.split.stop == 125


def test_a_clock_that_was_set_back_plans_nothing() -> None:
    assert source(rowsPerSecond=10).plan_ranges([partition(0, 50)], PlanLimits(), START_MS + 1000) == []
    assert source(rowsPerSecond=10).lag([partition(0, 50)], START_MS + 1000) == {"rowsBehind": 0}


def test_the_last_range_has_no_rest() -> None:
    made = source(rowsPerSecond=10, numRows=7)
    (planned,) = made.plan_ranges([partition(0, 3, stop=7)], PlanLimits(), START_MS + 60_000)
    assert (planned.split.stop, planned.rest) == (7, None)
    (empty,) = made.plan_ranges([partition(0, 0, stop=0)], PlanLimits(), START_MS)
    assert (empty.split.stop, empty.rest) == (0, None)


@given(
    positions=st.lists(st.integers(0, 200), min_size=1, max_size=6),
    limit=st.integers(1, 500),
    seconds=st.integers(0, 100),
    skew=st.sampled_from([0, 1.5]),
)
def test_limits_are_kept_and_shared(positions: list[int], limit: int, seconds: int, skew: float) -> None:
    made = source(rowsPerSecond=10, numPartitions=len(positions), partitionSkew=skew)
    splits = [partition(number, position) for number, position in enumerate(positions)]
    now_ms = START_MS + seconds * 1000
    every = {each.split.split_id: each for each in made.plan_ranges(splits, PlanLimits(), now_ms)}
    limited = {each.split.split_id: each for each in made.plan_ranges(splits, PlanLimits(max_rows=limit), now_ms)}
    due = sum(each.split.stop - each.split.position for each in every.values())
    planned = {name: each.split.stop - each.split.position for name, each in limited.items()}
    assert due == made.lag(splits, now_ms)["rowsBehind"]
    assert sum(planned.values()) == min(limit, due)
    # Nobody is given less than another one, unless that is all it has.
    for name, each in every.items():
        if planned.get(name, 0) < each.split.stop - each.split.position:
            assert planned.get(name, 0) >= max(planned.values()) - 1


def test_a_plan_of_a_plan_stays_within_it() -> None:
    """AvailableNow fixes a stop first and plans batches within it, however late it is by then."""
    made = source(rowsPerSecond=10)
    (target,) = made.plan_ranges([partition(0)], PlanLimits(), START_MS + 1000)
    (first,) = made.plan_ranges([target.split], PlanLimits(max_rows=4), START_MS + 90_000)
    assert (first.split.stop, first.rest) == (4, msgspec.structs.replace(target.split, position=4))
    assert first.rest is not None
    (last,) = made.plan_ranges([first.rest], PlanLimits(max_rows=40), START_MS + 90_000)
    assert (last.split.position, last.split.stop, last.rest) == (4, 10, None)


def test_the_next_event_time_of_each_split_that_has_a_row_due() -> None:
    made = DatagenSource(
        {"rowsPerSecond": "10", "numPartitions": "2", "eventTimeColumn": "timestamp", "startTimestamp": "0"},
        lambda: START_MS + 1050,
    )
    # Rows 0 to 9 are due; 0 2 4 ... are of partition 0 and 1 3 5 ... of partition 1.
    splits = [partition(0), partition(1, 3)]
    assert made.next_event_times(splits) == {"partition-0": 0, "partition-1": 700}
    assert made.next_event_times([partition(0, 5), partition(1, 5, stop=5)]) == {}


def test_event_times_that_are_drawn_are_not_reported() -> None:
    assert source().next_event_times([partition(0, 0, stop=5)]) is None
    drawn = source(eventTimeColumn="At", **{"fields.at.kind": "random"})
    assert drawn.next_event_times([partition(0, 0, stop=5)]) is None
    (planned,) = drawn.plan_ranges([partition(0)], PlanLimits(before_event_time_ms=0), START_MS + 1000)
    assert planned.split.stop == 1


@given(
    positions=st.lists(st.integers(0, 50), min_size=1, max_size=4),
    rate=st.sampled_from([1, 3, 10, 999, 5000]),
    drift_ms=st.integers(1, 3000),
    skew=st.sampled_from([0, 1.5]),
    start_ms=st.sampled_from([0, -5000, 1500]),
)
def test_a_plan_has_all_rows_before_an_event_time_and_no_other(
    positions: list[int], rate: int, drift_ms: int, skew: float, start_ms: int
) -> None:
    made = source(
        rowsPerSecond=rate, numPartitions=len(positions), partitionSkew=skew, eventTimeColumn="timestamp",
        startTimestamp=start_ms,
    )  # fmt: skip
    splits = [
        DatagenSplit(
            split_id=str(p), partition=p, position=position, stop=position + 40, event_start_us=start_ms * 1000
        )
        for p, position in enumerate(positions)
    ]
    following = made.next_event_times(splits)
    assert following is not None
    before_ms = min(time_ms for time_ms in following.values() if time_ms is not None) + drift_ms
    plan = made.plan_ranges(splits, PlanLimits(before_event_time_ms=before_ms), START_MS)
    assert plan, "the split that lags most is always read on"
    generator = RowGenerator(pa.schema([("timestamp", pa.timestamp("us"))]), made.options, made._pace, start_ms * 1000)
    taken = {each.split.split_id: each.split.stop for each in plan}
    for split in splits:
        indices = made._partitions.row_indices(split.partition, split.position, split.position + 40)
        times = generator.batch(indices).column(0).cast(pa.int64()).to_pylist()
        before = sum(time_us < before_ms * 1000 for time_us in times)
        assert taken.get(split.split_id, split.position) == split.position + before


@pytest.mark.parametrize(
    ("given_start", "expected_us"),
    [("1500", 1_500_000), ("2026-01-01", START_MS * 1000), ("2026-01-01T01:00:00+01:00", START_MS * 1000)],
)
def test_the_first_event_time(given_start: str, expected_us: int) -> None:
    assert source(startTimestamp=given_start).options["startTimestamp"] == expected_us


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("rowsPerSecond", "0", "whole number from 1"),
        ("numPartitions", "-1", "whole number from 1"),
        ("startTimestamp", "soon", "or now"),
        ("rowsPerBatch", "5", "maxRowsPerTrigger"),
        ("advanceMillisPerBatch", "5", "rowsPerSecond"),
        ("rowPerSecond", "5", "Did you mean 'rowsPerSecond'"),
        ("rampUpTime", "fast", "10 seconds"),
    ],
)
def test_bad_options_say_what_is_allowed(name: str, value: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DatagenSource({name: value})


def test_options_that_make_the_rows_may_not_change() -> None:
    fixed = source().options.fixed
    assert {"seed", "numPartitions", "numRows", "rowsPerSecond", "startTimestamp", "fields.*.min"} <= fixed.keys()
    assert "maxRowsPerTrigger" not in fixed


def test_stored_splits_and_states_are_still_read() -> None:
    split = DatagenSplit(
        split_id="partition-3",
        partition=3,
        position=17,
        stop=1000,
        event_start_us=START_MS * 1000,
        paced_since_ms=START_MS + 123,
    )
    state = DatagenState(pending=(DatagenSplit(split_id="partition-0", partition=0),))
    for serializer, value, file in ((SPLIT_SERIALIZER, split, "split"), (STATE_SERIALIZER, state, "state")):
        stored = (GOLDEN / f"datagen-{file}-v1.json").read_bytes()
        assert serializer.deserialize(stored) == value
        assert serializer.serialize(value) == stored
        with pytest.raises(UnsupportedVersionError, match="version 2"):
            serializer.deserialize(stored.replace(b'"v":1', b'"v":2'))
        with pytest.raises(CorruptStateError):
            serializer.deserialize(stored[:-3])


def test_the_schema_of_rate_is_generated_as_rate_does() -> None:
    schema = pa.schema([("timestamp", pa.timestamp("us", "UTC")), ("value", pa.int64())])
    batch = RowGenerator(schema, source().options, Pace(rows_per_second=1), 0).batch(np.arange(3))
    assert batch.column("value").to_pylist() == [0, 1, 2]
