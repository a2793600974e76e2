"""`ApplyInPandasWithState`: calls a user's function for each key, with frames of rows and PySpark's `GroupState`.

Never: keep state or time-outs by itself: `TransformWithState` does, of the processor that `group_state` makes of the
function.

A time-out is a timer of the key, of which there is one at most. As in Spark a key has timed out once the watermark, or
the clock, is past its time; rows that come first are given to the function first, and may put it off.

Follows ``FlatMapGroupsInPandasWithStateExec`` of Spark 4.3, and its Python worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from headgate.operators.transform_with_state.group_function import GroupFunction
from headgate.operators.transform_with_state.transform_with_state import Definition, TransformWithState
from headgate.operators.transform_with_state.user_rows import Flavor, Key, PandasFlavor
from headgate.operators.user_functions import in_zone


class ApplyInPandasWithState(TransformWithState):
    """Calls a function, and keeps the state and the time-out of its keys.

    Parameters
    ----------
    given
        The user's function.
    definition
        What `TransformWithState` needs to know of it.
    clock_ms
        Returns milliseconds since 1970-01-01 UTC; None: the clock's.
    """

    kind = "apply-in-pandas-with-state"

    def __init__(self, given: GroupFunction, definition: Definition, clock_ms: Callable[[], int] | None = None) -> None:
        from headgate.operators.transform_with_state.group_state import GroupProcessor

        columns = in_zone(definition.input, definition.conf["spark.sql.session.timeZone"])
        processor = GroupProcessor(given, definition.keys, columns, len(definition.output))
        super().__init__(processor, definition, **({} if clock_ms is None else {"clock_ms": clock_ms}))
        self.output_mode = given.output_mode
        self.function = str(getattr(given.function, "__qualname__", type(given.function).__qualname__))
        keys = ", ".join(f"{key} {definition.input.field(key).type}" for key in definition.keys)
        self.signature = f"applyInPandasWithState by {keys} with {given.timeout}"

    def _make_flavor(self, time_zone: str) -> Flavor:
        return GroupFlavor(self.function, self.schema, time_zone, self._definition.conf)

    def _times(self) -> Any:
        """Return the times that the function sees, whatever its time-outs are of."""
        from pyspark.sql.streaming.stateful_processor import TimerValues

        return TimerValues(self._store.now_ms, 0 if self._watermark_ms is None else self._watermark_ms)


class GroupFlavor(PandasFlavor):
    """Frames and keys as Spark's Python worker makes them, with its checks of what the function yields."""

    def groups(self, rows: pa.Table, keys: list[str], starts: list[int]) -> Iterator[tuple[Key, Iterator[Any]]]:
        """Yield the key of each group as NumPy's values, and frames with its rows."""
        import pandas as pd

        rows = rows.cast(in_zone(rows.schema, self._time_zone))
        names = rows.schema.names
        places = [names.index(key) for key in keys]
        own = any(_depends_on_nulls(column) for column in rows.columns)
        series = [] if own else self._series(rows)
        most = self._settings.rows_of_a_frame(rows)

        def part(start: int, end: int) -> Sequence[Any]:
            if own:
                return self._series(rows.slice(start, end - start))
            return [each.iloc[start:end].reset_index(drop=True) for each in series]

        for start, end in pairwise(starts):
            parts = [part(at, min(at + most, end)) for at in range(start, end, most)]
            yield tuple(parts[0][place].iloc[0] for place in places), (pd.concat(each, axis=1) for each in parts)

    def _series(self, rows: pa.Table) -> Sequence[Any]:
        from headgate.spark.compatibility import to_pandas

        return to_pandas(rows.combine_chunks(), self._time_zone, self._settings)

    def _converted(self, held: list[Any]) -> pa.RecordBatch:
        import pandas as pd

        from headgate.spark.compatibility import from_arrow_schema, to_arrow

        frame = pd.concat(held, ignore_index=True)
        return to_arrow(frame, from_arrow_schema(self._schema), self._time_zone, self._settings)


def _depends_on_nulls(column: pa.ChunkedArray) -> bool:
    """Return whether pandas gives a column another type because of nulls: then each group is converted by itself."""
    return bool(column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)))
