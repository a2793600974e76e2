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

from headgate.operators.key_hash import key_hash
from headgate.operators.operator import Emit, Operator
from headgate.operators.windows.groups import Groups
from headgate.operators.windows.repetition import Repetition
from headgate.operators.windows.windowed import plain_key
from headgate.protocol.operator_context import OperatorContext
from headgate.state.arrays import equal_values, one_array, order_of

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
            keys = [plain_key(batch.column(name)) for name in self._keys]
            places = first_of_each(keys, key_hash(keys))
            self._repetition.grouped(rows, len(places))
            if len(places) < rows:
                batch = batch.take(pa.array(places))
        emit(batch, split_id)


def first_of_each(keys: Sequence[pa.Array], hashes: Any) -> Any:
    """Return the places of the first row of each key, in order.

    Parameters
    ----------
    keys
        The columns.
    hashes
        Those of the keys.
    """
    order = order_of(hashes)
    ordered = hashes[order]
    (again,) = np.nonzero(ordered[1:] == ordered[:-1])
    before, after = pa.array(order[again]), pa.array(order[again + 1])
    if all(equal_values(key.take(before), key.take(after)).all() for key in keys):
        first = np.ones(len(order), np.bool_)
        first[order[again + 1]] = False
        return np.flatnonzero(first)
    # Keys whose hashes are equal.
    names = [f"key {number}" for number in range(len(keys))]
    groups = Groups(pa.table([*keys, pa.array(np.arange(len(keys[0])))], names=[*names, _ROW]), names)
    groups.reduce(_ROW, "min")
    return np.sort(one_array(groups.result()[_ROW]).to_numpy())
