"""Asks the brokers which topics and partitions there are, and for their offsets.

Never: create a topic by asking for it, read a record, or be used on an enumerator's thread: every question blocks.

The clock and the waiting are here, at the edge. What the connection's messages mean is decided by `Trouble`, which is
given the time. One request goes to all partitions at once, however many there are.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any, Literal

from headgate.connectors.kafka.client_calls import GRACE_S, CallOverdueError, call_within
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.subscription import TopicInfo
from headgate.enumerators.partition import TopicPartition
from headgate.errors import SourceError, SourceUnavailableError

if TYPE_CHECKING:
    from confluent_kafka import KafkaError
    from confluent_kafka.admin import AdminClient

_SOURCE = "headgate.kafka"
_LOOK_S = 0.05
_AGAIN_S = 0.1
_CLOSED_TIMES, _CLOSED_S = 5, 2.0
_REFUSED_TIMES = 2


class Trouble:
    """What librdkafka reported about a client's connections, and whether it is worth waiting any longer.

    Brokers that start are silent or refuse connections; one may even close a few. But a login or a certificate that is
    refused twice stays refused, and a client that has never been answered and sees each connection closed speaks
    another protocol than the listener.
    """

    def __init__(self, *, was_answered: bool = False) -> None:
        self.was_answered = was_answered
        self.last = ""
        self.refused: str | None = None
        self.closed: str | None = None
        self._refused_times = self._closed_times = 0
        self._closed_since_s = 0.0

    def note(self, message: str, *, is_security: bool, now_s: float) -> None:
        """Remember one message of librdkafka about a connection."""
        passing = any(word in message for word in ("transport failure", "Disconnected", "closed by peer", "imed out"))
        self.last = message
        if is_security and not passing:
            self._refused_times += 1
            if self._refused_times >= _REFUSED_TIMES:
                self.refused = message
        elif "closed by peer" in message or "Disconnected" in message:
            if self._closed_times == 0:
                self._closed_since_s = now_s
            self._closed_times += 1
            lasted_s = now_s - self._closed_since_s
            if self._closed_times >= _CLOSED_TIMES and lasted_s >= _CLOSED_S and not self.was_answered:
                self.closed = message
        else:
            self._closed_times = 0

    def begin(self) -> None:
        """Forget earlier reports: a question is asked."""
        self.last, self.refused, self.closed = "", None, None
        self._refused_times = self._closed_times = 0

    def answered(self) -> None:
        """Remember that the brokers have answered once."""
        self.was_answered = True


class KafkaCluster:
    """The brokers, as far as listing and offsets go. Blocking; any thread may ask, one question at a time.

    A question that the brokers do not answer is asked again until ``client.timeout_ms`` have passed, so that brokers
    may restart meanwhile.

    Parameters
    ----------
    client
        The settings of the client, which is made at the first question.

    Raises
    ------
    SourceUnavailableError
        Every method: the brokers do not answer in time, or answer that they cannot now.
    SourceError
        Every method: login, certificate or rights are wrong.
    OptionError
        Every method: librdkafka refuses the settings.
    """

    def __init__(self, client: ClientConfig) -> None:
        self._client = client
        self._closing = threading.Event()
        self._lock = threading.Lock()  # _admin, _trouble
        self._admin: AdminClient | None = None
        self._trouble = Trouble()

    def close(self) -> None:
        """Close the connections, and end the question that another thread asks; a later one opens new connections."""
        self._closing.set()
        with self._lock:
            self._close_locked()
            self._closing.clear()

    def topics(self, names: Collection[str] | None) -> dict[str, TopicInfo]:
        """Return the topics of these names, or all, with their partitions; those that do not exist are absent."""
        with self._lock:
            deadline_s = self._begin_locked()
            return self._describe_locked(self._list_locked(deadline_s) if names is None else names, deadline_s)

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that exists."""
        return self._offsets(dict.fromkeys(partitions, "earliest"), committed=False)

    def latest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition that exists.

        With ``kafka.isolation.level`` ``read_committed`` it is that of the first open transaction, if there is one.
        """
        return self._offsets(dict.fromkeys(partitions, "latest"), committed=self._client.reads_committed)

    def ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition that exists, open transactions or not."""
        return self._offsets(dict.fromkeys(partitions, "latest"), committed=False)

    def at_timestamps(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """Return the offset of the first record of this time or later (milliseconds since 1970-01-01 UTC).

        None: no record is that late. Partitions that do not exist are absent.
        """
        found = self._offsets(timestamps_ms, committed=self._client.reads_committed)
        return {each: None if offset < 0 else offset for each, offset in found.items()}

    # ------------------------------------------------------------------------------------------------ questions

    def _list_locked(self, deadline_s: float) -> list[str]:
        """Return the names of all topics that the user may see."""
        from confluent_kafka import KafkaException

        wait_s = 0.5
        while True:
            timeout_s = max(0.01, min(wait_s, deadline_s - time.monotonic()))
            try:
                topics = call_within(
                    timeout_s,
                    lambda: self._connected_locked().list_topics(timeout=timeout_s).topics,  # noqa: B023
                )
            except CallOverdueError:
                self._admin = None  # the thread of the call keeps it
                raise self._unavailable("was asked for its topics, but the client hangs", self._trouble.last) from None
            except KafkaException as raised:
                error = raised.args[0]  # no more of it: its traceback holds the client
            else:
                self._trouble.answered()
                return list(topics)
            self._listen_locked()
            self._give_up_locked(error, "list the topics", deadline_s)
            wait_s = min(30.0, 2 * wait_s)  # a short wait sees refused logins soon; a large cluster needs a longer one

    def _describe_locked(self, names: Collection[str], deadline_s: float) -> dict[str, TopicInfo]:
        from confluent_kafka import KafkaError, TopicCollection

        if not names:
            return {}
        wanted = sorted(names)
        found = self._ask_locked(
            lambda admin, timeout_s: admin.describe_topics(TopicCollection(wanted), request_timeout=timeout_s),
            "describe the topics", deadline_s, absent={KafkaError.UNKNOWN_TOPIC_OR_PART}, doubtful=set(),
        )  # fmt: skip
        return {
            name: TopicInfo(_identity(topic.topic_id), tuple(sorted(each.id for each in topic.partitions)))
            for name, topic in found.items()
            if topic is not None
        }

    def _offsets(
        self, wanted: Mapping[TopicPartition, Literal["earliest", "latest"] | int], *, committed: bool
    ) -> dict[TopicPartition, int]:
        if not wanted:
            return {}
        from confluent_kafka import IsolationLevel, KafkaError
        from confluent_kafka import TopicPartition as Asked

        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {Asked(each.topic, each.partition): _spec(where) for each, where in wanted.items()}
        # One that is unknown may be so to a broker that has just started: the topics' description decides.
        unknown = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION, KafkaError._NOENT}
        with self._lock:
            deadline_s = self._begin_locked()
            found = self._ask_locked(
                lambda admin, timeout_s: admin.list_offsets(asked, isolation_level=level, request_timeout=timeout_s),
                "ask for offsets", deadline_s, absent=set(), doubtful=unknown,
            )  # fmt: skip
        return {TopicPartition(each.topic, each.partition): i.offset for each, i in found.items() if i is not None}

    def _ask_locked(
        self, submit: Callable[[AdminClient, float], Mapping[Any, Future[Any]]], doing: str, deadline_s: float,
        *, absent: set[int], doubtful: set[int],
    ) -> dict[Any, Any]:  # fmt: skip
        """Return the answers by what was asked for; None: it does not exist.

        Parameters
        ----------
        absent, doubtful
            The errors that say, for sure or until `_describe_locked` says otherwise, that something does not exist.
        """
        retries = 0
        while True:
            self._raise_if_hopeless_locked()
            futures = submit(self._connected_locked(), min(300.0, max(0.01, deadline_s - time.monotonic())))
            unfinished = set(futures.values())
            while unfinished := wait(unfinished, timeout=_LOOK_S).not_done:
                self._listen_locked()
                self._raise_if_hopeless_locked()
                if time.monotonic() >= deadline_s + GRACE_S:  # librdkafka's own time-out did not work
                    last = self._trouble.last or "nothing"
                    self._close_locked()
                    raise self._unavailable(f"did not answer within {self._client.timeout_ms} ms", last)
            self._listen_locked()
            errors = {each: _error_of(future) for each, future in futures.items()}
            failed = {each: error for each, error in errors.items() if error is not None and error.code() not in absent}
            unsure = {each for each, error in failed.items() if error.code() in doubtful}
            if unsure and unsure == failed.keys():
                there = self._describe_locked({each.topic for each in unsure}, deadline_s)
                gone = {each for each in unsure if each.partition not in _partitions_of(there, each.topic)}
                failed = {each: error for each, error in failed.items() if each not in gone}
            if not failed:
                self._trouble.answered()
                return {each: None if errors[each] is not None else future.result() for each, future in futures.items()}
            about, error = next((each, error) for each, error in failed.items())
            if _is_silence(error):
                self._give_up_locked(error, doing, deadline_s)
            elif error.code() in doubtful or _is_passing(error):
                if time.monotonic() >= deadline_s:  # brokers start or elect leaders all that time
                    raise self._unavailable(f"could not {doing} within {self._client.timeout_ms} ms", error.str())
                if _has_another_leader(error):
                    self._close_locked()  # librdkafka asks the leader that it knows, for up to a quarter of an hour
                time.sleep(_AGAIN_S)
            elif error.retriable() and retries < self._client.retries:
                retries += 1
                time.sleep(self._client.retry_interval_ms / 1000)
            else:
                raise as_source_error(self._client, error, f"{doing} ({_named(about)})")

    # ----------------------------------------------------------------------------------------------- connection

    def _begin_locked(self) -> float:
        """Return when to give up the question that begins now, by the monotonic clock."""
        self._listen_locked()
        self._trouble.begin()
        return time.monotonic() + self._client.timeout_ms / 1000

    def _connected_locked(self) -> AdminClient:
        """Return the client; made if there is none, which does not wait for an answer.

        Keep it in no variable: an error's traceback holds these, and they would hold its threads.
        """
        if self._admin is None:
            from confluent_kafka import KafkaException
            from confluent_kafka.admin import AdminClient

            self._trouble = trouble = Trouble(was_answered=self._trouble.was_answered)
            logger = logging.Logger(f"{_SOURCE}.client")  # nobody's child: nothing is printed
            logger.addHandler(_Listener(trouble))
            try:
                settings: dict[str, Any] = {**self._client.admin(), "error_cb": lambda error: _note(trouble, error)}
                self._admin = AdminClient(settings, logger=logger)
            except KafkaException as error:
                raise self._client.option_error(error.args[0].str()) from error
        return self._admin

    def _close_locked(self) -> None:
        self._admin = None  # nothing else refers to it: its threads end here

    def _listen_locked(self) -> None:
        """Hear what the client has to say, which goes to ``_trouble``."""
        while self._admin is not None and self._admin.poll(0):
            pass

    def _raise_if_hopeless_locked(self) -> None:
        """Raise if waiting any longer cannot help."""
        if self._closing.is_set():
            self._close_locked()
            raise self._unavailable("was being asked when the client was closed", self._trouble.last or "nothing")
        refused, closed = self._trouble.refused, self._trouble.closed
        if refused is not None:
            self._close_locked()
            raise refusal(self._client, refused)
        if closed is not None:
            self._close_locked()
            raise self._unavailable(
                "closed every connection before it answered. Probably its listener wants another "
                f"kafka.security.protocol than {dict(self._client.settings).get('security.protocol', 'plaintext')!r}",
                closed,
            )

    def _give_up_locked(self, error: KafkaError, doing: str, deadline_s: float) -> None:
        """Raise if nothing came in time, or nothing ever will; else ask again."""
        self._raise_if_hopeless_locked()
        if not _is_silence(error):
            raise as_source_error(self._client, error, doing)
        if time.monotonic() >= deadline_s - _LOOK_S:
            last = self._trouble.last or error.str()
            self._close_locked()
            raise self._unavailable(f"did not answer within {self._client.timeout_ms} ms", last)

    def _unavailable(self, what: str, last: str) -> SourceUnavailableError:
        client = self._client
        return SourceUnavailableError(
            f"{_SOURCE}: {client.address} {what}. Its last error: {client.redact(last)}. "
            "Check kafka.bootstrap.servers and the brokers; kafka.default.api.timeout.ms sets how long to wait.",
            source=_SOURCE, address=client.address,
        )  # fmt: skip


