"""Some of what ``./run conformance columns`` compares, other expressions with each commit, and that it notices a
difference."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from conformance import column_rows
from conformance.column_rows import Failed, comparable
from conformance.columns import Expression, Outcome, compare, expressions, report
from tests.search import block, rotating

EXPRESSIONS = expressions()
SOME, ROWS = 10, 16


def different(outcomes: list[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.by == "different"]


def test_this_commits_expressions_are_spark_s(spark: SparkSession) -> None:
    chosen = [EXPRESSIONS[place] for place in rotating(SOME, len(EXPRESSIONS))]
    outcomes = compare(spark, chosen, ROWS, seed=1)
    assert len(outcomes) == 2 * SOME and not different(outcomes)


@pytest.mark.parametrize("first", range(0, len(EXPRESSIONS), 120))
def test_all_expressions_are_spark_s(spark: SparkSession, first: int) -> None:
    """What breaks it breaks `test_this_commits_expressions_are_spark_s` too, with some commit."""
    assert not different(compare(spark, EXPRESSIONS[first : first + 120], 64, seed=block()))


def test_a_difference_is_noticed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    chosen = [
        Expression("/", "i32 / (n % 3)"),
        Expression("x", "input_file_name()"),
        Expression("x", "no_function(i32)"),
    ]
    outcomes = compare(spark, chosen, ROWS, seed=0)
    assert [each.by for each in outcomes] == ["refused", "unknown", "arrow", "refused", "unknown", "catalyst"], outcomes
    assert outcomes[2].failed and not outcomes[5].failed  # with ANSI mode, and without
    assert report(outcomes, []) == 0
    (case,) = json.loads(capsys.readouterr().out.splitlines()[-1])["cases"]
    assert (case["headgate"], case["peer"], case["refused"], case["different"]) == (1, 2, 2, 0)

    halved: Any = column_rows._halved
    monkeypatch.setattr(column_rows, "_halved", lambda *given: [each or Failed(None) for each in halved(*given)])
    worse = compare(spark, chosen[:1], ROWS, seed=0)
    assert [each.by for each in worse] == ["different", "catalyst"] and report(worse, []) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([0.0]), pa.array([-0.0])),
        (pa.array([[None]], pa.list_(pa.int32())), pa.array([None], pa.list_(pa.int32()))),
        (pa.array([{"a": None}], pa.struct([("a", pa.int32())])), pa.array([None], pa.struct([("a", pa.int32())]))),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())), pa.array([[]], pa.map_(pa.string(), pa.int32()))),
        (pa.array([1], pa.timestamp("us", "UTC")), pa.array([2], pa.timestamp("us", "UTC"))),
    ],
)  # fmt: skip
def test_values_that_differ_are_compared_as_different(one: pa.Array, other: pa.Array) -> None:
    assert comparable(one) == comparable(pa.concat_arrays([other, one]).slice(1)) != comparable(other)


def test_nan_is_equal_to_itself() -> None:
    assert comparable(pa.array([float("nan"), None])) == comparable(pa.array([-float("nan"), None]))
