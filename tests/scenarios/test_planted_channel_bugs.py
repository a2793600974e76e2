"""Bugs in what single channels deliver, planted one at a time: some seed finds each, by what one consumer is given.

None of them loses or doubles a row of the output. A bug is a subclass or a changed function of production, in this file
only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headgate.checkpoint import channel_assignment
from headgate.protocol.channels import Buffer
from headgate.runtime import coalescer
from headgate.task.exchange import input_gate as ig
from headgate.task.exchange.input_gate import InputGate
from tests.scenarios.planted import Unchecked, first_found, has


def test_a_broadcast_whose_new_subtasks_get_no_copies_is_found() -> None:
    """Rows on their way go to the first of those that take on a subtask's channels; the others never see them."""
    consumers = channel_assignment._consumers

    def first_only(exchange: Any, *arguments: Any) -> Sequence[int]:
        found = consumers(exchange, *arguments)
        return found[:1] if exchange.kind == "broadcast" else found

    first_found("copies: ", 472, {consumers: first_only}, of=has("broadcast"))


class PutsBackLast(Unchecked):
    """The rest of a buffer comes after those that have arrived meanwhile."""

    TRANSITIONS = InputGate.TRANSITIONS  # again, for the handler that is another

    def _on_rows_put_back(self, event: ig.RowsPutBack, now_ms: int) -> list[ig.Action]:
        channel, recovered = self._polled[-1], self._polled_recovered
        actions = super()._on_rows_put_back(event, now_ms)
        (channel.recovered if recovered else channel.sent).rotate(-1)
        self._set_ready(channel)
        return actions


def test_rows_of_a_rebalanced_channel_in_another_order_are_found() -> None:
    """No key is bound to one consumer there, so that only the channel has an order."""
    first_found("rebalanced: ", 5, {InputGate: PutsBackLast}, of=has("rebalance"))


def test_a_small_slice_that_keeps_a_large_batch_is_found() -> None:
    """What a slow consumer's queue holds keeps the rows of all others in memory."""

    def as_they_are(batch: Any, max_bytes: int) -> list[Buffer]:
        return [Buffer(batch, batch.num_rows, batch.nbytes)]

    first_found("keeps .* a slice of", 5, {coalescer.buffers_of: as_they_are}, of=has("rebalance"))
