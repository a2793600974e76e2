"""Writes, finds, reads and deletes the checkpoints of a query at its location, and savepoints in the user's folders.

Never: write a manifest before every file that it names is durable, or for a run that a newer one has taken over from.

    <location>/query                 the query's id
    <location>/runs/<run>            see `headgate.checkpoint.ownership`
    <location>/chk-<id>/_metadata    the manifest: written last, deleted first
    <location>/chk-<id>/...          state that is too large for the manifest, channel state included
    <location>/shared/<uid>/<chunk>  a chunk of keyed state, or rows in flight of a split: several manifests may name it
    <savepoint>/_metadata            a savepoint's manifest, which names files of this folder only
    <savepoint>/<query>-<run>-<id>/  those files; no other attempt to write a savepoint here has the same names

A shared file lives as long as a manifest at the location names it: it is deleted after the last one that did. Those
that no manifest ever named are deleted as well: what an earlier run left when the next begins; what a checkpoint that
failed left, after the next but one that completes, for the next one names all of it that is still in use.

Of a savepoint nothing is deleted, unless it is one that failed. A query that begins with one reads its files where they
are, by their full addresses, and names none of them in a checkpoint of its own (`belongs_here`): its folder is not
needed after the first.

Follows Flink's CheckpointStorage.
"""

from __future__ import annotations

import io
import itertools
import logging
import posixpath
import re
import threading
import urllib.parse
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pyarrow as pa

from headgate.checkpoint.coordinator import StoredCheckpoints
from headgate.checkpoint.file_store import FileStore, failed, open_store
from headgate.checkpoint.manifest import HEADER_BYTES, Manifest, deserialize, run_of, serialize
from headgate.checkpoint.named_files import NamedFile, named_files, with_files, with_rows
from headgate.checkpoint.ownership import check_run
from headgate.errors import CorruptStateError, InternalError, StoredStateError
from headgate.protocol.state import FileState, InFlightRows, InlineState, StateHandle
from headgate.source.serialization import VersionedSerializer

INLINE_BYTES = 64 * 1024
"""State up to this size is in the manifest itself."""

