"""The messages between the coordinator and the slots, and the envelope they travel in.

Never: change the meaning of a field; driver and executors run the same version (`DeploymentError` otherwise), so
messages have no versions.

A message about a subtask carries its ``execution``: it counts the deployments of that subtask in the run, and whoever
gets a message of another execution ignores it. (run, slot, attempt) are on the envelope.

Follows FLIP-27, "Where to run the enumerator"; FLIP-537, "ReaderRegistrationEvent".
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from headgate.protocol.state import FinishedSplit, RecoveredChannel, SplitState, SubtaskState
from headgate.source.metrics import Measurement


class SubtaskId(msgspec.Struct, frozen=True, order=True):
    """One parallel instance of a stage. Its number is that of the slot that it runs in."""

    stage: int
    subtask: int


class CheckpointKind(Enum):
    """What a barrier asks for beside a snapshot."""

    CHECKPOINT = "checkpoint"
    SAVEPOINT = "savepoint"
    SUSPEND = "suspend"
    """A savepoint after which nothing is emitted."""
    DRAIN = "drain"
    """End the input first: final watermark, all that operators hold goes out; then the snapshot."""


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a subtask, reported to the driver.

    Parameters
    ----------
    error_type, message, traceback
        As text.
    pickled
        The error itself, if it can be pickled: it becomes the cause of what the query raises.
    facts
        ``source``, ``split``, ``position``, ``function``, ``operator`` where known.
    final
        Trying again cannot help: only the user can.
    """

    error_type: str
    message: str
    traceback: str = ""
    pickled: bytes | None = None
    facts: dict[str, Any] = {}
    final: bool = False


class _Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages; the tag is the class's name."""


class _SubtaskMessage(_Message, frozen=True, kw_only=True):
    stage: int
    execution: int


# From a slot to the coordinator.


class RegisterSlot(_Message, frozen=True, kw_only=True):
    """The first message on every connection.

    Parameters
    ----------
    host
        Where the slot runs, for assignments by locality.
    pid, executor
        For logs and errors.
    data_address
        Where other slots reach it; empty without an exchange.
    running
        The executions that are alive in it, by stage: empty for a new process.
    """

    host: str
    pid: int = 0
    executor: str = ""
    data_address: str = ""
    running: dict[int, int] = {}


class ReaderRegistered(_SubtaskMessage, frozen=True, kw_only=True):
    """A source reader is open.

    Parameters
    ----------
    reported_splits
        As in FLIP-537, for sources with the marker; else empty.
    held
        The ids of the splits that it was restored with and goes on with.
    """

    source: str
    host: str
    reported_splits: tuple[SplitState, ...] = ()
    held: tuple[str, ...] = ()


class SubtaskRunning(_SubtaskMessage, frozen=True, kw_only=True):
    """All of it is open and restored. Follows the registrations of its readers on the same stream."""


class SubtaskRecovered(_SubtaskMessage, frozen=True, kw_only=True):
    """All rows that it recovered from channel state are processed; sent if there were any (`Deploy.recovered`)."""


class LinkBroken(_SubtaskMessage, frozen=True, kw_only=True):
    """Its connection to another slot is gone. It fails a while later, unless it has been cancelled by then.

    Parameters
    ----------
    peer
        The other slot.
    """

    peer: int


class SplitRequested(_SubtaskMessage, frozen=True, kw_only=True):
    """A reader has nothing left to read."""

    source: str
    host: str


class SplitsFinished(_SubtaskMessage, frozen=True, kw_only=True):
    """Splits were read to their end."""

    source: str
    finished: tuple[FinishedSplit, ...]


class EventToEnumerator(_SubtaskMessage, frozen=True, kw_only=True):
    """A connector's own event, pickled."""

    source: str
    payload: bytes


class CheckpointAcknowledged(_SubtaskMessage, frozen=True, kw_only=True):
    """The subtask's part of a checkpoint is safe."""

    checkpoint_id: int
    state: SubtaskState


class CheckpointDeclined(_SubtaskMessage, frozen=True, kw_only=True):
    """The subtask could not make its part; it reads on."""

    checkpoint_id: int
    reason: str


class InputEnded(_SubtaskMessage, frozen=True, kw_only=True):
    """All readers of the subtask reached their end and operators emitted all they will; it waits for checkpoints."""


