"""A source that a test moves on by hand, in event time: what there is of each split is in a file of its own."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

import headgate
from tests.real.running_queries import wait_until, written

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
DRIFT_S = 5
SCHEMA = "split string, n bigint, at timestamp, pid bigint"
ALIGNED = {
    "eventTimeColumn": "at",
    "scan.watermark.alignment.group": "seconds",
    "scan.watermark.alignment.max-drift": f"{DRIFT_S} seconds",
}
Read = dict[str, list[int]]


class AlignedRows(headgate.SimpleSource):
    """One row a batch and a second of event time; a split ends when its file says so."""

    name = "aligned-rows"
    schema = SCHEMA
    finite_splits = True

    def splits(self) -> Sequence[str]:
        return sorted(path.stem for path in Path(self.options["folder"]).glob("*.split"))

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        path, n = Path(self.options["folder"]) / f"{split_id}.split", position or 0
        while True:
            reported = json.loads(path.read_text())
            if n < reported["rows"]:
                n += 1
                yield rows_of(split_id, [n - 1]), n
            elif reported["finished"]:
                return
            else:
                time.sleep(0.02)
                yield rows_of(split_id, []), n


def rows_of(split_id: str, numbers: Sequence[int]) -> pa.RecordBatch:
    """Return rows as the source has them."""
    times = [START + datetime.timedelta(seconds=n) for n in numbers]
    return pa.record_batch(
        {
            "split": pa.array([split_id] * len(numbers), pa.string()),
            "n": pa.array(numbers, pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "pid": pa.array([os.getpid()] * len(numbers), pa.int64()),
        }
    )


class RaisesOnce:
    """A user's function that raises once for the split that a file names."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "raises"

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self.path.exists() and self.path.read_text() == batch["split"][0].as_py():
                self.path.unlink()
                raise ValueError("a row that I do not like")
            yield batch


class Rows:
    """Splits of a test, and queries that read them into memory.

    Parameters
    ----------
    ends
        How many rows of each split there are for now.
    """

    def __init__(self, spark: SparkSession, folder: Path, **ends: int) -> None:
        self.spark, self.folder = spark, folder
        folder.mkdir(parents=True, exist_ok=True)
        headgate.register(spark, AlignedRows)
        for split_id, rows in ends.items():
            self.set_rows(split_id, rows)

    def set_rows(self, split_id: str, rows: int, *, finished: bool = False) -> None:
        """Let a split have so many rows, and perhaps end after them."""
        made = self.folder / f"{split_id}.made"
        made.write_text(json.dumps({"rows": rows, "finished": finished}))
        made.rename(self.folder / f"{split_id}.split")

    def load(self, *, bounded: bool = False, **options: Any) -> DataFrame:
        """Read them; nothing is known of their event times."""
        reader: Any = self.spark.read if bounded else self.spark.readStream
        reader = reader.format(options.pop("format", AlignedRows.name))
        made: DataFrame = reader.options(**{"folder": self.folder, "discovery.interval": "100 ms", **options}).load()
        return made

    def aligned(self, **options: Any) -> DataFrame:
        """Read them aligned with each other."""
        return self.load(**ALIGNED, **options)

    def start(
        self,
        frame: DataFrame,
        parallelism: int,
        options: Mapping[str, Any] = MappingProxyType({}),
        savepoint: Path | None = None,
    ) -> headgate.ContinuousQuery:
        """Write a program's rows to memory; slots are threads where nobody kills them."""
        # Which executions there are is asserted: nobody is to be lost who was only held up.
        options = {"heartbeat.timeout": "60 seconds", "slots": "threads", **options}
        raising = frame.mapInArrow(RaisesOnce(self.folder), SCHEMA)
        writer = written(raising, "memory", parallelism, interval="100 milliseconds", **options)
        return writer.start(fromSavepoint=None if savepoint is None else str(savepoint))


def read(query: headgate.ContinuousQuery) -> Read:
    """Return the rows of each split that are committed."""
    rows: Read = {}
    table = query.table()
    for split, n in zip(table["split"].to_pylist(), table["n"].to_pylist()):
        rows.setdefault(split, []).append(n)
    return rows


def settle(query: headgate.ContinuousQuery, **ends: int) -> None:
    """Wait until so many rows of each split are read. Another checkpoint later no more are, and each once."""
    wait_until(lambda: all(len(read(query).get(split, ())) >= end for split, end in ends.items()), query)
    query.checkpoint()
    check(read(query), **ends)


def check(rows: Read, **ends: int) -> None:
    """Assert that exactly so many rows of each split were read, and each once."""
    counted = {split: (len(found), sorted(found) == list(range(len(found)))) for split, found in rows.items()}
    assert counted == {split: (end, True) for split, end in ends.items()}


def most(slowest: int) -> int:
    """Return how many rows are read of a split while another one has so many.

    Positions are known of batches only, which have one row here: the first row beyond the bound is read, too.
    """
    return slowest + DRIFT_S + 1


def pid_of(query: headgate.ContinuousQuery, split_id: str) -> int:
    """Return the process that read a split last."""
    table = query.table()
    pids = [pid for split, pid in zip(table["split"].to_pylist(), table["pid"].to_pylist()) if split == split_id]
    return int(pids[-1])
