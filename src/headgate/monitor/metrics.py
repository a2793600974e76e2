"""The metrics of a query as a table: which there are, and how each is read from a snapshot.

Never: read anything but a snapshot; import a library that metrics are exported with.

`headgate.monitor.prometheus` and `headgate.monitor.opentelemetry` export what is in `METRICS`, docs/metrics.md lists
it, and docs/grafana.json is tested against it. Names and units follow Prometheus' conventions ("Metric and label
naming"): base units (seconds, bytes), ratios from 0 to 1, counters that end in ``_total``.

A label has few values, however long a query runs: splits beyond `MOST_SPLITS` of a source share the label value
`OTHERS`, which has their sum or extreme (`SplitLabels`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

MOST_SPLITS = 200
"""So many splits of a source have a label value of their own: the first ones that were seen."""
MOST_QUERIES = 100
"""So many queries have their splits' labels kept apart; those of the ones that began first are forgotten."""
OTHERS = "others"
"""The label value of all other splits."""

Snapshot = Mapping[str, Any]
Sample = tuple[tuple[str, ...], float]
"""The values of a metric's labels, and its value."""


class Metric(msgspec.Struct, frozen=True):
    """One metric.

    Parameters
    ----------
    name
        Without prefix and suffixes of an exporter, for example ``source_rows_read``.
    kind
        A ``counter`` never falls while the query runs.
    unit
        ``seconds``, ``bytes``, ``ratio``, or empty.
    labels
        The names of its labels after ``query``.
    help
        What it is, in a sentence without a full stop.
    samples
        Reads it from a snapshot. What the snapshot does not have is left out.
    """

    name: str
    kind: Literal["counter", "gauge"]
    unit: str
    labels: tuple[str, ...]
    help: str
    samples: Callable[[Snapshot, SplitLabels], Iterator[Sample]]


class SplitLabels:
    """Which splits have a label value of their own: the first of each source, for as long as the process lives.

    A source of files has a new split per file: each with a value of its own would be a series for ever.
    """

    def __init__(self) -> None:
        self._known: dict[str, dict[str, set[str]]] = {}

    def of(self, query: str, source: str, split: str) -> str:
        """Return the label value of a split."""
        if query not in self._known and len(self._known) >= MOST_QUERIES:
            del self._known[next(iter(self._known))]
        known = self._known.setdefault(query, {}).setdefault(source, set())
        if split not in known:
            if len(known) >= MOST_SPLITS:
                return OTHERS
            known.add(split)
        return split


def query_label(snapshot: Snapshot) -> str:
    """Return the value of the label ``query``: its name, or its id where it has none."""
    return str(snapshot["name"] or snapshot["id"])


def labelled(snapshots: Iterable[Snapshot]) -> list[tuple[str, Snapshot]]:
    """Return the snapshots with the values of their label ``query``, each of which occurs once.

    Of queries with one name the one that runs counts, or else the one that began last.
    """
    by_label: dict[str, Snapshot] = {}
    over = ("ended", "failed")
    for snapshot in sorted(snapshots, key=lambda each: (each["state"] not in over, int(each["startedMs"]))):
        by_label[query_label(snapshot)] = snapshot
    return list(by_label.items())


def connector_samples(snapshot: Snapshot) -> Iterator[tuple[str, str, float, str]]:
    """Return what connectors registered themselves: name, source, value, and kind (``counter`` or ``gauge``)."""
    for source in snapshot["sources"]:
        for name, metric in source.get("metrics", {}).items():
            yield _snake(name), source["uid"], float(metric["value"]), metric["kind"]


