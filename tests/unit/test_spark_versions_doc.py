"""docs/spark-versions.md says what headgate.spark.compatibility and the tests' marks say."""

from __future__ import annotations

from headgate.spark.compatibility import FEATURES
from tests.spark_versions_doc import DOCUMENT, document, marked


def test_the_document_is_what_the_table_and_the_marks_say() -> None:
    assert DOCUMENT.read_text() == document(), "out of date: run  ./run docs"


def test_marks_name_features() -> None:
    assert set(marked()) <= set(FEATURES)
