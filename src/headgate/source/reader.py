"""The source reader: reads the splits it is given. One per parallel reader; non-blocking, on one thread.

Never: block. Most connectors do not implement it but a `SplitReader`, which may block, and use one of the three
ready-made readers in `headgate.readers`.

Follows FLIP-27, "Reader Interface and Threading Model" and "SourceOutput and Watermarking"; FLIP-217 for
`pause_or_resume_splits`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from enum import Enum
from typing import Generic, TypeVar

import msgspec
import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.source.events import SourceEvent
from headgate.source.metrics import MetricGroup
from headgate.source.split import Split
from headgate.source.split_reader import Signal

SplitT = TypeVar("SplitT", bound=Split)


class InputStatus(Enum):
    """What `SourceReader.poll_next` found."""

    MORE_AVAILABLE = "more_available"
    """Call again at once."""
    NOTHING_AVAILABLE = "nothing_available"
    """Nothing now; `SourceReader.available` completes when to call again."""
    END_OF_INPUT = "end_of_input"
    """No splits are left and none will come. Final."""


class SourceOutput(ABC):
    """Where a reader puts what it read. Watermarks are hidden in it: in batch it does no watermark work at all.

    Used on the reader's thread only.
    """

    @abstractmethod
    def emit_batch(self, batch: pa.RecordBatch) -> None:
        """Emit rows. The columns are those of `SourceReaderContext.schema`, in that order.

        Rows on a split's own output are state of that split until they are processed. A checkpoint waits for rows on
        the output of a whole reader, because they belong to no split.
        """

    @abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None:
        """Say that no row with an earlier event time follows on this output.

        Once a source has called this or `mark_idle` on an output, its own watermarks replace the `WatermarkStrategy`
        there. Ends idleness. A watermark before the last one is ignored: watermarks never go back.

        Parameters
        ----------
        timestamp_ms
            Event time in milliseconds since 1970-01-01 UTC.
        """

    @abstractmethod
    def mark_idle(self) -> None:
        """Say that nobody should wait for this output, until its next watermark."""


class ReaderOutput(SourceOutput):
    """The output of a whole reader, and the maker of an output per split."""

    may_hold_rows = True
    """Whether `rows_allowed` may ever return fewer rows than there are."""

    @abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput:
        """Return the split's own output, with its own watermark; the same one for the same id until released."""

    def rows_allowed(self, split_id: str, batch: pa.RecordBatch) -> int:
        """Return how many of the first rows of ``batch`` alignment lets the split emit now; the rest must wait.

        A reader that knows the positions of single rows asks before it emits. It keeps the rest, which does
        not count towards its memory bound, and asks again whenever it is polled: until then the split is paused.
        """
        rows: int = batch.num_rows
        return rows

    @abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """Forget a finished split: its watermark no longer holds anybody back. Unknown ids are ignored."""


class SourceReaderContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader may know, given to `Source.create_reader`.

    Parameters
    ----------
    subtask
        The number of the reader, from 0.
    schema
        The columns to produce, partition columns included. Time stamps are in microseconds, UTC.
    host
        The host it runs on.
    request_split
        Asks the enumerator for a split, for sources whose splits are pulled. Does not block.
    send_event
        Sends an event to the enumerator. Does not block.
    time_zone
        The time zone in which texts without one are read (an IANA name); None: the source's option decides.
    case_sensitive
        The session's ``spark.sql.caseSensitive``; None: it is not known here, or was never set.
    query
        A continuous query's name, or its id; None in batches and micro-batches.
    allow_unaligned_splits
        Whether a split reader that cannot pause its splits reads on where others are paused
        (``pipeline.watermark-alignment.allow-unaligned-source-splits``); else pausing raises.
    metric_group
        Takes the reader's counters and gauges, and its split readers'. They are seen in continuous queries only.
    signal
        By which a client wakes the task's thread: see `SplitReader.begin_polling`. None: nobody waits for it.
    """

    subtask: int
    schema: pa.Schema
    host: str | None
    request_split: Callable[[], None]
    send_event: Callable[[SourceEvent], None]
    time_zone: str | None = None
    case_sensitive: bool | None = None
    query: str | None = None
    allow_unaligned_splits: bool = False
    metric_group: MetricGroup = msgspec.field(default_factory=MetricGroup)
    signal: Signal | None = None


class SourceReader(ABC, Generic[SplitT]):
    """Reads splits without blocking. All methods are called on one thread.

    An error raised by any of them fails the reader; it is closed, and its splits are restored from the last
    checkpoint elsewhere.
    """

    @abstractmethod
    def start(self) -> None:
        """Get ready. Called once, before any other method; splits may be requested here."""

    @abstractmethod
    def poll_next(self, output: ReaderOutput) -> InputStatus:
        """Emit what is at hand, at most about one batch, and return without waiting.

        A split's position in `snapshot_state` moves with the batches emitted here, not before.
        """

    @abstractmethod
    def available(self) -> Future[None]:
        """Return a future that is done when `poll_next` is worth calling. It may be completed by any thread."""

    @abstractmethod
    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Take splits, new or restored: the reader need not distinguish them, both are read from their position on."""

    @abstractmethod
    def notify_no_more_splits(self) -> None:
        """Note that no further splits will be added: the input ends with those at hand."""

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Pause and resume splits by their ids (FLIP-217). Ids that are unknown or finished are ignored.

        Raises
        ------
        UnsupportedOperationError
            By default: this reader cannot pause single splits.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} does not support pausing and resuming of splits. Implement "
            "pause_or_resume_splits to align the splits of this source in event time.",
            operation="pause_or_resume_splits",
        )

    @abstractmethod
    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """Return the splits not yet finished, each at the position after what `poll_next` emitted of it."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Note that the state of ``checkpoint_id`` is durable. Not promised for every checkpoint."""

    def handle_source_event(self, event: SourceEvent) -> None:
        """Receive an event from the enumerator; override it if the connector has any.

        Raises
        ------
        UnsupportedOperationError
            By default: the connector's enumerator sends events but its reader does not handle them.
        """
        raise UnsupportedOperationError(
            f"{type(self).__name__} got {type(event).__name__} but does not implement handle_source_event.",
            operation="handle_source_event",
        )

    @abstractmethod
    def close(self) -> None:
        """Release threads, clients and files within a second. Called at most once; not promised in a crash."""
