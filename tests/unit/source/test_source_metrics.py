"""A connector's metrics: what is counted on any thread, asked for on one, and bounded."""

from __future__ import annotations

import logging
import threading

import pytest

from headgate.errors import ConnectorContractError
from headgate.source.metrics import MOST_NAMES, MOST_SPLITS, MetricGroup


def values(group: MetricGroup, *split_ids: str) -> dict[str, float]:
    return {name: each.value for name, each in group.collect(split_ids).metrics.items()}


def test_a_counter_has_what_all_threads_added() -> None:
    group = MetricGroup()
    counter = group.counter("requests")

    def add() -> None:
        for _ in range(20_000):
            counter.inc()

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    group.counter("requests").inc(7)
    assert counter.count == 80_007 == values(group)["requests"]


def test_gauges_of_splits_end_with_them_and_are_one_figure_of_the_source() -> None:
    group = MetricGroup()
    for number, split_id in enumerate("stu"):
        group.split(split_id).gauge("pendingRecords", lambda number=number: 10 * number)  # type: ignore[misc]
        group.split(split_id).gauge("lateMs", lambda number=number: number, "max")  # type: ignore[misc]
    assert values(group, "s", "t", "u") == {"pendingRecords": 30, "lateMs": 2}
    assert group.collect(["s", "t"]).pending_records == {"s": 0, "t": 10}
    assert group.collect(["s", "t", "u"]).pending_records == {"s": 0, "t": 10}, "u has ended"


def test_a_reader_that_knows_a_figure_of_all_splits_better_is_believed() -> None:
    group = MetricGroup()
    group.split("s").gauge("pendingRecords", lambda: 1)
    group.gauge("pendingRecords", lambda: 50)
    assert values(group, "s") == {"pendingRecords": 50}


def test_a_gauge_without_a_number_is_left_out_and_one_that_raises_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    group = MetricGroup()
    group.gauge("none", lambda: None)
    group.gauge("odd", lambda: float("nan"))
    group.gauge("raises", lambda: 1 / 0)
    with caplog.at_level(logging.WARNING):
        assert values(group) == values(group) == {}
    (record,) = caplog.records
    assert record.message == "the gauge 'raises' raised, and has no value: ZeroDivisionError: division by zero"


def test_names_are_bounded_and_the_one_that_is_too_many_is_named() -> None:
    group = MetricGroup()
    for number in range(MOST_NAMES):
        group.counter(f"n{number}")
    with pytest.raises(ConnectorContractError, match=r"'topic_7' is one too many: a connector has at most 64.*split"):
        group.gauge("topic_7", lambda: 1)
    group.counter("n0").inc()


@pytest.mark.parametrize("name", ["", "1st", "a-b", "a b", "lag.ms"])
def test_a_name_must_be_one_that_exporters_take(name: str) -> None:
    with pytest.raises(ConnectorContractError, match="Use A-Z, a-z, 0-9 and _"):
        MetricGroup().counter(name)


def test_a_name_stands_for_one_thing() -> None:
    group = MetricGroup()
    group.counter("requests")
    with pytest.raises(ConnectorContractError, match="a gauge with the aggregate 'sum', but it is a counter"):
        group.split("s").gauge("requests", lambda: 1)
    with pytest.raises(ConnectorContractError, match="'avg'"):
        group.gauge("mean", lambda: 1, "avg")  # type: ignore[arg-type]


def test_splits_are_bounded_without_an_error() -> None:
    """How many there are is not the author's to say."""
    group = MetricGroup()
    split_ids = [f"s{number}" for number in range(MOST_SPLITS + 5)]
    for split_id in split_ids:
        group.split(split_id).gauge("pendingRecords", lambda: 1)
    assert len(group.collect(split_ids).pending_records) == MOST_SPLITS
