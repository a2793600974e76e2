"""The recovery thread of a subtask: reads its channel state, keeps the subtask's own rows, and enqueues them.

After a rescale `Partitioner.filter_owned` (`headgate.runtime.partitioners`) says which rows are the subtask's own.

Never: decide the order, or what goes to disk (`channel_recovery` does); touch the subtask's machines
(its events are posted); wait for room while there is channel state to be read.

What does not fit into memory goes to local files, one in each folder that is needed, an Arrow IPC stream per buffer. A
file loses its name when it is made, so that no crash leaves it; who reads from it keeps it until it has read. Where all
folders are full, the rest waits for memory.

Follows FLIP-547, sections 4.3.3 and 4.5.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, assert_never

import msgspec
import pyarrow as pa

from headgate.errors import CorruptStateError, StoredStateError
from headgate.protocol.channels import Buffer, ChannelId
from headgate.task.exchange import input_gate
from headgate.task.exchange.channel_recovery import (
    Action,
    AskForRoom,
    Begun,
    BufferRead,
    ChannelRead,
    ChannelRecovery,
    DiskFull,
    EndPhaseOne,
    EndRecovery,
    Event,
    ReadNext,
    Replay,
    RoomFound,
    RoomMissing,
    Spill,
    Spilled,
    StoredChannel,
    TakeIntoMemory,
)

RECOVERY_MEMORY_BYTES = 32 << 20
"""How much of what is recovered waits in memory; the rest is spilled to the local disk."""
TARGET_BYTES = 256 * 1024
"""How large buffers become that are packed again."""

_CLOSE_S = 1.0

Progress = input_gate.RowsRecovered | input_gate.RowsSpilled | input_gate.PhaseOneEnded | input_gate.RecoveryEnded
"""What a recovery thread posts."""


class BufferPool:
    """The memory for recovered buffers, in bytes. Any thread may call.

    It always lets one buffer through, however large that is. What was acquired for a buffer is its `Buffer.size_bytes`,
    to be released when it was processed to its end, or its subtask was closed.

    Parameters
    ----------
    size_bytes
        How much there is.
    """

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._changed = threading.Condition()  # guards what follows
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        """How much is acquired and not released."""
        with self._changed:
            return self._used_bytes

    def try_acquire(self, size_bytes: int) -> bool:
        """Take so many bytes if there are, and return whether there were. Does not block."""
        with self._changed:
            return self._try_acquire_locked(size_bytes)

    def acquire(self, size_bytes: int, is_closed: Callable[[], bool]) -> bool:
        """Take so many bytes, as soon as there are; return False, with nothing taken, once ``is_closed`` says so.

        ``is_closed`` is asked at first and after each `wake`; it must not block.
        """
        with self._changed:
            while not is_closed():
                if self._try_acquire_locked(size_bytes):
                    return True
                self._changed.wait()
        return False

    def release(self, size_bytes: int) -> None:
        """Give back so many bytes."""
        with self._changed:
            assert 0 <= size_bytes <= self._used_bytes, f"{size_bytes} of {self._used_bytes} bytes"
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def wake(self) -> None:
        """Let everybody who waits ask again whether it is closed."""
        with self._changed:
            self._changed.notify_all()

    def _try_acquire_locked(self, size_bytes: int) -> bool:
        if self._used_bytes and self._used_bytes + size_bytes > self._size_bytes:
            return False
        self._used_bytes += size_bytes
        return True


class RecoveredInput(msgspec.Struct, frozen=True):
    """Channel state that a subtask takes on.

    Parameters
    ----------
    channel
        The channel that it lands in, by today's numbers.
    read
        Returns the stored buffers, in their order. Called, and its result iterated, by the recovery thread; may block.
    filter_owned
        Returns the rows of a buffer that belong to the subtask; None: all do, and nothing is filtered or packed.
    rows
        How many the stored buffers have.
    """

    channel: ChannelId
    read: Callable[[], Iterable[pa.RecordBatch]]
    filter_owned: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
    rows: int = 0


class RecoveryFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a recovery has done so far.

    Parameters
    ----------
    buffers_read
        How many stored buffers it has read.
    rows_read
        How many rows these had.
    rows_filtered
        How many rows the filter has looked at. 0 at unchanged parallelism.
    buffers_repacked
        How many buffers it has made of what was left. 0 at unchanged parallelism.
    buffers_spilled, buffers_replayed
        How many buffers it has put on the disk, and got from there.
    """

    buffers_read: int = 0
    rows_read: int = 0
    rows_filtered: int = 0
    buffers_repacked: int = 0
    buffers_spilled: int = 0
    buffers_replayed: int = 0


