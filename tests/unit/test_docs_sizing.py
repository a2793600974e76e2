"""docs/sizing.md names options and tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.graph.query_options import QUERY_OPTION_SPECS


def test_options_and_tests_of_the_table_exist(repository: Path) -> None:
    text = (repository / "docs/sizing.md").read_text()
    table = [line.split("|") for line in text.partition("## What is not")[0].splitlines() if line.startswith("|")][2:]
    options = {name for row in table for name in re.findall(r"`([\w.]+)`", row[2])}
    assert {"exchange.memory", "state.memory", "static.memory", "catalyst.memory"} <= options
    assert options <= {spec.name for spec in (*QUERY_OPTION_SPECS, *OPTION_SPECS)}
    tests = {name for row in table for name in re.findall(r"`(test_\w+)`", row[4])}
    existing = {
        name
        for path in (repository / "tests").rglob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    assert tests <= existing
    bounds = (repository / "tests/real/test_memory_bounds.py").read_text()
    assert set(re.findall(r"^def (test_\w+)", bounds, re.MULTILINE)) <= tests
