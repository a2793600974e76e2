"""What is in a source's write-ahead log: enough to restore its enumerator and coordinator while readers read on.

Never: log what a reader reports again when it is asked.

Follows FLIP-27, "Where to run the enumerator" (write-ahead log).
"""

from __future__ import annotations

import msgspec

from headgate.protocol.state import FinishedSplit, SplitState


class StateRecord(msgspec.Struct, frozen=True, tag="state"):
    """The source's state (`source_state`); None: it started afresh.

    ``checkpoint_id`` is set on the first record of a segment, which a snapshot or a start begins.
    """

    state: bytes | None
    checkpoint_id: int | None = None


class RegisteredRecord(msgspec.Struct, frozen=True, tag="registered"):
    """A reader came with splits to be assigned anew: they are nowhere else until the enumerator's next state."""

    subtask: int
    execution: int
    reported_splits: tuple[SplitState, ...]


class AssignedRecord(msgspec.Struct, frozen=True, tag="assigned"):
    """Splits were given to a reader's execution with this number."""

    subtask: int
    execution: int
    number: int
    splits: tuple[SplitState, ...]


class GivenBackRecord(msgspec.Struct, frozen=True, tag="given-back"):
    """All that a reader was given since ``checkpoint_id`` went back to the enumerator."""

    subtask: int
    checkpoint_id: int


class GivenAgainRecord(msgspec.Struct, frozen=True, tag="given-again"):
    """A restored enumerator is to be given what a failed reader had: the state before this does not have it yet."""

    subtask: int
    splits: tuple[SplitState, ...]


class FinishedRecord(msgspec.Struct, frozen=True, tag="finished"):
    """The enumerator was notified of ends."""

    subtask: int
    finished: tuple[FinishedSplit, ...]


class NoMoreSplitsRecord(msgspec.Struct, frozen=True, tag="no-more-splits"):
    """A reader was promised that nothing follows."""

    subtask: int


class SourceEventRecord(msgspec.Struct, frozen=True, tag="source-event"):
    """A reader sent the enumerator an event of the connector's own, pickled."""

    subtask: int
    payload: bytes


LogRecord = (
    StateRecord | RegisteredRecord | AssignedRecord | GivenBackRecord | GivenAgainRecord | FinishedRecord
    | NoMoreSplitsRecord | SourceEventRecord
)  # fmt: skip
