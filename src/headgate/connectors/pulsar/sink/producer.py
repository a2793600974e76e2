"""Sends rows by producers of Pulsar's client, and waits until the brokers have them.

Never: report rows as written that the brokers have not acknowledged, or show a secret in an error.

Exactly once rests on three things that hold for every attempt to send the same rows under the same name: they have
the same sequence ids, they are cut into the same batches, and they are sent from a beginning that is one of a batch.
Brokers drop a batch whose first sequence id is not above the highest they have of that name, as a whole; they
acknowledge it when what they have is durable. So what is sent again is acknowledged, and there once.

The client fails or acknowledges a batch as a whole, so not each row needs a report. Each batch has one that is
reported: it has many rows or bytes when it is full, what precedes a large row is flushed, and a flush reports the last.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from headgate.connectors.pulsar.admin import PulsarAdmin
from headgate.connectors.pulsar.client import NAME, ClientConfig
from headgate.connectors.pulsar.sink.options import PulsarSink
from headgate.connectors.pulsar.sink.rows import Router
from headgate.errors import HeadgateError, SinkError, SinkUnavailableError, SourceUnavailableError

if TYPE_CHECKING:
    import pulsar

DEFAULT_SEND_TIMEOUT_MS = 30_000
"""Java's: ``sendTimeoutMs``."""
_BATCH_ROWS = 1000
_BATCH_BYTES = 128 * 1024
_SETTINGS: dict[str, Any] = {
    "send_timeout_millis": DEFAULT_SEND_TIMEOUT_MS,
    "block_if_queue_full": True,
    "max_pending_messages": 10 * _BATCH_ROWS,
    "batching_enabled": True,
    "batching_max_messages": _BATCH_ROWS,
    "batching_max_allowed_size_in_bytes": _BATCH_BYTES,
    # A batch ends when it is full, or at a flush, but not with time: else it would be another one in a retry.
    "batching_max_publish_delay_ms": 2**31 - 1,
}
_REPORTED_ROWS = 50
_REPORTED_BYTES = 4 * 1024
"""A row is reported by the client after so many, or so many bytes: each report takes the time of ten rows."""
_LARGE_BYTES = _BATCH_BYTES // 2
_CLOSE_S = 2.0


class _Producer:
    """A producer, and how many rows and bytes it was given since one whose report is awaited."""

    def __init__(self, producer: pulsar.Producer) -> None:
        self.producer = producer
        self.rows = self.bytes = 0


