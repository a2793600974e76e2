"""What a subtask's part of a checkpoint is made of, until all of it is safe.

Never: block; read a batch on the subtask's thread: what is stored is serialised and written by the uploader's threads.

A part's channel state is one file: that of all channels that are consumed, and for each exchange that is produced that
of its channels. They are not put together, since a barrier passes them at different times: what is there first need not
wait in memory for the rest. Rows in flight of a split are a file of their own, since splits go different ways.

Follows FLIP-547, section 2.1.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import pyarrow as pa

from headgate.checkpoint.channel_bytes import channel_chunks, split_chunks
from headgate.checkpoint.state_uploader import StateUploader
from headgate.futures import done_with, gathered, mapped
from headgate.protocol.channels import ChannelId
from headgate.protocol.state import ChannelState, FileState, InFlightRows, InlineState, StateHandle

INLINE_BYTES = 4 << 10
"""The rows in flight of a subtask that are in the manifest take no more, however many channels and splits there are."""


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
    name: str,
    schemas: Mapping[str, pa.Schema],
    channels: Mapping[ChannelId, Sequence[StoredRows]],
    relocated: frozenset[str],
    *,
    output: bool,
    inline_bytes: int = INLINE_BYTES,
) -> Future[list[ChannelState]]:
    """Store channel state in one file, channel after channel.

    Parameters
    ----------
    name
        The file's, unique in the slot and the checkpoint.
    schemas
        By exchange.
    channels
        The buffers of each channel that has any, in their order. No file is made where there is none.
    relocated
        The exchanges of which `ChannelState.relocated` holds.
    output
        Whether they waited on the producer's side.
    inline_bytes
        If they take no more together, they are in the manifest.
    """
    if not channels:
        return done_with([])
    writing = _ChannelsFile(schemas, channels, relocated, output=output)
    stored = uploader.store_rows(checkpoint_id, name, writing.chunks, inline_bytes)
    return mapped(stored, writing.states)


def store_splits(
    uploader: StateUploader,
    checkpoint_id: int,
    name: str,
    source: str,
    schema: pa.Schema,
    splits: Mapping[str, Sequence[pa.RecordBatch]],
    inline_bytes: int,
) -> Future[dict[str, InFlightRows]]:
    """Store rows that a reader of a source emitted and that are not processed, by split, each in a file.

    Parameters
    ----------
    name
        The files', unique in the slot and the checkpoint but for the split.
    source, schema
        The source's uid and columns.
    splits
        The batches of each split that has any, in their order.
    inline_bytes
        How much of them may be in the manifest together.
    """

    def stored(number: int, split_id: str, batches: Sequence[pa.RecordBatch]) -> Future[InFlightRows]:
        rows = sum(batch.num_rows for batch in batches)

        def chunks() -> Iterator[pa.Buffer]:
            return split_chunks(source, split_id, schema, batches, buffers=len(batches), rows=rows)

        handle = uploader.store_split(
            source, checkpoint_id, f"{name}-{number}", chunks, inline_bytes=inline_bytes // len(splits)
        )
        return mapped(handle, lambda handle: _in_flight(handle, batches, rows))

    storing = [stored(number, *each) for number, each in enumerate(splits.items())]
    return mapped(gathered(storing), lambda rows: dict(zip(splits, rows)))


def _in_flight(handle: StateHandle, batches: Sequence[pa.RecordBatch], rows: int) -> InFlightRows:
    size_bytes = sum(batch.nbytes for batch in batches)
    return InFlightRows(handle=handle, buffers=len(batches), rows=rows, size_bytes=size_bytes)


class _Written(msgspec.Struct):
    """A channel in the file: how many bytes it takes there from its offset on, and of which buffers they were made."""

    channel: ChannelId
    offset: int
    buffers: int
    rows: int
    length: int = 0
    crc32: int = 0
    size_bytes: int = 0


class _ChannelsFile:
    """The bytes of one file, and where in it each channel is."""

    def __init__(
        self,
        schemas: Mapping[str, pa.Schema],
        channels: Mapping[ChannelId, Sequence[StoredRows]],
        relocated: frozenset[str],
        *,
        output: bool,
    ) -> None:
        self._schemas = schemas
        self._left = deque(channels.items())  # those that are written are held no longer
        self._relocated = relocated
        self._output = output
        self._written: list[_Written] = []

    def chunks(self) -> Iterator[pa.Buffer]:
        """Yield the file's bytes, no more than a buffer at a time. Called once, on an uploader's thread."""
        offset = 0
        while self._left:
            channel, held = self._left.popleft()
            written = _Written(channel, offset, len(held), sum(each.num_rows for each in held))
            yield from self._channel_chunks(written, held)
            self._written.append(written)
            offset += written.length

    def _channel_chunks(self, written: _Written, held: Sequence[StoredRows]) -> Iterator[pa.Buffer]:
        def batches() -> Iterator[pa.RecordBatch]:
            for each in held:
                batch = each.read()
                written.size_bytes += batch.nbytes
                yield batch
                del batch

        channel, buffers, rows = written.channel, written.buffers, written.rows
        schema = self._schemas[channel.exchange]
        for chunk in channel_chunks(channel, schema, batches(), buffers=buffers, rows=rows, output=self._output):
            written.length += len(chunk)
            written.crc32 = zlib.crc32(chunk, written.crc32)
            yield chunk

    def states(self, handle: StateHandle) -> list[ChannelState]:
        """Return the channels, once the file is where the handle says."""
        return [
            ChannelState(
                exchange=each.channel.exchange,
                producer=each.channel.producer,
                consumer=each.channel.consumer,
                output=self._output,
                handle=_part_of(handle, each),
                buffers=each.buffers,
                rows=each.rows,
                size_bytes=each.size_bytes,
                relocated=each.channel.exchange in self._relocated,
            )
            for each in self._written
        ]


def _part_of(handle: StateHandle, written: _Written) -> StateHandle:
    if isinstance(handle, InlineState):
        return InlineState(handle.data[written.offset :][: written.length])
    return FileState(handle.path, written.length, written.crc32, written.offset)
