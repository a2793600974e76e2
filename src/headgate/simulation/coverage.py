"""Which rows of the machines' tables a simulation has met, as pairs of a state and an event.

Never: change what a machine does: its door is watched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from headgate.checkpoint import coordinator as checkpoints
from headgate.coordinator import scheduler, slots, source_coordinator
from headgate.simulation.tables import rows_of
from headgate.task import slot, subtask

Pair = tuple[str, str]


class Watched(msgspec.Struct, frozen=True):
    """A machine with a table, and how to see the pairs that an event makes in it."""

    machine: type[Any]
    table: str | None
    pairs: Callable[[Any, Any], Iterable[Pair]]


def _by_kind(machine: Any, event: Any) -> Iterable[Pair]:
    return [(machine.state, machine.kind_of(event).__name__)]


def _by_event(machine: Any, event: Any) -> Iterable[Pair]:
    return [(machine.state_of(event), type(event).__name__)]


def _by_state(machine: Any, event: Any) -> Iterable[Pair]:
    return [(machine.state, type(event).__name__)]


def _by_slot(machine: Any, event: Any) -> Iterable[Pair]:
    about = [event.slot] if hasattr(event, "slot") else range(len(machine._slots))
    return [(machine.state(number), type(event).__name__) for number in about]


WATCHED = (
    Watched(slot.SlotMachine, slot.__doc__, _by_kind),
    Watched(subtask.SubtaskMachine, subtask.__doc__, _by_kind),
    Watched(slots.Slots, slots.__doc__, _by_slot),
    Watched(scheduler.Scheduler, scheduler.__doc__, _by_event),
    Watched(checkpoints.CheckpointCoordinator, checkpoints.__doc__, _by_kind),
    Watched(source_coordinator.SourceCoordinator, source_coordinator.__doc__, _by_state),
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
        doors = [(watched.machine, watched.machine.handle) for watched in WATCHED]
        for watched in WATCHED:
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
        """Return the pairs of the tables that were not met, by machine."""
        wanted = {watched.machine.__name__: _pairs(watched) for watched in WATCHED}
        return {name: sorted(pairs - self.met.get(name, set())) for name, pairs in wanted.items()}

    def share(self) -> float:
        """Return the part of all pairs that was met, from 0 to 1."""
        wanted = sum(len(_pairs(watched)) for watched in WATCHED)
        return 1 - sum(map(len, self.missing().values())) / wanted


def _pairs(watched: Watched) -> set[Pair]:
    return {(row.state, row.event) for row in rows_of(watched.table or "")}
