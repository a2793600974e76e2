"""JSON lines and documents: whichever reader takes a block, the rows are those of Spark's rules."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.errors import BadDataError, OptionError
from headgate.formats.base import LineBlock
from headgate.formats.json import OPTIONS, JsonDocumentFormat, JsonFormat
from headgate.source.options import Options

UTC = pa.timestamp("us", "UTC")
SCHEMA = pa.schema([("a", pa.int64()), ("b", pa.string()), ("_corrupt_record", pa.string())])
WIDE = pa.schema(
    [
        ("i", pa.int64()),
        ("s", pa.string()),
        ("d", pa.float64()),
        ("t", pa.bool_()),
        ("n", pa.int32()),
        ("e", pa.decimal128(10, 2)),
        ("_corrupt_record", pa.string()),
    ]
)


def parsed(**raw: str) -> Options:
    return Options.parse("headgate.files", OPTIONS, raw)


def make(schema: pa.Schema = SCHEMA, time_zone: str = "UTC", **raw: str) -> JsonFormat:
    return JsonFormat(schema, parsed(**raw), time_zone)


def decode(data: bytes, schema: pa.Schema = SCHEMA, time_zone: str = "UTC", **raw: str) -> list[dict]:
    batch = make(schema, time_zone, **raw).decode(LineBlock(data, "part-0.json", 0))
    batch.validate(full=True)
    assert batch.schema == schema
    return batch.to_pylist()


def one_by_one(data: bytes, schema: pa.Schema) -> list[dict]:
    """Return what the slow parser, which the table of tests/real compares with Spark, makes of lines."""
    lines = [(0, line) for line in data.split(b"\n") if line.strip(bytes(range(33)))]
    return make(schema).rows(lines, "part-0.json", 0).to_pylist()


def test_uniform_lines_are_read_by_splitting_at_quotes() -> None:
    fmt = make(pa.schema([("a", pa.int64()), ("b", pa.string()), ("missing", pa.string())]))
    batch = fmt._uniform.read(
        b'{"b":"x, y","z":[],"a":1}'.replace(b'"z":[],', b'"z":true,') + b'\n{"b":"","z":false,"a":-20}'
    )
    assert batch.to_pylist() == [{"a": 1, "b": "x, y", "missing": None}, {"a": -20, "b": "", "missing": None}]


@pytest.mark.parametrize(
    "lines",
    [
        b'{"a":1,"b":"x"}\n{"a":1,"c":"x"}',  # another key
        b'{"a":1,"b":"x"}\n{"b":"x","a":1}',  # another order
        b'{"a":1,"b":"x"}\n{"a":1 ,"b":"x"}',  # other white space
        b'{"a":1,"b":"x"}\n{"a":1,"b":"x"]',  # another end
        b'{"a":1,"b":"x"}\n{"a":1,"b":"a\\nb"}',  # an escape
        b'{"a":1,"b":"x"}\n{"a":1,"b":"a\tb"}',  # a control character
        b'{"a":1,"b":"x"}\n{"a":1,"b":"\xff"}',  # no UTF-8
        b'{"a":1,"b":"x"}\n{"a":01,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":-01,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":1.0,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":0x1,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":+1,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":true,"b":"x"}',
        b'{"a":1,"b":"x"}\n{"a":nul,"b":"x"}',
        b'{"a":1,"a":1}\n{"a":1,"a":1}',  # a field twice
        b'{"a":{"b":1}}\n{"a":{"b":1}}',
        b'{"a":"1"}\n{"a":"1"}',
        b'{"a":1,"b\t":"x"}\n{"a":1,"b\t":"x"}',  # a control character in a name
        b"nonsense",
        b'{"a":1,"d":1.5}\n{"a":1,"d":bad}',  # no number in a column that nobody wants
        b'{"a":1,"d":1.5}\n{"a":1,"d":nan}',
        b'{"a":1,"d":1.5}\n{"a":1,"d":.5}',
        b'{"a":1,"d":1.5}\n{"a":1,"d":5.e3}',
        b'{"a":1,"d":1.5}\n{"a":1,"d":00.5}',
    ],
)
def test_lines_that_are_not_uniform_are_refused(lines: bytes) -> None:
    assert make(pa.schema([("a", pa.int64()), ("b", pa.string())]))._uniform.read(lines) is None


def test_after_refusals_fewer_blocks_are_tried() -> None:
    uniform = make()._uniform
    good = b'{"a":1}\n{"a":2}'
    assert uniform.read(b"[]") is None
    assert uniform.read(good) is None  # not looked at
    assert uniform.read(good).num_rows == 2
    assert uniform.read(good).num_rows == 2


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.integers(-300, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=5),
    st.sampled_from(["1.5", "NaN", "", "x,y", '"', "\\", "\u2028", "\x7f"]),
)
records = st.dictionaries(st.sampled_from(["i", "s", "d", "t", "n", "e", "zz"]), values)
like_the_first = st.fixed_dictionaries(
    {"i": st.integers(-(10**6), 10**6), "zz": st.sampled_from([1, 2.5, -3]), "s": st.text(max_size=4)},
    optional={"d": st.floats(-1e6, 1e6), "t": st.booleans(), "n": st.none() | st.integers(-5, 5)},
)


@given(st.lists(records | like_the_first, min_size=1, max_size=40), st.booleans(), st.data())
def test_every_reader_gives_the_rows_of_the_slow_parser(
    rows: list[dict], ascii_only: bool, data: st.DataObject
) -> None:
    lines = [json.dumps(row, ensure_ascii=ascii_only).encode("utf-8", "replace") for row in rows]
    for _ in range(data.draw(st.integers(0, 2))):  # spoil some lines
        at = data.draw(st.integers(0, len(lines) - 1))
        position = data.draw(st.integers(0, len(lines[at])))
        piece = data.draw(
            st.sampled_from([b"", b'"', b"}", b"{", b",", b"0", b"-", b"e", b".", b" ", b"null", b"\t", b"\\", b"\xff"])
        )
        lines[at] = lines[at][:position] + piece + lines[at][position + data.draw(st.integers(0, 1)) :]
    text = b"\n".join(lines)
    assert _comparable(decode(text, WIDE)) == _comparable(one_by_one(text, WIDE))


@given(st.lists(like_the_first, min_size=2, max_size=20), st.data())
def test_uniform_lines_with_one_changed_byte_give_the_rows_of_the_slow_parser(
    rows: list[dict], data: st.DataObject
) -> None:
    rows = [{name: row[name] for name in ("i", "zz", "s")} for row in rows]
    lines = bytearray(b"\n".join(json.dumps(row, separators=(",", ":")).encode() for row in rows))
    at = data.draw(st.integers(0, len(lines) - 1))
    lines[at : at + data.draw(st.integers(0, 2))] = data.draw(
        st.sampled_from(
            [b"", b'"', b"}", b"{", b",", b"0", b"-", b"+", b"e", b".", b" ", b"\t", b"n", b"\n", b"\x00", b":"]
        )
    )
    assert _comparable(decode(bytes(lines), WIDE)) == _comparable(one_by_one(bytes(lines), WIDE))


def _comparable(rows: list[dict]) -> list[dict]:
    return [
        {name: repr(value + 0.0) if isinstance(value, float) else value for name, value in row.items()} for row in rows
    ]


def test_one_bad_line_among_thousands_costs_only_itself() -> None:
    lines = [b'{"a":%d,"b":"x"}' % index for index in range(5000)]
    lines[1234] = b'{"a":"x","b":"y"}'
    lines[4000] = b"bad"
    rows = decode(b"\n".join(lines))
    assert [row["_corrupt_record"] for row in rows if row["_corrupt_record"]] == ['{"a":"x","b":"y"}', "bad"]
    assert rows[1234] == {"a": None, "b": "y", "_corrupt_record": '{"a":"x","b":"y"}'}
    assert sum(row["a"] is not None for row in rows) == 4998


def test_null_between_objects_does_not_reach_arrow_which_crashes() -> None:
    assert decode(b'{"a":1} null {"a":2}\n{"a":3}') == [
        {"a": 1, "b": None, "_corrupt_record": None},
        {"a": 3, "b": None, "_corrupt_record": None},
    ]


def test_fail_fast_names_file_and_byte_of_the_line() -> None:
    first = b'{"a":1,"b":"\xc3\xa9"}\r\n'
    fmt = make(mode="FAILFAST")
    with pytest.raises(BadDataError, match="part-7") as caught:
        fmt.decode(LineBlock(first * 3 + b'\r\n{"a":"x"}\r\n', "part-7.json", 1000))
    assert (caught.value.path, caught.value.byte_offset) == ("part-7.json", 1000 + 3 * len(first) + 2)


def test_fail_fast_counts_bytes_of_the_file_not_of_utf8() -> None:
    data = '{"b":"é"}\nbad\n'.encode("utf-16le")
    with pytest.raises(BadDataError) as caught:
        make(mode="FAILFAST", encoding="UTF-16LE", lineSep="\n").decode(LineBlock(data, "f", 4))
    assert caught.value.byte_offset == 4 + 2 * len('{"b":"é"}\n')


def test_drop_malformed_leaves_bad_records_out() -> None:
    assert decode(b'{"a":1}\nbad\n{"a":"x"}\n{"a":2}', mode="DROPMALFORMED") == [
        {"a": 1, "b": None, "_corrupt_record": None},
        {"a": 2, "b": None, "_corrupt_record": None},
    ]


def test_a_block_without_a_row_is_an_empty_batch() -> None:
    assert decode(b"bad\n" * 3, mode="DROPMALFORMED") == []
    assert decode(b" \n\t\n\r\n") == []


def test_timestamps_without_zone_are_of_the_session() -> None:
    schema = pa.schema([("t", UTC), ("u", UTC), ("l", pa.timestamp("us")), ("d", pa.date32())])
    line = b'{"t":"2026-07-01T12:00:00","u":"2026-07-01T12:00:00.5Z","l":"2026-07-01 12:00:00","d":"2026-07-01"}'
    summer = datetime.datetime(2026, 7, 1, 12)
    for data in (line, line + b"\nbad"):  # by column, and one by one
        row = decode(data, schema, "Europe/Berlin")[0]
        assert row["t"].astimezone(datetime.UTC) == datetime.datetime(2026, 7, 1, 10, tzinfo=datetime.UTC)
        assert row["u"].astimezone(datetime.UTC).time() == datetime.time(12, 0, 0, 500_000)
        assert (row["l"], row["d"]) == (summer, summer.date())
    assert decode(line, schema, "UTC", timeZone="Asia/Tokyo")[0]["t"].astimezone(datetime.UTC).hour == 3


def test_nested_dates_are_read_by_column() -> None:
    schema = pa.schema(
        [
            ("l", pa.list_(pa.field("element", UTC))),
            ("s", pa.struct([("d", pa.date32()), ("x", pa.list_(pa.field("element", pa.date32())))])),
        ]
    )
    day = datetime.date(2026, 1, 2)
    lines = (
        b'{"l":["2026-01-02T00:00:00Z",null],"s":{"d":"2026-01-02","x":["2026-01-02"]}}\n{"l":null,"s":null}\n{"l":[]}'
    )
    fmt = make(schema)
    rows = fmt._read_arrow(lines).to_pylist()
    assert rows == decode(lines + b"\nbad", schema)[:3]
    assert rows[0]["s"] == {"d": day, "x": [day]}
    assert rows[1] == {"l": None, "s": None}
    assert rows[2] == {"l": [], "s": None}


def test_a_bad_cell_keeps_the_rest_of_its_row() -> None:
    schema = pa.schema(
        [("m", pa.map_(pa.string(), pa.int32())), ("l", pa.list_(pa.int32())), ("e", pa.decimal128(4, 1))]
    )
    assert decode(b'{"m":{"x":1},"l":[1,2.5],"e":1.25}', schema) == [
        {"m": [("x", 1)], "l": None, "e": decimal.Decimal("1.3")}
    ]


def test_unknown_encoding_rules_of_spark() -> None:
    with pytest.raises(OptionError, match="lineSep"):
        make(encoding="ISO-8859-1")
    with pytest.raises(OptionError, match="UTF-16LE"):
        make(encoding="UTF-16", lineSep="\n")
    with pytest.raises(OptionError, match="columnNameOfCorruptRecord"):
        make(pa.schema([("c", pa.int64())]), columnNameOfCorruptRecord="c")


def test_a_very_deep_record_is_malformed_not_a_crash() -> None:
    deep = b'{"a":' + b"[" * 100_000
    assert decode(deep)[0]["_corrupt_record"] == deep.decode()


def test_numbers_of_any_length_and_exponent_are_read() -> None:
    schema = pa.schema([("i", pa.int64()), ("d", pa.float64()), ("e", pa.decimal128(10, 2)), ("s", pa.string())])
    digits = "9" * 10_000
    line = f'{{"i":{digits},"d":1e99999999999999999999,"e":1e-1000000,"s":{digits}}}'
    assert decode(line.encode(), schema) == [
        {"i": None, "d": float("inf"), "e": decimal.Decimal("0.00"), "s": digits},
    ]
    assert decode(b'{"e":1e99999999999999999999,"d":-0,"i":-0}', schema)[0] == {"i": 0, "d": 0.0, "e": None, "s": None}


@pytest.mark.parametrize("number", ["1e18", "1000000000000000000", "12345678901234567890.5"])
def test_a_number_beyond_its_decimal_makes_its_record_malformed(number: str) -> None:
    schema = pa.schema([("i", pa.int64()), ("e", pa.decimal128(20, 4)), ("_corrupt_record", pa.string())])
    line, good = f'{{"i":1,"e":{number}}}', '{"i":2,"e":1.5}'
    expected = [{"i": 2, "e": decimal.Decimal("1.5"), "_corrupt_record": None}] * 40
    expected.insert(20, {"i": 1, "e": None, "_corrupt_record": line})
    assert decode("\n".join([*[good] * 20, line, *[good] * 20]).encode(), schema) == expected


def test_a_date_may_be_the_number_of_its_day_as_text() -> None:
    schema = pa.schema([("d", pa.date32())])
    lines = "\n".join(f'{{"d":"{text}"}}' for text in ("1", "-1", "2026", "99999999999", "1x"))
    dates = [row["d"] for row in decode(lines.encode(), schema)]
    assert dates == [*(datetime.date(*day) for day in ((1970, 1, 2), (1969, 12, 31), (2026, 1, 1))), None, None]


def test_an_error_inside_a_value_costs_no_more_than_in_spark() -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.struct([("x", pa.int64())])), ("z", pa.int64())])
    lines = b'{"a":1,"s":{"x":nope},"z":2}\n{"a":1,"s":["x",{"x":1}],"z":2}\n{"a":1,"s":[nope],"z":2}\n'
    assert decode(lines, schema) == [
        {"a": 1, "s": None, "z": None},
        {"a": 1, "s": None, "z": 2},
        {"a": None, "s": None, "z": None},
    ]


def test_every_option_is_known_once_with_a_reason_if_it_does_nothing() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(names) == len(set(names))
    assert all(option.why for option in OPTIONS if option.status != "supported")


def read_document(data: bytes, limit: int = 1 << 20, **raw: str) -> list[dict]:
    fmt = JsonDocumentFormat(SCHEMA, parsed(multiLine="true", **raw), "UTC", limit)
    return [row for batch in fmt.read(pa.BufferReader(data), "part-0.json") for row in batch.to_pylist()]


def test_a_document_is_an_object_or_an_array_of_objects() -> None:
    assert [row["a"] for row in read_document(b'[{"a":1},\n {"a":\n2}]\n')] == [1, 2]
    assert [row["a"] for row in read_document(b'{"a":\n1}')] == [1]
    assert read_document(b"  \n") == []


def test_a_document_beyond_the_limit_is_refused_with_the_fix() -> None:
    assert len(read_document(b'{"a":1}', 7)) == 1
    with pytest.raises(BadDataError, match="one JSON object a line") as caught:
        read_document(b'{"a":12}', 7)
    assert caught.value.path == "part-0.json"
