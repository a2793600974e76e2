"""The recovery thread, with real batches, memory and a real disk, and a subtask that is a list of what was posted."""

from __future__ import annotations

import errno
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.errors import CorruptStateError, StoredStateError
from headgate.protocol.channels import Buffer, ChannelId
from headgate.runtime.channel_recovery_thread import (
    BufferPool,
    ChannelRecoveryThread,
    Progress,
    RecoveredInput,
    RecoveryFigures,
)
from headgate.task.exchange.input_gate import PhaseOneEnded, RecoveryEnded, RowsRecovered, RowsSpilled

X, Y = ChannelId("keys", 0, 0), ChannelId("keys", 1, 0)
WAIT_S = 60.0


def batch(start: int, count: int) -> pa.RecordBatch:
    """Eight bytes a row."""
    return pa.record_batch({"number": pa.array(range(start, start + count), pa.int64())})


def stored(
    channel: ChannelId, *batches: pa.RecordBatch, filter_owned: Callable[[pa.RecordBatch], pa.RecordBatch] | None = None
) -> RecoveredInput:
    return RecoveredInput(channel, lambda: iter(batches), filter_owned)


def even(rows: pa.RecordBatch) -> pa.RecordBatch:
    return rows.filter(pc.equal(pc.bit_wise_and(rows.column(0), 1), 0))


class Subtask:
    """A recovery thread, and what it posted."""

    def __init__(
        self,
        tmp_path: Path,
        recovered: Iterable[RecoveredInput],
        *,
        pool_bytes: int = 1_000_000,
        target_bytes: int = 800,
        other: bool = False,
    ) -> None:
        self.folder = tmp_path / "spill"
        self.other_folder = tmp_path / "other"
        self.pool = BufferPool(pool_bytes)
        self.posted: queue.Queue[Progress | BaseException] = queue.Queue()
        self.recovery = ChannelRecoveryThread(
            "1-0",
            list(recovered),
            pool=self.pool,
            spill_folders=[str(self.folder), *([str(self.other_folder)] if other else [])],
            post=self.posted.put,
            on_error=self.posted.put,
            target_bytes=target_bytes,
        )

    def __enter__(self) -> Subtask:
        self.recovery.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.recovery.close()

    def until(self, last: type, *, release: bool = False) -> list[Progress]:
        """Return what is posted up to this, giving back the room of all buffers if they are processed at once."""
        posted: list[Progress] = []
        while not posted or type(posted[-1]) is not last:
            event = self.posted.get(timeout=WAIT_S)
            if isinstance(event, BaseException):
                raise event
            posted.append(event)
            if release and isinstance(event, RowsRecovered):
                self.pool.release(event.buffer.size_bytes)
        return posted


def buffers(posted: list[Progress], channel: ChannelId | None = None) -> list[Buffer]:
    return [each.buffer for each in posted if isinstance(each, RowsRecovered) and channel in (None, each.channel)]


def numbers(found: Iterable[Buffer]) -> list[int]:
    return [number for each in found for number in each.rows.column(0).to_pylist()]


def test_at_unchanged_parallelism_the_very_same_buffers_come(tmp_path: Path) -> None:
    """Nothing is filtered, packed or spilled: all counters are 0."""
    batches = [batch(0, 3), batch(3, 0), batch(3, 2)]
    with Subtask(tmp_path, [stored(X, *batches), stored(Y, batch(9, 1))]) as subtask:
        posted = subtask.until(RecoveryEnded)
        assert [each.rows for each in buffers(posted, X)] == batches
        assert all(found.rows is wanted for found, wanted in zip(buffers(posted, X), batches, strict=True))
        assert [type(each) for each in posted[-2:]] == [PhaseOneEnded, RecoveryEnded]
        assert subtask.recovery.figures == RecoveryFigures(buffers_read=4, rows_read=6)
        assert subtask.pool.used_bytes == 6 * 8 == sum(each.size_bytes for each in buffers(posted))
        assert not subtask.folder.exists()


