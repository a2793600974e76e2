"""The sinks parquet, json and csv as users make them: options, columns, folders."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from headgate.connectors.files.sink.sink import FilesSink, _base_uri
from headgate.errors import OptionError
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema({"id": pa.int64(), "s": pa.string()})
CONTEXT = OperatorContext(uid="sink", subtask=0, parallelism=1, run=1, execution=1, query_id="q")


def test_it_works_from_the_driver_to_a_slot_and_back(tmp_path: Path) -> None:
    sink = FilesSink("csv", {"PATH": f"file://{tmp_path}/out", "header": "true", "sep": ";"}, SCHEMA)
    committer = sink.create_committer("")
    on_slot: FilesSink = pickle.loads(pickle.dumps(sink))
    writer = on_slot.create_writer(CONTEXT, SCHEMA, [])
    writer.write(pa.record_batch({"id": [1], "s": ["a;b"]}))
    state = writer.prepare_commit(1, final=True).result(60)
    writer.close()
    assert committer.commit(state.committables, epoch=1, final=True) == []
    (published,) = (tmp_path / "out").glob("part-00001-00000-*.csv")
    assert published.read_text() == 'id;s\n1;"a;b"\n'
    assert f'"path":"{published.as_uri()}"' in (tmp_path / "out" / "_spark_metadata" / "1").read_text()


def test_construction_touches_no_file(tmp_path: Path) -> None:
    FilesSink("parquet", {"path": str(tmp_path / "out")}, SCHEMA)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("parquet", {}, "'path' is not set"),
        ("parquet", {"path": "/x", "partitionBy": "id"}, r"option 'partitionBy'.*writeStream\.partitionBy"),
        ("parquet", {"path": "/x", "publishIntervall": "1s"}, "no option 'publishIntervall'.*'publishInterval'"),
        ("parquet", {"path": "/x", "publishInterval": "often"}, "'often'; it must be an interval"),
        ("parquet", {"path": "/x", "compression": "lzo"}, "one of snappy, zstd, gzip, none"),
        ("parquet", {"path": "/x", "header": "true"}, "no option 'header'"),
        ("json", {"path": "/x", "timestampFormat": "yyyy"}, "does not support the option 'timestampFormat'"),
        ("csv", {"path": "/x", "sep": '"'}, "'sep' must be one character or more"),
        ("csv", {"path": "no-such-scheme://x"}, "no file system"),
    ],
)
def test_options_that_are_refused(name: str, options: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        FilesSink(name, options, SCHEMA)


@pytest.mark.parametrize(
    ("name", "schema", "message"),
    [
        ("parquet", pa.schema([]), "at least one column"),
        ("json", pa.schema([("a", pa.int8()), ("A", pa.int8())]), "two columns 'A'.*Rename"),
        ("csv", pa.schema([("a", pa.list_(pa.int8()))]), "column 'a' of type list.*Cast it"),
        ("csv", pa.schema([("a\nb", pa.int8())]), "line end"),
        ("parquet", pa.schema([("a", pa.duration("us"))]), "column 'a' of type duration"),
        ("parquet", pa.schema([("a", pa.struct([("t", pa.time64("us"))]))]), "column 'a'"),
        ("parquet", pa.schema([("a", pa.struct([]))]), "column 'a'"),
        ("parquet", pa.schema([("a", pa.decimal256(50, 2))]), "column 'a'"),
    ],
)
def test_columns_that_are_refused(name: str, schema: pa.Schema, message: str) -> None:
    options = {"path": "/x"} | ({"header": "true"} if name == "csv" else {})
    with pytest.raises(OptionError, match=message):
        FilesSink(name, options, schema)


def test_columns_whose_names_differ_only_in_case_are_two_where_case_counts() -> None:
    schema = pa.schema([("a", pa.int8()), ("A", pa.int8()), ("v", pa.int8())])
    made = FilesSink("json", {"path": "/x"}, schema, ["A"], case_sensitive=True)
    assert made._folders is not None
    assert made._folders.columns == ("A",)
    with pytest.raises(OptionError, match="Partition column V not found"):
        FilesSink("json", {"path": "/x"}, schema, ["V"], case_sensitive=True)
    with pytest.raises(OptionError, match=r"COLUMN_ALREADY_EXISTS.*`a` and `A`.*Rename one"):
        FilesSink("json", {"path": "/x"}, schema, ["A"])


@pytest.mark.parametrize(
    ("by", "message"),
    [
        (["x"], r"Partition column x not found in existing columns \(a, b, list\)"),
        (["A", "a"], "COLUMN_ALREADY_EXISTS.*`a`"),
        (["list"], "INVALID_PARTITION_COLUMN_DATA_TYPE.*`list` of type list"),
        (["a", "B", "c"], "ALL_PARTITION_COLUMNS_NOT_ALLOWED"),
    ],
)
def test_partition_columns_that_are_refused(by: list[str], message: str) -> None:
    columns = {"a": pa.int8(), "b": pa.string(), "c" if "c" in by else "list": pa.list_(pa.int8())}
    schema = pa.schema(columns if "c" not in by else {**columns, "c": pa.int8()})
    with pytest.raises(OptionError, match=message):
        FilesSink("parquet", {"path": "/x"}, schema, by)


def test_types_of_partition_columns_need_not_be_writable_in_files() -> None:
    FilesSink("csv", {"path": "/x"}, pa.schema({"a": pa.int8(), "B": pa.dictionary(pa.int8(), pa.string())}), ["b"])


def test_a_folder_with_files_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").touch()
    with pytest.raises(OptionError, match=r"rows\.parquet"):
        FilesSink("parquet", {"path": str(tmp_path)}, SCHEMA).create_committer("")


@pytest.mark.parametrize(
    ("path", "output", "uri"),
    [
        ("/a b/c", "/a b/c", "file:///a%20b/c"),
        ("file:///a/", "/a", "file:///a"),
        ("s3a://bucket/a//b/", "bucket/a/b", "s3a://bucket/a/b"),
        ("s3://key:secret@bucket/a?endpoint_override=x", "bucket/a", "s3://bucket/a"),
    ],
)
def test_the_log_spells_the_folder_as_spark_does_and_without_keys(path: str, output: str, uri: str) -> None:
    assert _base_uri(path, output) == uri
