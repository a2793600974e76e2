"""Channel state on its way to storage and back: as much of it is held as one buffer takes."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from headgate.checkpoint.channel_bytes import read_channel
from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.channels import ChannelId
from headgate.runtime.snapshot_parts import StoredRows, store_channels

CHANNEL = ChannelId("keys", 0, 0)
ROWS, BUFFERS = 1 << 17, 40
BUFFER_BYTES = 8 * ROWS


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


def test_a_channel_is_stored_and_read_back_a_buffer_at_a_time(tmp_path: Path) -> None:
    """However much is spilled: it is on the disk because memory has no room for it."""
    uploader = StateUploader(CheckpointStorage(str(tmp_path)), "w")
    try:
        storing = Spilled()
        held = [StoredRows(ROWS, storing.read)] * BUFFERS
        schemas = {"keys": pa.schema({"n": pa.int64()})}
        (state,) = store_channels(uploader, 1, "0-1", schemas, {CHANNEL: held}, frozenset(), output=False).result(60)
        assert (state.buffers, state.rows, state.size_bytes) == (BUFFERS, ROWS * BUFFERS, BUFFER_BYTES * BUFFERS)
        assert storing.held_bytes <= 3 * BUFFER_BYTES

        reading, rows = Spilled(), 0
        for batch in read_channel(uploader.open_channel(state.handle), CHANNEL, output=False):
            rows += batch.num_rows
            reading.note()
        assert rows == ROWS * BUFFERS
        assert reading.held_bytes <= 3 * BUFFER_BYTES
    finally:
        uploader.close()
