"""Makes the state of a slot's subtasks durable, on threads of its own: each chunk of keyed state once.

Rows in flight, of which there may be as much as local disks hold, are written piece by piece.

Never: block the caller; write the content of a chunk twice that the checkpoint before named, or was restored
with, unless its file is gone; name a file of a savepoint (`headgate.checkpoint.storage.belongs_here`).

Follows FLIP-547, "Rejected Alternatives" (channel state is never incremental).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from headgate.checkpoint.local_copies import LocalCopies
from headgate.checkpoint.storage import belongs_here
from headgate.errors import HeadgateError
from headgate.futures import done_with, gathered, mapped
from headgate.protocol.lost_files import may_be_lost
from headgate.protocol.state import ChunkState, FileState, KeyedState, StateHandle

T = TypeVar("T")
_INLINE_CHUNK_BYTES = 2 * 1024
"""Chunks up to this size are in the manifest: in every one that names them."""


class Chunk(Protocol):
    """An immutable part of keyed state: `headgate.operators.operator.KeyedChunk`."""

    @property
    def chunk_id(self) -> str:
        """Names it in the query for ever."""

    @property
    def first_key_group(self) -> int:
        """The first of the key groups whose keys it holds."""

    @property
    def last_key_group(self) -> int:
        """The last of them."""

    @property
    def serialize(self) -> Callable[[], bytes]:
        """Returns its bytes; called on another thread."""


class StateStorage(Protocol):
    """What of `headgate.checkpoint.storage.CheckpointStorage` is used here."""

    def write_shared(self, uid: str, chunk_id: str, data: bytes, inline_bytes: int) -> StateHandle:
        """Make a chunk of an operator's keyed state durable, or rows in flight of a source's split."""

    def write_state(
        self, checkpoint_id: int, name: str, data: Iterator[bytes | pa.Buffer], inline_bytes: int
    ) -> StateHandle:
        """Make state of one checkpoint durable."""

    def open_state(self, handle: StateHandle) -> pa.NativeFile:
        """Open state to be read from its beginning."""


class Workers(Protocol):
    """Who does the work."""

    def do(self, work: Callable[[], None]) -> None:
        """Do a piece of work later. Does not block."""

    def close(self, timeout_s: float) -> None:
        """Wait for what is under way, at most this long, in seconds; what waits is done all the same, after it."""


class WorkerThreads:
    """Threads that take the next piece of work each. They start with the first one. One thread calls `do` at a time.

    Parameters
    ----------
    threads
        How many.
    """

    def __init__(self, threads: int) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._number = threads
        self._threads: list[threading.Thread] = []

    def do(self, work: Callable[[], None]) -> None:
        """See `Workers`."""
        if not self._threads:
            names = (f"headgate-upload-{number}" for number in range(self._number))
            self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for name in names]
            for thread in self._threads:
                thread.start()
        self._work.put(work)

    def close(self, timeout_s: float) -> None:
        """See `Workers`."""
        for _ in self._threads:
            self._work.put(None)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0, deadline - time.monotonic()))

    def _run(self) -> None:
        work = self._work.get()
        while work is not None:
            work()
            del work  # what it holds is not to stay until there is something else to do
            work = self._work.get()


class StateUploader:
    """Uploads for all subtasks of a slot. All methods may be called by any thread, and none blocks.

    Parameters
    ----------
    storage
        The query's checkpoint location.
    writer
        Run, slot and attempt, as text: part of the names of files of rows in flight, so that no other process writes
        the same.
    workers
        Who uploads; None: four threads.
    copies
        Keeps copies of chunks on the host, if that is wanted.
    """

    def __init__(
        self, storage: StateStorage, writer: str, workers: Workers | None = None, copies: LocalCopies | None = None
    ) -> None:
        self._storage = storage
        self._copies = copies
        self._writer = writer
        self._workers = workers or WorkerThreads(4)
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._chunks: dict[str, dict[str, Future[ChunkState]]] = {}  # by operator, by name
        self._unwanted = 0  # the newest checkpoint that will not complete, or has
        self._closed = False

    def adopt(self, uid: str, chunk: ChunkState) -> bool:
        """Take note of a restored chunk that an operator may name again; return whether it may.

        False: its file is of a savepoint. The operator is then given a `RestoredChunk` that is not ``whole``, and gives
        the rows other names.
        """
        if not belongs_here(chunk.handle):
            return False
        with self._lock:
            self._chunks.setdefault(uid, {})[chunk.chunk_id] = done_with(chunk)
        return True

    def store_keyed(self, uid: str, chunks: Sequence[Chunk], lost: bytes = b"") -> Future[KeyedState]:
        """Store all of an operator's keyed state: upload what is new.

        What it does not name is forgotten, so that memory does not grow: it may not come again under the same name. A
        chunk whose upload failed is uploaded again when it is named the next time; so is one now whose file is gone,
        as ``lost`` says (`headgate.protocol.lost_files`).
        """
        with self._lock:
            known = self._chunks.get(uid, {})
            named = {}
            for chunk in chunks:
                future = known.get(chunk.chunk_id)
                if future is None or not _is_usable(future, lost):
                    future = self._submit_locked(lambda chunk=chunk: self._upload(uid, chunk))  # type: ignore[misc]
                named[chunk.chunk_id] = future
            self._chunks[uid] = named
            futures = [named[chunk.chunk_id] for chunk in chunks]
            if (copies := self._copies) is not None:
                copies.note(uid, named)
                self._submit_locked(lambda: copies.clean(uid))
        return mapped(gathered(futures), lambda stored: KeyedState(chunks=tuple(stored)))

    def store_rows(
        self, checkpoint_id: int, name: str, chunks: Callable[[], Iterator[bytes | pa.Buffer]], inline_bytes: int
    ) -> Future[StateHandle]:
        """Store rows in flight in one file, for this checkpoint alone; in the manifest if it is small.

        ``name`` is unique in the checkpoint and the process: stage, execution, side and exchange belong into it.
        ``chunks`` is called and its result iterated on an uploader's thread, which holds a piece at a time.
        The future fails if the checkpoint is given up, or a newer one begins.
        """
        with self._lock:
            self._unwanted = max(self._unwanted, checkpoint_id - 1)
            return self._submit_locked(
                lambda: self._storage.write_state(
                    checkpoint_id,
                    f"{name}-{self._writer}",
                    self._wanted(checkpoint_id, chunks),
                    inline_bytes=inline_bytes,
                )
            )

    def store_split(
        self,
        uid: str,
        checkpoint_id: int,
        name: str,
        chunks: Callable[[], Iterator[bytes | pa.Buffer]],
        inline_bytes: int,
    ) -> Future[StateHandle]:
        """Store rows in flight of a split of a source; later checkpoints may name them while nobody has the split.

        Parameters are as of `store_rows`, and the future fails as there.
        """
        with self._lock:
            self._unwanted = max(self._unwanted, checkpoint_id - 1)
            return self._submit_locked(
                lambda: self._storage.write_shared(
                    uid,
                    f"in-flight-{checkpoint_id}-{name}-{self._writer}",
                    b"".join(self._wanted(checkpoint_id, chunks)),
                    inline_bytes,
                )
            )

    def give_up(self, checkpoint_id: int) -> None:
        """Store no more rows in flight of a checkpoint that will not complete, nor of older ones."""
        with self._lock:
            self._unwanted = max(self._unwanted, checkpoint_id)

    def open_rows(self, handle: StateHandle) -> pa.NativeFile:
        """Open rows in flight; blocks."""
        return self._storage.open_state(handle)

    def load(self, read: Callable[[], T]) -> Future[T]:
        """Return a future of what is read on an uploader's thread."""
        with self._lock:
            return self._submit_locked(read)

    def _wanted(
        self, checkpoint_id: int, chunks: Callable[[], Iterator[bytes | pa.Buffer]]
    ) -> Iterator[bytes | pa.Buffer]:
        """Yield what is to be stored of a checkpoint, as long as anybody wants it."""

        def check() -> None:
            with self._lock:
                if checkpoint_id <= self._unwanted:
                    raise HeadgateError(f"Checkpoint {checkpoint_id} was given up: its rows in flight are not stored.")

        check()
        for chunk in chunks():
            yield chunk
            check()

    def close(self, timeout_s: float = 0) -> None:
        """Begin nothing any more: what waits fails. What is under way is waited for at most this long, in seconds."""
        with self._lock:
            self._closed = True
        self._workers.close(timeout_s)

    def _upload(self, uid: str, chunk: Chunk) -> ChunkState:
        data = chunk.serialize()
        handle = self._storage.write_shared(uid, chunk.chunk_id, data, _INLINE_CHUNK_BYTES)
        if self._copies is not None and isinstance(handle, FileState):
            self._copies.keep(handle, data)
        return ChunkState(
            chunk_id=chunk.chunk_id,
            handle=handle,
            first_key_group=chunk.first_key_group,
            last_key_group=chunk.last_key_group,
        )

    def _submit_locked(self, make: Callable[[], Any]) -> Future[Any]:
        assert self._lock.locked()
        made: Future[Any] = Future()

        def do() -> None:
            try:
                self._check_open()
                made.set_result(make())
            except BaseException as error:
                made.set_exception(error)

        if self._closed:
            made.set_exception(_closed())
        else:
            self._workers.do(do)
        return made

    def _check_open(self) -> None:
        with self._lock:
            if self._closed:
                raise _closed()


def _is_usable(stored: Future[ChunkState], lost: bytes) -> bool:
    """Return whether a chunk need not be uploaded again: it is being, or its file is there."""
    if not stored.done():
        return True
    if stored.exception() is not None:
        return False
    handle = stored.result().handle
    return not (isinstance(handle, FileState) and may_be_lost(handle.path, lost))


def _closed() -> HeadgateError:
    return HeadgateError("The slot is ending: its state is no longer stored.")
