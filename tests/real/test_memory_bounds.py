"""What docs/sizing.md says of a worker's memory: bounds are filled, and the worker has no more than them, and 200 MB.

The rows are a kibibyte each, of bytes that cannot be compressed, and several times as many as bound and allowance hold.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from headgate.state.mapped_files import RESIDENT_BYTES
from tests.real.running_queries import stop_all, wait_until, written

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

MIB = 1 << 20
ALLOWED = 200_000_000
"""What a worker may have beside the bounds: Python with its libraries, and what works on the rows."""
FREED = 100_000_000
"""What was freed and stays with the process, where chunks are uploaded: more on a busy machine."""
READERS = 16 * MIB
"""What the readers of a source fetch ahead."""
EXCHANGE = 5 * MIB
"""`exchange.memory`, and a quarter of it for what waits at a producer."""
ROW_BYTES = 1024
ROWS = 320 * 1024
EMPTY = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", "UTC"), "payload": pa.binary()})


class WideRows(headgate.SimpleSource):
    """Rows of a kibibyte, in batches of which each is a small part of what was fetched; then silence."""

    name = "wide-rows"
    schema = "n bigint, at timestamp, payload binary"

    def splits(self) -> list[str]:
        return ["0"]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        rows, each = int(self.options["rows"]), 8 * 1024
        noise = np.random.default_rng(1).bytes((each + 1) * ROW_BYTES)
        offsets = pa.py_buffer((np.arange(each + 1, dtype=np.int32) * ROW_BYTES).tobytes())
        for begin in range(position or 0, rows, each):
            numbers = np.arange(begin, begin + each)
            payload = pa.Array.from_buffers(pa.binary(), each, [None, offsets, pa.py_buffer(bytes(noise[:-ROW_BYTES]))])
            at = pa.array(numbers, pa.timestamp("us", "UTC"))
            fetched = pa.record_batch({"n": pa.array(numbers), "at": at, "payload": payload})
            for first in range(0, each, 1024):
                yield fetched.slice(first, 1024), begin + first + 1024
        while True:
            time.sleep(0.01)
            yield pa.record_batch({"n": [], "at": [], "payload": []}, schema=EMPTY), rows


def wide_rows(spark: SparkSession, rows: int) -> DataFrame:
    headgate.register(spark, WideRows)
    return spark.readStream.format(WideRows.name).option("rows", rows).load()


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def peak(query: headgate.ContinuousQuery) -> int:
    """Return the most memory that the query's only worker has had, in bytes."""
    (slot,) = query.status["slots"]
    (line,) = [each for each in Path(f"/proc/{slot['pid']}/status").read_text().splitlines() if "VmHWM" in each]
    return int(line.split()[1]) * 1024


def begun(program: DataFrame, folder: Path, mode: str = "append", **options: str) -> headgate.ContinuousQuery:
    options |= {"exchange.memory": "4m", "checkpointLocation": str(folder / "checkpoints")}
    began_s = time.time()
    query = written(program, "noop", 1, **options).outputMode(mode).start()
    pid = wait_until(lambda: query.status["slots"][0]["pid"], query)
    while psutil.Process(pid).create_time() < began_s:  # it had another query, and keeps some of that one's memory
        os.kill(pid, signal.SIGKILL)
        before = pid
        wait_until(lambda before=before: query.status["slots"][0]["pid"] not in (0, before), query)
        pid = query.status["slots"][0]["pid"]
    return query


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        time.sleep(1)
        yield each


def test_readers_and_exchanges(spark: SparkSession, tmp_path: Path) -> None:
    """A slow function fills what is before it: buffers, queues, and what is fetched ahead, with what it is part of."""
    rows = wide_rows(spark, ROWS)
    query = begun(rows.repartition(1, "n").mapInArrow(slow, rows.schema), tmp_path)

    def is_full() -> bool:
        before = query.status["rowsIn"]
        time.sleep(1)
        return before > 0 and query.status["rowsIn"] - before < 4 * 1024

    wait_until(is_full, query)
    assert query.status["rowsIn"] < ROWS
    assert peak(query) < READERS + EXCHANGE + ALLOWED


PROGRAMS: dict[str, Callable[[DataFrame], DataFrame]] = {
    "windows": lambda rows: (
        rows.withWatermark("at", "1 hour").groupBy(F.window("at", "1 hour"), "payload", "n").count()
    ),
    "sessions": lambda rows: (
        rows.withWatermark("at", "1 hour").groupBy(F.session_window("at", "1 hour"), "payload", "n").count()
    ),
    "an aggregation": lambda rows: rows.groupBy("payload", "n").count(),
    "known keys": lambda rows: rows.dropDuplicates(["payload", "n"]),
    "a join": lambda rows: rows.join(rows.where("n % 100 = 0").selectExpr("n AS m"), F.expr("n = m")),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_state_and_its_uploads(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Beyond `state.memory` it is in files, which do not stay in memory, and checkpoints hold little of it."""
    mode = "update" if name == "an aggregation" else "append"
    query = begun(PROGRAMS[name](wide_rows(spark, ROWS)), tmp_path, mode, **{"state.memory": "16m"})
    wait_until(lambda: query.status["rowsIn"] >= ROWS and query.lastProgress, query)
    done = query.lastProgress["batchId"]
    wait_until(lambda: query.lastProgress["batchId"] >= done + 2, query)
    # Held, and merged with copies; of four chunks, rows and bytes; what is mapped.
    state = 3 * 16 * MIB + 2 * 16 * MIB + RESIDENT_BYTES
    assert peak(query) < READERS + EXCHANGE + state + FREED + ALLOWED
