"""The metrics of queries for Prometheus: a collector for any registry, and the text that a scrape returns.

Never: keep a value: each scrape reads the newest snapshots.

Needs ``prometheus_client``: ``pip install 'headgate[metrics]'``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as MetricFamily
from prometheus_client.registry import Collector

from headgate.monitor.metrics import METRICS, Snapshot, SplitLabels, connector_samples, labelled

PREFIX = "headgate_"

_FAMILIES: dict[str, type[CounterMetricFamily] | type[GaugeMetricFamily]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
}


class QueryCollector(Collector):
    """Collects the metrics of queries; register it with any `prometheus_client` registry.

    Parameters
    ----------
    snapshots
        Returns the snapshots of the queries: `ContinuousQuery.snapshot` of each. Called by the thread that scrapes.

    Examples
    --------
    >>> from prometheus_client import CollectorRegistry
    >>> registry = CollectorRegistry()
    >>> registry.register(QueryCollector(lambda: []))
    """

    def __init__(self, snapshots: Callable[[], Iterable[Snapshot]]) -> None:
        self._snapshots = snapshots
        self._labels = SplitLabels()

    def collect(self) -> Iterator[MetricFamily]:
        """Return a family for each metric that some query has."""
        snapshots = labelled(self._snapshots())
        for metric in METRICS:
            family = _FAMILIES[metric.kind](
                PREFIX + metric.name, metric.help + ".", labels=("query", *metric.labels), unit=metric.unit
            )
            for query, snapshot in snapshots:
                for labels, value in metric.samples(snapshot, self._labels):
                    family.add_metric((query, *labels), value)
            if family.samples:
                yield family
        yield from self._of_connectors(snapshots)

    def describe(self) -> Iterator[MetricFamily]:
        """Return nothing: a registry need not collect to know the names."""
        return iter(())

    def _of_connectors(self, snapshots: Iterable[tuple[str, Snapshot]]) -> Iterator[MetricFamily]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for query, snapshot in snapshots:
            for name, source, value, kind in connector_samples(snapshot):
                full = f"{PREFIX}connector_{name}"
                if full not in families:
                    families[full] = _FAMILIES[kind](full, "Registered by a connector.", labels=("query", "source"))
                families[full].add_metric((query, source), value)
        yield from families.values()


def exposition(collector: Collector, accept: str = "") -> tuple[bytes, str]:
    """Return the metrics in the format that a scrape's ``Accept`` header asks for, and its content type."""
    registry = CollectorRegistry()
    registry.register(collector)
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type
