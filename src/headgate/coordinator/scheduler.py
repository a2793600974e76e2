"""Decides when subtasks are deployed and restarted, the job submitted again, and when the query has failed.

Never: know what a source or a checkpoint holds.

Two tables in one: the query's states, and a subtask's. The query is *submitted* (Spark's job runs), *cancelling* (the
job is cancelled, to be submitted again), *resubmitting* (it ended, the next is waited for), *ending* (slots were told
to end) or *over*. A subtask is *waiting* (for all slots to come, for its own, for the end of a delay), *resetting*
(sources take its splits back), *deploying*, *running*, or has *ended*: it read all its input. Subtask events have the
subtask's state while the query lives.

    state                  event                     next         actions              why
    ---------------------  ------------------------  -----------  -------------------  -----------------------------
    created                QueryStarted              submitted    RestoreSources,
                                                                  SubmitJob
    submitted              SourcesRestored           same         DeploySubtask?       if all slots have come
    cancelling,            SourcesRestored           same
    resubmitting
    submitted              SlotRegistered            same         AcceptSlot?,         `slots` decides who counts;
                                                                  FenceSlot?,          what ran in an older process
                                                                  DeploySubtask?,      has failed
                                                                  ReportFailure?,
                                                                  AnnounceNotRunning?,
                                                                  ResetReaders?
    submitted              SlotRegistered            ending       FenceSlot,           one failure too many
                                                                  AcceptSlot,
                                                                  AnnounceNotRunning?,
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    cancelling,            SlotRegistered            same         FenceSlot            of an ended job
    resubmitting
    ending                 SlotRegistered            same         AcceptSlot?,         it is to end too
                                                                  ReleaseSlots?,
                                                                  FenceSlot?
    submitted              SlotDisconnected          same                              it may come back
    ending                 SlotDisconnected          same
    submitted              SlotHeard                 same                              it lives
    ending                 SlotHeard                 same
    deploying              SubtaskStarted            running      AnnounceRunning      if it is the last
    ending                 SubtaskStarted            same                              late
    running                SubtaskInputEnded         ended        AnnounceInputEnded   if it is the last
    ending                 SubtaskInputEnded         same                              late
    deploying              SubtaskBroke              resetting    ReportFailure,
                                                                  ResetReaders
    running, ended         SubtaskBroke              resetting    ReportFailure,
                                                                  AnnounceNotRunning,
                                                                  ResetReaders
    deploying              SubtaskBroke apart        resetting    FenceSlot,           two slots do not reach one
                                                                  CancelJob,           another again: elsewhere, then
                                                                  ReportFailure,
                                                                  ResetReaders
    running, ended         SubtaskBroke apart        resetting    FenceSlot,           the same
                                                                  CancelJob,
                                                                  ReportFailure,
                                                                  AnnounceNotRunning,
                                                                  ResetReaders
    deploying              SubtaskBroke apart        ending       FenceSlot,           one failure too many
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    running, ended         SubtaskBroke apart        ending       FenceSlot,           the same
                                                                  AnnounceNotRunning,
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    deploying              SubtaskBroke              ending       FailQuery,           one failure too many
                                                                  ReleaseSlots,
                                                                  CancelJob
    running, ended         SubtaskBroke              ending       AnnounceNotRunning,  the same
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    ending                 SubtaskBroke              same                              late
    resetting              SubtaskReset              waiting                           for the delay, or a slot
    resetting              SubtaskReset due          deploying    DeploySubtask        it was shorter
    waiting                SubtaskReset              same                              late: all will be restored
    submitted              GlobalFailure             same         ReportFailure?,      unless a restore of all is
                                                                  AnnounceNotRunning?, coming anyway
                                                                  CancelExecution?
    cancelling,            GlobalFailure             same         ReportFailure?       the same
    resubmitting
    submitted              GlobalFailure             ending       AnnounceNotRunning?, one failure too many
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    cancelling             GlobalFailure             ending       FailQuery,           the same
                                                                  ReleaseSlots
    resubmitting           GlobalFailure             over         FailQuery,           the same
                                                                  ReleaseSlots,
                                                                  QueryOver
    resubmitting           GlobalFailure late        submitted    RestoreSources,      the delay was over
                                                                  SubmitJob
    ending                 GlobalFailure             same                              late
    submitted              JobEnded                  resubmitting FenceSlot?,          Spark has given up on a task,
                                                                  ReportFailure,       or somebody cancelled it
                                                                  AnnounceNotRunning?,
                                                                  ResetReaders?
    submitted              JobEnded                  over         FenceSlot?,          one failure too many
                                                                  AnnounceNotRunning?,
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  QueryOver
    cancelling             JobEnded                  submitted    SubmitJob            it hung, now again
    ending                 JobEnded                  over         FenceSlot?,          all is done
                                                                  QueryOver
    submitted              QueryEnding               ending       AnnounceNotRunning?,
                                                                  ReleaseSlots
    cancelling             QueryEnding               ending       ReleaseSlots
    resubmitting           QueryEnding               over         ReleaseSlots,        no job runs
                                                                  QueryOver
    ending                 QueryEnding               same                              asked for twice
    submitted              SchedulerTimePassed       same         RestoreSources?,     what is due
                                                                  DeploySubtask?,
                                                                  ReportMissingSlots?
    submitted              SchedulerTimePassed late  same         FenceSlot,           a slot did not come back
                                                                  ReportFailure?,
                                                                  AnnounceNotRunning?,
                                                                  ResetReaders?,
                                                                  RestoreSources?
    submitted              SchedulerTimePassed late  cancelling   FenceSlot,           a slot fell silent: Spark takes
                                                                  CancelJob,           it for well, and brings no other
                                                                  ReportFailure?,
                                                                  AnnounceNotRunning?,
                                                                  ResetReaders?,
                                                                  RestoreSources?
    submitted              SchedulerTimePassed late  ending       FenceSlot?,          slots never came, or one
                                                                  AnnounceNotRunning?, failure too many
                                                                  FailQuery,
                                                                  ReleaseSlots,
                                                                  CancelJob
    cancelling             SchedulerTimePassed       same         RestoreSources?
    resubmitting           SchedulerTimePassed       same                              the delay is not over
    resubmitting           SchedulerTimePassed due   submitted    SubmitJob,           the delay is over
                                                                  RestoreSources?
    ending                 SchedulerTimePassed       same         CancelJob?           after a while: tasks do not
                                                                                       end by themselves
    ending                 SchedulerTimePassed late  over         FenceSlot?,          nor cancelled
                                                                  QueryOver

- A failed subtask restarts alone under ``region``, from the last completed checkpoint: its sources take back what it
  was given since, while the others read on. Under ``full``, and after a `GlobalFailure`, all subtasks are cancelled,
  then the sources restored, then all subtasks deployed. The subtasks of a slot fail together.
- What comes of an execution, attempt or job that is over is not told here: `job_master` drops it.
- The first time nothing is deployed before all slots have come, so that a query that lacks cores writes nothing.
- A failure while a restart is waited for is the same failure to the restart strategy: a kill that also ends Spark's
  job counts once. The query fails with the first error in a row, and rather with one of a subtask than with a loss.

Longer than most modules, for it has three in one: what happened, what is to be done, and the machine.

Follows FLIP-27, "Where to run the enumerator"; Flink's scheduler and its restart strategies.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Any, ClassVar, Literal

import msgspec

from headgate.coordinator.restart_strategy import ExponentialDelay, RestartOptions, RestartStrategy
from headgate.coordinator.slots import (
    AcceptSlot,
    FenceSlot,
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
from headgate.coordinator.slots import Action as SlotAction
from headgate.errors import InvalidTransitionError
from headgate.protocol.messages import ErrorReport, SubtaskId

_HISTORY = 64
_APART_MS = 120_000
"""Connections between slots that fail within it fail for the same reason."""

# What happened.


class QueryStarted(msgspec.Struct, frozen=True):
    """Begin."""


class JobEnded(msgspec.Struct, frozen=True):
    """Spark's job ended; ``error`` is None when all its tasks did without an error."""

    submission: int
    error: ErrorReport | None


