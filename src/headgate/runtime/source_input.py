"""One source's reader in a subtask, and its output: splits in, rows out, and what alignment decides of splits.

Never: touch the reader on another thread than the subtask's; report the end of a split before all of its rows are
processed, or while a snapshot is due, which would not have it.

Rows in flight come with the split that they are of. They are read on another thread and emitted as the reader emitted
them, and only then does the reader get the split.

What alignment decides while the reader is called is carried out when it has returned. A source that is paused is not
polled; its messages, timers, snapshots and end go on.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-217.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, ParamSpec, Protocol, TypeVar

import msgspec
import pyarrow as pa

from headgate.errors import UnsupportedOperationError
from headgate.futures import done_with, mapped
from headgate.graph.stage_graph import SourceDefinition
from headgate.protocol.state import InFlightRows, SplitState
from headgate.readers import AskedInVain, SourceReaderBase
from headgate.runtime.chain import StageChain
from headgate.runtime.execution_context import ExecutionContext
from headgate.runtime.mailbox import Mail
from headgate.runtime.restored import read_in_flight
from headgate.runtime.snapshot_parts import store_splits
from headgate.runtime.snapshots import Snapshots
from headgate.source import Boundedness, InputStatus, MetricGroup, SourceEvent, SourceReader, SourceReaderContext
from headgate.source.metrics import Collected
from headgate.task import subtask as machine
from headgate.task.reader_output import StreamingOutput

P = ParamSpec("P")
T = TypeVar("T")

ALLOW_UNALIGNED_SPLITS = "pipeline.watermark-alignment.allow-unaligned-source-splits"
MOST_POSITIONS = 1000
"""A subtask with more splits of a source reports only how many they are."""


class InputUser(Protocol):
    """Who is notified of what a reader does, on the subtask's thread."""

    called: str | None
    """The source whose reader is being called, or raised."""

    @property
    def is_over(self) -> bool:
        """Whether the execution is closed, or being closed."""

    @property
    def may_end_splits(self) -> bool:
        """Whether ends of splits may be reported: not while a snapshot is due, of which they would be left out."""

    def handle(self, event: machine.Event) -> None:
        """Give an event to the subtask machine."""

    def on_source_available(self, source: str) -> None:
        """A reader that had nothing may have something."""

    def on_source_paused(self, source: str, paused: bool) -> None:
        """Alignment pauses a whole source, or resumes it."""

    def on_splits_paused(self, source: str, paused: bool) -> None:
        """Alignment has paused splits of a source, all of them or some, or it has no paused ones any more."""


