"""Keeps what happened to a query lately: its checkpoints, restarts and commits.

Never: read a clock, or grow without bound: what is older than the newest few is only counted.
"""

from __future__ import annotations

from collections import deque

import msgspec

RECENT_CHECKPOINTS = 50
"""How many checkpoints are kept, as many as a page can show."""
RECENT_RESTARTS = 20
"""How many restarts are kept."""
SAME_RESTART_MS = 5_000
"""So soon after a lost slot the end of Spark's job is that of the same process, in milliseconds."""
COMMIT_WINDOW_MS = 60_000
"""Over how long the share of time that commits take is taken, in milliseconds."""


class CheckpointEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A checkpoint that completed or failed.

    Parameters
    ----------
    id
        Its number.
    status
        ``completed`` or ``failed``.
    duration_ms, size_bytes
        How long it took, from its order to its manifest or until it failed, in milliseconds, and how much was written
        for it; None: it failed.
    completed_ms
        When it completed or failed, in milliseconds since 1970-01-01 UTC.
    reason
        Why it failed, as a sentence; None: it did not.
    """

    id: int
    status: str
    duration_ms: int
    size_bytes: int | None
    completed_ms: int
    reason: str | None = None


class RestartEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Subtasks started again from the last completed checkpoint.

    Parameters
    ----------
    at_ms
        When, in milliseconds since 1970-01-01 UTC.
    kind
        What failed: ``subtask``, ``slot`` or ``job``; ``rescale``: nothing did.
    cause
        Why, as a sentence.
    stage, subtask, slot
        Where, as far as that is known.
    """

    at_ms: int
    kind: str
    cause: str
    stage: int | None = None
    subtask: int | None = None
    slot: int | None = None


class RecentEvents:
    """What happened to one query since it was started by this process, over rescales. Times are of one clock.

    Examples
    --------
    >>> events = RecentEvents(started_ms=0)
    >>> events.commit_ordered(10_000)
    >>> events.committed(14_000)
    >>> events.last_commit_ms, events.commit_share(20_000)
    (4000, 0.2)
    """

    def __init__(self, started_ms: int) -> None:
        self.completed_checkpoints = 0
        """How many completed."""
        self.failed_checkpoints = 0
        """How many failed."""
        self.restarts = 0
        """How often subtasks started again after a failure: rescales are no restarts."""
        self.commits = 0
        """How many commits on the driver completed."""
        self.last_commit_ms: int | None = None
        """How long the last one took, in milliseconds; None: none completed."""
        self.checkpoints: deque[CheckpointEvent] = deque(maxlen=RECENT_CHECKPOINTS)
        """The last checkpoints, the newest last."""
        self.recent_restarts: deque[RestartEvent] = deque(maxlen=RECENT_RESTARTS)
        """The last restarts, the newest last."""
        self._started_ms = started_ms
        self._committing_ms: int | None = None
        self._commits: deque[tuple[int, int]] = deque()

    def checkpoint(self, event: CheckpointEvent) -> None:
        """Take note of a checkpoint that completed or failed."""
        if event.status == "completed":
            self.completed_checkpoints += 1
        else:
            self.failed_checkpoints += 1
        self.checkpoints.append(event)

    def restart(self, event: RestartEvent) -> None:
        """Take note of a restart.

        Spark's job ends with a process that died, a moment after its slot was found lost: that is one restart.
        """
        last = self.recent_restarts[-1] if self.recent_restarts else None
        follows = last is not None and last.kind == "slot" and event.at_ms - last.at_ms <= SAME_RESTART_MS
        if event.kind == "job" and follows:
            return
        self.restarts += event.kind != "rescale"
        self.recent_restarts.append(event)

    def run_began(self) -> None:
        """Take note that a commit of the run before is nobody's any longer."""
        self._committing_ms = None

    def commit_ordered(self, now_ms: int) -> None:
        """Take note that an epoch is to be committed, or is to be once more."""
        if self._committing_ms is None:
            self._committing_ms = now_ms

    def committed(self, now_ms: int) -> None:
        """Take note that it is committed."""
        if self._committing_ms is None:
            return
        self.commits += 1
        self.last_commit_ms = max(0, now_ms - self._committing_ms)
        self._commits.append((self._committing_ms, now_ms))
        self._committing_ms = None
        self._forget_old_commits(now_ms)

    def commit_share(self, now_ms: int) -> float | None:
        """Return the part of the last minute in which a commit was under way; None: no time has passed."""
        self._forget_old_commits(now_ms)
        first_ms = max(self._started_ms, now_ms - COMMIT_WINDOW_MS)
        if now_ms <= first_ms:
            return None
        under_way = [] if self._committing_ms is None else [(self._committing_ms, now_ms)]
        took_ms = sum(max(0, end - max(begin, first_ms)) for begin, end in [*self._commits, *under_way])
        return min(1.0, took_ms / (now_ms - first_ms))

    def _forget_old_commits(self, now_ms: int) -> None:
        while self._commits and self._commits[0][1] <= now_ms - COMMIT_WINDOW_MS:
            self._commits.popleft()
