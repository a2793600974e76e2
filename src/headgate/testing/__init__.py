"""Harnesses for connector authors: a source is driven without Spark, step by step, on a virtual clock.

Never: import pytest. A broken promise is an `AssertionError` (or the error that the source raised).

To test a connector, let the kit check every promise of the contract: `headgate.testing.conformance`. In a test module
that is one line, and a test for each promise::

    test_alphabet = conformance_test(lambda: simple(Alphabet))

To see single steps, drive a part by hand:

    harness              drives
    -------------------  ---------------------------------------------------------------------------------------
    `EnumeratorHarness`  an enumerator: readers come, ask and fail when the test says so; slow work (`call_async`)
                         runs when the test says so
    `SplitReaderHarness` a split reader: one fetch at a time
    `ReaderHarness`      a source reader: one poll at a time, with watermarks
    `SourceHarness`      all of a source wired together: one step at a time, snapshots, failures

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
>>> with SourceHarness(adapt(Alphabet)({})) as harness:
...     harness.run_to_end()
...     sorted(row["character"] for row in harness.rows())
['A', 'B', 'C', 'a', 'b', 'c']
"""

from headgate.testing.clock import VirtualClock
from headgate.testing.enumerator_harness import AsyncCall, EnumeratorHarness
from headgate.testing.reader_harness import ReaderHarness
from headgate.testing.rows import assert_same_rows
from headgate.testing.source_harness import SourceHarness, SourceSnapshot
from headgate.testing.split_reader_harness import SplitReaderHarness
from headgate.testing.threads import ThreadRule, assert_single_threaded

__all__ = [
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
]
