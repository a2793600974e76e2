"""Folders that only this user can enter, in which processes of a host meet, and locks that end with their process.

A process that was forked, by a user's function for example, has its parent's locks and connections open, and would keep
them when the parent has ended: it closes its copies at once.

Never: know what for.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Protocol
from weakref import WeakSet

LONGEST_SOCKET_PATH = 100
"""A Unix socket's path has hardly more bytes than this on any system."""


def make_private(folder: Path) -> None:
    """Make a folder that only this user can enter.

    Raises
    ------
    OSError
        It cannot be made, or belongs to somebody else.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(f"{folder} is a link, or belongs to another user")
    folder.chmod(0o700)


class FileLock:
    """A lock that the system takes back when this process dies, whatever it dies of.

    Raises
    ------
    BlockingIOError
        Another one holds it.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        close_in_forks(self)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.release()
            raise

    def fileno(self) -> int:
        """Return the descriptor: a process that inherits it holds the lock, too."""
        return self._file

    def is_at(self, path: Path) -> bool:
        """Return whether this is still the file that others find there."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file), path.stat())
        return False

    def release(self) -> None:
        """Let another one have it."""
        self.close()

    def close(self) -> None:
        """Close this process's descriptor: another one that has it as well still holds the lock."""
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)


class _Closable(Protocol):
    def close(self) -> None: ...


_closed_in_forks: WeakSet[_Closable] = WeakSet()


def close_in_forks(opened: _Closable) -> None:
    """Let processes that this one forks close what is open, if it still is then. It stays open here."""
    _closed_in_forks.add(opened)


def _close_all() -> None:
    for each in list(_closed_in_forks):
        with suppress(OSError):
            each.close()


os.register_at_fork(after_in_child=_close_all)
