"""Spark's JDBC writer in foreachBatch, as the example has it, while its process and Java are killed: each row once.

What breaks it breaks
`tests/real/test_continuous_foreach.py::test_a_crash_before_it_is_noted_that_a_function_returned_gives_it_the_batch_again`
too.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import search
from tests.real.running_queries import PATIENCE_S

PROGRAM = Path(__file__).with_name("jdbc_program.py")
ROWS = 1000
"""In a file, of which each start finds a new one."""


def started(folder: Path, wanted: int) -> subprocess.Popen[str]:
    """Start the program in a session of its own, with its Java, which Derby's lock does not outlive."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder), str(wanted)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def add_file(folder: Path, number: int) -> None:
    """Put the next rides where they are found, all at once."""
    rides = range(number * ROWS, (number + 1) * ROWS)
    new = folder / "in" / f"_{number}.json"
    new.write_text("".join(json.dumps({"ride": ride, "city": ride % 7}) + "\n" for ride in rides))
    new.rename(folder / "in" / f"{number}.json")


def staged(folder: Path) -> set[str]:
    return {each.name for each in (folder / "checkpoint" / "foreach-batch" / "_staging").glob("*.parquet")}


@pytest.mark.timeout(3600)
def test_each_row_is_there_once(tmp_path: Path) -> None:
    kills, when = 50 if search.exhaustive else 2, random.Random(search.block())
    (tmp_path / "in").mkdir()
    for number in range(kills):
        add_file(tmp_path, number)
        before, program = staged(tmp_path), started(tmp_path, sys.maxsize)
        deadline = time.monotonic() + PATIENCE_S
        while staged(tmp_path) <= before:
            assert program.poll() is None and time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(when.uniform(0, 1.5))  # before the function is called, in the middle of it, or after it
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    add_file(tmp_path, kills)
    wanted = (kills + 1) * ROWS
    shown = started(tmp_path, wanted).communicate(timeout=PATIENCE_S)[0]
    assert f"rides: {wanted} {wanted} {sum(range(wanted))}" in shown
