"""Finds the checkpoint or the savepoint that a location on the command line means.

Never: write anything, or fail because of a checkpoint that is not asked about.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headgate.errors import OptionError, StoredStateError

if TYPE_CHECKING:
    from headgate.checkpoint.manifest import Manifest
    from headgate.checkpoint.storage import CheckpointStorage

_CHECKPOINT = re.compile(r"chk-(\d+)")


@dataclass(frozen=True)
class Stored:
    """A checkpoint of a location, or a savepoint.

    Parameters
    ----------
    location
        As the user gave it.
    storage
        Where its files are.
    checkpoint_id
        Which checkpoint of the location; None: it is a savepoint, the only one in its folder.
    """

    location: str
    storage: CheckpointStorage
    checkpoint_id: int | None

    @property
    def name(self) -> str:
        """What it is called in messages and tables."""
        return "savepoint" if self.checkpoint_id is None else f"chk-{self.checkpoint_id}"

    @property
    def folder(self) -> str:
        """Where its manifest is."""
        return self.storage.store.path("" if self.checkpoint_id is None else self.name).rstrip("/")

    def manifest(self) -> Manifest:
        """Return what it holds, enumerators' states included; raises as `CheckpointStorage.load`."""
        return self.storage.load(self.checkpoint_id)

    def written(self) -> tuple[Manifest, int]:
        """Return what is written of it, and how many bytes that takes; no other file is looked at."""
        return self.storage.read_manifest(self.checkpoint_id)


def all_stored(location: str) -> list[Stored]:
    """Return the checkpoints of a location, newest first; of a savepoint's folder or of a checkpoint's, that one.

    Where there are both, a savepoint is the last.

    Raises
    ------
    OptionError
        pyarrow cannot open the location.
    StoredStateError
        There is none, or the storage cannot be read.
    """
    from headgate.checkpoint.storage import CheckpointStorage

    storage = CheckpointStorage(location)
    found = [Stored(location, storage, each) for each in storage.newest_first()]
    if storage.holds_savepoint():
        folder, question, parameters = location.partition("?") if "://" in location else (location, "", "")
        name = posixpath.basename(storage.store.base.rstrip("/"))
        if match := _CHECKPOINT.fullmatch(name):
            above = posixpath.dirname(folder.rstrip("/")) if "://" in folder else posixpath.dirname(storage.store.base)
            return [Stored(location, CheckpointStorage(above + question + parameters), int(match[1]))]
        # Older versions let a query's savepoint be written to its checkpoint location: what is newer is not hidden.
        found.append(Stored(location, storage, None))
    if not found:
        raise StoredStateError(
            f"There is no checkpoint in {storage.store.base}: it has no folder chk-<number> with a file _metadata, and "
            "no such file itself. Give a query's 'checkpointLocation', or the folder of a savepoint.",
            what="a checkpoint location", path=storage.store.base,
        )  # fmt: skip
    return found


def stored(location: str, checkpoint_id: int | None = None) -> Stored:
    """Return a checkpoint of a location, without an id the newest; raises as `all_stored`."""
    found = all_stored(location)
    if checkpoint_id is None:
        return found[0]
    for each in found:
        if each.checkpoint_id == checkpoint_id:
            return each
    ids = ", ".join(str(each.checkpoint_id) for each in found if each.checkpoint_id is not None)
    raise OptionError(
        f"There is no checkpoint {checkpoint_id} in {found[0].storage.store.base}: "
        + (f"it has {ids}." if ids else "it is a savepoint, leave --id out."),
        option="--id", value=checkpoint_id,
    )  # fmt: skip


def check_target(location: str) -> None:
    """Raise if a savepoint must not be written to a folder, as `check_savepoint_folder` does."""
    from headgate.checkpoint.savepoint_folder import check_savepoint_folder

    check_savepoint_folder(location, "--to")


def shown(location: str) -> str:
    """Return a location without what stands before ``@``, which may be a key and its secret."""
    return re.sub(r"://[^/?]*@", "://", location)
