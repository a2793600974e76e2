"""The files of a checkpoint location, in memory: full at times, listed as they were a while ago, damaged.

Never: lose what was written, or show a part of a file.

The production `headgate.checkpoint.storage.CheckpointStorage` works on them. Listings may show what has been deleted
meanwhile, as those of object stores and of mounted folders do; what is there they show.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from headgate.checkpoint.file_store import FileStore
from headgate.errors import CorruptStateError, StoredStateError
from headgate.protocol.state import FileState, InlineState, StateHandle

_MOST_WITHOUT = 4
"""So many checkpoints may name a file that is gone: one that is given up while it is written, the first that is
complete, that after which it is looked, and one that begins before there is an answer."""


class StoredFiles(FileStore):
    """All files there are.

    Parameters
    ----------
    now_ms
        Reads the cluster's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(None, "checkpoints")
        self._now_ms = now_ms
        self._files: dict[str, bytes] = {}
        self._deleted: list[tuple[str, int]] = []  # what was, and when it was deleted
        self._originals: dict[str, bytes] = {}  # of what is damaged
        self.full_until_ms = 0
        """Until when nothing can be written."""
        self.stale_ms = 0
        """How long listings show what was deleted."""
        self._ever_damaged: set[str] = set()
        self.gone: dict[str, int] = {}
        """How many checkpoints named a file that was lost, since then."""
        self.known_gone: dict[str, int] = {}
        """By file that the query knows to be gone: the last checkpoint that may have begun before it knew."""
        self.refused = 0
        """How often state was refused because it is damaged."""

    # Faults.

    def damage(self, pick: int) -> bool:
        """Change a byte of a file of a checkpoint; return whether there was one."""
        names = [name for name in self._files if not name.startswith(("checkpoints/runs/", "checkpoints/query"))]
        if not names:
            return False
        # The newest are the ones that will be read.
        name = names[-1 - pick % min(len(names), 12)]
        data = self._originals.setdefault(name, self._files[name])
        at = pick * 7919 % len(data)
        self._files[name] = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
        self._ever_damaged.add(name)
        return True

    def lose(self, pick: int, data: bytes) -> bool:
        """Delete a file of such content; return whether there was one."""
        names = [name for name, content in self._files.items() if content == data]
        if not names:
            return False
        name = names[pick % len(names)]
        self._originals.setdefault(name, self._files.pop(name))
        self._ever_damaged.add(name)
        self.gone[name] = 0
        self.known_gone.pop(name, None)
        return True

    def notice_gone(self, names: Iterable[str], checkpoint_id: int) -> None:
        """Note that the query knows that files are gone, and the last checkpoint that has begun."""
        for path in map(self.path, names):
            self.known_gone.setdefault(path, checkpoint_id)

    def check_not_gone_for_long(self, names: Iterable[str], checkpoint_id: int) -> None:
        """Note a checkpoint that names files; assert that it has written those that were known to be gone.

        And that it becomes known within a few checkpoints.
        """
        for path in map(self.path, names):
            if path in self._files or path not in self.gone:
                self.gone.pop(path, None)
                self.known_gone.pop(path, None)
                continue
            assert checkpoint_id <= self.known_gone.get(path, checkpoint_id), (
                f"stored: checkpoint {checkpoint_id} names {path}, which was known to be gone when it began"
            )
            self.gone[path] += 1
            assert self.gone[path] <= _MOST_WITHOUT, f"stored: {self.gone[path]} checkpoints name {path}, which is gone"

    def repair(self) -> None:
        """Put back what was damaged."""
        self._files.update(self._originals)
        self._originals.clear()

    def calm_down(self) -> None:
        """Let all be well from here on."""
        self.full_until_ms = self.stale_ms = 0
        self.repair()

    def excuses(self, error_type: str, message: str) -> bool:
        """Return whether what a fault did is the reason for an error."""
        if error_type == CorruptStateError.__name__:
            refused = any(path in message for path in self._ever_damaged)
            self.refused += refused
            return refused
        return error_type == StoredStateError.__name__ and os.strerror(errno.ENOSPC) in message

    def is_damaged(self, name: str) -> bool:
        """Return whether a file is not what was written."""
        return self.path(name) in self._originals

    def is_state_damaged(self, handle: FileState) -> bool:
        """Return whether state in a file, or in a part of one, is not what was written."""
        path = self.path(handle.path)
        if path not in self._originals:
            return False
        return path not in self._files or _of(handle, self._originals[path]) != _of(handle, self._files[path])

    def written(self, handle: StateHandle) -> bytes:
        """Return state as it was written, damaged since or not."""
        if isinstance(handle, InlineState):
            return handle.data
        path = self.path(handle.path)
        assert path in self._files or path in self._originals, f"stored: a manifest names {path}, which is not there"
        return _of(handle, self._originals.get(path) or self._files[path])

    # Files.

    def read(self, name: str, size_bytes: int | None = None, offset: int = 0) -> bytes:
        """Return the content of a file, or only so many bytes of it, from an offset on."""
        data = self._files.get(self.path(name))
        if data is None:
            raise FileNotFoundError(name)
        return data[offset:][:size_bytes]

    def open(self, name: str, offset: int | None = None, size_bytes: int = 0) -> pa.NativeFile:
        """Open a file, to be read from its beginning; or a part of it."""
        return pa.BufferReader(self.read(name) if offset is None else self.read(name, size_bytes, offset))

    def names(self, folder: str = "", *, temporary: bool = False) -> list[str]:
        """Return the names in a folder; what is no longer there, too, if listings are stale."""
        prefix = self.path(folder).rstrip("/") + "/"
        since_ms = self._now_ms() - self.stale_ms
        known = [*self._files, *(path for path, at_ms in self._deleted if at_ms >= since_ms and self.stale_ms)]
        return sorted({path.removeprefix(prefix).split("/")[0] for path in known if path.startswith(prefix)})

    def sizes(self, names: Sequence[str]) -> list[int | None]:
        """Return the sizes of files in bytes; None for each that is missing."""
        files = [self._files.get(self.path(name)) for name in names]
        return [None if data is None else len(data) for data in files]

    def delete_folder(self, folder: str) -> None:
        """Delete a folder with all that is in it."""
        prefix = self.path(folder) + "/"
        for path in [each for each in self._files if each.startswith(prefix)]:
            self._delete(path)

    def _write_chunks(self, path: str, chunks: Iterable[bytes]) -> None:
        data = b"".join(chunks)
        if self._now_ms() < self.full_until_ms:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        self._files[path] = data
        self._originals.pop(path, None)

    def _write_if_absent(self, path: str, data: bytes) -> bool:
        if path in self._files:
            return False
        self._write(path, data)
        return True

    def _delete(self, path: str) -> None:
        self._originals.pop(path, None)
        if self._files.pop(path, None) is not None:
            self._deleted.append((path, self._now_ms()))


def _of(handle: FileState, data: bytes) -> bytes:
    """Return state that is in a file's bytes."""
    return data if handle.offset is None else data[handle.offset :][: handle.size_bytes]
