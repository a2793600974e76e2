"""Files read by Spark's own readers and by Headgate give the same rows, or the docs say why not."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_table import Case, Outcome, read, table_time_zone

TABLES = ("spark_table_csv", "spark_table_json", "spark_table_bulk")
HERE = Path(__file__).parent
CASES: list[Case] = [
    case for table in TABLES if (HERE / f"{table}.py").exists() for case in importlib.import_module(table).CASES
]
DIFFERENCES = HERE.parent.parent / "docs" / "files-differences.md"


@pytest.fixture(scope="module")
def spark(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session that all tests share, with the table's time zone while they run."""
    with table_time_zone(spark):
        yield spark


NEEDS = {
    "zstandard": [pytest.mark.spark_since("zstandard")],
    "instants": [pytest.mark.spark_since("orc-instants")],
    "milliseconds of the day": [pytest.mark.spark_since("time-type")],
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=f"{case.format}: {case.name}", marks=NEEDS.get(case.name, [])) for case in CASES]
)
def test_same_outcome_as_spark(case: Case, spark: SparkSession, tmp_path: Path):
    case.write(tmp_path / "input")
    expected = read(spark.read.format(case.format), case, tmp_path / "input")
    found = read(spark.read.format("headgate.files").option("fileFormat", case.format), case, tmp_path / "input")
    if case.difference is None:
        assert _readable(found) == _readable(expected), found.error or expected.error
    else:
        assert found != expected, "the outcomes are equal: the difference is no longer true"


@pytest.mark.parametrize("sentence", sorted({case.difference for case in CASES if case.difference}))
def test_each_difference_is_documented(sentence: str):
    assert sentence in " ".join(DIFFERENCES.read_text().split())


def test_the_table_is_large_enough():
    assert len(CASES) >= 60
    assert len({(case.format, case.name) for case in CASES}) == len(CASES)


def _readable(outcome: Outcome) -> object:
    """Return what is compared; of an error only that there is one, but show the text where they differ."""
    return "an error" if outcome.failed else (outcome.columns, outcome.rows)
