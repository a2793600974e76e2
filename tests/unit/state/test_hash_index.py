"""Rows are found by their hashes, also such as differ in the bits that give way to places."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headgate.state.hash_index import HashFilter, HashIndex

HASHES = st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 99) | st.integers(2**64 - 9, 2**64 - 1), max_size=40)


@given(known=HASHES, asked=HASHES)
def test_all_rows_of_a_hash_are_found_in_their_order(known: list[int], asked: list[int]) -> None:
    hashes = np.array(known, np.uint64)
    rows, of = HashIndex(hashes).rows(np.array(asked, np.uint64))
    for place, wanted in enumerate(asked):
        found = rows[of == place]
        assert found[hashes[found] == np.uint64(wanted)].tolist() == [
            row for row, each in enumerate(known) if each == wanted
        ]


@given(known=HASHES, asked=HASHES)
def test_no_hash_that_is_there_is_filtered_out(known: list[int], asked: list[int]) -> None:
    may_have = HashFilter(np.sort(np.array(known, np.uint64))).may_have(np.array(asked, np.uint64))
    assert all(may for may, each in zip(may_have, asked) if each in known)


def test_most_that_are_not_there_are_filtered_out() -> None:
    draw = np.random.default_rng(1)
    known, others = np.sort(draw.integers(0, 2**64, 20_000, np.uint64)), draw.integers(0, 2**64, 20_000, np.uint64)
    assert HashFilter(known).may_have(others).mean() < 0.25
