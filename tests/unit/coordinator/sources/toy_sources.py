"""Two small sources, strict about the calls they get: one is pulled, the other pushes and has FLIP-537's marker.

Never: forgive. A split that comes back though it never left, or is known twice, is an `AssertionError`.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence

import msgspec
import pyarrow as pa

from headgate.source.enumerator import SplitEnumerator, SplitEnumeratorContext
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import Source, SupportsSplitReassignmentOnRecovery
from headgate.source.split import Split
from headgate.source.watermark import MIN_WATERMARK_MS


class ToySplit(Split, frozen=True, kw_only=True):
    """Rows from ``position`` up to ``stop``; ``child`` may be read when it was read."""

    position: int = 0
    stop: int = 2
    child: str = ""


def event_time_of(split_id: str) -> int | None:
    """Return the event time of a split's rows: s3 comes before c3, which comes before s4; None: it has none."""
    digits = split_id[1:]
    return int(digits) * 10 + (5 if split_id.startswith("c") else 0) if digits.isdecimal() else None


class ToyState(msgspec.Struct, frozen=True):
    """What a toy enumerator knows: ids ever seen, splits with nobody, ids of parents that ended, and who there is."""

    known: tuple[str, ...] = ()
    pending: tuple[ToySplit, ...] = ()
    ended: tuple[str, ...] = ()
    discovered: bool = False
    assigned: tuple[str, ...] = ()
    parallelism: int = 0


SPLITS = VersionedSerializer(ToySplit, version=1, what="a split of a toy")
STATES = VersionedSerializer(ToyState, version=1, what="the state of a toy")


class ToyEnumerator(SplitEnumerator[ToySplit, ToyState]):
    """Discovers the splits of its source, once after each start."""

    def __init__(self, context: SplitEnumeratorContext[ToySplit], source: ToySource, state: ToyState) -> None:
        self.context = context
        self.splits = source.splits
        self.reported = source.reported
        self.known = set(state.known)
        self.pending = {split.split_id: split for split in state.pending}
        self.ended = set(state.ended)
        self.discovered = state.discovered
        self.promised: set[int] = set()

    def start(self) -> None:
        self.context.call_async(lambda: list(self.splits), self._on_discovered)  # a restored one looks again, too

    def _on_discovered(self, found: list[ToySplit] | None, error: Exception | None) -> None:
        if error is not None:
            raise error
        assert found is not None
        self.discovered = True
        for split in found:
            self.add(split)
        self.add_children()
        self.serve()

    def add(self, split: ToySplit) -> None:
        if split.split_id not in self.known:
            self.known.add(split.split_id)
            self.pending[split.split_id] = split

    def take_back(self, splits: Sequence[ToySplit]) -> None:
        for split in splits:
            assert split.split_id in self.known, f"{split} was never here"
            assert split.split_id not in self.pending, f"{split} is here already"
            self.pending[split.split_id] = split

    def notify_splits_finished(self, split_ids: Collection[str]) -> None:
        self.ended.update(split_ids)
        if self.discovered:
            self.add_children()
        self.serve()

    def add_children(self) -> None:
        for split in self.splits:
            if split.child and split.split_id in self.ended:
                self.add(ToySplit(split_id=split.child))

    def unassigned_event_time_ms(self) -> int | None:
        if not self.discovered:
            return MIN_WATERMARK_MS
        unborn = [split.child for split in self.splits if split.child and split.child not in self.known]
        times = [event_time_of(split_id) for split_id in (*self.pending, *unborn)]
        return min((time for time in times if time is not None), default=None)

    @property
    def is_all_there(self) -> bool:
        parents = {split.split_id for split in self.splits if split.child}
        return self.discovered and not self.pending and parents <= self.ended

    def serve(self) -> None:
        raise NotImplementedError

    def snapshot_state(self, checkpoint_id: int) -> ToyState:
        return ToyState(
            known=tuple(sorted(self.known)),
            pending=tuple(self.pending.values()),
            ended=tuple(sorted(self.ended)),
            discovered=self.discovered,
            parallelism=self.context.current_parallelism,
        )

    def close(self) -> None:
        pass


class PullEnumerator(ToyEnumerator):
    """Gives each reader that asks one split, the last ones first after a restore: it is not what it would do again."""

    def __init__(self, context: SplitEnumeratorContext[ToySplit], source: ToySource, state: ToyState) -> None:
        super().__init__(context, source, state)
        self.waiting: dict[int, None] = {}
        self.last_first = bool(state.known)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        self.waiting[subtask] = None
        self.serve()

    def add_reader(self, subtask: int) -> None:
        self.promised.discard(subtask)

    def add_splits_back(self, splits: Sequence[ToySplit], subtask: int) -> None:
        self.waiting.pop(subtask, None)
        self.take_back(splits)
        self.serve()

    def serve(self) -> None:
        for subtask in list(self.waiting):
            if subtask not in self.context.registered_readers:
                del self.waiting[subtask]
            elif self.pending:
                split_id = list(self.pending)[-1 if self.last_first else 0]
                del self.waiting[subtask]
                self.context.assign_split(self.pending.pop(split_id), subtask)
            elif self.is_all_there:
                del self.waiting[subtask]
                self.context.signal_no_more_splits(subtask)


