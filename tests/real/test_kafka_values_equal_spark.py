"""Values parsed by headgate.kafka give what Spark's ``from_json`` gives of the same bytes, or the docs say why not."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
import spark_table_json as table
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType
from spark_table import SESSION_TIME_ZONE, canonical, table_time_zone

from headgate.connectors.kafka.columns import KafkaColumns, kafka_schema
from headgate.errors import BadDataError
from headgate.formats.json_values import JSON_OPTIONS
from headgate.source.options import Options, OptionSpec, boolean, text
from headgate.spark.compatibility import from_arrow_schema, to_arrow_schema
from local.records import records_of

SPECS = (*JSON_OPTIONS, OptionSpec("valueFormat", text, "json"), OptionSpec("includeHeaders", boolean, False))
GOOD = b'{"k":7,"a":7,"b":"seven","w":"z"}'

# Sentences of docs/kafka.md.
AS_WRITTEN = "What is not a string keeps its digits and spaces in a string column"
NO_UTF8 = "A malformed value that is not UTF-8 is shown with replacement characters"


@dataclass(frozen=True)
class Group:
    """Values that are parsed with one schema and options; those of ``different`` are known to differ, and how."""

    name: str
    values: tuple[bytes | None, ...]
    schema: str = "a BIGINT, b STRING, _corrupt_record STRING"
    options: dict[str, str] = field(default_factory=dict)
    different: dict[bytes, str] = field(default_factory=dict)


def cells(
    name: str,
    kind: str,
    cells: tuple[str | bytes, ...],
    different: dict[str | bytes, str] | None = None,
    **options: str,
) -> Group:
    def value(cell: str | bytes) -> bytes:
        return b'{"k":1,"v":%s,"w":"z"}' % (cell if isinstance(cell, bytes) else cell.encode())

    known = {value(cell): why for cell, why in (different or {}).items()}
    schema = f"k INT, v {kind}, w STRING, _corrupt_record STRING"
    return Group(name, tuple(map(value, cells)), schema, options, known)


ODD: tuple[bytes | None, ...] = (
    None, b"", b" ", b"\n", b"\t", b" \r\n ", b"\n\n", b'{"a":1,"b":"x"}', b'{"a":1}\n', b'\n{"a":1}', b'{"a":1}\r\n',
    b'\r{"a":1}\r', b'{"a":\n1}', b'{\r\n  "a" : 1,\r\n  "b" : "x"\r\n}', b'{\n}\n', b'{"a":1,"b":"x\ry"}',
    b'{"a":1,"b":"x\ny"}', b'{"a":1,"b":"x\ty"}', b' {"a":1} ', b'\t{"a":1}\t', b" " * 40 + b'{"a":1}' + b"\n" * 40,
    b'[{"a":1},{"a":2}]', b'[{"a":1}]', b"[]", b' \n[{"a":1}]', b"[1]", b"[", b'{"a":1}{"a":2}', b'{"a":1}\n{"a":2}',
    b'{"a":1}\n\n{"a":2}', b'{"a":1} {}', b'{"a":1} junk', b'{"a":1} junk}', b'{"a":1}}', b'{"a":1}]',
    b'{"a":1} null', b'{"a":1} null {}', b'null {"a":1}', b'{"a":1},{"a":2}', b'junk {"a":1}', b'{"a":1}\x00',
    b'\x00{"a":1}', b'{"b":"\x00"}', b"\x00", b'{\x00"a":1}', b'{"a":1}\x00}', b'\xef\xbb\xbf{"a":1}', b"\xef\xbb\xbf",
    b'{"b":"\xef\xbb\xbf"}', b'{"a":1}\xef\xbb\xbf', b'{"b":"\xff"}', b'{"b":"\xed\xa0\x80","a":1}',
    b'{"b":"\xed\xa0","a":1}', b'{"b":"\xe2\xed\xbf\xbf","a":1}', b'{"b":"\xe2\x82","a":1}',
    b'{"b":"\xf0\x9f\x98","a":1}', b'{"b":"\xc0\x80","a":1}', b'{"b":"\xf5\x80\x80\x80","a":1}',
    b'{"b":"\xf4\x90\x80\x80"}', b'{"b":"\xe0\x80\x80"}', b'{"c":"\xff","a":1}', b'{"\xff":1,"a":2}', b'{"a":1}\xff',
    "{'b':'é€😀'}".encode(), b"null", b"1", b"-1.5", b'"x"', b"true", b"NaN", b"{", b"}", b"{}", b"{ }", b"{}{}",
    b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{"a" 1}', b"{a:1}", b"{'a':1}", b'{"a":"x","b":"y"}', b'{"a":1.5,"b":"y"}',
    b'{"a":"1"}', b'{"a":[1],"b":"y"}', b'{"a":{},"b":"y"}', b'{"a":99999999999999999999,"b":"z"}', b'{"a":null}',
    b'{"a":1,"a":2}', b'{"a":1,"a":null}', b'{"a":1,"c":}', b'{"c":bad,"a":1}', b'{"a":1,"c":[{"x":[1,2,{}]}]}',
    b'{"A":1}', b'{"":1,"a":2}', b"// x", b"/* x */", b'# x\n{"a":1}', b'{"a":1,"_corrupt_record":"mine"}',
    b'{"b":"\\u0000"}', b'{"b":"\\ud83d\\ude00"}', b'{"b":"\\ud800"}', b'{"b":"a\\nb"}', b'{"b":"\\q"}',
    b'\x0b{"a":1}', b'\xc2\xa0{"a":1}', b'\x1e{"a":1}', b"\x1f", b'{"a":1}\x0b', '{"a":1}'.encode("utf-16le"),
    '{"a":1}'.encode("utf-16be"), '{"a":1}'.encode("utf-32be"), b"<a>1</a>", b"a,b", b"Inf", b'{"a":Inf}',
    b'{"b":"' + b"x" * 300_000 + b'"}', b"x" * 100_000, b'{"c":' + b"[" * 900 + b"]" * 900 + b',"a":1}',
    b"\xff", '{"a":1}'.encode("utf-16"), b'{"a":1,"b":"\xff}', b'{"b":1.50}', b'{"b":{"q" : [1, 2]}}', b'{"b":5}',
    b'{"b":true}', b'{"b":[]}', b'{"b":{"q":1}}',
)  # fmt: skip
DIFFERENT_ODD = {
    b"\xff": NO_UTF8,
    '{"a":1}'.encode("utf-16"): NO_UTF8,
    b'{"a":1,"b":"\xff}': NO_UTF8,
    b'{"b":1.50}': AS_WRITTEN,
    b'{"b":{"q" : [1, 2]}}': AS_WRITTEN,
}
LENIENT = (
    b'{"a":1/*x*/} // y', b'# z\n{"a":2}', b"// only", b'{/*,*/"a"/**/:/* */3}', b'{"a":4 /*', b'//\n{"a":5}',
    b"{a:1,b$_9:2}", b'{"a":007,"b":"\\q"}', b'{"a":-007}', b'{"b":"x\ty\x01"}', b'{"b":"x\ny"}', b'{"b":"x\r\n"}',
    b'{"b":"\n"}\n',
)  # fmt: skip
REWRITTEN = (
    "1e3", "1.50", "NaN", "-Infinity", '{"x" : 1 , "y":[1, 2]}', '[1, 2 , "z"]', "{'x':1}", '{"x":"\\u0041"}',
    "123456789012345678901234567890.10",
)  # fmt: skip
ERRORS_INSIDE = tuple(b'{"a":1,"s":%s,"z":2}' % value.encode() for value in table.ERRORS_INSIDE)
GROUPS = (
    Group("odd", ODD, different=DIFFERENT_ODD),
    Group("odd-bulk-only", ODD, "a BIGINT, _corrupt_record STRING", different={
        value: why for value, why in DIFFERENT_ODD.items() if why == NO_UTF8}),
    Group("odd-without-corrupt-column", ODD, "b STRING, a INT", different={
        value: why for value, why in DIFFERENT_ODD.items() if why == AS_WRITTEN}),
    Group("corrupt-column-named", ODD[:30], "a BIGINT, c STRING", {"columnNameOfCorruptRecord": "c"}),
    Group("lenient", LENIENT, options={
        "allowComments": "true", "allowUnquotedFieldNames": "true", "allowNumericLeadingZeros": "true",
        "allowUnquotedControlChars": "true", "allowBackslashEscapingAnyCharacter": "true"}),
    Group("strict", (*LENIENT, b"{'a':1}", b'{"a":1,"b":NaN}', b'{"a":NaN}'), options={
        "allowSingleQuotes": "false", "allowNonNumericNumbers": "false"}),
    *(cells(kind, kind, table.INTEGERS) for kind in ("TINYINT", "SMALLINT", "INT", "BIGINT")),
    cells("DOUBLE", "DOUBLE", table.DOUBLES),
    cells("FLOAT", "FLOAT", table.DOUBLES),
    cells(
        "STRING", "STRING", (*table.STRINGS, '{"x":bad}'), dict.fromkeys(REWRITTEN, AS_WRITTEN)
    ),
    cells("BOOLEAN", "BOOLEAN", table.BOOLEANS),
    cells("DECIMAL", "DECIMAL(10,2)", table.DECIMALS),
    *(cells(kind, kind, table.DECIMALS) for kind in table.DECIMAL_TYPES),
    *(
        Group(f"errors-inside-{kind}", ERRORS_INSIDE, f"a INT, s {kind}, z INT, _corrupt_record STRING")
        for kind in table.KINDS_WITH_ERRORS
    ),
    Group("errors-inside-what-is-skipped", ERRORS_INSIDE, "a INT, z INT, _corrupt_record STRING"),
    cells("BINARY", "BINARY", (*table.BINARIES, '"a"')),
    cells("DATE", "DATE", table.DATES),
    cells("TIMESTAMP", "TIMESTAMP", table.TIMESTAMPS),
    cells("TIMESTAMP_NTZ", "TIMESTAMP_NTZ", table.TIMESTAMPS),
    cells("TIMESTAMP-zone", "TIMESTAMP", table.TIMESTAMPS, timeZone="Asia/Tokyo"),
    cells("DATE-format", "DATE", ('"02.01.2026"', '"2026-01-02"', "5"), dateFormat="dd.MM.yyyy"),
    cells("STRUCT", "STRUCT<x:INT,y:STRING,d:DATE>", (
        '{"x":1,"y":"q","d":"2026-01-02"}', '{"x":"1","y":"q"}', '{"z":1}', "{}", "[]", '[{"x":1}]', "5", "null",
        '{\n"x":\r1}')),
    cells("ARRAY", "ARRAY<INT>", ("[1,2]", '[1,"x",3]', "5", "{}", "[null]", "[]", "[[1]]", "null", "[1\n,2]")),
    cells("MAP", "MAP<STRING,INT>", ('{"p":1,"q":2}', '{"p":"z","q":2}', "[]", "5", '{"p":null}', "{}", "null")),
)  # fmt: skip


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session that all tests share, with the table's time zone while they run."""
    with table_time_zone(spark):
        yield spark


