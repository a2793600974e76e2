"""A continuous query over day-files in any order, on real Spark: two readers, and no late row."""

from __future__ import annotations

import datetime
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from tests.real.running_queries import read_values, stop_all, wait_until, written

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

DAYS, ROWS_A_DAY = 100, 24
START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
Batch = dict[str, Any]
Shown = tuple[float, float]
A_ROW_S, AT_FIRST = 0.004, 12
"""How long each row takes: the query is looked at while it reads. So many times as long until it was."""


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


@pytest.fixture
def days(tmp_path: Path) -> Path:
    """Write the days in an order of their own."""
    folder = tmp_path / "days"
    folder.mkdir()
    rng = random.Random(6)
    for number, day in enumerate(rng.sample(range(DAYS), DAYS)):
        times = [START + datetime.timedelta(days=day, hours=24 * row / ROWS_A_DAY) for row in range(ROWS_A_DAY)]
        values = range(day * ROWS_A_DAY, (day + 1) * ROWS_A_DAY)
        columns = {"at": pa.array(times, pa.timestamp("us", "UTC")), "value": pa.array(values, pa.int64())}
        path = folder / f"{rng.getrandbits(32):08x}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=ROWS_A_DAY // 2)
        os.utime(path, (number + 1, number + 1))
    return folder


def slowly(log: str, looked: str) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return a function that takes its time with each batch, and writes down when it came and from when it is.

    It takes more of it until the file ``looked`` is there.
    """

    def function(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            earliest = pc.min(batch.column("at")).as_py().timestamp()
            line = json.dumps({"worker": os.getpid(), "came": time.time(), "earliest": earliest, "rows": len(batch)})
            with open(log, "a", encoding="utf-8") as file:
                file.write(line + "\n")
            time.sleep(A_ROW_S * len(batch) * (1 if os.path.exists(looked) else AT_FIRST))
            yield batch.select(["value"])

    return function


def came(log: Path) -> list[Batch]:
    """Return what was written down so far; a line that is being written is left out."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def watermark_s(progress: StreamingQueryProgress) -> float | None:
    shown = progress.eventTime.get("watermark")
    return None if shown is None else datetime.datetime.fromisoformat(shown.replace("Z", "+00:00")).timestamp()


def read_slowly(
    spark: SparkSession, days: Path, place: Path, looks: int, **options: str
) -> tuple[list[Batch], list[Shown]]:
    """Read all days; return the batches as they came, and the watermarks that the driver showed meanwhile, and when.

    ``looks``: so many watermarks are looked at before the readers hurry.
    """
    log, looked = place / "log", place / "looked"
    files = spark.readStream.format("headgate.files").options(fileFormat="parquet", **options)
    rows = files.schema("at timestamp, value long").load(str(days)).withWatermark("at", "1 hour")
    query = (
        written(rows.mapInArrow(slowly(str(log), str(looked)), "value long"), "parquet", interval="200 milliseconds")
        .option("path", place / "out")
        .option("publishInterval", "0 seconds")
        .option("checkpointLocation", place / "checkpoints")
        .start()
    )
    shown: list[Shown] = []
    both_reported: list[int] = []

    def all_came() -> bool:
        progress, batches = query.lastProgress, came(log)
        # Before both readers have reported a watermark the lowest one shown is not yet that of both: they do so with a
        # checkpoint after their first batches.
        if not both_reported and len({each["worker"] for each in batches}) == 2:
            both_reported.append(query.checkpoint())
        if both_reported and progress is not None and progress.batchId >= both_reported[0]:
            seen = watermark_s(progress)
            if seen is not None:
                shown.append((time.time(), seen))
        if len({seen for _, seen in shown}) >= looks:
            looked.touch()
        return bool(sum(each["rows"] for each in batches) >= DAYS * ROWS_A_DAY)

    wait_until(all_came, query)
    query.stop(drain=True)
    assert read_values(spark, place / "out") == list(range(DAYS * ROWS_A_DAY))
    assert looked.exists(), "the watermark was not looked at"
    return came(log), shown


def late(batches: list[Batch], shown: list[Shown]) -> list[Batch]:
    """Return the batches with rows below a watermark that the driver had shown before they came."""
    return [each for each in batches if any(each["came"] > at and each["earliest"] < seen for at, seen in shown)]


def test_no_row_of_a_hundred_days_is_late(spark: SparkSession, days: Path, tmp_path: Path) -> None:
    """`withWatermark` alone is enough for the source to know which column it is."""
    batches, shown = read_slowly(spark, days, tmp_path, looks=3)
    assert late(batches, shown) == []
    of_workers: dict[int, list[float]] = {}
    for batch in batches:
        of_workers.setdefault(batch["worker"], []).append(batch["earliest"])
    assert len(of_workers) == 2
    for read in of_workers.values():
        assert read == sorted(read)


def test_in_the_order_of_modification_most_days_are(spark: SparkSession, days: Path, tmp_path: Path) -> None:
    """What is tested above is not true by itself: an order that the user asks for wins."""
    after = late(*read_slowly(spark, days, tmp_path, looks=1, latestFirst="true"))
    assert sum(each["rows"] for each in after) > DAYS * ROWS_A_DAY // 4
