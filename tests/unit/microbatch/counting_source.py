"""A source for the tests of planners: splits are named ranges of numbers, known to an object the test controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.source import (
    Boundedness,
    PlanLimits,
    PlannedRange,
    Remaining,
    Source,
    SourceReader,
    SourceReaderContext,
    Split,
    SplitEnumerator,
    SplitEnumeratorContext,
    SupportsSplitReassignmentOnRecovery,
    VersionedSerializer,
)
from headgate.source.options import OptionSpec, boolean, integer, text


class World:
    """What exists outside: lists and their lengths."""

    def __init__(self, **lengths: int) -> None:
        self.lengths = dict(lengths)
        self.listings = 0


class RangeSplit(Split, frozen=True, kw_only=True):
    position: int = 0
    stop: int | None = None

    def remaining(self) -> Remaining:
        return Remaining(rows=None if self.stop is None else self.stop - self.position)


class Known(msgspec.Struct, frozen=True):
    names: list[str]


class CountingEnumerator(SplitEnumerator[RangeSplit, Known]):
    """Assigns each list once, eagerly or when asked."""

    def __init__(self, source: CountingSource, context: SplitEnumeratorContext[RangeSplit], known: Known) -> None:
        self._source, self._context = source, context
        self._known = list(known.names)
        self._pending: list[RangeSplit] = []
        self.closed = False

    def start(self) -> None:
        bounded = self._context.boundedness is Boundedness.BOUNDED
        self._context.call_async(self._list, self._listed, period_ms=None if bounded else 1000)

    def _list(self) -> dict[str, int]:
        self._source.world.listings += 1
        return dict(self._source.world.lengths)

    def _listed(self, lengths: dict[str, int] | None, error: Exception | None) -> None:
        if error is not None:
            raise error
        assert lengths is not None
        bounded = self._context.boundedness is Boundedness.BOUNDED or self._source.options["finite"]
        for name in sorted(lengths.keys() - set(self._known)):
            self._known.append(name)
            self._pending.append(RangeSplit(split_id=name, stop=lengths[name] if bounded else None))
        if not self._source.options["pull"]:
            self._context.assign_splits({0: self._pending})
            self._pending = []
        if self._context.boundedness is Boundedness.BOUNDED and not self._pending:
            self._context.signal_no_more_splits(0)

    def handle_split_request(self, subtask: int, host: str | None) -> None:
        if self._pending:
            self._context.assign_split(self._pending.pop(0), subtask)
        elif self._context.boundedness is Boundedness.BOUNDED:
            self._context.signal_no_more_splits(subtask)

    def add_reader(self, subtask: int) -> None:
        info = self._context.registered_readers[subtask]
        kept = [each for each in info.reported_splits_on_registration if each.split_id in self._source.world.lengths]
        if kept:
            self._context.assign_splits({subtask: kept})

    def add_splits_back(self, splits: Sequence[RangeSplit], subtask: int) -> None:
        self._pending = [*splits, *self._pending]

    def snapshot_state(self, checkpoint_id: int) -> Known:
        waiting = {each.split_id for each in self._pending}
        return Known([name for name in self._known if name not in waiting])

    def close(self) -> None:
        self.closed = True


class CountingSource(Source[RangeSplit, Known]):
    name = "counting"
    option_specs = (
        OptionSpec("pull", boolean, False),
        OptionSpec("finite", boolean, False),
        OptionSpec("seed", integer(0), 0, changeable=False),
        OptionSpec("password", text, None),
    )
    split_serializer = VersionedSerializer(RangeSplit, version=1, what="a split of counting")
    state_serializer = VersionedSerializer(Known, version=1, what="the state of counting")

    def __init__(self, options: Mapping[str, str], world: World) -> None:
        super().__init__(options)
        self.world = world

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def create_enumerator(self, context: SplitEnumeratorContext[RangeSplit]) -> CountingEnumerator:
        return CountingEnumerator(self, context, Known([]))

    def restore_enumerator(self, context: SplitEnumeratorContext[RangeSplit], state: Known) -> CountingEnumerator:
        return CountingEnumerator(self, context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[RangeSplit]:
        raise AssertionError("planners do not read")

    def plan_ranges(
        self, splits: Sequence[RangeSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[RangeSplit]]:
        left: Any = limits.max_rows if limits.max_rows is not None else 10**9
        planned = []
        for split in splits:
            end = split.stop if split.stop is not None else self.world.lengths[split.split_id]
            stop = min(end, split.position + left)
            if stop > split.position:
                left -= stop - split.position
                done = split.stop is not None and stop == split.stop
                rest = None if done else msgspec.structs.replace(split, position=stop)
                planned.append(PlannedRange(split=msgspec.structs.replace(split, stop=stop), rest=rest))
        return planned


class ReassigningSource(CountingSource, SupportsSplitReassignmentOnRecovery):
    pass
