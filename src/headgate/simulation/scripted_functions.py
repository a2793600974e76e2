"""Models of users' functions: they let rows through, count them, or hold them, and check what they are given.

Never: put right what a machine got wrong: a row that comes twice, late, out of order or to the wrong subtask is an
error at once.

Follows the contract (`headgate.operators.operator`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
import pyarrow as pa

from headgate.operators.exchange import ExchangeKind
from headgate.operators.operator import Emit, KeyedOperator, Operator
from headgate.protocol.operator_context import OperatorContext
from headgate.simulation.scripted_reader import Restored, Surroundings
from headgate.simulation.topic import SCHEMA
from headgate.source.watermark import MAX_WATERMARK_MS
from headgate.state.chunks import KeyedChunk, RestoredChunk


def dealt_by_key(batch: pa.RecordBatch, parallelism: int) -> pa.Array:
    """Say which subtask gets which rows of a ``custom`` exchange."""
    return pa.array([(key * 5) % parallelism for key in batch.column(3).to_pylist()], pa.int64())


class Observed(Operator):
    """A user's function that lets rows through, and checks watermarks and the end, and whose rows they are.

    Everybody is given all rows of a broadcast, each once and in order; only subtask 0 lets them through. Rows of a
    split that an exchange rebalances come in order to each subtask, the recovered ones before those that are read.

    Parameters
    ----------
    opened
        Returns the process in which a subtask's copy is opened.
    kinds
        The kind of the exchange that the rows of each source come through.
    at_source
        Whether it comes right after a source.
    """

    kind = function = "observed"
    schema = SCHEMA
    blocks = True

    def __init__(
        self,
        opened: Callable[[], Surroundings],
        kinds: Mapping[str, ExchangeKind | None] = MappingProxyType({}),
        *,
        at_source: bool = False,
    ) -> None:
        self._opened = opened
        self._at_source = at_source
        self._once, self._dealt, self._rebalanced = (
            frozenset(uid for uid, kind in kinds.items() if kind == wanted)
            for wanted in ("broadcast", "custom", "rebalance")
        )

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin."""
        self._around = self._opened()
        self._context = context
        self._watermark_ms: int | None = None
        self._has_ended = False
        self._restored = self._around.restored() if self._once or self._rebalanced else None
        self._copies = {} if self._restored is None else dict(self._restored.copies)
        self._newest: dict[str, int] = {}  # by split: the last row that came

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Let rows through."""
        assert not self._has_ended, f"rows of {split_id} come after the end"
        self._around.work(batch.num_rows, at_source=self._at_source)
        if self._dealt:
            self._check_dealt(batch)
        if self._restored is not None:
            sources = [*map(self._around.uid_of, batch.column(1).to_pylist())]
            for uid, of_split, offset in zip(sources, batch.column(1).to_pylist(), batch.column(2).to_pylist()):
                if uid in self._once:
                    self._check_copy(of_split, offset)
                elif uid in self._rebalanced:
                    self._check_rebalanced(self._restored, of_split, offset)
            if self._once and self._context.subtask:
                batch = batch.filter(pa.array([uid not in self._once for uid in sources]))
        self.hand_on(batch, split_id, emit)

    def _check_copy(self, split_id: str, offset: int) -> None:
        wanted = self._copies.get(split_id, offset if self._around.begins_anywhere(split_id) else 0)
        assert offset == wanted, f"copies: row {offset} of {split_id} comes to {self._context.subtask}, not {wanted}"
        self._copies[split_id] = offset + 1

    def _check_rebalanced(self, restored: Restored, split_id: str, offset: int) -> None:
        newest = self._newest.get(split_id, -1)
        are_recovered = max(newest, offset) < restored.positions.get(split_id, 0)
        assert offset > newest or (restored.relocated and are_recovered), (
            f"rebalanced: row {offset} of {split_id} comes to {self._context.subtask} after {newest}"
        )
        self._newest[split_id] = max(newest, offset)

    def hand_on(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Let rows go on."""
        if batch.num_rows:
            emit(batch, split_id)

    def _check_dealt(self, batch: pa.RecordBatch) -> None:
        owners = dealt_by_key(batch, self._context.parallelism).to_pylist()
        for of_split, key, owner in zip(batch.column(1).to_pylist(), batch.column(3).to_pylist(), owners):
            if self._around.uid_of(of_split) in self._dealt:
                assert owner == self._context.subtask, f"a row of key {key} is another subtask's: {owner}"

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Check that it grows."""
        assert self._watermark_ms is None or timestamp_ms > self._watermark_ms, "a watermark went back"
        self._watermark_ms = timestamp_ms

    def snapshot(self, checkpoint_id: int) -> None:
        """Take note that a snapshot is being taken."""
        self._around.snapshot_taken(checkpoint_id)
        if self._once:
            self._around.copies_stored(checkpoint_id, self._copies)

    def end_input(self, emit: Emit) -> None:
        """Check that the final watermark came."""
        assert self._watermark_ms == MAX_WATERMARK_MS, "a source that ended emitted no final watermark"
        self._has_ended = True
        if self._once:
            self._around.copies_ended(self._copies)


class _Seen(msgspec.Struct):
    """What a key had of a split: the first and the last offset, and how many there were."""

    split_id: str
    key: int
    first: int
    last: int
    count: int


class _HeldRow(msgspec.Struct, frozen=True):
    at_ms: int
    split_id: str
    offset: int
    key: int


_SEEN = msgspec.msgpack.Decoder(tuple[list[_Seen], dict[int, int]])
_HELD = msgspec.msgpack.Decoder(tuple[list[_HeldRow], dict[int, int]])
T = TypeVar("T", _Seen, _HeldRow)


_LASTS = 1 << 20
LASTING = msgspec.msgpack.encode(((), dict.fromkeys(range(_LASTS, _LASTS + 1000), 0)))
"""A chunk that nothing is in: of no row, and of key groups that there are not."""


class Keyed(Observed, KeyedOperator, Generic[T]):
    """A function with state by key group, all of it in one chunk: checks that rows are its own, and none late.

    If files are lost there is one more, which each checkpoint names, as it never changes.

    Parameters
    ----------
    opened
        As for `Observed`.
    """

    state: ClassVar[msgspec.msgpack.Decoder[Any]]
    """Decodes items, and the watermark that each key group has had."""

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without state."""
        super().open(context, items)
        self._names = context.chunk_names()
        self._reached_ms: dict[int, int] = {}  # by key group: its watermark when it was restored
        self._lasting = ""  # the name of the chunk that does not change

    def group_of(self, item: T) -> int:
        """Return the key group of an item of the state."""
        raise NotImplementedError

    def take(self, item: T) -> None:
        """Take on an item of a checkpoint's state."""
        raise NotImplementedError

    def held(self) -> list[T]:
        """Return the state."""
        raise NotImplementedError

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of this subtask's keys."""
        own = self._context.key_groups
        for chunk in chunks:
            items, reached_ms = self.state.decode(chunk.read())
            for item in items:
                if self.group_of(item) in own:
                    self.take(item)
            self._reached_ms.update((group, at_ms) for group, at_ms in reached_ms.items() if group in own)
            if chunk.whole and _LASTS in reached_ms:
                self._lasting = chunk.chunk_id

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return all of it as one chunk."""
        groups = self._context.key_groups
        name = next(self._names)
        reached_ms = {group: at_ms for group in range(groups.first, groups.last + 1) if (at_ms := self._reached(group))}
        data = msgspec.msgpack.encode((self.held(), reached_ms))
        chunks = [KeyedChunk(name, groups.first, groups.last, lambda: data)]
        if self._around.loses_files:
            self._lasting = self._lasting or next(self._names)
            chunks.append(KeyedChunk(self._lasting, groups.first, groups.last, lambda: LASTING))
        return chunks

    def _reached(self, group: int) -> int | None:
        """Return which watermark a key group has had, here or where it was before."""
        known = (each for each in (self._watermark_ms, self._reached_ms.get(group)) if each is not None)
        return max(known, default=None)

    def check_row(self, at_ms: int, group: int) -> None:
        """Check that a row is the subtask's, and not late."""
        assert group in self._context.key_groups, f"a row of key group {group} is another subtask's"
        if self._watermark_ms is None and not self._reached_ms:
            return
        reached_ms = self._reached(group) if self._around.is_in_time else self._watermark_ms
        if reached_ms is not None and not self._around.excuses_late:
            assert at_ms >= reached_ms, f"late: {at_ms}, after {reached_ms}"