class SourceInput:
    """One source's reader in a subtask, and its output.

    Parameters
    ----------
    context
        The execution's.
    source
        What it reads.
    chain
        What takes the rows.
    user
        Who is notified of what the reader does.
    """

    def __init__(self, context: ExecutionContext, source: SourceDefinition, chain: StageChain, user: InputUser) -> None:
        self.uid = uid = source.uid
        self._context = context
        self._user = user
        self._definition = source
        self._source = source.source
        self._chain = chain
        self.status = InputStatus.MORE_AVAILABLE
        self._known: dict[str, bytes] = {}  # splits as they were seen last; of those that ended, until the next poll
        self._loading: dict[str, tuple[SplitState, Future[list[pa.RecordBatch]]]] = {}  # not given to the reader yet
        self._asked = False  # for a split
        self._for_reader: deque[Callable[[], None]] = deque()  # what follows upon these
        self._ending: dict[str, None] = {}  # read to their ends, which are not reported
        self._unreported: list[str] = []  # of those, the ones whose rows are processed
        self._available: Future[None] | None = None  # the last that was waited for
        self._pausing: deque[tuple[Collection[str], Collection[str]]] = deque()  # what alignment decided of splits
        self._paused_splits: set[str] = set()  # by themselves
        self._source_paused = False
        self._allow_unaligned = bool(context.definition.options[ALLOW_UNALIGNED_SPLITS])
        self._asked_to_pause = False
        self._alignment_timer_ms: int | None = None  # when the one that runs is due
        self._polled = AskedInVain()
        self._metric_group = MetricGroup()
        self.reader: SourceReader[Any] = self._source.create_reader(
            SourceReaderContext(
                subtask=context.place.slot,
                schema=source.schema,
                host=context.place.host,
                request_split=lambda: self._request(machine.RequestMade(uid)),
                send_event=lambda event: self._request(machine.EventMade(uid, pickle.dumps(event))),
                time_zone=context.place.time_zone,
                query=context.definition.name or context.place.query_id,
                allow_unaligned_splits=self._allow_unaligned,
                metric_group=self._metric_group,
                signal=context.mailbox.signal,
            )
        )
        self._asks_itself = isinstance(self.reader, SourceReaderBase)
        self.output = _Output(self, source, chain, context.now_ms())

    def start(self) -> None:
        """Start the reader."""
        self._call(self.reader.start)
        self._arm_timer()

    def add_splits(self, splits: tuple[SplitState, ...]) -> None:
        """Read these splits, too, after their rows in flight."""
        self._known |= {split.split_id: split.data for split in splits}
        self._polled.forget()
        if not self.output.ended:  # else the input was drained: they are kept, and not read
            self.output.advance_time(self._context.now_ms())  # else they would be silent since it was called last
            for split in splits:
                self.output.add_split(split.split_id)
        asked, self._asked = self._asked, False
        for split in splits:
            if not split.is_plain:
                self._load(split)
        plain = [split for split in splits if split.is_plain]
        if plain:
            self._give(plain)
        if asked and all(split.ended for split in splits):  # the reader gets none of them, and waits for one
            self._request(machine.RequestMade(self.uid))

    def _load(self, split: SplitState) -> None:
        """Read the rows in flight of a split, and have it given to the reader after them."""
        rows: Future[list[pa.RecordBatch]] = done_with([])
        if split.in_flight is not None:
            read = read_in_flight(self._context, self._definition, split.split_id, split.in_flight)
            rows = self._context.uploader.load(read)
        self._loading[split.split_id] = split, rows
        rows.add_done_callback(lambda _: self._context.mailbox.post(Mail(lambda: self._on_loaded(split, rows))))

    def _on_loaded(self, split: SplitState, rows: Future[list[pa.RecordBatch]]) -> None:
        if self._user.is_over:
            return
        batches = rows.result()
        if self.output.ended:
            return  # it stays as it is
        del self._loading[split.split_id]
        self.output.advance_time(self._context.now_ms())
        of_split = self.output.create_output_for_split(split.split_id)
        for batch in batches:
            of_split.emit_batch(batch)
        if split.ended:
            self.output.release_output_for_split(split.split_id)
        self._give([] if split.ended else [split])
        while self._for_reader and not self._loading:
            self._for_reader.popleft()()

    def _give(self, splits: Sequence[SplitState]) -> None:
        """Give the reader splits, if there are any, and carry out what alignment decides of it."""
        if splits:
            read = [self._source.split_serializer.deserialize(split.data) for split in splits]
            self._call(self.reader.add_splits, read)
            paused = self._paused_splits.intersection(split.split_id for split in splits)
            if paused:  # when the reader did not have them
                self._pausing.append((paused, ()))
        if self.output.aligns_splits and not (self._asked_to_pause or self.output.ended):
            self._ask_to_pause()
        self.align()
        self.wake()

    def set_unassigned(self, event_time_ms: int | None) -> None:
        """Hold the watermark at work that is not assigned, in milliseconds; None: there is none."""
        if not self.output.ended:
            self.output.advance_time(self._context.now_ms())
            self.output.set_unassigned(event_time_ms)

    def announce(self, max_watermark_ms: int, others_ms: int) -> None:
        """Take note of where the alignment group is."""
        if not self.output.ended:
            self.output.advance_time(self._context.now_ms())  # else what resumes would have been readable until now
            self.output.announce(max_watermark_ms, others_ms)
            self.align()

    def notify_no_more_splits(self) -> None:
        """Notify the reader that no split follows, after those that it is to get."""
        if self._loading:
            self._for_reader.append(self.notify_no_more_splits)
            return
        self._call(self.reader.notify_no_more_splits)
        self.wake()

    def handle_event(self, payload: bytes) -> None:
        """Give the reader an event of its enumerator, after the splits that came before."""
        if self._loading:
            self._for_reader.append(lambda: self.handle_event(payload))
            return
        event: SourceEvent = pickle.loads(payload)
        self._call(self.reader.handle_source_event, event)
        self.wake()

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Notify the reader that a checkpoint is durable."""
        self._call(self.reader.notify_checkpoint_complete, checkpoint_id)

    def poll(self, now_ms: int) -> InputStatus:
        """Poll the reader, and return what it may have now."""
        self.output.advance_time(now_ms)
        splits = 0 if self._asks_itself else len(self.output.split_ids())
        self.status = self._call(self.reader.poll_next, self.output)
        if not self._asks_itself:
            self._polled.returned(began_ms=now_ms, splits=splits, empty=self.status is InputStatus.NOTHING_AVAILABLE)
        if self.output.is_aligned:
            self.align()
        if self.status is InputStatus.END_OF_INPUT:
            self.output.end_input()
        elif self.status is InputStatus.NOTHING_AVAILABLE:
            self._wait()
        return self.status

    @property
    def owes_report(self) -> bool:
        """Whether splits have ended that `report_ended` would report."""
        return bool(self._unreported)

    def snapshot(self, checkpoint_id: int, snapshots: Snapshots) -> Future[tuple[SplitState, ...]]:
        """Return where the splits are, once the rows of them that wait in the chain are safe."""
        waiting = self._chain.rows_in_flight(self.uid)
        read = map(self._state_of, self._call(self.reader.snapshot_state, checkpoint_id))
        states = {split.split_id: split for split in read}
        # Those that it has no longer, some of which it may have forgotten without a word: nobody reads them again.
        for split_id in (*self._ending, *waiting):
            states.setdefault(split_id, SplitState(split_id, self._known[split_id], ended=True))
        states |= {split_id: split for split_id, (split, _) in self._loading.items()}

        def with_rows(stored: Mapping[str, InFlightRows]) -> tuple[SplitState, ...]:
            return tuple(
                msgspec.structs.replace(state, in_flight=stored[split_id]) if split_id in stored else state
                for split_id, state in states.items()
            )

        if not waiting:
            return done_with(with_rows({}))
        stored = store_splits(
            self._context.uploader,
            checkpoint_id,
            snapshots.file_name("source"),
            self.uid,
            self._definition.schema,
            waiting,
            snapshots.inline_bytes,
        )
        return mapped(stored, with_rows)

    def can_store_rows(self) -> bool:
        """Return whether the rows that wait in the chain belong to splits: not those that were emitted for none."""
        return self._known.keys() >= self._chain.rows_in_flight(self.uid).keys()

    def positions(self) -> tuple[int, dict[str, bytes]]:
        """Return how many splits are being read, and if these are few enough to be reported: where each is."""
        splits, loading = self._splits(), [split for split, _ in self._loading.values()]
        if len(splits) + len(loading) > MOST_POSITIONS:
            return len(splits) + len(loading), {}
        count, found = positions_of((*map(self._state_of, splits), *loading))
        self._known |= found
        return count, found

    def measured(self) -> Collected:
        """Return what the connector counts and measures now."""
        return self._metric_group.collect(self.output.split_ids())

    def troubles(self) -> tuple[str, ...]:
        """Return what the reader waits for beside data."""
        return self.reader.troubles() if isinstance(self.reader, SourceReaderBase) else ()

    def queued(self) -> tuple[int, int] | None:
        """Return how many batches, and bytes, the reader has fetched and not emitted; None: it does not say."""
        return self.reader.queued() if isinstance(self.reader, SourceReaderBase) else None

    def asked_ms(self, now_ms: int) -> Mapping[str, int]:
        """Return until when splits were asked for rows in vain, in milliseconds: by fetchers, or else by polls."""
        if isinstance(self.reader, SourceReaderBase):
            return self.reader.asked_until_ms(now_ms)
        available = None if self.status is not InputStatus.NOTHING_AVAILABLE else self._available
        waits = available is not None and not available.done()  # the reader would say that there is something
        until_ms = now_ms if waits else self._polled.until_ms
        if until_ms is None:
            return {}
        return dict.fromkeys((each for each in self.output.split_ids() if each not in self._loading), until_ms)

    def position_of(self, split_id: str) -> bytes | None:
        """Return where a split is; of one that has ended, or whose reader raised, where it was known to be last."""
        if self._user.called is None:
            found = next((split for split in self._splits() if split.split_id == split_id), None)
            if found is not None:
                self._known[split_id] = self._state_of(found).data
        return self._known.get(split_id)

    # Alignment: what is decided while the reader is called waits until it returns.

    def on_pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        """Alignment pauses splits, and resumes others."""
        self._pausing.append((splits_to_pause, splits_to_resume))
        self._paused_splits.difference_update(splits_to_resume)
        self._paused_splits.update(splits_to_pause)
        self._count_paused()

    def on_source_paused(self, paused: bool) -> None:
        """Alignment pauses the whole source, or resumes it."""
        self._user.on_source_paused(self.uid, paused)
        self._source_paused = paused
        self._count_paused()
        if not paused:
            self.wake()

    def on_input_ended(self) -> None:
        """No rows follow: nobody waits for others any more."""
        self._paused_splits.clear()
        self._source_paused = False
        self._count_paused()

    def _count_paused(self) -> None:
        self._user.on_splits_paused(self.uid, self._source_paused or bool(self._paused_splits))

    def on_report(self, watermark_ms: int | None, slowest: str) -> None:
        """Alignment reports how far this reader is."""
        if not self._user.is_over:
            self._user.handle(machine.WatermarkFound(self.uid, watermark_ms, slowest))

    def align(self) -> None:
        """Carry out what alignment decided of splits."""
        while self._pausing:
            splits_to_pause, splits_to_resume = self._pausing.popleft()
            self._call(self.reader.pause_or_resume_splits, splits_to_pause, splits_to_resume)
            if splits_to_resume:
                self.wake()
        due_ms = self.output.due_ms
        if due_ms is not None and self._alignment_timer_ms is None:
            self._alignment_timer_ms = due_ms
            delay_ms = max(0, due_ms - self._context.now_ms())
            self._context.mailbox.run_after(delay_ms, Mail(self._on_alignment_timer))

    def _ask_to_pause(self) -> None:
        """Find out whether the reader can pause splits, now that it has several and is to be aligned."""
        self._asked_to_pause = True
        try:
            self._call(self.reader.pause_or_resume_splits, (), ())
        except UnsupportedOperationError as error:
            self._user.called = None
            if not self._allow_unaligned:
                raise UnsupportedOperationError(
                    f"The source {self.uid} is aligned and one of its readers has several splits, but cannot pause "
                    f"them: {error} Or give each reader one split, or set the option {ALLOW_UNALIGNED_SPLITS!r} to "
                    "true: then its splits are not aligned with one another.",
                    operation="pause_or_resume_splits", source=self.uid,
                ) from error  # fmt: skip
            self.output.read_splits_unaligned()
            self._pausing.clear()
        else:
            if self._allow_unaligned and isinstance(self.reader, SourceReaderBase):
                can_pause = self.reader.can_pause
                self.output.read_splits_unaligned(lambda split_id: not can_pause(split_id))

    def _on_alignment_timer(self) -> None:
        self._alignment_timer_ms = None
        if not self._user.is_over and not self.output.ended:
            self.output.advance_time(self._context.now_ms())
            self.align()

    def _splits(self) -> Sequence[Any]:
        # A snapshot without a checkpoint: readers promise that taking one changes nothing.
        splits: Sequence[Any] = self._call(self.reader.snapshot_state, 0)
        return splits

    def end(self, split_id: str) -> None:
        """Note that a split was read to its end; it is reported when its rows are processed."""
        self._ending[split_id] = None
        if self._chain.entry_waits:
            self._chain.take_note(lambda: self._unreported.append(split_id))
        else:
            self._unreported.append(split_id)
        if split_id in self._paused_splits:  # it is not resumed any more
            self._paused_splits.remove(split_id)
            self._count_paused()

    def report_ended(self) -> None:
        """Report the ends of splits whose rows are processed. No snapshot is due."""
        ended, self._unreported = tuple(self._unreported), []
        for split_id in ended:
            del self._ending[split_id], self._known[split_id]
        if ended:
            self._user.handle(machine.SplitsEnded(self.uid, ended))

    def _request(self, event: machine.RequestMade | machine.EventMade) -> None:
        """Pass on what the reader wants, after the ends whose rows are processed, unless it is being closed."""
        if not self._user.is_over:
            if self._user.may_end_splits:
                self.report_ended()
            self._asked = self._asked or isinstance(event, machine.RequestMade)
            self._user.handle(event)

    def _call(self, method: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call the reader; if it raises, the error's report names the source."""
        outer, self._user.called = self._user.called, self.uid
        result = method(*arguments, **keywords)
        self._user.called = outer
        return result

    def _state_of(self, split: Any) -> SplitState:
        return SplitState(split.split_id, self._source.split_serializer.serialize(split))

    def _wait(self) -> None:
        available = self.reader.available()
        if available is self._available and self._asks_itself:
            return  # which has not been done when it was looked at, and is another one once it was
        if available.done():
            self.status = InputStatus.MORE_AVAILABLE
        elif available is not self._available:
            self._available = available
            available.add_done_callback(lambda _: self._context.mailbox.post(Mail(self.wake)))

    def wake(self) -> None:
        """Have the reader polled, which may have something."""
        if self.status is InputStatus.NOTHING_AVAILABLE:
            self.status = InputStatus.MORE_AVAILABLE
            self._user.on_source_available(self.uid)

    def _arm_timer(self) -> None:
        if self.output.timer_period_ms is not None:
            self._context.mailbox.run_after(self.output.timer_period_ms, Mail(self._on_timer))

    def _on_timer(self) -> None:
        if not self._user.is_over and not self.output.ended:
            self.output.advance_time(self._context.now_ms())
            self.align()
            self._arm_timer()


