"""Some of what `conformance.column_groups` compares, and that it notices a difference."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from conformance.column_groups import Aggregate, How, Inputs, Program, aggregated, compare, equal, plain, run
from conformance.spark import Outcome
from headgate.operators.windows.aggregates import _Sum
from tests.search import block

PARTS = 100
AT_ONCE = 10


def different(outcomes: Iterable[Outcome]) -> list[Outcome]:
    return [each for each in outcomes if each.by == "different"]


@pytest.mark.parametrize("ansi", [True, False])
def test_this_commits_groups_are_spark_s(spark: SparkSession, ansi: bool) -> None:
    found = [*compare(spark, 1, ansi=ansi, part=block() % PARTS, of=PARTS)]
    assert not different(found)
    assert {each.by for each in found} & {"arrow", "catalyst"}


@pytest.mark.parametrize("ansi", [True, False])
@pytest.mark.parametrize("part", range(AT_ONCE))
def test_all_groups_are_spark_s(spark: SparkSession, ansi: bool, part: int) -> None:
    """What breaks it breaks `test_this_commits_groups_are_spark_s` too, of one commit in a hundred."""
    assert not different(compare(spark, block(), ansi=ansi, part=part, of=AT_ONCE))


def test_a_difference_is_noticed(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one of a single aggregate among others; what one side refuses takes none of these with it."""
    inputs = Inputs(spark, tmp_path, 0)
    wanted = [Aggregate("sum", "sum(n)"), Aggregate("count", "count(DISTINCT n)"), Aggregate("max", "max(variant)")]
    wanted.append(Aggregate("sum", "sum(9223372036854775807 - n)"))
    assert [each.by for each in aggregated(inputs, wanted, "p")] == ["arrow", "refused", "unknown", "arrow"]

    finish: Any = _Sum.finish
    monkeypatch.setattr(_Sum, "finish", lambda own, partials: finish(own, [pa.compute.add(partials[0], 1)]))

    def program(read: Any, table: DataFrame) -> DataFrame:
        return read().groupBy("p").sum("n")

    assert [each.by for each in aggregated(inputs, [Aggregate("max", "max(n)"), *wanted[:1]], "p")] == [
        "arrow",
        "different",
    ]
    assert run(inputs, Program("groupBy", "p", program, {})).by == "different"


def test_values_are_distinguished() -> None:
    nan = float("nan")
    assert equal(nan, nan, How.EXACT) and not equal(0.0, -0.0, How.EXACT) and equal(0.0, -0.0, How.ZERO)
    assert equal(0.1 + 0.2, 0.3, How.NEAR) and not equal(0.1 + 0.2, 0.3, How.EXACT) and not equal(1.0, None, How.NEAR)
    assert equal([1, None], [None, 1], How.BAG) and not equal([1, 1], [1], How.BAG)
    assert equal(10, 11, How.ABOUT) and not equal(10, 20, How.ABOUT)
    late = pa.array([300_000_000_000_000_000], pa.timestamp("us"))
    structs = pa.StructArray.from_arrays([late, pa.array([None], pa.int32())], ["at", "i"])
    assert plain(structs) == [(300_000_000_000_000_000, None)], "of a year that Python does not have"
    assert plain(pa.array([None, {"at": None}], pa.struct([("at", late.type)]))) == [None, (None,)]
