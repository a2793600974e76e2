"""What a subtask contributes to a checkpoint, and gets back when it is restored.

Never: hold an object of a connector: splits, operator state and committables are bytes with a version inside, so that
the coordinator can keep, move and store them without importing anybody's code.

Follows FLIP-27, "Reader Interface and Threading Model" (splits are state); FLIP-143 in spirit for committables.
"""

from __future__ import annotations

import msgspec


class InlineState(msgspec.Struct, frozen=True, tag="inline"):
    """State small enough to stand in the manifest itself."""

    data: bytes


class FileState(msgspec.Struct, frozen=True, tag="file"):
    """State in a file of the checkpoint's folder.

    Parameters
    ----------
    path
        Relative to the checkpoint location.
    size_bytes, crc32
        What the file must be; anything else is a `CorruptStateError`.
    """

    path: str
    size_bytes: int
    crc32: int


StateHandle = InlineState | FileState


class SplitState(msgspec.Struct, frozen=True):
    """A split at its position: its id, and the bytes that the source's ``split_serializer`` made."""

    split_id: str
    data: bytes


class FinishedSplit(msgspec.Struct, frozen=True):
    """A split that was read to its end.

    Parameters
    ----------
    split_id
        The split.
    number
        Counts the ends that a reader told since it was deployed, from 1, so that the coordinator can say up to which
        one a checkpoint knows them.
    """

    split_id: str
    number: int


class ReaderState(msgspec.Struct, frozen=True, kw_only=True):
    """One source reader's part of a checkpoint.

    Parameters
    ----------
    splits
        The splits that are not finished, at the position behind what was emitted.
    finished
        Ends that no completed checkpoint's enumerator is known to know (traps, 25).
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
        What the sink's committer publishes once the checkpoint is complete. Carried until one is (traps, 29).
    """

    items: tuple[StateHandle, ...] = ()
    committables: tuple[bytes, ...] = ()


class SubtaskState(msgspec.Struct, frozen=True, kw_only=True):
    """A subtask's part of a checkpoint, by the ``uid`` of source and operator."""

    readers: dict[str, ReaderState] = {}
    operators: dict[str, OperatorState] = {}
    input_ended: bool = False
