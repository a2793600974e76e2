"""A small, complete and sound source of numbers; and the same with one of many bugs, each named.

`BUGS` and `EVENT_BUGS` say which promise each of them breaks. A bug may break others, too.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headgate.errors import DataLossError, HeadgateError, SourceUnavailableError
from headgate.readers import MultiplexedReader
from headgate.source import (
    Boundedness,
    FetchedBatch,
    InputStatus,
    OptionSpec,
    PlanLimits,
    PlannedRange,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    Split,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitReader,
    SupportsSplitReassignmentOnRecovery,
    VersionedSerializer,
)
from headgate.source.options import integer, text
from headgate.source.watermark import MIN_WATERMARK_MS

SCHEMA = pa.schema([("n", pa.int64())])


BUGS = {
    "split ids differ": "reads-repeat",
    "other rows each time": "reads-repeat",
    "another schema in the second batch": "reads-repeat",
    "assigns a split twice": "reads-repeat",
    "cannot be pickled": "source-can-be-pickled",
    "a second reader reads a split's last row too": "parallel-readers-read-the-same",
    "work touches the enumerator": "one-thread",
    "position of the last row": "restore-at-every-step",
    "enumerator forgets what is pending": "restore-at-every-step",
    "reader forgets a split": "restore-at-every-step",
    "never ends after a restore": "restore-at-every-step",
    "assigns to a reader that is not there": "restore-at-every-step",
    "drops what comes back": "failed-readers-give-back",
    "answers readers that are gone": "readers-that-are-gone-get-nothing",
    "takes back only what it assigned": "finished-splits-can-come-back",
    "pausing does nothing": "paused-splits-are-silent",
    "a pause drops the rest of a batch": "paused-splits-are-silent",
    "position of a row is one off": "rows-have-positions",
    "ranges overlap": "plans-can-be-replayed",
    "plans nothing": "plans-can-be-replayed",
    "close blocks": "close-is-quick",
    "forgets a split when there are three readers": "rescaled-reads-are-complete",
    "the state changes in its bytes": "splits-and-states-survive-their-bytes",
    "a gap in the upgrades": "splits-and-states-survive-their-bytes",
    "fetches what is paused": "fetches-pass-over-paused-splits",
    "plans the limit for each split": "plans-keep-limits",
    "the constructor connects": "making-it-does-nothing",
    "the reader connects when it is made": "making-it-does-nothing",
    "lists in start": "enumerator-does-not-block",
    "polls a file": "reader-does-not-block",
    "an empty queue is the end": "slow-fetches-lose-nothing",
    "a failed fetch is the end": "failed-fetch-loses-nothing",
    "a failed discovery is the end": "failed-discovery-loses-nothing",
    "a checkpoint waits for the fetch": "hanging-fetch-holds-up-nothing",
    "polling is always worth it": "idle-readers-sleep",
}
"""For each bug the promise by whose name the kit finds it."""
EVENT_BUGS = {
    "forgets what readers report": "reported-splits-are-assigned-again",
    "reads what is reported from its beginning": "reported-splits-are-assigned-again",
    "its watermarks are ahead": "rows-keep-watermarks",
    "calls a split with rows idle": "rows-keep-watermarks",
    "nothing holds watermarks": "unassigned-rows-hold-the-watermark",
    "holds watermarks for ever": "unassigned-rows-hold-the-watermark",
    "makes watermarks and is never idle": "silent-splits-become-idle",
    "lets rows beyond the bound go": "aligned-splits-stop-at-the-bound",
    "a resumed split stays paused": "aligned-splits-stop-at-the-bound",
    "a range reads what is new": "plans-survive-new-rows",
    "seeks too far": "plans-stop-at-an-event-time",
    "says a later event time": "plans-stop-at-an-event-time",
    "leaves out a split": "task-groups-read-everything",
    "a later failure forgets what is known": "failed-discovery-loses-nothing",
    "looks once": "new-rows-are-found",
    "finds what it has found": "new-rows-are-found",
    "a fetch ignores its time-out": "fetch-keeps-its-time-out",
    "a fetch sleeps": "fetch-returns-when-woken",
    "a call waits for the fetch": "fetch-returns-when-woken",
    "no answer is no rows": "unavailability-loses-nothing",
    "no answer is lost data": "unavailability-loses-nothing",
}
"""The same, of `Events`."""


class Range(Split, frozen=True, kw_only=True):
    position: int
    stop: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    pending: tuple[Range, ...] = ()
    listed: bool = False


class Restless(State, frozen=True, kw_only=True):
    at: Any = msgspec.field(default_factory=time.monotonic_ns)


class RangeReader(SplitReader[Range]):
    def __init__(self, bug: str = "", subtask: int = 0) -> None:
        self.bug = bug
        self.subtask = subtask
        self.splits: deque[Range] = deque()
        self.paused: set[str] = set()
        self.woken = threading.Event()
        self.batches = 0

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Range]]:
        for _ in range(len(self.splits)):
            split = self.splits.popleft()
            if split.split_id in self.paused and self.bug != "fetches what is paused":
                self.splits.append(split)
                continue
            return [self._read(split)]
        self.woken.wait(timeout_ms / 1000)
        self.woken.clear()
        return []

    def _read(self, split: Range) -> FetchedBatch[Range]:
        if split.position >= split.stop:
            return FetchedBatch(split=split, finished=True)
        after = min(split.position + 3, split.stop)
        rows = list(range(split.position, after))
        if self.bug == "other rows each time":
            rows[0] = time.monotonic_ns()
        if self.subtask and self.bug == "a second reader reads a split's last row too":
            rows.append(rows[-1])
        shown = after - 1 if self.bug == "position of the last row" else after
        self.splits.append(msgspec.structs.replace(split, position=after))
        self.batches += 1
        column = pa.array(rows, pa.int64())
        if self.bug == "another schema in the second batch" and self.batches == 2:
            column = column.cast(pa.int32())
        batch = pa.record_batch([column], names=["n"])
        off = 1 if self.bug == "position of a row is one off" else 0

        def position_at(count: int) -> Range:
            return msgspec.structs.replace(split, position=split.position + count + (off if count else 0))

        return FetchedBatch(split=msgspec.structs.replace(split, position=shown), batch=batch, position_at=position_at)

    def handle_splits_changes(self, added: Sequence[Range]) -> None:
        self.splits.extend(added)

    def pause_or_resume_splits(self, splits_to_pause: Sequence[Range], splits_to_resume: Sequence[Range]) -> None:
        self.paused |= {split.split_id for split in splits_to_pause}
        self.paused -= {split.split_id for split in splits_to_resume}

    def wake_up(self) -> None:
        self.woken.set()

    def close(self) -> None:
        if self.bug == "close blocks":
            time.sleep(0.1)


class RangeSourceReader(MultiplexedReader[Range]):
    bug = ""

    def poll_next(self, output: ReaderOutput) -> InputStatus:
        if self.bug == "polls a file":
            Path(__file__).read_bytes()
        if self.bug == "lets rows beyond the bound go":
            output.rows_allowed = lambda split_id, batch: batch.num_rows  # type: ignore[method-assign]
        try:
            status = super().poll_next(output)
        except HeadgateError:
            if self.bug != "a failed fetch is the end":
                raise
            for split_id in list(self._splits):
                output.release_output_for_split(split_id)
            return InputStatus.END_OF_INPUT
        if status is InputStatus.NOTHING_AVAILABLE and self._splits and self.bug == "an empty queue is the end":
            return InputStatus.END_OF_INPUT
        return status

    def available(self) -> Future[None]:
        if self.bug == "polling is always worth it":
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return super().available()

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        if self.bug == "pausing does nothing":
            return
        if self.bug == "a pause drops the rest of a batch":
            for split_id in splits_to_pause:
                self._remainders.pop(split_id, None)
        if self.bug == "a resumed split stays paused":
            splits_to_resume = ()
        super().pause_or_resume_splits(splits_to_pause, splits_to_resume)

    def snapshot_state(self, checkpoint_id: int) -> list[Range]:
        splits = super().snapshot_state(checkpoint_id)
        while self.bug == "a checkpoint waits for the fetch" and self.stuck_since() is not None:
            time.sleep(0.01)
        return splits[1:] if self.bug == "reader forgets a split" else splits

    def close(self) -> None:
        super().close()
        if self.bug == "close blocks":
            time.sleep(0.1)


class RangeEnumerator(SplitEnumerator[Range, State]):
    def __init__(self, source: Numbers, context: SplitEnumeratorContext[Range], state: State | None) -> None:
        self.bug = source.bug
        self.source = source
        self.context = context
        self.restored = state is not None
        state = state or State()
        self.listed = state.listed
        pending = state.pending
        if self.bug == "forgets a split when there are three readers" and context.current_parallelism == 3:
            pending = pending[1:]
        self.pending = deque(pending)
        self.waiting: list[int] = []
        self.assigned: set[str] = set()

    def start(self) -> None:
        if self.bug == "lists in start":
            list(Path(__file__).parent.iterdir())
        if not self.listed:
            self.context.call_async(self._list, self._on_listed)

    def _list(self) -> list[Range]:
        if self.bug == "work touches the enumerator":
            self.add_splits_back([], 0)
        each = self.source.options["numbersPerSplit"]
        return [
            Range(split_id=self._split_id(start), position=start, stop=min(start + each, self.source.options["count"]))
            for start in range(0, self.source.options["count"], each)
        ]

    def _split_id(self, start: int) -> str:
        return str(uuid.uuid4()) if self.bug == "split ids differ" else f"from-{start}"

    def _on_listed(self, splits: list[Range] | None, error: Exception | None) -> None:
        if self.bug == "a failed discovery is the end":
            splits = splits or []
        if splits is None:
            raise error or AssertionError("neither splits nor an error")
        self.pending.extend(splits)
        self.listed = True
        self._serve()

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        self.waiting.append(subtask)
        self._serve()

    def add_reader(self, subtask: int) -> None:
        self.waiting = [each for each in self.waiting if each != subtask]
        if self.bug == "assigns to a reader that is not there" and self.pending:
            self.context.assign_split(self.pending.popleft(), 99)

    def add_splits_back(self, splits: Sequence[Range], subtask: int) -> None:
        self.waiting = [each for each in self.waiting if each != subtask]
        if self.bug == "takes back only what it assigned":
            splits = [split for split in splits if split.split_id in self.assigned]
        if self.bug != "drops what comes back":
            self.pending.extend(splits)
        self._serve()

    def _serve(self) -> None:
        if self.bug != "answers readers that are gone":
            self.waiting = [each for each in self.waiting if each in self.context.registered_readers]
        while self.waiting and self.pending:
            split = self.pending[0]
            if self.bug != "assigns a split twice" or len(self.pending) == 1:
                self.pending.popleft()
            self.assigned.add(split.split_id)
            self.context.assign_split(split, self.waiting.pop(0))
        while self.waiting and self.listed and not self.pending:
            if self.bug == "never ends after a restore" and self.restored:
                return
            self.context.signal_no_more_splits(self.waiting.pop(0))

    def snapshot_state(self, checkpoint_id: int) -> State:
        if self.bug == "enumerator forgets what is pending":
            return State(listed=self.listed)
        return State(pending=tuple(self.pending), listed=self.listed)

    def close(self) -> None:
        pass


class Numbers(Source[Range, State]):
    name = "numbers"
    option_specs: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec("count", integer(0), 20),
        OptionSpec("numbersPerSplit", integer(1), 7),
        OptionSpec("bug", text, ""),
    )
    split_serializer = VersionedSerializer(Range, version=1, what="a split of numbers")
    state_serializer = VersionedSerializer(State, version=1, what="the state of numbers")

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.bug = self.options["bug"]
        if self.bug == "the constructor connects":
            Path(__file__).read_bytes()
        if self.bug == "the state changes in its bytes":
            self.state_serializer = VersionedSerializer(Restless, version=1, what="the state of numbers")  # type: ignore[misc]
        if self.bug == "a gap in the upgrades":
            self.state_serializer = VersionedSerializer(  # type: ignore[misc]
                type(self).state_serializer.value_type, version=3, what="the state of numbers", upgrades={1: dict}
            )
        self.lock: Any = threading.Lock() if self.bug == "cannot be pickled" else None

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[Range]) -> SplitEnumerator[Range, State]:
        return RangeEnumerator(self, context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[Range], state: State) -> SplitEnumerator[Range, State]:
        return RangeEnumerator(self, context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Range]:
        if self.bug == "the reader connects when it is made":
            Path(__file__).read_bytes()
        reader = RangeSourceReader(lambda: RangeReader(self.bug, context.subtask), context)
        reader.bug = self.bug
        return reader

    def plan_ranges(self, splits: Sequence[Range], limits: PlanLimits, now_ms: int) -> Sequence[PlannedRange[Range]]:
        if self.bug == "plans nothing":
            return []
        if limits.max_rows is None and limits.max_files is None and limits.max_bytes is None:
            return [PlannedRange(split=split) for split in splits]
        if self.bug == "plans the limit for each split" and limits.max_rows is not None:
            each = limits.max_rows
            return [
                PlannedRange(
                    split=msgspec.structs.replace(split, stop=stop),
                    rest=None if stop == split.stop else msgspec.structs.replace(split, position=stop),
                )
                for split in splits
                for stop in [min(split.position + each, split.stop)]
            ]
        split = splits[0]
        stop = min(split.position + (limits.max_rows or 4), split.stop)
        after = stop - 1 if self.bug == "ranges overlap" and stop < split.stop and stop - split.position > 1 else stop
        return [
            PlannedRange(
                split=msgspec.structs.replace(split, stop=stop),
                rest=None if stop == split.stop else msgspec.structs.replace(split, position=after),
            )
        ]


def numbers(**options: str) -> Numbers:
    """Return a source with these options; a sound one without ``bug``."""
    return Numbers(options)


def forgetful() -> Numbers:
    """Return a source for the script to find a bug in."""
    return numbers(bug="reader forgets a split")


# A source with all abilities: event times, splits without an end, discovery, and a system that may not answer.

EVENTS = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


class Data:
    """The system: numbers up to ``count``, of which each is a second later than the one before."""

    def __init__(self) -> None:
        self.count = 21
        self.answers = True

    def grow(self) -> None:
        """Add numbers."""
        self.count += 7

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Answer nobody for a while."""
        self.answers = False
        yield
        self.answers = True


