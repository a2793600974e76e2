"""The slots of one submission as threads of this process, side by side.

Never: end the process, or wait for ever for a slot that does not end: it is left alone, and fenced by the next one.

    thread                what it does
    --------------------  -------------------------------------------
    headgate-job-NAME     starts the slots, and waits for their ends
    headgate-slot-N-NAME  is slot N

One slot that ends with an error ends the others, as in a Spark job without retries: the scheduler submits again.
"""

from __future__ import annotations

import atexit
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection
from typing import Protocol

from headgate.errors import DeploymentError, HeadgateError
from headgate.protocol.error_reports import report_of
from headgate.protocol.messages import ErrorReport

_log = logging.getLogger(__name__)

_LOOK_S = 1.0
_TIME_TO_END_S = 15.0
"""How long slots that were asked to end may take, before they are left alone."""
_TIME_TO_EXIT_S = 6.0
"""The same, when the program ends."""


class Slot(Protocol):
    """What runs on a thread: a `headgate.runtime.slot.SlotRuntime`."""

    def run(self) -> None:
        """Be the slot until it is over; raise if that is too early."""

    def cancel(self, reason: str) -> None:
        """Let `run` end with an error. Any thread; must not block."""


class SlotThreads:
    """One submission.

    Parameters
    ----------
    name
        The query's.
    make
        Called once, on the job's thread; what it returns is called on each slot's thread, with its number, and makes
        that slot. Both may raise.
    parallelism
        How many.
    on_ended
        Called on the job's thread with None, or the first error that a slot ended with.
    look
        Called about once a second, on the job's thread: an error that ends all slots, or None.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Callable[[int], Slot]],
        parallelism: int,
        on_ended: Callable[[ErrorReport | None], None],
        look: Callable[[], ErrorReport | None],
    ) -> None:
        self._name = name
        self._make = make
        self._parallelism = parallelism
        self._on_ended = on_ended
        self._look = look
        self._ends: queue.SimpleQueue[tuple[int, BaseException | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._slots: dict[int, Slot] = {}
        self._cancelled: str | None = None  # why
        self._exiting = False
        self._thread = threading.Thread(target=self._run, name=f"headgate-job-{name}", daemon=True)
        atexit.register(self._end_with_the_program)
        self._thread.start()

    @property
    def running_slots(self) -> int:
        """How many slots have what they need to come: all, since they wait for no core."""
        return self._parallelism

    def hosts_of(self, slots: Collection[int]) -> set[str]:
        """Return the hosts to avoid instead of those of these slots: none, since there is only this one."""
        return set()

    def cancel(self) -> None:
        """Let the slots end. Any thread; does not wait."""
        self._cancel("its submission is cancelled")

    def join(self, timeout_s: float) -> None:
        """Wait for the end of all at most this long, in seconds."""
        self._thread.join(timeout_s)

    def _cancel(self, reason: str) -> None:
        with self._lock:
            if self._cancelled is not None:
                return
            self._cancelled = reason
            slots = list(self._slots.values())
        for slot in slots:
            slot.cancel(reason)

    def _end_with_the_program(self) -> None:
        """End the slots before the interpreter takes itself apart around them, and delete what they spilled.

        Nothing is reported, so that nobody submits them again.
        """
        with self._lock:
            self._exiting = True
        self._cancel("the program ends")
        self.join(_TIME_TO_EXIT_S)

    # On the job's thread.

    def _run(self) -> None:
        outcome: ErrorReport | None
        try:
            outcome = self._run_slots(self._make())
        except BaseException as error:  # sys.exit() of what is pickled, too, would end the thread without a word
            _log.debug("the slots could not be made", exc_info=True)
            self._cancel("its submission failed")
            outcome = _report(error)
        atexit.unregister(self._end_with_the_program)
        with self._lock:
            exiting = self._exiting
            self._slots.clear()  # a query keeps each of its submissions
        if not exiting:
            self._on_ended(outcome)

    def _run_slots(self, make: Callable[[int], Slot]) -> ErrorReport | None:
        """Run all slots; return the first error."""
        outcome: ErrorReport | None = None
        running = set(range(self._parallelism))
        for number in running:
            name = f"headgate-slot-{number}-{self._name}"
            threading.Thread(target=self._be_slot, args=(number, make), name=name, daemon=True).start()
        give_up_at = float("inf")
        while running and time.monotonic() < give_up_at:
            try:
                number, error = self._ends.get(timeout=_LOOK_S)
            except queue.Empty:
                outcome = outcome or self._look()
            else:
                running.discard(number)
                outcome = outcome or (None if error is None else _report(error))
            if outcome is not None:
                self._cancel("another slot of its submission has ended")
            with self._lock:
                if self._cancelled is not None:
                    give_up_at = min(give_up_at, time.monotonic() + _TIME_TO_END_S)
        if running:
            _log.error("query %s: slots %s do not end; their threads are abandoned", self._name, sorted(running))
            outcome = outcome or _report(HeadgateError(f"Slots {sorted(running)} did not end when they were asked to."))
        return outcome

    # On a slot's thread.

    def _be_slot(self, number: int, make: Callable[[int], Slot]) -> None:
        error: BaseException | None = None
        try:
            slot = make(number)
            with self._lock:
                self._slots[number] = slot
                cancelled = self._cancelled
            if cancelled is not None:
                slot.cancel(cancelled)
            slot.run()
        except BaseException as raised:  # whatever it is: the job waits for an answer
            error = raised
        self._ends.put((number, error))


def _report(error: BaseException) -> ErrorReport:
    if isinstance(error, DeploymentError):
        return report_of(error)
    return report_of(HeadgateError(f"The threads of the slots ended: {type(error).__name__}: {error}"))
