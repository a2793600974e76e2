"""The continuous queries of this process, and who listens to them: what ``spark.streams`` is to Structured Streaming.

Never: hold a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from headgate.spark.continuous.listener import listeners
from headgate.spark.continuous.live_queries import live_queries
from headgate.spark.continuous.query import ContinuousQuery

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener


class ContinuousQueryManager:
    """What `headgate.streams` is."""

    @property
    def active(self) -> list[ContinuousQuery]:
        """The live queries."""
        return cast("list[ContinuousQuery]", live_queries())

    def get(self, id: str) -> ContinuousQuery | None:
        """Return the live query with this id; None: there is none."""
        return next((query for query in self.active if query.id == id), None)

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Notify a listener of starts, progress and ends of all queries of this process, from now on."""
        if listener not in listeners:
            listeners.append(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Notify it no longer."""
        if listener in listeners:
            listeners.remove(listener)


streams = ContinuousQueryManager()
"""The one of this process: `headgate.streams`."""
