"""Files as a stream: new ones are found, whatever their time; a kill at any moment loses and repeats nothing."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from conformance.spark import changed_settings
from headgate.spark.compatibility import supports

SCHEMA = "id bigint, name string"


def put(folder: Path, name: str, ids: range, age_s: float = 0) -> None:
    """Move a complete file in, as producers should."""
    hidden = folder / f".{name}"
    hidden.write_text("".join(f"{n},name-{n}\n" for n in ids))
    if age_s:
        os.utime(hidden, (time.time() - age_s, time.time() - age_s))
    os.replace(hidden, folder / name)


def stream(spark: SparkSession, folder: Path, **options: Any) -> DataFrame:
    return (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "csv")
        .option("discovery.interval", "200 milliseconds")
        .options(**options)
        .schema(SCHEMA)
        .load(str(folder))
    )


def run(frame: DataFrame, work: Path) -> Any:
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(work / "out"))
        .option("checkpointLocation", str(work / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(150)
    return query


def ids(spark: SparkSession, work: Path) -> list[int]:
    return sorted(row.id for row in spark.read.schema(SCHEMA).parquet(str(work / "out")).collect())


def test_new_files_are_found_also_with_an_old_modification_time(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "b.csv", range(10))
    run(stream(spark, folder), tmp_path)
    put(folder, "a.csv", range(10, 20), age_s=3600)
    put(folder, "_hidden.csv", range(1000, 1010))
    (folder / ".also").write_text("1001,x\n")
    run(stream(spark, folder), tmp_path)
    run(stream(spark, folder), tmp_path)
    assert ids(spark, tmp_path) == list(range(20))


@pytest.mark.spark_since("read-limits")
def test_limits_of_files_hold_and_available_now_reads_all(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(25):
        put(folder, f"{n:03}.csv", range(n * 4, n * 4 + 4))
    query = run(stream(spark, folder, maxFilesPerTrigger=10), tmp_path)
    assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [40, 40, 20]
    after = [json.loads(progress.sources[0].latestOffset)["filesBehind"] for progress in query.recentProgress]
    assert after[0] == 15
    assert ids(spark, tmp_path) == list(range(100))


@pytest.mark.spark_since("read-limits")
def test_a_large_file_is_read_in_several_batches_and_tasks(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "large.csv", range(20_000))
    size = (folder / "large.csv").stat().st_size
    run(stream(spark, folder, splitSize=size // 7, maxBytesPerTrigger=size // 3), tmp_path)
    assert ids(spark, tmp_path) == list(range(20_000))


@pytest.mark.spark_since("read-limits")
def test_plans_and_seen_files_move_to_state_location(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(300):
        put(folder, f"{n:03}-{'x' * 60}.csv", range(n, n + 1))
    query = run(stream(spark, folder, stateLocation=str(tmp_path / "state"), maxFilesPerTrigger=200), tmp_path)
    assert all(len(progress.sources[0].endOffset) < 4000 for progress in query.recentProgress)
    put(folder, "more.csv", range(300, 310))
    run(stream(spark, folder, stateLocation=str(tmp_path / "state"), maxFilesPerTrigger=200), tmp_path)
    assert ids(spark, tmp_path) == list(range(310))


def test_a_query_that_ended_inside_a_micro_batch_repeats_it_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    """Before Spark 4.2 the first start ends with the batch that it repeats."""
    folder, checkpoint, log = tmp_path / "in", tmp_path / "checkpoint", tmp_path / "out" / "_spark_metadata"
    folder.mkdir()
    for n in range(2):
        put(folder, f"{n}.csv", range(n * 10, n * 10 + 10))
        run(stream(spark, folder), tmp_path)
    for each in (checkpoint / "commits", log):  # as a kill after planning and before committing leaves it
        (each / "1").unlink()
        (each / ".1.crc").unlink()
    put(folder, "2.csv", range(20, 30))
    for _ in range(2):
        run(stream(spark, folder), tmp_path)
    assert ids(spark, tmp_path) == list(range(30))


def test_spark_s_wrapper_of_available_now_repeats_and_loses_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Before Spark 4.2 it plans too early, and a query that starts again is an error; later no source needs it."""
    folder = tmp_path / "in"
    folder.mkdir()
    put(folder, "a.csv", range(10))
    with changed_settings(spark, {"spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true"}):
        run(stream(spark, folder), tmp_path)
        assert ids(spark, tmp_path) == list(range(10))
        put(folder, "b.csv", range(10, 20))
        if supports("available-now"):
            run(stream(spark, folder), tmp_path)
        else:
            with pytest.raises(StreamingQueryException, match="triggerAvailableNowWrapper"):
                run(stream(spark, folder), tmp_path)
    run(stream(spark, folder), tmp_path)
    assert ids(spark, tmp_path) == list(range(20))


def test_parquet_row_groups_stream(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    table = pa.table({"id": range(50_000), "name": ["x"] * 50_000})
    pq.write_table(table, folder / "a.parquet", row_group_size=5000)
    frame = (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "parquet")
        .option("splitSize", (folder / "a.parquet").stat().st_size // 4)
        .schema(SCHEMA)
        .load(str(folder))
    )
    run(frame, tmp_path)
    assert ids(spark, tmp_path) == list(range(50_000))


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.spark_since("read-limits")
def test_kills_lose_and_repeat_nothing(spark: SparkSession, tmp_path: Path, seed: int) -> None:
    """A query's process dies by SIGKILL again and again while files arrive; the last run completes it.

    What breaks it breaks
    `tests/real/test_files_stream.py::test_a_query_that_ended_inside_a_micro_batch_repeats_it_and_goes_on` too.
    """
    folder, random_ = tmp_path / "in", random.Random(seed)
    folder.mkdir()
    program = textwrap.dedent(
        f"""
        import sys
        from pyspark.sql import SparkSession
        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false") \\
            .config("spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart", "false").getOrCreate()
        frame = spark.readStream.format("headgate.files").option("fileFormat", "csv").schema({SCHEMA!r}) \\
            .option("discovery.interval", "100 milliseconds").option("maxFilesPerTrigger", 2) \\
            .option("splitSize", 5000).load({str(folder)!r})
        writer = frame.writeStream.format("parquet").option("path", {str(tmp_path / "out")!r}) \\
            .option("checkpointLocation", {str(tmp_path / "checkpoint")!r})
        print("ready", flush=True)
        writer.start().awaitTermination()
        """
    )
    (tmp_path / "program.py").write_text(program)
    total = 0
    # What a kill in the middle of Spark's first offset leaves: rare by chance, so it is put here in each run.
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / ".0.5e7f.tmp").write_bytes(b"v1")
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            for _ in range(6):
                count = random_.randrange(1, 1500)
                put(folder, f"{total:07}.csv", range(total, total + count))
                total += count
                time.sleep(random_.uniform(0.05, 0.6))
            time.sleep(random_.uniform(0.0, 4.0))
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    run(stream(spark, folder, splitSize=5000), tmp_path)
    assert ids(spark, tmp_path) == list(range(total))