SYSTEMS: dict[str, Data] = {}
"""By name, so that a pickled source reads the same."""


class Lasting(Range, frozen=True, kw_only=True):
    lasting: bool = False  # at the stop it waits for more


class EventsState(State, frozen=True, kw_only=True):
    pending: tuple[Lasting, ...] = ()  # type: ignore[assignment]
    known: tuple[str, ...] = ()


class EventsReader(RangeReader):
    def __init__(self, source: Events, subtask: int) -> None:
        super().__init__(source.bug, subtask)
        self.data = source.data
        self.watermarks = source.watermarks
        self.idle: set[str] = set()

    def fetch(self, timeout_ms: int) -> Sequence[FetchedBatch[Range]]:
        if not self.data.answers and self.bug == "no answer is lost data":
            raise DataLossError("No rows came.")
        if not self.data.answers:
            raise SourceUnavailableError("The system does not answer.")
        for _ in range(len(self.splits)):
            split = self.splits.popleft()
            is_at_end = split.position >= split.stop and isinstance(split, Lasting) and split.lasting
            if split.split_id in self.paused or is_at_end:
                self.splits.append(split)
                if is_at_end and self.watermarks and split.split_id not in self.idle:
                    self.idle.add(split.split_id)
                    if self.bug != "makes watermarks and is never idle":
                        return [FetchedBatch(split=split, idle=True)]
                continue
            return [self._read(split)]
        if self.bug == "a fetch sleeps":
            time.sleep(timeout_ms / 1000)
        self.woken.wait(None if self.bug == "a fetch ignores its time-out" else timeout_ms / 1000)
        self.woken.clear()
        return []

    def wake_up(self) -> None:
        if self.bug == "a call waits for the fetch":
            time.sleep(0.4)
        super().wake_up()

    def _read(self, split: Range) -> FetchedBatch[Range]:
        if self.bug == "a range reads what is new" and split.stop == self.data.count - 7:
            split = msgspec.structs.replace(split, stop=self.data.count)
        fetched = super()._read(split)
        if fetched.batch is None:
            return fetched
        numbers = fetched.batch.column("n")
        times = pa.array([number * 1_000_000 for number in numbers.to_pylist()], pa.timestamp("us", "UTC"))
        last_ms = numbers[-1].as_py() * 1000
        return msgspec.structs.replace(
            fetched,
            batch=pa.record_batch([numbers, times], schema=EVENTS),
            watermark_ms=last_ms + (2000 if self.bug == "its watermarks are ahead" else 0) if self.watermarks else None,
            idle=self.bug == "calls a split with rows idle",
        )