def as_source_error(client: ClientConfig, error: KafkaError, doing: str) -> SourceError:
    """Return the error of ours for one of librdkafka's that waiting does not mend.

    Parameters
    ----------
    client
        The settings of the client, for its address and so that no secret is shown.
    error
        The text of librdkafka.
    doing
        What was tried, with the topic if it was about one: ``"read orders-0"``.
    """
    made = _translated(client, error, doing)
    from confluent_kafka import KafkaException

    made.__cause__ = KafkaException(error)  # made here: that of the client has a traceback which holds it
    return made


def _translated(client: ClientConfig, error: KafkaError, doing: str) -> SourceError:
    from confluent_kafka import KafkaError

    if error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL):
        return refusal(client, error.str())
    if error.code() in (
        KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED, KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ):  # fmt: skip
        right = {
            KafkaError.TOPIC_AUTHORIZATION_FAILED: "READ (and DESCRIBE) on the topic, WRITE to write to it",
            KafkaError.GROUP_AUTHORIZATION_FAILED: "READ on the group (kafka.group.id or groupIdPrefix)",
            KafkaError.CLUSTER_AUTHORIZATION_FAILED: "DESCRIBE on the cluster",
        }.get(error.code(), "WRITE on the transactional id")
        return SourceError(
            f"{_SOURCE}: {client.address} does not allow this user to {doing} ({error.str()}). Grant it {right}.",
            source=_SOURCE, address=client.address,
        )  # fmt: skip
    kind = SourceUnavailableError if error.retriable() or _is_silence(error) or _is_passing(error) else SourceError
    return kind(
        f"{_SOURCE}: {client.address} failed to {doing}: {client.redact(error.str())}.",
        source=_SOURCE, address=client.address,
    )  # fmt: skip


