"""A small, complete and sound source of numbers; and the same with one of many bugs, each named.

`BUGS` says which promise each of them breaks. A bug may break others, too.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
import pyarrow as pa

from headgate.readers import MultiplexedReader
from headgate.source import (
    FetchedBatch,
    OptionSpec,
    PlanLimits,
    PlannedRange,
    Source,
    SourceReader,
    SourceReaderContext,
    Split,
    SplitEnumerator,
    SplitEnumeratorContext,
    SplitReader,
    VersionedSerializer,
)
from headgate.source.options import integer, text

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
}
"""For each bug the promise by whose name the kit finds it."""


class Range(Split, frozen=True, kw_only=True):
    position: int
    stop: int


class State(msgspec.Struct, frozen=True, kw_only=True):
    pending: tuple[Range, ...] = ()
    listed: bool = False


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
            time.sleep(0.3)


class RangeSourceReader(MultiplexedReader[Range]):
    bug = ""

    def pause_or_resume_splits(self, splits_to_pause: Collection[str], splits_to_resume: Collection[str]) -> None:
        if self.bug == "pausing does nothing":
            return
        if self.bug == "a pause drops the rest of a batch":
            for split_id in splits_to_pause:
                self._remainders.pop(split_id, None)
        super().pause_or_resume_splits(splits_to_pause, splits_to_resume)

    def snapshot_state(self, checkpoint_id: int) -> list[Range]:
        splits = super().snapshot_state(checkpoint_id)
        return splits[1:] if self.bug == "reader forgets a split" else splits

    def close(self) -> None:
        super().close()
        if self.bug == "close blocks":
            time.sleep(0.5)


class RangeEnumerator(SplitEnumerator[Range, State]):
    def __init__(self, source: Numbers, context: SplitEnumeratorContext[Range], state: State | None) -> None:
        self.bug = source.bug
        self.source = source
        self.context = context
        self.restored = state is not None
        state = state or State()
        self.listed = state.listed
        self.pending = deque(state.pending)
        self.waiting: list[int] = []
        self.assigned: set[str] = set()

    def start(self) -> None:
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
        self.lock: Any = threading.Lock() if self.bug == "cannot be pickled" else None

    def schema(self) -> pa.Schema:
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[Range]) -> SplitEnumerator[Range, State]:
        return RangeEnumerator(self, context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[Range], state: State) -> SplitEnumerator[Range, State]:
        return RangeEnumerator(self, context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Range]:
        reader = RangeSourceReader(lambda: RangeReader(self.bug, context.subtask), context)
        reader.bug = self.bug
        return reader

    def plan_ranges(self, splits: Sequence[Range], limits: PlanLimits, now_ms: int) -> Sequence[PlannedRange[Range]]:
        if self.bug == "plans nothing":
            return []
        if limits.max_rows is None and limits.max_files is None and limits.max_bytes is None:
            return [PlannedRange(split=split) for split in splits]
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
