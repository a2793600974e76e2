"""What a subtask contributes to a checkpoint, and gets back when it is restored.

Never: hold an object of a connector: splits, operator state and committables are bytes with a version inside, so that
the coordinator can keep, move and store them without importing anybody's code.

Follows FLIP-27, "Reader Interface and Threading Model" (splits are state); FLIP-143 in spirit for committables.
"""

from __future__ import annotations

import msgspec


class InlineState(msgspec.Struct, frozen=True, tag="inline", gc=False):
    """State small enough to be in the manifest itself."""

    data: bytes


class FileState(msgspec.Struct, frozen=True, tag="file", omit_defaults=True, gc=False):
    """State in a file of the checkpoint's folder: all of the file, or a part.

    Parameters
    ----------
    path
        Relative to the checkpoint location.
    size_bytes, crc32
        What the state must be; anything else is a `CorruptStateError`.
    offset
        Where in the file it begins, in bytes: the file has other parts before or after it. None: it is the whole file.
    """

    path: str
    size_bytes: int
    crc32: int
    offset: int | None = None


StateHandle = InlineState | FileState


class InFlightRows(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Rows that a reader emitted and that its subtask had not begun to process.

    Parameters
    ----------
    handle
        An Arrow IPC stream, a record batch per buffer, in their order: a part of a file that has those of other splits
        of the subtask as well, or in the manifest.
    buffers, rows, size_bytes
        How many buffers and rows, and how large the buffers were.
    """

    handle: StateHandle
    buffers: int
    rows: int
    size_bytes: int


class SplitState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A split at its position.

    Parameters
    ----------
    split_id
        The split.
    data
        The bytes that the source's ``split_serializer`` made: the position is after ``in_flight``.
    in_flight
        Rows before the position that were not processed: whoever gets the split processes them first.
    ended
        The reader has read it to its end: it is finished when ``in_flight`` is processed, and not read any more.
    """

    split_id: str
    data: bytes
    in_flight: InFlightRows | None = None
    ended: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether a source's bytes say all of it."""
        return self.in_flight is None and not self.ended


class FinishedSplit(msgspec.Struct, frozen=True):
    """A split that was read to its end.

    Parameters
    ----------
    split_id
        The split.
    number
        Counts the ends that a reader reported since it was deployed, from 1, so that the coordinator can say up to
        which one a checkpoint knows them.
    """

    split_id: str
    number: int


class ReaderState(msgspec.Struct, frozen=True, kw_only=True):
    """One source reader's part of a checkpoint.

    Parameters
    ----------
    splits
        The splits that are not finished, at the position after what was emitted, with what of that is not processed.
    finished
        Ends that no completed checkpoint's enumerator is known to know.
    """

    splits: tuple[SplitState, ...] = ()
    finished: tuple[FinishedSplit, ...] = ()


class OperatorState(msgspec.Struct, frozen=True, kw_only=True):
    """One operator's or sink writer's part of a checkpoint.

    Parameters
    ----------
    items
        List state: whoever gets an item after a rescale can go on with it.
    committables
        What the sink's committer publishes once the checkpoint is complete. Carried until one is.
    """

    items: tuple[StateHandle, ...] = ()
    committables: tuple[bytes, ...] = ()


class ChunkState(msgspec.Struct, frozen=True, kw_only=True):
    """An immutable part of an operator's keyed state, in a file that checkpoints may share.

    Parameters
    ----------
    chunk_id
        Names it within the query, for ever: the same name is the same content.
    handle
        Where its bytes are (Arrow IPC).
    first_key_group, last_key_group
        It holds keys of these groups only, both included.
    """

    chunk_id: str
    handle: StateHandle
    first_key_group: int
    last_key_group: int


class KeyedState(msgspec.Struct, frozen=True, kw_only=True):
    """The keyed state of one operator in one subtask: its chunks, in the order in which the operator gave them."""

    chunks: tuple[ChunkState, ...] = ()


class ChannelState(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The rows of one channel that a barrier passed, on one of its sides. Never shared between checkpoints.

    Parameters
    ----------
    exchange, producer, consumer
        The channel, numbered by the parallelism of the checkpoint.
    output
        Whether they waited on the producer's side; else on the consumer's.
    handle
        An Arrow IPC stream, a record batch per buffer, in their order: a part of a file that has those of other
        channels of the subtask as well, or in the manifest.
    buffers, rows, size_bytes
        How many buffers and rows, and how large the buffers were.
    relocated
        Whether it holds rows that came through other channels than their successors do, recovered at another
        parallelism: all that any channel of the exchange brings the consumer from then on follows upon them.
    stored_as
        The exchange's name in the bytes, where it has another now; in no manifest, as nothing is stored twice.
    """

    exchange: str
    producer: int
    consumer: int
    output: bool
    handle: StateHandle
    buffers: int
    rows: int
    size_bytes: int
    relocated: bool = False
    stored_as: str = ""


class RecoveredChannel(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Channel state as it is given to a subtask of a (perhaps rescaled) restored query.

    Parameters
    ----------
    state
        What was stored.
    channel
        The other end of the channel that it is put into, by today's number: of the producer if this is given to the
        consumer (always, but for output with ``recover-output-on-downstream`` off), else of the consumer.
    filtered
        Whether the subtask must keep only the rows that are its own; False where all are.
    """

    state: ChannelState
    channel: int
    filtered: bool


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A subtask's part of a checkpoint, by the ``uid`` of source and operator.

    Parameters
    ----------
    readers, operators, keyed
        By the uid of source, of operator or sink, and of operator.
    channels
        What was on its way: of the channels that it consumes, and of those that it produces.
    input_ended
        Whether it read all its input.
    """

    readers: dict[str, ReaderState] = {}
    operators: dict[str, OperatorState] = {}
    keyed: dict[str, KeyedState] = {}
    channels: tuple[ChannelState, ...] = ()
    input_ended: bool = False
