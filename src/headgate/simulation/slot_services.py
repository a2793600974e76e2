"""What the subtasks of a simulated slot share: uploads, storage, and recovery without threads and disks.

Never: forget what was made durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.channels import Buffer
from headgate.protocol.state import FileState, StateHandle
from headgate.runtime.channel_recovery_thread import Disk, Recovery
from headgate.simulation.stored_files import StoredFiles
from headgate.task.exchange.channel_recovery import Begun, Event, RoomFound, RoomMissing

_INLINE_BYTES = 200
"""State up to this size stands in the manifest."""
FAULT = "a fault"
"""How the error of a fault begins."""


class Machine(Protocol):
    """What a slot's process lends them."""

    def later(self, delay_ms: int, what: Callable[[], None]) -> None:
        """Do something in so many milliseconds, if the process lives then."""

    def upload_ms(self) -> int:
        """Return how long the next upload takes."""

    def upload_fails(self) -> bool:
        """Return whether the next upload fails."""

    def read_fails(self) -> bool:
        """Return whether the next reading of stored state fails."""

    def read_ms(self) -> int:
        """Return how long the next buffer of channel state takes to be read."""

    target_bytes: int
    """How large recovered buffers become that are packed again."""
    disk_buffers: int | None
    """How many buffers a disk has room for; None: any number."""


class Uploads:
    """Uploads one thing at a time, some faster than others: the workers of a `StateUploader`."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def do(self, work: Callable[[], None]) -> None:
        """Do a piece of work later."""
        self._machine.later(self._machine.upload_ms(), work)

    def close(self, timeout_s: float) -> None:
        """Nothing is waited for."""


class SlotStorage:
    """The checkpoint location, as a slot sees it: little state stands in the manifest."""

    def __init__(self, machine: Machine, files: StoredFiles) -> None:
        self._machine = machine
        self._files = files
        self._storage = CheckpointStorage("checkpoints", files)

    def write_shared(self, uid: str, chunk_id: str, data: bytes, inline_bytes: int) -> StateHandle:
        """Make a chunk of keyed state durable."""
        self._fail_if(self._machine.upload_fails())
        return self._storage.write_shared(uid, chunk_id, data, min(inline_bytes, _INLINE_BYTES))

    def write_state(
        self, checkpoint_id: int, name: str, data: Iterator[bytes | pa.Buffer], inline_bytes: int
    ) -> StateHandle:
        """Make channel state durable."""
        self._fail_if(self._machine.upload_fails())
        return self._storage.write_state(checkpoint_id, name, data, min(inline_bytes, _INLINE_BYTES))

    def open_state(self, handle: StateHandle) -> pa.NativeFile:
        """Open it again."""
        self._fail_if(self._machine.read_fails())
        opened = self._storage.open_state(handle)
        self._check_whole(handle)
        return opened

    def read_state(self, handle: FileState) -> bytes:
        """Return it."""
        data = self._storage.read_state(handle)
        self._check_whole(handle)
        return data

    def _check_whole(self, handle: StateHandle) -> None:
        is_damaged = isinstance(handle, FileState) and self._files.is_state_damaged(handle)
        assert not is_damaged, f"corrupt: {handle} is restored though it is damaged"

    @staticmethod
    def _fail_if(fails: bool) -> None:
        if fails:
            raise OSError(FAULT)


class _MemoryDisk:
    """A local disk."""

    def __init__(self, room: int | None) -> None:
        self._room = room
        self._buffers: list[Buffer] = []

    def append(self, buffer: Buffer) -> bool:
        if self._room is not None and len(self._buffers) >= self._room:
            return False
        self._buffers.append(buffer)
        return True

    def size(self, number: int) -> tuple[int, int]:
        buffer = self.read(number)
        return buffer.num_rows, buffer.size_bytes

    def read(self, number: int) -> Buffer:
        return self._buffers[number - 1]


class SteppedRecovery(Recovery):
    """Recovers a step at a time, by the cluster's clock."""

    def __init__(self, machine: Machine, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords, target_bytes=machine.target_bytes)
        self._machine_lent = machine

    def start(self) -> None:
        """Begin."""
        self._go_on(0, Begun())

    def _go_on(self, delay_ms: int, event: Event) -> None:
        self._machine_lent.later(delay_ms, partial(self._take, event))

    def _take(self, event: Event) -> None:
        followed = None if self._closed.is_set() else self.step(event)
        if followed is not None:
            self._go_on(self._machine_lent.read_ms(), followed)

    def _find_room(self, size_bytes: int, *, wait: bool) -> Event | None:
        if self._pool.try_acquire(size_bytes):
            return RoomFound()
        if not wait:
            return RoomMissing()
        self._machine_lent.later(2, partial(self._look_again, size_bytes))
        return None

    def _look_again(self, size_bytes: int) -> None:
        if not self._closed.is_set() and (found := self._find_room(size_bytes, wait=True)) is not None:
            self._take(found)

    def _open_disk(self) -> Disk:
        return _MemoryDisk(self._machine_lent.disk_buffers)
