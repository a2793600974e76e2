"""What survives every crash of a keyed pipeline: state files, manifests, and the table that the sink publishes into.

Never: let two checkpoints share a file of channel state, or publish a committable twice.
"""

from __future__ import annotations

from typing import Any

from headgate.checkpoint.manifest import Manifest
from headgate.protocol.state import FileState, StateHandle
from headgate.simulation.keyed.rows import Row

Firing = tuple[int, int, tuple[Row, ...]]
"""A window's begin in milliseconds, a key, its rows."""


class Storage:
    """The checkpoint location, and the savepoints."""

    def __init__(self) -> None:
        self._objects: dict[str, Any] = {}
        self.manifests: dict[int, Manifest] = {}

    def put(self, what: Any, size_bytes: int) -> FileState:
        """Write a file."""
        path = f"file-{len(self._objects)}"
        self._objects[path] = what
        return FileState(path, size_bytes, 0)

    def get(self, handle: StateHandle) -> Any:
        """Read a file."""
        assert isinstance(handle, FileState)
        return self._objects[handle.path]

    @property
    def latest(self) -> Manifest | None:
        """The newest checkpoint that has a manifest."""
        return max(self.manifests.values(), key=lambda manifest: manifest.checkpoint_id, default=None)


class Table:
    """What writers staged, and which of it is published."""

    def __init__(self) -> None:
        self.staged: dict[bytes, tuple[Firing, ...]] = {}
        self.published: dict[bytes, None] = {}

    def stage(self, firings: tuple[Firing, ...]) -> bytes:
        """Keep windows under a name that nobody else has."""
        name = b"staged-%d" % len(self.staged)
        self.staged[name] = firings
        return name

    def publish(self, names: tuple[bytes, ...]) -> None:
        """Publish what was not published before: the same may come again."""
        self.published.update(dict.fromkeys(names))
