"""Hands rows to a producer and waits until the brokers have them: at least once.

Never: report rows as written that the brokers have not acknowledged, or show a secret in an error.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.kafka.client_config import DELIVERY_TIMEOUT_MS, ClientConfig
from headgate.connectors.kafka.client_limits import fit_producer
from headgate.connectors.kafka.cluster import Trouble
from headgate.connectors.kafka.consumer import client_log
from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.errors import SinkError, SinkUnavailableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

_DEFAULTS: dict[str, str | int | bool] = {
    # Java's. With Nagle's algorithm a small request may wait for the answer to the one before it.
    "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
    "socket.nagle.disable": True,
    # librdkafka's own bound is 1 GiB.
    "queue.buffering.max.kbytes": 64 * 1024,
    "queue.buffering.max.messages": 200_000,
}
_LINGER_MS = 50
"""A task ends with a flush, which waits for no linger: this only makes full requests of fast rows."""
_STEP_S = 0.001
"""How long to wait before looking again whether rows were taken, in seconds."""


class KafkaWriter:
    """Writes batches, in order. One thread at a time; it may block in every call but `write_now`.

    Rows are written for certain when `flush` has returned, and not before; after an error any of them may be.

    Parameters
    ----------
    sink
        What to write and where to.
    linger_ms
        How long a row waits for others to share its request, in milliseconds, unless the user set it.

    Raises
    ------
    OptionError
        librdkafka knows no such setting, or not such a value.
    """

    def __init__(self, sink: KafkaSink, *, linger_ms: int = _LINGER_MS) -> None:
        self._sink = sink
        self._linger_ms = linger_ms
        self._failed: SinkError | None = None
        self._trouble = Trouble()
        self._producer = self._make_producer()

    def _settings(self) -> dict[str, Any]:
        return self._fitting({})

    def _fitting(self, defaults: Mapping[str, int], *, transactional: bool = False) -> dict[str, Any]:
        user = self._sink.client.producer()
        settings = {**_DEFAULTS, "linger.ms": self._linger_ms, **defaults, **user}
        return fit_producer(settings, user, transactional=transactional)

    def _make_producer(self) -> Producer:
        from confluent_kafka import KafkaException, Producer

        own = {
            "on_delivery": self._on_delivery,
            "error_cb": self._on_trouble,
            # An empty queue means success; a call of Python for each row would halve the speed.
            "delivery.report.only.error": True,
        }
        try:
            return Producer(self._settings() | own, logger=client_log)
        except KafkaException as error:
            raise self._sink.client.option_error(error.args[0].str()) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the producer's queue; wait while it is full.

        Raises
        ------
        SinkError
            A row cannot be written, or an earlier one was not.
        """
        from confluent_kafka import KafkaException

        produce = self._producer.produce
        for row in self._records(batch):
            try:
                produce(*row)
            except BufferError:
                self._produce_when_there_is_room(row)
            except KafkaException as error:
                raise self._error(error.args[0], row[0], row[3]) from error
        self._serve(0)

    def write_now(self, batch: pa.RecordBatch) -> int:
        """Add the first rows, until the producer's queue is full, and return how many. Does not block.

        Raises
        ------
        SinkError
            A row cannot be written, or an earlier one was not.
        """
        from confluent_kafka import KafkaException

        produce, count = self._producer.produce, 0
        for row in self._records(batch):
            try:
                produce(*row)
            except BufferError:
                break
            except KafkaException as error:
                raise self._error(error.args[0], row[0], row[3]) from error
            count += 1
        self._serve(0)
        return count

    def _records(self, batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
        """Yield the positional arguments of ``Producer.produce`` for each row."""
        columns = self._sink.columns

        def values(index: int | None) -> Iterable[Any]:
            if index is None:
                return repeat(None)
            column = batch.column(index)
            return column.to_pylist()  # type: ignore[no-any-return]

        def octets(index: int | None) -> Iterable[bytes | None]:
            if index is None:
                return repeat(None)
            return batch.column(index).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]

        check_rows(self._sink, batch)
        topics: Iterable[str] = repeat(self._sink.topic) if self._sink.topic is not None else values(columns.topic)
        partitions: Iterable[int] = repeat(-1)
        if columns.partition is not None:
            partitions = batch.column(columns.partition).fill_null(-1).to_pylist()
        four = (topics, octets(columns.value), octets(columns.key), partitions)
        if columns.headers is None:
            return zip(*four)
        headers = map(_headers, batch.column(columns.headers).to_pylist())
        return zip(*four, repeat(None), repeat(None), repeat(0), headers)  # no callbacks, time stamp of now

    def _produce_when_there_is_room(self, row: tuple[Any, ...]) -> None:
        """Wait for the brokers to take rows; rows that they do not take in time fail, so this ends."""
        from confluent_kafka import KafkaException

        while True:
            was_empty = not len(self._producer)
            self._serve(_STEP_S)
            try:
                self._producer.produce(*row)
                return
            except BufferError:
                if was_empty:
                    size = sum(len(each) for each in row[1:3] if each is not None)
                    raise SinkError(
                        f"{NAME}: a row for topic {row[0]!r} has {size} bytes and does not fit into the producer's "
                        "buffer. Raise kafka.buffer.memory.",
                        sink=NAME, topic=row[0],
                    ) from None  # fmt: skip
            except KafkaException as error:
                raise self._error(error.args[0], row[0], row[3]) from error

    def flush(self) -> None:
        """Wait until the brokers have all rows.

        Raises
        ------
        SinkError
            They do not have all.
        """
        while self._serve(_STEP_S, flush=True):
            pass

    def serve(self) -> None:
        """Run the callbacks that are due. Does not block.

        Raises
        ------
        SinkError
            A row was not written.
        """
        self._serve(0)

    def drop_rows(self) -> None:
        """Drop all rows that the brokers do not have. From any thread: one that waits for them gets an error."""
        self._producer.purge()

    def is_usable(self) -> bool:
        """Return whether it may write on: nothing came between two tasks that it cannot overcome."""
        try:
            self._serve(0)
        except SinkError:
            return False
        self._trouble.begin()
        return True

    def close(self) -> None:
        """Let go of the producer. Rows that were not flushed are dropped."""
        from confluent_kafka import KafkaException

        self._producer.purge()
        with contextlib.suppress(KafkaException):
            self._producer.poll(0)
        # It and this object refer to each other: without this its threads would live until a garbage collection.
        del self._producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failed is None:
            self._failed = self._error(error, message.topic(), message.partition())

    def _on_trouble(self, error: KafkaError) -> None:
        """Note what librdkafka cannot overcome; what it can, it tries again until rows are too old."""
        from confluent_kafka import KafkaError as Codes

        if error.code() != Codes._ALL_BROKERS_DOWN or not self._trouble.last:  # it follows the one that says why
            is_security = error.code() in (Codes._AUTHENTICATION, Codes._SSL)
            self._trouble.note(error.str(), is_security=is_security, now_s=time.monotonic())
        if (error.fatal() or self._trouble.refused is not None) and self._failed is None:
            self._failed = self._error(error)

    def _serve(self, seconds: float, flush: bool = False) -> int:
        """Run the callbacks that are due, and return how many rows the brokers have not acknowledged. Blocks.

        The wait is not cut short when they have: successes are not reported.
        """
        from confluent_kafka import KafkaException

        try:
            left = self._producer.flush(seconds) if flush else self._producer.poll(seconds)
        except KafkaException as error:  # a fatal error is raised instead of being passed to a callback
            raise self._failed or self._error(error.args[0]) from error
        if self._failed is not None:
            raise self._failed
        return left

    def _error(self, error: KafkaError, topic: str | None = None, partition: int | None = None) -> SinkError:
        """Make one of ours of librdkafka's."""
        return sink_error(error, self._sink.client, topic, partition, self._trouble.last)


