"""What all benches share: a session, alternating measurement, workers' memory, the table and the line of JSON.

Never: measure the two sides in different sessions or on different data, or one side warm and the other cold.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"
CORES = 2
QUICK_NOTE = " With so few rows the fixed cost of a query (starting Python) counts for more than reading."

console = Console(highlight=False, width=None if sys.stdout.isatty() else 130)


@dataclass(frozen=True)
class Case:
    """One thing that both sides do.

    Parameters
    ----------
    name
        As in the table and in the JSON.
    headgate, peer
        Do it once and return something to be compared: the two must be equal. ``peer`` may be absent.
    peer_name
        Who the peer is.
    rows
        How many rows it handles: the unit is rows/s. None: the functions return figures in ``unit``.
    unit
        Of what the functions return; of rows/s the larger is better, of times the smaller.
    """

    name: str
    headgate: Callable[[], Any]
    peer: Callable[[], Any] | None
    peer_name: str
    rows: int | None = None
    unit: str = "s"


@dataclass
class Result:
    """The figures of one case."""

    case: Case
    headgate: list[float] = field(default_factory=list)
    peer: list[float] = field(default_factory=list)
    worker_mb: float | None = None

    @property
    def unit(self) -> str:
        """The figures' unit."""
        return self.case.unit if self.case.rows is None else "rows/s"

    @property
    def ratio(self) -> float | None:
        """How many times better Headgate's median is."""
        if not self.peer:
            return None
        ours, theirs = statistics.median(self.headgate), statistics.median(self.peer)
        return ours / theirs if self.unit == "rows/s" else theirs / ours


def result_of(name: str, ours: list[float], peer: list[float], peer_name: str, unit: str = "s") -> Result:
    """Return the result of a case whose figures were found otherwise than by `measure`."""
    return Result(Case(name, lambda: None, None, peer_name, unit=unit), ours, peer)


def wait_for(query: Any, condition: Callable[[], object], within_s: float = math.inf, every_s: float = 0.02) -> bool:
    """Wait until a condition holds; return whether it does, or the time is over. A query must not end meanwhile."""
    deadline = time.monotonic() + within_s
    while not condition():
        if not query.isActive:
            raise SystemExit(f"the query ended: {query.exception()}")
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True


def measure(case: Case, rounds: int, memory: WorkerMemory, *, warm_up: bool = True) -> Result:
    """Warm both sides up, check that they agree, and measure them in turn, each first every other time.

    ``warm_up`` is False for functions that do it themselves.
    """
    result = Result(case)
    sides = [(case.headgate, result.headgate)]
    if case.peer is not None:
        sides.append((case.peer, result.peer))
    with memory.watch() as warm_peak:
        answers = [run() for run, _ in sides] if warm_up else []
    if case.rows is not None and not all(_agree(answer, answers[0]) for answer in answers):
        raise SystemExit(f"{case.name}: the two sides disagree: {str(answers[0])[:300]} and {str(answers[1])[:300]}")
    with memory.watch() as peak:
        for number in range(rounds):
            for run, figures in sides if number % 2 == 0 else reversed(sides):
                begin = time.perf_counter()
                answer = run()
                seconds = time.perf_counter() - begin
                figures.append(float(answer) if case.rows is None else case.rows / seconds)
    if case.rows is not None:  # planning is timed in this process; workers that are still there are idle
        result.worker_mb = max((each.megabytes for each in (warm_peak, peak) if each.megabytes), default=None)
    return result


def _agree(one: Any, other: Any) -> bool:
    """Whether two answers are the same but for the order in which floating-point numbers were added."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_agree, one, other))
    return bool(one == other)


@dataclass
class Peak:
    """The largest resident set of any Python worker so far, in MiB; None where there is no ``/proc``."""

    megabytes: float | None = None


class WorkerMemory:
    """Watches the resident memory of Spark's Python workers through ``/proc``, twenty times a second."""

    def __init__(self) -> None:
        self.overall = Peak()

    @contextlib.contextmanager
    def watch(self) -> Iterator[Peak]:
        """Return a peak that grows while the block runs."""
        peak, done = Peak(), threading.Event()
        thread = threading.Thread(target=self._sample, args=(peak, done), name="worker-memory", daemon=True)
        if Path("/proc/self/status").exists():
            thread.start()
        try:
            yield peak
        finally:
            done.set()
            if thread.ident is not None:
                thread.join()
            both = [each for each in (self.overall.megabytes, peak.megabytes) if each is not None]
            self.overall.megabytes = max(both, default=None)

    def _sample(self, peak: Peak, done: threading.Event) -> None:
        workers: list[int] = []
        looked_at = 0.0
        while not done.wait(0.05):
            if time.monotonic() - looked_at > 0.25:
                workers, looked_at = _python_workers(), time.monotonic()
            for pid in workers:
                resident = _resident_mb(pid)
                if resident is not None and resident > (peak.megabytes or 0):
                    peak.megabytes = resident


