"""The demo's keyed part over few flights, slower ones: rescaled twice with rows under way, its totals are Spark's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from demo import data
from demo.keyed import Totals
from tests.spark_java import SparkJava

ROOT = Path(__file__).resolve().parents[2]
ROWS = 300  # of a file
PROGRAM = """
import dataclasses, json, pathlib, sys
from rich.console import Console
from demo import continuous, keyed

out = pathlib.Path(sys.argv[1])


class Slow:
    # What a row takes: much, so that no rescale comes when all is done; nothing after the last one.

    def __init__(self, hurry):
        self.hurry = hurry

    def __truediv__(self, _):
        return self

    def __mul__(self, rows):
        return 0 if self.hurry.exists() else 0.01 * rows


def rescaled(query, checkpoint, before, after, rescaled=keyed._rescaled):
    done = rescaled(query, checkpoint, before, after)
    if after == keyed.SLOTS[-1]:
        (out / "hurry").touch()
    return done


keyed.ROW_MS, keyed.LOAD_S, keyed._rescaled = Slow(out / "hurry"), 0.2, rescaled
spark = continuous.session()
_, rescales, totals = keyed.run(spark, out, pathlib.Path(sys.argv[2]), Console(stderr=True))
spark.stop()
print(json.dumps([[dataclasses.asdict(each) for each in rescales], dataclasses.asdict(totals)]))
"""


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """Return a folder of a year's files, each with some flights, columns in the order of the real ones."""
    folder = tmp_path / "flights"
    folder.mkdir()
    for month in data.MONTHS:
        for airport in data.AIRPORTS:
            lines = ["year,month,day,dep_delay,carrier,flight,origin,dest,distance,time_hour"]
            for n in range(ROWS):
                day, carrier = 1 + n * 28 // ROWS, ("UA", "AA", "DL")[n % 3]
                at = f"2013-{month:02}-{day:02}T{n % 24:02}:00:00Z"
                lines.append(f"2013,{month},{day},NA,{carrier},{n},{airport},SFO,{'NA' if n % 10 == 0 else n},{at}")
            (folder / data.file_name(month, airport)).write_text("\n".join(lines) + "\n")
    return folder


def test_rescaled_under_load_the_totals_are_those_of_spark(java: SparkJava, flights: Path, tmp_path: Path) -> None:
    """Each rescale takes rows along, and the first checkpoint after it completes."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(flights)]
    done = java.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    rescales, totals = json.loads(done.stdout.splitlines()[-1])
    assert [(each["before"], each["after"]) for each in rescales] == [(2, 4), (4, 3)]
    assert all(each["under_way"] > 0 for each in rescales)
    assert "its dashboard: http://127.0.0.1:" in done.stderr
    assert "2 to 4" in done.stderr and "4 to 3" in done.stderr
    assert Totals(**totals).hold
    assert totals["flights_found"] == totals["flights_expected"] == ROWS * 36


def test_totals_that_differ_do_not_hold() -> None:
    """A group that is missing, one too many, and none at all fail the demo."""
    right = Totals(groups_expected=2, groups_found=2, flights_expected=9, flights_found=9, missing=0, surplus=0)
    assert right.hold
    for wrong in ({"missing": 1}, {"surplus": 1}, {"groups_found": 3}, {"groups_expected": 0, "groups_found": 0}):
        assert not replace(right, **wrong).hold
