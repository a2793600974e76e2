"""What a running query reports: progress every second, its lag, listeners, the line in a terminal.

Never: hold the query up: what may block (asking a source for its lag, a listener) runs on a thread of its own.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec
import pyspark
from pyspark.sql.streaming.listener import StreamingQueryProgress

from headgate.checkpoint.checkpoint_events import Commit, Committed
from headgate.coordinator.job.job_events import (
    ShowCheckpoint,
    ShowFailedCheckpoint,
    ShowProgress,
    ShowRestart,
    ShowSource,
)
from headgate.coordinator.job.job_status import JobStatus
from headgate.driver.enumerator_thread import EnumeratorMeasured
from headgate.graph.explain import function_names
from headgate.graph.stage_graph import SINK_UID, QueryDefinition
from headgate.monitor.diagnosis import why
from headgate.monitor.history import History
from headgate.monitor.live_line import LiveLine
from headgate.monitor.progress import CheckpointStatistics, ProgressReporter, QueryIdentity
from headgate.monitor.recent_events import CheckpointEvent, RecentEvents, RestartEvent
from headgate.monitor.snapshot import QueryShape, StageShape, document, known_time_ms, snapshot_of
from headgate.serial_executor import SerialExecutor
from headgate.source import SupportsLag
from headgate.spark.continuous.listener import ListenerCalls, listeners, spark_progress
from headgate.versions import __version__

_log = logging.getLogger(__name__)

Shown = (
    ShowProgress | ShowCheckpoint | ShowFailedCheckpoint | ShowSource | ShowRestart | Commit | Committed
    | EnumeratorMeasured
)  # fmt: skip
"""What a query's driver lets it know."""

_REPORT_EVERY_S = 1.0
_LAG_EVERY_S = 2.0


