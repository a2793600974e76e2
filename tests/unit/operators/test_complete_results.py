"""Results of several subtasks become one, sorted and cut: whatever became of the checkpoints before."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headgate.operators.complete_results import CollectResults, LimitRows, MarkResults, SortRows
from headgate.operators.operator import Operator
from headgate.operators.row_order import SortKey
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema([pa.field("k", pa.string(), nullable=False), ("n", pa.int64())])
BY_N = SortKey("n", descending=True, nulls_first=False)


def batch(*rows: tuple[str, int | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"k": k, "n": n} for k, n in rows], schema=SCHEMA)


class Chain:
    """Operators of one subtask, driven as `headgate.runtime.chain` does."""

    def __init__(self, subtask: int, *operators: Operator) -> None:
        self._operators = operators
        self.out: list[pa.RecordBatch] = []
        for each in operators:
            each.open(OperatorContext(uid="u", subtask=subtask, parallelism=2), [])

    def give(self, rows: pa.RecordBatch, place: int = 0) -> None:
        if place == len(self._operators):
            rows.validate(full=True)
            self.out.append(rows)
        else:
            self._operators[place].process(rows, "s", lambda made, split: self.give(made, place + 1))

    def barrier(self) -> list[tuple[Any, ...]]:
        for place, each in enumerate(self._operators):
            each.prepare_snapshot(lambda made, split, place=place: self.give(made, place + 1))  # type: ignore[misc]
        return self.taken()

    def end(self) -> None:
        for place, each in enumerate(self._operators):
            each.end_input(lambda made, split, place=place: self.give(made, place + 1))  # type: ignore[misc]

    def taken(self) -> list[tuple[Any, ...]]:
        rows = [tuple(row.values()) for each in self.out for row in each.to_pylist()]
        self.out = []
        return rows


class World:
    """Two subtasks with parts of results, and the one that puts them together."""

    def __init__(self, *after: Operator) -> None:
        marks = [MarkResults(SCHEMA) for _ in range(2)]
        self.parts = [Chain(number, each) for number, each in enumerate(marks)]
        self.whole = Chain(0, CollectResults(marks[0].schema, SCHEMA), *after)

    def send(self, number: int, *rows: tuple[str, int | None], end: bool = False, mark: bool = True) -> None:
        part = self.parts[number]
        if rows:
            part.give(batch(*rows))
        if end:
            part.end()
        elif mark:
            for operator in part._operators:
                operator.prepare_snapshot(lambda made, split: part.give(made, 1))
        for each in [pa.concat_batches(part.out)] if part.out else []:  # as a channel may: marks amid rows
            self.whole.give(each)
        part.out = []


def test_a_result_is_whole_and_sorted_and_comes_once() -> None:
    world = World(SortRows(SCHEMA, [BY_N]))
    world.send(0, ("a", 1), ("b", None))
    world.send(1, ("c", 5))
    assert world.whole.barrier() == [("c", 5), ("a", 1), ("b", None)]
    world.send(1, ("c", 7))
    world.send(0, ("a", 9), ("b", None))
    assert world.whole.barrier() == [("a", 9), ("c", 7), ("b", None)]


def test_the_result_of_a_checkpoint_that_was_given_up_does_not_count() -> None:
    world = World(SortRows(SCHEMA, [BY_N]))
    world.send(0, ("a", 1), ("b", 2))
    world.send(0, ("a", 3))  # the checkpoint before was given up; b has gone since
    world.send(1, ("c", 2))
    assert world.whole.barrier() == [("a", 3), ("c", 2)]
    world.send(0, ("a", 4))
    world.send(0)
    world.send(1, ("c", 2), mark=False)
    world.send(1, ("d", 1), mark=False)
    world.send(1)
    assert world.whole.barrier() == [("c", 2), ("d", 1)]


def test_two_marks_in_one_batch_are_two_results() -> None:
    world = World()
    world.send(0, ("a", 1))
    assert world.whole.barrier() == [("a", 1)]
    part = world.parts[0]
    part.give(batch(("a", 2)))
    for _ in range(2):
        part._operators[0].prepare_snapshot(lambda made, split: part.give(made, 1))
    world.whole.give(pa.concat_batches(part.out))
    assert world.whole.barrier() == []


def test_what_a_subtask_had_at_its_end_counts_further() -> None:
    world = World(LimitRows(SCHEMA, 3))
    world.send(0, ("a", 1), ("b", 2), end=True)
    world.send(1, ("c", 5))
    assert world.whole.barrier() == [("a", 1), ("b", 2), ("c", 5)]
    assert world.parts[0].barrier() == [], "no rows follow the end"
    world.send(1, ("c", 6), ("d", 7))
    assert world.whole.barrier() == [("a", 1), ("b", 2), ("c", 6)]
    world.whole.end()
    assert world.whole.taken() == []
    assert world.whole.barrier() == [("a", 1), ("b", 2), ("c", 6)]


def test_a_limit_is_of_each_result() -> None:
    chain = Chain(0, LimitRows(SCHEMA, 2))
    for _ in range(2):
        chain.give(batch(("a", 1)))
        chain.give(batch(("b", 1), ("c", 1)))
        chain.give(batch(("d", 1)))
        assert chain.barrier() == [("a", 1), ("b", 1)]
    chain = Chain(0, LimitRows(SCHEMA, 0))
    chain.give(batch(("a", 1)))
    assert chain.barrier() == []


def test_of_many_rows_only_the_first_are_kept() -> None:
    sort = SortRows(SCHEMA, [SortKey("n"), SortKey("k")], most_rows=3)
    chain = Chain(0, sort)
    rows = pa.table({"k": pa.array(["x"] * 100_000, pa.string()), "n": pa.array(range(100_000, 0, -1), pa.int64())})
    for each in rows.cast(SCHEMA).to_batches(max_chunksize=10_000):
        chain.give(each)
        assert sort._rows <= 1 << 16
    assert chain.barrier() == [("x", 1), ("x", 2), ("x", 3)]
    assert chain.barrier() == []


def test_the_column_of_subtasks_has_a_name_of_its_own() -> None:
    made = MarkResults(pa.schema([("result of 0", pa.int64())]))
    assert made.schema.names == ["result of 1", "result of 0"]
