"""Writes, finds, reads and deletes the checkpoints of a query at its location, and savepoints in the user's folders.

Never: write a manifest before every file that it names is durable, or for a run that a newer one has taken over from.

    <location>/query                 the query's id
    <location>/runs/<run>            see `headgate.checkpoint.ownership`
    <location>/chk-<id>/_metadata    the manifest: written last, deleted first
    <location>/chk-<id>/...          state that is too large for the manifest
    <savepoint>/_metadata            a savepoint's manifest, which names files of this folder only
    <savepoint>/<query>-<run>-<id>/  those files; no other attempt to write a savepoint here has the same names

Follows Flink's CheckpointStorage; traps 19 and 34.
"""

from __future__ import annotations

import itertools
import logging
import posixpath
import re
import zlib
from collections.abc import Callable, Iterable, Iterator

import msgspec

from headgate.checkpoint.coordinator import StoredCheckpoints
from headgate.checkpoint.file_store import FileStore, open_store
from headgate.checkpoint.manifest import HEADER_BYTES, Manifest, deserialize, run_of, serialize
from headgate.checkpoint.ownership import check_run
from headgate.errors import CorruptStateError, StoredStateError
from headgate.protocol.state import FileState, InlineState, OperatorState, StateHandle, SubtaskState
from headgate.source.serialization import VersionedSerializer

INLINE_BYTES = 64 * 1024
"""State up to this size stands in the manifest itself."""

_MANIFEST = "_metadata"
_QUERY = "query"
_RUNS = "runs"
_CHECKPOINT = re.compile(r"chk-(\d+)")
_log = logging.getLogger(__name__)


class QueryRecord(msgspec.Struct, frozen=True):
    """What a location says of its query."""

    query_id: str


_QUERY_SERIALIZER: VersionedSerializer[QueryRecord] = VersionedSerializer(
    QueryRecord, version=1, what="the query file of a checkpoint location"
)


