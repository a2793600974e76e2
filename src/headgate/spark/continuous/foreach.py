"""``writeStream.foreach``: an object or a function of the user's gets each row, in the slots.

Never: promise more than at least once: rows come when they come, and again after a failure.

Rows from one barrier to the next are one epoch of a subtask: ``open(partition_id, epoch_id)``, ``process(row)`` for
each, ``close(error)``. No two epochs have the same number, those that are read again after a failure included: who
leaves out a number that they know must not leave out other rows.

Follows PySpark's ``DataStreamWriter.foreach`` and ``_construct_foreach_function``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from headgate.errors import OptionError
from headgate.pickling import dumps
from headgate.protocol.operator_context import OperatorContext
from headgate.sink import SinkWriter
from headgate.source.options import Options, OptionSpec, text
from headgate.spark.continuous.python_data_source import PythonSink

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SINK_OPTION_SPECS = (OptionSpec("checkpointLocation", text, None, "", status="no-op", why="the query's own"),)


def make_foreach_sink(function: Any, options: dict[str, str], schema: pa.Schema, spark: SparkSession) -> PythonSink:
    """Return the sink that gives rows to a function, or to an object with ``process``.

    Raises
    ------
    OptionError
        It is neither, it cannot be pickled, or there is an option, which this sink does not have.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Options.parse("The sink foreach", SINK_OPTION_SPECS, options)
    try:
        DataStreamWriter._construct_foreach_function(function)
    except (PySparkException, AttributeError) as error:
        raise OptionError(
            f"foreach: {error} It takes a function of a row, or an object with process(row) and, if it likes, "
            "open(partition_id, epoch_id) and close(error).",
            option="foreach", value=type(function).__name__,
        ) from error  # fmt: skip
    try:
        dumps(function)
    except Exception as error:
        raise OptionError(
            f"foreach: {type(function).__name__} cannot be pickled for the slots: {error}. Open connections in open().",
            option="foreach", value=type(function).__name__,
        ) from error  # fmt: skip
    return ForeachSink.of("foreach", ForeachWriter(function), schema, spark)


class ForeachWriter(DataSourceStreamWriter):
    """Gives rows to what the user gave.

    Parameters
    ----------
    given
        A function of a row, or an object with ``process``.
    """

    partition_id = 0

    def __init__(self, given: Any) -> None:
        self._given = given

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Give the rows of one epoch."""
        if callable(self._given):
            for row in iterator:
                self._given(row)
        else:
            self._open_process_close(iterator)
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the rows are where they are to be."""

    def _open_process_close(self, rows: Iterator[Any]) -> None:
        nothing: Callable[..., None] = lambda *_: None  # noqa: E731
        error: BaseException | None = None
        wanted = True
        if hasattr(self._given, "open"):
            wanted = self._given.open(self.partition_id, time.time_ns() // 1000)
        try:
            if wanted:
                for row in rows:
                    self._given.process(row)
        except Exception as raised:
            error = raised
            raise
        finally:
            getattr(self._given, "close", nothing)(error)


class ForeachSink(PythonSink):
    """See `PythonSink`; its writer knows its subtask."""

    def create_writer(self, context: OperatorContext, schema: pa.Schema, items: Sequence[bytes]) -> SinkWriter:
        """See `Sink.create_writer`."""
        assert isinstance(self._writer, ForeachWriter)
        self._writer.partition_id = context.subtask
        return super().create_writer(context, schema, items)
