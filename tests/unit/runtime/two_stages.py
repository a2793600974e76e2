"""Two stages of a query in one process, wired by a data plane; the test is their coordinator."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest

from headgate.checkpoint.channel_assignment import ExchangePlan, assign_channels, relocated_exchanges
from headgate.checkpoint.channel_bytes import read_channel
from headgate.checkpoint.state_uploader import StateUploader
from headgate.checkpoint.storage import CheckpointStorage
from headgate.graph.plan import PlanNode, stage_graph
from headgate.graph.query_options import parse_query_options
from headgate.graph.stage_graph import QueryDefinition, SourceDefinition
from headgate.operators.exchange import Exchange
from headgate.operators.operator import Operator
from headgate.protocol import messages as msg
from headgate.protocol.channels import ChannelId
from headgate.protocol.messages import SubtaskId
from headgate.protocol.state import ChannelState, InlineState, OperatorState, StateHandle, SubtaskState
from headgate.runtime.channel_recovery_thread import RECOVERY_MEMORY_BYTES
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail
from headgate.runtime.output_exchange import MAX_QUEUED_BUFFERS
from headgate.runtime.subtask_thread import SubtaskThread
from headgate.source import Boundedness
from headgate.transport.data_plane import DataPlane
from tests.unit.runtime.toy_query import (
    PATIENCE_S,
    SCHEMA,
    ToyOperator,
    ToySink,
    ToySource,
    state_of,
)
from tests.waiting import wait_until

MessageT = TypeVar("MessageT", bound=msg.FromSlot)
CREDITS = 4
"""How many buffers wait at a consumer that does not read."""
QUEUED = CREDITS + MAX_QUEUED_BUFFERS
"""How many buffers wait between a producer and a consumer that does not read."""
OFF = {
    "execution.checkpointing.unaligned.recover-output-on-downstream.enabled": "false",
    "execution.checkpointing.unaligned.during-recovery.enabled": "false",
}
NOW_DUE_MS = 1


class SlowStorage(CheckpointStorage):
    """Writes nothing while a test holds it, and everything to files."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.open = threading.Event()
        self.open.set()

    def write_state(self, checkpoint_id: int, name: str, data: bytes, inline_bytes: int = 0) -> StateHandle:
        assert self.open.wait(PATIENCE_S)
        return super().write_state(checkpoint_id, name, data, 0)


class TimedOperator(ToyOperator):
    """Wants the time when ``due`` says so; ``time`` is called then."""

    def due_ms(self) -> int | None:
        due = self.does.get("due")
        return None if due is None else due()  # type: ignore[return-value]

    def process_time(self, now_ms: int, emit: Any) -> None:
        self._do("time")


