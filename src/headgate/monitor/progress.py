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
    sources.latestOffset                always null: sources report their lag instead
    sources.metrics                     the source's own figures of its lag
    sink.numOutputRows                  rows handed to the sink in the interval, whether committed yet or not
    eventTime.watermark                 the lowest watermark among the subtasks that have one; left out while one waits
                                        for a split that has not begun
    eventTime.min, max, avg             of the watermarks of the splits being read, as far as they are reported
    stateOperators, observedMetrics     empty
    headgate                            what has no key of Spark's: see `ProgressReporter.report`
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from headgate.monitor.event_times import EventTimes
from headgate.monitor.figures import Figures
from headgate.monitor.growing_lag import growing_lag
from headgate.monitor.late_publications import late_publications
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
    checkpoint_interval_ms
        The time between two checkpoints, in milliseconds.
    """

    query_id: str
    run_id: str
    name: str | None
    sources: Mapping[str, str]
    sinks: Mapping[str, str]
    alignment_groups: Mapping[str, str] = {}
    checkpoint_interval_ms: int = 1000


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
        self.figures = Figures()
        """What the subtasks reported."""
        self._checkpoint_id = checkpoint_id
        self._checkpoint: CheckpointStatistics | None = None
        self._recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self._is_warned = False
        self._committing_ms: int | None = None  # since when the driver owes the oldest epoch that is not committed
        self._warned_ms: dict[str, int] = {}  # how late each sink was at the last warning
        self._troubles: dict[str, list[str]] = {}
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
        self.figures.take(subtask, progress, now_ms)

    def take_lag(self, source: str, lag: Mapping[str, int]) -> None:
        """Take note of a source's lag, in its own figures."""
        self.figures.lag[source] = dict(lag)

    def take_troubles(self, source: str, troubles: Sequence[str]) -> None:
        """Take note of what keeps a source's enumerator from its work, as sentences; none: nothing does any longer."""
        self._troubles[source] = list(troubles)

    def positions(self, source: str) -> dict[str, bytes] | None:
        """Return the positions of the splits of a source that are being read, by split id; None: some are missing."""
        return self.figures.positions(source) if self.figures.are_positions_reported(source) else None

    @property
    def rows(self) -> tuple[int, int]:
        """Rows read by all sources and written by all sinks since the start."""
        return self.figures.rows_in.total(), self.figures.rows_out.total()

    @property
    def last_checkpoint(self) -> CheckpointStatistics | None:
        """The last completed checkpoint; None: there is none yet."""
        return self._checkpoint

    @property
    def recovery(self) -> list[dict[str, Any]]:
        """What is left to be recovered, by stage, as in a progress."""
        return [msgspec.to_builtins(each) for each in self.figures.recovery()]

    @property
    def restore(self) -> list[dict[str, Any]]:
        """How far the stages are with their keyed state, as in a progress."""
        return [msgspec.to_builtins(each) for each in self.figures.restore()]

    @property
    def reader_troubles(self) -> dict[str, list[str]]:
        """What readers wait for beside data, as sentences, by source."""
        return {uid: self.figures.troubles(uid) for uid in self._identity.sources}

    def run_began(self, checkpoint_id: int) -> None:
        """Take note that the query is rescaled: its subtasks are others, and their executions begin with 1."""
        self.figures.forget_subtasks()
        self._committing_ms = None
        self._troubles.clear()
        self._checkpoint_id = checkpoint_id

    def checkpoint_completed(self, statistics: CheckpointStatistics) -> None:
        """Take note of a completed checkpoint."""
        self._checkpoint = statistics
        self._checkpoint_id = statistics.checkpoint_id

    def commit_ordered(self, now_ms: int) -> None:
        """Take note that an epoch is to be committed on the driver, or is to be once more."""
        if self._committing_ms is None:
            self._committing_ms = now_ms

    def committed(self) -> None:
        """Take note that the epoch which was ordered last is committed."""
        self._committing_ms = None

    def report(self, now_ms: int) -> tuple[dict[str, Any], list[str]]:
        """End the interval: return its progress, and warnings: the query cannot keep up, or a sink publishes nothing.

        Beside Spark's keys the progress has ``headgate``, with

        - ``checkpoint``: ``id``, ``durationMs``, ``sizeBytes`` and ``ageMs`` of the last one; null before the first;
        - ``operators``, the busiest first: ``uid``, ``stage``, ``subtask`` and ``busyPercent`` of each at its busiest
          subtask;
        - ``splits``: how many are being read, by source;
        - ``troubles``: what keeps a source's enumerator or its readers from their work, as sentences, by source that
          has any: discovery that fails, a method that does not return, a system that does not answer;
        - ``rowsRead`` and ``rowsWritten`` since the start, by source and by sink, ``skippedRecords``, and ``lateRows``,
          which came after the watermark of an aggregation;
        - ``unpublishedMs``: by sink how long the oldest rows of a complete checkpoint have waited to be published; a
          sink where none wait is absent;
        - ``recovery``: of each stage that recovers rows which were under way ``stage``, ``subtasks``, ``phase``
          (``reading`` from the checkpoint, ``replaying`` from local disks, ``processing`` the last ones),
          ``rowsToRead``, ``rowsLeft``, ``memoryBytes`` and ``diskBytes``; empty when that is over;
        - ``restore``: of each stage that took on keyed state when its subtasks were deployed ``stage``, ``subtasks``
          (which are not through), ``bytesToRead``, ``bytesLeft`` and ``durationMs`` of the one that took longest;
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
        event_times = self.event_times()
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
        self._rows_in, self._rows_out = dict(self.figures.rows_in), dict(self.figures.rows_out)
        self.figures.begin_interval()
        self._recent.append(progress)
        return progress, self._warnings()

    def _source(self, uid: str, seconds: float) -> dict[str, Any]:
        rows = self.figures.rows_in[uid] - self._rows_in.get(uid, 0)
        start, end = self._offsets.get(uid), _offsets(self.figures.positions(uid))
        self._offsets[uid] = end
        return {
            "description": self._identity.sources[uid],
            "startOffset": start,
            "endOffset": end,
            "latestOffset": None,
            "numInputRows": rows,
            "inputRowsPerSecond": _rate(rows, seconds),
            "processedRowsPerSecond": _rate(rows, seconds),
            "metrics": {name: str(value) for name, value in self.figures.lag.get(uid, {}).items()},
        }

    def _sink(self) -> dict[str, Any]:
        uid, description = next(iter(self._identity.sinks.items()))
        rows = self.figures.rows_out[uid] - self._rows_out.get(uid, 0)
        return {"description": description, "numOutputRows": rows, "metrics": {}}

    def event_times(self) -> EventTimes:
        """Return how far the splits of all sources with event time are, as far as they are reported."""
        reported = {uid: self.figures.event_times(uid) for uid in self._identity.sources}
        splits = {uid: of for uid, of in reported.items() if of or uid in self._identity.alignment_groups}
        return EventTimes(splits, self._identity.alignment_groups, timestamp)

    def _event_time(self, event_times: EventTimes) -> dict[str, str]:
        # Beyond the calendar is the end of all input: no time that anybody could look at.
        known = [at_ms for at_ms in event_times.watermarks_ms() if at_ms <= LAST_MS]
        times = {"min": min(known), "max": max(known), "avg": sum(known) // len(known)} if known else {}
        watermark_ms = self.figures.watermark_ms()
        if watermark_ms is not None and watermark_ms <= LAST_MS:
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
                for each in self.figures.busiest()
            ],
            "troubles": {uid: troubles for uid, troubles in self.troubles().items() if troubles},
            "splits": {uid: self.figures.splits(uid) for uid in self._identity.sources},
            "rowsRead": {uid: self.figures.rows_in[uid] for uid in self._identity.sources},
            "rowsWritten": {uid: self.figures.rows_out[uid] for uid in self._identity.sinks},
            "skippedRecords": self.figures.skipped,
            "lateRows": self.figures.late,
            "unpublishedMs": self.unpublished_ms(now_ms),
            "recovery": self.recovery,
            "restore": self.restore,
        }  # fmt: skip

    def troubles(self) -> dict[str, list[str]]:
        """Return by source what keeps its enumerator and its readers from their work, as sentences."""
        return {uid: self._troubles.get(uid, []) + of for uid, of in self.reader_troubles.items()}

    def unpublished_ms(self, now_ms: int) -> dict[str, int]:
        """Return how long the oldest rows of a complete checkpoint have waited to be published, by sink uid."""
        waits = self.figures.unpublished_ms()
        if self._committing_ms is not None and now_ms > self._committing_ms:
            uid = next(iter(self._identity.sinks))  # all are committed together
            waits[uid] = max(waits.get(uid, 0), now_ms - self._committing_ms)
        return waits

    def _warnings(self) -> list[str]:
        text = growing_lag(self._recent)
        begins = text is not None and not self._is_warned
        self._is_warned = text is not None
        waits = self._recent[-1]["headgate"]["unpublishedMs"]
        self._warned_ms = {uid: at_ms for uid, at_ms in self._warned_ms.items() if waits.get(uid, 0) >= at_ms}
        late = late_publications(waits, self._identity.checkpoint_interval_ms, self._warned_ms)
        self._warned_ms |= {uid: waits[uid] for uid in late}
        name = repr(self._identity.name or self._identity.query_id)
        warnings = [f"The query {name}: {each}" for each in late.values()]
        return [text, *warnings] if begins and text is not None else warnings


def timestamp(at_ms: int) -> str:
    """Return a time as Spark writes it; one that no calendar holds is the first or the last that it does.

    Examples
    --------
    >>> timestamp(1_763_760_000_123)
    '2025-11-21T21:20:00.123Z'
    """
    seconds, milliseconds = divmod(max(_FIRST_MS, min(at_ms, LAST_MS)), 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{milliseconds:03d}Z"


_FIRST_MS, LAST_MS = -30_610_224_000_000, 253_402_300_799_999
"""From the year 1000, before which a year is written with fewer digits, to the end of 9999."""


def _rate(rows: int, seconds: float) -> float:
    return rows / seconds if seconds > 0 else 0.0


def _offsets(positions: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the position of each split: what its serialised form calls so, else all of that but its version."""
    return {split_id: position_of(positions[split_id]) for split_id in sorted(positions)}


def position_of(split: bytes) -> Any:
    """Return the position of a split's bytes as JSON has it; None: only its connector can read them."""
    try:
        fields = msgspec.json.decode(split)
    except msgspec.DecodeError:
        return None  # a serialiser of the connector author's, which need not write JSON
    if not isinstance(fields, dict):
        return fields
    if "position" in fields:
        return fields["position"]
    return {name: value for name, value in fields.items() if name not in ("v", "split_id")}
