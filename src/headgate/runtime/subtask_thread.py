"""A thread of subtasks of one slot: all whose operators do not block share it, each other has one of its own.

Never: let a message take much longer than one slice of rows of each subtask; let an error of one reach another.

    loop: each subtask that has mail, or more to do: mail -> the next step of its execution
          none has: wait for mail of any

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from headgate.event_log import describe, set_thread_context
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol import messages as msg
from headgate.protocol.state import FileState
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail, Mailbox, Mailboxes
from headgate.runtime.subtask import Subtask

_log = logging.getLogger(__name__)

_LOOK_S = 0.2


class SubtaskThread:
    """A thread that lives as long as its slot, through all executions of its subtasks.

    Parameters
    ----------
    definition, place, post, read_state, services, now_ms
        As for `Subtask`.
    stages
        Of which stages they are, in the order of the data.
    on_ended
        Called with the stage and the execution that is closed.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        stages: Sequence[int],
        place: SlotPlace,
        post: Callable[[msg.FromSlot], None],
        on_ended: Callable[[int, int], None],
        read_state: Callable[[FileState], bytes],
        services: SlotServices | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        query = {} if definition.name is None else {"query": definition.name}  # else its process has the id
        mailboxes = self._mailboxes = Mailboxes(now_ms)
        self.runners: dict[int, SubtaskRunner] = {}
        """What runs the subtasks, by stage."""
        for stage in stages:
            mailbox = mailboxes.new()
            subtask = Subtask(
                definition, stage, place, services or SlotServices(), mailbox, now_ms, post, partial(on_ended, stage),
                read_state,
            )  # fmt: skip
            context = {**query, "slot": place.slot, "stage": stage, "subtask": place.slot}
            self.runners[stage] = SubtaskRunner(subtask, mailbox, context, now_ms)
        self._closing = False
        name = f"headgate-subtask-{'-'.join(map(str, stages))}-{place.slot}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread, closing what runs; wait for that at most this long, in seconds. Called by another thread."""
        next(iter(self.runners.values())).post(Mail(self._begin_close))
        self._thread.join(timeout_s)

    # On the thread.

    def _run(self) -> None:
        runners = list(self.runners.values())
        for each in runners:
            each.subtask.start()
        while not self._closing:
            busy = take_turns(runners)
            if not self._closing:
                (self._mailboxes.look if busy else self._mailboxes.wait)()
        self._close_subtasks()
        self._mailboxes.close()

    def _begin_close(self) -> None:
        self._closing = True
        self._close_subtasks()  # so that they do no step any more

    def _close_subtasks(self) -> None:
        for each in self.runners.values():
            each.close()


class TakesTurns(Protocol):
    """A subtask of a thread."""

    def turn(self) -> bool:
        """Take a turn, if there is anything to do; return whether there may be more at once."""


def take_turns(members: Iterable[TakesTurns]) -> bool:
    """Let each subtask of a thread take a turn that has anything to do; return whether there may be more at once."""
    busy = False
    for each in members:
        busy = each.turn() or busy
    return busy


class SubtaskRunner:
    """Runs a subtask on a thread that it may share with others.

    Parameters
    ----------
    subtask, mailbox
        It, and its mailbox.
    context
        What log records say of where it is.
    now_ms
        Reads the clock, in milliseconds.
    """

    def __init__(self, subtask: Subtask, mailbox: Mailbox, context: dict[str, Any], now_ms: Callable[[], int]) -> None:
        self.subtask = subtask
        self.post = mailbox.post
        self._context = context
        self._now_ms = now_ms
        self._busy_since: float | None = None

    def deliver(self, message: Any) -> None:
        """Take a message of the coordinator's. Any thread."""
        self.subtask.deliver(message)

    def finish(self, timeout_s: float, give_up: threading.Event | None = None) -> bool:
        """Let the sink publish what the last checkpoint left to it; return whether it did so in time. Another thread.

        Parameters
        ----------
        timeout_s
            How long to wait, in seconds.
        give_up
            Set when waiting makes no sense any more; None: never.

        Raises
        ------
        HeadgateError
            It failed.
        """
        finished: Future[None] = Future()
        self.post(Mail(lambda: self.subtask.finish(finished), finished.cancel))
        over = threading.Event()  # `concurrent.futures.wait` waits on for what is cancelled
        finished.add_done_callback(lambda _: over.set())
        deadline = time.monotonic() + timeout_s
        while not over.wait(min(timeout_s, _LOOK_S)):
            given_up = give_up is not None and give_up.is_set()
            if given_up or time.monotonic() >= deadline:
                return False
        if finished.cancelled():
            return False
        finished.result()
        return True

    def busy_since(self) -> float | None:
        """Return since when the current turn runs (monotonic seconds); None: it waits. Any thread."""
        return self._busy_since

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch of a reader blocks (monotonic seconds); None: none does. Any thread."""
        return self.subtask.fetching_since()

    def overdue_progress(self) -> msg.SubtaskProgress | None:
        """Return figures where the subtask reports none, because a call lasts; None: it reports. Any thread."""
        return self.subtask.overdue_progress()

    @property
    def number(self) -> int:
        """The execution that was deployed last. Any thread."""
        return self.subtask.number

    def close(self) -> None:
        """Close what runs, whatever raises. On the thread."""
        set_thread_context(**self._context)
        try:
            self.subtask.close()
        except BaseException as error:  # sys.exit() of a connector's, too, would leave the others open
            _log.warning("closing a subtask failed: %s", describe(error))

    def turn(self) -> bool:
        """Take a turn, if there is anything to do; return whether there may be more at once. On the thread."""
        now_ms = self._now_ms()
        if not self.subtask.is_due(now_ms):
            return False
        set_thread_context(**self._context)
        self._busy_since = now_ms / 1000
        busy = self.subtask.turn(now_ms)
        self._busy_since = None
        return busy
