"""Decides when subtasks are deployed and restarted, the job submitted again, and when the query has failed.

Never: know what a source or a checkpoint holds.

Two tables in one: the query's states, and a subtask's. The query is *submitted* (Spark's job runs), *cancelling* (the
job is cancelled, to be submitted again), *resubmitting* (it ended, the next is waited for), *ending* (slots are
to end) or *over*. A subtask is *waiting* (for all slots to come, for its own, for the end of a delay), *resetting*
(sources take its splits back), *deploying*, *running*, or has *ended*: it read all its input. Subtask events have the
subtask's state while the query lives.

- A failed subtask restarts alone under ``region``, from the last completed checkpoint: its sources take back what it
  was given since, while the others read on. Under ``full``, and after a `GlobalFailure`, all subtasks are cancelled,
  then the sources restored, then all subtasks deployed. The subtasks of a slot fail together.
- A slot whose stream ended may come back. If another slot lost its connection to it, too, it is taken for dead.
- What comes of an execution, attempt or job that is over does not come here: `job_master` drops it.
- The first time nothing is deployed before all slots have come, so that a query that lacks cores writes nothing.
- A query runs well, for the restart strategy, from when all have started that the last failure restarted.
- A failure while a restart is waited for is the same failure to the restart strategy: a kill that also ends Spark's
  job counts once. The query fails with the first error in a row, and rather with one of a subtask than with a loss.
- Time has four outcomes while the job runs: one look at the clock finds a slot that did not come back, one that fell
  silent, slots that never came, and what is due.

Follows FLIP-27, "Where to run the enumerator"; Flink's scheduler and its restart strategies.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

from headgate.coordinator.job import scheduler_events as sch
from headgate.coordinator.job.restart_strategy import ExponentialDelay, RestartOptions, RestartStrategy
from headgate.coordinator.slots.slots import (
    AcceptSlot,
    FenceSlot,
    SlotBegan,
    SlotDisconnected,
    SlotHeard,
    SlotRegistered,
    Slots,
    SlotsAwaited,
    SlotsDropped,
    SlotsLost,
    SlotsMissed,
    SlotStatus,
    SlotsTimePassed,
)
from headgate.coordinator.slots.slots import Action as SlotAction
from headgate.machine import IGNORED, SAME, Machine, Maybe, Row
from headgate.protocol.messages import ErrorReport, SubtaskId

_APART_MS = 120_000
"""Connections between slots that fail within it fail for the same reason."""


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may set.

    Parameters
    ----------
    failover_strategy
        ``region``: what failed restarts alone; ``full``: everything restarts.
    restart
        The restart strategy.
    heartbeat_timeout_ms
        A slot that has begun and is not heard of for so long is lost, and so is one that does not come back in it.
    registration_timeout_ms
        How long slots may take to come. The first time it ends the query, later it is worth a warning.
    release_timeout_ms
        How long slots may take to end on their own, and a cancelled job to end.
    """

    failover_strategy: Literal["region", "full"] = "region"
    restart: RestartOptions = ExponentialDelay()
    heartbeat_timeout_ms: int = 10_000
    registration_timeout_ms: int = 10_000
    release_timeout_ms: int = 10_000


class SubtaskStatus(msgspec.Struct, frozen=True):
    """A subtask: ``waiting``, ``resetting``, ``deploying``, ``running`` or ``ended`` (it read all its input)."""

    subtask: SubtaskId
    state: str
    execution: int


class _Subtask(msgspec.Struct):
    id: SubtaskId
    state: str = "waiting"
    execution: int = 0
    due_ms: int = 0

    @property
    def is_repeated(self) -> bool:
        return self.execution > (1 if self.state in _DEPLOYED else 0)


_DEPLOYED = ("deploying", "running", "ended")
_LIVE = ("submitted", "cancelling", "resubmitting")
_CUT_OFF = (sch.ReportFailure, Maybe(sch.AnnounceNotRunning), sch.CancelExecution, sch.ResetReaders)
_GIVEN_UP = (Maybe(sch.AnnounceNotRunning), sch.FailQuery, sch.ReleaseSlots, sch.CancelJob)


