"""Compares what was read, whatever its order and batches.

Never: compare batches: their borders are not part of any promise.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any


def assert_same_rows(
    found: Iterable[Mapping[str, Any]], expected: Iterable[Mapping[str, Any]], what: str = "the rows"
) -> None:
    """Assert that two reads gave the same rows, each the same number of times, in any order.

    Examples
    --------
    >>> assert_same_rows([{"n": 2}, {"n": 1}], [{"n": 1}, {"n": 2}])
    >>> assert_same_rows([{"n": 1}], [{"n": 1}, {"n": 2}])
    Traceback (most recent call last):
    ...
    AssertionError: the rows: 1 rows, expected 2; missing 1, for example ["{'n': 2}"]; too many 0, for example []
    """
    # By their text, because values may be unhashable, and NaN is to equal NaN.
    found_counts, expected_counts = (Counter(repr(dict(row)) for row in rows) for rows in (found, expected))
    missing, extra = expected_counts - found_counts, found_counts - expected_counts
    assert not missing and not extra, (
        f"{what}: {found_counts.total()} rows, expected {expected_counts.total()}; "
        f"missing {missing.total()}, for example {list(missing)[:3]}; "
        f"too many {extra.total()}, for example {list(extra)[:3]}"
    )
