"""Decides when a call of an enumerator takes too long, and says what keeps it from its work.

Never: read a clock: who runs the enumerator says how long a call has taken.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headgate.coordinator.sources import source_events as src
from headgate.protocol.messages import ErrorReport

_SLOW_WORK_FACTOR = 20
"""Slow work may take so many times ``stuck_timeout_ms``: a listing of millions of files takes minutes."""

_LONGEST_STEP_MS = 2000
"""Of the time between two looks at a call at most so much counts: a process that was stopped is not stuck."""


class _Busy(msgspec.Struct, frozen=True):
    """A call that takes long: when it was looked at, how much of its time counts, and when to warn of it (again)."""

    seen_ms: int
    counted_ms: int
    warn_ms: int


class EnumeratorWatch:
    """What is known of the calls of one enumerator.

    Parameters
    ----------
    source
        The source's uid.
    stuck_timeout_ms
        How long a call may take before it counts as failed, in milliseconds.
    """

    def __init__(self, source: str, stuck_timeout_ms: int) -> None:
        self._source = source
        self._stuck_timeout_ms = stuck_timeout_ms
        self.forget()

    def forget(self) -> None:
        """Begin with another enumerator."""
        self._failing: dict[str, str] = {}  # slow work that is retried: its trouble
        self._busy: dict[str, _Busy] = {}
        self._slow_calls: tuple[src.BusyCall, ...] = ()

    def slow_work_tried(self, event: src.SlowWorkTried) -> None:
        """Note that slow work failed and is retried, or did not fail any longer."""
        if event.failures:
            times = "once" if event.failures == 1 else f"{event.failures} times in a row"
            self._failing[event.name] = f"{event.name} failed {times} and is retried: {event.reason}"
        else:
            self._failing.pop(event.name, None)

    def look(self, calls: tuple[src.BusyCall, ...]) -> tuple[list[src.BusyCall], ErrorReport | None]:
        """Return which calls are to be warned of, and why the enumerator counts as failed, if it does."""
        busy: dict[str, _Busy] = {}
        warned: list[src.BusyCall] = []
        for call in calls:
            limit_ms = self._stuck_timeout_ms * (_SLOW_WORK_FACTOR if call.is_slow_work else 1)
            was = self._busy.get(call.name)
            if was is None or call.for_ms < was.seen_ms:
                was = _Busy(0, 0, self._stuck_timeout_ms if call.is_slow_work else limit_ms // 3)
            counted_ms = was.counted_ms + min(call.for_ms - was.seen_ms, _LONGEST_STEP_MS)
            if counted_ms > limit_ms:
                return [], _stuck(self._source, call, limit_ms)
            warn_ms = was.warn_ms
            if counted_ms >= warn_ms:
                warn_ms = max(2 * warn_ms, 1)
                warned.append(call)
            busy[call.name] = _Busy(call.for_ms, counted_ms, warn_ms)
        self._busy, self._slow_calls = busy, calls
        return warned, None

    def troubles(self, failed: Sequence[int]) -> tuple[str, ...]:
        """Return what keeps the enumerator from its work, as sentences; ``failed``: the readers that wait for it."""
        return (*self._failing.values(), *(self.trouble_of(call, failed) for call in self._slow_calls))

    def trouble_of(self, call: src.BusyCall, failed: Sequence[int]) -> str:
        """Return what a call that takes long means, as a sentence."""
        text = f"{call.name} of the source {self._source!r} has not returned for {call.for_ms // 1000} s: "
        if call.is_slow_work:
            return text + "no new splits are found meanwhile; readers continue with their splits"
        waits = f", the failed readers {list(failed[:20])} are not restarted" if failed else ""
        return text + f"nothing is assigned, no checkpoint completes{waits} until it does"


def _stuck(source: str, call: src.BusyCall, limit_ms: int) -> ErrorReport:
    limit = f"{call.name} of the source {source!r} has not returned for {limit_ms // 1000} s"
    if call.is_slow_work:
        return ErrorReport(
            error_type="SourceUnavailableError",
            message=f"{limit}, which is {_SLOW_WORK_FACTOR} times task.stuck.timeout: it counts as failed.",
            facts={"source": source},
        )
    return ErrorReport(
        error_type="ConnectorContractError",
        message=f"{limit} (task.stuck.timeout): it counts as failed. No method of an enumerator may block; slow work "
        "belongs in call_async.",
        facts={"source": source, "method": call.name},
    )
