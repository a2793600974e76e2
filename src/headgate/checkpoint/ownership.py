"""Sees to it that one live query owns a checkpoint location: every start gets a number, and a newer fences an older.

Never: wait for an older run to end, or ask whether it lives: whoever starts takes over, and what the older run would
make durable or publish afterwards fails.

    <location>/runs/<run>      created only if absent; says who started: for people
"""

from __future__ import annotations

import datetime
import os
import socket
import uuid

import msgspec

from headgate.checkpoint.file_store import FileStore
from headgate.errors import StoredStateError
from headgate.source.serialization import VersionedSerializer

_RUNS = "runs"
_KEPT_RUNS = 100
"""So many files of older runs stay; they are never needed again."""


class RunRecord(msgspec.Struct, frozen=True):
    """Who started a run. ``token`` makes every start's record a different one."""

    run: int
    token: str
    host: str
    pid: int
    started: str


_SERIALIZER: VersionedSerializer[RunRecord] = VersionedSerializer(
    RunRecord, version=1, what="a run of a checkpoint location"
)


class Ownership:
    """The right of one run to write at a checkpoint location.

    Parameters
    ----------
    store
        The files of the location.
    run
        The number of the run.
    record
        What is in its file.
    """

    def __init__(self, store: FileStore, run: int, record: bytes) -> None:
        self._store = store
        self._record = record
        self.run = run

    @classmethod
    def claim(cls, store: FileStore) -> Ownership:
        """Take a location over: from now on all older runs fail when they write.

        Look for the newest checkpoint afterwards, not before: an older run may complete one until now.
        """
        while True:
            runs = _runs(store)
            run = max(runs, default=0) + 1
            record = RunRecord(
                run,
                uuid.uuid4().hex,
                socket.gethostname(),
                os.getpid(),
                datetime.datetime.now(datetime.UTC).isoformat(),
            )
            data = _SERIALIZER.serialize(record)
            if store.write_if_absent(f"{_RUNS}/{run}", data):
                for old in runs:
                    if old <= run - _KEPT_RUNS:
                        store.delete(f"{_RUNS}/{old}")
                return cls(store, run, data)

    def keep(self) -> None:
        """Write the file of this run again if somebody has deleted it: the next run must have a higher number."""
        self._store.write_if_absent(f"{_RUNS}/{self.run}", self._record)

    def check(self) -> None:
        """Do nothing if this run still owns the location. Call it before and after what may happen only then.

        Raises
        ------
        StoredStateError
            A newer run took the location over. Facts: run, newer_run.
        """
        check_run(self._store, self.run)


def check_run(store: FileStore, run: int) -> None:
    """Raise as `Ownership.check` does unless ``run`` is the newest run of a location."""
    if store.sizes([f"{_RUNS}/{run + 1}"]) == [None]:  # runs are numbered without gaps
        return
    newest = max(_runs(store))
    path = store.path(f"{_RUNS}/{newest}")
    record = _SERIALIZER.deserialize(store.read(f"{_RUNS}/{newest}"))
    raise StoredStateError(
        f"Run {newest} has taken over the checkpoint location {store.base}: the query was started again on "
        f"{record.host} (process {record.pid}) at {record.started}. This one, run {run}, may not write there "
        "any longer. One live query owns a location: stop one of them, or give it a 'checkpointLocation' of its own.",
        what="a run of a checkpoint location", path=path, run=run, newer_run=newest,
    )  # fmt: skip


def _runs(store: FileStore) -> list[int]:
    return [int(name) for name in store.names(_RUNS) if name.isdigit()]
