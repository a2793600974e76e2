"""Hands rows to a producer and waits until the brokers have them: at least once.

Never: report rows as written that the brokers have not acknowledged, or show a secret in an error.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.kafka.client_config import DELIVERY_TIMEOUT_MS, ClientConfig
from headgate.connectors.kafka.client_limits import fit_producer
from headgate.connectors.kafka.cluster import Trouble
from headgate.connectors.kafka.consumer_pool import bulk_is_possible
from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.row_producer import OnFailure, RowProducer
from headgate.errors import SinkError, SinkUnavailableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

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
_LOW_LATENCY = {"linger.ms": 0, "max.in.flight.requests.per.connection": 1}
"""No row waits for others; those that come while a request is under way share the next one."""
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
        self._process = os.getpid()
        self._producer = self._make_producer()

    def _settings(self) -> dict[str, Any]:
        return self._fitting({})

    def _fitting(self, defaults: Mapping[str, int], *, transactional: bool = False) -> dict[str, Any]:
        user = self._sink.client.producer()
        low_latency = _LOW_LATENCY if self._sink.low_latency else {}
        settings = {**_DEFAULTS, "linger.ms": self._linger_ms, **low_latency, **defaults, **user}
        return fit_producer(settings, user, transactional=transactional)

    def _make_producer(self) -> RowProducer:
        try:
            return make_producer(self._settings(), self._sink, self._on_failure, self._on_trouble)
        except ValueError as error:
            raise self._sink.client.option_error(str(error)) from error

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows to the producer's queue; wait while it is full.

        Raises
        ------
        SinkError
            A row cannot be written, or an earlier one was not.
        """
        add = self._adder(batch)
        written = add()
        while written < batch.num_rows:  # those that brokers do not take in time fail, so this ends
            was_empty = not len(self._producer)
            self._serve(_STEP_S)
            before, written = written, add()
            if was_empty and written == before:
                raise self._never_fits(batch, written)
        self._serve(0)

    def write_now(self, batch: pa.RecordBatch) -> int:
        """Add the first rows, until the producer's queue is full, and return how many. Does not block.

        Raises
        ------
        SinkError
            A row cannot be written, or an earlier one was not.
        """
        written = self._adder(batch)()
        self._serve(0)
        return written

    def _adder(self, batch: pa.RecordBatch) -> Callable[[], int]:
        """Return what adds rows until the queue is full, and returns how many are added, all in all."""
        from confluent_kafka import KafkaException

        check_rows(self._sink, batch)
        add = self._producer.rows(batch)

        def added() -> int:
            try:
                return add()
            except KafkaException as error:
                reason, row = error.args
                raise self._error(reason, *self._place(batch, row)) from error

        return added

    def _place(self, batch: pa.RecordBatch, row: int) -> tuple[str, int]:
        """Return the topic and the partition that a row names; -1: none."""
        topic, partition = self._sink.topic, self._sink.columns.partition
        if topic is None:
            topic = batch.column(self._sink.columns.topic)[row].as_py()
        given = None if partition is None else batch.column(partition)[row].as_py()
        return topic, -1 if given is None else given

    def _never_fits(self, batch: pa.RecordBatch, row: int) -> SinkError:
        topic, _ = self._place(batch, row)
        columns = (self._sink.columns.key, self._sink.columns.value)
        parts = [batch.column(each)[row].as_py() for each in columns if each is not None]
        size = sum(len(each.encode() if isinstance(each, str) else each) for each in parts if each is not None)
        return SinkError(
            f"{NAME}: a row for topic {topic!r} has {size} bytes and does not fit into the producer's "
            "buffer. Raise kafka.buffer.memory.",
            sink=NAME, topic=topic,
        )  # fmt: skip

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
        if os.getpid() != self._process:  # forked: the client has no threads here
            return False
        try:
            self._serve(0)
        except SinkError:
            return False
        self._trouble.begin()
        return True

    def close(self) -> None:
        """Let go of the producer. Rows that were not flushed are dropped. A process that was forked leaves it alone."""
        if os.getpid() == self._process:
            self._producer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _on_failure(self, error: KafkaError, topic: str | None, partition: int | None) -> None:
        if self._failed is None:
            self._failed = self._error(error, topic, partition)

    def _on_trouble(self, error: KafkaError) -> None:
        """Note what librdkafka cannot overcome; what it can, it tries again until rows are too old."""
        from confluent_kafka import KafkaError as Codes

        if error.code() != Codes._ALL_BROKERS_DOWN or not self._trouble.last:  # it follows the one that says why
            is_security = error.code() in (Codes._AUTHENTICATION, Codes._SSL)
            self._trouble.note(error.str(), is_security=is_security, now_s=time.monotonic())
        if (error.fatal() or self._trouble.refused is not None) and self._failed is None:
            self._failed = self._error(error)

    def _serve(self, seconds: float, flush: bool = False) -> int:
        """Run the callbacks that are due; return how many rows a flush has left. Blocks."""
        from confluent_kafka import KafkaException

        left = 0
        try:
            if flush:
                left = self._producer.flush(seconds)
            else:
                self._producer.poll(seconds)
        except KafkaException as error:  # a fatal error is raised instead of being passed to a callback
            raise self._failed or self._error(error.args[0]) from error
        if self._failed is not None:
            raise self._failed
        return left

    def _error(self, error: KafkaError, topic: str | None = None, partition: int | None = None) -> SinkError:
        """Make one of ours of librdkafka's."""
        return sink_error(error, self._sink.client, topic, partition, self._trouble.last)


def make_producer(
    settings: dict[str, Any], sink: KafkaSink, on_failure: OnFailure, on_trouble: Callable[[KafkaError], object]
) -> RowProducer:
    """Return a new producer; it connects in the background.

    Parameters
    ----------
    settings
        librdkafka's.
    sink
        Which of a batch's columns are what, and the topic.
    on_failure
        Called for rows that were not delivered, at least for the first of those that are so together.
    on_trouble
        Called for what is wrong with the client or its brokers.

    Raises
    ------
    ValueError
        librdkafka refuses the settings.
    """
    if bulk_is_possible(settings):
        from headgate.connectors.kafka.sink.bulk_producer import BulkProducer

        return BulkProducer(settings, sink, on_failure, on_trouble)
    from headgate.connectors.kafka.sink.plain_producer import PlainProducer

    return PlainProducer(settings, sink, on_failure, on_trouble)


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
