"""The order of rows: nulls, NaN, zeros, both directions, nested values, and rows that are equal."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.row_order import SortKey, is_orderable, order_of_rows

NAN, MOST = math.nan, 2**63 - 1
IN_ORDER: dict[str, tuple[pa.DataType, list[Any]]] = {
    "longs": (pa.int64(), [None, -MOST - 1, -1, 0, 1, MOST]),
    "doubles": (pa.float64(), [None, -math.inf, -1.5, 0.0, 5e-324, math.inf, NAN]),
    "floats": (pa.float32(), [None, -1.5, 0.0, 1.5, NAN]),
    "booleans": (pa.bool_(), [None, False, True]),
    "texts": (pa.string(), [None, "", "B", "a", "aa", "b", "ä", "\uffee", "\U0001f600"]),
    "bytes": (pa.binary(), [None, b"", b"\x00", b"\x00\x01", b"\x7f", b"\xff"]),
    "decimals": (pa.decimal128(38, 2), [None, Decimal("-1e30"), Decimal("-0.01"), Decimal(0), Decimal("1e30")]),
    "dates": (pa.date32(), [None, dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    "times": (pa.timestamp("us", "UTC"), [None, *(dt.datetime(n, 1, 1, tzinfo=dt.UTC) for n in (1, 1969, 2026))]),
    "durations": (pa.duration("us"), [None, dt.timedelta(-1), dt.timedelta(0), dt.timedelta(1)]),
    "structs": (
        pa.struct([("a", pa.float64()), ("b", pa.string())]),
        [None, {"a": None, "b": None}, {"a": None, "b": "x"}, {"a": -1.0, "b": "z"}, {"a": 0.0, "b": None},
         {"a": 0.0, "b": ""}, {"a": NAN, "b": "a"}],
    ),
    "lists": (
        pa.list_(pa.int64()), [None, [], [None], [None, 1], [-5], [0, None], [0, 0], [0, 0, -9], [0, 1], [MOST]],
    ),
    "lists of structs": (
        pa.list_(pa.struct([("a", pa.list_(pa.string()))])),
        [None, [], [None], [{"a": None}], [{"a": []}], [{"a": ["x"]}]],
    ),
    "nothing": (pa.null(), [None]),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_ORDER)
def test_values_of_each_type_are_in_spark_s_order(name: str) -> None:
    kind, values = IN_ORDER[name]
    shuffled = [values[place * 7 % len(values)] for place in range(len(values))] if len(values) % 7 else values[::-1]
    rows = pa.table({"v": pa.array(shuffled, kind)})
    assert is_orderable(kind)

    def found(descending: bool, nulls_first: bool) -> list[str]:
        return [repr(shuffled[place]) for place in order_of_rows(rows, [SortKey("v", descending, nulls_first)])]

    ascending = [repr(each) for each in values]
    assert found(False, True) == ascending
    assert found(False, False) == ascending[1:] + ascending[:1]
    assert found(True, False) == ascending[::-1]
    assert found(True, True) == ascending[:1] + ascending[:0:-1]


def test_the_first_key_counts_first_and_equal_rows_stay_as_they_are() -> None:
    rows = pa.table({"a": [0.0, -0.0, 1.0, None, 0.0], "b": ["x", "y", "x", "x", "y"], "n": [0, 1, 2, 3, 4]})
    assert order_of_rows(rows, [SortKey("b", True), SortKey("a")]).tolist() == [1, 4, 3, 0, 2]
    assert order_of_rows(rows.slice(1, 3), [SortKey("a")]).tolist() == [2, 0, 1]
    assert order_of_rows(rows.slice(0, 0), [SortKey("a")]).tolist() == []


def test_maps_have_no_order() -> None:
    assert not is_orderable(pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.int64()))])))
