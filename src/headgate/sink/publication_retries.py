"""Decides when a failed attempt to publish a checkpoint's rows is repeated, and when the sink gives up.

Never: read a clock, start or wait for anything: `publisher` makes the attempts.

Work is done in order, one at a time, and may be retried whatever became of the attempt before it.
"""

from __future__ import annotations

from collections import deque

import msgspec

from headgate.machine import IGNORED, SAME, Machine, Row

AGAIN_MS = 1000
"""How long an attempt waits after one that failed."""

# What happened.


class WorkOrdered(msgspec.Struct, frozen=True):
    """Something is to be done, after all that was ordered before."""


class Progressed(msgspec.Struct, frozen=True):
    """The attempt got on: a batch was written, a call returned."""


class AttemptSucceeded(msgspec.Struct, frozen=True):
    """The oldest work is done."""


class AttemptFailed(msgspec.Struct, frozen=True):
    """The oldest work is not done, or nobody knows. ``is_passing``: another attempt may succeed."""

    is_passing: bool


class TimePassed(msgspec.Struct, frozen=True):
    """Nothing else happened."""


# What is to be done.


class BeginAttempt(msgspec.Struct, frozen=True):
    """Do the oldest work."""


class GiveUp(msgspec.Struct, frozen=True):
    """Do nothing more, and say why.

    Parameters
    ----------
    waited_ms
        How long the oldest work has waited, in milliseconds.
    is_stuck
        Whether the attempt under way does not come back; otherwise it failed.
    """

    waited_ms: int
    is_stuck: bool


Event = WorkOrdered | Progressed | AttemptSucceeded | AttemptFailed | TimePassed
Action = BeginAttempt | GiveUp


class PublicationMachine(Machine):
    """Repeats attempts until one succeeds, or for as long as may be.

    Parameters
    ----------
    limit_ms
        How long attempts may fail one after the other, and how long one may stand still, in milliseconds.

    Examples
    --------
    >>> machine = PublicationMachine(limit_ms=60_000)
    >>> machine.handle(WorkOrdered(), 0)
    [BeginAttempt()]
    >>> machine.handle(AttemptFailed(is_passing=True), 10)
    []
    >>> machine.next_time_ms()
    1010
    >>> machine.handle(TimePassed(), 1010)
    [BeginAttempt()]
    """

    # fmt: off
    TRANSITIONS = (
        Row("idle",    WorkOrdered,      "trying", [BeginAttempt], by="_on_first_work"),
        Row("idle",    TimePassed,       SAME, IGNORED),
        Row("trying",  WorkOrdered,      SAME, [], "after what is under way", by="_on_work"),
        Row("trying",  Progressed,       SAME, [], "it is slow, not stuck"),
        Row("trying",  AttemptSucceeded, "idle", [], "that was all"),
        Row("trying",  AttemptSucceeded, "trying", [BeginAttempt], when="more"),
        Row("trying",  AttemptFailed,    "waiting", [], "brokers that start, an abandoned client", when="passing"),
        Row("trying",  AttemptFailed,    "failed", [GiveUp], "for as long as may be", when="passing"),
        Row("trying",  AttemptFailed,    "failed", [GiveUp], "no attempt can succeed"),
        Row("trying",  TimePassed,       SAME, by="_on_time_in_attempt"),
        Row("trying",  TimePassed,       "failed", [GiveUp], "stuck: nothing moved for as long as may be",
            by="_on_time_in_attempt"),
        Row("waiting", WorkOrdered,      SAME, by="_on_work"),
        Row("waiting", TimePassed,       SAME, by="_on_time_in_wait"),
        Row("waiting", TimePassed,       "trying", [BeginAttempt], "it is due", by="_on_time_in_wait"),
        Row("failed",  WorkOrdered,      SAME, [], "a restore does it", by="_on_work"),
        Row("failed",  Progressed,       SAME, IGNORED, "an attempt that was given up moves again"),
        Row("failed",  AttemptSucceeded, SAME, IGNORED, "likewise"),
        Row("failed",  AttemptFailed,    SAME, [GiveUp], "it was given up: not once more", by="_on_late_failure"),
        Row("failed",  TimePassed,       SAME, IGNORED),
    )
    # fmt: on

    def __init__(self, *, limit_ms: int) -> None:
        super().__init__()
        self.state = "idle"
        self._limit_ms = limit_ms
        self._ordered_ms: deque[int] = deque()  # when each thing was ordered that is not done, the oldest first
        self._began_ms = self._moved_ms = 0  # when the attempt began, and when it moved last
        self._failing_ms: int | None = None  # when the first attempt began that failed since one succeeded
        self._again_ms: int | None = None

    def next_time_ms(self) -> int | None:
        """Return when `TimePassed` makes a difference; None: only another event does."""
        if self.state == "waiting":
            return self._again_ms
        return self._moved_ms + self._limit_ms if self.state == "trying" else None

    def waiting_ms(self, now_ms: int) -> int:
        """Return how long the oldest work has waited, in milliseconds; 0: there is none."""
        return max(0, now_ms - self._ordered_ms[0]) if self._ordered_ms else 0

    def check(self) -> None:
        """Assert what always holds."""
        assert (self.state in ("trying", "waiting")) <= bool(self._ordered_ms)
        assert self.state != "idle" or not self._ordered_ms
        assert (self.state == "waiting") == (self._again_ms is not None)

    # ---- handlers ----

    def _on_first_work(self, event: Event, now_ms: int) -> list[Action]:
        self._ordered_ms.append(now_ms)
        return self._begin(now_ms)

    def _on_work(self, event: Event, now_ms: int) -> list[Action]:
        self._ordered_ms.append(now_ms)
        return []

    def _on_progressed(self, event: Event, now_ms: int) -> list[Action]:
        self._moved_ms = max(self._moved_ms, now_ms)
        return []

    def _on_attempt_succeeded(self, event: Event, now_ms: int) -> list[Action]:
        self._ordered_ms.popleft()
        self._failing_ms = None
        if self._ordered_ms:
            return self._begin(now_ms)
        self.state = "idle"
        return []

    def _on_attempt_failed(self, event: AttemptFailed, now_ms: int) -> list[Action]:
        failing_ms = self._began_ms if self._failing_ms is None else self._failing_ms
        if not event.is_passing or now_ms - failing_ms >= self._limit_ms:
            return self._give_up(now_ms, is_stuck=False)
        self.state, self._failing_ms, self._again_ms = "waiting", failing_ms, now_ms + AGAIN_MS
        return []

    def _on_late_failure(self, event: Event, now_ms: int) -> list[Action]:
        return self._give_up(now_ms, is_stuck=False)

    def _on_time_in_attempt(self, event: Event, now_ms: int) -> list[Action]:
        return self._give_up(now_ms, is_stuck=True) if now_ms - self._moved_ms >= self._limit_ms else []

    def _on_time_in_wait(self, event: Event, now_ms: int) -> list[Action]:
        assert self._again_ms is not None
        return self._begin(now_ms) if now_ms >= self._again_ms else []

    def _begin(self, now_ms: int) -> list[Action]:
        self.state, self._again_ms = "trying", None
        self._began_ms = self._moved_ms = now_ms
        return [BeginAttempt()]

    def _give_up(self, now_ms: int, *, is_stuck: bool) -> list[Action]:
        self.state = "failed"
        return [GiveUp(self.waiting_ms(now_ms), is_stuck)]

    def __str__(self) -> str:
        return "A publication"
