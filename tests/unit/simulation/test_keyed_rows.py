"""Rows of simulated pipelines: who gets them, what buffers of them weigh, which came the same way."""

from __future__ import annotations

import pytest

from headgate.protocol.key_groups import key_group_range
from headgate.simulation.keyed.rows import BUFFER_BYTES, ROW_BYTES, Recovered, Routing, buffer_of, key_group
from headgate.simulation.keyed.scenario import SplitScript

ROWS = [SplitScript(number=3, rows=60, keys=40, first_ms=0, step_ms=5).row(number) for number in range(60)]


@pytest.mark.parametrize("parallelism", range(1, 9))
@pytest.mark.parametrize("kind", ["hash", "custom"])
def test_each_row_belongs_to_one_subtask(kind: str, parallelism: int) -> None:
    """What is sent to a subtask is what it would keep of a recovered buffer."""
    routing = Routing(kind, 1, parallelism, 16, None)
    sent = dict(routing.split(ROWS, 0, 0))
    assert sorted(row for rows in sent.values() for row in rows) == sorted(ROWS)
    assert all(routing.own(ROWS, consumer) == list(sent.get(consumer, [])) for consumer in range(parallelism))


def test_hash_follows_the_ranges_of_key_groups() -> None:
    """A row's owner is whose range has its key group."""
    routing = Routing("hash", 0, 3, 16, None)
    assert all(key_group(row.key, 0, 16) in key_group_range(routing.owner(row), 3, 16) for row in ROWS)


def test_where_no_row_decides() -> None:
    """Round robin over the targets, everybody, or the same number."""
    turns = [Routing("rebalance", 0, 4, 16, 2).split(ROWS, 1, turn)[0][0] for turn in range(4)]
    assert turns == [1, 0, 1, 0]
    assert [consumer for consumer, _ in Routing("broadcast", 0, 3, 16, None).split(ROWS, 0, 0)] == [0, 1, 2]
    assert [consumer for consumer, _ in Routing("forward", 0, 3, 16, None).split(ROWS, 2, 0)] == [2]


def test_a_buffer_is_as_large_as_its_rows_and_a_little_more() -> None:
    """So that many small buffers are more than one of the same rows."""
    buffer = buffer_of(Recovered(ROWS[:5]), unfiltered=True)
    assert (buffer.num_rows, buffer.size_bytes, buffer.unfiltered) == (5, BUFFER_BYTES + 5 * ROW_BYTES, True)


def test_rows_remember_the_way_they_came() -> None:
    """Through the same channels: the same path; through others: another."""
    first, second = ROWS[:2]
    assert first.sent(1).sent(2).path == second.sent(1).sent(2).path
    assert first.sent(1).sent(2).path != first.sent(2).sent(1).path
