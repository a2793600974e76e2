"""Builds what a query's ``lastProgress`` shows, in the form that PySpark's ``StreamingQueryProgress`` reads.

Never: read a clock or import PySpark. An interval reaches from one report to the next; figures that Spark gives per
micro-batch are those of the interval.

    key of Spark's                      what it is here
    ----------------------------------  ----------------------------------------------------------------------------
    batchId                             the last completed checkpoint
    batchDuration, durationMs           how long that one took, from its order to its manifest
    numInputRows, ...RowsPerSecond      rows read in the interval, and by second of it; both rates are the same
    sources.startOffset, endOffset      the positions of the splits being read, at the interval's beginning and end,
                                        of the subtasks that have at most a thousand
    sources.latestOffset                always null: sources tell their lag instead
    sources.metrics                     the source's own figures of its lag
    sink.numOutputRows                  rows handed to the sink in the interval, whether committed yet or not
    eventTime.watermark                 the lowest watermark among the subtasks that have one; left out while one waits
                                        for a split that has not begun
    eventTime.min, max, avg             of the watermarks of the splits being read, as far as they are told
    stateOperators, observedMetrics     empty
    headgate                            what has no key of Spark's: see `ProgressReporter.report`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.monitor.event_times import EventTimes
from headgate.monitor.falling_behind import falling_behind
from headgate.monitor.figures import Figures
from headgate.protocol.messages import SubtaskProgress

RECENT = 100
"""How many progresses are kept, as many as Spark keeps by default."""


class QueryIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Whose progress it is.

    Parameters
    ----------
    query_id, run_id
        UUIDs as text, as PySpark's ``id`` and ``runId``.
    name
        The query's name, if it has one.
    sources, sinks
        What to call each source and sink, by uid. The first sink is the query's, others are for bad or late records.
    alignment_groups
        The alignment group of each source that has one, by its uid.
    """

    query_id: str
    run_id: str
    name: str | None
    sources: Mapping[str, str]
    sinks: Mapping[str, str]
    alignment_groups: Mapping[str, str] = {}


class CheckpointStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A completed checkpoint: its number, how long it took, how much was written for it, and when it was complete."""

    checkpoint_id: int
    duration_ms: int
    size_bytes: int
    completed_ms: int


class ProgressReporter:
    """Takes figures of one query, and makes a progress of them whenever it is asked for one.

    Parameters
    ----------
    identity
        Whose progress it is.
    started_ms
        When the first interval begins.
    checkpoint_id
        The checkpoint that the query was restored from; 0: none.
    """

    def __init__(self, identity: QueryIdentity, started_ms: int, checkpoint_id: int = 0) -> None:
        self._identity = identity
        self._figures = Figures()
        self._checkpoint_id = checkpoint_id
        self._checkpoint: CheckpointStatistics | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._behind = False
        # At the last report.
        self._reported_ms = started_ms
        self._rows_in: dict[str, int] = {}
        self._rows_out: dict[str, int] = {}
        self._offsets: dict[str, dict[str, Any] | None] = {}

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The last progresses, the newest last."""
        return list(self._recent)

    def take(self, subtask: int, progress: SubtaskProgress, now_ms: int) -> None:
        """Take note of a subtask's figures."""
        self._figures.take(subtask, progress, now_ms)

    def take_lag(self, source: str, lag: Mapping[str, int]) -> None:
        """Take note of how far a source is behind, by its own figures."""
        self._figures.lag[source] = dict(lag)

    def positions(self, source: str) -> dict[str, bytes] | None:
        """Return the positions of the splits of a source that are being read, by split id; None: not all are told."""
        return self._figures.positions(source) if self._figures.are_positions_told(source) else None

    @property
    def rows(self) -> tuple[int, int]:
        """Rows read by all sources and written by all sinks since the start."""
        return self._figures.rows_in.total(), self._figures.rows_out.total()

    def run_began(self, checkpoint_id: int) -> None:
        """Take note that the query is rescaled: its subtasks are others, and their executions begin with 1."""
        self._figures.forget_subtasks()
        self._checkpoint_id = checkpoint_id

    def checkpoint_completed(self, statistics: CheckpointStatistics) -> None:
        """Take note of a completed checkpoint."""
        self._checkpoint = statistics
        self._checkpoint_id = statistics.checkpoint_id

    def report(self, now_ms: int) -> tuple[dict[str, Any], str | None]:
        """End the interval: return its progress, and a warning when the query begins to fall behind.

        Beside Spark's keys the progress has ``headgate``, with

        - ``checkpoint``: ``id``, ``durationMs``, ``sizeBytes`` and ``ageMs`` of the last one; null before the first;
        - ``operators``, the busiest first: ``uid``, ``stage``, ``subtask`` and ``busyPercent`` of each at its busiest
          subtask;
        - ``splits``: how many are being read, by source;
        - ``rowsRead`` and ``rowsWritten`` since the start, by source and by sink, ``skippedRecords``, and ``lateRows``,
          which came behind the watermark of an aggregation;
        - ``eventTimes``: by source with event time ``alignmentGroup``, ``driftMs``, ``pausedSplits``, ``idleSplits``,
          and ``splits``: each with ``watermark``, ``idle``, ``paused`` and ``driftMs``, which is how far it is ahead of
          the slowest of its group (null without a group, and while somebody has no watermark yet);
        - ``alignmentGroups``: by group ``sources``, ``slowest`` (``source`` and ``split``), its ``watermark``, the
          largest ``driftMs``, ``pausedSplits`` and ``numSplits``. Splits of other queries in the group do not count.
        """
        seconds = (now_ms - self._reported_ms) / 1000
        sources = [self._source(uid, seconds) for uid in self._identity.sources]
        rows = sum(source["numInputRows"] for source in sources)
        duration_ms = self._checkpoint.duration_ms if self._checkpoint else 0
        event_times = self._event_times()
        progress: dict[str, Any] = {
            "id": self._identity.query_id,
            "runId": self._identity.run_id,
            "name": self._identity.name,
            "timestamp": timestamp(now_ms),
            "batchId": self._checkpoint_id,
            "batchDuration": duration_ms,
            "durationMs": {"checkpoint": duration_ms} if self._checkpoint else {},
            "eventTime": self._event_time(event_times),
            "stateOperators": [],
            "sources": sources,
            "sink": self._sink(),
            "numInputRows": rows,
            "inputRowsPerSecond": _rate(rows, seconds),
            "processedRowsPerSecond": _rate(rows, seconds),
            "observedMetrics": {},
            "headgate": {
                **self._own(now_ms),
                "eventTimes": event_times.by_source(),
                "alignmentGroups": event_times.by_group(),
            },
        }
        self._reported_ms = max(now_ms, self._reported_ms)
        self._rows_in, self._rows_out = dict(self._figures.rows_in), dict(self._figures.rows_out)
        self._figures.begin_interval()
        self._recent.append(progress)
        return progress, self._warning()

    def _source(self, uid: str, seconds: float) -> dict[str, Any]:
        rows = self._figures.rows_in[uid] - self._rows_in.get(uid, 0)
        start, end = self._offsets.get(uid), _offsets(self._figures.positions(uid))
        self._offsets[uid] = end
        return {
            "description": self._identity.sources[uid],
            "startOffset": start,
            "endOffset": end,
            "latestOffset": None,
            "numInputRows": rows,
            "inputRowsPerSecond": _rate(rows, seconds),
            "processedRowsPerSecond": _rate(rows, seconds),
            "metrics": {name: str(value) for name, value in self._figures.lag.get(uid, {}).items()},
        }

    def _sink(self) -> dict[str, Any]:
        uid, description = next(iter(self._identity.sinks.items()))
        rows = self._figures.rows_out[uid] - self._rows_out.get(uid, 0)
        return {"description": description, "numOutputRows": rows, "metrics": {}}

    def _event_times(self) -> EventTimes:
        told = {uid: self._figures.event_times(uid) for uid in self._identity.sources}
        splits = {uid: of for uid, of in told.items() if of or uid in self._identity.alignment_groups}
        return EventTimes(splits, self._identity.alignment_groups, timestamp)

    def _event_time(self, event_times: EventTimes) -> dict[str, str]:
        # Beyond the calendar is the end of all input: no time that anybody could look at.
        told = [at_ms for at_ms in event_times.watermarks_ms() if at_ms <= _LAST_MS]
        times = {"min": min(told), "max": max(told), "avg": sum(told) // len(told)} if told else {}
        watermark_ms = self._figures.watermark_ms()
        if watermark_ms is not None and watermark_ms <= _LAST_MS:
            times["watermark"] = watermark_ms
        return {name: timestamp(at_ms) for name, at_ms in times.items()}

    def _own(self, now_ms: int) -> dict[str, Any]:
        last = self._checkpoint
        return {
            "checkpoint": None if last is None else {
                "id": last.checkpoint_id,
                "durationMs": last.duration_ms,
                "sizeBytes": last.size_bytes,
                "ageMs": max(0, now_ms - last.completed_ms),
            },
            "operators": [
                {"uid": each.uid, "stage": each.stage, "subtask": each.subtask, "busyPercent": round(100 * each.share)}
                for each in self._figures.busiest()
            ],
            "splits": {uid: self._figures.splits(uid) for uid in self._identity.sources},
            "rowsRead": {uid: self._figures.rows_in[uid] for uid in self._identity.sources},
            "rowsWritten": {uid: self._figures.rows_out[uid] for uid in self._identity.sinks},
            "skippedRecords": self._figures.skipped,
            "lateRows": self._figures.late,
        }  # fmt: skip

    def _warning(self) -> str | None:
        text = falling_behind(self._recent)
        begins = text is not None and not self._behind
        self._behind = text is not None
        return text if begins else None


def timestamp(at_ms: int) -> str:
    """Return a time as Spark writes it; one that no calendar holds is the first or the last that it does.

    Examples
    --------
    >>> timestamp(1_763_760_000_123)
    '2025-11-21T21:20:00.123Z'
    """
    seconds, milliseconds = divmod(max(_FIRST_MS, min(at_ms, _LAST_MS)), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


_FIRST_MS, _LAST_MS = -30_610_224_000_000, 253_402_300_799_999
"""From the year 1000, before which a year is written with fewer digits, to the end of 9999."""


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0


def _offsets(positions: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the position of each split: what its serialised form calls so, else all of that but its version."""
    return {split_id: _position(positions[split_id]) for split_id in sorted(positions)}


def _position(split: bytes) -> Any:
    try:
        fields = msgspec.json.decode(split)
    except msgspec.DecodeError:
        return None  # a serialiser of the connector author's, which need not write JSON
    if not isinstance(fields, dict):
        return fields
    if "position" in fields:
        return fields["position"]
    return {name: value for name, value in fields.items() if name not in ("v", "split_id")}
