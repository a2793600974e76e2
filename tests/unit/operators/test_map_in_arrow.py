"""A user's function: generators, buffers, objects with open(), and outputs that do not fit."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.map_in_arrow import MapInArrow
from headgate.protocol.operator_context import OperatorContext
from tests.unit.operators.collecting_sink import NUMBERS, chain_of, drain, numbers, source

CONTEXT = OperatorContext(uid="map", subtask=0, parallelism=1)


def results(operator: MapInArrow, *batches: pa.RecordBatch) -> list[Any]:
    out: list[pa.RecordBatch] = []
    operator.open(CONTEXT, ())
    for batch in batches:
        operator.process(batch, "s", lambda made, split: out.append(made))
    return [made.column(0).to_pylist() for made in out]


def doubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_arrays([pc.multiply(batch.column("n"), 2)], names=["n"])


def buffered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield only when there is nothing left to read."""
    held = list(batches)
    yield from reversed(held)


def test_a_generator_function() -> None:
    assert results(MapInArrow(doubled, NUMBERS), numbers(1, 2), numbers(3)) == [[2, 4], [6]]


def test_a_function_that_returns_a_list() -> None:
    assert results(MapInArrow(lambda batches: list(batches), NUMBERS), numbers(1)) == [[1]]


def test_a_function_that_buffers_is_complete_when_it_returns() -> None:
    """What it holds at a barrier is in no checkpoint: so a call never spans one."""
    chain, sink = chain_of(source().then(MapInArrow(buffered, NUMBERS)))
    chain.input("numbers").on_batch(numbers(*range(100)), "s")
    drain(chain)
    assert [row["n"] for row in sink.rows] == list(range(100))


def test_an_object_keeps_its_set_up() -> None:
    class Adder:
        opened = 0

        def open(self) -> None:
            self.opened += 1

        def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield pa.RecordBatch.from_arrays([pc.add(batch.column(0), self.opened)], names=["n"])

        def close(self) -> None:
            self.opened = -1

    adder = Adder()
    operator = MapInArrow(adder, NUMBERS)
    assert results(operator, numbers(1), numbers(2)) == [[2], [3]]
    operator.close()
    assert adder.opened == -1
    assert operator.function.endswith("Adder")


def test_it_yields_no_rows() -> None:
    assert results(MapInArrow(lambda batches: (each.slice(0, 0) for each in batches), NUMBERS), numbers(1)) == [[]]


def test_columns_are_matched_by_name() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    turned = MapInArrow(lambda batches: [pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]})], schema)
    assert results(turned, numbers(1)) == [[1]]


@pytest.mark.parametrize("returned", [None, 5, numbers(1)])
def test_it_returns_no_iterator(returned: Any) -> None:
    with pytest.raises(OptionError, match="must return an iterator of"):
        results(MapInArrow(lambda batches: returned, NUMBERS), numbers(1))


def test_it_yields_something_else() -> None:
    with pytest.raises(OptionError, match="yielded dict; it must yield"):
        results(MapInArrow(lambda batches: [{"n": 1}], NUMBERS), numbers(1))


def test_it_yields_other_columns() -> None:
    other = MapInArrow(lambda batches: [pa.RecordBatch.from_pydict({"m": [1]})], NUMBERS)
    with pytest.raises(OptionError, match="missing: n"):
        results(other, numbers(1))


def test_it_yields_a_value_that_does_not_fit() -> None:
    narrow = MapInArrow(lambda batches: batches, pa.schema([("n", pa.int8())]))
    with pytest.raises(UserFunctionError, match="int8"):
        results(narrow, numbers(1000))


def test_it_is_pickled() -> None:
    assert results(pickle.loads(pickle.dumps(MapInArrow(doubled, NUMBERS))), numbers(1)) == [[2]]
