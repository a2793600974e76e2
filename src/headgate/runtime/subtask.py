"""One subtask of a stage through all its executions: mail in, messages to the coordinator out.

Never: start a thread, or block: `headgate.runtime.subtask_thread` runs it on one, a simulator in its own.

A turn answers the mail that is there, then does one step of the execution. Messages are handled between two slices;
what they order after a barrier waits with its snapshot (`headgate.task.task_loop`).

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, assert_never

from headgate.errors import InternalError
from headgate.event_log import describe
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol import messages as msg
from headgate.protocol.channels import Barrier
from headgate.protocol.error_reports import report_of
from headgate.protocol.state import FileState, OperatorState
from headgate.runtime.execution import Execution
from headgate.runtime.execution_context import ExecutionContext, SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail, Mailbox
from headgate.runtime.overdue_progress import Reported, nothing_yet, overdue_progress
from headgate.task import subtask as machine

_log = logging.getLogger(__name__)

PROGRESS_PERIOD_MS = 250
"""How often a subtask reports its figures."""


class Subtask:
    """A subtask. All methods but `deliver` are called by one thread.

    Parameters
    ----------
    definition
        What the query does.
    stage
        The stage's number.
    place
        Where this is.
    services
        The slot's.
    mailbox
        Its mailbox.
    now_ms
        Reads the clock, in milliseconds.
    post
        Takes messages to the coordinator.
    on_ended
        Called with an execution that is closed.
    read_state
        Reads state that lies in a file of the checkpoint. Any thread.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        stage: int,
        place: SlotPlace,
        services: SlotServices,
        mailbox: Mailbox,
        now_ms: Callable[[], int],
        post: Callable[[msg.FromSlot], None],
        on_ended: Callable[[int], None],
        read_state: Callable[[FileState], bytes],
    ) -> None:
        self._definition = definition
        self._stage = stage
        self._place = place
        self._services = services
        self._mailbox = mailbox
        self._now_ms = now_ms
        self.post = post
        self._on_ended = on_ended
        self._read_state = read_state
        self._deployed = msg.Deploy(stage=stage, execution=0, parallelism=1)  # the last one
        self._machine = machine.SubtaskMachine(
            msg.SubtaskId(stage, place.slot),
            sources={each.uid: each.reassigns_on_recovery for each in definition.graph.stages[stage].sources},
            host=place.host,
        )
        self._execution: Execution | None = None
        self._reported: Reported | None = None
        self._events: deque[machine.Event] = deque()
        self._handling = False
        self._goes_on = False  # whether the last turn left something

    @property
    def number(self) -> int:
        """The execution that was deployed last. Any thread."""
        return self._machine.execution

    @property
    def execution(self) -> Execution | None:
        """What runs now; None: nothing does."""
        return self._execution

    def deliver(self, message: Any) -> None:
        """Take a message of the coordinator's. Any thread."""
        self._mailbox.post(Mail(lambda: self._on_message(message)))

    def start(self) -> None:
        """Begin to report figures."""
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Mail(self.on_progress_due))

    def is_due(self, now_ms: int) -> bool:
        """Return whether `turn` has anything to do."""
        return self._goes_on or self._mailbox.is_due(now_ms)

    def turn(self, now_ms: int) -> bool:
        """Answer the mail, then do one step of the execution; return whether there may be more at once."""
        execution = self._execution
        if execution is not None:
            execution.time.go_on(self._services.work_ms())
        try:
            self._mailbox.run_mail(now_ms)
            execution = self._execution
            self._goes_on = execution is not None and execution.step(now_ms)
        except BaseException as error:  # sys.exit() of a connector's, too, would end the thread without a word
            self._on_error(error)
            self._goes_on = True
            return True
        if execution is not None:  # though it goes on: others may have the thread before
            execution.time.rest(self._services.work_ms(), for_room=execution.lacks_room)
        return self._goes_on

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch of a reader blocks (monotonic seconds); None: none does. Any thread."""
        execution = self._execution
        return None if execution is None else execution.fetching_since()

    def overdue_progress(self) -> msg.SubtaskProgress | None:
        """Return figures where its thread reports none, because a call lasts; None: it reports. Any thread."""
        execution, last = self._execution, self._reported
        if execution is None or last is None or last.progress.execution != execution.number or not execution.reports:
            return None  # one that is suspended reports nothing, though nothing holds it up
        if execution.time.rests:
            return None  # a call of another one, on the same thread, lasts
        return overdue_progress(last, execution.under_way, self._services.work_ms(), PROGRESS_PERIOD_MS)

    def finish(self, finished: Future[None]) -> None:
        """Let the sink publish what the last checkpoint left to it; ``finished`` is done when it has."""
        try:
            under_way = None if self._execution is None else self._execution.finish()
        except Exception as error:
            finished.set_exception(error)
            return
        if under_way is None:
            finished.set_result(None)
        else:
            under_way.add_done_callback(lambda future: _copy(future, finished))

    def close(self) -> None:
        """Close what runs."""
        execution, self._execution = self._execution, None
        if execution is not None:
            execution.close()
            self._on_ended(execution.number)

    def handle(self, event: machine.Event) -> None:
        """Give an event to the machine and carry out what it decides, after what is being carried out."""
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                try:
                    for action in self._machine.handle(self._events.popleft(), self._now_ms()):
                        self._carry_out(action)
                except BaseException as error:
                    self._on_error(error)
        finally:
            self._handling = False

    def on_progress_due(self) -> None:
        """Report figures, and again after a while."""
        self._mailbox.run_after(PROGRESS_PERIOD_MS, Mail(self.on_progress_due))
        execution = self._execution
        if execution is not None and execution.reports:
            progress = execution.progress()
            self._reported = Reported(progress, self._services.work_ms())
            self.post(progress)

    def _on_error(self, error: BaseException) -> None:
        """Fail the execution, whatever raised. What is still to be handled came of it, and makes no sense without."""
        facts = {} if self._execution is None else self._execution.facts_of(error)
        _log.warning("subtask %d.%d failed: %s", self._stage, self._place.slot, describe(error))
        self._events.clear()
        self.handle(machine.SomethingFailed(report_of(error, **facts)))

    def _on_message(self, message: Any) -> None:
        execution = self._execution
        if execution is None or message.execution != execution.number:
            execution = None
        match message:
            case msg.SlotsLocated():
                if execution is not None:
                    execution.connect(message)
                return
            case msg.Deploy():
                self._deployed = message
            case msg.TriggerCheckpoint():
                if execution is not None:
                    execution.note_barrier(_barrier_of(message))
            case msg.CheckpointAborted():
                if execution is not None:
                    execution.give_up(message.checkpoint_id)
        self.handle(machine.MessageReceived(message))

    def _carry_out(self, action: machine.Action) -> None:
        match action:
            case machine.OpenOperators(operators=operators):
                self._open(operators)
            case machine.CloseAll():
                self.close()
            case machine.Post(message=message):
                if isinstance(message, msg.SubtaskRunning):  # its first call may be a long one
                    self._reported = Reported(nothing_yet(self._stage, message.execution), self._services.work_ms())
                self.post(message)
            case (
                machine.AddSplits() | machine.NotifyNoMoreSplits() | machine.HandEvent() | machine.SetUnassigned()
                | machine.Announce() | machine.StartReading() | machine.TakeSnapshot() | machine.ResumeReading()
                | machine.NotifyOperators()
            ):  # fmt: skip
                if self._execution is None:
                    raise InternalError(f"{action!r} was ordered of subtask {self._place.slot}, which is not open.")
                self._execution.order(action)
            case _:
                assert_never(action)

    def _open(self, operators: Mapping[str, OperatorState]) -> None:
        self.close()
        context = ExecutionContext(
            self._definition, self._place, self._services, self._deployed, self._mailbox, self._now_ms, self._read_state
        )
        self._execution = Execution(context, operators, self)
        self._execution.open_more()


def _barrier_of(message: msg.TriggerCheckpoint) -> Barrier:
    return Barrier(
        checkpoint_id=message.checkpoint_id,
        completed=message.completed,
        kind=message.kind,
        location=message.location,
        unaligned=message.unaligned,
        alignment_timeout_ms=message.alignment_timeout_ms,
        lost=message.lost,
    )


def _copy(future: Future[None], to: Future[None]) -> None:
    error = future.exception()
    if error is None:
        to.set_result(None)
    else:
        to.set_exception(error)
