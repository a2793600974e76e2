"""What the driver does for a thousand slots, without Spark: its machines, messages as bytes, its manifest on a disk.

A query of two stages, which a hash exchange connects. Some channels of each subtask have rows when a checkpoint is
taken; what they hold is not made, only named, for the driver sees no more. Each case returns its figures by name:

    assign      who takes on which channel state, when a query of so many slots starts with one slot less
    restart     such a query starts: the manifest is read, all that its slots are sent for it is encoded
    checkpoint  from the order to the message that it is complete: every acknowledgement decoded and handled, the
                manifest made, written to a local disk; and how large it is
    messages    how many heartbeats and reports of progress a second the driver's thread decodes and handles

Seconds are those of the driver's processor: the slots' side (making messages) is not counted.

    python -m bench.scale_driver --slots 1000 --filled 10
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from rich.table import Table

from bench.frame import console
from headgate.checkpoint import checkpoint_events as cp
from headgate.checkpoint.channel_assignment import ExchangePlan, assign_channels, relocated_exchanges
from headgate.checkpoint.coordinator import CheckpointOptions
from headgate.checkpoint.manifest import Manifest, SourceEntry, deserialize, serialize
from headgate.checkpoint.restore import restore
from headgate.checkpoint.storage import CheckpointStorage
from headgate.coordinator.job import job_events as job
from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.job_master import JobMaster
from headgate.coordinator.job.job_plan import JobOptions, JobPlan, SourcePlan
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.source_state import SourceState, encode_source_state
from headgate.protocol import messages as msg
from headgate.protocol.key_groups import key_group_range
from headgate.protocol.messages import CheckpointKind, SubtaskId
from headgate.protocol.session import Session
from headgate.protocol.state import (
    ChannelState,
    ChunkState,
    FileState,
    InlineState,
    KeyedState,
    OperatorState,
    ReaderState,
    RecoveredChannel,
    SplitState,
    SubtaskState,
)

SUMMARY = "the driver of a query with a thousand slots"
REQUIRED_S = 1.0
REQUIRED_PER_S = 10_000
REQUIRED_MANIFEST_BYTES = 20_000_000
MAX_PARALLELISM = 4_096
UID, EXCHANGE = "source", "keys"

Figures = dict[str, float]


def plan_of(slots: int) -> JobPlan:
    """Return a query of two stages."""
    return JobPlan(
        sources={UID: SourcePlan(name="bench", reassigns_on_recovery=False)},
        stages=((UID, "parse"), ("window", "sink")),
        parallelism=slots,
        max_parallelism=MAX_PARALLELISM,
        query_id="0b6cdd14-bd0b-4d65-a44b-9b6c5a6f0a0d",
        run=1,
        exchanges={EXCHANGE: ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
    )


# What subtasks contribute.


def channels_of(subtask: SubtaskId, slots: int, filled: int, checkpoint_id: int = 1) -> tuple[ChannelState, ...]:
    """Return the channel state of a subtask, ``filled`` of whose channels have rows: all of it in one file."""
    output, number = subtask.stage == 0, subtask.subtask
    side = "output-0" if output else "input"
    path = f"chk-{checkpoint_id}/{subtask.stage}-1-{side}-run-1-slot-{number}-attempt-0"
    found = []
    for index in range(filled):
        other = (number + index * max(1, slots // max(1, filled))) % slots
        handle = FileState(path, 9_000, 0x9E3779B9 ^ index, 9_000 * index)
        found.append(
            ChannelState(
                exchange=EXCHANGE,
                producer=number if output else other,
                consumer=other if output else number,
                output=output,
                handle=handle,
                buffers=4,
                rows=1_000,
                size_bytes=8_000,
            )
        )
    return tuple(found)


def state_of(subtask: SubtaskId, slots: int, filled: int, checkpoint_id: int = 1) -> SubtaskState:
    """Return a subtask's part of a checkpoint."""
    channels = channels_of(subtask, slots, filled, checkpoint_id)
    number = subtask.subtask
    if subtask.stage == 0:
        split = SplitState(f"topic-{number}", b'{"position":123456,"topic":"topic","partition":%d,"v":1}' % number)
        return SubtaskState(readers={UID: ReaderState(splits=(split,))}, channels=channels)
    groups = key_group_range(number, slots, MAX_PARALLELISM)
    chunks = tuple(
        ChunkState(
            chunk_id=f"window/1/{number}/{each}",
            handle=FileState(f"shared/window/window%2F1%2F{number}%2F{each}", 100_000, 7),
            first_key_group=groups.first,
            last_key_group=groups.last,
        )
        for each in range(4)
    )
    staged = OperatorState(committables=(b'{"file":"part-%05d-0b6cdd14.parquet"}' % number,))
    return SubtaskState(operators={"sink": staged}, keyed={"window": KeyedState(chunks=chunks)}, channels=channels)