class MessageWriter:
    """Sends rows in order. One thread, but for `abandon`; every call may block.

    Rows are written for certain when `flush` has returned, and not before; after an error any of them may be.

    Parameters
    ----------
    sink
        Where to, and how.
    name
        The name of all its producers, by which brokers know what is repeated; None: they have names of their own, and
        nothing is dropped.

    Attributes
    ----------
    router
        Makes rows into what it sends.

    Raises
    ------
    OptionError
        Pulsar's client refuses a setting.
    """

    def __init__(self, sink: PulsarSink, name: str | None = None) -> None:
        self._config = sink.client
        self._name = name
        self._settings = _SETTINGS | dict(sink.producer)
        self._client = sink.client.new_client()
        self.router = Router(sink, self.partitions)
        self._admin = PulsarAdmin(sink.client) if name is not None else None
        self._producers: dict[str, _Producer] = {}
        self._changed = threading.Condition()
        # Guarded by _changed:
        self._awaited = 0  # reports
        self._failed: SinkError | None = None

    def partitions(self, topic: str) -> list[str]:
        """Return the names of a topic's partitions, or its own if it has none.

        Raises
        ------
        SinkError
            The brokers do not answer, or refuse.
        """
        import pulsar

        try:
            return list(self._client.get_topic_partitions(topic))
        except pulsar.PulsarException as error:
            raise sink_error(error, self._config, "look up the partitions", topic) from error

    def write(self, rows: pa.RecordBatch, first_sequence_id: int | None = None) -> None:
        """Send rows of the router's; wait while too many are under way.

        ``first_sequence_id`` is that of the first row, from 1; the others follow it.

        Raises
        ------
        SinkError
            A row, or an earlier one, was not written.
        """
        import pulsar

        values, keys, times, properties, topics = (rows.column(name).to_pylist() for name in rows.schema.names)
        sequence_id = first_sequence_id
        for value, key, time_ms, given, topic in zip(values, keys, times, properties, topics):
            to = self._producers.get(topic) or self._open(topic)
            size = len(value or b"") + 3 * (len(key or "") + sum(len(word) for pair in given or () for word in pair))
            if size >= _LARGE_BYTES:
                self._flush(topic, to)
            callback = None
            to.rows += 1
            to.bytes += size
            if to.rows >= _REPORTED_ROWS or to.bytes >= _REPORTED_BYTES:
                to.rows = to.bytes = 0
                callback = self._on_sent
                with self._changed:
                    self._awaited += 1
            try:
                to.producer.send_async(
                    value, callback, properties=dict(given) if given else None, partition_key=key,
                    event_timestamp=time_ms, sequence_id=sequence_id,
                )  # fmt: skip
            except (pulsar.PulsarException, ValueError) as error:
                raise sink_error(error, self._config, "send a row", topic) from error
            if sequence_id is not None:
                sequence_id += 1
        self.raise_failure()

    def last_sequence_id(self, topic: str) -> int:
        """Return the highest sequence id of the name that brokers have, for a partition; -1: they have none.

        Raises
        ------
        SinkError
            The brokers do not answer, or refuse.
        """
        to = self._producers.get(topic) or self._open(topic)
        return int(to.producer.last_sequence_id())

    def flush(self) -> None:
        """Wait until the brokers have all rows.

        Raises
        ------
        SinkError
            They do not have all.
        """
        for topic, to in self._producers.items():
            self._flush(topic, to)
        with self._changed:
            limit_s = self._settings["send_timeout_millis"] / 1000 + 10
            if not self._changed.wait_for(lambda: not self._awaited or self._failed is not None, limit_s):
                raise SinkUnavailableError(
                    f"{NAME}: the brokers at {self._config.service_url} did not acknowledge rows within {limit_s} s.",
                    sink=NAME, address=self._config.service_url,
                )  # fmt: skip
        self.raise_failure()

    def _flush(self, topic: str, to: _Producer) -> None:
        import pulsar

        self.raise_failure()
        try:
            to.producer.flush()
        except pulsar.PulsarException as error:
            self.raise_failure()
            raise sink_error(error, self._config, "send rows", topic) from error

    def raise_failure(self) -> None:
        """Raise what became of a row that was not written."""
        with self._changed:
            if self._failed is not None:
                raise self._failed

    def abandon(self) -> None:
        """Drop all that the brokers do not have; whoever waits for it gets an error. From any thread.

        It waits for brokers that hang no longer than two seconds. No call is possible afterwards, but this one.
        """
        # `shutdown`, which asks nobody, takes ten seconds.
        closing = threading.Thread(target=self._close, name="headgate-pulsar-closing", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        with self._changed:
            if self._failed is None:
                self._failed = SinkError(f"{NAME}: the writer was closed before all rows were written.", sink=NAME)
            self._changed.notify_all()

    def _close(self) -> None:
        import pulsar

        with contextlib.suppress(pulsar.PulsarException):  # it was closed before
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abandon()

    def _open(self, topic: str) -> _Producer:
        import pulsar

        settings = dict(self._settings)
        if "compression_type" in settings:
            settings["compression_type"] = _compression(settings["compression_type"])
        try:
            producer = self._client.create_producer(topic, producer_name=self._name, **settings)
        except pulsar.PulsarException as error:
            raise sink_error(error, self._config, "write", topic) from error
        if self._admin is not None:
            require_deduplication(self._admin, topic)
        to = self._producers[topic] = _Producer(producer)
        return to

    def _on_sent(self, result: pulsar.Result, message_id: object) -> None:
        """Note that a row was written or failed. On a thread of the client."""
        import pulsar

        with self._changed:
            self._awaited -= 1
            if result != pulsar.Result.Ok and self._failed is None:
                self._failed = result_error(result, self._config)
            if not self._awaited or self._failed is not None:
                self._changed.notify_all()


def _compression(name: str) -> Any:
    import pulsar

    by_name = {"NONE": "NONE", "LZ4": "LZ4", "ZLIB": "ZLib", "ZSTD": "ZSTD", "SNAPPY": "SNAPPY"}
    return getattr(pulsar.CompressionType, by_name[name])


def require_deduplication(admin: PulsarAdmin, topic: str) -> None:
    """Raise unless the brokers drop what producers of a topic repeat. Blocks.

    Raises
    ------
    SinkError
        They do not, or do not answer.
    """
    deadline_s = time.monotonic() + 30
    while True:
        try:
            status = admin.deduplication(topic)
        except HeadgateError as error:
            kind = SinkUnavailableError if isinstance(error, SourceUnavailableError) else SinkError
            raise kind(str(error), sink=NAME, topic=topic) from error
        if status == "Enabled":
            return
        if status not in ("Initialized", "Recovering", "Removing") or time.monotonic() > deadline_s:
            break
        time.sleep(0.1)
    namespace = "/".join(topic.partition("://")[2].split("/")[:2])
    raise SinkError(
        f"{NAME}: guarantee exactly-once needs brokers that drop repeated messages, and those of {topic} do not "
        f"(deduplication is {status}). Switch it on: pulsar-admin namespaces set-deduplication --enable {namespace}, "
        "or brokerDeduplicationEnabled=true for all topics of the brokers; or use guarantee at-least-once.",
        sink=NAME, topic=topic,
    )  # fmt: skip


def sink_error(error: Exception, config: ClientConfig, doing: str, topic: str | None = None) -> SinkError:
    """Return the error of ours for one that Pulsar's client raised."""
    return _error(type(error).__name__, config.redact(str(error)), config, doing, topic)


def result_error(result: Any, config: ClientConfig) -> SinkError:
    """Return the error of ours for the result of a message that was not written."""
    return _error(result.name, f"a message was not written: {result.name}", config, "send rows", None)


_REFUSED = {
    "AuthenticationError": "Check pulsar.client.authPluginClassName and pulsar.client.authParams.",
    "AuthorizationError": "Let its role produce there: pulsar-admin namespaces grant-permission --actions produce.",
    "TopicNotFound": "Create the topic, or correct its name.",
    "TopicTerminated": "It takes no messages any more: write to another one.",
    "InvalidTopicName": "Correct the topic's name.",
    "MessageTooBig": "Raise maxMessageSize of the brokers, or make the rows smaller.",
    "IncompatibleSchema": "The topic wants values of its schema: see set-schema-validation-enforced.",
    "InvalidMessage": "The topic wants values of its schema: see set-schema-validation-enforced.",
    "UnsupportedVersionError": "The brokers are too old.",
    "InvalidConfiguration": "Correct the options pulsar.producer.*.",
}
"""Results with which no other attempt has others, and what to do about them."""


def _error(kind: str, text: str, config: ClientConfig, doing: str, topic: str | None) -> SinkError:
    where = "" if topic is None else f" of {topic}" if doing.startswith("look") else f" to {topic}"
    what = f"{NAME}: {config.service_url} did not let this client {doing}{where}: {text}."
    if kind == "ProducerBusy":
        return SinkUnavailableError(
            f"{what} An earlier run of this query is connected, or was cut off: brokers notice that within a minute.",
            sink=NAME, topic=topic, address=config.service_url,
        )  # fmt: skip
    if kind in _REFUSED:
        return SinkError(f"{what} {_REFUSED[kind]}", sink=NAME, topic=topic)
    return SinkUnavailableError(
        f"{what} Check service.url, the brokers, and pulsar.client.authParams; pulsar.producer.sendTimeoutMs says how "
        "long to try.",
        sink=NAME, topic=topic, address=config.service_url,
    )  # fmt: skip