def _headers(headers: list[dict[str, Any]] | None) -> list[tuple[str, bytes | None]] | None:
    return None if headers is None else [(header["key"], header["value"]) for header in headers]


def check_rows(sink: KafkaSink, batch: pa.RecordBatch) -> None:
    """Notice rows that Kafka can never take.

    Raises
    ------
    SinkError
        A topic or a header's key is null, or a partition is negative.
    """
    columns = sink.columns
    if columns.topic is not None and batch.column(columns.topic).null_count:
        raise SinkError(
            f"{NAME}: a row's topic is null. Filter such rows out, or set the option 'topic' for all rows.",
            sink=NAME, topic=None,
        )  # fmt: skip
    if columns.partition is not None:
        least = pc.min(batch.column(columns.partition)).as_py()
        if least is not None and least < 0:
            raise SinkError(
                f"{NAME}: a row's partition is {least}; it must be from 0, or null to let Kafka choose.",
                sink=NAME, partition=least,
            )  # fmt: skip
    if columns.headers is not None and pc.struct_field(pc.list_flatten(batch.column(columns.headers)), 0).null_count:
        raise SinkError(f"{NAME}: a row has a header without a key. Every header needs one.", sink=NAME)


def sink_error(
    error: KafkaError, client: ClientConfig, topic: str | None = None, partition: int | None = None, trouble: str = "",
    doing: str = "writing",
) -> SinkError:  # fmt: skip
    """Return the error of ours for one of librdkafka's.

    Parameters
    ----------
    error
        The text of librdkafka.
    client
        The brokers and how to talk to them.
    topic, partition
        Where the row should have gone, if it is about a row.
    trouble
        What librdkafka complained of before: why it could not connect.
    doing
        What was being done.
    """
    from confluent_kafka import KafkaError as Codes

    code, text, brokers = error.code(), client.redact(error.str()), client.address
    facts: dict[str, Any] = {"sink": NAME, "topic": topic, "partition": partition}
    if code in (Codes._UNKNOWN_TOPIC, Codes.UNKNOWN_TOPIC_OR_PART):
        return SinkError(
            f"{NAME}: the topic {topic!r} does not exist, and the brokers do not make it. Create it, or correct "
            "the name.",
            **facts,
        )
    if code == Codes._UNKNOWN_PARTITION:
        return SinkError(f"{NAME}: the topic {topic!r} has no partition {partition}. Rows may not name it.", **facts)
    if code == Codes.MSG_SIZE_TOO_LARGE:
        return SinkError(
            f"{NAME}: a row for topic {topic!r} is too large for Kafka ({text}). Raise kafka.max.request.size, and "
            "max.message.bytes of the topic.",
            **facts,
        )
    if code in (Codes._AUTHENTICATION, Codes.SASL_AUTHENTICATION_FAILED, Codes._SSL):
        return SinkError(
            f"{NAME}: the brokers at {brokers} and this client do not accept each other: {text}. Check the options "
            "kafka.security.protocol, kafka.sasl.* and kafka.ssl.*.",
            **facts,
        )
    where = "" if topic is None else f" to topic {topic!r}"
    unreachable = (
        Codes._MSG_TIMED_OUT, Codes._TIMED_OUT, Codes._TIMED_OUT_QUEUE, Codes._TRANSPORT, Codes._ALL_BROKERS_DOWN,
        Codes._RESOLVE, Codes.REQUEST_TIMED_OUT, Codes.NOT_ENOUGH_REPLICAS,
    )  # fmt: skip
    if code in unreachable:
        why = f" Last trouble: {client.redact(trouble)}." if trouble else ""
        return SinkUnavailableError(
            f"{NAME}: the brokers at {brokers} did not answer in time while {doing}{where}: {text}.{why} Check "
            "kafka.bootstrap.servers and the brokers; kafka.delivery.timeout.ms says how long to try.",
            address=brokers,
            **facts,
        )
    return SinkError(f"{NAME}: {doing}{where} failed: {text} ({error.name()}).", **facts)
