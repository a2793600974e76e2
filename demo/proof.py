"""Counts without Spark and Headgate: the downloaded table on one side, the sink's committed files on the other.

Never: import Spark or Headgate. The table is read with Python's own csv module, the sink with pyarrow.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow.compute as pc
import pyarrow.parquet as pq

from demo.data import raw_lines

# (time_hour, carrier, flight) names one flight of the table; the other values are compared along with it.
COLUMNS = ("time_hour", "carrier", "flight", "origin", "dest", "dep_delay", "distance")
Row = tuple[object, ...]


def committed_files(sink: Path) -> list[Path]:
    """Return the files that Spark's sink has committed, from its own log: a killed batch leaves others beside them."""
    log = {}
    for entry in (sink / "_spark_metadata").glob("[0-9]*"):
        number, _, compact = entry.name.partition(".")
        log[int(number)] = (compact == "compact", entry)
    first = max((number for number, (compact, _) in log.items() if compact), default=0)
    files = []
    for number in sorted(log):
        if number >= first:
            lines = log[number][1].read_text(encoding="utf-8").splitlines()[1:]
            files += [Path(unquote(urlsplit(json.loads(line)["path"]).path)) for line in lines]
    return files


@dataclass(frozen=True)
class Proof:
    """What the count found."""

    expected: int
    found: int
    missing: int
    surplus: int
    keys_found: int
    keys_twice: int

    @property
    def holds(self) -> bool:
        """Whether every flight is there once, with the values of the table, and none twice."""
        return self.missing == self.surplus == self.keys_twice == 0 and self.expected == self.found > 0


def _raw_rows() -> Counter[Row]:
    def value(row: dict[str, str], column: str) -> object:
        text = row[column]
        if column in ("flight", "dep_delay", "distance"):
            return None if text == "NA" else float(text)
        return text

    return Counter(tuple(value(row, column) for column in COLUMNS) for row in csv.DictReader(raw_lines()))


def _sink_rows(sink: Path) -> Counter[Row]:
    rows: Counter[Row] = Counter()
    for path in committed_files(sink):
        table = pq.ParquetFile(path).read(columns=list(COLUMNS))
        columns = {name: table.column(name).to_pylist() for name in COLUMNS if name != "time_hour"}
        columns["flight"] = [None if number is None else float(number) for number in columns["flight"]]
        seconds = pc.cast(table.column("time_hour"), "timestamp[s]")
        columns["time_hour"] = [text and text + "Z" for text in pc.strftime(seconds, "%Y-%m-%dT%H:%M:%S").to_pylist()]
        rows.update(zip(*(columns[name] for name in COLUMNS), strict=True))
    return rows


def compare(sink: Path) -> Proof:
    """Compare both sides as multisets: a flight that is missing, doubled or changed shows."""
    expected, found = _raw_rows(), _sink_rows(sink)
    keys: Counter[Row] = Counter()
    for row, times in found.items():
        keys[row[:3]] += times
    return Proof(
        expected=expected.total(),
        found=found.total(),
        missing=(expected - found).total(),
        surplus=(found - expected).total(),
        keys_found=len(keys),
        keys_twice=sum(times > 1 for times in keys.values()),
    )