def subtasks_of(slots: int) -> Iterator[SubtaskId]:
    """Yield the subtasks of the query."""
    return (SubtaskId(stage, number) for stage in (0, 1) for number in range(slots))


def manifest_of(slots: int, filled: int) -> Manifest:
    """Return a checkpoint of so many slots."""
    plan = plan_of(slots)
    states = {subtask: state_of(subtask, slots, filled) for subtask in subtasks_of(slots)}
    return Manifest(
        checkpoint_id=1, epoch=1, kind=CheckpointKind.SUSPEND, query_id=plan.query_id, run=1, created_ms=0,
        parallelism=slots, max_parallelism=plan.max_parallelism, stages=plan.stages, exchanges=plan.exchanges,
        sources={UID: SourceEntry(name="bench", enumerator=InlineState(encode_source_state(SourceState(b"{}"))))},
        subtasks=tuple(
            tuple(msgspec.structs.replace(states[SubtaskId(stage, n)], channels=()) for n in range(slots))
            for stage in (0, 1)
        ),
        channels=tuple(channel for state in states.values() for channel in state.channels),
        channels_parallelism=slots,
    )  # fmt: skip


class Clock:
    """Adds up the processor time of what is measured: others may use the machine meanwhile."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the time of a block."""
        begin = time.thread_time()
        try:
            yield
        finally:
            self.seconds += time.thread_time() - begin