class SubtaskStarted(msgspec.Struct, frozen=True):
    """A subtask is running."""

    subtask: SubtaskId
    execution: int


class SubtaskBroke(msgspec.Struct, frozen=True):
    """A subtask ended by an error; its slot lives. ``peer``: the slot to which a connection failed; None: none did."""

    subtask: SubtaskId
    execution: int
    error: ErrorReport
    peer: int | None = None


class SubtaskInputEnded(msgspec.Struct, frozen=True):
    """A subtask read all its input."""

    subtask: SubtaskId
    execution: int


class SubtaskReset(msgspec.Struct, frozen=True):
    """All sources have the splits of a failed subtask back."""

    subtask: int


class SourcesRestored(msgspec.Struct, frozen=True):
    """All sources were restored for a global failover."""


class GlobalFailure(msgspec.Struct, frozen=True):
    """Something that concerns everything failed: restore all from the last completed checkpoint."""

    error: ErrorReport


class QueryEnding(msgspec.Struct, frozen=True):
    """The last checkpoint is complete, or the user stops: let all slots end."""


class SchedulerTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = (
    QueryStarted | SlotRegistered | SlotDisconnected | SlotHeard | JobEnded | SubtaskStarted | SubtaskBroke
    | SubtaskInputEnded | SubtaskReset | SourcesRestored | GlobalFailure | QueryEnding | SchedulerTimePassed
)  # fmt: skip