def worker_seconds() -> dict[int, float]:
    """Return the processor time of each of Spark's Python workers that live, as the system counts it, in seconds."""
    found = {}
    for pid in _python_workers():
        with contextlib.suppress(psutil.Error):
            times = psutil.Process(pid).cpu_times()
            found[pid] = times.user + times.system
    return found


def _python_workers() -> list[int]:
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "pyspark.daemon" in process.cmdline() or "pyspark.worker" in process.cmdline():
                found.append(process.pid)
    return found


def _resident_mb(pid: int) -> float | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return None


def session(name: str, jars: Sequence[Path] = (), master: str = f"local[{CORES}]") -> SparkSession:
    """Return a session on two cores, quiet: Java's messages go to ``.cache/bench/spark.log``."""
    CACHE.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    kept = os.dup(2)
    with (CACHE / "spark.log").open("wb") as log:
        os.dup2(log.fileno(), 2)
    try:
        spark = (
            SparkSession.builder.master(master)
            .appName(f"bench-{name}")
            .config("spark.driver.memory", "2g")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.sql.shuffle.partitions", str(CORES))
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.jars", ",".join(map(str, jars)))
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("ERROR")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    return spark


def chosen(cases: Sequence[Case], only: Sequence[str] | None) -> list[Case]:
    """Return the cases that the user asked for."""
    unknown = set(only or ()) - {case.name for case in cases}
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(case.name for case in cases)}")
    return [case for case in cases if not only or case.name in only]


def report(
    bench: str, results: Sequence[Result], memory: WorkerMemory, footer: str, more: Mapping[str, Any] | None = None
) -> None:
    """Print the table and, as the last line, the JSON, with what a bench has beside its cases."""
    table = Table(title=f"{bench}: median (min to max)", title_justify="left", header_style="bold")
    for heading in ("case", "unit", "headgate", "peer", "peer is", "ratio", "worker MiB"):
        justify = "left" if heading in ("case", "unit", "peer is") else "right"
        table.add_column(heading, justify=justify, no_wrap=heading == "case")
    for result in results:
        ratio = "" if result.ratio is None else f"{result.ratio:.2f}"
        worker = "" if result.worker_mb is None else f"{result.worker_mb:.0f}"
        ours, theirs = _figures(result.headgate, result.unit), _figures(result.peer, result.unit)
        table.add_row(result.case.name, result.unit, ours, theirs, result.case.peer_name, ratio, worker)
    console.print(table)
    peak = memory.overall.megabytes
    if peak is not None:
        console.print(f"Largest resident set of a Python worker: {peak:.0f} MiB.")
    console.print(footer, soft_wrap=True)
    out = {"bench": bench, "peak_worker_rss_mib": None if peak is None else round(peak), "cases": []}
    out["cases"] = [_as_json(result) for result in results]
    print(json.dumps(out | dict(more or {})))


def _figures(values: Sequence[float], unit: str) -> str:
    if not values:
        return ""
    median, low, high = statistics.median(values), min(values), max(values)
    if unit == "rows/s":
        return f"{median / 1e6:.2f} M ({low / 1e6:.2f} to {high / 1e6:.2f})"
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


def _as_json(result: Result) -> dict[str, Any]:
    def rounded(values: Sequence[float]) -> float | int | None:
        if not values:
            return None
        median = statistics.median(values)
        return round(median) if result.unit == "rows/s" else round(median, 3)

    return {
        "case": result.case.name,
        "unit": result.unit,
        "headgate": rounded(result.headgate),
        "peer": rounded(result.peer),
        "peer_name": result.case.peer_name,
        "ratio": None if result.ratio is None else round(result.ratio, 2),
        "peak_worker_rss_mib": None if result.worker_mb is None else round(result.worker_mb),
    }
