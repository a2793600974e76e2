"""Finds files and hands out pieces of them, one for each request.

Never: open a file or block. Listing runs in `call_async`, and so does looking for the event times of files; their
outcomes are handled on the enumerator's thread.

A file's life: listed -> (its event times are found, if they are wanted) -> in the backlog (not state: the next listing
finds it again) -> its first piece is assigned, and with it the file is *seen* and the rest of it *pending* (both state)
-> all pieces assigned. A piece that comes back from a failed reader is pending again. The backlog is replaced by each
listing, so a file that changed before its turn is read as it is then, and one that vanished is not missed; a file that
changes after it was seen is not read again.

With `EventTimes` the piece with the earliest rows is next, be it of a file that was begun or of a new one, and the
earliest event time that nobody has yet is known: no watermark passes it. Pieces of which nothing is known come first,
so that nothing unassigned is unknown for long; among them are those that failed readers had.

Follows FLIP-27, "Split Enumerator" and "Reader-Enumerator interaction" (lazy pull); Spark's ``FileStreamSource`` for
``maxFileAge``, ``latestFirst`` and ``fileNameOnly``.
"""

from __future__ import annotations

import heapq
import logging
import posixpath
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from headgate.connectors.files.event_times import EventTimes, RowTimes
from headgate.connectors.files.listing import FileListing, FileStatus
from headgate.connectors.files.seen_files import Hashes, SeenFiles, SeenFilesState, file_hashes, first_seconds_of
from headgate.connectors.files.split import FileSplit, split_id_of
from headgate.errors import SourceError
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.watermark import MAX_WATERMARK_MS, MIN_WATERMARK_MS

_log = logging.getLogger(__name__)

_SLOW_LISTING_S = 0.1
_RETRY_MS = 1000
"""Until the only listing of a bounded read is retried."""


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


