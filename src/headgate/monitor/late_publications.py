"""Decides whether a sink is late: rows of a complete checkpoint that nobody can see yet.

Never: warn of what a slow checkpoint explains, or of the few seconds that brokers take to start.
"""

from __future__ import annotations

from collections.abc import Mapping

LATE_MS = 10_000
"""Below this nothing is late, in milliseconds."""
_INTERVALS = 3
"""Nor within so many checkpoint intervals."""


def late_publications(
    unpublished_ms: Mapping[str, int], interval_ms: int, warned_ms: Mapping[str, int]
) -> dict[str, str]:
    """Return a warning for each sink that is late, by its uid; another one only when it is twice as late.

    Parameters
    ----------
    unpublished_ms
        By sink uid: how long the oldest rows of a complete checkpoint have waited to be published.
    interval_ms
        The checkpoint interval.
    warned_ms
        How late each sink was when the last warning was returned.

    Examples
    --------
    >>> late_publications({"sink": 9_999}, 1000, {})
    {}
    >>> sorted(late_publications({"sink": 30_000, "late": 30_000}, 1000, {"late": 15_001}))
    ['sink']
    """
    return {
        uid: f"the sink {uid!r} has published nothing for {waited // 1000} s: rows of a complete checkpoint wait, and "
        "those of later ones after them. Checkpoints go on, and grow by what waits. Look at the log of its slot, or "
        "of the driver if it commits there, and at the system that is written to."
        for uid, waited in unpublished_ms.items()
        if waited >= max(LATE_MS, _INTERVALS * interval_ms, 2 * warned_ms.get(uid, 0))
    }
