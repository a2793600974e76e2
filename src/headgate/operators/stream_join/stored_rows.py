"""Reads what a join of two streams keeps, of a checkpoint, as rows.

Never: need the program whose state it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.key_hash import groups_of_hashes
from headgate.operators.operator import RestoredChunk
from headgate.operators.stream_join.kept_rows import EXPIRY, HASH, ROWS
from headgate.operators.stream_join.operator import heads
from headgate.operators.windows.assigner import LEAST_US, MOST_US
from headgate.operators.windows.windowed import read_part
from headgate.protocol.operator_context import OperatorContext

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
        head = heads.decode(read_part(left.popleft()).column("head")[0].as_py())
        reached_us = np.full(context.max_parallelism, LEAST_US, np.int64)
        for first, last, reached in head.reached:
            reached_us[first : last + 1] = reached
        for side, parts in zip(SIDES, head.parts):
            for name in parts:
                table = read_part(left.popleft())
                matched = np.zeros(table.num_rows, np.bool_)
                if bits := head.matched.get(name):
                    matched = np.unpackbits(np.frombuffer(bits, np.uint8), count=table.num_rows).view(np.bool_)
                groups = groups_of_hashes(table.column(HASH).to_numpy(), context.max_parallelism)
                alive = pa.array(table.column(EXPIRY).to_numpy() > reached_us[groups])
                yield side, _rows(table, pa.array(matched), names[side]).filter(alive)


def _rows(table: pa.Table, matched: pa.Array, names: Sequence[str]) -> pa.Table:
    columns = table.columns[ROWS:]
    known = len(names) == len(columns) and len(set(names)) == len(names)
    expiry = table.column(EXPIRY)
    kept_until = pc.if_else(pc.equal(expiry, MOST_US), None, expiry).cast(pa.timestamp("us", "UTC"))
    return pa.table(
        [*columns, kept_until, matched],
        names=[*(names if known else table.column_names[ROWS:]), "kept until", "matched"],
    )
