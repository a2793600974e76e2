"""What the files sinks publish, read by Spark itself: exactly what is committed, with its types."""

from __future__ import annotations

import datetime
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from headgate.protocol.operator_context import OperatorContext
from headgate.sink import Sink
from headgate.spark.continuous.sinks import make_sink
from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, MotoServer

UTC = datetime.UTC
SIMPLE = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])
SCALARS = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("b", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec", pa.decimal128(12, 3)),
        ("s", pa.string()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("paris", pa.timestamp("ns", "Europe/Paris")),
        ("local", pa.timestamp("ms")),
        ("word", pa.dictionary(pa.int32(), pa.string())),
    ]
)
SCALARS_DDL = (
    "id bigint, b boolean, i8 tinyint, i16 smallint, i32 int, f float, d double, dec decimal(12,3), s string, "
    "day date, at timestamp, paris timestamp, local timestamp_ntz, word string"
)
NESTED = pa.schema(
    [
        ("bytes", pa.binary()),
        ("list", pa.list_(pa.int32())),
        ("map", pa.map_(pa.string(), pa.float64())),
        ("struct", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])),
    ]
)
NESTED_DDL = "bytes binary, list array<int>, map map<string,double>, struct struct<x:bigint,y:array<struct<z:string>>>"
AT = datetime.datetime(2026, 2, 3, 4, 5, 6, 789012, tzinfo=UTC)
SCALAR_ROWS: list[dict[str, Any]] = [
    {
        "id": 1, "b": True, "i8": -8, "i16": 16, "i32": -32, "f": 0.5, "d": 1e300, "dec": Decimal("-123.450"),
        "s": 'all: ",\\ é\t𝄞 \'', "day": datetime.date(1969, 12, 31), "at": AT, "paris": AT,
        "local": datetime.datetime(1901, 1, 1, 0, 0, 0, 5000), "word": "w",
    },
    {"id": 2, "d": float("nan"), "f": float("-inf"), "s": "", "word": "\\"},
    {"id": 3, "d": 3.0, "f": -0.0, "s": " kept ", "at": AT.replace(microsecond=0), "dec": Decimal("0.001")},
]  # fmt: skip
NESTED_ROWS: list[dict[str, Any]] = [
    {"bytes": b"\x00\xff", "list": [1, None, 3], "map": [('k"', 1.5), ("n", None)],
     "struct": {"x": 1, "y": [{"z": "a\nb"}, {"z": None}, None]}},
    {"bytes": b"", "list": [], "map": [], "struct": {"x": None, "y": []}},
    {},
]  # fmt: skip


def context(run: int = 1) -> OperatorContext:
    return OperatorContext(uid="sink", subtask=0, parallelism=1, run=run, execution=1, query_id="q")


def publish(sink: Sink, schema: pa.Schema, publications: list[list[dict[str, Any]]], run: int = 1) -> None:
    """Write and commit rows, one publication per element."""
    writer, committer = sink.create_writer(context(run), schema, []), sink.create_committer("")
    assert committer is not None
    for number, rows in enumerate(publications, 1):
        writer.write(pa.RecordBatch.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema))
        state = writer.prepare_commit(number, final=False).result(120)
        assert committer.commit(state.committables, epoch=number, final=False) == []
        writer.notify_checkpoint_complete(number)
    writer.close()


