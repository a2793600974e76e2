"""The split reader: what most connectors implement instead of a whole source reader. It may block.

Never: be called by two threads at once, save for `wake_up` and `trouble`, which exist to be called from another one.

A record's way is shorter by a thread where a split reader can be polled: while rows are few and nothing else is to be
done, the task's thread calls it, and the fetcher's waits (`SplitReader.begin_polling`).

Follows FLIP-27, "High-level Readers"; FLIP-217 for `pause_or_resume_splits`.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)


class FetchedBatch(msgspec.Struct, Generic[SplitT], frozen=True, kw_only=True):
    """Rows of one split, and the split as it is once they are emitted.

    Parameters
    ----------
    split
        The split with its position after the rows of ``batch``. Becomes the split's state when the batch leaves
        the reader, not before.
    batch
        The rows, or None when only the position moved or the split finished.
    finished
        Nothing more will ever come of the split: it leaves the reader.
    watermark_ms
        A watermark that the source itself knows to hold after these rows, in milliseconds; None: it knows none.
    idle
        The source knows that nothing will come for a while and nobody should wait for this split.
    position_at
        Returns the split with its position after the first ``n`` rows of ``batch``, for 0 <= n < its rows; None: only
        whole batches have positions. With it a reader stops at the very row at which alignment wants it to (FLIP-217),
        without it at the end of a batch. Called on the task's thread: it must not block.
    """

    split: SplitT
    batch: pa.RecordBatch | None = None
    finished: bool = False
    watermark_ms: int | None = None
    idle: bool = False
    position_at: Callable[[int], SplitT] | None = None


class Signal(NamedTuple):
    """Wakes a task's thread: ``byte`` is to be written to the file descriptor ``fd``, from any thread.

    Keep a duplicate of the descriptor: this one is closed with the task. It does not block; that it is full does not
    matter, because what is in it wakes the thread.
    """

    fd: int
    byte: bytes

    def give(self) -> None:
        """Write it."""
        with contextlib.suppress(BlockingIOError):
            os.write(self.fd, self.byte)


class SplitReader(ABC, Generic[SplitT]):
    """Reads one or more splits, blocking. Called on the fetcher's thread, save for `wake_up`, `trouble` and `poll`."""

    @abstractmethod
    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[SplitT]]:
        """Read more of any split at hand that is not paused, each split in its order.

        May block, but must return within ``timeout_ms`` (empty-handed if need be), and at once after `wake_up`. If
        it raises, nothing of this call counts: the reader fails and is restored. Batches should stay below 16 MiB.

        Parameters
        ----------
        timeout_ms
            The longest time to wait for data, in milliseconds.
        """

    @abstractmethod
    def handle_splits_changes(self, added: Sequence[SplitT]) -> None:
        """Take further splits, each to be read from its position on. Called between two fetches."""

    def pause_or_resume_splits(self, splits_to_pause: Sequence[SplitT], splits_to_resume: Sequence[SplitT]) -> None:
        """Stop and resume fetching of splits (FLIP-217). Called between two fetches.

        A split that is unknown or finished is ignored: it may finish while the pause is on its way.

        Raises
        ------
        UnsupportedOperationError
            By default: this split reader cannot pause single splits.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} does not support pausing and resuming of splits. Implement "
            "pause_or_resume_splits to align the splits of this source in event time.",
            operation="pause_or_resume_splits",
        )

    def begin_polling(self, signal: Signal) -> bool:
        """Get ready for `poll`, unless there is more to do than to read on; return whether it is.

        Called between two fetches. From here on the signal is given whenever there is something to be polled where
        there was nothing. What is there already is polled without a signal. By default nothing is ever polled.
        """
        return False

    def poll(self) -> Sequence[FetchedBatch[SplitT]] | None:
        """Return what is there, as `fetch` does, but at once; None: `fetch` is to be called instead.

        Called on the task's thread, between `begin_polling` and `end_polling`, once a second or so at least: it must
        not block. There is at most one batch of each split. None is for what may block, for what has changed, as a
        system that does not answer, and for large batches, which a thread of their own fetches while others are
        processed. What is left, because there is more than belongs into a batch, is signalled anew.
        """
        raise NotImplementedError

    def has_waiting(self) -> bool:
        """Return whether `poll` would return rows, or rows may be on their way from a client's own memory."""
        raise NotImplementedError

    def end_polling(self) -> None:
        """Give no signals any more. Called between two fetches."""

    def trouble(self) -> str | None:
        """Return what it waits for other than data, as a sentence for the user; None: nothing.

        For example a system that does not answer. Called from another thread, at any time; must not block.
        """
        return None

    @abstractmethod
    def wake_up(self) -> None:
        """Make a `fetch` that blocks return soon. Called from another thread, at any time."""

    @abstractmethod
    def close(self) -> None:
        """Release clients and files. Called once, on the fetcher's thread, after the last fetch."""
