"""Which partition has which rows, and when they are due."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.datagen.partitions import Pace, Partitions

SKEWS = st.sampled_from([0.0, 0.5, 1.0, 2.5])


@given(count=st.integers(1, 12), skew=SKEWS, total=st.integers(0, 5000))
def test_every_row_belongs_to_exactly_one_partition(count: int, skew: float, total: int) -> None:
    partitions = Partitions(count, skew)
    indices = [partitions.row_indices(p, 0, partitions.rows_below(p, total)) for p in range(count)]
    assert sorted(np.concatenate(indices).tolist()) == list(range(total))
    assert all((np.diff(each) > 0).all() for each in indices)


@given(count=st.integers(1, 12), skew=SKEWS, partition=st.integers(0, 11), position=st.integers(0, 10**12))
def test_a_single_row_index_is_the_one_of_the_array(count: int, skew: float, partition: int, position: int) -> None:
    partitions = Partitions(count, skew)
    partition %= count
    index = partitions.row_index(partition, position)
    assert partitions.row_indices(partition, position, position + 1).tolist() == [index]
    assert partitions.rows_below(partition, index) == position
    assert partitions.rows_below(partition, index + 1) == position + 1


def test_skewed_shares_follow_zipf_and_stay_in_step() -> None:
    partitions = Partitions(4, 1.0)
    total = 1_000_000
    rows = np.array([partitions.rows_below(p, total) for p in range(4)])
    expected = total / np.arange(1, 5) / (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert np.allclose(rows, expected, rtol=0.01)
    half = np.array([partitions.rows_below(p, total // 2) for p in range(4)])
    assert np.allclose(half * 2, rows, rtol=0.01)


def test_an_extreme_skew_leaves_no_partition_without_rows() -> None:
    partitions = Partitions(50, 10.0)
    assert all(partitions.rows_below(p, 2000) >= 1 for p in range(50))


@given(
    rate=st.integers(1, 10**9), ramp_ms=st.integers(0, 10**6), row=st.integers(0, 10**12), later=st.integers(1, 10**6)
)
def test_a_row_is_due_at_its_time_and_not_before(rate: int, ramp_ms: int, row: int, later: int) -> None:
    pace = Pace(rows_per_second=rate, ramp_up_ms=ramp_ms)
    due_ms = pace.due_ms(row)
    assert pace.rows_due(due_ms) > row
    assert pace.rows_due(due_ms - 1) <= row
    assert pace.rows_due(due_ms + later) >= pace.rows_due(due_ms)


def test_the_full_rate_without_ramp_up() -> None:
    pace = Pace(rows_per_second=10)
    assert [pace.rows_due(ms) for ms in (-5, 0, 99, 100, 1000, 60_000)] == [0, 0, 0, 1, 10, 600]


def test_half_as_many_rows_come_during_ramp_up() -> None:
    pace = Pace(rows_per_second=1000, ramp_up_ms=10_000)
    assert [pace.rows_due(s * 1000) for s in (0, 2, 5, 10, 11, 20)] == [0, 200, 1250, 5000, 6000, 15_000]


@given(rate=st.integers(1, 10**9), row=st.integers(0, 10**10))
def test_the_row_of_an_event_time_is_the_first_that_is_not_earlier(rate: int, row: int) -> None:
    pace = Pace(rows_per_second=rate)
    time_us = int(pace.event_us(np.array([row]))[0])
    found = pace.row_index_at(time_us)
    assert int(pace.event_us(np.array([found]))[0]) >= time_us
    if found:
        assert int(pace.event_us(np.array([found - 1]))[0]) < time_us
    assert found <= row


@pytest.mark.parametrize("event_us", [-10, 0])
def test_no_row_is_before_the_first(event_us: int) -> None:
    assert Pace(rows_per_second=7).row_index_at(event_us) == 0
