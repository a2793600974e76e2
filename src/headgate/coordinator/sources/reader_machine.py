"""Decides what one reader of a source is sent, and what its enumerator hears of it, until its splits go back.

Never: look at another reader. What several are given at once `source_coordinator` logs together.

    state       meaning
    ----------  ----------------------------------------------------------------------------------------------------
    absent      it has not registered, or its splits are back: it may be deployed
    registered  the enumerator may speak to it
    reporting   the enumerator failed: the reader says what it has before the next one hears of it
    failed      until the enumerator has its splits back

`Stale` is a message of an execution that is over, or a report that an older enumerator wanted.

Follows FLIP-27, "Where to run the enumerator" (option 3); FLIP-537.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from headgate.coordinator.sources import source_events as src
from headgate.coordinator.sources.enumerator_recovery import Recovered
from headgate.coordinator.sources.log_records import (
    AssignedRecord,
    FinishedRecord,
    GivenBackRecord,
    LogRecord,
    NoMoreSplitsRecord,
    RegisteredRecord,
    SourceEventRecord,
)
from headgate.coordinator.sources.log_segments import LogSegments
from headgate.coordinator.sources.outbox import Admission, Outbox, Unassigned
from headgate.coordinator.sources.splits_back import SplitsBack
from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol import messages as msg
from headgate.protocol.state import FinishedSplit, SplitState

# What happened, beside messages of the reader and news of the enumerator.


class SplitsGiven(msgspec.Struct, frozen=True):
    """The enumerator assigned splits to it. ``splits``: those that no reader has; ``swallowed``: there were others."""

    splits: tuple[SplitState, ...]
    swallowed: bool


class EnumeratorLost(msgspec.Struct, frozen=True):
    """The enumerator failed and will be restored from the log."""


class EnumeratorReady(msgspec.Struct, frozen=True):
    """A restored enumerator knows what it can know by itself."""


Event = (
    msg.ReaderRegistered | msg.SplitRequested | msg.SplitsFinished | msg.EventToEnumerator | msg.SourceReported
    | src.ReaderFailed | src.ReaderForgotten | src.SplitsTakenBack | src.NoMoreSplitsSignalled | src.EventSent
    | src.ReaderAdded | SplitsGiven | EnumeratorLost | EnumeratorReady
)  # fmt: skip

SourceEvent = (
    src.FromReader | src.ReaderFailed | src.ReaderForgotten | src.SplitsTakenBack | src.NoMoreSplitsSignalled
    | src.EventSent | src.ReaderAdded
)  # fmt: skip
"""What a source's coordinator hears that is for one reader."""

# What is to be done.


class Give(msgspec.Struct, frozen=True):
    """Log an assignment, and put it on its way."""

    subtask: int
    record: AssignedRecord


class Release(msgspec.Struct, frozen=True):
    """Send what can go: something was put on its way."""


Action = src.CallEnumerator | src.AppendLog | src.SendToReader | src.ReaderReset | Give | Release


class Stale(msgspec.Struct, frozen=True):
    """Stands in the table for messages of an execution that is over, and reports that nobody wants any longer."""


_Message = msg.SplitRequested | msg.SplitsFinished | msg.EventToEnumerator | msg.SourceReported


class EventsUnderWay:
    """Events of readers that no state of the enumerator is known to know, by reader.

    Attributes
    ----------
    handled
        The enumerator is handling them.
    unhandled
        They wait until it has been restored and knows the reader.
    """

    def __init__(self) -> None:
        self.handled: dict[int, deque[bytes]] = {}
        self.unhandled: dict[int, list[bytes]] = {}

    def take(self, subtask: int) -> list[bytes]:
        """Return the events of a reader that wait, in order: they are handled from now on."""
        payloads = self.unhandled.pop(subtask, [])
        if payloads:
            self.handled.setdefault(subtask, deque()).extend(payloads)
        return payloads

    def records(self) -> list[LogRecord]:
        """Return the records of all, for a log that goes on from a state without them."""
        return [
            SourceEventRecord(subtask, payload)
            for of in (self.handled, self.unhandled)
            for subtask, payloads in of.items()
            for payload in payloads
        ]


