"""Where a query's dashboard is found: in Spark's UI and the log, where no browser opens it; and queries without one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headgate.errors import HeadgateError, OptionError
from tests.real.running_queries import stop_all
from tests.real.test_dashboard import started


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def test_spark_s_ui_links_to_the_dashboard(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The description of the slots' job, as Spark itself renders it; and a line in the log, without the token."""
    with caplog.at_level(logging.INFO, logger="headgate"):
        query = started(spark, tmp_path, "a < b & c")
    address = query.dashboard().partition("#")[0]
    assert f"query a < b & c: Its dashboard is at {address}" in caplog.text
    assert query.dashboard().partition("token=")[2].partition("&")[0] not in caplog.text
    context: Any = spark.sparkContext
    jobs = context._jsc.sc().statusStore().jobsList(None)
    listed = [jobs.apply(number) for number in range(jobs.size())]
    described = [each for each in listed if each.description().isDefined()]
    (ours,) = [each for each in described if query.runId in each.description().get()]
    shown = str(context._jvm.org.apache.spark.ui.UIUtils.makeDescription(ours.description().get(), "", False))
    link = address.removeprefix("http:")
    assert f'<a href="{link}#query={query.id}">{address}</a>' in shown
    assert "a &lt; b &amp; c" in shown


def test_a_query_without_a_dashboard(spark: SparkSession, tmp_path: Path) -> None:
    query = started(spark, tmp_path, **{"dashboard.enabled": False})
    with pytest.raises(OptionError, match=r"dashboard\.enabled is false"):
        query.dashboard()


def test_a_dashboard_that_cannot_be_served_is_no_reason_to_fail(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.monitor.endpoint.of_process._endpoint", None)
    query = started(spark, tmp_path, **{"dashboard.host": "192.0.2.1"})
    with pytest.raises(HeadgateError, match="its endpoint is not open"):
        query.dashboard()
