"""Decides which attempt of each slot counts, and when one is lost or missed.

Never: know what runs in a slot, or restart anything.

The states are those of one slot. *Stale* is an attempt that is not newer than one that counted and was given up, or
that belongs to another submission of the job. Only of attempts that count it is told that they were heard of or not.

    state                    event                   next          actions     why
    -----------------------  ----------------------  ------------  ----------  -----------------------------------------
    expected, lost           SlotRegistered          registered    AcceptSlot
    registered               SlotRegistered same     same          AcceptSlot  the end of its older stream is not known
    disconnected             SlotRegistered same     registered    AcceptSlot  it read on, and is back
    registered               SlotRegistered newer    same          FenceSlot,  a new process: what ran in the old one is
                                                                   AcceptSlot, gone, or must go
                                                                   SlotsLost
    disconnected             SlotRegistered newer    registered    FenceSlot,
                                                                   AcceptSlot,
                                                                   SlotsLost
    expected, lost           SlotRegistered stale    same          FenceSlot   a zombie
    registered               SlotRegistered stale    same          FenceSlot
    disconnected             SlotRegistered stale    same          FenceSlot
    registered               SlotDisconnected        disconnected              it may read on and come back
    registered               SlotHeard               same                      it lives
    registered               SlotsTimePassed silent  lost          FenceSlot,  a process that hangs, or a host that is
                                                                   SlotsLost   cut off: Spark does not know
    disconnected             SlotsTimePassed silent  lost          FenceSlot,  it did not come back
                                                                   SlotsLost
    registered               SlotsTimePassed         same
    disconnected             SlotsTimePassed         same
    expected, lost           SlotsTimePassed         same          SlotsMissed? it did not come, or no other instead
    expected                 SlotsAwaited            same                      a new job: only its attempts count now
    expected, lost           SlotsDropped            expected                  the job ended: no attempt counts
    registered               SlotsDropped            expected      FenceSlot   it may be a zombie
    disconnected             SlotsDropped            expected      FenceSlot

Follows FLIP-27, "Where to run the enumerator".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec

from headgate.errors import InvalidTransitionError

ATTEMPT_BITS = 16
"""An attempt of a slot is ``submission << ATTEMPT_BITS | attempt number of Spark's task``."""
_HISTORY = 64

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


class SlotsAwaited(msgspec.Struct, frozen=True):
    """The job was submitted."""

    submission: int


class SlotsDropped(msgspec.Struct, frozen=True):
    """The job ended, or will be cancelled."""

    reason: str


class SlotsTimePassed(msgspec.Struct, frozen=True):
    """Time went on."""


Event = SlotRegistered | SlotDisconnected | SlotHeard | SlotsAwaited | SlotsDropped | SlotsTimePassed

# What is to be done.


class AcceptSlot(msgspec.Struct, frozen=True):
    """Tell an attempt that it counts."""

    slot: int
    attempt: int


class FenceSlot(msgspec.Struct, frozen=True):
    """Tell an attempt to exit, and close its stream."""

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


class _Slot(msgspec.Struct):
    state: str = "expected"
    attempt: int | None = None  # the one that counts, or was the last that did
    heard_ms: int = 0
    missed_ms: int | None = None  # when its absence is to be noticed


_PRESENT = ("registered", "disconnected")


