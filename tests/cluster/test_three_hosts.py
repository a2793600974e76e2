"""Queries on three hosts: right whoever knows whose name, and each row once whatever hosts and network do.

What is printed of times is a measurement (``-rP`` shows it); nothing is asserted about them, for machines are slow.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local.cluster import Cluster
from tests.cluster.program import expected_windows
from tests.cluster.programs import Program

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Start = Callable[..., Program]
RATE = 1000
pytestmark = pytest.mark.timeout(1200)


@pytest.fixture(params=[False, True], ids=["names-unknown", "names-known"])
def named(whole: Cluster, request: pytest.FixtureRequest) -> None:
    """Let hosts know one another's names, or not."""
    whole.know_names(request.param)


def assert_each_row_once(spark: SparkSession, folder: Path, rows: int, rate: int = RATE) -> None:
    want = expected_windows(spark.read, rows, rate)
    got = spark.read.parquet(str(folder / "out")).select("window", "user", "c", "s")
    assert (want.exceptAll(got).count(), got.exceptAll(want).count()) == (0, 0)


@pytest.mark.usefixtures("named")
def test_windows_are_those_of_a_batch(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    program = start("windows", rows=30_000, rate=3000)
    program.result()
    assert_each_row_once(spark, tmp_path, 30_000, 3000)


@pytest.mark.usefixtures("named")
def test_records_of_a_topic_are_in_another_exactly_once(
    start: Start, broker: str, request: pytest.FixtureRequest
) -> None:
    one, other = (f"{each}-{'known' if 'names-known' in request.node.name else 'unknown'}" for each in ("from", "to"))
    program = start("topics", broker=broker, rows=20_000, to=other, bounded=1, **{"from": one})
    assert program.result() == {"records": 20_000, "different": 20_000}


@pytest.mark.usefixtures("named")
def test_sources_of_a_continuous_query_are_aligned(start: Start) -> None:
    ahead = start("rides").result()
    assert 0 < ahead < 100, "one source was read ahead of the other; 500 seconds were there"


@pytest.mark.usefixtures("named")
def test_micro_batches_are_aligned_by_what_tasks_on_other_hosts_report(start: Start) -> None:
    assert start("sensors").result() == 200, "rows came later than the watermark"


def test_each_row_once_with_rescales_and_a_killed_slot_and_executor(
    start: Start, whole: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    program = start("windows", rows=150 * RATE, rate=RATE)
    program.flows(3)
    for step in ("rescale 5", "slot", "rescale 2", "executor"):
        if step.startswith("rescale"):
            program.send(step)
        else:
            victim = (whole.slots if step == "slot" else whole.executors)(program.state["hosts"][0])[0]
            os.kill(victim, signal.SIGKILL)
        print(f"{step}: rows flow again after {program.flows():.1f} s")
    assert [line["rescaled"] for line in program.lines if "rescaled" in line] == [5, 2]
    program.result()
    assert_each_row_once(spark, tmp_path, 150 * RATE)


def test_each_row_once_when_the_driver_is_killed(start: Start, spark: SparkSession, tmp_path: Path) -> None:
    program = start("windows", rows=90 * RATE, rate=RATE)
    program.flows(3)
    program.kill()
    again = start("windows", rows=90 * RATE, rate=RATE)
    print(f"killed driver: rows flow again after {again.flows(3):.1f} s")
    again.result()
    assert_each_row_once(spark, tmp_path, 90 * RATE)


def test_rows_flow_on_while_a_host_is_cut_off_and_each_comes_once(
    start: Start, whole: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    """With Spark's default settings, under which it takes two minutes to notice; six cores, and three slots."""
    program = start("windows", rows=210 * RATE, rate=RATE)
    program.flows(3)
    host = program.state["hosts"][0]
    whole.cut(host)
    time.sleep(5)
    whole.heal(host)
    print(f"cut off for 5 s: rows flow again after {5 + program.flows(3):.1f} s")

    host = program.state["hosts"][0]
    whole.cut(host)
    begin = time.monotonic()
    program.wait(lambda: host not in program.state["hosts"] and "" not in program.state["hosts"], 110)
    program.flows(3)
    print(f"cut off for good: rows flow again after {time.monotonic() - begin:.1f} s")
    time.sleep(max(0.0, 60 - (time.monotonic() - begin)))
    whole.heal(host)
    program.flows(3)
    program.result()
    assert_each_row_once(spark, tmp_path, 210 * RATE)


def test_rows_flow_on_while_two_hosts_do_not_see_each_other_and_each_comes_once(
    start: Start, whole: Cluster, spark: SparkSession, tmp_path: Path
) -> None:
    program = start("windows", rows=150 * RATE, rate=RATE)
    program.flows(3)
    one, other = sorted(set(program.state["hosts"]))[:2]
    whole.part(one, other)
    begin = time.monotonic()
    program.wait(lambda: not {one, other} <= {*program.state["hosts"]} and "" not in program.state["hosts"])
    program.flows(3)
    print(f"two hosts apart: rows flow again after {time.monotonic() - begin:.1f} s")
    program.result()
    assert_each_row_once(spark, tmp_path, 150 * RATE)
