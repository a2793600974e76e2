"""A source whose splits are known beforehand: pulled or assigned, with an end or without, shards with children.

Never: read a clock: what there is to read by now a `Topic` reports, which belongs to the cluster.

The enumerators are models, small and strict, or that of `headgate.datagen`. Models raise `AssertionError` when they are
given something impossible, such as a split that comes back though it never left.

Follows the source contract (`headgate.source`); FLIP-537 for the one with the marker.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.assigners import ASSIGNERS
from headgate.connectors.datagen.enumerator import DatagenEnumerator
from headgate.connectors.datagen.split import SPLIT_SERIALIZER, STATE_SERIALIZER, DatagenSplit, DatagenState
from headgate.source.enumerator import SplitEnumerator, SplitEnumeratorContext
from headgate.source.events import SourceEvent
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery
from headgate.source.watermark import MIN_WATERMARK_MS, WatermarkStrategy

DISCOVERY_PERIOD_MS = 300
SCHEMA = pa.schema([("at", pa.timestamp("ms")), ("split", pa.string()), ("offset", pa.int64()), ("key", pa.int64())])
"""Of a row: its event time, where the source has any; where it is from; and its key."""


class ScriptedState(msgspec.Struct, frozen=True):
    """What an enumerator knows: ids it discovered, ids whose end it knows of, splits with nobody, owners by id."""

    known: tuple[str, ...]
    ended: tuple[str, ...]
    pending: tuple[DatagenSplit, ...]
    owners: dict[str, int]
    parallelism: int


SPLITS = SPLIT_SERIALIZER
STATES = VersionedSerializer(ScriptedState, version=1, what="the state of an enumerator of the simulator")


class Nudge(SourceEvent, frozen=True):
    """Says nothing; both sides send it to one another."""


class TopicSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A split as it really is.

    Parameters
    ----------
    split_id
        Its name.
    appears_ms
        When discovery can see it; for a child, when its parent has been read.
    stop
        How many rows it has; None: it grows.
    parent
        The split that must be read before it.
    first_ms, step_ms
        The event time of its first row, and from one row to the next.
    gap_at, gap_ms
        Before this row event time makes a leap.
    pause_at, resumes_ms
        This row and those after it are not there before this time.
    """

    split_id: str
    appears_ms: int
    stop: int | None
    parent: str | None = None
    first_ms: int = 0
    step_ms: int = 10
    gap_at: int = 0
    gap_ms: int = 0
    pause_at: int = 0
    resumes_ms: int = 0


class SourceScript(msgspec.Struct, frozen=True, kw_only=True):
    """What a source is like.

    Parameters
    ----------
    uid
        Its name in the query.
    splits
        All splits there will ever be.
    pulled, reassigns, bounded, latest
        Whether readers ask for splits; whether the source has FLIP-537's marker; whether it ends; whether a split is
        read from where it is when it is discovered.
    assigner
        Who gets which split, where they are not pulled.
    keeps_subtask
        Whether splits that are given back wait for the reader that had them.
    slow
        Whether splits are distributed by slow work, so that checkpoints find them pending.
    row_ms
        In how many milliseconds a growing split grows by a row.
    strategy
        How its watermarks are made, and its alignment group; None: it has no event time.
    knows_rows
        Whether its readers know the positions of single rows: alignment stops them at a row, else after a batch.
    silent_from_ms, silent_to_ms
        When nothing grows, so that all splits may become idle.
    keys
        How many keys its rows have.
    in_turn
        Whether readers read their splits in turn, so that none seems idle while it has rows.
    generated
        Whether its enumerator is that of `headgate.datagen`.
    batch_rows
        How many rows a reader emits at a time at most.
    """

    uid: str
    splits: tuple[TopicSplit, ...]
    pulled: bool
    reassigns: bool
    bounded: bool
    latest: bool
    assigner: str
    keeps_subtask: bool
    slow: bool
    row_ms: int
    strategy: WatermarkStrategy | None = None
    knows_rows: bool = False
    silent_from_ms: int = 0
    silent_to_ms: int = 0
    keys: int = 10
    in_turn: bool = False
    generated: bool = False
    batch_rows: int = 8

    @property
    def grows_splits(self) -> bool:
        """Whether some of its splits are not there from the beginning."""
        return any(split.parent is not None or split.appears_ms for split in self.splits)