def streamed(spark: SparkSession, frame: DataFrame, folder: Path) -> list[Row]:
    """Return what a streaming query reads from a folder up to now."""
    rows: list[Row] = []
    query = (
        frame.writeStream.foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination(120)
    assert query.exception() is None
    return rows


@pytest.mark.parametrize("name", ["parquet", "json", "csv"])
def test_spark_reads_what_25_publications_committed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out put"  # Spark's log holds URIs
    options = {"path": str(out), "publishInterval": "0 seconds"}
    sink = make_sink(name, options | ({"header": "true"} if name == "csv" else {}), SIMPLE)
    rows = [{"id": number, "name": f"n{number}"} for number in range(50)]
    publish(sink, SIMPLE, [rows[2 * each : 2 * each + 2] for each in range(25)])
    log = {each.name for each in (out / "_spark_metadata").iterdir()}
    assert log == {str(each) for each in range(26) if each not in (9, 19)} | {"9.compact", "19.compact"}

    staged = sink.create_writer(context(), SIMPLE, [])
    staged.write(pa.RecordBatch.from_pylist([{"id": -1, "name": "not committed"}], SIMPLE))
    staged.prepare_commit(1, final=False).result(120)
    (out / f"part-99999-00000-0000000000000000.{name}").write_bytes(b"half a file of a crash")

    expected = [Row(**row) for row in rows]
    reads = {"path": str(out), "header": "true"}
    batch = spark.read.format(name).schema("id bigint, name string").options(**reads).load()
    assert sorted(batch.collect()) == expected
    assert spark.read.format(name).options(**reads).load().count() == 50, "with the schema inferred"
    stream = spark.readStream.format(name).schema("id bigint, name string").options(**reads).load()
    assert sorted(streamed(spark, stream, tmp_path / "checkpoint")) == expected
    staged.close()


def plain(value: Any) -> Any:
    """Return a value of Spark's as Arrow has it; what is not equal to itself as text."""
    if isinstance(value, Row):
        return {key: plain(each) for key, each in value.asDict().items()}
    if isinstance(value, dict):
        return sorted((key, plain(each)) for key, each in value.items())
    if isinstance(value, list):
        return [plain(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    return repr(value) if isinstance(value, float) else value


def of_arrow(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: of_arrow(each) for key, each in value.items()}
    if isinstance(value, list):
        return [of_arrow(each) for each in value]
    if isinstance(value, tuple):
        return tuple(of_arrow(each) for each in value)
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        # collect() makes local times of the driver's zone
        return value.astimezone().replace(tzinfo=None)
    return repr(value) if isinstance(value, float) else value


@pytest.mark.parametrize("name", ["parquet", "json", "csv"])
def test_values_come_back_as_they_were(spark: SparkSession, tmp_path: Path, name: str) -> None:
    schema = SCALARS if name == "csv" else pa.schema([*SCALARS, *NESTED])
    ddl = SCALARS_DDL if name == "csv" else f"{SCALARS_DDL}, {NESTED_DDL}"
    rows = [
        {**dict.fromkeys(schema.names), **scalars, **({} if name == "csv" else nested)}
        for scalars, nested in zip(SCALAR_ROWS, NESTED_ROWS, strict=True)
    ]
    nulls = {"nullValue": "\\N"} if name == "csv" else {}  # without it an empty text is null for Spark's reader
    sink = make_sink(name, {"path": str(tmp_path / "out"), "compression": "gzip", **nulls}, schema)
    publish(sink, schema, [rows])
    reader = spark.read.format(name).options(**nulls)
    read = reader.load(str(tmp_path / "out"), schema=None if name == "parquet" else ddl)
    assert read.schema.simpleString() == f"struct<{ddl.replace(' ', ':').replace(',:', ',')}>"
    found = [plain(row) for row in sorted(read.collect(), key=lambda row: row["id"])]
    for row, expected in zip(found, rows, strict=True):
        assert row == of_arrow(expected)


def test_a_folder_of_sparks_own_sink_is_gone_on_with(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).selectExpr("id", "'spark' AS name").write.parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("id bigint, name string").parquet(str(tmp_path / "in"))
    query = source.writeStream.format("parquet").trigger(availableNow=True).start(
        path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint")
    )  # fmt: skip
    query.awaitTermination(120)
    sink = make_sink("parquet", {"path": str(tmp_path / "out"), "publishInterval": "0s"}, SIMPLE)
    publish(sink, SIMPLE, [[{"id": 10 + each, "name": "headgate"}] for each in range(12)])
    read = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(row["id"] for row in read) == [0, 1, 2, *range(10, 22)]


def test_readers_see_an_empty_table_before_the_first_publication(spark: SparkSession, tmp_path: Path) -> None:
    sink = make_sink("json", {"path": str(tmp_path / "out")}, SIMPLE)
    committer = sink.create_committer("")
    writer = sink.create_writer(context(), SIMPLE, [])
    writer.write(pa.RecordBatch.from_pylist([{"id": 1, "name": "staged"}], SIMPLE))
    staged = writer.prepare_commit(1, final=True).result(120).committables
    read = spark.read.schema("id bigint, name string")
    assert read.json(str(tmp_path / "out")).collect() == []
    assert committer is not None and committer.commit(staged, epoch=1, final=True) == []
    assert read.json(str(tmp_path / "out")).collect() == [Row(id=1, name="staged")]
    writer.close()


@pytest.mark.parametrize(
    ("name", "inferred"),
    [("parquet", "struct<id:bigint,name:string>"), ("csv", "struct<id:string,name:string>"), ("json", "struct<>")],
)
def test_a_query_without_rows_leaves_a_table_whose_schema_can_be_inferred(
    spark: SparkSession, tmp_path: Path, name: str, inferred: str
) -> None:
    """As Spark's own file sink does: CSV has its header, JSON a file of no lines."""
    header = {"header": "true"} if name == "csv" else {}
    sink = make_sink(name, {"path": str(tmp_path / "out"), **header}, SIMPLE)
    publish(sink, SIMPLE, [[]])
    reader = spark.read.format(name).options(**header)
    read = reader.load(str(tmp_path / "out"))
    assert (read.schema.simpleString(), read.collect()) == (inferred, [])
    publish(sink, SIMPLE, [[{"id": 1, "name": "first"}]], run=2)
    assert [(int(row["id"]), row["name"]) for row in reader.load(str(tmp_path / "out")).collect()] == [(1, "first")]


@pytest.mark.parametrize("size", ["1b", "1m"], ids=["moved", "merged"])
def test_a_bucket_gets_the_same_log(aws: MotoServer, size: str) -> None:
    bucket = f"rides-{uuid.uuid4().hex[:8]}"
    aws.client("s3").create_bucket(Bucket=bucket)
    parameters = f"region={REGION}&endpoint_override={aws.url}"
    path = f"s3://{ACCESS_KEY}:{SECRET_KEY}@{bucket}/out?{parameters}"
    options = {"path": path, "publishInterval": "0s", "targetFileSize": size}
    sink = make_sink("parquet", options, SIMPLE)
    writer, committer = sink.create_writer(context(), SIMPLE, []), sink.create_committer("")
    assert committer is not None
    for epoch in range(1, 11):
        for each in (2 * epoch, 2 * epoch + 1):
            writer.write(pa.RecordBatch.from_pylist([{"id": each, "name": "n"}], SIMPLE))
            staged = writer.prepare_commit(each, final=False).result(120).committables
        for _ in range(2):
            assert committer.commit(staged, epoch=epoch, final=True) == []
        writer.notify_checkpoint_complete(2 * epoch + 1)
    writer.close()
    files, _ = pa_fs.FileSystem.from_uri(f"s3://{ACCESS_KEY}:{SECRET_KEY}@{bucket}?{parameters}")
    with files.open_input_stream(f"{bucket}/out/_spark_metadata/9.compact") as stream:
        lines = stream.read().decode().split("\n")[1:]
    with files.open_input_stream(f"{bucket}/out/_spark_metadata/10") as stream:
        lines += stream.read().decode().split("\n")[1:]
    published = [json.loads(line)["path"].removeprefix("s3://") for line in lines]
    assert len(published) == (20 if size == "1b" else 10)
    assert sorted(pa.concat_tables(pq.read_table(each, filesystem=files) for each in published)["id"].to_pylist()) == [
        *range(2, 22)
    ]
    there = files.get_file_info(pa_fs.FileSelector(f"{bucket}/out", recursive=True))
    names = {info.path for info in there if info.type == pa_fs.FileType.File}
    assert {name for name in names if "/_" not in name} == set(published)
    assert not [name for name in names if "/_staging/" in name]
