"""Rows are cast to the declared columns, or the error says how they do not fit."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.cast_to_schema import MisfitError, cast_to_schema

SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string())])


def batch(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def test_columns_are_reordered_and_cast() -> None:
    fitted = cast_to_schema(batch(b=["x"], a=[1]), SCHEMA)
    assert fitted.schema == SCHEMA
    assert fitted.to_pylist() == [{"a": 1, "b": "x"}]


def test_dictionaries_are_decoded() -> None:
    fitted = cast_to_schema(batch(a=[1, 2], b=pa.array(["x", "x"]).dictionary_encode()), SCHEMA)
    assert fitted.schema == SCHEMA


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1]}, "missing: b"),
        ({"a": [1], "b": ["x"], "c": [1]}, "not declared: c"),
        ({"a": [1], "B": ["x"]}, "missing: b.*not declared: B"),
        ({"a": [[1]], "b": ["x"]}, "'a' has the type list.*should be int32"),
    ],
)
def test_wrong_columns(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(MisfitError, match=message) as raised:
        cast_to_schema(batch(**columns), SCHEMA)
    assert raised.value.columns


def test_a_value_that_does_not_fit() -> None:
    with pytest.raises(MisfitError, match=r"'a'.*int32.*4294967296") as raised:
        cast_to_schema(batch(a=[1 << 32], b=["x"]), SCHEMA)
    assert not raised.value.columns


def test_a_null_where_there_may_be_none() -> None:
    schema = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    with pytest.raises(MisfitError, match="NOT NULL"):
        cast_to_schema(batch(a=[1, None]), schema)
