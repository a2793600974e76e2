"""`SessionAggregate`: aggregates the rows of session windows, by key, in columnar state.

Never: hold an object per key or per session, or merge a row into a session that has fired.

A row is a session of its own, from its event time until a gap after it; sessions of a key that overlap or touch are
one. The state is sorted runs of partial results (`headgate.state.sorted_runs`), each with the start and the end of what
was merged already:

    step                 what happens
    -------------------  ------------------------------------------------------------------------------------------
    rows come            those of some batches are merged with one another and become a run
    the watermark moves  where anything has ended: all that there is of those keys is found by their hashes, taken out
                         and merged; sessions that have ended are emitted, the others are put back as a new run

What is taken out is marked: a run does not change, and is stored once. A checkpoint stores the marks, a bit per row, in
its head.

In ``complete`` mode all sessions are emitted before every barrier, and none is ever forgotten, whatever the watermark
is. A gap may be the same for all rows, or each row's own.

A row whose own window, from its event time until a gap after it, has ended is late, as in Spark: also where it touches
a session of its key that has not fired. Flink would merge it.

Rows of a session are in the order of their event times, as in Spark: the first value and the last one are those of the
earliest and the latest row, and their times are kept beside them.

Follows Spark 4.3's ``session_window``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.operator import Emit
from headgate.operators.windows.aggregates import ORDERED, Partial, merge, time_of
from headgate.operators.windows.assigner import MOST_US, SessionWindow
from headgate.operators.windows.windowed import Aggregated, Head, Key, WindowedAggregate, watermark_us
from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import distinct, equal_values, one_array, order_of, order_of_numbers, together
from headgate.state.chunks import RestoredChunk
from headgate.state.mapped_files import give_back
from headgate.state.part import Layout, PartByHash, marks_of
from headgate.state.sorted_runs import part_bytes

START, END = "start", "end"
_SESSION = "session"


def session_begins(starts: Any, ends: Any, new_key: Any) -> Any:
    """Return which rows begin a session: those of a key together, in the order of their starts.

    Parameters
    ----------
    starts, ends
        Those of the rows.
    new_key
        Which rows are the first of a key.
    """
    begins = new_key.copy()
    latest = np.empty(len(ends), np.int64)
    (firsts,) = np.nonzero(new_key)
    span = int(ends.max()) - int(starts.min()) + 1
    if span * len(firsts) < MOST_US:  # the latest end so far, of all keys at once: each has a span of its own
        apart = (np.cumsum(new_key) - 1) * span - int(starts.min())
        np.maximum.accumulate(ends + apart, out=latest)
        latest -= apart
    else:
        for begin, end in pairwise([*firsts.tolist(), len(ends)]):
            np.maximum.accumulate(ends[begin:end], out=latest[begin:end])
    begins[1:] |= starts[1:] > latest[:-1]
    return begins


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
        kinds = {name: self.input_schema.field(key.column).type for name, key in zip(self._state_keys, self._keys)}
        of = self.function
        self._merged_by = {
            START: Partial(pa.int64(), "min", of),
            END: Partial(pa.int64(), "max", of),
            **{name: Partial(kind, "first", of) for name, kind in kinds.items()},
            **self._state_partials,
        }
        super().open(context, items)
        self._first_end = MOST_US  # of what waits

    @property
    def _stored_columns(self) -> list[str]:
        return [START, END, *self._state_keys, *self._state_partials]

    @property
    def _layout(self) -> Layout:
        return Layout(tuple(self._stored_columns), END, self._hashes, combined=self._merged, marks="over")

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
        self._runs.add(self._merged(together(self._take_waiting())))
        self._first_end = MOST_US

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit the sessions that end by the watermark."""
        watermark = watermark_us(timestamp_ms)
        if self._passes_over(watermark):
            return
        first = self._runs.first_us
        if self._first_end > watermark and (first is None or first > watermark):
            return
        self._flush()
        put_back: list[Any] = []
        for hashes in self._due(watermark):
            merged = self._merged(self._taken(hashes))
            ends = merged.column(END).to_numpy()
            over = ends <= watermark
            if not over.all():
                put_back.append(merged.filter(pa.array(~over)))
            (ended,) = np.nonzero(over)
            ended = ended[order_of_numbers(ends[ended])]
            closed = merged.take(ended)
            self._emit(closed, closed.column(START).to_numpy(), closed.column(END).to_numpy(), emit)
            give_back()
            if len(put_back) > 1 and sum(each.nbytes for each in put_back) > part_bytes(self._context.memory_bytes):
                self._runs.add(pa.concat_tables(put_back))
                put_back = []
        self._runs.expire(watermark)
        if put_back:
            self._runs.add(pa.concat_tables(put_back))

    def prepare_snapshot(self, emit: Emit) -> None:
        """In complete mode, emit all sessions."""
        if self.output_mode == "complete" and not self._has_ended:
            self._flush()
            self.emit_state(emit)

    def emit_state(self, emit: Emit) -> None:
        """Emit the sessions that are open."""
        for merged in self._runs.merged():
            self._emit(merged, merged.column(START).to_numpy(), merged.column(END).to_numpy(), emit)

    # Taking out and merging.

    def _due(self, watermark: int) -> Iterator[Any]:
        """Yield hashes of keys of which something has ended, some at a time: they are taken out meanwhile."""
        while True:
            found: list[Any] = []
            left = self._runs.range_rows
            for part in self._runs.parts:
                if part.first_us > watermark or not left:
                    continue
                assert isinstance(part, PartByHash)
                places = part.due(watermark)[:left]
                if len(places):
                    found.append(part.hashes[places])
                    left -= len(places)
                else:
                    part.expire(watermark)
            if not found:
                return
            yield distinct(np.concatenate(found))

    def _taken(self, hashes: Any) -> Any:
        """Take all out of the state that is of keys with these hashes."""
        taken = []
        for part, _, places in self._runs.find(hashes, np.ones(len(hashes), np.bool_)):
            taken.append(part.take(places))
            part.mark(places)
        return pa.concat_tables(taken)

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
        starts, ends = (table.column(name).to_numpy() for name in (START, END))
        order = order_of_numbers(starts)
        hashes = self._hashes(table)
        order = order[order_of(hashes[order])]
        new_key = np.ones(len(order), bool)
        new_key[1:] = hashes[order[1:]] != hashes[order[:-1]]
        if not self._are_keys_of(table.take(pa.array(order)), new_key):  # keys whose hashes are equal
            ids = self._key_ids(table)
            order = np.lexsort((starts, ids))
            new_key[1:] = ids[order[1:]] != ids[order[:-1]]
        begins = session_begins(starts[order], ends[order], new_key)
        sessions = np.empty(len(order), np.int64)
        sessions[order] = np.cumsum(begins)
        return sessions

    def _are_keys_of(self, rows: Any, new_key: Any) -> bool:
        """Return whether rows have the key of the one before where no new one begins."""
        for name in self._state_keys:
            key = one_array(rows.column(name))
            if not (equal_values(key[1:], key[:-1]) | new_key[1:]).all():
                return False
        return True

    def _merged(self, rows: Any) -> Any:
        """Return sessions that do not touch one another."""
        numbered = rows.append_column(_SESSION, pa.array(self._sessions(rows)))
        return merge(numbered, [_SESSION], self._merged_by).select(self._stored_columns)

    # State.

    def _adopt(self, chunk: RestoredChunk, head: Head, dead: bytes | None, follows: bool) -> bool:
        """Take on a part, with what is this subtask's."""
        own = self._context.key_groups
        table, as_stored = self._part_of(chunk, head)
        over = marks_of(dead, table.num_rows)
        name = chunk.chunk_id
        if not (chunk.whole and as_stored):
            groups = self._groups_of(table)
            kept = ~over & own.holds(groups)
            name, table, over = self._new_name(), table.filter(pa.array(kept)), None
        return self._runs.adopt(name, table, over, follows=follows)