class Pair:
    """Both subtasks of a slot; the test is the coordinator."""

    def __init__(
        self, location: Path, operator: Operator | None, feeding: Operator | None, options: Mapping[str, str],
        memory_bytes: int, threads: Sequence[Sequence[int]],
    ) -> None:  # fmt: skip
        self.source = ToySource()
        self.sink = ToySink()
        self.storage = SlowStorage(str(location / "checkpoints"))
        self.plane = DataPlane(1, "secret", "127.0.0.1")
        self.uploader = StateUploader(self.storage, "1-0-0")
        self.posted: list[msg.FromSlot] = []
        self.execution = self.generation = 0
        self._unread: queue.Queue[msg.FromSlot] = queue.Queue()
        self._restored: tuple[SubtaskState, SubtaskState] | None = None
        self.disks = [location / "spilled", location / "spilled on another disk"]
        services = SlotServices(
            plane=self.plane,
            uploader=self.uploader,
            spill_folders=tuple(str(each) for each in self.disks),
            recovery_memory_bytes=memory_bytes,
        )
        place = SlotPlace(
            run=1, slot=0, attempt=0, host="h", query_id="q", time_zone="UTC", checkpoint_location=str(location)
        )
        self._on_downstream = not options
        definition = self._definition(operator, feeding, options)
        self.threads = [
            SubtaskThread(
                definition,
                stages,
                place,
                post=self._post,
                on_ended=lambda stage, execution: None,
                read_state=self.storage.read_state,
                services=services,
            )
            for stages in threads
        ]
        self.runners = {stage: runner for thread in self.threads for stage, runner in thread.runners.items()}

    def _definition(
        self, operator: Operator | None, feeding: Operator | None, options: Mapping[str, str]
    ) -> QueryDefinition:
        node = PlanNode(
            of=SourceDefinition(
                uid="toy", source=self.source, schema=SCHEMA, boundedness=Boundedness.CONTINUOUS_UNBOUNDED
            ),
            name="toy",
        )
        if feeding is not None:
            node = node.then(feeding).named("feeding")
        node = node.then(Exchange(SCHEMA, "hash", keys=("n",))).named("keys")
        if operator is not None:
            node = node.then(operator).named("function")
        return QueryDefinition(
            graph=stage_graph(node),
            sink=self.sink,
            sink_format="toy",
            options=parse_query_options({"exchange.buffer-timeout": "0", **options}, {}),
            parallelism=1,
        )

    # Messages.

    def deliver(self, stage: int, message: Callable[..., msg.ToSlot], **fields: Any) -> None:
        self.runners[stage].deliver(message(stage=stage, execution=self.execution, **fields))

    def both(self, message: Callable[..., msg.ToSlot], **fields: Any) -> None:
        for stage in (0, 1):
            self.deliver(stage, message, **fields)

    def deploy(self, restored: tuple[SubtaskState, SubtaskState] | None = None, checkpoint_id: int = 0) -> None:
        """Deploy both subtasks, with the states of a checkpoint."""
        self.execution += 1
        self.generation += 1
        states = restored or (None, None)
        channels = [channel for state in states if state is not None for channel in state.channels]
        relocated = relocated_exchanges(channels, old_parallelism=1, parallelism=1)
        assigned = assign_channels(
            channels,
            {"keys": ExchangePlan(kind="hash", producer_stage=0, consumer_stage=1)},
            old_parallelism=1,
            parallelism=1,
            max_parallelism=128,
            on_downstream=self._on_downstream,
            relocated=relocated,
        )
        for stage, state in enumerate(states):
            self.deliver(
                stage,
                msg.Deploy,
                parallelism=1,
                restore=None if state is None else msgspec.structs.replace(state, channels=()),
                checkpoint_id=checkpoint_id,
                generation=self.generation,
                recovered=assigned.get(SubtaskId(stage, 0), ()),
                relocated=relocated,
            )

    def connect(self) -> None:
        self.both(msg.SlotsLocated, generation=self.generation, addresses={0: self.plane.address})

    def start(self, *, connect: bool = True) -> None:
        self.deploy()
        if connect:
            self.connect()
        for _ in range(2):
            self.next(msg.SubtaskRunning)
        self.deliver(0, msg.AssignSplits, source="toy", number=1, splits=(state_of("a"),))

    def restart(
        self, restored: tuple[SubtaskState, SubtaskState], checkpoint_id: int, *, unblocks: bool = False
    ) -> None:
        """Restart in place from a checkpoint, rows and messages of the old execution being under way.

        A sink that has no room gets none by that, unless ``unblocks``.
        """
        unblocks = unblocks or self.sink.room is None
        self.sink.room = self.sink.room or Future()
        self.deploy(restored, checkpoint_id)
        self.settle(0)
        self.settle(1)  # the old execution, which may still have been writing, is over
        self.sink.batches.clear()
        self.sink.calls.clear()
        if unblocks:
            self.unblock()
        self.connect()
        for _ in range(2):
            self.next(msg.SubtaskRunning)

    def trigger(self, checkpoint_id: int, **fields: Any) -> None:
        self.deliver(0, msg.TriggerCheckpoint, checkpoint_id=checkpoint_id, **{"unaligned": True, **fields})

    def acknowledged(self, checkpoint_id: int) -> tuple[SubtaskState, SubtaskState]:
        """Wait until both subtasks' parts of a checkpoint are safe; what the sink prepares for it is safe at once."""
        states: dict[int, SubtaskState] = {}
        wait_until(lambda: self.prepares(checkpoint_id) or 1 in states)
        prepared = self.sink.prepared[-1]
        if not prepared.done():
            prepared.set_result(OperatorState())
        while len(states) < 2:
            message = self.next(msg.CheckpointAcknowledged)
            if message.checkpoint_id == checkpoint_id:
                states[message.stage] = message.state
        return states[0], states[1]

    def prepares(self, checkpoint_id: int) -> bool:
        return any(isinstance(call, tuple) and call[:2] == ("prepare", checkpoint_id) for call in list(self.sink.calls))

    def next(self, kind: type[MessageT]) -> MessageT:
        while True:
            message = self._unread.get(timeout=PATIENCE_S)
            if isinstance(message, kind):
                return message
            assert not isinstance(message, msg.SubtaskFailed) or message.execution < self.execution, message

    def recovery_that_waits(self, phase: str) -> msg.RecoveryProgress:
        """Return how far the recovery of the consumer, which is blocked, is in the last phase it gets to."""
        gate = self.runners[1].subtask._execution._gate  # type: ignore[union-attr]
        found: list[msg.RecoveryProgress] = []

        def looked() -> bool:
            self.runners[1].post(Mail(lambda: found.append(gate.recovery_progress())))  # type: ignore
            self.settle(1)
            return found[-1].phase == phase and found[-1].memory_bytes > 0

        wait_until(looked)
        wait_until(lambda: any(isinstance(each, msg.SubtaskProgress) and each.recovery for each in list(self.posted)))
        return found[-1]

    def wait_for_order(self) -> None:
        """Wait until the consumer, which is blocked, has a snapshot to take."""
        execution = self.runners[1].subtask._execution
        assert execution is not None and execution._snapshots is not None
        snapshots = execution._snapshots
        wait_until(lambda: bool(snapshots.barriers))

    def settle(self, stage: int) -> None:
        """Wait until a subtask has handled all messages up to now."""
        done = threading.Event()
        self.runners[stage].post(Mail(done.set))
        assert done.wait(PATIENCE_S)

    # Rows.

    def offer(self, *numbers: int) -> None:
        """Let the source emit each number as a batch, and so a buffer, of its own."""
        for number in numbers:
            self.source.reader.offer("a", number)

    def block(self) -> None:
        """Let the consumer process nothing from now on."""
        self.sink.room = Future()
        self.settle(1)

    def unblock(self) -> None:
        room, self.sink.room = self.sink.room, None
        assert room is not None
        room.set_result(None)

    def fill(self, first: int = 0) -> list[int]:
        """Emit what the blocked consumer does not take, until the producer has no room for more."""
        numbers = list(range(first, first + QUEUED))
        self.offer(*numbers)
        wait_until(lambda: self._emitted() >= first + QUEUED)
        self.settle(0)
        self.settle(1)
        return numbers

    def checkpoint_in_flight(self, **how: Any) -> tuple[list[int], tuple[SubtaskState, SubtaskState]]:
        """Return what was emitted, and checkpoint 1 with as much of it in flight as there may be."""
        self.block()
        numbers = self.fill()
        self.trigger(1, **how)
        self.wait_for_order()
        self.unblock()
        return numbers, self.acknowledged(1)

    def _emitted(self) -> int:
        split = self.source.reader.splits.get("a")
        return 0 if split is None else split.position

    def failures(self) -> list[msg.SubtaskFailed]:
        return [message for message in self.posted if isinstance(message, msg.SubtaskFailed)]

    def close(self) -> None:
        self.storage.open.set()
        for thread in self.threads:
            thread.close(PATIENCE_S)
            assert not thread._thread.is_alive()
        self.plane.close()
        self.uploader.close()

    def _post(self, message: msg.FromSlot) -> None:
        self.posted.append(message)
        self._unread.put(message)


