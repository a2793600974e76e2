"""JSON and CSV lines: the characters that Spark 4.3 writes (taken from its output), whatever is in the rows."""

from __future__ import annotations

import decimal
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.files.sink.csv_lines import CsvDialect, check_csv_type, csv_header, csv_lines
from headgate.connectors.files.sink.json_lines import check_json_type, json_lines


def json_text(**columns: pa.Array) -> str:
    return bytes(json_lines(pa.record_batch(columns))).decode()


def csv_text(dialect: CsvDialect, **columns: pa.Array) -> str:
    return bytes(csv_lines(pa.record_batch(columns), dialect)).decode()


def test_json_scalars_as_spark_writes_them() -> None:
    day, moment = pa.array([18_263], pa.date32()), pa.array([1_577_836_800_123_456], pa.timestamp("us", "UTC"))
    assert json_text(
        a=pa.array([1.0]), c=pa.array([float("nan")]), d=pa.array([float("inf")]), e=moment,
        f=moment.cast(pa.timestamp("us")), g=day, h=pa.array([b"ab"]), i=pa.array([decimal.Decimal("1.50")]),
        p=pa.array([0.1], pa.float32()), q=pa.array([True]), r=pa.array([decimal.Decimal("1E-7")]),
        t=pa.array([1e22]), u=pa.array([-7], pa.int8()), gone=pa.array([None], pa.int8()),
    ) == (
        '{"a":1.0,"c":"NaN","d":"Infinity","e":"2020-01-01T00:00:00.123456Z","f":"2020-01-01T00:00:00.123456",'
        '"g":"2020-01-02","h":"YWI=","i":1.50,"p":0.1,"q":true,"r":1E-7,"t":1e+22,"u":-7}\n'
    )  # fmt: skip


def test_json_nested_as_spark_writes_it() -> None:
    maps = pa.array([[("k", None), ("l", 1)], [], None], pa.map_(pa.string(), pa.int64()))
    numbered = pa.array([[(1, 2.0)], [], None], pa.map_(pa.int32(), pa.float64()))
    structs = pa.array([{"x": None, "y": "a/é\u2028\x7f\x01\b\f"}, {"x": 1, "y": None}, None])
    deep = pa.array([[[{"q": "a"}], None], [[], [{"q": None}, None]], None])
    columns = {"m": maps, "k": numbered, "n": pa.array([[1, None], [], None]), "o": structs, "d": deep}
    lines = [
        '{"m":{"k":null,"l":1},"k":{"1":2.0},"n":[1,null],"o":{"y":"a/é\u2028\x7f\\u0001\\b\\f"},"d":[[{"q":"a"}],null]}\n',
        '{"m":{},"k":{},"n":[],"o":{"x":1},"d":[[],[{},null]]}\n',
        "{}\n",
    ]
    assert json_text(**columns) == "".join(lines)
    sliced = pa.record_batch(columns).slice(1)
    assert bytes(json_lines(sliced)).decode() == "".join(lines[1:])
    assert bytes(json_lines(sliced.slice(0, 0))) == b""


@given(st.lists(st.tuples(st.none() | st.text(), st.lists(st.none() | st.text(), max_size=3) | st.none())), st.text())
def test_json_is_what_a_parser_reads(rows: list[tuple[Any, Any]], name: str) -> None:
    names = [name, name + "2"]
    columns = [pa.array([row[0] for row in rows], pa.string())]
    columns.append(pa.array([row[1] for row in rows], pa.list_(pa.string())))
    made = bytes(json_lines(pa.RecordBatch.from_arrays(columns, names))).decode()
    read = [json.loads(line) for line in made.split("\n")[:-1]]
    assert read == [{key: value for key, value in zip(names, row) if value is not None} for row in rows]


@given(st.lists(st.none() | st.floats() | st.floats(width=32)))
def test_floating_point_numbers_keep_their_value(numbers: list[float | None]) -> None:
    array = pa.array(numbers, pa.float64())
    for line, number in zip(json_text(x=array).splitlines(), numbers, strict=True):
        found = json.loads(line).get("x")
        assert found is None if number is None else repr(float(found)) == repr(number)
        assert number is None or isinstance(found, str | float), "never a whole number: Spark would infer one"


def test_csv_as_spark_writes_it() -> None:
    texts = [
        "plain", "a,b", 'a"b', "a\\b", "a,b\\c", 'x"\\"y', "", None, " lead ", "#c", "\\", "a\\", "q\nz", '"',
        "tab\there", "é€", "\r",
    ]  # fmt: skip
    expected = (
        '0,plain\n1,"a,b"\n2,"a\\"b"\n3,a\\b\n4,"a,b\\\\c"\n5,"x\\"\\\\\\"y"\n6,""\n7,\n8, lead \n9,#c\n10,\\\n'
        '11,a\\\n12,"q\nz"\n13,"\\""\n14,tab\there\n15,é€\n16,"\r"\n'
    )
    assert csv_text(CsvDialect(), i=pa.array(range(len(texts))), v=pa.array(texts)) == expected
    assert csv_header(["i", "v"], CsvDialect()) == b"i,v\n"


def test_csv_scalars_as_spark_writes_them() -> None:
    moment = pa.array([1_577_836_800_123_456, None], pa.timestamp("us", "UTC"))
    made = csv_text(
        CsvDialect(separator="|", null="\\N"), a=pa.array([1.0, None]), c=pa.array([float("nan"), -float("inf")]),
        e=moment, g=pa.array([18_263, None], pa.date32()), i=pa.array([decimal.Decimal("1.50"), None]),
        q=pa.array([True, None]), s=pa.array(["a|b", "a,b"]).cast(pa.large_string()),
    )  # fmt: skip
    assert made == '1.0|NaN|2020-01-01T00:00:00.123456Z|2020-01-02|1.50|true|"a|b"\n\\N|-Infinity|\\N|\\N|\\N|\\N|a,b\n'
    assert csv_header(["a|b", ""], CsvDialect(separator="|")) == b'"a|b"|""\n'


@pytest.mark.parametrize(
    ("data_type", "in_json", "in_csv"),
    [
        (pa.int64(), True, True),
        (pa.string(), True, True),
        (pa.binary(), True, False),
        (pa.list_(pa.struct([("a", pa.map_(pa.string(), pa.date32()))])), True, False),
        (pa.map_(pa.binary(), pa.int8()), False, False),
        (pa.list_(pa.duration("us")), False, False),
        (pa.duration("us"), False, False),
        (pa.time64("us"), False, False),
        (pa.null(), False, False),
        (pa.float16(), False, False),
    ],
)
def test_types_that_can_be_written(data_type: pa.DataType, in_json: bool, in_csv: bool) -> None:
    assert (check_json_type(data_type), check_csv_type(data_type)) == (in_json, in_csv)
