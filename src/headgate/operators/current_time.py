"""`CurrentTime`: adds columns with the time at which rows are processed, the same for all rows of a batch.

Never: keep anything between two batches.

Structured Streaming gives all rows of a micro-batch one time; here it is that of a batch of the slot's, of a few
thousand rows at most.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headgate.operators.operator import Emit, Operator

_KINDS: dict[str, pa.DataType] = {
    "timestamp": pa.timestamp("us", "UTC"),
    "local timestamp": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("ns"),
}


class CurrentTime(Operator):
    """Adds columns with the current time.

    Parameters
    ----------
    schema
        The columns of its input.
    wanted
        For each column that is added: ``timestamp``, or ``local timestamp``, ``date`` or ``time`` in the time zone; and
        how many digits its seconds have.
    time_zone
        The session's.
    """

    kind = "select"

    def __init__(self, schema: pa.Schema, wanted: Sequence[tuple[str, int]], time_zone: str) -> None:
        self._wanted = list(wanted)
        self._time_zone = time_zone
        names = [f"current {kind}({digits})" for kind, digits in wanted]
        self.function = ", ".join(names)
        fields = [pa.field(name, _KINDS[kind]) for name, (kind, _) in zip(names, wanted)]
        self.schema = pa.schema([*schema, *fields])

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit the rows with the time."""
        now_us = time.time_ns() // 1000
        columns = []
        for kind, digits in self._wanted:
            now = pa.scalar(now_us - now_us % 10 ** (6 - digits), pa.timestamp("us", self._time_zone))
            value = now if kind == "timestamp" else pc.local_timestamp(now)
            columns.append(pa.repeat(value.cast(_KINDS[kind], safe=kind != "date"), batch.num_rows))
        emit(pa.RecordBatch.from_arrays([*batch.columns, *columns], schema=self.schema), split_id)
