"""The continuous queries of this process, by checkpoint location: one at each.

Never: keep a query that has ended from being forgotten.
"""

from __future__ import annotations

import threading
from typing import Any, Protocol

from headgate.errors import OptionError


class LiveQuery(Protocol):
    """What is known here of a query."""

    def snapshot(self) -> dict[str, Any]:
        """Return what is known of it now."""

    @property
    def id(self) -> str:
        """The same for all runs from one checkpoint location."""

    @property
    def name(self) -> str | None:
        """The name that its user gave it."""


_lock = threading.Lock()
_by_location: dict[str, LiveQuery] = {}  # guarded by _lock


def enter(location: str, query: LiveQuery) -> None:
    """Note that a query lives at a checkpoint location.

    Raises
    ------
    OptionError
        Another one does.
    """
    with _lock:
        other = _by_location.get(location)
        if other is not None:
            raise OptionError(
                f"The checkpoint location {location!r} belongs to the query {other.name or other.id!r}, which is live. "
                "Stop that one first, or give this one a location of its own.",
                option="checkpointLocation", value=location,
            )  # fmt: skip
        if query.name is not None and any(each.name == query.name for each in _by_location.values()):
            raise OptionError(
                f"A query named {query.name!r} runs already in this program, and metrics, logs and commands could not "
                "distinguish them. Stop that one first, or give this one another queryName.",
                option="queryName", value=query.name,
            )  # fmt: skip
        _by_location[location] = query


def leave(location: str, query: LiveQuery) -> None:
    """Note that it has ended."""
    with _lock:
        if _by_location.get(location) is query:
            del _by_location[location]


def live_queries() -> list[LiveQuery]:
    """Return the queries that live."""
    with _lock:
        return list(_by_location.values())


def locations() -> list[str]:
    """Return their checkpoint locations."""
    with _lock:
        return list(_by_location)
