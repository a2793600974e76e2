"""Bytes that are no UTF-8, as text: what Spark shows of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.java_texts import java_text, java_texts, with_java_texts

SHOWN = {
    b"": "",
    b"abc": "abc",
    "aé€😀".encode(): "aé€😀",
    b"\x80": "\ufffd",
    b"a\xffb": "a\ufffdb",
    b"\xc3": "\ufffd",
    b"\xc3A": "\ufffdA",
    b"\xc0\x80": "\ufffd\ufffd",
    b"\xe2\x82": "\ufffd",
    b"\xe2\x82A": "\ufffdA",
    b"\xe0\x80\x80": "\ufffd\ufffd\ufffd",
    b"\xf0\x9f\x98": "\ufffd",
    b"\xf0\x9f\x98A": "\ufffdA",
    b"\xf0\x80\x80\x80": "\ufffd" * 4,
    b"\xf4\x90\x80\x80": "\ufffd" * 4,
    b"\xf5\x80": "\ufffd\ufffd",
    b"\xed\xa0\x80": "\ufffd",
    b"\xed\xa0\x80\xed\xb0\x80": "\ufffd\ufffd",
    b"\xed\xbf": "\ufffd",
    b"\xed\xbfA": "\ufffdA",
    b"\xed\x9f\xbf": "\ud7ff",
    b"\xf0\x9f\xed\xa0\x80": "\ufffd\ufffd",
    b"\xc3\xa9\xe9": "é\ufffd",
}
"""As PySpark's ``collect`` gives ``CAST(... AS STRING)``, which is what Java's ``new String(bytes, UTF_8)`` does."""


@pytest.mark.parametrize("data", SHOWN, ids=repr)
def test_each_piece_that_is_wrong_is_replaced_as_java_does(data: bytes) -> None:
    assert java_text(data) == SHOWN[data]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_column_with_wrong_bytes_keeps_its_other_values_and_nulls(kind: pa.DataType) -> None:
    data = [None, *SHOWN, None, b"plain"]
    shown = java_texts(pa.array([b"before", *data], kind).slice(1))
    shown.validate(full=True)
    assert shown.to_pylist() == [None, *SHOWN.values(), None, "plain"]
    assert java_texts(pa.array([], kind)).to_pylist() == []
    assert java_texts(pa.array([b"ab"], pa.binary(2))).to_pylist() == ["ab"]


def test_what_is_valid_is_not_copied() -> None:
    valid = pa.array(["é", None, "b"]).cast(pa.binary())
    assert java_texts(valid).buffers()[2].address == valid.buffers()[2].address
    nested = pa.array([{"a": ["x"]}, None])
    assert with_java_texts(nested) is nested


def test_strings_in_other_values_are_replaced_at_any_depth() -> None:
    kind = pa.struct({"texts": pa.list_(pa.string()), "by": pa.map_(pa.string(), pa.string()), "n": pa.int64()})
    bytes_of = pa.struct({"texts": pa.list_(pa.binary()), "by": pa.map_(pa.binary(), pa.binary()), "n": pa.int64()})
    row = {"texts": [b"a\xff", None], "by": [(b"\xe9", None), (b"k", b"\xed\xa0\x80")], "n": 1}
    broken = _as_strings(pa.array([row, None, {"texts": None, "by": None, "n": None}, row], bytes_of), kind)
    with pytest.raises(pa.ArrowInvalid):
        broken.validate(full=True)
    shown = {"texts": ["a\ufffd", None], "by": [("\ufffd", None), ("k", "\ufffd")], "n": 1}
    expected = [shown, None, {"texts": None, "by": None, "n": None}, shown]
    for start in range(len(expected)):
        replaced = with_java_texts(broken.slice(start))
        replaced.validate(full=True)
        assert replaced.type == kind and replaced.to_pylist() == expected[start:]
        for name in ("texts", "by"):  # which are slices then
            inner = with_java_texts(broken.field(name).slice(start))
            assert inner.to_pylist() == replaced.field(name).to_pylist()


def _as_strings(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return bytes as strings without a look at them, as they come from Java."""
    children = {field.name: values.field(place) for place, field in enumerate(kind)}
    texts, by = children["texts"], children["by"]
    lists = pa.ListArray.from_arrays(texts.offsets, texts.values.view(pa.string()), mask=texts.is_null())
    maps = pa.MapArray.from_arrays(by.offsets, by.keys.view(pa.string()), by.items.view(pa.string()), mask=by.is_null())
    return pa.StructArray.from_arrays([lists, maps, children["n"]], fields=list(kind), mask=values.is_null())
