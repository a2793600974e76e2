"""`FirstRows`: lets the first rows of a stream through, and no more, whatever happens to the query.

Never: take a row after the last one.

All rows go to the subtask of one key, which counts them: the count is keyed state. Each subtask before the exchange
sends no more than are wanted, between two checkpoints (`headgate.operators.complete_results.LimitRows`).

Follows Spark 4.3's ``StreamingGlobalLimitExec``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pyarrow as pa

from headgate.operators.key_hash import key_groups
from headgate.operators.operator import Emit, KeyedOperator
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import KeyedChunk, RestoredChunk, read_part, serialized


class FirstRows(KeyedOperator):
    """Counts rows, and emits them while there are not enough.

    Parameters
    ----------
    keyed
        The columns of its input: those of the rows, and last the key, which is the same for all.
    most_rows
        How many rows are let through.
    """

    kind = "limit"
    signature = "the first rows"

    def __init__(self, keyed: pa.Schema, most_rows: int) -> None:
        self.schema = pa.schema(list(keyed)[:-1])
        self._key = keyed.types[-1]
        self.most_rows = most_rows
        self.function = f"limit({most_rows})"

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Get ready."""
        self._context = context
        self._new_name = partial(next, context.chunk_names())
        self._rows = 0
        self._stored: tuple[str, int] | None = None  # a chunk, and how many rows it says

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows that are among the first."""
        left = self.most_rows - self._rows
        if left > 0:
            rows = pa.RecordBatch.from_arrays(batch.columns[:-1], schema=self.schema).slice(0, left)
            self._rows += rows.num_rows
            emit(rows, split_id)

    def snapshot_keyed(self, checkpoint_id: int) -> Sequence[KeyedChunk]:
        """Return how many rows there were, in the subtask that had them."""
        if self._rows == 0:
            return []
        if self._stored is None or self._stored[1] != self._rows:
            self._stored = self._new_name(), self._rows
        name, rows = self._stored
        table = pa.table({"rows": pa.array([rows], pa.int64())})
        (group,) = key_groups([pa.array([0], self._key)], self._context.max_parallelism).to_pylist()
        return [
            KeyedChunk(chunk_id=name, first_key_group=group, last_key_group=group, serialize=partial(serialized, table))
        ]

    def restore_keyed(self, chunks: Sequence[RestoredChunk]) -> None:
        """Take on the state of a checkpoint."""
        for chunk in chunks:
            self._rows = read_part(chunk).column("rows")[0].as_py()
            self._stored = chunk.chunk_id, self._rows