class Disk(Protocol):
    """Where buffers are spilled to; they are numbered from 1."""

    def append(self, buffer: Buffer) -> bool:
        """Write the next buffer; return whether there was room for it."""

    def size(self, number: int) -> tuple[int, int]:
        """Return the rows and bytes of a buffer."""

    def read(self, number: int) -> Buffer:
        """Return a buffer."""


class Recovery:
    """What recovers the channels of one execution of a subtask, step by step, on a thread of its own or not.

    It posts `RowsRecovered`, `RowsSpilled`, `PhaseOneEnded` and `RecoveryEnded` of `input_gate`, the last
    two once each, also if there is nothing to recover.

    Parameters
    ----------
    name
        The subtask, for the thread's name.
    recovered
        What the subtask takes on, in the coordinator's order.
    pool
        The room for recovered buffers.
    spill_folders
        Where to write what does not fit: into the first of them that has room. Made when they are needed.
    post
        Is given what happened, by the recovery thread, in order; must not block.
    on_error
        Is given the error that ended the recovery, by the recovery thread; nothing is posted after that.
    target_bytes
        How large buffers become that are packed again.
    """

    def __init__(
        self,
        name: str,
        recovered: Sequence[RecoveredInput],
        *,
        pool: BufferPool,
        spill_folders: Sequence[str],
        post: Callable[[Progress], None],
        on_error: Callable[[BaseException], None],
        target_bytes: int = TARGET_BYTES,
    ) -> None:
        self._recovered = tuple(recovered)
        self._pool = pool
        self._spill_folders = tuple(spill_folders)
        self._post = post
        self._on_error = on_error
        self._machine = ChannelRecovery(
            [StoredChannel(each.channel, filtered=each.filter_owned is not None) for each in recovered],
            target_bytes=target_bytes,
        )
        self._name = name
        self._figures = RecoveryFigures()  # replaced, never changed: any thread may read it
        self._spilled: Disk | None = None
        self._reading: Iterator[pa.RecordBatch] | None = None  # of the recovery thread alone
        self._closed = threading.Event()

    @property
    def figures(self) -> RecoveryFigures:
        """What it has done so far. Any thread may ask."""
        return self._figures

    def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    def read_spilled(self, number: int) -> pa.RecordBatch:
        """Return a buffer that was spilled, replayed since or not. Any thread may call, until `close`; blocks.

        Raises
        ------
        StoredStateError
            It cannot be read, or the recovery was closed.
        """
        batch: pa.RecordBatch = self._spill_file(number).read(number).rows
        return batch

    def size_spilled(self, number: int) -> tuple[int, int]:
        """Return how many rows a buffer has that was spilled, and how many bytes it takes in memory."""
        return self._spill_file(number).size(number)

    def close(self) -> None:
        """End it, where it is, and delete what was spilled. Any time; nothing is posted after that."""
        self._closed.set()
        self._spilled = None

    def step(self, event: Event) -> Event | None:
        """Do what follows of an event, and return the next one; None: it is over, or closed, or waits for room."""
        followed: Event | None = None
        try:
            for action in self._machine.handle(event, 0):
                if self._closed.is_set():
                    return None
                followed = self._do(action)
        except BaseException as error:  # sys.exit() of a partitioner's, too, would end the thread without a word
            if not self._closed.is_set():
                self._on_error(error)
            return None
        return followed

    def _find_room(self, size_bytes: int, *, wait: bool) -> Event | None:
        """Look for memory; ``wait``: until there is some, or it is closed."""
        raise NotImplementedError

    def _open_disk(self) -> Disk:
        """Return where buffers are spilled to."""
        return _SpillFiles(self._spill_folders)

    def _do(self, action: Action) -> Event | None:
        match action:
            case ReadNext(stored):
                return self._read(stored)
            case AskForRoom(size_bytes, wait):
                return self._find_room(size_bytes, wait=wait)
            case TakeIntoMemory(channel, parts, repacked):
                self._count(buffers_repacked=int(repacked))
                self._post_event(input_gate.RowsRecovered(channel, self._packed(parts)))
            case Spill(channel, parts, repacked, number):
                buffer = self._packed(parts)
                if not self._spill(buffer):
                    return DiskFull()
                self._count(buffers_spilled=1, buffers_repacked=int(repacked))
                self._post_event(input_gate.RowsSpilled(channel, number))
                return Spilled()
            case Replay(channel, number):
                buffer = self._spill_file(number).read(number)
                self._count(buffers_replayed=1)
                self._post_event(input_gate.RowsRecovered(channel, buffer, spilled=number))
            case EndPhaseOne():
                self._post_event(input_gate.PhaseOneEnded())
            case EndRecovery():
                self._post_event(input_gate.RecoveryEnded())
            case _:
                assert_never(action)
        return None

    def _read(self, stored: int) -> Event:
        """Read the next buffer of what is to be recovered, and keep the subtask's own rows."""
        recovered = self._recovered[stored]
        if self._reading is None:
            self._reading = iter(recovered.read())
        batch = next(self._reading, None)
        if batch is None:
            self._reading = None
            return ChannelRead(stored)
        self._count(buffers_read=1, rows_read=batch.num_rows)
        if recovered.filter_owned is not None:
            batch = self._filtered(batch, recovered.filter_owned)
        return BufferRead(stored, Buffer(batch, batch.num_rows, batch.nbytes))

    def _filtered(
        self, batch: pa.RecordBatch, filter_owned: Callable[[pa.RecordBatch], pa.RecordBatch]
    ) -> pa.RecordBatch:
        """Return the rows of a recovered buffer that are the subtask's own."""
        self._count(rows_filtered=batch.num_rows)
        owned = filter_owned(batch)
        if owned.get_total_buffer_size() > 2 * owned.nbytes:  # it would hold the rows that were left out
            return pa.concat_batches([owned])
        return owned

    def _spill(self, buffer: Buffer) -> bool:
        """Write a buffer to the first local folder that has room for it; return whether one has."""
        if self._spilled is None:
            self._spilled = self._open_disk()
        return self._spilled.append(buffer)

    def _packed(self, parts: tuple[Buffer, ...]) -> Buffer:
        """Return one buffer of these parts; as large as they are together, which is what room was found for."""
        if len(parts) == 1:
            return parts[0]
        rows = pa.concat_batches([part.rows for part in parts])
        return Buffer(rows, rows.num_rows, sum(part.size_bytes for part in parts))

    def _spill_file(self, number: int) -> Disk:
        spilled = self._spilled
        if spilled is None or self._closed.is_set():
            raise StoredStateError(
                f"Spilled buffer {number} is gone: the execution of its subtask has ended.", what="a spilled buffer"
            )
        return spilled

    def _post_event(self, event: Progress) -> None:
        if not self._closed.is_set():
            self._post(event)

    def _count(self, **counts: int) -> None:
        figures = self._figures
        self._figures = msgspec.structs.replace(
            figures, **{name: getattr(figures, name) + count for name, count in counts.items()}
        )


