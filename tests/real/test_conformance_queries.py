"""Some of what ``./run conformance queries`` does, on few rows; it notices a difference, and says what is refused."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate
from conformance import queries
from conformance.nexmark import AUCTIONS, BIDS, CHUNK, Auctions, Bids, Events, Persons
from conformance.nexmark_queries import QUERIES, Query, Tables
from conformance.queries import Outcome, compared, micro_batches, prepare, report, rows_of, tables
from headgate.errors import UnsupportedOperationError

EVENTS = 30_000
BY_NAME = {each.name: each for each in QUERIES}


@pytest.fixture(autouse=True)
def known(spark: SparkSession) -> None:
    prepare(spark)


def rows(kind: type[Events], events: int = EVENTS, position: int | None = None, **options: object) -> pa.Table:
    source = kind({"events": events, **options})
    found = [batch for split in source.splits() for batch, _ in source.read(split, position)]
    return pa.Table.from_batches(found).sort_by("dateTime")


def test_events_are_nexmark_s_and_the_same_for_the_same_seed() -> None:
    persons, auctions, bids = rows(Persons), rows(Auctions), rows(Bids)
    assert (len(persons), len(auctions), len(bids)) == (600, 600 * AUCTIONS, 600 * BIDS)
    assert bids.equals(rows(Bids)) and not bids.equals(rows(Bids, seed=1))
    assert rows(Bids, CHUNK).equals(bids.slice(0, CHUNK // 50 * BIDS)), "more events begin with the same ones"
    assert bids.column("dateTime").to_pylist() == sorted(set(bids.column("dateTime").to_pylist())), "no two at one time"
    assert auctions.column("id").to_pylist() == list(range(1000, 1000 + 1800))
    assert pc.all(pc.is_in(bids.column("auction"), auctions.column("id"))).as_py()
    assert pc.all(pc.is_in(auctions.column("seller"), persons.column("id"))).as_py()
    is_hot = np.isin(bids.column("channel").to_numpy(), ["Google", "Facebook", "Baidu", "Apple"])
    assert 0.45 < is_hot.mean() < 0.55
    source = Bids({"events": 5 * CHUNK})
    for split in source.splits():
        positions = [position for _, position in source.read(split, None)]
        assert positions[-1] == source.latest(split)
        assert [position for _, position in source.read(split, positions[0])] == positions[1:]


@pytest.mark.parametrize("name", ["q1", "q5", "q7", "q10", "q11", "q13", "q14", "q17", "q21"])
def test_a_query_is_equal_to_spark_s_batch(spark: SparkSession, name: str) -> None:
    """What breaks it breaks `tests/real/test_continuous_aggregations.py`, `tests/real/test_continuous_stream_joins.py`,
    `tests/real/test_continuous_static_joins.py`, `tests/real/test_continuous_user_functions.py` and
    `tests/real/test_analyzed_expressions.py` too.
    """
    found = compared(spark, BY_NAME[name], EVENTS)
    assert found.equal and found.compared > 0, found


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_a_query_is_timed_in_an_output_mode_that_it_has(spark: SparkSession, query: Query) -> None:
    program = query.program(tables(spark, EVENTS, stream=False))
    try:
        headgate.continuous(program, 2).writeStream.outputMode(query.mode)
    except UnsupportedOperationError:
        assert query.name in ("q6", "q9", "q19"), "a query that could be compared is refused"


def test_a_difference_is_noticed(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    def drawn(of: Tables) -> DataFrame:
        return of.person.select("id", F.udf(lambda _: os.urandom(8).hex())("id").alias("drawn"))

    found = compared(spark, Query("drawn", drawn), EVENTS)
    assert found.equal is False and found.compared == 600
    assert report([replace(found, headgate=[2.0, 1.0, 4.0], peer=[1.0])], EVENTS) == 1
    shown = capsys.readouterr().out.splitlines()
    assert any("DIFFERENT" in line for line in shown)
    assert json.loads(shown[-1])["cases"] == [
        {"case": "drawn", "unit": "rows/s", "headgate": 2, "peer": 1, "peer_name": "structured streaming", "ratio": 2.0,
         "equal": False}
    ]  # fmt: skip


def test_what_an_engine_refuses_is_shown_with_its_reason(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compared(spark, BY_NAME["q19"], EVENTS)
    assert found.equal is None and "row_number" in found.refused
    queries.timed(spark, BY_NAME["q19"], found, EVENTS, 1)
    assert "NON_TIME_WINDOW_NOT_SUPPORTED_IN_STREAMING" in found.peer_refused and found.headgate == []
    assert report([found], EVENTS) == 0
    shown = capsys.readouterr().out
    assert "q19: headgate refuses it" in shown and "q19: structured streaming refuses it" in shown
    assert json.loads(shown.splitlines()[-1])["cases"][0]["equal"] is None


def test_both_engines_are_timed_over_the_rows_that_a_query_reads(spark: SparkSession) -> None:
    assert rows_of(BY_NAME["q0"], EVENTS) == 27_600 and rows_of(BY_NAME["q3"], EVENTS) == 2400
    found = Outcome("q2", equal=True)
    queries.timed(spark, BY_NAME["q2"], found, EVENTS, 2)
    assert len(found.headgate) == len(found.peer) == 2
    assert micro_batches(spark, BY_NAME["q7"], EVENTS) > 0
