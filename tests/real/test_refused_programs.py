"""Each program of the list in docs/engines.md is refused, for the reason that stands there, before anything starts."""

from __future__ import annotations

import re

import pytest
from pyspark.sql import SparkSession

import headgate
from headgate.errors import UnsupportedOperationError
from headgate.spark.analyzed.stream_joins import check_streaming
from tests.engines_doc import refusals
from tests.refused_programs import PROGRAMS, Refused, rides


@pytest.mark.parametrize("each", PROGRAMS, ids=lambda each: each.text)
def test_a_program_of_the_list_is_refused(spark: SparkSession, each: Refused) -> None:
    frame = each.program(rides(spark))
    stated = re.escape(each.why).replace("…", ".*")
    with pytest.raises(UnsupportedOperationError, match=stated):
        headgate.continuous(frame, parallelism=1).writeStream.outputMode(each.mode).format("noop").definition()
    if each.in_spark == "refuses":
        with pytest.raises(UnsupportedOperationError, match="Spark does not run this in a stream"):
            check_streaming(frame._jdf.queryExecution().analyzed(), each.mode)
    else:
        check_streaming(frame._jdf.queryExecution().analyzed(), each.mode)


NO_PROGRAM_HAS = {
    "the generator … is not supported yet",  # of Scala's classes only
    "it is read by Spark itself",  # of a table that a catalog of another kind than Spark's own reads
    "it is of something else than transformWithState",  # which Spark's analyzer does not make
    "there is no join of two streams of the type …",  # likewise
}


def test_each_reason_of_the_translation_is_in_the_list() -> None:
    assert set(refusals()) - {each.why for each in PROGRAMS} == NO_PROGRAM_HAS