def from_json(spark: SparkSession, group: Group) -> list[Any]:
    """Return Spark's row for each value, its strings as the bytes that they are."""
    schema = StructType.fromDDL(group.schema)
    rows = [(index, None if value is None else bytearray(value)) for index, value in enumerate(group.values)]
    frame = spark.createDataFrame(rows, "i INT, value BINARY")
    options = {"columnNameOfCorruptRecord": "_corrupt_record"} | group.options
    parsed = frame.select("i", F.from_json(F.col("value").cast("string"), group.schema, options).alias("j"))
    columns = [_plain(f"j.`{column.name}`", column.dataType.typeName()) for column in schema.fields]
    rows = sorted(parsed.select("i", *columns).collect(), key=lambda row: row[0])
    return [tuple(_python(cell) for cell in row[1:]) for row in rows]


def _plain(column: str, kind: str) -> Column:
    """Return a column in a type that Python holds as it is, whatever bytes a string has or a zone skips."""
    if kind == "timestamp_ntz":
        return F.expr(
            f"unix_date(CAST({column} AS DATE)) * 86400000000 + hour({column}) * 3600000000"
            f" + minute({column}) * 60000000 + CAST(extract(SECOND FROM {column}) * 1000000 AS BIGINT)"
        )
    ways = {"string": "CAST({} AS BINARY)", "timestamp": "unix_micros({})", "date": "unix_date({})"}
    return F.expr(ways.get(kind, "{}").format(column))


