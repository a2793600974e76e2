"""Rows that were under way, read in the columns that their exchange has now."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.errors import StoredStateError
from headgate.operators.exchange import Exchange
from headgate.operators.windows.operator import WindowAggregate
from headgate.operators.windows.partial import PartialExchange
from headgate.runtime.restored import _with_columns_of_now, as_of_now
from tests.unit.operators.windows.window_world import SCHEMA, batch, made
from tests.unit.operators.windows.words import count, sum, window

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


def exchange() -> PartialExchange:
    operator = made(SCHEMA, window("at", "10 seconds"), ["k"], [sum("v"), count()])
    assert isinstance(operator, WindowAggregate)
    phases = operator.two_phases(always=True)
    assert phases is not None
    phases[1].uid = "by-k"
    return phases[1]


ROWS = batch((1, 1, 5), (2, 1, 6), (11, 2, 7))


def test_rows_of_before_become_partial_results() -> None:
    """Those that an earlier version, or a query with one phase, had on their way; those of narrower columns, too."""
    now = exchange()
    narrow = pa.RecordBatch.from_arrays(
        [ROWS.column(0), ROWS.column(1), ROWS.column(2).cast(pa.int32())], names=ROWS.schema.names
    )
    for stored in (ROWS, narrow):
        assert as_of_now(stored, now).to_pylist() == [
            {"\0time": 1_000_000, "k": 1, "\0sum(v) 0": 5, "\0rows": 1},
            {"\0time": 2_000_000, "k": 1, "\0sum(v) 0": 6, "\0rows": 1},
            {"\0time": 11_000_000, "k": 2, "\0sum(v) 0": 7, "\0rows": 1},
        ]


def test_partial_results_stay_what_they_are() -> None:
    now = exchange()
    stored = now.partials.merged(now.partials.lifted(ROWS))
    assert as_of_now(stored, now) is stored
    less = stored.drop_columns(["\0sum(v) 0"])
    assert as_of_now(less, now).column("\0sum(v) 0").null_count == 2


def test_partial_results_that_are_too_wide_are_refused() -> None:
    """With what was there, what is, and what to do."""
    stored = exchange().partials.lifted(ROWS)
    place = stored.schema.get_field_index("\0sum(v) 0")
    stored = stored.set_column(place, "\0sum(v) 0", pa.array([0.5, 1.0, 2.0]))
    with pytest.raises(StoredStateError, match=r"'by-k' in the columns .*double.* with a savepoint"):
        as_of_now(stored, exchange())


def test_partial_results_are_not_taken_for_rows() -> None:
    """Where a restore was not refused before."""
    stored = exchange().partials.lifted(ROWS)
    plain = Exchange(SCHEMA, "hash", keys=("k",))
    plain.uid = "by-k"
    with pytest.raises(StoredStateError, match="'by-k' in the columns"):
        as_of_now(stored, plain)
