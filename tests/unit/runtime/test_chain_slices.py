"""How long a slice takes with all that comes of it: calls are as many as what is upstream makes of it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from headgate.runtime.chain_slices import ChainSlices
from headgate.runtime.slices import CALL_MS

MANY = 20_000


def slices(
    batches: Callable[[random.Random, int, int], list[int]], call_ms: float, row_ms: float, count: int, seed: int = 0
) -> list[tuple[int, float]]:
    """Take so many slices, each as large as allowed; return their rows and how long they took.

    ``batches``: how many rows each batch has that a first operator makes of so many, in the slice of this number; a
    second one takes them, on a machine whose times vary.
    """
    choose, chain = random.Random(seed), ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    taken = []
    for number in range(count):
        rows, spent_ms = min(MANY, chain.entry_rows("in")), 0.0
        chain.take("in", rows)
        chain.took("first", rows, 0.001, "in")
        for left in batches(choose, rows, number):
            while left:
                part = min(left, chain.call_rows("second"))
                took_ms = (call_ms + part * row_ms) * choose.uniform(0.9, 1.3)
                chain.took("second", part, took_ms, "in")
                spent_ms, left = spent_ms + took_ms, left - part
        chain.went_through()
        taken.append((rows, spent_ms))
    return taken


FEEDS = {"in": ["first"], "first": ["second"]}


def some(choose: random.Random, rows: int, share: float) -> int:
    return sum(choose.random() < share for _ in range(rows))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("share", "call_ms"), [(0.1, 15.0), (0.5, 15.0), (0.5, 45.0), (0.9, 30.0), (0.9, 100.0)])
def test_a_branch_that_takes_some_of_the_rows_does_not_keep_slices_small(
    share: float, call_ms: float, seed: int
) -> None:
    taken = slices(lambda choose, rows, _: [rows, some(choose, rows, share)], call_ms, 0.001, 300, seed)
    assert sum(rows for rows, _ in taken) > 20_000


@pytest.mark.parametrize("shares", [(0.01, 1.0), (1.0, 0.01)])
def test_one_slice_is_long_at_most_when_more_rows_than_before_pass_a_filter(shares: tuple[float, float]) -> None:
    taken = slices(lambda choose, rows, number: [some(choose, rows, shares[number >= 150])], 0.0, 0.02, 300)
    assert sum(spent_ms > 2.2 * CALL_MS for _, spent_ms in taken) <= 1
    assert sum(spent_ms for _, spent_ms in taken[-100:]) > 5 * CALL_MS


@pytest.mark.parametrize(("least", "most", "call_ms"), [(1, 1, 5.0), (10, 40, 5.0), (1, 3, 20.0)])
def test_batches_of_each_row_are_no_more_calls_than_fit(least: int, most: int, call_ms: float) -> None:
    taken = slices(lambda choose, rows, _: [choose.randint(least, most) for _ in range(rows)], call_ms, 0.01, 300)
    assert sum(spent_ms > 2 * CALL_MS for _, spent_ms in taken) <= 10
    assert max(spent_ms for _, spent_ms in taken) <= 8 * CALL_MS


def test_what_a_watermark_brings_is_of_no_slice() -> None:
    chain = ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    for _ in range(20):
        rows = chain.entry_rows("in")
        chain.take("in", rows)
        for uid in ("first", "second"):
            chain.took(uid, rows, 0.001, "in")
        chain.went_through()
    before = chain.entry_rows("in")
    for _ in range(100):
        chain.took("second", 1, 0.1, "")
    chain.went_through()
    assert chain.entry_rows("in") == before


def test_a_call_that_failed_counts_for_its_slice() -> None:
    chain = ChainSlices(["first", "second"], FEEDS, ["in"], 5000.0)
    for _ in range(20):
        rows = chain.entry_rows("in")
        chain.take("in", rows)
        chain.took("first", rows, 0.001, "in")
        chain.failed("second", 50.0, "in")
        chain.took("second", rows, 0.001, "in")
        chain.went_through()
    assert chain.expected_ms("in", rows) > CALL_MS
