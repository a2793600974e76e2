"""`headgate.kinesis`: a stream of Amazon Kinesis, up to now as a batch, or for ever.

Never: hold a client or a thread that would be pickled: clients belong to the process, the scout to the planner.

Shards are splits. In micro-batches a range ends at a sequence number that the scout has seen; its record and that of
the beginning are checked when the range is read, so that a replay gives the same rows or an error.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from headgate.assigners import RoundRobinAssigner
from headgate.connectors.kinesis.api import MAX_RECORDS, KinesisApi, Shard, Trouble, TroubleKind
from headgate.connectors.kinesis.columns import SCHEMA, KinesisColumns
from headgate.connectors.kinesis.cursor import (
    CALL_INTERVAL_MS,
    IDLE_INTERVAL_MS,
    CursorSettings,
    Patience,
    ShardCursor,
    monotonic_ms,
)
from headgate.connectors.kinesis.enumerator import KinesisEnumerator
from headgate.connectors.kinesis.options import NAME, OPTION_SPECS, StreamAddress, start_of
from headgate.connectors.kinesis.scout import Scout, shares
from headgate.connectors.kinesis.shards import Discovered, new_shards
from headgate.connectors.kinesis.split import SPLIT_SERIALIZER, STATE_SERIALIZER, KinesisSplit, KinesisState
from headgate.readers import MultithreadedReader
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.options import OptionSpec
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import PlanLimits, PlannedRange, Source, SupportsSplitReassignmentOnRecovery

_CLOCKS_DIFFER_MS = 1000
"""Kinesis reports its time in whole seconds."""


class KinesisSource(Source[KinesisSplit, KinesisState], SupportsSplitReassignmentOnRecovery):
    """Reads a stream.

    Parameters
    ----------
    options
        See ``option_specs``.
    """

    name: ClassVar[str] = NAME
    option_specs: ClassVar[Sequence[OptionSpec]] = OPTION_SPECS
    split_serializer: ClassVar[VersionedSerializer[KinesisSplit]] = SPLIT_SERIALIZER
    state_serializer: ClassVar[VersionedSerializer[KinesisState]] = STATE_SERIALIZER

    records_per_call: ClassVar[int] = MAX_RECORDS
    call_interval_ms: ClassVar[int] = CALL_INTERVAL_MS
    idle_interval_ms: ClassVar[int] = IDLE_INTERVAL_MS

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._address = StreamAddress.of(self.options)
        self._scout: Scout | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the planner's scout."""
        return {**self.__dict__, "_scout": None}

    def schema(self) -> str:
        """Return the columns of a record."""
        return SCHEMA

    def create_enumerator(
        self, context: SplitEnumeratorContext[KinesisSplit]
    ) -> SplitEnumerator[KinesisSplit, KinesisState]:
        """Return an enumerator that looks for shards once it is started."""
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[KinesisSplit], state: KinesisState
    ) -> SplitEnumerator[KinesisSplit, KinesisState]:
        """Return an enumerator that goes on with the shards of before."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[KinesisSplit]:
        """Return a reader with ``fetchThreads`` threads at most, each for several shards."""
        from headgate.connectors.kinesis.split_reader import KinesisSplitReader

        threads = self.options["fetchThreads"]
        columns = KinesisColumns(context.schema, self._address.name)
        return MultithreadedReader(
            partial(
                KinesisSplitReader,
                self._open_cursor,
                columns,
                records_per_call=self.records_per_call,
                metric_group=context.metric_group,
            ),
            context,
            fetcher_for=lambda split: _number(split.split_id) % threads,
        )

    def plan_ranges(
        self, splits: Sequence[KinesisSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[KinesisSplit]]:
        """Plan what the scout sees, the shards alike as far as the limits go.

        Of the limits ``max_rows`` and ``max_planning_ms`` count. Splits with a stop are read as a whole, without
        looking, where the limits allow it.

        Raises
        ------
        SourceUnavailableError
            Kinesis has not answered for ``requestTimeout``.
        DataLossError
            What was seen before is not there any longer.
        """
        scout = self._scout = self._scout or self._new_scout()
        scout.forget_others(splits)
        most = limits.max_rows
        most_each: int | None = self.options["maxFetchRecordsPerShard"]
        known = {split.split_id: split.rows or 0 for split in splits if split.stop is not None}
        if limits == PlanLimits() and not known:  # where everything ends now is wanted, which is not a batch yet
            most_each = None
        whole = [
            split
            for split in splits
            if split.stop is not None
            and (most is None or sum(known.values()) <= most)
            and (most_each is None or known[split.split_id] <= most_each)
        ]
        planned = {split.split_id: PlannedRange(split=split) for split in whole}
        rows_of_whole = sum(known[split.split_id] for split in whole)
        others = [split for split in splits if split.split_id not in planned]
        if most is not None:
            most -= rows_of_whole
        if most != 0:
            seen = scout.read_ahead(
                others, most=most, most_per_split=most_each, budget_ms=limits.max_planning_ms, now_ms=now_ms
            )
            granted = shares({split_id: each.count for split_id, each in seen.items()}, most, most_each)
            for split in others:
                taken = seen[split.split_id].take(split, granted[split.split_id])
                if taken is not None:
                    planned[split.split_id] = taken
        return [planned[split.split_id] for split in splits if split.split_id in planned]

    def lag(self, splits: Sequence[KinesisSplit], now_ms: int) -> Mapping[str, int]:
        """Return how far the slowest shard lagged the newest record at the last look."""
        return {"millisBehindLatest": 0 if self._scout is None else self._scout.lag_ms()}

    def _enumerator(
        self, context: SplitEnumeratorContext[KinesisSplit], state: KinesisState | None
    ) -> SplitEnumerator[KinesisSplit, KinesisState]:
        KinesisColumns(context.schema, self._address.name)
        start_of(self.options, context.boundedness)
        discover = partial(self._discover, context.boundedness)
        return KinesisEnumerator(context, discover, RoundRobinAssigner(), self.options["discoveryInterval"], state)

    def _open_cursor(self, split: KinesisSplit, idle_interval_ms: int | None = None) -> ShardCursor:
        settings = CursorSettings(
            fail_on_data_loss=self.options["failOnDataLoss"],
            give_up_ms=self.options["requestTimeout"],
            call_interval_ms=self.call_interval_ms,
            idle_interval_ms=self.idle_interval_ms if idle_interval_ms is None else idle_interval_ms,
        )
        return ShardCursor(KinesisApi(self._address), split, settings)

    def _new_scout(self) -> Scout:
        # The scout itself leaves alone a shard in which it found nothing.
        open_cursor = partial(self._open_cursor, idle_interval_ms=self.call_interval_ms)
        return Scout(open_cursor, self.options["fetchThreads"], records_per_call=self.records_per_call)

    def _discover(self, boundedness: Boundedness, known: frozenset[str], initial: bool) -> Discovered:
        """Look for shards, resolve where new ones start and, in a bounded read, where they end. Blocks."""
        listed, now_ms = self._list_shards(patient=initial)
        start = start_of(self.options, boundedness) if initial else None
        if start is not None and start.timestamp_ms is not None and start.timestamp_ms > now_ms + _CLOCKS_DIFFER_MS:
            raise self.options.error("startingPosition", "lies in the future. Use 'latest', or a time that has passed.")
        found = new_shards(listed, known, start, now_ms)
        if boundedness is Boundedness.BOUNDED:
            return msgspec.structs.replace(found, splits=self._up_to_now(found.splits))
        if start is not None and start.kind == "latest":
            return msgspec.structs.replace(found, splits=self._after_latest(found.splits))
        return found

    def _list_shards(self, *, patient: bool) -> tuple[list[Shard], int]:
        """List shards; a later look that fails is only tried again when the next one is due, as reading goes on."""
        api, patience = KinesisApi(self._address), Patience(self.options["requestTimeout"])
        while True:
            try:
                return api.list_shards()
            except Trouble as trouble:
                if not patient and trouble.kind is not TroubleKind.EXPIRED:
                    raise trouble.error from trouble
                time.sleep(patience.failed(trouble, monotonic_ms()) / 1000)

    def _up_to_now(self, splits: Sequence[KinesisSplit]) -> tuple[KinesisSplit, ...]:
        """Return ranges that end at the last record of each shard; none for a shard without records."""
        seen = self._new_scout().read_ahead(splits, most=None, most_per_split=None, budget_ms=None, now_ms=0)
        ranges = [seen[split.split_id].take(split, seen[split.split_id].count) for split in splits]
        return tuple(each.split for each in ranges if each is not None and not each.split.ended)

    def _after_latest(self, splits: Sequence[KinesisSplit]) -> tuple[KinesisSplit, ...]:
        """Return ``splits``, which are at the second in which they were listed, after what came in that second.

        So `latest` is resolved by Kinesis' clock alone, and to a position that means the same for ever: the last
        record that was there, or, where there was none, a time since which none had come.
        """
        seen = self._new_scout().read_ahead(splits, most=None, most_per_split=None, budget_ms=None, now_ms=0)
        moved = []
        for split in splits:
            found = seen[split.split_id]
            planned = found.take(split, found.count)
            is_there = planned is not None and planned.split.stop is not None
            moved.append(msgspec.structs.replace(split, position=found.position) if is_there else split)
        return tuple(moved)


def _number(shard_id: str) -> int:
    """Return a number by which shards are spread over threads evenly: the one that Kinesis counts them by."""
    match = re.search(r"\d+$", shard_id)
    return int(match[0]) if match else zlib.crc32(shard_id.encode())
