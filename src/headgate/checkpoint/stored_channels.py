"""How a manifest names channel state: what channels have in common once, and a line of numbers for each of them.

Never: name a channel that has no rows: at a thousand subtasks there are a million channels, of which few have any.

    {"exchange":"keys","output":true,"path":"chk-7/0-1-output-0-1-3-0","parts":[[3,0,1,100,820,0,1096,3735928559],...]}

A line says producer, consumer, buffers, rows, bytes of the buffers, and then where in the file the state is: offset
(null: the whole file), length, CRC-32. State that is in the manifest has ``inline`` instead, whose lines end in its
bytes as base64.

Follows docs/decisions/022-channel-state-is-a-file-per-subtask.md; Flink's merged channel state handles (FLINK-25511).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import msgspec

from headgate.protocol.state import ChannelState, FileState, InlineState


class _Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer: int
    consumer: int
    buffers: int
    rows: int
    size_bytes: int
    offset: int | None
    length: int
    crc32: int


class _Inline(msgspec.Struct, frozen=True, array_like=True, gc=False):
    producer: int
    consumer: int
    buffers: int
    rows: int
    size_bytes: int
    data: bytes


class StoredChannels(msgspec.Struct, frozen=True, omit_defaults=True):
    """Channels of an exchange with their state in one file, or in the manifest.

    Parameters
    ----------
    exchange, output, relocated
        As in `headgate.protocol.state.ChannelState`, of all of them.
    path
        The file; None: it is ``inline``.
    parts, inline
        One of them, in the order of the manifest's channels.
    """

    exchange: str
    output: bool = False
    relocated: bool = False
    path: str | None = None
    parts: tuple[_Part, ...] = ()
    inline: tuple[_Inline, ...] = ()


def to_stored_channels(channels: Iterable[ChannelState]) -> tuple[StoredChannels, ...]:
    """Return channels as a manifest names them. Neighbours are put together, so that their order is kept."""
    return tuple(_stored(*common, list(states)) for common, states in groupby(channels, _common))


def _common(state: ChannelState) -> tuple[str, bool, bool, str | None]:
    path = state.handle.path if isinstance(state.handle, FileState) else None
    return state.exchange, state.output, state.relocated, path


def _stored(
    exchange: str, output: bool, relocated: bool, path: str | None, states: Sequence[ChannelState]
) -> StoredChannels:
    parts, inline = [], []
    for each in states:
        numbers = each.producer, each.consumer, each.buffers, each.rows, each.size_bytes
        match each.handle:
            case FileState(offset=offset, size_bytes=length, crc32=crc32):
                parts.append(_Part(*numbers, offset, length, crc32))
            case InlineState(data=data):
                inline.append(_Inline(*numbers, data))
    return StoredChannels(exchange, output, relocated, path, tuple(parts), tuple(inline))


def from_stored_channels(stored: Iterable[StoredChannels]) -> tuple[ChannelState, ...]:
    """Return the channels that a manifest names."""
    return tuple(
        ChannelState(
            exchange=of.exchange,
            producer=each.producer,
            consumer=each.consumer,
            output=of.output,
            handle=_handle(of, each),
            buffers=each.buffers,
            rows=each.rows,
            size_bytes=each.size_bytes,
            relocated=of.relocated,
        )
        for of in stored
        for each in (of.parts or of.inline)
    )


def _handle(of: StoredChannels, each: _Part | _Inline) -> FileState | InlineState:
    if isinstance(each, _Inline):
        return InlineState(each.data)
    if of.path is None:
        raise ValueError(f"channels of the exchange {of.exchange!r} are in a file that has no path")
    return FileState(of.path, each.length, each.crc32, each.offset)
