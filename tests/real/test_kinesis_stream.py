"""Kinesis from Spark, batch and stream: resharding, restarts, replays, an idle stream; over moto's server."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from local.kinesis import ACCESS_KEY, REGION, SECRET_KEY, FaultyProxy, MotoServer, Stream

COLUMNS = ["data", "streamName", "partitionKey", "sequenceNumber", "shardId", "approximateArrivalTimestamp"]

Batches = dict[int, list[int]]


def options(url: str, name: str, **more: Any) -> dict[str, Any]:
    return {
        "streamName": name, "region": REGION, "endpointUrl": url, "awsAccessKey": ACCESS_KEY,
        "awsSecretKey": SECRET_KEY, **more,
    }  # fmt: skip


def start(frame: DataFrame, folder: Path, batches: Batches, **trigger: Any) -> StreamingQuery:
    """Start a query that keeps the rows of each batch, sorted, by the batch's number."""

    def keep(rows: DataFrame, number: int) -> None:
        batches[number] = sorted(int(bytes(row[0])) for row in rows.select("data").collect())

    writer = frame.writeStream.foreachBatch(keep).option("checkpointLocation", str(folder))
    return (writer.trigger(**trigger) if trigger else writer).start()


def run(spark: SparkSession, url: str, name: str, folder: Path, **more: Any) -> Batches:
    """Read what is there now, in as many batches as it takes."""
    batches: Batches = {}
    frame = spark.readStream.format("headgate.kinesis").options(**options(url, name, **more)).load()
    query = start(frame, folder, batches, availableNow=True)
    query.awaitTermination()
    return batches


def rows(*batches: Batches) -> list[int]:
    return sorted(row for each in batches for of_batch in each.values() for row in of_batch)


def last_offset(folder: Path) -> dict[str, Any]:
    number = max(int(path.name) for path in (folder / "offsets").glob("[0-9]*"))
    offset: dict[str, Any] = json.loads((folder / "offsets" / str(number)).read_text().splitlines()[2])
    return offset


def wait_for(condition: Any, query: StreamingQuery) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.02)


def test_a_batch_has_all_columns_or_those_of_the_schema(spark: SparkSession, aws: MotoServer, topic_name: str) -> None:
    stream = Stream(aws, topic_name, 2)
    numbers = stream.put(range(50))
    reader = spark.read.format("headgate.kinesis").options(**options(aws.url, topic_name))
    whole = reader.load()
    assert whole.columns == COLUMNS
    found = {int(bytes(row.data)): row for row in whole.collect()}
    assert sorted(found) == list(range(50))
    for number, sequence_number in enumerate(numbers):
        row = found[number]
        assert (row.partitionKey, row.sequenceNumber, row.streamName) == (str(number), sequence_number, topic_name)
        assert abs(row.approximateArrivalTimestamp.timestamp() - time.time()) < 600
    assert {row.shardId for row in found.values()} == {"shardId-000000000000", "shardId-000000000001"}
    some = reader.schema("SHARDID string, partitionKey string").load()
    assert sorted((row.SHARDID, row.partitionKey) for row in some.collect()) == sorted(
        (row.shardId, row.partitionKey) for row in found.values()
    )


@pytest.mark.spark_since("read-limits")
def test_available_now_through_splits_merges_and_restarts(
    spark: SparkSession, aws: MotoServer, topic_name: str, tmp_path: Path
) -> None:
    stream = Stream(aws, topic_name, 2)
    stream.put(range(20))
    first = run(spark, aws.url, topic_name, tmp_path, startingPosition="trim_horizon")
    assert rows(first) == list(range(20))

    stream.put(range(20, 30))
    stream.split(0)
    stream.put(range(30, 60))
    stream.merge(3, 1)
    stream.put(range(60, 70))
    second = run(spark, aws.url, topic_name, tmp_path, maxRowsPerTrigger=18)
    assert rows(second) == list(range(20, 70))
    assert max(map(len, second.values())) <= 18

    offset = last_offset(tmp_path)
    assert sorted(offset["enumerator"]["assigned"]) == ["shardId-000000000002", "shardId-000000000004"]
    text = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".crc")
    assert SECRET_KEY not in text and ACCESS_KEY not in text

    # As if it had been killed before it committed the last batch: the same rows again, whatever has come since.
    numbers = sorted(second)
    (tmp_path / "commits" / str(numbers[-1])).unlink()
    (tmp_path / "commits" / f".{numbers[-1]}.crc").unlink(missing_ok=True)
    stream.put(range(70, 75))
    third = run(spark, aws.url, topic_name, tmp_path, maxFetchRecordsPerShard=2)
    assert third.pop(numbers[-1]) == second[numbers[-1]]
    assert rows(third) == list(range(70, 75))
    assert max(map(len, third.values())) <= 4  # two shards are open


def test_latest_is_resolved_once_even_if_the_first_batch_never_commits(
    spark: SparkSession, aws: MotoServer, topic_name: str, tmp_path: Path
) -> None:
    """Before Spark 4.2 the first of the two starts ends with the batch that it repeats."""
    stream = Stream(aws, topic_name, 2)
    stream.put(range(10))
    assert rows(run(spark, aws.url, topic_name, tmp_path)) == []
    shutil.rmtree(tmp_path / "commits")
    stream.put(range(10, 20))
    found = [run(spark, aws.url, topic_name, tmp_path) for _ in range(2)]
    assert rows(*found) == list(range(10, 20))


def test_a_running_stream(
    spark: SparkSession, aws: MotoServer, faulty: FaultyProxy, topic_name: str, tmp_path: Path
) -> None:
    """Idle it plans nothing and asks little; then it is throttled, its iterators expire, and a shard is split."""
    stream = Stream(aws, topic_name, 2)
    stream.put(range(10))
    batches: Batches = {}
    chosen = options(faulty.url, topic_name, discoveryInterval="500 milliseconds")
    query = start(spark.readStream.format("headgate.kinesis").options(**chosen).load(), tmp_path, batches)
    try:
        wait_for(lambda: faulty.calls["GetRecords"] >= 4, query)  # two for the start, two for the first plan
        begun, calls = time.monotonic(), faulty.calls["GetRecords"]
        wait_for(lambda: faulty.calls["GetRecords"] >= calls + 8, query)
        # Two shards, each once a second by the time at which a plan began: eight calls take two seconds at least, even
        # if the first two are of a plan that was held up. Spark plans hundreds of times in it.
        assert time.monotonic() - begun > 1.5, "an idle shard is asked once a second, not at each plan"
        assert rows(batches) == [] and len(batches) <= 1

        faulty.answer_with("GetRecords", "ProvisionedThroughputExceededException", times=3)
        faulty.answer_with("GetRecords", "ExpiredIteratorException", times=2)
        faulty.answer_with("ListShards", "LimitExceededException", times=2)
        stream.put(range(10, 20))
        stream.split(0)
        stream.put(range(20, 30))
        wait_for(lambda: len(rows(batches)) >= 20, query)
        stream.put(range(30, 40))
        wait_for(lambda: len(rows(batches)) >= 30, query)
        wait_for(lambda: (tmp_path / "commits" / str(max(batches))).exists(), query)  # else it is rightly read again
        assert query.lastProgress is not None
        assert SECRET_KEY not in str(query.lastProgress) and ACCESS_KEY not in str(query.lastProgress)
    finally:
        query.stop()
    assert rows(batches) == list(range(10, 40))
    assert faulty.faults_left == 0
    # A restart reads on where it was.
    stream.put(range(40, 45))
    assert rows(run(spark, aws.url, topic_name, tmp_path)) == list(range(40, 45))
