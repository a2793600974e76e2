"""Publishes staged files through Spark's log, in few files, each row once whatever crashes.

Never: let a reader see rows that the log does not name, delete a staged file that may still be committed, or open a
file that another publication made.

A publication takes these steps; a crash after any of them is undone or finished by the next committer (`_sweep`):

    step  what is done                              a crash after it
    ----  ----------------------------------------  ------------------------------------------------------------------
    1     the intent is written: the log's next     nothing was made: the intent is dropped
          number, published files, and which
          staged files go into each
    2     each file is made: one staged file gets   once the log's number is taken by somebody else they are deleted;
          a second name, several are merged         the same committables come again and are published
    3     the log's next number is taken: it names  the log says that they are published: the same committables are
          the files, and with them the staged       known when they come again
          files that went into them
    4     the intent and the staged files are       they are deleted: the log names them
          deleted

Of two committers that live at once, as when a run is taken over while it commits, each makes files of its own, whose
names hold a token of that publication. The log decides: one of them gets the number. The other one's files are
deleted, by whoever is first; it reads the log again, and goes on with what is not published yet. It also asks whether
its run still owns the query (`check_owner`) before it takes a number and again after that: on a file system where
looking whether a number is taken and taking it are two steps (object stores), only that keeps the older one out. Until
a number is taken nobody knows whether a publication that began will take it: its files stay.

A commit without rows publishes a file without rows if nothing was published before, as Spark's sink does: readers that
infer the schema need one.

Waiting committables are returned, so that checkpoints hold them, and remembered, so that it does not matter whether
they are given again with the next epoch or only after a restore.
"""

from __future__ import annotations

import contextlib
import logging
import posixpath
import re
import secrets
import time
from collections.abc import Callable, Container, Iterable, Sequence
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.sink.durable_files import copy_new, delete_if_there, make_durable, write_at_once
from headgate.connectors.files.sink.encodings import FileEncoding, stored_schema
from headgate.connectors.files.sink.spark_metadata import (
    REMEMBERED_BATCHES,
    PublishedFile,
    SparkMetadataLog,
)
from headgate.connectors.files.sink.staged_files import (
    FOLDER,
    KnownWriters,
    StagedFile,
    StagedName,
    decode_staged,
    staged_path,
)
from headgate.connectors.files.sink.writer import as_sink_error
from headgate.errors import CorruptStateError, OptionError, SinkError, UnsupportedVersionError
from headgate.sink import SinkCommitter

_log = logging.getLogger(__name__)
_INTENT = re.compile(r"\.?publishing-(?P<batch>\d+)-[0-9a-f]{16}\.json(?P<half>\.[0-9a-f]{8}\.tmp)?")
_INTENT_VERSION = 1
_PARTITIONED_VERSION = 2
_TAKEN_ALONE = 8
"""A staged file of this part of the target size is published as it is: large output does not pass the driver."""


class PublishingLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When to publish, and how large.

    Parameters
    ----------
    interval_ms
        The least time between two publications, in milliseconds.
    size_bytes
        So many staged bytes are published at once.
    file_bytes
        Small staged files are merged up to about this size.
    """

    interval_ms: int
    size_bytes: int
    file_bytes: int


class _Output(msgspec.Struct, frozen=True):
    """A file to publish, by its path below the output, and the names of the staged files that go into it, if any."""

    name: str
    staged: tuple[str, ...]


class _Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be published. Durable: version 1, and version 2 if it is partitioned."""

    version: int
    batch: int
    outputs: tuple[_Output, ...]


def _decode_intent(data: bytes, path: str) -> _Intent:
    try:
        version = _versions.decode(data).version
        if version not in (_INTENT_VERSION, _PARTITIONED_VERSION):
            raise UnsupportedVersionError(
                f"{path} has the version {version}; this Headgate knows {_INTENT_VERSION} and {_PARTITIONED_VERSION}. "
                "It says which files were about to be published: start the query with the Headgate that wrote it.",
                what=path, expected=_PARTITIONED_VERSION, found=version,
            )  # fmt: skip
        return _intents.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptStateError(
            f"{path} cannot be read: {error}. It says which files were about to be published: restore it.",
            what=path, expected="JSON with version, batch and outputs", found=data[:80],
        ) from error  # fmt: skip


