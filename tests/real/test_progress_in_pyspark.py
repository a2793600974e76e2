"""PySpark's own classes read our progress, and its listeners hear of our queries."""

from __future__ import annotations

import json
import threading
import uuid
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from headgate.monitor.progress import CheckpointStatistics, ProgressReporter, QueryIdentity
from headgate.protocol.messages import SplitEventTime, SubtaskProgress
from headgate.spark.continuous.listener import ListenerCalls, spark_progress
from tests.real.running_queries import wait_until, written

IDENTITY = QueryIdentity(
    query_id=str(uuid.uuid4()), run_id=str(uuid.uuid4()), name="rides", sources={"k": "kafka"}, sinks={"s": "parquet"},
    alignment_groups={"k": "rides"},
)  # fmt: skip


def progress_of(rows: int) -> dict[str, Any]:
    reporter = ProgressReporter(IDENTITY, started_ms=0)
    reporter.checkpoint_completed(
        CheckpointStatistics(checkpoint_id=7, duration_ms=35, size_bytes=1000, completed_ms=900)
    )
    message = SubtaskProgress(
        stage=0, execution=1, rows_in={"k": rows}, rows_out={"s": rows}, watermark_ms=1_763_760_000_000,
        splits={"k": 1},
        positions={"k": {"t-0": b'{"v":1,"split_id":"t-0","position":5}'}},
        event_times={
            "k": {
                "t-0": SplitEventTime(watermark_ms=1_763_760_000_000),
                "t-1": SplitEventTime(watermark_ms=1_763_760_061_000, paused=True),
            },
        },
    )  # fmt: skip
    reporter.take(0, message, 500)
    reporter.take_lag("k", {"rowsBehind": 9})
    return reporter.report(1000)[0]


@pytest.mark.parametrize("rows", [0, 400])
def test_pyspark_parses_a_progress(rows: int) -> None:
    """Also after a way through JSON, as Spark's own takes."""
    for given in (progress_of(rows), json.loads(json.dumps(progress_of(rows)))):
        parsed = spark_progress(given)
        assert isinstance(parsed, StreamingQueryProgress)
        assert (str(parsed.id), str(parsed.runId), parsed.name) == (IDENTITY.query_id, IDENTITY.run_id, "rides")
        assert (parsed.batchId, parsed.batchDuration, parsed.durationMs) == (7, 35, {"checkpoint": 35})
        assert parsed.timestamp == "1970-01-01T00:00:01.000Z"
        assert parsed.eventTime == {
            "watermark": "2025-11-21T21:20:00.000Z", "min": "2025-11-21T21:20:00.000Z",
            "avg": "2025-11-21T21:20:30.500Z", "max": "2025-11-21T21:21:01.000Z",
        }  # fmt: skip
        assert (parsed.numInputRows, parsed.inputRowsPerSecond, parsed.processedRowsPerSecond) == (rows, rows, rows)
        (source,) = parsed.sources
        assert (source.description, source.numInputRows, source.metrics) == ("kafka", rows, {"rowsBehind": "9"})
        assert (source.startOffset, source.endOffset, source.latestOffset) == ("null", '{"t-0": 5}', "null")
        assert (parsed.sink.description, parsed.sink.numOutputRows) == ("parquet", rows)
        assert (parsed.stateOperators, parsed.observedMetrics) == ([], {})
        assert parsed["headgate"]["checkpoint"]["sizeBytes"] == 1000
        assert parsed["headgate"]["eventTimes"]["k"]["splits"]["t-1"] == {
            "watermark": "2025-11-21T21:21:01.000Z", "idle": False, "paused": True, "driftMs": 61_000,
        }  # fmt: skip
        assert parsed["headgate"]["alignmentGroups"]["rides"]["slowest"] == {"source": "k", "split": "t-0"}
        assert json.loads(parsed.json) == given
        assert "headgate" in str(parsed)


class Recorder(StreamingQueryListener):
    """Keeps what it receives, and from whom; may fail at everything."""

    def __init__(self, *, fails: bool = False) -> None:
        self.events: list[Any] = []
        self.threads: list[str] = []
        self.fails = fails

    def onQueryStarted(self, event: Any) -> None:
        self._note(event)

    def onQueryProgress(self, event: Any) -> None:
        self._note(event)

    def onQueryTerminated(self, event: Any) -> None:
        self._note(event)

    def _note(self, event: Any) -> None:
        self.events.append(event)
        self.threads.append(threading.current_thread().name)
        if self.fails:
            raise ValueError("a listener that fails")


