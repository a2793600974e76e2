"""`PartialDeduplicate`: lets the first row of each key in a batch through, before the exchange to `Deduplicate`.

Never: keep a key, or drop a row of which another one decides whether it is late.

What it drops comes after a row of the same key, from the same subtask, so `Deduplicate` would drop it, too: whichever
row of other subtasks comes first there. Where keys do not repeat within batches rows pass: `Repetition`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.operators.windows.groups import Groups
from headgate.operators.windows.repetition import Repetition
from headgate.operators.windows.windowed import plain_key
from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import one_array

_ROW = "row"


class PartialDeduplicate(Operator):
    """Emits the first row of each key in a batch. It has no state.

    Parameters
    ----------
    schema
        The columns of its rows.
    keys
        The names of those that make the key.
    always
        Whether it does so with each batch, whatever is known of those before.
    """

    kind = "partial"

    def __init__(self, schema: pa.Schema, keys: Sequence[str], *, always: bool) -> None:
        self.schema = schema
        self.function = f"PartialDeduplicate(keys=[{', '.join(keys)}])"
        self._keys = tuple(keys)
        self._always = always

    def open(self, context: OperatorContext, items: Sequence[bytes]) -> None:
        """Begin without an idea of how often keys repeat."""
        self._repetition = Repetition()

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the first row of each key."""
        rows = batch.num_rows
        if rows and (self._always or self._repetition.is_worth_grouping(rows)):
            places = first_of_each([plain_key(batch.column(name)) for name in self._keys])
            self._repetition.grouped(rows, len(places))
            if len(places) < rows:
                batch = batch.take(pa.array(places))
        emit(batch, split_id)


def first_of_each(keys: Sequence[pa.Array]) -> Any:
    """Return the places of the first row of each key, in order."""
    names = [f"key {number}" for number in range(len(keys))]
    groups = Groups(pa.table([*keys, pa.array(np.arange(len(keys[0])))], names=[*names, _ROW]), names)
    groups.reduce(_ROW, "min")
    return np.sort(one_array(groups.result()[_ROW]).to_numpy())
