"""The first rows of a stream: counted once, through restores at any parallelism."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headgate.operators.first_rows import FirstRows
from headgate.operators.windows.windowed import Key
from tests.unit.operators.windows.window_world import Subtasks

KEYED = pa.schema([pa.field("n", pa.int64(), nullable=False), pa.field("all 0", pa.int32())])


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"n": n, "all 0": 0} for n in numbers], schema=KEYED)


def world(folder: Path, most: int, **options: Any) -> Subtasks:
    def make() -> Any:
        operator = FirstRows(KEYED, most)
        operator.uid = "limit"
        operator._keys = [Key("all 0", None)]  # type: ignore[attr-defined]  # by which the world deals out
        return operator

    return Subtasks(make, folder, **options)


def found(subtasks: Subtasks) -> list[int]:
    return [row["n"] for row in subtasks.rows()]


@pytest.mark.parametrize("parallelism", [1, 3])
def test_rows_are_counted_once_through_restores(tmp_path: Path, parallelism: int) -> None:
    subtasks = world(tmp_path, 5, parallelism=2)
    assert subtasks.checkpoint() == [[], []]
    subtasks.process(rows(1, 2))
    states = subtasks.checkpoint()
    subtasks.process(rows(3))
    subtasks.restore(states, parallelism)
    subtasks.process(rows(3, 4))
    subtasks.checkpoint()
    states = subtasks.checkpoint()
    assert subtasks.uploaded[-1] == 0, "the same count is stored once"
    subtasks.restore(states, 2)
    subtasks.process(rows(5, 6))
    subtasks.process(rows(7))
    subtasks.restore(subtasks.checkpoint(), 1)
    subtasks.process(rows(8))
    assert found(subtasks) == [1, 2, 3, 3, 4, 5]
    assert subtasks.operators[0].schema.names == ["n"]


def test_a_limit_may_be_none_and_may_become_greater(tmp_path: Path) -> None:
    none = world(tmp_path / "none", 0)
    none.process(rows(1))
    assert found(none) == []
    few = world(tmp_path / "few", 1)
    few.process(rows(1, 2))
    states = few.checkpoint()
    for operator in few.operators:
        operator.close()
    few._make = lambda make=few._make: _with(make(), 3)  # type: ignore[misc]
    few.restore(states, 1)
    few.process(rows(3, 4, 5))
    assert found(few) == [1, 3, 4]


def _with(operator: Any, most: int) -> Any:
    operator.most_rows = most
    return operator
