"""What a machine was told before it refused an event, for its error.

Never: decide anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def told_before(history: Iterable[tuple[int | None, Any]], event: Any) -> tuple[str, ...]:
    """Return earlier events, with their times in milliseconds, as texts: all, or those about the same split."""
    about = getattr(event, "split_id", None)
    return tuple(
        f"{past!r} at {at_ms} ms"
        for at_ms, past in history
        if about is None or getattr(past, "split_id", about) == about
    )
