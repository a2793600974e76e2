"""What a subtask's part of a checkpoint is made of, until all of it is safe.

Never: block; read a batch on the subtask's thread: what is stored is serialised and written by the uploader's threads.

Follows FLIP-547, section 2.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pyarrow as pa

from headgate.checkpoint.channel_bytes import channel_chunks
from headgate.checkpoint.state_uploader import StateUploader
from headgate.futures import gathered, mapped
from headgate.protocol.channels import ChannelId
from headgate.protocol.state import ChannelState, StateHandle


class StoredRows(msgspec.Struct, frozen=True):
    """A buffer that belongs to a checkpoint: how many rows it has, and what returns them, on any thread."""

    num_rows: int
    read: Callable[[], pa.RecordBatch]


class SnapshotParts:
    """The parts of one checkpoint, by name.

    Parameters
    ----------
    needed
        The names of all parts.
    on_done
        Called once, on any thread: with the parts' results by name, or with the first error.
    """

    def __init__(
        self, needed: Collection[str], on_done: Callable[[dict[str, Any] | None, BaseException | None], None]
    ) -> None:
        self._lock = threading.Lock()
        self._missing = set(needed)  # guarded by _lock, as the two below
        self._results: dict[str, Any] = {}
        self._over = False
        self._on_done = on_done

    def add(self, name: str, part: Future[Any]) -> None:
        """Take a part that will be safe one day."""
        part.add_done_callback(lambda future: self._arrived(name, future))

    def _arrived(self, name: str, future: Future[Any]) -> None:
        error = future.exception()
        with self._lock:
            self._missing.discard(name)
            if error is None:
                self._results[name] = future.result()
            done = not self._over and (error is not None or not self._missing)
            self._over = self._over or done
        if done:
            self._on_done(None if error is not None else self._results, error)


def store_channels(
    uploader: StateUploader,
    checkpoint_id: int,
    prefix: str,
    schemas: Mapping[str, pa.Schema],
    channels: Mapping[ChannelId, Sequence[StoredRows]],
    relocated: frozenset[str],
    *,
    output: bool,
) -> Future[list[ChannelState]]:
    """Store channel state; ``prefix`` makes the names of its files unique in the slot and the checkpoint.

    ``schemas`` by exchange; ``relocated``: the exchanges of which `ChannelState.relocated` holds.
    """
    return gathered(
        [
            _store(
                uploader,
                checkpoint_id,
                prefix,
                schemas[channel.exchange],
                channel,
                held,
                relocated=channel.exchange in relocated,
                output=output,
            )
            for channel, held in channels.items()
        ]
    )


def _store(
    uploader: StateUploader,
    checkpoint_id: int,
    prefix: str,
    schema: pa.Schema,
    channel: ChannelId,
    held: Sequence[StoredRows],
    *,
    relocated: bool,
    output: bool,
) -> Future[ChannelState]:
    rows, size_bytes = sum(each.num_rows for each in held), 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal size_bytes
        for each in held:
            batch = each.read()
            size_bytes += batch.nbytes
            yield batch
            del batch

    def chunks() -> Iterator[bytes]:
        return channel_chunks(channel, schema, batches(), buffers=len(held), rows=rows, output=output)

    def stored(handle: StateHandle) -> ChannelState:
        return ChannelState(
            exchange=channel.exchange,
            producer=channel.producer,
            consumer=channel.consumer,
            output=output,
            handle=handle,
            buffers=len(held),
            rows=rows,
            size_bytes=size_bytes,
            relocated=relocated,
        )

    side = "output" if output else "input"
    name = f"{prefix}-{channel.exchange}-{channel.producer}-{channel.consumer}-{side}"
    return mapped(uploader.store_channel(checkpoint_id, name, chunks), stored)
