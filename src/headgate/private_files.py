"""Folders that only this user can enter, in which processes of a host meet, and locks that end with their process.

Never: know what for.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

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
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._file)
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
        os.close(self._file)
