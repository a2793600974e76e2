"""The log of Spark's file sink: its files, byte by byte, and what is kept of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.fs as pa_fs
import pytest
from faulty_files import in_memory, listed, text

from headgate.connectors.files.sink.spark_metadata import PublishedFile, SparkMetadataLog
from headgate.errors import CorruptStateError, UnsupportedVersionError

LOG = "out/_spark_metadata"
SPARKS = (
    '{"path":"file:///out/part-0.parquet","size":434,"isDir":false,"modificationTime":1600000000000,'
    '"blockReplication":1,"blockSize":33554432,"action":"add"}'
)
"""A line as Spark 4.3 writes it."""


def entry(name: str, *staged: str) -> PublishedFile:
    return PublishedFile(path=f"file:///out/{name}", size=7, modification_time=5, headgate=staged)


def put(files: Any, name: str, content: str) -> None:
    files.create_dir(LOG)
    with files.open_output_stream(f"{LOG}/{name}") as stream:
        stream.write(content.encode())


def test_a_batch_is_a_file_with_a_line_per_published_file() -> None:
    files = in_memory()
    log = SparkMetadataLog(files, "out")
    assert log.load() is None
    assert [log.append((), 0), log.append([entry("a", "s1", "s2"), entry("b", "s3")], 0)] == [0, 1]
    assert text(files, f"{LOG}/0") == "v1"
    rest = '"size":7,"isDir":false,"modificationTime":5,"blockReplication":1,"blockSize":33554432,"action":"add"'
    assert text(files, f"{LOG}/1").split("\n") == [
        "v1",
        '{"path":"file:///out/a",' + rest + ',"headgate":["s1","s2"]}',
        '{"path":"file:///out/b",' + rest + ',"headgate":["s3"]}',
    ]
    assert log.published(1) == {"a": ("s1", "s2"), "b": ("s3",)}
    assert log.published(0) == {} and log.published(2) is None


def test_every_tenth_batch_holds_all_entries_but_only_its_own_staged_files() -> None:
    files = in_memory()
    put(files, "0", f"v1\n{SPARKS}")
    log = SparkMetadataLog(files, "out")
    assert log.load() == 0
    for number in range(1, 20):
        assert log.append([entry(f"f{number}", f"s{number}")], 0) == number
    assert listed(files, LOG) == sorted([str(each) for each in range(19) if each != 9] + ["9.compact", "19.compact"])
    version, *lines = text(files, f"{LOG}/19.compact").split("\n")
    assert (version, lines[0], len(lines)) == ("v1", SPARKS, 20)
    assert ["headgate" in line for line in lines] == [False] * 19 + [True]
    assert log.published(19) == {"f19": ("s19",)} and log.published(9) == {"f9": ("s9",)}
    assert SparkMetadataLog(files, "out").load() == 19


@pytest.mark.parametrize(
    ("there", "next_compact"),
    [
        (["0", "1", "2"], 9),
        (["4.compact", "5"], 9),
        (["2.compact", "3", "4", "5.compact", "6"], 8),
        (["11.compact"], 23),
        (["29.compact"], 39),
        (["32.compact"], 43),
    ],
)
def test_whoever_began_chose_how_many_batches_make_a_compact_one(there: list[str], next_compact: int) -> None:
    """As Spark 4.3's ``deriveCompactInterval``, with its default of ten."""
    files = in_memory()
    for name in there:
        put(files, name, "v1")
    log = SparkMetadataLog(files, "out")
    log.load()
    while log.append((), 0) != next_compact:
        pass
    assert not [name for name in listed(files, LOG) if name.endswith(".compact") and name not in there][1:]
    assert f"{next_compact}.compact" in listed(files, LOG)


