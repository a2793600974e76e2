import json
import pickle

import pyarrow as pa
import pytest
from files_cases import csv_bytes, parquet_bytes, table, write

from headgate.connectors.files.source import FilesSource
from headgate.errors import BadDataError, OptionError
from headgate.formats.file_systems import resolve_paths
from headgate.microbatch.planner import plan_batch
from headgate.microbatch.task import read_splits


def source(**options):
    return FilesSource({"path": "/x", "fileFormat": "csv", **options})


def test_the_format_is_required():
    with pytest.raises(OptionError, match="text, csv, json, parquet, orc, arrow"):
        FilesSource({"path": "/x"})
    with pytest.raises(OptionError, match="it must be one of text, csv"):
        FilesSource({"path": "/x", "fileFormat": "xml"})


def test_a_path_is_required():
    with pytest.raises(OptionError, match="'path' is required"):
        FilesSource({"fileFormat": "csv"})


def test_options_of_another_format_are_an_error_that_says_so():
    with pytest.raises(OptionError, match="'header' belongs to fileFormat csv, but fileFormat is 'parquet'"):
        FilesSource({"path": "/x", "fileFormat": "parquet", "header": "true"})


def test_unknown_options_name_the_near_ones():
    with pytest.raises(OptionError, match="maxFilesPerTrigger"):
        source(maxFilePerTrigger="1")


def test_options_of_sparks_that_cannot_be_had_say_why():
    with pytest.raises(OptionError, match="never moves or deletes"):
        source(cleanSource="delete")


def test_no_ops_are_accepted():
    assert source(maxCachedFiles="10").options["maxCachedFiles"] == 10


def test_option_names_have_no_case():
    assert source(splitsize="1m", maxfilespertrigger="3").options["splitSize"] == 1 << 20


def test_several_paths_come_as_a_json_array(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.csv").write_bytes(csv_bytes(table(rows=2)))
    paths = json.dumps([str(tmp_path / name) for name in "ab"])
    made = FilesSource({"paths": paths, "fileFormat": "csv", "header": "true"})
    assert made.schema().names == ["id", "name"]
    with pytest.raises(OptionError, match="JSON array"):
        FilesSource({"paths": "/a,/b", "fileFormat": "csv"})


def test_an_empty_folder_asks_for_a_schema(tmp_path):
    with pytest.raises(OptionError, match="Give a schema"):
        source(path=str(tmp_path)).schema()


def test_columns_of_folders_follow_those_of_the_files(tmp_path):
    (tmp_path / "year=2026" / "day=2026-01-01").mkdir(parents=True)
    (tmp_path / "year=2026" / "day=2026-01-01" / "a.parquet").write_bytes(parquet_bytes(table()))
    assert FilesSource({"path": str(tmp_path), "fileFormat": "parquet"}).schema() == pa.schema(
        [("id", pa.int64()), ("name", pa.string()), ("year", pa.int32()), ("day", pa.date32())]
    )


def test_text_has_one_column(tmp_path):
    (tmp_path / "a.txt").write_text("x\n")
    assert FilesSource({"path": str(tmp_path), "fileFormat": "text"}).schema() == pa.schema([("value", pa.string())])


def test_merge_schema_unites_the_columns_of_all_files(tmp_path):
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(pa.table({"a": [1]})))
    (tmp_path / "b.parquet").write_bytes(parquet_bytes(pa.table({"a": [1], "b": ["x"]})))
    options = {"path": str(tmp_path), "fileFormat": "parquet"}
    assert FilesSource(options).schema().names == ["a"]  # of the first file by name
    assert FilesSource({**options, "mergeSchema": "true"}).schema().names == ["a", "b"]
    (tmp_path / "c.parquet").write_bytes(parquet_bytes(pa.table({"a": ["text"]})))
    with pytest.raises(BadDataError, match=r"c\.parquet contradict .*: 'a' is int64 and string"):
        FilesSource({**options, "mergeSchema": "true"}).schema()


def files_of(folder, **tables):
    for name, each in tables.items():
        path = folder / name.replace("_", "=") / "a.parquet"
        path.parent.mkdir()
        path.write_bytes(parquet_bytes(pa.table(each)))
    return {"path": str(folder), "fileFormat": "parquet", "mergeSchema": "true"}


def rows_of(made, schema, **session):
    batches = list(read_splits(made, schema, plan_batch(made, schema, 0), 0, "UTC", **session))
    return sorted((tuple(row.values()) for batch in batches for row in batch.to_pylist()), key=repr)


def test_names_that_differ_in_case_are_one_unless_the_option_says_that_they_are_two(tmp_path):
    options = files_of(tmp_path, K_1={"ID": [1], "n": ["x"]}, k_2={"id": [2], "N": [None]})
    made = FilesSource(options)
    assert made.schema() == pa.schema([("ID", pa.int64()), ("n", pa.string()), ("K", pa.int32())])
    assert rows_of(made, made.schema()) == [(1, "x", 1), (2, None, 2)]
    with pytest.raises(OptionError, match="different partition folders"):
        FilesSource({**options, "caseSensitive": "true"}).schema()


