"""The parts of a subtask's snapshot that are channel state: a file for each, and little of all in the manifest."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.futures import done_with
from headgate.operators.exchange import Exchange
from headgate.protocol.channels import Buffer, ChannelId
from headgate.protocol.state import ChannelState, FileState, InlineState
from headgate.runtime.snapshot_parts import INLINE_BYTES, StoredRows
from headgate.runtime.snapshots import SafeSnapshot, Snapshots

SCHEMA = pa.schema({"n": pa.int64()})
OUTPUTS = ("a/b", "a_b", "c")  # two of which would be the same in the name of a file
CHANNELS = range(2)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage(str(tmp_path))


@pytest.fixture
def uploader(storage: CheckpointStorage) -> Iterator[StateUploader]:
    made = StateUploader(storage, "w")
    yield made
    made.close()


def channels_of(uploader: StateUploader, rows: int) -> tuple[ChannelState, ...]:
    """Return the channel state of a subtask with one input and three outputs, each of whose channels has rows."""
    exchange = Exchange(SCHEMA, "rebalance")
    stage = SimpleNamespace(sources=(), inputs={"in": exchange}, outputs=dict.fromkeys(OUTPUTS, exchange))
    mail: list[Any] = []
    posted = threading.Event()
    mailbox = SimpleNamespace(post=lambda each: (mail.append(each), posted.set()))
    context: Any = SimpleNamespace(
        stage=stage, uploader=uploader, deployed=SimpleNamespace(stage=1), number=3, mailbox=mailbox
    )
    safe: list[SafeSnapshot | BaseException] = []
    snapshots = Snapshots(
        context, has_gate=True, has_keyed_state=False, on_safe=lambda checkpoint_id, made: safe.append(made)
    )
    batch = pa.record_batch([list(range(rows))], schema=SCHEMA)
    held = {ChannelId("in", n, 0): [StoredRows(rows, lambda: batch)] for n in CHANNELS}
    snapshots.store_input(1, held, frozenset())
    for uid in OUTPUTS:
        snapshots.store_output(uid, 1, {ChannelId(uid, 0, n): [Buffer(batch, rows, batch.nbytes)] for n in CHANNELS})
    snapshots.take(1, {}, None, done_with({}), {})
    assert posted.wait(60)
    mail[0].run()
    (made,) = safe
    assert isinstance(made, SafeSnapshot)
    return made.channels


def test_each_part_is_one_file(uploader: StateUploader, storage: CheckpointStorage) -> None:
    states = channels_of(uploader, 1_000)
    files = {each.handle.path for each in states if isinstance(each.handle, FileState)}
    assert len(states) == len(CHANNELS) * (1 + len(OUTPUTS))
    names = ["1-3-input-w", "1-3-output-0-w", "1-3-output-1-w", "1-3-output-2-w"]
    assert sorted(files) == [f"chk-1/{name}" for name in names]
    assert storage.store.names("chk-1") == names


def test_all_parts_of_a_subtask_share_what_may_be_in_the_manifest(uploader: StateUploader) -> None:
    """A part that would fit by itself goes to a file: else each exchange would add as much again."""
    states = channels_of(uploader, 60)
    inlined = sum(len(each.handle.data) for each in states if isinstance(each.handle, InlineState))
    assert inlined <= INLINE_BYTES < sum(_size_bytes(each) for each in states)


def _size_bytes(state: ChannelState) -> int:
    return len(state.handle.data) if isinstance(state.handle, InlineState) else state.handle.size_bytes