class Topic:
    """What a source reads: the truth that committed output is compared with.

    Parameters
    ----------
    script
        What it is like.
    now_ms
        Reads the cluster's clock.
    """

    def __init__(self, script: SourceScript, now_ms: Callable[[], int]) -> None:
        self.script = script
        self.splits = {split.split_id: split for split in script.splits}
        self._now_ms = now_ms
        self.frozen_ms: int | None = None
        """Since when nothing grows any more."""
        self._rows_of_keys = [[0] * script.keys]

    def rows(self, split_id: str) -> int:
        """Return how many rows the split has by now."""
        split = self.splits[split_id]
        if split.stop is not None:
            return split.stop if split.resumes_ms <= self._now_ms() else split.pause_at
        now_ms = self._now_ms() if self.frozen_ms is None else self.frozen_ms
        silent_from_ms = max(split.appears_ms, self.script.silent_from_ms)
        silent_ms = max(0, min(now_ms, self.script.silent_to_ms) - silent_from_ms)
        return max(0, now_ms - split.appears_ms - silent_ms) // self.script.row_ms

    def next_row_ms(self, split_id: str, position: int) -> int | None:
        """Return when the row at a position is there, or the end, as far as is known now; None: never."""
        split = self.splits[split_id]
        if split.stop is not None:
            return split.resumes_ms if split.pause_at <= position < split.stop else 0
        if self.frozen_ms is not None and self.rows(split_id) <= position:
            return None
        grown_ms, silent_from_ms = (position + 1) * self.script.row_ms, self.script.silent_from_ms
        silent_from_ms = max(split.appears_ms, silent_from_ms)
        if split.appears_ms + grown_ms <= silent_from_ms:
            return split.appears_ms + grown_ms
        return split.appears_ms + grown_ms + max(0, self.script.silent_to_ms - silent_from_ms)

    def event_time_ms(self, split_id: str, offset: int) -> int:
        """Return the event time of a row: out of order by as much as the strategy allows."""
        assert self.script.strategy is not None
        disorder_ms = self.script.strategy.max_out_of_orderness_ms * (offset * 7 % 3) // 2
        return self._in_order_ms(split_id, offset) - disorder_ms

    def earliest_ms(self, split: DatagenSplit) -> int:
        """Return a lower bound of the event times of all rows from a split's position on."""
        assert self.script.strategy is not None
        return self._in_order_ms(split.split_id, split.position) - self.script.strategy.max_out_of_orderness_ms

    def key(self, offset: int) -> int:
        """Return the key of a row."""
        return (offset * offset * 7 + offset * 3) % self.script.keys

    def rows_of_key(self, key: int, first: int, last: int) -> int:
        """Return how many rows of a key are between two offsets, both included."""
        rows = self._rows_of_keys
        while last >= len(rows) - 1:  # how many rows each key has before an offset
            before = rows[-1].copy()
            before[self.key(len(rows) - 1)] += 1
            rows.append(before)
        return rows[last + 1][key] - rows[first][key]

    def _in_order_ms(self, split_id: str, offset: int) -> int:
        split = self.splits[split_id]
        return split.first_ms + offset * split.step_ms + (split.gap_ms if offset >= split.gap_at else 0)

    def visible(self) -> list[TopicSplit]:
        """Return the splits that discovery finds now: no children, they are known from their parents."""
        now_ms = self._now_ms() if self.frozen_ms is None else self.frozen_ms
        late = not self.script.bounded
        return [
            each for each in self.splits.values() if each.parent is None and (each.appears_ms <= now_ms or not late)
        ]

    def first(self, split: TopicSplit) -> DatagenSplit:
        """Return a split as it is discovered now."""
        start = self.rows(split.split_id) if self.script.latest and split.stop is None else 0
        partition = list(self.splits).index(split.split_id)
        return DatagenSplit(split_id=split.split_id, partition=partition, position=start, stop=split.stop)


