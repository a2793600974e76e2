"""Columns become Python's values as Arrow has them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.transform_with_state.user_rows import values_of

NEW_YORK, HOUR_US = "America/New_York", 3_600_000_000
CLOCKS_PUT_BACK_US = 1_730_613_600_000_000  # 2024-11-03, 06:00 UTC
MICROS = st.none() | st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000)


@pytest.mark.parametrize("zone", [None, "UTC", NEW_YORK, "Australia/Lord_Howe", "+05:30"])
@given(micros=st.lists(MICROS, max_size=9), pieces=st.integers(0, 4))
def test_timestamps(zone: str | None, micros: list[int | None], pieces: int) -> None:
    column = pa.array(micros, pa.int64()).cast(pa.timestamp("us", zone))
    given_column = pa.chunked_array([column[:pieces], column[pieces:]])
    found, expected = values_of(given_column), given_column.to_pylist()
    assert found == expected
    assert [(each.tzinfo, each.fold) for each in found if each] == [
        (each.tzinfo, each.fold) for each in expected if each
    ]


def test_when_clocks_are_put_back_and_forward() -> None:
    micros = np.arange(-4, 4) * HOUR_US // 2 + CLOCKS_PUT_BACK_US
    for first in (micros, micros - 238 * 24 * HOUR_US):
        column = pa.chunked_array([pa.array(first).cast(pa.timestamp("us", NEW_YORK))])
        found = values_of(column)
        assert [each.utcoffset() for each in found] == [each.utcoffset() for each in column.to_pylist()]
        assert [round(each.timestamp() * 1_000_000) for each in found] == first.tolist()


@pytest.mark.parametrize("micros", [-(2**62), 2**62])
def test_a_time_that_python_does_not_have_is_the_error_that_it_was(micros: int) -> None:
    column = pa.chunked_array([pa.array([0, micros]).cast(pa.timestamp("us", "UTC"))])
    with pytest.raises((ValueError, OverflowError)):
        column.to_pylist()
    with pytest.raises((ValueError, OverflowError)):
        values_of(column)


def test_what_is_no_time() -> None:
    for column in (pa.array([1, None]), pa.array(["a", None]), pa.array([None, None], pa.timestamp("us"))):
        assert values_of(pa.chunked_array([column])) == column.to_pylist()
