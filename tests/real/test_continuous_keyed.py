"""Queries with exchanges on real Spark: rescaled with rows under way, killed and restored, and the output is exact.

The scenarios are functions of keyed_scenarios.py and keyed_state_scenarios.py; they have sessions of their own, since
ten slots want ten cores: one for each part of them, so that processes can share the work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.spark_java import SparkJava

HERE = Path(__file__).parent
PATIENCE_S = 1500
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)  # all scenarios of a part run in the first test's name
FIRST = (
    "repartition",
    "two_exchanges",
    "union_of_stages",
    "a_function_that_raises_once",
    "a_killed_worker",
    "savepoint_and_back",
    "switches_that_contradict",
    "windows_through_rescales",
    "update_mode",
    "late_rows",
    "drained_windows",
    "stateful_processor",
    "little_changes",
    "user_errors",
    "changed_programs",
)
FURTHER = (
    "the_documents_example",
    "partition_by",
    "repartition_to_one",
    "union_before_an_exchange",
    "union_of_far_stages",
    "broadcast",
    "old_behaviour",
    "no_checkpoint_during_recovery",
    "aligned_only",
    "sliding_and_session_windows",
    "two_windows_in_one_stage",
    "window_of_windows",
    "savepoints_of_windows",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, java: SparkJava) -> Callable[..., dict[str, str]]:
    """Return a function that runs a part, some scenarios at a time: what went wrong in each; empty: nothing."""

    @cache
    def run(part: tuple[str, ...]) -> dict[str, str]:
        folder = tmp_path_factory.mktemp("keyed")
        modules = "keyed_scenarios,keyed_state_scenarios"
        program = [sys.executable, str(HERE / "scenario_program.py"), modules, "local[24,3]", str(folder), "4"]
        with (folder / "log").open("w") as log:
            ended = java.run([*program, *part], stdout=subprocess.PIPE, stderr=log, text=True, timeout=PATIENCE_S)
        print((folder / "log").read_text()[-20_000:], file=sys.stderr)
        assert ended.returncode == 0
        found: dict[str, str] = json.loads(ended.stdout)
        return found

    return run


def needing(scenarios: Sequence[str]) -> list[Any]:
    """Return scenarios with what they need of Spark."""
    needs = {
        "partition_by": [pytest.mark.spark_since("repartition-by-id")],
        "the_documents_example": [pytest.mark.spark_since("transform-with-state-rows")],
        "stateful_processor": [pytest.mark.spark_since("transform-with-state-rows")],
        "user_errors": [pytest.mark.spark_since("transform-with-state-rows")],
    }
    return [pytest.param(each, marks=needs.get(each, [])) for each in scenarios]


@pytest.mark.parametrize("scenario", needing(FIRST))
def test_with_rows_under_way(outcomes: Callable[..., dict[str, str]], scenario: str) -> None:
    """What the scenario's docstring says holds."""
    outcome = outcomes(FIRST)[scenario]
    assert not outcome, outcome


@pytest.mark.parametrize("scenario", needing(FURTHER))
def test_with_rows_under_way_too(outcomes: Callable[..., dict[str, str]], scenario: str) -> None:
    """What the scenario's docstring says holds.

    What breaks it breaks `tests/scenarios/test_simulated_rescales.py` too, or of options
    `tests/unit/spark/continuous/test_job.py`, of where state is spilled `tests/unit/runtime/test_chain.py`, of windows
    `tests/unit/operators/windows/test_window_operator.py`, `tests/unit/operators/windows/test_session_operator.py` and
    `tests/real/test_continuous_aggregations.py`, of partitions `tests/unit/runtime/test_partitioners.py`.
    """
    outcome = outcomes(FURTHER)[scenario]
    assert not outcome, outcome