def refusal(client: ClientConfig, message: str) -> SourceError:
    """Return the error for a login or a certificate that was refused, from librdkafka's text."""
    if "certificate" in message:
        fix = (
            "The brokers' certificate is not trusted: kafka.ssl.truststore.location (with kafka.ssl.truststore.type "
            "PEM) must be the certificate of the authority that signed it, and kafka.bootstrap.servers must use a name "
            "that it is for"
        )
    elif "mechanism" in message:
        fix = "Correct kafka.sasl.mechanism, or kafka.security.protocol if the listener wants no login"
    elif "SASL" in message or "uthentication" in message:
        fix = "Correct kafka.sasl.username and kafka.sasl.password, or those in kafka.sasl.jaas.config"
    else:
        fix = "Correct kafka.security.protocol and the properties kafka.ssl.*"
    return SourceError(
        f"{_SOURCE}: {client.address} cannot be used: {client.redact(message)}. {fix}.",
        source=_SOURCE, address=client.address,
    )  # fmt: skip


class _Listener(logging.Handler):
    """Passes librdkafka's log on to `Trouble`; connections that are closed at once are reported nowhere else."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__()
        self._trouble = trouble

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message.startswith("FAIL") and ("closed by peer" in message or "Disconnected" in message):
            self._trouble.note(message.partition("]: ")[2], is_security=False, now_s=time.monotonic())


def _note(trouble: Trouble, error: KafkaError) -> None:
    from confluent_kafka import KafkaError

    if error.code() == KafkaError._ALL_BROKERS_DOWN:
        return  # says less than what came before it
    if "closed by peer" in error.str() or "Disconnected" in error.str():
        return  # is in the log, too
    is_security = error.code() in (KafkaError._AUTHENTICATION, KafkaError._SSL)
    trouble.note(error.str(), is_security=is_security, now_s=time.monotonic())


def _named(about: Any) -> str:
    """Return the topic, or the partition, that a question was about."""
    return about if isinstance(about, str) else f"{about.topic}-{about.partition}"


def _identity(topic_id: object) -> str | None:
    """Return a topic's id as text; None if the brokers know none (all zeros)."""
    found = str(topic_id or "")
    return found if found.strip("A") else None


