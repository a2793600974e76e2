"""`StreamJoin`: joins the rows of two streams that have equal keys, whenever each of them comes.

Never: emit a pair or an unmatched row twice, or keep a row longer than the watermark and the bounds ask for.

A row is joined with those that the other side has kept, and then kept for those to come. It is over when the watermark
is at its *expiry*: its event time, less by what the condition lets the other side be later (`Side.offset_ms`). What is
unmatched by then is emitted with nulls, by outer joins. A row that can be equal to none (a null in its key), or whose
expiry is past when it comes, is not kept. Without a bound rows are kept for ever; with the last watermark all are over.

    kind    pairs    kept, what is matched is    unmatched rows, when they are over
    ------  -------  --------------------------  ----------------------------------
    inner   emitted  as before                   nothing
    left    emitted  noted, on the left          those of the left
    right   emitted  noted, on the right         those of the right
    full    emitted  noted, on both sides        of both sides
    semi    nothing  emitted once, and over      nothing
    anti    nothing  over                        those of the left

How far the watermark was is part of the state (`headgate.state.watermarks`). Bounds and what is late follow Spark 4.3's
``StreamingSymmetricHashJoinExec``; the bounds are those that Spark computes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.key_hash import groups_of_hashes, key_hash
from headgate.operators.operator import Emit, KeyedOperator
from headgate.operators.static_join import matchable
from headgate.operators.stream_join.condition import PairCondition
from headgate.operators.stream_join.kept_rows import KeptRows, Pairs
from headgate.operators.windows.assigner import MOST_US
from headgate.operators.windows.windowed import event_times, plain_key, watermark_us
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import KeyedChunk, RestoredChunk, keyed_chunks, read_head, read_part
from headgate.state.part import PAIRS, Marks, marks_of
from headgate.state.watermarks import KeyGroupWatermarks, Ranges

StreamJoinKind = Literal["inner", "left", "right", "full", "semi", "anti"]
_NOTES_MATCHES: dict[StreamJoinKind, tuple[bool, bool]] = {
    "inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True),
    "semi": (True, False), "anti": (True, False),
}  # fmt: skip
_EMITS_UNMATCHED: dict[StreamJoinKind, tuple[bool, bool]] = {**_NOTES_MATCHES, "semi": (False, False)}


class Side(msgspec.Struct, frozen=True):
    """One of the two inputs.

    Parameters
    ----------
    schema
        Its columns.
    keys
        The places of the key's.
    late
        The place of the event time by which rows are late; None: none is.
    time
        The place of the event time by which rows are over.
    offset_ms
        How far above the watermark they are then: below zero they are kept longer; None: they are never over.
    """

    schema: pa.Schema
    keys: tuple[int, ...]
    late: int | None = None
    time: int | None = None
    offset_ms: int | None = None

    def expiry(self, rows: pa.RecordBatch) -> Any:
        """Return the watermark by which each row is over, in microseconds."""
        if self.time is None or self.offset_ms is None:
            return np.full(rows.num_rows, MOST_US)
        ends = pc.subtract(event_times(rows.column(self.time)), self.offset_ms * 1000)
        return np.minimum(ends.fill_null(MOST_US).to_numpy(zero_copy_only=False), MOST_US)


class _Head(msgspec.Struct, frozen=True):
    """What is stored before the parts of a subtask.

    Parameters
    ----------
    reached
        First and last key group, and up to where the watermark was, in microseconds.
    parts
        The names of the parts of each side.
    matched
        By the name of a part: which of its rows are matched, as packed bits.
    """

    reached: Ranges
    parts: tuple[list[str], list[str]]
    matched: dict[str, bytes]


heads = msgspec.msgpack.Decoder(_Head)


class StreamJoin(KeyedOperator):
    """Joins its first input, the left side, with its second, the right one.

    Parameters
    ----------
    left, right
        The sides.
    pairs
        The columns of both, under names of which none is there twice; all may be null.
    join
        What is emitted.
    condition
        What is to be true of a pair; None: nothing.
    text
        What the keys are, for people to read.
    """

    kind = "join"

    def __init__(
        self,
        left: Side,
        right: Side,
        pairs: pa.Schema,
        join: StreamJoinKind,
        condition: PairCondition | None = None,
        text: str = "",
    ) -> None:
        self._sides = (left, right)
        self._both = pairs
        self._join = join
        self._condition = condition
        self.blocks = condition is not None and condition.blocks
        self.schema = left.schema if join in ("semi", "anti") else self._both
        offsets = [side.offset_ms for side in self._sides if side.offset_ms is not None]
        self.watermark_delay_ms = max(0, -min(offsets, default=0))
        also = f" and {condition}" if condition is not None else ""
        self.function = f"{join} join on {text}{also}"
        self._late_rows = 0

    def prepare(self, context: OperatorContext) -> Iterator[None]:
        """See `headgate.operators.operator.Operator.prepare`."""
        return iter(()) if self._condition is None else self._condition.prepare(context)

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._context = context
        self._true_of = None if self._condition is None else self._condition.opened(context)
        self._new_name = partial(next, context.chunk_names())
        self._late_rows = 0
        self._watermarks = KeyGroupWatermarks(context.key_groups, context.max_parallelism)
        self._kept = tuple(
            KeptRows(
                side.schema,
                side.keys,
                context,
                number,
                name=self._new_name,
                marks=self._marks(number),
            )
            for number, side in enumerate(self._sides)
        )

    def _marks(self, number: int) -> Marks:
        """Return what it means for rows of a side to be matched."""
        if not _NOTES_MATCHES[self._join][number]:
            return None
        return "over" if self._join in ("semi", "anti") else "noted"

    @property
    def late_rows(self) -> int:
        """How many rows came after the watermark since the deployment."""
        return self._late_rows

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late: those of both sides, null but for the row's own."""
        return None if all(side.late is None for side in self._sides) else self._both

    @property
    def state_bytes(self) -> tuple[int, int]:
        """How many bytes of state are in memory, and how many in local files."""
        left, right = (each.runs.bytes_held for each in self._kept)
        return left[0] + right[0], left[1] + right[1]

    @property
    def rows_kept(self) -> tuple[int, int]:
        """How many rows of each side are held, some of which may be over."""
        left, right = (sum(part.table.num_rows for part in each.runs.parts) for each in self._kept)
        return left, right

    # Rows that come.

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Not called: each row is one of the left or of the right side."""
        raise AssertionError(f"{self.uid} has two inputs")

    def process_input(self, number: int, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the pairs of rows of a side with what the other has kept, and keep them."""
        side = self._sides[number]
        keys = [plain_key(batch.column(place)) for place in side.keys]
        hashes = key_hash(keys)
        reached = self._reached(hashes)
        if side.late is not None:
            late = pc.less_equal(event_times(batch.column(side.late)), pa.array(reached)).fill_null(False)
            if late.true_count:
                self._late_rows += late.true_count
                self.on_late(self._alone(number, batch.filter(late)))
                kept = pc.invert(late)
                batch, keys = batch.filter(kept), [each.filter(kept) for each in keys]
                hashes, reached = hashes[kept.to_numpy(False)], reached[kept.to_numpy(False)]
        if batch.num_rows == 0:
            return
        can_match = matchable(keys, [False] * len(keys))
        matched = np.zeros(batch.num_rows, np.bool_)
        for pairs in self._kept[1 - number].find(keys, hashes, can_match, reached):
            self._matched(number, batch, pairs, matched, split_id, emit)
        if number == 0 and self._join == "semi":
            emit(batch.filter(pa.array(matched)), split_id)
        self._keep(number, batch, hashes, reached, can_match, matched, split_id, emit)

    def _matched(
        self, number: int, batch: pa.RecordBatch, pairs: Pairs, matched: Any, split_id: str, emit: Emit
    ) -> None:
        """Emit what follows from pairs of equal keys, if the condition is true, and note what is matched."""
        ours, places, theirs = pairs.ours, pairs.places, pairs.theirs
        rows = batch.take(pa.array(ours))
        sides = (rows, theirs) if number == 0 else (theirs, rows)
        joined = pa.RecordBatch.from_arrays([each for side in sides for each in side.columns], schema=self._both)
        if self._true_of is not None:
            true = self._true_of.true_of(joined)
            if not true.all():
                ours, places, joined = ours[true], places[true], joined.filter(pa.array(true))
        if len(ours) == 0:
            return
        matched[ours] = True
        if _NOTES_MATCHES[self._join][1 - number]:
            new = pairs.part.mark(places)
            if self._join == "semi" and len(new):
                emit(self._kept[1 - number].rows_at(pairs.part, new), split_id)
        if self._join not in ("semi", "anti"):
            emit(joined, split_id)

    def _keep(
        self,
        number: int,
        batch: pa.RecordBatch,
        hashes: Any,
        reached: Any,
        can_match: Any,
        matched: Any,
        split_id: str,
        emit: Emit,
    ) -> None:
        """Keep rows for those to come; what is over by now and unmatched is emitted instead."""
        expiry = self._sides[number].expiry(batch)
        kept = can_match & (expiry > reached)
        if number == 0 and self._join in ("semi", "anti"):
            kept &= ~matched
        if _EMITS_UNMATCHED[self._join][number]:
            alone = ~kept & ~matched
            if alone.any():
                emit(self._unmatched(number, batch.filter(pa.array(alone))), split_id)
        if kept.any():
            self._kept[number].add(batch.filter(pa.array(kept)), hashes[kept], expiry[kept], matched[kept])
        if self._marks(0) == "over":
            self._kept[0].runs.shrink()

    def _reached(self, hashes: Any) -> Any:
        """Return up to where the watermark was for each row, in microseconds."""
        reached = self._watermarks.of(lambda: groups_of_hashes(hashes, self._context.max_parallelism))
        return np.full(len(hashes), reached) if isinstance(reached, int) else reached

    def _unmatched(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a side as they are emitted without a match."""
        return rows if self._join == "anti" else self._alone(number, rows)

    def _alone(self, number: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of a side, with nulls for the other one."""
        nulls = [pa.nulls(rows.num_rows, field.type) for field in self._sides[1 - number].schema]
        columns = [*rows.columns, *nulls] if number == 0 else [*nulls, *rows.columns]
        return pa.RecordBatch.from_arrays(columns, schema=self._both)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Forget the rows that are over by the watermark, and emit those that are unmatched."""
        watermark = watermark_us(timestamp_ms)
        if not self._watermarks.advance(watermark):
            return
        for number, kept in enumerate(self._kept):
            for part, places in kept.runs.due(watermark) if _EMITS_UNMATCHED[self._join][number] else ():
                for begin in range(0, len(places), PAIRS):
                    emit(self._unmatched(number, kept.rows_at(part, places[begin : begin + PAIRS])), "")
            kept.runs.expire(watermark)

    def close(self) -> None:
        """Delete the local files, and release what the condition holds."""
        for each in getattr(self, "_kept", ()):
            each.runs.close()
        condition = getattr(self, "_true_of", None)
        if condition is not None:
            condition.close()

    # State.

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the state: up to where the watermark was, what is matched, and the rows that are kept."""
        parts = [each.runs.parts for each in self._kept]
        left, right = ([part.name for part in each] for each in parts)
        matched = {part.name: marks for each in parts for part in each if (marks := part.marks)}
        head = _Head(reached=self._watermarks.ranges(), parts=(left, right), matched=matched)
        stored = [part for each in self._kept for part in each.stored()]
        return keyed_chunks(self._context.key_groups, (self._new_name(), head), stored)

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for _ in self.restore_in_steps(chunks):
            pass

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Do so, a chunk at a time."""
        left = deque(chunks)
        parts: list[tuple[int, RestoredChunk, bytes]] = []
        while left:
            head = heads.decode(read_head(left.popleft()))
            self._watermarks.take_on(head.reached)
            for number, names in enumerate(head.parts):
                # A part may be missing, which has no key group of this subtask.
                for name in names:
                    if left and left[0].is_named(name):
                        parts.append((number, left.popleft(), head.matched.get(name, b"")))
        self._watermarks.settle()
        for number, chunk, matched in parts:
            self._adopt(number, chunk, matched)
            yield

    def _adopt(self, number: int, chunk: RestoredChunk, bits: bytes) -> None:
        """Keep the rows of a part that are this subtask's and not over; what is over in all groups may stay."""
        own, table = self._context.key_groups, read_part(chunk)
        matched = marks_of(bits, table.num_rows)
        hashes, expiry = (table.column(place).to_numpy() for place in (0, 1))
        groups = groups_of_hashes(hashes, self._context.max_parallelism)
        alive = own.holds(groups) & (expiry > self._watermarks.at(groups))
        name = chunk.chunk_id
        if not chunk.whole or (~alive & (expiry > self._watermarks.now_us)).any():
            table, matched, name = table.filter(pa.array(alive)), matched[alive], self._new_name()
        self._kept[number].adopt(name, table, matched, self._watermarks.now_us)
