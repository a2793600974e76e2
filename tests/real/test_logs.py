"""The log of a query in a process of its own: the driver's events and a slot's, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_failure_is_an_event_with_its_place_and_no_traceback(tmp_path: Path) -> None:
    program = Path(__file__).with_name("logs_program.py")
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)], capture_output=True, text=True, timeout=600, env=environment
    )
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    elsewhere = [event for event in events if event["context"].get("query") != "numbers"]
    assert not elsewhere
    texts = [event["msg"] for event in events]
    (began,) = [text for text in texts if "Run 1 begins from no checkpoint, with 1 slots" in text]
    assert str(tmp_path / "checkpoints") in began
    warnings = {event["logger"]: event for event in events if event["level"] == "WARNING"}
    assert warnings.keys() == {"headgate.runtime.subtask", "headgate.spark.continuous.driver"}
    for event in warnings.values():
        assert "this row is bad" in event["msg"]  # one line, though the error has two
        assert event["context"] == {"query": "numbers", "slot": "0", "stage": "0", "subtask": "0"}
    assert any("is complete, after" in text for text in texts)
    assert any("All subtasks are running" in text for text in texts)  # twice, unless the first failure is quicker
    assert any("The run is over" in text for text in texts)
    assert "Traceback" not in done.stderr
