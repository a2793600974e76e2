"""The files that a manifest names, and manifests that name other ones.

Never: open a file.

Follows Flink's CheckpointStorage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.state import ChunkState, FileState, InFlightRows, SplitState, StateHandle, SubtaskState


class NamedFile(msgspec.Struct):
    """A file that a manifest names: its parts follow upon each other, and are all that there is in it."""

    path: str
    parts: list[FileState]

    @property
    def size_bytes(self) -> int:
        """How large it is."""
        return sum(part.size_bytes for part in self.parts)


def named_files(manifest: Manifest) -> list[NamedFile]:
    """Return the files of the subtasks' states and of rows in flight."""
    parts: dict[str, dict[int, FileState]] = {}  # by path and offset: several may name the same
    for handle in _handles_of(manifest):
        if isinstance(handle, FileState):
            parts.setdefault(handle.path, {})[handle.offset or 0] = handle
    return [NamedFile(path, [each for _, each in sorted(of.items())]) for path, of in parts.items()]


def files_of(manifest: Manifest) -> list[FileState]:
    """Return the files of the subtasks' states and of rows in flight, or the parts of them, that a manifest names."""
    return [part for file in named_files(manifest) for part in file.parts]


def _handles_of(manifest: Manifest) -> Iterator[StateHandle]:
    for subtask in (each for stage in manifest.subtasks for each in stage):
        for operator in subtask.operators.values():
            yield from operator.items
        for keyed in subtask.keyed.values():
            yield from (chunk.handle for chunk in keyed.chunks)
    yield from (rows.handle for rows in manifest.in_flight)


def with_files(manifest: Manifest, address: Callable[[str], str]) -> Manifest:
    """Return a manifest that names the files that `named_files` finds by other addresses."""
    replace = msgspec.structs.replace

    def moved(handle: StateHandle) -> StateHandle:
        return replace(handle, path=address(handle.path)) if isinstance(handle, FileState) else handle

    def chunk(state: ChunkState) -> ChunkState:
        return replace(state, handle=moved(state.handle))

    def subtask(state: SubtaskState) -> SubtaskState:
        return replace(
            state,
            operators={
                uid: replace(each, items=tuple(map(moved, each.items))) for uid, each in state.operators.items()
            },
            keyed={uid: replace(each, chunks=tuple(map(chunk, each.chunks))) for uid, each in state.keyed.items()},
        )

    manifest = with_rows(manifest, lambda _, rows: replace(rows, handle=moved(rows.handle)))
    return replace(
        manifest,
        subtasks=tuple(tuple(map(subtask, stage)) for stage in manifest.subtasks),
        channels=tuple(replace(each, handle=moved(each.handle)) for each in manifest.channels),
    )


def with_rows(manifest: Manifest, change: Callable[[str, InFlightRows], InFlightRows]) -> Manifest:
    """Return a manifest with other rows in flight of splits: what is made of a source's uid and those that it has."""
    replace = msgspec.structs.replace

    def changed(uid: str, splits: tuple[SplitState, ...]) -> tuple[SplitState, ...]:
        return tuple(
            split if split.in_flight is None else replace(split, in_flight=change(uid, split.in_flight))
            for split in splits
        )

    def subtask(state: SubtaskState) -> SubtaskState:
        readers = {uid: replace(each, splits=changed(uid, each.splits)) for uid, each in state.readers.items()}
        return replace(state, readers=readers)

    return replace(
        manifest,
        sources={
            uid: replace(each, unassigned=changed(uid, each.unassigned)) for uid, each in manifest.sources.items()
        },
        subtasks=tuple(tuple(map(subtask, stage)) for stage in manifest.subtasks),
    )
