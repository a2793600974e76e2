"""Finds out when the rows of files are without reading them: by the statistics in Parquet's footers, or by folders.

Never: read more of a file than its footer, or promise too much: the result is a lower bound. A file of which nothing
is known may have rows of any time (`MIN_WATERMARK_MS`); one without any event time has none (`MAX_WATERMARK_MS`).

A footer is one or two requests to the file system, so files are looked at in parallel, and what was found is kept for
the files looked at lately.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.connectors.files.file_cursor import units_of
from headgate.connectors.files.listing import FileStatus
from headgate.connectors.files.partitions import partition_scalar
from headgate.connectors.files.split import FileSplit
from headgate.errors import BadDataError, SourceUnavailableError
from headgate.formats.names import Names
from headgate.formats.parquet import earliest_event_times
from headgate.source.event_time import to_milliseconds
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

_log = logging.getLogger(__name__)

_THREADS = 16
_KEPT_FILES = 10_000
_PROGRESS_S = 10.0
_EASTMOST_MS = 14 * 3_600_000
"""A local time without a known zone is at most so much earlier in UTC."""


class RowTimes(msgspec.Struct, frozen=True, gc=False):
    """From when on the rows of one file are, in milliseconds: of each unit (row group), or of the whole file.

    Parameters
    ----------
    earliest
        A lower bound for each unit, in the file's order; a single one if not ``by_unit``.
    by_unit
        Whether the file's units are known.
    """

    earliest: tuple[int, ...] = (MIN_WATERMARK_MS,)
    by_unit: bool = False

    def earliest_ms(self, split: FileSplit) -> int:
        """Return a lower bound of all rows that are left of a split."""
        return min((self.earliest[unit] for unit in self._units(split)), default=MAX_WATERMARK_MS)

    def next_ms(self, split: FileSplit) -> int:
        """Return a lower bound of the rows that come next, those without event time aside."""
        bounds = (self.earliest[unit] for unit in self._units(split))
        return next((bound for bound in bounds if bound != MAX_WATERMARK_MS), MAX_WATERMARK_MS)

    def up_to(self, split: FileSplit, event_time_ms: int) -> FileSplit | None:
        """Return a split up to its first unit that begins at an event time or later; None: its first one does."""
        units = self._units(split)
        for index, unit in enumerate(units):
            if event_time_ms <= self.earliest[unit] < MAX_WATERMARK_MS:
                if all(self.earliest[each] == MAX_WATERMARK_MS for each in units[:index]):
                    return None
                return msgspec.structs.replace(split, end=unit * split.size // len(self.earliest))
        return split

    def _units(self, split: FileSplit) -> Sequence[int]:
        return units_of(split, len(self.earliest)) if self.by_unit else (0,)


class EventTimes:
    """Finds the lowest event time of each file. May be used by any thread.

    Parameters
    ----------
    file_system
        Where the files are.
    column
        The event-time column, a timestamp.
    has_footers
        Whether the files are Parquet.
    time_zone
        The zone in which folders' local times are read; None: it is not known here.
    names
        Which names of columns and folders are one.
    """

    def __init__(
        self,
        file_system: pa_fs.FileSystem,
        column: pa.Field,
        *,
        has_footers: bool,
        time_zone: str | None,
        names: Names | None = None,
    ) -> None:
        self._file_system = file_system
        self._column = column
        self._has_footers = has_footers
        self._time_zone = time_zone
        self._names = names or Names()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._kept: OrderedDict[tuple[str, int, int], RowTimes] = OrderedDict()

    def can_know(self, file: FileStatus | FileSplit) -> bool:
        """Return whether anything can be known of a file. Does not block."""
        return self._has_footers or bool(self._folders(file))

    def look_at(
        self, files: Sequence[FileStatus | FileSplit], stopped: threading.Event | None = None
    ) -> list[RowTimes]:
        """Return what is known of files, in their order. Blocks; reads footers in parallel.

        Parameters
        ----------
        files
            Files, or splits of files: then what is known of the whole file.
        stopped
            Once it is set nothing more is read, and the answer means nothing.

        Raises
        ------
        SourceUnavailableError
            The file system does not answer. A file that is gone or damaged is one of which nothing is known.
        """
        found = [self._known(each) for each in files]
        missing = [index for index, times in enumerate(found) if times is None]
        footers = self._read_footers([files[index] for index in missing], stopped or threading.Event())
        for index, times in zip(missing, footers):
            found[index] = times
        return [times or RowTimes() for times in found]

    def _known(self, file: FileStatus | FileSplit) -> RowTimes | None:
        """Return what is known without reading anything."""
        folders = self._folders(file)
        if folders:
            return RowTimes((self._of_folder(file.path, folders[0]),))
        with self._lock:
            return self._kept.get(_key(file))

    def _read_footers(self, files: Sequence[FileStatus | FileSplit], stopped: threading.Event) -> Iterator[RowTimes]:
        if len(files) < 2:
            yield from map(self._read_footer, files)
            return
        began = logged = time.monotonic()
        with ThreadPoolExecutor(min(_THREADS, len(files)), thread_name_prefix="headgate-files-footers") as pool:
            looks = pool.map(lambda each: RowTimes() if stopped.is_set() else self._read_footer(each), files)
            for done, times in enumerate(looks):
                yield times
                if time.monotonic() - logged >= _PROGRESS_S:
                    logged = time.monotonic()
                    _log.warning(
                        "headgate.files: reading the footers of %d files, because 'eventTimeColumn' is set: %d after "
                        "%d s. No file is read before its footer.",
                        len(files), done + 1, logged - began,
                    )  # fmt: skip

    def _read_footer(self, file: FileStatus | FileSplit) -> RowTimes:
        times = self._of_footer(file.path)
        with self._lock:
            self._kept[_key(file)] = times
            if len(self._kept) > _KEPT_FILES:
                self._kept.popitem(last=False)
        return times

    def _of_footer(self, path: str) -> RowTimes:
        try:
            with self._file_system.open_input_file(path) as file:
                return RowTimes(
                    earliest_event_times(file, path, self._column, self._names.case_sensitive), by_unit=True
                )
        except (BadDataError, FileNotFoundError) as error:
            # Whoever reads it says so, or passes over it, as the options say.
            _log.info("headgate.files: the footer of %s cannot be read: %s", path, error)
            return RowTimes()
        except OSError as error:
            raise SourceUnavailableError(
                f"headgate.files cannot read the footer of {path}: {error}.", source="headgate.files", path=path
            ) from error

    def _of_folder(self, path: str, text: str | None) -> int:
        if text is None:
            return MAX_WATERMARK_MS
        try:
            scalar = partition_scalar(self._column.name, text, self._column.type, path, self._time_zone or "UTC")
        except BadDataError:
            return MIN_WATERMARK_MS  # reading it is an error
        event_time_ms: int = to_milliseconds(scalar.value, self._column.type)
        is_local = self._column.type.tz is not None and self._time_zone is None
        return event_time_ms - _EASTMOST_MS if is_local else event_time_ms

    def _folders(self, file: FileStatus | FileSplit) -> list[str | None]:
        partitions = file.partitions.items() if isinstance(file, FileSplit) else file.partitions
        return [text for name, text in partitions if self._names.same(name, self._column.name)]


def _key(file: FileStatus | FileSplit) -> tuple[str, int, int]:
    return file.path, file.size, file.modified_ms
