"""Keeps a source's log in files, one for each append, in folders by segment.

Never: guess. A log with a gap, a changed byte, another version or a missing end is not used, with the reason.

``<folder>/<segment>/<number>``: the file's name is the number of its last record. A file is a line with the version, a
line with the CRC-32 of what follows, and the records in MessagePack. A file that was cut off while it was written fails
its checksum. The log serves one life of the driver: a start drops what an earlier one left.

Called on one thread, which may block; everything is carried out in the order in which it was ordered.

Follows FLIP-27, "Where to run the enumerator" (write-ahead log).
"""

from __future__ import annotations

import logging
import posixpath
import zlib
from typing import assert_never

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.log_records import LogRecord
from headgate.errors import CorruptStateError, StoredStateError, UnsupportedVersionError

_log = logging.getLogger(__name__)

_NAME = "headgate-log"
_VERSION = 1
_DIGITS = 20


class LogGroup(msgspec.Struct, frozen=True, array_like=True):
    """What one append wrote. ``number`` is that of the last record."""

    number: int
    records: tuple[LogRecord, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogGroup)


def encode_group(group: LogGroup) -> bytes:
    """Return the bytes of a file."""
    body = _encoder.encode(group)
    return f"{_NAME} {_VERSION}\n{zlib.crc32(body):08x}\n".encode() + body


def decode_group(data: bytes, path: str) -> LogGroup:
    """Return what `encode_group` made the bytes of; the path is for errors.

    Raises
    ------
    UnsupportedVersionError
        Another version wrote them.
    CorruptStateError
        They are not what was written.
    """
    heading, _, rest = data.partition(b"\n")
    checksum, _, body = rest.partition(b"\n")
    name, _, version = heading.decode("ascii", "replace").partition(" ")
    if name == _NAME and version.isdigit() and int(version) != _VERSION:
        raise UnsupportedVersionError(
            f"{path} has version {version}, this Headgate reads version {_VERSION}.",
            what="a write-ahead log",
            path=path,
            expected=_VERSION,
            found=int(version),
        )
    if name != _NAME or checksum != f"{zlib.crc32(body):08x}".encode():
        raise CorruptStateError(
            f"{path} is not what was written: its checksum is wrong.", what="a write-ahead log", path=path
        )
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError as error:
        raise CorruptStateError(f"{path} cannot be read: {error}.", what="a write-ahead log", path=path) from error


class WriteAheadLog:
    """The log of one source.

    Parameters
    ----------
    file_system
        Where it is.
    folder
        Its folder there: ``<checkpointLocation>/log/<source uid>``.
    """

    def __init__(self, file_system: pa_fs.FileSystem, folder: str) -> None:
        self._file_system = file_system
        self._folder = folder
        self._made_segment: int | None = None  # the one whose folder is there

    def carry_out(self, action: src.AppendLog | src.DropLog | src.LoadLog) -> src.Event | None:
        """Carry out an action and return its outcome for the coordinator; `DropLog` has none.

        May block. Errors of the file system are returned as well, not raised.
        """
        match action:
            case src.AppendLog():
                return self._append(action)
            case src.DropLog(before_segment=before):
                self._drop(before)
                return None
            case src.LoadLog():
                return self._load(action)
            case _:
                assert_never(action)

    def _append(self, action: src.AppendLog) -> src.Event:
        folder = self._segment_folder(action.segment)
        data = encode_group(LogGroup(action.number, action.records))
        try:
            if action.segment != self._made_segment:
                self._file_system.create_dir(folder, recursive=True)
                self._made_segment = action.segment
            with self._file_system.open_output_stream(posixpath.join(folder, _numbered(action.number))) as stream:
                stream.write(data)
        except (OSError, pa.ArrowException) as error:
            return src.LogAppendFailed(action.number, f"{folder}: {error}")
        return src.LogAppended(action.number)

    def _drop(self, before: int | None) -> None:
        try:
            for segment in self._segments():
                if before is None or segment < before:
                    self._made_segment = None
                    self._file_system.delete_dir(self._segment_folder(segment))
        except (OSError, pa.ArrowException) as error:  # tried again after the next checkpoint
            _log.warning("Segments of the write-ahead log %s were not deleted: %s", self._folder, error)

    def _load(self, action: src.LoadLog) -> src.LogLoaded:
        try:
            groups = self._read(action.from_segment)
        except (OSError, pa.ArrowException) as error:
            return src.LogLoaded(None, f"{self._folder}: {error}", action.incarnation)
        except StoredStateError as error:
            return src.LogLoaded(None, error.message, action.incarnation)
        last = groups[-1].number if groups else 0
        if last != action.through:
            return src.LogLoaded(
                None, f"{self._folder} ends with record {last}, not {action.through}", action.incarnation
            )
        records = tuple(record for group in groups for record in group.records)
        return src.LogLoaded(records, "", action.incarnation)

    def _read(self, from_segment: int) -> list[LogGroup]:
        groups: list[LogGroup] = []
        for segment in self._segments():
            if segment < from_segment:
                continue
            folder = self._segment_folder(segment)
            for name in self._names(folder):
                path = posixpath.join(folder, name)
                with self._file_system.open_input_stream(path, compression=None) as stream:
                    group = decode_group(stream.read(), path)
                if groups and group.number - len(group.records) != groups[-1].number:
                    raise CorruptStateError(
                        f"{path} does not follow record {groups[-1].number}.", what="a write-ahead log", path=path
                    )
                groups.append(group)
        return groups

    def _segments(self) -> list[int]:
        return [int(name) for name in self._names(self._folder)]

    def _names(self, folder: str) -> list[str]:
        selector = pa_fs.FileSelector(folder, allow_not_found=True)
        names = [info.base_name for info in self._file_system.get_file_info(selector)]
        return sorted(name for name in names if name.isdigit())

    def _segment_folder(self, segment: int) -> str:
        return posixpath.join(self._folder, _numbered(segment))


def _numbered(number: int) -> str:
    """Return a name that sorts like the number."""
    return f"{number:0{_DIGITS}d}"
