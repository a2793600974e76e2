"""Groups by numbers have what Arrow's ``group_by`` has, or are not made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.operators.windows import dense_groups as module
from headgate.operators.windows.dense_groups import Reduction, dense_groups

ROWS = 5_000
WANTED: list[tuple[str, Reduction]] = [
    ("v", "sum"), ("d", "sum"), ("v", "min"), ("v", "max"), ("at", "min"), ("at", "max"), ("day", "max"),
    ("small", "min"),
]  # fmt: skip


def table(seed: int, *, keys: int, buckets: int, run: int, nulls: float, chunks: int) -> Any:
    random = np.random.default_rng(seed)
    whole = random.integers(-(2**40), 2**40, ROWS)
    bucket = np.sort(random.integers(0, buckets, -(-ROWS // run)) * 10_000_000 - 50_000_000).repeat(run)[:ROWS]
    missing = random.random(ROWS) < nulls
    made = pa.table(
        {
            "bucket": bucket,
            "key": random.integers(-keys // 2, keys - keys // 2, ROWS).astype(np.int32),
            "v": pa.array(whole, mask=missing),
            "d": pa.array(random.random(ROWS), mask=missing),
            "at": pa.array(whole, pa.timestamp("us", "UTC"), mask=missing),
            "day": pa.array((whole % 20_000).astype(np.int32), pa.int32(), mask=missing).cast(pa.date32()),
            "small": pa.array((whole % 100).astype(np.int16), pa.int16(), mask=missing),
        }
    )
    step = -(-ROWS // chunks)
    return pa.concat_tables([made.slice(begin, step) for begin in range(0, ROWS, step)])


def by_arrow(table: Any, keys: list[str]) -> Any:
    return table.group_by(keys, use_threads=False).aggregate(WANTED).sort_by([(key, "ascending") for key in keys])


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    keys=st.sampled_from([1, 7, 3_000, 1 << 20]),
    buckets=st.sampled_from([1, 3, 40]),
    run=st.sampled_from([1, 100, ROWS]),
    nulls=st.sampled_from([0.0, 0.1, 1.0]),
    chunks=st.integers(1, 3),
)
def test_whatever_the_rows_groups_are_those_of_arrow(
    seed: int, keys: int, buckets: int, run: int, nulls: float, chunks: int
) -> None:
    rows = table(seed, keys=keys, buckets=buckets, run=run, nulls=nulls, chunks=chunks)
    for by in (["bucket", "key"], ["key", "bucket"], ["key"], ["bucket"]):
        made = dense_groups(rows, by, WANTED)
        if made is None:
            continue
        wanted = by_arrow(rows, by)
        found = pa.table([*made[0], *made[1]], names=wanted.column_names)
        assert found.equals(wanted.select(found.column_names)), "in the order of their keys"


def test_they_are_made_of_buckets_and_keys_that_lie_close_together() -> None:
    assert dense_groups(table(1, keys=3_000, buckets=3, run=100, nulls=0, chunks=2), ["bucket", "key"], WANTED)


@pytest.mark.parametrize("first", [0, -5])
def test_of_a_range_of_keys_only_those_that_are_there_count(first: int) -> None:
    """One subtask of sixteen has a sixteenth of the keys, and rows of many windows."""
    draw = np.random.default_rng(3)
    there = draw.choice(ROWS, 100, replace=False) + first
    buckets = np.sort(draw.integers(0, 40, ROWS)) * 10_000_000
    rows = pa.table({"bucket": buckets, "key": draw.choice(there, ROWS), "v": draw.integers(-9, 9, ROWS)})
    wanted: list[tuple[str, Reduction]] = [("v", "sum"), ("v", "max")]
    made = dense_groups(rows, ["bucket", "key"], wanted)
    assert made is not None
    by_arrow = rows.group_by(["bucket", "key"], use_threads=False).aggregate(wanted)
    by_arrow = by_arrow.sort_by([("bucket", "ascending"), ("key", "ascending")])
    assert pa.table([*made[0], *made[1]], names=by_arrow.column_names).equals(by_arrow)


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows.slice(0, module._LEAST_ROWS - 1),
        lambda rows: rows.set_column(1, "key", pa.array(np.arange(ROWS) * 1_000)),
        lambda rows: rows.set_column(1, "key", pa.array([None, *range(ROWS - 1)])),
        lambda rows: rows.set_column(1, "key", rows["key"].cast(pa.string())),
        lambda rows: rows.set_column(1, "key", rows["key"].cast(pa.float64())),
        lambda rows: rows.set_column(2, "v", rows["v"].cast(pa.decimal128(38, 0))),
        lambda rows: rows.set_column(2, "v", rows["v"].cast(pa.float64())),
    ],
    ids=["few rows", "far apart", "null", "text", "double", "decimal", "least double"],
)
def test_what_arrow_is_to_do_is_left_to_it(change: Any) -> None:
    """NaN is a number for least and greatest doubles, and 0.0 is -0.0 for keys: Arrow knows that."""
    rows = change(table(1, keys=100, buckets=3, run=100, nulls=0, chunks=1))
    assert dense_groups(rows, ["bucket", "key"], WANTED) is None


def test_sums_wrap_around_as_those_of_arrow_do() -> None:
    """Who wants to know whether they did looks before."""
    rows = pa.table({"key": np.zeros(ROWS, np.int64), "v": np.full(ROWS, 2**62)})
    made = dense_groups(rows, ["key"], [("v", "sum")])
    assert made is not None
    assert made[1][0].equals(rows.group_by("key").aggregate([("v", "sum")]).column("v_sum").combine_chunks())