@contextmanager
def _without_garbage() -> Iterator[None]:
    """Keep what the bench itself holds out of the collector's way, in which it would cost time every time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


# The driver.


class Driver:
    """A job master, with the slots' ends of its streams. What comes and goes is bytes, as on a connection.

    Parameters
    ----------
    slots
        How many.
    restored
        What it starts from, made for so many slots; None: afresh.
    """

    def __init__(self, slots: int, restored: Manifest | None = None) -> None:
        options = JobOptions(checkpoints=CheckpointOptions(interval_ms=None))
        self.master = JobMaster(plan_of(slots), options, restored, random.Random(0))
        self.slots = slots
        self.clock = Clock()
        self.sessions = [Session(run=1, slot=slot, attempt=0) for slot in range(slots)]
        self.sent: list[bytes] = []  # to slots
        self.ordered: list[job.Action] = []  # of the storage, and of whoever asked for a checkpoint

    def handle(self, event: job.Event) -> None:
        """Let the driver handle an event, and carry out what it orders."""
        with self.clock.running():
            self._carry_out(self.master.handle(event, 0))

    def hear(self, slot: int, envelopes: Iterable[msg.Envelope]) -> None:
        """Let the driver get messages of a slot."""
        for data in [msg.encode(envelope) for envelope in envelopes]:
            with self.clock.running():
                self._carry_out(self.master.handle(job.SlotMessageReceived(slot + 1, msg.decode(data)), 0))

    def start(self) -> None:
        """Let all slots come, and all subtasks run."""
        self.handle(sch.QueryStarted())
        for slot, session in enumerate(self.sessions):
            about = msg.RegisterSlot(host=f"host-{slot}", data_address=f"grpc://host-{slot}.example.org:45678")
            self.hear(slot, [session.send_uncounted(about)])
        for slot, session in enumerate(self.sessions):
            registered = msg.ReaderRegistered(stage=0, execution=1, source=UID, host=f"host-{slot}")
            running = [msg.SubtaskRunning(stage=stage, execution=1) for stage in (0, 1)]
            self.hear(slot, [session.send(each) for each in (registered, *running)])
        assert self.master.status().state == "running"

    def messages(self, kind: type[Any]) -> list[Any]:
        """Return what slots were sent of a kind, and forget all that they were sent."""
        sent, self.sent = self.sent, []
        return [each for each in (msg.decode(data).message for data in sent) if isinstance(each, kind)]

    def _carry_out(self, actions: list[job.Action]) -> None:
        for action in actions:
            match action:
                case job.Transmit(envelope=envelope):
                    self.sent.append(msg.encode(envelope))
                case job.ForSource(action=src.AppendLog(number=number)):
                    self._carry_out(self.master.handle(job.FromSource(UID, src.LogAppended(number)), 0))
                case cp.WriteManifest() | cp.AnswerRequest() | cp.Commit():
                    self.ordered.append(action)


# The cases.


def assign(slots: int, filled: int, now: int | None = None) -> Figures:
    """Return how long it takes to deal out channel state, to ``now`` slots: one less than there were by default."""
    manifest, now = manifest_of(slots, filled), now or slots - 1
    plan, clock = plan_of(now), Clock()
    assigned: dict[SubtaskId, tuple[RecoveredChannel, ...]] = {}
    with _without_garbage(), clock.running():
        relocated = relocated_exchanges(manifest.channels, old_parallelism=slots, parallelism=now)
        assigned = assign_channels(
            manifest.channels,
            plan.exchanges,
            old_parallelism=slots,
            parallelism=now,
            max_parallelism=manifest.max_parallelism,
            on_downstream=True,
            relocated=relocated,
        )
    taken = sum(map(len, assigned.values()))
    return {"seconds": clock.seconds, "channels": len(manifest.channels), "taken on": taken}


def restart(slots: int, filled: int) -> Figures:
    """Return how long the driver takes to deploy a query with one slot less than its checkpoint has."""
    data, clock = serialize(manifest_of(slots, filled)), Clock()
    with _without_garbage():
        with clock.running():
            restored = restore(deserialize(data, "m"), plan_of(slots - 1))
        driver = Driver(slots - 1, restored)
        driver.start()
    sent_bytes = sum(map(len, driver.sent))
    deploys = driver.messages(msg.Deploy)
    return {
        "seconds": clock.seconds + driver.clock.seconds,
        "deployed": len(deploys),
        "taken on": sum(len(each.recovered) for each in deploys),
        "sent bytes": sent_bytes,
    }


def checkpoint(slots: int, filled: int) -> Figures:
    """Return how long the driver works for a checkpoint, and how large its manifest is."""
    driver, folder = Driver(slots), Path(tempfile.mkdtemp(prefix="headgate-bench-"))
    try:
        storage = CheckpointStorage(str(folder))
        driver.start()
        driver.sent.clear()
        with _without_garbage():
            driver.clock.seconds = 0.0
            driver.handle(cp.CheckpointRequested(1, CheckpointKind.CHECKPOINT))
            driver.handle(job.TimePassed())
            driver.handle(job.FromSource(UID, src.EnumeratorSnapshotted(1, 1, b"{}")))
            for subtask in subtasks_of(slots):
                state = state_of(subtask, slots, filled)
                done = msg.CheckpointAcknowledged(stage=subtask.stage, execution=1, checkpoint_id=1, state=state)
                driver.hear(subtask.subtask, [driver.sessions[subtask.subtask].send(done)])
            acknowledged_s = driver.clock.seconds
            (write,) = (each for each in driver.ordered if isinstance(each, cp.WriteManifest))
            with driver.clock.running():
                size_bytes = storage.write_manifest(write.manifest)
            written_s = driver.clock.seconds - acknowledged_s
            driver.handle(cp.ManifestWritten(1, size_bytes))
        answers = [each.checkpoint_id for each in driver.ordered if isinstance(each, cp.AnswerRequest)]
        assert answers == [1]
        return {
            "seconds": driver.clock.seconds,
            "acknowledgements (s)": acknowledged_s,
            "manifest (s)": written_s,
            "manifest bytes": (folder / "chk-1" / "_metadata").stat().st_size,
            "channels": len(write.manifest.channels),
            "completed": len(driver.messages(msg.CheckpointCompleted)),
        }
    finally:
        shutil.rmtree(folder)


def messages(slots: int, count: int) -> Figures:
    """Return how many messages the driver handles a second: every fourth is a report of progress."""
    driver = Driver(slots)
    driver.start()
    progress = msg.SubtaskProgress(
        stage=0, execution=1, rows_in={UID: 123_456}, rows_out={}, splits={UID: 1}, watermark_ms=1_790_000_000_000,
        positions={UID: {"topic-0": b'{"position":123456,"topic":"topic","v":1}'}}, busy_ms={UID: 1_234, "parse": 567},
    )  # fmt: skip
    driver.clock.seconds = 0.0
    shown = 0
    with _without_garbage():
        for number in range(count):
            session = driver.sessions[number % slots]
            message = progress if number // slots % 4 == 3 else msg.SlotHeartbeat()
            driver.hear(number % slots, [session.send_uncounted(message)])
            shown += message is progress
    return {"messages/s": count / driver.clock.seconds, "messages": count, "progress": shown}


CASES: dict[str, Callable[[int, int], Figures]] = {
    "assign": assign,
    "restart": restart,
    "checkpoint": checkpoint,
    "messages": lambda slots, filled: messages(slots, 20 * slots),
}


def run(slots: int, filled: int) -> dict[str, Figures]:
    """Return the figures of all cases."""
    return {name: case(slots, filled) for name, case in CASES.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.scale_driver", description=SUMMARY)
    parser.add_argument("--slots", type=int, default=1_000)
    parser.add_argument("--filled", type=int, default=10, help="how many channels of each subtask have rows")
    parser.add_argument("--only", action="append", choices=CASES)
    arguments = parser.parse_args()
    title = f"{arguments.slots:,} slots x 2 stages, rows in {arguments.filled:,} channels of each subtask"
    table = Table("case", "figure", "value", title=title, title_justify="left")
    for name in arguments.only or CASES:
        for figure, value in CASES[name](arguments.slots, arguments.filled).items():
            table.add_row(name, figure, f"{value:,.0f}" if value >= 100 else f"{value:.3f}")
            name = ""
    console.print(table)


if __name__ == "__main__":
    main()
