"""``query.snapshot()`` on real Spark: what a query does, what limits it, and what happened to it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import headgate
from tests.real.aligned_rows import DRIFT_S, AlignedRows, Rows, most, settle
from tests.real.running_queries import happens, is_running, numbers, stop_all, wait_until, written

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]  # workers lack this module


@pytest.fixture(autouse=True)
def nothing_runs_on() -> Iterator[None]:
    yield
    stop_all()


def slow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        time.sleep(0.2)
        yield batch


class RaisesOnce:
    """A user's function that raises once when a file is there."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if happens(self.path):
                raise ValueError("a row that I do not like")
            yield batch


def texts(query: headgate.ContinuousQuery) -> list[str]:
    return [each["text"] for each in query.snapshot()["why"]]


def test_a_busy_operator_is_what_limits_the_query(spark: SparkSession) -> None:
    """And all figures are JSON's values."""
    slowed = numbers(spark, rate=100_000).mapInArrow(slow, "value long").alias("parse")
    query = written(slowed, "noop").queryName("busy").start()
    [reason] = wait_until(lambda: [each for each in texts(query) if "`parse`" in each], query)
    assert reason.startswith("slot ") and " splits wait for it" in reason
    made = wait_until(lambda: made if (made := query.snapshot())["checkpoints"]["completed"] else None, query)
    assert json.loads(json.dumps(made)) == made
    assert (made["name"], made["state"], made["sparkVersion"]) == ("busy", "running", pyspark.__version__)
    assert (made["stages"][0]["operators"], made["stages"][0]["sinks"]) == (["parse"], ["sink"])
    assert made["sources"][0]["rowsRead"] > 0 and made["sources"][0]["numSplits"] == 4
    assert {each["slot"] for each in made["subtasks"]} == {each["slot"] for each in made["slots"]} == {0, 1}
    history = wait_until(lambda: made if (made := query.history())["busy"] else None, query)
    assert len(history["points"]) == len(history["busy"]["0"]) > 0
    query.stop()
    assert query.snapshot()["why"][0]["text"] == "The query has ended."


def test_a_slow_second_stage_back_pressures_the_first_and_its_operator_is_named(spark: SparkSession) -> None:
    slowed = numbers(spark, rate=100_000).repartition(2, "value").mapInArrow(slow, "value long").alias("parse")
    query = written(slowed, "noop").start()

    def reason() -> str | None:
        found = [each for each in texts(query) if each.startswith("stage 0 waits ") and each.endswith(" in `parse`")]
        return found[0] if found else None

    assert "% of the time for stage 1, where slot " in wait_until(reason, query)

    def reported() -> dict[str, Any] | None:
        """Return a snapshot in which each of the four has figures: they come one after the other."""
        made = query.snapshot()
        return made if all(each["busy"] is not None and each["rowsIn"] for each in made["subtasks"]) else None

    made = wait_until(reported, query)
    known = made["subtasks"]
    assert len(known) == 4
    assert [each["backPressured"] > 0.5 for each in made["stages"]] == [True, False]
    producers, consumers = ([each for each in known if each["stage"] == stage] for stage in (0, 1))
    assert all(each["rowsOut"] > 0 and each["bufferPoolUse"] > 0 for each in producers)
    assert all(each["rowsIn"] > 0 and each["queueBatches"] is None for each in consumers)
    assert max(each["queueBatches"] for each in producers) > 0
    for each in known:
        assert abs(each["busy"] + each["backPressured"] + each["idle"] - 1) < 0.01
    query.stop()


def test_restarts_are_there_with_their_cause_and_a_rescale_is_none_of_them(spark: SparkSession, tmp_path: Path) -> None:
    raising = numbers(spark).mapInArrow(RaisesOnce(tmp_path / "raise"), "value long")
    query = written(raising, "noop", interval="200 milliseconds").start()
    wait_until(lambda: is_running(query), query)
    (tmp_path / "raise").touch()
    [restart] = wait_until(lambda: query.snapshot()["restarts"]["recent"], query)
    assert "a row that I do not like" in restart["cause"]
    assert (restart["kind"], restart["stage"], restart["slot"] == restart["subtask"]) == ("subtask", 0, True)
    wait_until(lambda: is_running(query), query)
    query.rescale(1)
    made = query.snapshot()
    assert (made["parallelism"], made["restarts"]["count"]) == (1, 1)
    assert made["restarts"]["recent"][1]["cause"] == "The parallelism was 2 and is 1."


def test_the_split_that_others_wait_for_is_named(spark: SparkSession, tmp_path: Path) -> None:
    rows = Rows(spark, tmp_path, slow=10, fast=60)
    query = rows.start(rows.aligned(), 2)
    settle(query, slow=10, fast=most(10))

    def held() -> dict[str, Any] | None:
        found = [each for each in query.snapshot()["why"] if each["about"]["kind"] == "split"]
        return found[0] if found else None

    reason = wait_until(held, query)
    assert reason["about"] == {"kind": "split", "source": AlignedRows.name, "split": "slow", "group": "seconds"}
    assert reason["text"] == f"split slow lags by {DRIFT_S + 1} s and holds another back"
    [source] = query.snapshot()["sources"]
    assert [(each["id"], each["paused"], each["driftMs"]) for each in source["splits"]] == [
        ("slow", False, 0), ("fast", True, 1000 * (DRIFT_S + 1)),
    ]  # fmt: skip
    assert source["splits"][0]["position"] == 10
