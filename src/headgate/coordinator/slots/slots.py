"""Decides which attempt of each slot counts, and when one is lost or missed.

Never: know what runs in a slot, or restart anything.

A slot has begun when all its subtasks run. Until then its process imports, opens and restores, with others on the same
cores at that moment: it may be silent, or away, for as long as slots may take to come.

The states are those of one slot. *Stale* is an attempt that is not newer than one that counted and was given up, or
that belongs to another submission of the job. Only attempts that count are reported as heard of or silent.

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

import msgspec

from headgate.machine import SAME, Machine, Maybe, Row

ATTEMPT_BITS = 16
"""An attempt of a slot is ``submission << ATTEMPT_BITS | attempt number of Spark's task``."""


def job_and_attempt(attempt: int) -> tuple[int, int]:
    """Return of an attempt which submission of the job it belongs to, and Spark's number of it there.

    Examples
    --------
    >>> job_and_attempt(3 << ATTEMPT_BITS | 1)
    (3, 1)
    """
    return divmod(attempt, 1 << ATTEMPT_BITS)


# What happened.


class SlotRegistered(msgspec.Struct, frozen=True):
    """An attempt of a slot opened a stream. ``running``: its living executions, by stage."""

    slot: int
    attempt: int
    running: dict[int, int]


class SlotDisconnected(msgspec.Struct, frozen=True):
    """The stream of an attempt broke. The slot may read on and come back."""

    slot: int
    attempt: int


class SlotHeard(msgspec.Struct, frozen=True):
    """Something came from an attempt: it lives."""

    slot: int
    attempt: int


class SlotBegan(msgspec.Struct, frozen=True):
    """All subtasks of a slot run."""

    slot: int


class SlotsAwaited(msgspec.Struct, frozen=True):
    """The job was submitted."""

    submission: int


class SlotsDropped(msgspec.Struct, frozen=True):
    """The job ended, or will be cancelled."""

    reason: str


class SlotsTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = SlotRegistered | SlotDisconnected | SlotHeard | SlotBegan | SlotsAwaited | SlotsDropped | SlotsTimePassed

# What is to be done.


class AcceptSlot(msgspec.Struct, frozen=True):
    """Accept an attempt: it counts."""

    slot: int
    attempt: int


class FenceSlot(msgspec.Struct, frozen=True):
    """Let an attempt exit, and close its stream."""

    slot: int
    attempt: int
    reason: str


class SlotsLost(msgspec.Struct, frozen=True):
    """Count what ran in these slots as failed.

    ``silent``: one of them was lost while its stream was open, so that Spark takes its task for well.
    """

    slots: tuple[int, ...]
    reason: str
    silent: bool = False


class SlotsMissed(msgspec.Struct, frozen=True):
    """Decide what to do without these slots: they have been awaited for long."""

    slots: tuple[int, ...]


Action = AcceptSlot | FenceSlot | SlotsLost | SlotsMissed


class SlotStatus(msgspec.Struct, frozen=True):
    """A slot: ``expected``, ``registered``, ``disconnected`` or ``lost``. ``attempt``: the one that counts or did."""

    slot: int
    state: str
    attempt: int | None


_PRESENT = ("registered", "disconnected")


class _Job(msgspec.Struct):
    """What all slots of a query share. ``submission``: which job's attempts count; None: nobody's."""

    heartbeat_timeout_ms: int
    registration_timeout_ms: int
    submission: int | None = None


