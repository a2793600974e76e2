"""`Deduplicate`: lets the first row of each key through.

Never: keep an object per key, or forget a key before the watermark lets it.

A key is known until the watermark is at its expiry: for ever, unless its event time, or that and a delay, says when.
Keys that are known are in `headgate.operators.known_keys`, which spills and stores them. How far the watermark was is
part of the state, per key group, as it is with windows: a row that was late before a restore is late after it.

Follows Spark 4.3's ``StreamingDeduplicateExec`` and ``StreamingDeduplicateWithinWatermarkExec``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.key_hash import key_groups, key_hash
from headgate.operators.known_keys import EXPIRY, HASH, NEVER_US, KnownKeys
from headgate.operators.operator import Emit, KeyedChunk, KeyedOperator, RestoredChunk
from headgate.operators.partial_deduplicate import PartialDeduplicate, first_of_each
from headgate.operators.windows.assigner import LEAST_US
from headgate.operators.windows.dense_groups import one_array
from headgate.operators.windows.windowed import event_times, plain_key, read_part, serialized, watermark_us
from headgate.protocol.operator_context import OperatorContext

_Reached = list[tuple[int, int, int]]
"""First and last key group, and up to where the watermark was, in microseconds."""
_reached = msgspec.msgpack.Decoder(_Reached)


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
        self._watermark_us = LEAST_US
        self._reached_us = np.full(context.max_parallelism, LEAST_US, np.int64)
        self._known = KnownKeys(
            self._columns, name=self._new_name, memory_bytes=context.memory_bytes, spill_folder=context.spill_folder
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
        return self._known.memory_bytes, self._known.spilled_bytes

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows whose keys are not known."""
        keys = [plain_key(batch.column(name)) for name in self.keys]
        batch = self._with_plain(batch, keys)
        reached = self._reached(keys)
        times = None if self._time is None else event_times(batch.column(self._time))
        if times is not None:
            late = pc.less_equal(times, pa.array(reached)).fill_null(False)
            if late.true_count:
                self._late_rows += late.true_count
                shown = [batch.column(place) for place, _ in self._late]
                self.on_late(pa.RecordBatch.from_arrays(shown, schema=self.late_schema).filter(late))
                kept = pc.invert(late)
                batch, times, reached = batch.filter(kept), times.filter(kept), reached[kept.to_numpy(False)]
                keys = [each.filter(kept) for each in keys]
        if batch.num_rows == 0:
            return
        rows = first_of_each(keys)
        found = pa.table([each.take(pa.array(rows)) for each in keys], names=self._columns)
        hashes = key_hash([one_array(each) for each in found.columns])
        new = pa.array(~self._known.contain(found, hashes, reached[rows]))
        if new.true_count == 0:
            return
        rows = rows[new.to_numpy(False)]
        expiry = np.full(len(rows), NEVER_US)
        if times is not None and self._within_us is not None:
            ends = pc.add(times.take(pa.array(rows)), self._within_us)
            expiry = ends.fill_null(NEVER_US).to_numpy(zero_copy_only=False)
        self._known.add(
            found.filter(new)
            .add_column(0, EXPIRY, pa.array(expiry))
            .add_column(0, HASH, pa.array(hashes[new.to_numpy(False)]))
        )
        emit(batch if len(rows) == batch.num_rows else batch.take(pa.array(rows)), split_id)

    def _with_plain(self, batch: pa.RecordBatch, keys: Sequence[pa.Array]) -> pa.RecordBatch:
        """Return rows with one zero and one NaN in their keys: which of them came first makes no difference."""
        for name, key in zip(self.keys, keys):
            if pa.types.is_floating(key.type):
                batch = batch.set_column(self.schema.get_field_index(name), self.schema.field(name), key)
        return batch

    def _reached(self, keys: Sequence[pa.Array]) -> Any:
        """Return up to where the watermark was for each row, in microseconds."""
        if self._watermark_us >= self._reached_us.max():
            return np.full(len(keys[0]), self._watermark_us)
        groups = key_groups(keys, self._context.max_parallelism).to_numpy()
        return np.maximum(self._reached_us[groups], self._watermark_us)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Forget the keys that expire by the watermark."""
        watermark = watermark_us(timestamp_ms)
        if watermark > self._watermark_us:
            self._watermark_us = watermark
            self._known.expire(watermark)

    def close(self) -> None:
        """Delete the local files."""
        if hasattr(self, "_known"):
            self._known.close()

    # State.

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return the state: up to where the watermark was, and the known keys."""
        own = self._context.key_groups
        reached = np.maximum(self._reached_us[own.first : own.last + 1], self._watermark_us)
        (changes,) = np.nonzero(reached[1:] != reached[:-1])
        bounds = [0, *(int(each) + 1 for each in changes), len(reached)]
        head = [(own.first + begin, own.first + end - 1, int(reached[begin])) for begin, end in pairwise(bounds)]
        chunks = [(self._new_name(), pa.table({"head": pa.array([msgspec.msgpack.encode(head)], pa.binary())}))]
        chunks += self._known.parts()
        return [
            KeyedChunk(
                chunk_id=name,
                first_key_group=own.first,
                last_key_group=own.last,
                serialize=partial(serialized, table),
            )
            for name, table in chunks
        ]

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for _ in self.restore_in_steps(chunks):
            pass

    def restore_in_steps(self, chunks: Sequence[RestoredChunk]) -> Iterator[None]:
        """Do so, a chunk at a time."""
        own = self._context.key_groups
        for chunk in chunks:
            table = read_part(chunk)
            if table.column_names == ["head"]:
                for first, last, reached in _reached.decode(table.column("head")[0].as_py()):
                    self._reached_us[first : last + 1] = reached
                continue
            if chunk.whole:
                self._known.adopt(chunk.chunk_id, table)
            else:
                keys = [one_array(table.column(name)) for name in self._columns]
                groups = key_groups(keys, self._context.max_parallelism).to_numpy()
                table = table.filter(pa.array((groups >= own.first) & (groups <= own.last)))
                self._known.adopt(self._new_name(), table)
            yield
        self._watermark_us = int(self._reached_us[own.first : own.last + 1].min())


def stored_keys(chunks: Sequence[RestoredChunk], names: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the keys that a subtask's state knows, under these names, and by which watermark each is forgotten."""
    reached: _Reached = []
    for chunk in chunks:
        table = read_part(chunk)
        if table.column_names == ["head"]:
            reached = _reached.decode(table.column("head")[0].as_py())
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
