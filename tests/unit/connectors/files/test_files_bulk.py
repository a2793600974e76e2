import datetime
import decimal
import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from files_cases import arrow_bytes, orc_bytes, parquet_bytes

from headgate.errors import BadDataError
from headgate.formats import arrow_ipc, orc, parquet
from headgate.formats.columns import ColumnFitter, spark_type
from headgate.formats.row_filter import RowFilter, parse_row_filter


def parquet_units(data, schema, row_filter=None):
    return parquet.ParquetFormat(schema, {}, "UTC", row_filter).open(pa.BufferReader(data), "f.parquet")


def rows_of(units):
    return [row for unit in range(units.num_units) for batch in units.read_unit(unit, 0) for row in batch.to_pylist()]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0)),
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.dictionary(pa.int32(), pa.string()), pa.string()),
        (pa.binary(16), pa.binary()),
        (pa.timestamp("ns"), pa.timestamp("us")),
        (pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "UTC")),
        (pa.decimal256(40, 2), pa.decimal128(38, 2)),
        (pa.large_list(pa.uint8()), pa.list_(pa.int16())),
        (pa.struct({"a": pa.uint16()}), pa.struct({"a": pa.int32()})),
        (pa.map_(pa.string(), pa.uint8()), pa.map_(pa.string(), pa.int16())),
    ],
)
def test_types_without_a_given_schema(found, expected):
    assert spark_type(found) == expected


WIDENINGS = [
    (pa.array([1, None], pa.int32()), pa.int64(), [1, None]),
    (pa.array([1, None], pa.int16()), pa.float64(), [1.0, None]),
    (pa.array([1.5], pa.float32()), pa.float64(), [1.5]),
    (pa.array([7], pa.int32()), pa.decimal128(12, 2), [decimal.Decimal("7.00")]),
    (pa.array([decimal.Decimal("1.5")], pa.decimal128(5, 1)), pa.decimal128(7, 2), [decimal.Decimal("1.50")]),
    (pa.array([datetime.date(2026, 1, 2)]), pa.timestamp("us"), [datetime.datetime(2026, 1, 2)]),
    (pa.array([b"x"]), pa.string(), ["x"]),
    (pa.array([2**63], pa.uint64()), pa.decimal128(20, 0), [decimal.Decimal(2**63)]),
    (pa.array(["a", "b"]).dictionary_encode(), pa.string(), ["a", "b"]),
    (
        pa.array([0], pa.timestamp("us", "UTC")),
        pa.timestamp("us"),
        [datetime.datetime(1970, 1, 1)],
    ),
    (pa.array([[1], None, []], pa.list_(pa.int32())), pa.list_(pa.int64()), [[1], None, []]),
    (pa.array([b"a\xff", None, "é".encode()]), pa.string(), ["a\ufffd", None, "é"]),  # Spark shows it so
    (pa.array([b"a\xff"]).dictionary_encode(), pa.string(), ["a\ufffd"]),
    (pa.array([[b"\xed\xa0\x80"], None]), pa.list_(pa.string()), [["\ufffd"], None]),
    (pa.array([b"\xe9a"], pa.binary(2)), pa.string(), ["\ufffda"]),
    (
        pa.array([{"a": 1, "b": "x"}, None], pa.struct({"a": pa.int32(), "b": pa.string()})),
        pa.struct({"B": pa.string(), "c": pa.int32()}),
        [{"B": "x", "c": None}, None],
    ),
    (
        pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int32())),
        pa.map_(pa.string(), pa.int64()),
        [[("k", 1)], None],
    ),
]


@pytest.mark.parametrize(("array", "wanted", "expected"), WIDENINGS, ids=lambda each: str(getattr(each, "type", each)))
def test_columns_are_widened_as_spark_does(array, wanted, expected):
    batch = pa.record_batch({"x": array})
    fitted = ColumnFitter(batch.schema, pa.schema([("x", wanted)]), "f").fit(batch)
    assert fitted.schema.field("x").type == wanted
    assert fitted.column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (pa.int64(), pa.int32()),
        (pa.int64(), pa.float64()),
        (pa.string(), pa.int32()),
        (pa.float64(), pa.float32()),
        (pa.decimal128(10, 2), pa.decimal128(10, 3)),
        (pa.int32(), pa.string()),
        (pa.list_(pa.string()), pa.list_(pa.int32())),
        (pa.struct({"a": pa.string()}), pa.struct({"a": pa.int32()})),
    ],
)
def test_other_types_are_an_error_that_names_file_column_and_types(found, wanted):
    with pytest.raises(BadDataError, match=r"of f\.x is") as error:
        ColumnFitter(pa.schema([("x", found)]), pa.schema([("x", wanted)]), "f.x")
    assert str(wanted if not pa.types.is_nested(wanted) else pa.int32()) in str(error.value)