MANIFEST = "_metadata"
_QUERY = "query"
SHARED = "shared"
_COPIES_AT_ONCE = 4
_COPY_BYTES = 8 << 20
_READ_BYTES = 1 << 20
CHECKPOINT = re.compile(r"chk-(\d+)")
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
    option
        What the user calls the location, for errors.
    """

    def __init__(self, location: str, store: FileStore | None = None, *, option: str = "checkpointLocation") -> None:
        self.location = location
        self.store = store or open_store(location, option)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._named: dict[int, frozenset[str]] = {}  # the files that manifests name, by checkpoint
        self._others: dict[str, FileStore] = {}  # by folder
        self._written = 0  # manifests
        self._suspects: tuple[int, set[str]] | None = None  # shared files that none of so many manifests named

    # The query.

    def query_id(self, new: str) -> str:
        """Return the id of the query that the location belongs to; that is ``new`` if it belonged to none."""
        name = _QUERY
        if not self.store.write_if_absent(name, _QUERY_SERIALIZER.serialize(QueryRecord(new))):
            return _QUERY_SERIALIZER.deserialize(self.store.read(name)).query_id
        return new

    # Writing.

    def write_state(
        self, checkpoint_id: int, name: str, data: bytes | Iterator[bytes | pa.Buffer], inline_bytes: int = INLINE_BYTES
    ) -> StateHandle:
        """Make state of one checkpoint durable; it is in the manifest itself if it is small.

        ``name`` is unique in the checkpoint: operator, subtask, run, attempt and execution belong into it. ``data`` may
        be made piece by piece: then no more than ``inline_bytes`` and a piece are held.
        """
        return self._write_file(f"chk-{checkpoint_id}/{_file_name(name)}", data, inline_bytes)

    def write_shared(self, uid: str, chunk_id: str, data: bytes, inline_bytes: int) -> StateHandle:
        """Make a chunk of keyed state, or rows in flight of a split, durable for as long as a checkpoint names it."""
        return self._write_file(shared_file(uid, chunk_id), data, inline_bytes)

    def _write_file(self, path: str, data: bytes | Iterator[bytes | pa.Buffer], inline_bytes: int) -> StateHandle:
        if isinstance(data, bytes):
            if len(data) <= inline_bytes:
                return InlineState(data)
            self.store.write(path, data)
            return FileState(path, len(data), zlib.crc32(data))
        first: list[bytes | pa.Buffer] = []
        for chunk in data:
            first.append(chunk)
            if sum(map(len, first)) > inline_bytes:
                break
        else:
            return InlineState(b"".join(first))
        size_bytes = crc32 = 0

        def counted() -> Iterator[bytes | pa.Buffer]:
            nonlocal size_bytes, crc32
            for chunk in itertools.chain(first, data):
                size_bytes, crc32 = size_bytes + len(chunk), zlib.crc32(chunk, crc32)
                yield chunk

        self.store.write_chunks(path, counted())
        return FileState(path, size_bytes, crc32)

    def write_manifest(self, manifest: Manifest, location: str = "") -> int:
        """Complete a checkpoint: large states first, the manifest last.

        ``location`` is a savepoint's folder; all state that the manifest names is copied into it. Return how many bytes
        the checkpoint takes: its manifest and what it names, but not the files that an older one names as well.

        Raises
        ------
        StoredStateError
            A newer run owns the location; or the folder holds another savepoint or checkpoint already, and nothing was
            written.
        """
        check_run(self.store, manifest.run)
        files = _own_files(manifest)
        if location:
            size = self._write_savepoint(manifest, location, _savepoint_folder(manifest))
        else:
            folder = f"chk-{manifest.checkpoint_id}"
            size = _write(self.store, folder, folder, manifest)
            with self._lock:
                known: frozenset[str] = frozenset().union(*self._named.values())
                self._named[manifest.checkpoint_id] = frozenset(file.path for file in files)
                self._written += 1
            size += sum(file.size_bytes for file in files if file.path not in known)
        # Whoever took over in the meantime may not have seen this manifest: then it must not be announced to anybody.
        check_run(self.store, manifest.run)
        return size

    def copy_savepoint(self, manifest: Manifest, location: str) -> int:
        """Write a savepoint of what a manifest names, whoever owns the location; return its size in bytes.

        ``manifest`` is one that `load` returned, or that with other states. Nothing is written here.

        Raises
        ------
        StoredStateError
            The folder holds another savepoint or checkpoint already, and nothing was written.
        CorruptStateError
            A file is missing or damaged; there is no savepoint then.
        """
        # Two that copy to the same folder at once must not write the same files.
        folder = f"{_file_name(manifest.query_id)}-copy-{uuid.uuid4().hex[:12]}"
        return self._write_savepoint(manifest, location, folder)

    def _write_savepoint(self, manifest: Manifest, location: str, folder: str) -> int:
        files = _own_files(manifest)
        moved = with_files(manifest, lambda name: posixpath.join(folder, name))
        size = _write(
            open_store(location, "savepoint"), "", folder, moved, copies=lambda to: self._copy(files, to, folder)
        )
        return size + sum(file.size_bytes for file in files)

    def delete(self, checkpoint_id: int) -> None:
        """Delete a checkpoint, or what there is of it: its manifest first, then the files that no other one names."""
        folder = f"chk-{checkpoint_id}"
        failed = self.store.sizes([f"{folder}/{MANIFEST}"]) == [None]
        named = self._files_named_by(checkpoint_id) or frozenset()
        self.store.delete(f"{folder}/{MANIFEST}")
        self.store.delete_folder(folder)
        with self._lock:
            self._named.pop(checkpoint_id, None)
            written, suspects = self._written, self._suspects
        doomed = {path for path in named if path.startswith(f"{SHARED}/")}
        over = suspects is not None and suspects[0] < written
        if not (doomed or over or failed) or (kept := self._files_named()) is None:
            return
        if suspects is not None and over:
            doomed, suspects = doomed | suspects[1], None
        for path in sorted(doomed - kept):
            self.store.delete(path)
        if failed and suspects is None:
            suspects = written, self._unnamed(kept)
        with self._lock:
            self._suspects = suspects

    def delete_savepoint(self, manifest: Manifest, location: str) -> None:
        """Delete what there is of a savepoint that `write_manifest` was to write: its manifest first.

        Another savepoint in that folder stays.
        """
        store = open_store(location, "savepoint")
        try:
            found, _ = _read_manifest(store, MANIFEST)
        except CorruptStateError:
            found = None  # none, or what somebody else put there
        if found is not None and _savepoint_folder(found) == _savepoint_folder(manifest):
            store.delete(MANIFEST)
        store.delete_folder(_savepoint_folder(manifest))

    def delete_orphans(self) -> None:
        """Delete the shared files that no manifest names. Call it before anything of this run writes any.

        Where a manifest cannot be read nothing is deleted.
        """
        kept = self._files_named()
        for path in sorted(set() if kept is None else self._unnamed(kept)):
            self.store.delete(path)

    def adopt_rows(self, manifest: Manifest) -> Manifest:
        """Return a manifest whose rows in flight of splits are here: those of a savepoint are copied.

        A split may have an owner only long after the start, and checkpoints name its rows until then.

        Raises
        ------
        CorruptStateError
            A file of the savepoint is missing or damaged.
        """
        numbers = itertools.count()

        def adopt(uid: str, rows: InFlightRows) -> InFlightRows:
            if belongs_here(rows.handle):
                return rows
            name = f"in-flight-{uuid.uuid4().hex[:12]}-{next(numbers)}"
            handle = self.write_shared(uid, name, self.read_state(rows.handle), inline_bytes=0)
            return msgspec.structs.replace(rows, handle=handle)

        return with_rows(manifest, adopt)

    # Reading.

    def stored(self) -> StoredCheckpoints:
        """Return which checkpoints are there."""
        ids = self._ids()
        sizes = self.store.sizes([f"chk-{each}/{MANIFEST}" for each in ids])
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
        for checkpoint_id in self.newest_first():
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

    def newest_first(self) -> list[int]:
        """Return the complete checkpoints: those of newer runs first.

        A run that was taken over from may have written one more before it noticed.
        """
        ranks: list[tuple[int, int]] = []
        for checkpoint_id in self.stored().complete:
            name = f"chk-{checkpoint_id}/{MANIFEST}"
            try:
                run = run_of(self.store.read(name, HEADER_BYTES), self.store.path(name))
            except (StoredStateError, FileNotFoundError):  # whoever reads all of it finds out what is wrong
                run = max(ranks)[0] if ranks else 0
            ranks.append((run, checkpoint_id))
        return [checkpoint_id for _, checkpoint_id in sorted(ranks, reverse=True)]

    def load(self, checkpoint_id: int | None) -> Manifest:
        """Return a complete checkpoint; None: the savepoint in this folder. Raises like `load_newest`."""
        return _load(self.store, _manifest_name(checkpoint_id), self.store)

    def read_manifest(self, checkpoint_id: int | None) -> tuple[Manifest, int]:
        """Return what is written of a checkpoint, and how many bytes that takes; no other file is looked at.

        Raises
        ------
        CorruptStateError
            It is missing, or cannot be read.
        """
        return _read_manifest(self.store, _manifest_name(checkpoint_id))

    def damages(self, manifest: Manifest, sound: set[FileState]) -> Iterator[CorruptStateError]:
        """Read all that a manifest names through, and yield what is wrong with it.

        ``sound`` are parts of files that are known to be as they were written; those that are found to be are added.
        """
        enumerators = [each.enumerator for each in manifest.sources.values() if isinstance(each.enumerator, FileState)]
        for file in [*(NamedFile(each.path, [each]) for each in enumerators), *named_files(manifest)]:
            if sound.issuperset(file.parts):
                continue
            try:
                for _ in _checked(self.store, file.parts, _COPY_BYTES, whole=True):
                    pass
            except CorruptStateError as error:
                yield error
            else:
                sound.update(file.parts)

    def missing(self, manifest: Manifest) -> tuple[str, ...]:
        """Return the paths of the files that a checkpoint names and that are not there: one listing of each folder."""
        wanted = {file.path for file in named_files(manifest)} | {_manifest_name(manifest.checkpoint_id)}
        folders = {posixpath.dirname(path) for path in wanted}
        there = {posixpath.join(folder, name) for folder in folders for name in self.store.names(folder)}
        return tuple(sorted(wanted - there))

    def holds_savepoint(self) -> bool:
        """Return whether there is a savepoint in this folder."""
        return self.store.sizes([MANIFEST]) != [None]

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
        path = self.store.path(MANIFEST)
        if not self.holds_savepoint():
            raise StoredStateError(
                f"There is no savepoint in {self.store.base}: it has no file {MANIFEST}. Give the folder that "
                "query.stop(savepoint=...) was given, or a folder chk-<number> of a checkpoint location.",
                what="a savepoint", path=path,
            )  # fmt: skip
        folder, parameters = _parted(self.location)
        files, location = self.store, folder
        if CHECKPOINT.fullmatch(posixpath.basename(folder)):  # its files are named from the checkpoint location on
            location = posixpath.dirname(folder if "://" in folder else posixpath.abspath(folder))
            files = open_store(location + parameters, "fromSavepoint")
        manifest = _load(self.store, MANIFEST, files)
        base = location if "://" in location else files.base
        return with_files(manifest, lambda name: f"{base}/{name}{parameters}")

    def read_state(self, handle: StateHandle) -> bytes:
        """Return state.

        Raises
        ------
        CorruptStateError
            Its file is missing, or is not what it was when the manifest was written.
        """
        if isinstance(handle, InlineState):
            return handle.data
        return _read_file(*self._place_of(handle))

    def open_state(self, handle: StateHandle) -> pa.NativeFile:
        """Open state to be read from its beginning, of which no more is held then than what is being read.

        Of a file that holds other state as well only the part that is wanted is read.

        Raises
        ------
        CorruptStateError
            As `read_state`. What is larger than a piece is read through once to find out, so that nobody sees bytes of
            a damaged one.
        """
        if isinstance(handle, InlineState):
            return pa.BufferReader(handle.data)
        store, placed = self._place_of(handle)
        if placed.size_bytes <= _READ_BYTES:  # of a Python file Arrow copies each message: none holds all the bytes
            return pa.PythonFile(io.BytesIO(_read_file(store, placed)), mode="r")
        for _ in _checked(store, (placed,), _READ_BYTES):
            pass
        return store.open(placed.path, placed.offset, placed.size_bytes)

    def _place_of(self, handle: FileState) -> tuple[FileStore, FileState]:
        """Return where a file is: of this location, or of the savepoint that was restored."""
        if belongs_here(handle):
            return self.store, handle
        address, parameters = _parted(handle.path)
        folder, _, name = address.rpartition("/")
        with self._lock:
            store = self._others.get(folder)
        if store is None:
            store = open_store(folder + parameters)
            with self._lock:
                self._others[folder] = store
        return store, msgspec.structs.replace(handle, path=name)

    # How.

    def _files_named_by(self, checkpoint_id: int) -> frozenset[str] | None:
        """Return the files that a manifest names, nothing if there is no manifest; None: it cannot be read."""
        with self._lock:
            named = self._named.get(checkpoint_id)
        if named is not None:
            return named
        name = f"chk-{checkpoint_id}/{MANIFEST}"
        try:
            manifest = deserialize(self.store.read(name), self.store.path(name))
        except FileNotFoundError:
            return frozenset()
        except StoredStateError as error:
            _log.warning(
                "files that checkpoint %d shares with others are kept, since its manifest cannot be read: %s",
                checkpoint_id,
                error,
            )
            return None
        named = frozenset(file.path for file in named_files(manifest))
        with self._lock:
            self._named[checkpoint_id] = named
        return named

    def _files_named(self) -> set[str] | None:
        """Return the files that the manifests at the location name; None: one of them cannot be read."""
        found: set[str] = set()
        for checkpoint_id in self._ids():
            named = self._files_named_by(checkpoint_id)
            if named is None:
                return None
            found |= named
        return found

    def _unnamed(self, kept: set[str]) -> set[str]:
        """Return the shared files that are none of these."""
        found = {
            f"{SHARED}/{uid}/{name}"
            for uid in self.store.names(SHARED)
            for name in self.store.names(f"{SHARED}/{uid}", temporary=True)
        }
        return found - kept

    def _copy(self, files: Sequence[NamedFile], to: FileStore, folder: str) -> None:
        """Copy files into a folder of another location, a few at a time and piece by piece: they may be large."""

        def copy(file: NamedFile) -> None:
            pieces = _checked(self.store, file.parts, _COPY_BYTES, whole=True)
            to.write_chunks(posixpath.join(folder, file.path), pieces)

        with ThreadPoolExecutor(_COPIES_AT_ONCE, thread_name_prefix="headgate-savepoint") as pool:
            list(pool.map(copy, files))

    def _ids(self) -> list[int]:
        found = (CHECKPOINT.fullmatch(name) for name in self.store.names())
        return sorted(int(match[1]) for match in found if match is not None)


def belongs_here(handle: StateHandle) -> bool:
    """Return whether state is the location's own; False: its file is of a savepoint, or of another location.

    No checkpoint may name a file elsewhere: what a subtask was restored from there it writes anew.
    """
    return not isinstance(handle, FileState) or not ("://" in handle.path or handle.path.startswith("/"))


def shared_file(uid: str, chunk_id: str) -> str:
    """Return the path of what checkpoints share, in a location."""
    return f"{SHARED}/{_file_name(uid)}/{urllib.parse.quote(chunk_id, safe='')}"  # two names stay two


def _nothing(_: FileStore) -> None:
    """Copy nothing."""


def _write(
    store: FileStore,
    folder: str,
    states: str,
    manifest: Manifest,
    copies: Callable[[FileStore], None] = _nothing,
) -> int:
    """Write a manifest into a folder, after those of its states that are large; return how many bytes that was.

    ``states`` is the folder of those states; ``copies`` makes the files beside them that it names.
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
    name = posixpath.join(folder, MANIFEST)
    if store.sizes([name]) != [None] and store.read(name) != data:  # before anything there is touched
        raise _occupied(store, name)
    copies(store)
    for path, state in large:
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


