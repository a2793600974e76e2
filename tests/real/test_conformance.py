"""Some of what ``./run conformance spark`` compares, and that it notices a difference."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import SparkSession

from conformance import single_rows
from conformance.spark import Outcome, examples, report

QUERIES = {
    "SELECT 2 % 1.8": "catalyst",
    "SELECT 3 * 2": "arrow",
    "SELECT upper('SparkSql')": "arrow",
    "SELECT date_add('2016-07-30', 1)": "arrow",
    "SELECT CASE WHEN 1 > 0 THEN 1 WHEN 2 > 0 THEN 2.0 ELSE 1.2 END": "arrow",
    "SELECT array_distinct(array(1, 2, 3, null, 3))": "catalyst",
    "SELECT from_json('{\"a\":1, \"b\":0.8}', 'a INT, b DOUBLE')": "catalyst",
    "SELECT transform(array(1, 2, 3), x -> x + 1)": "catalyst",
    "SELECT regexp_substr('Steven Jones and Stephen Smith', 'Ste(v|ph)en')": "catalyst",
    "SELECT try_variant_set(parse_json('{\"a\": 1}'), '$.b', 3)": "catalyst",
    "SELECT variant_strip_nulls(NULL)": "catalyst",
    "SELECT make_dt_interval(1, 12, 30, 01.001001)": "catalyst",
    "SELECT upper('a' COLLATE UNICODE_CI) AS u, 'a' COLLATE UTF8_LCASE = 'A' AS same": "catalyst",
    "SELECT '\\\\abc' AS S, S like r'\\\\abc'": "arrow",
    "SELECT current_timestamp(), now(), current_date(), localtimestamp(), current_time(0), current_time(3)": "spark",
    "SELECT date_diff(current_date(), current_date() - 3), unix_timestamp() > 0": "catalyst",
    "SELECT date_format(now(), 'y') = year(current_date())": "catalyst",
    "SELECT current_timezone(), current_database(), current_user(), version()": "catalyst",
    "SELECT rand(0), randn(7), rand(0) * 2, uuid(), shuffle(array(1, 20, 3, 5))": "catalyst",
    "SELECT reflect('java.util.UUID', 'randomUUID')": "catalyst",
    "SELECT raise_error('custom error message')": "catalyst",
    "SELECT assert_true(0 < 1)": "catalyst",
    "SELECT try_divide(2L, 0)": "catalyst",
    "SELECT element_at(array(1, 2, 3), 5)": "catalyst",
    "SELECT 1 / 0": "arrow",
    "SELECT explode(array(10, 20))": "catalyst",
    "SELECT input_file_name()": "refused",
    "SELECT make_ym_interval(1, 2)": "refused",
    "SELECT make_interval(100, 11, 1)": "refused",
}  # fmt: skip


def outcome(spark: SparkSession, query: str) -> Outcome:
    return single_rows.SingleRow(spark, "a function", query).outcome()


def with_marks(query: str) -> Any:
    """Return a query, marked with what it needs of Spark."""
    marks = []
    if "variant_set" in query or "variant_strip" in query:
        marks.append(pytest.mark.spark_since("variant-changes"))
    if "current_time(" in query:
        marks.append(pytest.mark.spark_since("time-type"))
    return pytest.param(query, marks=marks)


@pytest.mark.parametrize("query", [with_marks(each) for each in QUERIES])
def test_an_example_is_spark_s(spark: SparkSession, query: str) -> None:
    found = outcome(spark, query)
    assert found.by == QUERIES[query], found


def test_there_are_spark_s_examples(spark: SparkSession) -> None:
    found = [query for name, query in examples(spark, ["upper", "%", "extract", "sum"])]
    assert "SELECT upper('SparkSql')" in found and "SELECT 2 % 1.8" in found
    assert any("FROM" in query for query in found) and not any("sum(" in query for query in found)


def test_a_difference_is_noticed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result: Any = single_rows._result

    def off_by_one(*given: Any) -> Any:
        return [[each + 1 for each in column] for column in result(*given)]

    equal, refused = outcome(spark, "SELECT 3 * 2"), outcome(spark, "SELECT input_file_name()")
    assert report([equal, refused]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["cases"] == [
        {"case": "functions", "headgate": 1, "peer": 2, "ratio": 0.5, "different": 0, "arrow": 1, "catalyst": 0,
         "refused": 1}
    ]  # fmt: skip
    monkeypatch.setattr(single_rows, "_result", off_by_one)
    assert report([equal, outcome(spark, "SELECT 3 * 2")]) == 1
    assert "[[7]] / [[6]]" in capsys.readouterr().out
