"""Failover of continuous queries: processes are killed, code hangs or raises, storage fails, and the output is exact.

The scenarios are functions of failover_scenarios.py. Masters that the tests' own session lacks have processes of their
own, one for all their scenarios; where tests run in several processes, each of these is run by one of them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path

import failover_scenarios
import pytest
from pyspark.sql import SparkSession

from tests.spark_java import SparkJava

HERE = Path(__file__).parent
PATIENCE_S = 600
pytestmark = pytest.mark.timeout(2 * PATIENCE_S + 120)  # all scenarios of a master run in the first test's name

IN_THIS_SESSION = (
    "a_killed_worker_ends_a_job_without_retries",
    "a_function_that_kills_its_process",
    "a_function_that_raises_once",
    "a_fetch_that_raises_once",
    "a_full_failover",
    "a_function_that_always_raises",
    "no_restarts",
    "an_enumerator_that_raises_once",
    "an_enumerator_without_a_log",
    "an_endpoint_that_moves",
    "tolerable_failures_of_the_storage",
    "failures_of_the_storage",
    "a_stopped_query_leaves_nothing",
)
WITH_RETRIES = (
    "a_killed_worker_s_task_is_retried_alone",  # first: it looks at times
    "five_kills_of_one_slot",
    "a_frozen_worker",
    "a_zombie",
    "files_of_a_zombie",
    "an_output_folder_that_is_gone_for_a_while",
    "a_hung_fetch",
    "a_function_that_holds_the_gil",
)
ON_A_CLUSTER = (
    "a_killed_worker_s_task_is_retried_alone",
    "a_killed_executor",
    "a_function_that_always_raises",
    "a_stopped_session",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, java: SparkJava) -> Callable[..., dict[str, str]]:
    """Return a function that runs scenarios in a session of another master: what went wrong in each; empty: nothing."""

    @cache
    def run(master: str, at_a_time: int, names: tuple[str, ...]) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("failover")
        program = [sys.executable, str(HERE / "scenario_program.py"), "failover_scenarios"]
        command = [*program, master, str(folder), str(at_a_time), *names]
        with (folder / "log").open("w") as log:
            ended = java.run(command, stdout=subprocess.PIPE, stderr=log, text=True, timeout=PATIENCE_S)
        print((folder / "log").read_text()[-20_000:], file=sys.stderr)
        assert ended.returncode == 0
        found: dict[str, str] = json.loads(ended.stdout)
        return found

    return run


@pytest.mark.parametrize("scenario", IN_THIS_SESSION)
def test_without_retries_of_tasks(spark: SparkSession, tmp_path: Path, scenario: str) -> None:
    try:
        getattr(failover_scenarios, scenario)(spark, tmp_path / scenario)
    finally:
        failover_scenarios.stop_what_is_left(tmp_path / scenario)


@pytest.mark.parametrize("scenario", WITH_RETRIES)
def test_with_retries_of_tasks(outcomes: Callable[..., dict[str, str]], scenario: str) -> None:
    outcome = outcomes("local[6,3]", 3, WITH_RETRIES)[scenario]
    assert not outcome, outcome


@pytest.mark.parametrize("scenario", ON_A_CLUSTER)
def test_on_a_cluster(outcomes: Callable[..., dict[str, str]], scenario: str) -> None:
    outcome = outcomes("local-cluster[2,1,1024]", 1, ON_A_CLUSTER)[scenario]
    assert not outcome, outcome


def test_a_killed_driver_s_query_goes_on(spark: SparkSession, java: SparkJava, tmp_path: Path) -> None:
    """One driver dies in the middle of a checkpoint, the next one in that of a commit; this one ends the query.

    The first one's Java dies with it; the second one's lives on for a moment, and its tasks with it.
    """
    folder = tmp_path / "driver"
    folder.mkdir()
    for run, moment, well in ((subprocess.run, "checkpoint", 3), (java.run, "commit", 2)):
        command = [sys.executable, str(HERE / "failover_driver.py"), moment, str(well), str(folder)]
        died = run(command, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S)
        assert died.returncode == -signal.SIGKILL, died.stderr
    failover_scenarios.a_query_goes_on_after_its_driver(spark, folder)
    runs = sorted(int(path.name) for path in (folder / "checkpoints" / "runs").iterdir())
    assert runs[-1] == 3


def test_a_program_whose_java_is_killed_ends_with_an_error() -> None:
    """In a Java of its own, which no other test needs."""
    program = """
        import os, signal, time
        from pyspark.sql import SparkSession
        import headgate

        spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        numbers = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 1000).schema("n long").load()
        query = headgate.continuous(numbers, parallelism=1).writeStream.format("memory").start()
        while not query.table().num_rows:
            time.sleep(0.01)
        os.kill(spark._jvm.ProcessHandle.current().pid(), signal.SIGKILL)
        try:
            query.awaitTermination(WITHIN_S)
        except headgate.errors.DeploymentError as error:
            print("ended:", error)
    """
    code = textwrap.dedent(program).replace("WITHIN_S", str(PATIENCE_S))
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S + 60)
    assert "ended: Spark's driver, the Java process of this program, was killed" in ended.stdout, (
        ended.stdout + ended.stderr[-5000:]
    )