def test_only_own_rows_come_packed_up_to_the_target(tmp_path: Path) -> None:
    """Filtered rows of many small buffers are few buffers, in order; what is left of none is none."""
    parts = [batch(10 * each, 10) for each in range(100)]
    with Subtask(
        tmp_path, [stored(X, *parts[:50], filter_owned=even), stored(X, *parts[50:], filter_owned=even)]
    ) as subtask:
        found = buffers(subtask.until(RecoveryEnded))
        assert numbers(found) == list(range(0, 1000, 2))
        assert [each.num_rows for each in found] == [100, 100, 100, 100, 100]
        assert subtask.recovery.figures == RecoveryFigures(
            buffers_read=100, rows_read=1000, rows_filtered=1000, buffers_repacked=5
        )


def test_the_example_of_the_document(tmp_path: Path) -> None:
    """FLIP-547, 2.1 and 4.1: one buffer of 100 records, 1 to 10 to 1, is one buffer of 100 records again, twice."""
    whole = batch(0, 100)
    for _ in range(2):
        parts = []
        for consumer in range(10):

            def filter_owned(rows: pa.RecordBatch, consumer: int = consumer) -> pa.RecordBatch:
                return rows.filter(pc.equal(pc.divide(rows.column(0), 10), consumer))

            with Subtask(tmp_path, [stored(X, whole, filter_owned=filter_owned)]) as subtask:
                [buffer] = buffers(subtask.until(RecoveryEnded))
                assert numbers([buffer]) == list(range(10 * consumer, 10 * consumer + 10))
                parts.append(buffer.rows)
        with Subtask(tmp_path, [stored(X, part, filter_owned=lambda rows: rows) for part in parts]) as subtask:
            [buffer] = buffers(subtask.until(RecoveryEnded))
            assert (buffer.num_rows, buffer.size_bytes) == (100, whole.nbytes)
            assert sorted(numbers([buffer])) == list(range(100))
            whole = buffer.rows


def test_own_rows_do_not_hold_those_of_others(tmp_path: Path) -> None:
    """A slice of a large buffer is copied out of it, so that the room is what is really held."""
    with Subtask(tmp_path, [stored(X, batch(0, 10_000), filter_owned=lambda rows: rows.slice(500, 10))]) as subtask:
        [buffer] = buffers(subtask.until(RecoveryEnded))
        assert numbers([buffer]) == list(range(500, 510))
        assert buffer.rows.get_total_buffer_size() == buffer.size_bytes == 80


def test_without_room_everything_is_read_before_anything_is_processed(tmp_path: Path) -> None:
    """Phase 1 ends without waiting; what is on the disk comes back, in order, as there is room for it."""
    with Subtask(tmp_path, [stored(X, *(batch(each, 1) for each in range(5)))], pool_bytes=1) as subtask:
        posted = subtask.until(PhaseOneEnded)
        assert [type(each) for each in posted] == [RowsRecovered, *[RowsSpilled] * 4, PhaseOneEnded]
        assert [each.number for each in posted if isinstance(each, RowsSpilled)] == [1, 2, 3, 4]
        assert numbers(Buffer(subtask.recovery.read_spilled(each), 1, 8) for each in (4, 1, 3, 2)) == [4, 1, 3, 2]
        assert subtask.recovery.figures.buffers_replayed == 0
        subtask.pool.release(8)
        posted = subtask.until(RecoveryEnded, release=True)
        assert numbers(buffers(posted)) == [1, 2, 3, 4]
        assert [each.spilled for each in posted if isinstance(each, RowsRecovered)] == [1, 2, 3, 4]
        assert [each.size_bytes for each in buffers(posted)] == [8, 8, 8, 8]
        assert subtask.recovery.read_spilled(1) == batch(1, 1), "also after it was replayed"
        assert subtask.recovery.figures == RecoveryFigures(
            buffers_read=5, rows_read=5, buffers_spilled=4, buffers_replayed=4
        )
        assert subtask.pool.used_bytes == 0


