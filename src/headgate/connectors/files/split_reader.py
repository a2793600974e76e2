"""Reads files: the blocking side of `headgate.files`.

Never: list files, or hold more than one batch. A paused split keeps its file open and its place.

Follows FLIP-27, "High-level Readers"; FLIP-217 for pausing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from headgate.connectors.files.file_cursor import FileCursor, FileReadSettings, Format
from headgate.connectors.files.split import FileSplit
from headgate.source.split_reader import FetchedBatch, SplitReader


class FileSplitReader(SplitReader[FileSplit]):
    """Reads its splits one after the other, in the order in which they were added; a paused one is passed over.

    Parameters
    ----------
    format_for
        Makes the decoder for a split's file; splits with the same partition columns share one.
    settings
        How to read.
    """

    def __init__(self, format_for: Callable[[FileSplit], Format], settings: FileReadSettings) -> None:
        self._format_for = format_for
        self._settings = settings
        self._waiting: dict[str, FileSplit] = {}
        self._cursors: dict[str, FileCursor] = {}
        self._paused: set[str] = set()
        self._woken = threading.Event()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[FileSplit]]:
        """Read the next batch of the first split that is not paused."""
        split_id = next((each for each in self._waiting if each not in self._paused), None)
        if split_id is None:
            self._woken.wait(timeout_ms / 1000)
            self._woken.clear()
            return []
        cursor = self._cursors.get(split_id)
        if cursor is None:
            split = self._waiting[split_id]
            cursor = self._cursors[split_id] = FileCursor(split, self._format_for(split), self._settings)
        for batch, rest in cursor:
            return [FetchedBatch(split=rest, batch=batch, position_at=cursor.position_at)]
        self._forget(split_id)
        return [FetchedBatch(split=cursor.split, finished=True)]

    def handle_splits_changes(self, added: Sequence[FileSplit]) -> None:
        """Take splits, to be read after those at hand."""
        self._waiting.update((split.split_id, split) for split in added)

    def pause_or_resume_splits(
        self, splits_to_pause: Sequence[FileSplit], splits_to_resume: Sequence[FileSplit]
    ) -> None:
        """Pass over splits and take them up again, at the row where they were left."""
        self._paused.update(split.split_id for split in splits_to_pause if split.split_id in self._waiting)
        self._paused.difference_update(split.split_id for split in splits_to_resume)

    def wake_up(self) -> None:
        """End the wait of a `fetch` that finds all splits paused; reading itself takes no longer than one batch."""
        self._woken.set()

    def close(self) -> None:
        """Close all files."""
        for split_id in list(self._cursors):
            self._forget(split_id)

    def _forget(self, split_id: str) -> None:
        self._cursors.pop(split_id).close()
        self._waiting.pop(split_id)
        self._paused.discard(split_id)
