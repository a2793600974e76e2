"""What passes a channel between two subtasks: rows, and the events that stand between them.

Never: look into rows. A machine is given `Buffer.rows` and hands it on; drivers put record batches there, the simulator
lists.

A channel is one direction of an exchange between one producing and one consuming subtask. Rows need credit; events pass
without, in their place among the rows; the barrier of an unaligned checkpoint passes the rows, too.

Follows FLIP-547, "Introducing the existing unaligned checkpoint logic"; Flink's credit-based flow control.
"""

from __future__ import annotations

from typing import Any

import msgspec

from headgate.protocol.messages import CheckpointKind

CREDITS = 4
"""How many buffers of a channel may be under way, or wait at its consumer."""


class ChannelId(msgspec.Struct, frozen=True, order=True):
    """A channel: the uid of its exchange, the producing subtask, the consuming subtask."""

    exchange: str
    producer: int
    consumer: int


class Buffer(msgspec.Struct, frozen=True):
    """Rows on their way.

    Parameters
    ----------
    rows
        A ``pyarrow.RecordBatch``; in the simulator a list.
    num_rows, size_bytes
        How many, and about how large.
    unfiltered
        It was recovered on the producer's side, at another parallelism than it was stored at
        (``recover-output-on-downstream`` off): the consumer keeps only its own rows.
    """

    rows: Any
    num_rows: int
    size_bytes: int
    unfiltered: bool = False


class WatermarkPassed(msgspec.Struct, frozen=True, tag="watermark"):
    """No later row has an earlier event time, in milliseconds since 1970-01-01 UTC."""

    timestamp_ms: int


class ProducerIdle(msgspec.Struct, frozen=True, tag="idle"):
    """Do not wait for this producer's watermark."""


class ProducerActive(msgspec.Struct, frozen=True, tag="active"):
    """Wait for it again."""


class ProducerRecovered(msgspec.Struct, frozen=True, tag="recovered"):
    """What was recovered on the producer's side precedes it (``recover-output-on-downstream`` off only)."""


class ProducerEnded(msgspec.Struct, frozen=True, tag="ended"):
    """No rows and no watermarks follow; barriers may."""


class Barrier(msgspec.Struct, frozen=True, tag="barrier", kw_only=True):
    """What precedes it in the channel belongs to the checkpoint.

    Parameters
    ----------
    checkpoint_id, completed, kind, location, lost
        As in `headgate.protocol.messages.TriggerCheckpoint`.
    unaligned
        It passes rows, and what it passed is stored with the checkpoint as channel state.
    alignment_timeout_ms
        With ``unaligned``: how long it keeps its place among the rows before it passes them
        (``execution.checkpointing.aligned-checkpoint-timeout``), in milliseconds since its first sight of a
        task. 0: at once.
    """

    checkpoint_id: int
    completed: int = 0
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    location: str = ""
    unaligned: bool = False
    alignment_timeout_ms: int = 0
    lost: bytes = b""


ChannelEvent = WatermarkPassed | ProducerIdle | ProducerActive | ProducerRecovered | ProducerEnded | Barrier
Element = Buffer | ChannelEvent

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ChannelEvent)


def encode_event(event: ChannelEvent) -> bytes:
    """Return the bytes of an event, for a stream's metadata."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> ChannelEvent:
    """Return the event of bytes that `encode_event` made; raises `msgspec.DecodeError`."""
    event: ChannelEvent = _decoder.decode(data)
    return event
