"""The format ``headgate.kafka`` as Spark sees it, with its two sinks: for batches and for Structured Streaming.

Never: import anything at module level but pyspark, the standard library, `headgate.spark.datasource` and
`headgate.spark.compatibility`: Spark imports this to find formats.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
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

    from headgate.connectors.kafka.sink.options import KafkaSink

_READ_BY = ("assign", "subscribe", "subscribepattern")
"""One of these options, in lower case, is needed to read, and none is known to write."""


class KafkaDataSource(HeadgateDataSource):
    """Kafka as a source and a sink. Spark makes the same object for both and does not say for which."""

    format_name = "headgate.kafka"
    source_class = "headgate.connectors.kafka.source:KafkaSource"

    def _validate(self) -> None:
        """Validate the options at ``load()`` if they are a source's; those of a sink when there is a query to write."""
        if any(name.lower() in _READ_BY for name in self.options):
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
                f"{self.format_name}: the save mode 'overwrite' is not possible: Kafka's records stay. Use 'append'.",
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
        """Return the sink of a streaming query. In the output mode ``complete`` every batch is appended, as in Spark's.

        Raises
        ------
        OptionError
            An option or a column is not what it must be.
        UnsupportedOperationError
            This Spark gives no Arrow batches to the sink of a stream.
        """
        require("stream-arrow-writer")
        return StreamWriter(self._sink(schema))

    def _sink(self, schema: StructType) -> KafkaSink:
        from headgate.connectors.kafka.client_config import require_client_library
        from headgate.connectors.kafka.sink.options import KafkaSink
        from headgate.spark.compatibility import to_arrow_schema

        require_client_library()
        return KafkaSink.of(dict(self.options), to_arrow_schema(schema))


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once: a task that Spark tries again repeats its rows."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows, and wait until the brokers have them.

        Raises
        ------
        SinkError
            Not all rows were written; some may be.
        """
        from headgate.connectors.kafka.sink.task_writer import write_batches

        write_batches(self._sink, iterator)
        return WriterCommitMessage()


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches. Nothing is left to be done on the driver: each task commits for itself."""

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows of a micro-batch, and wait until the brokers have them, or have committed them.

        Raises
        ------
        SinkError
            Not all rows were written: exactly once none, otherwise some may be.
        """
        from headgate.connectors.kafka.sink.task_writer import write_batches, write_epoch

        if self._sink.exactly_once:
            name, epoch = task_and_epoch()
            write_epoch(self._sink, name, epoch, whole(iterator))
        else:
            write_batches(self._sink, iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the tasks have committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: tasks that failed have aborted, and the others' rows are skipped by the replay."""


def whole(iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the batches, and raise at their end if they are not all of the task's rows.

    When the operators before a sink fail, or the task is killed, Spark 4.3 just closes the socket, and the iterator
    ends as if all rows had come: a sink that commits in its tasks would commit a part of them. The evidence is Spark's
    own mark after the rows, which the worker reads when the sink has returned: it is looked at without being taken.

    Raises
    ------
    SinkError
        Rows are missing: the task has failed in Spark.
    InternalError
        This Spark passes rows in another way.
    """
    from pyspark.serializers import SpecialLengths

    from headgate.errors import InternalError, SinkError

    stream = _worker_input()
    if stream is None:
        raise InternalError(
            "headgate.kafka: with guarantee exactly-once the sink must see the end of Spark's rows, and this PySpark "
            "hides it (4.3 is known to work). Use guarantee at-least-once."
        )
    yield from iterator
    following, mark = stream.peek(4)[:4], struct.pack("!i", SpecialLengths.END_OF_STREAM)
    if not following or not mark.startswith(following):
        raise SinkError(
            "headgate.kafka: the task failed or was killed before all of its rows had arrived: none of them "
            "is committed. Look for the cause in the operators upstream of the sink.",
            sink="headgate.kafka",
        )


def _worker_input() -> Any:
    """Return the stream from which PySpark's worker reads: a local variable of its ``main``, which calls all this."""
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "main" and hasattr(frame.f_locals.get("infile"), "peek"):
            return frame.f_locals["infile"]
        frame = frame.f_back  # type: ignore[assignment]
    return None


def task_and_epoch() -> tuple[str, int]:
    """Return the name of this task, the same in every batch of the query and every run of it, and the batch's number.

    Spark passes neither to a sink; both are properties of the job that its tasks can read.

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
        raise InternalError("headgate.kafka: this task is not part of a streaming query: it has no batch number.")
    return f"headgate-{query}-{context.partitionId()}", int(batch)