class EventsEnumerator(RangeEnumerator):
    def __init__(self, source: Events, context: SplitEnumeratorContext[Range], state: EventsState | None) -> None:
        super().__init__(source, context, state)
        self.data = source.data
        self.bounded = context.boundedness is Boundedness.BOUNDED
        self.known = set(state.known if state else ())

    def start(self) -> None:
        if self.bounded or self.bug == "looks once":
            super().start()
        else:
            self.context.call_async(self._list, self._on_listed, period_ms=10_000)

    def _list(self) -> list[Range]:
        if not self.data.answers and self.bug == "no answer is no rows":
            return []
        if not self.data.answers:
            raise SourceUnavailableError("The system does not answer.")
        each = self.source.options["numbersPerSplit"]
        return [
            Lasting(
                split_id=f"from-{start}",
                position=start,
                stop=min(start + each, self.data.count),
                lasting=not self.bounded,
            )
            for start in range(0, self.data.count, each)
        ]

    def _on_listed(self, splits: list[Range] | None, error: Exception | None) -> None:
        if error is not None and self.listed:
            if self.bug == "a later failure forgets what is known":
                self.known.clear()
            return
        new = [split for split in splits or () if split.split_id not in self.known]
        if self.bug == "finds what it has found" and self.listed and len(new) < len(splits or ()):
            new = [msgspec.structs.replace(split, split_id=f"{split.split_id}-again") for split in splits or ()][:1]
        self.known |= {split.split_id for split in new}
        super()._on_listed(None if splits is None else new, error)

    def add_reader(self, subtask: int) -> None:
        super().add_reader(subtask)
        reported = self.context.registered_readers[subtask].reported_splits_on_registration
        if self.bug == "reads what is reported from its beginning":
            reported = [msgspec.structs.replace(each, position=int(each.split_id[5:])) for each in reported]  # type: ignore[assignment]
        if self.bug != "forgets what readers report":
            self.pending.extend(reported)  # type: ignore[arg-type]
        self._serve()

    def _serve(self) -> None:
        if self.bounded:
            super()._serve()
            return
        readers = sorted(self.context.registered_readers)
        for split in list(self.pending):
            owner = split.position // 7 % self.context.current_parallelism
            if owner in readers:
                self.pending.remove(split)
                self.context.assign_split(split, owner)

    def unassigned_event_time_ms(self) -> int | None:
        if self.bug == "holds watermarks for ever" or not self.listed:
            return MIN_WATERMARK_MS
        if self.bug == "nothing holds watermarks":
            return 1 << 40
        return min((split.position * 1000 for split in self.pending), default=None)

    def snapshot_state(self, checkpoint_id: int) -> EventsState:
        pending: Any = tuple(self.pending)
        return EventsState(pending=pending, listed=self.listed, known=tuple(sorted(self.known)))


