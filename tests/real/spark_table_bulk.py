"""Rows for Parquet, ORC and folders of the table that compares Headgate with Spark."""

import datetime
import decimal
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from spark_table import Case

# Sentences of docs/files-differences.md.
FOLDERS_WITH_SCHEMA = "A given schema is the schema of the DataFrame"
ORC_ZONE = "ORC's timestamps are of the session's time zone"
ORC_CONVERSIONS = "ORC's columns are converted as Parquet's are"
MORE_TYPES = "Types that Spark refuses are read"
NANOSECONDS = "Parquet's nanoseconds become microseconds"
MIXED_FOLDERS = "Files at different depths of partition folders are an error"

UTC = datetime.UTC
MOMENT = datetime.datetime(2026, 7, 1, 12, 30, 15, 123456)


def parquet_bytes(data: pa.Table, **more: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(data, sink, **more)
    return sink.getvalue()


def orc_bytes(data: pa.Table) -> bytes:
    sink = io.BytesIO()
    orc.write_table(data, sink)
    return sink.getvalue()


def parquet(
    name: str, data: pa.Table, schema: str | None = None, difference: str | None = None, **options: str
) -> Case:
    return Case(name, "parquet", {"a.parquet": parquet_bytes(data)}, options, schema, difference)


def orc_case(name: str, data: pa.Table, schema: str | None = None, difference: str | None = None) -> Case:
    return Case(name, "orc", {"a.orc": orc_bytes(data)}, {}, schema, difference)


def folders(
    name: str,
    *paths: str,
    schema: str | None = None,
    difference: str | None = None,
    case_sensitive: bool = False,
    **options: str,
) -> Case:
    """The same Parquet file in several folders."""
    files = {f"{path}/a.parquet": parquet_bytes(SMALL) for path in paths}
    return Case(name, "parquet", files, options, schema, difference, case_sensitive)


def text(name: str, files: dict[str, bytes], schema: str | None = None, **options: str) -> Case:
    return Case(name, "text", files, options, schema)


SMALL = pa.table({"id": pa.array([1, 2, None], pa.int64()), "name": ["a", None, "c"]})
TYPES = pa.table(
    {
        "b": pa.array([1, -128, None], pa.int8()),
        "s": pa.array([1, -32768, None], pa.int16()),
        "i": pa.array([1, -(2**31), None], pa.int32()),
        "l": pa.array([1, -(2**63), None], pa.int64()),
        "f": pa.array([1.5, float("nan"), None], pa.float32()),
        "d": pa.array([1.5, float("-inf"), None], pa.float64()),
        "e": pa.array([decimal.Decimal("1.50"), decimal.Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
        "o": pa.array([True, False, None]),
        "t": pa.array(["ä", "", None]),
        "y": pa.array([b"\xff", b"", None]),
        "a": pa.array([datetime.date(2026, 7, 1), datetime.date(1900, 1, 1), None]),
        "p": pa.array([MOMENT, datetime.datetime(1970, 1, 1), None], pa.timestamp("us", "UTC")),
    }
)
NESTED = pa.table(
    {
        "list": pa.array([[1, None], [], None], pa.list_(pa.int32())),
        "struct": pa.array([{"x": 1, "y": "a"}, {"x": None, "y": None}, None]),
        "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        "deep": pa.array([[{"z": [1]}], [None], None], pa.list_(pa.struct({"z": pa.list_(pa.int64())}))),
    }
)
LOCAL_TIME = pa.table({"n": pa.array([MOMENT, None], pa.timestamp("us"))})
UNSIGNED = pa.table(
    {
        "u8": pa.array([255, None], pa.uint8()),
        "u16": pa.array([65535, None], pa.uint16()),
        "u32": pa.array([2**32 - 1, None], pa.uint32()),
        "u64": pa.array([2**64 - 1, None], pa.uint64()),
    }
)


def one(data_type: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"x": pa.array([*values, None], data_type)})


TWO_NAMES = pa.table({"b": [1, None], "B": [2, 3], "c": [4, 5], "s": pa.array([{"x": 1, "X": 2}, None])})
INSIDE = {"m": pa.array([[("k", {"X": 1})], None], pa.map_(pa.string(), pa.struct({"X": pa.int32()})))}
OTHER_INSIDE = {
    "M": pa.array([[("k", {"y": "a", "x": 7})]], pa.map_(pa.string(), pa.struct({"y": pa.string(), "x": pa.int32()})))
}


def merged(name: str, one: pa.Table, other: pa.Table, *, file_format: str = "parquet", cases: bool = False) -> Case:
    write = parquet_bytes if file_format == "parquet" else orc_bytes
    files = {f"a.{file_format}": write(one), f"b.{file_format}": write(other)}
    return Case(f"merged {name}", file_format, files, {"mergeSchema": "true"}, case_sensitive=cases)


def two_names(name: str, schema: str | None, *, cases: bool = False) -> list[Case]:
    """Files with the columns ``b`` and ``B``, read with a schema."""
    written = {"parquet": parquet_bytes(TWO_NAMES), "orc": orc_bytes(TWO_NAMES)}
    return [
        Case(f"b and B {name}", kind, {f"a.{kind}": content}, {}, schema, case_sensitive=cases)
        for kind, content in written.items()
    ]


CASES: list[Case] = [
    parquet("all types", TYPES),
    parquet("nested types", NESTED),
    parquet("timestamps without zone", LOCAL_TIME),
    parquet("unsigned numbers", UNSIGNED),
    Case(
        "old timestamps (INT96)", "parquet",
        {"a.parquet": parquet_bytes(TYPES.select(["p"]), use_deprecated_int96_timestamps=True)},
    ),
    parquet("dictionary, large and fixed size columns", pa.table({
        "d": pa.array(["x", "y", "x"]).dictionary_encode(),
        "l": pa.array(["x", None, "z"], pa.large_string()),
        "f": pa.array([b"ab", b"cd", None], pa.binary(2)),
    })),
    parquet("milliseconds", one(pa.timestamp("ms", "UTC"), MOMENT.replace(microsecond=123000))),
    parquet("nanoseconds", one(pa.timestamp("ns", "UTC"), MOMENT), difference=NANOSECONDS),
    parquet("a column of nothing", pa.table({"x": pa.nulls(2), "y": [1, 2]}), "x INT, y LONG"),
    Case("several row groups and files", "parquet",
         {f"{n}.parquet": parquet_bytes(SMALL, row_group_size=1) for n in range(3)}),
    Case("no rows", "parquet", {"a.parquet": parquet_bytes(SMALL.slice(0, 0))}),
    parquet("pruned and reordered columns", TYPES, "t STRING, i INT"),
    parquet("names in another case", SMALL, "NAME STRING, Id LONG"),
    parquet("a missing column", SMALL, "id LONG, nothing DATE"),
    parquet("a missing field of a struct", NESTED, "struct STRUCT<y: STRING, q: INT>"),
    parquet("int as long", one(pa.int32(), 7), "x LONG"),
    parquet("int as double", one(pa.int32(), 7), "x DOUBLE"),
    parquet("int as decimal", one(pa.int32(), 7), "x DECIMAL(12,2)"),
    parquet("int as a decimal that is too small", one(pa.int32(), 7), "x DECIMAL(5,2)"),
    parquet("int as string", one(pa.int32(), 7), "x STRING"),
    parquet("long as int", one(pa.int64(), 7), "x INT"),
    parquet("long as double", one(pa.int64(), 7), "x DOUBLE"),
    parquet("long as decimal", one(pa.int64(), 7), "x DECIMAL(20,0)"),
    parquet("float as double", one(pa.float32(), 1.5), "x DOUBLE"),
    parquet("double as float", one(pa.float64(), 1.5), "x FLOAT"),
    parquet("string as int", one(pa.string(), "7"), "x INT"),
    parquet("string as binary", one(pa.string(), "7"), "x BINARY"),
    parquet("binary as string", one(pa.binary(), b"7"), "x STRING"),
    parquet("decimal with more digits", one(pa.decimal128(5, 1), decimal.Decimal("1.5")), "x DECIMAL(7,2)"),
    parquet("decimal with fewer digits", one(pa.decimal128(7, 2), decimal.Decimal("1.5")), "x DECIMAL(5,1)"),
    parquet("date as timestamp without zone", one(pa.date32(), datetime.date(2026, 7, 1)), "x TIMESTAMP_NTZ"),
    parquet("date as timestamp", one(pa.date32(), datetime.date(2026, 7, 1)), "x TIMESTAMP"),
    parquet("timestamp as date", one(pa.timestamp("us", "UTC"), MOMENT), "x DATE"),
    parquet("an instant as local time", one(pa.timestamp("us", "UTC"), MOMENT), "x TIMESTAMP_NTZ"),
    parquet("a list as a wider list", NESTED, "list ARRAY<BIGINT>"),
    Case("merged schemas", "parquet",
         {"a.parquet": parquet_bytes(SMALL), "b.parquet": parquet_bytes(TYPES.select(["i", "t"]))},
         {"mergeSchema": "true"}),
    merged("names in another case", SMALL, pa.table({"NAME": ["b"], "Id": pa.array([3], pa.int64()), "more": [1.5]})),
    merged("names in another case, which counts", SMALL, pa.table({"NAME": ["b"], "id": [3]}), cases=True),
    merged("fields in another case", pa.table(INSIDE), pa.table(OTHER_INSIDE)),
    merged("fields in another case, which counts", pa.table(INSIDE), pa.table({"m": OTHER_INSIDE["M"]}), cases=True),
    merged("int and long", one(pa.int32(), 7), one(pa.int64(), 8)),
    merged("int and long", one(pa.int32(), 7), one(pa.int64(), 8), file_format="orc"),
    merged("lists of float and double", one(pa.list_(pa.float32()), [1.5]), one(pa.list_(pa.float64()), [2.5])),
    merged("string and binary", one(pa.string(), "7"), one(pa.binary(), b"8")),
    merged("decimals of one scale", one(pa.decimal128(4, 2), decimal.Decimal("1.25")),
           one(pa.decimal128(9, 2), decimal.Decimal("1234567.25"))),
    merged("decimals of two scales", one(pa.decimal128(9, 2), None), one(pa.decimal128(9, 3), None)),
    *two_names("inferred", None),
    *two_names("inferred where case counts", None, cases=True),
    *two_names("under b", "b LONG"),
    *two_names("under b where case counts", "b LONG, s STRUCT<X: LONG>", cases=True),
    *two_names("beside c", "c LONG"),
    *two_names("under both", "b LONG, B LONG"),
    *two_names("under both where case counts", "B LONG, b LONG, C LONG", cases=True),
    parquet("fields x and X under x", TWO_NAMES, "s STRUCT<x: LONG>"),
    Case("the first file", "parquet",
         {"b.parquet": parquet_bytes(SMALL), "a.parquet": parquet_bytes(SMALL.select(["name"]))}),
    Case("a truncated file", "parquet", {"a.parquet": parquet_bytes(SMALL)[:-9]}, {}, "id LONG"),
    Case("no Parquet at all", "parquet", {"a.parquet": b"id,name\n1,a\n"}, {}, "id LONG"),
    Case("a damaged file that is ignored", "parquet",
         {"a.parquet": parquet_bytes(SMALL), "b.parquet": b"PAR1 not really PAR1"},
         {"ignoreCorruptFiles": "true"}, "id LONG, name STRING"),
    orc_case("all types", TYPES.drop_columns(["p"])),
    orc_case("nested types", NESTED),
    orc_case("timestamps without zone as local times", LOCAL_TIME, "n TIMESTAMP_NTZ", difference=MORE_TYPES),
    orc_case("nothing in timestamps without zone", LOCAL_TIME.slice(1)),
    orc_case("timestamps without zone", LOCAL_TIME, difference=ORC_ZONE),
    orc_case("instants", TYPES.select(["p"])),
    orc_case("double as float", one(pa.float64(), 1.5), "x FLOAT", difference=ORC_CONVERSIONS),
    orc_case("text as a number", one(pa.string(), "7"), "x LONG", difference=ORC_CONVERSIONS),
    parquet("milliseconds of the day", one(pa.time32("ms"), datetime.time(1, 2)), difference=MORE_TYPES),
    parquet("half floats", one(pa.float16(), 1.5), difference=MORE_TYPES),
    parquet("nothing as a string", one(pa.null(), None), "x STRING", difference=MORE_TYPES),
    orc_case("pruned and reordered columns", TYPES.drop_columns(["p"]), "t STRING, i INT"),
    orc_case("names in another case", SMALL, "NAME STRING, Id LONG"),
    orc_case("a missing column", SMALL, "id LONG, nothing DATE"),
    orc_case("int as long", one(pa.int32(), 7), "x LONG"),
    Case("a truncated file", "orc", {"a.orc": orc_bytes(SMALL)[:-9]}, {}, "id LONG"),
    folders("folders of numbers", "year=2026/month=01", "year=2027/month=12"),
    folders("folders of long numbers", "n=1", "n=3000000000"),
    folders("folders of very long numbers", "n=1", "n=99999999999999999999"),
    folders("folders of fractions", "x=1", "x=1.5", "x=-2e3"),
    folders("folders of dates", "day=2026-07-01", "day=1999-12-31"),
    folders("folders of months", "month=2026-07", "month=2026-08"),
    folders("folders of dates and times", "at=2026-07-01 10%3A00%3A00", "at=2026-07-02"),
    folders("folders of times", "at=2026-07-01 10%3A00%3A00", "at=2026-07-01 11%3A30%3A00.5"),
    folders("folders of dates that do not exist", "day=2026-02-30"),
    folders("folders of texts", "city=New York", "city=M%C3%BCnchen", "city=a%2Fb%3Dc"),
    folders("folders of numbers and texts", "x=1", "x=abc"),
    folders("folders of dates and numbers", "x=2026-07-01", "x=5"),
    folders("folders of truths", "x=true", "x=false"),
    folders("folders with null", "x=1", "x=__HIVE_DEFAULT_PARTITION__"),
    folders("folders of nothing but null", "x=__HIVE_DEFAULT_PARTITION__"),
    folders("folders that look like numbers of Java", "x=1d", "x=0x10"),
    folders("folders not a number", "x=NaN", "x=1"),
    folders("a folder named as a column of the file", "name=z"),
    folders("folders with a schema that has them last", "year=2026", schema="id LONG, name STRING, year STRING"),
    folders("folders with a schema of numbers", "x=007", schema="id LONG, name STRING, x LONG"),
    folders("folders with a schema that leaves them out", "year=2026", schema="id LONG",
            difference=FOLDERS_WITH_SCHEMA),
    folders("folders with a schema that they contradict", "x=abc", schema="id LONG, x INT"),
    folders("folders in another case", "x=1/Y=a", "X=2/y=b", schema="id LONG, name STRING, x INT, y STRING"),
    folders("folders in another case, which counts", "x=1/Y=a", "X=2/y=b", case_sensitive=True),
    folders("a folder named as a column of the file in another case", "NAME=z"),
    folders("a folder named as a column of the file but for its case", "NAME=z", case_sensitive=True),
    folders("folders in folders that differ in case", "x=1/X=2"),
    folders("folders in folders whose case counts", "x=1/X=2", case_sensitive=True),
    folders("folders at different depths", "year=2026", "year=2027/month=1"),
    folders("folders of different columns", "year=2026", "month=1"),
    Case("files beside partition folders", "text", {"a.txt": b"a", "year=2026/b.txt": b"b"}, {}, None, MIXED_FOLDERS),
    folders("folders below folders that are none", "sub/year=2026"),
    folders("all folders", "sub", "year=2026/deep", recursiveFileLookup="true"),
    text("names that are ignored", {"_a.txt": b"a", ".b.txt": b"b", "c.txt": b"c", "_d/e.txt": b"e"}),
    text("names that match", {"a.txt": b"a", "b.log": b"b", "c.txt.bak": b"c"}, pathGlobFilter="*.{txt,csv}"),
    text("folders", {"year=2026/a.txt": b"a\n\nb", "year=2027/b.txt": b"c"}),
    text("empty files", {"a.txt": b"", "b.txt": b"x"}),
    text("modified before it was written", {"a.txt": b"a"}, "value STRING", modifiedBefore="1999-01-01T00:00:00"),
]  # fmt: skip