def calls_to(*listeners: StreamingQueryListener) -> ListenerCalls:
    return ListenerCalls(listeners, IDENTITY.query_id, IDENTITY.run_id, IDENTITY.name)


def test_listeners_hear_of_start_progress_and_end(caplog: pytest.LogCaptureFixture) -> None:
    """In this order; one that fails keeps nothing from the others."""
    threads = set(threading.enumerate())  # a listener of another test's query may still be busy
    bad, good = Recorder(fails=True), Recorder()
    calls = calls_to(bad, good)
    calls.started(1000)
    assert len(good.events) == 1, "onQueryStarted is called before start() returns"
    for rows in (1, 2):
        calls.progressed(spark_progress(progress_of(rows)))
    calls.terminated(ValueError("no rides any more"))
    calls.join(60)
    started, first, second, terminated = good.events
    assert len(bad.events) == 4
    assert caplog.text.count("a listener of the query rides failed") == 4
    assert (str(started.id), str(started.runId), started.name) == (IDENTITY.query_id, IDENTITY.run_id, "rides")
    assert (started.timestamp, getattr(started, "jobTags", set())) == ("1970-01-01T00:00:01.000Z", set())
    assert [event.progress.numInputRows for event in (first, second)] == [1, 2]
    assert (str(terminated.id), terminated.exception) == (IDENTITY.query_id, "no rides any more")
    assert terminated.errorClassOnException is None
    assert good.threads == ["MainThread", *["headgate-listeners-rides"] * 3]
    left = set(threading.enumerate()) - threads
    assert not [each for each in left if each.name.startswith("headgate-listeners")]


def test_an_end_without_an_error() -> None:
    listener = Recorder()
    calls = calls_to(listener)
    calls.started(0)
    calls.terminated(None)
    calls.join(60)
    assert listener.events[-1].exception is None


def test_a_listener_that_hangs_does_not_hold_up_the_query() -> None:
    """What it has not heard is dropped beyond some length; the end it hears of."""
    let_go = threading.Event()

    class Hanging(Recorder):
        def onQueryProgress(self, event: Any) -> None:
            let_go.wait(60)
            super().onQueryProgress(event)

    listener = Hanging()
    calls = calls_to(listener)
    calls.started(0)
    progress = spark_progress(progress_of(1))
    for _ in range(3000):
        calls.progressed(progress)
    calls.terminated(None)
    let_go.set()
    calls.join(60)
    assert 1000 <= len(listener.events) - 2 <= 1001
    assert type(listener.events[-1]).__name__ == "QueryTerminatedEvent"


def test_a_query_shows_who_waits_for_whom(spark: SparkSession) -> None:
    """One source begins ten minutes of event time before the other: the one ahead is paused, at the drift."""

    alignment = {"scan.watermark.alignment.group": "rides", "scan.watermark.alignment.max-drift": "1 minute"}

    def rides(begin: str) -> DataFrame:
        source = spark.readStream.format("headgate.datagen").option("eventTimeColumn", "at").options(**alignment)
        made = source.option("rowsPerSecond", 1000).option("startTimestamp", begin).schema("at timestamp").load()
        return made.alias(f"from-{begin[11:13]}{begin[14:16]}")

    both = rides("2026-01-01T12:00:00").union(rides("2026-01-01T12:10:00"))
    query = written(both, "noop", 1, slots="threads").start()
    try:
        wait_until(lambda: any(map(_paused, query.recentProgress)), query)
        progress = next(filter(_paused, query.recentProgress))
    finally:
        query.stop()
    assert isinstance(progress, StreamingQueryProgress)
    group = progress["headgate"]["alignmentGroups"]["rides"]
    assert group["slowest"] == {"source": "from-1200", "split": "partition-0"}
    assert (group["sources"], group["numSplits"]) == (["from-1200", "from-1210"], 2)
    times = progress["headgate"]["eventTimes"]
    (slow,), (fast,) = (times[uid]["splits"].values() for uid in ("from-1200", "from-1210"))
    assert (slow["paused"], slow["idle"], slow["driftMs"]) == (False, False, 0)
    assert (fast["paused"], times["from-1210"]["pausedSplits"], group["pausedSplits"]) == (True, 1, 1)
    # The first batch goes before anything is announced, if it is there by then; else the first row waits already.
    assert fast["watermark"] is None or 500_000 < fast["driftMs"] == group["driftMs"]
    assert slow["watermark"] == group["watermark"] == progress.eventTime["min"] < "2026-01-01T12:09"


def _paused(progress: StreamingQueryProgress) -> bool:
    group = progress["headgate"]["alignmentGroups"]["rides"]
    return bool(group["pausedSplits"] and group["watermark"])
