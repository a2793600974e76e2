"""Channel state on its way to storage and back: as much of it is held as one buffer takes, in one file for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from headgate.checkpoint.channel_bytes import read_channel
from headgate.checkpoint.file_store import LocalStore, open_store
from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import CorruptStateError
from headgate.protocol.channels import ChannelId
from headgate.protocol.state import ChannelState, FileState, InlineState
from headgate.runtime.snapshot_parts import INLINE_BYTES, StoredRows, store_channels

SCHEMA = pa.schema({"n": pa.int64()})
SCHEMAS = {"keys": SCHEMA, "other": SCHEMA}
ROWS, BUFFERS = 1 << 17, 20
BUFFER_BYTES = 8 * ROWS
Held = Mapping[ChannelId, list[StoredRows]]


class Spilled:
    """Buffers that are made when they are read, as those of a disk are; notes how much memory Arrow holds then."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._before = pa.total_allocated_bytes()

    def note(self) -> None:
        self.held_bytes = max(self.held_bytes, pa.total_allocated_bytes() - self._before)

    def read(self) -> pa.RecordBatch:
        self.note()
        sink = pa.BufferOutputStream()
        sink.write(bytes(BUFFER_BYTES))
        return pa.record_batch([pa.Array.from_buffers(pa.int64(), ROWS, [None, sink.getvalue()])], names=["n"])


class CountedStore(LocalStore):
    """Local files; counts what is read of them."""

    def __init__(self, location: str) -> None:
        opened = open_store(location)
        super().__init__(opened.file_system, opened.base)
        self.read_bytes = 0

    def read(self, name: str, size_bytes: int | None = None, offset: int = 0) -> bytes:
        data = super().read(name, size_bytes, offset)
        self.read_bytes += len(data)
        return data

    def open(self, name: str, offset: int | None = None, size_bytes: int = 0) -> pa.NativeFile:
        opened = super().open(name, offset, size_bytes)
        count = self

        class Counted:
            closed = False

            def read(self, size: int = -1) -> bytes:
                data: bytes = opened.read(size)
                count.read_bytes += len(data)
                return data

            def close(self) -> None:
                opened.close()

        return pa.PythonFile(Counted(), mode="r")


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path), CountedStore(str(tmp_path)))


@pytest.fixture
def uploader(storage: CheckpointStorage) -> Iterator[StateUploader]:
    made = StateUploader(storage, "w")
    yield made
    made.close()


def stored(uploader: StateUploader, channels: Held, **how: Any) -> list[ChannelState]:
    found = store_channels(uploader, 1, "0-1-input", SCHEMAS, channels, frozenset({"other"}), output=False, **how)
    return found.result(60)


def rows_of(*numbers: int) -> StoredRows:
    return StoredRows(len(numbers), lambda: pa.record_batch([list(numbers)], schema=SCHEMA))


def channel_of(state: ChannelState) -> ChannelId:
    return ChannelId(state.exchange, state.producer, state.consumer)


def read(uploader: StateUploader, state: ChannelState) -> list[int]:
    batches = list(read_channel(uploader.open_rows(state.handle), channel_of(state), output=False))
    assert len(batches) == state.buffers
    return [n for batch in batches for n in batch.column("n").to_pylist()]


def test_channels_are_stored_and_read_back_a_buffer_at_a_time(uploader: StateUploader) -> None:
    """However much is spilled: it is on the disk because memory has no room for it."""
    storing = Spilled()
    held = [StoredRows(ROWS, storing.read)] * BUFFERS
    first, second = stored(uploader, {ChannelId("keys", 0, 0): held, ChannelId("keys", 1, 0): held})
    assert (second.buffers, second.rows, second.size_bytes) == (BUFFERS, ROWS * BUFFERS, BUFFER_BYTES * BUFFERS)
    assert storing.held_bytes <= 3 * BUFFER_BYTES
    for state in (first, second):
        reading, rows = Spilled(), 0
        for batch in read_channel(uploader.open_rows(state.handle), channel_of(state), output=False):
            rows += batch.num_rows
            reading.note()
        assert rows == ROWS * BUFFERS
        assert reading.held_bytes <= 3 * BUFFER_BYTES


