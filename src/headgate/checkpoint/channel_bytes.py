"""Writes and reads the bytes of channel state: the rows of one channel that a barrier passed.

Never: touch storage, or hand out rows of another channel, side or version than was asked for.

An Arrow IPC stream with a record batch per buffer, in their order. The schema's metadata says, as ``headgate.channel``,
whose they are and how many, so that a mixed-up or shortened file is found out:

    {"buffers":2,"consumer":1,"exchange":"keys","producer":0,"rows":100,"side":"input","v":1}

Durable: version 1; golden bytes in ``tests/golden``. Of a batch that is a slice only its own rows are written.

Follows FLIP-547, section 4.1.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError
from headgate.protocol.channels import ChannelId
from headgate.source.serialization import VersionedSerializer

VERSION = 1
_METADATA = b"headgate.channel"


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    """What the metadata says; fields as in `headgate.protocol.state.ChannelState`."""

    exchange: str
    producer: int
    consumer: int
    side: Literal["input", "output"]
    buffers: int
    rows: int


def channel_chunks(
    channel: ChannelId, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, buffers: int, rows: int, output: bool
) -> Iterator[bytes]:
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
    header = _Header(
        exchange=channel.exchange,
        producer=channel.producer,
        consumer=channel.consumer,
        side="output" if output else "input",
        buffers=buffers,
        rows=rows,
    )
    metadata = {**(schema.metadata or {}), _METADATA: _serializer(channel, output).serialize(header)}
    sink = _Sink()
    with pa.ipc.new_stream(pa.PythonFile(sink, mode="w"), schema.with_metadata(metadata)) as writer:
        for batch in batches:
            writer.write_batch(batch)
            del batch
            yield sink.take()
    yield sink.take()


class _Sink:
    """What Arrow writes, until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._written: list[bytes] = []
        self._size_bytes = 0

    def write(self, data: bytes) -> int:
        self._written.append(bytes(data))
        self._size_bytes += len(data)
        return len(data)

    def tell(self) -> int:
        return self._size_bytes

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def take(self) -> bytes:
        written, self._written = self._written, []
        return b"".join(written)


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
    header, reader = _open(data, channel, output)
    return _batches(header, reader, channel, output)


def _open(data: bytes | pa.NativeFile, channel: ChannelId, output: bool) -> tuple[_Header, pa.RecordBatchStreamReader]:
    what = _what(channel, output)
    found = data[:200] if isinstance(data, bytes) else None
    try:  # through a Python file, so that Arrow copies a message where it would keep a part of all the bytes
        reader = pa.ipc.open_stream(pa.PythonFile(io.BytesIO(data), mode="r") if isinstance(data, bytes) else data)
    except (pa.ArrowException, OSError) as error:
        raise CorruptStateError(f"{what} cannot be read: {error}.", what=what, found=found) from error
    metadata = (reader.schema.metadata or {}).get(_METADATA)
    if metadata is None:
        raise CorruptStateError(f"{what} cannot be read: the bytes do not name a channel.", what=what, found=found)
    header = _serializer(channel, output).deserialize(metadata)
    stored = ChannelId(header.exchange, header.producer, header.consumer)
    if stored != channel or header.side != ("output" if output else "input"):
        other = _what(stored, header.side == "output")
        raise CorruptStateError(f"{what} cannot be read: found {other}.", what=what, expected=what, found=other)
    return header, reader


def _batches(
    header: _Header, reader: pa.RecordBatchStreamReader, channel: ChannelId, output: bool
) -> Iterator[pa.RecordBatch]:
    what = _what(channel, output)
    metadata = {key: value for key, value in reader.schema.metadata.items() if key != _METADATA} or None
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


def _what(channel: ChannelId, output: bool) -> str:
    side = "output" if output else "input"
    return f"The {side} state of channel {channel.exchange!r} from subtask {channel.producer} to {channel.consumer}"


def _serializer(channel: ChannelId, output: bool) -> VersionedSerializer[_Header]:
    return VersionedSerializer(_Header, version=VERSION, what=_what(channel, output))
