"""A query of two slots that scenarios hurt: its source, what stamps its rows, and what is exact in its output.

A file in the scenario's folder lets something happen once: whoever deletes it does it.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from running_queries import happens

import headgate
from headgate.spark.continuous.query import ContinuousQuery

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module

WITHIN_S = 120.0
"""How long anything may take. None of it is a measurement: machines are slow at times."""
ROWS = 4  # of a batch


class Numbers(headgate.SimpleSource):
    """Each split counts its own rows from 0 on, a batch every ``pause`` seconds, up to ``batches``.

    With the option ``held`` no split has its last batch until the file ``may-end`` is there: none is over too early.
    """

    name = "failover-numbers"
    schema = "split string, n bigint"

    def splits(self) -> list[str]:
        if happens(Path(self.options["folder"]) / "listing-is-wrong"):  # one that raises is only tried again
            return [None]  # type: ignore[list-item]
        return [f"split-{number}" for number in range(int(self.options["splits"]))]

    def read(self, split_id: str, position: Any) -> Iterator[tuple[pa.RecordBatch, Any]]:
        folder, batches = Path(self.options["folder"]), int(self.options["batches"])
        may_end, pause = folder / "may-end", float(self.options["pause"])
        for batch in range(position or 0, batches):
            while self.options.get("held") and batch == batches - 1 and not may_end.exists():
                time.sleep(pause)
                yield pa.record_batch({"split": pa.array([], pa.string()), "n": pa.array([], pa.int64())}), batch
            if not may_end.exists():
                time.sleep(pause)
            if happens(folder / f"fetch-hangs-{os.getpid()}"):
                time.sleep(600)
            if happens(folder / "fetch-raises"):
                raise ConnectionError("the line is cut")
            numbers = range(batch * ROWS, (batch + 1) * ROWS)
            yield pa.record_batch({"split": [split_id] * ROWS, "n": pa.array(numbers, pa.int64())}), batch + 1


class Stamp:
    """The user's function: notes in each row which process emitted it, and when."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if happens(self.folder / "function-raises"):
                raise ValueError("a number that I do not like")
            if (self.folder / "function-always-raises").exists() and batch["n"][0].as_py() >= 40:
                with (self.folder / "raised").open("a") as log:
                    log.write("x")
                raise ValueError("a number that I will never like")
            if happens(self.folder / f"function-holds-the-gil-{os.getpid()}"):
                ctypes.PyDLL(None).sleep(600)
            stamps = {"pid": [os.getpid()] * batch.num_rows, "at": [time.time()] * batch.num_rows}
            yield pa.record_batch({"split": batch["split"], "n": batch["n"]} | stamps)


