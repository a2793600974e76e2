"""Files read by Spark's own readers and by Headgate give the same rows, or the docs say why not."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from spark_answers import ANSWERS, CASES
from spark_table import Case, Outcome, headgate_options, read, read_by_the_data_source, table_time_zone

HERE = Path(__file__).parent
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


EACH = pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.called, marks=NEEDS.get(case.name, [])) for case in CASES]
)


@EACH
def test_same_outcome_as_spark_s(case: Case, answers: dict[str, str], spark: SparkSession, tmp_path: Path) -> None:
    """What Spark's readers make of each case is written down; here it is read by what Spark calls, without a query."""
    case.write(tmp_path / "input")
    check(case, read_by_the_data_source(case, tmp_path / "input"), answers[case.called])


@EACH
def test_same_outcome_as_spark_in_a_query(
    case: Case, answers: dict[str, str], spark: SparkSession, tmp_path: Path
) -> None:
    """And that is what Spark's readers make of it. `python tests/real/spark_answers.py` writes it down again.

    What breaks it breaks `tests/real/test_files_equal_spark.py::test_same_outcome_as_spark_s` too, or
    `tests/real/test_entry_points.py`.
    """
    case.write(tmp_path / "input")
    expected = read(spark.read.format(case.format), case, tmp_path / "input")
    if case.difference is None:  # else Spark's answer may depend on the day
        assert expected.written_down() == answers[case.called], expected.error
    found = read(spark.read.format("headgate.files").options(**headgate_options(case)), case, tmp_path / "input")
    check(case, found, expected.written_down())


def check(case: Case, found: Outcome, expected: str) -> None:
    """Check that an outcome equals Spark's, or does not where the docs say why."""
    if case.difference is None:
        assert found.written_down() == expected, found.error or (found.columns, found.rows)
    else:
        assert found.written_down() != expected, "the outcomes are equal: the difference is no longer true"


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    """Return what Spark's readers make of the cases."""
    return dict(json.loads(ANSWERS.read_text()))


@pytest.mark.parametrize("sentence", sorted({case.difference for case in CASES if case.difference}))
def test_each_difference_is_documented(sentence: str) -> None:
    assert sentence in " ".join(DIFFERENCES.read_text().split())


def test_the_table_is_large_enough(answers: dict[str, str]) -> None:
    assert len(CASES) >= 60
    assert len({case.called for case in CASES}) == len(CASES)
    assert [*answers] == [case.called for case in CASES], "written down again: python tests/real/spark_answers.py"