def test_columns_match_without_case_and_missing_ones_are_null():
    batch = pa.record_batch({"Id": [1, 2], "other": ["a", "b"]})
    schema = pa.schema([("name", pa.string()), ("id", pa.int64())])
    assert ColumnFitter(batch.schema, schema, "f").fit(batch).to_pylist() == [
        {"name": None, "id": 1},
        {"name": None, "id": 2},
    ]


def test_ambiguous_columns_are_an_error():
    found = pa.schema([("A", pa.int64()), ("a", pa.int64())])
    wanted = pa.schema([("a", pa.int64())])
    with pytest.raises(BadDataError, match="'a' could be any of \\['A', 'a'\\] in f"):
        ColumnFitter(found, wanted, "f")
    assert ColumnFitter(found, wanted, "f", case_sensitive=True).names == ["a"]
    assert ColumnFitter(found, pa.schema([("B", pa.int64())]), "f").names == [None]


def test_old_parquet_timestamps_are_instants():
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_000)
    sink = io.BytesIO()
    pq.write_table(pa.table({"t": [moment]}), sink, use_deprecated_int96_timestamps=True)
    inferred = parquet.infer_parquet_schema(pa.BufferReader(sink.getvalue()), "f")
    assert inferred.field("t").type == pa.timestamp("us", "UTC")
    assert rows_of(parquet_units(sink.getvalue(), inferred)) == [{"t": moment.replace(tzinfo=datetime.UTC)}]


def test_batches_of_wide_rows_are_short(monkeypatch):
    monkeypatch.setattr(parquet, "BATCH_BYTES", 10_000)
    rng = np.random.default_rng(1)
    data = pa.table({"x": [rng.bytes(1000) for _ in range(500)]})
    units = parquet_units(parquet_bytes(data, 500), data.schema)
    batches = list(units.read_unit(0, 0))
    assert max(batch.num_rows for batch in batches) <= 11
    assert sum(batch.num_rows for batch in batches) == 500


def test_batches_of_long_values_from_a_dictionary_are_short():
    data = pa.table({"x": ["x" * 20_000] * 5000})
    batches = list(parquet_units(parquet_bytes(data, 5000), data.schema).read_unit(0, 0))
    assert max(batch.nbytes for batch in batches) <= parquet.BATCH_BYTES
    assert sum(batch.num_rows for batch in batches) == 5000


def test_rows_above_the_limit_are_an_error(monkeypatch):
    monkeypatch.setattr(parquet, "MAX_BATCH_BYTES", 500)
    data = pa.table({"x": [np.random.default_rng(n).bytes(1000) for n in range(3)]})
    with pytest.raises(BadDataError, match=r"row group 0 of f\.parquet"):
        list(parquet_units(parquet_bytes(data), data.schema).read_unit(0, 0))


