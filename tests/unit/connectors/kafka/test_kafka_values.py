"""Values that are JSON: however they are cut into batches, the rows are the same, one for each value."""

from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.kafka.records import Records
from headgate.errors import BadDataError, OptionError
from headgate.formats.json import OPTIONS
from headgate.formats.json_values import JSON_OPTIONS, JsonValues
from headgate.source.options import Options
from local.records import records_of

SCHEMA = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("t", pa.timestamp("us", "UTC")), ("_corrupt_record", pa.string())]
)
GOOD = b'{"a":1,"b":"x"}'
BAD = (b"bad", b"[]", b'{"a":"x"}', b'{"a":1', b"{nonsense}", b'{"b":"\n"}', b"\xff", b"\xef\xbb\xbf{}", b'{"t":"x"}')
BLANK = (None, b"", b" ", b"\r\n", b"\n\n")
FINE = (
    GOOD, b"{}", b'{"b":"x","a":1}', b'\n{"a":1}\n', b'{\n "a":1\r\n}', b'{"a":1}{"a":2}', b'{"a":1} {',
    b'{"b":"\xff"}',
    b'{"a":1}}', b" " * 30 + GOOD, GOOD + b"\n" * 30, b'{"a":2,"t":"2026-01-02T03:04:05Z"}', b'{"a":null,"c":[{}]}',
    b'{"c":' + b"[" * 700 + b"]" * 700 + b',"a":1}',
)  # fmt: skip


def make(schema: pa.Schema = SCHEMA, **raw: str) -> JsonValues:
    return JsonValues(schema, Options.parse("headgate.kafka", JSON_OPTIONS, raw), "UTC")


def decode(reader: JsonValues, records: Records) -> tuple[pa.RecordBatch, pa.BooleanArray | None]:
    return reader.decode(records.values, records.where)


def rows(values: list[bytes | None], schema: pa.Schema = SCHEMA, **raw: str) -> list[dict]:
    batch, kept = decode(make(schema, **raw), records_of(values))
    batch.validate(full=True)
    assert batch.schema == schema
    assert batch.num_rows == (len(values) if kept is None else kept.true_count)
    return batch.to_pylist()


objects = st.builds(
    b'{"a":%d,"b":"%s"}'.__mod__,
    st.tuples(st.integers(0, 10**6), st.sampled_from([b"", b"x", b"y, z", b"\\n", b"\xc3\xa9"])),
)
odd = st.one_of(
    st.sampled_from([*BAD, *BLANK, *FINE]),
    st.binary(max_size=6),
    st.lists(
        st.sampled_from([b"{", b"}", b'"a"', b":", b"1", b",", b"\n", b"\r", b" ", b"null", GOOD]), max_size=7
    ).map(b"".join),
)
runs = st.one_of(
    st.lists(odd, max_size=5),
    st.lists(objects, max_size=40),
    st.builds(lambda value, count: [value] * count, objects | odd, st.integers(1, 60)),
)
value_lists = (
    st.lists(runs, min_size=1, max_size=6).map(lambda parts: [value for part in parts for value in part]).filter(bool)
)


@settings(deadline=None)
@given(value_lists, st.data())
def test_any_cut_into_batches_gives_the_rows_one_by_one(values: list[bytes | None], data: st.DataObject) -> None:
    reader = make()
    records = records_of(values, first_offset=100)
    alone = [decode(reader, records.slice(i, i + 1))[0].to_pylist()[0] for i in range(len(values))]
    found = []
    start = 0
    while start < len(values):
        stop = start + data.draw(st.integers(1, len(values) - start))
        batch, kept = decode(reader, records.slice(start, stop))
        assert kept is None
        batch.validate(full=True)
        found += batch.to_pylist()
        start = stop
    assert found == alone


@settings(deadline=None)
@given(value_lists)
def test_modes_agree_on_what_is_malformed(values: list[bytes | None]) -> None:
    permissive = rows(values)
    good = [row for row in permissive if row["_corrupt_record"] is None]
    assert rows(values, mode="DROPMALFORMED") == good
    if len(good) == len(values):
        assert rows(values, mode="FAILFAST") == good
    else:
        first = next(index for index, row in enumerate(permissive) if row["_corrupt_record"] is not None)
        with pytest.raises(BadDataError) as caught:
            rows(values, mode="FAILFAST")
        assert caught.value.facts == {"topic": "flights", "partition": 3, "offset": first}


@pytest.mark.parametrize("value", BAD)
def test_malformed_values_go_to_the_corrupt_column(value: bytes) -> None:
    expected = value.decode("utf-8", "replace")
    assert rows([value])[0]["_corrupt_record"] == expected
    assert [row["_corrupt_record"] for row in rows([*[GOOD] * 50, value, *[GOOD] * 50])] == (
        [None] * 50 + [expected] + [None] * 50
    )


