"""The continuous queries of this process, and who listens to them: what ``spark.streams`` is to Structured Streaming.

Never: keep a query that has ended from being forgotten.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headgate.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

    from headgate.spark.continuous.query import ContinuousQuery

listeners: list[StreamingQueryListener] = []
"""Whom all queries of this process tell; changed by `ContinuousQueryManager`."""

_lock = threading.Lock()
_by_location: dict[str, ContinuousQuery] = {}  # guarded by _lock


def enter(location: str, query: ContinuousQuery) -> None:
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
        _by_location[location] = query


def leave(location: str, query: ContinuousQuery) -> None:
    """Note that it has ended."""
    with _lock:
        if _by_location.get(location) is query:
            del _by_location[location]


class ContinuousQueryManager:
    """``headgate.continuous(spark).streams``."""

    @property
    def active(self) -> list[ContinuousQuery]:
        """The queries that live."""
        with _lock:
            return list(_by_location.values())

    def get(self, id: str) -> ContinuousQuery | None:
        """Return the live query with this id; None: there is none."""
        return next((query for query in self.active if query.id == id), None)

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Tell a listener of starts, progress and ends of all queries of this process, from now on."""
        if listener not in listeners:
            listeners.append(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Tell it no longer."""
        if listener in listeners:
            listeners.remove(listener)