def _python(cell: Any) -> Any:
    if isinstance(cell, Row):
        return cell.asDict(recursive=True)
    return bytes(cell) if isinstance(cell, bytearray) else cell


def headgate(group: Group, values: list[bytes | None], **options: str) -> list[Any]:
    """Return Headgate's row for each value."""
    batch, _ = make(group, **options).rows(records_of(values))
    if batch is None:
        return []
    batch.validate(full=True)
    columns = []
    for column in batch.columns:
        if pa.types.is_temporal(column.type):
            column = column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        cells = column.cast(pa.binary()).to_pylist() if pa.types.is_string(column.type) else column.to_pylist()
        if pa.types.is_map(column.type):
            cells = [None if cell is None else dict(cell) for cell in cells]
        columns.append(cells)
    return list(zip(*columns, strict=True))


def make(group: Group, **options: str) -> KafkaColumns:
    schema = to_arrow_schema(StructType.fromDDL(group.schema))
    return KafkaColumns(schema, Options.parse("headgate.kafka", SPECS, group.options | options), SESSION_TIME_ZONE)


@pytest.mark.parametrize("group", GROUPS, ids=[group.name for group in GROUPS])
def test_values_are_parsed_as_by_from_json(group: Group, spark: SparkSession) -> None:
    expected = from_json(spark, group)
    assert len(expected) == len(group.values)
    together = headgate(group, list(group.values))
    among_good = headgate(group, [each for value in group.values for each in (*[GOOD] * 20, value)])[20::21]
    for found in (together, among_good):
        assert len(found) == len(expected)
        for value, row, wanted in zip(group.values, found, expected, strict=True):
            same = canonical(row) == canonical(wanted)
            if value in group.different:
                assert not same, f"{value!r}: the rows are equal: the difference is no longer true"
            else:
                assert same, f"{value!r}: {row} is not {wanted}"


@pytest.mark.parametrize("value", [None, b"", b" \n", b'{"a":1}', b"{}", b"bad", b'{"a":"x"}', b"[]"])
def test_failfast_fails_where_from_json_fails(value: bytes | None, spark: SparkSession) -> None:
    group = Group("failfast", (value,), "a BIGINT, b STRING", {"mode": "FAILFAST"})
    try:
        expected = from_json(spark, group)
    except (PySparkException, Py4JJavaError):
        with pytest.raises(BadDataError):
            headgate(group, [value])
    else:
        assert headgate(group, [value]) == expected


@pytest.mark.parametrize("include_headers", [False, True])
def test_the_schema_is_that_of_sparks_source(include_headers: bool, spark: SparkSession) -> None:
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "t")
    found = from_arrow_schema(kafka_schema(include_headers))
    assert found == reader.option("includeHeaders", include_headers).load().schema


def test_the_table_is_large_enough() -> None:
    assert len(set(ODD)) == len(ODD) >= 100