class Shared:
    """What all readers of a source have to do with.

    Parameters
    ----------
    source
        The source's uid.
    keeps_subtask
        Whether splits of a failed reader wait for that reader.

    Attributes
    ----------
    incarnation
        The current enumerator's, or of the one that is to come.
    is_recovering
        There is no enumerator now.
    unassigned
        Splits that went to the enumerator with rows in flight, or read to their ends: it does not know of that, so
        whoever it assigns them to gets it from here.
    """

    def __init__(self, source: str, *, keeps_subtask: bool) -> None:
        self.source = source
        self.keeps_subtask = keeps_subtask
        self.log = LogSegments()
        self.outbox = Outbox(self.log)
        self.splits_back = SplitsBack(0)
        self.events = EventsUnderWay()
        self.incarnation = 0
        self.is_recovering = False
        self.unassigned: dict[str, SplitState] = {}

    def give_enumerator(self, splits: Iterable[SplitState]) -> None:
        """Keep what the enumerator cannot know of splits that it is given."""
        self.unassigned.update((split.split_id, split) for split in splits if not split.is_plain)

    def complete(self, assigned: Iterable[SplitState]) -> tuple[SplitState, ...]:
        """Return splits as they were assigned, with what was kept of them."""
        return tuple(
            split if (kept := self.unassigned.pop(split.split_id, None)) is None
            else msgspec.structs.replace(split, in_flight=kept.in_flight, ended=kept.ended)
            for split in assigned
        )  # fmt: skip

    def call(self, call: src.EnumeratorCall) -> src.CallEnumerator:
        """Return the order of a call."""
        return src.CallEnumerator(self.incarnation, call)


