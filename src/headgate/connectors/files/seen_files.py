"""Which files were assigned already: short hashes with times, in few segments that rarely change.

Never: keep a path, or forget a file younger than ``maxFileAge``. Files older than that are not looked up: discovery
ignores them, as Spark's ``FileStreamSource`` does, so purging can never make a file new again.

The set is a list of immutable segments, each less than half as long as the one before it: what is added becomes a new
segment, and the last two are merged while they are of similar size. So a million files make about twenty segments, most
of which stay the same from one snapshot to the next; whoever stores them by content writes each of them once. A file
of n segments-worth of history is rewritten log(n) times in its life.

A segment's text is base64 of: n hashes (8 bytes each, little-endian, ascending), then n modification times in seconds
(4 bytes each, rounded up), in the same order.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from headgate.errors import CorruptStateError

Hashes = npt.NDArray[np.uint64]
Seconds = npt.NDArray[np.uint32]

_ENTRY_BYTES = 12
_LAST_SECOND = 2**32 - 1  # in 2106; it stands for all that come after it, which are never purged


class SeenFilesState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What `SeenFiles` needs to go on.

    Parameters
    ----------
    segments
        The segments' texts, longest first.
    newest_ms
        The latest modification time of a file that was added, in milliseconds; None: none was.
    ignored_before_ms
        Files modified before this moment are ignored; it never goes back, whatever ``maxFileAge`` becomes.
    """

    segments: tuple[str, ...] = ()
    newest_ms: int | None = None
    ignored_before_ms: int | None = None


class _Segment:
    """Sorted hashes with their times; the text is made once."""

    def __init__(self, hashes: Hashes, seconds: Seconds, text: str | None = None) -> None:
        self.hashes = hashes
        self.seconds = seconds
        self._text = text

    def __len__(self) -> int:
        return len(self.hashes)

    @property
    def text(self) -> str:
        if self._text is None:
            self._text = base64.b64encode(
                self.hashes.astype("<u8").tobytes() + self.seconds.astype("<u4").tobytes()
            ).decode()
        return self._text

    @classmethod
    def parse(cls, text: str) -> _Segment:
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise _corrupt(str(error)) from error
        if len(data) % _ENTRY_BYTES:
            raise _corrupt(f"{len(data)} bytes are not a multiple of {_ENTRY_BYTES}")
        count = len(data) // _ENTRY_BYTES
        hashes = np.frombuffer(data, "<u8", count).astype(np.uint64)
        return cls(hashes, np.frombuffer(data, "<u4", count, 8 * count).astype(np.uint32), text)

    @classmethod
    def sorted_from(cls, hashes: Hashes, seconds: Seconds) -> _Segment:
        order = np.argsort(hashes, kind="stable")
        return cls(hashes[order], seconds[order])

    def from_second(self, first: int) -> _Segment:
        """Return the segment without what is older."""
        keep = self.seconds >= first
        return _Segment(self.hashes[keep], self.seconds[keep])


