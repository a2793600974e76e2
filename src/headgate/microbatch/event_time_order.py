"""Merges the splits of one task in event-time order, for replays: the option ``eventTimeOrder``.

Never: look at a row in Python, drop one, or change the order of a split's own rows.

A row's *key* is the highest event time up to it in its split: a split that is in order has its event times for keys,
and one with disorder keeps its own order. A row without an event time has the key of the row before it, and so comes
directly after it. Rows leave by (key, number of the split, place in the split), whatever the sizes of batches and
whoever came first: reading again gives the same order.

A split's *floor* is the least key that its next row can have: the key of its last row, or what its source reported of
its first one. A row may leave once no unfinished split has a floor before it. So of each split about one batch is held:
a split that has rows waiting is paused (FLIP-217), and goes on when they have left. Splits that are known to begin
later are not even opened before it is their turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headgate.errors import UnsupportedOperationError
from headgate.source.event_time import UNITS_PER_SECOND
from headgate.source.reader import InputStatus, ReaderOutput, SourceOutput, SourceReader
from headgate.source.split import Split

SplitT = TypeVar("SplitT", bound=Split)

_Keys = npt.NDArray[np.int64]
_FIRST_KEY = -(2**63)
_HELD_BYTES = 1 << 20
"""A split is paused when this much of it waits: small batches are not worth a pause each."""
_OUTPUT_BYTES = 1 << 20
"""Merged rows leave in batches of about this size, which the JVM reads fastest."""


class _Split(msgspec.Struct):
    """What is known of one split; ``parts`` are rows that wait, each with its keys."""

    split_id: str
    floor: int
    parts: deque[tuple[_Keys, pa.RecordBatch]] = msgspec.field(default_factory=deque)
    held_bytes: int = 0
    begun: bool = False
    finished: bool = False


class EventTimeMerge:
    """Takes rows of several splits as they come, and gives them back in order.

    Parameters
    ----------
    column
        The index of the column with the event time, a timestamp, in every batch.
    schema
        The columns of every batch.
    not_before_ms
        The splits, in the order that decides between equal keys, each with the least event time that its first row
        can have, in milliseconds; None: any.

    Examples
    --------
    >>> schema = pa.schema([("at", pa.timestamp("ms")), ("from", pa.string())])
    >>> merge = EventTimeMerge(0, schema, {"a": None, "b": None})
    >>> merge.take_rows("a", pa.record_batch([[1, 5, 4, 9], list("aaaa")], schema=schema))
    >>> merge.take_rows("b", pa.record_batch([[2, 5, None, 6], list("bbbb")], schema=schema))
    >>> merge.finish("b")
    >>> [row["from"] for batch in merge.leaving() for row in batch.to_pylist()]
    ['a', 'b', 'a', 'a', 'b', 'b', 'b', 'a']
    """

    def __init__(self, column: int, schema: pa.Schema, not_before_ms: Mapping[str, int | None]) -> None:
        self._column = column
        self._schema = schema
        unit = UNITS_PER_SECOND[schema.field(column).type.unit]
        self._splits = {
            split_id: _Split(split_id, _FIRST_KEY if at_ms is None else max(_FIRST_KEY, at_ms * unit // 1000))
            for split_id, at_ms in not_before_ms.items()
        }

    @property
    def is_over(self) -> bool:
        """Whether all splits have finished and no row waits."""
        return not self._splits

    def begin_splits(self) -> list[str]:
        """Return the splits that must be read from now on, those that begin first: they count as begun."""
        pending = [each for each in self._splits.values() if not each.begun]
        if not pending:
            return []
        first = min(each.floor for each in self._splits.values() if not each.finished)
        begun = [each for each in pending if each.floor <= first]
        for each in begun:
            each.begun = True
        return [each.split_id for each in begun]

    def take_rows(self, split_id: str, batch: pa.RecordBatch) -> None:
        """Take the next rows of a split."""
        if batch.num_rows == 0:
            return
        split = self._splits[split_id]
        split.begun = True
        keys = self._keys(batch, split.floor)
        split.floor = int(keys[-1])
        split.parts.append((keys, batch))
        split.held_bytes += batch.nbytes

    def finish(self, split_id: str) -> None:
        """Take note that nothing more comes of a split; of one that has finished already, too."""
        split = self._splits.get(split_id)
        if split is not None:
            split.finished = split.begun = True
            self._forget(split)

    def finish_all(self) -> None:
        """Take note that nothing more comes at all."""
        for split_id in list(self._splits):
            self.finish(split_id)

    def full(self) -> list[str]:
        """Return the splits that are being read and of which enough rows wait."""
        return [each.split_id for each in self._reading() if each.held_bytes >= _HELD_BYTES]

    def lacking(self) -> list[str]:
        """Return the splits that are being read and have no rows waiting: the others may have to wait for them."""
        return [each.split_id for each in self._reading() if not each.parts]

    def leaving(self) -> Iterator[pa.RecordBatch]:
        """Take out the rows that may leave now, and return them in order.

        They are taken out at once; rows that come while the iterator is used are not part of it.
        """
        return self._merged(self._take_out())

    def _reading(self) -> Iterator[_Split]:
        return (each for each in self._splits.values() if each.begun and not each.finished)

    def _keys(self, batch: pa.RecordBatch, floor: int) -> _Keys:
        times = batch.column(self._column).view(pa.int64())
        if times.null_count:
            times = pc.fill_null(times, floor)
        values: _Keys = times.to_numpy(zero_copy_only=False)
        if values[0] < floor:
            values = values.copy()
            values[0] = floor
        running: _Keys = np.maximum.accumulate(values)
        return running

    def _take_out(self) -> list[tuple[_Keys, pa.RecordBatch]]:
        """Return the rows that may leave, by split: those before what any unfinished split may still give."""
        unfinished = [(each.floor, number) for number, each in enumerate(self._splits.values()) if not each.finished]
        floor, owner = min(unfinished, default=(None, 0))
        taken: list[tuple[_Keys, pa.RecordBatch]] = []
        for number, split in enumerate(list(self._splits.values())):
            while split.parts:
                keys, batch = split.parts[0]
                if floor is None or keys[-1] < floor or (keys[-1] == floor and number <= owner):
                    rows = len(keys)
                else:
                    # Among equal keys the earlier split's rows come first, those still to come included.
                    rows = int(np.searchsorted(keys, floor, side="right" if number <= owner else "left"))
                if rows:
                    taken.append((keys[:rows], batch.slice(0, rows)))
                    split.held_bytes -= batch.nbytes
                if rows == len(keys):
                    split.parts.popleft()
                    continue
                if rows:
                    rest = batch.slice(rows)
                    split.parts[0] = (keys[rows:], rest)
                    split.held_bytes += rest.nbytes
                break
            self._forget(split)
        return taken

    def _forget(self, split: _Split) -> None:
        if split.finished and not split.parts:
            del self._splits[split.split_id]

    def _merged(self, parts: Sequence[tuple[_Keys, pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        """Yield rows in the order of their keys; equal ones in the order of the parts."""
        if not parts:
            return
        batches = [batch for _, batch in parts]
        lengths = np.array([len(keys) for keys, _ in parts])
        begins = np.concatenate([[0], np.cumsum(lengths)])
        order = np.argsort(np.concatenate([keys for keys, _ in parts]), kind="stable")
        pieces = -(-sum(batch.nbytes for batch in batches) // _OUTPUT_BYTES)
        rows = -(-len(order) // max(1, pieces))
        left_at = np.zeros(len(parts), np.int64)
        for begin in range(0, len(order), rows):
            # Any stretch of the order has of each part a stretch too: only that is copied.
            picked = order[begin : begin + rows]
            part_of = np.searchsorted(begins, picked, side="right") - 1
            counts = np.bincount(part_of, minlength=len(parts))
            used = np.flatnonzero(counts)
            slices = [batches[part].slice(left_at[part], counts[part]) for part in used]
            if len(slices) == 1:
                yield slices[0]
            else:
                together = pa.concat_batches(slices)
                places = picked - (begins[:-1] + left_at - (np.cumsum(counts) - counts))[part_of]
                yield together if bool(np.all(places[1:] > places[:-1])) else together.take(pa.array(places))
            left_at += counts


class _SplitRows(SourceOutput):
    """Hands the rows of one split to the merge, in the form that all splits' rows must have."""

    def __init__(self, take: Callable[[pa.RecordBatch], None]) -> None:
        self._take = take

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        self._take(batch)

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Ignored: in batch nobody asks for it."""

    def mark_idle(self) -> None:
        """Ignored."""


class _MergeOutput(ReaderOutput):
    """A reader's output in front of a merge."""

    def __init__(
        self, merge: EventTimeMerge, cast_to_schema: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]], source: str
    ) -> None:
        self._merge = merge
        self._cast_to_schema = cast_to_schema
        self._source = source

    def emit_batch(self, batch: pa.RecordBatch) -> None:
        raise UnsupportedOperationError(
            f"{self._source} emits rows without saying of which split they are: they cannot be merged in event-time "
            "order. Emit them to the output of their split (create_output_for_split), or read without eventTimeOrder.",
            source=self._source,
            operation="eventTimeOrder",
        )

    def emit_watermark(self, timestamp_ms: int) -> None:
        """Ignored."""

    def mark_idle(self) -> None:
        """Ignored."""

    def create_output_for_split(self, split_id: str) -> SourceOutput:
        def take(batch: pa.RecordBatch) -> None:
            for each in self._cast_to_schema(batch):
                self._merge.take_rows(split_id, each)

        return _SplitRows(take)

    def release_output_for_split(self, split_id: str) -> None:
        self._merge.finish(split_id)


