"""What survives every crash: manifests, logs, and the table that the sink publishes into.

Never: forget anything, or publish a committable twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from headgate.checkpoint.manifest import Manifest
from headgate.coordinator.sources.log_records import LogRecord
from headgate.simulation.stored_files import StoredFiles

Row = tuple[str, str, int]
"""Source uid, split id, offset."""


class Committable(msgspec.Struct, frozen=True):
    """Rows that a writer staged, under a name that no other has."""

    name: str
    rows: tuple[Row, ...]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Committable)


def encode_committable(committable: Committable) -> bytes:
    """Return a committable as a checkpoint holds it."""
    return _encoder.encode(committable)


def decode_committable(data: bytes) -> Committable:
    """Return a committable of a checkpoint."""
    return _decoder.decode(data)


class Storage:
    """The checkpoint location, and the savepoints.

    Parameters
    ----------
    now_ms
        Reads the cluster's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.files = StoredFiles(now_ms)
        self.manifests: dict[int, Manifest] = {}
        self.savepoints: dict[str, Manifest] = {}
        self.refused: set[str] = set()
        """Folders of savepoints of which their users know that they failed."""
        self.logs: dict[tuple[int, str], dict[int, list[tuple[int, LogRecord]]]] = {}
        self.complete: dict[int, tuple[int, dict[str, int]]] = {}
        """By checkpoint: the run that took it, and where its splits are."""
        self.copies: dict[tuple[int, int], dict[int, dict[str, int]]] = {}
        """By run and checkpoint, by subtask downstream of a broadcast: which row of each split comes next."""
        self.promised: set[bytes] = set()
        """All committables that ever stood in a manifest: nothing else may be published."""

    def write(self, manifest: Manifest, location: str) -> None:
        """Make a checkpoint durable."""
        if location:
            assert location not in self.refused, f"the savepoint in {location} was reported as failed, and is written"
            self.savepoints[location] = manifest
        else:
            self.manifests[manifest.checkpoint_id] = manifest
        for by_sink in (manifest.commits, *(each.committables for each in manifest.uncommitted)):
            for committables in by_sink.values():
                self.promised.update(committables)

    def delete_savepoint(self, location: str) -> None:
        """Delete a savepoint if it is there."""
        self.savepoints.pop(location, None)

    def refuse(self, location: str) -> None:
        """Report a savepoint as failed."""
        assert location not in self.savepoints, f"the savepoint in {location} is reported as failed, and is there"
        self.refused.add(location)

    def newest(self) -> Manifest | None:
        """Return the newest complete checkpoint of the query's own location."""
        return max(self.manifests.values(), key=lambda manifest: manifest.checkpoint_id, default=None)


class Table:
    """What the sink has published: each row's number of times, and the epochs."""

    def __init__(self) -> None:
        self.published: set[str] = set()
        self.rows: dict[Row, str] = {}
        self.offsets: dict[tuple[str, str], set[int]] = {}
        """By source uid and split id, what was published."""
        self.epoch = 0
        self.doubled: list[tuple[Row, str, str]] = []

    def publish(self, committables: Sequence[bytes]) -> None:
        """Publish what was not published before: the same committable may come again."""
        for data in committables:
            committable = decode_committable(data)
            if committable.name in self.published:
                continue
            self.published.add(committable.name)
            for row in committable.rows:
                if row in self.rows:
                    self.doubled.append((row, self.rows[row], committable.name))
                self.rows[row] = committable.name
                self.offsets.setdefault(row[:2], set()).add(row[2])