@pytest.mark.parametrize(
    ("number", "digits"), [(b"1.0", 5), (b"1", 5), (b"1e3", 5), (b'"1.0"', 5), (b"1e20", 38), (b"-1e20", 38)]
)
def test_a_number_beyond_its_decimal_spoils_its_own_value_and_nothing_else(number: bytes, digits: int) -> None:
    schema = pa.schema([("a", pa.int64()), ("d", pa.decimal128(digits, digits)), ("_corrupt_record", pa.string())])
    bad, good = b'{"a":2,"d":%s}' % number, b'{"a":1,"d":0.5}'
    found = rows([*[good] * 50, bad, *[good] * 50], schema)
    assert found[50] == {"a": 2, "d": None, "_corrupt_record": bad.decode()}
    assert [row["d"] for row in found[:50] + found[51:]] == [Decimal("0.5")] * 100
    nested = pa.schema([("l", pa.list_(pa.struct([("d", pa.decimal128(digits, digits))])))])
    assert rows([*[b'{"l":[{"d":0.5}]}'] * 50, b'{"l":[{"d":%s}]}' % number], nested)[50] == {"l": [{"d": None}]}


def test_an_error_inside_a_value_leaves_the_columns_around_it_that_spark_keeps() -> None:
    schema = pa.schema([("a", pa.int64()), ("s", pa.list_(pa.int64())), ("z", pa.int64())])
    assert rows([b'{"a":1,"s":[undefined],"z":2}'], schema) == [{"a": 1, "s": None, "z": 2}]
    assert rows([b'{"a":1,"s":[[nope]],"z":2}'], schema) == [{"a": None, "s": None, "z": None}]
    assert rows([b'{"a":1,"s":undefined,"z":2}'], schema) == [{"a": None, "s": None, "z": None}]


@pytest.mark.parametrize("value", BLANK)
@pytest.mark.parametrize("mode", ["PERMISSIVE", "DROPMALFORMED", "FAILFAST"])
def test_null_and_blank_values_are_null_rows_in_every_mode(value: bytes | None, mode: str) -> None:
    nothing = {"a": None, "b": None, "t": None, "_corrupt_record": None}
    assert rows([value], mode=mode) == [nothing]
    assert rows([GOOD, value, GOOD], mode=mode)[1] == nothing


@pytest.mark.parametrize("value", FINE)
def test_fine_values_are_fine(value: bytes) -> None:
    assert rows([value], mode="FAILFAST") == rows([*[GOOD] * 50, value], mode="FAILFAST")[50:]


def test_one_bad_value_among_many_is_the_only_one_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = make()
    alone = []
    parse = reader._format.parse_record
    monkeypatch.setattr(reader._format, "parse_record", lambda text: alone.append(text) or parse(text))
    values = [*[b'{"a":%d,"b":"x"}' % i for i in range(3000)], b"nonsense", None, b"[1]", *[b'{"a":7\n}'] * 3000]
    batch, _ = decode(reader, records_of(values))
    assert alone == [b"nonsense"]
    assert batch.column("a").to_pylist() == [*range(3000), None, None, None, *[7] * 3000]
    alone.clear()
    values[1500] = b"{nonsense}"
    decode(reader, records_of(values))
    assert b"{nonsense}" in alone
    assert len(alone) < 64


def test_the_error_of_failfast_says_where_the_value_is() -> None:
    with pytest.raises(
        BadDataError, match=r"offset 42 of partition 3 of the topic 'flights' is not a JSON.*'bad'"
    ) as caught:
        decode(make(mode="FAILFAST"), records_of([GOOD, GOOD, b"bad", b"worse"], first_offset=40))
    assert caught.value.facts == {"topic": "flights", "partition": 3, "offset": 42}


def test_the_corrupt_column_may_have_another_name() -> None:
    schema = pa.schema([("a", pa.int64()), ("raw", pa.string())])
    assert rows([b"bad"], schema, columnNameOfCorruptRecord="raw") == [{"a": None, "raw": "bad"}]


@pytest.mark.parametrize(
    "raw",
    [{"timeZone": "Nowhere/Land"}, {"timestampFormat": "GGGG"}, {"columnNameOfCorruptRecord": "a"}],
)
def test_bad_options_are_refused_before_there_are_values(raw: dict[str, str]) -> None:
    with pytest.raises(OptionError):
        make(**raw)


def test_options_are_those_of_json_files_that_concern_values() -> None:
    names = {spec.name for spec in JSON_OPTIONS}
    assert {"mode", "columnNameOfCorruptRecord", "timeZone", "dateFormat", "allowComments"} <= names
    assert names.isdisjoint({"lineSep", "encoding", "multiLine", "compression", "inferTimestamp", "maxNestingDepth"})
    assert all(spec in OPTIONS for spec in JSON_OPTIONS)