class OrderedRead(Generic[SplitT]):
    """Reads the splits of a task side by side, and yields their rows in event-time order.

    Parameters
    ----------
    source
        What the source is called, for errors.
    schema
        The columns of the rows.
    column
        The index of the one with the event time.
    cast_to_schema
        Makes batches of exactly ``schema`` of a batch of the reader's.
    """

    def __init__(
        self,
        source: str,
        schema: pa.Schema,
        column: int,
        cast_to_schema: Callable[[pa.RecordBatch], Iterable[pa.RecordBatch]],
    ) -> None:
        self._source = source
        self._schema = schema
        self._column = column
        self._cast_to_schema = cast_to_schema

    def rows(
        self,
        reader: SourceReader[SplitT],
        splits: Sequence[SplitT],
        not_before_ms: Mapping[str, int | None] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Add splits to a reader that was started, read them to their ends, and yield their rows.

        Parameters
        ----------
        reader
            Gets the splits, and the notification that there are no more.
        splits
            Every one of them has an end.
        not_before_ms
            By split id, as far as it is known: the least event time that the first row can have, in milliseconds.
            Such splits are opened when it is their turn.

        Raises
        ------
        UnsupportedOperationError
            The reader cannot pause single splits, or does not say of which split rows are.
        """
        by_id = {split.split_id: split for split in splits}
        known = {} if not_before_ms is None else not_before_ms
        merge = EventTimeMerge(self._column, self._schema, {split_id: known.get(split_id) for split_id in by_id})
        output = _MergeOutput(merge, self._cast_to_schema, self._source)
        paused: set[str] = set()
        while not merge.is_over:
            begun = merge.begin_splits()
            if begun:
                reader.add_splits([by_id.pop(split_id) for split_id in begun])
                if not by_id:
                    reader.notify_no_more_splits()
                self._pause_or_resume(reader, (), ())  # one that cannot says so at once, and not with much data only
            status = reader.poll_next(output)
            if status is InputStatus.END_OF_INPUT:
                merge.finish_all()
            full = [split_id for split_id in merge.full() if split_id not in paused]
            if full:
                self._pause_or_resume(reader, full, ())
                paused.update(full)
            if merge.lacking():
                if status is InputStatus.NOTHING_AVAILABLE:
                    reader.available().result()
                continue
            yield from merge.leaving()
            # Not before Spark has taken the rows: that may take long, and a reader reads ahead meanwhile.
            lacking = [split_id for split_id in merge.lacking() if split_id in paused]
            if lacking:
                self._pause_or_resume(reader, (), lacking)
                paused.difference_update(lacking)

    def _pause_or_resume(self, reader: SourceReader[Any], pause: Sequence[str], resume: Sequence[str]) -> None:
        try:
            reader.pause_or_resume_splits(pause, resume)
        except UnsupportedOperationError as error:
            raise UnsupportedOperationError(
                f"{self._source} cannot be read with eventTimeOrder: it cannot pause the splits that are ahead. "
                f"{error.message} Or read without eventTimeOrder, or one split in each task.",
                source=self._source,
                operation="eventTimeOrder",
            ) from error
