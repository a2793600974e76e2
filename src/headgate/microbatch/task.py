"""Reads splits in a Spark task: an ordinary source reader, whose batches are made to fit what Spark was promised.

Never: plan, or hand the JVM a batch that was not checked: Spark checks the first one only.
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headgate.errors import ConnectorContractError, UnsupportedOperationError
from headgate.microbatch.alignment.messages import ReportTo
from headgate.microbatch.alignment.reports import EventTimeOutput, report
from headgate.microbatch.event_time_order import OrderedRead
from headgate.source import InputStatus, Source, SourceEvent, SourceReaderContext, Split
from headgate.task.reader_output import BatchOutput

BATCH_BYTES = 1 << 20
"""Larger record batches are cut. The JVM reads batches of about this size twice as fast as ten times larger ones."""


class Reporting(msgspec.Struct, frozen=True):
    """What a task of an aligned query reports, and where to."""

    to: ReportTo
    column: str


class Ordering(msgspec.Struct, frozen=True):
    """How a task orders its rows, for the option ``eventTimeOrder``.

    Parameters
    ----------
    column
        The one with the event time.
    not_before_ms
        By split id, where it is known: a lower bound of the event time of its first row, in milliseconds.
    """

    column: str
    not_before_ms: dict[str, int | None] = {}

    def of(self, splits: Sequence[Split]) -> Ordering:
        """Return the part about some splits."""
        known = {split.split_id: self.not_before_ms.get(split.split_id) for split in splits}
        return Ordering(self.column, known)


def read_splits(
    source: Source[Any, Any],
    schema: pa.Schema,
    splits: Sequence[Split],
    subtask: int,
    time_zone: str,
    reporting: Reporting | None = None,
    ordering: Ordering | None = None,
    case_sensitive: bool | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``splits`` in ``schema``, then end.

    Parameters
    ----------
    source
        Makes the reader.
    schema
        The columns that Spark was promised.
    splits
        What to read; every one of them has an end.
    subtask
        The number of this task among those of the read.
    time_zone
        The time zone of times without one (an IANA name).
    reporting
        Where to report what event times were read; None: nobody asks.
    ordering
        How to order the rows; None: they come as they are read.
    case_sensitive
        See `SourceReaderContext`.
    """
    reader = source.create_reader(_context(source, schema, subtask, time_zone, case_sensitive))
    try:
        reader.start()
        if ordering is not None and len(splits) > 1:
            merged = OrderedRead[Split](
                source.name,
                schema,
                schema.get_field_index(ordering.column),
                lambda batch: fit(batch, schema, source.name),
            )
            yield from merged.rows(reader, splits, ordering.not_before_ms)
            return
        output = BatchOutput() if reporting is None else EventTimeOutput(reporting.column)
        reader.add_splits(splits)
        reader.notify_no_more_splits()
        while True:
            status = reader.poll_next(output)
            while (batch := output.take()) is not None:
                yield from fit(batch, schema, source.name)
            if status is InputStatus.END_OF_INPUT:
                break
            if status is InputStatus.NOTHING_AVAILABLE:
                reader.available().result()
        if reporting is not None and isinstance(output, EventTimeOutput):
            report(reporting.to, output.event_times)
    finally:
        reader.close()


def _context(
    source: Source[Any, Any], schema: pa.Schema, subtask: int, time_zone: str, case_sensitive: bool | None
) -> SourceReaderContext:
    """Return the context of a reader whose enumerator is not there any longer."""

    def send_event(event: SourceEvent) -> None:
        raise UnsupportedOperationError(
            f"Reader {subtask} of {source.name} sends {type(event).__name__} to its enumerator, which cannot be "
            "delivered: a task of spark.read or of a micro-batch runs after its plan is made. Read the source with "
            "headgate.continuous, or let the enumerator find out on its own.",
            source=source.name,
            operation="send_event",
        )

    return SourceReaderContext(
        subtask=subtask,
        schema=schema,
        host=socket.gethostname(),
        request_split=lambda: None,
        send_event=send_event,
        time_zone=time_zone,
        case_sensitive=case_sensitive,
    )


_modules = 0
"""So many were imported when `keep_modules` was called last."""


def keep_modules() -> None:
    """Take all that is alive out of garbage collections, if modules were imported since the last time.

    Spark's workers collect garbage after each task, and each time search what was imported: of pandas, pyarrow and
    numba that is a tenth of a second, more than a small task takes.
    """
    global _modules
    if len(sys.modules) != _modules:
        gc.collect()
        gc.freeze()
        _modules = len(sys.modules)


def fit(batch: pa.RecordBatch, schema: pa.Schema, source_name: str) -> Iterator[pa.RecordBatch]:
    """Yield a batch with exactly the columns of ``schema``, in pieces that are not too large.

    Raises
    ------
    ConnectorContractError
        A column is missing or cannot become what was promised.
    """
    if batch.num_rows == 0:
        return
    if not batch.schema.equals(schema):
        columns = []
        for field in schema:
            index = batch.schema.get_field_index(field.name)
            if index < 0:
                raise _mismatch(source_name, field, f"it has only {batch.schema.names}")
            column = batch.column(index)
            try:
                columns.append(column if column.type == field.type else column.cast(field.type))
            except pa.ArrowException as error:
                raise _mismatch(source_name, field, f"it has {column.type}: {error}") from error
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    for index, field in enumerate(schema):
        # A batch may say of itself that a column has no nulls: Arrow does not check it, and Spark believes it.
        if not field.nullable and batch.column(index).null_count:
            raise _mismatch(
                source_name, field, "it has nulls. Declare the column without NOT NULL, or leave out such rows"
            )
    pieces = -(-batch.nbytes // BATCH_BYTES)
    rows = -(-batch.num_rows // max(pieces, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _mismatch(source_name: str, field: pa.Field, found: str) -> ConnectorContractError:
    return ConnectorContractError(
        f"{source_name} yielded a batch that does not fit the schema: the column {field.name!r} should be "
        f"{field.type}, but {found}.",
        connector=source_name,
        method="read",
        column=field.name,
    )
