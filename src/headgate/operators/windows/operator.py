"""`WindowAggregate`: aggregates rows by key, and by tumbling or sliding windows or none.

Never: hold an object per key, or let a window fire twice.

Rows become partial results, a batch at a time, and are merged with others as in `headgate.state.sorted_runs`, by the
buckets that windows are made of, and keys. A window fires when the watermark is at its end or beyond: its groups are
emitted once, in ``append`` mode, and its rows forgotten. In ``update`` mode groups that changed are emitted before
every barrier, and those that changed since when their window fires; to a sink that publishes at once they go every few
milliseconds beside that, the more of them there are the less often, as `newest_groups` has them. In ``complete`` mode
all groups are emitted before every barrier, and none is ever forgotten, whatever the watermark is. To a sliding window
that has ended a row that is not late yet does not count either.

Rows may have been aggregated before the exchange already: `headgate.operators.windows.partial`.

Without a window groups end with the last watermark, or at the event time in their key. An aggregation without keys
has one row, also of no rows at all.

Follows Spark 4.3's ``groupBy``.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.key_hash import key_groups
from headgate.operators.operator import Emit
from headgate.operators.windows.aggregates import ORDERED, merge
from headgate.operators.windows.assigner import MOST_US, Buckets, NoWindow, TimeWindow
from headgate.operators.windows.changed_groups import ChangedGroups, Groups
from headgate.operators.windows.newest_groups import NewestGroups
from headgate.operators.windows.partial import PartialAggregate, PartialExchange, Partials
from headgate.operators.windows.windowed import Aggregated, Head, Key, WindowedAggregate, event_times, watermark_us
from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import distinct, numbers_from, one_array, together
from headgate.state.chunks import RestoredChunk
from headgate.state.part import Layout
from headgate.state.sorted_runs import stretches
from headgate.state.watermarks import LEAST_US

BUCKET = "bucket"
_FEW_WANTED = 4
"""A group of so many is looked for by its key; if more of them are wanted, all are merged."""
_MANY_TABLES = 64
"""So many that wait are made one, if the newest groups have them."""
_NEWEST_PART = 4
"""The part of the memory that the newest values of groups may take."""
_PAUSE_MS, _PAUSE_MS_OF_SEARCH, _PAUSE_MS_OF_A_ROW = 2, 5, 0.02
"""How long no changes are emitted after some were: at least, where these were looked for in the state, and for each row
that was merged for them."""


class WindowAggregate(WindowedAggregate):
    """Aggregates rows by keys, and by tumbling or sliding windows. The parameters are those of `WindowedAggregate`."""

    _partials: Partials | None = None
    """What it takes instead of rows: see `two_phases`."""

    def __init__(
        self,
        input_schema: pa.Schema,
        window: TimeWindow | NoWindow,
        *,
        time: str | None,
        keys: Sequence[Key],
        aggregates: Sequence[Aggregated],
        columns: Sequence[str],
    ) -> None:
        name = None if isinstance(window, NoWindow) else window.name
        super().__init__(input_schema, name, time=time, keys=keys, aggregates=aggregates, columns=columns)
        self._window = window
        self._always_one_row = time is None and all(key.name is None for key in self._keys)

    def two_phases(self, *, always: bool) -> tuple[PartialAggregate, PartialExchange, WindowAggregate] | None:
        """Return what aggregates rows before the exchange, the exchange, and what takes partial results then.

        None: an aggregate needs the rows in their order, or Spark's own code. ``always``: see `PartialAggregate`.
        """
        if not all(each.accumulator.two_phase for each in self._aggregates):
            return None
        schema = self.state_schema
        texts = [each.name for each in (self._aggregates if schema is None else schema.aggregates)]
        partials = Partials(
            self.input_schema, self._window, time=self._time, keys=self._keys, aggregates=self._aggregates, texts=texts
        )
        by = [*([] if self._window_name is None else [self._window_name]), *partials.keys]
        functions = ", ".join(f"partial_{text}" for text in texts)
        before = PartialAggregate(
            partials, f"PartialAggregate(keys=[{', '.join(by)}], functions=[{functions}])", always=always
        )
        keys = tuple(key.column for key in self._keys)
        after = copy.copy(self)
        after._partials = partials
        return before, PartialExchange(partials, keys, self._window.text, schema), after

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        super().open(context, items)
        # What is shared by windows is merged in the order of time, and not of arrival.
        in_order = any(partial.merging in ORDERED for partial in self._state_partials.values())
        self._buckets = Buckets(self._window, apart=in_order or self.output_mode != "append")
        self._changed = ChangedGroups()
        self._keeps_newest = self.output_mode == "update" and self.emits_updates_at_once
        self._newest: NewestGroups | None = None  # made when it is needed
        self._known = 0  # so many of the tables that wait are among the newest groups
        self._gathered = 0  # so many of these are made of others
        if self._keeps_newest:
            self._runs.memory_bytes -= context.memory_bytes // _NEWEST_PART
        self._emit_again_ms = 0
        self._first_waiting = MOST_US
        self._waiting_buckets: list[tuple[int, int]] = []  # the first and the last of each table that waits

    @property
    def state_bytes(self) -> tuple[int, int]:
        """How many bytes of state are in memory, with the newest values of groups, and how many in local files."""
        memory, files = super().state_bytes
        return memory + (0 if self._newest is None else self._newest.nbytes), files

    @property
    def _stored_columns(self) -> list[str]:
        return [BUCKET, *self._state_keys, *self._state_partials]

    @property
    def _layout(self) -> Layout:
        columns, by_time = tuple(self._stored_columns), self._time is not None
        return Layout(columns, BUCKET, self._hashes, by_time=by_time, combined=self._merged)

    def _merged(self, rows: Any) -> Any:
        """Return partial results with one row for each group of a bucket."""
        return merge(rows, [BUCKET, *self._state_keys], self._state_partials)

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Take rows of one split, or partial results of such."""
        if self._partials is not None:
            micros = self._partials.times(batch)
        elif isinstance(self._window, NoWindow):
            micros = self._ends(batch)
        else:
            batch, micros = self._timed(batch)
        if batch.num_rows == 0:
            return
        buckets = self._buckets.of(micros)
        horizon = self._horizon(batch)
        if int(buckets.min()) + self._buckets.size_us <= np.max(horizon):
            late = buckets + self._buckets.size_us <= horizon
            if late.any():
                self._drop_late(batch.filter(pa.array(late)))
                kept = ~late
                batch, micros, buckets = batch.filter(pa.array(kept)), micros[kept], buckets[kept]
                horizon = horizon if isinstance(horizon, int) else horizon[kept]
        if batch.num_rows == 0:
            return
        lifted = pa.Table.from_arrays([pa.array(buckets), *self._lifted(batch)], names=self._stored_columns)
        if self._buckets.per_row > 1:
            rows, all_buckets = self._buckets.all(buckets, micros, horizon)
            lifted = lifted.take(rows).set_column(0, BUCKET, pa.array(all_buckets))
            buckets = all_buckets
        bounds = int(buckets.min()), int(buckets.max())
        self._first_waiting = min(self._first_waiting, bounds[0])
        self._waiting_buckets.append(bounds)
        self._wait(lifted)

    def _lifted(self, batch: pa.RecordBatch) -> list[Any]:
        if self._partials is None:
            return super()._lifted(batch)
        return [*(batch.column(key.column) for key in self._keys), *self._partials.partials_in(batch)]

    def _drop_late(self, late: pa.RecordBatch) -> None:
        if self._partials is None:
            super()._drop_late(late)
        else:
            self._late_rows += self._partials.rows_in(late)

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late; None: no row can, or they were aggregated before."""
        return None if self._partials is not None else super().late_schema

    def _ends(self, batch: pa.RecordBatch) -> Any:
        """Return the event times that are in keys, after all others where there is none; 0 if none is a key."""
        if self._time is None:
            return np.zeros(batch.num_rows, np.int64)
        return event_times(batch.column(self._time)).fill_null(MOST_US).to_numpy()

    def _flush(self, last: int = MOST_US) -> None:
        """Merge what waits, and add it to the state; of buckets after this one it may wait on."""
        if self._keeps_newest:
            self._change_newest()
        rows = self._take_due(last)
        if not rows:
            return
        made = self._merged(together(rows))  # Arrow groups each of many small ones at a price
        if self.output_mode == "update" and not self._keeps_newest:
            self._changed.add(*self._groups_in(made))
        self._runs.add(made)

    def _change_newest(self) -> None:
        """Merge what waits into the newest groups; it waits on for the state."""
        for _ in self._find_newest() if self._newest is None else ():
            pass
        new = self._waiting[self._known :]
        if self._newest is not None and new:
            self._newest.update(pa.concat_tables(new))
            if self._newest.is_exact:
                self._known = len(self._waiting)
        self._check_newest()
        if self._known >= self._gathered + _MANY_TABLES:
            self._gather()

    def _find_newest(self) -> Iterator[None]:
        """Make the newest groups of the state, in steps, if these may have room."""
        if not 0 < self._newest_bytes < sum(self._runs.bytes_held):
            groups = []
            for each in self._runs.merged():
                groups.append(each)
                yield
            self._newest = NewestGroups(groups, BUCKET, self._hashes, self._merged)
        self._check_newest()

    def _groups_in(self, table: Any) -> tuple[Any, Any]:
        """Return the buckets of rows, and the hashes of their keys."""
        return one_array(table.column(BUCKET)).to_numpy(), self._hashes(table)

    @property
    def _newest_bytes(self) -> int:
        return self._context.memory_bytes // _NEWEST_PART

    def _check_newest(self) -> None:
        """Look for groups that changed in the state from now on, if they are too many, or two have one number."""
        newest = self._newest
        if not self._keeps_newest or (
            newest is not None and newest.is_exact and not 0 < self._newest_bytes < newest.nbytes
        ):
            return
        self._keeps_newest, self._newest = False, None
        self._runs.memory_bytes = self._context.memory_bytes
        changed = None if newest is None else newest.take_changed()
        for each in [*([] if changed is None else [changed]), *self._waiting[self._known :]]:
            self._changed.add(*self._groups_in(each))
        rows = self._take_due(MOST_US)  # without it the state has not what was emitted already
        if rows:
            self._runs.add(self._merged(together(rows)))

    def _gather(self) -> None:
        """Make the tables that wait few: each takes room, however few rows it has."""
        many = slice(self._gathered, self._known)
        rows, bounds = self._waiting[many], self._waiting_buckets[many]
        merged = self._merged(together(rows))
        self._waiting_rows += merged.num_rows - sum(each.num_rows for each in rows)
        self._waiting_bytes += merged.nbytes - sum(each.nbytes for each in rows)
        self._waiting[many] = [merged]
        self._waiting_buckets[many] = [(min(first for first, _ in bounds), max(last for _, last in bounds))]
        self._gathered += 1
        self._known = self._gathered

    def _take_due(self, last: int) -> list[Any]:
        """Take what waits; if most of it is of buckets after this one, let that wait on.

        The more rows are merged at once, the less it costs. A subtask among many has few rows for each window, and rows
        of many windows if one of those that send them lags the others.
        """
        rows, size_bytes, bounds = self._waiting_rows, self._waiting_bytes, self._waiting_buckets
        tables = self._take_waiting()
        self._known = self._gathered = 0
        self._waiting_buckets, self._first_waiting = [], MOST_US
        if last == MOST_US:
            return tables
        due: list[Any] = []
        later: list[tuple[Any, tuple[int, int]]] = []
        for table, (first, end) in zip(tables, bounds, strict=True):
            if end <= last:
                due.append(table)
            elif first > last:
                later.append((table, (first, end)))
            else:
                buckets = table.column(BUCKET).to_numpy()
                due.append(table.filter(pa.array(buckets <= last)))
                later.append((table.filter(pa.array(buckets > last)), (int(buckets[buckets > last].min()), end)))
        taken = sum(table.num_rows for table in due)
        if 2 * taken >= rows:
            return tables
        self._waiting, self._waiting_buckets = [table for table, _ in later], [each for _, each in later]
        self._waiting_rows, self._waiting_bytes = rows - taken, size_bytes - sum(table.nbytes for table in due)
        self._first_waiting = min(first for first, _ in self._waiting_buckets)
        return due

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit the windows that end by the watermark."""
        watermark, before = watermark_us(timestamp_ms), self._watermarks.now_us
        if self._passes_over(watermark):
            return
        first = self._runs.first_us
        if self._waiting:  # which goes on waiting for more while none of it is due
            first = self._first_waiting if first is None else min(first, self._first_waiting)
        if first is None and watermark == MOST_US:
            self._emit_row_of_nothing(emit)
        if first is None or first - self._buckets.reach_us > self._last_ended:
            return
        self._flush(self._last_ended + self._buckets.reach_us if self.output_mode == "append" else MOST_US)
        if self.output_mode == "update":
            self._emit_changed(self._last_ended, emit)
        elif self._buckets.per_window == 1:
            self._fire_buckets(self._last_ended, emit)
        else:
            self._fire_windows(before, emit)
        self._runs.expire(self._last_ended)
        if self._newest is not None:
            self._newest.forget(self._last_ended)

    @property
    def _last_ended(self) -> int:
        """The last bucket whose windows have all ended."""
        return max(LEAST_US, self._watermarks.now_us - self._buckets.size_us)

    def due_ms(self) -> int | None:
        """Return when groups that changed are emitted next, if they are wanted soon and there are any."""
        if not self.emits_updates_at_once or self.output_mode != "update":
            return None
        changed = self._changed if self._newest is None else self._newest.has_changed
        return self._emit_again_ms if changed or len(self._waiting) > self._known else None

    def process_time(self, now_ms: int, emit: Emit) -> None:
        """Emit the groups that changed, if they are due."""
        due_ms = self.due_ms()
        if due_ms is None or now_ms < due_ms:
            return
        if self._keeps_newest:
            self._change_newest()
        else:
            self._flush()
        merged = self._emit_changed(MOST_US, emit)
        least_ms = _PAUSE_MS_OF_SEARCH if self._newest is None else _PAUSE_MS
        self._emit_again_ms = now_ms + max(least_ms, int(_PAUSE_MS_OF_A_ROW * merged))

    def prepare_snapshot(self, emit: Emit) -> None:
        """In update mode, emit the groups that changed; in complete mode all."""
        if self.output_mode != "append":
            self._flush()
        if self.output_mode == "update":
            self._emit_changed(MOST_US, emit)
        elif self.output_mode == "complete" and not self._has_ended:
            self._fire_buckets(MOST_US, emit)
            if self._runs.first_us is None:
                self._emit_row_of_nothing(emit)

    # Firing.

    def _fire_buckets(self, last: int, emit: Emit) -> None:
        for table in self._runs.merged(last):
            self._emit_buckets(table, emit)

    def _fire_windows(self, before_us: int, emit: Emit) -> None:
        """Emit the windows that ended since the watermark before, of several buckets each; others may need these still.

        Neighbours fire together: each of their rows is taken as often as it is in one of them.
        """
        buckets, rows = self._runs.rows_by_time()
        starts, reach = self._buckets.ended(buckets, before_us, self._watermarks.now_us), self._buckets.reach_us
        until = np.concatenate([[0], np.cumsum(rows)])
        low, high = np.searchsorted(buckets, starts), np.searchsorted(buckets, starts + reach, "right")
        for begin, end in stretches(until[high] - until[low], self._runs.range_rows):
            some, first, last = starts[begin:end], low[begin], high[end - 1]
            for table in self._runs.of_times(buckets[first:last], int(until[last] - until[first])):
                numbers = np.zeros(table.num_rows, np.int64)
                if len(some) > 1:
                    in_buckets = table.column(BUCKET).to_numpy()
                    earliest = np.searchsorted(some, in_buckets - reach)
                    many = np.searchsorted(some, in_buckets, "right") - earliest
                    numbers = numbers_from(earliest, many)
                    table = table.take(pa.array(np.repeat(np.arange(len(in_buckets)), many)))
                fired = self._merged(table.set_column(0, BUCKET, pa.array(some[numbers])))
                self._emit_buckets(self._not_fired_before(fired), emit)

    def _not_fired_before(self, table: Any) -> Any:
        """Return groups of windows without those that fired before a restore, with their key group."""
        ends = table.column(BUCKET).to_numpy() + self._buckets.size_us
        if (ends > self._watermarks.most_restored_us).all():
            return table
        return table.filter(pa.array(ends > self._watermarks.restored(self._groups_of(table))))

    def emit_state(self, emit: Emit) -> None:
        """Emit what is in the buckets."""
        self._fire_buckets(MOST_US, emit)

    def _emit_changed(self, last: int, emit: Emit) -> int:
        """Emit what changed of the groups of buckets up to this one; return how many rows were merged for that."""
        if self._newest is not None:  # and what changed of others as well
            newest = self._newest.take_changed()
            if newest is None:
                return 0
            self._emit_buckets(newest, emit)
            return int(newest.num_rows)
        changed = self._changed.take(last)
        merged = 0
        for table in self._with_changed(changed) if len(changed) else ():
            merged += table.num_rows
            is_changed = changed.contain(*self._groups_in(table))
            self._emit_buckets(table.filter(pa.array(is_changed)), emit)
        return merged

    def _with_changed(self, changed: Groups) -> Iterator[Any]:
        """Yield groups, merged, among which are those that changed: of few, those whose keys have their hashes."""
        few = isinstance(self._window, NoWindow) and self._runs.rows >= _FEW_WANTED * len(changed)
        if not few or (self._time is not None and self._runs.bytes_held[1]):  # of those in files no hash is known
            yield from self._runs.merged(np.unique(changed.buckets))
            return
        hashes, limit = distinct(changed.hashes), self._runs.range_rows
        for begin in range(0, len(hashes), limit):
            some = hashes[begin : begin + limit]
            found = [part.take(np.sort(places)) for part, _, places in self._runs.find(some, np.ones(len(some), bool))]
            yield self._merged(pa.concat_tables(found))

    def _emit_buckets(self, table: Any, emit: Emit) -> None:
        """Emit groups of buckets that are windows, in their order."""
        starts = table.column(BUCKET).to_numpy()
        if (starts[1:] < starts[:-1]).any():
            order = np.argsort(starts, kind="stable")
            table, starts = table.take(order), starts[order]
        self._emit(table, starts, starts + self._buckets.size_us, emit)

    def _emit_row_of_nothing(self, emit: Emit) -> None:
        """Emit what an aggregation without keys has of no rows, in the subtask that would have them."""
        if not self._always_one_row:
            return
        keys = [pa.array([0], self.input_schema.field(key.column).type) for key in self._keys]
        own = self._context.key_groups
        if own.first <= key_groups(keys, self._context.max_parallelism)[0].as_py() <= own.last:
            partials = [each for one in self._aggregates for each in one.accumulator.of_nothing()]
            names = [*self._state_keys, *self._state_partials]
            self._emit(pa.Table.from_arrays([*keys, *partials], names=names), [], [], emit)

    # State.

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Take on the state of a checkpoint, a chunk at a time; and the newest groups, where these are wanted."""
        yield from super().restore_in_steps(chunks)
        if self._keeps_newest:
            yield from self._find_newest()

    def _adopt(self, chunk: RestoredChunk, head: Head, dead: bytes | None, follows: bool) -> bool:
        """Take on a part, with the rows that are this subtask's and have not been fired.

        What all key groups of its former subtask had fired may stay: it is over by its bucket.
        """
        own = self._context.key_groups
        low, high = min(fired for _, _, fired in head.fired), max(fired for _, _, fired in head.fired)
        table, as_stored = self._part_of(chunk, head)
        ends = table.column(BUCKET).to_numpy() + self._buckets.size_us
        name, keeps_name = chunk.chunk_id, chunk.whole and as_stored
        if not keeps_name or ((ends > low) & (ends <= high)).any():
            groups = self._groups_of(table)
            kept = own.holds(groups) & (ends > self._watermarks.restored(groups))
            if not (keeps_name and kept.all()):
                name, table = self._new_name(), table.filter(pa.array(kept))
        return self._runs.adopt(name, table, over_us=max(LEAST_US, low - self._buckets.size_us), follows=follows)
