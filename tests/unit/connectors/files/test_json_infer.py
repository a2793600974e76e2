"""Schemas of JSON samples; the table in tests/real compares many more with Spark."""

import pyarrow as pa
import pytest

from headgate.errors import BadDataError
from headgate.formats.json import OPTIONS, infer_json_schema
from headgate.formats.names import Names
from headgate.source.options import Options


def infer(*lines: str, **raw: str) -> dict[str, pa.DataType]:
    schema = infer_json_schema("\n".join(lines).encode(), Options.parse("headgate.files", OPTIONS, raw))
    return {field.name: field.type for field in schema}


def test_names_are_sorted_and_types_widen() -> None:
    found = infer('{"c":1,"b":"x","a":true}', '{"a":null,"c":1.5,"B2":1}')
    assert list(found.items()) == [("B2", pa.int64()), ("a", pa.bool_()), ("b", pa.string()), ("c", pa.float64())]


def test_nested_types_are_merged_field_by_field() -> None:
    found = infer('{"s":{"y":1},"l":[{"p":1}]}', '{"s":{"x":null},"l":[{"q":"z"},null]}')
    assert found["s"] == pa.struct([("x", pa.string()), ("y", pa.int64())])
    assert found["l"].value_type == pa.struct([("p", pa.int64()), ("q", pa.string())])


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("1", "true", pa.string()),
        ("1", "9223372036854775808", pa.decimal128(20, 0)),
        ("99999999999999999999", "1.5", pa.float64()),
        ('""', "1", pa.int64()),
        ("[1]", "{}", pa.string()),
        ("9" * 10_000, "1", pa.float64()),
    ],
)
def test_the_union_does_not_depend_on_the_order(one: str, other: str, both: pa.DataType) -> None:
    lines = [f'{{"a":{value}}}' for value in (one, other)]
    assert infer(*lines) == infer(*reversed(lines)) == {"a": both}


def test_malformed_records_add_the_corrupt_record_column_by_mode() -> None:
    assert infer('{"a":1}', "bad") == {"_corrupt_record": pa.string(), "a": pa.int64()}
    assert infer('{"a":1}', "bad", mode="DROPMALFORMED") == {"a": pa.int64()}
    with pytest.raises(BadDataError) as caught:
        infer('{"a":1}', "bad", mode="FAILFAST")
    assert caught.value.byte_offset == 8


def test_records_that_differ_in_the_case_of_their_fields_only_have_one_type() -> None:
    names = Names()
    sample, options = b'{"A":1,"b":[{"C":"x"}]}\n{"a":2.5,"b":[{"c":null}]}', Options.parse("f", OPTIONS, {})
    assert infer_json_schema(sample, options, names).names == ["A", "b"]
    assert names.folded
    assert infer_json_schema(sample, options, Names(case_sensitive=True)).names == ["A", "a", "b"]


def test_timestamps_are_inferred_on_request_only() -> None:
    assert infer('{"a":"2026-01-01T00:00:00Z"}') == {"a": pa.string()}
    assert infer('{"a":"2026-01-01T00:00:00Z"}', inferTimestamp="true") == {"a": pa.timestamp("us", "UTC")}


def test_a_sample_without_records_has_no_columns() -> None:
    assert infer("", "  ", "[]", "null") == {}
