"""docs/engines.md shows what the translation of programs takes, and what it refuses."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from tests.engines_doc import DOCUMENT, document


@pytest.mark.spark_since("ceil-overflow")
def test_the_document_is_what_the_translation_says(spark: SparkSession) -> None:
    assert DOCUMENT.read_text() == document(spark), "out of date: run  ./run docs"
