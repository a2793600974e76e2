"""Groups that changed are known by bucket and hash, each once, and taken bucket by bucket."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.key_hash import key_hash
from headgate.operators.windows.changed_groups import ChangedGroups

HASHES = st.integers(0, 20).map(lambda key: int(key_hash([pa.array([key])])[0]))
GROUPS = st.lists(st.tuples(st.integers(-3, 3), HASHES), min_size=1, max_size=9)


@given(added=st.lists(GROUPS, max_size=40), asked=GROUPS, last=st.integers(-3, 3))
def test_what_is_taken(added: list[list[tuple[int, int]]], asked: list[tuple[int, int]], last: int) -> None:
    changed = ChangedGroups()
    for groups in added:
        changed.add(np.array([bucket for bucket, _ in groups]), np.array([each for _, each in groups], np.uint64))
    assert bool(changed) == bool(added)
    every = {group for groups in added for group in groups}
    due = changed.take(last)
    pairs = list(zip(due.buckets.tolist(), due.hashes.tolist()))
    assert sorted(pairs) == sorted(group for group in every if group[0] <= last) and len(due) == len(pairs)
    if pairs:
        buckets, hashes = np.array([each for each, _ in asked]), np.array([each for _, each in asked], np.uint64)
        assert due.contain(buckets, hashes).tolist() == [group in pairs for group in asked]
    assert bool(changed) == any(bucket > last for bucket, _ in every)
    assert len(changed.take(3)) == len(every) - len(pairs)


def test_no_group_is_lost_whose_number_is_that_of_another() -> None:
    """Two to the power of 64 are not so many that it could not be."""
    changed = ChangedGroups()
    buckets = np.array([0, 2, 2, 0])
    collide = (np.array([2], np.int64).view(np.uint64) * np.uint64(0x9E3779B97F4A7C15))[0]
    changed.add(buckets, np.array([5, 5 ^ int(collide), 5 ^ int(collide), 5], np.uint64))
    due = changed.take(1)
    assert (due.buckets.tolist(), due.hashes.tolist()) == ([0], [5])
    due = changed.take(2)
    assert set(zip(due.buckets.tolist(), due.hashes.tolist())) == {(2, 5 ^ int(collide))}
