"""The thread of a subtask.

Never: let a message take much longer than one slice of rows.

    loop: mail -> the next step of the execution -> wait for mail

Follows FLIP-27, "Reader Interface and Threading Model".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from headgate.event_log import set_thread_context
from headgate.graph.stage_graph import QueryDefinition
from headgate.protocol import messages as msg
from headgate.protocol.state import FileState
from headgate.runtime.clocks import monotonic_ms
from headgate.runtime.execution_context import SlotPlace, SlotServices
from headgate.runtime.mailbox import Mail, Mailbox
from headgate.runtime.subtask import Subtask

_LOOK_S = 0.2


class SubtaskThread:
    """A subtask on a thread of its own, which lives as long as its slot, through all executions.

    Parameters
    ----------
    definition, stage, place, services, post, on_ended, read_state, now_ms
        As for `Subtask`.
    """

    def __init__(
        self,
        definition: QueryDefinition,
        stage: int,
        place: SlotPlace,
        post: Callable[[msg.FromSlot], None],
        on_ended: Callable[[int], None],
        read_state: Callable[[FileState], bytes],
        services: SlotServices | None = None,
        now_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        self._mailbox = Mailbox(now_ms)
        self.subtask = Subtask(
            definition, stage, place, services or SlotServices(), self._mailbox, now_ms, post, on_ended, read_state
        )
        query = {} if definition.name is None else {"query": definition.name}  # else its process has the id
        self._context = {**query, "slot": place.slot, "stage": stage, "subtask": place.slot}
        self._closing = False
        self._busy_since: float | None = None
        self._thread = threading.Thread(target=self._run, name=f"headgate-subtask-{stage}-{place.slot}", daemon=True)
        self._thread.start()

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
        self._mailbox.post(Mail(lambda: self.subtask.finish(finished), finished.cancel))
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

    def close(self, timeout_s: float = 2.0) -> None:
        """End the thread, closing what runs; wait for that at most this long, in seconds. Called by another thread."""
        self._mailbox.post(Mail(self._begin_close))
        self._thread.join(timeout_s)

    def busy_since(self) -> float | None:
        """Return since when the current turn runs (monotonic seconds); None: it waits. Any thread."""
        return self._busy_since

    def fetching_since(self) -> float | None:
        """Return since when the oldest fetch of a reader blocks (monotonic seconds); None: none does. Any thread."""
        return self.subtask.fetching_since()

    def overdue_progress(self) -> msg.SubtaskProgress | None:
        """Return figures where the thread reports none, because a call lasts; None: it reports. Any thread."""
        return self.subtask.overdue_progress()

    @property
    def number(self) -> int:
        """The execution that was deployed last. Any thread."""
        return self.subtask.number

    # On the subtask's thread.

    def _run(self) -> None:
        set_thread_context(**self._context)
        self.subtask.start()
        while not self._closing:
            self._busy_since = time.monotonic()
            busy = self.subtask.turn()
            self._busy_since = None
            if self._closing:
                break
            (self._mailbox.look if busy else self._mailbox.wait)()
        self.subtask.close()
        self._mailbox.close()

    def _begin_close(self) -> None:
        self._closing = True
        self.subtask.close()  # so that this turn does no step of it any more
