"""Duplicates within a batch are dropped before the exchange, and `Deduplicate` emits what it would have emitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.deduplicate import Deduplicate
from headgate.operators.key_hash import key_hash
from headgate.operators.operator import Operator
from headgate.operators.partial_deduplicate import PartialDeduplicate, first_of_each
from headgate.operators.windows.repetition import LEAST_ROWS, PROBED_ROWS
from headgate.protocol.operator_context import OperatorContext

SCHEMA = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("n", pa.int64())])
KEYS = st.tuples(st.none() | st.integers(0, 3), st.sampled_from([None, 0.0, -0.0, 1.0, float("nan")]))


def opened(operator: Operator) -> Any:
    operator.open(OperatorContext(uid="of", subtask=0, parallelism=1), [])
    return operator


def batch(keys: list[tuple[int | None, float | None]], begin: int = 0) -> pa.RecordBatch:
    numbers = range(begin, begin + len(keys))
    columns = [[each[0] for each in keys], [each[1] for each in keys], numbers]
    return pa.RecordBatch.from_arrays([pa.array(each, of.type) for each, of in zip(columns, SCHEMA)], schema=SCHEMA)


def emitted(operator: Any, rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    found: list[pa.RecordBatch] = []
    operator.process(rows, "split", lambda made, split: found.append(made))
    return found


@given(batches=st.lists(st.lists(KEYS, min_size=1, max_size=20), max_size=4))
def test_the_same_rows_come_out(batches: list[list[Any]]) -> None:
    """The first of each key, with nulls, both zeros and NaN among them."""
    alone, after = (opened(Deduplicate(SCHEMA, ["k", "x"])) for _ in range(2))
    before = after.first_phase(always=True)
    assert before is not None
    opened(before)
    numbers: list[list[int]] = [[], []]
    for place, keys in enumerate(batches):
        rows = batch(keys, place * 100)
        crossing = emitted(before, rows)
        assert [len(set(map(repr, each["n"].to_pylist()))) for each in crossing] == [each.num_rows for each in crossing]
        for found, those in ((numbers[0], [rows]), (numbers[1], crossing)):
            for each in those:
                made = emitted(alone if found is numbers[0] else after, each)
                found += [number for one in made for number in one["n"].to_pylist()]
    assert numbers[0] == numbers[1]


@pytest.mark.parametrize("keys, rows", [(10, LEAST_ROWS - 1), (PROBED_ROWS, PROBED_ROWS)])
def test_few_rows_and_keys_that_do_not_repeat_pass(keys: int, rows: int) -> None:
    first = opened(PartialDeduplicate(SCHEMA, ["k"], always=False))
    numbers = np.arange(rows)
    given_rows = pa.RecordBatch.from_arrays([numbers % keys, numbers * 1.0, numbers], schema=SCHEMA)
    (made,) = emitted(first, given_rows)
    assert made is given_rows


def test_the_first_of_each_key_of_many_in_order() -> None:
    keys = np.random.default_rng(1).integers(0, 1_000, 10_000)
    columns = [pa.array(keys)]
    assert first_of_each(columns, key_hash(columns)).tolist() == sorted(np.unique(keys, return_index=True)[1].tolist())


def test_rows_with_event_time_are_left_alone() -> None:
    """A later row of a key may be in time where the first one is late."""
    schema = SCHEMA.append(pa.field("at", pa.timestamp("us", "UTC")))
    assert Deduplicate(schema, ["k"], time="at").first_phase(always=True) is None
