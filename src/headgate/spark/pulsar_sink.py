"""The format ``headgate.pulsar`` as Spark sees it, with its two sinks: for batches and for Structured Streaming.

Never: import anything at module level but pyspark, the standard library, `headgate.spark.datasource`,
`headgate.spark.kafka_sink` and `headgate.spark.compatibility`: Spark imports this to find formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    DataSourceWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from headgate.spark.compatibility import DataSourceStreamArrowWriter, require
from headgate.spark.datasource import HeadgateDataSource

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.connectors.pulsar.sink.options import PulsarSink

_READ_BY = ("topics", "topicspattern", "startingoffsets", "startingtime", "predefinedsubscription", "valueformat")
"""Options that only a source has; ``topic`` is one of both."""


class PulsarDataSource(HeadgateDataSource):
    """Pulsar as a source and a sink. Spark makes the same object for both and does not show for which."""

    format_name = "headgate.pulsar"
    source_class = "headgate.connectors.pulsar.source:PulsarSource"

    def _validate(self) -> None:
        """Validate the options at ``load()`` if they are a source's; those of a sink when there is a query to write."""
        given = {name.lower() for name in self.options}
        writes = "guarantee" in given or any(name.startswith("pulsar.producer.") for name in given)
        if not writes and any(name in _READ_BY for name in given):
            super()._validate()

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the sink of a batch.

        Raises
        ------
        OptionError
            An option or a column is not what it must be; or the mode is ``overwrite``.
        """
        from headgate.errors import OptionError

        if overwrite:
            raise OptionError(
                f"{self.format_name}: the save mode 'overwrite' is not possible: Pulsar's messages stay. Use 'append'.",
                option="mode",
                value="overwrite",
            )
        sink = self._sink(schema)
        if sink.exactly_once:
            raise OptionError(
                f"{self.format_name}: the option 'guarantee' cannot be exactly-once for a batch (df.write, "
                "foreachBatch): only a streaming query numbers its batches, so that a repeated one is known. "
                "Use writeStream.",
                option="guarantee",
                value="exactly-once",
            )
        return BatchWriter(sink)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the sink of a streaming query. In the output mode ``complete`` every batch is appended.

        Raises
        ------
        OptionError
            An option or a column is not what it must be.
        UnsupportedOperationError
            This Spark gives no Arrow batches to the sink of a stream.
        """
        require("stream-arrow-writer")
        sink = self._sink(schema)
        if sink.exactly_once:
            from headgate.sink.staging import staging_folder

            staging_folder(dict(self.options), self.format_name)
        return StreamWriter(sink)

    def _sink(self, schema: StructType) -> PulsarSink:
        from headgate.connectors.pulsar.client import require_client_library
        from headgate.connectors.pulsar.sink.options import PulsarSink
        from headgate.spark.compatibility import to_arrow_schema

        require_client_library()
        return PulsarSink.of(dict(self.options), to_arrow_schema(schema))


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once: a task that Spark tries again repeats its rows."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows, and wait until the brokers have them.

        Raises
        ------
        SinkError
            Not all rows were written; some may be.
        """
        from headgate.connectors.pulsar.sink.micro_batch import write_batches

        write_batches(self._sink, iterator)
        return WriterCommitMessage()


@dataclass
class Staged(WriterCommitMessage):
    """What a task staged, and of which query it is."""

    query: str
    task: Any


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches: in its tasks; with guarantee exactly-once, those stage rows that the driver publishes."""

    def __init__(self, sink: PulsarSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch, and wait until the brokers have them, or the storage of checkpoints.

        Raises
        ------
        SinkError
            Not all rows were written: exactly once none, otherwise some may be.
        """
        from headgate.connectors.pulsar.sink.micro_batch import stage_batches, write_batches

        if not self._sink.exactly_once:
            write_batches(self._sink, iterator)
            return WriterCommitMessage()
        query, epoch, task = _query_epoch_and_task()
        return Staged(query, stage_batches(self._sink, query, epoch, task, iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks have staged.

        Raises
        ------
        SinkError
            Not all rows were written; a replay writes the others.
        """
        staged = [each for each in messages if isinstance(each, Staged)]
        if staged:
            from headgate.connectors.pulsar.sink.micro_batch import publish_batch

            publish_batch(self._sink, staged[0].query, batchId, [each.task for each in staged])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was staged goes with the commit of the next batch; a replay may need its manifest."""


def _query_epoch_and_task() -> tuple[str, int, int]:
    """Return a query's id, which is the same in every run of it, the number of the batch, and that of the task.

    Raises
    ------
    InternalError
        It runs in no task of a streaming query.
    """
    from headgate.errors import InternalError

    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    batch = context.getLocalProperty("streaming.sql.batchId") if context is not None else None
    if context is None or query is None or batch is None:
        raise InternalError("headgate.pulsar: this task is not part of a streaming query: it has no batch number.")
    return query, int(batch), context.partitionId()
