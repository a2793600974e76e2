"""Decides what a subtask does next: open, process, take a snapshot, read, wait, end.

Never: call a reader, an operator or a sink, or hold a row; the driver (`headgate.runtime.execution`) carries out what
is ordered and reports what came of it.

One execution has one loop. Between two turns the driver answers its mailbox; each turn begins with what there is:

- `OpeningContinues`: parts of the execution are still to be opened;
- `RowsWait`: a slice that was begun waits in the chain;
- `ChainEmpty`: none does, so a snapshot may be taken, the next slice be begun, or something be read.

A snapshot is taken between two slices. Rows that a reader emitted wait at the entry of the chain until then, and those
of which no slice was begun belong to the snapshot, as in-flight state of their splits. It waits for them only if that
takes no longer than a call may, or if barriers keep their place: for the alignment time-out, for a drain, and for rows
that belong to no split. What was ordered after a snapshot waits with it, because it does not belong to the checkpoint:
a split that is in both, the enumerator's state and the reader's, would be read twice. Rows that a snapshot waits for
need no room of an exchange's (*overdraft*): a slow consumer would hold up checkpoints otherwise.

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import Enum

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.source import InputStatus
from headgate.task import subtask

# What happened.

Order = (
    subtask.AddSplits | subtask.NotifyNoMoreSplits | subtask.HandEvent | subtask.SetUnassigned | subtask.Announce
    | subtask.StartReading | subtask.TakeSnapshot | subtask.ResumeReading | subtask.NotifyOperators
)  # fmt: skip
"""What the subtask machine wants of the readers and of the chain."""


BRIEF_MS = 40
"""A snapshot waits for rows at the entry if it is taken within this time all the same, in milliseconds."""


class Room(Enum):
    """Who takes rows: ``all``; ``sinks``, while an exchange is full; or ``nobody``."""

    ALL = "all"
    SINKS = "sinks"
    NOBODY = "nobody"


class OpeningContinues(msgspec.Struct, frozen=True):
    """A turn: something is left to be opened."""


class ExecutionOpened(msgspec.Struct, frozen=True):
    """All is open.

    Parameters
    ----------
    recovers_first
        Whether the subtask counts as running only when everything that was recovered is processed.
    rows_to_recover
        Whether there is anything to be recovered on this side.
    """

    recovers_first: bool
    rows_to_recover: bool = False


class InputsRecovered(msgspec.Struct, frozen=True):
    """What was recovered on this side is processed."""


class Ordered(msgspec.Struct, frozen=True):
    """The subtask machine wants something."""

    order: Order


class CheckpointGivenUp(msgspec.Struct, frozen=True):
    """A checkpoint will not complete: its snapshot need not be taken."""

    checkpoint_id: int


class RowsWait(msgspec.Struct, frozen=True):
    """A turn: a slice that was begun waits in the chain.

    Parameters
    ----------
    room
        Who takes rows.
    barrier_waits
        Whether a barrier that stays aligned waits, at the gate, for rows before it.
    """

    room: Room
    barrier_waits: bool = False


class ChainEmpty(msgspec.Struct, frozen=True):
    """A turn: nothing waits in the chain that was begun; room and barrier as in `RowsWait`.

    Parameters
    ----------
    outputs_empty
        Whether no buffer waits in an exchange.
    entry_ms
        About how long it takes to process what readers emitted, which waits at the entry, in milliseconds; infinite:
        that is not known; None: nothing waits.
    storable
        Whether each row that waits there belongs to a split.
    """

    room: Room
    barrier_waits: bool = False
    outputs_empty: bool = True
    entry_ms: float | None = None
    storable: bool = True


class SourcePolled(msgspec.Struct, frozen=True):
    """A reader was polled, with this result."""

    source: str
    status: InputStatus


class SourceAvailable(msgspec.Struct, frozen=True):
    """A reader that had nothing may have something now."""

    source: str


class SourcePaused(msgspec.Struct, frozen=True):
    """Alignment pauses a whole source, or resumes it."""

    source: str
    paused: bool


class InputsEnded(msgspec.Struct, frozen=True):
    """All exchanges that are consumed have ended."""


Event = (
    OpeningContinues | ExecutionOpened | InputsRecovered | Ordered | CheckpointGivenUp | RowsWait | ChainEmpty
    | SourcePolled | SourceAvailable | SourcePaused | InputsEnded
)  # fmt: skip

# What is to be done.


class OpenMore(msgspec.Struct, frozen=True):
    """Open some more. Answered by `ExecutionOpened` when all is open."""


class ReportOpened(msgspec.Struct, frozen=True):
    """Notify the subtask machine that the subtask is running."""


class CarryOut(msgspec.Struct, frozen=True):
    """Do what was ordered, other than a snapshot."""

    order: Order


class Process(msgspec.Struct, frozen=True):
    """Process what waits for a short while.

    Parameters
    ----------
    overdraft
        Whether exchanges without room take rows, too.
    entry
        Whether slices of what waits at the entry are begun.
    """

    overdraft: bool
    entry: bool = True


class DrainInput(msgspec.Struct, frozen=True):
    """End the input here: nothing more is read, and the end goes through the operators. For a drain."""


class EndInput(msgspec.Struct, frozen=True):
    """All is read: let the end go through the operators, and notify the subtask machine."""


class PrepareSnapshot(msgspec.Struct, frozen=True):
    """Let the operators emit what must precede the barrier."""


class Snapshot(msgspec.Struct, frozen=True):
    """Take the snapshot now."""

    order: subtask.TakeSnapshot


class Poll(msgspec.Struct, frozen=True):
    """Process what comes next.

    Parameters
    ----------
    source
        The source whose reader is polled, answered by `SourcePolled`; None: the gate, after exchanges.
    overdraft
        Whether only what a snapshot waits for is processed.
    """

    source: str | None
    overdraft: bool = False


class SetReadable(msgspec.Struct, frozen=True):
    """Let the idleness clocks of splits run, or stop: rows are not wanted, because of back pressure above all."""

    readable: bool


Action = (
    OpenMore | ReportOpened | CarryOut | Process | DrainInput | EndInput | PrepareSnapshot | Snapshot | Poll
    | SetReadable
)  # fmt: skip


class TaskLoop(Machine):
    """The loop of one execution of a subtask.

    *Recovering*: all is open, and what was recovered is processed before the subtask counts as running. *Idle*: it may
    not read, before its start or after a savepoint. *Ended*: all is read. *Snapshot due* and *prepared*: it is taken as
    soon as no row waits; then the loop is in the state that it was in before, but for what was ordered meanwhile.

    Parameters
    ----------
    sources
        The sources that it reads; none after exchanges.
    alignment_timeout_ms
        How long a snapshot waits for rows at the entry in any case, in milliseconds; None: until all are processed.

    Examples
    --------
    >>> loop = TaskLoop(["a"])
    >>> loop.handle(ExecutionOpened(recovers_first=False), 0)
    [ReportOpened()]
    >>> loop.handle(Ordered(subtask.StartReading()), 0)
    []
    >>> loop.handle(ChainEmpty(Room.ALL), 0)
    [Poll(source='a', overdraft=False)]
    >>> loop.handle(Ordered(subtask.TakeSnapshot(7, drain=False, suspend=False)), 0)
    []
    >>> loop.handle(RowsWait(Room.SINKS), 1)
    [Process(overdraft=True, entry=False)]
    >>> loop.handle(ChainEmpty(Room.ALL, entry_ms=30_000.0), 2)
    [PrepareSnapshot()]
    """

    # fmt: off
    TRANSITIONS = (
        Row("opening",              OpeningContinues,  SAME, [OpenMore]),
        Row("opening",              ExecutionOpened,   "idle", [ReportOpened]),
        Row("opening",              ExecutionOpened,   "recovering", when="recovers first"),
        Row("opening",              SourcePaused,      SAME, [], "until its group is heard of"),
        Row("opening",              CheckpointGivenUp, SAME, IGNORED, "no snapshot was ordered"),
        Row("recovering",           InputsRecovered,   SAME),
        Row("idle, reading, ended, snapshot due, snapshot prepared", InputsRecovered, SAME, [],
            "checkpoints complete during recovery"),
        Row("recovering",           RowsWait,          SAME, [Process, Maybe(SetReadable)]),
        Row("recovering",           RowsWait,          SAME, [Maybe(SetReadable)], "nobody takes rows", when="full"),
        Row("recovering",           ChainEmpty,        SAME, [Poll, Maybe(SetReadable)], "a recovered row"),
        Row("recovering",           ChainEmpty,        "idle", [ReportOpened, Maybe(SetReadable)],
            "all is processed, and sent", when="recovered"),
        Row("recovering",           ChainEmpty,        SAME, [Maybe(SetReadable)],
            "nobody takes rows, or what this side recovered is not sent yet", when="full"),
        Row("recovering",           CheckpointGivenUp, SAME, IGNORED, "no snapshot was ordered"),
        Row("idle, reading, ended", RowsWait,          SAME, [Process, Maybe(SetReadable)]),
        Row("idle, reading, ended", RowsWait,          SAME, [Maybe(SetReadable)], "nobody takes rows", when="full"),
        Row("reading, ended",       ChainEmpty,        SAME, [Process, Maybe(SetReadable)],
            "what readers emitted comes before all else", when="emitted"),
        Row("reading",              ChainEmpty,        SAME, [Poll, Maybe(SetReadable)],
            "the gate, or the next source that may have something"),
        Row("reading",              ChainEmpty,        "ended", [EndInput, Maybe(SetReadable)], "all have ended",
            when="last"),
        Row("reading",              ChainEmpty,        SAME, [Maybe(SetReadable)], "nobody takes rows, or has any",
            when="full"),
        Row("idle, ended",          ChainEmpty,        SAME, [Maybe(SetReadable)], "nothing is read, nor begun"),
        Row("snapshot due",         RowsWait,          SAME, [Process, Maybe(SetReadable)], "exchanges take them"),
        Row("snapshot prepared",    RowsWait,          SAME, [Process, Maybe(SetReadable)],
            "what operators emitted before the barrier"),
        Row("snapshot due",         RowsWait,          SAME, [Maybe(SetReadable)], "no sink takes rows", when="full"),
        Row("snapshot prepared",    RowsWait,          SAME, [Maybe(SetReadable)], "likewise", when="full"),
        Row("snapshot due",         ChainEmpty,        SAME, [DrainInput, Maybe(SetReadable)],
            "the end comes before the barrier",
            when="drain"),
        Row("snapshot due",         ChainEmpty,        "snapshot prepared", [PrepareSnapshot, Maybe(SetReadable)],
            "what waits at the entry is its state"),
        Row("snapshot due",         ChainEmpty,        SAME, [Process, Maybe(SetReadable)],
            "soon processed, or barriers keep their place", when="emitted"),
        Row("snapshot due",         ChainEmpty,        SAME, [Maybe(SetReadable)],
            "likewise, and no sink takes rows", when="full"),
        # Four outcomes, for the state afterwards is that before the snapshot, or another snapshot was ordered.
        Row("snapshot prepared",    ChainEmpty,        "idle", [Snapshot, Maybe(CarryOut), Maybe(SetReadable)],
            "it suspends, or nothing was read before"),
        Row("snapshot prepared",    ChainEmpty,        "reading", [Snapshot, Maybe(CarryOut), Maybe(SetReadable)]),
        Row("snapshot prepared",    ChainEmpty,        "ended", [Snapshot, Maybe(CarryOut)]),
        Row("snapshot prepared",    ChainEmpty,        "snapshot due",
            [Snapshot, Maybe(CarryOut), Maybe(SetReadable)], "the next one"),
        Row("idle",                 Ordered,           SAME, [CarryOut], by="_on_ordered_at_once"),
        Row("idle",                 Ordered,           "reading", [], "its start, or a savepoint failed",
            by="_on_ordered_at_once"),
        Row("reading, ended",       Ordered,           SAME, [Maybe(CarryOut)], by="_on_ordered_at_once"),
        Row("idle, reading, ended", Ordered,           "snapshot due", when="snapshot", by="_on_ordered_at_once"),
        Row("snapshot due",         Ordered,           SAME, [], "it does not belong to the checkpoint"),
        Row("snapshot prepared",    Ordered,           SAME, [], "likewise"),
        Row("idle, reading, ended", CheckpointGivenUp, SAME, IGNORED, "its snapshot is taken, or was not ordered"),
        Row("snapshot due",         CheckpointGivenUp, SAME, [Maybe(CarryOut)], "another one is due"),
        Row("snapshot due",         CheckpointGivenUp, "idle", [Maybe(CarryOut)]),
        Row("snapshot due",         CheckpointGivenUp, "reading", [Maybe(CarryOut)]),
        Row("snapshot due",         CheckpointGivenUp, "ended", [Maybe(CarryOut)]),
        Row("snapshot prepared",    CheckpointGivenUp, SAME, [], "another one"),
        Row("snapshot prepared",    CheckpointGivenUp, "idle", [Maybe(CarryOut)]),
        Row("snapshot prepared",    CheckpointGivenUp, "reading", [Maybe(CarryOut)]),
        Row("snapshot prepared",    CheckpointGivenUp, "ended", [Maybe(CarryOut)]),
        Row("snapshot prepared",    CheckpointGivenUp, "snapshot due", [Maybe(CarryOut)], "the next one"),
        Row("reading",              SourcePolled,      SAME),
        Row("idle, reading, ended, snapshot due, snapshot prepared", SourceAvailable, SAME),
        Row("idle, reading, ended, snapshot due, snapshot prepared", SourcePaused, SAME),
        Row("recovering",           InputsEnded,       SAME, [], "the subtask does not run yet", by="_on_early_end"),
        Row("reading",              InputsEnded,       "ended", [EndInput]),
        Row("snapshot due",         InputsEnded,       SAME, [EndInput], "the barrier came with the end"),
    )
    # fmt: on

    def __init__(self, sources: Iterable[str], alignment_timeout_ms: int | None = 0) -> None:
        super().__init__()
        self._alignment_timeout_ms = alignment_timeout_ms
        self.state = "opening"
        self._base = "opening"  # the state, but while a snapshot is due: that to which it goes back
        self._orders: deque[Order] = deque()  # none, or first the snapshot that is due
        self._due_since_ms = 0
        self._recovered = True
        self._inputs_ended = False  # before the subtask was running
        self._readable = True
        self._statuses = dict.fromkeys(sources, InputStatus.MORE_AVAILABLE)
        self._paused: set[str] = set()
        self._polled = 0

    @property
    def reads(self) -> bool:
        """Whether it reads, unless a snapshot is due."""
        return self._base == "reading"

    @property
    def reads_on(self) -> str | None:
        """The source that a turn like the last one polls; None: the loop is to be asked.

        If nothing waits in the chain, and all take rows, as the last turn found, `ChainEmpty` orders just that.
        """
        if self.state != "reading" or not self._readable or self._inputs_ended:
            return None
        found = None
        for source, status in self._statuses.items():
            if status is InputStatus.MORE_AVAILABLE and source not in self._paused:
                if found is not None:
                    return None  # they take turns
                found = source
        return found

    @property
    def is_snapshot_due(self) -> bool:
        """Whether a snapshot is due: what happens now belongs to it, or is not to happen before it."""
        return bool(self._orders)

    @property
    def has_started(self) -> bool:
        """Whether rows are processed, or all have been."""
        return self._base in ("recovering", "reading", "ended")

    @property
    def has_ended(self) -> bool:
        """Whether all input has ended, by itself or for a drain."""
        return self._base == "ended"

    def check(self) -> None:
        """Assert what always holds."""
        due = self.state in ("snapshot due", "snapshot prepared")
        assert due == bool(self._orders)
        assert self._base in ("idle", "reading", "ended") if due else self._base == self.state
        assert not due or isinstance(self._orders[0], subtask.TakeSnapshot)
        assert self._paused <= self._statuses.keys()

    # What the driver reports.

    def _on_opening_continues(self, event: OpeningContinues, now_ms: int) -> list[Action]:
        return [OpenMore()]

    def _on_execution_opened(self, event: ExecutionOpened, now_ms: int) -> list[Action]:
        self._recovered = not event.rows_to_recover
        if event.recovers_first:
            self._go_to("recovering")
            return []
        self._go_to("idle")
        return [ReportOpened()]

    def _on_inputs_recovered(self, event: InputsRecovered, now_ms: int) -> list[Action]:
        self._recovered = True
        return []

    def _on_source_polled(self, event: SourcePolled, now_ms: int) -> list[Action]:
        self._statuses[event.source] = event.status
        return []

    def _on_source_available(self, event: SourceAvailable, now_ms: int) -> list[Action]:
        if self._statuses[event.source] is InputStatus.NOTHING_AVAILABLE:
            self._statuses[event.source] = InputStatus.MORE_AVAILABLE
        return []

    def _on_source_paused(self, event: SourcePaused, now_ms: int) -> list[Action]:
        (self._paused.add if event.paused else self._paused.discard)(event.source)
        return (
            []
            if event.paused or self.state == "opening"
            else self._on_source_available(SourceAvailable(event.source), now_ms)
        )

    def _on_inputs_ended(self, event: InputsEnded, now_ms: int) -> list[Action]:
        self._go_to("ended")
        return [EndInput()]

    def _on_early_end(self, event: InputsEnded, now_ms: int) -> list[Action]:
        self._inputs_ended = True
        return []

    # What is ordered.

    def _on_ordered_at_once(self, event: Ordered, now_ms: int) -> list[Action]:
        self._orders.append(event.order)
        return self._release(now_ms)

    def _on_ordered(self, event: Ordered, now_ms: int) -> list[Action]:
        self._orders.append(event.order)
        return []

    def _on_checkpoint_given_up(self, event: CheckpointGivenUp, now_ms: int) -> list[Action]:
        of_it = [
            order
            for order in self._orders
            if isinstance(order, subtask.TakeSnapshot) and order.checkpoint_id == event.checkpoint_id
        ]
        if not of_it:
            return []
        is_next = self._orders[0] is of_it[0]
        self._orders.remove(of_it[0])
        return self._release(now_ms) if is_next else []

    def _release(self, now_ms: int) -> list[Action]:
        """Return what was ordered up to the next snapshot, which is due then."""
        actions: list[Action] = []
        while self._orders and not isinstance(self._orders[0], subtask.TakeSnapshot):
            order = self._orders.popleft()
            if not isinstance(order, subtask.StartReading | subtask.ResumeReading):
                actions.append(CarryOut(order))
            elif self._base == "idle":
                self._base = "reading"
        self.state = "snapshot due" if self._orders else self._base
        self._due_since_ms = now_ms
        return actions

    # Turns.

    def _on_rows_wait(self, event: RowsWait, now_ms: int) -> list[Action]:
        takes, overdraft, actions = self._look(event)
        return [*actions, Process(overdraft, entry=self.state in ("reading", "ended"))] if takes else actions

    def _on_chain_empty(self, event: ChainEmpty, now_ms: int) -> list[Action]:
        takes, overdraft, actions = self._look(event)
        match self.state:
            case "snapshot due" if not self._waits_for_entry(event, takes, now_ms):
                return actions + self._prepare()
            case "snapshot prepared":
                return actions + self._take(now_ms)
        if not takes:
            return actions
        if event.entry_ms is not None and self.state not in ("idle", "recovering"):
            return [*actions, Process(overdraft)]
        match self.state:
            case "recovering":
                return actions + self._recover(overdraft, outputs_empty=event.outputs_empty)
            case "reading":
                return actions + self._read(overdraft)
        return actions

    def _look(self, turn: RowsWait | ChainEmpty) -> tuple[bool, bool, list[Action]]:
        """Return whether rows are taken, whether beyond the room of exchanges, and what readers must know of it."""
        due = bool(self._orders)
        wanted = turn.room is Room.ALL or (due and turn.room is Room.SINKS)
        # Of those after it nobody takes rows any more, perhaps, and the snapshot waits for some.
        overdraft = due or (not wanted and turn.barrier_waits)
        takes = wanted or (turn.barrier_waits and turn.room is Room.SINKS)
        readable = wanted and self._base == "reading"
        if readable == self._readable:
            return takes, overdraft, []
        self._readable = readable
        return takes, overdraft, [SetReadable(readable)]

    def _waits_for_entry(self, turn: ChainEmpty, takes: bool, now_ms: int) -> bool:
        """Return whether the snapshot that is due waits for what readers emitted."""
        if turn.entry_ms is None:
            return False
        order, timeout_ms = self._orders[0], self._alignment_timeout_ms
        assert isinstance(order, subtask.TakeSnapshot)
        if self._base == "idle" and not order.drain:
            return False  # nothing is processed before the start, nor after a savepoint
        if order.drain or self._base == "ended" or timeout_ms is None or not turn.storable:
            return True
        waited_ms = now_ms - self._due_since_ms
        return takes and (waited_ms < timeout_ms or waited_ms + turn.entry_ms <= BRIEF_MS)

    def _prepare(self) -> list[Action]:
        order = self._orders[0]
        assert isinstance(order, subtask.TakeSnapshot)
        if order.drain and self._base != "ended":
            self._base = "ended"
            return [DrainInput()]
        self.state = "snapshot prepared"
        return [PrepareSnapshot()]

    def _take(self, now_ms: int) -> list[Action]:
        order = self._orders.popleft()
        assert isinstance(order, subtask.TakeSnapshot)
        if order.suspend and self._base == "reading":
            self._base = "idle"
        return [Snapshot(order), *self._release(now_ms)]

    def _recover(self, overdraft: bool, *, outputs_empty: bool) -> list[Action]:
        if not self._recovered:
            return [Poll(None, overdraft)]
        if not outputs_empty:
            return []
        self._go_to("idle")
        return [ReportOpened()]

    def _read(self, overdraft: bool) -> list[Action]:
        if self._inputs_ended:
            self._go_to("ended")
            return [EndInput()]
        if not self._statuses:
            return [Poll(None, overdraft)]
        sources = list(self._statuses)
        self._polled += 1
        for offset in range(len(sources)):
            source = sources[(self._polled + offset) % len(sources)]
            if self._statuses[source] is InputStatus.MORE_AVAILABLE and source not in self._paused:
                return [Poll(source)]
        if all(status is InputStatus.END_OF_INPUT for status in self._statuses.values()):
            self._go_to("ended")
            return [EndInput()]
        return []

    def _go_to(self, state: str) -> None:
        """Be in a state, as soon as no snapshot is due."""
        self._base = state
        if not self._orders:
            self.state = state
