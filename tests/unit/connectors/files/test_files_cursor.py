import gzip
import logging
import os
import struct
import zlib

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from files_cases import CASES, SCHEMA, csv_bytes, parquet_bytes, table
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.connectors.files.file_cursor import FileCursor, FileReadSettings
from headgate.connectors.files.source import FilesSource
from headgate.connectors.files.split import SPLIT_SERIALIZER, FileSplit, split_id_of
from headgate.errors import BadDataError, DataLossError, SourceUnavailableError
from headgate.formats.row_filter import RowFilter, parse_row_filter

TEXT = pa.schema([("value", pa.string())])


def split_of(path, **more):
    size = os.stat(path).st_size
    fields = {"path": str(path), "size": size, "modified_ms": 0, "start": 0, "end": size, **more}
    return FileSplit(split_id=split_id_of(str(path), fields["start"]), **fields)


def cursor_of(split, options, schema=SCHEMA, **more):
    source = FilesSource({**options, "path": "unused"})
    names = {name.lower() for name in split.partitions}
    data = pa.schema([field for field in schema if field.name.lower() not in names])
    fmt = source._format(data, "UTC", more.get("row_filter"))
    settings = FileReadSettings(file_system=pa_fs.LocalFileSystem(), schema=schema, **more)
    return FileCursor(split, fmt, settings)


def rows_of(cursor):
    return [row for batch, _ in cursor if batch is not None for row in batch.to_pylist()]


@pytest.mark.parametrize("case", CASES)
def test_reading_goes_on_at_any_position(case, tmp_path):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table()))
    whole = table().to_pylist()
    before = []
    for batch, after in cursor_of(split_of(path), options, block_bytes=40):
        before += [] if batch is None else batch.to_pylist()
        stored = SPLIT_SERIALIZER.deserialize(SPLIT_SERIALIZER.serialize(after))
        assert before + rows_of(cursor_of(stored, options, block_bytes=64)) == whole
    assert before == whole


@pytest.mark.parametrize("case", CASES)
def test_every_row_of_a_batch_has_a_position_where_positions_are_rows(case, tmp_path):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table()))
    whole = table().to_pylist()
    emitted = 0
    cursor = cursor_of(split_of(path), options, block_bytes=40)
    for batch, after in cursor:
        rows = 0 if batch is None else batch.num_rows
        are_lines = case in ("csv", "csv-crlf", "csv-gzip", "json", "json-bzip2")
        assert (cursor.position_at is None) == (are_lines or not rows)
        for number in [] if cursor.position_at is None else range(rows):
            stored = SPLIT_SERIALIZER.deserialize(SPLIT_SERIALIZER.serialize(cursor.position_at(number)))
            assert rows_of(cursor_of(stored, options)) == whole[emitted + number :]
        assert cursor.position_at is None or cursor.position_at(rows) == after
        emitted += rows
    assert emitted == len(whole)


def test_batches_from_which_rows_were_filtered_have_positions_as_a_whole(tmp_path):
    options, name, content = CASES["parquet"]
    path = tmp_path / name
    path.write_bytes(content(table()))  # row groups of 7 rows
    row_filter = RowFilter(parse_row_filter("id >= 10"), SCHEMA, "UTC")
    cursor = cursor_of(split_of(path), options, row_filter=row_filter)
    found = [(batch.num_rows, cursor.position_at is None) for batch, _ in cursor]
    assert found == [(4, True), (7, False), (7, False), (2, False)]


line_parts = st.lists(st.sampled_from(["a", "äö", "b" * 20, "\n", "\r\n", "\r", ",", ""]), max_size=60).map("".join)


@settings(max_examples=150, deadline=None)
@given(line_parts, st.integers(1, 40), st.integers(1, 30), st.integers(1, 3), st.booleans())
def test_lines_are_the_same_whatever_the_splits_blocks_and_restores(
    tmp_path_factory, text, split_size, block_bytes, restore_every, mark
):
    path = tmp_path_factory.mktemp("lines") / "a.txt"
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    if not path.stat().st_size:
        return
    expected = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    expected = expected[:-1] if expected[-1] == "" else expected
    found = []
    rest = split_of(path)
    while rest is not None:
        split, rest = rest.cut(split_size)
        finished = False
        while not finished:
            finished = True
            cursor = cursor_of(split, {"fileFormat": "text"}, TEXT, block_bytes=block_bytes)
            for steps, (batch, after) in enumerate(cursor, 1):
                found += [] if batch is None else batch.column(0).to_pylist()
                split = after
                if steps == restore_every:
                    cursor.close()
                    finished = False
                    break
    assert found == expected


