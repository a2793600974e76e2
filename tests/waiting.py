"""Waiting for what another thread, process or server does.

Never: measure: the limit is for what never happens, and a machine that others use as well is slow at times.
"""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], seconds: float = 240) -> None:
    """Wait until something holds.

    Raises
    ------
    AssertionError
        It did not come to hold in that time.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"it did not come to hold within {seconds} s"
        time.sleep(0.005)