def test_files_that_a_compact_one_replaced_are_deleted_when_they_are_old() -> None:
    files = in_memory()
    log = SparkMetadataLog(files, "out")
    for number in range(120):
        log.append([entry(f"f{number}")], number * 10_000)
    log.expire(119 * 10_000)
    # 120 - 100 retained: all before 19.compact; what is younger than ten minutes would stay
    assert "18" not in listed(files, LOG) and {"19.compact", "20"} <= set(listed(files, LOG))
    assert text(files, f"{LOG}/119.compact").count("\n") == 120


def test_files_that_a_reader_may_be_at_stay() -> None:
    files = in_memory()
    log = SparkMetadataLog(files, "out")
    for _ in range(130):
        log.append((), 0)
    log.expire(599_999)
    assert {"0", "9.compact", "18"} <= set(listed(files, LOG))
    log.expire(600_000)
    assert not {"0", "9.compact", "18"} & set(listed(files, LOG)) and "29.compact" in listed(files, LOG)


def test_long_files_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headgate.connectors.files.sink.spark_metadata._CHUNK_BYTES", 16)
    files = in_memory()
    log = SparkMetadataLog(files, "out")
    for number in range(10):
        log.append([entry(f"a{number}", f"s{number}"), entry(f"b{number}")], 0)
    lines = text(files, f"{LOG}/9.compact").split("\n")
    assert [line.count("file:///out/") for line in lines] == [0] + [1] * 20
    assert log.published(9) == {"a9": ("s9",), "b9": ()} and log.published(3) == {"a3": ("s3",), "b3": ()}


@pytest.mark.parametrize("content", ["", "v2\n", "garbage"])
def test_another_version_is_refused(content: str) -> None:
    files = in_memory()
    put(files, "0", content)
    log = SparkMetadataLog(files, "out")
    log.load()
    with pytest.raises(UnsupportedVersionError, match="_spark_metadata/0"):
        log.published(0)


def test_a_line_that_cannot_be_read_names_its_file() -> None:
    files = in_memory()
    put(files, "0", 'v1\n{"headgate": broken')
    log = SparkMetadataLog(files, "out")
    log.load()
    with pytest.raises(CorruptStateError, match="_spark_metadata/0"):
        log.published(0)
    log.append((), 0)
    for _ in range(7):
        log.append((), 0)
    with pytest.raises(CorruptStateError, match="_spark_metadata/0"):
        log.append((), 0)
    assert log.load() == 8, "a batch that cannot be written is not there"


@pytest.mark.parametrize("where", ["in memory", "local"])
def test_a_number_that_somebody_else_took_is_not_written_over(where: str, tmp_path: Path) -> None:
    files, folder = (in_memory(), "out") if where == "in memory" else (pa_fs.LocalFileSystem(), str(tmp_path))
    older, newer = SparkMetadataLog(files, folder), SparkMetadataLog(files, folder)
    older.append((), 0)
    newer.load()
    newer.append([entry("newer")], 0)
    with pytest.raises(FileExistsError):
        older.append([entry("older")], 0)
    assert "newer" in text(files, f"{folder}/_spark_metadata/1")


def test_a_crash_between_a_name_and_the_end_of_the_hidden_one(tmp_path: Path) -> None:
    """Both names are the same file on a local disk: what is seen must not be cut by whoever writes next."""
    files = pa_fs.LocalFileSystem()
    SparkMetadataLog(files, str(tmp_path)).append((), 0)
    folder = tmp_path / "_spark_metadata"
    (folder / ".0.0123abcd.tmp").hardlink_to(folder / "0")
    log = SparkMetadataLog(files, str(tmp_path))
    assert log.load() == 0 and log.append((), 0) == 1
    assert {each.name: each.read_text() for each in folder.iterdir()} == {"0": "v1", "1": "v1"}


def test_a_local_folder_gets_the_same_files(tmp_path: Path) -> None:
    log = SparkMetadataLog(pa_fs.LocalFileSystem(), str(tmp_path))
    log.append((), 0)
    log.append([entry("a", "s")], 0)
    assert sorted(each.name for each in (tmp_path / "_spark_metadata").iterdir()) == ["0", "1"]
