"""Decides the life of one subtask: restore, register, run, snapshot at barriers, end, fail.

Never: read a record or hold one; know a connector's types: splits are ids and bytes.

What a barrier asks of a subtask downstream of exchanges arrives as the same message, once its gate says that it is
time. Its channels, and which of their rows belong to a checkpoint, are decided by `input_gate` and
`result_partition`.

The coordinator's messages appear here under their own names; `StaleMessage` is one for an execution that is over or not
yet deployed. Events of readers and operators are those of the latest execution, reported at once, in order; only
`SnapshotMade`, `SnapshotFailed` and `SomethingFailed` may be late.

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537, "New Source Base Contract"; FLIP-182 for alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol import messages as msg
from headgate.protocol.messages import CheckpointKind, SubtaskId
from headgate.protocol.state import (
    ChannelState,
    FinishedSplit,
    KeyedState,
    OperatorState,
    ReaderState,
    SplitState,
    SubtaskState,
)

# What happened.


class MessageReceived(msgspec.Struct, frozen=True):
    """A message of the coordinator's for this subtask (`Deploy` and everything with a stage)."""

    message: (
        msg.Deploy | msg.CancelSubtask | msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader
        | msg.TriggerCheckpoint | msg.CheckpointCompleted | msg.CheckpointAborted | msg.ReportSource
        | msg.AlignmentAnnounced | msg.UnassignedWork
    )  # fmt: skip


class OperatorsOpened(msgspec.Struct, frozen=True):
    """Readers, operators and sinks are made, opened and restored; the readers hold no splits yet."""


class RequestMade(msgspec.Struct, frozen=True):
    """A reader asks for a split."""

    source: str


class EventMade(msgspec.Struct, frozen=True):
    """A reader sends its enumerator an event."""

    source: str
    payload: bytes


class SplitsEnded(msgspec.Struct, frozen=True):
    """A reader read splits to their end."""

    source: str
    split_ids: tuple[str, ...]


class WatermarkFound(msgspec.Struct, frozen=True):
    """How far a reader is, for its alignment group: `headgate.protocol.messages.WatermarkReported`."""

    source: str
    watermark_ms: int | None
    slowest: str


class SnapshotMade(msgspec.Struct, frozen=True):
    """Everything of a snapshot is safe: the readers' splits at the barrier, and the operators' state."""

    checkpoint_id: int
    splits: dict[str, tuple[SplitState, ...]]
    operators: dict[str, OperatorState]
    keyed: dict[str, KeyedState] = {}
    channels: tuple[ChannelState, ...] = ()


class SnapshotFailed(msgspec.Struct, frozen=True):
    """The snapshot could not be made safe; the subtask itself is well."""

    checkpoint_id: int
    reason: str


class AllInputEnded(msgspec.Struct, frozen=True):
    """All readers ended and the operators emitted what they had."""


class SomethingFailed(msgspec.Struct, frozen=True):
    """Code of the subtask raised."""

    error: msg.ErrorReport


Event = (
    MessageReceived | OperatorsOpened | RequestMade | EventMade | SplitsEnded | WatermarkFound | SnapshotMade
    | SnapshotFailed | AllInputEnded | SomethingFailed
)  # fmt: skip

# What is to be done.


class OpenOperators(msgspec.Struct, frozen=True):
    """Make and open readers, operators and sinks with their restored state. Answered by `OperatorsOpened`."""

    parallelism: int
    operators: dict[str, OperatorState]


class AddSplits(msgspec.Struct, frozen=True):
    """Give splits to a reader."""

    source: str
    splits: tuple[SplitState, ...]


class NotifyNoMoreSplits(msgspec.Struct, frozen=True):
    """Notify a reader that it gets no more splits."""

    source: str


class HandEvent(msgspec.Struct, frozen=True):
    """Hand an event to a reader."""

    source: str
    payload: bytes


class SetUnassigned(msgspec.Struct, frozen=True):
    """Hold a reader's watermark at work that is not assigned; after the splits that were added before."""

    source: str
    event_time_ms: int | None


class Announce(msgspec.Struct, frozen=True):
    """Show a reader's output where its alignment group is."""

    source: str
    max_watermark_ms: int
    others_ms: int


