"""A format of brokers as Spark sees it: a source and two sinks, for batches and for Structured Streaming.

Never: import anything at module level but pyspark, the standard library, `headgate.spark.datasource` and
`headgate.spark.compatibility`: Spark imports this to find formats.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headgate.spark.compatibility import require
from headgate.spark.datasource import HeadgateDataSource, import_source

if TYPE_CHECKING:
    import pyarrow as pa


class BrokerDataSource(HeadgateDataSource):
    """A source and a sink. Spark makes the same object for both and does not show for which.

    So options are validated at ``load()`` if they are a source's; those of a sink when there is a query to write.
    """

    batch_writer: ClassVar[str]
    """Where the function ``(sink, batches)`` is that writes a task's rows at least once: ``"module:function"``."""
    stream_writer: ClassVar[type[Any]]
    """The writer of micro-batches, made of a sink."""

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
                f"{self.format_name}: the save mode 'overwrite' is not possible: what is in a topic stays. Use "
                "'append'.",
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
        return BatchWriter(partial(import_source(self.batch_writer), sink))

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
        writer: DataSourceStreamWriter = self.stream_writer(self._sink(schema))
        return writer

    @abstractmethod
    def _sink(self, schema: StructType) -> Any:
        """Return what to write and where to, checked."""


class BatchWriter(DataSourceArrowWriter):
    """Writes a batch, at least once: a task that Spark tries again repeats its rows."""

    def __init__(self, write: Callable[[Iterator[pa.RecordBatch]], None]) -> None:
        self._write = write

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows, and wait until the brokers have them.

        Raises
        ------
        SinkError
            Not all rows were written; some may be.
        """
        self._write(iterator)
        return WriterCommitMessage()


def query_batch_and_task(sink: str) -> tuple[str, int, int]:
    """Return a query's id, which is the same in every run of it, the number of the batch, and that of the task.

    Spark passes neither to a sink; they are properties of the job that its tasks can read.

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
        raise InternalError(f"{sink}: this task is not part of a streaming query: it has no batch number.")
    return query, int(batch), context.partitionId()