class SubtaskFailed(_SubtaskMessage, frozen=True, kw_only=True):
    """The subtask ended by an error; the slot lives."""

    error: ErrorReport


class SourceReported(_SubtaskMessage, frozen=True, kw_only=True):
    """The answer to `ReportSource`.

    Parameters
    ----------
    incarnation
        As asked.
    highest_number
        The number of the last assignment that the reader got in this execution; 0 for none.
    finished
        The ends that are not known to be in a completed checkpoint.
    request_pending
        The reader asked for a split and has had no answer.
    no_more_splits
        The reader was notified that there are no more.
    held
        The ids of the splits that it is reading.
    """

    source: str
    host: str
    incarnation: int
    highest_number: int
    finished: tuple[FinishedSplit, ...] = ()
    request_pending: bool = False
    no_more_splits: bool = False
    held: tuple[str, ...] = ()


class SplitEventTime(msgspec.Struct, frozen=True, kw_only=True):
    """How far a split is in event time: its watermark in milliseconds (None: it has none), if it is idle, if paused."""

    watermark_ms: int | None = None
    idle: bool = False
    paused: bool = False


class RecoveryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask has yet to do with the channel state that it recovers (FLIP-547).

    Parameters
    ----------
    phase
        ``reading``: from the checkpoint, which a checkpoint waits for; ``replaying``: from the local disk;
        ``processing``: what is left is in memory.
    rows_to_read
        In the checkpoint; of those of other subtasks, which it reads and leaves out, too.
    rows_left
        Recovered and not processed yet, in memory or on the local disk.
    memory_bytes, disk_bytes
        How much these take.
    """

    phase: str
    rows_to_read: int
    rows_left: int
    memory_bytes: int
    disk_bytes: int


class RestoreProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a subtask is with the keyed state that its operators take on.

    Parameters
    ----------
    bytes_to_read
        Of all chunks; of those that have keys of other subtasks all of them.
    bytes_left
        Of the chunks that are not read yet; 0 in the end.
    duration_ms
        Since the operators began to open, until they are open.
    is_over
        Whether they are open.
    """

    bytes_to_read: int
    bytes_left: int
    duration_ms: int
    is_over: bool


class HelperProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a subtask had the Java process for expressions do since the deployment: batches, their rows, its time."""

    requests: int
    rows: int
    busy_ms: int


class TimeSpent(msgspec.Struct, frozen=True, kw_only=True):
    """What the thread of a subtask did since the deployment, in milliseconds; the rest of the time it was busy.

    Parameters
    ----------
    elapsed_ms
        How long that is.
    back_pressured_ms, idle_ms
        It waited for room in its outputs; for rows and messages.
    paused_ms
        Splits of its were paused by alignment, whatever the thread did meanwhile.
    """

    elapsed_ms: int
    back_pressured_ms: int
    idle_ms: int
    paused_ms: int


class SubtaskProgress(_SubtaskMessage, frozen=True, kw_only=True):
    """Figures for `lastProgress`, now and then; the newest counts.

    Parameters
    ----------
    rows_in, rows_out
        Since the deployment, by source uid and by sink uid.
    splits
        By source uid: how many splits are being read. Empty: this message has neither that nor their positions, and
        those of the one before still count.
    positions
        By source uid: split id to the split's bytes, of the splits being read; none where there are too many.
    busy_ms
        Time since the deployment that each operator took, by its uid, in milliseconds.
    watermark_ms
        The subtask's watermark; None when there is none.
    event_times
        By source uid, for those with event time: split id to how far it is; sent and left out with ``positions``.
    skipped, late
        Bad records that were skipped, and rows that came after the watermark, since the deployment.
    unpublished_ms
        By sink uid: how long the oldest rows of a complete checkpoint have waited to be published; absent: none wait.
    recovery
        How far its recovery is; None: it is over, or there is none.
    restore
        How far its operators are with their keyed state, or how long that took; None: there was none. Before they are
        open, a message has nothing else.
    troubles
        By source uid: what its reader waits for beside data, as sentences; absent: nothing.
    time
        What its thread did with its time; None: its operators are not open yet.
    rows_received, rows_sent
        Rows of the exchanges that the stage consumes, and of those that it produces, since the deployment.
    queue_batches, queue_bytes
        What its readers have fetched and not emitted, without what is paused; None: no reader says.
    buffer_pool_use
        The part of the room of its fullest exchange that is taken by what its consumers do not take, from 0 to 1; None:
        it produces none.
    helper
        What it had the Java process for expressions do; None: nothing.
    metrics
        By source uid: what its connector's reader counts and measures, by name. Empty: what came before still counts.
    pending_records
        By source uid: split id to how many rows there are after what was read, where the reader knows it; sent and left
        out with ``metrics``.
    """

    rows_in: dict[str, int] = {}
    rows_out: dict[str, int] = {}
    splits: dict[str, int] = {}
    positions: dict[str, dict[str, bytes]] = {}
    busy_ms: dict[str, int] = {}
    watermark_ms: int | None = None
    event_times: dict[str, dict[str, SplitEventTime]] = {}
    skipped: int = 0
    late: int = 0
    unpublished_ms: dict[str, int] = {}
    recovery: RecoveryProgress | None = None
    restore: RestoreProgress | None = None
    troubles: dict[str, tuple[str, ...]] = {}
    time: TimeSpent | None = None
    rows_received: int = 0
    rows_sent: int = 0
    queue_batches: int | None = None
    queue_bytes: int | None = None
    buffer_pool_use: float | None = None
    helper: HelperProgress | None = None
    metrics: dict[str, dict[str, Measurement]] = {}
    pending_records: dict[str, dict[str, int]] = {}


class WatermarkReported(_SubtaskMessage, frozen=True, kw_only=True):
    """How far a reader is in event time, for the alignment group of its source (FLIP-182).

    Parameters
    ----------
    watermark_ms
        The lowest watermark of its splits that are not idle, in milliseconds; `MIN_WATERMARK_MS` while one of them has
        none yet. None: it has no vote (no split, or all of them are idle).
    slowest
        The split whose watermark that is; empty without a vote.
    """

    source: str
    watermark_ms: int | None
    slowest: str = ""


class SlotHeartbeat(_Message, frozen=True, kw_only=True):
    """The slot is alive; also acknowledges what it received."""


# From the coordinator to a slot.


class SlotAccepted(_Message, frozen=True, kw_only=True):
    """The answer to `RegisterSlot`: this attempt counts. The envelope says which of its messages had arrived."""


class SlotFenced(_Message, frozen=True, kw_only=True):
    """A newer attempt of the slot is registered, or the run is over: exit."""

    reason: str


class Deploy(_SubtaskMessage, frozen=True, kw_only=True):
    """Run a subtask; one of an older execution is cancelled first.

    Parameters
    ----------
    parallelism
        How many subtasks the stage has.
    restore
        Its state of the checkpoint that is restored; None: it starts afresh.
    checkpoint_id
        Which one that is; 0 for none.
    suspended
        It was the query's last one, and is not committed yet: read nothing, only be there.
    generation
        Counts the deployments of all that exchanges connect: channels connect subtasks of one generation.
    recovered
        The channel state that it takes on, in the order in which it does, per channel. Where this is given,
        ``restore.channels`` is empty.
    relocated
        The exchanges whose recovered rows came through other channels than their successors do:
        `headgate.checkpoint.channel_assignment.relocated_exchanges`.
    """

    parallelism: int
    restore: SubtaskState | None = None
    checkpoint_id: int = 0
    suspended: bool = False
    generation: int = 0
    recovered: tuple[RecoveredChannel, ...] = ()
    relocated: frozenset[str] = frozenset()


class SlotsLocated(_SubtaskMessage, frozen=True, kw_only=True):
    """All subtasks of a generation are deployed: where the slots' data planes are, by slot. Connect the channels."""

    generation: int
    addresses: dict[int, str]


class CancelSubtask(_SubtaskMessage, frozen=True, kw_only=True):
    """End a subtask without a snapshot."""


class AssignSplits(_SubtaskMessage, frozen=True, kw_only=True):
    """Give splits to a reader. ``number`` counts the assignments to the reader in this execution, from 1."""

    source: str
    number: int
    splits: tuple[SplitState, ...]


class NoMoreSplits(_SubtaskMessage, frozen=True, kw_only=True):
    """The reader gets no more splits."""

    source: str


class EventToReader(_SubtaskMessage, frozen=True, kw_only=True):
    """A connector's own event, pickled."""

    source: str
    payload: bytes


