"""Reads what a join of two streams keeps, of a checkpoint, as rows.

Never: need the program whose state it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.key_hash import groups_of_hashes
from headgate.operators.stream_join.kept_rows import ROWS
from headgate.operators.stream_join.operator import heads
from headgate.operators.windows.assigner import MOST_US
from headgate.protocol.operator_context import OperatorContext
from headgate.state.chunks import RestoredChunk, read_head, read_part
from headgate.state.part import marks_of
from headgate.state.watermarks import KeyGroupWatermarks

SIDES = ("left", "right")


def stored_rows(
    chunks: Sequence[RestoredChunk], context: OperatorContext, names: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, pa.Table]]:
    """Yield the rows that one subtask keeps of each side, those that are over left out.

    Parameters
    ----------
    chunks
        All its state, in order.
    context
        Says how many key groups there are.
    names
        The columns of each side.
    """
    left = deque(chunks)
    while left:
        head = heads.decode(read_head(left.popleft()))
        watermarks = KeyGroupWatermarks(context.key_groups, context.max_parallelism)
        watermarks.take_on(head.reached)
        for side, parts in zip(SIDES, head.parts):
            for name in parts:
                table = read_part(left.popleft())
                matched = marks_of(head.matched.get(name), table.num_rows)
                hashes, expiry = (table.column(place).to_numpy() for place in (0, 1))
                alive = pa.array(expiry > watermarks.at(groups_of_hashes(hashes, context.max_parallelism)))
                yield side, _rows(table, pa.array(matched), names[side]).filter(alive)


def _rows(table: pa.Table, matched: pa.Array, names: Sequence[str]) -> pa.Table:
    columns = table.columns[ROWS:]
    known = len(names) == len(columns) and len(set(names)) == len(names)
    expiry = table.column(1)
    kept_until = pc.if_else(pc.equal(expiry, MOST_US), None, expiry).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        [*columns, kept_until, matched],
        names=[*(names if known else table.column_names[ROWS:]), "kept until", "matched"],
    )