def _savepoint_folder(manifest: Manifest) -> str:
    """Return where the files of a savepoint are that a query takes, in the user's folder."""
    return f"{_file_name(manifest.query_id)}-{manifest.run}-{manifest.checkpoint_id}"


def _manifest_name(checkpoint_id: int | None) -> str:
    return MANIFEST if checkpoint_id is None else f"chk-{checkpoint_id}/{MANIFEST}"


def _read_manifest(store: FileStore, name: str) -> tuple[Manifest, int]:
    path = store.path(name)
    try:
        data = store.read(name)
    except FileNotFoundError as error:
        raise CorruptStateError(f"The manifest {path} is missing.", what="a manifest", path=path) from error
    return deserialize(data, path), len(data)


def _load(store: FileStore, name: str, files: FileStore) -> Manifest:
    """Return the manifest in a file of ``store``, with the enumerators' states; the other ``files`` are there."""
    manifest, _ = _read_manifest(store, name)
    sources = {}
    for uid, entry in manifest.sources.items():
        if isinstance(entry.enumerator, FileState):
            entry = msgspec.structs.replace(entry, enumerator=InlineState(_read_file(files, entry.enumerator)))
        sources[uid] = entry
    named = named_files(manifest)
    for file, size in zip(named, files.sizes([file.path for file in named]) if named else []):
        if size != file.size_bytes:
            raise _damaged(files, file.parts[-1], "missing" if size is None else f"{size} bytes in the file")
    return msgspec.structs.replace(manifest, sources=sources)