class CheckpointStorage:
    """The checkpoints at one location.

    All methods may block, and may be called on any thread; writes, deletions and notices of their outcome must keep
    the order in which the coordinator orders them. What cannot be written or read for another reason than its content
    is a `StoredStateError` that names the file.

    Parameters
    ----------
    location
        A folder, as a path or a URI that pyarrow opens. It need not exist.
    store
        The files under it, where the caller has opened them.
    """

    def __init__(self, location: str, store: FileStore | None = None) -> None:
        self.location = location
        self.store = store or open_store(location)

    # The query.

    def query_id(self, new: str) -> str:
        """Return the id of the query that the location belongs to; that is ``new`` if it belonged to none."""
        name = _QUERY
        if not self.store.write_if_absent(name, _QUERY_SERIALIZER.serialize(QueryRecord(new))):
            return _QUERY_SERIALIZER.deserialize(self.store.read(name)).query_id
        return new

    # Writing.

    def write_state(self, checkpoint_id: int, name: str, data: bytes) -> StateHandle:
        """Make state durable; it stands in the manifest itself if it is small.

        ``name`` is unique in the checkpoint: operator, subtask and execution belong into it.
        """
        if len(data) <= INLINE_BYTES:
            return InlineState(data)
        path = f"chk-{checkpoint_id}/{_file_name(name)}"
        self.store.write(path, data)
        return FileState(path, len(data), zlib.crc32(data))

    def write_manifest(self, manifest: Manifest, location: str = "") -> int:
        """Complete a checkpoint: large states first, the manifest last. Return how many bytes that was.

        ``location`` is a savepoint's folder; all state that the manifest names is copied into it.

        Raises
        ------
        StoredStateError
            A newer run owns the location; or the folder holds another savepoint or checkpoint already, and nothing was
            written.
        """
        check_run(self.store, manifest.run)
        if location:
            folder = f"{_file_name(manifest.query_id)}-{manifest.run}-{manifest.checkpoint_id}"
            moved = _with_files(manifest, lambda name: posixpath.join(folder, name))
            copies = (
                (posixpath.join(folder, handle.path), _read_file(self.store, handle)) for handle in _files_of(manifest)
            )
            size = _write(open_store(location, "savepoint"), "", folder, moved, copies)
        else:
            folder = f"chk-{manifest.checkpoint_id}"
            size = _write(self.store, folder, folder, manifest)
        # Whoever took over in the meantime may not have seen this manifest: then nobody may be told of it.
        check_run(self.store, manifest.run)
        return size

    def delete(self, checkpoint_id: int) -> None:
        """Delete a checkpoint, or what there is of it: its manifest first."""
        folder = f"chk-{checkpoint_id}"
        self.store.delete(f"{folder}/{_MANIFEST}")
        self.store.delete_folder(folder)

    # Reading.

    def stored(self) -> StoredCheckpoints:
        """Return which checkpoints are there."""
        ids = self._ids()
        sizes = self.store.sizes([f"chk-{each}/{_MANIFEST}" for each in ids])
        return StoredCheckpoints(
            tuple(each for each, size in zip(ids, sizes) if size is not None),
            tuple(each for each, size in zip(ids, sizes) if size is None),
        )

    def load_newest(self, *, fall_back: bool = False) -> Manifest | None:
        """Return the newest complete checkpoint; None if there is none. The enumerators' states are in it.

        Parameters
        ----------
        fall_back
            Where it is corrupt, take the newest one that is not: rows that were committed since come again.

        Raises
        ------
        CorruptStateError
            It cannot be read, or a file that it names is missing or damaged; without ``fall_back``, or if all are.
        """
        first_error: CorruptStateError | None = None
        for checkpoint_id in self._newest_first():
            try:
                return self.load(checkpoint_id)
            except CorruptStateError as error:
                if not fall_back:
                    raise
                _log.warning("checkpoint %d is corrupt, falling back to the one before: %s", checkpoint_id, error)
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return None

    def load(self, checkpoint_id: int) -> Manifest:
        """Return a complete checkpoint; raises like `load_newest`."""
        return _load(self.store, f"chk-{checkpoint_id}/{_MANIFEST}", self.store)

    def holds_savepoint(self) -> bool:
        """Return whether there is a savepoint in this folder."""
        return self.store.sizes([_MANIFEST]) != [None]

    def load_savepoint(self) -> Manifest:
        """Return the savepoint in this folder, or the checkpoint if it is the folder of one.

        Its files are named by full addresses, so that a query with another location can read them.

        Raises
        ------
        StoredStateError
            There is none.
        CorruptStateError
            As `load_newest`.
        """
        path = self.store.path(_MANIFEST)
        if not self.holds_savepoint():
            raise StoredStateError(
                f"There is no savepoint in {self.store.base}: it has no file {_MANIFEST}. Give the folder that "
                "query.stop(savepoint=...) was given, or a folder chk-<number> of a checkpoint location.",
                what="a savepoint", path=path,
            )  # fmt: skip
        folder, parameters = _parted(self.location)
        files, location = self.store, folder
        if _CHECKPOINT.fullmatch(posixpath.basename(folder)):  # its files are named from the checkpoint location on
            location = posixpath.dirname(folder if "://" in folder else posixpath.abspath(folder))
            files = open_store(location + parameters, "fromSavepoint")
        manifest = _load(self.store, _MANIFEST, files)
        base = location if "://" in location else files.base
        return _with_files(manifest, lambda name: f"{base}/{name}{parameters}")

    def read_state(self, handle: StateHandle) -> bytes:
        """Return state.

        Raises
        ------
        CorruptStateError
            Its file is missing, or is not what it was when the manifest was written.
        """
        if isinstance(handle, InlineState):
            return handle.data
        if "://" in handle.path or handle.path.startswith("/"):  # of a savepoint
            address, parameters = _parted(handle.path)
            folder, _, name = address.rpartition("/")
            return _read_file(open_store(folder + parameters), FileState(name, handle.size_bytes, handle.crc32))
        return _read_file(self.store, handle)

    # How.

    def _ids(self) -> list[int]:
        found = (_CHECKPOINT.fullmatch(name) for name in self.store.names())
        return sorted(int(match[1]) for match in found if match is not None)

    def _newest_first(self) -> list[int]:
        """Return the complete checkpoints: those of newer runs first.

        A run that was taken over from may have written one more before it noticed.
        """
        ranks: list[tuple[int, int]] = []
        for checkpoint_id in self.stored().complete:
            name = f"chk-{checkpoint_id}/{_MANIFEST}"
            try:
                run = run_of(self.store.read(name, HEADER_BYTES), self.store.path(name))
            except (StoredStateError, FileNotFoundError):  # whoever reads all of it finds out what is wrong
                run = max(ranks)[0] if ranks else 0
            ranks.append((run, checkpoint_id))
        return [checkpoint_id for _, checkpoint_id in sorted(ranks, reverse=True)]


