"""Rows that were under way, read in the columns that their exchange has now."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import StoredStateError
from headgate.runtime.restored import _with_columns_of_now

BEFORE = pa.record_batch({"k": pa.array([1, 2], pa.int32()), "n": pa.array([0.5, None], pa.float32())})


def test_columns_are_wider_and_more() -> None:
    now = pa.schema([("new", pa.string()), ("n", pa.float64()), ("k", pa.int64())])
    assert _with_columns_of_now(BEFORE, now, "by-k").to_pylist() == [
        {"new": None, "n": 0.5, "k": 1},
        {"new": None, "n": None, "k": 2},
    ]


def test_columns_that_nobody_wants_any_more_are_left_out() -> None:
    assert _with_columns_of_now(BEFORE, pa.schema([("k", pa.int64())]), "by-k").to_pylist() == [{"k": 1}, {"k": 2}]


@pytest.mark.parametrize(
    "fields", [[("k", pa.int64()), ("m", pa.float32())], [("k", pa.list_(pa.int32())), ("n", pa.float32())]]
)
def test_a_column_that_may_have_become_another_is_named(fields: list[tuple[str, pa.DataType]]) -> None:
    with pytest.raises(StoredStateError, match=r"'by-k' in the columns k int32, n float; now it has k .*savepoint"):
        _with_columns_of_now(BEFORE, pa.schema(fields), "by-k")
