"""Writes and reads the bytes of rows in flight: those of one channel that a barrier passed, or of one split.

Never: touch storage, or hand out rows of another channel, side, split or version than was asked for.

An Arrow IPC stream with a record batch per buffer, in their order. The schema's metadata says, as ``headgate.channel``
or ``headgate.split``, whose they are and how many, so that a mixed-up or shortened file is found out:

    {"buffers":2,"consumer":1,"exchange":"keys","producer":0,"rows":100,"side":"input","v":1}
    {"buffers":1,"rows":100,"source":"rides","split":"rides-0","v":1}

Durable: version 1; golden bytes in ``tests/golden``. Of a batch that is a slice only its own rows are written.

Follows FLIP-547, section 4.1.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Literal, TypeVar

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError, InternalError
from headgate.protocol.channels import ChannelId
from headgate.source.serialization import VersionedSerializer

VERSION = 1
_CHANNEL, _SPLIT = b"headgate.channel", b"headgate.split"
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""Of an IPC stream."""


class _ChannelHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of a channel says; fields as in `headgate.protocol.state.ChannelState`."""

    exchange: str
    producer: int
    consumer: int
    side: Literal["input", "output"]
    buffers: int
    rows: int


class _SplitHeader(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata of a split says; fields as in `headgate.protocol.state.InFlightRows`."""

    source: str
    split: str
    buffers: int
    rows: int


HeaderT = TypeVar("HeaderT", _ChannelHeader, _SplitHeader)


def channel_chunks(
    channel: ChannelId, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, buffers: int, rows: int, output: bool
) -> Iterator[pa.Buffer]:
    """Return the bytes of a channel's buffers, one by one: no more than one buffer is held at a time.

    Parameters
    ----------
    channel
        The channel, numbered by today's parallelism.
    schema
        Of the exchange.
    batches
        The buffers, in their order.
    buffers, rows
        How many they are.
    output
        Whether they waited on the producer's side.
    """
    header = _ChannelHeader(
        exchange=channel.exchange,
        producer=channel.producer,
        consumer=channel.consumer,
        side="output" if output else "input",
        buffers=buffers,
        rows=rows,
    )
    return _chunks(_CHANNEL, _channel_serializer(channel, output).serialize(header), schema, batches)


def split_chunks(
    source: str, split_id: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, buffers: int, rows: int
) -> Iterator[pa.Buffer]:
    """Return the bytes of rows that the reader of a split emitted, as `channel_chunks` does of a channel's."""
    header = _SplitHeader(source=source, split=split_id, buffers=buffers, rows=rows)
    return _chunks(_SPLIT, _split_serializer(source, split_id).serialize(header), schema, batches)


def _chunks(key: bytes, header: bytes, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Buffer]:
    """Yield an IPC stream, message by message, which Arrow makes without Python's lock."""
    yield schema.with_metadata({**(schema.metadata or {}), key: header}).serialize()
    for batch in batches:
        if not batch.schema.equals(schema):
            raise InternalError(f"Rows of another schema are to be stored: {batch.schema} instead of {schema}.")
        yield batch.serialize()
        del batch
    yield pa.py_buffer(_END)


def read_channel(data: bytes | pa.NativeFile, channel: ChannelId, *, output: bool) -> Iterator[pa.RecordBatch]:
    """Return the buffers of bytes that `channel_chunks` made, read one by one.

    Each has memory of its own: holding one does not hold the others.

    Parameters
    ----------
    data
        The bytes, or a file of them.
    channel, output
        Whose they must be, numbered by the parallelism that they were stored at.

    Raises
    ------
    UnsupportedVersionError
        Another version wrote them.
    CorruptStateError
        They are damaged, or of another channel; when all is read: some are missing.
    """
    serializer = _channel_serializer(channel, output)
    header, reader = _open(data, _CHANNEL, serializer)
    stored = ChannelId(header.exchange, header.producer, header.consumer)
    if stored != channel or header.side != ("output" if output else "input"):
        raise _mixed_up(serializer.what, _what_channel(stored, header.side == "output"))
    return _batches(header, reader, _CHANNEL, serializer.what)


def read_split(data: bytes | pa.NativeFile, source: str, split_id: str) -> Iterator[pa.RecordBatch]:
    """Return the buffers of bytes that `split_chunks` made, read one by one; raises like `read_channel`."""
    serializer = _split_serializer(source, split_id)
    header, reader = _open(data, _SPLIT, serializer)
    if (header.source, header.split) != (source, split_id):
        raise _mixed_up(serializer.what, _what_split(header.source, header.split))
    return _batches(header, reader, _SPLIT, serializer.what)


def _open(
    data: bytes | pa.NativeFile, key: bytes, serializer: VersionedSerializer[HeaderT]
) -> tuple[HeaderT, pa.RecordBatchStreamReader]:
    what = serializer.what
    found = data[:200] if isinstance(data, bytes) else None
    try:  # through a Python file, so that Arrow copies a message where it would keep a part of all the bytes
        reader = pa.ipc.open_stream(pa.PythonFile(io.BytesIO(data), mode="r") if isinstance(data, bytes) else data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptStateError(f"{what} cannot be read: {error}.", what=what, found=found) from error
    metadata = (reader.schema.metadata or {}).get(key)
    if metadata is None:
        raise CorruptStateError(
            f"{what} cannot be read: the bytes do not name a {key.decode().rpartition('.')[2]}.", what=what, found=found
        )
    return serializer.deserialize(metadata), reader


def _mixed_up(what: str, found: str) -> CorruptStateError:
    return CorruptStateError(f"{what} cannot be read: found {found}.", what=what, expected=what, found=found)


def _batches(
    header: _ChannelHeader | _SplitHeader, reader: pa.RecordBatchStreamReader, key: bytes, what: str
) -> Iterator[pa.RecordBatch]:
    metadata = {name: value for name, value in reader.schema.metadata.items() if name != key} or None
    buffers = rows = 0
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate()
        except StopIteration:
            break
        except (pa.ArrowException, OSError) as error:
            raise CorruptStateError(
                f"{what} cannot be read after {buffers} of {header.buffers} buffers: {error}.",
                what=what,
                expected=header.buffers,
                found=buffers,
            ) from error
        buffers += 1
        rows += batch.num_rows
        yield batch.replace_schema_metadata(metadata)
    if (buffers, rows) != (header.buffers, header.rows):
        raise CorruptStateError(
            f"{what} cannot be read: expected {header.buffers} buffers with {header.rows} rows, found {buffers} with "
            f"{rows}.",
            what=what,
            expected=(header.buffers, header.rows),
            found=(buffers, rows),
        )


def _what_channel(channel: ChannelId, output: bool) -> str:
    side = "output" if output else "input"
    return f"The {side} state of channel {channel.exchange!r} from subtask {channel.producer} to {channel.consumer}"


def _what_split(source: str, split_id: str) -> str:
    return f"The rows in flight of split {split_id!r} of source {source!r}"


def _channel_serializer(channel: ChannelId, output: bool) -> VersionedSerializer[_ChannelHeader]:
    return VersionedSerializer(_ChannelHeader, version=VERSION, what=_what_channel(channel, output))


def _split_serializer(source: str, split_id: str) -> VersionedSerializer[_SplitHeader]:
    return VersionedSerializer(_SplitHeader, version=VERSION, what=_what_split(source, split_id))
