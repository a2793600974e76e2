"""`AssignWindows`: rows in the windows that Spark finds for their event times."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.expressions.expressions import Bound
from headgate.operators.assign_windows import AssignWindows
from headgate.operators.windows.assigner import TimeWindow

SCHEMA = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
SECOND = 1_000_000


@pytest.mark.parametrize(
    ("size", "slide", "expected"),
    [
        (10, 10, [(0, 0, 10), (1, 0, 10), (2, 10, 20), (4, -10, 0)]),
        (10, 5, [(0, 0, 10), (0, -5, 5), (1, 5, 15), (1, 0, 10), (2, 10, 20), (2, 5, 15), (4, -5, 5), (4, -10, 0)]),
        (10, 20, [(0, 0, 10), (1, 0, 10)]),
    ],
)
def test_rows_come_once_for_each_window(size: int, slide: int, expected: list[tuple[int, int, int]]) -> None:
    times = [0, 9, 10, None, -1]
    micros = pa.array([None if each is None else each * SECOND for each in times], pa.int64())
    rows = pa.RecordBatch.from_arrays([pa.array(range(5)), micros.cast(SCHEMA.types[1])], schema=SCHEMA)
    operator = AssignWindows(SCHEMA, 1, TimeWindow(Bound(1, "at"), size * SECOND, slide * SECOND), "w")
    emitted: list[pa.RecordBatch] = []
    operator.process(rows, "s", lambda made, split: emitted.append(made))
    (made,) = emitted
    made.validate(full=True)
    assert made.schema == operator.schema
    bounds = [pc.struct_field(made.column("w"), name).cast(pa.int64()).to_pylist() for name in ("start", "end")]
    found = zip(made.column("n").to_pylist(), *([each // SECOND for each in bound] for bound in bounds))
    assert list(found) == expected
