"""Harnesses and checks for connector authors: a source is driven without Spark, step by step, on a virtual clock.

Never: import pytest. A broken promise is an `AssertionError` (or the error that the source raised).

To test a connector, let the kit check every promise of the contract that applies to it:

>>> import pyarrow as pa
>>> from headgate.connectors.simple import adapt
>>> from headgate.source.simple import SimpleSource
>>> class Alphabet(SimpleSource):
...     name = "alphabet"
...     schema = "character string"
...
...     def splits(self):
...         return ["lower", "upper"]
...
...     def read(self, split_id, position):
...         characters = "abc" if split_id == "lower" else "ABC"
...         for index in range(position or 0, 3):
...             yield pa.record_batch({"character": [characters[index]]}), index + 1
>>> make_source = lambda: adapt(Alphabet)({})
>>> schema = pa.schema({"character": pa.string()})
>>> check_source(make_source, schema=schema)

In a test suite each promise is better a test of its own, so that a report names the broken one. Checks that do not
apply to the source pass at once::

    @pytest.mark.parametrize("check", ALL_CHECKS, ids=lambda check: check.__name__)
    def test_my_source_keeps(check):
        check(make_source, schema=schema)

To see single steps, drive a part by hand:

    harness              drives
    -------------------  ---------------------------------------------------------------------------------------
    `EnumeratorHarness`  an enumerator: readers come, ask and fail when the test says so; slow work (`call_async`)
                         runs when the test says so
    `SplitReaderHarness` a split reader: one fetch at a time
    `ReaderHarness`      a source reader: one poll at a time, with watermarks
    `SourceHarness`      all of a source wired together: one step at a time, snapshots, failures

>>> with SourceHarness(make_source(), schema=schema) as harness:
...     harness.run_to_end()
...     sorted(row["character"] for row in harness.rows())
['A', 'B', 'C', 'a', 'b', 'c']
"""

from headgate.testing.clock import VirtualClock
from headgate.testing.enumerator_harness import AsyncCall, EnumeratorHarness
from headgate.testing.kit import (
    ALL_CHECKS,
    check_a_failed_readers_splits_are_read_again,
    check_close_is_quick,
    check_nobody_assigns_to_a_reader_that_is_gone,
    check_parallel_readers_read_the_same_rows,
    check_pausing,
    check_planned_ranges,
    check_positions_of_rows,
    check_restore_at_every_step,
    check_rows_and_splits_repeat,
    check_source,
    check_source_can_be_sent_to_readers,
    check_splits_finished_before_a_restore_can_come_back,
    check_threads,
)
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.rows import assert_same_rows
from headgate.testing.source_harness import SourceHarness, SourceSnapshot
from headgate.testing.split_reader_harness import SplitReaderHarness
from headgate.testing.threads import ThreadRule, assert_single_threaded

__all__ = [
    "ALL_CHECKS",
    "AsyncCall",
    "EnumeratorHarness",
    "ReaderHarness",
    "SourceHarness",
    "SourceSnapshot",
    "SplitReaderHarness",
    "ThreadRule",
    "VirtualClock",
    "assert_same_rows",
    "assert_single_threaded",
    "check_a_failed_readers_splits_are_read_again",
    "check_close_is_quick",
    "check_nobody_assigns_to_a_reader_that_is_gone",
    "check_parallel_readers_read_the_same_rows",
    "check_pausing",
    "check_planned_ranges",
    "check_positions_of_rows",
    "check_restore_at_every_step",
    "check_rows_and_splits_repeat",
    "check_source",
    "check_source_can_be_sent_to_readers",
    "check_splits_finished_before_a_restore_can_come_back",
    "check_threads",
]