class PushEnumerator(ToyEnumerator):
    """Gives each split to its owner, by a hash, once that is there."""

    def __init__(self, context: SplitEnumeratorContext[ToySplit], source: ToySource, state: ToyState) -> None:
        super().__init__(context, source, state)
        same = state.parallelism == context.current_parallelism
        self.assigned = set(state.assigned) if same else set()
        self.all_came = False  # until then anything may be reported, and be another reader's

    def unassigned_event_time_ms(self) -> int | None:
        return super().unassigned_event_time_ms() if self.all_came else MIN_WATERMARK_MS

    def owner(self, split_id: str) -> int:
        return zlib.crc32(split_id.encode()) % self.context.current_parallelism

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        pass

    def add_reader(self, subtask: int) -> None:
        self.promised.discard(subtask)
        self.all_came |= len(self.context.registered_readers) == self.context.current_parallelism
        for split in self.context.registered_readers[subtask].reported_splits_on_registration:
            assert isinstance(split, ToySplit)
            moved = self.owner(split.split_id) != subtask and split.split_id in self.assigned
            if not moved and split.split_id not in self.pending:
                self.known.add(split.split_id)
                self.assigned.discard(split.split_id)
                self.pending[split.split_id] = split
        self.serve()

    def add_splits_back(self, splits: Sequence[ToySplit], subtask: int) -> None:
        self.take_back(splits)
        self.serve()

    def serve(self) -> None:
        readers = self.context.registered_readers
        for split in list(self.pending.values()):
            if self.owner(split.split_id) in readers:
                del self.pending[split.split_id]
                self.assigned.add(split.split_id)
                self.context.assign_split(split, self.owner(split.split_id))
        if self.is_all_there and len(readers) == self.context.current_parallelism:
            for subtask in readers:
                if subtask not in self.promised:
                    self.promised.add(subtask)
                    self.context.signal_no_more_splits(subtask)

    def snapshot_state(self, checkpoint_id: int) -> ToyState:
        return msgspec.structs.replace(super().snapshot_state(checkpoint_id), assigned=tuple(sorted(self.assigned)))


class ToySource(Source[ToySplit, ToyState]):
    """Splits that are pulled."""

    name = "toy"
    split_serializer = SPLITS
    state_serializer = STATES
    enumerator: type[ToyEnumerator] = PullEnumerator

    def __init__(self, splits: Sequence[ToySplit]) -> None:
        super().__init__({})
        self.splits = splits
        self.reported: set[str] = set()  # by readers that were restored, ever

    def schema(self) -> pa.Schema:
        return pa.schema([])

    def create_enumerator(self, context: SplitEnumeratorContext[ToySplit]) -> ToyEnumerator:
        return self.enumerator(context, self, ToyState())

    def restore_enumerator(self, context: SplitEnumeratorContext[ToySplit], state: ToyState) -> ToyEnumerator:
        return self.enumerator(context, self, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[ToySplit]:
        raise NotImplementedError


class PushedToySource(ToySource, SupportsSplitReassignmentOnRecovery):
    """Splits that are pushed, reported and assigned anew."""

    enumerator = PushEnumerator


class PullReportedEnumerator(PullEnumerator):
    """Takes note of what it assigned since its state, and promises an end only when all readers have reported."""

    def __init__(self, context: SplitEnumeratorContext[ToySplit], source: ToySource, state: ToyState) -> None:
        super().__init__(context, source, state)
        self.all_came = False

    def take_assignments(self, assignment: Mapping[int, Sequence[ToySplit]]) -> bool:
        for split in (each for splits in assignment.values() for each in splits):
            is_here = self.pending.pop(split.split_id, None) is not None
            is_new = split.split_id not in self.known
            assert is_here or is_new or split.split_id in self.reported, f"{split} was assigned before"
            self.known.add(split.split_id)
        return True

    def add_reader(self, subtask: int) -> None:
        super().add_reader(subtask)
        self.waiting.pop(subtask, None)
        self.all_came |= len(self.context.registered_readers) == self.context.current_parallelism
        for split in self.context.registered_readers[subtask].reported_splits_on_registration:
            assert isinstance(split, ToySplit)
            assert self.pending.get(split.split_id, split) == split, f"{split} is here at another position"
            self.known.add(split.split_id)
            self.pending[split.split_id] = split
        self.serve()

    def serve(self) -> None:
        if self.all_came:
            super().serve()


class PulledReportedToySource(ToySource, SupportsSplitReassignmentOnRecovery):
    """Splits that are pulled, reported and assigned anew."""

    enumerator = PullReportedEnumerator