class ReaderMachine(Machine):
    """One reader of a source.

    Parameters
    ----------
    subtask
        Which one.
    shared
        What it shares with others.
    """

    # fmt: off
    TRANSITIONS = (
        Row("absent",                   msg.ReaderRegistered,      "registered",
            [src.CallEnumerator, Release, Maybe(src.AppendLog)], "with what waits for it"),
        Row("absent",                   msg.ReaderRegistered,      "reporting", [Maybe(src.AppendLog)],
            "it is asked to report, too", when="restoring"),
        Row("registered",               msg.SplitRequested,        SAME, [Maybe(src.CallEnumerator)],
            "unless the one before is not answered, or nothing follows"),
        Row("reporting",                msg.SplitRequested,        SAME, IGNORED, "the report that follows has it"),
        Row("registered",               msg.SplitsFinished,        SAME, [Maybe(src.AppendLog), src.CallEnumerator]),
        Row("reporting",                msg.SplitsFinished,        SAME, IGNORED, "the report that follows has them"),
        Row("registered",               msg.EventToEnumerator,     SAME, [Maybe(src.AppendLog), src.CallEnumerator],
            "logged first"),
        Row("reporting",                msg.EventToEnumerator,     SAME, [Maybe(src.AppendLog)],
            "waits: its report will not say it"),
        Row("reporting",                msg.SourceReported,        "registered",
            [src.CallEnumerator, Release, Maybe(src.AppendLog)], "what is logged and did not arrive is sent again"),
        Row("registered",               msg.SourceReported,        SAME, IGNORED, "it has reported"),
        Row("absent, registered, reporting, failed", Stale, SAME, IGNORED, "nobody waits for it"),
        Row("absent",                   src.ReaderFailed,          SAME, [src.ReaderReset], "it was given nothing"),
        Row("registered",               src.ReaderFailed,          "failed", [src.CallEnumerator],
            "forget it before all else"),
        Row("reporting",                src.ReaderFailed,          "failed", [Maybe(src.CallEnumerator)],
            "if there is no enumerator, the next one does it"),
        Row("failed",                   src.ReaderForgotten,       SAME, [src.CallEnumerator], "give back what it had"),
        Row("failed",                   src.SplitsTakenBack,       "absent", [Maybe(src.AppendLog), src.ReaderReset],
            "it may be deployed again"),
        Row("registered, failed",       SplitsGiven,               SAME, [Maybe(Give), Maybe(src.CallEnumerator)],
            "asks again if it has them already; what a failed one is given goes back with the others"),
        Row("registered",               src.NoMoreSplitsSignalled, SAME, [Maybe(src.AppendLog), Maybe(Release)],
            "once is enough"),
        Row("failed",                   src.NoMoreSplitsSignalled, SAME, IGNORED,
            "its next execution is promised it anew"),
        Row("registered",               src.EventSent,             SAME, [Release]),
        Row("failed",                   src.EventSent,             SAME, IGNORED, "as lost as those before it"),
        Row("registered, reporting, failed", src.ReaderAdded, SAME, [Release], "its report is in the next state"),
        Row("absent",                   src.ReaderAdded,           SAME, IGNORED, "it has failed since"),
        Row("registered",               EnumeratorLost,            "reporting"),
        Row("reporting, failed",        EnumeratorLost,            SAME),
        Row("reporting",                EnumeratorReady,           SAME, [src.SendToReader], "ReportSource"),
        Row("registered, failed",       EnumeratorReady,           SAME, IGNORED, "nothing is asked of it"),
    )
    # fmt: on

    def __init__(self, subtask: int, shared: Shared) -> None:
        super().__init__()
        self.state = "absent"
        self.subtask = subtask
        self.stage = self.execution = 0
        self.host = ""
        self.unconfirmed: tuple[SplitState, ...] = ()
        """Reported on registration, and maybe not known to the enumerator yet."""
        self.reported_until = 0
        """The number of the last end that the enumerator heard of."""
        self.promised = False
        """Whether it was promised that nothing follows."""
        self.requested = False
        """Whether it waits for an answer."""
        self._shared = shared
        self._reported: tuple[SplitState, ...] = ()  # to be given to the enumerator with the next `AddReader`
        self._number = 0  # of the last assignment
        self._checkpoint_id = 0  # it will be restored from, once it failed
        self._logged: list[AssignedRecord] = []  # may not have arrived; asked for while reporting
        self._admitted = False  # the enumerator has seen it, and what followed is out
        self._work: msg.UnassignedWork | None = None  # the last that it was sent

    def kind_of(self, event: Event) -> type:
        """Return the type under which the table has the event."""
        if not isinstance(event, _Message):
            return type(event)
        is_over = self.state in ("absent", "failed") or event.execution != self.execution
        if is_over or (isinstance(event, msg.SourceReported) and event.incarnation != self._shared.incarnation):
            return Stale
        return type(event)

    def refusal(self, event: Event) -> str | None:
        """Return why there is no row for an event; None: there is one."""
        if (self.state, self.kind_of(event)) in self._DISPATCH:
            return None
        match event:
            case msg.ReaderRegistered():
                return f"the reader is {self.state} in execution {self.execution}"
            case src.ReaderFailed():
                return "its splits are on their way back already"
            case src.ReaderForgotten() | src.SplitsTakenBack():
                return "the reader did not fail"
        return f"reader {self.subtask} is not registered"

    def __str__(self) -> str:
        return f"Reader {self.subtask} of the source {self._shared.source}"

    # What others ask.

    def adopt(self, recovered: Recovered) -> None:
        """Take over what a log says of it."""
        registered = recovered.registered.get(self.subtask)
        if registered is not None and registered.execution == self.execution:
            self._reported = registered.reported_splits
        self.promised = self.subtask in recovered.promised
        logged = recovered.logged.get(self.subtask, ())
        self._logged = [record for record in logged if record.execution == self.execution]

    def assignment(self, record: AssignedRecord) -> msg.AssignSplits:
        """Return the message of an assignment."""
        return msg.AssignSplits(
            stage=self.stage,
            execution=self.execution,
            source=self._shared.source,
            number=record.number,
            splits=record.splits,
        )

    def takes(self, execution: int) -> bool:
        """Return whether what was put on its way for this execution is still to be sent."""
        return self.execution == execution and self.state != "failed"

    def admit(self) -> None:
        """Let it hear of unassigned work from now on."""
        self._admitted = True

    def news_of(self, work: Unassigned) -> list[src.Action]:
        """Return what it is to be sent of unassigned work: nothing if it knows, or may not know yet."""
        if not self._admitted or self.state == "failed":
            return []
        if self._work is not None and self._work.event_time_ms == work.event_time_ms:
            return []
        self._work = msg.UnassignedWork(
            stage=self.stage, execution=self.execution, source=self._shared.source, event_time_ms=work.event_time_ms
        )
        return [src.SendToReader(self.subtask, self._work)]

    # What it says.

    def _on_reader_registered(self, event: msg.ReaderRegistered, now_ms: int) -> list[Action]:
        self.stage, self.execution, self.host = event.stage, event.execution, event.host
        self._reported = reported = event.reported_splits
        actions: list[Action] = []
        if reported:
            actions += self._shared.log.append(RegisteredRecord(self.subtask, event.execution, reported))
        if self._shared.is_recovering:
            self.state = "reporting"
            return actions
        return [*actions, *self._join(event.held)]

    def _join(self, held: tuple[str, ...]) -> list[Action]:
        """Make it known to the enumerator, with what waits for it."""
        self.state = "registered"
        splits_back = self._shared.splits_back
        parked = splits_back.parked.pop(self.subtask, {})
        actions: list[Action] = []
        if parked:
            record = self._note(tuple(parked.values()))
            actions += self._shared.log.append(record)
            self._put(self.assignment(record))
            self.requested = False
        self.unconfirmed, self._reported = self._reported, ()
        # What was parked is given by now: that counts, and not a report of it.
        reported = splits_back.not_reassigned(self.unconfirmed)
        self._shared.give_enumerator(reported)
        added = src.AddReader(self.subtask, self.host, reported, (*held, *parked))
        return [*actions, self._shared.call(added), *self._handle_events(), Release()]

    def _on_split_requested(self, event: msg.SplitRequested, now_ms: int) -> list[Action]:
        self.host = event.host
        if self.requested or self.promised:  # what waited for it came meanwhile, so it asks again
            return []
        self.requested = True
        return [self._ask()]

    def _ask(self) -> Action:
        return self._shared.call(src.HandleSplitRequest(self.subtask, self.host))

    def _on_splits_finished(self, event: msg.SplitsFinished, now_ms: int) -> list[Action]:
        return self._report_ends(event.finished)

    def _report_ends(self, finished: tuple[FinishedSplit, ...]) -> list[Action]:
        if not finished:
            return []
        self.reported_until = max(self.reported_until, *(each.number for each in finished))
        notify = src.NotifySplitsFinished(tuple(each.split_id for each in finished))
        return [*self._shared.log.append(FinishedRecord(self.subtask, finished)), self._shared.call(notify)]

    def _on_event_to_enumerator(self, event: msg.EventToEnumerator, now_ms: int) -> list[Action]:
        """Log an event before it is handled: who sent it does not send it again if the enumerator fails meanwhile."""
        actions: list[Action] = [*self._shared.log.append(SourceEventRecord(self.subtask, event.payload))]
        self._shared.events.unhandled.setdefault(self.subtask, []).append(event.payload)
        return [*actions, *self._handle_events()] if self.state == "registered" else actions

    def _handle_events(self) -> list[Action]:
        payloads = self._shared.events.take(self.subtask)
        return [self._shared.call(src.HandleSourceEvent(self.subtask, payload)) for payload in payloads]

    def _on_source_reported(self, event: msg.SourceReported, now_ms: int) -> list[Action]:
        self.host = event.host
        missing = [record for record in self._logged if record.number > event.highest_number]
        self._number = max(event.highest_number, *(record.number for record in self._logged), 0)
        self._logged = []
        for record in missing:
            self._put(self.assignment(record))
        if self.promised and not event.no_more_splits:
            self._put(self._promise())
        self.promised = self.promised or event.no_more_splits
        self.requested = event.request_pending and not missing and not self.promised
        held = (*event.held, *(split.split_id for record in missing for split in record.splits))
        actions = [*self._join(held), *self._report_ends(event.finished)]
        return [*actions, self._ask()] if self.requested else actions

    # Its failure.

    def _on_reader_failed(self, event: src.ReaderFailed, now_ms: int) -> list[Action]:
        if self.state == "absent":  # it never came: it was given nothing
            return [src.ReaderReset(self.subtask)]
        self.state, self._checkpoint_id = "failed", event.checkpoint_id
        return [] if self._shared.is_recovering else [self._shared.call(src.ForgetReader(self.subtask))]

    def _on_reader_forgotten(self, event: src.ReaderForgotten, now_ms: int) -> list[Action]:
        shared = self._shared
        back = shared.splits_back.take_back(self.subtask, self._checkpoint_id, keeps_subtask=shared.keeps_subtask)
        shared.give_enumerator(back)
        return [shared.call(src.AddSplitsBack(self.subtask, back))]

    def _on_splits_taken_back(self, event: src.SplitsTakenBack, now_ms: int) -> list[Action]:
        self.state = "absent"
        record = GivenBackRecord(self.subtask, self._checkpoint_id)
        return [*self._shared.log.append(record), src.ReaderReset(self.subtask)]

    # What the enumerator says to it.

    def _on_splits_given(self, event: SplitsGiven, now_ms: int) -> list[Action]:
        if event.splits:
            record = self._note(event.splits)
            self.requested = False
            return [Give(self.subtask, record)]
        return [self._ask()] if event.swallowed and self.requested else []

    def _on_no_more_splits_signalled(self, event: src.NoMoreSplitsSignalled, now_ms: int) -> list[Action]:
        if self.promised:
            return []
        self.promised, self.requested = True, False
        actions = self._shared.log.append(NoMoreSplitsRecord(self.subtask))
        self._put(self._promise())
        return [*actions, Release()]

    def _on_event_sent(self, event: src.EventSent, now_ms: int) -> list[Action]:
        message = msg.EventToReader(
            stage=self.stage, execution=self.execution, source=self._shared.source, payload=event.payload
        )
        self._put(message)
        return [Release()]

    def _on_reader_added(self, event: src.ReaderAdded, now_ms: int) -> list[Action]:
        self.unconfirmed = ()
        self._put(Admission())
        return [Release()]

    def _on_enumerator_lost(self, event: EnumeratorLost, now_ms: int) -> list[Action]:
        self._logged, self.unconfirmed, self._admitted = [], (), False
        if self.state == "registered":
            self.state = "reporting"
        return []

    def _on_enumerator_ready(self, event: EnumeratorReady, now_ms: int) -> list[Action]:
        report = msg.ReportSource(
            stage=self.stage,
            execution=self.execution,
            source=self._shared.source,
            incarnation=self._shared.incarnation,
        )
        return [src.SendToReader(self.subtask, report)]

    # Shared.

    def _note(self, splits: tuple[SplitState, ...]) -> AssignedRecord:
        """Count an assignment, and note what it has."""
        self._number += 1
        self._shared.splits_back.tracker.assign(self.subtask, splits)
        return AssignedRecord(self.subtask, self.execution, self._number, splits)

    def _promise(self) -> msg.NoMoreSplits:
        return msg.NoMoreSplits(stage=self.stage, execution=self.execution, source=self._shared.source)

    def _put(self, what: msg.AssignSplits | msg.NoMoreSplits | msg.EventToReader | Admission) -> None:
        self._shared.outbox.put(what, self.subtask, self.execution)
