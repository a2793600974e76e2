"""Finds files and hands out pieces of them, one for each request.

Never: open a file or block. Listing runs in `call_async`; its outcome is handled on the enumerator's thread.

A file's life: listed -> in the backlog (not state: the next listing finds it again) -> its first piece is assigned, and
with it the file is *seen* and the rest of it *pending* (both state) -> all pieces assigned. A piece that comes back
from a failed reader is pending again. The backlog is replaced by each listing, so a file that changed before its turn
is read as it is then, and one that vanished is not missed; a file that changes after it was seen is not read again.

Follows FLIP-27, "Split Enumerator" and "Reader-Enumerator interaction" (lazy pull); Spark's ``FileStreamSource`` for
``maxFileAge``, ``latestFirst`` and ``fileNameOnly``.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from headgate.connectors.files.listing import FileListing, FileStatus
from headgate.connectors.files.seen_files import Hashes, SeenFiles, SeenFilesState, file_hashes, first_seconds_of
from headgate.connectors.files.split import FileSplit, split_id_of
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.serialization import VersionedSerializer

_log = logging.getLogger(__name__)

_SLOW_LISTING_S = 0.1


class FilesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the enumerator needs to go on.

    Parameters
    ----------
    seen
        The files of which something was assigned.
    pending
        Pieces not assigned of files that are seen, in the order in which they will be.
    """

    seen: SeenFilesState = SeenFilesState()
    pending: tuple[FileSplit, ...] = ()


STATE_SERIALIZER: VersionedSerializer[FilesState] = VersionedSerializer(
    FilesState, version=1, what="the enumerator state of headgate.files"
)
"""Version 1 since 0.1.0."""


class EnumeratorSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How files are found and handed out.

    Parameters
    ----------
    split_size
        The bytes of a piece, for files that can be cut.
    can_be_cut
        Says of a path whether the file may be read in pieces.
    discovery_interval_ms
        Time between two listings of an unbounded read, in milliseconds.
    max_file_age_ms
        See `SeenFiles`.
    latest_first
        Hand out the files modified last first.
    file_name_only
        Files of the same name in different folders are the same file.
    """

    split_size: int
    can_be_cut: Callable[[str], bool]
    discovery_interval_ms: int = 1000
    max_file_age_ms: int | None = None
    latest_first: bool = False
    file_name_only: bool = False


class _Listed(msgspec.Struct, frozen=True):
    """A listing with what is slow to make of it: files, their hashes, their times in seconds."""

    files: list[FileStatus]
    hashes: Hashes
    seconds: np.ndarray


class FilesEnumerator(SplitEnumerator[FileSplit, FilesState]):
    """The enumerator of `headgate.files`.

    Parameters
    ----------
    context
        The runtime.
    listing
        What to list.
    settings
        How files are found and handed out.
    state
        Where to go on; None starts afresh.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[FileSplit],
        listing: FileListing,
        settings: EnumeratorSettings,
        state: FilesState | None = None,
    ) -> None:
        state = state or FilesState()
        self._context = context
        self._settings = settings
        self._lister = _Lister(listing, settings)
        self._seen = SeenFiles(settings.max_file_age_ms, state.seen)
        self._pending = deque(state.pending)
        self._backlog: deque[tuple[FileStatus, int]] = deque()
        self._backlog_bytes = 0
        self._bounded = context.boundedness is Boundedness.BOUNDED
        self._listed_once = False
        self._waiting: dict[int, None] = {}
        self._changed_warned: set[int] = set()

    def start(self) -> None:
        """List: once for a bounded read, else again and again."""
        period_ms = None if self._bounded else self._settings.discovery_interval_ms
        self._context.call_async(self._lister.list_files, self._on_listed, period_ms=period_ms)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign one piece, or remember the request until there is one."""
        self._waiting[subtask] = None
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Do nothing: a reader asks when it wants work."""

    def add_splits_back(self, splits: Sequence[FileSplit], subtask: int) -> None:
        """Hand out what came back before anything else; the failed reader's old request is void."""
        self._waiting.pop(subtask, None)
        self._pending.extendleft(reversed(splits))
        self._serve()

    def snapshot_state(self, checkpoint_id: int) -> FilesState:
        """Return the files seen and the pieces of them that nobody has."""
        return FilesState(seen=self._seen.snapshot(), pending=tuple(self._pending))

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def backlog(self) -> Mapping[str, int]:
        """Return how many files and bytes are found and not assigned."""
        pending_files = {split.path for split in self._pending}
        pending_bytes = sum(split.remaining().bytes or 0 for split in self._pending)
        return {
            "filesBehind": len(self._backlog) + len(pending_files),
            "bytesBehind": self._backlog_bytes + pending_bytes,
        }

    def _on_listed(self, listed: _Listed | None, error: Exception | None) -> None:
        if error is not None:
            raise error
        if listed is None:
            return
        seen_seconds = self._seen.lookup(listed.hashes)
        fresh = seen_seconds < 0
        self._warn_of_changed(listed, (seen_seconds >= 0) & (seen_seconds != listed.seconds), seen_seconds)
        oldest_ms = self._seen.ignored_before_ms
        chosen: dict[int, FileStatus] = {}
        for index in np.flatnonzero(fresh):
            status = listed.files[index]
            if oldest_ms is None or status.modified_ms >= oldest_ms:
                chosen.setdefault(int(listed.hashes[index]), status)
        found = [(status, file_hash) for file_hash, status in chosen.items()]
        if self._settings.latest_first:
            found.reverse()
        self._backlog = deque(found)
        self._backlog_bytes = sum(status.size for status, _ in found)
        self._listed_once = True
        self._serve()

    def _warn_of_changed(self, listed: _Listed, changed: np.ndarray, seen_seconds: np.ndarray) -> None:
        if self._settings.file_name_only:
            return  # another file of that name, most likely
        for index in np.flatnonzero(changed):
            file_hash = int(listed.hashes[index])
            if file_hash not in self._changed_warned and len(self._changed_warned) < 1000:
                self._changed_warned.add(file_hash)
                _log.warning(
                    "headgate.files: %s was modified after it was read (or while it was). It is not read again. Move "
                    "files into the folder when they are complete.",
                    listed.files[index].path,
                )

    def _serve(self) -> None:
        for subtask in list(self._waiting):
            if subtask not in self._context.registered_readers:
                del self._waiting[subtask]  # it is gone; it asks again when it comes back
                continue
            split = self._next_split()
            if split is not None:
                del self._waiting[subtask]
                self._context.assign_split(split, subtask)
            elif self._bounded and self._listed_once:
                del self._waiting[subtask]
                self._context.signal_no_more_splits(subtask)

    def _next_split(self) -> FileSplit | None:
        if self._pending:
            split = self._pending.popleft()
        elif self._backlog:
            status, file_hash = self._backlog.popleft()
            self._backlog_bytes -= status.size
            self._seen.add(file_hash, status.modified_ms)
            split = _whole_file(status)
        else:
            return None
        length = self._settings.split_size
        if split.position is None and split.end - split.start > length and self._settings.can_be_cut(split.path):
            split, rest = split.cut(length)
            if rest is not None:
                self._pending.appendleft(rest)
        return split


class _Lister:
    """Lists in the background. Keeps nothing of the enumerator's, only when it listed last."""

    def __init__(self, listing: FileListing, settings: EnumeratorSettings) -> None:
        self._listing = listing
        self._file_name_only = settings.file_name_only
        self._not_before = 0.0

    def list_files(self) -> _Listed | None:
        """Return what is there; None where the last listing was so slow that another would keep the machine busy."""
        begin = time.monotonic()
        if begin < self._not_before:
            return None
        files = self._listing.list_files()
        keys = (posixpath.basename(each.path) if self._file_name_only else each.path for each in files)
        listed = _Listed(files, file_hashes(keys), first_seconds_of([each.modified_ms for each in files]))
        end = time.monotonic()
        if end - begin > _SLOW_LISTING_S:
            # At most a third of one core goes into listing, however many files there are.
            self._not_before = end + 2 * (end - begin)
        return listed


def _whole_file(status: FileStatus) -> FileSplit:
    return FileSplit(
        split_id=split_id_of(status.path, 0),
        path=status.path,
        size=status.size,
        modified_ms=status.modified_ms,
        start=0,
        end=status.size,
        partitions=dict(status.partitions),
    )