class ScriptedSource(Source[DatagenSplit, ScriptedState]):
    """Makes the enumerators; ``create_reader`` makes readers, in the process that calls it."""

    name = "scripted"
    split_serializer = SPLITS
    state_serializer = STATES

    def __init__(
        self,
        topic: Topic,
        create_reader: Callable[[ScriptedSource, SourceReaderContext], SourceReader[DatagenSplit]],
    ) -> None:
        super().__init__({})
        self.topic = topic
        self._create_reader = create_reader

    def schema(self) -> pa.Schema:
        """Return the columns of all sources."""
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[DatagenSplit]) -> ScriptedEnumerator:
        """Return one that knows nothing."""
        return ScriptedEnumerator(self.topic, context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit], state: ScriptedState
    ) -> ScriptedEnumerator:
        """Return one that goes on."""
        return ScriptedEnumerator(self.topic, context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[DatagenSplit]:
        """Return a reader of the process that acts."""
        return self._create_reader(self, context)


class ReassigningSource(ScriptedSource, SupportsSplitReassignmentOnRecovery):
    """The same with FLIP-537's marker."""


class GeneratedSource(ReassigningSource):
    """The same with the enumerator of `headgate.datagen`."""

    state_serializer = STATE_SERIALIZER  # type: ignore[assignment]

    def create_enumerator(self, context: SplitEnumeratorContext[DatagenSplit]) -> Any:
        """Return one that makes all splits."""
        return self._generating(context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[DatagenSplit], state: Any) -> Any:
        """Return one that goes on."""
        return self._generating(context, state)

    def _generating(
        self, context: SplitEnumeratorContext[DatagenSplit], state: DatagenState | None
    ) -> DatagenEnumerator:
        topic = self.topic
        has_times = topic.script.strategy is not None
        return DatagenEnumerator(
            context,
            lambda boundedness: [topic.first(each) for each in topic.splits.values()],
            lambda split: topic.earliest_ms(split) if has_times else 0,
            has_event_times=has_times,
            state=state,
        )


def source_class(script: SourceScript) -> type[ScriptedSource]:
    """Return the class of a source."""
    if script.generated:
        return GeneratedSource
    return ReassigningSource if script.reassigns else ScriptedSource


class ScriptedEnumerator(SplitEnumerator[DatagenSplit, ScriptedState]):
    """Pulled: the next one to whoever asks. Assigned: each split has an owner, who keeps it unless P changes."""

    def __init__(
        self, topic: Topic, context: SplitEnumeratorContext[DatagenSplit], state: ScriptedState | None
    ) -> None:
        self._topic = topic
        self._context = context
        self._known: dict[str, None] = dict.fromkeys(state.known if state else ())
        self._ended: set[str] = set(state.ended if state else ())
        self._pending: dict[str, DatagenSplit] = {split.split_id: split for split in (state.pending if state else ())}
        same = state is not None and state.parallelism == context.current_parallelism
        self._owners: dict[str, int] = dict(state.owners) if state is not None and same else {}
        pushed_anew = topic.script.reassigns and not topic.script.pulled
        self._rebalancing = state is not None and not same and pushed_anew
        self._waiting: dict[int, None] = {}
        self._promised: set[int] = set()
        self._discovered = False
        self._distributing = False

    def start(self) -> None:
        """Begin discovery."""
        period_ms = None if self._topic.script.bounded else DISCOVERY_PERIOD_MS
        self._context.call_async(self._discover, self._on_discovered, period_ms=period_ms)

    def _discover(self) -> list[DatagenSplit]:
        return [self._topic.first(split) for split in self._topic.visible()]

    def _on_discovered(self, found: list[DatagenSplit] | None, error: Exception | None) -> None:
        self._discovered = True
        for split in found or ():
            if split.split_id not in self._known:
                self._known[split.split_id] = None
                self._pending[split.split_id] = split
        self._assign()

    def add_reader(self, subtask: int) -> None:
        """Take over what the reader reports: no other reader has it."""
        info = self._context.registered_readers[subtask]
        self._promised.discard(subtask)
        self._waiting.pop(subtask, None)
        for split in info.reported_splits_on_registration:
            assert isinstance(split, DatagenSplit)
            # It may have been given back already: then it is reported once more, at the same position.
            known = self._pending.get(split.split_id, split)
            assert known == split, f"{split} was reported, but is {known} here"
            # It may have ended before the reader was restored to an earlier position: then it ends once more.
            self._known[split.split_id] = None
            self._pending[split.split_id] = split
            if not self._rebalancing:
                self._owners.setdefault(split.split_id, subtask)
        self._assign()

    def take_assignments(self, assignment: Mapping[int, Sequence[DatagenSplit]]) -> bool:
        """Let the splits be pending no longer, as after assigning them."""
        for subtask, splits in assignment.items():
            for split in splits:
                self._known[split.split_id] = None
                self._pending.pop(split.split_id, None)
                self._owners.setdefault(split.split_id, subtask)
        return True

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        """Serve a reader now or later; one that asked twice may have been notified that nothing follows."""
        if subtask not in self._promised:
            self._waiting[subtask] = None
            self._assign()

    def handle_source_event(self, subtask: int, event: SourceEvent) -> None:
        """Answer, if the reader is still there."""
        assert isinstance(event, Nudge)
        if subtask in self._context.registered_readers:
            self._context.send_event_to_source_reader(subtask, event)

    def add_splits_back(self, splits: Sequence[DatagenSplit], subtask: int) -> None:
        """Take splits back, and serve whoever waits."""
        self._waiting.pop(subtask, None)
        for split in splits:
            assert split.split_id not in self._pending, f"{split.split_id} came back but was not away"
            self._pending[split.split_id] = split
            self._owners.setdefault(split.split_id, subtask)
        self._assign()

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        """Let children follow."""
        for split_id in split_ids:
            if split_id in self._ended:
                continue
            self._ended.add(split_id)  # its owner stays: should its end be undone, it goes back there
            for split in self._topic.splits.values():
                if split.parent == split_id and split.split_id not in self._known:
                    self._known[split.split_id] = None
                    self._pending[split.split_id] = self._topic.first(split)
        self._assign()

    def snapshot_state(self, checkpoint_id: int) -> ScriptedState:
        """Return all of it."""
        return ScriptedState(
            tuple(self._known),
            tuple(sorted(self._ended)),
            tuple(self._pending.values()),
            dict(self._owners),
            0 if self._rebalancing else self._context.current_parallelism,
        )

    def unassigned_event_time_ms(self) -> int | None:
        """Return a lower bound of what is pending."""
        if self._topic.script.strategy is None:
            return None
        if not self._discovered:
            return MIN_WATERMARK_MS
        return min(map(self._topic.earliest_ms, self._pending.values()), default=None)

    def close(self) -> None:
        """Nothing is open."""

    def _assign(self) -> None:
        if self._topic.script.pulled:
            self._serve()
        elif not self._topic.script.slow:
            self._distribute()
        elif (self._pending or self._rebalancing) and not self._distributing:
            self._distributing = True
            self._context.call_async(lambda: None, self._on_distributed)
        self._promise()

    def _on_distributed(self, result: None, error: Exception | None) -> None:
        self._distributing = False
        self._distribute()
        self._promise()

    def _promise(self) -> None:
        """Notify readers that nothing follows, if so."""
        done = self._discovered and not self._pending and not self._rebalancing and self._nothing_follows()
        if self._topic.script.bounded and done:
            readers = list(self._context.registered_readers)
            for subtask in (each for each in readers if each in self._waiting or not self._topic.script.pulled):
                if subtask not in self._promised:
                    self._promised.add(subtask)
                    self._waiting.pop(subtask, None)
                    self._context.signal_no_more_splits(subtask)

    def _nothing_follows(self) -> bool:
        parents = {split.parent for split in self._topic.splits.values() if split.parent is not None}
        return parents <= self._ended

    def _serve(self) -> None:
        for subtask in list(self._waiting):
            if self._pending and subtask in self._context.registered_readers:
                split_id = next(iter(self._pending))
                if self._topic.script.strategy is not None:
                    split_id = min(self._pending, key=lambda each: self._topic.earliest_ms(self._pending[each]))
                del self._waiting[subtask]
                self._context.assign_splits({subtask: [self._pending.pop(split_id)]})

    def _distribute(self) -> None:
        readers, parallelism = self._context.registered_readers, self._context.current_parallelism
        if self._rebalancing and len(readers) < parallelism:
            return
        self._rebalancing = False
        homeless = [("topic", split_id) for split_id in self._pending if split_id not in self._owners]
        owners = {
            split_id: ("topic", subtask) for split_id, subtask in self._owners.items() if split_id not in self._ended
        }
        self._owners |= ASSIGNERS[self._topic.script.assigner]().assign(homeless, owners, parallelism)
        assignment: dict[int, list[DatagenSplit]] = {}
        for split_id, split in list(self._pending.items()):
            subtask = self._owners[split_id]
            if subtask in readers and subtask not in self._promised:
                assignment.setdefault(subtask, []).append(split)
                del self._pending[split_id]
        if assignment:
            self._context.assign_splits(assignment)
