"""The figures of a subtask whose thread is in a long call, and cannot report any itself.

Never: look at what the subtask's thread changes meanwhile, but for one value that it replaces as a whole.

A function of the user's may take a minute with one row. What was reported before it, and how long it has taken, is
known to others: without that the subtask would seem to be idle, and its figures would be of a minute ago.
"""

from __future__ import annotations

import msgspec

from headgate.protocol.messages import SubtaskProgress, TimeSpent


class UnderWay(msgspec.Struct, frozen=True):
    """A call of an operator or a sink: its uid, and since when, in milliseconds of the clock of work."""

    uid: str
    since_ms: float


class Reported(msgspec.Struct, frozen=True):
    """What a subtask reported last, and when, by the clock of work."""

    progress: SubtaskProgress
    at_ms: float


def overdue_progress(last: Reported, call: UnderWay | None, now_ms: float, period_ms: int) -> SubtaskProgress | None:
    """Return figures that count the time since the last ones as busy; None: it is not time for any.

    Parameters
    ----------
    last
        What was reported last.
    call
        The call that is under way; None: of none that is an operator's.
    now_ms
        The time, by the clock of work.
    period_ms
        How often figures are reported: those of two periods ago are overdue.

    Examples
    --------
    >>> last = Reported(SubtaskProgress(stage=0, execution=1, busy_ms={"map": 100}), 2000)
    >>> overdue_progress(last, UnderWay("map", 2100), 2400, 250) is None
    True
    >>> overdue_progress(last, UnderWay("map", 2100), 5000, 250).busy_ms
    {'map': 3000}
    """
    passed_ms = now_ms - last.at_ms
    if passed_ms < 2 * period_ms:
        return None
    progress = last.progress
    busy_ms = dict(progress.busy_ms)
    if call is not None:
        in_call_ms = now_ms - max(call.since_ms, last.at_ms)
        busy_ms[call.uid] = busy_ms.get(call.uid, 0) + round(in_call_ms)
    time = progress.time
    if time is not None:
        time = msgspec.structs.replace(time, elapsed_ms=time.elapsed_ms + round(passed_ms))
    # What was left out last counts on: positions, and what connectors measure.
    return msgspec.structs.replace(
        progress, busy_ms=busy_ms, time=time, splits={}, positions={}, event_times={}, metrics={}, pending_records={}
    )


def nothing_yet(stage: int, execution: int) -> SubtaskProgress:
    """Return the figures of a subtask that begins."""
    time = TimeSpent(elapsed_ms=0, back_pressured_ms=0, idle_ms=0, paused_ms=0)
    return SubtaskProgress(stage=stage, execution=execution, time=time)