class TriggerCheckpoint(_SubtaskMessage, frozen=True, kw_only=True):
    """The barrier: what was sent before it belongs to the checkpoint, what follows does not.

    Sent to subtasks with sources; to others it comes through their channels (`headgate.protocol.channels.Barrier` says
    what ``unaligned`` and ``alignment_timeout_ms`` mean).

    ``completed`` is the newest complete checkpoint, 0 if there is none: through channels the barrier may come before
    `CheckpointCompleted`, and what that one holds must not be reported again. ``lost`` says which files are gone
    (`headgate.protocol.lost_files`): state that the snapshot would only name as it was stored is stored again.
    """

    checkpoint_id: int
    completed: int = 0
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    location: str = ""
    unaligned: bool = False
    alignment_timeout_ms: int = 0
    lost: bytes = b""


class CheckpointCompleted(_SubtaskMessage, frozen=True, kw_only=True):
    """A checkpoint is durable. Up to ``finished_known`` (by source) its enumerators know the reader's ends."""

    checkpoint_id: int
    finished_known: dict[str, int] = {}


class CheckpointAborted(_SubtaskMessage, frozen=True, kw_only=True):
    """A checkpoint will not complete. Nothing that was staged for it is lost: the next one carries it."""

    checkpoint_id: int


class AlignmentAnnounced(_SubtaskMessage, frozen=True, kw_only=True):
    """How far a reader may read (FLIP-182's WatermarkAlignmentEvent).

    Parameters
    ----------
    max_watermark_ms
        No split may be read on whose watermark is beyond this: the group's minimum and the drift, in milliseconds.
    others_ms
        The minimum of all other readers of the group: with its own, which it always knows, a reader need not wait for
        an announcement that its own progress leads to. `MAX_WATERMARK_MS`: no other reader has a vote.
    """

    source: str
    max_watermark_ms: int
    others_ms: int


class UnassignedWork(_SubtaskMessage, frozen=True, kw_only=True):
    """What the enumerator has not assigned begins at this event time: no watermark of the reader passes it.

    Sent after the assignments that it follows from, on the same stream; to a reader that registered first when the
    enumerator has seen it: until then its watermark is held. None: nothing holds it.
    """

    source: str
    event_time_ms: int | None


class ReportSource(_SubtaskMessage, frozen=True, kw_only=True):
    """The source's coordinator was restored from its log: say what the reader has."""

    source: str
    incarnation: int


class ShutDownSlot(_Message, frozen=True, kw_only=True):
    """The query is over: end without an error."""


class CoordinatorHeartbeat(_Message, frozen=True, kw_only=True):
    """The coordinator is alive; also acknowledges what it received."""


FromSlot = (
    RegisterSlot | ReaderRegistered | SubtaskRunning | SubtaskRecovered | LinkBroken | SplitRequested | SplitsFinished
    | EventToEnumerator | CheckpointAcknowledged | CheckpointDeclined | InputEnded | SubtaskFailed | SourceReported
    | SubtaskProgress | WatermarkReported | SlotHeartbeat
)  # fmt: skip
ToSlot = (
    SlotAccepted | SlotFenced | Deploy | SlotsLocated | CancelSubtask | AssignSplits | NoMoreSplits | EventToReader
    | TriggerCheckpoint | CheckpointCompleted | CheckpointAborted | AlignmentAnnounced | UnassignedWork
    | ReportSource | ShutDownSlot | CoordinatorHeartbeat
)  # fmt: skip
Message = FromSlot | ToSlot


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A message on its way.

    Parameters
    ----------
    run
        The run epoch of the query at its checkpoint location.
    slot, attempt
        Whose stream it is. A later attempt has a higher number.
    number
        Counts the messages of one direction of the (run, slot, attempt), from 1; 0 is not counted and not repeated
        (`RegisterSlot`, heartbeats).
    received
        The highest number that the sender has received on this stream.
    message
        The message.
    """

    run: int
    slot: int
    attempt: int
    number: int
    received: int
    message: Message


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Envelope)


def encode(envelope: Envelope) -> bytes:
    """Return the bytes of an envelope."""
    return _encoder.encode(envelope)


def decode(data: bytes) -> Envelope:
    """Return the envelope of bytes that `encode` made.

    Raises
    ------
    msgspec.DecodeError
        They are not an envelope.
    """
    return _decoder.decode(data)
