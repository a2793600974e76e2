"""Writes the rows of a task to Kafka: at least once, or each epoch exactly once by a transaction with a marker.

Never: import pyspark, or report rows as written that the brokers have not acknowledged.

Exactly once, the life of an epoch in a task:

1. ``init_transactions`` with the task's own transactional id: an earlier attempt's open transaction is aborted, one
   that was about to be committed is finished, and a zombie of it can write no more.
2. The marker is looked up: if this epoch is committed already, this is a replay; its rows are counted and dropped.
3. One transaction holds the rows and the new marker, so that there are both or neither.

A task without rows writes nothing, so that its replay may do so again.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterable, Iterator
from itertools import chain

import pyarrow as pa

from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter
from headgate.connectors.kafka.sink.transactions import Marker, TransactionalWriter
from headgate.errors import SinkError


def write_batches(sink: KafkaSink, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows, at least once.

    Raises
    ------
    SinkError
        Not all rows were written; some may be.
    """
    for first, rest in _rows_in(batches):
        writer = _writer(sink)
        try:
            for batch in chain([first], rest):
                writer.write(batch)
            writer.flush()
        except BaseException:
            writer.close()
            raise
        while len(_idle) >= _MOST_IDLE:
            _idle.pop(next(iter(_idle))).close()
        _idle[sink] = writer


def _writer(sink: KafkaSink) -> KafkaWriter:
    idle = _idle.pop(sink, None)
    if idle is not None and not idle.is_usable():
        idle.close()
        idle = None
    return idle or KafkaWriter(sink)


_idle: dict[KafkaSink, KafkaWriter] = {}
"""Writers of tasks that have ended, for the next tasks of a reused Python worker: a new one takes half a second until
it may write with idempotence. A transaction's writer is never kept: that it is new is what fences zombies."""
_MOST_IDLE = 4


@atexit.register
def close_idle() -> None:
    """Close the idle writers of this process, whose threads would run while the interpreter ends."""
    while _idle:
        _idle.popitem()[1].close()


def write_epoch(sink: KafkaSink, name: str, epoch: int, batches: Iterable[pa.RecordBatch]) -> None:
    """Write all rows of a task's epoch, unless they are written already.

    Parameters
    ----------
    sink
        What to write and where to.
    name
        The task's transactional id: the same for all epochs and all attempts.
    epoch
        The epoch's number.
    batches
        Its rows, read to their end in any case: Spark keeps the state of operators before a sink only then.

    Raises
    ------
    SinkError
        The rows were not written, none of them; or they are not those that were written in this epoch before.
    """
    for first, rest in _rows_in(batches):
        with TransactionalWriter(sink, name) as writer:
            done = writer.marker()
            if done is not None and done.epoch >= epoch:
                rows = first.num_rows + sum(batch.num_rows for batch in rest)
                _check_replay(name, done, epoch, rows)
                return
            writer.begin()
            try:
                for batch in chain([first], rest):
                    writer.write(batch)
                writer.commit(epoch)
            except BaseException:
                writer.abort()
                raise


def _rows_in(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[pa.RecordBatch, Iterator[pa.RecordBatch]]]:
    """Yield the first batch that has rows and the rest; nothing if none has: then nobody connects."""
    rest = iter(batches)
    for first in rest:
        if first.num_rows:
            yield first, rest
            return


def _check_replay(name: str, done: Marker, epoch: int, rows: int) -> None:
    """Notice a replay that is cut into tasks otherwise than the first time: it would lose rows and repeat others."""
    if done.epoch == epoch and done.rows != rows:
        raise SinkError(
            f"{NAME}: {name!r} wrote {done.rows} rows in batch {epoch}, and its replay has {rows}. A replayed batch "
            "must have the same rows in the same tasks: run the query with the same settings and as many cores as "
            "before, or once with guarantee at-least-once, which repeats this batch.",
            sink=NAME, name=name, epoch=epoch, expected=done.rows, found=rows,
        )  # fmt: skip