class Running:
    """A query of two slots over `Numbers` into memory, and what the scenarios look at."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        options: Mapping[str, Any] = MappingProxyType({}),
        *,
        splits: int = 4,
        batches: int = 0,
        pause: float = 0.03,
    ) -> None:
        headgate.register(spark, Numbers)
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.splits, self.batches = splits, batches
        reader: Any = spark.read if batches else spark.readStream  # with a number of batches it ends on its own
        settings = {"splits": splits, "batches": batches or 10**9, "pause": pause, "folder": folder}
        numbers = reader.format(Numbers.name).option("discovery.interval", "200 ms").options(**settings).load()
        stamped = numbers.mapInArrow(Stamp(folder), "split string, n bigint, pid bigint, at double")
        writer = headgate.continuous(stamped, parallelism=2).writeStream.format("memory").queryName(folder.name)
        # Which executions there are is asserted: nobody is to be lost who was only held up.
        writer = writer.options(**{"heartbeat.timeout": "60 seconds", **options})
        writer = writer.option("checkpointLocation", folder / "checkpoints").trigger(continuous="250 milliseconds")
        self.query: ContinuousQuery = writer.start()

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something."""
        deadline = time.monotonic() + WITHIN_S
        while not condition():
            assert self.query.isActive, f"waiting for {what}, the query ended: {self.query.exception()}"
            assert time.monotonic() < deadline, f"waiting for {what} in vain: {self.query.status}"
            time.sleep(0.02)

    def until_it_runs(self) -> None:
        """Wait until all subtasks run, and rows are in a checkpoint."""
        self.until(lambda: self.query.status["message"] == "running" and self.query.table().num_rows, "rows")
        self.until_another_checkpoint()

    def until_another_checkpoint(self, more: int = 2) -> None:
        """Wait until some more checkpoints are complete."""
        epoch = self.query.status["epoch"]
        self.until(lambda: self.query.status["epoch"] >= epoch + more, "a checkpoint")

    def until_replaced(self, slot: int, pid: int) -> None:
        """Wait until another process is the slot, and everything runs."""
        self.until(lambda: self.pid(slot) not in (0, pid), "another process")
        self.until(lambda: self.query.status["message"] == "running", "running again")

    def pid(self, slot: int) -> int:
        """Return the process of a slot."""
        return int(self.query.status["slots"][slot]["pid"])

    def attempt(self, slot: int) -> tuple[int, int]:
        """Return the job and the attempt of a slot that counts."""
        status = self.query.status["slots"][slot]
        return status["job"], status["attempt"]

    def executions(self) -> list[int]:
        """Return how often each subtask was deployed."""
        return [each["execution"] for each in self.query.status["subtasks"]]

    def until_deployed(self, executions: list[int]) -> None:
        """Wait until the subtasks run in these executions."""
        self.until(lambda: self.query.status["message"] == "running" and self.executions() == executions, "a restart")

    def end(self) -> pa.Table:
        """Let the query end in good order, and return its rows; they are exactly the source's."""
        if self.batches:
            (self.folder / "may-end").touch()
            assert self.query.awaitTermination(WITHIN_S), f"it does not end: {self.query.status}"
        else:
            self.query.stop(drain=True, timeout=WITHIN_S)
        assert self.query.exception() is None, self.query.exception()
        rows = self.query.table()
        check_exact(rows, self.splits, self.batches)
        return rows


def check_exact(rows: pa.Table, splits: int, batches: int) -> None:
    """Assert that each split's rows are there once each, up to its end where it has one."""
    found: dict[str, list[int]] = {f"split-{number}": [] for number in range(splits)}
    for split, n in zip(rows["split"].to_pylist(), rows["n"].to_pylist()):
        found[split].append(n)
    for split, numbers in found.items():
        expected = batches * ROWS if batches else len(numbers)
        missing, twice = set(range(expected)) - set(numbers), len(numbers) - len(set(numbers))
        assert not missing and not twice, f"{split}: {len(missing)} missing, {twice} twice, {sorted(missing)[:5]} ..."
        assert len(numbers) == expected


class Pulse:
    """Measures how long this machine kept a thread of this process from running: what nobody can be blamed for.

    Each core has a thread of its own: one of them may stand still alone.
    """

    def __init__(self) -> None:
        self._stalls: list[float] = []
        self._over = threading.Event()
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [None]
        self._threads = [threading.Thread(target=self._run, args=(core,), daemon=True) for core in cores]
        for thread in self._threads:
            thread.start()

    def stop(self) -> float:
        """Return the longest time that a thread was late, in seconds."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        return max(self._stalls, default=0.0)

    def _run(self, core: int | None) -> None:
        if core is not None:
            os.sched_setaffinity(0, {core})  # of this thread alone
        while not self._over.is_set():
            began = time.monotonic()
            time.sleep(0.01)
            self._stalls.append(time.monotonic() - began - 0.01)


def check_emitted_all_along(rows: pa.Table, pid: int, began: float, ended: float, stall: float) -> None:
    """Assert that a process emitted rows within every half second of a time; on a slow machine, a quarter of it."""
    at = sorted({began, ended, *rows.filter(pc.equal(rows["pid"], pid))["at"].to_pylist()})
    within = [each for each in at if began <= each <= ended]
    gap, since = max((after - before, before - began) for before, after in itertools.pairwise(within))
    assert len(within) > 2 and gap < max(0.5, (ended - began) / 4) + 2 * stall, (
        f"no rows for {gap:.3f} s after {since:.3f} of {ended - began:.3f} s ({stall=:.3f})"
    )