def _write(
    store: FileStore,
    folder: str,
    states: str,
    manifest: Manifest,
    copies: Iterable[tuple[str, bytes]] = (),
) -> int:
    """Write a manifest into a folder, after those of its states that are large; return how many bytes that was.

    ``states`` is the folder of those states; ``copies`` are the files beside them that it names.
    """
    large: list[tuple[str, bytes]] = []
    sources = {}
    for number, (uid, entry) in enumerate(manifest.sources.items()):
        if isinstance(entry.enumerator, InlineState) and len(entry.enumerator.data) > INLINE_BYTES:
            data = entry.enumerator.data
            # An older run that has not noticed yet may write a checkpoint of the same number.
            path = posixpath.join(states, f"enumerator-{number}-{_file_name(uid)}-run-{manifest.run}")
            large.append((path, data))
            entry = msgspec.structs.replace(entry, enumerator=FileState(path, len(data), zlib.crc32(data)))
        sources[uid] = entry
    data = serialize(msgspec.structs.replace(manifest, sources=sources))
    name = posixpath.join(folder, _MANIFEST)
    if store.sizes([name]) != [None] and store.read(name) != data:  # before anything there is touched
        raise _occupied(store, name)
    for path, state in itertools.chain(copies, large):
        store.write(path, state)
    if not store.write_if_absent(name, data):
        raise _occupied(store, name)
    return sum(len(state) for _, state in large) + len(data)


def _occupied(store: FileStore, name: str) -> StoredStateError:
    path = store.path(name)
    return StoredStateError(
        f"There is a checkpoint already in {posixpath.dirname(path)}, which is never overwritten: {path}. For a "
        "savepoint, give another folder, or delete what is in this one.",
        what="a manifest", path=path,
    )  # fmt: skip


def _load(store: FileStore, name: str, files: FileStore) -> Manifest:
    """Return the manifest in a file of ``store``, with the enumerators' states; the other ``files`` are there."""
    path = store.path(name)
    try:
        manifest = deserialize(store.read(name), path)
    except FileNotFoundError as error:
        raise CorruptStateError(f"The manifest {path} is missing.", what="a manifest", path=path) from error
    sources = {}
    for uid, entry in manifest.sources.items():
        if isinstance(entry.enumerator, FileState):
            entry = msgspec.structs.replace(entry, enumerator=InlineState(_read_file(files, entry.enumerator)))
        sources[uid] = entry
    named = list(_files_of(manifest))
    for handle, size in zip(named, files.sizes([handle.path for handle in named]) if named else []):
        if size != handle.size_bytes:
            raise _damaged(files, handle, "missing" if size is None else f"{size} bytes")
    return msgspec.structs.replace(manifest, sources=sources)


def _files_of(manifest: Manifest) -> Iterator[FileState]:
    """Yield the files of the subtasks' states."""
    for stage in manifest.subtasks:
        for subtask in stage:
            for operator in subtask.operators.values():
                yield from (item for item in operator.items if isinstance(item, FileState))


def _with_files(manifest: Manifest, address: Callable[[str], str]) -> Manifest:
    """Return a manifest that names the files of the subtasks' states by full addresses."""

    def item(handle: StateHandle) -> StateHandle:
        return msgspec.structs.replace(handle, path=address(handle.path)) if isinstance(handle, FileState) else handle

    def operator(state: OperatorState) -> OperatorState:
        return msgspec.structs.replace(state, items=tuple(map(item, state.items)))

    def subtask(state: SubtaskState) -> SubtaskState:
        return msgspec.structs.replace(state, operators={uid: operator(each) for uid, each in state.operators.items()})

    subtasks = tuple(tuple(map(subtask, stage)) for stage in manifest.subtasks)
    return msgspec.structs.replace(manifest, subtasks=subtasks)


def _read_file(store: FileStore, handle: FileState) -> bytes:
    try:
        data = store.read(handle.path)
    except FileNotFoundError:
        raise _damaged(store, handle, "missing") from None
    if len(data) != handle.size_bytes or zlib.crc32(data) != handle.crc32:
        raise _damaged(store, handle, f"{len(data)} bytes with the CRC-32 {zlib.crc32(data):08x}")
    return data


def _damaged(store: FileStore, handle: FileState, found: str) -> CorruptStateError:
    path = store.path(handle.path)
    expected = f"{handle.size_bytes} bytes with the CRC-32 {handle.crc32:08x}"
    return CorruptStateError(
        f"The file {path} belongs to a checkpoint and is damaged: expected {expected}, found: {found}. Restore it, or "
        "start from an older checkpoint.",
        what="a file of a checkpoint", path=path, expected=expected, found=found,
    )  # fmt: skip


def _parted(location: str) -> tuple[str, str]:
    """Return a location without the parameters of a URI, and those, with their question mark."""
    folder, question, parameters = location.partition("?") if "://" in location else (location, "", "")
    return folder.rstrip("/"), question + parameters


def _file_name(name: str) -> str:
    """Return a name without what file systems may not take."""
    return re.sub(r"[^\w.-]", "_", name)
