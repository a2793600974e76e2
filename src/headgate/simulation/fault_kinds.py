"""The faults that a scenario may have.

Never: say when they come, or how they are carried out (`headgate.simulation.faults`).
"""

from __future__ import annotations

from enum import Enum

import msgspec


class FaultKind(Enum):
    """What can go wrong, and what a user can do meanwhile."""

    BREAK_CONNECTION = "break connection"
    BREAK_ALL = "break all connections"
    CRASH_SLOT = "crash slot"
    CRASH_SLOT_SOON = "crash slot between actions"
    FREEZE_SLOT = "freeze slot"
    FREEZE_DRIVER = "freeze driver"
    ZOMBIE = "zombie"
    FAIL_SUBTASK = "fail subtask"
    DECLINE = "decline snapshot"
    END_JOB = "Spark gives up"
    STARVE = "no core for the next task"
    CRASH_ENUMERATOR = "crash enumerator"
    CRASH_ENUMERATOR_AND_LOG = "crash enumerator, lose log"
    FAIL_APPEND = "fail to log"
    LOSE_MANIFEST = "fail to write manifest"
    HIDE_MANIFEST = "write manifest and say it failed"
    FAIL_COMMIT = "fail commit"
    FAIL_HALF_COMMIT = "fail commit half-way"
    CRASH_DRIVER = "crash driver"
    CRASH_DRIVER_SOON = "crash driver between actions"
    CHECKPOINT = "ask for a checkpoint"
    SAVEPOINT = "ask for a savepoint"
    SUSPEND = "suspend and start again"
    DRAIN = "drain and start again"
    STOP = "stop at once and start again"


class MoreFaults(Enum):
    """What else can go wrong; drawn apart from the others."""

    CRASH_SLOTS = "crash several slots at once"
    MOVE_SLOT = "crash slot, which comes back on another host"
    REPEAT = "repeat messages"
    CUT_LINK = "cut the link between two slots"
    HALF_OPEN = "cut it, and let one of them notice"
    SLOW_LINKS = "slow links"
    SLOW_STORAGE = "slow storage"
    FAIL_UPLOAD = "fail uploads"
    FAIL_READ = "fail to read state"
    FAIL_IN_RECOVERY = "fail subtask, and another while it recovers"
    RESCALE_IN_RECOVERY = "stop, and again while it recovers"
    RESCALE_AT_CHECKPOINT = "stop when the next checkpoint is complete"


class StorageFaults(Enum):
    """What can go wrong with the checkpoint location; drawn apart, as `MoreFaults` is."""

    FULL = "no room in storage"
    STALE = "listings show what was deleted"
    CORRUPT = "a stored file is damaged, and put back later"


class ConnectionFaults(Enum):
    """What can go wrong between connections; drawn apart, as `MoreFaults` is."""

    LATE = "break connection, and what is under way comes after what the next one brings"


class UserFaults(Enum):
    """What else a user can do; drawn apart, as `MoreFaults` is."""

    GIVE_UP = "ask for a savepoint, or to suspend or drain, and wait for it only for a moment"
    DELETE = "delete a file of keyed state, and put it back much later"


class SinkFaults(Enum):
    """What can go wrong with a sink; drawn apart, as `MoreFaults` is."""

    LOSE_ROWS = "a broker does not take rows that were sent"


Kinds = FaultKind | MoreFaults | StorageFaults | ConnectionFaults | UserFaults | SinkFaults


class Fault(msgspec.Struct, frozen=True):
    """One fault.

    Parameters
    ----------
    at_ms
        When.
    kind
        What.
    pick
        Which slot, source, or number of actions: any number, taken modulo what there is.
    parallelism
        Of the run that follows, where one does.
    """

    at_ms: int
    kind: Kinds
    pick: int
    parallelism: int

    def __str__(self) -> str:
        return f"{self.at_ms} ms: {self.kind.value} (pick {self.pick}, then P={self.parallelism})"
