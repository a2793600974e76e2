"""What is done with the whole results that the output mode ``complete`` gives before each checkpoint: sort, and cut.

Never: take rows of two results for those of one, or emit between two checkpoints.

A result is what aggregations emit before a barrier. Each of their subtasks has a part of it, so that sorted or limited
as a whole it must be in one place:

    stage                    operator          what it does
    -----------------------  ----------------  --------------------------------------------------------------------
    of the aggregation       `SortRows`,       with a limit: sends the first rows of the subtask's part only
                             `LimitRows`
                             `MarkResults`     notes with each row which subtask has it, and when its part is whole
    (an aligned exchange)                      all to one subtask, whose barrier therefore follows all rows of a result
    the next one             `CollectResults`  keeps the newest part of each subtask, and emits them together
                             `SortRows`,       sort, and cut; whatever follows them in the program is here, too
                             `LimitRows`

A checkpoint that is given up may have had its result emitted: another one follows, for the next. That is why the end of
a part is marked: what came before a mark is one part, and the newest counts. When its input ends a subtask emits its
last part, which counts in all further checkpoints.

Follows Spark 4.3's ``Sort`` and ``Limit`` in the output mode ``complete``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.operators.row_order import SortKey, order_of_rows
from headgate.protocol.operator_context import OperatorContext

RESULT_ROWS = 1 << 16
"""A batch of a result that is emitted has so many rows at most."""
_PRODUCER = "result of"


class SortRows(Operator):
    """Sorts the rows of each result.

    Parameters
    ----------
    schema
        The columns of the rows.
    keys
        By what.
    most_rows
        How many of them are wanted; None: all.
    """

    kind = "sort"

    def __init__(self, schema: pa.Schema, keys: Sequence[SortKey], most_rows: int | None = None) -> None:
        self.schema = schema
        self.keys = tuple(keys)
        self.most_rows = most_rows
        self.function = f"orderBy({', '.join(each.text for each in keys)})"

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._held: list[pa.RecordBatch] = []
        self._rows = 0

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Keep rows; if only the first are wanted, no more than twice as many as that, and what one batch has."""
        self._held.append(batch)
        self._rows += batch.num_rows
        if self.most_rows is not None and self._rows > max(2 * self.most_rows, RESULT_ROWS):
            self._held = self._sorted().to_batches()
            self._rows = sum(each.num_rows for each in self._held)

    def _sorted(self) -> pa.Table:
        rows = pa.Table.from_batches(self._held, self.schema)
        return rows.take(pa.array(order_of_rows(rows, self.keys)[: self.most_rows]))

    def prepare_snapshot(self, emit: Emit) -> None:
        """Emit the rows of the result in order."""
        if self._held:
            _emit_all(self._sorted(), emit)
        self._held, self._rows = [], 0

    def end_input(self, emit: Emit) -> None:
        """Likewise."""
        self.prepare_snapshot(emit)


class LimitRows(Operator):
    """Lets the first rows of each result through.

    Parameters
    ----------
    schema
        The columns of the rows.
    most_rows
        How many.
    """

    kind = "limit"

    def __init__(self, schema: pa.Schema, most_rows: int) -> None:
        self.schema = schema
        self.most_rows = most_rows
        self.function = f"limit({most_rows})"

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._left = self.most_rows

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit rows, as long as there are not enough."""
        if self._left:
            emit(batch.slice(0, self._left), split_id)
            self._left = max(0, self._left - batch.num_rows)

    def prepare_snapshot(self, emit: Emit) -> None:
        """Begin anew: what follows is another result."""
        self._left = self.most_rows


class MarkResults(Operator):
    """Notes with each row which subtask has it, and where each result ends.

    Parameters
    ----------
    schema
        The columns of the rows.
    """

    kind = "mark-results"
    function = "results of each subtask"

    def __init__(self, schema: pa.Schema) -> None:
        fields = [field.with_nullable(True) for field in schema]
        self.schema = pa.schema([pa.field(unused_name(_PRODUCER, schema), pa.int32()), *fields])

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._subtask = context.subtask
        self._ended = False

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit rows with the number of the subtask."""
        numbers = pa.array(np.full(batch.num_rows, self._subtask, np.int32))
        emit(pa.RecordBatch.from_arrays([numbers, *batch.columns], schema=self.schema), split_id)

    def prepare_snapshot(self, emit: Emit) -> None:
        """Emit a mark: this result is whole. After the end there are none."""
        if not self._ended:
            nulls = [pa.nulls(1, field.type) for field in list(self.schema)[1:]]
            mark = pa.array([-1 - self._subtask], pa.int32())
            emit(pa.RecordBatch.from_arrays([mark, *nulls], schema=self.schema), "")

    def end_input(self, emit: Emit) -> None:
        """Emit the last mark."""
        self.prepare_snapshot(emit)
        self._ended = True


class CollectResults(Operator):
    """Puts results together that several subtasks have parts of, in one that gets them all.

    Parameters
    ----------
    marked
        The columns of its input: those of `MarkResults`.
    schema
        The columns of the results.
    """

    kind = "collect-results"
    function = "the results of all subtasks"

    def __init__(self, marked: pa.Schema, schema: pa.Schema) -> None:
        self.marked = marked
        self.schema = schema

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._coming: dict[int, list[pa.RecordBatch]] = {}
        self._whole: dict[int, list[pa.RecordBatch]] = {}

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Keep rows, and up to a mark those before it in place of the last result of their subtask."""
        for producer, rows in _pieces(batch):
            if producer >= 0:
                columns = rows.columns[1:]
                self._coming.setdefault(producer, []).append(pa.RecordBatch.from_arrays(columns, schema=self.schema))
            else:
                part = self._coming.pop(-1 - producer, [])
                self._whole[-1 - producer] = part if rows.num_rows == 1 else []  # the last of several marks counts

    def prepare_snapshot(self, emit: Emit) -> None:
        """Emit the newest result."""
        for _, batches in sorted(self._whole.items()):
            for each in batches:
                emit(each, "")


def unused_name(prefix: str, schema: pa.Schema) -> str:
    """Return a name that begins so, and that no column has."""
    names = set(schema.names)
    return next(name for n in range(len(names) + 1) if (name := f"{prefix} {n}") not in names)


def _pieces(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield rows of one subtask, or marks, that follow one another."""
    producers: Any = batch.column(0).to_numpy()
    (changes,) = np.nonzero(producers[1:] != producers[:-1])
    begins = [0, *(changes + 1).tolist()]
    for begin, end in zip(begins, [*begins[1:], len(producers)]):
        yield int(producers[begin]), batch.slice(begin, end - begin)


def _emit_all(rows: pa.Table, emit: Emit) -> None:
    for each in rows.combine_chunks().to_batches(max_chunksize=RESULT_ROWS):
        emit(each, "")