class StartReading(msgspec.Struct, frozen=True):
    """Poll the readers from now on."""


class TakeSnapshot(msgspec.Struct, frozen=True):
    """Snapshot all readers and operators now, between two batches. Answered by `SnapshotMade` or `SnapshotFailed`.

    ``drain``: end the input first, and poll no reader afterwards. ``suspend``: poll none until `ResumeReading`.
    ``location``: folder of a savepoint; empty for a checkpoint at the query's own location.
    """

    checkpoint_id: int
    drain: bool
    suspend: bool
    location: str = ""


class ResumeReading(msgspec.Struct, frozen=True):
    """Poll the readers again: the savepoint after which nothing was to be emitted failed."""


class NotifyOperators(msgspec.Struct, frozen=True):
    """Notify readers, operators and sinks that a checkpoint is durable."""

    checkpoint_id: int


class Post(msgspec.Struct, frozen=True):
    """Send a message to the coordinator."""

    message: msg.FromSlot


class CloseAll(msgspec.Struct, frozen=True):
    """Close readers, operators and sinks; what was staged and is in no checkpoint is thrown away."""


Action = (
    OpenOperators | AddSplits | NotifyNoMoreSplits | HandEvent | SetUnassigned | Announce | StartReading | TakeSnapshot
    | ResumeReading | NotifyOperators | Post | CloseAll
)  # fmt: skip


class StaleMessage(msgspec.Struct, frozen=True):
    """Stands in the table for a message of another execution than the one that is deployed."""


class _Reader:
    """What is known of the reader of one source."""

    def __init__(self, *, reassigns: bool, restored: ReaderState) -> None:
        self.reassigns = reassigns
        self.restored = restored.splits
        self.held: dict[str, None] = {}  # ids of the splits that it is reading
        self.finished: list[FinishedSplit] = []
        self.ends_reported = 0  # in this execution
        self.highest_number = 0
        self.asking = False
        self.no_more = False

    def add(self, splits: tuple[SplitState, ...]) -> None:
        """Take note of splits that it reads from now on."""
        self.held.update((split.split_id, None) for split in splits)

    def finish(self, split_ids: tuple[str, ...]) -> tuple[FinishedSplit, ...]:
        """Number ends, and keep them until a checkpoint's enumerator is known to know them."""
        for split_id in split_ids:
            self.held.pop(split_id, None)
        ends = tuple(FinishedSplit(split_id, self.ends_reported + n) for n, split_id in enumerate(split_ids, 1))
        self.ends_reported += len(ends)
        self.finished += ends
        return ends


class _Barrier(msgspec.Struct, frozen=True):
    """What belongs to a checkpoint because it was so when the barrier came."""

    finished: dict[str, tuple[FinishedSplit, ...]]
    input_ended: bool