class QueryProgress:
    """Collects the figures of all runs of one query.

    Parameters
    ----------
    definition
        The query.
    query_id, run_id
        Its ids.
    """

    def __init__(self, definition: QueryDefinition, query_id: str, run_id: str) -> None:
        self._definition = definition
        self._name = definition.name or query_id[:8]
        self._identity = QueryIdentity(
            query_id=query_id,
            run_id=run_id,
            name=definition.name,
            sources={uid: f"{each.source.name}[{uid}]" for uid, each in definition.sources.items()},
            sinks={SINK_UID: definition.sink_format},
            alignment_groups=_alignment_groups(definition),
            checkpoint_interval_ms=definition.checkpoint_interval_ms,
        )
        started_ms = _now_ms()
        self._shape = QueryShape(
            stages=_stages(definition),
            max_parallelism=definition.options["max-parallelism"],
            started_ms=started_ms,
            spark_version=pyspark.__version__,
            headgate_version=__version__,
            names=function_names(definition.graph),
        )
        self._lock = threading.Lock()
        # Guarded by _lock:
        self._reporter = ProgressReporter(self._identity, started_ms)
        self._events = RecentEvents(started_ms)
        self._history = History()
        self._rows = (0, 0)
        self._recent: list[StreamingQueryProgress] = []
        # On the driver's thread only:
        self._reported_s = self._lag_s = time.monotonic()
        self._asking = False
        self._live_line = LiveLine(sys.stderr)
        self._lag_worker = SerialExecutor(f"headgate-lag-{self._name}")
        self._calls = ListenerCalls(listeners, query_id, run_id, definition.name)
        self._start_reported = False

    def started(self) -> None:
        """Report the start: the first time only, before ``start()`` returns."""
        with self._lock:
            reported, self._start_reported = self._start_reported, True
        if not reported:
            self._calls.started(_now_ms())

    def abandon(self) -> None:
        """End without a word: the query could not be started."""
        self._live_line.close()
        self._lag_worker.close(0.1)

    def run_began(self, checkpoint_id: int) -> None:
        """Take note of a new run; its subtasks count from nothing."""
        with self._lock:
            self._reporter.run_began(checkpoint_id)
            self._events.run_began()

    def rescaled(self, before: int, parallelism: int) -> None:
        """Take note that the query goes on with another number of slots. Any thread."""
        cause = f"The parallelism was {before} and is {parallelism}."
        with self._lock:
            self._events.restart(RestartEvent(at_ms=_now_ms(), kind="rescale", cause=cause))

    def take(self, shown: Shown) -> None:
        """Take note of figures. On the driver's thread, as all that follows."""
        with self._lock:
            match shown:
                case ShowProgress(subtask=subtask, progress=progress):
                    self._reporter.take(subtask, progress, _now_ms())
                    self._rows = self._reporter.rows
                case Commit():
                    self._reporter.commit_ordered(_now_ms())
                    self._events.commit_ordered(_now_ms())
                case Committed():
                    self._reporter.committed()
                    self._events.committed(_now_ms())
                case EnumeratorMeasured(source=source, incarnation=incarnation, metrics=metrics):
                    self._reporter.figures.take_enumerator(source, incarnation, metrics)
                case ShowSource(source=source, troubles=troubles):
                    self._reporter.take_troubles(source, troubles)
                case ShowCheckpoint():
                    self._checkpoint_completed(shown, _now_ms())
                case ShowFailedCheckpoint(checkpoint_id=checkpoint_id, reason=reason, duration_ms=duration_ms):
                    self._events.checkpoint(
                        CheckpointEvent(
                            id=checkpoint_id, status="failed", duration_ms=duration_ms, size_bytes=None,
                            completed_ms=_now_ms(), reason=reason,
                        )
                    )  # fmt: skip
                case ShowRestart():
                    self._events.restart(
                        RestartEvent(
                            at_ms=_now_ms(), kind=shown.kind, cause=shown.cause, stage=shown.stage,
                            subtask=shown.subtask, slot=shown.slot,
                        )
                    )  # fmt: skip
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_EVERY_S:
            self._reported_s = now_s
            self._report()
        if now_s - self._lag_s >= _LAG_EVERY_S and not self._asking:
            self._lag_s, self._asking = now_s, True
            self._lag_worker.do(self._ask_for_lag)

    def end(self, error: BaseException | None) -> None:
        """Report the end."""
        self._report()
        self._live_line.close()
        self.started()  # a query may end before `start` has got so far
        self._calls.terminated(error)
        self._lag_worker.close(0.1)
        self._calls.join(1.0)

    def _checkpoint_completed(self, shown: ShowCheckpoint, now_ms: int) -> None:
        self._reporter.checkpoint_completed(
            CheckpointStatistics(
                checkpoint_id=shown.checkpoint_id,
                duration_ms=shown.duration_ms,
                size_bytes=shown.size_bytes,
                completed_ms=now_ms,
            )
        )
        self._events.checkpoint(
            CheckpointEvent(
                id=shown.checkpoint_id,
                status="completed",
                duration_ms=shown.duration_ms,
                size_bytes=shown.size_bytes,
                completed_ms=now_ms,
            )
        )

    def snapshot(self, status: JobStatus | None) -> dict[str, Any]:
        """Return how the query is, as JSON has it: `headgate.monitor.snapshot`. Any thread."""
        with self._lock:
            made = snapshot_of(self._identity, self._shape, status, self._reporter, self._events, _now_ms())
            progresses = self._reporter.recent
        return document(msgspec.structs.replace(made, why=why(made, progresses)))

    def history(self) -> dict[str, Any]:
        """Return the series of the last minutes, as JSON has them: `headgate.monitor.history`. Any thread."""
        with self._lock:
            return self._history.document()

    @property
    def rows(self) -> tuple[int, int]:
        """Rows read and written since the start. Any thread."""
        with self._lock:
            return self._rows

    @property
    def recovery(self) -> list[dict[str, Any]]:
        """What is left to be recovered, by stage. Any thread."""
        with self._lock:
            return self._reporter.recovery

    @property
    def restore(self) -> list[dict[str, Any]]:
        """How far the stages are with their keyed state. Any thread."""
        with self._lock:
            return self._reporter.restore

    @property
    def reader_troubles(self) -> dict[str, list[str]]:
        """What readers wait for beside data, as sentences, by source. Any thread."""
        with self._lock:
            return self._reporter.reader_troubles

    @property
    def recent(self) -> list[StreamingQueryProgress]:
        """The last progresses, the newest last. Any thread."""
        with self._lock:
            return list(self._recent)

    def _report(self) -> None:
        with self._lock:
            made, warnings = self._reporter.report(_now_ms())
            self._add_to_history(made["inputRowsPerSecond"])
            progress = spark_progress(made)
            self._recent = [*self._recent[-99:], progress]
        for warning in warnings:
            _log.warning("%s", warning)
        self._calls.progressed(progress)
        self._live_line.show(made)

    def _add_to_history(self, rows_per_second: float) -> None:
        figures = self._reporter.figures
        watermarks = {
            uid: {
                split: at_ms
                for split, at in figures.event_times(uid).items()
                if (at_ms := known_time_ms(at.watermark_ms)) is not None
            }
            for uid in self._identity.sources
        }
        busy: dict[int, float | None] = {each.stage: None for each in self._shape.stages}
        for key, each in figures.subtasks().items():
            if each.time is not None:
                busy[key.stage] = max(busy.get(key.stage) or 0.0, each.time.busy)
        self._history.add(_now_ms(), rows_per_second, watermarks, busy)

    def _ask_for_lag(self) -> None:
        """On a thread of its own: sources may ask their system."""
        try:
            for uid, each in self._definition.sources.items():
                if isinstance(each.source, SupportsLag):
                    with self._lock:
                        positions: Mapping[str, bytes] = self._reporter.positions(uid) or {}
                    splits: list[Any] = [each.source.split_serializer.deserialize(data) for data in positions.values()]
                    lag = each.source.lag(splits, _now_ms()) if splits else {}
                    with self._lock:
                        self._reporter.take_lag(uid, lag)
        except Exception as error:
            _log.debug("query %s: its lag cannot be determined: %s", self._name, error)
        finally:
            self._asking = False


def _stages(definition: QueryDefinition) -> tuple[StageShape, ...]:
    graph = definition.graph
    return tuple(
        StageShape(
            stage=stage.number,
            operators=tuple(each.uid for each in stage.operators),
            inputs=tuple(sorted({graph.stage_of(uid) for uid in stage.inputs})),
            sources=tuple(each.uid for each in stage.sources),
            sinks=(SINK_UID,) if stage.has_sink else (),
        )
        for stage in graph.stages
    )


def _alignment_groups(definition: QueryDefinition) -> dict[str, str]:
    strategies = {uid: each.watermark_strategy for uid, each in definition.sources.items()}
    return {
        uid: strategy.alignment.group
        for uid, strategy in strategies.items()
        if strategy is not None and strategy.alignment is not None
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