# What is to be done.


class SubmitJob(msgspec.Struct, frozen=True):
    """Submit Spark's job, for the first time or again. Answered by `JobEnded`, some day.

    ``avoid``: slots of the submission before whose hosts are to get no slot now, if there are cores elsewhere.
    """

    submission: int
    avoid: tuple[int, ...] = ()


class DeploySubtask(msgspec.Struct, frozen=True):
    """Deploy a subtask from the last completed checkpoint."""

    subtask: SubtaskId
    execution: int


class CancelExecution(msgspec.Struct, frozen=True):
    """Let a subtask end without a snapshot."""

    subtask: SubtaskId
    execution: int


class ResetReaders(msgspec.Struct, frozen=True):
    """Tell all sources that the readers of a subtask failed. Answered by `SubtaskReset`."""

    subtask: int


class RestoreSources(msgspec.Struct, frozen=True):
    """Start all sources, or restore them, from the last completed checkpoint. Answered by `SourcesRestored`."""


class AnnounceRunning(msgspec.Struct, frozen=True):
    """All subtasks run."""

    executions: dict[SubtaskId, int]
    restored: bool


class AnnounceNotRunning(msgspec.Struct, frozen=True):
    """Not all subtasks run any longer."""

    reason: str


class AnnounceInputEnded(msgspec.Struct, frozen=True):
    """All subtasks read all their input."""


class ReleaseSlots(msgspec.Struct, frozen=True):
    """Tell all slots to end."""


class CancelJob(msgspec.Struct, frozen=True):
    """Cancel Spark's job: its tasks did not end by themselves, or the query failed."""

    submission: int


class FailQuery(msgspec.Struct, frozen=True):
    """The restart strategy has given up: the query ends with this error."""

    error: ErrorReport


class ReportFailure(msgspec.Struct, frozen=True):
    """Tell of a failure and what is done about it.

    Parameters
    ----------
    error
        What happened.
    restarted
        What starts again: the numbers of subtasks.
    delay_ms
        After how many milliseconds.
    """

    error: ErrorReport
    restarted: tuple[int, ...]
    delay_ms: int


class ReportMissingSlots(msgspec.Struct, frozen=True):
    """Tell that slots have been awaited for long."""

    wanted: int
    missing: tuple[int, ...]


class QueryOver(msgspec.Struct, frozen=True):
    """Spark's job has ended and nothing is left to do."""


Action = (
    SubmitJob | AcceptSlot | FenceSlot | DeploySubtask | CancelExecution | ResetReaders | RestoreSources
    | AnnounceRunning | AnnounceNotRunning | AnnounceInputEnded | ReleaseSlots | CancelJob | ReportFailure
    | ReportMissingSlots | FailQuery | QueryOver
)  # fmt: skip


class SchedulerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may set.

    Parameters
    ----------
    failover_strategy
        ``region``: what failed restarts alone; ``full``: everything restarts.
    restart
        The restart strategy.
    heartbeat_timeout_ms
        A slot that is not heard of for so long is lost, and so is one that does not come back in it.
    registration_timeout_ms
        How long slots may take to come. The first time it ends the query, later it is worth a warning.
    release_timeout_ms
        How long slots may take to end by themselves, and a cancelled job to end.
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


