"""What an execution takes on of a checkpoint: keyed state of operators, and rows that were under way in exchanges.

Never: process a row.

Follows FLIP-547, sections 4.2 to 4.4.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from headgate.checkpoint.channel_bytes import read_channel
from headgate.operators.exchange import Partitioner
from headgate.operators.operator import RestoredChunk
from headgate.protocol.channels import ChannelId
from headgate.protocol.state import ChannelState, ChunkState, KeyedState, RecoveredChannel
from headgate.runtime.channel_recovery_thread import RecoveredInput
from headgate.runtime.execution_context import ExecutionContext


def restored_chunks(context: ExecutionContext, uid: str, state: KeyedState) -> list[RestoredChunk]:
    """Return the chunks of an operator's keyed state; those that are its own as they are may be named again."""
    groups = context.operator(uid).key_groups

    def restored(chunk: ChunkState) -> RestoredChunk:
        own = chunk.first_key_group >= groups.first and chunk.last_key_group <= groups.last
        whole = own and context.uploader.adopt(uid, chunk)
        return RestoredChunk(chunk.chunk_id, whole, lambda: context.bytes_of(chunk.handle))

    return [restored(chunk) for chunk in state.chunks]


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
    """Yield the rows of a channel's state. Any thread."""
    channel = ChannelId(state.exchange, state.producer, state.consumer)
    return read_channel(context.uploader.open_channel(state.handle), channel, output=state.output)
