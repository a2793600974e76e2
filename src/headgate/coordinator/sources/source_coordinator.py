"""Knows which reader was given which splits since which checkpoint, and stands between enumerator and readers.

Never: call an enumerator, send or store anything: it orders that, and the outcome is an event.

What the enumerator reports goes out in the order in which it was reported: an assignment when it is in
the log, the state for a checkpoint when all before it is out. What follows is held back until the barriers are out.

It is made of a machine per reader (`reader_machine`), which splits go back (`splits_back`), what is on its way out
(`outbox`), the log's segments (`log_segments`), unassigned work (`unassigned_work`), and what is known of slow calls of
the enumerator (`enumerator_watch`). Its own states are those of the enumerator: *running*, *recovering* (it failed; the
log is being read), *failed* (everything is to be restored). What comes of a reader goes to that reader's machine; what
is `Stale` is of an enumerator, a log or a checkpoint that is over.

Follows FLIP-27, "Where to run the enumerator" (option 3); FLIP-537; Flink's SourceCoordinator, SplitAssignmentTracker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from headgate.coordinator.sources import reader_machine as rd
from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_recovery import Recovered, by_reader
from headgate.coordinator.sources.enumerator_watch import EnumeratorWatch
from headgate.coordinator.sources.log_records import GivenAgainRecord, LogRecord, RegisteredRecord, StateRecord
from headgate.coordinator.sources.outbox import Admission, Unassigned
from headgate.coordinator.sources.reader_machine import ReaderMachine, Shared
from headgate.coordinator.sources.source_state import decode_source_state
from headgate.coordinator.sources.splits_back import SplitsBack
from headgate.coordinator.sources.unassigned_work import UnassignedWork
from headgate.errors import StoredStateError
from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol import messages as msg
from headgate.protocol.state import SplitState

_MAX_RECOVERIES = 3
"""How often an enumerator is restored from the log between two checkpoints; one more failure is everybody's."""