class Scheduler:
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
    >>> machine.handle(QueryStarted(), 0)
    [RestoreSources(), SubmitJob(submission=0)]
    >>> machine.handle(SourcesRestored(), 0)
    []
    >>> for action in machine.handle(SlotRegistered(slot=0, attempt=0, running={}), 400):
    ...     print(action)
    AcceptSlot(slot=0, attempt=0)
    DeploySubtask(subtask=SubtaskId(stage=0, subtask=0), execution=1)
    """

    def __init__(
        self, stages: int, parallelism: int, options: SchedulerOptions, *, restored: bool, random: random.Random
    ) -> None:
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
        self._end_ms = 0
        self._cancelled = False
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The tables have no row for it.
        """
        was = self.state_of(event)
        handler = self._HANDLERS.get((was, type(event)))
        if handler is None or self._is_stale(event):
            raise self._invalid(event, was)
        actions = handler(self, event, now_ms)
        if not isinstance(event, SlotHeard):  # with every letter, and nothing follows from it
            actions += self._go_on(now_ms)
        if actions or self.state_of(event) != was:
            self._history.append(f"{now_ms} ms: {was} {event!r} -> {self.state_of(event)}")
        return actions

    def _is_stale(self, event: Event) -> bool:
        """Return whether an event is of an execution or a job that is over: such things are not told here."""
        match event:
            case SubtaskStarted() | SubtaskInputEnded() | SubtaskBroke():
                return event.execution != self._subtask(event.subtask).execution
            case JobEnded():
                return event.submission != self._submission
        return False

    def state_of(self, event: Event) -> str:
        """Return the state that the tables have for an event: the query's or a subtask's."""
        match event:
            case SubtaskStarted() | SubtaskBroke() | SubtaskInputEnded() if self._phase in _LIVE:
                return self._subtask(event.subtask).state
            case SubtaskReset() if self._phase in _LIVE:
                return self._columns[event.subtask][0].state
        return self._phase

    def next_time_ms(self) -> int | None:
        """Return when `SchedulerTimePassed` is due, in milliseconds; None: not by itself."""
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
        states = [subtask.state for subtask in self._subtasks()]
        assert self._states == {state: states.count(state) for state in self._states}
        assert set(self._waiting) == {subtask.id for subtask in self._subtasks() if subtask.state == "waiting"}
        live = self._phase in _LIVE
        for number, column in enumerate(self._columns):
            deployed = [subtask for subtask in column if subtask.state in _DEPLOYED]
            assert all(subtask.execution > 0 for subtask in deployed)
            # A subtask that is deployed has a slot, and nobody takes its splits away meanwhile.
            assert not (live and deployed) or (self._slots.is_present(number) and len(deployed) == len(column))
            assert not (live and deployed and (self._restoring or self._restore_ms is not None))
        running = all(subtask.state in ("running", "ended") for subtask in self._subtasks())
        assert bool(self._announced) == (live and running)
        assert self._phase != "resubmitting" or self._submit_ms is not None

    # What others ask.

    @property
    def state(self) -> str:
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
        """Return the execution of a subtask whose letters count; None: it is not deployed."""
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

    def _on_slot_event(self, event: SlotRegistered | SlotDisconnected | SlotHeard, now_ms: int) -> list[Action]:
        return self._take(self._slots.handle(event, now_ms), now_ms)

    def _on_slot_came_late(self, event: SlotRegistered, now_ms: int) -> list[Action]:
        actions = self._fences_and_welcomes(self._slots.handle(event, now_ms))
        return [*actions, ReleaseSlots()] if any(isinstance(action, AcceptSlot) for action in actions) else actions

    def _take(self, decided: list[SlotAction], now_ms: int) -> list[Action]:
        """Pass on what was decided about slots, with what follows from it."""
        actions = self._fences_and_welcomes(decided)
        for action in decided:
            match action:
                case SlotsLost(slots=slots, reason=reason, silent=silent):
                    error = _error(f"A slot was lost: {reason}.")
                    if silent:
                        actions += self._resubmit(error, now_ms)
                    else:
                        actions += self._fail(slots, error, now_ms, dead=self._ids(slots))
                case SlotsMissed():
                    actions += self._miss_slots(now_ms)
        return actions

    def _fences_and_welcomes(self, decided: list[SlotAction]) -> list[Action]:
        return [action for action in decided if isinstance(action, AcceptSlot | FenceSlot)]

    def _resubmit(self, error: ErrorReport, now_ms: int, *, again: bool = False) -> list[Action]:
        """Submit the job again on what is there: Spark sees a living task where nobody answers.

        Only the job's end gets rid of that task, and Spark may take minutes to find out by itself.
        """
        numbers = self._deployed_numbers()
        fences = self._drop_slots("the job is submitted again", now_ms)
        failed = self._fail(range(len(self._columns)), error, now_ms, dead=self._ids(numbers), again=again)
        if self._phase != "submitted":
            return [*fences, *failed]
        self._phase, self._submit_ms = "cancelling", now_ms
        return [*fences, CancelJob(self._submission), *failed]

    def _miss_slots(self, now_ms: int) -> list[Action]:
        """Decide about slots that did not come, or not again."""
        wanted = len(self._columns)
        missing = tuple(number for number in range(wanted) if not self._slots.is_present(number))
        if not self._slots.all_came:
            self._cause = _too_few_slots(wanted, wanted - len(missing), self._options.registration_timeout_ms)
            return self._give_up(now_ms)
        return [ReportMissingSlots(wanted, missing)]

    def _drop_slots(self, reason: str, now_ms: int) -> list[Action]:
        """Fence all slots."""
        return self._fences_and_welcomes(self._slots.handle(SlotsDropped(reason), now_ms))

    # Subtasks.

    def _on_subtask_started(self, event: SubtaskStarted, now_ms: int) -> list[Action]:
        self._move(self._subtask(event.subtask), "running")
        return []

    def _on_subtask_input_ended(self, event: SubtaskInputEnded, now_ms: int) -> list[Action]:
        self._move(self._subtask(event.subtask), "ended")
        return []

    def _on_subtask_broke(self, event: SubtaskBroke, now_ms: int) -> list[Action]:
        number, again = event.subtask.subtask, False
        if event.peer is not None:
            # Two hosts that both reach us, and not one another: in place that would go on for ever.
            before, self._apart = self._apart, (frozenset((number, event.peer)), now_ms)
            again = before is not None and now_ms - before[1] < _APART_MS
            if again and before is not None and before[0] == self._apart[0] and self._both_are_here(self._apart[0]):
                self._apart, self._avoid = (frozenset(), now_ms), (event.peer,)
                return self._resubmit(event.error, now_ms, again=True)
        return self._fail([number], event.error, now_ms, dead=[event.subtask], loss=False, again=again)

    def _both_are_here(self, slots: frozenset[int]) -> bool:
        return all(self._slots.state(slot) == "registered" for slot in slots)

    def _on_subtask_reset(self, event: SubtaskReset, now_ms: int) -> list[Action]:
        for subtask in self._columns[event.subtask]:
            self._move(subtask, "waiting")
        return []

    # Sources.

    def _on_sources_restored(self, event: SourcesRestored, now_ms: int) -> list[Action]:
        self._restoring = False
        return []

    def _on_global_failure(self, event: GlobalFailure, now_ms: int) -> list[Action]:
        if self._restore_ms is not None:
            return []  # that is coming anyway
        return self._fail(range(len(self._columns)), event.error, now_ms, loss=False, everything=True)

    # The job and the query.

    def _on_query_started(self, event: QueryStarted, now_ms: int) -> list[Action]:
        self._phase, self._submit_ms, self._restore_ms = "resubmitting", now_ms, now_ms
        return []

    def _on_job_ended(self, event: JobEnded, now_ms: int) -> list[Action]:
        error = event.error or _error("Spark's job ended, but the query had not: something else ended its tasks.")
        fences = self._drop_slots("Spark's job ended", now_ms)
        self._phase = "resubmitting"
        delay_ms = self._count(error, now_ms, loss=True)
        if delay_ms is None:
            return [*fences, *self._give_up(now_ms)]
        self._submit_ms = now_ms + delay_ms
        numbers = self._deployed_numbers()
        report = ReportFailure(error, tuple(range(len(self._columns))), delay_ms)
        return [*fences, report, *self._restart(numbers, now_ms + delay_ms, error.message, self._ids(numbers))]

    def _on_cancelled_job_ended(self, event: JobEnded, now_ms: int) -> list[Action]:
        self._phase = "resubmitting"
        return []

    def _on_released_job_ended(self, event: JobEnded, now_ms: int) -> list[Action]:
        return self._be_over(now_ms)

    def _on_query_ending(self, event: QueryEnding, now_ms: int) -> list[Action]:
        return self._end(now_ms)

    def _on_time(self, event: SchedulerTimePassed, now_ms: int) -> list[Action]:
        return self._take(self._slots.handle(SlotsTimePassed(), now_ms), now_ms)

    def _on_time_ending(self, event: SchedulerTimePassed, now_ms: int) -> list[Action]:
        if now_ms < self._end_ms:
            return []
        if self._cancelled:
            return self._be_over(now_ms)
        self._cancelled, self._end_ms = True, now_ms + self._options.release_timeout_ms
        return [CancelJob(self._submission)]

    def _ignore(self, event: Event, now_ms: int) -> list[Action]:
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
    ) -> list[Action]:
        """Restart what fails with these subtasks, or give up. Subtasks that are not deployed cannot fail."""
        failing = [number for number in numbers if self._columns[number][0].state in _DEPLOYED]
        if not failing and not everything:
            return []
        delay_ms = self._count(error, now_ms, loss=loss, again=again)
        if delay_ms is None:
            return self._give_up(now_ms)
        everything = everything or self._options.failover_strategy == "full"
        restarted = tuple(range(len(self._columns))) if everything else tuple(failing)
        report = ReportFailure(error, restarted, delay_ms)
        return [report, *self._restart(failing, now_ms + delay_ms, error.message, dead, everything=everything)]

    def _restart(
        self,
        numbers: list[int],
        due_ms: int,
        reason: str,
        dead: Collection[SubtaskId],
        *,
        everything: bool = False,
    ) -> list[Action]:
        """Let subtasks go, then have their splits taken back, or everything restored."""
        everything = everything or (bool(numbers) and self._options.failover_strategy == "full")
        if everything:
            numbers = list(range(len(self._columns)))
            self._restore_ms, self._restoring = due_ms, False
        actions = self._announce_not_running(reason) if numbers else []
        for number in numbers:
            for subtask in self._columns[number]:
                if subtask.state in _DEPLOYED and subtask.id not in dead:
                    actions.append(CancelExecution(subtask.id, subtask.execution))
                self._move(subtask, "waiting" if everything else "resetting")
                subtask.due_ms = due_ms
        return actions if everything else [*actions, *(ResetReaders(number) for number in numbers)]

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

    def _give_up(self, now_ms: int) -> list[Action]:
        assert self._cause is not None
        self._failed = True
        return self._end(now_ms)

    def _end(self, now_ms: int) -> list[Action]:
        """Let everything end; after an error at once, else when the slots have ended by themselves."""
        actions = self._announce_not_running("the query ends")
        if self._failed and self._cause is not None:
            actions.append(FailQuery(self._cause))
        actions.append(ReleaseSlots())
        self._restore_ms, self._restoring = None, False
        if self._phase == "resubmitting":
            return [*actions, *self._be_over(now_ms)]
        if self._failed and self._phase == "submitted":
            actions.append(CancelJob(self._submission))
        self._cancelled = self._failed or self._phase == "cancelling"
        self._phase, self._end_ms = "ending", now_ms + self._options.release_timeout_ms
        return actions

    def _be_over(self, now_ms: int) -> list[Action]:
        self._phase = "over"
        return [*self._drop_slots("the query is over", now_ms), QueryOver()]

    def _announce_not_running(self, reason: str) -> list[Action]:
        if not self._announced:
            return []
        self._announced = ""
        return [AnnounceNotRunning(reason)]

    # Going on.

    def _go_on(self, now_ms: int) -> list[Action]:
        """Do what is due, whatever the event was."""
        if self._phase not in _LIVE:
            return []
        actions: list[Action] = []
        if self._restore_ms is not None and now_ms >= self._restore_ms:
            self._restore_ms, self._restoring = None, True
            actions.append(RestoreSources())
        if self._phase == "resubmitting" and self._submit_ms is not None and now_ms >= self._submit_ms:
            actions.append(self._submit(now_ms))
        for subtask in self._deployable():
            if now_ms >= subtask.due_ms:
                self._move(subtask, "deploying")
                subtask.execution += 1
                actions.append(DeploySubtask(subtask.id, subtask.execution))
        return [*actions, *self._announce()]

    def _submit(self, now_ms: int) -> SubmitJob:
        self._phase, self._submission = "submitted", self._submission + 1
        self._slots.handle(SlotsAwaited(self._submission), now_ms)
        avoid, self._avoid = self._avoid, ()
        return SubmitJob(self._submission, avoid)

    def _deployable(self) -> list[_Subtask]:
        """Return the subtasks that miss nothing, but perhaps time."""
        if self._phase != "submitted" or not self._slots.all_came or self._restoring or self._restore_ms is not None:
            return []
        return [subtask for subtask in self._waiting.values() if self._slots.state(subtask.id.subtask) == "registered"]

    def _announce(self) -> list[Action]:
        actions: list[Action] = []
        count = len(self._columns) * len(self._columns[0])
        if not self._announced and self._states["running"] + self._states["ended"] == count:
            executions = {subtask.id: subtask.execution for subtask in self._subtasks()}
            actions.append(AnnounceRunning(executions, self._restored))
            self._announced, self._restored = "running", True
        if self._announced == "running" and self._states["ended"] == count:
            actions.append(AnnounceInputEnded())
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

    def _invalid(self, event: Event, state: str) -> InvalidTransitionError:
        return InvalidTransitionError(
            f"The scheduler cannot take {event!r} in state {state}. "
            f"Before: {', '.join(list(self._history)[-10:]) or 'nothing'}.",
            state=state,
            event=repr(event),
            history=tuple(self._history),
        )

    _HANDLERS: ClassVar[dict[tuple[str, type], Callable[[Any, Any, int], list[Action]]]] = {
        ("created", QueryStarted): _on_query_started,
        ("submitted", SlotRegistered): _on_slot_event,
        ("cancelling", SlotRegistered): _on_slot_event,
        ("resubmitting", SlotRegistered): _on_slot_event,
        ("ending", SlotRegistered): _on_slot_came_late,
        ("submitted", SlotDisconnected): _on_slot_event,
        ("ending", SlotDisconnected): _on_slot_event,
        ("submitted", SlotHeard): _on_slot_event,
        ("ending", SlotHeard): _on_slot_event,
        ("deploying", SubtaskStarted): _on_subtask_started,
        ("ending", SubtaskStarted): _ignore,
        ("running", SubtaskInputEnded): _on_subtask_input_ended,
        ("ending", SubtaskInputEnded): _ignore,
        ("deploying", SubtaskBroke): _on_subtask_broke,
        ("running", SubtaskBroke): _on_subtask_broke,
        ("ended", SubtaskBroke): _on_subtask_broke,
        ("ending", SubtaskBroke): _ignore,
        ("resetting", SubtaskReset): _on_subtask_reset,
        ("waiting", SubtaskReset): _ignore,
        ("submitted", SourcesRestored): _on_sources_restored,
        ("cancelling", SourcesRestored): _on_sources_restored,
        ("resubmitting", SourcesRestored): _on_sources_restored,
        ("submitted", GlobalFailure): _on_global_failure,
        ("cancelling", GlobalFailure): _on_global_failure,
        ("resubmitting", GlobalFailure): _on_global_failure,
        ("ending", GlobalFailure): _ignore,
        ("submitted", JobEnded): _on_job_ended,
        ("cancelling", JobEnded): _on_cancelled_job_ended,
        ("ending", JobEnded): _on_released_job_ended,
        ("submitted", QueryEnding): _on_query_ending,
        ("cancelling", QueryEnding): _on_query_ending,
        ("resubmitting", QueryEnding): _on_query_ending,
        ("ending", QueryEnding): _ignore,
        ("submitted", SchedulerTimePassed): _on_time,
        ("cancelling", SchedulerTimePassed): _ignore,
        ("resubmitting", SchedulerTimePassed): _ignore,
        ("ending", SchedulerTimePassed): _on_time_ending,
    }


def _error(message: str) -> ErrorReport:
    return ErrorReport(error_type="HeadgateError", message=message)


def _too_few_slots(wanted: int, came: int, timeout_ms: int) -> ErrorReport:
    return ErrorReport(
        error_type="OptionError",
        message=f"The query wants {wanted} slots (parallelism), one core each, but only {came} came within "
        f"{timeout_ms // 1000} seconds. Give Spark more free cores or the query a smaller parallelism.",
        facts={"option": "parallelism", "value": wanted, "registered": came},
    )
