"""Which rows of the machines' tables a simulation has met, as pairs of a state and an event.

Never: change what a machine does: its `handle` is watched.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.coordinator.job.scheduler import Scheduler
from headgate.coordinator.slots.slots import SlotAttempts
from headgate.coordinator.sources.reader_machine import ReaderMachine
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.machine import Machine, steps_of
from headgate.readers.lending import Lending
from headgate.task.exchange.barrier_handler import BarrierHandler
from headgate.task.exchange.channel_recovery import ChannelRecovery
from headgate.task.exchange.consumer_queue import ConsumerQueue
from headgate.task.exchange.gate_channel import GateChannel
from headgate.task.exchange.gate_recovery import GateRecovery
from headgate.task.exchange.input_gate import InputGate
from headgate.task.exchange.result_partition import ResultPartition
from headgate.task.exchange.watermark_valve import WatermarkValve
from headgate.task.slot import SlotMachine
from headgate.task.subtask import SubtaskMachine
from headgate.task.task_loop import TaskLoop

Pair = tuple[str, str]


MACHINES: tuple[type[Machine], ...] = (
    SlotMachine, SubtaskMachine, SlotAttempts, Scheduler, CheckpointCoordinator, SourceCoordinator, ReaderMachine,
    TaskLoop, InputGate, GateChannel, GateRecovery, BarrierHandler, WatermarkValve, ResultPartition, ConsumerQueue,
    ChannelRecovery, Lending,
)  # fmt: skip
"""Those that are watched."""


# Rows that no cluster makes: (machine, states, events, why). They stand in the tables because the machine does not rely
# on what its neighbour happens to do. One that is met after all is a `Coverage.surprise`.
_NOT_IN_A_CLUSTER: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "SubtaskMachine",
        ("opening", "running", "suspended", "drained", "ended"),
        ("Deploy", "StaleMessage"),
        "the scheduler cancels first, and a stream keeps its order",
    ),
    (
        "SubtaskMachine",
        ("opening",),
        ("CheckpointCompleted", "CheckpointAborted"),
        "a checkpoint is given up before anything is deployed",
    ),
    (
        "SubtaskMachine",
        ("ended",),
        ("AssignSplits",),
        "what an ended reader has it reports, before anything is sent again",
    ),
    ("SubtaskMachine", ("drained",), ("TriggerCheckpoint",), "a drain that fails starts the subtask again"),
    ("CheckpointCoordinator", ("suspended",), ("CheckpointRequested",), "the master answers once slots are released"),
    ("CheckpointCoordinator", ("suspended",), ("SubtasksRunning", "InputAllEnded", "Stale"), "slots are released"),
    (
        "SlotMachine",
        ("connecting", "registering", "connected", "waiting", "exited"),
        ("SlotCancelled",),
        "slots are Spark's tasks here, which Spark kills",
    ),
    (
        "SourceCoordinator",
        ("closed", "failed"),
        ("CheckpointStarted",),
        "everything is cancelled with a request for a global failover, and checkpoints have ended before the query",
    ),
    (
        "ReaderMachine",
        ("absent", "reporting"),
        ("ReaderAdded",),
        "an enumerator adds it when it is registered, and forgets it afterwards",
    ),
    ("ReaderMachine", ("registered",), ("SourceReported",), "each enumerator asks once"),
    ("SourceCoordinator", ("new",), ("SourceClosed",), "sources start with the query"),
    (
        "WatermarkValve",
        ("idle",),
        ("ProducerIdle", "WatermarkPassed"),
        "a producer is idle once, and says that it is active before it sends a watermark",
    ),
    (
        "Lending",
        ("resting", "settled", "sleeping", "asking", "recalled", "lent", "polled", "taken back", "closed"),
        ("Broke",),
        "clients fail while they fetch",
    ),
    ("Lending", ("closing", "closed"), ("MailSent",), "a reader that is closed wants nothing any more"),
)


class Coverage:
    """The pairs that were met, by the machine's name."""

    def __init__(self) -> None:
        self.met: dict[str, set[Pair]] = {}

    def add(self, other: Coverage) -> None:
        """Take over what another one has."""
        for name, pairs in other.met.items():
            self.met.setdefault(name, set()).update(pairs)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch all machines of this process meanwhile."""
        handles = [(machine, machine.handle) for machine in MACHINES]
        for machine, handle in handles:
            machine.handle = self._watching(machine, handle)  # type: ignore[method-assign]
        try:
            yield
        finally:
            for machine, handle in handles:
                machine.handle = handle  # type: ignore[method-assign]

    def _watching(self, watched: type[Machine], handle: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        pairs = self.met.setdefault(watched.__name__, set())

        def watching(machine: Machine, event: Any, now_ms: int) -> list[Any]:
            pairs.add((machine.state_of(event), machine.kind_of(event).__name__))
            return handle(machine, event, now_ms)

        return watching

    def missing(self) -> dict[str, list[Pair]]:
        """Return the pairs that were not met though a cluster can make them, by machine."""
        return {name: sorted(pairs - self.met.get(name, set())) for name, pairs in _wanted().items()}

    def surprises(self) -> dict[str, list[Pair]]:
        """Return the pairs that were met though no cluster should make them, by machine."""
        return {name: sorted(pairs & self.met.get(name, set())) for name, pairs in _excused().items()}

    def share(self) -> float:
        """Return the part of the pairs that a cluster can make that was met, from 0 to 1."""
        return 1 - sum(map(len, self.missing().values())) / sum(map(len, _wanted().values()))


def _wanted() -> dict[str, set[Pair]]:
    excused = _excused()
    return {
        machine.__name__: {(step.state, step.event) for step in steps_of(machine.TRANSITIONS)}
        - excused.get(machine.__name__, set())
        for machine in MACHINES
    }


def _excused() -> dict[str, set[Pair]]:
    excused: dict[str, set[Pair]] = {}
    for name, states, events, _ in _NOT_IN_A_CLUSTER:
        excused.setdefault(name, set()).update(itertools.product(states, events))
    return excused
