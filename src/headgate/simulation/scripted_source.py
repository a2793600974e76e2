"""Sources with the enumerators of connectors: what these discover is of a `Topic`, no broker, stream or folder.

Never: decide who gets what: the enumerators are those of production. Nor more of a connector than its enumerator and
its splits, whose positions are rows of the topic here.

Follows the source contract (`headgate.source`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.fs as pa_fs

from headgate.assigners import ASSIGNERS
from headgate.connectors.datagen import split as datagen
from headgate.connectors.datagen.enumerator import DatagenEnumerator
from headgate.connectors.datagen.split import DatagenSplit, DatagenState
from headgate.connectors.files import enumerator as files
from headgate.connectors.files import split as file_splits
from headgate.connectors.files.enumerator import EnumeratorSettings, FilesEnumerator, FilesState
from headgate.connectors.files.event_times import EventTimes, RowTimes
from headgate.connectors.files.listing import FileListing, FileStatus
from headgate.connectors.files.seen_files import SeenFiles, file_hashes
from headgate.connectors.files.split import FileSplit, split_id_of
from headgate.connectors.kafka import split as kafka
from headgate.connectors.kafka.enumerator import KafkaEnumerator
from headgate.connectors.kafka.split import KafkaSplit, KafkaState
from headgate.connectors.kafka.subscription import Subscription
from headgate.connectors.kinesis import split as kinesis
from headgate.connectors.kinesis.api import Shard
from headgate.connectors.kinesis.enumerator import KinesisEnumerator
from headgate.connectors.kinesis.options import StartingPosition
from headgate.connectors.kinesis.shards import Discovered, new_shards
from headgate.connectors.kinesis.split import KinesisSplit, KinesisState, after
from headgate.connectors.simple import split as simple
from headgate.connectors.simple.enumerator import SimpleEnumerator
from headgate.connectors.simple.split import SimpleSplit, SimpleState
from headgate.enumerators.partition import TopicPartition
from headgate.simulation.topic import PIECE_ROWS, SCHEMA, Kind, Topic, TopicSplit
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.events import SourceEvent
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery

DISCOVERY_PERIOD_MS = 300


class Nudge(SourceEvent, frozen=True):
    """Says nothing; both sides send it to one another."""


class Remembered(NamedTuple):
    """What an enumerator's state says of splits.

    ``known``: they were discovered; ``ended``: they may have no place any more, as all their rows were read;
    ``pending``: no reader has them, with their positions.
    """

    known: Collection[str]
    ended: Collection[str]
    pending: dict[str, int]


class ScriptedSource(Source[Any, Any]):
    """Makes the enumerators; ``create_reader`` makes readers, in the process that calls it."""

    name = "scripted"

    def __init__(
        self, topic: Topic, create_reader: Callable[[ScriptedSource, SourceReaderContext], SourceReader[Any]]
    ) -> None:
        super().__init__({})
        self.topic = topic
        self._create_reader = create_reader

    def schema(self) -> pa.Schema:
        """Return the columns of all sources."""
        return SCHEMA

    def create_enumerator(self, context: SplitEnumeratorContext[Any]) -> SplitEnumerator[Any, Any]:
        """Return one that knows nothing."""
        return self._with_events(context, None)

    def restore_enumerator(self, context: SplitEnumeratorContext[Any], state: Any) -> SplitEnumerator[Any, Any]:
        """Return one that goes on."""
        return self._with_events(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any]:
        """Return a reader of the process that acts."""
        return self._create_reader(self, context)

    def position(self, data: bytes) -> int:
        """Return the next row of a split that is stored."""
        return self.row(self.split_serializer.deserialize(data))

    def remembered(self, data: bytes) -> Remembered:
        """Return what a stored state of an enumerator says."""
        return self._of_state(self.state_serializer.deserialize(data))

    def row(self, split: Any) -> int:
        """Return the next row of a split; most count rows themselves."""
        row: int = split.position or 0
        return row

    def at_row(self, split: Any, row: int) -> Any:
        """Return a split that was read up to a row."""
        return msgspec.structs.replace(split, position=row)

    @abstractmethod
    def _enumerator(self, context: SplitEnumeratorContext[Any], state: Any) -> SplitEnumerator[Any, Any]:
        raise NotImplementedError

    @abstractmethod
    def _of_state(self, state: Any) -> Remembered:
        raise NotImplementedError

    def _with_events(self, context: SplitEnumeratorContext[Any], state: Any) -> SplitEnumerator[Any, Any]:
        """Return an enumerator that answers events, which no connector has, but that of a user may."""
        made = self._enumerator(context, state)
        made.handle_source_event = partial(_answer, context)  # type: ignore[method-assign]
        return made

    def _rows_of(self, splits: Collection[Any]) -> dict[str, int]:
        return {each.split_id: self.row(each) for each in splits}

    def _finite(self) -> list[str]:
        """Return the splits that have an end: rows of one that was lost are missing."""
        return [each.split_id for each in self.topic.splits.values() if each.stop is not None]


def _answer(context: SplitEnumeratorContext[Any], subtask: int, event: SourceEvent) -> None:
    """Answer a reader, if it is still there."""
    assert isinstance(event, Nudge)
    if subtask in context.registered_readers:
        context.send_event_to_source_reader(subtask, event)


class OfDatagen(ScriptedSource, SupportsSplitReassignmentOnRecovery):
    """With the enumerator of `headgate.datagen`, to which all is known at once."""

    split_serializer = datagen.SPLIT_SERIALIZER
    state_serializer = datagen.STATE_SERIALIZER

    def _enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit], state: DatagenState | None
    ) -> DatagenEnumerator:
        topic = self.topic
        has_times = topic.script.strategy is not None
        return DatagenEnumerator(
            context,
            self._make_splits,
            lambda split: topic.earliest_ms(split.split_id, split.position) if has_times else 0,
            has_event_times=has_times,
            state=state,
        )

    def _make_splits(self, boundedness: Boundedness) -> list[DatagenSplit]:
        splits = enumerate(self.topic.splits.values())
        return [DatagenSplit(split_id=each.split_id, partition=number, stop=each.stop) for number, each in splits]

    def _of_state(self, state: DatagenState) -> Remembered:
        return Remembered(tuple(self.topic.splits), self._finite(), self._rows_of(state.pending))


class OfKafka(ScriptedSource, SupportsSplitReassignmentOnRecovery):
    """With the enumerator of `headgate.kafka`: splits are partitions of the topic that has the source's name."""

    split_serializer = kafka.SPLIT_SERIALIZER
    state_serializer = kafka.STATE_SERIALIZER

    def _enumerator(self, context: SplitEnumeratorContext[KafkaSplit], state: KafkaState | None) -> KafkaEnumerator:
        script = self.topic.script
        subscription, assigner = Subscription(names=frozenset({script.uid})), ASSIGNERS[script.assigner]()
        return KafkaEnumerator(context, self.discover, subscription, assigner, DISCOVERY_PERIOD_MS, state)

    def discover(self, known: frozenset[TopicPartition], initial: bool) -> list[KafkaSplit]:
        """Return the partitions that are not known: those that come later are read from their first record."""
        found = ((TopicPartition(*_named(each)), each) for each in self.topic.visible())
        return [
            KafkaSplit(
                split_id=each.split_id,
                topic=partition.topic,
                partition=partition.partition,
                position=self.topic.start(each) if initial else 0,
                stop=each.stop,
            )
            for partition, each in found
            if partition not in known
        ]

    def _of_state(self, state: KafkaState) -> Remembered:
        assigned = [f"{topic}-{number}" for topic, numbers in state.assigned.items() for number, _ in numbers]
        ended = self._finite() if state.initial_discovery_finished else []
        pending = self._rows_of(state.unassigned)
        return Remembered((*pending, *assigned, *ended), ended, pending)