class Counted(Keyed[_Seen]):
    """Lets rows through, and checks that each of a split and key came once and in order.

    Parameters
    ----------
    opened
        As for `Observed`.
    in_order
        Whether rows of a split and a key come in their order.
    """

    kind = function = "counted"
    signature = "counted"
    state = _SEEN

    def __init__(self, opened: Callable[[], Surroundings], *, in_order: bool) -> None:
        super().__init__(opened)
        self._in_order = in_order

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without state."""
        super().open(context, items)
        self._seen: dict[tuple[str, int], _Seen] = {}

    def group_of(self, item: _Seen) -> int:
        """Return the group of the key."""
        return self._around.key_group(item.key)

    def take(self, item: _Seen) -> None:
        """Take on what was counted of a split and key."""
        assert (item.split_id, item.key) not in self._seen, (
            f"the state of key {item.key} of {item.split_id} comes twice"
        )
        self._seen[item.split_id, item.key] = item

    def held(self) -> list[_Seen]:
        """Return what was counted."""
        return list(self._seen.values())

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Check rows, and let them through."""
        times = batch.column(0).cast(pa.int64()).to_pylist()
        columns = (batch.column(index).to_pylist() for index in range(1, 4))
        for at_ms, of_split, offset, key in zip(times, *columns):
            self.check_row(at_ms, self._around.key_group(key))
            self._count(of_split, offset, key)
        super().process(batch, split_id, emit)

    def _count(self, split_id: str, offset: int, key: int) -> None:
        seen = self._seen.get((split_id, key))
        if seen is None:
            self._seen[split_id, key] = seen = _Seen(split_id, key, offset, offset, 1)
        else:
            assert not self._in_order or offset > seen.last, (
                f"order: row {offset} of {split_id}, key {key}, comes after {seen.last}"
            )
            seen.first, seen.last, seen.count = min(seen.first, offset), max(seen.last, offset), seen.count + 1
        if self._in_order:
            wanted = self._around.rows_of_key(split_id, key, seen.first, seen.last)
            assert seen.count == wanted, (
                f"lost: key {key} of {split_id} had {seen.count} rows from {seen.first} to {seen.last}, of {wanted}"
            )


