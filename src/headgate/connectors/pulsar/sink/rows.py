"""Makes rows into what is sent: the parts of messages, each with the partition that it goes to.

Never: send anything; a topic's partitions are asked for by a function that is given.

The partition of a message with a key is Java's default, ``JavaStringHash``, so that all writers of a topic agree; the
others are dealt out in runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.pulsar.client import NAME
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.subscription import full_name
from headgate.errors import SinkError

ROWS_SCHEMA = pa.schema(
    {
        "value": pa.binary(), "key": pa.string(), "event_time_ms": pa.int64(),
        "properties": pa.map_(pa.string(), pa.string()), "topic": pa.string(),
    }
)  # fmt: skip
"""What is staged and sent: a later program publishes what an earlier one staged. ``topic`` is a partition's name."""
_RUN = 1000
"""So many messages without a key go to a partition before the next one has its turn."""


def parts(sink: PulsarSink, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows with the columns of `ROWS_SCHEMA`; ``topic`` is as the row names it, or null for the sink's.

    Raises
    ------
    SinkError
        A row can never be sent.
    """
    columns, count = sink.columns, batch.num_rows
    value = batch.column(columns.value).cast(pa.binary())
    key, times, properties, topics = (
        pa.nulls(count, ROWS_SCHEMA.field(name).type) for name in ("key", "event_time_ms", "properties", "topic")
    )
    if columns.key is not None:
        try:
            key = batch.column(columns.key).cast(pa.string())
        except pa.ArrowInvalid as error:
            raise SinkError(
                f"{NAME}: a row's __key is not UTF-8, and Pulsar's client for Python takes keys as text. Use base64 of "
                "it, for example.",
                sink=NAME,
            ) from error  # fmt: skip
    if columns.event_time is not None:
        times = batch.column(columns.event_time)
        if pa.types.is_timestamp(times.type):
            times = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64())
        least = pc.min(times).as_py()
        if least is not None and least < 0:
            raise SinkError(
                f"{NAME}: a row's __eventTime is {least} ms, before 1970, which Pulsar has not. Filter it, or make it "
                "null.",
                sink=NAME,
            )  # fmt: skip
    if columns.properties is not None:
        properties = batch.column(columns.properties).cast(ROWS_SCHEMA.field("properties").type)
        if properties.items.null_count:
            raise SinkError(
                f"{NAME}: a property in a row's __messageProperties is null. Pulsar has texts only: leave it out.",
                sink=NAME,
            )  # fmt: skip
    if columns.topic is not None:
        topics = batch.column(columns.topic).cast(pa.string())
        if topics.null_count:
            raise SinkError(
                f"{NAME}: a row's __topic is null. Filter such rows out, or set the option 'topic' for all rows.",
                sink=NAME, topic=None,
            )  # fmt: skip
    return pa.record_batch([value, key, times, properties, topics], schema=ROWS_SCHEMA)


class Router:
    """Chooses the partition of each row; on one thread.

    Parameters
    ----------
    sink
        Says the topic of rows that name none.
    partitions
        Returns the names of a topic's partitions, in order; its own if it has none. May block and raise.
    """

    def __init__(self, sink: PulsarSink, partitions: Callable[[str], Sequence[str]]) -> None:
        self._sink = sink
        self._ask = partitions
        self._partitions: dict[str, Sequence[str]] = {}
        self._rows: dict[str, int] = {}

    def forget(self) -> None:
        """Ask again which partitions there are."""
        self._partitions.clear()

    def route(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the `parts` of rows, with the names of partitions as their topics.

        Raises
        ------
        SinkError
            A row can never be sent; a topic does not exist or has no possible name.
        """
        rows = parts(self._sink, batch)
        named = rows.column("topic")
        if self._sink.topic is not None:
            only = self._of(self._sink.topic)
            if len(only) == 1:
                return _with_topics(rows, pa.repeat(only[0], rows.num_rows))
            topics: list[str] = [self._sink.topic] * rows.num_rows
        else:
            topics = named.to_pylist()
        keys = rows.column("key").to_pylist()
        chosen = [self._choose(topic, key) for topic, key in zip(topics, keys)]
        return _with_topics(rows, pa.array(chosen, pa.string()))

    def _choose(self, topic: str, key: str | None) -> str:
        partitions = self._of(topic)
        if len(partitions) == 1:
            return partitions[0]
        if key is not None:
            return partitions[java_hash(key) % len(partitions)]
        count = self._rows[topic] = self._rows.get(topic, -1) + 1
        return partitions[count // _RUN % len(partitions)]

    def _of(self, topic: str) -> Sequence[str]:
        found = self._partitions.get(topic)
        if found is None:
            try:
                found = self._ask(full_name(topic))
            except ValueError as error:
                raise SinkError(
                    f"{NAME}: a row's __topic is {topic!r}; it must be {error}.", sink=NAME, topic=topic
                ) from None
            self._partitions[topic] = found
        return found


def _with_topics(rows: pa.RecordBatch, topics: pa.Array) -> pa.RecordBatch:
    columns = [topics if name == "topic" else rows.column(name) for name in ROWS_SCHEMA.names]
    return pa.record_batch(columns, schema=ROWS_SCHEMA)


@lru_cache(maxsize=65_536)
def java_hash(key: str) -> int:
    """Return ``key.hashCode() & Integer.MAX_VALUE`` of Java."""
    value = 0
    encoded = key.encode("utf-16-be")
    for at in range(0, len(encoded), 2):
        value = (31 * value + (encoded[at] << 8 | encoded[at + 1])) & 0xFFFFFFFF
    return value & 0x7FFFFFFF
