"""The partitioners: every row to the subtasks that its kind says, in order, and the same when it is recovered."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.exchange import Exchange, Partitioner
from headgate.operators.key_hash import key_groups
from headgate.protocol.key_groups import key_group_range
from headgate.runtime.partitioners import partitioner_of

SCHEMA = pa.schema({"key": pa.int64(), "name": pa.string(), "v": pa.int64()})


def batch_of(keys: list[int]) -> pa.RecordBatch:
    """Return rows with these keys; ``v`` counts them."""
    columns = {"key": keys, "name": [None if key % 5 == 0 else f"n{key % 3}" for key in keys], "v": range(len(keys))}
    return pa.record_batch(columns, SCHEMA)


def hashed(parallelism: int, *keys: str, max_parallelism: int = 128) -> Partitioner:
    """Return a partitioner by key."""
    exchange = Exchange(SCHEMA, "hash", keys=keys or ("key",))
    return partitioner_of(exchange, producer=0, parallelism=parallelism, max_parallelism=max_parallelism)


def other(kind: Any, parallelism: int, *, producer: int = 0, **arguments: Any) -> Partitioner:
    """Return a partitioner of another kind."""
    exchange = Exchange(SCHEMA, kind, **arguments)
    return partitioner_of(exchange, producer=producer, parallelism=parallelism, max_parallelism=128)


def modulo(batch: pa.RecordBatch, subtasks: int) -> pa.Array:
    """Partition by the value itself."""
    return pa.array(batch.column("key").to_numpy() % subtasks)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.integers(0, 60), max_size=60), st.integers(1, 20), st.integers(20, 128), st.booleans(),
    st.sampled_from([("key",), ("name",), ("name", "key")]),
)  # fmt: skip
def test_hash(keys: list[int], parallelism: int, groups: int, custom: bool, by: tuple[str, ...]) -> None:
    """Every row to the one subtask that has its key group (or that the function says), in order; `own` agrees."""
    batch = batch_of(keys)
    if custom:
        partitioner, expected = other("custom", parallelism, partition=modulo), modulo(batch, parallelism).to_pylist()
    else:
        partitioner = hashed(parallelism, *by, max_parallelism=groups)
        ranges = [key_group_range(each, parallelism, groups) for each in range(parallelism)]
        found = key_groups([batch.column(name) for name in by], groups).to_pylist()
        expected = [next(each for each, range_of in enumerate(ranges) if group in range_of) for group in found]
    parts = dict(partitioner.split(batch))
    assert all(part.num_rows for part in parts.values())
    for consumer in range(parallelism):
        rows = [row for row, to in enumerate(expected) if to == consumer]
        part = parts.get(consumer)
        assert (part.column("v").to_pylist() if part is not None else []) == rows
        own = partitioner.filter_owned(batch, consumer)
        assert own.column("v").to_pylist() == rows and own.schema == SCHEMA
        for recovered in parts.values():  # as a buffer of the consumer, at the parallelism it was stored at
            assert partitioner.filter_owned(recovered, consumer).num_rows in (0, recovered.num_rows)


@pytest.mark.parametrize("old", range(1, 9))
@pytest.mark.parametrize("new", range(1, 9))
def test_recovered_rows_have_one_owner(old: int, new: int) -> None:
    """Rows that were on their way at one parallelism are each kept by one subtask of another (FLINK-31963)."""
    batch = batch_of(list(range(200)))
    for before, after in (
        (hashed(old), hashed(new)),
        (other("custom", old, partition=modulo), other("custom", new, partition=modulo)),
    ):
        kept = [
            row
            for _, buffer in before.split(batch)
            for consumer in range(new)
            for row in after.filter_owned(buffer, consumer).column("v").to_pylist()
        ]
        assert sorted(kept) == list(range(200))
        now = {consumer: set(part.column("v").to_pylist()) for consumer, part in after.split(batch)}
        for consumer in range(new):
            assert set(after.filter_owned(batch, consumer).column("v").to_pylist()) == now.get(consumer, set())


def test_one_subtask_gets_the_batch_itself() -> None:
    """At parallelism 1, and where all rows have one owner, nothing is copied."""
    batch = batch_of([7, 7, 7])
    ((consumer, part),) = hashed(1).split(batch)
    assert consumer == 0 and part is batch and hashed(1).filter_owned(batch, 0) is batch
    ((consumer, part),) = hashed(4).split(batch)
    assert part is batch and hashed(4).filter_owned(batch, consumer) is batch
    assert hashed(1).split(batch.slice(0, 0)) == hashed(4).split(batch.slice(0, 0)) == []


def test_rebalance() -> None:
    """Rows in turn, each producer beginning with another subtask; no more than the targets (FLINK-35351)."""

    def turns(partitioner: Partitioner, many: int) -> list[int]:
        return [consumer for _ in range(many) for consumer, _ in partitioner.split(batch_of([1]))]

    assert turns(other("rebalance", 3), 5) == [0, 1, 2, 0, 1]
    assert turns(other("rebalance", 3, producer=2), 4) == [2, 0, 1, 2]
    assert turns(other("rebalance", 3, producer=5), 2) == [2, 0]
    assert turns(other("rebalance", 4, targets=2, producer=3), 3) == [1, 0, 1]
    assert turns(other("rebalance", 2, targets=8), 3) == [0, 1, 0]
    batch = batch_of([1, 2])
    assert other("rebalance", 3).filter_owned(batch, 1) is batch
    assert other("rebalance", 3).split(batch.slice(0, 0)) == []


@given(st.lists(st.integers(0, 50)), st.integers(1, 6))
def test_rebalance_is_even(sizes: list[int], targets: int) -> None:
    """However rows come, no subtask gets two more than another, and each row goes to one."""
    partitioner, got, begin = other("rebalance", targets), [0] * targets, 0
    for size in sizes:
        keys = list(range(begin, begin + size))
        parts = partitioner.split(batch_of(keys))
        assert [key for _, part in parts for key in part.column("key").to_pylist()] == keys
        for consumer, part in parts:
            got[consumer] += part.num_rows
        begin += size
    assert max(got) - min(got) <= 1


def test_broadcast_and_forward() -> None:
    """All rows to every subtask (FLINK-38483); all rows to the subtask of the same number."""
    batch = batch_of([1, 2])
    assert other("broadcast", 3).split(batch) == [(0, batch), (1, batch), (2, batch)]
    assert other("broadcast", 3).filter_owned(batch, 2) is batch
    assert other("broadcast", 3).split(batch.slice(0, 0)) == []
    assert other("forward", 3, producer=2).split(batch) == [(2, batch)]
    assert other("forward", 3, producer=2).filter_owned(batch, 2) is batch
    assert other("forward", 3).split(batch.slice(0, 0)) == []


def test_a_key_that_cannot_be_one_is_refused() -> None:
    """With its column's name, when the partitioner is made."""
    with pytest.raises(OptionError, match=r"no column user.*key, name, v"):
        hashed(2, "user")
    exchange = Exchange(pa.schema({"m": pa.map_(pa.string(), pa.int64())}), "hash", keys=("m",))
    with pytest.raises(OptionError, match="column m cannot be part of a key"):
        partitioner_of(exchange, producer=0, parallelism=1, max_parallelism=128)


def test_an_expression_that_fails() -> None:
    """Is the user's error, with the original as its cause."""

    def failing(batch: pa.RecordBatch, subtasks: int) -> pa.Array:
        raise pa.ArrowInvalid("divide by zero")

    for call in (lambda it: it.split(batch_of([1, 2])), lambda it: it.filter_owned(batch_of([1, 2]), 0)):
        with pytest.raises(UserFunctionError, match="repartitionById failed: ArrowInvalid: divide by zero") as caught:
            call(other("custom", 3, partition=failing))
        assert isinstance(caught.value.__cause__, pa.ArrowInvalid)


def test_a_partitioner_is_not_asked_about_no_rows() -> None:
    """It need not cope with an empty batch."""
    empty = batch_of([])
    partitioner = other("custom", 2, partition=lambda batch, subtasks: 1 // batch.num_rows)  # type: ignore[arg-type,return-value]
    assert partitioner.split(empty) == [] and partitioner.filter_owned(empty, 1) is empty