def _spec(where: Literal["earliest", "latest"] | int) -> Any:
    """Return confluent-kafka's word for an end of a partition, or a time in milliseconds."""
    import confluent_kafka.admin

    spec: Any = confluent_kafka.admin.OffsetSpec  # type: ignore[attr-defined]
    if where == "earliest":
        return spec.earliest()
    return spec.latest() if where == "latest" else spec.for_timestamp(where)


def _partitions_of(topics: Mapping[str, TopicInfo], topic: str) -> tuple[int, ...]:
    return topics[topic].partitions if topic in topics else ()


def _error_of(future: Future[Any]) -> KafkaError | None:
    from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

    raised = future.exception()
    if raised is None:
        # librdkafka forgets the error of a leader that did not answer, and gives this for the offset instead.
        unanswered = getattr(future.result(), "offset", 0) == OFFSET_INVALID
        return KafkaError(KafkaError._TRANSPORT, "the leader of a partition did not answer") if unanswered else None
    if not isinstance(raised, KafkaException):
        raise raised
    error: KafkaError = raised.args[0]
    return error


def _is_silence(error: KafkaError) -> bool:
    """Return whether nobody answered."""
    from confluent_kafka import KafkaError

    return error.code() in (
        KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE,
        KafkaError._TIMED_OUT_QUEUE, KafkaError._WAIT_COORD,
    )  # fmt: skip


def _is_passing(error: KafkaError) -> bool:
    """Return whether brokers say that they cannot now."""
    from confluent_kafka import KafkaError

    return _has_another_leader(error) or error.code() in (
        KafkaError.LEADER_NOT_AVAILABLE, KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT, KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.NETWORK_EXCEPTION,
    )  # fmt: skip


def _has_another_leader(error: KafkaError) -> bool:
    """Return whether a partition has a newer leader than the client knows."""
    from confluent_kafka import KafkaError

    return error.code() in (KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.FENCED_LEADER_EPOCH)
