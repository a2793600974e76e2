"""What the three ready-made readers share: a `SourceReader` over fetcher threads and a hand-over queue.

Never: block, or touch a split reader on the task's thread, save for making it and `SplitReader.wake_up`.

A split is added -> given to a fetcher -> fetched, ahead of the task by at most the queue's bytes -> emitted by
`poll_next`, which moves its position -> finished, when its last batch was emitted. Paused, it stays where it is.

Follows FLIP-27, "High-level Readers"; FLIP-217 for pausing.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Sequence
from concurrent.futures import Future
from typing import ClassVar, TypeVar

import msgspec

from headgate.errors import ConnectorContractError
from headgate.readers.fetcher import SplitFetcher
from headgate.readers.hand_over import HandOverQueue, done_future
from headgate.source.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch, SplitReader

SplitT = TypeVar("SplitT", bound=Split)


class ReaderOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a ready-made reader reads ahead and ends.

    Parameters
    ----------
    queue_bytes
        How much memory fetched batches may take up before the task has them, in bytes.
    fetch_timeout_ms
        The longest a fetch may wait for data, in milliseconds.
    close_timeout_ms
        How long `close` waits for fetchers before it abandons them, in milliseconds.
    request_splits
        Whether the reader asks the enumerator for a split when it has none. Enumerators that assign on their own
        need no such requests.
    """

    queue_bytes: int = 16 * 1024 * 1024
    fetch_timeout_ms: int = 500
    close_timeout_ms: int = 700
    request_splits: bool = True