@pytest.mark.parametrize(
    ("name", "compress"),
    [
        ("a.txt.deflate", zlib.compress),
        ("a.txt.gz", lambda data: gzip.compress(data[:50]) + gzip.compress(data[50:])),
        ("a.txt.zst", lambda data: pa.Codec("zstd").compress(data, asbytes=True)),
        ("a.txt.lz4", lambda data: pa.compress(data, "lz4", asbytes=True)),
        ("a.txt.lz4", lambda data: hadoop_blocks(data, "lz4_raw")),
        ("a.txt.snappy", lambda data: hadoop_blocks(data, "snappy")),
    ],
    ids=["deflate", "gzip-members", "zstd", "lz4-frame", "lz4-hadoop", "snappy-hadoop"],
)
def test_compressed_lines(tmp_path, name, compress):
    lines = [f"line {n}" for n in range(100)]
    path = tmp_path / name
    path.write_bytes(compress("\n".join(lines).encode()))
    found = rows_of(cursor_of(split_of(path), {"fileFormat": "text"}, TEXT, block_bytes=64))
    assert [row["value"] for row in found] == lines


def hadoop_blocks(data, codec):
    out = b""
    for begin in range(0, len(data), 300):
        block = data[begin : begin + 300]
        compressed = pa.Codec(codec).compress(block, asbytes=True)
        out += struct.pack(">II", len(block), len(compressed)) + compressed
    return out


@pytest.mark.parametrize("name", ["a.txt.snappy", "a.txt.gz", "a.txt.zst", "a.txt.bz2", "a.txt.lz4"])
def test_a_damaged_compressed_file_is_an_error_that_names_it(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"\x00\x00\x00\x30\x00\x00\x00\x05abc")
    with pytest.raises(BadDataError, match=name) as error:
        rows_of(cursor_of(split_of(path), {"fileFormat": "text"}, TEXT))
    assert error.value.path == str(path)


def test_a_truncated_gzip_file_is_an_error_after_the_last_whole_block(tmp_path):
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(csv_bytes(table(rows=5000)))[:-2000])
    with pytest.raises(BadDataError, match=r"a\.csv\.gz cannot be read after byte"):
        rows_of(cursor_of(split_of(path), CASES["csv"][0], block_bytes=1000))


@pytest.mark.parametrize("case", ["parquet", "orc", "arrow"])
def test_a_truncated_bulk_file_is_an_error_that_names_it(tmp_path, case):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table())[:-20])
    with pytest.raises(BadDataError, match=f"{name} is not a complete") as error:
        rows_of(cursor_of(split_of(path), options))
    assert error.value.byte_offset == 0


@pytest.mark.parametrize("case", ["parquet", "orc", "arrow", "csv-gzip"])
def test_damaged_files_are_skipped_if_allowed(tmp_path, case, caplog):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table())[:-20])
    with caplog.at_level(logging.WARNING):
        assert rows_of(cursor_of(split_of(path), options, ignore_corrupt_files=True)) == []
    assert name in caplog.text


def test_a_malformed_record_is_not_a_damaged_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,name\nx,y\n")
    with pytest.raises(BadDataError):
        rows_of(cursor_of(split_of(path), {**CASES["csv"][0], "mode": "FAILFAST"}, ignore_corrupt_files=True))


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_vanished_is_data_loss_that_names_it(tmp_path, case, caplog):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table()))
    split = split_of(path)
    path.unlink()
    with pytest.raises(DataLossError, match=f"{name} is gone"):
        rows_of(cursor_of(split, options))
    with caplog.at_level(logging.WARNING):
        assert rows_of(cursor_of(split, options, ignore_missing_files=True)) == []
    assert f"{name} is gone" in caplog.text


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_shrank_is_data_loss(tmp_path, case):
    options, name, content = CASES[case]
    path = tmp_path / name
    path.write_bytes(content(table()))
    split = split_of(path)
    path.write_bytes(content(table(rows=2)))
    with pytest.raises(DataLossError, match="it has shrunk") as error:
        rows_of(cursor_of(split, options))
    assert (error.value.wanted, error.value.available) == (split.size, path.stat().st_size)


