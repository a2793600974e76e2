"""docs/continuous.md says of every option of a continuous query and of its sinks what it is, and its default."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from headgate.connectors.debug import console, memory, noop
from headgate.connectors.files.sink import sink as files
from headgate.connectors.kafka.sink import options as kafka_options
from headgate.graph.query_options import QUERY_OPTION_SPECS, parse_query_options, restart_options
from headgate.source.options import OptionSpec
from headgate.spark.continuous.formats import _BUILT_IN

_SECTION = re.compile(r"^##+ (.*)$", re.MULTILINE)
_SINKS = {**files.SINK_OPTION_SPECS, "console": console.SINK_OPTION_SPECS}
_SINK_SPECS = [(sink, spec) for sink, specs in _SINKS.items() for spec in specs]
_STRATEGY_FIELDS = {
    "attempts": "attempts",
    "delay": "delay_ms",
    "initial-backoff": "initial_backoff_ms",
    "max-backoff": "max_backoff_ms",
    "backoff-multiplier": "backoff_multiplier",
    "jitter-factor": "jitter_factor",
    "reset-backoff-threshold": "reset_backoff_threshold_ms",
}
"""What an option of a restart strategy is called in the strategies' structs."""


def sections(text: str) -> dict[str, str]:
    """Return the text below each heading."""
    parts = _SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(text: str) -> list[list[str]]:
    """Return the cells of all rows of tables that begin with something in code, without its backticks."""
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    return [[cell.strip().strip("`") for cell in line.split("|")[1:-1]] for line in lines]


@pytest.fixture(scope="module")
def document(repository: Path) -> dict[str, str]:
    return sections((repository / "docs/continuous.md").read_text())


def assert_default(spec: OptionSpec, cell: str) -> None:
    """Assert that a cell is how a user would write the default."""
    if spec.default is None:
        assert cell in ("", "see above")
    else:
        assert spec.parse(cell) == spec.default


def test_the_sources_that_are_listed_are_those_that_there_are(document: dict[str, str]) -> None:
    (listed,) = re.findall(r"- Formats: (.*?), and classes", " ".join(document["Sources"].split()))
    assert re.findall(r"`headgate\.(\w+)`", listed) == list(_BUILT_IN)


@pytest.mark.parametrize("spec", QUERY_OPTION_SPECS, ids=lambda spec: spec.name)
def test_options_of_the_query(document: dict[str, str], spec: OptionSpec) -> None:
    (found,) = [row for row in rows(document["Options of a query"]) if row[0] == spec.name]
    assert found[2].startswith(spec.meaning)
    assert ("may not change" in found[2]) != spec.changeable
    assert_default(spec, found[1])


@pytest.mark.parametrize("name", _STRATEGY_FIELDS)
def test_defaults_of_restart_strategies(document: dict[str, str], name: str) -> None:
    (found,) = [row for row in rows(document["Restart strategies"]) if row[0] == f"restart-strategy.{name}"]
    (spec,) = [spec for spec in QUERY_OPTION_SPECS if spec.name == f"restart-strategy.{name}"]
    for kind, cell in zip(("exponential-delay", "fixed-delay"), found[1:], strict=True):
        fields = msgspec.to_builtins(restart_options(parse_query_options({"restart-strategy": kind}, {})))
        assert (cell != "") == (_STRATEGY_FIELDS[name] in fields)
        if cell:
            assert spec.parse(cell) == fields[_STRATEGY_FIELDS[name]]


@pytest.mark.parametrize(("sink", "spec"), _SINK_SPECS, ids=lambda value: getattr(value, "name", value))
def test_options_of_sinks(document: dict[str, str], sink: str, spec: OptionSpec) -> None:
    text = document["Console and memory" if sink == "console" else "Files"]
    if spec.status == "rejected":
        assert f"`{spec.name}`" in text.partition("Errors:")[2]
        return
    if spec.status == "no-op":  # checkpointLocation, the query's own
        return
    (found,) = [row for row in rows(text) if row[0] == spec.name and ("all" in row[1] or sink in row[1])]
    assert found[3].startswith(spec.meaning)
    assert_default(spec, found[2])


@pytest.mark.parametrize("module", [memory, noop])
def test_sinks_without_options_have_none(module: ModuleType) -> None:
    assert [spec.status for spec in module.SINK_OPTION_SPECS] == ["no-op"]


def test_options_of_the_kafka_sink_stand_with_kafka(repository: Path) -> None:
    written = sections((repository / "docs/kafka.md").read_text())["Writing"]
    own = [spec for spec in kafka_options.SINK_OPTION_SPECS if not spec.name.startswith("kafka.")]
    assert [spec.name for spec in own if f"`{spec.name}`" not in written] == []