class Events(Numbers, SupportsSplitReassignmentOnRecovery):
    name = "events"
    option_specs: ClassVar[Sequence[OptionSpec]] = (
        *Numbers.option_specs,
        OptionSpec("system", text, "quiet"),
        OptionSpec("watermarks", text, ""),
    )
    split_serializer = VersionedSerializer(Lasting, version=1, what="a split of events")
    state_serializer = VersionedSerializer(EventsState, version=2, what="the state of events", upgrades={1: dict})

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.watermarks = bool(self.options["watermarks"])

    @property
    def data(self) -> Data:
        return SYSTEMS.setdefault(self.options["system"], Data())

    def schema(self) -> pa.Schema:
        return EVENTS

    def create_enumerator(self, context: SplitEnumeratorContext[Range]) -> SplitEnumerator[Range, State]:
        return EventsEnumerator(self, context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[Range], state: State) -> SplitEnumerator[Range, State]:
        assert isinstance(state, EventsState)
        return EventsEnumerator(self, context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Range]:
        reader = RangeSourceReader(lambda: EventsReader(self, context.subtask), context)
        reader.bug = self.bug
        return reader

    def plan_ranges(self, splits: Sequence[Range], limits: PlanLimits, now_ms: int) -> Sequence[PlannedRange[Range]]:
        if limits.before_event_time_ms is None:
            return super().plan_ranges(splits, limits, now_ms)
        before = -(-limits.before_event_time_ms // 1000) + (1 if self.bug == "seeks too far" else 0)
        ranges = []
        for split in splits:
            stop = min(split.stop, before)
            if stop > split.position:
                rest = None if stop == split.stop else msgspec.structs.replace(split, position=stop)
                ranges.append(PlannedRange(split=msgspec.structs.replace(split, stop=stop), rest=rest))
        return ranges

    def next_event_times(self, splits: Sequence[Range]) -> Mapping[str, int | None]:
        late = 1 if self.bug == "says a later event time" else 0
        return {split.split_id: (split.position + late) * 1000 for split in splits if split.position < split.stop}

    def grouping(self) -> dict[str, Any]:
        return {}

    def group_splits(self, splits: Sequence[Range], grouping: Mapping[str, Any]) -> Sequence[Sequence[Range]]:
        return [[split] for split in splits[1 if self.bug == "leaves out a split" else 0 :]]


def events(**options: str) -> Events:
    """Return a source with all abilities and these options."""
    return Events(options)
