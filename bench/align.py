"""Partitions out of step in event time: Headgate with and without alignment, and Spark's own Kafka source.

Topics of 4 partitions, ten hours of event time. Shapes: burst (one partition has four times the rows of each other,
three quarters of them within an hour), lagging (one partition's producer was two hours late), silent (one partition
was silent for an hour, then back). Windows of one minute, a watermark of one minute: a drift of 50 s and 10 s for the
disorder, which is 2 s.

    dropped-SHAPE          rows that no window counted; Structured Streaming, beside Spark's own Kafka source with
                           maxOffsetsPerTrigger of a tenth of the rows; the continuous query's in the JSON
    dataframe-state-SHAPE  most rows in the state store, aligned, beside Spark's own source
    overshoot-SHAPE        continuous query: most rows of a partition beyond the slowest and the drift, beside unaligned
    state-SHAPE            continuous query: most windows open at once, beside unaligned
    throughput-SHAPE       continuous query: rows/s from the first to the last row, beside unaligned
    throughput-rows-SHAPE  the same with a function that counts row by row, in Python
    throughput-burst-20m   as throughput-burst, with ten times as many rows over the same event time; not with --quick

In a continuous query an operator in its slots notes each row and when it came, and windows are counted from the notes
of all slots. The broker runs on the same two cores.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import product
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from rich.progress import Progress
from rich.table import Table

import headgate
from bench import align_data, align_observed
from bench.align_data import DELAY_MS, MAX_DRIFT_MS, PARTITIONS, SHAPES, Topic
from bench.align_observed import Observed, Observer, RowCounter, measure, notes_in
from bench.align_spark import MOST_OPEN_WINDOWS, Side, Windows, count_windows
from bench.frame import CACHE, CORES, console, session
from headgate.connectors.kafka.split_reader import MOST_ROWS
from local.jars import spark_kafka
from local.kafka import Broker, running_broker

SUMMARY = "partitions out of step in event time: rows dropped, state held, speed"
ROWS, HOURS = 2_000_000, 10.0
QUICK_ROWS, QUICK_HOURS = 70_000, 1 / 3
IDLE_TIMEOUT_MS = 3000
"""Without it the end of `lagging`'s partition 0 would hold the others for ever: nobody knows that it is the end."""
PATIENCE_S = 120.0
"""Rows that a continuous query has not read by then are counted as dropped."""
CASES = ("dropped", "dataframe-state", "overshoot", "state", "throughput", "throughput-rows")
REQUIRED_STATE_RATIO = 10.0
DENSE_CASE, DENSE_SHAPE, DENSE = "throughput-burst-20m", "burst", 10
"""A case with so many times the rows over the same event time: more is read before the drift is used up."""
REQUIRED_THROUGHPUT_RATIO = {"": 0.6, "rows-": 0.95, DENSE_CASE: 0.95}


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the option that only this bench has."""
    command.add_argument("--picture", type=Path, metavar="FILE", help="draw what was measured for 'lagging' as a PNG")


@dataclass
class Figures:
    """The figures of one case.

    Parameters
    ----------
    case, unit
        As in the table.
    peer_name
        Who the peer is.
    larger_is_better
        Whether ``ratio`` is Headgate's figure by the peer's, or the other way round.
    required
        What must hold, in words.
    holds
        Whether it does; None: it is not required at this size.
    more
        What else the JSON says.
    """

    case: str
    unit: str
    headgate: list[float]
    peer: list[float]
    peer_name: str
    larger_is_better: bool = False
    required: str = ""
    holds: bool | None = None
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """How many times better Headgate's median is; None where a figure is zero."""
        ours, theirs = statistics.median(self.headgate), statistics.median(self.peer)
        if not ours or not theirs:
            return None
        return ours / theirs if self.larger_is_better else theirs / ours

    def as_json(self) -> dict[str, Any]:
        """Return the last line."""
        return {
            "case": self.case,
            "unit": self.unit,
            "headgate": round(statistics.median(self.headgate)),
            "peer": round(statistics.median(self.peer)),
            "peer_name": self.peer_name,
            "ratio": None if self.ratio is None else round(self.ratio, 2),
            "required": self.required,
            "holds": self.holds,
            **self.more,
        }


Runs = dict[tuple[str, bool], list[Observed]]
"""Runs of continuous queries by shape, or ``rows-`` and the shape, or the dense case, and whether they were aligned."""
Program = tuple[str, Topic, type[Observer]]
"""What continuous queries are run of: under which name, on what, with which operator."""


