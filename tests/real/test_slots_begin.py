"""The processes of slots: PySpark is not compiled anew in each, and they draw different numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_slots_are_forked_from_what_has_imported_all(tmp_path: Path) -> None:
    """In a session without what makes processes of the tests' own session start at once."""
    environment = {key: value for key, value in os.environ.items() if key != "HEADGATE_TESTS_IMPORTED"}
    environment["PYTHONPATH"] = str(REPOSITORY / "src")
    program = Path(__file__).parent / "worker_start_program.py"
    subprocess.run([sys.executable, str(program), str(tmp_path)], env=environment, check=True)
    one, other = (json.loads(each.read_text()) for each in tmp_path.glob("[0-9]*"))
    for facts in (one, other):
        assert ".zip" not in facts["pyspark"]
        assert facts["arrow in the daemon"] and facts["threads of the daemon"] == 1
        assert "worker_start" not in facts["path"] and str(REPOSITORY / "src") in facts["path"]
    assert one["draws"] != other["draws"]
