"""`AssignWindows`: gives each row the column of the window that it is in, where one is needed before rows are grouped.

Never: merge windows: sessions are made where rows are grouped by them.

Follows Spark 4.3's ``window``: a row that is in several windows comes once for each, one without a time not at all.
"""

from __future__ import annotations

from functools import cached_property

import pyarrow as pa

from headgate.operators.operator import Emit, Operator
from headgate.operators.windows.assigner import Buckets, TimeWindow
from headgate.state.watermarks import LEAST_US


class AssignWindows(Operator):
    """Adds a column with windows.

    Parameters
    ----------
    schema
        The columns of its input.
    time
        The place of the event time.
    window
        The windows.
    name
        The name of the new column.
    """

    kind = "window"

    def __init__(self, schema: pa.Schema, time: int, window: TimeWindow, name: str) -> None:
        self._time = time
        self._window = window
        bound = schema.field(time).type
        self._type = pa.struct([pa.field("start", bound), pa.field("end", bound)])
        self.schema = schema.append(pa.field(name, self._type))
        self.function = window.text

    @cached_property
    def _buckets(self) -> Buckets:
        return Buckets(self._window, apart=True)

    def process(self, batch: pa.RecordBatch, split_id: str, emit: Emit) -> None:
        """Emit each row once for each of its windows."""
        if batch.column(self._time).null_count:
            batch = batch.filter(batch.column(self._time).is_valid())
        times = batch.column(self._time).cast(pa.int64()).to_numpy()
        rows, starts = self._buckets.all(self._buckets.of(times), times, LEAST_US)
        ends = starts + self._window.size_us
        inside = ends > times[rows]  # between windows that do not meet there are rows of none
        rows, bounds = rows[inside], [pa.array(each[inside]).cast(self._type.field(0).type) for each in (starts, ends)]
        windows = pa.StructArray.from_arrays(bounds, fields=list(self._type))
        emit(pa.RecordBatch.from_arrays([*batch.take(pa.array(rows)).columns, windows], schema=self.schema), split_id)
