"""Orders that are found by one sort of numbers are those of a stable sort."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.state.arrays import (
    distinct,
    equal_values,
    in_one_piece,
    one_array,
    order_of,
    order_of_numbers,
    order_of_times,
)

HASHES = st.integers(0, 2**64 - 1) | st.integers(0, 3) | st.integers(2**64 - 4, 2**64 - 1)
TIMES = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 3)


@given(hashes=st.lists(HASHES, max_size=40))
def test_hashes(hashes: list[int]) -> None:
    """Also such as differ in bits that give way to places, and equal ones."""
    array = np.array(hashes, np.uint64)
    assert order_of(array).tolist() == np.argsort(array, kind="stable").tolist()
    assert distinct(array).tolist() == sorted(set(hashes))


@given(numbers=st.lists(TIMES, max_size=40))
def test_numbers(numbers: list[int]) -> None:
    array = np.array(numbers, np.int64)
    assert order_of_numbers(array).tolist() == np.argsort(array, kind="stable").tolist()


@given(rows=st.lists(st.tuples(TIMES, HASHES), min_size=1, max_size=40), ordered=st.booleans())
def test_times_and_hashes(rows: list[tuple[int, int]], ordered: bool) -> None:
    if ordered:
        rows.sort(key=lambda row: row[0])
    times, hashes = np.array([row[0] for row in rows]), np.array([row[1] for row in rows], np.uint64)
    assert order_of_times(times, hashes).tolist() == np.lexsort((hashes, times)).tolist()


def test_rows_of_few_times_are_sorted_time_by_time() -> None:
    draw = np.random.default_rng(1)
    times, hashes = np.sort(draw.integers(0, 5, 5_000)), draw.integers(0, 2**64, 5_000, np.uint64)
    assert order_of_times(times, hashes).tolist() == np.lexsort((hashes, times)).tolist()


def test_equal_values() -> None:
    nan = float("nan")
    numbers = pa.array([1.0, nan, None, 0.0, None, nan])
    assert equal_values(numbers, pa.array([1.0, nan, None, -0.0, 2.0, 2.0])).tolist() == [True] * 4 + [False] * 2
    assert equal_values(pa.nulls(2), pa.nulls(2)).tolist() == [True, True]


def test_one_piece() -> None:
    table = pa.concat_tables([pa.table({"a": [1]}), pa.table({"a": [2]})])
    assert in_one_piece(table).column("a").num_chunks == 1
    assert one_array(table.column("a")).to_pylist() == [1, 2]
    whole = in_one_piece(table)
    assert in_one_piece(whole) is whole
