"""Publishes staged files through Spark's log, in few files, each row once whatever crashes.

Never: let a reader see rows that the log does not name, or delete a staged file that may still be committed.

A publication takes these steps; a crash after any of them is undone or finished by the next committer (`_recover`):

    step  what is done                              a crash behind it
    ----  ----------------------------------------  ------------------------------------------------------------------
    1     the intent is written: published files,   nothing was moved: the intent is dropped
          and which staged files go into each
    2     each file is made: one staged file is     files are moved back or deleted: the log does not name them; the
          moved, several are merged                 same committables come again and are published
    3     the log names the files, and with them    the log says that they are published: the same committables are
          the staged files that went into them      known when they come again
    4     staged files that were merged are         the intent names them: they are deleted
          deleted

Waiting committables are returned, so that checkpoints hold them, and remembered, so that it does not matter whether
they are given again with the next epoch or only after a restore. Follows traps 28 and 29.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pyarrow.fs as pa_fs

from headgate.errors import CorruptStateError, OptionError, SinkError, UnsupportedVersionError
from headgate.operators.operator import SinkCommitter
from headgate.operators.sinks.durable_files import make_durable, write_at_once
from headgate.operators.sinks.file_encodings import FileEncoding
from headgate.operators.sinks.files_writer import as_sink_error
from headgate.operators.sinks.spark_metadata import (
    REMEMBERED_BATCHES,
    PublishedFile,
    SparkMetadataLog,
)
from headgate.operators.sinks.staged_files import FOLDER, StagedFile, StagedName, decode_staged, staged_path

_log = logging.getLogger(__name__)
_INTENT = "publishing.json"
_INTENT_VERSION = 1
_MOVED_ALONE = 8
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
    """A file to publish, and the staged files that go into it; both by name."""

    name: str
    staged: tuple[str, ...]


class _Intent(msgspec.Struct, frozen=True, kw_only=True):
    """What is about to be published. Durable: version 1."""

    version: int = _INTENT_VERSION
    batch: int
    outputs: tuple[_Output, ...]


def _decode_intent(data: bytes, path: str) -> _Intent:
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != _INTENT_VERSION:
            raise UnsupportedVersionError(
                f"{path} has the version {version}; this Headgate knows {_INTENT_VERSION}. It says which files were "
                "about to be published: start the query with the Headgate that wrote it.",
                what=path, expected=_INTENT_VERSION, found=version,
            )  # fmt: skip
        return msgspec.json.decode(data, type=_Intent)
    except msgspec.DecodeError as error:
        raise CorruptStateError(
            f"{path} cannot be read: {error}. It says which files were about to be published: restore it.",
            what=path, expected="JSON with version, batch and outputs", found=data[:80],
        ) from error  # fmt: skip


class _Versioned(msgspec.Struct):
    version: int


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
    limits
        When to publish, and how large.
    clock
        Seconds since 1970-01-01 UTC.
    """

    def __init__(
        self,
        file_system: pa_fs.FileSystem,
        output: str,
        base_uri: str,
        encoding: FileEncoding,
        limits: PublishingLimits,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fs = file_system
        self._output = output
        self._base_uri = base_uri
        self._encoding = encoding
        self._limits = limits
        self._clock = clock
        self._metadata = SparkMetadataLog(file_system, output)
        self._published: dict[int, frozenset[str]] | None = None  # by batch, the last ones; None: to be recovered
        self._waiting: dict[str, StagedFile] = {}
        self._newest: dict[str, _Writers] = {}  # by query
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
                self._refuse_foreign_files()
                self._metadata.append((), self._now_ms())
            published = self._recover()
            self._sweep(published)
        self._published = published

    def commit(self, committables: Sequence[bytes], *, epoch: int, final: bool) -> Sequence[bytes]:
        """See `SinkCommitter.commit`."""
        staged = [decode_staged(each) for each in committables]
        if self._published is None:
            self.open()
        published, self._published = self._published, None  # if this fails, what was done is found out again
        assert published is not None
        known = frozenset().union(*published.values())
        # What was waiting when the last commit failed may have been published by it.
        waiting = [*self._waiting.values(), *staged]
        self._waiting = {each.name: each for each in waiting if each.name not in known}
        sweeps = self._note_writers(staged)
        with as_sink_error(self._output, "publish"):
            if self._waiting and (final or self._is_due()):
                self._publish(published)
                sweeps = True
            if sweeps:
                self._sweep(published)
        self._published = published
        return [each.encode() for each in self._waiting.values()]

    def abort(self, committables: Sequence[bytes], *, epoch: int) -> None:
        """See `SinkCommitter.abort`."""
        with as_sink_error(self._output, "delete staged files"):
            for each in map(decode_staged, committables):
                self._waiting.pop(each.name, None)
                self._delete(staged_path(self._output, each.name))

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _is_due(self) -> bool:
        """Return whether to publish now. The first rows after a start are seen at once."""
        if self._published_at_ms is None or self._now_ms() - self._published_at_ms >= self._limits.interval_ms:
            return True
        return sum(each.size for each in self._waiting.values()) >= self._limits.size_bytes

    # Publishing.

    def _publish(self, published: dict[int, frozenset[str]]) -> None:
        """Publish what waits."""
        staged = self._present()
        if staged:
            batch = (self._metadata.latest or 0) + 1
            outputs = self._plan(batch, staged)
            intent = msgspec.json.encode(_Intent(batch=batch, outputs=outputs))
            write_at_once(self._fs, staged_path(self._output, _INTENT), iter([intent]), replaces=True)
            for output in outputs:
                self._make(output)
            self._metadata.append([self._entry(output) for output in outputs], self._now_ms())
            published[batch] = frozenset(each.name for each in staged)
            published.pop(batch - REMEMBERED_BATCHES, None)
            self._metadata.expire(self._now_ms())
        self._waiting.clear()
        self._published_at_ms = self._now_ms()

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

    def _plan(self, batch: int, staged: Iterable[StagedFile]) -> tuple[_Output, ...]:
        """Group staged files to published ones; the same ones make the same names. Runs may differ in columns."""
        groups: list[list[StagedFile]] = []
        room, of = 0, None
        for each in staged:
            name = StagedName.parse(each.name)
            if each.size * _MOVED_ALONE >= self._limits.file_bytes:
                groups.append([each])
                room = 0
                continue
            if each.size > room or of != (name.query, name.run):
                groups.append([])
                room, of = self._limits.file_bytes, (name.query, name.run)
            groups[-1].append(each)
            room -= each.size
        outputs = []
        for number, group in enumerate(groups):
            names = tuple(each.name for each in group)
            digest = hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]
            outputs.append(_Output(f"part-{batch:05d}-{number:05d}-{digest}.{self._encoding.extension}", names))
        return tuple(outputs)

    def _make(self, output: _Output) -> None:
        sources = [staged_path(self._output, name) for name in output.staged]
        target = posixpath.join(self._output, output.name)
        if len(sources) == 1:
            self._fs.move(sources[0], target)
        else:
            self._encoding.merge(self._fs, sources, target)
        make_durable(self._fs, target)

    def _entry(self, output: _Output) -> PublishedFile:
        info = self._fs.get_file_info(posixpath.join(self._output, output.name))
        return PublishedFile(
            path=f"{self._base_uri}/{output.name}",
            size=info.size,
            modification_time=info.mtime_ns // 1_000_000 if info.mtime_ns else self._now_ms(),
            headgate=output.staged,
        )

    # After a crash.

    def _recover(self) -> dict[int, frozenset[str]]:
        """Undo a publication that the log does not name, and return which staged files the last batches hold."""
        latest = self._metadata.latest or 0
        first = max(0, latest + 1 - REMEMBERED_BATCHES)
        published = {number: self._metadata.staged_files(number) for number in range(first, latest + 1)}
        path = staged_path(self._output, _INTENT)
        if self._fs.get_file_info(path).type == pa_fs.FileType.NotFound:
            return published
        with self._fs.open_input_stream(path) as stream:
            data = stream.read()
        intent = _decode_intent(data, path)
        if not self._is_done(intent, published.get(intent.batch)):
            for output in intent.outputs:
                self._undo(output)
        self._fs.delete_file(path)
        return published

    def _is_done(self, intent: _Intent, published: frozenset[str] | None) -> bool:
        """Return whether the log names an intent's files; somebody else's sink may have taken its number."""
        if intent.batch > (self._metadata.latest or 0):
            return False
        named = self._metadata.staged_files(intent.batch) if published is None else published
        return named.issuperset(name for output in intent.outputs for name in output.staged)

    def _undo(self, output: _Output) -> None:
        target = posixpath.join(self._output, output.name)
        if self._fs.get_file_info(target).type == pa_fs.FileType.NotFound:
            return
        if len(output.staged) == 1:
            source = staged_path(self._output, output.staged[0])
            if self._fs.get_file_info(source).type == pa_fs.FileType.NotFound:
                self._fs.move(target, source)
                return
        self._fs.delete_file(target)

    def _refuse_foreign_files(self) -> None:
        found = self._fs.get_file_info(pa_fs.FileSelector(self._output, allow_not_found=True))
        foreign = sorted(info.base_name for info in found if not info.base_name.startswith(("_", ".")))
        if foreign:
            raise OptionError(
                f"The folder {self._output} holds {foreign[0]!r}{' and others' if len(foreign) > 1 else ''}, but no "
                "log of Spark's file sink (_spark_metadata): once there is one, readers no longer see what it does not "
                "name. Write to another folder, or move them away.",
                option="path", value=self._output,
            )  # fmt: skip

    # Staged files that nobody will commit.

    def _note_writers(self, staged: Iterable[StagedFile]) -> bool:
        """Note who staged; return whether there is a writer that was not known.

        Checkpoints complete in order, and a subtask has one writer at a time: once a writer's files are committed, no
        more come of those before it (they wait, or never will).
        """
        changed = False
        for each in staged:
            name = StagedName.parse(each.name)
            writers = self._newest.setdefault(name.query, _Writers(run=name.run))
            if name.run > writers.run:
                writers = self._newest[name.query] = _Writers(run=name.run)
            if name.run == writers.run and name.execution > writers.executions.get(name.subtask, -1):
                writers.executions[name.subtask] = name.execution
                changed = True
        return changed

    def _sweep(self, published: dict[int, frozenset[str]]) -> None:
        """Delete staged files that are published in another file, or that a dead writer left."""
        known = frozenset().union(*published.values())
        folder = posixpath.join(self._output, FOLDER)
        for info in self._fs.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True)):
            name = StagedName.try_parse(info.base_name)
            if name is None or info.base_name in self._waiting:
                continue
            if info.base_name in known or self._is_dead(name):
                self._delete(info.path)

    def _is_dead(self, name: StagedName) -> bool:
        writers = self._newest.get(name.query)
        if writers is None:
            return False
        return (name.run, name.execution) < (writers.run, writers.executions.get(name.subtask, -1))

    def _delete(self, path: str) -> None:
        """Delete a file that may be gone."""
        if self._fs.get_file_info(path).type != pa_fs.FileType.NotFound:
            self._fs.delete_file(path)


class _Writers(msgspec.Struct):
    """The newest writers of a query that committed: those of a run, with the execution of each subtask."""

    run: int
    executions: dict[int, int] = {}
