"""The metrics of queries for OpenTelemetry: one observable instrument for each.

Never: make snapshots for each instrument: those of one collection share them.

Needs the OpenTelemetry SDK: ``pip install 'headgate[metrics]'``. Where to is OpenTelemetry's own configuration
(``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_METRIC_EXPORT_INTERVAL``, ``OTEL_RESOURCE_ATTRIBUTES`` and so on).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter_provider, set_meter_provider
from opentelemetry.sdk.metrics import MeterProvider as SdkMeterProvider

from headgate.monitor.metrics import METRICS, Metric, Snapshot, SplitLabels, connector_samples, labelled

_SHARED_S = 0.5
_UNITS = {"seconds": "s", "bytes": "By", "ratio": "1", "": "1"}


def observe(snapshots: Callable[[], Iterable[Snapshot]], provider: MeterProvider) -> None:
    """Make an instrument of each metric at a meter provider; call it once for each provider.

    The instruments are named like ``headgate.source_rows_read``, their attributes like the labels in docs/metrics.md.
    What connectors register themselves is ``headgate.connector``, with the attribute ``metric``.

    Parameters
    ----------
    snapshots
        Returns the snapshots of the queries. Called by the thread that collects.
    provider
        Where to.
    """
    meter = provider.get_meter("headgate")
    names = SplitLabels()
    newest = _Newest(snapshots)
    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(
            f"headgate.{metric.name}",
            callbacks=[_callback(metric, newest, names)],
            unit=_UNITS[metric.unit],
            description=metric.help,
        )

    def of_connectors(_: CallbackOptions) -> Iterator[Observation]:
        for query, snapshot in newest.labelled():
            for name, source, value, _kind in connector_samples(snapshot):
                yield Observation(value, {"query": query, "source": source, "metric": name})

    meter.create_observable_gauge(
        "headgate.connector", callbacks=[of_connectors], description="Registered by a connector"
    )


def export(snapshots: Callable[[], Iterable[Snapshot]]) -> None:
    """Send the metrics to the application's meter provider; if it set none, over OTLP to what the environment says."""
    provider = get_meter_provider()
    if not isinstance(provider, SdkMeterProvider):
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        provider = SdkMeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter())])
        set_meter_provider(provider)
    observe(snapshots, provider)


class _Newest:
    """Snapshots that are at most half a second old. A collection calls one instrument after the other, on one thread.

    Parameters
    ----------
    snapshots
        Makes them.
    """

    def __init__(self, snapshots: Callable[[], Iterable[Snapshot]]) -> None:
        self._snapshots = snapshots
        self._made: list[tuple[str, Snapshot]] = []
        self._made_s: float | None = None

    def labelled(self) -> list[tuple[str, Snapshot]]:
        """Return each with its label."""
        if self._made_s is None or time.monotonic() - self._made_s > _SHARED_S:
            self._made, self._made_s = labelled(self._snapshots()), time.monotonic()
        return self._made


def _callback(
    metric: Metric, newest: _Newest, names: SplitLabels
) -> Callable[[CallbackOptions], Iterator[Observation]]:
    def callback(_: CallbackOptions) -> Iterator[Observation]:
        for query, snapshot in newest.labelled():
            for labels, value in metric.samples(snapshot, names):
                yield Observation(value, {"query": query, **dict(zip(metric.labels, labels))})

    return callback