class SourceReaderBase(SourceReader[SplitT]):
    """The base of the three ready-made readers; a subclass says which fetcher reads a split.

    Parameters
    ----------
    split_reader_factory
        Makes the split reader of a new fetcher. Called on the task's thread: it must not block.
    context
        What `Source.create_reader` was given.
    options
        How far to read ahead, and time-outs.
    """

    _one_split_at_a_time: ClassVar[bool] = False

    def __init__(
        self,
        split_reader_factory: Callable[[], SplitReader[SplitT]],
        context: SourceReaderContext,
        options: ReaderOptions | None = None,
    ) -> None:
        self.context = context
        self.options = options or ReaderOptions()
        self.split_reader_factory = split_reader_factory
        self._queue: HandOverQueue[SplitT] = HandOverQueue(self.options.queue_bytes)
        self._splits: dict[str, SplitT] = {}  # at the positions after what was emitted
        self._fetchers: dict[Hashable, SplitFetcher[SplitT]] = {}
        self._retired: list[SplitFetcher[SplitT]] = []
        self._no_more_splits = False
        self._requested = False

    @abstractmethod
    def _fetcher_key(self, split: SplitT) -> Hashable:
        """Return which fetcher reads ``split``; it is made when it is first needed."""

    def start(self) -> None:
        """Get ready. Splits are requested by the first `poll_next`: restored ones may be added before it."""

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit one fetched batch if there is one.

        Raises
        ------
        HeadgateError
            A fetcher failed; the error has ``split`` and ``position``, its ``__cause__`` the original.
        """
        fetched, more = self._queue.take()
        if fetched is not None:
            self._emit(fetched, output)
        if more:
            return InputStatus.MORE_AVAILABLE
        if not self._splits and self._no_more_splits:
            return InputStatus.END_OF_INPUT
        if self._needs_request():
            self._requested = True
            self.context.request_split()
        return InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None]:
        """Return a future that is done when a batch, an error, the end or the need of a split is there."""
        if self._needs_request() or (not self._splits and self._no_more_splits):
            return done_future()
        return self._queue.available()

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Begin to fetch these splits from their positions on."""
        if self._no_more_splits and splits:
            raise ConnectorContractError(
                f"Reader {self.context.subtask} got split {splits[0].split_id!r} after it was told that there are no "
                "more splits. The enumerator must not assign to a reader after signal_no_more_splits.",
                method="assign_splits",
            )
        by_fetcher: dict[Hashable, list[SplitT]] = {}
        for split in splits:
            if split.split_id in self._splits:
                raise ConnectorContractError(
                    f"Reader {self.context.subtask} got split {split.split_id!r}, which it is reading already. "
                    "A split id must name one piece of work, assigned once.",
                    method="assign_splits",
                    split=split.split_id,
                )
            self._splits[split.split_id] = split
            by_fetcher.setdefault(self._fetcher_key(split), []).append(split)
            self._requested = False
        for key, of_fetcher in by_fetcher.items():
            if key not in self._fetchers:
                self._fetchers[key] = self._new_fetcher(key)
            self._fetchers[key].add_splits(of_fetcher)

    def notify_no_more_splits(self) -> None:
        """Note that the input ends with the splits at hand."""
        self._no_more_splits = True
        self._queue.notify()

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Pause and resume splits. A paused split emits nothing more, what was fetched of it included.

        Raises
        ------
        UnsupportedOperationError
            The split reader does not implement ``pause_or_resume_splits``. One that implements it and raises on
            its own thread is reported by the next `poll_next`.
        """
        pause = [split_id for split_id in splits_to_pause if split_id in self._splits]
        resume = [split_id for split_id in splits_to_resume if split_id in self._splits]
        if not (pause or resume):
            return
        for key in {self._fetcher_key(self._splits[split_id]) for split_id in (*pause, *resume)}:
            self._fetchers[key].pause_or_resume(pause, resume)
        self._queue.pause_or_resume(pause, resume)

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """Return the splits not yet finished, each at the position after what `poll_next` emitted of it."""
        return list(self._splits.values())

    def stuck_since(self) -> float | None:
        """Return when the oldest fetch under way began, in seconds of ``time.monotonic``; None: none is. Any thread.

        A fetch ends after ``fetch_timeout_ms``, more or less: one that takes much longer hangs.
        """
        began = [each.fetching_since_s for each in list(self._fetchers.values())]
        return min((each for each in began if each is not None), default=None)

    def close(self) -> None:
        """End all fetchers; abandon those that do not end within ``close_timeout_ms``."""
        self._queue.close()
        fetchers = [*self._fetchers.values(), *self._retired]
        for fetcher in fetchers:
            fetcher.begin_close()
        deadline = time.monotonic() + self.options.close_timeout_ms / 1000
        for fetcher in fetchers:
            fetcher.join(max(0.0, deadline - time.monotonic()))

    def _new_fetcher(self, key: Hashable) -> SplitFetcher[SplitT]:
        return SplitFetcher(
            f"headgate-fetcher-{self.context.subtask}-{key}",
            self.split_reader_factory(),
            self._queue,
            self.options.fetch_timeout_ms,
            one_at_a_time=self._one_split_at_a_time,
        )

    def _emit(self, fetched: FetchedBatch[SplitT], output: ReaderOutput) -> None:
        split_id = fetched.split.split_id
        split_output = output.create_output_for_split(split_id)
        if fetched.batch is not None and fetched.batch.num_rows:
            split_output.emit_batch(fetched.batch)
        if fetched.watermark_ms is not None:
            split_output.emit_watermark(fetched.watermark_ms)
        if fetched.idle:
            split_output.mark_idle()
        if fetched.finished:
            finished = self._splits.pop(split_id)
            output.release_output_for_split(split_id)
            self._on_split_finished(finished)
        else:
            self._splits[split_id] = fetched.split

    def _on_split_finished(self, split: SplitT) -> None:
        """Release what only this split needed."""

    def _retire(self, key: Hashable) -> None:
        """Let a fetcher end that has nothing left to read."""
        fetcher = self._fetchers.pop(key)
        fetcher.begin_close()
        self._retired = [each for each in (*self._retired, fetcher) if each.alive]

    def _needs_request(self) -> bool:
        return not (self._splits or self._no_more_splits or self._requested) and self.options.request_splits
