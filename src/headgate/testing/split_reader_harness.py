"""Drives a split reader: one fetch at a time, on the test's thread.

Never: wake the reader up on its own; a fetch is bounded by its time-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import msgspec

from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch, SplitReader
from headgate.testing.threads import assert_single_threaded

SplitT = TypeVar("SplitT", bound=Split)


class SplitReaderHarness(Generic[SplitT]):
    """A split reader under a test's control. Checks what the ready-made readers rely on.

    Parameters
    ----------
    split_reader
        A new one.
    timeout_ms
        The time-out of each fetch, in milliseconds.

    Attributes
    ----------
    splits
        The splits at hand, by id, at the positions after what was fetched.
    finished
        The ids of those that finished.
    fetched
        All that was fetched.
    """

    def __init__(self, split_reader: SplitReader[SplitT], *, timeout_ms: int = 1000) -> None:
        self.split_reader = assert_single_threaded(split_reader)
        self.timeout_ms = timeout_ms
        self.splits: dict[str, SplitT] = {}
        self.finished: list[str] = []
        self.fetched: list[FetchedBatch[SplitT]] = []
        self.paused: set[str] = set()

    def add_splits(self, *splits: SplitT) -> None:
        """Give the reader splits."""
        self.splits.update((split.split_id, split) for split in splits)
        self.split_reader.handle_splits_changes(list(splits))

    def pause(self, *split_ids: str) -> None:
        """Pause splits by id."""
        self.paused.update(split_ids)
        self.split_reader.pause_or_resume_splits([self.splits[each] for each in split_ids], [])

    def resume(self, *split_ids: str) -> None:
        """Resume splits by id."""
        self.paused.difference_update(split_ids)
        self.split_reader.pause_or_resume_splits([], [self.splits[each] for each in split_ids])

    def fetch(self) -> Sequence[FetchedBatch[SplitT]]:
        """Fetch once and check what came: splits at hand only, none that is paused, none after its end."""
        fetched = self.split_reader.fetch(self.timeout_ms)
        for each in fetched:
            split_id = each.split.split_id
            assert split_id in self.splits, f"fetch returned split {split_id!r}; at hand are {sorted(self.splits)}"
            assert split_id not in self.paused, f"fetch returned split {split_id!r}, which is paused"
            if each.finished:
                del self.splits[split_id]
                self.finished.append(split_id)
            else:
                self.splits[split_id] = each.split
        self.fetched.extend(fetched)
        return fetched

    def fetch_all(self, max_fetches: int = 100_000) -> list[dict[str, Any]]:
        """Fetch until all splits finished; return the rows of these fetches."""
        begin = len(self.fetched)
        for _ in range(max_fetches):
            if not self.splits:
                return rows_of(self.fetched[begin:])
            self.fetch()
        raise AssertionError(f"{max_fetches} fetches did not finish {sorted(self.splits)}")

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows fetched so far."""
        return rows_of(self.fetched)

    def position(self, split_id: str) -> dict[str, Any]:
        """Return the fields of a split at hand, as plain values."""
        fields: dict[str, Any] = msgspec.to_builtins(self.splits[split_id])
        return fields

    def close(self) -> None:
        """Close the reader."""
        self.split_reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def rows_of(fetched: Sequence[FetchedBatch[SplitT]]) -> list[dict[str, Any]]:
    """Return the rows of fetched batches."""
    return [row for each in fetched if each.batch is not None for row in each.batch.to_pylist()]
