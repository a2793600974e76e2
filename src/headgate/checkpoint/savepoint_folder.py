"""Says whether a savepoint may be written to a folder: not where checkpoints are, or another savepoint is.

Never: write anything, or fail where only a folder above may not be looked at.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence

from pyarrow import fs as pa_fs

from headgate.checkpoint.file_store import FileStore, open_store
from headgate.checkpoint.storage import CHECKPOINT, MANIFEST
from headgate.errors import OptionError, StoredStateError

_MARKS = ("runs", "query")
"""What each checkpoint location has."""


def check_savepoint_folder(location: str, option: str, locations: Iterable[str] = ()) -> None:
    """Do nothing if a savepoint may be written to a folder, whatever way leads there.

    A folder in a checkpoint location, or one with a checkpoint location in it, would be found, or deleted, in place of
    the other.

    Parameters
    ----------
    location
        The folder, a path or a URI.
    option
        What the user calls it, for errors.
    locations
        Checkpoint locations that are known, as `FileStore.base` has them; others are known by what is in them, if they
        are the folder itself, above it, or directly in it.

    Raises
    ------
    OptionError
        A checkpoint location is there.
    StoredStateError
        A savepoint is there already; or the folder cannot be read.
    """
    store = open_store(location, option)
    folder = _real_path(store.base)
    found = next((each for each in map(_real_path, locations) if _overlap(folder, each)), None)
    there = store.types() if found is None else {}
    if found is None and any(map(CHECKPOINT.fullmatch, (*there, posixpath.basename(folder)))):
        found = folder
    if found is None:
        inside = [posixpath.join(folder, name) for name, type_ in there.items() if type_ is not pa_fs.FileType.File]
        found = _checkpoint_location(store, [folder, *inside, *_above(folder)])
    if found is not None:
        where = (
            "a query's checkpoint location"
            if found == folder
            else f"in or above {found}, a query's checkpoint location"
        )
        raise OptionError(
            f"A savepoint cannot be written to {store.base}: that is {where}, which the query owns. Give the savepoint "
            "a folder of its own, beside it.",
            option=option, value=store.base,
        )  # fmt: skip
    if MANIFEST in there:
        raise StoredStateError(
            f"There is a savepoint already in {store.base}, which is never overwritten. Give another folder, or delete "
            "what is in this one.",
            what="a savepoint", path=store.base,
        )  # fmt: skip


def _real_path(base: str) -> str:
    """Return a folder by the one name that it has however it is reached."""
    return os.path.realpath(base) if base.startswith("/") else base


def _overlap(first: str, second: str) -> bool:
    """Return whether two folders are the same, or one is in the other."""
    return f"{first}/".startswith(f"{second.rstrip('/')}/") or f"{second}/".startswith(f"{first.rstrip('/')}/")


def _above(folder: str) -> Iterator[str]:
    while (above := posixpath.dirname(folder)) not in ("", folder):
        yield above
        folder = above


def _checkpoint_location(store: FileStore, folders: Sequence[str]) -> str | None:
    """Return the first of some folders that is a checkpoint location; None: none is."""
    try:
        marks = store.file_system.get_file_info([posixpath.join(each, name) for each in folders for name in _MARKS])
    except OSError:  # a store may permit its users less than all folders above theirs
        by_itself = (_checkpoint_location(store, [each]) for each in folders if len(folders) > 1)
        return next((each for each in by_itself if each is not None), None)
    for folder, runs, query in zip(folders, marks[::2], marks[1::2], strict=True):
        if runs.type is pa_fs.FileType.Directory and query.type is pa_fs.FileType.File:
            return folder
    return None
