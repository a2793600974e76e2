"""`Deduplicate`: lets the first row of each key through.

Never: keep an object per key, or forget a key before the watermark lets it.

A key is known until the watermark is at its expiry: for ever, unless its event time, or that and a delay, says when.
Keys that are known are searched by their hashes, in `headgate.state.sorted_runs`, and compared then.

Follows Spark 4.3's ``StreamingDeduplicateExec`` and ``StreamingDeduplicateWithinWatermarkExec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.key_hash import groups_of_hashes, key_hash
from headgate.operators.operator import Emit, KeyedOperator
from headgate.operators.partial_deduplicate import PartialDeduplicate, first_of_each
from headgate.operators.windows.windowed import event_times, plain_key, watermark_us
from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import equal_values, one_array
from headgate.state.chunks import KeyedChunk, RestoredChunk, head_in, keyed_chunks, read_part
from headgate.state.part import HASH, NEVER_US, Layout
from headgate.state.sorted_runs import SortedRuns
from headgate.state.watermarks import LEAST_US, KeyGroupWatermarks, Ranges

EXPIRY = "expiry"
"""By when a key is forgotten, in microseconds since 1970-01-01 UTC."""
_reached = msgspec.msgpack.Decoder(Ranges)


class Deduplicate(KeyedOperator):
    """Emits the first row of each key that is not known.

    Parameters
    ----------
    schema
        The columns of its rows.
    keys
        The names of those that make the key.
    time
        The column with the event time, of windows their end: rows at the watermark or below are late; None: no row is.
    within_us
        A key is forgotten so long after its event time, in microseconds; None: never.
    late
        The columns of late rows, by place, and their names; None: all columns.
    """

    kind = "deduplicate"

    def __init__(
        self,
        schema: pa.Schema,
        keys: Sequence[str],
        *,
        time: str | None = None,
        within_us: int | None = None,
        late: Sequence[tuple[int, str]] | None = None,
    ) -> None:
        assert time is not None or within_us is None
        self.schema = schema
        self.keys = tuple(keys)
        self._time = time
        self._within_us = within_us
        self._late = list(enumerate(schema.names)) if late is None else list(late)
        self._late_rows = 0
        self._columns = [f"key {number}" for number in range(len(keys))]
        self.function = f"dropDuplicates({', '.join(keys)})"

    def first_phase(self, *, always: bool) -> PartialDeduplicate | None:
        """Return what drops duplicates before the exchange; None: which rows are late is decided after it.

        ``always``: see `PartialDeduplicate`.
        """
        return PartialDeduplicate(self.schema, self.keys, always=always) if self._time is None else None

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._context = context
        self._new_name = partial(next, context.chunk_names())
        self._late_rows = 0
        self._watermarks = KeyGroupWatermarks(context.key_groups, context.max_parallelism)
        self._layout = Layout((HASH, EXPIRY, *self._columns), EXPIRY)
        self._known = SortedRuns(
            self._layout, name=self._new_name, memory_bytes=context.memory_bytes, spill_folder=context.spill_folder
        )

    @property
    def late_rows(self) -> int:
        """How many rows came after the watermark since the deployment."""
        return self._late_rows

    @property
    def late_schema(self) -> pa.Schema | None:
        """The columns of rows that came too late; None: no row can."""
        late = (self.schema.field(place).with_name(name) for place, name in self._late)
        return None if self._time is None else pa.schema(late)

    @property
    def state_bytes(self) -> tuple[int, int]:
        """How many bytes of state are in memory, and how many in local files."""
        return self._known.bytes_held

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows whose keys are not known."""
        keys = [plain_key(batch.column(name)) for name in self.keys]
        batch = self._with_plain(batch, keys)
        hashes = key_hash(keys)
        reached = self._watermarks.of(lambda: groups_of_hashes(hashes, self._context.max_parallelism))
        times = None if self._time is None else event_times(batch.column(self._time))
        if times is not None:
            late = pc.less_equal(times, reached if isinstance(reached, int) else pa.array(reached)).fill_null(False)
            if late.true_count:
                self._late_rows += late.true_count
                shown = [batch.column(place) for place, _ in self._late]
                self.on_late(pa.RecordBatch.from_arrays(shown, schema=self.late_schema).filter(late))
                kept = pc.invert(late)
                batch, times, keys = batch.filter(kept), times.filter(kept), [each.filter(kept) for each in keys]
                hashes = hashes[kept.to_numpy(zero_copy_only=False)]
        if batch.num_rows == 0:
            return
        rows = first_of_each(keys, hashes)
        if len(rows) < len(hashes):
            keys, hashes = [each.take(pa.array(rows)) for each in keys], hashes[rows]
        found = pa.table(keys, names=self._columns)
        new = self._unknown(found, hashes)
        if not new.any():
            return
        if not new.all():
            rows, hashes, found = rows[new], hashes[new], found.filter(pa.array(new))
        expiry = np.full(len(rows), NEVER_US)
        if times is not None and self._within_us is not None:
            ends = pc.add(times.take(pa.array(rows)), self._within_us)
            expiry = ends.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
        self._known.add(pa.table([hashes, expiry, *found.columns], names=self._layout.columns))
        emit(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)), split_id)

    def _unknown(self, keys: Any, hashes: Any) -> Any:
        """Return which of different keys are not known, or have expired."""
        now = self._watermarks.of(lambda: groups_of_hashes(hashes, self._context.max_parallelism))
        unknown = np.ones(len(hashes), np.bool_)
        for part, ours, places in self._known.find(hashes, unknown):
            same = part.times[places] > (now if isinstance(now, int) else now[ours])
            for name in self._columns:
                known = part.table.column(name).chunk(0).take(pa.array(places))
                same &= equal_values(known, one_array(keys.column(name)).take(pa.array(ours)))
            unknown[ours[same]] = False
        return unknown

    def _with_plain(self, batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows with one zero and one NaN in their keys: which of them came first makes no difference."""
        for name, key in zip(self.keys, keys):
            if pa.types.is_floating(key.type):
                batch = batch.set_column(self.schema.get_field_index(name), self.schema.field(name), key)
        return batch

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Forget the keys that expire by the watermark."""
        if self._watermarks.advance(watermark_us(timestamp_ms)):
            self._known.expire(self._watermarks.now_us)

    def close(self) -> None:
        """Delete the local files."""
        if hasattr(self, "_known"):
            self._known.close()

    # State.

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the state: up to where the watermark was, and the known keys."""
        head = self._new_name(), self._watermarks.ranges()
        return keyed_chunks(self._context.key_groups, head, [(part.name, part.stored) for part in self._known.parts])

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for _ in self.restore_in_steps(chunks):
            pass

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Do so, a chunk at a time."""
        own = self._context.key_groups
        for chunk in chunks:
            table = read_part(chunk)
            if (head := head_in(table)) is not None:
                self._watermarks.take_on(_reached.decode(head))
                continue
            name = chunk.chunk_id
            if not chunk.whole:
                groups = groups_of_hashes(one_array(table.column(HASH)).to_numpy(), self._context.max_parallelism)
                name, table = self._new_name(), table.filter(pa.array(own.holds(groups)))
            self._known.adopt(name, table)
            yield
        self._watermarks.settle()


def stored_keys(chunks: Sequence[RestoredChunk], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the keys that a subtask's state knows, under these names, and by which watermark each is forgotten."""
    reached: Ranges = []
    for chunk in chunks:
        table = read_part(chunk)
        if (head := head_in(table)) is not None:
            reached = _reached.decode(head)
            continue
        # Above this the watermark was in all key groups; what has expired is left out when it is merged.
        alive = pc.greater(table.column(EXPIRY), min((each for _, _, each in reached), default=LEAST_US))
        table = table.filter(alive)
        columns = [table.column(number) for number, name in enumerate(table.column_names) if name.startswith("key ")]
        expiry = pc.if_else(pc.equal(table.column(EXPIRY), NEVER_US), None, table.column(EXPIRY))
        yield pa.table(
            [*columns, expiry.cast(pa.timestamp("us", "UTC"))],
            names=[*(names[: len(columns)] or [f"key {n}" for n in range(len(columns))]), "known until"],
        )