def _own_files(manifest: Manifest) -> list[NamedFile]:
    """Return the same, all of which are at the location."""
    files = named_files(manifest)
    for file in files:
        if not belongs_here(file.parts[0]):
            raise InternalError(f"Checkpoint {manifest.checkpoint_id} names a file elsewhere: {file.path}.")
    return files


def _read_file(store: FileStore, handle: FileState) -> bytes:
    """Return state that is in a file, or in a part of one: read at once, for each piece is a request at some stores."""
    try:
        size_bytes = None if handle.offset is None else handle.size_bytes
        data = store.read(handle.path, size_bytes, handle.offset or 0)
    except FileNotFoundError:
        raise _damaged(store, handle, "missing") from None
    if len(data) != handle.size_bytes or zlib.crc32(data) != handle.crc32:
        raise _damaged(store, handle, _as_found(len(data), zlib.crc32(data)))
    return data


def _checked(store: FileStore, parts: Sequence[FileState], piece_bytes: int, *, whole: bool = False) -> Iterator[bytes]:
    """Yield what is in a part of a file, or in parts that are all that is in it (``whole``), piece by piece.

    Raises
    ------
    CorruptStateError
        When a part was read that is not what was written: nothing that was yielded of it is to be used.
    """
    first = parts[0]
    offset = None if whole else first.offset
    try:
        with store.open(first.path, offset, first.size_bytes) as file:
            for part in parts:
                size_bytes = crc32 = 0
                while piece := file.read(min(piece_bytes, part.size_bytes - size_bytes)):
                    size_bytes, crc32 = size_bytes + len(piece), zlib.crc32(piece, crc32)
                    yield piece
                if (size_bytes, crc32) != (part.size_bytes, part.crc32):
                    raise _damaged(store, part, _as_found(size_bytes, crc32))
            if file.read(1):
                raise _damaged(store, parts[-1], "more bytes after it")
    except FileNotFoundError:
        raise _damaged(store, first, "missing") from None
    except OSError as error:
        raise failed("read", store.path(first.path), error) from error


def _as_found(size_bytes: int, crc32: int) -> str:
    return f"{size_bytes} bytes with the CRC-32 {crc32:08x}"


def _damaged(store: FileStore, handle: FileState, found: str) -> CorruptStateError:
    path = store.path(handle.path)
    expected = f"{handle.size_bytes} bytes with the CRC-32 {handle.crc32:08x}"
    expected += "" if handle.offset is None else f" from byte {handle.offset} on"
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
