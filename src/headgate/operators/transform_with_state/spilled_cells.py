"""`SpilledCells`: what is known of keys that are not in memory, by key, in a file of the local disk.

Never: be what a checkpoint depends on: the file is one of this execution, and is deleted with its folder.

The file is an SQLite database, which Python has: one B-tree with a cache of its own, no journal, and no wait for the
disk. Nothing has to be installed for it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from pathlib import Path

CACHE_KIB = 2048


class SpilledCells:
    """Bytes by key. For one thread at a time.

    Parameters
    ----------
    folder
        Where the file is made.
    """

    def __init__(self, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        self._path = Path(folder) / "cells.sqlite"
        self._file = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        for setting in ("journal_mode=OFF", "synchronous=OFF", "locking_mode=EXCLUSIVE", f"cache_size=-{CACHE_KIB}"):
            self._file.execute(f"PRAGMA {setting}")
        self._file.execute("CREATE TABLE cells (key BLOB PRIMARY KEY, data BLOB) WITHOUT ROWID")

    def get(self, key: bytes) -> bytes | None:
        """Return what is known of a key; None: nothing."""
        found = self._file.execute("SELECT data FROM cells WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put(self, cells: Iterable[tuple[bytes, bytes]]) -> None:
        """Store what is known of keys."""
        self._file.execute("BEGIN")
        self._file.executemany("INSERT OR REPLACE INTO cells VALUES (?, ?)", cells)
        self._file.execute("COMMIT")

    def delete(self, key: bytes) -> None:
        """Forget a key, if it is there."""
        self._file.execute("DELETE FROM cells WHERE key = ?", (key,))

    def __len__(self) -> int:
        return int(self._file.execute("SELECT count(*) FROM cells").fetchone()[0])

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)
