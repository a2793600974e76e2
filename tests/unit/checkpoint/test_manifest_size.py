"""The manifest of a thousand slots: channels without rows cost nothing, and those with rows little."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pyarrow as pa
import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan
from headgate.checkpoint.manifest import Manifest, deserialize, serialize
from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.protocol.channels import Barrier, Buffer, ChannelId
from headgate.protocol.messages import CheckpointKind
from headgate.protocol.state import ChannelState, FileState, InlineState, SubtaskState
from headgate.runtime.snapshot_parts import INLINE_BYTES, StoredRows, store_channels
from headgate.simulation.stored_files import StoredFiles
from headgate.task.exchange import input_gate as ig
from headgate.task.exchange import result_partition as rp

SLOTS, FILLED = 1_000, 10
MOST_BYTES = 20_000_000
SCHEMA = pa.schema({"key": pa.string(), "n": pa.int64()})
Stored = dict[ChannelId, list[StoredRows]]


class Later:
    """Does an uploader's work when a test lets it."""

    def __init__(self) -> None:
        self.work: list[Callable[[], None]] = []

    def do(self, work: Callable[[], None]) -> None:
        self.work.append(work)

    def run(self) -> None:
        self.work.pop()()

    def close(self, timeout_s: float) -> None:
        pass


def buffer_of(rows: int) -> Buffer:
    batch = pa.record_batch([pa.array([f"key-{n}" for n in range(rows)]), pa.array(range(rows))], schema=SCHEMA)
    return Buffer(batch, rows, batch.nbytes)


def as_stored(channels: dict[ChannelId, tuple[Buffer, ...]]) -> Stored:
    return {
        channel: [StoredRows(each.num_rows, lambda each=each: each.rows) for each in held]  # type: ignore[misc]
        for channel, held in channels.items()
    }


def output_of(filled: int, buffer: Buffer) -> Stored:
    """Return the channel state of a producer of a thousand consumers, a few of which have no credit."""
    partition = rp.ResultPartition("keys", 0, range(SLOTS), supports_unaligned=True)
    for consumer in range(SLOTS):
        partition.handle(rp.ConsumerConnected(consumer), 0)
        if consumer % (SLOTS // filled):
            partition.handle(rp.CreditGranted(consumer, 4), 0)
        partition.handle(rp.RowsEmitted(consumer, buffer), 0)
    actions = partition.handle(rp.BarrierEmitted(Barrier(checkpoint_id=1, unaligned=True)), 0)
    (stored,) = (each for each in actions if isinstance(each, rp.StoreChannels))
    return as_stored(stored.channels)


def input_of(filled: int, buffer: Buffer) -> Stored:
    """Return the channel state of a consumer of a thousand producers, a few of which have sent rows."""
    gate = ig.InputGate(0, {"keys": ig.GateInput(stage=0, producers=tuple(range(SLOTS)), supports_unaligned=True)})
    actions: list[ig.Action] = []
    for producer in range(SLOTS):
        channel = ChannelId("keys", producer, 0)
        gate.handle(ig.ChannelConnected(channel), 0)
        if producer % (SLOTS // filled) == 0:
            gate.handle(ig.ElementArrived(channel, buffer), 0)
    for producer in range(SLOTS):
        barrier = Barrier(checkpoint_id=1, unaligned=True)
        actions += gate.handle(ig.ElementArrived(ChannelId("keys", producer, 0), barrier), 0)
    (stored,) = (each for each in actions if isinstance(each, ig.StoreChannels))
    return as_stored(stored.channels)


def manifest_of(filled: int, rows: int) -> Manifest:
    """Return the manifest of a thousand slots of two stages, each of whose subtasks stores what these do."""
    storage, workers = CheckpointStorage("", StoredFiles(lambda: 0)), Later()
    channels: list[ChannelState] = []
    sides = ((True, output_of), (False, input_of)) if filled else ()
    for output, of in sides:
        held = of(filled, buffer_of(rows))
        assert len(held) == filled  # channels without rows are in no subtask's state
        for slot in range(SLOTS):
            uploader = StateUploader(storage, f"run-1-slot-{slot}-attempt-0", workers)
            own = {
                ChannelId(each.exchange, slot if output else each.producer, each.consumer if output else slot): rows
                for each, rows in held.items()
            }
            name = "0-1-output-0" if output else "1-1-input"
            stored = store_channels(uploader, 1, name, {"keys": SCHEMA}, own, frozenset(), output=output)
            workers.run()
            states = stored.result(0)
            assert sum(len(each.handle.data) for each in states if isinstance(each.handle, InlineState)) <= INLINE_BYTES
            channels += states
    stages = (tuple(SubtaskState() for _ in range(SLOTS)),) * 2
    return Manifest(
        checkpoint_id=1, epoch=1, kind=CheckpointKind.CHECKPOINT, query_id="q", run=1, created_ms=0,
        parallelism=SLOTS, max_parallelism=4096, sources={}, stages=(("a",), ("b",)), subtasks=stages,
        exchanges={"keys": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
        channels=tuple(channels), channels_parallelism=SLOTS,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("filled", "rows", "kind"), [(FILLED, 1_000, FileState), (4, 1, InlineState)], ids=["in files", "in the manifest"]
)
def test_it_is_small_where_most_channels_have_no_rows(filled: int, rows: int, kind: type) -> None:
    """A thousand slots of two stages have a million channels, each with two sides."""
    made = manifest_of(filled, rows)
    assert len(made.channels) == 2 * SLOTS * filled
    assert {type(each.handle) for each in made.channels} == {kind}
    files = {each.handle.path for each in made.channels if isinstance(each.handle, FileState)}
    assert len(files) == (2 * SLOTS if kind is FileState else 0)
    data = serialize(made)
    assert len(data) < MOST_BYTES
    assert deserialize(data, "m") == made


def test_channels_without_rows_cost_nothing() -> None:
    empty = manifest_of(0, 0)
    none = msgspec.structs.replace(empty, exchanges={})
    assert len(serialize(empty)) - len(serialize(none)) < 200