class _Listener(StreamingQueryListener):
    """Takes note of the watermark that a query reports, and when."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, int]] = []

    def onQueryProgress(self, event: Any) -> None:
        """Take note."""
        watermark = event.progress.eventTime.get("watermark")
        if watermark is not None:
            watermark_ms = round(datetime.fromisoformat(watermark).timestamp() * 1000)
            self.reported.append((time.monotonic_ns(), watermark_ms))

    def onQueryStarted(self, event: Any) -> None:
        """Nothing."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing."""


def _observe(
    spark: SparkSession, broker: Broker, topic: Topic, aligned: bool, operator: type[Observer] = Observer
) -> Observed:
    """Read a topic to its end with a continuous query, and return what was seen of it."""
    reader = (
        spark.readStream.format("headgate.kafka")
        .option("kafka.bootstrap.servers", broker.plain).option("subscribe", topic.fill(broker))
        .option("startingOffsets", "earliest").option("scan.watermark.idle-timeout", f"{IDLE_TIMEOUT_MS} ms")
    )  # fmt: skip
    if aligned:
        reader = (
            reader.option("eventTimeColumn", "timestamp")
            .option("scan.watermark.alignment.group", topic.shape)
            .option("scan.watermark.alignment.max-drift", f"{MAX_DRIFT_MS} ms")
        )
    rows = reader.load().withWatermark("timestamp", f"{DELAY_MS} milliseconds").select("partition", "timestamp")
    listener = _Listener()
    headgate.streams.addListener(listener)
    try:
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="notes-") as folder:
            began_ns = time.monotonic_ns()
            observed_rows = rows.mapInArrow(operator(folder), "partition int, timestamp timestamp")
            program = headgate.continuous(observed_rows, parallelism=CORES)
            query = program.writeStream.format("noop").trigger(continuous="1 second").start()
            deadline = time.monotonic() + PATIENCE_S
            while query.isActive and time.monotonic() < deadline and not _is_read(query, topic, folder):
                time.sleep(0.05)
            query.stop()
            if (error := query.exception()) is not None:
                raise error
            notes = notes_in(folder)
    finally:
        headgate.streams.removeListener(listener)
    observed = measure(notes, topic.event_times(), DELAY_MS, MAX_DRIFT_MS, listener.reported, IDLE_TIMEOUT_MS)
    observed.total_seconds = (notes[-1].at_ns - began_ns) / 1e9 - observed.waited_seconds
    return observed


def _is_read(query: Any, topic: Topic, folder: str) -> bool:
    """Return whether all rows went through the operator; what was read may still be on its way to it."""
    return query.status["rowsIn"] >= topic.rows and sum(len(note.times) for note in notes_in(folder)) >= topic.rows


def _observed_runs(spark: SparkSession, broker: Broker, programs: Sequence[Program], rounds: int) -> Runs:
    """Run each program with and without alignment in turn, each first every other time."""
    runs: Runs = defaultdict(list)
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("continuous queries", total=2 * rounds * len(programs) + 1)
        _observe(spark, broker, programs[0][1], aligned=False)  # warms Python workers and compiled functions up
        progress.advance(bar)
        for number, (name, topic, operator) in product(range(rounds), programs):
            for aligned in (True, False) if number % 2 == 0 else (False, True):
                runs[name, aligned].append(_observe(spark, broker, topic, aligned, operator))
                progress.advance(bar)
    return runs


Counts = dict[tuple[str, Side], list[Windows]]
"""What Structured Streaming counted, by shape and side."""