class SeenFiles:
    """The set of files that were assigned.

    Parameters
    ----------
    max_file_age_ms
        How much older than the newest file added a file may be before it is ignored; None: any age.
    state
        Where to go on, from `snapshot`.
    """

    def __init__(self, max_file_age_ms: int | None, state: SeenFilesState | None = None) -> None:
        state = state or SeenFilesState()
        self._max_file_age_ms = max_file_age_ms
        self._segments = [_Segment.parse(text) for text in state.segments]
        self._newest_ms = state.newest_ms
        self._ignored_before_ms = state.ignored_before_ms
        self._added: dict[int, int] = {}

    def __len__(self) -> int:
        return sum(len(segment) for segment in self._segments) + len(self._added)

    @property
    def ignored_before_ms(self) -> int | None:
        """Files modified before this moment are to be ignored; None: none is."""
        return self._ignored_before_ms

    def add(self, file_hash: int, modified_ms: int) -> None:
        """Note that a file was assigned."""
        self._added[file_hash] = _seconds(modified_ms)
        if self._newest_ms is None or modified_ms > self._newest_ms:
            self._newest_ms = modified_ms

    def lookup(self, hashes: Hashes) -> npt.NDArray[np.int64]:
        """Return for each hash the second in which its file was last modified when it was added, -1 if it was not."""
        found = np.full(len(hashes), -1, np.int64)
        segments = [*self._segments, self._added_segment()]
        for segment in segments:
            if len(segment) and len(hashes):
                at = np.minimum(np.searchsorted(segment.hashes, hashes), len(segment) - 1)
                hit = segment.hashes[at] == hashes
                found[hit] = segment.seconds[at[hit]]
        return found

    def snapshot(self, oldest_waiting_ms: int | None = None) -> SeenFilesState:
        """Return the state; the same as before if nothing was added since.

        Parameters
        ----------
        oldest_waiting_ms
            When the oldest file was modified that is found and not added yet: it will not be ignored for its age.
        """
        if self._added:
            self._segments.append(self._added_segment())
            self._added = {}
            self._purge(oldest_waiting_ms)
            self._merge()
        return SeenFilesState(
            segments=tuple(segment.text for segment in self._segments),
            newest_ms=self._newest_ms,
            ignored_before_ms=self._ignored_before_ms,
        )

    def _added_segment(self) -> _Segment:
        return _Segment.sorted_from(
            np.fromiter(self._added.keys(), np.uint64, len(self._added)),
            np.fromiter(self._added.values(), np.uint32, len(self._added)),
        )

    def _purge(self, oldest_waiting_ms: int | None) -> None:
        """Move the bound of what is ignored, and drop segments' entries below it once they are half of a segment."""
        if self._max_file_age_ms is None or self._newest_ms is None:
            return
        bound_ms = self._newest_ms - self._max_file_age_ms
        if oldest_waiting_ms is not None:
            bound_ms = min(bound_ms, oldest_waiting_ms)
        self._ignored_before_ms = max(bound_ms, self._ignored_before_ms or bound_ms)
        first = min(max(0, self._ignored_before_ms // 1000), _LAST_SECOND)
        kept = []
        for segment in self._segments:
            expired = int(np.count_nonzero(segment.seconds < first))
            kept.append(segment.from_second(first) if expired * 2 > len(segment) else segment)
        self._segments = [segment for segment in kept if len(segment)]

    def _merge(self) -> None:
        # Purged segments may have become shorter than the ones after them, so all are looked at, from the last one on.
        merged: list[_Segment] = []
        for segment in self._segments:
            merged.append(segment)
            while len(merged) > 1 and len(merged[-1]) * 2 > len(merged[-2]):
                last, before = merged.pop(), merged.pop()
                merged.append(
                    _Segment.sorted_from(
                        np.concatenate([before.hashes, last.hashes]), np.concatenate([before.seconds, last.seconds])
                    )
                )
        self._segments = merged


def file_hashes(keys: Iterable[str]) -> Hashes:
    """Return the 8-byte hashes by which files are known: BLAKE2b of the path, or of the name with ``fileNameOnly``."""
    blake2b = hashlib.blake2b
    data = b"".join([blake2b(key.encode("utf-8", "surrogateescape"), digest_size=8).digest() for key in keys])
    return np.frombuffer(data, "<u8").astype(np.uint64)


def first_seconds_of(times_ms: Sequence[int]) -> npt.NDArray[np.int64]:
    """Return modification times as `SeenFiles.lookup` reports them."""
    return np.fromiter((_seconds(each) for each in times_ms), np.int64, len(times_ms))


def _seconds(time_ms: int) -> int:
    # Rounded up, so that a file is never purged before it is ignored. 0 stands for all before 1970.
    return min(max(0, -(-time_ms // 1000)), _LAST_SECOND)


def _corrupt(found: str) -> CorruptStateError:
    return CorruptStateError(
        f"The seen files of headgate.files cannot be read: {found}.", what="seen files of headgate.files", found=found
    )
