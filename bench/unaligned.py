"""A function at 1 ms per row after a full exchange: checkpoints at once, also while rows under way are recovered.

Rows are partitioned by an expression, so that those of a recovered buffer are filtered. The source is held up by
back pressure: all buffers are full, and how many rows that is follows from how large rows are. A unit is a second of
work for each slot: 1,000 rows.

    checkpoint          seconds of a checkpoint that was asked for, two slots and 20 units, beside aligned checkpoints
    first-checkpoint-N  rescaled from three slots to two, which get N units: intervals of 1 s from the deployment to the
                        first complete checkpoint; beside both switches off, which is given up after a while
    slow-source-...     a slow function directly after Kafka: `bench.slow_source`
    inflation           bytes of channel state after ten rescales (2, 3, 2, ...) over those at the first; the function
                        takes 50 ms per row, so that next to nothing is processed meanwhile, and the source has ended

The switches are execution.checkpointing.unaligned.recover-output-on-downstream.enabled and ….during-recovery.enabled.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from rich.table import Table

import headgate
from bench import slow_source
from bench.frame import CACHE, Case, Result, WorkerMemory, chosen, console, measure, report, session, wait_for
from headgate.checkpoint.manifest import Manifest
from headgate.checkpoint.storage import CheckpointStorage
from headgate.errors import HeadgateError

SUMMARY = "a slow function downstream of a full exchange: checkpoints, recovery under way, rescaling"
UNALIGNED = "execution.checkpointing.unaligned"
ALIGNED = {f"{UNALIGNED}.enabled": False}
OFF = {f"{UNALIGNED}.recover-output-on-downstream.enabled": False, f"{UNALIGNED}.during-recovery.enabled": False}
ROW_MS = 1.0
UNIT_ROWS = 1000
FULL_CHANNEL_BYTES = 7 << 20
"""About what a channel holds whose consumer is slow: 12 buffers, of half a MiB and what came with it."""
PARTITIONS = 6
"""Of the exchange: as many for each of two slots, or of three."""
CORES = 4
"""For two queries of two slots at a time; slots of a slow function sleep."""
BACKLOGS, QUICK_BACKLOGS = (1, 10, 100), (10,)
CHECKPOINT_UNITS, QUICK_CHECKPOINT_UNITS = 20, 2
GIVEN_UP_S, QUICK_GIVEN_UP_S = 30.0, 3.0
"""Recovery with the switches off takes as long as the backlog; nobody waits for all of it."""
RESCALES, QUICK_RESCALES = 10, 3
HELD_ROWS, HELD_ROW_BYTES, HELD_ROW_MS = 200_000, 48, 50.0
REQUIRED_INTERVALS = 2.0
REQUIRED_INFLATION = 1.05
PATIENCE_S = 180.0


def add_arguments(command: argparse.ArgumentParser) -> None:
    """There are no options but those of all benches."""


class Slowly:
    """A function that takes its time over each row, for ``mapInArrow``."""

    def __init__(self, row_ms: float) -> None:
        self._row_ms = row_ms

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Pass the keys on."""
        for batch in batches:
            time.sleep(self._row_ms / 1000 * batch.num_rows)
            yield batch.select(["k"])


