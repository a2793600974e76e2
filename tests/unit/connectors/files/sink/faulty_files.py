"""A file system in memory that dies at a chosen operation, and a reader that goes by Spark's log alone."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any, Literal
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.sink.committer import FilesCommitter, PublishingLimits
from headgate.connectors.files.sink.encodings import JsonEncoding
from headgate.connectors.files.sink.partition_folders import PartitionFolders
from headgate.connectors.files.sink.staged_files import StagedNames
from headgate.connectors.files.sink.writer import FilesWriter

OUTPUT = "out"
SCHEMA = pa.schema({"id": pa.int64()})
SMALL = PublishingLimits(interval_ms=10_000, size_bytes=1 << 20, file_bytes=1 << 20)


class Died(OSError):
    """The process is dead: nothing that it does has an effect any longer."""


def in_memory() -> Any:
    return pa_fs._MockFileSystem(datetime.datetime(2026, 1, 1))


class DyingHandler(pa_fs.FileSystemHandler):  # type: ignore[misc]
    """Passes everything on until its process dies.

    Parameters
    ----------
    inner
        The file system, which outlives the process.
    dies_at
        The operation that changes something, from 1, at which the process dies; None: it lives.
    when
        Whether that operation still has its effect. A file that is begun is then there, and empty.
    """

    def __init__(self, inner: Any, dies_at: int | None = None, when: Literal["before", "after"] = "before") -> None:
        self.inner = inner
        self.dies_at = dies_at
        self.when = when
        self.operations = 0
        self.dead = False

    def _change(self, method: str, *arguments: Any, **named: Any) -> Any:
        self._look()
        self.operations += 1
        dies = self.operations == self.dies_at
        if dies:
            self.dead = True
        if dies and self.when == "before":
            raise Died(method)
        result = getattr(self.inner, method)(*arguments, **named)
        if dies:
            if method == "open_output_stream":
                result.write(b"[[half")
                result.close()
            raise Died(method)
        return result

    def _look(self) -> Any:
        if self.dead:
            raise Died("dead already")
        return self.inner

    def get_type_name(self) -> str:
        return "dying"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> Any:
        return self._look().get_file_info(paths)

    def get_file_info_selector(self, selector: Any) -> Any:
        return self._look().get_file_info(selector)

    def create_dir(self, path: str, recursive: bool) -> None:
        self._change("create_dir", path, recursive=recursive)

    def delete_dir(self, path: str) -> None:
        raise AssertionError("nobody deletes folders")

    delete_dir_contents = delete_root_dir_contents = delete_dir

    def copy_file(self, source: str, target: str) -> None:
        self._change("copy_file", source, target)

    def delete_file(self, path: str) -> None:
        self._change("delete_file", path)

    def move(self, source: str, target: str) -> None:
        self._change("move", source, target)

    def open_input_stream(self, path: str) -> Any:
        return self._look().open_input_stream(path)

    def open_input_file(self, path: str) -> Any:
        return self._look().open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._change("open_output_stream", path)

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        raise AssertionError("nobody appends")


def committer(
    handler: DyingHandler,
    limits: PublishingLimits = SMALL,
    now: Sequence[float] = (0.0,),
    *,
    partitioned: bool = False,
) -> FilesCommitter:
    """Return a committer of JSON files. ``now``: its last element is the time, in seconds."""
    return FilesCommitter(
        pa_fs.PyFileSystem(handler), OUTPUT, "mock:///out", JsonEncoding("none"), SCHEMA, limits, lambda: now[-1],
        partitioned=partitioned,
    )  # fmt: skip


def writer(
    handler: DyingHandler,
    names: StagedNames,
    schema: Any,
    target_bytes: int = 1 << 20,
    folders: PartitionFolders | None = None,
) -> FilesWriter:
    files = pa_fs.PyFileSystem(handler)
    return FilesWriter(files, OUTPUT, JsonEncoding("none"), schema, names, target_bytes, folders)


def text(files: Any, path: str) -> str:
    with files.open_input_stream(path) as stream:
        return bytes(stream.read()).decode()


def listed(files: Any, folder: str) -> list[str]:
    infos = files.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True))
    return sorted(info.base_name for info in infos if info.type == pa_fs.FileType.File)


def published_names(files: Any, output: str = OUTPUT) -> list[str]:
    """Return the names in the log, read as Spark reads it: the last compact file and what follows, without a gap."""
    log = f"{output}/_spark_metadata"
    there = {name for name in listed(files, log) if not name.startswith(".")}
    if not there:
        return []
    last = max(int(name.removesuffix(".compact")) for name in there)
    compact = (last + 1) // 10 * 10 - 1
    names = [f"{compact}.compact"] * (compact >= 0) + [str(each) for each in range(max(0, compact + 1), last + 1)]
    found = []
    for name in names:
        version, *lines = text(files, f"{log}/{name}").split("\n")
        assert version == "v1"
        entries = [json.loads(line) for line in lines]
        assert all(entry["action"] == "add" and not entry["isDir"] for entry in entries)
        found += [unquote(entry["path"]).rpartition(f"/{OUTPUT}/")[2] for entry in entries]
    assert len(found) == len(set(found))
    return found


def visible(files: Any, output: str = OUTPUT) -> list[Any]:
    """Return the values of the column ``id`` that a reader sees, sorted. Without a log it sees every file."""
    if not listed(files, f"{output}/_spark_metadata"):
        assert not [name for name in listed(files, output) if not name.startswith(("_", "."))]
    rows = [
        json.loads(line)["id"] for name in published_names(files) for line in text(files, f"{output}/{name}").split()
    ]
    return sorted(rows)


def assert_tidy(files: Any) -> None:
    """Assert that nothing lies about: no published file that the log does not name, nothing staged, nothing hidden."""
    infos = files.get_file_info(pa_fs.FileSelector(OUTPUT, recursive=True))
    there = [info.path.removeprefix(f"{OUTPUT}/") for info in infos if info.type == pa_fs.FileType.File]
    assert sorted(name for name in there if not name.startswith("_")) == sorted(published_names(files))
    assert listed(files, f"{OUTPUT}/_staging") == []
    assert not [name for name in listed(files, f"{OUTPUT}/_spark_metadata") if name.startswith(".")]
