"""docs/event-time.md names options that there are, with their defaults, and keys that progress has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headgate.connectors.kafka.source import KafkaSource
from headgate.graph.query_options import QUERY_OPTION_SPECS
from headgate.monitor.progress import ProgressReporter, QueryIdentity
from headgate.protocol.messages import SplitEventTime, SubtaskProgress
from headgate.source.options import COMMON_OPTIONS, OptionSpec

SPECS = {spec.name: spec for spec in COMMON_OPTIONS if spec.name.startswith(("eventTime", "scan.watermark."))}


@pytest.fixture(scope="module")
def text(repository: Path) -> str:
    return (repository / "docs/event-time.md").read_text()


@pytest.mark.parametrize("spec", SPECS.values(), ids=list(SPECS))
def test_every_option_of_event_time_stands_there_with_its_default(text: str, spec: OptionSpec) -> None:
    (row,) = [line for line in text.splitlines() if line.startswith(f"| `{spec.name}` |") and line.count("|") == 4]
    default = row.split("|")[2].strip().strip("`")
    assert default in ("", "never") if spec.default is None else spec.parse(default) == spec.default


def test_every_option_that_is_named_exists(text: str) -> None:
    known = {spec.name for spec in (*COMMON_OPTIONS, *QUERY_OPTION_SPECS, *KafkaSource.option_specs)}
    named = set(re.findall(r"\b(?:scan|pipeline)\.[a-z.-]+[a-z]", text)) | set(re.findall(r'option\("(\w+)"', text))
    assert {name for name in named if name not in known} <= {"fileFormat", "subscribe"}


def test_every_key_of_progress_that_is_named_exists(text: str) -> None:
    identity = QueryIdentity(
        query_id="q", run_id="r", name=None, sources={"a": "kafka"}, sinks={"s": "noop"}, alignment_groups={"a": "g"}
    )
    reporter = ProgressReporter(identity, started_ms=0)
    reported = {"a": {"a-0": SplitEventTime(watermark_ms=0)}}
    reporter.take(0, SubtaskProgress(stage=0, execution=1, splits={"a": 1}, event_times=reported, watermark_ms=0), 1)
    progress = reporter.report(2)[0]
    own = progress["headgate"]
    section = text.partition("## When a group is held back")[2].partition("\n## ")[0]
    for keys in (
        progress["eventTime"], own["eventTimes"]["a"], own["eventTimes"]["a"]["splits"]["a-0"],
        own["alignmentGroups"]["g"], own["alignmentGroups"]["g"]["slowest"],
    ):  # fmt: skip
        assert [key for key in keys if f"`{key}`" not in section] == []


def test_it_is_short(text: str) -> None:
    assert len(text.splitlines()) < 200