def _structured(
    spark: SparkSession, broker: Broker, topics: Sequence[Topic], sides: Sequence[Side], rounds: int
) -> Counts:
    counts: Counts = defaultdict(list)
    for number in range(rounds):
        for side in sides if number % 2 == 0 else reversed(sides):
            for shape, windows in count_windows(spark, broker, topics, side, topics[0].rows // 10).items():
                counts[shape, side].append(windows)
    return counts


def _of_structured(topic: Topic, counts: Counts, runs: Runs) -> Iterator[Figures]:
    """Make the figures of the DataFrame engines."""
    ours, theirs = counts[topic.shape, "aligned"], counts[topic.shape, "spark"]
    unaligned = counts[topic.shape, "unaligned"]
    continuous = [each.dropped for name in ("", "rows-") for each in runs[name + topic.shape, True]]
    more: dict[str, Any] = {
        "headgate_continuous": max(continuous),
        "peer_numRowsDroppedByWatermark": round(statistics.median(each.reported for each in theirs)),
    }
    if unaligned:
        more["headgate_unaligned"] = round(statistics.median(each.dropped for each in unaligned))
    yield Figures(
        f"dropped-{topic.shape}", "rows", [each.dropped for each in ours], [each.dropped for each in theirs],
        "spark kafka", required="0 in both engines", more=more,
        holds=not any(each.dropped or each.reported for each in ours) and not any(continuous),
    )  # fmt: skip
    yield Figures(
        f"dataframe-state-{topic.shape}", "rows", [each.state_rows for each in ours],
        [each.state_rows for each in theirs], "spark kafka", required=f"at most {MOST_OPEN_WINDOWS}",
        holds=max(each.state_rows for each in ours) <= MOST_OPEN_WINDOWS,
        more={"micro_batches": round(statistics.median(each.batches for each in ours))},
    )  # fmt: skip


def _of_continuous(topic: Topic, runs: Runs, quick: bool) -> Iterator[Figures]:
    """Make the figures of the continuous engine."""
    aligned, unaligned = runs[topic.shape, True], runs[topic.shape, False]
    yield Figures(
        f"overshoot-{topic.shape}", "rows", [each.overshoot_rows for each in aligned],
        [each.overshoot_rows for each in unaligned], "unaligned", required=f"a batch of {MOST_ROWS:,}",
        holds=max(each.overshoot_rows for each in aligned) <= MOST_ROWS,
        more={"headgate_beyond_ms": max(each.overshoot_ms for each in aligned),
              "peer_beyond_ms": max(each.overshoot_ms for each in unaligned),
              "largest_call_rows": max(each.largest_call for each in aligned)},
    )  # fmt: skip
    state = Figures(
        f"state-{topic.shape}", "windows", [each.peak_windows for each in aligned],
        [each.peak_windows for each in unaligned], "unaligned",
        more={"headgate_in_a_slot": max(each.peak_windows_in_slot for each in aligned),
              "peer_in_a_slot": max(each.peak_windows_in_slot for each in unaligned),
              "headgate_within_a_call": max(each.peak_windows_in_call for each in aligned)},
    )  # fmt: skip
    if topic.shape == "lagging" and not quick:
        state.required = f"ratio {REQUIRED_STATE_RATIO:.0f}"
        state.holds = (state.ratio or 0) >= REQUIRED_STATE_RATIO
    yield state
    for name in ("", "rows-"):
        aligned, unaligned = runs[name + topic.shape, True], runs[name + topic.shape, False]
        if aligned:
            required = None if quick else REQUIRED_THROUGHPUT_RATIO[name]
            yield _speed(f"throughput-{name}{topic.shape}", aligned, unaligned, required)


def _speed(case: str, aligned: Sequence[Observed], unaligned: Sequence[Observed], required: float | None) -> Figures:
    speed = Figures(
        case, "rows/s", [each.rows / each.seconds for each in aligned],
        [each.rows / each.seconds for each in unaligned], "unaligned", larger_is_better=True,
        more={"headgate_total_s": _median_s(aligned), "peer_total_s": _median_s(unaligned),
              "headgate_overshoot_rows": max(each.overshoot_rows for each in aligned)},
    )  # fmt: skip
    if required is not None:
        speed.required = f"ratio {required}"
        speed.holds = (speed.ratio or 0) >= required
    return speed


def _median_s(runs: Sequence[Observed]) -> float:
    return round(statistics.median(each.total_seconds for each in runs), 2)


def _report(figures: Sequence[Figures], footer: str) -> None:
    table = Table(title="align: median (min to max)", title_justify="left", header_style="bold")
    for heading in ("case", "unit", "headgate", "peer", "peer is", "ratio", "required", "holds"):
        table.add_column(heading, justify="right" if heading in ("headgate", "peer", "ratio") else "left")
    for each in figures:
        table.add_row(
            each.case, each.unit, _cell(each.headgate, each.unit), _cell(each.peer, each.unit), each.peer_name,
            "" if each.ratio is None else f"{each.ratio:.2f}", each.required,
            {None: "", True: "yes", False: "NO"}[each.holds],
        )  # fmt: skip
    console.print(table)
    console.print(footer, soft_wrap=True)
    print(json.dumps({"bench": "align", "cases": [each.as_json() for each in figures]}))


def _cell(values: Sequence[float], unit: str) -> str:
    median, low, high = statistics.median(values), min(values), max(values)
    middle, *ends = (f"{each / 1e6:.2f}" if unit == "rows/s" else f"{each:,.0f}" for each in (median, low, high))
    middle += " M" if unit == "rows/s" else ""
    return middle if low == high else f"{middle} ({' to '.join(ends)})"


def _draw(path: Path, topics: Sequence[Topic], counts: Counts, runs: Runs) -> None:
    """Draw the last runs of 'lagging', and what was lost of each shape."""
    from bench.align_picture import Run, draw

    unaligned, aligned = (
        Run(run.watermarks, f"{run.peak_windows:,} windows open at most") for run in
        (runs["lagging", False][-1], runs["lagging", True][-1])
    )  # fmt: skip
    lost = {topic.shape: (counts[topic.shape, "spark"][-1].dropped, counts[topic.shape, "aligned"][-1].dropped)
            for topic in topics}  # fmt: skip
    draw(path, unaligned, aligned, lost, topics[0].rows)
    console.print(f"The picture is in {path}.")


def _chosen(arguments: argparse.Namespace) -> set[str]:
    """Return the names of the cases to measure."""
    names = {f"{case}-{shape}" for case in CASES for shape in SHAPES} | {DENSE_CASE}
    if arguments.quick:
        names -= {f"throughput-rows-{shape}" for shape in SHAPES} | {DENSE_CASE}
    unknown = set(arguments.only or ()) - names
    if unknown:
        raise SystemExit(f"no case {', '.join(sorted(unknown))}; there are {', '.join(sorted(names))}")
    chosen = set(arguments.only or names)
    if arguments.picture is not None and arguments.quick:
        raise SystemExit("--picture shows ten hours: leave --quick")
    if arguments.picture is not None and not chosen >= {"dropped-lagging", "state-lagging"}:
        raise SystemExit("--picture shows dropped-lagging and state-lagging: leave --only, or name them too")
    return chosen


def run(arguments: argparse.Namespace) -> None:
    """Measure."""
    quick, chosen = arguments.quick, _chosen(arguments)
    rows = arguments.rows or (QUICK_ROWS if quick else ROWS)
    hours = QUICK_HOURS if quick else HOURS
    span_ms = round(hours * 3_600_000)
    shapes = [shape for shape in SHAPES if any(shape in each for each in chosen - {DENSE_CASE})]
    topics = [Topic(shape, rows, span_ms) for shape in shapes]
    programs: list[Program] = [(topic.shape, topic, Observer) for topic in topics]
    if any(each.startswith("throughput-rows") for each in chosen):
        programs += [(f"rows-{topic.shape}", topic, RowCounter) for topic in topics]
    if DENSE_CASE in chosen:
        programs.append((DENSE_CASE, Topic(DENSE_SHAPE, DENSE * rows, span_ms), Observer))
    rounds = 1 if quick else arguments.rounds
    sides: tuple[Side, ...] = ()
    if any(each.startswith(("dropped", "dataframe")) for each in chosen):
        sides = ("aligned", "spark") if quick else ("aligned", "unaligned", "spark")
    for module in (align_observed, align_data):  # workers do not have these
        cloudpickle.register_pickle_by_value(module)
    with running_broker(CACHE / "kafka") as broker:
        spark = session("align", jars=spark_kafka())
        for _, topic, _ in programs:
            topic.fill(broker)
        runs = _observed_runs(spark, broker, programs, rounds)
        counts = _structured(spark, broker, topics, sides, rounds) if sides else {}
        spark.stop()
    figures = [each for topic in topics if sides for each in _of_structured(topic, counts, runs)]
    figures += [each for topic in topics for each in _of_continuous(topic, runs, quick)]
    if DENSE_CASE in chosen:
        dense = runs[DENSE_CASE, True], runs[DENSE_CASE, False]
        figures.append(_speed(DENSE_CASE, *dense, REQUIRED_THROUGHPUT_RATIO[DENSE_CASE]))
    if arguments.picture is not None:
        _draw(arguments.picture, topics, counts, runs)
    _report(
        [each for each in figures if each.case in chosen],
        f"{rows:,} rows in {PARTITIONS} partitions over {hours * 60:,.0f} minutes of event time; local[{CORES}], "
        f"parallelism {CORES}, the broker beside it; drift {MAX_DRIFT_MS // 1000} s, idle time-out "
        f"{IDLE_TIMEOUT_MS // 1000} s, which is not counted where the end of a partition made it pass. Structured "
        f"Streaming reads up to {rows // 10:,} offsets a trigger without alignment."
        + (
            " With so few rows starting and stopping counts for more than reading, and ratios are not required."
            if quick
            else ""
        ),
    )
