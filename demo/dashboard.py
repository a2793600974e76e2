"""A query to look at: two sources aligned in event time, a slow function, windows, and the dashboard that shows them.

Never: end by itself, but for ``--pictures``, which writes docs/images/dashboard*.png and ends.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from demo import continuous, data

RATES = {"taxi": 1800, "bus": 600}  # rides a second
SLOTS = 3
BUSES_LATE_S = 45  # in event time, when the query starts; taxis may be read a third of that ahead
ROW_MS = 0.95  # what the slow function takes for a ride
SCHEMA = "ride long, driver string, fare double, at timestamp, kind string"
IMAGES = data.ROOT / "docs" / "images"
PICTURES = (("dashboard", 1440, False), ("dashboard-dark", 1440, True), ("dashboard-phone", 390, False))
SEEN_AFTER_S = 75  # of a query that is shown in pictures
PATIENCE_S = 180


def rides(spark: SparkSession, kind: str) -> DataFrame:
    """Return an endless stream of rides of one kind."""
    start_s = time.time() - (BUSES_LATE_S if kind == "bus" else 0)
    return (
        spark.readStream.format("headgate.datagen")
        .option("rowsPerSecond", RATES[kind])
        .option("numPartitions", 6 if kind == "taxi" else 3)
        .option("startTimestamp", round(start_s * 1000))
        .option("fields.driver.cardinality", 500)
        .option("fields.driver.skew", 0.6)
        .option("fields.fare.min", 3)
        .option("fields.fare.max", 90)
        .option("eventTimeColumn", "at")
        .option("scan.watermark.alignment.group", "rides")
        .option("scan.watermark.alignment.max-drift", f"{BUSES_LATE_S // 3} seconds")
        .schema("ride long, driver string, fare double, at timestamp")
        .load()
        .alias(kind)
        .withWatermark("at", f"{BUSES_LATE_S // 3} seconds")
        .withColumn("kind", F.lit(kind))
    )


def start(spark: SparkSession, out: Path) -> headgate.ContinuousQuery:
    """Start the query: a program as a user writes it."""
    row_s = ROW_MS / 1000

    def price(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Stand for work that takes its time over every ride."""
        for batch in batches:
            time.sleep(row_s * batch.num_rows)
            yield batch

    fares = (
        rides(spark, "taxi")
        .union(rides(spark, "bus"))
        .repartition(SLOTS)
        .mapInArrow(price, SCHEMA)
        .groupBy(F.window("at", "5 seconds"), "kind")
        .agg(F.count("*").alias("rides"), F.sum("fare").alias("fares"))
    )
    return (
        headgate.continuous(fares, parallelism=SLOTS)
        .writeStream.queryName("fares")
        .format("parquet")
        .option("path", str(out / "fares.parquet"))
        .option("checkpointLocation", str(out / "checkpoint-fares"))
        .trigger(continuous="2 seconds")
        .start()
    )


def kill_a_slot(query: headgate.ContinuousQuery) -> None:
    """Kill the process of slot 1, as a machine that fails would."""
    os.kill(query.status["slots"][1]["pid"], signal.SIGKILL)


def take_pictures(url: str) -> None:
    """Write the pictures of the documentation."""
    from local.browser import resize, running_browser, show

    with running_browser() as browser:
        for name, width, dark in (
            ("dashboard", 1440, False),
            ("dashboard-dark", 1440, True),
            ("dashboard-phone", 390, False),
        ):
            show(browser, url, width=width, dark=dark)
            time.sleep(5)  # some snapshots, so that lines go on beyond what the driver kept
            whole = browser.execute_script("return document.documentElement.scrollHeight")
            resize(browser, width, min(whole, 2 * width + 140) if width < 500 else whole)
            time.sleep(2)
            browser.save_screenshot(str(IMAGES / f"{name}.png"))
            print(f"   {(IMAGES / f'{name}.png').relative_to(data.ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="./run demo dashboard", description=__doc__.splitlines()[0])
    parser.add_argument("--pictures", action="store_true", help="write docs/images/dashboard*.png, and end")
    arguments = parser.parse_args()
    out = data.ROOT / "demo-out" / "dashboard"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    spark = continuous.session()
    query = start(spark, out)
    print(f"   {query.dashboard()}", flush=True)
    try:
        if arguments.pictures:
            query.awaitTermination(SEEN_AFTER_S / 3)
            kill_a_slot(query)
            query.awaitTermination(2 * SEEN_AFTER_S / 3)
            take_pictures(query.dashboard())
        else:
            print("   until Ctrl-C", flush=True)
            query.awaitTermination()
    except KeyboardInterrupt:
        print()
    with contextlib.suppress(headgate.errors.HeadgateError):
        query.stop()
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
