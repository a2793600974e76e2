"""Runs the demo: batch, streams that are killed and rescaled, the proof, the picture. Exit code 1: it failed."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from demo import continuous, data, keyed
from demo.picture import Timeline, draw
from demo.proof import committed_files, compare
from demo.query import SCHEMA, session

OUT = data.ROOT / "demo-out"
MONTH_EVERY_S = 1.0
KILL_AT = 0.42  # of all flights
PATIENCE_S = 300

console = Console(highlight=False)


def step(number: int, title: str, shows: str) -> None:
    console.print(f"\n[bold]{number}  {title}[/bold]  [dim]{shows}[/dim]", soft_wrap=True)


@contextlib.contextmanager
def java_talks_to(log: Path) -> Iterator[None]:
    """Give a Java process that is started inside of this another standard error, so that tables stay readable."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def read_in_batch() -> list[tuple[str, float, int]]:
    """Read the whole folder with spark.read and return name, mean delay and flights of each carrier."""
    from pyspark.sql import functions as F

    with java_talks_to(OUT / "batch.log"):
        spark = session("demo-batch")
    began = time.monotonic()
    flights = (
        spark.read.format("headgate.files")
        .option("fileFormat", "csv")
        .option("header", True)
        .option("nullValue", "NA")
        .schema(SCHEMA)
        .load(str(data.FOLDER))
    )
    rows = (
        flights.groupBy("carrier")
        .agg(
            F.count("*").alias("flights"),
            F.mean("dep_delay").alias("delay"),
            F.mean((F.col("dep_delay") > 15).cast("double")).alias("late"),
        )
        .orderBy(F.desc("delay"))
        .collect()
    )
    seconds = time.monotonic() - began
    spark.stop()

    names = data.carrier_names()
    table = Table("carrier", header_style="bold")
    for heading in ("flights", "mean delay (min)", "over 15 min late"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(names[row["carrier"]], f"{row['flights']:,}", f"{row['delay']:.1f}", f"{row['late']:.0%}")
    console.print(table)
    total = sum(row["flights"] for row in rows)
    console.print(f"   {total:,} flights from {len(list(data.FOLDER.glob('*.csv')))} files in {seconds:.1f} s")
    return [(names[row["carrier"]], row["delay"], row["flights"]) for row in rows]


class Stream:
    """The folder that months arrive in, and the query's process that reads it."""

    def __init__(self, rows_by_file: dict[str, int]) -> None:
        self.rows_by_file = rows_by_file
        self.folder, self.staging = OUT / "arriving", OUT / "staging"
        self.sink, self.checkpoint = OUT / "flights.parquet", OUT / "checkpoint"
        self.log = OUT / "query.log"
        self.arrived_months = 0
        self.arrived = 0
        self.process: subprocess.Popen[bytes] | None = None
        self._footers: dict[Path, int] = {}
        for folder in (self.folder, self.staging):
            folder.mkdir(parents=True)

    def next_month(self) -> None:
        """Let one more month arrive: each file is complete when its name appears."""
        self.arrived_months += 1
        for airport in data.AIRPORTS:
            name = data.file_name(self.arrived_months, airport)
            shutil.copy2(data.FOLDER / name, self.staging / name)
            os.replace(self.staging / name, self.folder / name)
            self.arrived += self.rows_by_file[name]

    def committed(self) -> int:
        """Return how many flights the sink has committed, from its log and the footers of its files."""
        for path in committed_files(self.sink):
            if path not in self._footers:
                self._footers[path] = pq.read_metadata(path).num_rows
        return sum(self._footers.values())

    def start(self) -> None:
        """Start the query: the first time afresh, then from its checkpoint. It is the same command."""
        command = [sys.executable, "-m", "demo.query", str(self.folder), str(self.checkpoint), str(self.sink)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=data.ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def kill(self) -> None:
        """Kill the query with everything it started, Java included, without a chance to tidy up."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """Ask the query to end, and wait for it."""
        assert self.process is not None
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
        self.kill()

    def check_alive(self) -> None:
        """End the demo when the query died on its own."""
        if self.process is not None and self.process.poll() is not None:
            tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])
            raise SystemExit(f"{tail}\n\nThe query ended on its own; the lines above are the end of {self.log}.")


def show_progress(stream: Stream, read: int, seconds: float, note: str) -> None:
    bar = "█" * stream.arrived_months + "░" * (12 - stream.arrived_months)
    line = (
        f"   {seconds:5.1f} s  {bar} {stream.arrived_months:2} of 12 months arrived   "
        f"{read:7,} of {data.FLIGHTS:,} flights read   {note}"
    )
    if console.is_terminal:
        console.print(line[: console.width - 1].ljust(console.width - 1), end="\r")
    else:
        console.print(line, soft_wrap=True)


def read_as_stream(stream: Stream) -> Timeline:
    """Let months arrive while the query runs; kill it half-way, go on without it for a while, restart it."""
    timeline = Timeline()
    stream.next_month()
    stream.start()
    began = time.monotonic()
    month_due = kill_due = restart_due = float("inf")
    read = shown = -1
    while read < data.FLIGHTS:
        now = time.monotonic()
        if now - began > PATIENCE_S:
            raise SystemExit(f"The stream did not get to its end in {PATIENCE_S} s; see {stream.log}.")
        stream.check_alive()
        before, read = read, stream.committed()
        if before <= 0 < read:  # the clock of the picture starts when the query does
            month_due = now
        if now >= month_due and stream.arrived_months < 12:
            stream.next_month()
            month_due = now + MONTH_EVERY_S
        if timeline.killed_at is None and kill_due == float("inf") and stream.arrived > read >= KILL_AT * data.FLIGHTS:
            kill_due = now + 0.5  # by then the batch with the new month is under way
        if now >= kill_due:
            stream.kill()
            kill_due = float("inf")
            timeline.killed_at = now - began
            restart_due = now + 1.5
            read = stream.committed()
        if now >= restart_due:
            stream.start()
            restart_due = float("inf")
        killed = timeline.killed_at is not None and timeline.resumed_at is None
        if killed and stream.process is not None and read > timeline.read[-1]:
            timeline.resumed_at = now - began
        timeline.seconds.append(now - began)
        timeline.arrived.append(stream.arrived)
        timeline.read.append(read)
        note = "" if stream.process is None else "reading"
        if timeline.killed_at is not None and timeline.resumed_at is None:
            note = "killed (SIGKILL)" if stream.process is None else "restarting from the checkpoint"
        if console.is_terminal or (stream.arrived_months, read, note) != shown:
            show_progress(stream, read, now - began, note)
            shown = (stream.arrived_months, read, note)
        time.sleep(0.1)
    stream.stop()
    return timeline


def show_proof(name: str, sink: Path) -> bool:
    """Count what a sink holds beside the table; return whether every flight is there once."""
    proof = compare(sink)
    console.print(
        f"   {name}: the table holds {proof.expected:,} flights, the sink {proof.found:,} "
        f"({proof.keys_found:,} different)",
        soft_wrap=True,
    )
    console.print(f"   {proof.missing:,} missing, {proof.surplus:,} not in the table, {proof.keys_twice:,} read twice")
    verdict = "[green]every flight arrived once[/green]" if proof.holds else "[red]the proof FAILED[/red]"
    console.print(f"   [bold]{verdict}[/bold]")
    return proof.holds


def show_totals(totals: keyed.Totals) -> bool:
    """Show what Spark's batch and the keyed query counted; return whether it is the same."""
    console.print(
        f"   Spark's batch makes {totals.groups_expected:,} groups of {totals.flights_expected:,} flights, "
        f"the query {totals.groups_found:,} of {totals.flights_found:,}",
        soft_wrap=True,
    )
    console.print(f"   {totals.missing:,} missing, {totals.surplus:,} that Spark does not have")
    verdict = "[green]every total is exactly Spark's[/green]" if totals.hold else "[red]the totals DIFFER[/red]"
    console.print(f"   [bold]{verdict}[/bold]")
    return totals.hold


def show_dashboard(url: str) -> None:
    """Print the address of the page that shows how the queries ended; keep it up while somebody may look."""
    console.print("\n[bold]Dashboard[/bold]  [dim]how the two queries ended; one that runs: ./run demo dashboard[/dim]")
    console.print(f"   {url}", soft_wrap=True)
    if console.is_terminal and sys.stdin.isatty():
        console.print("   it is there until you press Enter", end=" ")
        with contextlib.suppress(EOFError, KeyboardInterrupt):
            input()


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir()
    console.print(
        "[bold]Headgate demo:[/bold] every flight that left New York in 2013, as 36 CSV files", soft_wrap=True
    )
    data.fetch_archive()
    rows_by_file = data.lay_out()

    step(1, "Batch", "spark.read reads a folder of real files through headgate.files")
    carriers = read_in_batch()

    step(2, "Stream", "spark.readStream finds new files; its process is killed half-way and restarted")
    stream = Stream(rows_by_file)
    try:
        timeline = read_as_stream(stream)
    finally:
        stream.kill()
    console.print()

    step(3, "Continuous", "headgate.continuous: long tasks; a slot is killed, the query goes on, 2 slots become 3")
    with java_talks_to(OUT / "continuous.log"):
        spark = continuous.session()
    continuous_sink = continuous.run(spark, OUT, rows_by_file, console)

    step(4, "Proof", "the downloaded table and both sinks, counted without Spark or Headgate")
    proofs = [show_proof(name, sink) for name, sink in [("stream", stream.sink), ("continuous", continuous_sink)]]

    picture = OUT / "flights.png"
    step(5, "Picture", "what you have just seen")
    draw(picture, timeline, carriers, data.FLIGHTS)
    console.print(f"   {picture.relative_to(data.ROOT)}")

    step(6, "Keyed", "flights per day and carrier, downstream of a slow function: 2 slots become 4, then 3, under load")
    query, _, totals = keyed.run(spark, OUT, data.FOLDER, console)
    proofs.append(show_totals(totals))
    spark.stop()
    console.print(f"   ({time.monotonic() - began:.0f} s in all)")
    show_dashboard(query.dashboard())
    return 0 if all(proofs) else 1


if __name__ == "__main__":
    sys.exit(main())
