"""What an execution takes on of a checkpoint: keyed state of operators, and rows that were under way in exchanges.

Never: process a row.

Follows FLIP-547, sections 4.2 to 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa

from headgate.checkpoint.channel_bytes import read_channel, read_split
from headgate.errors import StoredStateError
from headgate.graph.stage_graph import SourceDefinition
from headgate.operators.exchange import Exchange, Partitioner
from headgate.operators.windows.partial import PartialExchange, Partials
from headgate.protocol.channels import ChannelId
from headgate.protocol.messages import RestoreProgress
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    InFlightRows,
    InlineState,
    KeyedState,
    RecoveredChannel,
    StateHandle,
)
from headgate.runtime.channel_recovery_thread import RecoveredInput
from headgate.runtime.execution_context import ExecutionContext
from headgate.state.chunks import RestoredChunk


class RestoredState:
    """The keyed state that operators take on, and how much of it they have read.

    Parameters
    ----------
    context
        The execution's.
    state
        By the operator's uid.
    """

    def __init__(self, context: ExecutionContext, state: Mapping[str, KeyedState]) -> None:
        self._context = context
        self._began_ms = context.services.work_ms()
        self._ended_ms: float | None = None
        self._bytes_to_read = sum(_size_of(chunk.handle) for each in state.values() for chunk in each.chunks)
        self._bytes_left = self._bytes_to_read
        self.chunks = {uid: self._chunks(uid, each) for uid, each in state.items()}
        """By the operator's uid; those that are its own as they are may be named again."""

    def end(self) -> None:
        """Take note that the operators are open."""
        self._ended_ms = self._context.services.work_ms()

    def progress(self) -> RestoreProgress | None:
        """Return how far it is; None: there is nothing to take on."""
        if not self._bytes_to_read:
            return None
        until_ms = self._context.services.work_ms() if self._ended_ms is None else self._ended_ms
        return RestoreProgress(
            bytes_to_read=self._bytes_to_read,
            bytes_left=self._bytes_left,
            duration_ms=round(until_ms - self._began_ms),
            is_over=self._ended_ms is not None,
        )

    def _chunks(self, uid: str, state: KeyedState) -> list[RestoredChunk]:
        groups = self._context.operator(uid).key_groups

        def restored(chunk: ChunkState) -> RestoredChunk:
            own = chunk.first_key_group >= groups.first and chunk.last_key_group <= groups.last
            whole = own and self._context.uploader.adopt(uid, chunk)
            return RestoredChunk(chunk.chunk_id, whole, lambda: self._read(chunk))

        return [restored(chunk) for chunk in state.chunks]

    def _read(self, chunk: ChunkState) -> bytes:
        data = self._context.bytes_of(chunk.handle)
        self._bytes_left -= len(data)
        return data


def _size_of(handle: StateHandle) -> int:
    return len(handle.data) if isinstance(handle, InlineState) else handle.size_bytes


def recovered_input(context: ExecutionContext, recovered: RecoveredChannel, partitioner: Partitioner) -> RecoveredInput:
    """Return what the recovery thread reads of a channel, and which of its rows are this subtask's."""
    consumer = context.place.slot
    return RecoveredInput(
        ChannelId(recovered.state.exchange, recovered.channel, consumer),
        lambda: read_rows(context, recovered.state),
        (lambda batch: partitioner.filter_owned(batch, consumer)) if recovered.filtered else None,
        recovered.state.rows,
    )


def read_rows(context: ExecutionContext, state: ChannelState) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a channel's state, in the columns that the exchange has now. Any thread.

    Raises
    ------
    StoredStateError
        They cannot be read, had other columns than the exchange has, or not as narrow ones.
    """
    channel = ChannelId(state.stored_as or state.exchange, state.producer, state.consumer)
    exchange = context.definition.graph.exchanges[state.exchange]
    for batch in read_channel(context.uploader.open_rows(state.handle), channel, output=state.output):
        yield as_of_now(batch, exchange)


def as_of_now(batch: pa.RecordBatch, exchange: Exchange) -> pa.RecordBatch:
    """Return stored rows in the columns that their exchange has now.

    Raises
    ------
    StoredStateError
        They had others, or not as narrow ones.
    """
    if batch.schema.equals(exchange.schema):
        return batch
    if not isinstance(exchange, PartialExchange):
        return _with_columns_of_now(batch, exchange.schema, exchange.uid)
    if Partials.are_in(batch.schema):
        try:
            return exchange.partials.of_now(batch)
        except pa.ArrowException as error:
            raise _refused(batch, exchange.schema, exchange.uid, error) from error
    rows = exchange.partials.input_schema
    if not batch.schema.equals(rows):
        batch = _with_columns_of_now(batch, rows, exchange.uid)
    return exchange.partials.lifted(batch)


def read_in_flight(
    context: ExecutionContext, source: SourceDefinition, split_id: str, rows: InFlightRows
) -> Callable[[], list[pa.RecordBatch]]:
    """Return what reads the rows in flight of a split, in the columns that are read of the source now. Any thread.

    It raises `StoredStateError` if they cannot be read, or lack a column.
    """

    def read() -> list[pa.RecordBatch]:
        batches = read_split(context.uploader.open_rows(rows.handle), source.uid, split_id)
        return [_with_columns_read_now(batch, source) for batch in batches]

    return read


def _with_columns_read_now(batch: pa.RecordBatch, source: SourceDefinition) -> pa.RecordBatch:
    """Return rows with the columns that are read of their source now."""
    if batch.schema.equals(source.schema):
        return batch
    try:
        columns = [batch.column(field.name).cast(field.type) for field in source.schema]
    except (KeyError, pa.ArrowException) as error:
        was, now = (_columns_text(of) for of in (batch.schema, source.schema))
        raise StoredStateError(
            f"The checkpoint holds rows that were read from the source {source.uid!r} and not processed, in the "
            f"columns {was}; now it has {now}: {error}. Start the query as it was, with the option "
            "'execution.checkpointing.unaligned.enabled' set to false, end it with a savepoint, which then holds no "
            "such rows, and start the changed one from that.",
            what=source.uid, expected=now, found=was,
        ) from error  # fmt: skip
    return pa.RecordBatch.from_arrays(columns, schema=source.schema)


def _columns_text(schema: pa.Schema) -> str:
    return ", ".join(f"{each.name} {each.type}" for each in schema)


def _with_columns_of_now(batch: pa.RecordBatch, schema: pa.Schema, exchange: str) -> pa.RecordBatch:
    """Return rows with columns that are wider, and more, which are null, or fewer."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        gone, new = set(columns) - set(schema.names), set(schema.names) - set(columns)
        if gone and new:
            raise pa.ArrowInvalid("columns are new and others gone: one may have become another")
        made = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(batch.num_rows, field.type)
            for field in schema
        ]
    except pa.ArrowException as error:
        raise _refused(batch, schema, exchange, error) from error
    return pa.RecordBatch.from_arrays(made, schema=schema)


def _refused(batch: pa.RecordBatch, schema: pa.Schema, exchange: str, error: Exception) -> StoredStateError:
    was, now = (_columns_text(of) for of in (batch.schema, schema))
    return StoredStateError(
        f"The checkpoint holds rows on their way through the exchange {exchange!r} in the columns {was}; now it "
        f"has {now}: {error}. End the query as it was with a savepoint, which holds no rows on their way, and "
        "start the changed one from that.",
        what=exchange, expected=now, found=was,
    )  # fmt: skip