def test_what_is_written_is_held_no_longer(uploader: StateUploader) -> None:
    """The buffers of a channel are free for its successor's as soon as they are in the file."""
    before, left = pa.total_allocated_bytes(), []

    class Held:
        def __init__(self) -> None:
            self.batch = Spilled().read()

        def read(self) -> pa.RecordBatch:
            left.append(pa.total_allocated_bytes() - before)
            return self.batch

    channels = {ChannelId("keys", producer, 0): [StoredRows(ROWS, Held().read)] for producer in range(8)}
    storing = store_channels(uploader, 1, "a", SCHEMAS, channels, frozenset(), output=False)
    channels.clear()
    storing.result(60)
    assert left[-1] < left[0] - 4 * BUFFER_BYTES


def test_a_thousand_channels_of_all_exchanges_are_one_file(uploader: StateUploader, storage: CheckpointStorage) -> None:
    channels = {
        ChannelId(exchange, producer, 7): [rows_of(producer), rows_of(producer, -producer)]
        for exchange in ("keys", "other")
        for producer in range(500)
    }
    states = stored(uploader, channels)
    assert storage.store.names("chk-1") == ["0-1-input-w"]
    assert {channel_of(state): (state.relocated, read(uploader, state)) for state in states} == {
        channel: (channel.exchange == "other", [channel.producer, channel.producer, -channel.producer])
        for channel in channels
    }
    end = 0
    for state in states:
        assert isinstance(state.handle, FileState) and state.handle.offset == end
        end += state.handle.size_bytes
    assert storage.store.sizes(["chk-1/0-1-input-w"]) == [end]


def test_where_no_channel_has_rows_there_is_no_file(uploader: StateUploader, storage: CheckpointStorage) -> None:
    assert stored(uploader, {}, inline_bytes=0) == []
    assert storage.store.names("chk-1") == []


@pytest.mark.parametrize("buffers", [1, 300], ids=["read at once", "read piece by piece"])
def test_of_a_file_only_what_is_wanted_is_read(
    uploader: StateUploader, storage: CheckpointStorage, buffers: int
) -> None:
    """Who takes on one channel of many, as after a rescale, does not read the others."""
    states = stored(uploader, {ChannelId("keys", p, 0): [rows_of(*range(900))] * buffers for p in range(20)})
    counted = storage.store
    assert isinstance(counted, CountedStore) and counted.read_bytes == 0
    assert read(uploader, states[7]) == [*range(900)] * buffers
    wanted = states[7].handle
    assert isinstance(wanted, FileState)
    times = 1 if wanted.size_bytes <= 1 << 20 else 2  # that of a large one is checked first
    assert counted.read_bytes == times * wanted.size_bytes
    assert (times == 2) == (buffers == 300)


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_what_a_subtask_has_in_the_manifest_is_bounded_however_many_channels_there_are(
    uploader: StateUploader, count: int
) -> None:
    states = stored(uploader, {ChannelId("keys", producer, 0): [rows_of(producer)] for producer in range(count)})
    inlined = sum(len(state.handle.data) for state in states if isinstance(state.handle, InlineState))
    assert inlined <= INLINE_BYTES
    assert (inlined > 0) == (count < 1000)
    assert [read(uploader, state) for state in states] == [[producer] for producer in range(count)]


def test_parts_that_are_mixed_up_are_found_out(uploader: StateUploader) -> None:
    """A channel's bytes name it, and its handle has their check sum."""
    first, second = stored(uploader, {ChannelId("keys", p, 0): [rows_of(p)] for p in range(2)}, inline_bytes=0)
    with pytest.raises(CorruptStateError, match="found The input state of channel 'keys' from subtask 1 to 0"):
        read(uploader, msgspec.structs.replace(first, handle=second.handle))
    shifted = msgspec.structs.replace(second.handle, offset=1)
    with pytest.raises(CorruptStateError, match=r"0-1-input-w .*from byte 1 on, found: .* with the CRC-32"):
        read(uploader, msgspec.structs.replace(first, handle=shifted))
