"""The consumers of this process, kept from task to task: Spark reuses Python workers, and connecting anew takes longer
than a small micro-batch.

Never: hand one consumer to two owners, or one that failed for good to anybody. A consumer belongs to the process that
made it: a child that was forked leaves its parent's alone, and lets go of none.

A consumer is one of two kinds: `bulk.BulkConsumer`, or where that cannot be had `plain.PlainConsumer`. Both give the
same.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from headgate.connectors.kafka.client_limits import fit_consumer
from headgate.connectors.kafka.consumer import KafkaConsumer
from headgate.enumerators.partition import TopicPartition

if TYPE_CHECKING:
    from headgate.connectors.kafka.client_config import ClientConfig
    from headgate.connectors.kafka.cluster import KafkaCluster

Decoder = Literal["auto", "plain"]

IDLE_SECONDS = 180.0
"""One that was idle for longer is closed when the next is asked for: brokers drop idle connections in time too."""
MOST_IDLE = 4
"""So many are kept: tasks of one process run one at a time, of a few queries."""

_log = logging.getLogger(__name__)


@dataclass
class _Pool:
    """The idle consumers of one process.

    Parameters
    ----------
    process
        Whose they are.
    """

    process: int
    lock: threading.Lock = field(default_factory=threading.Lock)
    # Guarded by lock; the longest idle first, each with the time at which it was given back:
    idle: list[tuple[_Key, KafkaConsumer, float]] = field(default_factory=list)

    def take(self, key: _Key | None, idle_since: float) -> tuple[KafkaConsumer | None, list[KafkaConsumer]]:
        """Return an idle consumer, and those to be closed because they idled before ``idle_since``."""
        with self.lock:
            old = [each for each in self.idle if each[2] < idle_since]
            self.idle = [each for each in self.idle if each[2] >= idle_since]
            found = next((each for each in reversed(self.idle) if each[0] == key), None)
            if found is not None:
                self.idle.remove(found)
        return (None if found is None else found[1]), [each[1] for each in old]

    def put(self, key: _Key, consumer: KafkaConsumer, now: float) -> list[KafkaConsumer]:
        """Keep an idle consumer; return those to be closed because there are too many."""
        with self.lock:
            self.idle.append((key, consumer, now))
            surplus, self.idle = self.idle[:-MOST_IDLE], self.idle[-MOST_IDLE:]
        return [each[1] for each in surplus]


_Key = tuple["ClientConfig", tuple[tuple[str, object], ...], Decoder]
_pool = _Pool(os.getpid())
_pools_of_parents: list[_Pool] = []


def _of_this_process() -> _Pool:
    global _pool
    if _pool.process != os.getpid():  # forked: what is in there has no threads here, for which its end would wait
        _pools_of_parents.append(_pool)
        _pool = _Pool(os.getpid())
    return _pool


_clusters: WeakKeyDictionary[KafkaConsumer, KafkaCluster] = WeakKeyDictionary()
"""The connection beside each consumer for what consumers cannot ask, where somebody asked: kept as long as that."""


@dataclass
class Lease:
    """A consumer in use. Give it back with `release`.

    Parameters
    ----------
    key
        By which it is found again.
    consumer
        The consumer.
    """

    key: _Key
    consumer: KafkaConsumer

    def ask_for_topic_ids(self, names: Collection[str]) -> Future[Mapping[str, str | None]]:
        """Ask which topics there are now, by Kafka's own ids of them; on a thread of its own.

        Topics that do not exist are absent; the id is None if the brokers know none. The future may hold any error of
        `KafkaCluster`.
        """
        from headgate.connectors.kafka.cluster import KafkaCluster

        cluster = _clusters.get(self.consumer)
        if cluster is None:
            cluster = _clusters[self.consumer] = KafkaCluster(self.key[0])
        answer: Future[Mapping[str, str | None]] = Future()

        def ask() -> None:
            try:
                answer.set_result({name: topic.topic_id for name, topic in cluster.topics(names).items()})
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=ask, name="headgate-kafka-topics", daemon=True).start()
        return answer

    def release(self, *, assigned: Iterable[TopicPartition], failed: bool) -> None:
        """Give the consumer back; one that failed is closed.

        Parameters
        ----------
        assigned
            The partitions that it still reads.
        failed
            Whether it must not be used again.
        """
        if not failed:
            try:
                self.consumer.unassign(assigned)
            except Exception:
                _log.debug("a consumer could not be unassigned", exc_info=True)
                failed = True
        surplus = [self.consumer] if failed else _of_this_process().put(self.key, self.consumer, time.monotonic())
        _close(surplus)


def acquire(client: ClientConfig, settings: Mapping[str, str | int | bool], decoder: Decoder) -> Lease:
    """Return an idle consumer of this process with these very settings, or a new one. Does not wait for brokers.

    Parameters
    ----------
    client
        How to connect.
    settings
        librdkafka's settings on top of it.
    decoder
        ``auto``: decode in bulk if that can be had; ``plain``: message by message.

    Raises
    ------
    OptionError
        librdkafka refuses the settings.
    """
    key = (client, tuple(sorted(settings.items())), decoder)
    consumer, old = _of_this_process().take(key, time.monotonic() - IDLE_SECONDS)
    _close(old)
    if consumer is None:
        try:
            consumer = _connect(fit_consumer({**client.consumer(), **settings}), decoder)
        except ValueError as error:
            raise client.option_error(str(error)) from error
    return Lease(key, consumer)


def _connect(settings: dict[str, str | int | bool], decoder: Decoder) -> KafkaConsumer:
    if decoder == "auto" and bulk_is_possible(settings):
        from headgate.connectors.kafka.bulk import BulkConsumer

        return BulkConsumer(settings)
    from headgate.connectors.kafka.plain import PlainConsumer

    return PlainConsumer(settings)


_bulk_possible: bool | None = None


def bulk_is_possible(settings: Mapping[str, object]) -> bool:
    """Return whether bulk clients can be used here and with these settings; if not here, say why in the log, once."""
    global _bulk_possible
    if settings.get("sasl.oauthbearer.metadata.authentication.type") == "aws_iam":
        return False  # confluent-kafka's own clients fetch such tokens, and librdkafka does not
    if _bulk_possible is None:
        try:
            import headgate.connectors.kafka.bulk_compiled  # noqa: F401  (which compiles, or looks into its cache)
            from headgate.connectors.kafka.librdkafka import check_library

            check_library()
            _bulk_possible = True
        except Exception as error:  # whatever it is: the plain way works
            _bulk_possible = False
            _log.warning(
                "Kafka records are read and written one by one, which is slower by half: %s: %s",
                type(error).__name__,
                error,
            )
    return _bulk_possible


def _close(consumers: Iterable[KafkaConsumer]) -> None:
    for each in consumers:
        try:
            each.close()
        except Exception:
            _log.debug("a consumer could not be closed", exc_info=True)


@atexit.register
def close_idle() -> None:
    """Close the idle consumers of this process, whose threads would run while the interpreter ends."""
    _, old = _of_this_process().take(None, float("inf"))
    _close(old)
