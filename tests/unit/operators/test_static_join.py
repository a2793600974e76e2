"""`StaticJoin` on keys that are easily taken for equal, or not."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.errors import OptionError
from headgate.operators import static_join
from headgate.operators.static_join import JoinKind, StaticJoin, StaticTable

NAN = float("nan")
NUMBER = pa.float64()
NESTED = pa.struct([("x", pa.list_(pa.float64()))])
FIELD = pa.field("v", pa.string())


def column(keys: list[Any], kind: pa.DataType) -> pa.Array:
    """Return keys, or structs of lists of them."""
    nested = [None if each is None else {"x": [each, None]} for each in keys]
    return pa.array(nested if kind == NESTED else keys, kind)


def table(keys: list[Any], *, null_safe: bool = False, kind: pa.DataType = NUMBER) -> StaticTable:
    rows = pa.table({"c0": [f"{place}" for place in range(len(keys))], "c1": column(keys, kind)})
    return StaticTable("table", rows.schema, [null_safe], lambda: rows).loaded(1 << 20)


def joined(kind: JoinKind, of: StaticTable, keys: list[Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a join, through a pickle as on the way to a slot, as (n, v) or (n,)."""
    schema = pa.schema([("k", of.schema.field("c1").type), ("n", pa.int64())])
    operator = pickle.loads(pickle.dumps(StaticJoin(schema, [0], of, kind, [FIELD], None, "UTC")))
    rows = pa.record_batch([column(keys, schema.field("k").type), pa.array(range(len(keys)))], schema=schema)
    emitted: list[pa.RecordBatch] = []
    operator.process(rows, "split", lambda batch, split: emitted.append(batch))
    for each in emitted:
        each.validate(full=True)
        assert each.schema == operator.schema
    return [tuple(list(row.values())[1:]) for each in emitted for row in each.to_pylist()]


@pytest.mark.parametrize("kind", [NUMBER, NESTED], ids=str)
def test_zeros_nan_and_null(kind: pa.DataType) -> None:
    keys = [0.0, NAN, None, 1.0, -0.0]
    assert joined("inner", table(keys, kind=kind), [-0.0, NAN, None, 2.0]) == [(0, "0"), (0, "4"), (1, "1")]
    assert joined("left", table(keys, kind=kind), [None, -0.0, 2.0]) == [(0, None), (1, "0"), (1, "4"), (2, None)]
    assert joined("inner", table(keys, null_safe=True, kind=kind), [None, 5.0, NAN]) == [(0, "2"), (2, "1")]
    assert joined("semi", table(keys, kind=kind), [0.0, None, 1.0, 2.0]) == [(0,), (2,)]
    assert joined("anti", table(keys, kind=kind), [0.0, None, 1.0, 2.0]) == [(1,), (3,)]


def test_an_empty_table_is_equal_to_nothing() -> None:
    assert joined("inner", table([]), [1.0, None]) == []
    assert joined("left", table([]), [1.0, None]) == [(0, None), (1, None)]
    assert joined("anti", table([None]), [1.0, None]) == [(0,), (1,)]


def test_equal_hashes_are_not_equal_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_join, "key_hash", lambda keys: np.zeros(len(keys[0]), np.uint64))
    assert joined("inner", table([1.0, 2.0, 1.0]), [2.0, 1.0, 3.0]) == [(0, "1"), (1, "0"), (1, "2")]


def test_a_table_that_is_too_large_says_what_it_is() -> None:
    rows = pa.table({"c0": ["x"] * 1000})
    with pytest.raises(OptionError, match=r"join, Relation k, has 5\d\d\d bytes; .* allows 1000") as raised:
        StaticTable("Relation k", rows.schema, [False], lambda: rows).loaded(1000)
    assert raised.value.option == "static.memory"
