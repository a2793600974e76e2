"""Saves the pages of Spark's UI, for programs that show what is seen there."""

from __future__ import annotations

import urllib.request
from pathlib import Path

from pyspark.sql import SparkSession

_PAGES = ("environment/", "jobs/", "stages/", "SQL/", "StreamingQuery/", "executors/")
_OF_THE_API = ("environment", "sql?details=true", "stages", "jobs")


def save_pages(spark: SparkSession, folder: Path, executions: int) -> None:
    """Write the pages, with those of the first ``executions`` of SQL, and answers of its API to ``page-N.html``."""
    context = spark.sparkContext
    pages = [*_PAGES, *(f"SQL/execution/?id={number}" for number in range(executions))]
    pages += [f"api/v1/applications/{context.applicationId}/{each}" for each in _OF_THE_API]
    for number, page in enumerate(pages):
        with urllib.request.urlopen(f"{context.uiWebUrl}/{page}", timeout=60) as answer:
            (folder / f"page-{number}.html").write_bytes(answer.read())
