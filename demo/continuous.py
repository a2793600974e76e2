"""The continuous part of the demo: months arrive, a slot's process is killed, the query is rescaled, then it ends.

Never: restart anything by hand: what is killed recovers automatically.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from rich.console import Console

import headgate
from demo import data
from demo.proof import committed_files
from demo.query import SCHEMA

MONTH_EVERY_S = 0.7
KILL_AT, RESCALE_AT = 4, 8  # months that have arrived
PATIENCE_S = 180


def session() -> SparkSession:
    """Return a session with four cores, on which Spark tries a dead task again."""
    spark = (
        SparkSession.builder.master("local[4,4]")
        .appName("demo-continuous")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")  # a killed worker is an error to Spark, which prints its stack
    return spark


def start(spark: SparkSession, folder: Path, sink: Path, checkpoint: Path) -> headgate.ContinuousQuery:
    """Start the query with two slots: a program as a user writes it."""
    flights = (
        spark.readStream.format("headgate.files")
        .option("fileFormat", "csv")
        .option("header", True)
        .option("nullValue", "NA")
        .option("discovery.interval", "200 milliseconds")
        .schema(SCHEMA)
        .load(str(folder))
    )
    return (
        headgate.continuous(flights, parallelism=2)
        .writeStream.queryName("flights")
        .format("parquet")
        .option("path", str(sink))
        .option("publishInterval", "1 second")
        .option("checkpointLocation", str(checkpoint))
        .trigger(continuous="1 second")
        .start()
    )


def run(spark: SparkSession, out: Path, rows_by_file: dict[str, int], console: Console) -> Path:
    """Run it to the end; return the sink's folder."""
    folder, sink = out / "arriving-continuously", out / "flights-continuous.parquet"
    folder.mkdir()
    query = start(spark, folder, sink, out / "checkpoint-continuous")
    began, arrived, killed_at = time.monotonic(), 0, 0.0

    def say(text: str) -> None:
        console.print(f"   {time.monotonic() - began:5.1f} s  {text}", soft_wrap=True)

    say(f"its dashboard: {query.dashboard()}")
    for month in data.MONTHS:
        for airport in data.AIRPORTS:
            name = data.file_name(month, airport)
            shutil.copy2(data.FOLDER / name, out / name)
            os.replace(out / name, folder / name)
            arrived += rows_by_file[name]
        if month == KILL_AT:
            _wait(query, lambda: _read(query) > 0)
            victim = query.status["slots"][0]["pid"]
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            say(f"killed the process of slot 0 (SIGKILL, pid {victim})")
            _wait(query, lambda gone=victim: query.status["slots"][0]["pid"] not in (0, gone) and _running(query))
            say(f"slot 0 is back after {time.monotonic() - killed_at:.1f} s, restored from checkpoint and log")
        if month == RESCALE_AT:
            query.rescale(3)
            say("rescaled from 2 to 3 slots")
        time.sleep(MONTH_EVERY_S)
    _wait(query, lambda: _committed(sink) >= arrived)
    query.stop(drain=True)
    say(f"all {arrived:,} flights had arrived; drained: the last checkpoint is committed")
    return sink


def _read(query: headgate.ContinuousQuery) -> int:
    return int(query.status["rowsIn"])


def _committed(sink: Path) -> int:
    """Return how many flights the sink has published so far."""
    return sum(pq.read_metadata(path).num_rows for path in committed_files(sink))


def _running(query: headgate.ContinuousQuery) -> bool:
    return bool(query.status["message"] == "running")


def _wait(query: headgate.ContinuousQuery, until: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        if not query.isActive:
            raise SystemExit(f"The continuous query ended on its own: {query.exception()}")
        if time.monotonic() > deadline:
            raise SystemExit(f"The continuous query did not get on in {PATIENCE_S} s: {query.status}")
        time.sleep(0.05)
