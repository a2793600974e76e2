"""`SessionAggregate`: aggregates the rows of session windows, by key, in columnar state.

Never: hold an object per key or per session, or merge a row into a session that has fired.

A row is a session of its own, from its event time until a gap after it; sessions of a key that overlap or touch are
one. The state is pieces of partial results, each with the start and the end of what was merged already:

    step                 what happens
    -------------------  ------------------------------------------------------------------------------------------
    rows come            those of some batches are merged with one another and become a piece
    pieces grow          several of about one size are merged into one
    the watermark moves  where anything has ended: all that there is of those keys is taken out and
                         merged; sessions that have ended are emitted, the others are put back as a new piece

What is taken out of a piece is marked as dead: a piece does not change, and is stored once. A checkpoint stores the
marks, a bit per row, in its head. A piece of which more than half is dead is written anew.

In ``complete`` mode all sessions are emitted before every barrier, and none is ever forgotten, whatever the watermark
is. A gap may be the same for all rows, or each row's own.

A row whose own window, from its event time until a gap after it, has ended is late, as in Spark: also where it touches
a session of its key that has not fired. Flink would merge it.

Rows of a session are in the order of their event times, as in Spark: the first value and the last one are those of the
earliest and the latest row, and their times are kept beside them.

Pieces are in the order of key groups, so that beyond ``memory_bytes`` they can be in local files, and be merged by
slabs of key groups.

Follows Spark 4.3's ``session_window``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.mapped_files import give_back, mapped_table
from headgate.operators.operator import Emit, KeyedChunk, RestoredChunk
from headgate.operators.windows.aggregates import ORDERED, Partial, merge, time_of
from headgate.operators.windows.assigner import MOST_US, SessionWindow
from headgate.operators.windows.sorted_runs import FAN_IN, GROUP, Part, part_bytes, tier
from headgate.operators.windows.windowed import Aggregated, Head, Key, WindowedAggregate, watermark_us
from headgate.protocol.operator_context import OperatorContext

START, END = "start", "end"
_SESSION = "session"


class Piece:
    """Sessions, and which of them count.

    Parameters
    ----------
    parts
        What is stored, in the order of key groups.
    alive
        Which rows count.
    files
        The local files of the parts, if they are not in memory.
    """

    def __init__(self, parts: Sequence[Part], alive: Any, files: tuple[str, ...] = ()) -> None:
        self.parts = tuple(parts)
        self.alive = alive
        self.files = files
        self.table = pa.concat_tables([part.table for part in parts])
        self.nbytes = int(self.table.nbytes)
        self.rows = int(alive.sum())
        self.first_end = self._first_end()

    def kill(self, rows: Any) -> None:
        """Mark rows as dead."""
        self.alive[rows] = False
        self.rows = int(self.alive.sum())
        self.first_end = self._first_end()

    def due(self, horizon: int) -> Any:
        """Return which rows count and end by then."""
        return self.alive & (self.column(END) <= horizon)

    def column(self, name: str) -> Any:
        """Return a column of integers."""
        return self.table.column(name).to_numpy()

    def dead(self) -> Iterator[tuple[str, bytes]]:
        """Yield parts with dead rows, and which ones these are."""
        begin = 0
        for part in self.parts:
            alive = self.alive[begin : begin + part.table.num_rows]
            begin += part.table.num_rows
            if not alive.all():
                yield part.chunk_id, np.packbits(~alive).tobytes()

    def _first_end(self) -> int:
        return int(self.column(END).min(where=self.alive, initial=MOST_US))


class SessionAggregate(WindowedAggregate):
    """Aggregates rows by session windows and keys. The parameters are those of `WindowedAggregate`."""

    def __init__(
        self,
        input_schema: pa.Schema,
        window: SessionWindow,
        *,
        time: str,
        end: str | None = None,
        keys: Sequence[Key],
        aggregates: Sequence[Aggregated],
        columns: Sequence[str],
    ) -> None:
        super().__init__(input_schema, window.name, time=time, keys=keys, aggregates=aggregates, columns=columns)
        self._gap_us = window.gap_us
        self._end = end
        timed = {time_of(name) for name, each in self._state_partials.items() if each.merging in ORDERED}
        self._timed_values = sorted(timed)
        self._state_partials |= {name: Partial(pa.int64(), "time", self.function) for name in self._timed_values}

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        super().open(context, items)
        self._pieces: list[Piece] = []
        self._files = 0
        self._first_end = MOST_US  # of what waits
        kinds = {name: self.input_schema.field(key.column).type for name, key in zip(self._state_keys, self._keys)}
        of = self.function
        self._merged_by = {
            START: Partial(pa.int64(), "min", of),
            END: Partial(pa.int64(), "max", of),
            **{name: Partial(kind, "first", of) for name, kind in kinds.items()},
            **self._state_partials,
        }

    @property
    def state_bytes(self) -> tuple[int, int]:
        """How many bytes of state are in memory, and how many in local files."""
        spilled = sum(piece.nbytes for piece in self._pieces if piece.files)
        return sum(piece.nbytes for piece in self._pieces) - spilled, spilled

    @property
    def _stored_columns(self) -> list[str]:
        return [START, END, *self._state_keys, *self._state_partials]

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take rows of one split."""
        batch, micros = self._timed(batch)
        if batch.num_rows == 0:
            return
        ends = micros + self._gap_us if self._end is None else batch.column(self._end).cast(pa.int64()).to_numpy()
        times = pa.array(micros)
        arrays = [times, pa.array(ends), *self._lifted(batch), *([times] * len(self._timed_values))]
        lifted = pa.Table.from_arrays(arrays, names=self._stored_columns)
        late = ends <= self._horizon(batch)
        if late.any():
            self._drop_late(batch.filter(pa.array(late)))
            lifted, ends = lifted.filter(pa.array(~late)), ends[~late]
        if lifted.num_rows:
            self._first_end = min(self._first_end, int(ends.min()))
            self._wait(lifted)

    def _flush(self) -> None:
        """Merge what waits with one another, and add it to the state."""
        if not self._waiting_rows:
            return
        self._append(self._merged(self._take_waiting()))
        self._first_end = MOST_US
        self._compact()
        self._spill()

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit the sessions that end by the watermark."""
        watermark = watermark_us(timestamp_ms)
        if self._passes_over(watermark):
            return
        self._watermark_us = watermark
        if self._first_end > watermark and all(piece.first_end > watermark for piece in self._pieces):
            return
        self._flush()
        put_back = []
        for first, end in self._slabs():
            rows = self._taken(first, end)
            if rows is None:
                continue
            merged = self._merged(rows)
            ends = merged.column(END).to_numpy()
            over = ends <= watermark
            if not over.all():
                put_back.append(merged.filter(pa.array(~over)))
            (ended,) = np.nonzero(over)
            ended = ended[np.argsort(ends[ended], kind="stable")]
            closed = merged.take(ended)
            self._emit(closed, closed.column(START).to_numpy(), closed.column(END).to_numpy(), emit)
            give_back()
            if len(put_back) > 1 and sum(each.nbytes for each in put_back) > part_bytes(self._context.memory_bytes):
                self._append(pa.concat_tables(put_back))
                put_back = []
                self._spill()
        if put_back:
            self._append(pa.concat_tables(put_back))
        self._drop_dead()
        self._compact()
        self._spill()

    def prepare_snapshot(self, emit: Emit) -> None:
        """In complete mode, emit all sessions."""
        if self.output_mode == "complete" and not self._has_ended:
            self._flush()
            self.emit_state(emit)

    def emit_state(self, emit: Emit) -> None:
        """Emit the sessions that are open."""
        for first, end in self._slabs():
            rows = [
                piece.table.slice(low, high - low).filter(pa.array(piece.alive[low:high])).select(self._stored_columns)
                for piece in self._pieces
                for low, high in [self._within(piece, first, end)]
            ]
            if rows:
                merged = self._merged(pa.concat_tables(rows))
                self._emit(merged, merged.column(START).to_numpy(), merged.column(END).to_numpy(), emit)
                give_back()

    def close(self) -> None:
        """Delete the local files."""
        super().close()
        for piece in self._pieces:
            self._forget(piece)
        self._pieces = []

    # Taking out and merging.

    def _slabs(self) -> list[tuple[int, int]]:
        """Return ranges of key groups, each from the first to before the second, of which one fits into memory."""
        groups = self._context.max_parallelism
        memory, spilled = self.state_bytes
        many = 1
        if spilled:
            many = max(1, min(groups, -(-(memory + spilled) * 4 // self._context.memory_bytes)))
        bounds = [-(-slab * groups // many) for slab in range(many + 1)]
        return list(pairwise(bounds))

    def _taken(self, first: int, end: int) -> Any:
        """Take all out of the state that is of a key of which something ended, within key groups; None: nothing did."""
        within = [slice(*self._within(piece, first, end)) for piece in self._pieces]
        due = [piece.due(self._watermark_us)[rows] for piece, rows in zip(self._pieces, within)]
        if not any(each.any() for each in due):
            return None
        keys = [
            piece.table.slice(rows.start, rows.stop - rows.start).select(self._state_keys).filter(pa.array(each))
            for piece, rows, each in zip(self._pieces, within, due)
            if each.any()
        ]
        wanted = pa.concat_tables(keys)
        taken = []
        for piece, rows in zip(self._pieces, within):
            places = self._of_keys(piece, wanted, rows)
            if len(places):
                taken.append(piece.table.take(places).select(self._stored_columns))
                piece.kill(places)
        return pa.concat_tables(taken)

    def _within(self, piece: Piece, first: int, end: int) -> tuple[int, int]:
        """Return where the rows of a piece begin and end that are of some key groups."""
        if (first, end) == (0, self._context.max_parallelism):
            return 0, piece.table.num_rows
        low, high = np.searchsorted(piece.column(GROUP), [first, end])
        return int(low), int(high)

    def _of_keys(self, piece: Piece, wanted: Any, within: slice = slice(None)) -> Any:
        """Return where a piece has rows that count, of certain keys."""
        (places,) = np.nonzero(piece.alive[within])
        if within.start:
            places = places + within.start
        if len(places) == 0:
            return places
        keys = piece.table.select(self._state_keys).take(places)
        ids = self._key_ids(pa.concat_tables([keys, wanted.select(self._state_keys)]))
        is_wanted = np.zeros(len(ids), bool)
        is_wanted[ids[len(places) :]] = True
        return places[is_wanted[ids[: len(places)]]]

    def _key_ids(self, table: Any) -> Any:
        """Return a number for each row: the same for equal keys."""
        rows = table.select(self._state_keys).append_column("row", pa.array(np.arange(table.num_rows)))
        lists = rows.group_by(self._state_keys, use_threads=False).aggregate([("row", "list")])
        found = lists.column("row_list").combine_chunks()
        ids = np.empty(table.num_rows, np.int64)
        ids[found.flatten().to_numpy()] = np.repeat(np.arange(len(found)), np.diff(found.offsets.to_numpy()))
        return ids

    def _sessions(self, table: Any) -> Any:
        """Return a number for each row: the same for rows of a session."""
        ids = self._key_ids(table)
        starts, ends = table.column(START).to_numpy(), table.column(END).to_numpy()
        order = np.lexsort((starts, ids))
        ids, starts, ends = ids[order], starts[order], ends[order]
        # The latest end so far within each key: by rank, since a later key's ranks are all greater.
        by_end = np.lexsort((ends, ids))
        ranks = np.empty(len(ids), np.int64)
        ranks[by_end] = np.arange(len(ids))
        latest = ends[by_end][np.maximum.accumulate(ranks)]
        begins = np.ones(len(ids), bool)
        begins[1:] = (ids[1:] != ids[:-1]) | (starts[1:] > latest[:-1])
        sessions = np.empty(len(ids), np.int64)
        sessions[order] = np.cumsum(begins)
        return sessions

    def _merged(self, rows: Any) -> Any:
        """Return sessions that do not touch one another."""
        numbered = rows.append_column(_SESSION, pa.array(self._sessions(rows)))
        return merge(numbered, [_SESSION], self._merged_by).select(self._stored_columns)

    # Pieces.

    def _append(self, table: Any) -> None:
        if table.num_rows:
            self._pieces.append(self._made(table))

    def _made(self, table: Any) -> Piece:
        groups = self._groups_of(table)
        order = np.argsort(groups, kind="stable")
        table = table.take(order).append_column(GROUP, pa.array(groups[order])).combine_chunks()
        rows = table.num_rows
        step = -(-rows // max(1, -(-table.nbytes // part_bytes(self._context.memory_bytes))))
        parts = [Part(self._new_name(), table.slice(begin, step)) for begin in range(0, rows, step)]
        return Piece(parts, np.ones(rows, bool))

    def _compact(self) -> None:
        """Merge the latest pieces while there are several of about one size, and they fit into memory."""
        while len(self._pieces) >= FAN_IN:
            size = tier(self._pieces[-1].rows)
            many = 1
            while many < len(self._pieces) and tier(self._pieces[-many - 1].rows) <= size:
                many += 1
            together = self._pieces[-many:]
            limit = self._context.memory_bytes
            if many < FAN_IN or (limit and sum(piece.nbytes for piece in together) * 2 > limit):
                return
            alive = [piece.table.filter(pa.array(piece.alive)).select(self._stored_columns) for piece in together]
            self._pieces[-many:] = [self._made(self._merged(pa.concat_tables(alive)))]
            for piece in together:
                self._forget(piece)

    def _drop_dead(self) -> None:
        """Forget pieces that are dead, and write those anew that are for the most part."""
        kept = []
        for piece in self._pieces:
            if piece.rows * 2 > len(piece.alive):
                kept.append(piece)
                continue
            if piece.rows:
                kept.append(self._made(piece.table.filter(pa.array(piece.alive)).select(self._stored_columns)))
            self._forget(piece)
        self._pieces = kept

    def _spill(self) -> None:
        """Write the largest pieces to files, if there is more in memory than may be."""
        limit = self._context.memory_bytes
        while limit and self.state_bytes[0] > limit:
            place = max(
                (place for place, piece in enumerate(self._pieces) if not piece.files),
                key=lambda place: self._pieces[place].nbytes,
            )
            piece = self._pieces[place]
            files = [self._write(part.table) for part in piece.parts]
            parts = [_mapped(part.chunk_id, path) for part, path in zip(piece.parts, files)]
            self._pieces[place] = Piece(parts, piece.alive, tuple(files))

    def _write(self, table: Any) -> str:
        self._files += 1
        folder = self._context.spill_folder
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"sessions-{self._files}.arrow")
        with pa.OSFile(path, "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        return path

    def _forget(self, piece: Piece) -> None:
        """Delete the files of a piece; who still reads them has them mapped."""
        for path in piece.files:
            os.unlink(path)

    # State.

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the state: what has been fired up to when, which rows are dead, and the pieces."""
        self._flush()
        dead = dict(each for piece in self._pieces for each in piece.dead())
        return self._chunks([piece.parts for piece in self._pieces], dead)

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for head, parts in self._heads(chunks):
            for names in head.runs:
                dead = [(parts[name], head.dead.get(name)) for name in names if name in parts]
                found = [each for chunk, bits in dead if (each := self._restored(chunk, head, bits)) is not None]
                if found:
                    alive = np.concatenate([alive for _, alive in found])
                    self._pieces.append(Piece([part for part, _ in found], alive))
                    self._spill()

    def _restored(self, chunk: RestoredChunk, head: Head, dead: bytes | None) -> tuple[Part, Any] | None:
        """Return a part with what is this subtask's, and which rows of it count; None: there are none."""
        own = self._context.key_groups
        table, as_stored = self._part_of(chunk, head)
        alive = np.ones(table.num_rows, bool)
        if dead is not None:
            bits = np.unpackbits(np.frombuffer(dead, np.uint8), count=table.num_rows)
            alive = bits == 0
        groups = self._groups_of(table)
        table = table.append_column(GROUP, pa.array(groups))
        if chunk.whole and as_stored:
            return Part(chunk.chunk_id, table), alive
        table = table.filter(pa.array(alive & (groups >= own.first) & (groups <= own.last)))
        return (Part(self._new_name(), table), np.ones(table.num_rows, bool)) if table.num_rows else None


def _mapped(chunk_id: str, path: str) -> Part:
    return Part(chunk_id, mapped_table(path))
