"""Decides whether a query keeps up with its input, and names what holds it up.

Never: warn of a backlog that shrinks, or of one that grows while the query's own code has time to spare: then the
source, or what the sink waits for, is slow, and more parallelism would not help.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

GROWING = 4
"""In so many progresses in a row the lag must be higher than in the one before each."""
BUSY_PERCENT = 80
"""In all of them some operator must have been at least this busy."""


def growing_lag(recent: Sequence[dict[str, Any]]) -> str | None:
    """Return a warning that names the slowest stage if the query cannot keep up; None: it can, or that is unknown.

    Parameters
    ----------
    recent
        Progresses as `ProgressReporter` makes them, the newest last.
    """
    window = list(recent)[-GROWING - 1 :]
    if len(window) <= GROWING:
        return None
    operators = [each["headgate"]["operators"] for each in window[1:]]
    if not all(each and each[0]["busyPercent"] >= BUSY_PERCENT for each in operators):
        return None
    last = window[-1]
    for number, source in enumerate(last["sources"]):
        figures = [_lag(each["sources"][number]) for each in window]
        known = [each for each in figures if each is not None]
        if len(known) == len(window) and all(later[1] > earlier[1] for earlier, later in pairwise(known)):
            return _warning(last, source["description"], known[0], known[-1], operators[-1][0])
    return None


def _lag(source: dict[str, Any]) -> tuple[str, int] | None:
    """Return the first figure of a source's lag, with its name."""
    for name, value in source["metrics"].items():
        if "behind" in name.lower() and not name.startswith(("min", "max", "avg")):  # as Spark names such figures
            return name, int(value)
    return None


def _warning(
    progress: dict[str, Any], source: str, before: tuple[str, int], now: tuple[str, int], slowest: dict[str, Any]
) -> str:
    return (
        f"The query {progress['name'] or progress['id']!r} cannot keep up with its source {source}: {now[0]} grew from "
        f"{before[1]:,} to {now[1]:,} in the last {GROWING} reports. The slowest is stage {slowest['stage']}, where "
        f"{slowest['uid']!r} is busy {slowest['busyPercent']} % of the time in subtask {slowest['subtask']}. "
        "Make it faster, or start the query again at a higher parallelism."
    )
