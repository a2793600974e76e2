"""The values of generated columns: pure functions of seed, column and row index, as the options want them."""

import json
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.datagen import DatagenSource
from headgate.connectors.datagen.columns import RowGenerator
from headgate.connectors.datagen.partitions import Pace
from headgate.errors import OptionError

GOLDEN = Path(__file__).parents[3] / "golden"
TIMESTAMP = pa.timestamp("us", "UTC")
TYPES = {
    "bool": pa.bool_(),
    "i8": pa.int8(),
    "i16": pa.int16(),
    "i32": pa.int32(),
    "i64": pa.int64(),
    "f32": pa.float32(),
    "f64": pa.float64(),
    "dec": pa.decimal128(12, 3),
    "big_dec": pa.decimal128(38, 10),
    "text": pa.string(),
    "bytes": pa.binary(),
    "day": pa.date32(),
    "at": TIMESTAMP,
    "local": pa.timestamp("us"),
}
ALL = pa.schema(list(TYPES.items()))


def generator(schema: pa.Schema, start_us: int = 0, rate: int = 1, **fields: Any) -> RowGenerator:
    options = {name.replace("__", "."): str(value) for name, value in fields.items()}
    options = {name if "." not in name else f"fields.{name}": value for name, value in options.items()}
    return RowGenerator(schema, DatagenSource(options).options, Pace(rows_per_second=rate), start_us)


def column(data_type: pa.DataType, rows: int = 1000, start_us: int = 0, rate: int = 1, **options: Any) -> pa.Array:
    """Generate a column ``c``; its options without prefix, ``null_rate`` for ``null-rate``."""
    seed = options.pop("seed", 0)
    fields = {f"c.{name.replace('_', '-')}": value for name, value in options.items()}
    schema = pa.schema([("c", data_type)])
    made = generator(schema, start_us, rate, seed=seed, **fields).batch(np.arange(rows))
    made.validate(full=True)
    return made.column(0)


@pytest.mark.parametrize("kind", ["sequence", "random"])
def test_every_type_is_generated_and_valid(kind: str) -> None:
    options = {f"{name}.kind": kind for name in TYPES} | {f"{name}.null-rate": 0.3 for name in TYPES}
    batch = generator(ALL, seed=3, **options).batch(np.arange(2000) * 100_001)
    batch.validate(full=True)
    assert batch.schema == ALL
    assert all(500 < each.null_count < 700 for each in batch.columns)
    assert all(len(each.unique()) > 2 for each in batch.columns)


def test_the_rows_of_a_seed_never_change() -> None:
    """What is stored was generated once; other rows for the same seed would break whoever relies on them."""
    batch = generator(ALL, seed=7, **{"text.null-rate": 0.5, "i32.cardinality": 5, "i32.skew": 1.5}).batch(
        np.array([0, 1, 2, 1_000_000, 10**10])
    )
    found = json.loads(json.dumps(batch.to_pylist(), default=str))
    assert found == json.loads((GOLDEN / "datagen-rows-v1.json").read_text())


@settings(max_examples=30)
@given(rows=st.lists(st.integers(0, 10**9), max_size=50), seed=st.integers(0, 3))
def test_a_row_is_the_same_alone_and_among_others(rows: list[int], seed: int) -> None:
    made = generator(ALL, seed=seed, **{"f64.null-rate": 0.5, "text.cardinality": 20, "text.skew": 1})
    together = made.batch(np.array(rows, dtype=np.int64)).to_pylist()
    assert together == [made.batch(np.array([row])).to_pylist()[0] for row in rows]


def test_a_column_does_not_depend_on_the_other_columns() -> None:
    alone = generator(pa.schema([("TEXT", pa.string())])).batch(np.arange(10)).column(0)
    assert alone.equals(generator(ALL).batch(np.arange(10)).column("text"))


def test_seeds_and_columns_differ() -> None:
    assert column(pa.int64(), seed=1) != column(pa.int64(), seed=2)
    two = generator(pa.schema([("a", pa.int64()), ("b", pa.int64())])).batch(np.arange(100))
    assert two.column(0) != two.column(1)


