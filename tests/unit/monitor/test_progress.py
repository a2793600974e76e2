"""``lastProgress``: what happened since the one before, under the names that Spark gave it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.kafka.split import SPLIT_SERIALIZER, KafkaSplit
from headgate.monitor.live_line import live_text
from headgate.monitor.progress import (
    RECENT,
    CheckpointStatistics,
    ProgressReporter,
    QueryIdentity,
    timestamp,
)
from headgate.protocol.messages import RecoveryProgress, RestoreProgress, SubtaskProgress
from headgate.task.watermarks import MAX_WATERMARK_MS, MIN_WATERMARK_MS

IDENTITY = QueryIdentity(
    query_id="8c57e1ec-94b5-4c99-b100-f694162df0b9",
    run_id="ae505c5a-a64e-4896-8c28-c7cbaf926f16",
    name="rides",
    sources={"kafka": "headgate.kafka[rides]", "gen": "headgate.datagen"},
    sinks={"sink": "parquet[out]", "bad": "json[bad]"},
)


def message(execution: int = 1, **fields: Any) -> SubtaskProgress:
    return SubtaskProgress(stage=0, execution=execution, **fields)


def position(offset: int) -> dict[str, dict[str, bytes]]:
    split = KafkaSplit(split_id="rides-0", topic="rides", partition=0, position=offset)
    return {"kafka": {"rides-0": SPLIT_SERIALIZER.serialize(split)}}


def test_what_readers_wait_for_is_reported_until_they_no_longer_do() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    reporter.take_troubles("kafka", ["Discovery fails"])
    reporter.take(0, message(troubles={"kafka": ("No broker answers",)}), 500)
    assert reporter.report(1000)[0]["headgate"]["troubles"] == {"kafka": ["Discovery fails", "No broker answers"]}
    assert reporter.reader_troubles == {"kafka": ["No broker answers"], "gen": []}
    reporter.take(0, message(), 1500)
    assert reporter.report(2000)[0]["headgate"]["troubles"] == {"kafka": ["Discovery fails"]}


def test_rows_that_are_recovered_are_reported_until_they_are_processed() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    left = RecoveryProgress(phase="processing", rows_to_read=9, rows_left=5, memory_bytes=10, disk_bytes=20)
    reporter.take(0, message(recovery=left), 500)
    [reported] = reporter.report(1000)[0]["headgate"]["recovery"]
    assert (reported["phase"], reported["rowsLeft"], reported["diskBytes"]) == ("processing", 5, 20)
    reporter.take(0, message(), 1500)
    assert reporter.report(2000)[0]["headgate"]["recovery"] == []


def test_how_far_keyed_state_is_taken_on_is_reported_and_how_long_that_took() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    for left, over in ((900, False), (0, True)):
        restore = RestoreProgress(bytes_to_read=1000, bytes_left=left, duration_ms=1100 - left, is_over=over)
        reporter.take(0, message(restore=restore), 500)
        [reported] = reporter.report(1000)[0]["headgate"]["restore"]
        assert reported == reporter.restore[0]
        assert (reported["bytesToRead"], reported["bytesLeft"], reported["subtasks"]) == (1000, left, int(not over))
    assert reported["durationMs"] == 1100


def test_a_query_that_has_done_nothing_yet() -> None:
    progress, warnings = ProgressReporter(IDENTITY, started_ms=1_000_000).report(1_000_000)
    assert warnings == []
    assert (progress["batchId"], progress["durationMs"], progress["eventTime"]) == (0, {}, {})
    assert (progress["numInputRows"], progress["inputRowsPerSecond"]) == (0, 0.0)
    assert progress["headgate"]["checkpoint"] is None
    assert live_text(progress) == "rides: 0 rows/s in, 0 rows out"


def test_a_sink_that_publishes_nothing_is_reported_the_longer_the_rarer() -> None:
    """Its subtasks go on, and so do checkpoints: nothing else would show it."""
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    warned_s = []
    for second in range(1, 61):
        reporter.take(0, message(unpublished_ms={"sink": 1000 * second}), 1000 * second)
        reporter.take(1, message(unpublished_ms={"sink": 500}), 1000 * second)
        progress, warnings = reporter.report(1000 * second)
        assert progress["headgate"]["unpublishedMs"] == {"sink": 1000 * second}
        if warnings:
            assert warnings[0].startswith(f"The query 'rides': the sink 'sink' has published nothing for {second} s")
            warned_s.append(second)
    assert warned_s == [10, 20, 40]
    assert live_text(progress).endswith("nothing published for 60 s")
    reporter.take(0, message(), 61_000)
    reporter.take(1, message(), 61_000)
    assert reporter.report(61_000)[0]["headgate"]["unpublishedMs"] == {}
    reporter.take(0, message(unpublished_ms={"sink": 10_000}), 90_000)
    assert reporter.report(90_000)[1], "it is late again"


def test_a_sink_is_not_late_within_a_few_checkpoint_intervals() -> None:
    slow = msgspec.structs.replace(IDENTITY, checkpoint_interval_ms=60_000)
    reporter = ProgressReporter(slow, started_ms=0)
    reporter.take(0, message(unpublished_ms={"sink": 179_999}), 0)
    assert reporter.report(1)[1] == []
    reporter.take(0, message(unpublished_ms={"sink": 180_000}), 2)
    assert len(reporter.report(2)[1]) == 1


def test_a_commit_on_the_driver_that_does_not_end_is_reported_likewise() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    reporter.commit_ordered(1000)
    reporter.commit_ordered(9000)  # it failed, and is ordered once more
    progress, warnings = reporter.report(11_000)
    assert progress["headgate"]["unpublishedMs"] == {"sink": 10_000}
    assert len(warnings) == 1
    reporter.committed()
    assert reporter.report(12_000)[0]["headgate"]["unpublishedMs"] == {}


def test_everything_of_an_interval() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    first = message(rows_in={"kafka": 100}, splits={"kafka": 1}, positions=position(100), busy_ms={"map": 0})
    reporter.take(0, first, 500)
    reporter.report(1000)
    statistics = CheckpointStatistics(checkpoint_id=7, duration_ms=35, size_bytes=12_000, completed_ms=2500)
    reporter.checkpoint_completed(statistics)
    last = message(
        rows_in={"kafka": 400, "gen": 20}, rows_out={"sink": 310, "bad": 2}, splits={"kafka": 1},
        positions=position(400), skipped=3, late=5, busy_ms={"map": 1250}, watermark_ms=1_763_760_000_000,
    )  # fmt: skip
    reporter.take(0, last, 3000)
    reporter.take_lag("kafka", {"rowsBehind": 9})
    reporter.take_troubles("kafka", ["It was away"])
    reporter.take_troubles("kafka", [])
    reporter.take_troubles("gen", ["It is away"])
    progress, _ = reporter.report(3000)
    assert progress == {
        "id": IDENTITY.query_id, "runId": IDENTITY.run_id, "name": "rides", "timestamp": "1970-01-01T00:00:03.000Z",
        "batchId": 7, "batchDuration": 35, "durationMs": {"checkpoint": 35},
        "eventTime": {"watermark": "2025-11-21T21:20:00.000Z"}, "stateOperators": [],
        "sources": [
            {
                "description": "headgate.kafka[rides]", "startOffset": {"rides-0": 100}, "endOffset": {"rides-0": 400},
                "latestOffset": None, "numInputRows": 300, "inputRowsPerSecond": 150.0, "processedRowsPerSecond": 150.0,
                "metrics": {"rowsBehind": "9"},
            },
            {
                "description": "headgate.datagen", "startOffset": {}, "endOffset": {}, "latestOffset": None,
                "numInputRows": 20, "inputRowsPerSecond": 10.0, "processedRowsPerSecond": 10.0, "metrics": {},
            },
        ],
        "sink": {"description": "parquet[out]", "numOutputRows": 310, "metrics": {}},
        "numInputRows": 320, "inputRowsPerSecond": 160.0, "processedRowsPerSecond": 160.0, "observedMetrics": {},
        "headgate": {
            "checkpoint": {"id": 7, "durationMs": 35, "sizeBytes": 12_000, "ageMs": 500},
            "operators": [{"uid": "map", "stage": 0, "subtask": 0, "busyPercent": 50}],
            "troubles": {"gen": ["It is away"]}, "splits": {"kafka": 1, "gen": 0},
            "rowsRead": {"kafka": 400, "gen": 20}, "rowsWritten": {"sink": 310, "bad": 2}, "skippedRecords": 3,
            "lateRows": 5, "unpublishedMs": {}, "recovery": [], "restore": [],
            "eventTimes": {}, "alignmentGroups": {},
        },
    }  # fmt: skip
    assert reporter.recent[-1] is progress
    assert live_text(progress) == (
        "rides: 160 rows/s in, 310 rows out, rowsBehind 9, watermark 2025-11-21T21:20:00.000Z, "
        "checkpoint 7 (35 ms, 12 kB), 3 bad records skipped"
    )


def test_a_restored_query_shows_the_checkpoint_that_it_began_with() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0, checkpoint_id=41)
    assert reporter.report(1)[0]["batchId"] == 41
    reporter.run_began(43)
    assert reporter.report(2)[0]["batchId"] == 43


def test_only_the_last_progresses_are_kept() -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    for now_ms in range(RECENT + 10):
        reporter.report(now_ms)
    assert len(reporter.recent) == RECENT
    assert reporter.recent[-1]["timestamp"] == timestamp(RECENT + 9)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"v":1,"split_id":"s","position":{"page":[1,2]},"stop":null}', {"page": [1, 2]}),
        (b'{"v":1,"split_id":"s","position":null}', None),
        (b'{"v":1,"split_id":"s","path":"a.csv","start":5}', {"path": "a.csv", "start": 5}),
        (b"[1,2]", [1, 2]),
        (b"\x00not json", None),
    ],
)
def test_positions_of_all_kinds_of_splits(data: bytes, expected: object) -> None:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    reporter.take(0, message(splits={"gen": 1}, positions={"gen": {"s": data}}), 1)
    assert reporter.report(1)[0]["sources"][1]["endOffset"] == {"s": expected}


def test_times_that_no_calendar_holds() -> None:
    """The final watermark is the highest number that there is."""
    assert timestamp(MAX_WATERMARK_MS) == "9999-12-31T23:59:59.999Z"
    assert timestamp(MIN_WATERMARK_MS) == "1000-01-01T00:00:00.000Z"
    assert timestamp(-1) == "1969-12-31T23:59:59.999Z"


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 3), st.integers(0, 10_000), st.integers(-100, 5_000))),
)
def test_no_rate_is_negative_and_nothing_is_lost(steps: list[tuple[int, int, int, int]]) -> None:
    """Subtasks are deployed again, messages come late, the clock is set back."""
    reporter, now_ms, rows = ProgressReporter(IDENTITY, started_ms=0), 0, 0
    for subtask, execution, count, elapsed_ms in steps:
        now_ms += elapsed_ms
        reporter.take(subtask, message(execution, rows_in={"kafka": count}, rows_out={"sink": count}), now_ms)
        progress, _ = reporter.report(now_ms)
        rows += progress["numInputRows"]
        assert progress["numInputRows"] >= 0 and progress["sink"]["numOutputRows"] >= 0
        assert progress["inputRowsPerSecond"] >= 0
        assert rows == progress["headgate"]["rowsRead"]["kafka"]
        json.dumps(progress, allow_nan=False)


def test_the_watermark_of_an_input_that_ended_is_not_shown() -> None:
    """A subtask without splits is at its end at once: 9999-12-31 is not an event time of the query's."""
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    reporter.take(0, message(watermark_ms=MAX_WATERMARK_MS), 500)
    assert reporter.report(1000)[0]["eventTime"] == {}