def _named(split: TopicSplit) -> tuple[str, int]:
    topic, _, number = split.split_id.rpartition("-")
    return topic, int(number)


class OfKinesis(ScriptedSource, SupportsSplitReassignmentOnRecovery):
    """With the enumerator of `headgate.kinesis`: splits are shards, and sequence numbers count their records."""

    split_serializer = kinesis.SPLIT_SERIALIZER
    state_serializer = kinesis.STATE_SERIALIZER

    def row(self, split: KinesisSplit) -> int:
        """See `ScriptedSource`."""
        number = split.position.sequence_number
        return 0 if number is None else int(number) + 1

    def at_row(self, split: KinesisSplit, row: int) -> KinesisSplit:
        """See `ScriptedSource`."""
        return split if row == self.row(split) else split.read_up_to(str(row - 1), row - self.row(split))

    def _enumerator(
        self, context: SplitEnumeratorContext[KinesisSplit], state: KinesisState | None
    ) -> KinesisEnumerator:
        discover = partial(self._discover, context.boundedness is Boundedness.BOUNDED)
        return KinesisEnumerator(context, discover, ASSIGNERS["round-robin"](), DISCOVERY_PERIOD_MS, state)

    def _discover(self, bounded: bool, known: frozenset[str], initial: bool) -> Discovered:
        topic = self.topic
        shards = [Shard(each.split_id, each.parents, each.stop is None) for each in topic.visible()]
        is_latest = initial and topic.script.latest
        start = StartingPosition("latest" if is_latest else "trim_horizon") if initial else None
        found = new_shards(shards, known, start, topic.now_ms())
        change = self._up_to_now if bounded else self._after_latest if is_latest else None
        return found if change is None else msgspec.structs.replace(found, splits=tuple(map(change, found.splits)))

    def _up_to_now(self, split: KinesisSplit) -> KinesisSplit:
        stop = self.topic.splits[split.split_id].stop
        assert stop, "a shard without records is not read in a bounded read"
        return msgspec.structs.replace(split, stop=str(stop - 1), rows=stop)

    def _after_latest(self, split: KinesisSplit) -> KinesisSplit:
        rows = self.topic.start(self.topic.splits[split.split_id])
        return msgspec.structs.replace(split, position=after(str(rows - 1))) if rows else split

    def _of_state(self, state: KinesisState) -> Remembered:
        pending = self._rows_of(state.unassigned)
        return Remembered((*pending, *state.assigned, *state.finished), state.finished, pending)


