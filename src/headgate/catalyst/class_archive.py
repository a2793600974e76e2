"""An archive of the classes that the helper JVM loads (JEP 350), with which a start takes two thirds of the time.

It is made by the second helper that starts on a host, when that one ends: making it takes more than twice what a start
saves, and a container that lives for one query has no use for it. Java writes its first bytes last, so that nobody
takes one for whole that is not, and writes each into a new file: one that is in use stays as it is. It may be deleted
at any time, too: those that nobody has started with for a week are, and all but the eight that were used last.

Never: be needed. Java ignores one that does not fit; if it does not start with one, that one is deleted.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_MAGIC_BYTES = 4
_MOST = 8
_KEPT_S = 7 * 86400


class ClassArchive:
    """The archive for one Java, its jars and its options.

    Parameters
    ----------
    folder
        Where it lies; only this user may write there, because what is in an archive is run.
    java, jars, options
        What it depends on.
    """

    def __init__(self, folder: Path, java: str, jars: Path, options: Sequence[str]) -> None:
        files = [f"{os.path.realpath(each)} {os.stat(each).st_mtime_ns}" for each in (java, jars)]
        name = hashlib.sha256("\0".join([*files, *options]).encode()).hexdigest()[:16]
        self._path = folder / f"classes-{name}.jsa"
        self._is_given = any("Archive" in each or "-Xshare" in each for each in options)

    def options(self) -> list[str]:
        """Return what Java is started with; the user's options about archives are left alone."""
        if self._is_given:
            return []
        try:
            with self._path.open("rb") as archive:
                is_whole = any(archive.read(_MAGIC_BYTES))
        except FileNotFoundError:
            with suppress(OSError):  # the disk is full, or somebody has deleted the folder: the next one tries again
                self._path.touch()
            return []
        with suppress(OSError):
            os.utime(self._path)  # it is used
        return [f"-XX:SharedArchiveFile={self._path}" if is_whole else f"-XX:ArchiveClassesAtExit={self._path}"]

    def discard(self) -> None:
        """Delete it: Java did not start."""
        self._path.unlink(missing_ok=True)


def delete_unused(folder: Path) -> None:
    """Delete archives that nobody needs any more, and what says that there is to be one."""
    found: list[tuple[float, int, Path]] = []
    for path in folder.glob("classes-*.jsa"):
        with suppress(FileNotFoundError):  # another one deletes it
            stat = path.stat()
            found.append((stat.st_mtime, stat.st_size, path))
    kept = 0
    for used_s, size, path in sorted(found, reverse=True):
        kept += size > 0
        if used_s < time.time() - _KEPT_S or (size > 0 and kept > _MOST):
            path.unlink(missing_ok=True)
