"""Queries with exchanges on real Spark: rescaled with rows under way, killed and restored, and the output is exact.

The scenarios are functions of keyed_scenarios.py and keyed_state_scenarios.py; they have a session of their own, since
ten slots want ten cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATIENCE_S = 1500
pytestmark = pytest.mark.timeout(PATIENCE_S + 60)  # all scenarios run in the first test's name
SCENARIOS = (
    "the_documents_example",
    "repartition",
    "partition_by",
    "repartition_to_one",
    "two_exchanges",
    "union_of_stages",
    "union_before_an_exchange",
    "union_of_far_stages",
    "broadcast",
    "a_function_that_raises_once",
    "a_killed_worker",
    "savepoint_and_back",
    "old_behaviour",
    "no_checkpoint_during_recovery",
    "switches_that_contradict",
    "aligned_only",
    "windows_through_rescales",
    "sliding_and_session_windows",
    "two_windows_in_one_stage",
    "update_mode",
    "window_of_windows",
    "late_rows",
    "savepoints_of_windows",
    "drained_windows",
    "stateful_processor",
    "little_changes",
    "user_errors",
    "changed_programs",
)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all scenarios, some at a time, and return what went wrong in each; empty: nothing."""
    folder = tmp_path_factory.mktemp("keyed")
    modules = "keyed_scenarios,keyed_state_scenarios"
    program = [sys.executable, str(HERE / "scenario_program.py"), modules, "local[24,3]", str(folder), "3"]
    with (folder / "log").open("w") as log:
        ended = subprocess.run(
            [*program, *SCENARIOS], stdout=subprocess.PIPE, stderr=log, text=True, timeout=PATIENCE_S
        )
    print((folder / "log").read_text()[-20_000:], file=sys.stderr)
    assert ended.returncode == 0
    found: dict[str, str] = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_rows_under_way(outcomes: dict[str, str], scenario: str) -> None:
    """What the scenario's docstring says holds."""
    assert not outcomes[scenario], outcomes[scenario]
