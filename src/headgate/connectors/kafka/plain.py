"""Decodes messages one by one, over confluent-kafka's own consumer: the fall-back of `bulk`; a test compares them.

Never: be the way that a fast machine takes: one Python object per message halves the speed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.connectors.kafka.consumer import HEADERS, ClientEvent, Consumed, Pace, client_log
from headgate.connectors.kafka.records import Records, Wanted
from headgate.enumerators.partition import TopicPartition
from headgate.source import Signal

_SLICE_S = 0.1
"""A consume that blocks looks this often whether it was woken up, in seconds."""


class PlainConsumer:
    """A confluent-kafka consumer that reads the partitions it is given and returns records as columns.

    A `KafkaConsumer`.

    Parameters
    ----------
    settings
        librdkafka's settings.

    Raises
    ------
    ValueError
        librdkafka refuses the settings.
    """

    def __init__(self, settings: Mapping[str, str | int | bool]) -> None:
        from confluent_kafka import Consumer, KafkaException

        self._events: list[ClientEvent] = []
        self._pace = Pace()
        try:
            self._consumer = Consumer({**settings, "error_cb": self._on_error}, logger=client_log)
        except KafkaException as error:
            raise ValueError(error.args[0].str()) from error
        self._woken = threading.Event()

    def _on_error(self, error: Any) -> None:
        self._events.append(ClientEvent(error.code(), error.str()))

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions as well, from these offsets on. Does not block for brokers."""
        if positions:
            self._consumer.incremental_assign(_listed(positions))

    def unassign(self, sources: Iterable[TopicPartition]) -> None:
        """Read these partitions no longer: nothing of them comes from here on."""
        listed = _listed(dict.fromkeys(sources, 0))
        if listed:
            self._consumer.incremental_unassign(listed)

    def consume(self, wanted: Wanted, at_most: int, timeout_ms: int) -> Consumed:
        """Return up to ``at_most`` messages; blocks until the first comes, or nothing does within the time."""
        messages: list[Any] = []
        left_s = timeout_ms / 1000
        while not messages and not self._events and left_s >= 0 and not self._woken.is_set():
            messages = self._consumer.consume(1, min(left_s, _SLICE_S))
            left_s -= _SLICE_S
        self._woken.clear()
        if messages and at_most > 1:
            messages += self._consumer.consume(at_most - 1, self._pace.linger_s(time.monotonic()))
            self._pace.given_out(len(messages), time.monotonic())
        by_source: dict[TopicPartition, list[Any]] = {}
        for message in messages:
            source = None if message.topic() is None else TopicPartition(message.topic(), message.partition())
            error = message.error()
            if error is None and source is not None:
                by_source.setdefault(source, []).append(message)
            else:
                offset = -1 if message.offset() is None else message.offset()
                self._events.append(ClientEvent(error.code(), error.str(), source, offset))
        events, self._events = self._events, []
        return Consumed([_columns(source, of_it, wanted) for source, of_it in by_source.items()], events)

    def begin_signals(self, signal: Signal) -> bool:
        """Return that there are none: the library's ``Consumer`` has no queue to be asked."""
        return False

    def signal_what_waits(self) -> None:
        """Signal nothing."""

    def end_signals(self) -> None:
        """Go on as before."""

    def has_waiting(self) -> bool:
        """Return that nobody knows."""
        return True

    def watermarks(self, source: TopicPartition, timeout_ms: int) -> tuple[int, int]:
        """Ask the partition's leader for its first and its next offset. Raises ConnectionError with the reason."""
        from confluent_kafka import KafkaException

        (asked,) = _listed({source: 0})
        try:
            low, high = self._consumer.get_watermark_offsets(asked, timeout_ms / 1000)
        except KafkaException as error:
            raise ConnectionError(error.args[0].str()) from error
        return low, high

    def known_end(self, source: TopicPartition) -> int | None:
        """Return a partition's next offset as it came with the last fetch; None: none did yet. Asks nobody."""
        from confluent_kafka import KafkaException

        (asked,) = _listed({source: 0})
        try:
            found = self._consumer.get_watermark_offsets(asked, cached=True)
        except KafkaException:
            return None
        return None if found is None or found[1] < 0 else int(found[1])

    def partitions(self, timeout_ms: int) -> dict[str, int]:
        """Ask for all topics: the number of partitions of each. Raises ConnectionError with the reason."""
        from confluent_kafka import KafkaException

        try:
            topics = self._consumer.list_topics(timeout=timeout_ms / 1000).topics
        except KafkaException as error:
            raise ConnectionError(error.args[0].str()) from error
        return {name: len(topic.partitions) for name, topic in topics.items() if topic.error is None}

    def wake_up(self) -> None:
        """Make a `consume` that blocks, or the next one, return soon. Called from any thread."""
        self._woken.set()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()


def _listed(positions: Mapping[TopicPartition, int]) -> list[Any]:
    from confluent_kafka import TopicPartition as Listed

    return [Listed(source.topic, source.partition, offset) for source, offset in positions.items()]


def _columns(source: TopicPartition, messages: list[Any], wanted: Wanted) -> Records:
    times = kinds = headers = keys = values = None
    if wanted.keys:
        keys = pa.array([message.key() for message in messages], pa.binary())
    if wanted.values:
        values = _values([message.value() for message in messages], wanted.lines)
    if wanted.timestamps:
        stamps = [message.timestamp() for message in messages]
        kinds = np.array([kind - 1 for kind, _ in stamps], np.int32)
        times = np.array([time_ms for _, time_ms in stamps], np.int64)
    if wanted.headers:
        headers = pa.array([_headers(message.headers()) for message in messages], HEADERS)
    offsets = np.array([message.offset() for message in messages], np.int64)
    return Records(source, offsets, keys, values, times, kinds, headers)


def _headers(headers: Any) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": name, "value": value} for name, value in headers]


def _values(values: list[bytes | None], lines: bool) -> Any:
    if not lines:
        return pa.array(values, pa.binary())
    array = pa.array([(each or b"") + b"\n" for each in values], pa.binary())
    valid = np.array([each is not None for each in values])
    if valid.all():
        return array
    bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = int(len(valid) - np.count_nonzero(valid))
    return pa.Array.from_buffers(pa.binary(), len(array), [bits, *array.buffers()[1:]], nulls)