class OfFiles(ScriptedSource):
    """With the enumerator of `headgate.files`: splits are pieces of files, whose footers say when their rows are."""

    split_serializer = file_splits.SPLIT_SERIALIZER
    state_serializer = files.STATE_SERIALIZER

    def __init__(
        self, topic: Topic, create_reader: Callable[[ScriptedSource, SourceReaderContext], SourceReader[Any]]
    ) -> None:
        super().__init__(topic, create_reader)
        self._pieces: dict[str, list[TopicSplit]] = {}
        for each in topic.splits.values():
            self._pieces.setdefault(each.path, []).append(each)
        self._listing = _Listing(file_system=pa_fs.LocalFileSystem(), roots=(), source=self)
        self._footers = None if topic.script.strategy is None else _Footers(self)

    def row(self, split: FileSplit) -> int:
        """See `ScriptedSource`."""
        return 0 if split.unit is None else split.unit - split.start

    def at_row(self, split: FileSplit, row: int) -> FileSplit:
        """See `ScriptedSource`."""
        return msgspec.structs.replace(split, unit=split.start + row, position=0)

    def _enumerator(self, context: SplitEnumeratorContext[FileSplit], state: FilesState | None) -> FilesEnumerator:
        settings = EnumeratorSettings(
            split_size=PIECE_ROWS, can_be_cut=lambda path: True, discovery_interval_ms=DISCOVERY_PERIOD_MS
        )
        now_s = lambda: self.topic.now_ms() / 1000  # noqa: E731
        return FilesEnumerator(context, self._listing, settings, state, self._footers, now_s=now_s)

    def statuses(self) -> list[FileStatus]:
        """Return the files that are there, in the order of modification."""
        visible = sorted(
            {each.path: each.appears_ms for each in self.topic.visible()}.items(), key=lambda each: each[::-1]
        )
        return [FileStatus(path, _size(self._pieces[path]), appears_ms) for path, appears_ms in visible]

    def row_times(self, path: str) -> RowTimes:
        """Return lower bounds of a file's rows."""
        bounds = [
            self.topic.earliest_ms(each.split_id, row) for each in self._pieces[path] for row in range(each.stop or 0)
        ]
        return RowTimes(tuple(bounds), by_unit=True)

    def _of_state(self, state: FilesState) -> Remembered:
        paths = list(self._pieces)
        seen = SeenFiles(None, state.seen).lookup(file_hashes(paths))
        known = [each.split_id for path, at in zip(paths, seen) if at >= 0 for each in self._pieces[path]]
        pending = {
            split_id_of(each.path, start): self.row(each)
            for each in state.pending
            for start in range(each.start, each.end, PIECE_ROWS)  # what is not begun may be several pieces
        }
        return Remembered(known, known, pending)


def _size(pieces: Sequence[TopicSplit]) -> int:
    return sum(each.stop or 0 for each in pieces)


class _Listing(FileListing, frozen=True, kw_only=True):
    """Lists the files of a topic."""

    source: OfFiles

    def list_files(self) -> list[FileStatus]:
        return self.source.statuses()


class _Footers(EventTimes):
    """Knows what is in footers without reading them."""

    def __init__(self, source: OfFiles) -> None:
        super().__init__(pa_fs.LocalFileSystem(), SCHEMA.field("at"), has_footers=True, time_zone=None)
        self._source = source

    def _read_footers(self, files: Sequence[FileStatus | FileSplit], stopped: Any) -> Iterator[RowTimes]:
        return (self._source.row_times(each.path) for each in files)


class OfUser(ScriptedSource):
    """With the enumerator of a source that a user writes, a `SimpleSource`."""

    split_serializer = simple.SPLIT_SERIALIZER
    state_serializer = simple.STATE_SERIALIZER

    def _enumerator(self, context: SplitEnumeratorContext[SimpleSplit], state: SimpleState | None) -> SimpleEnumerator:
        return SimpleEnumerator(
            context,
            lambda: [each.split_id for each in self.topic.visible()],
            discovery_interval_ms=DISCOVERY_PERIOD_MS,
            finite_splits=True,
            state=state,
        )

    def _of_state(self, state: SimpleState) -> Remembered:
        return Remembered((*state.known, *state.finished), state.finished, self._rows_of(state.pending))


SOURCES: dict[Kind, type[ScriptedSource]] = {
    "datagen": OfDatagen,
    "files": OfFiles,
    "kafka": OfKafka,
    "kinesis": OfKinesis,
    "simple": OfUser,
}
"""By the connector whose enumerator they have."""
