"""A snapshot as a query makes it, for the tests of what reads one."""

from __future__ import annotations

from typing import Any


def snapshot(**changes: Any) -> dict[str, Any]:
    """Return a snapshot of a query that reads two partitions, with some fields as given."""
    made: dict[str, Any] = {
        "id": "7f0c", "runId": "1", "name": "rides", "startedMs": 1_000, "state": "running", "parallelism": 2,
        "watermarkMs": 60_000, "lateRows": 3, "skippedRecords": 1, "restarts": {"count": 1, "recent": []},
        "sources": [source()],
        "alignmentGroups": [{"group": "g", "watermarkMs": 60_000, "driftMs": 5_000}],
        "operators": [{"uid": "parse", "stage": 0, "busy": 0.97, "subtask": 1}],
        "subtasks": [
            {"stage": 0, "subtask": each, "busy": 0.9, "backPressured": 0.05, "idle": 0.05, "paused": 0.0,
             "queueBytes": 1_024, "queueBatches": 2, "bufferPoolUse": None}
            for each in range(2)
        ],
        "checkpoints": {
            "completed": 5, "failed": 1, "last": {"id": 5, "durationMs": 30, "sizeBytes": 500, "ageMs": 400},
        },
        "recovery": [], "restore": [{"stage": 1, "bytesLeft": 4_096}, {"stage": 2, "bytesLeft": 4}],
        "sinks": [{"uid": "sink", "rowsWritten": 9, "commits": 4, "lastCommitMs": 12, "unpublishedMs": None}],
        "helperJvm": None,
    }  # fmt: skip
    return made | changes


def source(**changes: Any) -> dict[str, Any]:
    """Return a source of a snapshot."""
    made = {
        "uid": "kafka", "rowsRead": 10, "bytesRead": 100, "numSplits": 2, "pausedSplits": 1, "idleSplits": 0,
        "lag": {"maxOffsetsBehindLatest": 7},
        "metrics": {
            "fetchLatencyMs": {"kind": "gauge", "value": 4}, "numFetches": {"kind": "counter", "value": 9},
        },
        "splits": [
            split("rides-0", lag=7, watermarkMs=60_000, driftMs=0),
            split("rides-1", lag=2, watermarkMs=65_000, driftMs=5_000, paused=True),
        ],
    }  # fmt: skip
    return made | changes


def split(split_id: str, **changes: Any) -> dict[str, Any]:
    """Return a split of a source."""
    return {"id": split_id, "lag": None, "watermarkMs": None, "driftMs": None, "paused": False, "idle": False} | changes
