"""From load() to the first row: in a session that has done nothing yet (cold), and in one that has (warm).

continuous is a continuous query over a folder of CSV, until a function of the user's is given a row in its slot: 5 s
cold and 1.5 s warm are what is required. read and stream are spark.read and spark.readStream of the same folder, until
a row is in the driver, beside Spark's own CSV source. A cold figure is that of a new driver process whose session is
there before it is timed; a warm one is the median of the same thing done again five times in that process.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

import headgate
from bench.frame import CACHE, Case, WorkerMemory, chosen, measure, report, session, wait_for

SUMMARY = "from load() to the first row, cold and warm"
SCHEMA = "id bigint, name string"
ROWS, AGAIN = 1_000, 5
REQUIRED_S = {"cold": 5.0, "warm": 1.5}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


def _data() -> Path:
    folder = CACHE / "startup"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "rows.csv").write_text("".join(f"{number},name {number}\n" for number in range(ROWS)))
    return folder


def _of(reader: Any, side: str) -> DataFrame:
    """Return the folder's rows as a side reads them."""
    own = {"format": "csv"} if side == "spark" else {"format": "headgate.files", "fileFormat": "csv"}
    frame: DataFrame = reader.format(own.pop("format")).options(**own).schema(SCHEMA).load(str(_data()))
    return frame


def _continuous(spark: SparkSession, side: str, folder: Path) -> float:
    came = str(folder / "came")

    def note(row: Row) -> None:
        with open(came, "a"):
            pass

    begin = time.perf_counter()
    program = headgate.continuous(_of(spark.readStream, side), parallelism=2)
    query = program.writeStream.foreach(note).option("checkpointLocation", str(folder / "checkpoint")).start()
    wait_for(query, Path(came).exists, every_s=0.002)
    seconds = time.perf_counter() - begin
    query.stop()
    return seconds


def _stream(spark: SparkSession, side: str, folder: Path) -> float:
    came: list[Row | None] = []
    begin = time.perf_counter()
    query = (
        _of(spark.readStream, side).writeStream.foreachBatch(lambda rows, _: came.append(rows.first()))
        .option("checkpointLocation", str(folder / "checkpoint")).start()
    )  # fmt: skip
    wait_for(query, lambda: came, every_s=0.002)
    seconds = time.perf_counter() - begin
    query.stop()
    return seconds


def _read(spark: SparkSession, side: str, folder: Path) -> float:
    begin = time.perf_counter()
    assert _of(spark.read, side).first() is not None
    return time.perf_counter() - begin


WAYS = {"continuous": _continuous, "stream": _stream, "read": _read}


def _in_this_process(way: str, side: str) -> dict[str, float]:
    """Return the seconds of a cold start, and of those that follow."""
    spark = session("startup")
    seconds = []
    for _ in range(1 + AGAIN):
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="startup-", ignore_cleanup_errors=True) as folder:
            seconds.append(WAYS[way](spark, side, Path(folder)))
    spark.stop()
    return {"cold": seconds[0], "warm": statistics.median(seconds[1:])}


class _Sessions:
    """What sessions measured that no case has taken yet."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str, str], list[float]] = {}

    def take(self, way: str, side: str, state: str) -> float:
        """Return a figure of a session of its own, which measures both states."""
        waiting = self._left.setdefault((way, side, state), [])
        if not waiting:
            command = [sys.executable, "-m", "bench.startup", way, side]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            for each, seconds in json.loads(done.stdout.splitlines()[-1]).items():
                self._left.setdefault((way, side, each), []).append(seconds)
        return waiting.pop(0)


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    _data()
    sessions = _Sessions()

    def case(way: str, state: str) -> Case:
        def ours() -> float:
            return sessions.take(way, "headgate", state)

        if way == "continuous":
            return Case(f"{way}-{state}", ours, lambda: REQUIRED_S[state], "required")
        return Case(f"{way}-{state}", ours, lambda: sessions.take(way, "spark", state), "spark csv")

    memory = WorkerMemory()
    rounds = 1 if arguments.quick else arguments.rounds
    ways = ["continuous"] if arguments.quick else list(WAYS)
    cases = [case(way, state) for way in ways for state in ("cold", "warm")]
    results = [measure(each, rounds, memory, warm_up=False) for each in chosen(cases, arguments.only)]
    report(
        "startup", results, memory,
        f"local[2], a folder with a CSV file of {ROWS:,} rows. cold: the first thing that a session does; warm: the "
        f"median of {AGAIN} that follow in it.",
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps(_in_this_process(*sys.argv[1:])))
