"""Finds where the messages of a time of events begin in a partition, by bisection. Blocks.

Never: read a partition through: of about twenty entries the first message is read, and the one found entry.

Pulsar has no index of event times. Like its own search by times of publication, this one takes them to rise.
"""

from __future__ import annotations

import bisect
import math
from typing import Any

from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.ledgers import Ledgers
from headgate.connectors.pulsar.opening import next_message, open_reader
from headgate.connectors.pulsar.options import LEAST_QUEUED
from headgate.connectors.pulsar.position import Position, after_message, before_message
from headgate.connectors.pulsar.split import PulsarSplit


class EventTimes:
    """Looks for messages by their event time; those that have none count with their time of publication.

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
        self._arguments = arguments | {"receiver_queue_size": LEAST_QUEUED}
        self._timeout_ms = timeout_ms

    def position_at(self, split: PulsarSplit, ledgers: Ledgers, time_ms: int) -> Position:
        """Return the position before a partition's first message of a time or later; if there is none, its end.

        Raises
        ------
        SourceUnavailableError
            The brokers do not answer, or messages do not come.
        """

        def time_at(number: int) -> float:
            with self._reader(split, ledgers.before_entry(number)) as reader:
                message = next_message(self._config, reader, split, self._timeout_ms)
            return math.inf if message is None else _time_ms(message)

        place = bisect.bisect_left(range(ledgers.entries_after(None)), float(time_ms), key=time_at)
        end = ledgers.before_entry(place)
        if place == 0:
            return end
        # The batch before begins earlier, but need not end earlier.
        with self._reader(split, ledgers.before_entry(place - 1)) as reader:
            reached = None
            while reached is None or reached < end:
                message = next_message(self._config, reader, split, self._timeout_ms)
                if message is None:
                    break
                message_id = message.message_id().serialize()
                if _time_ms(message) >= time_ms:
                    return min(end, before_message(message_id))
                reached = after_message(message_id)
        return end

    def _reader(self, split: PulsarSplit, position: Position) -> _Closing:
        return _Closing(open_reader(self._config, split, position, self._arguments))


class _Closing:
    """Closes a reader without waiting for the brokers."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def __enter__(self) -> Any:
        return self._reader

    def __exit__(self, *_: object) -> None:
        self._reader._reader.close_async(lambda _: None)


def _time_ms(message: Any) -> int:
    return int(message.event_timestamp() or message.publish_timestamp())