def groups_read(text, data, schema, row_group_size=10):
    row_filter = RowFilter(parse_row_filter(text), schema, "UTC")
    units = parquet_units(parquet_bytes(data, row_group_size), schema, row_filter)
    return [unit for unit in range(units.num_units) if list(units.read_unit(unit, 0))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 15", [1]),
        ("id = 99", []),
        ("id < 10", [0]),
        ("id <= 10", [0, 1]),
        ("id > 19 and id < 25", [2]),
        ("id >= 30", [3]),
        ("id in (5, 35)", [0, 3]),
        ("id is null", [3]),
        ("id is not null", [0, 1, 2, 3]),
        ("name = 'n12'", [0, 1]),
        ("name > 'n3'", [0, 3]),
        ("day >= date '2026-01-03'", [2, 3]),
        ("at < timestamp '2026-01-02T00:00:00'", [0]),
        ("v > 2.5", [0, 1, 2, 3]),
        ("v < 1", [0]),
        ("missing = 1", [0, 1, 2, 3]),
        ("ID = 15", [1]),
    ],
)
def test_row_groups_without_wanted_rows_are_not_read(text, expected):
    days = [datetime.date(2026, 1, 1 + n // 10) for n in range(40)]
    data = pa.table(
        {
            "Id": [*range(35), *[None] * 4, 39],
            "name": [f"n{n}" for n in range(40)],
            "day": days,
            "at": pa.array([datetime.datetime(d.year, d.month, d.day) for d in days], pa.timestamp("us", "UTC")),
            "v": [n / 10 for n in range(39)] + [float("nan")],
        }
    )
    schema = pa.schema([data.schema.field("Id").with_name("id"), *list(data.schema)[1:], ("missing", pa.int64())])
    if text == "v > 2.5":
        expected = [0, 1, 2, 3]  # NaN is greater than all, and statistics leave it out
    assert groups_read(text, data, schema) == expected


def test_a_decimal_beyond_38_digits_is_an_error_and_no_other_number():
    wide = pa.decimal256(41, 2)
    fitter = ColumnFitter(pa.schema([("x", wide)]), pa.schema([("x", pa.decimal128(38, 2))]), "f")
    fits, huge = (pa.array([decimal.Decimal(text)], wide) for text in ("1.25", "1" + "0" * 38 + ".25"))
    assert fitter.fit(pa.record_batch([fits], ["x"]))["x"].to_pylist() == [decimal.Decimal("1.25")]
    with pytest.raises(BadDataError, match="'x' of f cannot be read as"):
        fitter.fit(pa.record_batch([huge], ["x"]))
    nested = ColumnFitter(pa.schema([("x", pa.list_(wide))]), pa.schema([("x", pa.list_(pa.decimal128(38, 2)))]), "f")
    with pytest.raises(BadDataError, match="'x' of f cannot be read as"):
        nested.fit(pa.record_batch([pa.ListArray.from_arrays([0, 1], huge)], ["x"]))


def test_orcs_timestamps_are_instants_of_the_sessions_wall_clock(tmp_path):
    noon = datetime.datetime(2026, 7, 1, 12)
    data = pa.table({"t": pa.array([noon, None]), "s": pa.array([{"l": [noon]}, None])})
    content = orc_bytes(data)
    utc = pa.timestamp("us", "UTC")
    inferred = orc.infer_orc_schema(pa.BufferReader(content), "f.orc")
    assert inferred == pa.schema([("t", utc), ("s", pa.struct([("l", pa.list_(utc))]))])
    units = orc.OrcFormat(inferred, {}, "America/New_York").open(pa.BufferReader(content), "f.orc")
    (batch,) = units.read_unit(0, 0)
    instant = datetime.datetime(2026, 7, 1, 16, tzinfo=datetime.UTC)
    assert batch.to_pylist() == [{"t": instant, "s": {"l": [instant]}}, {"t": None, "s": None}]
    local = pa.schema([("t", pa.timestamp("us"))])
    units = orc.OrcFormat(local, {}, "America/New_York").open(pa.BufferReader(content), "f.orc")
    assert next(units.read_unit(0, 0))["t"].to_pylist() == [noon, None]


def test_orc_files_with_large_stripes_are_streamed(monkeypatch):
    data = pa.table({"id": list(range(200_000)), "name": [f"n{n}" for n in range(200_000)]})
    content = orc_bytes(data)
    small = orc.OrcFormat(data.schema, {}, "UTC").open(pa.BufferReader(content), "f.orc")
    monkeypatch.setattr(orc, "_SMALL_STRIPE_DECODED_BYTES", 1000)
    large = orc.OrcFormat(data.schema, {}, "UTC").open(pa.BufferReader(content), "f.orc")
    assert large.num_units == 1
    for first in (0, 1, 70_000, 199_999):
        found = pa.Table.from_batches(large.read_unit(0, first))
        assert found.equals(data.slice(first))
    assert pa.Table.from_batches(small.read_unit(0, 70_000)).num_rows == 130_000


def test_arrow_batches_above_the_limit_are_an_error(monkeypatch):
    data = pa.table({"id": list(range(1000))})
    monkeypatch.setattr(arrow_ipc, "_MAX_UNIT_BYTES", 1000)
    with pytest.raises(BadDataError, match=r"record batches of f\.arrow"):
        arrow_ipc.ArrowFormat(data.schema, {}, "UTC").open(pa.BufferReader(arrow_bytes(data, 1000)), "f.arrow")


def test_arrow_columns_are_pruned_and_dictionaries_decoded():
    data = pa.table({"a": [1, 2], "b": pa.array(["x", "x"]).dictionary_encode()})
    units = arrow_ipc.ArrowFormat(pa.schema([("b", pa.string())]), {}, "UTC").open(
        pa.BufferReader(arrow_bytes(data)), "f.arrow"
    )
    assert rows_of(units) == [{"b": "x"}, {"b": "x"}]