def _snake(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


# How the rows of the table read a snapshot.

_Read = Callable[[Snapshot, SplitLabels], Iterator[Sample]]


def _value(*path: str, scale: float = 1.0) -> _Read:
    """Read one value of the query, ``scale`` times."""

    def read(snapshot: Snapshot, _: SplitLabels) -> Iterator[Sample]:
        value: Any = snapshot
        for key in path:
            value = None if value is None else value.get(key)
        if value is not None:
            yield (), float(value) * scale

    return read


def _each(of: str, labels: tuple[str, ...], key: str, scale: float = 1.0) -> _Read:
    """Read a value of each item of a list."""

    def read(snapshot: Snapshot, _: SplitLabels) -> Iterator[Sample]:
        for item in snapshot.get(of, ()):
            if item.get(key) is not None:
                yield tuple(str(item[label]) for label in labels), float(item[key]) * scale

    return read


def _splits(key: str, together: Callable[[Iterable[float]], float], scale: float = 1.0) -> _Read:
    """Read a value of each split; those that share a label value are put together."""

    def read(snapshot: Snapshot, names: SplitLabels) -> Iterator[Sample]:
        query = query_label(snapshot)
        for source in snapshot["sources"]:
            values: dict[str, list[float]] = {}
            for split in source["splits"]:
                if split.get(key) is not None:
                    label = names.of(query, source["uid"], split["id"])
                    values.setdefault(label, []).append(float(split[key]) * scale)
            for label, of_label in values.items():
                yield (source["uid"], label), together(of_label)

    return read


def _source_lag(snapshot: Snapshot, _: SplitLabels) -> Iterator[Sample]:
    for source in snapshot["sources"]:
        for name, value in source["lag"].items():
            yield (source["uid"], _snake(name)), float(value)


def _state(snapshot: Snapshot, _: SplitLabels) -> Iterator[Sample]:
    yield (str(snapshot["state"]),), 1.0


def _sums(of: str, key: str) -> _Read:
    """Read the sum of a value over the stages that are listed."""

    def read(snapshot: Snapshot, _: SplitLabels) -> Iterator[Sample]:
        yield (), float(sum(each[key] for each in snapshot[of]))

    return read


_MS = 0.001
_SUBTASK = ("stage", "subtask")

METRICS: tuple[Metric, ...] = (
    Metric("query_state", "gauge", "", ("state",), "1 for the state that the query is in", _state),
    Metric("parallelism", "gauge", "", (), "Slots that the query has", _value("parallelism")),
    Metric(
        "watermark_timestamp", "gauge", "seconds", (), "Lowest watermark of all subtasks, as Unix time",
        _value("watermarkMs", scale=_MS),
    ),
    Metric("late_rows", "counter", "", (), "Rows that came after the watermark of an operator", _value("lateRows")),
    Metric("skipped_records", "counter", "", (), "Bad records that were skipped", _value("skippedRecords")),
    Metric("restarts", "counter", "", (), "Restarts after a failure", _value("restarts", "count")),
    # Sources and their splits.
    Metric("source_rows_read", "counter", "", ("source",), "Rows read", _each("sources", ("uid",), "rowsRead")),
    Metric(
        "source_read", "counter", "bytes", ("source",), "Bytes read, as record batches",
        _each("sources", ("uid",), "bytesRead"),
    ),
    Metric("source_splits", "gauge", "", ("source",), "Splits being read", _each("sources", ("uid",), "numSplits")),
    Metric(
        "source_paused_splits", "gauge", "", ("source",), "Splits that wait for others of their alignment group",
        _each("sources", ("uid",), "pausedSplits"),
    ),
    Metric(
        "source_idle_splits", "gauge", "", ("source",), "Splits that are idle", _each("sources", ("uid",), "idleSplits")
    ),
    Metric("source_lag", "gauge", "", ("source", "figure"), "Lag as the source itself counts it", _source_lag),
    Metric(
        "split_pending_records", "gauge", "", ("source", "split"), "Records between a split's position and its end",
        _splits("lag", sum),
    ),
    Metric(
        "split_watermark_timestamp", "gauge", "seconds", ("source", "split"), "Watermark of a split, as Unix time",
        _splits("watermarkMs", min, _MS),
    ),
    Metric(
        "split_drift", "gauge", "seconds", ("source", "split"), "How far a split is ahead of the slowest of its group",
        _splits("driftMs", max, _MS),
    ),
    Metric(
        "split_paused", "gauge", "", ("source", "split"), "1 for a split that waits for others of its alignment group",
        _splits("paused", sum),
    ),
    Metric(
        "split_idle", "gauge", "", ("source", "split"), "1 for a split that is idle", _splits("idle", sum),
    ),
    Metric(
        "alignment_group_watermark_timestamp", "gauge", "seconds", ("group",),
        "Lowest watermark of an alignment group, as Unix time",
        _each("alignmentGroups", ("group",), "watermarkMs", _MS),
    ),
    Metric(
        "alignment_group_drift", "gauge", "seconds", ("group",), "Largest drift within an alignment group",
        _each("alignmentGroups", ("group",), "driftMs", _MS),
    ),
    # Subtasks and operators.
    Metric(
        "operator_busy", "gauge", "ratio", ("stage", "operator"),
        "Part of the time that an operator took, at its busiest subtask",
        _each("operators", ("stage", "uid"), "busy"),
    ),
    Metric(
        "subtask_busy", "gauge", "ratio", _SUBTASK, "Part of the time that a subtask worked",
        _each("subtasks", _SUBTASK, "busy"),
    ),
    Metric(
        "subtask_back_pressured", "gauge", "ratio", _SUBTASK,
        "Part of the time that a subtask waited for room downstream",
        _each("subtasks", _SUBTASK, "backPressured"),
    ),
    Metric(
        "subtask_idle", "gauge", "ratio", _SUBTASK, "Part of the time that a subtask had nothing to do",
        _each("subtasks", _SUBTASK, "idle"),
    ),
    Metric(
        "subtask_paused", "gauge", "ratio", _SUBTASK, "Part of the time that all splits of a subtask were paused",
        _each("subtasks", _SUBTASK, "paused"),
    ),
    Metric(
        "subtask_queue", "gauge", "bytes", _SUBTASK, "Rows that were fetched and not emitted yet",
        _each("subtasks", _SUBTASK, "queueBytes"),
    ),
    Metric(
        "subtask_queue_batches", "gauge", "", _SUBTASK, "Batches that were fetched and not emitted yet",
        _each("subtasks", _SUBTASK, "queueBatches"),
    ),
    Metric(
        "subtask_buffer_pool_use", "gauge", "ratio", _SUBTASK, "Part of the buffers of its exchanges that are full",
        _each("subtasks", _SUBTASK, "bufferPoolUse"),
    ),
    # Checkpoints, recovery, sinks.
    Metric(
        "checkpoints_completed", "counter", "", (), "Checkpoints that completed", _value("checkpoints", "completed")
    ),
    Metric("checkpoints_failed", "counter", "", (), "Checkpoints that failed", _value("checkpoints", "failed")),
    Metric(
        "checkpoint_duration", "gauge", "seconds", (), "Duration of the last completed checkpoint",
        _value("checkpoints", "last", "durationMs", scale=_MS),
    ),
    Metric(
        "checkpoint_size", "gauge", "bytes", (), "What the last completed checkpoint wrote",
        _value("checkpoints", "last", "sizeBytes"),
    ),
    Metric(
        "checkpoint_age", "gauge", "seconds", (), "Time since the last checkpoint completed",
        _value("checkpoints", "last", "ageMs", scale=_MS),
    ),
    Metric(
        "recovery_rows_left", "gauge", "", (), "Rows in flight that are not recovered yet",
        _sums("recovery", "rowsLeft"),
    ),
    Metric(
        "recovery_memory", "gauge", "bytes", (), "Memory that recovered rows take", _sums("recovery", "memoryBytes")
    ),
    Metric("recovery_disk", "gauge", "bytes", (), "Disk that recovered rows take", _sums("recovery", "diskBytes")),
    Metric("restore_left", "gauge", "bytes", (), "Keyed state that is not restored yet", _sums("restore", "bytesLeft")),
    Metric("sink_rows_written", "counter", "", ("sink",), "Rows written", _each("sinks", ("uid",), "rowsWritten")),
    Metric("sink_commits", "counter", "", ("sink",), "Commits that succeeded", _each("sinks", ("uid",), "commits")),
    Metric(
        "sink_commit_duration", "gauge", "seconds", ("sink",), "Duration of the last commit",
        _each("sinks", ("uid",), "lastCommitMs", _MS),
    ),
    Metric(
        "sink_unpublished", "gauge", "seconds", ("sink",),
        "How long the oldest rows of a complete checkpoint have waited to be published",
        _each("sinks", ("uid",), "unpublishedMs", _MS),
    ),
    # Spark's own code for expressions.
    Metric(
        "helper_jvm_requests", "counter", "", (), "Requests to the Java process that evaluates Spark's expressions",
        _value("helperJvm", "requests"),
    ),
    Metric("helper_jvm_rows", "counter", "", (), "Rows that it evaluated", _value("helperJvm", "rows")),
    Metric(
        "helper_jvm_busy", "counter", "seconds", (), "Time that subtasks waited for it",
        _value("helperJvm", "busyMs", scale=_MS),
    ),
)  # fmt: skip
"""All metrics, in the order of the documentation."""
