"""Progress as PySpark's own class, and Spark's three callbacks for a continuous query.

Never: let a listener hold up, or end, the query that it listens to.

Follows `pyspark.sql.streaming.StreamingQueryListener`: ``onQueryStarted`` is called before ``start()`` returns, the
others on a thread of their own, in order; there is no ``onQueryIdle``.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from headgate.monitor.progress import timestamp

_log = logging.getLogger(__name__)

_MOST_WAITING = 1000
"""So many progresses may wait for a slow listener; later ones are dropped until there is room."""

listeners: list[StreamingQueryListener] = []
"""The listeners of all queries of this process; changed by `ContinuousQueryManager`."""


def spark_progress(progress: dict[str, Any]) -> StreamingQueryProgress:
    """Return a progress that `ProgressReporter` made as PySpark's class, our own part under ``["headgate"]``."""
    made = StreamingQueryProgress.fromJson(progress)
    made["headgate"] = progress["headgate"]
    for source, given in zip(made.sources, progress["sources"]):
        for name in ("startOffset", "endOffset", "latestOffset"):
            source[name] = json.dumps(given[name])  # as PySpark has it since 4.2; before, it was no JSON
    return made


class ListenerCalls:
    """Calls the listeners of one query.

    Parameters
    ----------
    listeners
        Whom to call; looked at anew for each event, so that it may change.
    query_id, run_id, name
        As the query has them.
    """

    def __init__(
        self, listeners: Sequence[StreamingQueryListener], query_id: str, run_id: str, name: str | None
    ) -> None:
        self._listeners = listeners
        self._ids = {"id": query_id, "runId": run_id}
        self._name = name
        self._waiting: queue.Queue[QueryProgressEvent | QueryTerminatedEvent] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name=f"headgate-listeners-{name or query_id}", daemon=True)

    def started(self, now_ms: int) -> None:
        """Call ``onQueryStarted`` on the current thread. The first call."""
        event = QueryStartedEvent.fromJson({**self._ids, "name": self._name, "timestamp": timestamp(now_ms)})
        self._each(lambda listener: listener.onQueryStarted(event))
        self._thread.start()

    def progressed(self, progress: StreamingQueryProgress) -> None:
        """Let ``onQueryProgress`` be called. Does not block."""
        if self._waiting.qsize() < _MOST_WAITING:
            self._waiting.put(QueryProgressEvent(progress))

    def terminated(self, error: BaseException | None) -> None:
        """Let ``onQueryTerminated`` be called after what waits; then the thread ends. The last call; does not block."""
        exception = None if error is None else str(error)
        self._waiting.put(
            QueryTerminatedEvent.fromJson({**self._ids, "exception": exception, "errorClassOnException": None})
        )

    def join(self, seconds: float) -> None:
        """Wait until the thread has ended, but not longer than this."""
        self._thread.join(seconds)

    def _run(self) -> None:
        while True:
            event = self._waiting.get()
            if isinstance(event, QueryTerminatedEvent):
                self._each(lambda listener, event=event: listener.onQueryTerminated(event))  # type: ignore[misc]
                return
            self._each(lambda listener, event=event: listener.onQueryProgress(event))  # type: ignore[misc]

    def _each(self, call: Callable[[StreamingQueryListener], None]) -> None:
        for listener in list(self._listeners):
            try:
                call(listener)
            except Exception:
                _log.exception("a listener of the query %s failed", self._name or self._ids["id"])