def test_random_numbers_fill_their_range_evenly() -> None:
    counts = Counter(column(pa.int32(), 60_000, min=-2, max=3).to_pylist())
    assert sorted(counts) == [-2, -1, 0, 1, 2, 3]
    assert all(9_500 < each < 10_500 for each in counts.values())
    units = column(pa.float64(), 50_000, min=10, max=20).to_numpy()
    assert units.min() >= 10 and units.max() < 20 and abs(units.mean() - 15) < 0.1


def test_the_whole_range_of_bigint_does_not_overflow() -> None:
    values = column(pa.int64(), 10_000).to_numpy()
    assert values.min() < -(1 << 62) and values.max() > 1 << 62
    wide = column(pa.int64(), 10_000, min=-(1 << 63), max=(1 << 63) - 2).to_numpy()
    assert wide.min() < -(1 << 62) and wide.max() > 1 << 62


def test_sequences_count_and_start_again_after_max() -> None:
    assert column(pa.int8(), 5, kind="sequence", min=3, max=5).to_pylist() == [3, 4, 5, 3, 4]
    assert column(pa.int64(), 4, kind="sequence", cardinality=2).to_pylist() == [0, 1, 0, 1]
    assert column(pa.string(), 3, kind="sequence", min=9).to_pylist() == ["9", "10", "11"]
    assert column(pa.string(), 2, kind="sequence", min=9, length=4).to_pylist() == ["0009", "0010"]
    assert column(pa.binary(), 2, kind="sequence", min=255, length=3).to_pylist() == [b"\0\0\xff", b"\0\1\0"]
    assert column(pa.binary(), 1, kind="sequence", min=1, length=10).to_pylist() == [b"\0" * 9 + b"\1"]
    assert column(pa.bool_(), 3, kind="sequence").to_pylist() == [False, True, False]
    assert column(pa.float32(), 3, kind="sequence", min=0.5).to_pylist() == [0.5, 1.5, 2.5]
    assert column(pa.decimal128(10, 2), 2, kind="sequence", min="1.50").to_pylist() == [
        Decimal("1.50"),
        Decimal("1.51"),
    ]


def test_time_advances_with_the_rows() -> None:
    start = datetime(2026, 1, 31, 23, 59, 59, tzinfo=UTC)
    start_us = int(start.timestamp()) * 1_000_000
    at = column(TIMESTAMP, 4, start_us, rate=2).to_pylist()
    assert [(each - start).total_seconds() for each in at] == [0, 0.5, 1, 1.5]
    days = column(pa.date32(), 4, start_us, rate=2, kind="sequence").to_pylist()
    assert days == [date(2026, 1, 31), date(2026, 1, 31), date(2026, 2, 1), date(2026, 2, 1)]


def test_time_does_not_overflow_in_the_far_future() -> None:
    made = generator(pa.schema([("at", TIMESTAMP)]), rate=1_000_000)
    assert made.batch(np.array([10**15])).column(0).cast(pa.int64()).to_pylist() == [10**15]