def test_lines_appended_after_listing_are_not_read_and_a_replaced_bulk_file_is_an_error(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(csv_bytes(table()))
    split = split_of(path)
    with path.open("ab") as file:
        file.write(b"999,new\n")
    assert rows_of(cursor_of(split, CASES["csv"][0])) == table().to_pylist()
    bulk = tmp_path / "a.parquet"
    bulk.write_bytes(parquet_bytes(table(rows=5)))
    split = split_of(bulk)
    bulk.write_bytes(parquet_bytes(table(rows=50)))
    with pytest.raises(DataLossError, match="it was replaced"):
        rows_of(cursor_of(split, CASES["parquet"][0]))


def test_a_file_that_may_not_be_read_is_unavailable(tmp_path):
    folder = tmp_path / "a.txt"
    folder.mkdir()
    split = FileSplit(split_id="x:0", path=str(folder), size=1, modified_ms=0, start=0, end=1)
    with pytest.raises((SourceUnavailableError, BadDataError), match=r"a\.txt"):
        rows_of(cursor_of(split, {"fileFormat": "text"}, TEXT))


def test_partition_columns_stand_where_the_schema_has_them(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,a\n2,b\n")
    schema = pa.schema([("Year", pa.int32()), ("name", pa.string()), ("city", pa.string()), ("id", pa.int64())])
    split = split_of(path, partitions={"year": "2026", "city": None, "unused": "x"})
    assert rows_of(cursor_of(split, CASES["csv"][0], schema)) == [
        {"Year": 2026, "name": "a", "city": None, "id": 1},
        {"Year": 2026, "name": "b", "city": None, "id": 2},
    ]


def test_a_folder_that_contradicts_the_schema_is_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id\n1\n")
    split = split_of(path, partitions={"year": "abc"})
    with pytest.raises(BadDataError, match="year=abc"):
        cursor_of(split, CASES["csv"][0], pa.schema([("id", pa.int64()), ("year", pa.int32())]))


def test_rows_are_filtered_and_files_of_other_folders_are_not_opened(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,name\n1,a\n2,b\n")
    schema = pa.schema([("id", pa.int64()), ("year", pa.int32())])
    wanted = RowFilter(parse_row_filter("id > 1 and year = 2026"), schema, "UTC")
    split = split_of(path, partitions={"year": "2026"})
    assert rows_of(cursor_of(split, CASES["csv"][0], schema, row_filter=wanted)) == [{"id": 2, "year": 2026}]
    path.unlink()
    gone = FileSplit(split_id="x:0", path=str(path), size=1, modified_ms=0, start=0, end=1, partitions={"year": "1"})
    assert rows_of(cursor_of(gone, CASES["csv"][0], schema, row_filter=wanted)) == []


def test_rows_are_counted_though_only_folders_are_wanted(tmp_path):
    for case in ("json", "parquet", "orc", "arrow"):
        options, name, content = CASES[case]
        path = tmp_path / name
        path.write_bytes(content(table(rows=3)))
        split = split_of(path, partitions={"year": "2026"})
        schema = pa.schema([("year", pa.int32())])
        source = FilesSource({**options, "path": "unused"})
        fmt = source._format(pa.schema([("value", pa.string())]), "UTC", None)
        cursor = FileCursor(split, fmt, FileReadSettings(file_system=pa_fs.LocalFileSystem(), schema=schema))
        assert rows_of(cursor) == [{"year": 2026}] * 3, case


def test_an_empty_document_has_no_rows(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(" ")
    assert rows_of(cursor_of(split_of(path), CASES["json-multiline"][0])) in ([], [{"id": None, "name": None}])


def test_remaining_reports_bytes_and_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(csv_bytes(table()))
    left = [after.remaining().bytes for _, after in cursor_of(split_of(path), CASES["csv"][0], block_bytes=40)]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert split_of(path).remaining().file == str(path)
