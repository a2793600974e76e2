"""Which rows of the machines' tables a simulation has met, as pairs of a state and an event.

Never: change what a machine does: its door is watched.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from headgate.checkpoint.coordinator import CheckpointCoordinator
from headgate.coordinator.job.scheduler import Scheduler
from headgate.coordinator.slots.slots import SlotAttempts
from headgate.coordinator.sources.reader import ReaderMachine
from headgate.coordinator.sources.source_coordinator import SourceCoordinator
from headgate.machine import Machine, Step, steps_of
from headgate.task.slot import SlotMachine
from headgate.task.subtask import SubtaskMachine

Pair = tuple[str, str]


class Watched(msgspec.Struct, frozen=True):
    """A machine with a table, the steps in it, and how to see the pairs that an event makes in it."""

    machine: type[Any]
    steps: Sequence[Step]
    pairs: Callable[[Any, Any], Iterable[Pair]]

    @classmethod
    def of(cls, machine: type[Machine]) -> Watched:
        """Return how a machine is watched."""
        return cls(machine, steps_of(machine.TRANSITIONS), _pair_of)


def _pair_of(machine: Machine, event: Any) -> Iterable[Pair]:
    return [(machine.state_of(event), machine.kind_of(event).__name__)]


WATCHED = tuple(
    Watched.of(each)
    for each in (
        SlotMachine, SubtaskMachine, SlotAttempts, Scheduler, CheckpointCoordinator, SourceCoordinator, ReaderMachine,
    )
)  # fmt: skip


# Rows that no cluster makes: (machine, states, events, why). They stand in the tables because the machine does not rely
# on what its neighbour happens to do. One that is met after all is a `Coverage.surprise`.
_NOT_IN_A_CLUSTER: tuple[tuple[str, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "SubtaskMachine",
        ("opening", "running", "suspended", "drained", "ended"),
        ("Deploy", "OldLetter"),
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
)


Excuse = tuple[str, tuple[str, ...], tuple[str, ...], str]
"""A machine, states, events, and why they do not meet."""


class Coverage:
    """The pairs that were met, by the machine's name.

    Parameters
    ----------
    watched
        The machines.
    excuses
        What no cluster makes.
    """

    def __init__(self, watched: Sequence[Watched] = WATCHED, excuses: Sequence[Excuse] = _NOT_IN_A_CLUSTER) -> None:
        self._watched, self._excuses = watched, excuses
        self.met: dict[str, set[Pair]] = {}

    def add(self, other: Coverage) -> None:
        """Take over what another one has."""
        for name, pairs in other.met.items():
            self.met.setdefault(name, set()).update(pairs)

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Watch all machines of this process meanwhile."""
        doors = [(watched.machine, watched.machine.handle) for watched in self._watched]
        for watched in self._watched:
            watched.machine.handle = self._watching(watched)
        try:
            yield
        finally:
            for machine, handle in doors:
                machine.handle = handle

    def _watching(self, watched: Watched) -> Callable[[Any, Any, int], Any]:
        handle, pairs_of = watched.machine.handle, watched.pairs
        pairs = self.met.setdefault(watched.machine.__name__, set())

        def watching(machine: Any, event: Any, now_ms: int) -> Any:
            pairs.update(pairs_of(machine, event))
            return handle(machine, event, now_ms)

        return watching

    def missing(self) -> dict[str, list[Pair]]:
        """Return the pairs that were not met though a cluster can make them, by machine."""
        return {name: sorted(pairs - self.met.get(name, set())) for name, pairs in self._wanted().items()}

    def surprises(self) -> dict[str, list[Pair]]:
        """Return the pairs that were met though no cluster should make them, by machine."""
        return {name: sorted(pairs & self.met.get(name, set())) for name, pairs in self._excused().items()}

    def share(self) -> float:
        """Return the part of the pairs that a cluster can make that was met, from 0 to 1."""
        return 1 - sum(map(len, self.missing().values())) / sum(map(len, self._wanted().values()))

    def _wanted(self) -> dict[str, set[Pair]]:
        excused = self._excused()
        return {
            watched.machine.__name__: {(step.state, step.event) for step in watched.steps}
            - excused.get(watched.machine.__name__, set())
            for watched in self._watched
        }

    def _excused(self) -> dict[str, set[Pair]]:
        excused: dict[str, set[Pair]] = {}
        for name, states, events, _ in self._excuses:
            excused.setdefault(name, set()).update(itertools.product(states, events))
        return excused