class Scheduler(Machine):
    """The scheduler of one query.

    Parameters
    ----------
    stages, parallelism
        How many stages, and how many slots: each slot has one subtask of each stage.
    options
        What the user set.
    restored
        Whether the query starts from a checkpoint.
    random
        For the delays between restarts.

    Examples
    --------
    >>> machine = Scheduler(1, 1, SchedulerOptions(), restored=False, random=random.Random(0))
    >>> machine.handle(sch.QueryStarted(), 0)
    [RestoreSources(), SubmitJob(submission=0, avoid=())]
    >>> machine.handle(sch.SourcesRestored(), 0)
    []
    >>> for action in machine.handle(SlotRegistered(slot=0, attempt=0, running={}), 400):
    ...     print(action)
    AcceptSlot(slot=0, attempt=0)
    DeploySubtask(subtask=SubtaskId(stage=0, subtask=0), execution=1)
    """

    # fmt: off
    TRANSITIONS = (
        Row("created",                  sch.QueryStarted,        "submitted", [sch.RestoreSources, sch.SubmitJob]),
        Row("submitted",                sch.SourcesRestored,     SAME, [Maybe(sch.DeploySubtask)],
            "if all slots have come"),
        Row("cancelling, resubmitting", sch.SourcesRestored,     SAME),
        Row("submitted",                SlotRegistered,          SAME,
            [Maybe(AcceptSlot), Maybe(FenceSlot), Maybe(sch.DeploySubtask), Maybe(sch.ReportFailure),
            Maybe(sch.AnnounceNotRunning), Maybe(sch.ResetReaders)],
            "`slots` decides who counts; what ran in an older process has failed", by="_on_slot_event"),
        Row("submitted",                SlotRegistered,          "ending",
            [FenceSlot, AcceptSlot, Maybe(sch.AnnounceNotRunning), sch.FailQuery, sch.ReleaseSlots, sch.CancelJob],
            "one failure too many", by="_on_slot_event"),
        Row("cancelling, resubmitting", SlotRegistered,          SAME, [FenceSlot], "of an ended job",
            by="_on_slot_event"),
        Row("ending",                   SlotRegistered,          SAME,
            [Maybe(AcceptSlot), Maybe(sch.ReleaseSlots), Maybe(FenceSlot)], "it is to end too",
            by="_on_slot_came_late"),
        Row("submitted, ending",        SlotDisconnected,        SAME, [], "it may come back"),
        Row("submitted",                SlotDisconnected,        SAME, _CUT_OFF, "slots lost it, too", when="cut off"),
        Row("submitted",                SlotDisconnected,        "ending", _GIVEN_UP, "one failure too many"),
        Row("submitted",                sch.LinkBroke,           SAME, [], "the peer may live: its stream is open"),
        Row("submitted",                sch.LinkBroke,           SAME, _CUT_OFF, "nor do we reach it", when="cut off"),
        Row("submitted",                sch.LinkBroke,           "ending", _GIVEN_UP, "one failure too many"),
        Row("ending",                   sch.LinkBroke,           SAME, IGNORED, "late"),
        Row("submitted, ending",        SlotHeard,               SAME, [], "it lives", by="_on_slot_event"),
        Row("deploying",                sch.SubtaskStarted,      "running", [sch.AnnounceRunning], "if it is the last"),
        Row("ending",                   sch.SubtaskStarted,      SAME, IGNORED, "late"),
        Row("running",                  sch.SubtaskInputEnded,   "ended", [sch.AnnounceInputEnded],
            "if it is the last"),
        Row("ending",                   sch.SubtaskInputEnded,   SAME, IGNORED, "late"),
        Row("deploying",                sch.SubtaskBroke,        "resetting", [sch.ReportFailure, sch.ResetReaders]),
        Row("running, ended",           sch.SubtaskBroke,        "resetting",
            [sch.ReportFailure, sch.AnnounceNotRunning, sch.ResetReaders]),
        Row("deploying",                sch.SubtaskBroke,        "resetting",
            [FenceSlot, sch.CancelJob, sch.ReportFailure, sch.ResetReaders],
            "two slots do not reach one another again: elsewhere, then", when="apart"),
        Row("running, ended",           sch.SubtaskBroke,        "resetting",
            [FenceSlot, sch.CancelJob, sch.ReportFailure, sch.AnnounceNotRunning, sch.ResetReaders], "the same",
            when="apart"),
        Row("deploying",                sch.SubtaskBroke,        "ending",
            [Maybe(FenceSlot), sch.FailQuery, sch.ReleaseSlots, sch.CancelJob],
            "one failure too many; two slots that do not reach one another are fenced first"),
        Row("running, ended",           sch.SubtaskBroke,        "ending",
            [Maybe(FenceSlot), sch.AnnounceNotRunning, sch.FailQuery, sch.ReleaseSlots, sch.CancelJob], "the same"),
        Row("ending",                   sch.SubtaskBroke,        SAME, IGNORED, "late"),
        Row("resetting",                sch.SubtaskReset,        "waiting", [], "for the delay, or a slot"),
        Row("resetting",                sch.SubtaskReset,        "deploying", [sch.DeploySubtask], "it was shorter",
            when="due"),
        Row("waiting",                  sch.SubtaskReset,        SAME, IGNORED, "late: all will be restored"),
        Row("submitted",                sch.GlobalFailure,       SAME,
            [Maybe(sch.ReportFailure), Maybe(sch.AnnounceNotRunning), Maybe(sch.CancelExecution)],
            "unless a restore of all is coming anyway"),
        Row("cancelling, resubmitting", sch.GlobalFailure,       SAME, [Maybe(sch.ReportFailure)], "the same"),
        Row("submitted",                sch.GlobalFailure,       "ending", _GIVEN_UP, "one failure too many"),
        Row("cancelling",               sch.GlobalFailure,       "ending", [sch.FailQuery, sch.ReleaseSlots],
            "the same"),
        Row("resubmitting",             sch.GlobalFailure,       "over",
            [sch.FailQuery, sch.ReleaseSlots, sch.QueryOver], "the same"),
        Row("resubmitting",             sch.GlobalFailure,       "submitted", [sch.RestoreSources, sch.SubmitJob],
            "the delay was over", when="late"),
        Row("ending",                   sch.GlobalFailure,       SAME, IGNORED, "late"),
        Row("submitted",                sch.JobEnded,            "resubmitting",
            [Maybe(FenceSlot), sch.ReportFailure, Maybe(sch.AnnounceNotRunning), Maybe(sch.ResetReaders)],
            "Spark has given up on a task, or somebody cancelled it"),
        Row("submitted",                sch.JobEnded,            "over",
            [Maybe(FenceSlot), Maybe(sch.AnnounceNotRunning), sch.FailQuery, sch.ReleaseSlots, sch.QueryOver],
            "one failure too many"),
        Row("cancelling",               sch.JobEnded,            "submitted", [sch.SubmitJob], "it hung, now again",
            by="_on_cancelled_job_ended"),
        Row("ending",                   sch.JobEnded,            "over", [Maybe(FenceSlot), sch.QueryOver],
            "all is done", by="_on_released_job_ended"),
        Row("submitted",                sch.QueryEnding,         "ending",
            [Maybe(sch.AnnounceNotRunning), sch.ReleaseSlots]),
        Row("cancelling",               sch.QueryEnding,         "ending", [sch.ReleaseSlots]),
        Row("resubmitting",             sch.QueryEnding,         "over", [sch.ReleaseSlots, sch.QueryOver],
            "no job runs"),
        Row("ending",                   sch.QueryEnding,         SAME, IGNORED, "asked for twice"),
        Row("submitted",                sch.SchedulerTimePassed, SAME,
            [Maybe(sch.RestoreSources), Maybe(sch.DeploySubtask), Maybe(sch.ReportMissingSlots)], "what is due",
            by="_on_time_submitted"),
        Row("submitted",                sch.SchedulerTimePassed, SAME,
            [FenceSlot, Maybe(sch.ReportFailure), Maybe(sch.AnnounceNotRunning), Maybe(sch.ResetReaders),
            Maybe(sch.RestoreSources)], "a slot did not come back", when="late", by="_on_time_submitted"),
        Row("submitted",                sch.SchedulerTimePassed, "cancelling",
            [FenceSlot, sch.CancelJob, Maybe(sch.ReportFailure), Maybe(sch.AnnounceNotRunning),
            Maybe(sch.ResetReaders), Maybe(sch.RestoreSources)],
            "a slot fell silent: Spark takes it for well, and brings no other", when="late", by="_on_time_submitted"),
        Row("submitted",                sch.SchedulerTimePassed, "ending",
            [Maybe(FenceSlot), Maybe(sch.AnnounceNotRunning), sch.FailQuery, sch.ReleaseSlots, sch.CancelJob],
            "slots never came, or one failure too many", when="late", by="_on_time_submitted"),
        Row("cancelling",               sch.SchedulerTimePassed, SAME, [Maybe(sch.RestoreSources)], by="_on_nothing"),
        Row("resubmitting",             sch.SchedulerTimePassed, SAME, [], "the delay is not over", by="_on_nothing"),
        Row("resubmitting",             sch.SchedulerTimePassed, "submitted",
            [sch.SubmitJob, Maybe(sch.RestoreSources)], "the delay is over", when="due", by="_on_nothing"),
        Row("ending",                   sch.SchedulerTimePassed, SAME, [Maybe(sch.CancelJob)],
            "after a while: tasks do not end on their own", by="_on_time_ending"),
        Row("ending",                   sch.SchedulerTimePassed, "over", [Maybe(FenceSlot), sch.QueryOver],
            "nor cancelled", when="late", by="_on_time_ending"),
    )
    # fmt: on

    def __init__(
        self, stages: int, parallelism: int, options: SchedulerOptions, *, restored: bool, random: random.Random
    ) -> None:
        super().__init__()
        self._options = options
        self._strategy = RestartStrategy(options.restart, random)
        self._phase = "created"
        self._submission = -1
        self._submit_ms: int | None = None  # when to submit the job
        self._slots = Slots(
            parallelism,
            heartbeat_timeout_ms=options.heartbeat_timeout_ms,
            registration_timeout_ms=options.registration_timeout_ms,
        )
        self._columns = [
            [_Subtask(SubtaskId(stage, number)) for stage in range(stages)] for number in range(parallelism)
        ]
        # What is asked of all subtasks after every event is kept, for there may be many.
        self._waiting = {subtask.id: subtask for column in self._columns for subtask in column}
        self._states = {"resetting": 0, **dict.fromkeys(_DEPLOYED, 0), "waiting": len(self._waiting)}
        self._restore_ms: int | None = None  # when to restore all sources
        self._restoring = False  # it is ordered and not done
        self._announced = ""  # the last of "", "running", "ended"
        self._restored = restored
        self._failed = False
        self._cause: ErrorReport | None = None
        self._cause_is_loss = False
        self._apart: tuple[frozenset[int], int] | None = None  # the slots whose connection failed last, and when
        self._avoid: tuple[int, ...] = ()
        self._unreached: set[int] = set()  # slots to which a subtask that runs has lost its connection
        self._end_ms = 0
        self._cancelled = False

    def refused(self, event: sch.Event) -> str | None:
        """Return why an event cannot have happened: of an execution or a job that is over nothing comes here."""
        match event:
            case sch.LinkBroke():
                is_stale = event.execution != self.execution(event.subtask)
            case sch.SubtaskStarted() | sch.SubtaskInputEnded() | sch.SubtaskBroke():
                is_stale = event.execution != self._subtask(event.subtask).execution
            case sch.JobEnded():
                is_stale = event.submission != self._submission
            case _:
                is_stale = False
        return "that is over" if is_stale else None

    def follow_up(self, event: sch.Event, now_ms: int) -> list[sch.Action]:
        """Return what is due by now."""
        return [] if isinstance(event, SlotHeard) else self._go_on(now_ms)  # with every message: nothing follows

    def brief(self, event: sch.Event, kind: type) -> str:
        """Return all of an event: none is large."""
        return repr(event)

    def __str__(self) -> str:
        return "The scheduler"

    def state_of(self, event: sch.Event) -> str:
        """Return the state that the tables have for an event: the query's or a subtask's."""
        match event:
            case sch.SubtaskStarted() | sch.SubtaskBroke() | sch.SubtaskInputEnded() if self._phase in _LIVE:
                return self._subtask(event.subtask).state
            case sch.SubtaskReset() if self._phase in _LIVE:
                return self._columns[event.subtask][0].state
        return self._phase

    def next_time_ms(self) -> int | None:
        """Return when `SchedulerTimePassed` is due, in milliseconds; None: nothing is due."""
        if self._phase == "ending":
            return self._end_ms
        if self._phase not in _LIVE:
            return None
        times = [self._restore_ms]
        if self._phase == "resubmitting":
            times.append(self._submit_ms)
        if self._phase == "submitted":
            times += [self._slots.next_time_ms(), *(subtask.due_ms for subtask in self._deployable())]
        return min((time for time in times if time is not None), default=None)

    def check(self) -> None:
        """Assert what always holds."""
        self._slots.check()
        counted = dict.fromkeys(self._states, 0)
        live, restores = self._phase in _LIVE, bool(self._restoring or self._restore_ms is not None)
        for number, column in enumerate(self._columns):
            deployed = 0
            for subtask in column:
                state = subtask.state
                counted[state] += 1
                assert state != "waiting" or subtask.id in self._waiting
                if state in _DEPLOYED:
                    deployed += 1
                    assert subtask.execution > 0
            # A subtask that is deployed has a slot, and nobody takes its splits away meanwhile.
            if live and deployed:
                assert self._slots.is_present(number) and deployed == len(column) and not restores
        assert self._states == counted
        assert len(self._waiting) == counted["waiting"]
        running = counted["running"] + counted["ended"] == len(self._columns) * len(self._columns[0])
        assert bool(self._announced) == (live and running)
        assert self._phase != "resubmitting" or self._submit_ms is not None

    # What others ask.

    @property
    def state(self) -> str:  # type: ignore[override]  # which nobody but this class sets
        """Return the query's state for people.

        ``created``, ``starting``, ``running``, ``restarting``, ``ending``, ``ended``, ``failing`` or ``failed``.
        """
        match self._phase:
            case "created":
                return "created"
            case "ending":
                return "failing" if self._failed else "ending"
            case "over":
                return "failed" if self._failed else "ended"
        if self._announced:
            return "running"
        return "restarting" if any(subtask.is_repeated for subtask in self._subtasks()) else "starting"

    @property
    def keeps_slots(self) -> bool:
        """Whether subtasks restart in the slots that there are: the job is not submitted again."""
        return self._phase == "submitted"

    def execution(self, subtask: SubtaskId) -> int | None:
        """Return the execution of a subtask whose messages count; None: it is not deployed."""
        found = self._subtask(subtask)
        return found.execution if found.state in _DEPLOYED else None

    def attempt(self, slot: int) -> int | None:
        """Return the attempt of a slot that counts, or was the last that did."""
        return self._slots.attempt(slot)

    def deployed(self) -> list[SubtaskStatus]:
        """Return the subtasks that are deployed."""
        return [status for status in self.subtasks() if status.state in _DEPLOYED]

    def slots(self) -> list[SlotStatus]:
        """Return how the slots are."""
        return self._slots.status()

    def subtasks(self) -> list[SubtaskStatus]:
        """Return how the subtasks are."""
        return [SubtaskStatus(subtask.id, subtask.state, subtask.execution) for subtask in self._subtasks()]

    # Slots.

    def _on_slot_event(self, event: SlotRegistered | SlotHeard, now_ms: int) -> list[sch.Action]:
        return self._take(self._slots.handle(event, now_ms), now_ms)

    def _on_slot_disconnected(self, event: SlotDisconnected, now_ms: int) -> list[sch.Action]:
        self._slots.handle(event, now_ms)
        return self._fail_cut_off(event.slot, now_ms) if self._phase == "submitted" else []

    def _on_link_broke(self, event: sch.LinkBroke, now_ms: int) -> list[sch.Action]:
        self._unreached.add(event.peer)
        return self._fail_cut_off(event.peer, now_ms)

    def _fail_cut_off(self, slot: int, now_ms: int) -> list[sch.Action]:
        """Take a slot for dead that neither we nor another slot reaches. If it lives it cancels when it is back."""
        if slot not in self._unreached or self._slots.state(slot) != "disconnected":
            return []
        text = f"A slot was lost: slot {slot} has no connection to the driver any more, nor to another slot."
        return self._fail([slot], _error(text, slot), now_ms)

    def _on_slot_came_late(self, event: SlotRegistered, now_ms: int) -> list[sch.Action]:
        actions = self._fences_and_welcomes(self._slots.handle(event, now_ms))
        return [*actions, sch.ReleaseSlots()] if any(isinstance(action, AcceptSlot) for action in actions) else actions

    def _take(self, decided: list[SlotAction], now_ms: int) -> list[sch.Action]:
        """Pass on what was decided about slots, with what follows from it."""
        actions = self._fences_and_welcomes(decided)
        for action in decided:
            match action:
                case SlotsLost(slots=slots, reason=reason, silent=silent):
                    error = _error(f"A slot was lost: {reason}.", slots[0])
                    if silent:
                        actions += self._resubmit(error, now_ms)
                    else:
                        actions += self._fail(slots, error, now_ms, dead=self._ids(slots))
                case SlotsMissed():
                    actions += self._miss_slots(now_ms)
        return actions

    def _fences_and_welcomes(self, decided: list[SlotAction]) -> list[sch.Action]:
        return [action for action in decided if isinstance(action, AcceptSlot | FenceSlot)]

    def _resubmit(self, error: ErrorReport, now_ms: int, *, again: bool = False) -> list[sch.Action]:
        """Submit the job again on what is there: Spark sees a living task where nobody answers.

        Only the job's end gets rid of that task, and Spark may take minutes to find out on its own.
        """
        numbers = self._deployed_numbers()
        fences = self._drop_slots("the job is submitted again", now_ms)
        failed = self._fail(range(len(self._columns)), error, now_ms, dead=self._ids(numbers), again=again)
        if self._phase != "submitted":
            return [*fences, *failed]
        self._phase, self._submit_ms = "cancelling", now_ms
        return [*fences, sch.CancelJob(self._submission), *failed]

    def _miss_slots(self, now_ms: int) -> list[sch.Action]:
        """Decide about slots that did not come, or not again."""
        wanted = len(self._columns)
        missing = tuple(number for number in range(wanted) if not self._slots.is_present(number))
        if not self._slots.all_came:
            self._cause = _too_few_slots(wanted, wanted - len(missing), self._options.registration_timeout_ms)
            return self._give_up(now_ms)
        return [sch.ReportMissingSlots(wanted, missing)]

    def _drop_slots(self, reason: str, now_ms: int) -> list[sch.Action]:
        """Fence all slots."""
        return self._fences_and_welcomes(self._slots.handle(SlotsDropped(reason), now_ms))

    # Subtasks.

    def _on_subtask_started(self, event: sch.SubtaskStarted, now_ms: int) -> list[sch.Action]:
        self._move(self._subtask(event.subtask), "running")
        self._strategy.started(event.subtask, now_ms)
        if all(each.state in ("running", "ended") for each in self._columns[event.subtask.subtask]):
            self._slots.handle(SlotBegan(event.subtask.subtask), now_ms)
        return []

    def _on_subtask_input_ended(self, event: sch.SubtaskInputEnded, now_ms: int) -> list[sch.Action]:
        self._move(self._subtask(event.subtask), "ended")
        return []

    def _on_subtask_broke(self, event: sch.SubtaskBroke, now_ms: int) -> list[sch.Action]:
        number, again = event.subtask.subtask, False
        if event.peer is not None:
            # Two hosts that both reach us, and not one another: in place that would go on for ever.
            before, self._apart = self._apart, (frozenset((number, event.peer)), now_ms)
            again = before is not None and now_ms - before[1] < _APART_MS
            here = all(self._slots.state(slot) == "registered" for slot in self._apart[0])
            if again and before is not None and before[0] == self._apart[0] and here:
                self._apart, self._avoid = (frozenset(), now_ms), (event.peer,)
                return self._resubmit(event.error, now_ms, again=True)
        return self._fail([number], event.error, now_ms, dead=[event.subtask], loss=False, again=again)

    def _on_subtask_reset(self, event: sch.SubtaskReset, now_ms: int) -> list[sch.Action]:
        for subtask in self._columns[event.subtask]:
            self._move(subtask, "waiting")
        return []

    # Sources.

    def _on_sources_restored(self, event: sch.SourcesRestored, now_ms: int) -> list[sch.Action]:
        self._restoring = False
        return []

    def _on_global_failure(self, event: sch.GlobalFailure, now_ms: int) -> list[sch.Action]:
        if self._restore_ms is not None:
            return []  # that is coming anyway
        return self._fail(range(len(self._columns)), event.error, now_ms, loss=False, everything=True)

    # The job and the query.

    def _on_query_started(self, event: sch.QueryStarted, now_ms: int) -> list[sch.Action]:
        self._phase, self._submit_ms, self._restore_ms = "resubmitting", now_ms, now_ms
        return []

    def _on_job_ended(self, event: sch.JobEnded, now_ms: int) -> list[sch.Action]:
        error = event.error or _error("Spark's job ended, but the query had not: something else ended its tasks.")
        fences = self._drop_slots("Spark's job ended", now_ms)
        self._phase = "resubmitting"
        delay_ms = self._count(error, now_ms, loss=True)
        if delay_ms is None:
            return [*fences, *self._give_up(now_ms)]
        self._submit_ms = now_ms + delay_ms
        numbers = self._deployed_numbers()
        report = sch.ReportFailure(error, tuple(range(len(self._columns))), delay_ms)
        return [*fences, report, *self._restart(numbers, now_ms + delay_ms, error.message, self._ids(numbers))]

    def _on_cancelled_job_ended(self, event: sch.JobEnded, now_ms: int) -> list[sch.Action]:
        self._phase = "resubmitting"
        return []

    def _on_released_job_ended(self, event: sch.JobEnded, now_ms: int) -> list[sch.Action]:
        return self._be_over(now_ms)

    def _on_query_ending(self, event: sch.QueryEnding, now_ms: int) -> list[sch.Action]:
        return self._end(now_ms)

    def _on_time_submitted(self, event: sch.SchedulerTimePassed, now_ms: int) -> list[sch.Action]:
        return self._take(self._slots.handle(SlotsTimePassed(), now_ms), now_ms)

    def _on_time_ending(self, event: sch.SchedulerTimePassed, now_ms: int) -> list[sch.Action]:
        if now_ms < self._end_ms:
            return []
        if self._cancelled:
            return self._be_over(now_ms)
        self._cancelled, self._end_ms = True, now_ms + self._options.release_timeout_ms
        return [sch.CancelJob(self._submission)]

    def _on_nothing(self, event: sch.Event, now_ms: int) -> list[sch.Action]:
        return []

    # Failing and restarting.

    def _fail(
        self,
        numbers: Iterable[int],
        error: ErrorReport,
        now_ms: int,
        *,
        dead: Collection[SubtaskId] = (),
        loss: bool = True,
        everything: bool = False,
        again: bool = False,
    ) -> list[sch.Action]:
        """Restart what fails with these subtasks, or give up. Subtasks that are not deployed cannot fail."""
        failing = [number for number in numbers if self._columns[number][0].state in _DEPLOYED]
        if not failing and not everything:
            return []
        delay_ms = self._count(error, now_ms, loss=loss, again=again)
        if delay_ms is None:
            return self._give_up(now_ms)
        everything = everything or self._options.failover_strategy == "full"
        restarted = tuple(range(len(self._columns))) if everything else tuple(failing)
        report = sch.ReportFailure(error, restarted, delay_ms)
        return [report, *self._restart(failing, now_ms + delay_ms, error.message, dead, everything=everything)]

    def _restart(
        self, numbers: list[int], due_ms: int, reason: str, dead: Collection[SubtaskId], *, everything: bool = False
    ) -> list[sch.Action]:
        """Let subtasks go, then have their splits taken back, or everything restored."""
        everything = everything or (bool(numbers) and self._options.failover_strategy == "full")
        if everything:
            numbers = list(range(len(self._columns)))
            self._restore_ms, self._restoring = due_ms, False
        actions = self._announce_not_running(reason) if numbers else []
        self._unreached.difference_update(numbers)
        self._strategy.restarts(self._ids(numbers))
        for number in numbers:
            for subtask in self._columns[number]:
                if subtask.state in _DEPLOYED and subtask.id not in dead:
                    actions.append(sch.CancelExecution(subtask.id, subtask.execution))
                self._move(subtask, "waiting" if everything else "resetting")
                subtask.due_ms = due_ms
        return actions if everything else [*actions, *(sch.ResetReaders(number) for number in numbers)]

    def _count(self, error: ErrorReport, now_ms: int, *, loss: bool, again: bool = False) -> int | None:
        """Note a failure and its cause: the first error in a row, and rather one of a subtask than a mere loss.

        One that trying again cannot mend is given up at once.
        """
        if error.final:
            self._cause, self._cause_is_loss = error, loss
            return None
        delay_ms = self._strategy.failed(now_ms, again=again)
        if self._cause is None or self._strategy.failures == 1 or (self._cause_is_loss and not loss):
            self._cause, self._cause_is_loss = error, loss
        return delay_ms

    def _give_up(self, now_ms: int) -> list[sch.Action]:
        assert self._cause is not None
        self._failed = True
        return self._end(now_ms)

    def _end(self, now_ms: int) -> list[sch.Action]:
        """Let everything end; after an error at once, else when the slots have ended on their own."""
        actions = self._announce_not_running("the query ends")
        if self._failed and self._cause is not None:
            actions.append(sch.FailQuery(self._cause, self._strategy.given_up))
        actions.append(sch.ReleaseSlots())
        self._restore_ms, self._restoring = None, False
        if self._phase == "resubmitting":
            return [*actions, *self._be_over(now_ms)]
        if self._failed and self._phase == "submitted":
            actions.append(sch.CancelJob(self._submission))
        self._cancelled = self._failed or self._phase == "cancelling"
        self._phase, self._end_ms = "ending", now_ms + self._options.release_timeout_ms
        return actions

    def _be_over(self, now_ms: int) -> list[sch.Action]:
        self._phase = "over"
        return [*self._drop_slots("the query is over", now_ms), sch.QueryOver()]

    def _announce_not_running(self, reason: str) -> list[sch.Action]:
        if not self._announced:
            return []
        self._announced = ""
        return [sch.AnnounceNotRunning(reason)]

    # Going on.

    def _go_on(self, now_ms: int) -> list[sch.Action]:
        """Do what is due, whatever the event was."""
        if self._phase not in _LIVE:
            return []
        actions: list[sch.Action] = []
        if self._restore_ms is not None and now_ms >= self._restore_ms:
            self._restore_ms, self._restoring = None, True
            actions.append(sch.RestoreSources())
        if self._phase == "resubmitting" and self._submit_ms is not None and now_ms >= self._submit_ms:
            actions.append(self._submit(now_ms))
        for subtask in self._deployable():
            if now_ms >= subtask.due_ms:
                self._move(subtask, "deploying")
                subtask.execution += 1
                actions.append(sch.DeploySubtask(subtask.id, subtask.execution))
        return [*actions, *self._announce()]

    def _submit(self, now_ms: int) -> sch.SubmitJob:
        self._phase, self._submission = "submitted", self._submission + 1
        self._slots.handle(SlotsAwaited(self._submission), now_ms)
        avoid, self._avoid = self._avoid, ()
        return sch.SubmitJob(self._submission, avoid)

    def _deployable(self) -> list[_Subtask]:
        """Return the subtasks that miss nothing, but perhaps time."""
        if self._phase != "submitted" or not self._slots.all_came or self._restoring or self._restore_ms is not None:
            return []
        return [subtask for subtask in self._waiting.values() if self._slots.state(subtask.id.subtask) == "registered"]

    def _announce(self) -> list[sch.Action]:
        actions: list[sch.Action] = []
        count = len(self._columns) * len(self._columns[0])
        if not self._announced and self._states["running"] + self._states["ended"] == count:
            executions = {subtask.id: subtask.execution for subtask in self._subtasks()}
            actions.append(sch.AnnounceRunning(executions, self._restored))
            self._announced, self._restored = "running", True
        if self._announced == "running" and self._states["ended"] == count:
            actions.append(sch.AnnounceInputEnded())
            self._announced = "ended"
        return actions

    def _move(self, subtask: _Subtask, state: str) -> None:
        self._states[subtask.state] -= 1
        self._states[state] += 1
        subtask.state = state
        if state == "waiting":
            self._waiting[subtask.id] = subtask
        else:
            self._waiting.pop(subtask.id, None)

    # Looking things up.

    def _subtask(self, subtask: SubtaskId) -> _Subtask:
        return self._columns[subtask.subtask][subtask.stage]

    def _subtasks(self) -> list[_Subtask]:
        return [subtask for column in self._columns for subtask in column]

    def _ids(self, numbers: Iterable[int]) -> list[SubtaskId]:
        return [subtask.id for number in numbers for subtask in self._columns[number]]

    def _deployed_numbers(self) -> list[int]:
        return [number for number, column in enumerate(self._columns) if column[0].state in _DEPLOYED]


def _error(message: str, slot: int | None = None) -> ErrorReport:
    return ErrorReport(error_type="HeadgateError", message=message, facts={} if slot is None else {"slot": slot})


def _too_few_slots(wanted: int, came: int, timeout_ms: int) -> ErrorReport:
    return ErrorReport(
        error_type="OptionError",
        message=f"The query needs {wanted} slots (parallelism), one core each, but only {came} started within "
        f"{timeout_ms // 1000} seconds. Give Spark more free cores or the query a smaller parallelism.",
        facts={"option": "parallelism", "value": wanted, "registered": came},
    )
