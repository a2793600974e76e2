"""Writes epochs by transactions: the rows of an epoch and the marker that says so, both or neither.

Never: reuse a transactional id for another task, commit a marker in another transaction than its rows, or wait for a
call into librdkafka for ever: all that may block go through `client_calls`.

The marker is an offset of a consumer group named as the transactional id, on partition 0 of every topic that the
transaction writes, and is looked up by the group alone: a replay finds it whatever topic its first row goes to.

Follows KIP-98, "Exactly Once Delivery and Transactional Messaging".
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from headgate.connectors.kafka.client_calls import CallOverdueError, T, call_within
from headgate.connectors.kafka.consumer import client_log
from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter, sink_error
from headgate.errors import SinkError, SinkUnavailableError
from headgate.source.serialization import VersionedSerializer

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, TopicPartition
    from confluent_kafka.admin import AdminClient

_AGAIN_S = 0.1
"""How long to wait before brokers that cannot answer yet are asked again."""
_STEP_S = 2.0
"""The time-out of one call that is repeated until it succeeds, so that one that never returns is noticed soon."""
_ASK_S = 5.0
"""The time-out of one question to a coordinator, likewise."""
_TRANSACTION_TIMEOUT_MS = 900_000
"""What a broker allows at most, by its default."""


class Marker(msgspec.Struct, frozen=True):
    """Stands for a committed epoch, in the transaction that committed it.

    Parameters
    ----------
    epoch
        The epoch: the number of Spark's micro-batch.
    rows
        How many rows the task wrote in it, so that a replay of other rows is noticed.
    """

    epoch: int
    rows: int


MARKER_SERIALIZER: VersionedSerializer[Marker] = VersionedSerializer(
    Marker, version=1, what="the marker of an epoch in a consumer group of headgate.kafka's sink"
)
"""Version 1 since 0.2.0. It is the metadata of the offset ``epoch + 1``."""


class TransactionalWriter(KafkaWriter):
    """Writes epochs by transactions: `begin`, `write`, then `commit` or `abort`; and again.

    Made, it has ended what earlier writers of this name left open, and they can write no more.

    Parameters
    ----------
    sink
        What to write and where to.
    name
        The transactional id, and the name of the consumer group that holds the marker.
    patience_s
        How long each step of a commit may take, in seconds; at most, and by default, the clients' time-out.

    Raises
    ------
    SinkError
        The brokers do not answer or refuse.
    OptionError
        librdkafka knows no such setting, or not such a value.
    """

    def __init__(self, sink: KafkaSink, name: str, *, patience_s: float | None = None) -> None:
        self._name = name
        super().__init__(sink)
        self._topics: set[str] = set()
        self._rows = 0
        self._began_s = time.monotonic()
        self._timeout_s = sink.client.timeout_ms / 1000
        self._patience_s = min(self._timeout_s, patience_s or self._timeout_s)
        self._is_overdue = False  # a call never returned: the producer is of no use any longer
        try:
            # In short steps: only between calls does the client report a refused password.
            self._repeated(
                "starting", self._timeout_s, lambda timeout_s: self._producer.init_transactions(timeout_s), 0.2
            )
        except SinkError:
            self.close()
            raise

    def _repeated(self, doing: str, within_s: float, call: Callable[[float], object], step_s: float = _STEP_S) -> None:
        """Make a call with a short time-out, again and again until the brokers have done what it asks for.

        librdkafka goes on in the background; the next call waits for the same.
        """
        deadline_s = time.monotonic() + within_s
        while True:
            timeout_s = min(step_s, within_s)
            try:
                self._call(doing, timeout_s, partial(call, timeout_s))
                return
            except SinkError as error:
                is_over = self._is_overdue or self._failed is not None or time.monotonic() >= deadline_s
                if is_over or not _is_slow(error):
                    raise
            time.sleep(0.01)  # some answers come at once

    def _call(self, doing: str, timeout_s: float, call: Callable[[], T]) -> T:
        """Return what a call into librdkafka returns; its errors are ours. One that is overdue is the last.

        No frame of it may have the producer in a variable: an error's traceback would keep its threads alive.
        """
        with self._translated(doing):
            return self._guarded(doing, timeout_s, call)

    def _guarded(self, doing: str, timeout_s: float, call: Callable[[], T]) -> T:
        try:
            return call_within(timeout_s, call)
        except CallOverdueError:
            self._is_overdue = True
            raise SinkUnavailableError(
                f"{NAME}: the client of the brokers at {self._sink.client.address} hangs while {doing} as "
                f"{self._name!r}: a call with a time-out of {timeout_s:g} s did not return. The client is given up. "
                "This happens when a broker was killed; a new client can try again.",
                sink=NAME, address=self._sink.client.address, name=self._name,
            ) from None  # fmt: skip

    def _settings(self) -> dict[str, Any]:
        fitting = self._fitting({"transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS}, transactional=True)
        return fitting | {"transactional.id": self._name}

    def marker(self) -> Marker | None:
        """Return the marker of the last epoch that was committed under this name; None: there is none yet.

        Raises
        ------
        SinkError
            The brokers do not answer or refuse.
        StoredStateError
            Somebody else committed to the group, or a newer Headgate did.
        """
        from confluent_kafka.admin import AdminClient

        with self._translated("reading the marker"):
            admin = AdminClient({**self._sink.client.admin()}, logger=client_log)  # let go of, it answers nothing
            committed = self._committed(admin)
        last: Any = None
        for each in committed:
            if each.offset >= 0 and (last is None or each.offset > last.offset):
                last = each
        return None if last is None else MARKER_SERIALIZER.deserialize((last.metadata or "").encode())

    def _committed(self, admin: AdminClient) -> list[TopicPartition]:
        """Return the offsets of the group. Brokers that cannot answer yet, as after their start, are asked again."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException
        from confluent_kafka import KafkaError as Codes

        passing = (
            Codes.COORDINATOR_LOAD_IN_PROGRESS, Codes.COORDINATOR_NOT_AVAILABLE, Codes.NOT_COORDINATOR,
            Codes.UNSTABLE_OFFSET_COMMIT, Codes._TRANSPORT, Codes.NETWORK_EXCEPTION, Codes.REQUEST_TIMED_OUT,
            Codes._TIMED_OUT,
        )  # fmt: skip
        deadline_s = time.monotonic() + self._timeout_s

        def ask(timeout_s: float) -> list[TopicPartition]:
            # librdkafka 2.16 crashes where a broker answers to the second question that it is not the group's
            # coordinator (its admin client has no group to report to): let the first one meet that.
            self._describe(admin, timeout_s)
            futures = admin.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(self._name)], require_stable=True, request_timeout=timeout_s
            )
            return futures[self._name].result().topic_partitions  # type: ignore[no-any-return]

        while True:
            timeout_s = max(0.1, min(_ASK_S, deadline_s - time.monotonic()))
            try:
                committed = self._guarded("reading the marker", 2 * timeout_s, partial(ask, timeout_s))
                error = next((each.error for each in committed if each.error is not None), None)
            except KafkaException as raised:
                error = raised.args[0]
            if error is None:
                return committed
            if error.code() not in passing or time.monotonic() >= deadline_s:
                raise KafkaException(error)
            time.sleep(_AGAIN_S)

    def _describe(self, admin: AdminClient, timeout_s: float) -> None:
        from confluent_kafka import KafkaError as Codes
        from confluent_kafka import KafkaException

        try:
            admin.describe_consumer_groups([self._name], request_timeout=timeout_s)[self._name].result()
        except KafkaException as error:
            if error.args[0].code() != Codes.GROUP_ID_NOT_FOUND:  # which it is before the first commit
                raise

    def begin(self) -> None:
        """Begin a transaction.

        Raises
        ------
        SinkError
            A newer writer of this name has begun.
        """
        self._topics.clear()
        self._rows = 0
        self._began_s = time.monotonic()
        with self._translated("beginning a transaction"):
            self._producer.begin_transaction()

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows into the transaction.

        Raises
        ------
        SinkError
            A row cannot be written: the transaction must be aborted.
        """
        super().write(batch)
        self._rows += batch.num_rows
        if self._sink.topic is not None:
            self._topics.add(self._sink.topic)
        else:
            self._topics.update(batch.column(self._sink.columns.topic).unique().to_pylist())

    def commit(self, epoch: int) -> None:
        """Commit all rows since `begin`, and the marker of ``epoch`` with them; at least one row.

        Raises
        ------
        SinkError
            It is not committed; or, if the brokers did not answer in time, perhaps it is: the next writer of this name
            brings it to an end, and its `marker` shows which.
        """
        self.flush()
        metadata = MARKER_SERIALIZER.serialize(Marker(epoch, self._rows)).decode()
        topics, patience_s = sorted(self._topics), self._patience_s
        # Never twice: librdkafka 2.16 reports success the second time, and cannot commit the transaction any more.
        self._call(
            "committing",
            patience_s,
            lambda: self._producer.send_offsets(self._name, topics, epoch + 1, metadata, patience_s),
        )
        self._repeated("committing", patience_s, lambda timeout_s: self._producer.commit_transaction(timeout_s))

    def abort(self) -> None:
        """Abort the transaction if the brokers answer; if not, the next writer of this name does, or time."""
        if self._is_overdue:
            return
        timeout_s = min(10.0, self._timeout_s)
        with contextlib.suppress(SinkError):
            self._call("aborting", timeout_s, lambda: self._producer.abort_transaction(timeout_s))
            self._producer.poll(0)
        self._failed = None  # what failed belonged to this transaction; a fatal error shows again

    def close(self) -> None:
        """Let go of the producer; one that hangs is left to itself."""
        if not self._is_overdue:
            with contextlib.suppress(CallOverdueError):
                call_within(_STEP_S, super().close)

    @contextlib.contextmanager
    def _translated(self, doing: str) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            with contextlib.suppress(KafkaException):
                self._producer.poll(0)  # the reason may be waiting for its callback
            raise self._failed or self._error(error.args[0], doing=doing) from error

    def _error(
        self, error: KafkaError, topic: str | None = None, partition: int | None = None, doing: str = "writing"
    ) -> SinkError:
        from confluent_kafka import KafkaError as Codes

        code, timeout_ms = error.code(), int(self._settings()["transaction.timeout.ms"])
        if code == Codes.INVALID_TRANSACTION_TIMEOUT:
            return SinkError(
                f"{NAME}: the brokers do not allow transactions of {timeout_ms} ms. Set kafka.transaction.timeout.ms "
                "to at most their transaction.max.timeout.ms.",
                sink=NAME, name=self._name,
            )  # fmt: skip
        if code in (Codes._FENCED, Codes.INVALID_PRODUCER_EPOCH, Codes.PRODUCER_FENCED, Codes.INVALID_TXN_STATE):
            open_ms = int((time.monotonic() - self._began_s) * 1000)
            if open_ms >= timeout_ms:
                return SinkError(
                    f"{NAME}: the brokers gave up the transaction {self._name!r}, which was open for {open_ms} ms; "
                    f"kafka.transaction.timeout.ms is {timeout_ms}. Raise it (and the brokers' "
                    "transaction.max.timeout.ms), or let a task of a batch take less time.",
                    sink=NAME, name=self._name,
                )  # fmt: skip
            return SinkError(
                f"{NAME}: a newer attempt of the same task writes as {self._name!r}: this one is fenced. "
                "Unless Spark retried the task, the query is running twice with one checkpoint.",
                sink=NAME, name=self._name, fenced=True,
            )  # fmt: skip
        return sink_error(error, self._sink.client, topic, partition, self._trouble.last, doing)


def is_passing(error: BaseException) -> bool:
    """Return whether a new writer of the same name may succeed where one has failed with ``error``."""
    from confluent_kafka import KafkaException

    if isinstance(error, SinkUnavailableError):
        return True
    cause = error.__cause__
    if not isinstance(error, SinkError) or "fenced" in error.facts or not isinstance(cause, KafkaException):
        return False
    return bool(cause.args[0].retriable() or cause.args[0].txn_requires_abort())


def _is_slow(error: SinkError) -> bool:
    """Return whether the brokers have only not done yet what was asked for."""
    from confluent_kafka import KafkaError as Codes
    from confluent_kafka import KafkaException

    cause = error.__cause__
    return isinstance(cause, KafkaException) and (
        cause.args[0].retriable() or cause.args[0].code() in (Codes._TIMED_OUT, Codes.CONCURRENT_TRANSACTIONS)
    )