class SubtaskMachine(Machine):
    """One subtask of a slot, through all its executions.

    Parameters
    ----------
    subtask
        Which one it is.
    sources
        The sources that it reads, by uid: whether their splits are assigned anew after a recovery (FLIP-537).
    host
        Where it runs, for assignments by locality.

    Examples
    --------
    >>> machine = SubtaskMachine(SubtaskId(0, 0), sources={"s": False}, host="h")
    >>> machine.handle(MessageReceived(msg.Deploy(stage=0, execution=1, parallelism=1)), 0)
    [OpenOperators(parallelism=1, operators={})]
    >>> [type(action).__name__ for action in machine.handle(OperatorsOpened(), 0)]
    ['Post', 'Post', 'StartReading']
    """

    # fmt: off
    TRANSITIONS = (
        Row("idle, failed",             msg.Deploy,              "opening", [OpenOperators]),
        Row("opening, running, suspended, drained, ended", msg.Deploy, "opening", [CloseAll, OpenOperators],
            "the newer one counts"),
        Row("opening, running, suspended, drained, ended", msg.CancelSubtask, "idle", [CloseAll]),
        Row("opening",                  OperatorsOpened,         "running", [Post, Maybe(AddSplits), StartReading],
            "registrations, then SubtaskRunning"),
        Row("opening",                  OperatorsOpened,         "suspended", [Post, Maybe(AddSplits)],
            "after the last checkpoint nothing is read, only published", when="suspended"),
        Row("opening",                  RequestMade,             SAME, [], "posted after the registration",
            by="_hold"),
        Row("running, suspended",       RequestMade,             SAME, [Post], by="_on_request"),
        Row("drained, ended",           RequestMade,             SAME, IGNORED, "nobody reads any longer"),
        Row("opening",                  EventMade,               SAME, [], "posted after the registration",
            by="_hold"),
        Row("running, suspended",       EventMade,               SAME, [Post]),
        Row("drained, ended",           EventMade,               SAME, IGNORED, "likewise"),
        Row("running",                  SplitsEnded,             SAME, [Post]),
        Row("running",                  AllInputEnded,           "ended", [Post]),
        Row("running, suspended, drained", msg.AssignSplits, SAME, [AddSplits],
            "drained: not read, but not lost either"),
        Row("running, suspended, drained, ended", msg.AssignSplits, SAME, [], "sent again after a restored log",
            when="again"),
        Row("running, suspended",       msg.NoMoreSplits,        SAME, [NotifyNoMoreSplits]),
        Row("running, suspended",       msg.NoMoreSplits,        SAME, [], "promised again by a restored one",
            when="again"),
        Row("drained, ended",           msg.NoMoreSplits,        SAME),
        Row("opening",                  msg.AlignmentAnnounced,  SAME, IGNORED, "sent again when it has registered"),
        Row("running, suspended",       msg.AlignmentAnnounced,  SAME, [Announce]),
        Row("drained, ended",           msg.AlignmentAnnounced,  SAME, IGNORED, "nobody reads any longer"),
        Row("opening",                  msg.UnassignedWork,      SAME, IGNORED, "sent again when it has registered"),
        Row("running, suspended",       msg.UnassignedWork,      SAME, [SetUnassigned]),
        Row("drained, ended",           msg.UnassignedWork,      SAME, IGNORED, "the final watermark is out"),
        Row("running, suspended, drained, ended", WatermarkFound, SAME, [Post], "at the end that it votes no longer"),
        Row("running, suspended",       msg.EventToReader,       SAME, [HandEvent]),
        Row("drained, ended",           msg.EventToReader,       SAME, IGNORED, "nobody reads any longer"),
        Row("running, suspended, drained, ended", msg.ReportSource, SAME, [Post]),
        Row("running",                  msg.TriggerCheckpoint,   "running", [Maybe(NotifyOperators), TakeSnapshot]),
        Row("running",                  msg.TriggerCheckpoint,   "suspended", [Maybe(NotifyOperators), TakeSnapshot],
            "SUSPEND"),
        Row("running",                  msg.TriggerCheckpoint,   "drained", [Maybe(NotifyOperators), TakeSnapshot],
            "DRAIN"),
        Row("suspended",                msg.TriggerCheckpoint,   "running", [ResumeReading, TakeSnapshot],
            "its own one was aborted; that message comes later", when="newer"),
        Row("suspended",                msg.TriggerCheckpoint,   SAME, [ResumeReading, TakeSnapshot], "SUSPEND",
            when="newer"),
        Row("suspended",                msg.TriggerCheckpoint,   "drained", [ResumeReading, TakeSnapshot], "DRAIN",
            when="newer"),
        Row("drained",                  msg.TriggerCheckpoint,   SAME, [TakeSnapshot], "likewise, at its end"),
        Row("ended",                    msg.TriggerCheckpoint,   SAME, [Maybe(NotifyOperators), TakeSnapshot],
            "whoever ended still takes part"),
        Row("running, suspended, drained, ended", SnapshotMade, SAME, [Post]),
        Row("running, suspended, drained, ended", SnapshotMade, SAME, [], "its checkpoint was aborted", when="late"),
        Row("idle, opening, failed",    SnapshotMade,            SAME, IGNORED, "of an execution that is over",
            when="late"),
        Row("running, suspended, drained, ended", SnapshotFailed, SAME, [Post]),
        Row("running, suspended, drained, ended", SnapshotFailed, SAME, when="late"),
        Row("idle, opening, failed",    SnapshotFailed,          SAME, IGNORED, when="late"),
        Row("running, suspended, drained, ended", msg.CheckpointCompleted, SAME, [NotifyOperators]),
        Row("running, suspended, drained, ended", msg.CheckpointCompleted, SAME, [],
            "the barrier after it was faster", when="again"),
        Row("opening",                  msg.CheckpointCompleted, SAME, IGNORED, "nothing of it is here"),
        Row("running",                  msg.CheckpointAborted,   SAME, [], "what was staged is carried on"),
        Row("ended",                    msg.CheckpointAborted,   SAME, [], "an end stays an end"),
        Row("drained, suspended",       msg.CheckpointAborted,   SAME, [], "an earlier one", when="other"),
        Row("drained",                  msg.CheckpointAborted,   "failed", [Post, CloseAll],
            "what it emitted was the end, and is not: it must start again"),
        Row("suspended",                msg.CheckpointAborted,   "running", [ResumeReading]),
        Row("opening",                  msg.CheckpointAborted,   SAME, IGNORED),
        Row("opening, running, suspended, drained, ended", SomethingFailed, "failed", [Post, CloseAll]),
        Row("idle, failed",             SomethingFailed,         SAME, IGNORED, "reported already, or nobody asks"),
        Row("idle, opening, failed, running, suspended, drained, ended", StaleMessage, SAME, IGNORED, "late"),
    )
    # fmt: on

    def __init__(self, subtask: SubtaskId, *, sources: dict[str, bool], host: str) -> None:
        super().__init__()
        self.state = "idle"
        self.execution = 0
        """The execution that was deployed last; 0 for none."""
        self._subtask = subtask
        self._sources = dict(sources)
        self._host = host
        self._readers: dict[str, _Reader] = {}
        self._held: list[RequestMade | EventMade] = []  # made before the registration
        self._snapshots: dict[int, _Barrier] = {}  # those under way
        self._stopped_by: int | None = None  # the checkpoint that suspended or drained it, or before it was deployed
        self._completed: int | None = None  # the newest complete checkpoint that its operators need not hear of

    def check(self) -> None:
        """Assert what always holds."""
        alive = self.state not in ("idle", "failed")
        assert self._stopped_by is None or self.state in ("opening", "suspended", "drained")
        assert self._stopped_by is not None or self.state not in ("suspended", "drained")
        assert not self._snapshots or (alive and self.state != "opening")
        assert not self._held or self.state == "opening"
        assert set(self._readers) == (set(self._sources) if alive else set())
        for reader in self._readers.values():
            numbers = [end.number for end in reader.finished]
            assert numbers == sorted(set(numbers)) and all(0 < number <= reader.ends_reported for number in numbers)

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        if not isinstance(event, MessageReceived):
            return type(event)
        message = event.message
        if isinstance(message, msg.Deploy):
            return msg.Deploy if message.execution > self.execution else StaleMessage
        over = self.state in ("idle", "failed") or message.execution != self.execution
        return StaleMessage if over else type(message)

    def content(self, event: Event) -> Any:
        """Return the message, if one came."""
        return event.message if isinstance(event, MessageReceived) else event

    def __str__(self) -> str:
        return f"Subtask {self._subtask.subtask} of stage {self._subtask.stage} (execution {self.execution})"

    def _on_deploy(self, message: msg.Deploy, now_ms: int) -> list[Action]:
        """Begin an execution; one that still runs ends first."""
        actions = self._end("opening")
        restore = message.restore or SubtaskState()
        self.execution = message.execution
        self._stopped_by = message.checkpoint_id if message.suspended else None
        self._readers = {
            uid: _Reader(reassigns=reassigns, restored=restore.readers.get(uid, ReaderState()))
            for uid, reassigns in self._sources.items()
        }
        for uid, reader in self._readers.items():
            reader.finish(tuple(end.split_id for end in restore.readers.get(uid, ReaderState()).finished))
        return [*actions, OpenOperators(message.parallelism, restore.operators)]

    def _on_cancel_subtask(self, message: msg.CancelSubtask, now_ms: int) -> list[Action]:
        return self._end("idle")

    def _on_operators_opened(self, event: OperatorsOpened, now_ms: int) -> list[Action]:
        """Register every reader with what it reports, report what it knows, and only then be running."""
        actions: list[Action] = []
        for uid, reader in self._readers.items():
            splits, reader.restored = reader.restored, ()
            if splits and not reader.reassigns:
                reader.add(splits)
                actions.append(AddSplits(uid, splits))
            of_it = {"reported_splits": splits} if reader.reassigns else {"held": tuple(reader.held)}
            actions.append(self._post(msg.ReaderRegistered, source=uid, host=self._host, **of_it))
            if reader.finished:  # numbered anew, so that the coordinator can say which of them are known
                actions.append(self._post(msg.SplitsFinished, source=uid, finished=tuple(reader.finished)))
        held, self._held = self._held, []
        self.state = "running" if self._stopped_by is None else "suspended"
        actions.append(self._post(msg.SubtaskRunning))
        for each in held:
            actions += (
                self._on_request(each, now_ms) if isinstance(each, RequestMade) else self._on_event_made(each, now_ms)
            )
        return [*actions, StartReading()] if self.state == "running" else actions

    def _hold(self, event: RequestMade | EventMade, now_ms: int) -> list[Action]:
        self._held.append(event)
        return []

    def _on_request(self, event: RequestMade, now_ms: int) -> list[Action]:
        self._readers[event.source].asking = True
        return [self._post(msg.SplitRequested, source=event.source, host=self._host)]

    def _on_event_made(self, event: EventMade, now_ms: int) -> list[Action]:
        return [self._post(msg.EventToEnumerator, source=event.source, payload=event.payload)]

    def _on_splits_ended(self, event: SplitsEnded, now_ms: int) -> list[Action]:
        ends = self._readers[event.source].finish(event.split_ids)
        return [self._post(msg.SplitsFinished, source=event.source, finished=ends)]

    def _on_all_input_ended(self, event: AllInputEnded, now_ms: int) -> list[Action]:
        self.state = "ended"
        return [self._post(msg.InputEnded)]

    def _on_assign_splits(self, message: msg.AssignSplits, now_ms: int) -> list[Action]:
        reader = self._readers[message.source]
        if message.number <= reader.highest_number:
            return []
        if message.number != reader.highest_number + 1 or self.state == "ended":
            raise self.invalid(MessageReceived(message))
        reader.highest_number = message.number
        reader.asking = False
        reader.add(message.splits)
        return [AddSplits(message.source, message.splits)]

    def _on_no_more_splits(self, message: msg.NoMoreSplits, now_ms: int) -> list[Action]:
        reader = self._readers[message.source]
        was, reader.no_more, reader.asking = reader.no_more, True, False
        return [] if was or self.state in ("drained", "ended") else [NotifyNoMoreSplits(message.source)]

    def _on_event_to_reader(self, message: msg.EventToReader, now_ms: int) -> list[Action]:
        return [HandEvent(message.source, message.payload)]

    def _on_alignment_announced(self, message: msg.AlignmentAnnounced, now_ms: int) -> list[Action]:
        return [Announce(message.source, message.max_watermark_ms, message.others_ms)]

    def _on_unassigned_work(self, message: msg.UnassignedWork, now_ms: int) -> list[Action]:
        return [SetUnassigned(message.source, message.event_time_ms)]

    def _on_watermark_found(self, event: WatermarkFound, now_ms: int) -> list[Action]:
        return [
            self._post(
                msg.WatermarkReported, source=event.source, watermark_ms=event.watermark_ms, slowest=event.slowest
            )
        ]

    def _on_report_source(self, message: msg.ReportSource, now_ms: int) -> list[Action]:
        reader = self._readers[message.source]
        report = self._post(
            msg.SourceReported,
            source=message.source,
            host=self._host,
            incarnation=message.incarnation,
            highest_number=reader.highest_number,
            finished=tuple(reader.finished),
            request_pending=reader.asking,
            no_more_splits=reader.no_more,
            held=tuple(reader.held),
        )
        return [report]

    def _on_trigger_checkpoint(self, message: msg.TriggerCheckpoint, now_ms: int) -> list[Action]:
        """Fix the ends that belong to the checkpoint now: those that follow do not."""
        actions: list[Action] = []
        checkpoint_id = message.checkpoint_id
        if checkpoint_id in self._snapshots:
            raise self.invalid(MessageReceived(message))
        if self._stopped_by is not None and not message.completed < self._stopped_by < checkpoint_id:
            raise self.invalid(MessageReceived(message))
        if self.state == "suspended":
            # A barrier of a channel may be faster than the message that the checkpoint before it was aborted.
            self.state, self._stopped_by = "running", None
            actions.append(ResumeReading())
        reading = self.state == "running"
        drain = reading and message.kind is CheckpointKind.DRAIN
        suspend = reading and message.kind is CheckpointKind.SUSPEND
        if self._completed is None:
            self._completed = message.completed  # from before this execution
        actions += self._complete(message.completed)
        finished = {uid: tuple(reader.finished) for uid, reader in self._readers.items()}
        self._snapshots[checkpoint_id] = _Barrier(finished, input_ended=drain or not reading)
        if suspend or drain:
            self.state, self._stopped_by = "suspended" if suspend else "drained", checkpoint_id
        return [*actions, TakeSnapshot(checkpoint_id, drain=drain, suspend=suspend, location=message.location)]

    def _on_snapshot_made(self, event: SnapshotMade, now_ms: int) -> list[Action]:
        barrier = self._snapshots.pop(event.checkpoint_id, None)
        if barrier is None:
            return []
        readers = {
            uid: ReaderState(splits=event.splits.get(uid, ()), finished=finished)
            for uid, finished in barrier.finished.items()
        }
        state = SubtaskState(
            readers=readers,
            operators=event.operators,
            keyed=event.keyed,
            channels=event.channels,
            input_ended=barrier.input_ended,
        )
        return [self._post(msg.CheckpointAcknowledged, checkpoint_id=event.checkpoint_id, state=state)]

    def _on_snapshot_failed(self, event: SnapshotFailed, now_ms: int) -> list[Action]:
        if self._snapshots.pop(event.checkpoint_id, None) is None:
            return []
        return [self._post(msg.CheckpointDeclined, checkpoint_id=event.checkpoint_id, reason=event.reason)]

    def _on_checkpoint_completed(self, message: msg.CheckpointCompleted, now_ms: int) -> list[Action]:
        for uid, known in message.finished_known.items():
            reader = self._readers[uid]
            reader.finished = [end for end in reader.finished if end.number > known]
        return self._complete(message.checkpoint_id)

    def _complete(self, checkpoint_id: int) -> list[Action]:
        """Let operators know that a checkpoint is complete, unless they do."""
        if self._completed is not None and checkpoint_id <= self._completed:
            return []
        self._completed = checkpoint_id
        return [NotifyOperators(checkpoint_id)]

    def _on_checkpoint_aborted(self, message: msg.CheckpointAborted, now_ms: int) -> list[Action]:
        self._snapshots.pop(message.checkpoint_id, None)
        if self._stopped_by != message.checkpoint_id:
            return []
        if self.state == "drained":
            text = f"The input was ended for checkpoint {message.checkpoint_id}, which did not complete."
            error = msg.ErrorReport(error_type="HeadgateError", message=text)
            return self._on_something_failed(SomethingFailed(error), now_ms)
        self.state, self._stopped_by = "running", None
        return [ResumeReading()]

    def _on_something_failed(self, event: SomethingFailed, now_ms: int) -> list[Action]:
        failed = self._post(msg.SubtaskFailed, error=event.error)
        return [failed, *self._end("failed")]

    def _end(self, state: str) -> list[Action]:
        """Leave the execution, if there is one that was not left before."""
        actions: list[Action] = [] if self.state in ("idle", "failed") else [CloseAll()]
        self.state = state
        self._readers, self._held, self._snapshots = {}, [], {}
        self._stopped_by = self._completed = None
        return actions

    def _post(self, message: Callable[..., msg.FromSlot], **fields: Any) -> Post:
        return Post(message(stage=self._subtask.stage, execution=self.execution, **fields))
