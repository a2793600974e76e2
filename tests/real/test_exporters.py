"""Metrics of a real query, as a scrape of Prometheus, OpenTelemetry's SDK and an OTLP collector get them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import SparkSession

import headgate
from local.ports import free_ports
from tests.waiting import wait_until

OTLP_PROGRAM = """
from headgate.monitor.opentelemetry import export
from opentelemetry.metrics import get_meter_provider
from tests.unit.monitor.snapshots import snapshot
export(lambda: [snapshot()])
get_meter_provider().force_flush()
get_meter_provider().shutdown()
"""


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Iterator[tuple[Any, int]]:
    """A query that exports its metrics, and the port for Prometheus."""
    (port,) = free_ports(1)
    numbers = spark.readStream.format("headgate.datagen").option("rowsPerSecond", 500).schema("n long").load()
    query = (
        headgate.continuous(numbers.alias("numbers"), parallelism=1)
        .writeStream.queryName("exported")
        .format("noop")
        .option("checkpointLocation", str(tmp_path))
        .option("metrics.prometheus.port", port)
        .option("metrics.opentelemetry.enabled", True)
        .trigger(continuous="200 milliseconds")
        .start()
    )
    yield query, port
    query.stop()


def scraped(address: str) -> dict[str, float]:
    """Return the samples of the query, by name; where there are several, the last."""
    with urllib.request.urlopen(address, timeout=60) as response:
        text = response.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {sample.name: sample.value for sample in samples if sample.labels["query"] == "exported"}


def test_a_query_is_scraped_and_collected(query: tuple[Any, int]) -> None:
    started, port = query
    reader = InMemoryMetricReader()
    address = f"http://127.0.0.1:{port}/metrics"
    wait_until(lambda: scraped(address).get("headgate_source_rows_read_total", 0) > 0)
    wait_until(lambda: scraped(address).get("headgate_checkpoints_completed_total", 0) > 0)
    of_dashboard = started.dashboard().partition("#")[0] + "metrics"
    # Some come with the first figures of the subtasks, so perhaps between the two.
    wait_until(lambda: scraped(of_dashboard).keys() == scraped(address).keys() >= {"headgate_subtask_busy_ratio"})
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/api/queries", timeout=60)

    from headgate.monitor.opentelemetry import observe

    observe(lambda: [started.snapshot()], MeterProvider([reader]))
    data = reader.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    (rows,) = [metric for metric in scope.metrics if metric.name == "headgate.source_rows_read"]
    assert rows.data.data_points[0].value > 0

    started.stop()
    with pytest.raises(urllib.error.URLError):  # the last query that asked for the port is over
        urllib.request.urlopen(address, timeout=60)


def test_without_a_provider_metrics_go_over_otlp() -> None:
    came: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/metrics"
            came.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        endpoint = f"http://127.0.0.1:{server.server_port}"
        environment = {
            **os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }  # fmt: skip
        subprocess.run([sys.executable, "-c", OTLP_PROGRAM], check=True, env=environment, timeout=600)
    finally:
        server.shutdown()
        server.server_close()
    request = ExportMetricsServiceRequest.FromString(came[0])
    names = {metric.name for of in request.resource_metrics for scope in of.scope_metrics for metric in scope.metrics}
    assert "headgate.source_rows_read" in names and "headgate.connector" in names
