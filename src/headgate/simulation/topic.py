"""What a simulated source reads: a script, drawn from the seed, and the truth that committed output is compared with.

Never: read a clock but the cluster's, or know a connector: `scripted_source` says what each can discover of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
import pyarrow as pa

from headgate.simulation.load import Load
from headgate.source.watermark import WatermarkStrategy

Kind = Literal["datagen", "files", "kafka", "kinesis", "simple"]
PIECE_ROWS = 16
"""How many rows the pieces of a file have, but for its last one; a row is a unit of the file, and a byte."""
SCHEMA = pa.schema([("at", pa.timestamp("ms")), ("split", pa.string()), ("offset", pa.int64()), ("key", pa.int64())])
"""Of a row: its event time, where the source has any; where it is from; and its key."""


class TopicSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A split as it really is.

    Parameters
    ----------
    split_id
        Its name.
    appears_ms
        When discovery can see it.
    stop
        How many rows it has; None: it grows.
    parents
        The shards that must be read before it.
    path, start
        The file that it is a piece of, and how many rows of that are before it.
    first_ms, step_ms
        The event time of its first row, and from one row to the next.
    gap_at, gap_ms
        Before this row event time makes a leap.
    falls_silent
        Whether it does not grow when its source is silent.
    pause_at, resumes_ms
        This row and those after it are not there before this time.
    """

    split_id: str
    appears_ms: int
    stop: int | None
    parents: tuple[str, ...] = ()
    path: str = ""
    start: int = 0
    first_ms: int = 0
    step_ms: int = 10
    gap_at: int = 0
    gap_ms: int = 0
    falls_silent: bool = True
    pause_at: int = 0
    resumes_ms: int = 0


class SourceScript(msgspec.Struct, frozen=True, kw_only=True):
    """What a source is like.

    Parameters
    ----------
    uid
        Its name in the query.
    kind
        The connector whose enumerator it has: ``simple`` is that of a source that a user writes.
    splits
        All splits there will ever be.
    bounded, latest
        Whether it ends; whether a split that is there at the start is read from where it is then.
    assigner
        Who gets which partition of Kafka.
    row_ms
        In how many milliseconds a growing split grows by a row.
    strategy
        How its watermarks are made, and its alignment group; None: it has no event time.
    knows_rows
        Whether its readers know the positions of single rows: alignment stops them at a row, else after a batch.
    pauses_splits
        Whether its readers can pause single splits.
    silent_from_ms, silent_to_ms
        When nothing grows, so that all splits may become idle.
    keys
        How many keys its rows have.
    in_turn
        Whether readers read their splits in turn, so that none seems idle while it has rows.
    batch_rows
        How many rows a reader emits at a time at most.
    fetches
        Whether readers are production's, with a fetcher that lends its split reader.
    load
        How fast growing splits, which are there from the beginning, grow at what time; None: all the time as fast.
    """

    uid: str
    kind: Kind
    splits: tuple[TopicSplit, ...]
    bounded: bool
    row_ms: int
    latest: bool = False
    assigner: str = "round-robin"
    strategy: WatermarkStrategy | None = None
    knows_rows: bool = False
    pauses_splits: bool = True
    silent_from_ms: int = 0
    silent_to_ms: int = 0
    keys: int = 10
    in_turn: bool = False
    batch_rows: int = 8
    fetches: bool = False
    load: Load | None = None

    @property
    def pulled(self) -> bool:
        """Whether readers ask for splits."""
        return self.bounded or self.kind == "files"

    @property
    def stays(self) -> bool:
        """Whether a split stays with its reader at the same parallelism, though readers report theirs (FLIP-537)."""
        return not self.pulled and self.kind != "simple"

    @property
    def holds_watermarks(self) -> bool:
        """Whether no watermark passes what is not assigned."""
        return not (self.kind == "kinesis" and self.bounded)

    @property
    def grows_splits(self) -> bool:
        """Whether some of its splits are not there from the beginning."""
        return any(split.parents or split.appears_ms for split in self.splits)


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
        self.now_ms = now_ms
        self.frozen_ms: int | None = None
        """Since when nothing grows any more."""
        self._rows_of_keys = [[0] * script.keys]

    def has_next(self, split_id: str, row: int) -> bool:
        """Return whether a split has this row by now, or ends before it."""
        return row < self.rows(split_id) or self.splits[split_id].stop == row

    def rows(self, split_id: str) -> int:
        """Return how many rows the split has by now."""
        split = self.splits[split_id]
        if split.stop is not None:
            return split.stop if split.resumes_ms <= self.now_ms() else split.pause_at
        now_ms = self.now_ms() if self.frozen_ms is None else self.frozen_ms
        if self.script.load is not None:
            return self.script.load.grown_ms(now_ms) // self.script.row_ms
        silent_from_ms = max(split.appears_ms, self.script.silent_from_ms)
        silent_ms = max(0, min(now_ms, self.script.silent_to_ms) - silent_from_ms) if split.falls_silent else 0
        return max(0, now_ms - split.appears_ms - silent_ms) // self.script.row_ms

    def next_row_ms(self, split_id: str, position: int) -> int | None:
        """Return when the row at a position is there, or the end, as far as is known now; None: never."""
        split = self.splits[split_id]
        if split.stop is not None:
            return split.resumes_ms if split.pause_at <= position < split.stop else 0
        if self.frozen_ms is not None and self.rows(split_id) <= position:
            return None
        if self.script.load is not None:
            return self.script.load.reached_ms((position + 1) * self.script.row_ms)
        grown_ms, silent_from_ms = (position + 1) * self.script.row_ms, self.script.silent_from_ms
        silent_from_ms = max(split.appears_ms, silent_from_ms)
        if split.appears_ms + grown_ms <= silent_from_ms or not split.falls_silent:
            return split.appears_ms + grown_ms
        return split.appears_ms + grown_ms + max(0, self.script.silent_to_ms - silent_from_ms)

    def event_time_ms(self, split_id: str, offset: int) -> int:
        """Return the event time of a row: out of order by as much as the strategy allows."""
        assert self.script.strategy is not None
        disorder_ms = self.script.strategy.max_out_of_orderness_ms * (offset * 7 % 3) // 2
        return self._in_order_ms(split_id, offset) - disorder_ms

    def earliest_ms(self, split_id: str, position: int) -> int:
        """Return a lower bound of the event times of all rows from a position on."""
        assert self.script.strategy is not None
        return self._in_order_ms(split_id, position) - self.script.strategy.max_out_of_orderness_ms

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
        """Return the splits that discovery finds now."""
        now_ms = self.now_ms() if self.frozen_ms is None else self.frozen_ms
        return [each for each in self.splits.values() if each.appears_ms <= now_ms]

    def start(self, split: TopicSplit) -> int:
        """Return where a split is read from that is there at the start."""
        return self.rows(split.split_id) if self.script.latest and split.stop is None else 0
