"""Copies of keyed state on a disk of the slot's host, from which it is read there instead of from a remote store.

Never: raise for the sake of a copy; use one that is not, byte for byte, what the checkpoint names.

A chunk is copied when it is stored, or read from the store, and its copy goes when neither of the operator's last two
snapshots names it. The slot that takes the place of one which died on this host uses the same folder, and so finds its
copies. Spark deletes it with the executor.

Follows Flink's task-local recovery (`execution.state-recovery.from-local`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Iterable

from headgate.checkpoint.storage import SHARED, belongs_here, shared_file
from headgate.protocol.state import FileState

_log = logging.getLogger(__name__)
_UNFINISHED = ".part"


class LocalCopies:
    """The copies of one slot. All methods may be called by any thread, and block.

    Parameters
    ----------
    folder
        Where they are; made when there are any.
    read
        Reads state from the store.
    """

    def __init__(self, folder: str, read: Callable[[FileState], bytes]) -> None:
        self._folder = folder
        self._read = read
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._named: dict[str, tuple[set[str], set[str]]] = {}  # by operator: by its last two snapshots
        self._has_room = True

    def read_state(self, handle: FileState) -> bytes:
        """Return state: of the copy if there is one, else of the store.

        Raises
        ------
        StoredStateError
            It cannot be read from the store.
        """
        if not _is_chunk(handle):
            return self._read(handle)
        with contextlib.suppress(OSError), open(self._path(handle), "rb") as file:
            data = file.read()
            if len(data) == handle.size_bytes and zlib.crc32(data) == handle.crc32:
                return data
        data = self._read(handle)
        self.keep(handle, data)
        return data

    def keep(self, handle: FileState, data: bytes) -> None:
        """Copy a chunk, which is stored; nothing if it is not one, or once a copy could not be written."""
        if not (self._has_room and _is_chunk(handle)):
            return
        path = self._path(handle)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path + _UNFINISHED, "wb") as file:
                file.write(data)
            os.replace(path + _UNFINISHED, path)
        except OSError as error:
            with self._lock:
                self._has_room = False
            with contextlib.suppress(OSError):
                os.unlink(path + _UNFINISHED)
            _log.warning("No more state is copied to this host's disk: slots here read it from the store. %s", error)

    def note(self, uid: str, chunk_ids: Iterable[str]) -> None:
        """Take note of the chunks that a snapshot of an operator names. Does not block."""
        with self._lock:
            _, before = self._named.get(uid, (set(), set()))
            self._named[uid] = before, {os.path.basename(shared_file(uid, each)) for each in chunk_ids}

    def clean(self, uid: str) -> None:
        """Delete the copies of an operator's chunks that its last two snapshots do not name."""
        folder = os.path.join(self._folder, os.path.dirname(shared_file(uid, "")))
        with self._lock:
            named = set().union(*self._named[uid])
        with contextlib.suppress(OSError):
            for name in os.listdir(folder):
                if name.removesuffix(_UNFINISHED) not in named:
                    os.unlink(os.path.join(folder, name))

    def delete(self) -> None:
        """Delete all: the query is over."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _path(self, handle: FileState) -> str:
        return os.path.join(self._folder, handle.path)


def _is_chunk(handle: FileState) -> bool:
    """Return whether it is shared by checkpoints of this location, and so has a name for ever."""
    return belongs_here(handle) and handle.path.startswith(f"{SHARED}/")
