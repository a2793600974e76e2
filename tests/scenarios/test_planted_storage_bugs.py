"""Bugs in what a checkpoint location holds, planted one at a time: some seed finds each.

Files are damaged, listed when they are gone, or cannot be written. A bug is a subclass of production, in this file
only.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pyarrow as pa

from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.coordinator import CheckpointCoordinator, StoredCheckpoints
from headgate.checkpoint.state_uploader import Chunk, StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import StoredStateError
from headgate.protocol import messages as msg
from headgate.protocol.state import FileState, KeyedState, StateHandle
from headgate.runtime.subtask import Subtask
from headgate.simulation.fault_kinds import Fault, FaultKind, StorageFaults, UserFaults
from headgate.simulation.running import simulate
from headgate.simulation.scenario import Scenario
from tests.scenarios.planted import first_found


def often(*kinds: FaultKind | StorageFaults) -> Callable[[Scenario], Scenario]:
    """Return what adds faults of these kinds to a scenario."""

    def changed(each: Scenario) -> Scenario:
        draw = random.Random(f"{kinds} {each.seed}")
        more = [
            Fault(draw.randrange(200, 3000), draw.choice(kinds), draw.randrange(1000), draw.randint(1, 4))
            for _ in range(8)
        ]
        return each.with_faults(tuple(sorted((*each.faults, *more), key=lambda fault: fault.at_ms)))

    return changed


DAMAGED = often(StorageFaults.CORRUPT, FaultKind.FAIL_SUBTASK, FaultKind.CRASH_DRIVER)
STALE = often(StorageFaults.STALE, FaultKind.CRASH_DRIVER, FaultKind.FAIL_COMMIT)
FULL = often(StorageFaults.FULL, FaultKind.FAIL_SUBTASK)


SAVED = often(FaultKind.SAVEPOINT, FaultKind.FAIL_SUBTASK)


def test_without_a_bug_damaged_files_are_refused_and_the_query_goes_on_once_they_are_repaired() -> None:
    refused = 0
    for seed in range(20):
        outcome, cluster = simulate(DAMAGED(Scenario.of(seed)))
        assert outcome.error is None, f"seed {seed}: {outcome.error}"
        refused += cluster.storage.files.refused
    assert refused >= 5


class TrustsFiles(CheckpointStorage):
    """The sizes and checksums of state are not compared."""

    def open_state(self, handle: StateHandle) -> pa.NativeFile:
        return self.store.open(handle.path) if isinstance(handle, FileState) else super().open_state(handle)

    def read_state(self, handle: StateHandle) -> bytes:
        return self.store.read(handle.path) if isinstance(handle, FileState) else super().read_state(handle)


def test_state_that_is_restored_from_a_damaged_file_is_found() -> None:
    first_found("corrupt: ", 14, {CheckpointStorage: TrustsFiles}, change=DAMAGED)


class BelievesListings(CheckpointStorage):
    """Each folder that is listed is taken for a checkpoint."""

    def stored(self) -> StoredCheckpoints:
        return StoredCheckpoints(tuple(self._ids()))


def test_a_deleted_checkpoint_that_is_still_listed_and_restored_is_found() -> None:
    first_found("_metadata is missing", 0, {CheckpointStorage: BelievesListings}, change=STALE)


class IgnoresFullDisks(CheckpointStorage):
    """State that could not be written is acknowledged all the same."""

    def _write_file(self, path: str, data: bytes | Iterator[bytes], inline_bytes: int) -> StateHandle:
        whole = data if isinstance(data, bytes) else b"".join(data)
        try:
            return super()._write_file(path, whole, inline_bytes)
        except StoredStateError:
            return FileState(path, len(whole), zlib.crc32(whole))


def test_a_full_disk_that_nobody_hears_of_is_found() -> None:
    first_found("which is not there", 17, {CheckpointStorage: IgnoresFullDisks}, change=FULL)


class NeverUploadsAgain(StateUploader):
    """What is gone is not uploaded again."""

    def store_keyed(self, uid: str, chunks: Sequence[Chunk], lost: bytes = b"") -> Future[KeyedState]:
        return super().store_keyed(uid, chunks)


def loses_keyed_state(each: Scenario) -> bool:
    return each.is_keyed and each.loses_files


def only_lost_files(each: Scenario) -> Scenario:
    return each.with_faults(tuple(fault for fault in each.faults if fault.kind is UserFaults.DELETE))


def test_a_file_that_is_gone_and_is_not_written_again_is_found() -> None:
    bugs = {StateUploader: NeverUploadsAgain}
    first_found("which was known to be gone", 145, bugs, of=loses_keyed_state, change=only_lost_files)


class HearsOfLossByItsStream(Subtask):
    """What is gone is known when the stream of the slot brings it, though a barrier of a channel may come before."""

    def _on_message(self, message: Any) -> None:
        if isinstance(message, msg.TriggerCheckpoint):
            assert isinstance(self._services.uploader, UploadsWhatItsStreamNamed)
            self._services.uploader.lost = message.lost
        super()._on_message(message)


class UploadsWhatItsStreamNamed(StateUploader):
    """See there."""

    lost = b""

    def store_keyed(self, uid: str, chunks: Sequence[Chunk], lost: bytes = b"") -> Future[KeyedState]:
        return super().store_keyed(uid, chunks, self.lost)


def test_a_loss_that_a_slot_hears_of_after_the_barrier_is_found() -> None:
    bugs = {Subtask: HearsOfLossByItsStream, StateUploader: UploadsWhatItsStreamNamed}
    first_found("which was known to be gone", 215, bugs, of=loses_keyed_state, change=only_lost_files)


class LeavesSavepoints(CheckpointCoordinator):
    """Who asked for a savepoint is answered that it failed, and what was written of it stays."""

    def _abort(self, reason: str) -> list[cp.Action]:
        actions = super()._abort(reason)
        kept = [each for each in actions if not isinstance(each, cp.DeleteSavepoint)]
        return kept + [answer for each in actions if isinstance(each, cp.DeleteSavepoint) for answer in each.answers]


def test_a_savepoint_that_is_there_though_it_was_reported_as_failed_is_found() -> None:
    first_found(
        "reported as failed, and is",
        6,
        {CheckpointCoordinator: LeavesSavepoints},
        change=SAVED,
    )