class Slots:
    """The slots of one query.

    Parameters
    ----------
    parallelism
        How many.
    heartbeat_timeout_ms
        One that is not heard of for so long is lost, and so is one that does not come back in it.
    registration_timeout_ms
        One that is awaited for so long is missed.

    Examples
    --------
    >>> machine = Slots(1, heartbeat_timeout_ms=10_000, registration_timeout_ms=10_000)
    >>> machine.handle(SlotsAwaited(submission=0), 0)
    []
    >>> machine.handle(SlotRegistered(slot=0, attempt=0, running={}), 300)
    [AcceptSlot(slot=0, attempt=0)]
    >>> machine.handle(SlotDisconnected(slot=0, attempt=0), 900), machine.next_time_ms()
    ([], 10000)
    >>> [type(action).__name__ for action in machine.handle(SlotRegistered(slot=0, attempt=1, running={}), 1_200)]
    ['FenceSlot', 'AcceptSlot', 'SlotsLost']
    """

    def __init__(self, parallelism: int, *, heartbeat_timeout_ms: int, registration_timeout_ms: int) -> None:
        self._heartbeat_timeout_ms = heartbeat_timeout_ms
        self._registration_timeout_ms = registration_timeout_ms
        self._slots = [_Slot() for _ in range(parallelism)]
        self._submission: int | None = None
        self._looked_ms: int | None = None
        self._present = 0
        self.all_came = False
        """Whether all slots were there at one time."""
        self._due_ms: int | None = None
        self._history: deque[str] = deque(maxlen=_HISTORY)

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        """Take note of an event at a time in milliseconds, and return what is to be done, in order."""
        match event:
            case SlotRegistered() | SlotDisconnected() | SlotHeard():
                return self._handle_one(event.slot, event, now_ms)
            case SlotsAwaited():
                self._submission = event.submission
            case SlotsTimePassed():
                self._forgive_own_sleep(now_ms)
                self._due_ms = None
        actions = [action for number in range(len(self._slots)) for action in self._handle_one(number, event, now_ms)]
        if isinstance(event, SlotsDropped):
            self._submission = self._due_ms = None
        return _merged(actions)

    def state(self, slot: int) -> str:
        """Return the state of a slot."""
        return self._slots[slot].state

    def attempt(self, slot: int) -> int | None:
        """Return the attempt of a slot that counts, or was the last that did."""
        return self._slots[slot].attempt

    def is_present(self, slot: int) -> bool:
        """Return whether an attempt of the slot counts, connected or not."""
        return self._slots[slot].state in _PRESENT

    def status(self) -> list[SlotStatus]:
        """Return how the slots are."""
        return [SlotStatus(number, slot.state, slot.attempt) for number, slot in enumerate(self._slots)]

    def next_time_ms(self) -> int | None:
        """Return when `SlotsTimePassed` is due at the earliest, in milliseconds; None: not by itself."""
        return self._due_ms

    def check(self) -> None:
        """Assert what always holds: an attempt that counts is of this job, and nobody is missed who is there."""
        for slot in self._slots:
            present = slot.state in _PRESENT
            assert not present or (slot.attempt is not None and slot.attempt >> ATTEMPT_BITS == self._submission)
            assert not (present and slot.missed_ms is not None)
            deadline_ms = slot.heard_ms + self._heartbeat_timeout_ms if present else slot.missed_ms
            assert deadline_ms is None or (self._due_ms is not None and self._due_ms <= deadline_ms)
        assert self._present == sum(slot.state in _PRESENT for slot in self._slots)

    def _handle_one(self, number: int, event: Event, now_ms: int) -> list[Action]:
        slot = self._slots[number]
        was = slot.state
        handler = self._HANDLERS.get((was, type(event)))
        stale = isinstance(event, SlotDisconnected | SlotHeard) and event.attempt != slot.attempt
        if handler is None or stale:
            raise self._invalid(number, event)
        actions = handler(self, slot, number, event, now_ms)
        self._present += (slot.state in _PRESENT) - (was in _PRESENT)
        if not isinstance(event, SlotHeard):
            self._note_deadline(slot)
        self.all_came = self.all_came or self._present == len(self._slots)
        if slot.state != was or actions:
            self._history.append(f"{now_ms} ms: slot {number} {was} {event!r} -> {slot.state}")
        return actions

    # Handlers are given the slot that is meant, and its number.

    def _on_came(self, slot: _Slot, number: int, event: SlotRegistered, now_ms: int) -> list[Action]:
        if not self._is_newer(slot, event.attempt):
            return [self._fence_stale(slot, event)]
        return self._accept(slot, event, now_ms)

    def _on_came_again(self, slot: _Slot, number: int, event: SlotRegistered, now_ms: int) -> list[Action]:
        if event.attempt == slot.attempt:
            return self._accept(slot, event, now_ms)
        if not self._is_newer(slot, event.attempt):
            return [self._fence_stale(slot, event)]
        reason = f"its process died or Spark gave it up: attempt {event.attempt} of slot {number} is there"
        return [self._fence(slot, number, reason), *self._accept(slot, event, now_ms), SlotsLost((number,), reason)]

    def _on_disconnected(self, slot: _Slot, number: int, event: SlotDisconnected, now_ms: int) -> list[Action]:
        slot.state, slot.heard_ms = "disconnected", now_ms
        return []

    def _on_heard(self, slot: _Slot, number: int, event: SlotHeard, now_ms: int) -> list[Action]:
        slot.heard_ms = now_ms
        return []

    def _on_time_present(self, slot: _Slot, number: int, event: SlotsTimePassed, now_ms: int) -> list[Action]:
        if now_ms < slot.heard_ms + self._heartbeat_timeout_ms:
            return []
        reason = f"slot {number} was not heard of for {self._heartbeat_timeout_ms} ms (heartbeat.timeout)"
        fence = self._fence(slot, number, reason)
        silent = slot.state == "registered"
        slot.state, slot.missed_ms = "lost", now_ms + self._registration_timeout_ms
        return [fence, SlotsLost((number,), reason, silent)]

    def _on_time_absent(self, slot: _Slot, number: int, event: SlotsTimePassed, now_ms: int) -> list[Action]:
        if slot.missed_ms is None or now_ms < slot.missed_ms:
            return []
        slot.missed_ms = None
        return [SlotsMissed((number,))]

    def _on_awaited(self, slot: _Slot, number: int, event: SlotsAwaited, now_ms: int) -> list[Action]:
        slot.state, slot.missed_ms = "expected", now_ms + self._registration_timeout_ms
        return []

    def _on_dropped(self, slot: _Slot, number: int, event: SlotsDropped, now_ms: int) -> list[Action]:
        fences: list[Action] = [self._fence(slot, number, event.reason)] if slot.state in _PRESENT else []
        slot.state, slot.missed_ms = "expected", None
        return fences

    def _accept(self, slot: _Slot, event: SlotRegistered, now_ms: int) -> list[Action]:
        slot.state, slot.attempt, slot.heard_ms = "registered", event.attempt, now_ms
        slot.missed_ms = None
        return [AcceptSlot(event.slot, event.attempt)]

    def _note_deadline(self, slot: _Slot) -> None:
        """Be woken in time for a slot; too early does no harm: it was heard of since, so that time looks again."""
        deadline_ms = slot.heard_ms + self._heartbeat_timeout_ms if slot.state in _PRESENT else slot.missed_ms
        if deadline_ms is not None:
            self._due_ms = deadline_ms if self._due_ms is None else min(self._due_ms, deadline_ms)

    def _is_newer(self, slot: _Slot, attempt: int) -> bool:
        """Return whether an attempt is of the current job, and newer than any that counted."""
        return attempt >> ATTEMPT_BITS == self._submission and (slot.attempt is None or attempt > slot.attempt)

    def _fence(self, slot: _Slot, number: int, reason: str) -> FenceSlot:
        assert slot.attempt is not None
        return FenceSlot(number, slot.attempt, reason)

    def _fence_stale(self, slot: _Slot, event: SlotRegistered) -> FenceSlot:
        newest = "none so far" if slot.attempt is None else f"attempt {slot.attempt}"
        return FenceSlot(
            event.slot,
            event.attempt,
            f"attempt {event.attempt} of slot {event.slot} does not count: the newest is {newest}, and the job "
            + ("is not running" if self._submission is None else f"was submitted {self._submission + 1} times"),
        )

    def _forgive_own_sleep(self, now_ms: int) -> None:
        """Do not count time in which we stood still as the slots' silence: what they said may still lie in a queue.

        Time is looked at with every heartbeat of ours, four in a time-out: after half of one something held us up.
        """
        gone_ms = 0 if self._looked_ms is None else now_ms - self._looked_ms
        if gone_ms > self._heartbeat_timeout_ms // 2:
            for slot in self._slots:
                slot.heard_ms = min(now_ms, slot.heard_ms + gone_ms)
        self._looked_ms = now_ms

    def _invalid(self, number: int, event: Event) -> InvalidTransitionError:
        state = self._slots[number].state
        return InvalidTransitionError(
            f"Slot {number} cannot take {event!r} in state {state}. "
            f"Before: {', '.join(list(self._history)[-10:]) or 'nothing'}.",
            state=state,
            event=repr(event),
            history=tuple(self._history),
        )

    _HANDLERS: ClassVar[dict[tuple[str, type], Callable[[Any, _Slot, int, Any, int], list[Action]]]] = {
        ("expected", SlotRegistered): _on_came,
        ("lost", SlotRegistered): _on_came,
        ("registered", SlotRegistered): _on_came_again,
        ("disconnected", SlotRegistered): _on_came_again,
        ("registered", SlotDisconnected): _on_disconnected,
        ("registered", SlotHeard): _on_heard,
        ("registered", SlotsTimePassed): _on_time_present,
        ("disconnected", SlotsTimePassed): _on_time_present,
        ("expected", SlotsTimePassed): _on_time_absent,
        ("lost", SlotsTimePassed): _on_time_absent,
        ("expected", SlotsAwaited): _on_awaited,
        ("expected", SlotsDropped): _on_dropped,
        ("registered", SlotsDropped): _on_dropped,
        ("disconnected", SlotsDropped): _on_dropped,
        ("lost", SlotsDropped): _on_dropped,
    }


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
