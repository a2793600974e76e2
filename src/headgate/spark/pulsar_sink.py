"""The format ``headgate.pulsar`` as Spark sees it, with its two sinks: for batches and for Structured Streaming.

Never: import anything at module level but pyspark, the standard library, `headgate.spark.broker_sink` and
`headgate.spark.compatibility`: Spark imports this to find formats.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headgate.spark.broker_sink import BrokerDataSource, query_batch_and_task
from headgate.spark.compatibility import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.connectors.pulsar.sink.options import PulsarSink

_READ_BY = ("topics", "topicspattern", "startingoffsets", "startingtime", "predefinedsubscription", "valueformat")
"""Options that only a source has; ``topic`` is one of both."""


@dataclass
class Staged(WriterCommitMessage):
    """What a task staged, and of which query it is."""

    query: str
    task: Any


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches: in its tasks; with guarantee exactly-once, those stage rows that the driver publishes."""

    def __init__(self, sink: PulsarSink) -> None:
        from headgate.connectors.pulsar.sink.micro_batch import staging_of

        self._sink = sink
        if sink.exactly_once:
            staging_of(sink)  # an error of it comes before the query begins

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
        query, epoch, task = query_batch_and_task("headgate.pulsar")
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


class PulsarDataSource(BrokerDataSource):
    """Pulsar as a source and a sink."""

    format_name = "headgate.pulsar"
    source_class = "headgate.connectors.pulsar.source:PulsarSource"
    batch_writer = "headgate.connectors.pulsar.sink.micro_batch:write_batches"
    stream_writer = StreamWriter

    def _validate(self) -> None:
        given = {name.lower() for name in self.options}
        writes = "guarantee" in given or any(name.startswith("pulsar.producer.") for name in given)
        if not writes and any(name in _READ_BY for name in given):
            super()._validate()

    def _sink(self, schema: StructType) -> PulsarSink:
        from headgate.connectors.pulsar.client import require_client_library
        from headgate.connectors.pulsar.sink.options import PulsarSink
        from headgate.spark.compatibility import to_arrow_schema

        require_client_library()
        return PulsarSink.of(dict(self.options), to_arrow_schema(schema))
