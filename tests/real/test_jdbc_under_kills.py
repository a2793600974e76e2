"""Spark's JDBC writer in foreachBatch, as the example has it, while its process and Java are killed: each row once."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import search
from tests.real.running_queries import PATIENCE_S

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "continuous_jdbc.py"
ROWS_PER_KILL = 4000


def started(folder: Path, rows: int) -> subprocess.Popen[str]:
    """Start the example in a session of its own, with its Java, which Derby's lock does not outlive."""
    return subprocess.Popen(
        [sys.executable, str(EXAMPLE), str(folder), str(rows)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip


def last_batch(folder: Path) -> int:
    marks = (folder / "checkpoint" / "foreach-batch").glob("committed-*")
    return max((int(each.name.partition("-")[2]) for each in marks), default=0)


@pytest.mark.timeout(3600)
def test_each_row_is_there_once(tmp_path: Path) -> None:
    kills, when = 50 if search.exhaustive else 3, random.Random(search.block())
    rows = kills * ROWS_PER_KILL
    for _ in range(kills):
        before, program = last_batch(tmp_path), started(tmp_path, rows)
        deadline = time.monotonic() + PATIENCE_S
        while last_batch(tmp_path) <= before:
            assert program.poll() is None, "it ended before it was killed"
            assert time.monotonic() < deadline
            time.sleep(0.02)
        time.sleep(when.uniform(0, 0.6))  # anywhere between two batches, and in the middle of one
        os.killpg(program.pid, signal.SIGKILL)
        program.communicate()
    program = started(tmp_path, rows)
    shown = program.communicate(timeout=PATIENCE_S)[0]
    found = re.search(r"(\d+) rides, (\d+) of them different, in (\d+) batches", shown)
    assert found and int(found[1]) == int(found[2]) == rows, shown
    assert int(found[3]) > kills