class _Versioned(msgspec.Struct):
    version: int


_versions, _intents = msgspec.json.Decoder(_Versioned), msgspec.json.Decoder(_Intent)


class FilesCommitter(SinkCommitter):
    """See `SinkCommitter`.

    Parameters
    ----------
    file_system, output
        Where the query's output goes.
    base_uri
        How Spark spells ``output``: a URI without a slash at its end.
    encoding
        How files are merged.
    schema
        The rows' columns.
    limits
        When to publish, and how large.
    clock
        Seconds since 1970-01-01 UTC.
    partitioned
        Whether files are in folders of partitions. A file without rows would be in none: then there is none.
    """

    def __init__(
        self,
        file_system: pa_fs.FileSystem,
        output: str,
        base_uri: str,
        encoding: FileEncoding,
        schema: pa.Schema,
        limits: PublishingLimits,
        clock: Callable[[], float] = time.time,
        *,
        partitioned: bool = False,
    ) -> None:
        self._fs = file_system
        self._output = output
        self._base_uri = base_uri
        self._encoding = encoding
        self._stored_schema = stored_schema(schema)
        self._limits = limits
        self._clock = clock
        self._partitioned = partitioned
        self.when_published: Callable[[], None] = lambda: None
        self._folders: set[str] = set()  # that are made, of partitions
        self._metadata = SparkMetadataLog(file_system, output)
        self._published: dict[int, frozenset[str]] | None = None  # by batch, the last ones; None: to be recovered
        self._waiting: dict[str, StagedFile] = {}
        self._writers = KnownWriters()
        self._published_at_ms: int | None = None

    def open(self) -> None:
        """Make the output folder ready: from now on readers see what is published, and nothing else.

        Raises
        ------
        OptionError
            The folder holds files that nobody published through Spark's log.
        """
        with as_sink_error(self._output, "get ready"):
            if self._metadata.load() is None:
                self._begin_log()
            published = self._read_log()
            self._sweep(published)
        self._published = published

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """See `SinkCommitter.commit`."""
        staged = [decode_staged(each) for each in committables]
        if self._published is None:
            self.open()
        published, self._published = self._published, None  # if this fails, what was done is found out again
        assert published is not None
        self._waiting.update({each.name: each for each in staged})
        # What was waiting when the last commit failed may have been published by it.
        self._forget(published)
        sweeps = self._writers.note(staged)
        with as_sink_error(self._output, "publish"):
            if (final or self._is_due()) if self._waiting else self._is_bare():
                published = self._publish(published)
                self.when_published()
                sweeps = True
            if sweeps:
                self._sweep(published)
        self._published = published
        return [each.encode() for each in self._waiting.values()]

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _is_due(self) -> bool:
        """Return whether to publish now. The first rows after a start are seen at once."""
        # A clock that was set back must not delay rows until it is what it was again.
        if self._published_at_ms is None:
            return True
        if not 0 <= self._now_ms() - self._published_at_ms < self._limits.interval_ms:
            return True
        return sum(each.size for each in self._waiting.values()) >= self._limits.size_bytes

    def _is_bare(self) -> bool:
        """Return whether the log names no file, as it begins; one that Spark's sink began may have a few."""
        return self._metadata.latest == 0 and not self._partitioned

    # Publishing.

    def _publish(self, published: dict[int, frozenset[str]]) -> dict[int, frozenset[str]]:
        """Publish what waits; return what the last batches hold then."""
        has_rows = bool(self._waiting)
        while self._waiting or self._is_bare():
            latest = self._metadata.latest
            try:
                self._publish_once(published)
            except (OSError, pa.ArrowException, SinkError):
                if self._metadata.load() == latest:
                    raise
                # Somebody else published, perhaps the very same staged files, and deleted them.
                published = self._read_log()
                self._forget(published)
        if has_rows:
            self._published_at_ms = self._now_ms()
        return published

    def _publish_once(self, published: dict[int, frozenset[str]]) -> None:
        staged = self._present()
        if staged or self._is_bare():
            batch, token = (self._metadata.latest or 0) + 1, secrets.token_hex(8)
            version = _PARTITIONED_VERSION if any(each.folder for each in staged) else _INTENT_VERSION
            intent = _Intent(version=version, batch=batch, outputs=self._plan(batch, token, staged))
            if not staged:  # no writer has made it
                self._fs.create_dir(posixpath.join(self._output, FOLDER), recursive=True)
            path = staged_path(self._output, f"publishing-{batch:05d}-{token}.json")
            write_at_once(self._fs, path, iter([msgspec.json.encode(intent)]))
            self._carry_out(intent, path)
            published[batch] = frozenset(each.name for each in staged)
            published.pop(batch - REMEMBERED_BATCHES, None)
            self._metadata.expire(self._now_ms())
        self._waiting.clear()

    def _carry_out(self, intent: _Intent, path: str) -> None:
        """Make files and take the log's next number for them."""
        tried = False
        try:
            for output in intent.outputs:
                self._make(output)
            entries = [self._entry(output) for output in intent.outputs]
            self.check_owner()
            tried = True
            batch = self._metadata.append(entries, self._now_ms())
            assert batch == intent.batch, (batch, intent.batch)
        except Exception:
            # Nobody else deletes what was made since somebody saw the number taken, and with it the intent.
            with contextlib.suppress(OSError):
                self._give_up(intent, path, tried=tried)
            raise
        self.check_owner()
        delete_if_there(self._fs, path)

    def _present(self) -> list[StagedFile]:
        """Return the waiting files in the order in which they were written.

        Raises
        ------
        SinkError
            One of this output is not there.
        """
        files = sorted(self._waiting.values(), key=lambda each: StagedName.parse(each.name))
        infos = self._fs.get_file_info([staged_path(self._output, each.name) for each in files])
        present = []
        for each, info in zip(files, infos, strict=True):
            if info.type == pa_fs.FileType.File:
                present.append(each)
            elif each.output != self._output:
                # A savepoint of a query with another output: that one has these rows, or will publish them.
                _log.warning(
                    "The %d rows of %s were staged for %s: not published here.", each.rows, each.name, each.output
                )
            else:
                raise SinkError(
                    f"The staged file {info.path} with {each.rows} rows is gone. If the query was started from an old "
                    "checkpoint or savepoint its rows were published long ago: write to another folder. Otherwise "
                    "somebody deleted it.",
                    sink="files", path=info.path,
                )  # fmt: skip
        return present

    def _plan(self, batch: int, token: str, staged: Iterable[StagedFile]) -> tuple[_Output, ...]:
        """Group staged files to published ones, whose names nobody else hits upon. Runs may differ in columns.

        Without staged files: to one without rows.
        """
        groups: list[list[StagedFile]] = []
        last: dict[tuple[str, str, int], list[StagedFile]] = {}  # that may have more, by folder, query and run
        room: dict[tuple[str, str, int], int] = {}
        for each in staged:
            name = StagedName.parse(each.name)
            of = (each.folder, name.query, name.run)
            if each.size * _TAKEN_ALONE >= self._limits.file_bytes:
                groups.append([each])
                room[of] = 0
                continue
            if each.size > room.get(of, -1):
                last[of], room[of] = [], self._limits.file_bytes
                groups.append(last[of])
            last[of].append(each)
            room[of] -= each.size
        return tuple(
            _Output(
                posixpath.join(
                    group[0].folder if group else "",
                    f"part-{batch:05d}-{number:05d}-{token}.{self._encoding.extension}",
                ),
                tuple(each.name for each in group),
            )
            for number, group in enumerate(groups or [[]])
        )

    def _make(self, output: _Output) -> None:
        sources = [staged_path(self._output, name) for name in output.staged]
        target = posixpath.join(self._output, output.name)
        self._make_folders(output.name)
        if not sources:
            self._encoding.create(self._fs, target, self._stored_schema).close()
        elif len(sources) == 1:
            copy_new(self._fs, sources[0], target)
        else:
            self._encoding.merge(self._fs, sources, target)
        make_durable(self._fs, target)

    def _make_folders(self, name: str) -> None:
        folder = posixpath.dirname(name)
        if folder and folder not in self._folders:
            self._fs.create_dir(posixpath.join(self._output, folder), recursive=True)
            while folder:
                make_durable(self._fs, posixpath.join(self._output, folder))
                self._folders.add(folder)
                folder = posixpath.dirname(folder)

    def _entry(self, output: _Output) -> PublishedFile:
        info = self._fs.get_file_info(posixpath.join(self._output, output.name))
        return PublishedFile(
            path=f"{self._base_uri}/{quote(output.name, safe='/=')}",
            size=info.size,
            modification_time=info.mtime_ns // 1_000_000 if info.mtime_ns else self._now_ms(),
            headgate=output.staged,
        )

    # What others did, and what a crash left.

    def _begin_log(self) -> None:
        """Make the log; from now on readers go by it.

        Raises
        ------
        OptionError
            See `open`.
        """
        foreign = self._foreign_files()
        if self._metadata.load() is not None:  # somebody else did so just now: those may be files that it names
            return
        if foreign:
            raise OptionError(
                f"The folder {self._output} holds {foreign[0]!r}{' and others' if len(foreign) > 1 else ''}, but no "
                "log of Spark's file sink (_spark_metadata): once there is one, readers no longer see what it does not "
                "name. Write to another folder, or move them away.",
                option="path", value=self._output,
            )  # fmt: skip
        try:
            self._metadata.append((), self._now_ms())
        except FileExistsError:
            self._metadata.load()

    def _foreign_files(self) -> list[str]:
        found = self._fs.get_file_info(pa_fs.FileSelector(self._output, allow_not_found=True))
        return sorted(info.base_name for info in found if not info.base_name.startswith(("_", ".")))

    def _read_log(self) -> dict[int, frozenset[str]]:
        """Return which staged files the last batches hold."""
        latest = self._metadata.latest or 0
        published = {}
        for number in range(max(0, latest + 1 - REMEMBERED_BATCHES), latest + 1):
            files = self._metadata.published(number) or {}
            published[number] = frozenset(name for staged in files.values() for name in staged)
        return published

    def _forget(self, published: dict[int, frozenset[str]]) -> None:
        """Let nothing wait that is published."""
        for name in frozenset().union(*published.values()).intersection(self._waiting):
            del self._waiting[name]

    def _give_up(self, intent: _Intent, path: str, *, tried: bool) -> None:
        """Delete what was made for a publication, unless the log names it or may do so yet."""
        if not tried:
            self._delete_made(intent, path, named=())
        elif (self._metadata.load() or 0) >= intent.batch:
            self._settle(intent, path)

    def _settle(self, intent: _Intent, path: str) -> None:
        """Delete an intent whose number is taken, and the files that were made for it if another one took it."""
        named = self._metadata.published(intent.batch)
        if named is None:  # so long ago that its entries are in a compact file: they may be among those
            delete_if_there(self._fs, path)
        else:
            self._delete_made(intent, path, named)

    def _delete_made(self, intent: _Intent, path: str, named: Container[str]) -> None:
        for output in intent.outputs:
            if posixpath.basename(output.name) not in named:
                delete_if_there(self._fs, posixpath.join(self._output, output.name))
        delete_if_there(self._fs, path)

    # Staged files that nobody will commit.

    def _sweep(self, published: dict[int, frozenset[str]]) -> None:
        """Delete staged files that are published or that a dead writer left, and what publications left over."""
        known = frozenset().union(*published.values())
        latest = self._metadata.latest or 0
        folder = posixpath.join(self._output, FOLDER)
        for info in self._fs.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True)):
            if intent := _INTENT.fullmatch(info.base_name):
                if int(intent["batch"]) <= latest:
                    self._sweep_intent(info.path, half=intent["half"] is not None)
                continue
            name = StagedName.try_parse(info.base_name)
            if name is None or info.base_name in self._waiting:
                continue
            if info.base_name in known or self._writers.is_dead(name):
                delete_if_there(self._fs, info.path)

    def _sweep_intent(self, path: str, *, half: bool) -> None:
        if half:
            delete_if_there(self._fs, path)
            return
        try:
            with self._fs.open_input_stream(path) as stream:
                data = stream.read()
        except FileNotFoundError:  # whose it is, or another, was faster
            return
        self._settle(_decode_intent(data, path), path)
