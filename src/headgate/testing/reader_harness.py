"""Drives a source reader: one poll at a time, with the outputs and watermarks of a real task.

Never: use the real time for anything but giving up: a fetcher that has nothing within ``timeout_s`` fails the test.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

import pyarrow as pa

from headgate.readers import SourceReaderBase
from headgate.source.events import SourceEvent
from headgate.source.metrics import MetricGroup
from headgate.source.reader import InputStatus, SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.split import Split
from headgate.source.split_reader import FetchedBatch, SplitReader
from headgate.source.watermark import WatermarkStrategy
from headgate.task import StreamingOutput
from headgate.testing.clock import VirtualClock
from headgate.testing.threads import ThreadRule, assert_single_threaded

SplitT = TypeVar("SplitT", bound=Split)
_HANGS_S = 30.0


class _Output(StreamingOutput):
    on_released: Callable[[str], None]
    most_rows: int | None = None

    def rows_allowed(self, split_id: str, batch: pa.RecordBatch) -> int:
        allowed = super().rows_allowed(split_id, batch)
        return allowed if self.most_rows is None else min(allowed, self.most_rows)

    def release_output_for_split(self, split_id: str) -> None:
        super().release_output_for_split(split_id)
        self.on_released(split_id)


class ReaderHarness(Generic[SplitT]):
    """A source reader under a test's control.

    Splits pass through their serializer on the way in and out, every batch is compared with the schema, and each
    method of the reader and its split readers, save for ``wake_up``, must be called by one thread.

    Parameters
    ----------
    create_reader
        Makes the reader: `Source.create_reader`, or for a split reader alone one of the ready-made readers:
        ``lambda context: SequentialReader(MySplitReader, context)``.
    split_serializer
        Writes and reads the splits.
    schema
        The columns that must come.
    subtask
        The reader's number.
    strategy
        How watermarks are made; None: only the source's own count.
    clock
        The time by which splits become idle.
    timeout_s
        The longest to wait for a fetcher, in seconds of real time.
    most_rows
        How many rows each call of `ReaderOutput.rows_allowed` lets through at most; None: all. So splits stop in the
        middle of batches, as alignment stops them.
    asks
        Whether a ready-made reader's splits become idle only when they were asked for rows in vain, as in a task; else
        all of them count as asked at any time.

    Attributes
    ----------
    batches
        What was emitted: (split id, batch). The id is empty for rows emitted without an output per split.
    watermarks
        The reader's watermarks, in milliseconds, in order.
    idle
        Whether nobody should wait for this reader.
    splits
        The ids of the splits at hand.
    finished
        The ids of those that finished, in order.
    requests
        How often it asked for a split.
    events
        What it sent to the enumerator.
    metric_group
        What the reader registers its metrics with; `metrics` and `pending_records` collect them.
    source_paused
        Whether alignment paused the whole reader: `poll` leaves it alone.
    fetched
        What the split readers of a ready-made reader fetched, whether it was emitted or not.
    """

    def __init__(
        self,
        create_reader: Callable[[SourceReaderContext], SourceReader[SplitT]],
        split_serializer: VersionedSerializer[SplitT],
        schema: pa.Schema,
        *,
        subtask: int = 0,
        strategy: WatermarkStrategy | None = None,
        clock: VirtualClock | None = None,
        timeout_s: float = 30.0,
        most_rows: int | None = None,
        asks: bool = False,
    ) -> None:
        self.clock = clock or VirtualClock()
        self.schema = schema
        self.batches: list[tuple[str, pa.RecordBatch]] = []
        self.watermarks: list[int] = []
        self.idle = True
        self.requests = 0
        self.events: list[SourceEvent] = []
        self.splits: set[str] = set()
        self.finished: list[str] = []
        self.source_paused = False
        self._due: list[tuple[Collection[str], Collection[str]]] = []
        self._asks = asks
        self.output = _Output(
            schema, strategy, self, self.clock(), control=self, asked_ms=self._asked_ms, asked_by_others=asks
        )
        self.output.on_released = self._on_released
        self.output.most_rows = most_rows
        self.output.may_hold_rows = self.output.may_hold_rows or most_rows is not None
        self.fetched: list[FetchedBatch[SplitT]] = []
        self._split_serializer = split_serializer
        self.close_s = 0.0
        """How long `close` took, in seconds."""
        self._timeout_s = timeout_s
        self._checkpoints = 0
        self._rules: list[ThreadRule] = []
        self.metric_group = MetricGroup()
        context = SourceReaderContext(
            subtask=subtask, schema=schema, host="localhost", request_split=self._request,
            send_event=self.events.append, metric_group=self.metric_group,
        )  # fmt: skip
        self.reader = assert_single_threaded(create_reader(context))
        if isinstance(self.reader, SourceReaderBase):
            make_split_reader = self.reader.split_reader_factory
            self.reader.split_reader_factory = lambda: self._checked(make_split_reader())
        self.reader.start()

    def add_splits(self, *splits: SplitT) -> None:
        """Give the reader splits, new or restored."""
        serializer = self._split_serializer
        self.splits.update(split.split_id for split in splits)
        for split in splits:
            self.output.add_split(split.split_id)
        self.reader.add_splits([serializer.deserialize(serializer.serialize(split)) for split in splits])

    def restore(self, state: Sequence[bytes]) -> None:
        """Give the reader the splits of a `snapshot`."""
        self.add_splits(*(self._split_serializer.deserialize(each) for each in state))

    def poll(self) -> InputStatus:
        """Poll once, without waiting, after what alignment decided is carried out."""
        self.output.advance_time(self.clock())
        due, self._due = self._due, []
        for to_pause, to_resume in due:
            self.reader.pause_or_resume_splits(to_pause, to_resume)
        if self.source_paused:
            return InputStatus.NOTHING_AVAILABLE
        status = self.reader.poll_next(self.output)
        if status is InputStatus.END_OF_INPUT:
            assert not self.splits, f"the reader says that it is done, but has not finished {sorted(self.splits)}"
        return status

    def wait(self) -> None:
        """Wait until polling is worth it.

        Raises
        ------
        AssertionError
            Nothing came within ``timeout_s``.
        """
        try:
            self.reader.available().result(self._timeout_s)
        except TimeoutError:
            raise AssertionError(f"nothing came within {self._timeout_s} s from splits {sorted(self.splits)}") from None

    def step(self) -> InputStatus:
        """Poll until something was emitted, a split finished, one was requested, or the input ended."""
        before = self.progress
        while (status := self.poll()) is not InputStatus.END_OF_INPUT and self.progress == before:
            if status is InputStatus.NOTHING_AVAILABLE:
                self.wait()
        return status

    @property
    def progress(self) -> tuple[int, ...]:
        """Numbers that grow when something visible happened."""
        return len(self.batches), len(self.watermarks), len(self.finished), self.requests, len(self.events)

    def run_to_end(self) -> list[dict[str, Any]]:
        """Say that there are no more splits, poll to the end, and return all rows."""
        self.reader.notify_no_more_splits()
        while self.step() is not InputStatus.END_OF_INPUT:
            pass
        return self.rows()

    def pause_or_resume(self, to_pause: Collection[str] = (), to_resume: Collection[str] = ()) -> None:
        """Pause and resume splits by id."""
        self.reader.pause_or_resume_splits(to_pause, to_resume)
        self.output.pause_or_resume_splits(to_pause, to_resume)

    def announce(self, others_ms: int) -> None:
        """Say how far the slowest of the alignment group is, this reader left aside, in milliseconds."""
        self.output.announce(others_ms, others_ms)

    def rows(self, split_id: str | None = None) -> list[dict[str, Any]]:
        """Return the rows emitted so far, of one split or of all."""
        return [row for each, batch in self.batches if split_id in (None, each) for row in batch.to_pylist()]

    def metrics(self) -> dict[str, float]:
        """Return what the reader counts and measures now, by name; those of its splits put together."""
        return {name: each.value for name, each in self.metric_group.collect(self.splits).metrics.items()}

    def pending_records(self) -> dict[str, int]:
        """Return by split id how many rows are left to be read, for those that say so."""
        return self.metric_group.collect(self.splits).pending_records

    def snapshot(self) -> list[bytes]:
        """Return the reader's state as bytes, after checking that each unfinished split is in it once."""
        self._checkpoints += 1
        splits = self.reader.snapshot_state(self._checkpoints)
        ids = [split.split_id for split in splits]
        assert sorted(ids) == sorted(self.splits), f"the snapshot has {sorted(ids)}, not {sorted(self.splits)}"
        data = [self._split_serializer.serialize(split) for split in splits]
        assert [self._split_serializer.deserialize(each) for each in data] == splits, "a split changed in its bytes"
        return data

    def close(self) -> None:
        """Close the reader; it must not hang, and no thread may have broken the rule."""
        began = time.monotonic()
        self.reader.close()
        self.close_s = time.monotonic() - began
        assert self.close_s < _HANGS_S, f"close took {self.close_s:.1f} s; it must return within a second"
        for rule in self._rules:
            rule.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # What comes out of the output.

    def on_batch(self, batch: pa.RecordBatch, split_id: str) -> None:
        """Check and record rows."""
        found = batch.schema.remove_metadata()
        assert found.equals(self.schema.remove_metadata()), (
            f"a batch of split {split_id!r} has the columns {found}, expected {self.schema}"
        )
        self.batches.append((split_id, batch))

    def on_watermark(self, timestamp_ms: int) -> None:
        """Check and record a watermark."""
        assert not self.watermarks or timestamp_ms > self.watermarks[-1], f"{timestamp_ms} after {self.watermarks[-1]}"
        self.watermarks.append(timestamp_ms)

    def on_idle(self) -> None:
        """Record idleness."""
        self.idle = True

    def on_active(self) -> None:
        """Record that it ended."""
        self.idle = False

    # What alignment decides.

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Carry it out before the next poll: the reader may be in the midst of one."""
        self._due.append((splits_to_pause, splits_to_resume))

    def on_source_paused(self, paused: bool) -> None:
        """Poll no more, or again."""
        self.source_paused = paused

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        """Ignore it: the test is the group."""

    def _asked_ms(self, now_ms: int) -> Mapping[str, int]:
        if self._asks and isinstance(self.reader, SourceReaderBase):
            return self.reader.asked_until_ms(now_ms)
        return dict.fromkeys(self.output.split_ids(), now_ms)

    def _on_released(self, split_id: str) -> None:
        self.splits.discard(split_id)
        self.finished.append(split_id)

    def _request(self) -> None:
        self.requests += 1

    def _checked(self, split_reader: SplitReader[Any]) -> SplitReader[Any]:
        fetch = split_reader.fetch

        def recorded(timeout_ms: int) -> Sequence[FetchedBatch[Any]]:
            fetched = fetch(timeout_ms)
            self.fetched.extend(fetched)
            return fetched

        split_reader.fetch = recorded  # type: ignore[method-assign]
        self._rules.append(ThreadRule(type(split_reader).__name__))
        return assert_single_threaded(split_reader, rule=self._rules[-1])
