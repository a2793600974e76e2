"""Bytes of nested keys: equal exactly where Spark groups values together, read back as they were, the same for ever."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.expressions.key_bytes import key_bytes, key_value

NAN = float("nan")
FIELDS = [
    pa.field("numbers", pa.list_(pa.float64())),
    pa.field("texts", pa.list_(pa.list_(pa.string()))),
    pa.field("bits", pa.list_(pa.bool_())),
    pa.field("pair", pa.struct([("f", pa.float32()), ("b", pa.binary()), ("n", pa.null())])),
    pa.field("d", pa.decimal128(30, 2)),
    pa.field("at", pa.timestamp("us", "UTC")),
    pa.field("day", pa.date32()),
]
KIND = pa.struct(FIELDS)
AT = dt.datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=dt.UTC)


def value(**of: Any) -> dict[str, Any]:
    return dict.fromkeys(KIND.names) | of


DIFFERENT = [
    None,
    value(),
    value(numbers=[]),
    value(numbers=[None]),
    value(numbers=[0.0]),
    value(numbers=[0.0, None]),
    value(numbers=[NAN, -1.5]),
    value(texts=[]),
    value(texts=[None]),
    value(texts=[[]]),
    value(texts=[[None]]),
    value(texts=[[""]]),
    value(texts=[["a", "b"]]),
    value(texts=[["ab"]]),
    value(texts=[["a"], ["b"]]),
    value(texts=[["ab", ""], None]),
    value(bits=[True, None]),
    value(bits=[True, False]),
    value(pair={"f": None, "b": None, "n": None}),
    value(pair={"f": 0.5, "b": None, "n": None}),
    value(pair={"f": NAN, "b": b"\0", "n": None}),
    value(pair={"f": NAN, "b": b"\0\0", "n": None}),
    value(d=Decimal("-1.25")),
    value(at=AT),
    value(day=AT.date()),
    value(numbers=[1.0], texts=[["x"], None, ["y", None]], bits=[False], d=Decimal("9e20"), at=AT, day=AT.date()),
]


def shown(values: Any) -> list[str]:
    return list(map(repr, values.to_pylist()))


def test_values_are_read_back_and_what_differs_has_other_bytes() -> None:
    values = pa.array(DIFFERENT * 2, KIND)
    for part in (values, values.slice(3, len(DIFFERENT)), values.slice(7, 1), values.slice(0, 0)):
        written = key_bytes(part)
        assert written.type == pa.binary()
        found = key_value(written, KIND)
        found.validate(full=True)
        assert (found.type, shown(found)) == (KIND, shown(part))
    written = key_bytes(values)
    assert len(written.unique()) == len(DIFFERENT)
    assert written.slice(0, len(DIFFERENT)).equals(written.slice(len(DIFFERENT)))
    assert shown(key_value(written.slice(5, 9), KIND)) == shown(values.slice(5, 9))


def test_zeros_are_one_and_nan_is_nan() -> None:
    odd = np.array([0x7FF8000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    floats = pa.ListArray.from_arrays(
        pa.array([0, 2, 4], pa.int32()), pa.array([-0.0, NAN, 0.0, odd[0]], from_pandas=False)
    )
    one, other = key_bytes(floats).to_pylist()
    assert one == other
    assert struct.pack("<d", key_value(key_bytes(floats), floats.type)[0].as_py()[0]) == bytes(8)
    halves = pa.StructArray.from_arrays([pa.array(odd, from_pandas=False).cast(pa.float32())], names=["x"])
    assert len(key_bytes(halves).unique()) == 1


def test_what_lies_below_nulls_does_not_count() -> None:
    numbers = pa.array([1, 2, 3, 4])
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), numbers, mask=pa.array([True, False]))
    texts = pa.array(["a", "bc"])
    under = pa.StructArray.from_arrays([lists, texts], names=["l", "t"], mask=pa.array([False, True]))
    plain = pa.array([{"l": None, "t": "a"}, None], under.type)
    assert key_bytes(pa.StructArray.from_arrays([under], names=["u"])).equals(
        key_bytes(pa.StructArray.from_arrays([plain], names=["u"]))
    )


def test_the_bytes_are_those_of_checkpoints() -> None:
    """An array of structs, as version 1 writes it."""
    kind = pa.list_(pa.struct([("s", pa.string()), ("n", pa.list_(pa.int16()))]))
    (written,) = key_bytes(pa.array([[{"s": "hé", "n": [1, None]}, None]], kind)).to_pylist()
    assert written.hex() == (
        "0102000000" "01" "00" "0103000000" "0000000000" "68c3a9" "0102000000" "0000000000" "010100" "000000"
    )  # fmt: skip


@pytest.mark.parametrize("kind", [pa.struct([]), pa.list_(pa.null()), pa.list_(pa.int32())], ids=str)
def test_types_without_values(kind: pa.DataType) -> None:
    for rows in ([], [None], [None, None]):
        values = pa.array(rows, kind)
        assert key_value(key_bytes(values), kind).equals(values)