class _Output(StreamingOutput):
    """Notes which splits ended beside handing rows on."""

    def __init__(self, of: SourceInput, source: SourceDefinition, chain: StageChain, now_ms: int) -> None:
        self._of = of
        entry = chain.input(of.uid)
        after_rows = None if chain.event_time_operator(of.uid) is None else entry.after_rows
        super().__init__(
            source.schema,
            source.watermark_strategy,
            entry,
            now_ms,
            control=of,
            held=True,
            bounded=source.boundedness is Boundedness.BOUNDED,
            after_rows=after_rows,
            asked_ms=of.asked_ms,
            asked_by_others=isinstance(of.reader, SourceReaderBase),
        )
        entry.rows_passed = self.rows_passed
        self.ended = False

    def release_output_for_split(self, split_id: str) -> None:
        super().release_output_for_split(split_id)
        self._of.end(split_id)

    def end_input(self) -> None:
        if not self.ended:
            self.ended = True
            super().end_input()
            self._of.on_input_ended()


def positions_of(splits: tuple[SplitState, ...]) -> tuple[int, dict[str, bytes]]:
    """Return how many splits there are, and if these are few enough to be reported: the positions of all."""
    return len(splits), {split.split_id: split.data for split in splits} if len(splits) <= MOST_POSITIONS else {}
