"""Decides how long to wait before a restart, and when restarting is in vain.

Never: read a clock, sleep, or know what failed.

A failure while a restart is still being waited for is part of the same failure: an executor that takes four slots with
it, or a job that ends because one of its slots was killed, counts once.

Follows Flink's restart strategies and their names.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Hashable

import msgspec


class ExponentialDelay(msgspec.Struct, frozen=True, kw_only=True, tag="exponential-delay"):
    """Wait longer each time, until the query ran well for a while.

    Parameters
    ----------
    initial_backoff_ms, max_backoff_ms
        The first delay and the longest.
    backoff_multiplier
        Each delay is so many times the one before.
    jitter_factor
        A delay is longer or shorter by up to this part of it.
    reset_backoff_threshold_ms
        A failure so long after what was restarted ran again is a first one again, however long that took to start. Set
        it above the checkpoint interval, or a record that always fails long after a checkpoint is tried for ever.
    attempts
        How many restarts in a row are tried; None: any number.
    """

    initial_backoff_ms: int = 100
    max_backoff_ms: int = 60_000
    backoff_multiplier: float = 2.0
    jitter_factor: float = 0.1
    reset_backoff_threshold_ms: int = 10_000
    attempts: int | None = 7


class FixedDelay(msgspec.Struct, frozen=True, kw_only=True, tag="fixed-delay"):
    """Wait as long each time, so many times in the life of the query; None: any number of times."""

    attempts: int | None = 3
    delay_ms: int = 1_000


class NoRestart(msgspec.Struct, frozen=True, tag="none"):
    """The first failure ends the query."""


RestartOptions = ExponentialDelay | FixedDelay | NoRestart


class RestartStrategy:
    """Counts failures.

    Examples
    --------
    >>> strategy = RestartStrategy(ExponentialDelay(jitter_factor=0, attempts=3), random.Random(0))
    >>> strategy.failed(0), strategy.failed(40)  # the second while the restart is waited for
    (100, 60)
    >>> strategy.failed(500), strategy.failed(1_000)
    (200, 400)
    >>> strategy.restarts(["a subtask"])
    >>> strategy.started("a subtask", 2_000)
    >>> strategy.failed(3_000)  # gives up: it ran for a second
    """

    def __init__(self, options: RestartOptions, random: random.Random) -> None:
        self._options = options
        self._random = random
        self._due_ms: int | None = None
        self._gives_up = False
        self._awaited: set[Hashable] = set()  # what the last failure restarted, and has not started
        self._is_new = False  # nothing was restarted yet for the last failure
        self._ran_ms: int | None = None  # since when all runs that it restarted
        self.failures = 0
        """How many failures in a row count; 1 after a failure that was the first again."""

    def failed(self, now_ms: int, *, again: bool = False) -> int | None:
        """Note a failure. Return the milliseconds to wait before the restart; None: give up.

        ``again``: it is the same as the last one, however long that took to show.
        """
        if self._due_ms is not None and now_ms < self._due_ms:
            return self._due_ms - now_ms
        match self._options:
            case NoRestart():
                self.failures += 1
                self._gives_up = True
                return None
            case FixedDelay(attempts=attempts, delay_ms=delay_ms):
                self.failures += 1
                delay: float = delay_ms
            case ExponentialDelay(attempts=attempts) as options:
                self.failures = 1 if not again and self._ran_well(options, now_ms) else self.failures + 1
                delay = self._backoff_ms(options)
        if attempts is not None and self.failures > attempts:
            self._gives_up = True
            return None
        self._due_ms, self._is_new, self._ran_ms = now_ms + round(delay), True, None
        return round(delay)

    def restarts(self, what: Collection[Hashable]) -> None:
        """Note what is restarted for the last failure; one that ends a job as well restarts more of it later."""
        if what:
            self._awaited = {*(() if self._is_new else self._awaited), *what}
            self._is_new = False

    def started(self, what: Hashable, now_ms: int) -> None:
        """Note that something runs."""
        self._awaited.discard(what)
        if not self._awaited and self._ran_ms is None:
            self._ran_ms = now_ms

    @property
    def given_up(self) -> str:
        """Return why the last failure is not followed by a restart, for people; empty: it is."""
        if not self._gives_up:
            return ""
        times = "once" if self.failures == 1 else f"{self.failures} times"
        match self._options:
            case NoRestart():
                why = "it has failed once, and restart-strategy is 'none'"
            case FixedDelay(attempts=fixed):
                why = f"it has failed {times} since it began, and restart-strategy.attempts is {fixed}"
            case ExponentialDelay(attempts=in_a_row):
                why = f"it has failed {times} in a row, and restart-strategy.attempts is {in_a_row}"
        return f"The query is not restarted: {why}. When you start it again it goes on from its last checkpoint."

    def _ran_well(self, options: ExponentialDelay, now_ms: int) -> bool:
        return self._ran_ms is not None and now_ms - self._ran_ms >= options.reset_backoff_threshold_ms

    def _backoff_ms(self, options: ExponentialDelay) -> float:
        # The exponent is bounded: without a limit of attempts the power would overflow some day.
        factor = options.backoff_multiplier ** min(self.failures - 1, 64)
        delay = min(options.max_backoff_ms, options.initial_backoff_ms * factor)
        return delay * (1 + options.jitter_factor * self._random.uniform(-1, 1))