class Running:
    """A query with its folder, stopped in the end."""

    def __init__(
        self, spark: SparkSession, slots: int, row_bytes: int, *, row_ms: float = ROW_MS, interval: str = "10 minutes",
        rows: int | None = None, options: dict[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._stack = contextlib.ExitStack()
        # A stopped query's last uploads may still be under way.
        kept = tempfile.TemporaryDirectory(dir=CACHE, prefix="checkpoint-", ignore_cleanup_errors=True)
        folder = self._stack.enter_context(kept)
        self._storage = CheckpointStorage(folder)
        source = (
            spark.readStream.format("headgate.datagen")
            .option("rowsPerSecond", 1_000_000_000).option("numPartitions", slots)
            .option("fields.k.min", 0).option("fields.k.max", 1_000_000)
            .option("fields.payload.length", row_bytes).option("fields.payload.cardinality", 4)
            .schema("k long, payload string")
        )  # fmt: skip
        if rows is not None:
            source = source.option("numRows", rows)
        rows = source.load().repartitionById(PARTITIONS, (F.col("k") % PARTITIONS).cast("int"))
        program = headgate.continuous(rows.mapInArrow(Slowly(row_ms), "k long"), parallelism=slots)
        writer = program.writeStream.format("noop").trigger(continuous=interval)
        for name, value in (options or {}).items():
            writer = writer.option(name, value)
        self.query = writer.option("checkpointLocation", folder).start()
        self._stack.callback(self.query.stop)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def newest(self) -> Manifest:
        """Return the newest checkpoint."""
        found = self._storage.load_newest()
        assert found is not None
        return found

    def wait(self, condition: Callable[[dict[str, Any]], bool], within_s: float = PATIENCE_S) -> float | None:
        """Return when the status met a condition, in seconds of the monotonic clock; None: not in time."""
        held = wait_for(self.query, lambda: condition(self.query.status), within_s, every_s=0.01)
        return time.monotonic() if held else None

    def fill(self) -> None:
        """Wait until no more rows fit in between source and function, and no checkpoint is under way."""
        fill(self.query)


def fill(query: Any, quiet_s: float = 0.75, within_s: float = PATIENCE_S) -> None:
    """Wait until for so long no more rows fitted in between source and function, and no checkpoint is under way."""
    under_way, since = 0, time.monotonic()

    def full() -> bool:
        nonlocal under_way, since
        status = query.status
        held = status["rowsIn"] - status["rowsOut"]
        if held > under_way * 1.02:
            under_way, since = held, time.monotonic()
        is_quiet = status["pending_checkpoint"] is None and status["completed_checkpoint"] is not None
        return under_way > 0 and time.monotonic() - since > quiet_s and is_quiet

    if not wait_for(query, full, within_s, every_s=0.01):
        raise SystemExit(f"the exchange did not fill up: {query.status}")


def _row_bytes(slots: int, rows: int) -> int:
    """Return how large rows are of which so many fill all channels of an exchange between so many slots."""
    return max(16, slots * slots * FULL_CHANNEL_BYTES // rows)


def _rows_under_way(manifest: Manifest) -> int:
    return sum(state.rows for state in manifest.channels)


def _bytes_under_way(manifest: Manifest) -> int:
    return sum(state.size_bytes for state in manifest.channels)


def _checkpoint(spark: SparkSession, units: int, rounds: int, case: Case, memory: WorkerMemory) -> Result:
    """Measure both sides in turn; both queries run all the time, and nearly all of it they sleep."""
    row_bytes = _row_bytes(2, 2 * units * UNIT_ROWS)

    def seconds(running: Running) -> float:
        running.fill()
        began = time.monotonic()
        running.query.checkpoint()
        return time.monotonic() - began

    with Running(spark, 2, row_bytes) as unaligned, Running(spark, 2, row_bytes, options=ALIGNED) as aligned:
        sides = dataclasses.replace(case, headgate=partial(seconds, unaligned), peer=partial(seconds, aligned))
        return measure(sides, rounds, memory, warm_up=False)


@dataclasses.dataclass
class Backlogs:
    """How many rows each measurement of first-checkpoint had under way, by case and side."""

    rows: dict[tuple[str, str], list[int]] = dataclasses.field(default_factory=dict)

    def show(self) -> None:
        """Print them."""
        table = Table(title="rows under way at the restore", title_justify="left", header_style="bold")
        for heading in ("case", "switches", "rows (of all slots)"):
            table.add_column(heading, justify="left" if heading != "rows (of all slots)" else "right")
        for (case, side), rows in self.rows.items():
            table.add_row(case, side, f"{min(rows):,} to {max(rows):,}")
        console.print(table)


def _first_checkpoint(
    spark: SparkSession, units: int, options: dict[str, Any], given_up_s: float, noted: list[int]
) -> float:
    """Return how many intervals it took until the first checkpoint after a restore was complete."""
    row_bytes = _row_bytes(3, 2 * units * UNIT_ROWS)
    with Running(spark, 3, row_bytes, interval="1 second", options=options) as running:
        running.fill()
        running.query.rescale(2)
        restored = running.newest()
        noted.append(_rows_under_way(restored))

        def deployed(status: dict[str, Any]) -> bool:
            return all(each["state"] != "waiting" for each in status["subtasks"])

        def complete(status: dict[str, Any]) -> bool:
            return status["completed_checkpoint"] not in (None, restored.checkpoint_id)

        began = running.wait(deployed)
        assert began is not None, running.query.status
        ended = running.wait(complete, given_up_s)
        return given_up_s if ended is None else ended - began


@dataclasses.dataclass
class Inflation:
    """What ten rescales did to channel state."""

    bytes: list[int] = dataclasses.field(default_factory=list)
    rows: list[int] = dataclasses.field(default_factory=list)
    seconds: list[float] = dataclasses.field(default_factory=list)

    def note(self, manifest: Manifest) -> None:
        """Take note of a checkpoint."""
        self.bytes.append(_bytes_under_way(manifest))
        self.rows.append(_rows_under_way(manifest))

    @property
    def ratio(self) -> float:
        """Bytes at the end over those at the first rescale."""
        return self.bytes[-1] / self.bytes[0]


def _inflate(spark: SparkSession, rescales: int, options: dict[str, Any], given_up_s: float) -> Inflation:
    """Rescale a query again and again; stop early when it takes too long."""
    seen = Inflation()
    with Running(spark, 2, HELD_ROW_BYTES, row_ms=HELD_ROW_MS, rows=HELD_ROWS, options=options) as running:
        if running.wait(lambda status: status["rowsIn"] == HELD_ROWS) is None:
            raise SystemExit(f"the rows did not fit into the exchange: {running.query.status}")
        running.fill()
        for number in range(rescales):
            began = time.monotonic()
            try:
                running.query.rescale(3 - number % 2, timeout=given_up_s)
            except HeadgateError:  # the checkpoint is not complete, because recovery is not
                break
            seen.seconds.append(time.monotonic() - began)
            seen.note(running.newest())
        else:
            running.query.checkpoint()
            seen.note(running.newest())
    return seen


def _measure_inflation(spark: SparkSession, rescales: int, given_up_s: float, case: Case) -> tuple[Result, str]:
    """Return the figures, and what there is to say of them."""
    on = _inflate(spark, rescales, {}, PATIENCE_S)
    off = _inflate(spark, rescales, OFF, given_up_s)
    done = len(off.seconds)
    result = Result(dataclasses.replace(case, peer_name=f"off: {done} of {rescales} rescales"), [on.ratio])
    if done == rescales:
        result.peer.append(off.ratio)
    note = (
        f"inflation: {on.bytes[0]:,} bytes and {on.rows[0]:,} rows at the first rescale, {on.bytes[-1]:,} and "
        f"{on.rows[-1]:,} after {rescales}: {on.rows[0] - on.rows[-1]:,} rows were processed meanwhile. The largest "
        f"was {max(on.bytes) / on.bytes[0]:.3f} times the first. "
    )
    if done < rescales:
        note += (
            f"With the switches off rescale {done + 1} was not over after {given_up_s:.0f} s: its checkpoint waits "
            "until all that was recovered is processed, here hours."
        )
    return result, note


def _verdict(results: Sequence[Result]) -> str:
    """Say whether what is required of the switches holds."""
    notes = []
    for each in results:
        limits = {"intervals": REQUIRED_INTERVALS, "times": REQUIRED_INFLATION}
        required = slow_source.LIMITS.get(each.case.name, limits.get(each.unit))
        if required is not None:
            verdict = "holds" if max(each.headgate) <= required else "DOES NOT HOLD"
            notes.append(f"{each.case.name} at most {required:g}: {verdict} (largest {max(each.headgate):.3f})")
    return "; ".join(notes) + "." if notes else ""


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    quick = arguments.quick
    rounds = 1 if quick else arguments.rounds
    given_up_s = QUICK_GIVEN_UP_S if quick else GIVEN_UP_S
    backlogs = Backlogs()
    notes: list[str] = []

    def absent() -> float:
        raise AssertionError("the case is measured by a function of its own")

    firsts = {f"first-checkpoint-{units}": units for units in (QUICK_BACKLOGS if quick else BACKLOGS)}
    cases = chosen(
        [
            Case("checkpoint", absent, None, "aligned"),
            *(Case(name, absent, None, "switches off", unit="intervals") for name in firsts),
            Case("inflation", absent, None, "switches off", unit="times"),
            *(Case(name, absent, None, "aligned", unit=unit) for name, unit in slow_source.CASES.items()),
        ],
        arguments.only,
    )
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # slots do not have this module
    Path(CACHE).mkdir(parents=True, exist_ok=True)
    memory = WorkerMemory()
    results = []
    spark = session("unaligned", master=f"local[{CORES}]")
    slow = [case for case in cases if case.name in slow_source.CASES]
    for case in [case for case in cases if case not in slow]:
        if case.name == "checkpoint":
            units = QUICK_CHECKPOINT_UNITS if quick else CHECKPOINT_UNITS
            results.append(_checkpoint(spark, units, rounds, case, memory))
        elif case.name == "inflation":
            result, note = _measure_inflation(spark, QUICK_RESCALES if quick else RESCALES, given_up_s, case)
            results.append(result)
            notes.append(note)
        else:
            units = firsts[case.name]
            on, off = (
                partial(
                    _first_checkpoint, spark, units, options, within_s,
                    backlogs.rows.setdefault((case.name, side), []),
                )
                for side, options, within_s in (("on", {}, PATIENCE_S), ("off", OFF, given_up_s))
            )  # fmt: skip
            result = measure(dataclasses.replace(case, headgate=on, peer=off), rounds, memory, warm_up=False)
            if max(result.peer) >= given_up_s:
                result.case = dataclasses.replace(result.case, peer_name="switches off: at least")
            results.append(result)
    results += slow_source.measure_cases(spark, slow, quick, ALIGNED)
    spark.stop()
    if backlogs.rows:
        backlogs.show()
    report(
        "unaligned", results, memory,
        f"local[{CORES}], two slots, {ROW_MS:g} ms per row after repartitionById, all buffers full, checkpoints in a "
        f"local folder; a recovery with the switches off is given up after {given_up_s:.0f} s. "
        + " ".join([_verdict(results), *notes]).strip(),
    )  # fmt: skip
