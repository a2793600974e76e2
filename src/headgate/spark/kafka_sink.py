"""The format ``headgate.kafka`` as Spark sees it, with its two sinks: for batches and for Structured Streaming.

Never: import anything at module level but pyspark, the standard library, `headgate.spark.broker_sink` and
`headgate.spark.compatibility`: Spark imports this to find formats.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from headgate.spark.broker_sink import BrokerDataSource, query_batch_and_task
from headgate.spark.compatibility import DataSourceStreamArrowWriter

if TYPE_CHECKING:
    import pyarrow as pa

    from headgate.connectors.kafka.sink.options import KafkaSink

_READ_BY = ("assign", "subscribe", "subscribepattern")
"""One of these options, in lower case, is needed to read, and none is known to write."""


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
            query, epoch, task = query_batch_and_task("headgate.kafka")
            write_epoch(self._sink, f"headgate-{query}-{task}", epoch, whole(iterator))
        else:
            write_batches(self._sink, iterator)
        return WriterCommitMessage()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the tasks have committed."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: tasks that failed have aborted, and the others' rows are skipped by the replay."""


class KafkaDataSource(BrokerDataSource):
    """Kafka as a source and a sink."""

    format_name = "headgate.kafka"
    source_class = "headgate.connectors.kafka.source:KafkaSource"
    batch_writer = "headgate.connectors.kafka.sink.task_writer:write_batches"
    stream_writer = StreamWriter

    def _validate(self) -> None:
        if any(name.lower() in _READ_BY for name in self.options):
            super()._validate()

    def _sink(self, schema: StructType) -> KafkaSink:
        from headgate.connectors.kafka.client_config import require_client_library
        from headgate.connectors.kafka.sink.options import KafkaSink
        from headgate.spark.compatibility import to_arrow_schema

        require_client_library()
        return KafkaSink.of(dict(self.options), to_arrow_schema(schema))


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
