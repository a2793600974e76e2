"""Settings of the session that all tests share, changed for a while."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def changed_settings(spark: SparkSession, changed: Mapping[str, str]) -> Iterator[SparkSession]:
    """Yield the session with other settings; put back what was there before."""
    before = {name: spark.conf.get(name, None) for name in changed}
    for name, value in changed.items():
        spark.conf.set(name, value)
    try:
        yield spark
    finally:
        for name, known in before.items():
            spark.conf.unset(name) if known is None else spark.conf.set(name, known)