class SlotAttempts(Machine):
    """The attempts of one slot: which one counts."""

    # fmt: off
    TRANSITIONS = (
        Row("expected, lost",           SlotRegistered,   "registered", [AcceptSlot], by="_on_slot_registered_first"),
        Row("registered",               SlotRegistered,   SAME, [AcceptSlot],
            "the end of its older stream is not known", when="same", by="_on_slot_registered_again"),
        Row("disconnected",             SlotRegistered,   "registered", [AcceptSlot], "it read on, and is back",
            when="same", by="_on_slot_registered_again"),
        Row("registered",               SlotRegistered,   SAME, [FenceSlot, AcceptSlot, SlotsLost],
            "a new process: what ran in the old one is gone, or must go", when="newer", by="_on_slot_registered_again"),
        Row("disconnected",             SlotRegistered,   "registered", [FenceSlot, AcceptSlot, SlotsLost],
            when="newer", by="_on_slot_registered_again"),
        Row("expected, lost",           SlotRegistered,   SAME, [FenceSlot], "a zombie", when="stale",
            by="_on_slot_registered_first"),
        Row("registered, disconnected", SlotRegistered,   SAME, [FenceSlot], when="stale",
            by="_on_slot_registered_again"),
        Row("registered",               SlotDisconnected, "disconnected", [], "it may read on and come back"),
        Row("registered",               SlotHeard,        SAME, [], "it lives"),
        Row("registered, disconnected", SlotBegan,        SAME, [], "heartbeat.timeout counts from now on"),
        Row("registered",               SlotsTimePassed,  "lost", [FenceSlot, SlotsLost],
            "a process that hangs, or a host that is cut off: Spark does not know", when="silent",
            by="_on_time_present"),
        Row("disconnected",             SlotsTimePassed,  "lost", [FenceSlot, SlotsLost], "it did not come back",
            when="silent", by="_on_time_present"),
        Row("registered, disconnected", SlotsTimePassed,  SAME, by="_on_time_present"),
        Row("expected, lost",           SlotsTimePassed,  SAME, [Maybe(SlotsMissed)],
            "it did not come, or no other instead", by="_on_time_absent"),
        Row("expected",                 SlotsAwaited,     SAME, [], "a new job: only its attempts count now"),
        Row("expected, lost",           SlotsDropped,     "expected", [], "the job ended: no attempt counts"),
        Row("registered, disconnected", SlotsDropped,     "expected", [FenceSlot], "it may be a zombie"),
    )
    # fmt: on

    def __init__(self, slot: int, job: _Job) -> None:
        super().__init__()
        self.slot = slot
        self.state = "expected"
        self.attempt: int | None = None  # the one that counts, or was the last that did
        self.heard_ms = 0
        self.missed_ms: int | None = None  # when its absence is to be noticed
        self._has_begun = False
        self._job = job

    @property
    def is_present(self) -> bool:
        """Whether an attempt of the slot counts, connected or not."""
        return self.state in _PRESENT

    @property
    def deadline_ms(self) -> int | None:
        """When `SlotsTimePassed` makes a difference, in milliseconds; None: nothing is due."""
        return self.heard_ms + self._patience_ms if self.is_present else self.missed_ms

    @property
    def _patience_ms(self) -> int:
        """How long the attempt that counts may be silent."""
        heartbeat_ms = self._job.heartbeat_timeout_ms
        return heartbeat_ms if self._has_begun else max(heartbeat_ms, self._job.registration_timeout_ms)

    def refused(self, event: Event) -> str | None:
        """Return why an event cannot have happened: it is of an attempt that does not count."""
        stale = isinstance(event, SlotDisconnected | SlotHeard) and event.attempt != self.attempt
        return f"attempt {self.attempt} counts" if stale else None

    def check(self) -> None:
        """Assert what always holds: an attempt that counts is of this job, and nobody is missed who is there."""
        if self.is_present:
            assert self.attempt is not None and self.attempt >> ATTEMPT_BITS == self._job.submission
            assert self.missed_ms is None

    def __str__(self) -> str:
        return f"Slot {self.slot}"

    def _on_slot_registered_first(self, event: SlotRegistered, now_ms: int) -> list[Action]:
        return self._accept(event, now_ms) if self._is_newer(event.attempt) else [self._fence_stale(event)]

    def _on_slot_registered_again(self, event: SlotRegistered, now_ms: int) -> list[Action]:
        if event.attempt == self.attempt:
            return self._accept(event, now_ms)
        if not self._is_newer(event.attempt):
            return [self._fence_stale(event)]
        reason = f"its process died or Spark gave it up: attempt {event.attempt} of slot {self.slot} is there"
        return [self._fence(reason), *self._accept(event, now_ms), SlotsLost((self.slot,), reason)]

    def _on_slot_disconnected(self, event: SlotDisconnected, now_ms: int) -> list[Action]:
        self.state, self.heard_ms = "disconnected", now_ms
        return []

    def _on_slot_heard(self, event: SlotHeard, now_ms: int) -> list[Action]:
        self.heard_ms = now_ms
        return []

    def _on_slot_began(self, event: SlotBegan, now_ms: int) -> list[Action]:
        self._has_begun = True
        return []

    def _on_time_present(self, event: SlotsTimePassed, now_ms: int) -> list[Action]:
        if now_ms < self.heard_ms + self._patience_ms:
            return []
        which = "heartbeat.timeout" if self._has_begun else "its subtasks had not begun"
        reason = f"slot {self.slot} was not heard of for {self._patience_ms} ms ({which})"
        fence = self._fence(reason)
        silent = self.state == "registered"
        self.state, self.missed_ms = "lost", now_ms + self._job.registration_timeout_ms
        return [fence, SlotsLost((self.slot,), reason, silent)]

    def _on_time_absent(self, event: SlotsTimePassed, now_ms: int) -> list[Action]:
        if self.missed_ms is None or now_ms < self.missed_ms:
            return []
        self.missed_ms = None
        return [SlotsMissed((self.slot,))]

    def _on_slots_awaited(self, event: SlotsAwaited, now_ms: int) -> list[Action]:
        self.missed_ms = now_ms + self._job.registration_timeout_ms
        return []

    def _on_slots_dropped(self, event: SlotsDropped, now_ms: int) -> list[Action]:
        fences: list[Action] = [self._fence(event.reason)] if self.is_present else []
        self.state, self.missed_ms = "expected", None
        return fences

    def _accept(self, event: SlotRegistered, now_ms: int) -> list[Action]:
        self._has_begun = self._has_begun and event.attempt == self.attempt
        self.state, self.attempt, self.heard_ms = "registered", event.attempt, now_ms
        self.missed_ms = None
        return [AcceptSlot(event.slot, event.attempt)]

    def _is_newer(self, attempt: int) -> bool:
        """Return whether an attempt is of the current job, and newer than any that counted."""
        return attempt >> ATTEMPT_BITS == self._job.submission and (self.attempt is None or attempt > self.attempt)

    def _fence(self, reason: str) -> FenceSlot:
        assert self.attempt is not None
        return FenceSlot(self.slot, self.attempt, reason)

    def _fence_stale(self, event: SlotRegistered) -> FenceSlot:
        newest = "none so far" if self.attempt is None else f"attempt {self.attempt}"
        submission = self._job.submission
        return FenceSlot(
            event.slot,
            event.attempt,
            f"attempt {event.attempt} of slot {event.slot} does not count: the newest is {newest}, and the job "
            + ("is not running" if submission is None else f"was submitted {submission + 1} times"),
        )