class ChannelRecoveryThread(Recovery):
    """Recovers on a thread of its own."""

    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        name = f"headgate-channel-state-handling-{self._name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, where it is, and delete what was spilled. Called by any thread but its own, any time.

        Waits for what the thread does, a second at most: a read that takes longer ends on its own. Nothing is posted
        after that.
        """
        self._closed.set()
        self._pool.wake()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        super().close()

    def _run(self) -> None:
        event: Event | None = Begun()
        while event is not None:
            event = self.step(event)
        self._reading = None

    def _find_room(self, size_bytes: int, *, wait: bool) -> Event | None:
        if not wait:
            return RoomFound() if self._pool.try_acquire(size_bytes) else RoomMissing()
        return RoomFound() if self._pool.acquire(size_bytes, self._closed.is_set) else None


class _SpillFiles:
    """Buffers on the local disks, numbered from 1. One thread appends, any thread reads what was appended.

    A folder that failed is not tried again, but for one that was full.
    """

    def __init__(self, folders: Sequence[str]) -> None:
        self._folders = list(folders)
        self._files: dict[str, _SpillFile] = {}
        self._places: list[tuple[_SpillFile, int]] = []  # by number: the file, and the number there

    def append(self, buffer: Buffer) -> bool:
        """Write the next buffer; return whether there was room for it.

        Raises
        ------
        StoredStateError
            No folder can be written, and that not because it is full.
        """
        for folder in list(self._folders):
            try:
                file = self._files[folder] = self._files.get(folder) or _SpillFile(folder)
                self._places.append((file, file.append(buffer)))
                return True
            except StoredStateError as error:
                cause = error.__cause__
                if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
                    continue
                self._folders.remove(folder)
                if not self._folders:
                    raise
        return False

    def size(self, number: int) -> tuple[int, int]:
        """Return the rows and bytes of a buffer."""
        file, place = self._places[number - 1]
        return file.size(place)

    def read(self, number: int) -> Buffer:
        """Return a buffer by its number."""
        file, place = self._places[number - 1]
        return file.read(place)


class _SpillFile:
    """Buffers on the local disk, one after the other. One thread appends, any thread reads what was appended.

    The file has no name, and is gone when nobody refers to this object: whoever reads, does.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        try:
            os.makedirs(folder, exist_ok=True)
            self._file, path = tempfile.mkstemp(prefix="channel-state-", dir=folder)
            weakref.finalize(self, os.close, self._file)
            os.unlink(path)
        except OSError as error:
            raise self._failed("cannot be made", error) from error
        self._places: list[tuple[int, int, int, int]] = []  # by number: offset, length and size in bytes, rows
        self._end = 0

    def append(self, buffer: Buffer) -> int:
        """Write the next buffer, and return its number; whoever learns of it after that can read it."""
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, buffer.rows.schema) as writer:
            writer.write_batch(buffer.rows)
        data = memoryview(sink.getvalue())
        start, length = self._end, len(data)
        try:
            while data:
                written = os.pwrite(self._file, data, self._end)
                self._end += written
                data = data[written:]
        except OSError as error:
            self._end = start
            os.ftruncate(self._file, start)
            raise self._failed("cannot be written", error) from error
        self._places.append((start, length, buffer.size_bytes, buffer.num_rows))
        return len(self._places)

    def size(self, number: int) -> tuple[int, int]:
        """Return the rows and bytes of a buffer."""
        _, _, size_bytes, rows = self._places[number - 1]
        return rows, size_bytes

    def read(self, number: int) -> Buffer:
        """Return a buffer by its number, from 1."""
        start, length, size_bytes, _ = self._places[number - 1]
        try:
            data = os.pread(self._file, length, start)
        except OSError as error:
            raise self._failed("cannot be read", error) from error
        try:
            rows = pa.ipc.open_stream(data).read_next_batch()
        except (pa.ArrowException, StopIteration) as error:
            what = f"Buffer {number} of the spill file in {self._folder}"
            raise CorruptStateError(f"{what} cannot be read: {error}.", what=what, path=self._folder) from error
        return Buffer(rows, rows.num_rows, size_bytes)

    def _failed(self, what: str, error: OSError) -> StoredStateError:
        return StoredStateError(
            f"The spill file in {self._folder} {what}: {error}. It holds recovered rows that do not fit in memory.",
            what="a spill file",
            path=self._folder,
        )