def position(state: SubtaskState) -> int:
    (split,) = state.readers["toy"].splits
    return int(ToySource.split_serializer.deserialize(split.data).position)


def numbers_in(pair: Pair, channels: tuple[ChannelState, ...]) -> dict[bool, list[int]]:
    """Return the numbers of the rows in channel state, by side: True for output."""
    found: dict[bool, list[int]] = {}
    for each in channels:
        data = each.handle.data if isinstance(each.handle, InlineState) else pair.storage.read_state(each.handle)
        batches = read_channel(data, ChannelId(each.exchange, each.producer, each.consumer), output=each.output)
        found[each.output] = [n for batch in batches for n in batch.column("n").to_pylist()]
    return found


Start = Callable[..., Pair]


@pytest.fixture(params=[((0,), (1,)), ((0, 1),)], ids=["two-threads", "one-thread"])
def start(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Start]:
    made: list[Pair] = []

    def make(
        operator: Operator | None = None,
        feeding: Operator | None = None,
        options: Mapping[str, str] | None = None,
        *,
        connect: bool = True,
        memory_bytes: int = RECOVERY_MEMORY_BYTES,
    ) -> Pair:
        made.append(Pair(tmp_path / str(len(made)), operator, feeding, options or {}, memory_bytes, request.param))
        made[-1].start(connect=connect)
        return made[-1]

    yield make
    for pair in made:
        pair.close()