def test_random_times_lie_within_their_bounds() -> None:
    options = {"kind": "random", "min": "2026-01-01", "max": "2026-01-03"}
    assert set(column(pa.date32(), 100, **options).to_pylist()) == {date(2026, 1, day) for day in (1, 2, 3)}
    at = column(TIMESTAMP, 100, **(options | {"min": "2026-01-01T12:00:00+02:00"})).to_pylist()
    assert datetime(2026, 1, 1, 10, tzinfo=UTC) <= min(at) <= max(at) <= datetime(2026, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize("length", [1, 2, 11, 12, 13, 40])
def test_texts_and_bytes_have_their_length(length: int) -> None:
    texts = column(pa.string(), 200, length=length).to_pylist()
    assert {len(each) for each in texts} == {length}
    assert len(set(texts)) > (20 if length == 1 else 150)
    assert {len(each) for each in column(pa.binary(), 200, length=length).to_pylist()} == {length}


@pytest.mark.parametrize("data_type", [pa.string(), pa.binary(), pa.int32(), pa.float64(), pa.decimal128(9, 2)])
def test_cardinality_is_the_number_of_distinct_values(data_type: pa.DataType) -> None:
    assert len(column(data_type, 20_000, cardinality=300).unique()) == 300


def test_null_rate_is_the_share_of_nulls() -> None:
    assert abs(column(pa.string(), 100_000, null_rate=0.25).null_count - 25_000) < 600
    assert column(pa.string(), null_rate=1).null_count == 1000
    assert column(pa.string(), null_rate=0).null_count == 0


def test_skew_makes_the_first_values_frequent() -> None:
    counts = Counter(column(pa.int32(), 100_000, cardinality=100, skew=1.0).to_pylist())
    harmonic = sum(1 / rank for rank in range(1, 101))
    for rank in (1, 2, 5, 10):
        assert counts[rank - 1] == pytest.approx(100_000 / rank / harmonic, rel=0.1)
    assert len(counts) == 100


@pytest.mark.parametrize(
    ("data_type", "options", "message"),
    [
        (pa.int32(), {"kind": "both"}, "sequence, random"),
        (pa.int32(), {"min": "x"}, "'fields.c.min' is 'x'; it must be a whole number"),
        (pa.int8(), {"max": 128}, "whole number from -128 to 127"),
        (pa.int8(), {"min": 5, "max": 4}, "not below min"),
        (pa.int32(), {"length": 5}, "no meaning for a column of type int32"),
        (pa.int32(), {"skew": 1}, "needs the kind 'random' and a cardinality"),
        (pa.int32(), {"kind": "sequence", "cardinality": 9, "skew": 1}, "needs the kind 'random'"),
        (pa.int8(), {"cardinality": 300}, "allow only 128 values"),
        (pa.string(), {"min": "a"}, "no meaning for random texts"),
        (pa.string(), {"cardinality": 100, "length": 1}, "too short for 100 distinct values"),
        (pa.string(), {"cardinality": 5_000_000}, "at most 1000000"),
        (pa.string(), {"kind": "sequence", "length": 2, "max": 100}, "from 0 to 99"),
        (pa.float64(), {"max": "inf"}, "finite"),
        (pa.float64(), {"min": 2, "max": 1}, "not below min"),
        (pa.decimal128(5, 2), {"max": "1000"}, "at most 5 digits"),
        (pa.decimal128(5, 2), {"max": "0.001"}, "2 after the point"),
        (pa.date32(), {"kind": "random", "min": "May"}, "a date like"),
        (TIMESTAMP, {"min": "2026-01-01"}, "time that advances"),
        (pa.bool_(), {"max": 1}, "no meaning for a boolean column"),
        (pa.int32(), {"null_rate": 1.5}, "from 0.0 to 1.0"),
        (pa.list_(pa.int32()), {}, "cannot be generated"),
        (pa.timestamp("ns"), {"kind": "random"}, "cannot be generated"),
        (pa.null(), {}, "cannot be generated"),
        (pa.duration("us"), {}, "cannot be generated"),
    ],
)
def test_an_option_that_does_not_fit_is_an_error(data_type: pa.DataType, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        column(data_type, 1, **options)


def test_nulls_are_refused_where_none_are_allowed() -> None:
    schema = pa.schema([pa.field("c", pa.int32(), nullable=False)])
    with pytest.raises(OptionError, match="NOT NULL"):
        generator(schema, **{"c.null-rate": 0.1})


def test_columns_are_named_without_case() -> None:
    schema = pa.schema([("userId", pa.string())])
    assert len(generator(schema, **{"userid.length": 3}).batch(np.arange(1)).column(0)[0].as_py()) == 3
    with pytest.raises(OptionError, match=r"names no column\. The columns are: userId"):
        generator(schema, **{"user.length": 3})
    with pytest.raises(OptionError, match="set twice"):
        generator(schema, **{"userid.length": 3, "userId.length": 3})
    with pytest.raises(OptionError, match="ambiguous: the columns userId, userid"):
        generator(pa.schema([("userId", pa.string()), ("userid", pa.string())]), **{"userId.length": 3})
    with pytest.raises(OptionError, match=r"Did you mean .*fields.\*.length"):
        generator(schema, **{"userId.lenght": 3})
