"""The clocks of a slot; a simulator has its own.

Never: wait.
"""

from __future__ import annotations

import time


def monotonic_ms() -> int:
    """Return a time in milliseconds that only goes forward, whatever is done to the machine's clock."""
    return time.monotonic_ns() // 1_000_000


def work_ms() -> float:
    """Return a time by which short pieces of work are measured, in milliseconds."""
    return time.perf_counter() * 1000


def wall_clock_ms() -> int:
    """Return the milliseconds since 1970-01-01 UTC."""
    return time.time_ns() // 1_000_000