def test_nothing_to_recover_ends_at_once(tmp_path: Path) -> None:
    """Both phases are reported all the same."""
    with Subtask(tmp_path, []) as subtask:
        assert subtask.until(RecoveryEnded) == [PhaseOneEnded(), RecoveryEnded()]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([X, Y]), st.booleans(), st.lists(st.integers(0, 30), max_size=4)), max_size=5),
    st.integers(1, 400),
    st.integers(8, 400),
)
def test_whatever_room_there_is_rows_come_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[tuple[ChannelId, bool, list[int]]],
    pool_bytes: int,
    target_bytes: int,
) -> None:
    """In memory or by way of the disk; and what is on the disk can be read by its number at any time."""
    start, recovered, wanted = 0, [], {X: [], Y: []}
    for channel, filtered, counts in sizes:
        made = []
        for count in counts:
            made.append(batch(start, count))
            wanted[channel] += [each for each in range(start, start + count) if not filtered or each % 2 == 0]
            start += count
        recovered.append(stored(channel, *made, filter_owned=even if filtered else None))
    folder = tmp_path_factory.getbasetemp()
    with Subtask(folder, recovered, pool_bytes=pool_bytes, target_bytes=target_bytes) as subtask:
        posted = subtask.until(RecoveryEnded, release=True)
        for channel in (X, Y):
            assert numbers(buffers(posted, channel)) == wanted[channel]
        for each in posted:
            if isinstance(each, RowsRecovered) and each.spilled is not None:
                assert subtask.recovery.read_spilled(each.spilled) == each.buffer.rows
    assert subtask.pool.used_bytes == 0


@pytest.mark.parametrize(
    "error", [CorruptStateError("The input state of channel 'keys' cannot be read.", what="it"), SystemExit(1)]
)
def test_an_error_ends_the_recovery_and_is_reported(tmp_path: Path, error: BaseException) -> None:
    """Damaged channel state, or a user's partitioner that raises, or calls sys.exit(): nothing follows."""

    def read() -> Iterator[pa.RecordBatch]:
        yield batch(0, 1)
        raise error

    with Subtask(tmp_path, [RecoveredInput(X, read)]) as subtask:
        with pytest.raises(type(error)):
            subtask.until(RecoveryEnded)
        assert subtask.posted.empty()


def test_a_disk_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The error says what it is for."""
    (tmp_path / "spill").write_text("a file where the folder should be")
    error = pytest.raises(StoredStateError, match=r"The spill file in .*spill cannot be made.*recovered rows")
    with Subtask(tmp_path, [stored(X, batch(0, 1), batch(1, 1))], pool_bytes=1) as subtask, error:
        subtask.until(RecoveryEnded)


def full(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[int], bool]) -> list[int]:
    """Let a disk be full for the writes, counted from 0, that this is true of; return the files that were written."""
    write, written = os.pwrite, list[int]()
    calls = iter(range(1_000_000))

    def pwrite(file: int, data: bytes, offset: int) -> int:
        if is_full(next(calls)):
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(file)
        return write(file, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    return written


@pytest.mark.parametrize("is_full", [lambda _: True, lambda call: call % 2 == 0], ids=["full", "full at times"])
def test_what_a_full_disk_has_no_room_for_waits_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_full: Callable[[int], bool]
) -> None:
    """A recovery that failed would begin again, find the disk full again, and so on for ever."""
    full(monkeypatch, is_full)
    with Subtask(tmp_path, [stored(X, *(batch(each, 1) for each in range(9)))], pool_bytes=1) as subtask:
        posted = subtask.until(RecoveryEnded, release=True)
        assert numbers(buffers(posted)) == list(range(9))


def test_the_next_local_folder_is_used_where_one_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the first one again, as soon as it has some."""
    written = full(monkeypatch, lambda call: call == 1)  # the second buffer, in the first folder
    with Subtask(tmp_path, [stored(X, *(batch(each, 1) for each in range(5)))], pool_bytes=1, other=True) as subtask:
        posted = subtask.until(PhaseOneEnded)
        assert sum(isinstance(each, RowsSpilled) for each in posted) == 4
        assert [written.index(each) for each in written] == [0, 1, 0, 0]
        subtask.pool.release(8)
        assert numbers(buffers([*posted, *subtask.until(RecoveryEnded, release=True)])) == list(range(5))


