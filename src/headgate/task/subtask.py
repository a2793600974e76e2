"""Decides the life of one subtask: restore, register, run, snapshot at barriers, end, fail.

Never: read a record or hold one; know a connector's types: splits are ids and bytes.

What a barrier asks of a subtask behind exchanges is told as the same letter, once its gate says that it is time. Its
channels, and which of their rows belong to a checkpoint, are the machines' of `headgate.task.input_gate` and
`headgate.task.result_partition`.

A letter of the coordinator's has its own name here; `OldLetter` is one for an execution that is over, or was not told
before. Events of readers and operators are those of the execution that was deployed last, told at once, in order; only
`SnapshotMade`, `SnapshotFailed` and `SomethingFailed` may be late.

    state                    event                     next       actions            why
    -----------------------  ------------------------  ---------  -----------------  ----------------------------------
    idle, failed             Deploy                    opening    OpenOperators
    opening                  Deploy                    opening    CloseAll,          the newer one counts
                                                                  OpenOperators
    running, suspended       Deploy                    opening    CloseAll,
                                                                  OpenOperators
    drained, ended           Deploy                    opening    CloseAll,
                                                                  OpenOperators
    opening, running         CancelSubtask             idle       CloseAll
    suspended                CancelSubtask             idle       CloseAll
    drained, ended           CancelSubtask             idle       CloseAll
    opening                  OperatorsOpened           running    Post, AddSplits?,  registrations, then SubtaskRunning
                                                                  StartReading
    opening                  OperatorsOpened suspended suspended  Post, AddSplits?   behind the last checkpoint nothing
                                                                                     is read, only published
    opening                  RequestMade               same                          posted behind the registration
    running, suspended       RequestMade               same       Post
    opening                  EventMade                 same                          posted behind the registration
    running, suspended       EventMade                 same       Post
    running                  SplitsEnded               same       Post
    running                  AllInputEnded             ended      Post
    running, suspended       AssignSplits              same       AddSplits
    running, suspended       AssignSplits again        same                          sent again after a restored log
    drained                  AssignSplits              same       AddSplits          not read, but not lost either
    drained, ended           AssignSplits again        same
    running, suspended       NoMoreSplits              same       TellNoMoreSplits
    running, suspended       NoMoreSplits again        same                          promised again by a restored one
    drained, ended           NoMoreSplits              same
    opening                  AlignmentAnnounced        same                          told again when it has registered
    running, suspended       AlignmentAnnounced        same       Announce
    drained, ended           AlignmentAnnounced        same                          nobody reads any longer
    opening                  UnassignedWork            same                          told again when it has registered
    running, suspended       UnassignedWork            same       SetUnassigned
    drained, ended           UnassignedWork            same                          the final watermark is out
    running, suspended       WatermarkFound            same       Post
    drained, ended           WatermarkFound            same       Post               that it votes no longer
    running, suspended       EventToReader             same       HandEvent
    drained, ended           EventToReader             same                          nobody reads any longer
    running, suspended       ReportSource              same       Post
    drained, ended           ReportSource              same       Post
    running                  TriggerCheckpoint         running    TakeSnapshot
    running                  TriggerCheckpoint         suspended  TakeSnapshot       SUSPEND
    running                  TriggerCheckpoint         drained    TakeSnapshot       DRAIN
    suspended                TriggerCheckpoint newer   running    ResumeReading,     its own one was aborted, which
                                                                  TakeSnapshot       it is told later
    suspended                TriggerCheckpoint newer   same       ResumeReading,     SUSPEND
                                                                  TakeSnapshot
    suspended                TriggerCheckpoint newer   drained    ResumeReading,     DRAIN
                                                                  TakeSnapshot
    drained, ended           TriggerCheckpoint         same       TakeSnapshot       whoever ended still takes part
    running, suspended       SnapshotMade              same       Post
    drained, ended           SnapshotMade              same       Post
    running, suspended       SnapshotMade late         same                          its checkpoint was aborted
    drained, ended           SnapshotMade late         same
    idle, opening, failed    SnapshotMade late         same                          of an execution that is over
    running, suspended       SnapshotFailed            same       Post
    drained, ended           SnapshotFailed            same       Post
    running, suspended       SnapshotFailed late       same
    drained, ended           SnapshotFailed late       same
    idle, opening, failed    SnapshotFailed late       same
    running, suspended       CheckpointCompleted       same       NotifyOperators
    drained, ended           CheckpointCompleted       same       NotifyOperators
    opening                  CheckpointCompleted       same                          nothing of it is here
    running                  CheckpointAborted         same                          what was staged is carried on
    ended                    CheckpointAborted         same                          an end stays an end
    drained                  CheckpointAborted other   same                          an earlier one
    drained                  CheckpointAborted         failed     Post, CloseAll     what it emitted was the end, and
                                                                                     is not: it must start again
    suspended                CheckpointAborted         running    ResumeReading
    suspended                CheckpointAborted other   same                          an earlier one
    opening                  CheckpointAborted         same
    opening, running         SomethingFailed           failed     Post, CloseAll
    suspended                SomethingFailed           failed     Post, CloseAll
    drained, ended           SomethingFailed           failed     Post, CloseAll
    idle, failed             SomethingFailed           same                          told already, or nobody asks
    idle, opening, failed    OldLetter                 same                          late
    running, suspended       OldLetter                 same
    drained, ended           OldLetter                 same

Follows FLIP-27, "Reader Interface and Threading Model"; FLIP-537, "New Source Base Contract"; FLIP-182 for alignment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError
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

_HISTORY = 64
_READING, _DONE, _OVER = ("running", "suspended"), ("drained", "ended"), ("idle", "failed")
_OPEN = (*_READING, *_DONE)
_ALIVE, _NOT_OPEN = ("opening", *_OPEN), ("opening", *_OVER)
_ALL = (*_ALIVE, *_OVER)

# What happened.


class LetterCame(msgspec.Struct, frozen=True):
    """A letter of the coordinator's for this subtask (`Deploy` and everything with a stage)."""

    letter: (
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
    LetterCame | OperatorsOpened | RequestMade | EventMade | SplitsEnded | WatermarkFound | SnapshotMade
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


class TellNoMoreSplits(msgspec.Struct, frozen=True):
    """Tell a reader that it gets no more splits."""

    source: str


class HandEvent(msgspec.Struct, frozen=True):
    """Hand an event to a reader."""

    source: str
    payload: bytes


class SetUnassigned(msgspec.Struct, frozen=True):
    """Hold a reader's watermark at work that is not assigned; behind the splits that were added before."""

    source: str
    event_time_ms: int | None


class Announce(msgspec.Struct, frozen=True):
    """Tell a reader's output where its alignment group is."""

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
    """Tell readers, operators and sinks that a checkpoint is durable."""

    checkpoint_id: int


class Post(msgspec.Struct, frozen=True):
    """Send a letter to the coordinator."""

    letter: msg.FromSlot


class CloseAll(msgspec.Struct, frozen=True):
    """Close readers, operators and sinks; what was staged and is in no checkpoint is thrown away."""


Action = (
    OpenOperators | AddSplits | TellNoMoreSplits | HandEvent | SetUnassigned | Announce | StartReading | TakeSnapshot
    | ResumeReading | NotifyOperators | Post | CloseAll
)  # fmt: skip


class OldLetter(msgspec.Struct, frozen=True):
    """Stands in the table for a letter of another execution than the one that is deployed."""


class _Reader:
    """What is known of the reader of one source."""

    def __init__(self, *, reassigns: bool, restored: ReaderState) -> None:
        self.reassigns = reassigns
        self.restored = restored.splits
        self.held: dict[str, None] = {}  # ids of the splits that it is reading
        self.finished: list[FinishedSplit] = []
        self.told = 0  # how many ends were told in this execution
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
        ends = tuple(FinishedSplit(split_id, self.told + n) for n, split_id in enumerate(split_ids, 1))
        self.told += len(ends)
        self.finished += ends
        return ends


class _Barrier(msgspec.Struct, frozen=True):
    """What belongs to a checkpoint because it was so when the barrier came."""

    finished: dict[str, tuple[FinishedSplit, ...]]
    input_ended: bool


class SubtaskMachine:
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
    >>> machine.handle(LetterCame(msg.Deploy(stage=0, execution=1, parallelism=1)), 0)
    [OpenOperators(parallelism=1, operators={})]
    >>> [type(action).__name__ for action in machine.handle(OperatorsOpened(), 0)]
    ['Post', 'Post', 'StartReading']
    """

    def __init__(self, subtask: SubtaskId, *, sources: dict[str, bool], host: str) -> None:
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
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The table has no row for it: a barrier while the subtask is opened, for example.
        """
        kind = self.kind_of(event)
        handler = self._HANDLERS.get((self.state, kind))
        if handler is None:
            raise self._invalid(event)
        was = self.state
        actions = handler(self, event.letter if isinstance(event, LetterCame) else event)
        self._history.append(f"{now_ms} ms: {was} {kind.__name__} -> {self.state}")
        return actions

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
            assert numbers == sorted(set(numbers)) and all(0 < number <= reader.told for number in numbers)

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        if not isinstance(event, LetterCame):
            return type(event)
        letter = event.letter
        if isinstance(letter, msg.Deploy):
            return msg.Deploy if letter.execution > self.execution else OldLetter
        over = self.state in ("idle", "failed") or letter.execution != self.execution
        return OldLetter if over else type(letter)

    def _on_deploy(self, letter: msg.Deploy) -> list[Action]:
        """Begin an execution; one that still runs ends first."""
        actions = self._end("opening")
        restore = letter.restore or SubtaskState()
        self.execution = letter.execution
        self._stopped_by = letter.checkpoint_id if letter.suspended else None
        self._readers = {
            uid: _Reader(reassigns=reassigns, restored=restore.readers.get(uid, ReaderState()))
            for uid, reassigns in self._sources.items()
        }
        for uid, reader in self._readers.items():
            reader.finish(tuple(end.split_id for end in restore.readers.get(uid, ReaderState()).finished))
        return [*actions, OpenOperators(letter.parallelism, restore.operators)]

    def _on_cancel(self, letter: msg.CancelSubtask) -> list[Action]:
        return self._end("idle")

    def _on_opened(self, event: OperatorsOpened) -> list[Action]:
        """Register every reader with what it reports, tell what it knows, and only then be running."""
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
            actions += self._on_request(each) if isinstance(each, RequestMade) else self._on_event_made(each)
        return [*actions, StartReading()] if self.state == "running" else actions

    def _hold(self, event: RequestMade | EventMade) -> list[Action]:
        self._held.append(event)
        return []

    def _on_request(self, event: RequestMade) -> list[Action]:
        self._readers[event.source].asking = True
        return [self._post(msg.SplitRequested, source=event.source, host=self._host)]

    def _on_event_made(self, event: EventMade) -> list[Action]:
        return [self._post(msg.EventToEnumerator, source=event.source, payload=event.payload)]

    def _on_splits_ended(self, event: SplitsEnded) -> list[Action]:
        ends = self._readers[event.source].finish(event.split_ids)
        return [self._post(msg.SplitsFinished, source=event.source, finished=ends)]

    def _on_all_input_ended(self, event: AllInputEnded) -> list[Action]:
        self.state = "ended"
        return [self._post(msg.InputEnded)]

    def _on_assign(self, letter: msg.AssignSplits) -> list[Action]:
        reader = self._readers[letter.source]
        if letter.number <= reader.highest_number:
            return []
        if letter.number != reader.highest_number + 1 or self.state == "ended":
            raise self._invalid(LetterCame(letter))
        reader.highest_number = letter.number
        reader.asking = False
        reader.add(letter.splits)
        return [AddSplits(letter.source, letter.splits)]

    def _on_no_more(self, letter: msg.NoMoreSplits) -> list[Action]:
        reader = self._readers[letter.source]
        was, reader.no_more, reader.asking = reader.no_more, True, False
        return [] if was or self.state in ("drained", "ended") else [TellNoMoreSplits(letter.source)]

    def _on_event_to_reader(self, letter: msg.EventToReader) -> list[Action]:
        return [HandEvent(letter.source, letter.payload)]

    def _on_announced(self, letter: msg.AlignmentAnnounced) -> list[Action]:
        return [Announce(letter.source, letter.max_watermark_ms, letter.others_ms)]

    def _on_unassigned(self, letter: msg.UnassignedWork) -> list[Action]:
        return [SetUnassigned(letter.source, letter.event_time_ms)]

    def _on_watermark_found(self, event: WatermarkFound) -> list[Action]:
        return [
            self._post(
                msg.WatermarkReported, source=event.source, watermark_ms=event.watermark_ms, slowest=event.slowest
            )
        ]

    def _on_report(self, letter: msg.ReportSource) -> list[Action]:
        reader = self._readers[letter.source]
        report = self._post(
            msg.SourceReported,
            source=letter.source,
            host=self._host,
            incarnation=letter.incarnation,
            highest_number=reader.highest_number,
            finished=tuple(reader.finished),
            request_pending=reader.asking,
            no_more_splits=reader.no_more,
            held=tuple(reader.held),
        )
        return [report]

    def _on_trigger(self, letter: msg.TriggerCheckpoint) -> list[Action]:
        """Fix the ends that belong to the checkpoint now: those that follow do not."""
        actions: list[Action] = []
        checkpoint_id = letter.checkpoint_id
        if checkpoint_id in self._snapshots:
            raise self._invalid(LetterCame(letter))
        if self.state == "suspended":
            # A barrier of a channel may be faster than the letter that the checkpoint before it was aborted.
            if self._stopped_by is None or checkpoint_id <= self._stopped_by:
                raise self._invalid(LetterCame(letter))
            self.state, self._stopped_by = "running", None
            actions.append(ResumeReading())
        reading = self.state == "running"
        drain = reading and letter.kind is CheckpointKind.DRAIN
        suspend = reading and letter.kind is CheckpointKind.SUSPEND
        finished = {uid: tuple(reader.finished) for uid, reader in self._readers.items()}
        self._snapshots[checkpoint_id] = _Barrier(finished, input_ended=drain or not reading)
        if suspend or drain:
            self.state, self._stopped_by = "suspended" if suspend else "drained", checkpoint_id
        return [*actions, TakeSnapshot(checkpoint_id, drain=drain, suspend=suspend, location=letter.location)]

    def _on_snapshot_made(self, event: SnapshotMade) -> list[Action]:
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

    def _on_snapshot_failed(self, event: SnapshotFailed) -> list[Action]:
        if self._snapshots.pop(event.checkpoint_id, None) is None:
            return []
        return [self._post(msg.CheckpointDeclined, checkpoint_id=event.checkpoint_id, reason=event.reason)]

    def _on_completed(self, letter: msg.CheckpointCompleted) -> list[Action]:
        for uid, known in letter.finished_known.items():
            reader = self._readers[uid]
            reader.finished = [end for end in reader.finished if end.number > known]
        return [NotifyOperators(letter.checkpoint_id)]

    def _on_aborted(self, letter: msg.CheckpointAborted) -> list[Action]:
        self._snapshots.pop(letter.checkpoint_id, None)
        if self._stopped_by != letter.checkpoint_id:
            return []
        if self.state == "drained":
            message = f"The input was ended for checkpoint {letter.checkpoint_id}, which did not complete."
            return self._on_failed(SomethingFailed(msg.ErrorReport(error_type="HeadgateError", message=message)))
        self.state, self._stopped_by = "running", None
        return [ResumeReading()]

    def _on_failed(self, event: SomethingFailed) -> list[Action]:
        failed = self._post(msg.SubtaskFailed, error=event.error)
        return [failed, *self._end("failed")]

    def _ignore(self, event: Any) -> list[Action]:
        return []

    def _end(self, state: str) -> list[Action]:
        """Leave the execution, if there is one that was not left before."""
        actions: list[Action] = [] if self.state in ("idle", "failed") else [CloseAll()]
        self.state = state
        self._readers, self._held, self._snapshots, self._stopped_by = {}, [], {}, None
        return actions

    def _post(self, letter: Callable[..., msg.FromSlot], **fields: Any) -> Post:
        return Post(letter(stage=self._subtask.stage, execution=self.execution, **fields))

    def _invalid(self, event: Event) -> InvalidTransitionError:
        return InvalidTransitionError(
            f"Subtask {self._subtask.subtask} of stage {self._subtask.stage} (execution {self.execution}) cannot take "
            f"{event!r} in state {self.state}. Before: {', '.join(list(self._history)[-10:]) or 'nothing'}.",
            state=self.state,
            event=repr(event),
            history=tuple(self._history),
        )

    _HANDLERS: ClassVar[dict[tuple[str, type], Callable[[Any, Any], list[Action]]]] = {
        (state, event): handler
        for states, event, handler in (
            (_ALL, msg.Deploy, _on_deploy),
            (_ALIVE, msg.CancelSubtask, _on_cancel),
            (("opening",), OperatorsOpened, _on_opened),
            (("opening",), RequestMade, _hold),
            (("opening",), EventMade, _hold),
            (_READING, RequestMade, _on_request),
            (_READING, EventMade, _on_event_made),
            (("running",), SplitsEnded, _on_splits_ended),
            (("running",), AllInputEnded, _on_all_input_ended),
            (_OPEN, msg.AssignSplits, _on_assign),
            (_OPEN, msg.NoMoreSplits, _on_no_more),
            (_READING, msg.AlignmentAnnounced, _on_announced),
            (("opening", *_DONE), msg.AlignmentAnnounced, _ignore),
            (_READING, msg.UnassignedWork, _on_unassigned),
            (("opening", *_DONE), msg.UnassignedWork, _ignore),
            (_OPEN, WatermarkFound, _on_watermark_found),
            (_READING, msg.EventToReader, _on_event_to_reader),
            (_DONE, msg.EventToReader, _ignore),
            (_OPEN, msg.ReportSource, _on_report),
            (_OPEN, msg.TriggerCheckpoint, _on_trigger),
            (_NOT_OPEN, SnapshotMade, _ignore),
            (_OPEN, SnapshotMade, _on_snapshot_made),
            (_NOT_OPEN, SnapshotFailed, _ignore),
            (_OPEN, SnapshotFailed, _on_snapshot_failed),
            (("opening",), msg.CheckpointCompleted, _ignore),
            (_OPEN, msg.CheckpointCompleted, _on_completed),
            (("opening",), msg.CheckpointAborted, _ignore),
            (_OPEN, msg.CheckpointAborted, _on_aborted),
            (_ALIVE, SomethingFailed, _on_failed),
            (_OVER, SomethingFailed, _ignore),
            (_ALL, OldLetter, _ignore),
        )
        for state in states
    }