def test_columns_inferred_as_one_are_not_read_where_the_session_has_two(tmp_path):
    """`load()` does not see the session's setting; its tasks do."""
    options = files_of(tmp_path, k_1={"ID": [1]}, k_2={"id": [2]})
    made = pickle.loads(pickle.dumps(inferred := FilesSource(options)))
    schema = inferred.schema()
    assert rows_of(inferred, schema, case_sensitive=False) == [(1, 1), (2, 2)]
    with pytest.raises(OptionError, match=r"'caseSensitive' is not set, and spark\.sql\.caseSensitive is true"):
        rows_of(pickle.loads(pickle.dumps(inferred)), schema, case_sensitive=True)
    assert rows_of(made, schema, case_sensitive=True) == [(1, 1), (None, 2)]  # given, it is what Spark reads too
    chosen = FilesSource({**options, "caseSensitive": "true"})
    assert chosen.schema().names == ["ID", "id", "k"]
    assert rows_of(chosen, chosen.schema(), case_sensitive=True) == [(1, None, 1), (None, 2, 2)]


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_two_names_that_are_one_are_refused_as_the_session_says(tmp_path, kind):
    """`load()` does not see its setting: it gives both columns, which the tasks refuse."""
    options = files_of(tmp_path, k_1={"b": [1], "B": [2]})
    if kind == "json":
        (tmp_path / "k=1" / "a.parquet").write_text('{"b": 1, "B": 2}\n')
        options = {"path": str(tmp_path), "fileFormat": "json"}
    made = FilesSource(options)
    schema = made.schema()
    with pytest.raises(OptionError, match="differ in nothing but case, and are one in Spark unless"):
        rows_of(made, schema)
    given = pa.schema([("B", pa.int64()), ("b", pa.int64())])
    assert rows_of(made, given, case_sensitive=True) == [(2, 1)]
    assert {"b", "B"} < set(schema.names) and len(rows_of(made, schema, case_sensitive=True)) == 1
    with pytest.raises(OptionError, match="differ in nothing but case"):
        FilesSource({**options, "caseSensitive": "false"}).schema()


def test_a_folder_that_is_a_column_but_for_its_case_is_named_where_the_planner_could_not_see_it(tmp_path):
    options = files_of(tmp_path, j_1={"v": [5]}, J_2={"v": [6]})
    schema = pa.schema([("v", pa.int64()), ("j", pa.int32())])
    assert rows_of(FilesSource(options), schema) == [(5, 1), (6, 2)]
    with pytest.raises(OptionError, match=r"folder J=\.\.\., where the schema has 'j'"):
        rows_of(FilesSource(options), schema, case_sensitive=True)


def test_filters_and_event_times_go_by_the_case_of_names(tmp_path):
    moment = pa.array([0, 1], pa.timestamp("us", "UTC"))
    options = files_of(tmp_path, k_1={"at": moment, "AT": moment.take(pa.array([1, 0])), "v": [1, 2]})
    made = FilesSource({**options, "caseSensitive": "true", "rowFilter": "AT = '1970-01-01T00:00:00Z'",
                        "eventTimeColumn": "AT"})  # fmt: skip
    schema = pa.schema([("at", moment.type), ("AT", moment.type), ("v", pa.int64())])
    assert [row[2] for row in rows_of(made, schema)] == [2]


def test_a_sample_has_one_header(tmp_path):
    options, _ = write(tmp_path, "csv", files=4)
    assert [str(field.type) for field in FilesSource({**options, "inferSchema": "true"}).schema()] == [
        "int32",
        "string",
    ]


@pytest.mark.parametrize("path", ["/data/x", "file:///data/x", "file:/data/x", "/data//y/../x/"])
def test_local_paths(path):
    file_system, resolved = resolve_paths([path], "path")
    assert (file_system.type_name, resolved) == ("local", ("/data/x",))


def test_paths_of_object_stores_keep_globs_and_lose_secrets():
    uri = "s3://key:secret@bucket/a/*.{csv,tsv}?endpoint_override=127.0.0.1:1&scheme=http&region=x"
    file_system, resolved = resolve_paths([uri], "path")
    assert (file_system.type_name, resolved) == ("s3", ("bucket/a/*.{csv,tsv}",))


def test_paths_of_two_file_systems_are_an_error():
    with pytest.raises(OptionError, match="different file systems"):
        resolve_paths(["/data", "s3://bucket/x?region=x"], "path")


def test_an_unknown_scheme_is_an_error_without_the_secret():
    with pytest.raises(OptionError, match="nope") as error:
        resolve_paths(["nope://key:secret@host/x"], "path")
    assert "secret" not in str(error.value)


def test_times_are_of_the_zone_that_is_given(tmp_path):
    made = source(modifiedAfter="2026-07-01T00:00:00", timeZone="America/New_York")
    assert made._milliseconds(made.options["modifiedAfter"]) == 1_782_878_400_000
    with pytest.raises(OptionError, match="a time like"):
        source(modifiedAfter="yesterday")