def test_close_ends_the_wait_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Promptly, and without another word; what was spilled is gone then."""
    monkeypatch.setattr("headgate.runtime.channel_recovery_thread._CLOSE_S", WAIT_S)
    with Subtask(tmp_path, [stored(X, batch(0, 1), batch(1, 1))], pool_bytes=1) as subtask:
        subtask.until(PhaseOneEnded)
        subtask.recovery.close()
        assert not subtask.recovery._thread.is_alive()
        assert subtask.posted.empty()
        with pytest.raises(StoredStateError, match="execution of its subtask has ended"):
            subtask.recovery.read_spilled(1)


def test_close_does_not_wait_for_a_read_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends later on its own, and nothing is reported."""
    monkeypatch.setattr("headgate.runtime.channel_recovery_thread._CLOSE_S", 0.01)
    reading, go_on = threading.Event(), threading.Event()

    def read() -> Iterator[pa.RecordBatch]:
        reading.set()
        assert go_on.wait(WAIT_S)
        yield batch(0, 1)

    with Subtask(tmp_path, [RecoveredInput(X, read)]) as subtask:
        assert reading.wait(WAIT_S)
        subtask.recovery.close()
        go_on.set()
        subtask.recovery._thread.join(WAIT_S)
        assert not subtask.recovery._thread.is_alive() and subtask.posted.empty()
        assert subtask.pool.used_bytes == 0


def test_close_before_start(tmp_path: Path) -> None:
    """An execution may end before it began to recover."""
    Subtask(tmp_path, []).recovery.close()


def test_no_file_is_left_not_even_by_a_crash(tmp_path: Path) -> None:
    """The spill file has no name while it is used; it is closed with the last one who reads from it."""
    with Subtask(tmp_path, [stored(X, batch(0, 1), batch(1, 1))], pool_bytes=1) as subtask:
        subtask.until(PhaseOneEnded)
        assert os.listdir(subtask.folder) == []
        assert subtask.recovery._spilled is not None
        (file,) = (each._file for each in subtask.recovery._spilled._files.values())
        before = os.fstat(file)
    assert not is_open(file, before)


def is_open(file: int, before: os.stat_result) -> bool:
    """Return whether a number is still of the file without a name that it was of: another thread may have it now."""
    try:
        now = os.fstat(file)
    except OSError:
        return False
    return os.path.samestat(now, before) and now.st_nlink == 0


def test_the_thread_is_named_and_a_daemon(tmp_path: Path) -> None:
    """FLIP-547's name for it; it keeps no process alive."""
    with Subtask(tmp_path, [stored(X, batch(0, 1), batch(1, 1))], pool_bytes=1) as subtask:
        subtask.until(PhaseOneEnded)
        thread = subtask.recovery._thread
        assert thread.is_alive() and thread.name == "headgate-channel-state-handling-1-0" and thread.daemon


def test_the_pool_always_lets_one_buffer_through() -> None:
    """However large it is; a second one waits."""
    pool = BufferPool(10)
    assert pool.try_acquire(50)
    assert not pool.try_acquire(1)
    pool.release(50)
    assert pool.try_acquire(4) and pool.try_acquire(6) and not pool.try_acquire(1)
    assert pool.used_bytes == 10
    with pytest.raises(AssertionError):
        pool.release(11)


def test_who_waits_for_room_gets_what_is_released() -> None:
    """Or leaves with nothing, when it is closed."""
    pool, closed, got = BufferPool(10), threading.Event(), queue.Queue[bool]()
    pool.try_acquire(10)
    waiting = threading.Thread(target=lambda: got.put(pool.acquire(8, closed.is_set)))
    waiting.start()
    pool.release(1)
    pool.release(9)
    assert got.get(timeout=WAIT_S) and pool.used_bytes == 8
    waiting = threading.Thread(target=lambda: got.put(pool.acquire(8, closed.is_set)))
    waiting.start()
    closed.set()
    pool.wake()
    assert not got.get(timeout=WAIT_S) and pool.used_bytes == 8
