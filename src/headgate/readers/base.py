"""What the three ready-made readers share: a `SourceReader` over fetcher threads and an element queue.

Never: block, or touch a split reader on the task's thread, save for making it, `SplitReader.wake_up`, and polling it
while its fetcher lends it (`headgate.readers.fetcher`).

A split is added -> given to a fetcher -> fetched, ahead of the task by at most the queue's bytes -> emitted by
`poll_next`, which moves its position -> finished, when its last row was emitted. Paused, it stays where it is.

Where a batch has positions of single rows, as many of them are emitted as alignment lets through
(`ReaderOutput.rows_allowed`). The rest is the split's remainder: at most one batch for each split, outside of the
queue's bytes, emitted before anything else of the split. Meanwhile what is fetched of the split is held aside in the
queue, up to the split's share of the queue's bytes. So a remainder holds up no other split.

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
from headgate.readers.element_queue import ElementQueue, detached, done_future
from headgate.readers.fetcher import SplitFetcher
from headgate.source.reader import InputStatus, ReaderOutput, SourceReader, SourceReaderContext
from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch, SplitReader

SplitT = TypeVar("SplitT", bound=Split)

_REMAINDER_ROWS = 4096
"""Remainders share a call of `poll_next` until so many rows are emitted: a bound that moves lets a few of each go."""


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
    _lends: ClassVar[bool] = True
    """Whether its one fetcher may lend the split reader: of several one could keep the queue full, and others wait."""

    def __init__(
        self,
        split_reader_factory: Callable[[], SplitReader[SplitT]],
        context: SourceReaderContext,
        options: ReaderOptions | None = None,
    ) -> None:
        self.context = context
        self.options = options or ReaderOptions()
        self.split_reader_factory = split_reader_factory
        self._queue: ElementQueue[SplitT] = ElementQueue(self.options.queue_bytes)
        self._splits: dict[str, SplitT] = {}  # at the positions after what was emitted
        self._remainders: dict[str, tuple[FetchedBatch[SplitT], int]] = {}  # with how many rows of it were emitted
        self._ahead: set[str] = set()  # splits whose last batch left a remainder, whether it is still there or not
        self._paused: set[str] = set()
        self._queue_first = False  # remainders and the queue take turns
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
        """Emit what may go of remainders, or else one fetched batch if there is one.

        Raises
        ------
        HeadgateError
            A fetcher failed; the error has ``split`` and ``position``, its ``__cause__`` the original.
        """
        emitted, more = 0, bool(self._remainders)
        if self._remainders and not (self._queue_first and self._queue.has_ready()):
            emitted, more = self._emit_remainders(output)
        if emitted:
            more = more or self._queue.has_ready()
        else:
            fetched, ready = self._queue.take()
            if fetched is not None:
                self._emit(fetched, output)
            else:
                ready = self._poll_lent(output)
            more = more or ready
        self._queue_first = emitted > 0
        if more:
            return InputStatus.MORE_AVAILABLE
        if not self._splits and self._no_more_splits:
            return InputStatus.END_OF_INPUT
        if not self._splits and self._needs_request():
            self._requested = True
            self.context.request_split()
        return InputStatus.NOTHING_AVAILABLE

    def available(self) -> Future[None]:
        """Return a future that is done when a batch, an error, the end or the need of a split is there."""
        if not self._splits and (self._no_more_splits or self._needs_request()):
            return done_future()
        available = self._queue.available()
        for fetcher in self._fetchers.values():
            if fetcher.is_lent and not fetcher.is_polled:  # one that is lent after this completes the future
                return done_future()
        return available

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Begin to fetch these splits from their positions on."""
        if self._no_more_splits and splits:
            raise ConnectorContractError(
                f"Reader {self.context.subtask} got split {splits[0].split_id!r} after it was notified that there are "
                "no more splits. The enumerator must not assign to a reader after signal_no_more_splits.",
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

        With `SourceReaderContext.allow_unaligned_splits` the splits of a split reader that does not implement
        ``pause_or_resume_splits`` are read on, while those of others pause.

        Raises
        ------
        UnsupportedOperationError
            A split reader does not implement ``pause_or_resume_splits``, and that is not allowed; also when no split
            is named. One that implements it and raises on its own thread is reported by the next `poll_next`.
        """
        if not self.context.allow_unaligned_splits:
            for fetcher in self._fetchers.values():
                fetcher.check_can_pause()
        pause = [split_id for split_id in splits_to_pause if self.can_pause(split_id)]
        resume = [split_id for split_id in splits_to_resume if self.can_pause(split_id)]
        self._paused.update(pause)
        self._paused.difference_update(resume)
        # The fetcher stops on its own when enough of a split with a remainder is held aside. To stop it with every few
        # rows would throw away what the client has fetched. But only a pause lets the next of several begin.
        mind_themselves = () if self._one_split_at_a_time else self._remainders
        by_fetcher: dict[Hashable, tuple[list[str], list[str]]] = {}
        for which, split_ids in enumerate((pause, resume)):
            for split_id in split_ids:
                if split_id not in mind_themselves:
                    by_fetcher.setdefault(self._key_of(split_id), ([], []))[which].append(split_id)
        # The queue first: what is fetched from now on of a split that goes on is not to be held aside without bound.
        self._queue.pause_or_resume((), [split_id for split_id in resume if split_id not in self._remainders])
        for key, (to_pause, to_resume) in by_fetcher.items():
            self._fetchers[key].pause_or_resume(to_pause, to_resume)
        self._queue.pause_or_resume(pause, ())
        if any(split_id in self._remainders for split_id in resume):
            self._queue.notify()

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """Return the splits not yet finished, each at the position after what `poll_next` emitted of it."""
        return list(self._splits.values())

    def asked_until_ms(self, now_ms: int) -> dict[str, int]:
        """Return until when splits were asked for rows in vain, in milliseconds.

        Those of which something waits here to be emitted, and those that nobody has asked yet, are left out. Called
        again and again, about four times in an idle time-out.
        """
        asked = [each.asked_until(now_ms) for each in self._fetchers.values()]
        waiting = self._queue.splits() | self._remainders.keys()  # after the question: what came is in the queue now
        return {
            split_id: until_ms
            for until_ms, splits in asked
            if until_ms is not None
            for split_id in splits
            if split_id not in waiting
        }

    def troubles(self) -> tuple[str, ...]:
        """Return what split readers wait for beside data, as sentences for the user; empty: nothing."""
        return tuple(trouble for each in self._fetchers.values() if (trouble := each.trouble()) is not None)

    def queued(self) -> tuple[int, int]:
        """Return how many batches were fetched and not emitted, and their bytes; what is paused is left out."""
        return self._queue.size

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
            signal=self.context.signal if self._lends else None,
        )

    def _poll_lent(self, output: ReaderOutput) -> bool:
        """Emit what a split reader has at once that is lent to this thread; return whether the queue is to be taken."""
        for fetcher in self._fetchers.values():
            if not fetcher.is_lent:
                continue
            if self._queue.has_ready():  # it came just before that: nothing comes after it
                return True
            for each in fetcher.poll():
                self._emit(each, output)
        return False

    def _emit_remainders(self, output: ReaderOutput) -> tuple[int, bool]:
        """Emit what may go now, split by split; return how many rows that were, and whether more may go at once."""
        emitted, more = 0, False
        for split_id in [each for each in self._remainders if each not in self._paused]:
            if emitted >= _REMAINDER_ROWS:
                return emitted, True
            fetched, begin = self._remainders[split_id]
            emitted += self._emit(fetched, output, begin)
            more = more or self._remainders.get(split_id, (fetched,))[0] is not fetched
        return emitted, more

    def _emit(self, fetched: FetchedBatch[SplitT], output: ReaderOutput, begin: int = 0) -> int:
        """Emit a batch from a row on, as far as it may go, and keep the rest; return how many rows were emitted."""
        split_id = fetched.split.split_id
        split_output = output.create_output_for_split(split_id)
        rows = 0 if fetched.batch is None else fetched.batch.num_rows - begin
        if fetched.batch is not None and rows:
            batch = fetched.batch.slice(begin) if begin else fetched.batch
            if output.may_hold_rows and fetched.position_at is not None and self.can_pause(split_id):
                allowed = output.rows_allowed(split_id, batch)
                if allowed < rows:
                    if allowed:
                        split_output.emit_batch(batch.slice(0, allowed))
                        self._splits[split_id] = fetched.position_at(begin + allowed)
                    self._keep(fetched, begin + allowed)
                    return allowed
            split_output.emit_batch(batch)
        if fetched.watermark_ms is not None:
            split_output.emit_watermark(fetched.watermark_ms)
        if fetched.idle:
            split_output.mark_idle()
        if split_id in self._ahead:
            self._follow(split_id, after_whole_batch=not begin)
        if fetched.finished:
            finished = self._splits.pop(split_id)
            self._paused.discard(split_id)
            self._ahead.discard(split_id)
            output.release_output_for_split(split_id)
            self._on_split_finished(finished)
        else:
            self._splits[split_id] = fetched.split
        return rows

    def _keep(self, fetched: FetchedBatch[SplitT], begin: int) -> None:
        """Keep what is left of a batch, and have what follows of its split held aside."""
        split_id = fetched.split.split_id
        if self._remainders.pop(split_id, None) is None:
            fetched = detached(fetched)
            self._queue.pause_or_resume([split_id], [])
        if split_id not in self._ahead:
            self._ahead.add(split_id)
            self._read_ahead(split_id)
        self._remainders[split_id] = (fetched, begin)  # after those of other splits: they take turns

    def _follow(self, split_id: str, *, after_whole_batch: bool) -> None:
        """Go on after a batch of a split that was ahead: when it passed as a whole, alignment does not hold it now."""
        following = None if after_whole_batch else self._queue.take_held(split_id)
        if following is not None:
            self._remainders[split_id] = (following, 0)
            self._read_ahead(split_id)
            return
        if self._remainders.pop(split_id, None) is not None:
            self._queue.pause_or_resume([], [split_id])
        if after_whole_batch:
            self._ahead.discard(split_id)
            self._fetchers[self._key_of(split_id)].read_ahead(split_id, None)

    def _read_ahead(self, split_id: str) -> None:
        enough_bytes = max(1, self.options.queue_bytes // len(self._splits))
        self._fetchers[self._key_of(split_id)].read_ahead(split_id, enough_bytes)

    def _key_of(self, split_id: str) -> Hashable:
        return self._fetcher_key(self._splits[split_id])

    def can_pause(self, split_id: str) -> bool:
        """Return whether a split can be stopped: it is here, and its split reader can."""
        return split_id in self._splits and self._fetchers[self._key_of(split_id)].can_pause

    def _on_split_finished(self, split: SplitT) -> None:
        """Release what only this split needed."""

    def _retire(self, key: Hashable) -> None:
        """Let a fetcher end that has nothing left to read."""
        fetcher = self._fetchers.pop(key)
        fetcher.begin_close()
        self._retired = [each for each in (*self._retired, fetcher) if each.alive]

    def _needs_request(self) -> bool:
        """Return whether a split is to be asked for by a reader without one."""
        return not (self._no_more_splits or self._requested) and self.options.request_splits