class Slots:
    """The slots of one query.

    Parameters
    ----------
    parallelism
        How many.
    heartbeat_timeout_ms
        One that has begun and is not heard of for so long is lost, and so is one that does not come back in it.
    registration_timeout_ms
        One that is awaited for so long is missed, and one that is there and has not begun is lost after as long a
        silence.

    Examples
    --------
    >>> machine = Slots(1, heartbeat_timeout_ms=10_000, registration_timeout_ms=10_000)
    >>> machine.handle(SlotsAwaited(submission=0), 0)
    []
    >>> machine.handle(SlotRegistered(slot=0, attempt=0, running={}), 300)
    [AcceptSlot(slot=0, attempt=0)]
    >>> machine.handle(SlotBegan(slot=0), 700), machine.handle(SlotDisconnected(slot=0, attempt=0), 900)
    ([], [])
    >>> machine.next_time_ms()
    10000
    >>> [type(action).__name__ for action in machine.handle(SlotRegistered(slot=0, attempt=1, running={}), 1_200)]
    ['FenceSlot', 'AcceptSlot', 'SlotsLost']
    """

    def __init__(self, parallelism: int, *, heartbeat_timeout_ms: int, registration_timeout_ms: int) -> None:
        self._job = _Job(heartbeat_timeout_ms, registration_timeout_ms)
        self._slots = [SlotAttempts(number, self._job) for number in range(parallelism)]
        self._looked_ms: int | None = None
        self._present = 0
        self.all_came = False
        """Whether all slots were there at one time."""
        self._due_ms: int | None = None

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order.

        Raises
        ------
        InvalidTransitionError
            The table of `SlotAttempts` has no row for it.
        """
        match event:
            case SlotRegistered() | SlotDisconnected() | SlotHeard() | SlotBegan():
                return self._handle_one(self._slots[event.slot], event, now_ms)
            case SlotsAwaited():
                self._job.submission = event.submission
            case SlotsTimePassed():
                self._forgive_own_sleep(now_ms)
                self._due_ms = None
        actions = [action for slot in self._slots for action in self._handle_one(slot, event, now_ms)]
        if isinstance(event, SlotsDropped):
            self._job.submission = self._due_ms = None
        return _merged(actions)

    def state(self, slot: int) -> str:
        """Return the state of a slot."""
        return self._slots[slot].state

    def attempt(self, slot: int) -> int | None:
        """Return the attempt of a slot that counts, or was the last that did."""
        return self._slots[slot].attempt

    def is_present(self, slot: int) -> bool:
        """Return whether an attempt of the slot counts, connected or not."""
        return self._slots[slot].is_present

    def status(self) -> list[SlotStatus]:
        """Return how the slots are."""
        return [SlotStatus(each.slot, each.state, each.attempt) for each in self._slots]

    def next_time_ms(self) -> int | None:
        """Return when `SlotsTimePassed` is due at the earliest, in milliseconds; None: nothing is due."""
        return self._due_ms

    def check(self) -> None:
        """Assert what always holds: nobody's time is missed."""
        present = 0
        for slot in self._slots:
            slot.check()
            present += slot.is_present
            deadline_ms = slot.deadline_ms
            assert deadline_ms is None or (self._due_ms is not None and self._due_ms <= deadline_ms)
        assert self._present == present

    def _handle_one(self, slot: SlotAttempts, event: Event, now_ms: int) -> list[Action]:
        was_present = slot.is_present
        actions = slot.handle(event, now_ms)
        self._present += slot.is_present - was_present
        if not isinstance(event, SlotHeard) and slot.deadline_ms is not None:
            # Too early does no harm: it was heard of since, so that time looks again.
            self._due_ms = slot.deadline_ms if self._due_ms is None else min(self._due_ms, slot.deadline_ms)
        self.all_came = self.all_came or self._present == len(self._slots)
        return actions

    def _forgive_own_sleep(self, now_ms: int) -> None:
        """Do not count time in which we stood still as the slots' silence: their messages may still be in a queue.

        Time is looked at with every heartbeat of ours, four in a time-out: after half of one something held us up.
        """
        gone_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        if gone_ms > self._job.heartbeat_timeout_ms // 2:
            for slot in self._slots:
                slot.heard_ms = min(now_ms, slot.heard_ms + gone_ms)
        self._looked_ms = now_ms


def _merged(actions: list[Action]) -> list[Action]:
    """Return the actions with all losses in one, and all missed slots in one, at the end."""
    lost = [action for action in actions if isinstance(action, SlotsLost)]
    missed = [action for action in actions if isinstance(action, SlotsMissed)]
    merged: list[Action] = [action for action in actions if not isinstance(action, SlotsLost | SlotsMissed)]
    if lost:
        reason = "; ".join(action.reason for action in lost[:3]) + (f"; {len(lost)} in all" if len(lost) > 3 else "")
        silent = any(action.silent for action in lost)
        merged.append(SlotsLost(tuple(slot for action in lost for slot in action.slots), reason, silent))
    if missed:
        merged.append(SlotsMissed(tuple(slot for action in missed for slot in action.slots)))
    return merged
