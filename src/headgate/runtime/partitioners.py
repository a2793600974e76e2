"""Decides which subtask gets which rows of an exchange, kind by kind.

Never: keep rows, change their order for a consumer, or look at a value in Python.

    kind       rows go to
    ---------  ---------------------------------------------------------------------------------------------------
    hash       the subtask of their key group; with one subtask nothing is computed
    rebalance  the first ``targets`` subtasks, an equal part of each batch to each, each producer beginning with another
    broadcast  every subtask
    custom     the subtask that a function says, which is asked again for rows that a checkpoint recovered
    forward    the subtask of the producer's number

Only hash and custom have to find a consumer's own rows among recovered ones (see `headgate.operators.exchange`): the
others were given whole buffers by the coordinator.

Follows docs/architecture.md, "Stages and exchanges"; FLINK-31963, -35351 and -38483.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from headgate.errors import OptionError, UserFunctionError
from headgate.operators.exchange import Exchange, Partition, Partitioner
from headgate.operators.key_hash import check_key_type, key_groups
from headgate.protocol.key_groups import subtask_of

Parts = list[tuple[int, pa.RecordBatch]]


def partitioner_of(exchange: Exchange, *, producer: int, parallelism: int, max_parallelism: int) -> Partitioner:
    """Return what one subtask sends, and receives, its rows by.

    Parameters
    ----------
    exchange
        The exchange.
    producer
        The subtask that sends. For one that only receives (`Partitioner.filter_owned`) its own number will do.
    parallelism, max_parallelism
        Among how many subtasks, and how many key groups there are.

    Raises
    ------
    OptionError
        A column of the key is missing, or has a type that cannot be a key.
    """
    match exchange.exchange_kind:
        case "hash":
            return _Hash(exchange, parallelism, max_parallelism)
        case "rebalance":
            return _Rebalance(producer, min(exchange.targets or parallelism, parallelism))
        case "broadcast":
            return _Broadcast(parallelism)
        case "custom":
            assert exchange.partition is not None
            return _Custom(exchange.partition, parallelism)
        case "forward":
            return _Forward(producer)


class _Hash(Partitioner):
    """By key group."""

    def __init__(self, exchange: Exchange, parallelism: int, max_parallelism: int) -> None:
        self._columns = []
        for name in exchange.keys:
            column = exchange.schema.get_field_index(name)
            if column < 0:
                raise OptionError(
                    f"The key has no column {name}, or two: there are {', '.join(exchange.schema.names)}.",
                    option="groupBy", value=name,
                )  # fmt: skip
            check_key_type(name, exchange.schema.field(column).type)
            self._columns.append(column)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        dtype = np.uint8 if parallelism <= 256 else np.uint16
        self._consumers = np.array(
            [subtask_of(group, parallelism, max_parallelism) for group in range(max_parallelism)], dtype
        )

    def split(self, batch: pa.RecordBatch) -> Parts:
        if self._parallelism == 1:
            return [(0, batch)] if batch.num_rows else []
        return _parts(batch, self._consumers_of(batch), self._parallelism)

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        if self._parallelism == 1:
            return batch
        return _rows_of(batch, self._consumers_of(batch), consumer)

    def _consumers_of(self, batch: pa.RecordBatch) -> Any:
        groups = key_groups([batch.column(column) for column in self._columns], self._max_parallelism)
        return self._consumers.take(groups.to_numpy())


class _Rebalance(Partitioner):
    """An equal part of each batch for everybody; who gets a row more takes turns."""

    def __init__(self, producer: int, targets: int) -> None:
        self._targets = targets
        # Each producer begins with another one, so that few batches of many producers are spread, too.
        self._next = producer % targets

    def split(self, batch: pa.RecordBatch) -> Parts:
        least, more = divmod(batch.num_rows, self._targets)
        found, begin = [], 0
        for n in range(min(self._targets, batch.num_rows)):
            rows = least + (n < more)
            found.append(((self._next + n) % self._targets, batch.slice(begin, rows)))
            begin += rows
        self._next = (self._next + more) % self._targets
        return found

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        return batch


class _Broadcast(Partitioner):
    """All rows to all."""

    def __init__(self, parallelism: int) -> None:
        self._parallelism = parallelism

    def split(self, batch: pa.RecordBatch) -> Parts:
        return [(consumer, batch) for consumer in range(self._parallelism)] if batch.num_rows else []

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        return batch


class _Custom(Partitioner):
    """By a function, of an expression of the user's."""

    def __init__(self, partition: Partition, parallelism: int) -> None:
        self._partition = partition
        self._parallelism = parallelism

    def split(self, batch: pa.RecordBatch) -> Parts:
        return _parts(batch, self._consumers_of(batch), self._parallelism) if batch.num_rows else []

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        return _rows_of(batch, self._consumers_of(batch), consumer) if batch.num_rows else batch

    def _consumers_of(self, batch: pa.RecordBatch) -> Any:
        try:
            subtasks = self._partition(batch, self._parallelism)
        except Exception as error:
            raise UserFunctionError(
                f"repartitionById failed: {type(error).__name__}: {error}", function="repartitionById"
            ) from error
        return subtasks.to_numpy().astype(np.uint8 if self._parallelism <= 256 else np.uint16)


class _Forward(Partitioner):
    """All rows to the subtask of the same number."""

    def __init__(self, producer: int) -> None:
        self._consumer = producer

    def split(self, batch: pa.RecordBatch) -> Parts:
        return [(self._consumer, batch)] if batch.num_rows else []

    def filter_owned(self, batch: pa.RecordBatch, consumer: int) -> pa.RecordBatch:
        return batch


def _parts(batch: pa.RecordBatch, consumers: Any, parallelism: int) -> Parts:
    """Return the rows of each consumer that gets any, in their order: slices of all rows, sorted by consumer once."""
    order = np.argsort(consumers, kind="stable")  # on few distinct numbers a radix sort
    ends = np.searchsorted(consumers[order], np.arange(parallelism, dtype=consumers.dtype), side="right").tolist()
    begins = [0, *ends[:-1]]
    parts = [(consumer, at, end) for consumer, (at, end) in enumerate(zip(begins, ends, strict=True)) if end > at]
    if len(parts) == 1:
        return [(parts[0][0], batch)]
    ordered = batch.take(pa.array(order))
    return [(consumer, ordered.slice(begin, end - begin)) for consumer, begin, end in parts]


def _rows_of(batch: pa.RecordBatch, consumers: Any, consumer: int) -> pa.RecordBatch:
    """Return the rows of one consumer; the batch itself if all are."""
    (rows,) = np.nonzero(consumers == consumer)
    return batch if len(rows) == batch.num_rows else batch.take(pa.array(rows))
