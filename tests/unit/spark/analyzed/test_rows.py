"""What becomes of attributes and of sources, without Spark."""

from __future__ import annotations

from typing import Any, cast

import pyarrow as pa
import pytest

from headgate.errors import UnsupportedOperationError
from headgate.expressions.expressions import Bound, Call, Column
from headgate.graph.plan import PlanNode, stage_graph, watermarked
from headgate.operators.filter import Filter
from headgate.operators.union import Union
from headgate.operators.windows.assigner import TimeWindow
from headgate.spark.analyzed.exchanges import PartitionIds
from headgate.spark.analyzed.plan import read_once
from headgate.spark.analyzed.rows import Columns, Rows, Session
from tests.unit.operators.collecting_sink import source

TIMED = pa.schema([("n", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def rows() -> Rows:
    return Rows(node=source(TIMED), places={7: 0, 9: 1}, windows={}, session=Session(cast(Any, None), "UTC", False))


def test_columns_of_one_name_get_names_of_their_own() -> None:
    columns = Columns()
    assert [columns.add(Bound(place, "n"), name) for place, name in enumerate(("n", "N", "n", "n 2"))] == [0, 1, 2, 3]
    assert [each.name_in_output for each in columns.made] == ["n", "N 2", "n 3", "n 2 2"]
    assert columns.place(Bound(2, "n"), "x") == 2
    assert columns.place(Bound(8, "n"), "x") == 4


def test_a_window_keeps_the_column_of_its_time() -> None:
    columns = Columns()
    columns.add(Bound(0, "n"), "n")
    window = TimeWindow(Call("timestamp_micros", (Bound(0, "n"),), {"per_unit": 1}), 10, 10)
    assert columns.window(window).time == Bound(1, "event time")
    assert columns.window(window).time == Bound(1, "event time")
    assert [each.name_in_output for each in columns.made] == ["n", "event time"]


def test_a_projection_that_changes_nothing_is_none() -> None:
    given = rows()
    assert given.projected(given.all()) is given.node
    swapped = given.projected(given.all()[::-1])
    assert swapped.schema.names == ["at", "n"]


def test_a_source_that_is_used_twice_stands_once_under_the_name_that_it_has_somewhere() -> None:
    node = source(TIMED)
    other = watermarked(node, 1, 0)
    kept = other.named("rides").then(Filter(TIMED, Column(Call("isnotnull", (Bound(0, "n"),))), "UTC"))
    graph = stage_graph(read_once(PlanNode(of=Union(TIMED, TIMED), inputs=(watermarked(node, 1, 0), kept))))
    assert [each.uid for each in graph.sources] == ["rides"]
    assert [each.inputs for each in graph.operators] == [("rides",), ("rides", "rides.1.filter")]


def test_a_source_cannot_have_two_watermarks() -> None:
    node = source(TIMED)
    both = PlanNode(of=Union(TIMED, TIMED), inputs=(watermarked(node, 1, 0), node))
    with pytest.raises(UnsupportedOperationError, match="'numbers' is read once"):
        read_once(both)


def test_partition_ids_name_subtasks() -> None:
    partition = PartitionIds(Bound(0, "n"), 5, "UTC")
    batch = pa.record_batch({"n": pa.array([0, 1, 4, 5, -1, None], pa.int64()), "at": pa.nulls(6, TIMED.types[1])})
    assert partition(batch, 5).to_pylist() == [0, 1, 4, 0, 4, 0]
    assert partition(batch, 2).to_pylist() == [0, 1, 0, 0, 0, 0]
