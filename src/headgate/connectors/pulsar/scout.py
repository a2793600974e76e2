"""Reads ahead on the driver to count messages, where a micro-batch may have only so many rows.

Never: keep a message: only ids count. Nothing else in Pulsar says how many messages some entries have.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.opening import next_message, open_reader
from headgate.connectors.pulsar.position import Position, after_message
from headgate.connectors.pulsar.split import PulsarSplit


def _close_all(readers: dict[str, tuple[Position | None, Any]]) -> None:
    for _, reader in readers.values():
        reader._reader.close_async(lambda _: None)


class Scout:
    """Counts messages of partitions; one instance for a query, on the planner's thread.

    Parameters
    ----------
    config
        Makes the client.
    arguments
        Further arguments of `pulsar.Client.create_reader`.
    timeout_ms
        The longest wait for messages that must be there, in milliseconds.
    """

    def __init__(self, config: ClientConfig, arguments: dict[str, Any], timeout_ms: int) -> None:
        self._config = config
        self._arguments = arguments
        self._timeout_ms = timeout_ms
        self._readers: dict[str, tuple[Position | None, Any]] = {}
        weakref.finalize(self, _close_all, self._readers)  # a source is never closed

    def within_rows(
        self, splits: Sequence[PulsarSplit], ends: Mapping[str, Position], most: int
    ) -> dict[str, Position]:
        """Return ends that are so near that all ranges together have so many messages at most; one at least."""
        for gone in self._readers.keys() - {split.split_id for split in splits}:
            self._readers.pop(gone)[1].close()
        nearer: dict[str, Position] = {}
        waiting = [split for split in splits if split.split_id in ends]
        left = most
        for number, split in enumerate(waiting):
            share = max(1, left // (len(waiting) - number)) if left > 0 else 0
            if not share:
                break
            reached, count = self._count(split, ends[split.split_id], share)
            nearer[split.split_id] = reached
            left -= count
        return nearer

    def _count(self, split: PulsarSplit, end: Position, most: int) -> tuple[Position, int]:
        """Return the position after so many messages, ``end`` at most, and how many these are."""
        position, reader = self._readers.pop(split.split_id, (None, None))
        if reader is not None and position != split.position:
            reader.close()
            reader = None
        if reader is None:
            reader = open_reader(self._config, split, split.position, self._arguments)
        last, count = None, 0
        while count < most:
            message = next_message(self._config, reader, split, self._timeout_ms)
            if message is None:
                break
            last = message
            count += 1
            if count == most or message.message_id().ledger_id() >= end.ledger:
                reached = after_message(message.message_id().serialize())
                if reached >= end:
                    if reached > end:  # of the next plan: the reader is ahead of it
                        reader.close()
                        return end, count - 1
                    break
        else:
            assert last is not None
            end = min(end, after_message(last.message_id().serialize()))
        self._readers[split.split_id] = (end, reader)
        return end, count
