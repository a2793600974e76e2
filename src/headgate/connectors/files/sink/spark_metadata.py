"""The log with which Spark's file sink says what is published: ``_spark_metadata``, read and written as Spark does.

Never: publish a number twice, leave one out, or let a file be seen half written.

Follows Spark 4.3, ``FileStreamSinkLog`` and ``CompactibleFileStreamLog``: a file per batch, numbered from 0 without a
gap, ``v1`` and a line of JSON per published file. Every tenth is ``<number>.compact`` and holds the entries of all
before it, so that a reader reads that one and what follows it.

An entry has a field more than Spark's, which ignores it: the staged files that went into the published file. So one
write publishes rows and remembers that they are published. Compaction drops the field from older entries: only what was
published lately can be committed again (`REMEMBERED_BATCHES`), and neither files nor memory grow by it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence

import msgspec
import pyarrow.fs as pa_fs

from headgate.connectors.files.sink.durable_files import delete_if_there, write_at_once
from headgate.errors import CorruptStateError, UnsupportedVersionError

FOLDER = "_spark_metadata"
REMEMBERED_BATCHES = 20
"""A manifest names what was committed only if it was under way while that commit ran: the last batch or two."""
_VERSION = b"v1"
_COMPACT = ".compact"
_INTERVAL = 10
"""Spark's ``spark.sql.streaming.fileSink.log.compactInterval``."""
_BLOCK_BYTES = 32 * 1024 * 1024
_RETAINED_BATCHES = 100
_CLEANUP_DELAY_MS = 10 * 60 * 1000
_CHUNK_BYTES = 1024 * 1024
_MARK = b'"headgate"'
_HALF = re.compile(r"\.(?P<number>\d+)(\.compact)?\.[0-9a-f]{8}\.tmp")


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An entry: Spark's ``SinkFileStatus``.

    Parameters
    ----------
    path
        A URI.
    size, modification_time
        In bytes, and in milliseconds since 1970-01-01 UTC.
    headgate
        Names of the staged files whose rows it holds; not Spark's.
    """

    path: str
    size: int
    is_dir: bool = False
    modification_time: int
    block_replication: int = 1
    block_size: int = _BLOCK_BYTES
    action: str = "add"
    headgate: tuple[str, ...] = ()


class _Entry(msgspec.Struct):
    """What is wanted of an entry that is read, Spark's own included."""

    path: str
    headgate: tuple[str, ...] = ()


_entries = msgspec.json.Decoder(_Entry)


