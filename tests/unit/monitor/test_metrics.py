"""The metrics of a query, as Prometheus and OpenTelemetry get them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from headgate.monitor.metrics import METRICS, MOST_QUERIES, MOST_SPLITS, OTHERS, SplitLabels
from headgate.monitor.opentelemetry import observe
from headgate.monitor.prometheus import PREFIX, QueryCollector, exposition
from tests.unit.monitor.snapshots import snapshot, source, split


def scraped(*snapshots: dict[str, Any]) -> CollectorRegistry:
    """Return a registry with the metrics of these queries."""
    registry = CollectorRegistry()
    registry.register(QueryCollector(lambda: snapshots))
    return registry


def series() -> list[str]:
    """Return the names of all series."""
    names = (f"{PREFIX}{each.name}{'_' if each.unit else ''}{each.unit}" for each in METRICS)
    return [name + ("_total" if each.kind == "counter" else "") for name, each in zip(names, METRICS)]


class TestPrometheus:
    def test_values_have_base_units_and_labels(self) -> None:
        of = scraped(snapshot()).get_sample_value
        assert of("headgate_source_rows_read_total", {"query": "rides", "source": "kafka"}) == 10
        assert of("headgate_checkpoint_duration_seconds", {"query": "rides"}) == pytest.approx(0.03)
        assert of("headgate_watermark_timestamp_seconds", {"query": "rides"}) == 60
        assert of("headgate_query_state", {"query": "rides", "state": "running"}) == 1
        lag = {"query": "rides", "source": "kafka", "split": "rides-0"}
        assert of("headgate_split_pending_records", lag) == 7
        assert of("headgate_restore_left_bytes", {"query": "rides"}) == 4_100

    def test_what_a_query_has_not_is_absent(self) -> None:
        of = scraped(snapshot(watermarkMs=None, checkpoints={"completed": 0, "failed": 0, "last": None}))
        assert of.get_sample_value("headgate_watermark_timestamp_seconds", {"query": "rides"}) is None
        assert of.get_sample_value("headgate_checkpoint_age_seconds", {"query": "rides"}) is None
        assert of.get_sample_value("headgate_checkpoints_completed_total", {"query": "rides"}) == 0

    def test_a_query_without_a_name_is_labelled_with_its_id(self) -> None:
        assert scraped(snapshot(name=None)).get_sample_value("headgate_parallelism", {"query": "7f0c"}) == 2

    def test_two_queries_of_one_name_are_one_series_that_of_the_later(self) -> None:
        ended = snapshot(startedMs=1, parallelism=1, state="ended")
        text, _ = exposition(QueryCollector(lambda: [snapshot(startedMs=2), ended]))
        assert text.count(b'headgate_parallelism{query="rides"}') == 1
        assert b'headgate_parallelism{query="rides"} 2.0' in text

    def test_of_two_queries_of_one_name_the_one_that_runs_counts(self) -> None:
        ended = snapshot(startedMs=3, parallelism=1, state="failed")
        assert scraped(ended, snapshot(startedMs=2)).get_sample_value("headgate_parallelism", {"query": "rides"}) == 2

    def test_what_a_connector_registers(self) -> None:
        of = scraped(snapshot()).get_sample_value
        assert of("headgate_connector_fetch_latency_ms", {"query": "rides", "source": "kafka"}) == 4
        assert of("headgate_connector_num_fetches_total", {"query": "rides", "source": "kafka"}) == 9

    def test_a_scrape_has_valid_names_and_a_help_for_each(self) -> None:
        text, content_type = exposition(QueryCollector(lambda: [snapshot()]))
        assert content_type.startswith("text/plain")
        for family in text_string_to_metric_families(text.decode()):
            assert family.documentation.endswith(".")
            assert re.fullmatch(r"headgate_[a-z][a-z_]*", family.name)

    def test_openmetrics_where_it_is_asked_for(self) -> None:
        text, content_type = exposition(QueryCollector(lambda: [snapshot()]), "application/openmetrics-text")
        assert content_type.startswith("application/openmetrics-text") and text.endswith(b"# EOF\n")


class TestCardinality:
    def test_new_splits_for_ever_are_a_bounded_number_of_series(self) -> None:
        read = 0

        def snapshots() -> list[dict[str, Any]]:
            nonlocal read
            splits = [split(f"file-{read + each}", lag=1) for each in range(50)]
            read += 50
            return [snapshot(sources=[source(splits=splits)])]

        collector = QueryCollector(snapshots)
        seen = set()
        for _ in range(20):
            for family in collector.collect():
                if family.name == "headgate_split_pending_records":
                    seen |= {sample.labels["split"] for sample in family.samples}
                    last = {sample.labels["split"]: sample.value for sample in family.samples}
        assert len(seen) == MOST_SPLITS + 1
        assert last == {OTHERS: 50}

    def test_together_are_sum_of_lag_lowest_watermark_and_largest_drift(self) -> None:
        splits = [split(f"p-{each}", lag=1, watermarkMs=each * 1000, driftMs=each * 1000) for each in range(203)]
        of = scraped(snapshot(sources=[source(splits=splits)])).get_sample_value
        labels = {"query": "rides", "source": "kafka", "split": OTHERS}
        assert of("headgate_split_pending_records", labels) == 3
        assert of("headgate_split_watermark_timestamp_seconds", labels) == 200
        assert of("headgate_split_drift_seconds", labels) == 202

    def test_queries_without_end_are_forgotten(self) -> None:
        labels = SplitLabels()
        for each in range(MOST_SPLITS):
            labels.of("first", "kafka", f"p-{each}")
        assert labels.of("first", "kafka", "late") == OTHERS
        for each in range(MOST_QUERIES):
            labels.of(f"query-{each}", "kafka", "p-0")
        assert labels.of("first", "kafka", "late") == "late"


class TestOpenTelemetry:
    def test_each_metric_is_an_instrument(self) -> None:
        reader = InMemoryMetricReader()
        made = 0

        def snapshots() -> list[dict[str, Any]]:
            nonlocal made
            made += 1
            return [snapshot()]

        observe(snapshots, MeterProvider([reader]))
        data = reader.get_metrics_data()
        assert data is not None
        (scope,) = data.resource_metrics[0].scope_metrics
        found = {metric.name: metric for metric in scope.metrics}
        rows = found["headgate.source_rows_read"]
        (point,) = rows.data.data_points
        assert (rows.unit, point.value, dict(point.attributes)) == ("1", 10, {"query": "rides", "source": "kafka"})
        assert found["headgate.checkpoint_duration"].unit == "s"
        connector = {point.attributes["metric"]: point.value for point in found["headgate.connector"].data.data_points}
        assert connector == {"fetch_latency_ms": 4, "num_fetches": 9}
        assert made < len(METRICS), "a snapshot was made for each instrument"


class TestDocuments:
    def test_the_page_lists_them_all_with_kind_labels_and_meaning(self, repository: Path) -> None:
        text = (repository / "docs/metrics.md").read_text()
        expected = [
            f"| `{name}` | {each.kind} | {', '.join(f'`{label}`' for label in each.labels)} | {each.help} |"
            for name, each in zip(series(), METRICS)
        ]
        assert [line for line in text.splitlines() if line.startswith("| `headgate_")] == expected

    def test_the_dashboard_for_grafana_asks_for_series_that_exist(self, repository: Path) -> None:
        board = json.loads((repository / "docs/grafana.json").read_text())
        asked = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
        names = {name for expression in asked for name in re.findall(r"headgate_\w+", expression)}
        assert len(asked) > 20 and names <= set(series())

    def test_alerts_ask_for_series_that_exist(self, repository: Path) -> None:
        text = (repository / "docs/metrics.md").read_text()
        names = set(re.findall(r"headgate_[a-z_]+[a-z]", text.split("## Alerts")[1]))
        assert names and names <= set(series())
