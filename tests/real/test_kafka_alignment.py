"""Aligned micro-batches over a real broker: partitions out of step, and no row of a window is lost.

Queries that need not wait for one another run side by side: a drift is almost a minute of event time, and so is a
micro-batch.
"""

from __future__ import annotations

import datetime
import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from bench.align_data import MAX_DRIFT_MS, SHAPES, WATERMARK_MS, WINDOW_MS, Topic
from local.kafka import Broker
from local.topics import Message, create_topic, produce

ROWS = 4_000
"""Of each topic of one shape."""
SPANS_MS = {"burst": 540_000, "lagging": 720_000, "silent": 540_000}
"""So that the silence is longer than the drift, and the lag more than the watermark of a query that is
not aligned has room for. About fifteen plans each."""
LAG_MS = 360_000
"""So that the lag is more than the drift: enough where nothing else is asked."""
MOST_OPEN_WINDOWS = -(-(MAX_DRIFT_MS + WATERMARK_MS + WINDOW_MS) // WINDOW_MS)
"""Windows that span drift, delay and one window: what the state may hold where there are no keys."""
PATIENCE_S = 240

pytestmark = [pytest.mark.timeout(900), pytest.mark.spark_since("micro-batch-alignment")]


@pytest.fixture(scope="module", autouse=True)
def one_state_store(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    progresses = spark.conf.get("spark.sql.streaming.numRecentProgressUpdates")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", "100000")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)
    spark.conf.set("spark.sql.streaming.numRecentProgressUpdates", progresses)


@pytest.fixture(scope="module")
def topics(kafka: Broker) -> dict[str, str]:
    """Return a topic of each shape, whose time stamps are the event time."""
    made = {}
    for shape in SHAPES:
        made[shape] = create_topic(kafka.plain, f"align-{shape}-{uuid.uuid4().hex[:8]}", 4)
        fill(kafka, made[shape], [each.tolist() for each in Topic(shape, ROWS, SPANS_MS[shape]).event_times()])
    return made


@pytest.fixture(scope="module")
def json_topic(kafka: Broker) -> tuple[str, int]:
    """Return a topic whose event time is the field ``at``, and its rows; the time stamps say nothing.

    It has the partition of each shape that is out of step, and one that is not.
    """
    topic = create_topic(kafka.plain, f"align-json-{uuid.uuid4().hex[:8]}", 4)
    shapes = {shape: Topic(shape, ROWS, SPANS_MS[shape]).event_times() for shape in SHAPES}
    times = [*(each[0].tolist() for each in shapes.values()), shapes["lagging"][1].tolist()]
    produce(
        kafka.plain,
        topic,
        (
            Message(b'{"n": %d, "at": "%s"}' % (number, iso(at_ms).encode()), partition=partition, timestamp_ms=1)
            for partition, all_ms in enumerate(times)
            for number, at_ms in enumerate(all_ms)
        ),
    )
    return topic, sum(map(len, times))


@pytest.fixture(autouse=True)
def stop_all(spark: SparkSession) -> Iterator[None]:
    yield
    for query in spark.streams.active:
        query.stop()


def iso(at_ms: int) -> str:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC).isoformat(timespec="milliseconds")


def fill(broker: Broker, topic: str, times: Sequence[Sequence[int]]) -> None:
    produce(
        broker.plain,
        topic,
        (
            Message(b"x", partition=partition, timestamp_ms=at_ms)
            for partition, all_ms in enumerate(times)
            for at_ms in all_ms
        ),
    )


def aligned(**options: Any) -> dict[str, Any]:
    return {
        "eventTimeColumn": "timestamp",
        "scan.watermark.alignment.group": f"g-{uuid.uuid4().hex[:8]}",
        "scan.watermark.alignment.max-drift": f"{MAX_DRIFT_MS} ms",
        **options,
    }


def read(spark: SparkSession, broker: Broker, topic: str, options: dict[str, Any]) -> DataFrame:
    reader = spark.readStream.format("headgate.kafka").options(**options).option("subscribe", topic)
    if options.get("valueFormat") == "json":
        reader = reader.schema("at timestamp")
    return reader.option("kafka.bootstrap.servers", broker.plain).option("startingOffsets", "earliest").load()


class Windows:
    """Counts rows by window; a new query goes on where the one before it stopped."""

    def __init__(
        self, frame: DataFrame, folder: Path, delay_ms: int = WATERMARK_MS, last_row: int | None = None
    ) -> None:
        self.folder = folder
        self.last_row = last_row
        """With so many rows a query is held until it is stopped; None: it goes on."""
        column = "at" if "at" in frame.columns else "timestamp"
        delay, window = (f"{each} milliseconds" for each in (delay_ms, WINDOW_MS))
        counted = frame.withWatermark(column, delay).groupBy(F.window(column, window)).count()
        self._counted = counted.select("window.start", "count")
        self._counts: dict[Any, int] = {}
        self.progress: list[Any] = []

    def start(self, **trigger: Any) -> Any:
        def keep(batch: DataFrame, _: int) -> None:
            self._counts.update({row["start"]: row["count"] for row in batch.collect()})
            while self.last_row is not None and self.counted >= self.last_row and query.isActive:
                time.sleep(0.01)

        # Update mode: the last result of a window is what it has by then, whether it is closed or not.
        writer = self._counted.writeStream.outputMode("update").foreachBatch(keep).trigger(**trigger)
        query = writer.option("checkpointLocation", str(self.folder)).start()
        return query

    def finish(self, query: Any) -> Windows:
        """Wait for the end of a query, and note what it did."""
        assert query.awaitTermination(2 * PATIENCE_S), "it does not end"
        self.progress += query.recentProgress
        return self

    @property
    def counted(self) -> int:
        return sum(self._counts.values())

    def of_operators(self, name: str) -> list[int]:
        return [each[name] for progress in self.progress for each in progress["stateOperators"]]

    @property
    def dropped_by_spark(self) -> int:
        """What Spark says of dropped rows."""
        return sum(self.of_operators("numRowsDroppedByWatermark"))

    @property
    def figures(self) -> list[Any]:
        """What `lastProgress` says of alignment, of all sources."""
        shown = [json.loads(source["latestOffset"] or "null") for each in self.progress for source in each["sources"]]
        return [each["alignment"] for each in shown if each and "alignment" in each]


def run(folder: Path, **frames: DataFrame) -> dict[str, Windows]:
    """Read to the end with AvailableNow, all side by side."""
    windows = {name: Windows(frame, folder / name) for name, frame in frames.items()}
    queries = {name: each.start(availableNow=True) for name, each in windows.items()}
    return {name: windows[name].finish(query) for name, query in queries.items()}


def nothing_is_lost(windows: Windows, rows: int = ROWS) -> None:
    assert (windows.counted, windows.dropped_by_spark) == (rows, 0)
    assert max(windows.of_operators("numRowsTotal")) <= MOST_OPEN_WINDOWS


def until(condition: Callable[[], Any], query: Any) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (value := condition()):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, f"it did not come true in time: {query.lastProgress}"
        time.sleep(0.1)
    return value


def test_nothing_is_dropped_on_any_shape_and_the_state_stays_small(
    spark: SparkSession, kafka: Broker, topics: dict[str, str], tmp_path: Path
) -> None:
    frames = {shape: read(spark, kafka, topic, aligned()) for shape, topic in topics.items()}
    outcome = run(tmp_path, **frames)
    for windows in outcome.values():
        nothing_is_lost(windows)
        assert all(each["maxDriftMs"] == MAX_DRIFT_MS for each in windows.figures)
    some = [each for each in outcome["lagging"].figures if each["held"]]
    assert some, "those ahead were held"
    assert all(each["driftMs"] > 0 for each in some)
    assert any(len(each["splits"]) == 4 for each in some), "until they are read to their ends"


def test_without_alignment_rows_are_dropped(
    spark: SparkSession, kafka: Broker, topics: dict[str, str], json_topic: tuple[str, int], tmp_path: Path
) -> None:
    """Guards the others: the same input, and rows are lost.

    What breaks it breaks
    `tests/real/test_kafka_alignment.py::test_nothing_is_dropped_on_any_shape_and_the_state_stays_small` too, or that
    partitions lag `tests/unit/test_bench_align.py`.
    """
    topic, rows = json_topic
    outcome = run(
        tmp_path,
        stamped=read(spark, kafka, topics["lagging"], {"maxOffsetsPerTrigger": ROWS // 20}),
        parsed=read(spark, kafka, topic, {"valueFormat": "json", "maxOffsetsPerTrigger": rows // 10}),
    )
    stamped, parsed = outcome.values()
    assert stamped.counted < ROWS * 0.97
    assert stamped.dropped_by_spark > 0
    assert max(stamped.of_operators("numRowsTotal")) > MOST_OPEN_WINDOWS
    assert parsed.counted < rows


def test_an_event_time_that_is_a_field_of_the_value_is_as_exact(
    spark: SparkSession, kafka: Broker, json_topic: tuple[str, int], tmp_path: Path
) -> None:
    """What breaks it breaks `tests/unit/connectors/kafka/test_kafka_event_times.py` or
    `tests/real/test_kafka_event_time.py::test_an_event_time_that_is_a_field_of_the_values` too.
    """
    topic, rows = json_topic
    frame = read(spark, kafka, topic, aligned(valueFormat="json", eventTimeColumn="at"))
    nothing_is_lost(run(tmp_path, parsed=frame)["parsed"], rows)


def test_two_sources_of_a_query_are_one_group_and_a_stop_in_the_middle_loses_nothing(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """One topic is three minutes ahead of the other, in which a partition lags.

    What breaks it breaks
    `tests/real/test_event_time_stream.py::test_two_sources_of_one_query_are_aligned_and_nothing_is_late` and
    `tests/real/test_event_time_stream.py::test_a_query_that_is_stopped_in_the_middle_goes_on_aligned` too.
    """
    times = [each.tolist() for each in Topic("lagging", ROWS, LAG_MS).event_times()]
    ahead = [[at_ms + 180_000 for at_ms in each] for each in times[1:]]
    rows = ROWS + sum(map(len, ahead))
    options = aligned()
    frames = []
    for name, all_ms in (("ahead", ahead), ("lagging", times)):
        fill(kafka, create_topic(kafka.plain, f"{topic_name[:60]}-{name}", len(all_ms)), all_ms)
        frames.append(read(spark, kafka, f"{topic_name[:60]}-{name}", options))
    windows = Windows(frames[0].union(frames[1]), tmp_path, last_row=rows * 3 // 4)
    for share in (4, 2):
        query = windows.start(availableNow=True)
        until(lambda share=share: windows.counted >= rows // share, query)
        query.stop()
        windows.progress += query.recentProgress
    assert windows.counted < rows, "it was stopped in the middle"
    windows.last_row = None
    windows.finish(windows.start(availableNow=True))
    nothing_is_lost(windows, rows)


def test_a_partition_that_is_empty_or_begins_later_holds_nobody_and_loses_nothing(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    """With an ordinary trigger: what is read to its end is idle after a second, and votes again with its next row.

    What breaks it breaks
    `tests/real/test_kafka_alignment.py::test_a_partition_at_its_end_holds_the_others_until_it_is_idle` too.
    """
    create_topic(kafka.plain, topic_name, 6)
    times = [each.tolist() for each in Topic("lagging", ROWS, LAG_MS).event_times()]
    fill(kafka, topic_name, times)
    frame = read(spark, kafka, topic_name, aligned(**{"scan.watermark.idle-timeout": "1 second"}))
    windows = Windows(frame, tmp_path)
    query = windows.start(processingTime="0 seconds")
    until(lambda: windows.counted == ROWS, query)
    end_ms = max(map(max, times))
    fill(kafka, topic_name, [[], [], [], [], [], [*range(end_ms, end_ms + 200_000, 1000)]])
    until(lambda: windows.counted == ROWS + 200, query)
    fill(kafka, topic_name, [[*range(end_ms + 180_000, end_ms + 400_000, 1000)]])
    until(lambda: windows.counted == ROWS + 420, query)
    query.stop()
    windows.progress += query.recentProgress
    nothing_is_lost(windows, ROWS + 420)


def test_a_partition_at_its_end_holds_the_others_until_it_is_idle(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    create_topic(kafka.plain, topic_name, 2)
    fill(kafka, topic_name, [[*range(10**9, 10**9 + 60_000, 1000)], [*range(10**9, 10**9 + 400_000, 1000)]])
    waiting = Windows(read(spark, kafka, topic_name, aligned()), tmp_path / "waiting")
    going_on = Windows(
        read(spark, kafka, topic_name, aligned(**{"scan.watermark.idle-timeout": "1 second"})), tmp_path / "going-on"
    )
    first, second = waiting.start(processingTime="0 seconds"), going_on.start(processingTime="0 seconds")
    until(lambda: going_on.counted == 460, second)
    second.stop()
    until(lambda: waiting.counted > 60, first)
    assert 60 < waiting.counted <= 60 + 111, "no further than the drift after the last row of the first one"
    figures = until(lambda: alignment_of(first), first)
    assert figures["splits"][f"{topic_name}-1"]["held"] and figures["held"] == 1
    assert not figures["splits"][f"{topic_name}-0"]["held"]
    assert waiting.counted <= 60 + 111
    fill(kafka, topic_name, [[10**9 + 399_000]])
    until(lambda: waiting.counted == 461, first)
    first.stop()
    waiting.progress += first.recentProgress
    nothing_is_lost(waiting, 461)


def test_without_any_drift_rows_come_time_by_time(
    spark: SparkSession, kafka: Broker, topic_name: str, tmp_path: Path
) -> None:
    create_topic(kafka.plain, topic_name, 2)
    begin_ms = 10**9
    fill(kafka, topic_name, [[begin_ms, begin_ms, begin_ms + 1, begin_ms + 70_000], [begin_ms + 1, begin_ms + 90_000]])
    options = aligned(**{"scan.watermark.alignment.max-drift": "0 seconds"})
    windows = Windows(read(spark, kafka, topic_name, options), tmp_path, delay_ms=0)
    windows.finish(windows.start(availableNow=True))
    nothing_is_lost(windows, 6)
    assert [each["numInputRows"] for each in windows.progress if each["numInputRows"]] == [2, 2, 1, 1]


def alignment_of(query: Any) -> Any:
    """Return the figures of a query whose splits are held, or None."""
    progress = query.lastProgress
    shown = json.loads(progress["sources"][0]["latestOffset"] or "null") if progress else None
    return shown["alignment"] if shown and shown["alignment"]["held"] else None