class _Found(msgspec.Struct, frozen=True, gc=False):
    """A file that is not begun: a lower bound of its event times in milliseconds, and what it is known by."""

    earliest_ms: int
    status: FileStatus
    file_hash: int


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
    event_times
        Finds out when the rows of files are, to hand them out in that order; None: in the order of modification.
    now_s
        Reads a clock that never goes back, in seconds.
    """

    def __init__(
        self,
        context: SplitEnumeratorContext[FileSplit],
        listing: FileListing,
        settings: EnumeratorSettings,
        state: FilesState | None = None,
        event_times: EventTimes | None = None,
        *,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._context = context
        self._settings = settings
        self._lister = _Lister(listing, settings, now_s)
        self._was_listed = state is not None  # by this one, or before it was restored
        state = state or FilesState()
        self._seen = SeenFiles(settings.max_file_age_ms, state.seen)
        self._event_times = event_times
        # A heap: a lower bound of the event times (all alike without them), the order otherwise, the piece.
        self._pending = [(MIN_WATERMARK_MS, number, split) for number, split in enumerate(state.pending)]
        self._first_number = 0
        self._backlog: deque[_Found] = deque()
        self._backlog_bytes = 0
        self._bounded = context.boundedness is Boundedness.BOUNDED
        self._discovered_once = False
        # With event times only:
        self._listed: dict[int, FileStatus] = {}
        self._times: dict[int, tuple[FileStatus | FileSplit, RowTimes]] = {}
        self._looking = False
        self._oldest_ms: int | None = None
        self._closed = threading.Event()
        self._waiting: dict[int, None] = {}
        self._changed_warned: set[int] = set()
        self._discovered: set[int] = set()  # of the last listing: what is not assigned yet is found again
        self._files_matched: int | None = None  # by the last listing, with those that were seen
        self._files_discovered = context.metric_group.counter("filesDiscovered")
        context.metric_group.gauge("filesMatched", lambda: self._files_matched or 0)
        context.metric_group.gauge("filesWaiting", lambda: self.backlog()["filesBehind"])
        context.metric_group.gauge("bytesWaiting", lambda: self.backlog()["bytesBehind"])

    def start(self) -> None:
        """List: once for a bounded read, else again and again."""
        period_ms = None if self._bounded else self._settings.discovery_interval_ms
        self._context.call_async(self._lister.list_files, self._on_listed, period_ms=period_ms)

    def _raise_unless_it_passes(self, error: Exception, what: str) -> None:
        """Raise an error that will not pass on its own, or that keeps the first listing from being made."""
        passes = (isinstance(error, SourceError) and error.retryable) or getattr(error, "facts", {}).get("missing")
        if not (self._was_listed and passes):
            raise error
        _log.warning("headgate.files: %s failed and is retried; readers continue with their splits: %s", what, error)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Assign one piece, or remember the request until there is one."""
        self._waiting[subtask] = None
        self._serve()

    def add_reader(self, subtask: int) -> None:
        """Wait until the reader asks: the request of the one before it is void."""
        self._waiting.pop(subtask, None)

    def add_splits_back(self, splits: Sequence[FileSplit], subtask: int) -> None:
        """Hand out what came back before anything else; the failed reader's old request is void."""
        self._waiting.pop(subtask, None)
        for split in reversed(splits):
            self._put_first(split)
        self._serve()

    def snapshot_state(self, checkpoint_id: int) -> FilesState:
        """Return the files seen and the pieces of them that nobody has."""
        # What waits for its turn in event time is not too old, however new the files are that went before it.
        seen = self._seen.snapshot(self._oldest_ms)
        return FilesState(seen=seen, pending=tuple([split for _, _, split in sorted(self._pending)]))

    def unassigned_event_time_ms(self) -> int | None:
        """Return a lower bound of the rows of all files not assigned; None: not known, and files come for ever."""
        if self._event_times is None:
            is_left = self._pending or self._backlog or not self._discovered_once
            return MIN_WATERMARK_MS if self._bounded and is_left else None
        if self._looking or not self._discovered_once:
            return MIN_WATERMARK_MS
        pending_ms = self._pending[0][0] if self._pending else MAX_WATERMARK_MS
        backlog_ms = self._backlog[0].earliest_ms if self._backlog else MAX_WATERMARK_MS
        earliest_ms = min(pending_ms, backlog_ms)
        return None if earliest_ms == MAX_WATERMARK_MS else earliest_ms

    def close(self) -> None:
        """Let a look at files end."""
        self._closed.set()

    def backlog(self) -> Mapping[str, int]:
        """Return how many files and bytes are found and not assigned, and how many files there are at all."""
        pending_files = {split.path for _, _, split in self._pending}
        pending_bytes = sum(split.remaining().bytes or 0 for _, _, split in self._pending)
        return {
            "filesBehind": len(self._backlog) + len(pending_files),
            "bytesBehind": self._backlog_bytes + pending_bytes,
            **({} if self._files_matched is None else {"filesMatched": self._files_matched}),
        }

    def _on_listed(self, listed: _Listed | None, error: Exception | None) -> None:
        if error is not None:
            self._raise_unless_it_passes(error, "listing files")
            if self._bounded:
                self._context.call_async(self._lister.list_files, self._on_listed, initial_delay_ms=_RETRY_MS)
            return
        if listed is None:
            return
        self._files_matched = len(listed.files)
        if not (listed.files or self._was_listed or self._bounded):
            _log.warning(
                "headgate.files: %s: no file with content is there yet, and the query waits for one. If there is one, "
                "look at the path: *, ?, [ and { are patterns unless a backslash precedes them.",
                ", ".join(self._lister.roots),
            )
        self._was_listed = True
        seen_seconds = self._seen.lookup(listed.hashes)
        fresh = seen_seconds < 0
        self._warn_of_changed(listed, (seen_seconds >= 0) & (seen_seconds != listed.seconds), seen_seconds)
        oldest_ms = self._seen.ignored_before_ms
        chosen: dict[int, FileStatus] = {}
        for index in np.flatnonzero(fresh):
            status = listed.files[index]
            if oldest_ms is None or status.modified_ms >= oldest_ms:
                chosen.setdefault(int(listed.hashes[index]), status)
        self._files_discovered.inc(len(chosen.keys() - self._discovered))
        self._discovered = set(chosen)
        found = [(status, file_hash) for file_hash, status in chosen.items()]
        if self._settings.latest_first:
            found.reverse()
        first = found[0][0] if found else self._pending[0][2] if self._pending else None
        if self._event_times is not None and first is not None and not self._event_times.can_know(first):
            _log.info("headgate.files: the event times of these files are not known before they are read.")
            self._event_times = None
        if self._event_times is None:
            self._set_backlog([_Found(MIN_WATERMARK_MS, *each) for each in found])
            self._discovered_once = True
        else:
            self._listed = {file_hash: status for status, file_hash in found}
            self._look(self._event_times)
        self._serve()

    def _look(self, event_times: EventTimes) -> None:
        """Order what is known, and find the event times of what is not: new files, pieces of a restored state."""
        pending = {self._hash_of(split): split for _, _, split in self._pending}
        self._times = {each: self._times[each] for each in (*self._listed, *pending) if each in self._times}
        unknown: dict[int, FileStatus | FileSplit] = {} if self._discovered_once else dict(pending)
        unknown.update(self._listed)
        unknown = {each: file for each, file in unknown.items() if self._known(each, file) is None}
        self._discovered_once = self._discovered_once or not unknown
        if unknown and not self._looking:
            self._looking = True
            files = list(unknown.values())

            def on_looked(times: list[RowTimes] | None, error: Exception | None) -> None:
                self._looking = False
                if error is not None:
                    self._raise_unless_it_passes(error, "looking for the event times of files")
                    if self._bounded:
                        self._looking = True
                        self._context.call_async(look, on_looked, initial_delay_ms=_RETRY_MS)
                    return  # else after the next listing
                self._discovered_once = True
                self._times.update(zip(unknown, zip(files, times or ())))
                self._look(event_times)
                self._serve()

            def look() -> list[RowTimes]:
                return event_times.look_at(files, self._closed)

            self._context.call_async(look, on_looked)
        self._order()

    def _order(self) -> None:
        self._pending = [(self._earliest_ms(split), number, split) for _, number, split in self._pending]
        heapq.heapify(self._pending)
        found = [
            _Found(times.earliest_ms(_whole_file(status)), status, each)
            for each, status in self._listed.items()
            if (times := self._known(each, status)) is not None
        ]
        found.sort(key=lambda each: (each.earliest_ms, each.status.modified_ms, each.status.path))
        self._set_backlog(found)
        self._oldest_ms = min((status.modified_ms for status in self._listed.values()), default=None)

    def _known(self, file_hash: int, file: FileStatus | FileSplit) -> RowTimes | None:
        looked_at, times = self._times.get(file_hash, (None, None))
        is_same = looked_at is not None and (looked_at.size, looked_at.modified_ms) == (file.size, file.modified_ms)
        return times if is_same else None

    def _earliest_ms(self, split: FileSplit) -> int:
        times = self._known(self._hash_of(split), split) if self._times else None
        return MIN_WATERMARK_MS if times is None else times.earliest_ms(split)

    def _hash_of(self, split: FileSplit) -> int:
        key = posixpath.basename(split.path) if self._settings.file_name_only else split.path
        return int(file_hashes([key])[0])

    def _set_backlog(self, found: list[_Found]) -> None:
        self._backlog = deque(found)
        self._backlog_bytes = sum(each.status.size for each in found)

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
            elif self._bounded and self._discovered_once:
                del self._waiting[subtask]
                self._context.signal_no_more_splits(subtask)

    def _next_split(self) -> FileSplit | None:
        if self._pending and not (self._backlog and self._backlog[0].earliest_ms < self._pending[0][0]):
            split = heapq.heappop(self._pending)[2]
        elif self._backlog:
            found = self._backlog.popleft()
            self._backlog_bytes -= found.status.size
            self._seen.add(found.file_hash, found.status.modified_ms)
            self._listed.pop(found.file_hash, None)
            split = _whole_file(found.status)
        else:
            return None
        length = self._settings.split_size
        if split.position is None and split.end - split.start > length and self._settings.can_be_cut(split.path):
            split, rest = split.cut(length)
            if rest is not None:
                self._put_first(rest)
        return split

    def _put_first(self, split: FileSplit) -> None:
        self._first_number -= 1
        heapq.heappush(self._pending, (self._earliest_ms(split), self._first_number, split))


class _Lister:
    """Lists in the background. Keeps nothing of the enumerator's, only when it listed last."""

    def __init__(self, listing: FileListing, settings: EnumeratorSettings, now_s: Callable[[], float]) -> None:
        self._listing = listing
        self.roots = listing.roots
        self._now_s = now_s
        self._file_name_only = settings.file_name_only
        self._not_before = 0.0

    def list_files(self) -> _Listed | None:
        """Return what is there; None where the last listing was so slow that another would keep the machine busy."""
        begin = self._now_s()
        if begin < self._not_before:
            return None
        files = self._listing.list_files()
        keys = (posixpath.basename(each.path) if self._file_name_only else each.path for each in files)
        listed = _Listed(files, file_hashes(keys), first_seconds_of([each.modified_ms for each in files]))
        end = self._now_s()
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