HELD = "held"
"""The uid of `Held`."""


class Held(Keyed[_HeldRow]):
    """Keeps rows, by their split, until the watermark has passed them; then lets them through as they came."""

    kind = function = HELD
    signature = HELD
    state = _HELD

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without state."""
        super().open(context, items)
        self._rows: list[_HeldRow] = []

    def group_of(self, item: _HeldRow) -> int:
        """Return the group of the split."""
        return self._around.split_group(item.split_id)

    def take(self, item: _HeldRow) -> None:
        """Take on a row."""
        self._rows.append(item)

    def held(self) -> list[_HeldRow]:
        """Return all rows."""
        return self._rows

    def hand_on(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Keep rows."""
        times = batch.column(0).cast(pa.int64()).to_pylist()
        columns = (batch.column(index).to_pylist() for index in range(1, 4))
        for row in map(_HeldRow, times, *columns):
            self.check_row(row.at_ms, self.group_of(row))
            self._rows.append(row)

    def process_watermark(self, timestamp_ms: int, emit: Emit) -> None:
        """Emit the rows that it has passed."""
        super().process_watermark(timestamp_ms, emit)
        due = [row for row in self._rows if row.at_ms < timestamp_ms]
        if due:
            self._rows = [row for row in self._rows if row.at_ms >= timestamp_ms]
            columns = zip(*map(msgspec.structs.astuple, due))
            emit(pa.RecordBatch.from_arrays([*map(pa.array, columns, SCHEMA.types)], schema=SCHEMA), "")