class SparkMetadataLog:
    """The log of one output folder.

    Of several that append, one gets a number: the others' fails, and what they knew of the log is out of date. So an
    `append` that succeeds follows from all batches before it. A number that is taken is decided for ever.

    Parameters
    ----------
    file_system, output
        Where the published files lie.
    """

    def __init__(self, file_system: pa_fs.FileSystem, output: str) -> None:
        self._fs = file_system
        self._folder = posixpath.join(output, FOLDER)
        self._numbers: dict[int, int] = {}  # modification time (ms) by number
        self._compact: set[int] = set()
        self._half: dict[str, int] = {}  # what somebody began to write: the number that it is to have

    def load(self) -> int | None:
        """Look what is there, and return the last batch's number, or None."""
        before: set[int] | None = None
        while before is None or (self._has_gap() and before != self._numbers.keys()):
            # While a folder is listed somebody may append two batches, of which the list has the second only.
            before = set(self._numbers)
            self._list()
        self._delete_half()
        return self.latest

    def _list(self) -> None:
        self._numbers, self._compact, self._half = {}, set(), {}
        for info in self._fs.get_file_info(pa_fs.FileSelector(self._folder, allow_not_found=True)):
            if half := _HALF.fullmatch(info.base_name):
                self._half[info.path] = int(half["number"])
                continue
            stem = info.base_name.removesuffix(_COMPACT)
            if info.type == pa_fs.FileType.File and stem.isdecimal():
                self._numbers[int(stem)] = (info.mtime_ns or 0) // 1_000_000
                if stem != info.base_name:
                    self._compact.add(int(stem))

    def _has_gap(self) -> bool:
        last = self.latest or 0
        return any(number not in self._numbers for number in range(max(0, last - REMEMBERED_BATCHES), last))

    def _delete_half(self) -> None:
        """Delete what was begun for numbers that are taken; a living writer may yet complete what is for another."""
        for path, number in list(self._half.items()):
            if number <= (self.latest if self.latest is not None else -1):
                delete_if_there(self._fs, path)
                del self._half[path]

    @property
    def latest(self) -> int | None:
        """The last batch's number; None: there is none."""
        return max(self._numbers, default=None)

    def published(self, number: int) -> dict[str, tuple[str, ...]] | None:
        """Return a batch's own files, by name, with the staged files that went into each; None: it is not there.

        Files of Spark's own sink are left out.
        """
        if number not in self._numbers:
            return None
        marked = (line for line in self._lines(number) if _MARK in line)
        entries = [self._decoded(line, number) for line in marked]
        return {posixpath.basename(entry.path): entry.headgate for entry in entries}

    def append(self, entries: Sequence[PublishedFile], now_ms: int) -> int:
        """Publish files as the next batch, all at once, and return its number.

        If this raises, they may be published all the same: ask `load` and `published`.

        Raises
        ------
        FileExistsError
            Somebody else appended since `load`.
        """
        number = 0 if self.latest is None else self.latest + 1
        if number == 0:
            self._fs.create_dir(self._folder, recursive=True)
        new = [msgspec.json.encode(entry) for entry in entries]
        if (number + 1) % self._interval() == 0:
            self._write(f"{number}{_COMPACT}", self._compacted(number, new))
            self._compact.add(number)
        else:
            self._write(str(number), iter((_VERSION, *new)))
        self._numbers[number] = now_ms
        self._delete_half()
        return number

    def expire(self, now_ms: int) -> None:
        """Delete files that a compact one replaced, once no reader is at them: what Spark's own sink deletes."""
        last = self.latest or 0
        interval = self._interval()
        keep = last + 1 - _RETAINED_BATCHES
        if keep < interval:
            return
        before = keep - keep % interval - 1
        for number, written_ms in sorted(self._numbers.items()):
            if number < before and written_ms <= now_ms - _CLEANUP_DELAY_MS:
                delete_if_there(self._fs, self._path(number))
                del self._numbers[number]
                self._compact.discard(number)

    def _interval(self) -> int:
        """Return every how many batches one is compact: as Spark derives it from the files of whoever began."""
        newest = sorted(self._compact, reverse=True)[:2]
        if len(newest) == 2:
            return newest[0] - newest[1]
        if not newest:
            return _INTERVAL
        count = newest[0] + 1
        if count <= _INTERVAL or count // 2 <= _INTERVAL:
            return count
        divisors = [each for each in range(_INTERVAL, count // 2 + 1) if count % each == 0]
        return min(divisors, default=count)

    def _compacted(self, number: int, new: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the lines of a compact file: of all batches since the last one, of that one, and the new ones."""
        yield _VERSION
        first = max(self._compact, default=0)
        for each in range(first, number):
            for line in self._lines(each):
                yield self._without_staged(line, each) if _MARK in line else line
        yield from new

    def _without_staged(self, line: bytes, number: int) -> bytes:
        try:
            entry = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise self._corrupt(number, line) from error
        entry.pop("headgate", None)
        return msgspec.json.encode(entry)

    def _decoded(self, line: bytes, number: int) -> _Entry:
        try:
            return _entries.decode(line)
        except msgspec.DecodeError as error:
            raise self._corrupt(number, line) from error

    def _path(self, number: int) -> str:
        return posixpath.join(self._folder, f"{number}{_COMPACT if number in self._compact else ''}")

    def _lines(self, number: int) -> Iterator[bytes]:
        """Yield a batch's entries, reading a little at a time."""
        with self._fs.open_input_stream(self._path(number)) as stream:
            rest, version = b"", None
            while chunk := stream.read(_CHUNK_BYTES):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if version is None:
                        version = self._checked(line, number)
                    elif line:
                        yield line
            if version is None:
                self._checked(rest, number)
            elif rest:
                yield rest

    def _checked(self, version: bytes, number: int) -> bytes:
        if version.strip() != _VERSION:
            path, found = self._path(number), version[:20].decode("utf-8", "replace")
            raise UnsupportedVersionError(
                f"The log of Spark's file sink {path} begins with {found!r}, not 'v1'. Write to an empty folder.",
                what=path, expected="v1", found=found,
            )  # fmt: skip
        return version

    def _corrupt(self, number: int, line: bytes) -> CorruptStateError:
        path, found = self._path(number), line[:80].decode("utf-8", "replace")
        return CorruptStateError(
            f"The log of Spark's file sink {path} has a line that is not JSON: {found!r}. Restore the file, or write "
            "to an empty folder.",
            what=path, expected="a line of JSON", found=found,
        )  # fmt: skip

    def _write(self, name: str, lines: Iterator[bytes]) -> None:
        write_at_once(self._fs, posixpath.join(self._folder, name), _chunks(lines))


def _chunks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """Join lines to pieces worth writing; no line end after the last, as in Spark's files."""
    held, size = [next(lines)], 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES:
            yield b"\n".join(held)
            held, size = [b""], 0
    yield b"\n".join(held)
