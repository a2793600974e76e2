"""`headgate.datagen`: rows made from nothing, for tests, benches and demos; the same for the same seed.

Never: let the rows depend on how they are read: splits, batches, restarts and the clock decide when a row comes and
in whose company, never what is in it.

Options are named as in Spark's ``rate`` and ``rate-micro-batch`` sources where they have one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np

from headgate.connectors.datagen.columns import RowGenerator
from headgate.connectors.datagen.enumerator import DatagenEnumerator
from headgate.connectors.datagen.fields import FIELD_OPTIONS, match_fields, parse_timestamp
from headgate.connectors.datagen.partitions import Pace, Partitions
from headgate.connectors.datagen.split import SPLIT_SERIALIZER, STATE_SERIALIZER, DatagenSplit, DatagenState
from headgate.connectors.datagen.split_reader import DatagenSplitReader, wall_clock_ms
from headgate.errors import OptionError
from headgate.readers import MultiplexedReader
from headgate.source.enumerator import Boundedness, SplitEnumerator, SplitEnumeratorContext
from headgate.source.options import OptionSpec, duration_ms, integer, number, text
from headgate.source.reader import SourceReader, SourceReaderContext
from headgate.source.serialization import VersionedSerializer
from headgate.source.source import PlanLimits, PlannedRange, Source, SupportsSplitReassignmentOnRecovery

_PIECE_ROWS = 1_000_000
_MAX_PIECES = 1024


def _start(value: str) -> int | None:
    """Parse the event time of row 0 into microseconds; ``now`` is None."""
    if value.strip().lower() == "now":
        return None
    try:
        return int(value) * 1000
    except ValueError:
        pass
    try:
        return parse_timestamp(value)
    except ValueError:
        raise ValueError("milliseconds since 1970-01-01 UTC, a time like 2026-01-31T12:00:00, or now") from None


class DatagenSource(Source[DatagenSplit, DatagenState], SupportsSplitReassignmentOnRecovery):
    """Generates rows from a seed.

    Parameters
    ----------
    options
        See ``option_specs``.
    clock_ms
        The time, in milliseconds since 1970-01-01 UTC; tests give their own.
    """

    name: ClassVar[str] = "headgate.datagen"
    option_specs: ClassVar[Sequence[OptionSpec]] = (
        OptionSpec("rowsPerSecond", integer(1, 1_000_000_000), 1, "rows a second, all partitions together", False),
        OptionSpec("rampUpTime", duration_ms, 0, "time until rowsPerSecond is reached", False),
        OptionSpec("numPartitions", integer(1, 10_000), 1, "how many splits there are", False),
        OptionSpec("partitionSkew", number(0.0, 10.0), 0.0, "Zipf exponent of the partitions' shares", False),
        OptionSpec("numRows", integer(0, 1 << 53), None, "end after so many rows; endless without", False),
        OptionSpec("seed", integer(-(1 << 63), (1 << 63) - 1), 0, "another seed, other rows", False),
        OptionSpec("startTimestamp", _start, 0, "event time of the first row", False),
        *FIELD_OPTIONS,
        OptionSpec("rowsPerBatch", text, status="rejected", why="limit a micro-batch with 'maxRowsPerTrigger'."),
        OptionSpec(
            "advanceMillisPerBatch", text, status="rejected",
            why="event time advances by the row, 1 / rowsPerSecond; set 'rowsPerSecond' and 'startTimestamp'.",
        ),
    )  # fmt: skip
    split_serializer: ClassVar[VersionedSerializer[DatagenSplit]] = SPLIT_SERIALIZER
    state_serializer: ClassVar[VersionedSerializer[DatagenState]] = STATE_SERIALIZER

    def __init__(self, options: Mapping[str, str], clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        super().__init__(options)
        self._clock_ms = clock_ms
        self._pace = Pace(rows_per_second=self.options["rowsPerSecond"], ramp_up_ms=self.options["rampUpTime"])
        self._partitions = Partitions(self.options["numPartitions"], self.options["partitionSkew"])

    def schema(self) -> str:
        """Return the columns of Spark's ``rate`` source."""
        return "timestamp timestamp, value bigint"

    def create_enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit]
    ) -> SplitEnumerator[DatagenSplit, DatagenState]:
        """Return an enumerator that makes the splits in its ``start``."""
        return self._enumerator(context, None)

    def restore_enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit], state: DatagenState
    ) -> SplitEnumerator[DatagenSplit, DatagenState]:
        """Return an enumerator that goes on with what was pending."""
        return self._enumerator(context, state)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[DatagenSplit]:
        """Return a reader that generates all its splits on one thread."""
        generator_for = partial(RowGenerator, context.schema, self.options, self._pace)
        generator_for(0)  # a wrong option is reported here and not from the fetcher
        return MultiplexedReader(
            partial(
                DatagenSplitReader, generator_for, self._partitions, self._pace, clock_ms=self._clock_ms
            ),
            context,
        )  # fmt: skip

    def plan_ranges(
        self, splits: Sequence[DatagenSplit], limits: PlanLimits, now_ms: int
    ) -> Sequence[PlannedRange[DatagenSplit]]:
        """Plan the rows that are due, the partitions alike as far as the limit goes.

        Of the limits only ``max_rows`` and ``before_event_time_ms`` count: generated rows are neither files nor stored
        bytes.
        """
        left = limits.max_rows
        ranges: dict[str, PlannedRange[DatagenSplit]] = {}
        before_ms = limits.before_event_time_ms if self._has_event_times() else None
        ends = {split.split_id: self._end_before(split, self._due_end(split, now_ms), before_ms) for split in splits}
        by_size = sorted(splits, key=lambda split: ends[split.split_id] - split.position)
        for planned, split in enumerate(by_size):
            rows = ends[split.split_id] - split.position
            if left is not None:
                # Those with few rows come first; what they leave of their share goes to the others.
                rows = min(rows, -(-left // (len(by_size) - planned)))
                left -= rows
            end = split.position + rows
            if rows == 0 and split.stop != end:
                continue
            fixed = msgspec.structs.replace(split, stop=end, paced_since_ms=None)
            rest = None if end == split.stop else msgspec.structs.replace(split, position=end)
            ranges[split.split_id] = PlannedRange(split=fixed, rest=rest)
        return [ranges[split.split_id] for split in splits if split.split_id in ranges]

    def lag(self, splits: Sequence[DatagenSplit], now_ms: int) -> Mapping[str, int]:
        """Return how many rows are due and not yet planned."""
        return {"rowsBehind": sum(self._due_end(split, now_ms) - split.position for split in splits)}

    def next_event_times(self, splits: Sequence[DatagenSplit]) -> Mapping[str, int | None] | None:
        """Return the event time of the next row of each split that has one due; None if they are drawn at random."""
        if not self._has_event_times():
            return None
        now_ms = self._clock_ms()
        return {
            split.split_id: self._next_event_ms(split)
            for split in splits
            if self._due_end(split, now_ms) > split.position
        }

    def _has_event_times(self) -> bool:
        """Return whether the event-time column advances with the rows: not if it is drawn at random, or not named."""
        column = self.options["eventTimeColumn"]
        kinds = {name.lower(): kind for name, kind in self.options.matching("fields.*.kind").items()}
        return column is not None and kinds.get(column.lower()) != "random"

    def _next_event_ms(self, split: DatagenSplit) -> int:
        """Return the event time of a split's next row, rounded down."""
        row_index = self._partitions.row_index(split.partition, split.position)
        event_us = int(self._pace.event_us(np.array([row_index], dtype=np.int64))[0])
        return (split.event_start_us + event_us) // 1000

    def _end_before(self, split: DatagenSplit, end: int, event_time_ms: int | None) -> int:
        """Return the first of a partition's rows that is not before an event time, if that comes before ``end``."""
        if event_time_ms is None:
            return end
        row_index = self._pace.row_index_at(event_time_ms * 1000 - split.event_start_us)
        return max(split.position, min(end, self._partitions.rows_below(split.partition, row_index)))

    def _enumerator(
        self, context: SplitEnumeratorContext[DatagenSplit], state: DatagenState | None
    ) -> SplitEnumerator[DatagenSplit, DatagenState]:
        self._check(context)
        return DatagenEnumerator(
            context,
            self._make_splits,
            self._next_event_ms,
            has_event_times=self._has_event_times(),
            state=state,
        )

    def _due_end(self, split: DatagenSplit, now_ms: int) -> int:
        """Return the first of a partition's rows that is not due yet, or does not exist."""
        if split.paced_since_ms is None:
            assert split.stop is not None, f"{split} has no end and no pace"
            return split.stop
        due = self._partitions.rows_below(split.partition, self._pace.rows_due(now_ms - split.paced_since_ms))
        # A clock that was set back takes back no row.
        due = max(due, split.position)
        return due if split.stop is None else min(due, split.stop)

    def _check(self, context: SplitEnumeratorContext[Any]) -> None:
        """Raise for what can only be seen once the columns and the kind of read are known."""
        if context.boundedness is Boundedness.BOUNDED and self.options["numRows"] is None:
            raise OptionError(
                "headgate.datagen: a batch read needs an end. Set the option 'numRows', or use readStream.",
                option="numRows", value=None,
            )  # fmt: skip
        match_fields(context.schema, self.options)
        RowGenerator(context.schema, self.options, self._pace, 0)

    def _make_splits(self, boundedness: Boundedness) -> list[DatagenSplit]:
        """Return all splits of a new read; the times "now" are resolved here, once, and live in the splits."""
        now_ms = self._clock_ms()
        start_us: int | None = self.options["startTimestamp"]
        base = DatagenSplit(split_id="", partition=0, event_start_us=now_ms * 1000 if start_us is None else start_us)
        num_rows: int | None = self.options["numRows"]
        splits = []
        for partition in range(self.options["numPartitions"]):
            stop = None if num_rows is None else self._partitions.rows_below(partition, num_rows)
            if boundedness is Boundedness.BOUNDED:
                splits += self._pieces(base, partition, stop or 0)
            else:
                splits.append(
                    msgspec.structs.replace(
                        base, split_id=f"partition-{partition}", partition=partition, stop=stop, paced_since_ms=now_ms
                    )
                )
        return splits

    def _pieces(self, base: DatagenSplit, partition: int, rows: int) -> list[DatagenSplit]:
        """Return a partition's rows in pieces, so that readers end at about the same time."""
        piece_rows = max(_PIECE_ROWS, -(-rows // _MAX_PIECES))
        return [
            msgspec.structs.replace(
                base,
                split_id=f"partition-{partition}-from-{first}",
                partition=partition,
                position=first,
                stop=min(rows, first + piece_rows),
            )
            for first in range(0, rows, piece_rows)
        ]