_OF_ENUMERATOR = frozenset((
    src.EnumeratorStarted, src.SplitsAssigned, src.NoMoreSplitsSignalled, src.EventSent, src.EnumeratorSnapshotted,
    src.EnumeratorStateChanged, src.ReaderAdded, src.SourceEventHandled, src.UnassignedChanged, src.ReaderForgotten,
    src.SplitsTakenBack, src.EnumeratorFailed, src.SlowWorkTried, src.EnumeratorBusy,
))  # fmt: skip
_OF_ANYBODY = _OF_ENUMERATOR | {
    src.FromReader, src.ReaderFailed, src.LogAppended, src.LogAppendFailed, src.LogLoaded, src.BarriersSent,
    src.SourceCheckpointCompleted, src.SourceCheckpointAborted,
}  # fmt: skip


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for news of an enumerator or a log that is over, or of anybody when the source is."""


class _Pending(msgspec.Struct):
    """A checkpoint between its start and its barriers."""

    checkpoint_id: int
    finished_known: dict[int, int]
    ready: bool = False  # the state is out, what follows is held back


class SourceCoordinator(Machine):
    """The coordinator of one source.

    Parameters
    ----------
    source
        The source's uid.
    reassigns_on_recovery
        Whether it has FLIP-537's marker.
    parallelism
        How many readers there are.
    keeps_subtask
        Whether splits of a failed reader wait for that reader instead of going to whoever asks: with event time in
        use another reader's watermark may be past them. A source with the marker sees to that by itself.
    stuck_timeout_ms
        How long a call of the enumerator may take before it counts as failed, in milliseconds.

    Examples
    --------
    >>> machine = SourceCoordinator("numbers", reassigns_on_recovery=False, parallelism=1)
    >>> [*machine.handle(src.SourceStarted(), 0), *machine.handle(src.LogAppended(1), 0)][-1]
    StartEnumerator(incarnation=1, state=None, checkpoint_id=0, holders={}, assigned={}, returned={})
    >>> came = msg.ReaderRegistered(stage=0, execution=1, source="numbers", host="here")
    >>> machine.handle(src.FromReader(0, came), 0)
    [CallEnumerator(incarnation=1, call=AddReader(subtask=0, host='here', reported_splits=(), held=()))]
    >>> a = SplitState("a", b"...")
    >>> [order] = machine.handle(src.SplitsAssigned(1, {0: (a,)}), 0)  # logged first, and sent once it is durable
    >>> [(type(record).__name__, record.subtask, record.splits == (a,)) for record in order.records]
    [('AssignedRecord', 0, True)]
    """

    # fmt: off
    TRANSITIONS = (
        Row("new, running, recovering, failed", src.SourceStarted, "running",
            [src.DropLog, src.AppendLog, src.StartEnumerator, Maybe(src.CallEnumerator)], "nothing older counts"),
        Row("new, failed",              src.SourceClosed,            "closed", [], "nothing runs"),
        Row("running, recovering",      src.SourceClosed,            "closed", [src.StopEnumerator], "the query ends"),
        # Readers: what follows is for the machine of each.
        Row("running",                  msg.ReaderRegistered,        SAME,
            [src.CallEnumerator, Maybe(src.AppendLog), Maybe(src.SendToReader)], by="_on_reader_event"),
        Row("recovering",               msg.ReaderRegistered,        SAME, [Maybe(src.AppendLog)],
            by="_on_reader_event"),
        Row("running",                  msg.SplitRequested,          SAME, [Maybe(src.CallEnumerator)],
            by="_on_reader_event"),
        Row("running",                  msg.SplitsFinished,          SAME,
            [Maybe(src.AppendLog), Maybe(src.CallEnumerator)], by="_on_reader_event"),
        Row("running",                  msg.SourceReported,          SAME,
            [Maybe(src.CallEnumerator), Maybe(src.AppendLog), Maybe(src.SendToReader)], by="_on_reader_event"),
        Row("recovering",               msg.SplitRequested,          SAME, IGNORED, "its report will say it"),
        Row("recovering",               msg.SplitsFinished,          SAME, IGNORED, "its report will say it"),
        Row("recovering",               msg.SourceReported,          SAME, IGNORED, "it is to report to the next one"),
        Row("running",                  msg.EventToEnumerator,       SAME,
            [Maybe(src.AppendLog), Maybe(src.CallEnumerator)], by="_on_reader_event"),
        Row("recovering",               msg.EventToEnumerator,       SAME, [Maybe(src.AppendLog)],
            "its report will not say it", by="_on_reader_event"),
        Row("running",                  src.ReaderFailed,            SAME,
            [src.CallEnumerator, Maybe(src.SendToReader)], "others wait for what it may report again",
            by="_on_reader_event"),
        Row("recovering",               src.ReaderFailed,            SAME, [], "the next enumerator forgets it",
            by="_on_reader_event"),
        Row("running, recovering",      src.ReaderFailed,            SAME, [src.ReaderReset], "it was given nothing",
            when="unknown", by="_on_reader_event"),
        Row("running",                  src.ReaderForgotten,         SAME, [src.CallEnumerator], by="_on_reader_event"),
        Row("running",                  src.SplitsTakenBack,         SAME,
            [Maybe(src.AppendLog), Maybe(src.ReaderReset)], "unless it answers what was ordered when it was restored"),
        Row("running",                  src.NoMoreSplitsSignalled,   SAME,
            [Maybe(src.AppendLog), Maybe(src.SendToReader)], by="_on_reader_event"),
        Row("running",                  src.EventSent,               SAME, [Maybe(src.SendToReader)],
            by="_on_reader_event"),
        Row("running",                  src.ReaderAdded,             SAME, [Maybe(src.SendToReader)],
            "now it hears of unassigned work", by="_on_reader_event"),
        Row("running",                  src.SplitsAssigned,          SAME,
            [Maybe(src.AppendLog), Maybe(src.SendToReader), Maybe(src.CallEnumerator)],
            "what a reader has already is swallowed"),
        Row("running",                  src.SplitsAssigned,          "failed",
            [src.StopEnumerator, src.RequestGlobalFailover], "not what the log says"),
        # The enumerator.
        Row("running",                  src.EnumeratorStarted,       SAME,
            [Maybe(src.CallEnumerator), Maybe(src.SendToReader)], "readers report to one that knows what it assigned"),
        Row("running",                  src.EnumeratorSnapshotted,   SAME,
            [Maybe(src.AppendLog), Maybe(src.EnumeratorStateReady)], "a new segment; nothing if it was aborted"),
        Row("running",                  src.EnumeratorStateChanged,  SAME, [Maybe(src.AppendLog)],
            "resolved positions, say"),
        Row("running",                  src.SourceEventHandled,      SAME, [], "it is in the next state"),
        Row("running",                  src.UnassignedChanged,       SAME, [Maybe(src.SendToReader)],
            "after what was assigned before it"),
        Row("running",                  src.SourceTimePassed,        SAME, [Maybe(src.SendToReader)],
            "to very many readers a rise goes later"),
        Row("running",                  src.EnumeratorFailed,        "recovering",
            [Maybe(src.AppendLog), src.LoadLog, Maybe(src.CheckpointRefused)], "readers read on"),
        Row("running",                  src.EnumeratorFailed,        "failed",
            [src.StopEnumerator, src.RequestGlobalFailover, Maybe(src.CheckpointRefused)],
            "the log is not whole, it fails again and again, or only the user can help"),
        Row("running",                  src.SlowWorkTried,           SAME, [], "readers continue with their splits"),
        Row("running",                  src.EnumeratorBusy,          SAME, [Maybe(src.WarnOfEnumerator)],
            "slow, perhaps for ever"),
        Row("running",                  src.EnumeratorBusy,          "recovering",
            [Maybe(src.AppendLog), src.LoadLog, Maybe(src.CheckpointRefused)], "too long: it failed"),
        Row("running",                  src.EnumeratorBusy,          "failed",
            [src.StopEnumerator, src.RequestGlobalFailover, Maybe(src.CheckpointRefused)],
            "likewise, and the log is not whole, or once too often"),
        # The log.
        Row("running",                  src.LogAppended,             SAME,
            [Maybe(src.AppendLog), Maybe(src.SendToReader), Maybe(src.EnumeratorStateReady)],
            "it is durable; what came meanwhile is written"),
        Row("running",                  src.LogAppendFailed,         SAME,
            [Maybe(src.SendToReader), Maybe(src.EnumeratorStateReady)], "without a log until the next snapshot"),
        Row("recovering",               src.LogAppended,             SAME, [Maybe(src.AppendLog)], "nothing goes out"),
        Row("recovering",               src.LogAppendFailed,         "failed",
            [src.StopEnumerator, src.RequestGlobalFailover], "the log is not whole"),
        Row("recovering",               src.LogLoaded,               "running",
            [src.StartEnumerator, Maybe(src.CallEnumerator), Maybe(src.SendToReader)],
            "readers say what they have (now or once it started)"),
        Row("recovering",               src.LogLoaded,               "failed",
            [src.StopEnumerator, src.RequestGlobalFailover], "lost or corrupt", when="unusable"),
        # Checkpoints.
        Row("running",                  src.CheckpointStarted,       SAME, [src.CallEnumerator], "snapshot, in order"),
        Row("running, recovering",      src.CheckpointStarted,       SAME, [src.CheckpointRefused],
            "something is being restored"),
        Row("failed",                   src.CheckpointStarted,       SAME, [src.CheckpointRefused],
            "something is being restored", by="_on_checkpoint_refused"),
        Row("running",                  src.BarriersSent,            SAME, [Maybe(src.SendToReader)],
            "what was held back goes", by="_on_checkpoint_over"),
        Row("running",                  src.SourceCheckpointAborted, SAME, [Maybe(src.SendToReader)],
            "what was held back goes", by="_on_checkpoint_over"),
        Row("recovering",               src.BarriersSent,            SAME, [], "nothing was held back",
            by="_on_checkpoint_over"),
        Row("recovering",               src.SourceCheckpointAborted, SAME, [], "nothing was held back",
            by="_on_checkpoint_over"),
        Row("running",                  src.SourceCheckpointCompleted, SAME, [src.DropLog, src.CallEnumerator],
            "what is older is forgotten"),
        Row("recovering",               src.SourceCheckpointCompleted, SAME, [src.DropLog], "likewise"),
        Row("closed",                   src.CheckpointStarted,       SAME, IGNORED, "too late"),
        Row("running, recovering, failed, closed", Stale, SAME, IGNORED),
    )
    # fmt: on

    def __init__(
        self,
        source: str,
        *,
        reassigns_on_recovery: bool,
        parallelism: int,
        keeps_subtask: bool = False,
        stuck_timeout_ms: int = 30_000,
    ) -> None:
        super().__init__()
        self.source = source
        self.parallelism = parallelism
        self.state: Literal["new", "running", "recovering", "failed", "closed"] = "new"
        self._reassigns = reassigns_on_recovery
        self._shared = Shared(source, keeps_subtask=keeps_subtask and not reassigns_on_recovery)
        self._log = self._shared.log
        self._watch = EnumeratorWatch(source, stuck_timeout_ms)
        self._begin(0)

    def _begin(self, checkpoint_id: int) -> None:
        """Forget everything but the numbers, which are not used twice."""
        shared = self._shared
        self._log.begin(checkpoint_id)
        shared.outbox.clear()
        shared.splits_back, shared.events = SplitsBack(checkpoint_id), rd.EventsUnderWay()
        shared.is_recovering = False
        shared.unassigned = {}
        self._readers: dict[int, ReaderMachine] = {}  # those that are not absent
        self._pending: _Pending | None = None
        self._completed = checkpoint_id
        self._loading = checkpoint_id  # the segment from which the log is being read
        self._recoveries = 0
        self._watch.forget()
        self._offered: dict[int, tuple[SplitState, ...]] = {}  # assignments that a restored enumerator may take note of
        self._given_again: deque[GivenAgainRecord] = deque()  # what a restored enumerator got back, until it answers
        self._work = UnassignedWork(self.parallelism)

    def kind_of(self, event: src.Event) -> type:
        """Return the type under which the table has the event."""
        kind = type(event)
        if self.state in ("failed", "closed"):
            return Stale if kind in _OF_ANYBODY else kind
        if isinstance(event, src.FromReader):
            return type(event.message)
        return Stale if self.state != "new" and self._is_over(event) else kind

    def _is_over(self, event: src.Event) -> bool:
        """Return whether an event is of an enumerator or a log that is over."""
        if isinstance(event, src.LogAppendFailed):
            return self._log.is_older(event.number)
        if isinstance(event, src.LogLoaded):
            return self.state == "running" or event.incarnation != self._shared.incarnation
        of_enumerator: Any = event if type(event) in _OF_ENUMERATOR else None
        return of_enumerator is not None and (
            self.state == "recovering" or of_enumerator.incarnation != self._shared.incarnation
        )

    def refused(self, event: src.Event) -> str | None:
        """Return why an event cannot have happened: a reader's machine has no row for it, or nobody asked for it."""
        if self.state not in ("running", "recovering") or self._is_over(event):
            return None
        match event:
            case src.FromReader(subtask=subtask, message=message):
                # Of other messages each state has a row.
                return self._reader(subtask).refusal(message) if isinstance(message, msg.ReaderRegistered) else None
            case src.SplitsAssigned():
                given = rd.SplitsGiven((), swallowed=False)
                whys = (self._reader(subtask).refusal(given) for subtask in event.assignment)
                return next((why for why in whys if why is not None), None)
            case src.SourceEventHandled() if not self._shared.events.handled.get(event.subtask):
                return "no event of that reader is being handled"
            case src.CheckpointStarted() if self._pending is not None:
                return f"checkpoint {self._pending.checkpoint_id} is under way"
            case src.SplitsTakenBack() if self._given_again:
                return None
            case (
                src.ReaderFailed()
                | src.ReaderForgotten()
                | src.SplitsTakenBack()
                | src.NoMoreSplitsSignalled()
                | src.EventSent()
            ):
                return self._reader(event.subtask).refusal(event)
        return None

    def __str__(self) -> str:
        return f"The coordinator of the source {self.source}"

    def next_time_ms(self) -> int | None:
        """Return when `SourceTimePassed` is due, in milliseconds; None: not before another event."""
        return self._work.next_time_ms()

    def troubles(self) -> tuple[str, ...]:
        """Return what keeps the enumerator from its work now, as sentences for people."""
        return self._watch.troubles(self._failed_readers())

    def check(self) -> None:
        """Assert what always holds: a split is in one place, and nothing is held back without a reason."""
        shared = self._shared
        shared.splits_back.check()
        self._log.check()
        if not (self._pending is not None and self._pending.ready):
            assert not shared.outbox.can_go, "what could be sent is not"
        if self.state == "recovering":
            assert not len(shared.outbox) and not len(shared.splits_back.tracker)
        assert shared.is_recovering == (self.state == "recovering")
        assert self.next_time_ms() is None or self.state == "running"
        for subtask, reader in self._readers.items():
            reader.check()
            assert reader.subtask == subtask and reader.state != "absent"
            assert self.state != "recovering" or reader.state != "registered"

    # The source as a whole.

    def _on_source_started(self, event: src.SourceStarted, now_ms: int) -> list[src.Action]:
        state = None if event.state is None else decode_source_state(event.state)
        self._begin(event.checkpoint_id)
        self.state = "running"
        self._shared.incarnation += 1
        if state is not None:
            self._shared.splits_back = SplitsBack(event.checkpoint_id, state.assigned)
            assert not state.parked, "a checkpoint was taken while a reader was away"
            self._work.unreported.update(range(self.parallelism) if self._reassigns else ())
        self._shared.give_enumerator(event.unassigned)
        enumerator = None if state is None else state.enumerator
        actions: list[src.Action] = [
            src.DropLog(None),
            *self._log.append(StateRecord(event.state, event.checkpoint_id)),
            src.StartEnumerator(self._shared.incarnation, enumerator, event.checkpoint_id),
        ]
        if event.finished:
            actions.append(self._shared.call(src.NotifySplitsFinished(event.finished)))
        return actions

    def _on_source_closed(self, event: src.SourceClosed, now_ms: int) -> list[src.Action]:
        was, self.state, self._shared.is_recovering = self.state, "closed", False
        self._work.close()
        return [] if was in ("new", "failed") else [src.StopEnumerator(self._shared.incarnation)]

    def _give_up(self, error: msg.ErrorReport) -> list[src.Action]:
        self._begin(self._completed)
        self.state = "failed"
        return [src.StopEnumerator(self._shared.incarnation), src.RequestGlobalFailover(error)]

    # Readers.

    def _on_reader_event(self, event: rd.SourceEvent, now_ms: int) -> list[src.Action]:
        if isinstance(event, src.ReaderFailed) and self._pending is not None:
            self._pending.finished_known.pop(event.subtask, None)
        was_there = event.subtask in self._readers
        actions = self._carry_out(self._notify_reader(event.subtask, _for_reader(event), now_ms), now_ms)
        if not (self._reassigns and was_there and isinstance(event, src.ReaderFailed | src.ReaderAdded)):
            return actions
        is_there = self._reader(event.subtask).state == "registered"  # else it failed before the enumerator answered
        (self._work.unreported.discard if is_there else self._work.unreported.add)(event.subtask)
        if self.state == "running":
            self._put_unassigned()
        return [*actions, *self._release(now_ms)]

    def _on_splits_taken_back(self, event: src.SplitsTakenBack, now_ms: int) -> list[src.Action]:
        if self._given_again:
            self._given_again.popleft()  # answers what was ordered when it was restored, before anything else
            return []
        return self._on_reader_event(event, now_ms)

    def _reader(self, subtask: int) -> ReaderMachine:
        return self._readers.get(subtask) or ReaderMachine(subtask, self._shared)

    def _notify_reader(self, subtask: int, event: rd.Event, now_ms: int) -> list[rd.Action]:
        reader = self._reader(subtask)
        ordered: list[rd.Action] = reader.handle(event, now_ms)
        if reader.state == "absent":
            self._readers.pop(subtask, None)
        else:
            self._readers[subtask] = reader
        return ordered

    def _notify_readers(self, event: rd.Event, now_ms: int) -> list[src.Action]:
        ordered = [each for reader in self._readers.values() for each in reader.handle(event, now_ms)]
        return self._carry_out(ordered, now_ms)

    def _carry_out(self, ordered: Iterable[rd.Action], now_ms: int) -> list[src.Action]:
        """Return what readers order as orders to others; what several are given is logged together."""
        given = [each for each in ordered if isinstance(each, rd.Give)]
        actions: list[src.Action] = [*self._log.append(*(each.record for each in given))]
        for each in given:
            reader = self._readers[each.subtask]
            self._shared.outbox.put(reader.assignment(each.record), each.subtask, reader.execution)
        for order in ordered:
            match order:
                case rd.Give():
                    pass
                case rd.Release():
                    actions += self._release(now_ms)
                case _:
                    actions.append(order)
        return actions

    def _failed_readers(self) -> Sequence[int]:
        return [subtask for subtask, reader in sorted(self._readers.items()) if reader.state == "failed"]

    # What the enumerator says.

    def _on_enumerator_started(self, event: src.EnumeratorStarted, now_ms: int) -> list[src.Action]:
        offered, self._offered = self._offered, {}
        if not offered:
            return []  # calls were ordered after the start already
        actions: list[src.Action] = []
        if event.took_assignments:
            for subtask, splits in offered.items():
                back = self._shared.splits_back.unpark(subtask, splits)
                if back:  # it was given back since
                    actions.append(self._give_again(subtask, back))
                self._shared.splits_back.heard_of(splits)
        return [*actions, *self._notify_readers(rd.EnumeratorReady(), now_ms)]

    def _on_splits_assigned(self, event: src.SplitsAssigned, now_ms: int) -> list[src.Action]:
        swallowed = self._shared.splits_back.swallowed
        held = bool(swallowed or self._shared.unassigned)
        news = {}
        for subtask, splits in event.assignment.items():
            for split in splits if swallowed and self._reassigns else ():
                if swallowed.get(split.split_id) not in (None, subtask):
                    return self._give_up(_owner_changed(self.source, split.split_id, subtask))
            new = self._shared.complete(split for split in splits if split.split_id not in swallowed)
            if new and self._reader(subtask).promised:
                return self._give_up(_promise_broken(self.source, new[0].split_id, subtask))
            news[subtask] = rd.SplitsGiven(new, bool(splits) and not new)
        for splits in event.assignment.values() if swallowed else ():
            self._shared.splits_back.heard_of(splits)
        ordered = [each for subtask, given in news.items() for each in self._notify_reader(subtask, given, now_ms)]
        actions = self._carry_out(ordered, now_ms)
        if held:
            self._put_unassigned()
        return [*actions, *self._release(now_ms)]

    def _on_enumerator_snapshotted(self, event: src.EnumeratorSnapshotted, now_ms: int) -> list[src.Action]:
        pending = self._pending
        if pending is None or pending.checkpoint_id != event.checkpoint_id:
            return []
        state, before = self._shared.splits_back.encode(event.state), self._log.number
        self._shared.splits_back.tracker.begin(event.checkpoint_id)
        self._log.begin_segment(event.checkpoint_id)
        actions = self._log.append(*self._state_records(state, event.checkpoint_id))
        unassigned = tuple(self._shared.unassigned.values())
        self._shared.outbox.put(src.EnumeratorStateReady(event.checkpoint_id, state, {}, unassigned), log_number=before)
        return [*actions, *self._release(now_ms)]

    def _on_enumerator_state_changed(self, event: src.EnumeratorStateChanged, now_ms: int) -> list[src.Action]:
        return [*self._log.append(*self._state_records(self._shared.splits_back.encode(event.state), None))]

    def _give_again(self, subtask: int, splits: Iterable[SplitState]) -> src.Action:
        """Give a restored enumerator what a failed reader had; its states before it answers do not have that."""
        record = GivenAgainRecord(subtask, tuple(splits))
        self._shared.give_enumerator(record.splits)
        self._given_again.append(record)
        return self._shared.call(src.AddSplitsBack(subtask, record.splits))

    def _state_records(self, state: bytes, checkpoint_id: int | None) -> list[LogRecord]:
        """Return the record of a state, with what is not in it, as it was taken before: reports, splits, events."""
        reports = [
            RegisteredRecord(subtask, reader.execution, reader.unconfirmed)
            for subtask, reader in self._readers.items()
            if reader.unconfirmed
        ]
        return [StateRecord(state, checkpoint_id), *reports, *self._given_again, *self._shared.events.records()]

    def _on_source_event_handled(self, event: src.SourceEventHandled, now_ms: int) -> list[src.Action]:
        self._shared.events.handled[event.subtask].popleft()
        return []

    def _on_unassigned_changed(self, event: src.UnassignedChanged, now_ms: int) -> list[src.Action]:
        self._work.reported = Unassigned(event.event_time_ms)
        self._put_unassigned()
        return self._release(now_ms)

    def _on_source_time_passed(self, event: src.SourceTimePassed, now_ms: int) -> list[src.Action]:
        due_ms = self._work.next_time_ms()
        return [] if due_ms is None or now_ms < due_ms else self._notify_unassigned(self._everybody(now_ms))

    def _put_unassigned(self) -> None:
        """Let readers hear of what is unassigned after all before it."""
        shared = self._shared
        work = self._work.to_put(is_early=bool(shared.splits_back.swallowed), has_rows=bool(shared.unassigned))
        if work is not None:
            shared.outbox.put(work)

    def _on_enumerator_failed(self, event: src.EnumeratorFailed, now_ms: int) -> list[src.Action]:
        return self._lose_enumerator(event.error, now_ms)

    def _lose_enumerator(self, error: msg.ErrorReport, now_ms: int) -> list[src.Action]:
        """Restore the enumerator from the log, or everything."""
        actions: list[src.Action] = []
        if self._pending is not None and not self._pending.ready:
            reason = f"the enumerator failed: {error.message}"
            actions.append(src.CheckpointRefused(self._pending.checkpoint_id, reason))
            self._pending = None
        self._watch.forget()
        if not self._log.is_whole_since(self._completed) or error.final or self._recoveries == _MAX_RECOVERIES:
            return [*actions, *self._give_up(error)]
        shared = self._shared
        self.state, shared.is_recovering = "recovering", True
        self._recoveries += 1
        shared.incarnation += 1
        self._loading = self._completed
        shared.splits_back, shared.events = SplitsBack(self._completed), rd.EventsUnderWay()  # the log has them
        self._offered = {}
        self._given_again.clear()
        shared.outbox.clear()
        self._work.lose_enumerator()
        actions += self._notify_readers(rd.EnumeratorLost(), now_ms)
        load = src.LoadLog(self._loading, self._log.number, shared.incarnation)
        return [*actions, *self._log.write_all(), load]

    def _on_slow_work_tried(self, event: src.SlowWorkTried, now_ms: int) -> list[src.Action]:
        self._watch.slow_work_tried(event)
        return []

    def _on_enumerator_busy(self, event: src.EnumeratorBusy, now_ms: int) -> list[src.Action]:
        warned, error = self._watch.look(event.calls)
        if error is not None:
            return self._lose_enumerator(error, now_ms)
        failed = self._failed_readers()
        return [src.WarnOfEnumerator(self._watch.trouble_of(call, failed)) for call in warned]

    # The log.

    def _on_log_appended(self, event: src.LogAppended, now_ms: int) -> list[src.Action]:
        return [*self._log.appended(event.number), *self._release(now_ms)]

    def _on_log_append_failed(self, event: src.LogAppendFailed, now_ms: int) -> list[src.Action]:
        self._log.go_on_without()
        if self.state == "recovering":
            return self._give_up(_log_unusable(self.source, event.reason))
        return self._release(now_ms)

    def _on_log_loaded(self, event: src.LogLoaded, now_ms: int) -> list[src.Action]:
        first = event.records[0] if event.records else None
        if event.records is None or not isinstance(first, StateRecord) or first.checkpoint_id != self._loading:
            return self._give_up(_log_unusable(self.source, event.reason or "its beginning is missing"))
        recovered = Recovered(self._loading, keeps_subtask=self._shared.keeps_subtask)
        try:
            recovered.replay(event.records)
        except StoredStateError as error:
            return self._give_up(_log_unusable(self.source, error.message))
        self._adopt(recovered)
        return self._restart(recovered, now_ms)

    def _adopt(self, recovered: Recovered) -> None:
        shared = self._shared
        self.state, shared.is_recovering = "running", False
        shared.splits_back.adopt(recovered, self._completed)
        unhandled = shared.events.unhandled
        for subtask, payloads in recovered.events.items():
            unhandled[subtask] = [*payloads, *unhandled.get(subtask, ())]
        for reader in self._readers.values():
            reader.adopt(recovered)

    def _restart(self, recovered: Recovered, now_ms: int) -> list[src.Action]:
        shared, state = self._shared, recovered.state
        back_again = recovered.given_back.keys() | recovered.swallowed.keys()
        holders = {split.split_id: subtask for subtask, split in shared.splits_back.tracker}
        for split_id in back_again:
            holders.pop(split_id, None)
        self._offered = recovered.assigned_since() if self._reassigns else {}
        enumerator = None if state is None else state.enumerator
        segment = self._log.segment
        actions: list[src.Action] = [
            src.StartEnumerator(
                shared.incarnation, enumerator, segment, holders, self._offered, by_reader(recovered.returned)
            )
        ]
        failed = self._failed_readers()
        finished = [each for subtask, ends in recovered.finished.items() if subtask not in failed for each in ends]
        if finished:
            actions.append(shared.call(src.NotifySplitsFinished(tuple(finished))))
        given_back = by_reader(recovered.given_back)
        actions.extend(self._give_again(subtask, splits) for subtask, splits in given_back.items())
        actions.extend(shared.call(src.ForgetReader(subtask)) for subtask in failed)
        # What readers report depends on what the enumerator knows by itself.
        return actions if self._offered else [*actions, *self._notify_readers(rd.EnumeratorReady(), now_ms)]

    # Checkpoints.

    def _on_checkpoint_started(self, event: src.CheckpointStarted, now_ms: int) -> list[src.Action]:
        reason = self._why_not_now()
        if reason is not None:
            return [src.CheckpointRefused(event.checkpoint_id, reason)]
        known = {subtask: reader.reported_until for subtask, reader in self._readers.items() if reader.reported_until}
        self._pending = _Pending(event.checkpoint_id, known)
        return [self._shared.call(src.SnapshotEnumerator(event.checkpoint_id))]

    def _why_not_now(self) -> str | None:
        """Return why no checkpoint can begin; None: it can."""
        if self.state == "recovering":
            return "the enumerator is being restored"
        for subtask, reader in self._readers.items():
            if reader.state == "failed":
                return f"reader {subtask} failed"
            if reader.state == "reporting":  # what was logged and is not there is sent again: no barrier before it
                return f"reader {subtask} has not reported yet what it has"
        if self._shared.splits_back.parked:
            return f"splits wait for the readers {sorted(self._shared.splits_back.parked)}"
        # Else readers would report what the enumerator has as well.
        if self._reassigns and self._shared.splits_back.swallowed:
            return "the restored enumerator has not assigned again yet what it had assigned"
        return None

    def _on_checkpoint_refused(self, event: src.CheckpointStarted, now_ms: int) -> list[src.Action]:
        return [src.CheckpointRefused(event.checkpoint_id, "the source is to be restored with everything else")]

    def _on_checkpoint_over(
        self, event: src.BarriersSent | src.SourceCheckpointAborted, now_ms: int
    ) -> list[src.Action]:
        if self._pending is None or self._pending.checkpoint_id != event.checkpoint_id:
            return []
        self._pending = None
        return self._release(now_ms)

    def _on_source_checkpoint_completed(self, event: src.SourceCheckpointCompleted, now_ms: int) -> list[src.Action]:
        self._completed, self._recoveries = event.checkpoint_id, 0
        self._shared.splits_back.tracker.complete(event.checkpoint_id)
        actions: list[src.Action] = [src.DropLog(event.checkpoint_id)]
        if self.state == "running":
            actions.append(self._shared.call(src.NotifyEnumerator(event.checkpoint_id)))
        return actions

    # What goes out.

    def _release(self, now_ms: int) -> list[src.Action]:
        """Send what can go."""
        actions: list[src.Action] = []
        unaware: set[int] = set()  # who is to hear of unassigned work, after what goes now
        pending = self._pending
        while not (pending is not None and pending.ready) and (held := self._shared.outbox.pop()) is not None:
            match held.what:
                case src.EnumeratorStateReady():
                    actions.extend(self._notify_unassigned(unaware))
                    unaware.clear()
                    if pending is not None and pending.checkpoint_id == held.what.checkpoint_id:
                        pending.ready = True
                        actions.append(msgspec.structs.replace(held.what, finished_known=pending.finished_known))
                    continue
                case Unassigned():
                    if self._work.take(held.what, now_ms):
                        unaware.update(self._everybody(now_ms))
                    continue
            assert held.subtask is not None
            reader = self._readers.get(held.subtask)
            if reader is None or not reader.takes(held.execution):
                continue
            if isinstance(held.what, Admission):
                reader.admit()
                unaware.add(held.subtask)
            else:
                actions.append(src.SendToReader(held.subtask, held.what))
        return [*actions, *self._notify_unassigned(unaware)]

    def _everybody(self, now_ms: int) -> Iterable[int]:
        """Return all readers, to hear now."""
        self._work.all_hear(now_ms)
        return self._readers

    def _notify_unassigned(self, subtasks: Iterable[int]) -> list[src.Action]:
        """Let readers hear of unassigned work, those that have not heard it."""
        work = self._work.current
        if work is None:
            return []
        return [action for subtask in sorted(subtasks) for action in self._readers[subtask].news_of(work)]


def _for_reader(event: rd.SourceEvent) -> rd.Event:
    return event.message if isinstance(event, src.FromReader) else event


def _owner_changed(source: str, split_id: str, subtask: int) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="ConnectorContractError",
        message=f"The restored enumerator of {source} assigns {split_id} to reader {subtask}, but another one has it.",
        facts={"source": source, "split": split_id},
    )


def _promise_broken(source: str, split_id: str, subtask: int) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="ConnectorContractError",
        message=f"The enumerator of {source} assigns {split_id} to reader {subtask}, which was notified "
        "that there are no more splits.",
        facts={"source": source, "split": split_id},
    )


def _log_unusable(source: str, reason: str) -> msg.ErrorReport:
    return msg.ErrorReport(
        error_type="CorruptStateError",
        message=f"The enumerator of {source} failed, and its write-ahead log cannot be used: {reason}.",
        facts={"source": source},
    )
