"""Makes, fills, trims and deletes topics of a Pulsar broker, for tests and benches.

Never: return before the broker has done what it was asked, or has what it was sent.

A topic is named as users name it: ``orders``, ``persistent://public/default/orders`` or, for a partition,
``orders-partition-2``. Whatever has the two addresses is a broker here: `local.pulsar.PulsarBroker`, or the one that
tests share.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import pulsar

T = TypeVar("T")


class Broker(Protocol):
    """Where a broker is."""

    service_url: str
    admin_url: str


@dataclass(frozen=True)
class Message:
    """One message to produce; the names are Pulsar's.

    ``value`` None: a tombstone. ``partition`` None: Pulsar chooses, by the key or in turns. ``sequence_id``: from 1;
    the client takes 0 for none.
    """

    value: bytes | None
    key: str | None = None
    partition: int | None = None
    event_time_ms: int | None = None
    properties: dict[str, str] = field(default_factory=dict)
    sequence_id: int | None = None


class AdminError(RuntimeError):
    """The broker refused a request: ``status`` is that of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


def ask(broker: Broker, method: str, path: str, body: object = None, *, token: str | None = None) -> Any:
    """Ask the admin API, and return its answer; None if that is empty.

    Parameters
    ----------
    broker
        Whose.
    method, path
        ``GET`` and ``persistent/public/default`` for example: what follows ``/admin/v2/``.
    body
        Is sent as JSON.
    token
        Who asks, at a broker with tokens.
    """
    request = urllib.request.Request(
        f"{broker.admin_url}/admin/v2/{path}", method=method, data=None if body is None else json.dumps(body).encode()
    )
    request.add_header("Content-Type", "application/json")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = answer.read()
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise AdminError(error.code, f"{method} {path}: {error.code} {text[:500]}") from error
    return json.loads(found) if found else None


def full_name(topic: str) -> str:
    """Return a topic's whole name."""
    return topic if "://" in topic else f"persistent://public/default/{topic}"


def _path(topic: str) -> str:
    domain, _, rest = full_name(topic).partition("://")
    return f"{domain}/{'/'.join(urllib.parse.quote(each, safe='') for each in rest.split('/', 2))}"


def create_namespace(
    broker: Broker, name: str, *, deduplication: bool | None = None, token: str | None = None
) -> str:  # fmt: skip
    """Make a namespace of the tenant ``public``, and return its whole name. ``deduplication`` None: the broker's."""
    whole = f"public/{name}"
    with contextlib.suppress(AdminError):  # it is there
        ask(broker, "PUT", f"namespaces/{whole}", token=token)
    if deduplication is not None:
        ask(broker, "POST", f"namespaces/{whole}/deduplication", deduplication, token=token)
    return whole


def grant(broker: Broker, namespace: str, role: str, *actions: str, token: str | None = None) -> None:
    """Let a role ``produce`` or ``consume`` in a namespace, at a broker with tokens."""
    ask(broker, "POST", f"namespaces/{namespace}/permissions/{role}", list(actions), token=token)


def create_topic(broker: Broker, topic: str, partitions: int = 0, *, token: str | None = None) -> str:
    """Make a topic and return its whole name. Without partitions it is a single one, and has no others ever."""
    ask(broker, "PUT", _path(topic) + ("/partitions" if partitions else ""), partitions or None, token=token)
    return full_name(topic)


def add_partitions(broker: Broker, topic: str, partitions: int) -> None:
    """Let a partitioned topic have so many partitions."""
    ask(broker, "POST", f"{_path(topic)}/partitions", partitions)


def partitions_of(broker: Broker, topic: str) -> int:
    """Return how many partitions a topic has: 0, if it is a single one."""
    return int(ask(broker, "GET", f"{_path(topic)}/partitions")["partitions"])


def delete_topic(broker: Broker, topic: str) -> None:
    """Delete a topic with all its partitions, though somebody uses it."""
    kind = "/partitions" if partitions_of(broker, topic) else ""
    ask(broker, "DELETE", f"{_path(topic)}{kind}?force=true")


def terminate(broker: Broker, topic: str) -> None:
    """Let nobody write to a topic any more: its end is one for ever."""
    if partitions_of(broker, topic):
        ask(broker, "POST", f"{_path(topic)}/terminate/partitions")
    else:
        ask(broker, "POST", f"{_path(topic)}/terminate")


def unload(broker: Broker, topic: str) -> None:
    """Let the broker close a topic and open it again, with a new ledger for what comes: clients connect again."""
    ask(broker, "PUT", f"{_path(topic)}/unload")


def trim(broker: Broker, topic: str) -> None:
    """Let a topic, or a partition of one, forget all that it has now, but for what a subscription still needs.

    The broker needs ``topic_policies``, as the one that tests share has.
    """
    ask(broker, "POST", f"{_path(topic)}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    for each in _single(broker, topic):
        unload(broker, each)
        _wait(partial(_is_trimmed, broker, each))


def _is_trimmed(broker: Broker, topic: str) -> bool:
    """Ask for it, and return whether only the ledger is left that the topic writes to."""
    with contextlib.suppress(AdminError):  # it is not open yet
        ask(broker, "POST", f"{_path(topic)}/trim")
        return (
            len(ledgers(broker, topic)) <= 1
            and ask(broker, "GET", f"{_path(topic)}/internalStats")["entriesAddedCounter"] == 0
        )
    return False


def ledgers(broker: Broker, topic: str) -> list[int]:
    """Return the ids of the ledgers that a topic, or a partition of one, has now."""
    found = ask(broker, "GET", f"{_path(topic)}/internalStats")
    return [each["ledgerId"] for each in found["ledgers"]]


def compact(broker: Broker, topic: str) -> None:
    """Keep only the last message of each key in what compacted reads see; return when that is so."""
    for each in _single(broker, topic):
        ask(broker, "PUT", f"{_path(each)}/compaction")
        _wait(partial(_has, broker, f"{_path(each)}/compaction", "status", "SUCCESS"))


def _has(broker: Broker, path: str, name: str, value: str) -> bool:
    return bool(ask(broker, "GET", path)[name] == value)


def upload_schema(broker: Broker, topic: str, kind: str, definition: object) -> None:
    """Give a topic a schema: ``kind`` is ``JSON`` or ``AVRO`` with an Avro record, or a primitive type with None."""
    text = json.dumps(definition) if definition else ""
    _, _, rest = full_name(topic).partition("://")
    ask(broker, "POST", f"schemas/{rest}/schema", {"type": kind, "schema": text, "properties": {}})


def set_deduplication(broker: Broker, topic: str, enabled: bool) -> None:
    """Let a broker with ``topic_policies`` drop what producers of a topic repeat, or not; return when it does so."""
    ask(broker, "POST", f"{_path(topic)}/deduplicationEnabled", enabled)
    wanted = "Enabled" if enabled else "Disabled"
    for each in _single(broker, topic):
        _wait(partial(_has, broker, f"{_path(each)}/stats", "deduplicationStatus", wanted))


def _single(broker: Broker, topic: str) -> list[str]:
    """Return the names of a topic's partitions, or its own if it has none."""
    count = partitions_of(broker, topic)
    return [f"{full_name(topic)}-partition-{each}" for each in range(count)] or [full_name(topic)]


@contextlib.contextmanager
def client_of(broker: Broker, token: str | None = None, **settings: Any) -> Iterator[pulsar.Client]:
    """Connect to a broker."""
    if token is not None:
        settings["authentication"] = pulsar.AuthenticationToken(token)
    client = pulsar.Client(
        broker.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=20,
        **settings,
    )  # fmt: skip
    try:
        yield client
    finally:
        client.close()


def produce(
    broker: Broker, topic: str, messages: Iterable[Message], *, batch: int = 1000, token: str | None = None,
    **settings: Any,
) -> list[pulsar.MessageId]:  # fmt: skip
    """Write messages in their order, and return their ids in that order, once the broker has all.

    Parameters
    ----------
    broker, topic
        Where to.
    messages
        What.
    batch
        How many messages one entry has at most; 1 or less: there are no batches.
    token
        Who writes, at a broker with tokens.
    settings
        Others of ``pulsar.Client.create_producer``.
    """
    chosen: dict[str, Any] = {
        "batching_enabled": batch > 1, "batching_max_messages": max(batch, 2), "block_if_queue_full": True,
        "batching_max_allowed_size_in_bytes": 1024 * 1024, "batching_max_publish_delay_ms": 5, "send_timeout_millis": 0,
    }  # fmt: skip
    ids: dict[int, pulsar.MessageId] = {}
    failed: list[str] = []
    changed = threading.Condition()

    def sent(number: int, result: pulsar.Result, message_id: pulsar.MessageId) -> None:
        with changed:
            if result != pulsar.Result.Ok:
                failed.append(str(result))
            ids[number] = message_id
            changed.notify_all()

    count = 0
    with client_of(broker, token) as client:
        producers: dict[int | None, pulsar.Producer] = {}
        for count, each in enumerate(messages, 1):
            producer = producers.get(each.partition)
            if producer is None:
                name = full_name(topic) + ("" if each.partition is None else f"-partition-{each.partition}")
                producer = _answered(partial(client.create_producer, name, **chosen | settings))
                producers[each.partition] = producer
            producer.send_async(
                each.value, lambda result, found, number=count: sent(number, result, found),
                properties=each.properties or None, partition_key=each.key, event_timestamp=each.event_time_ms,
                sequence_id=each.sequence_id,
            )  # fmt: skip
        for producer in producers.values():
            producer.flush()
        with changed:
            changed.wait_for(lambda: len(ids) == count, 240)
    if len(ids) < count or failed:
        raise RuntimeError(f"{topic}: {count - len(ids)} messages were not written, {len(failed)} failed: {failed[:3]}")
    return [ids[number] for number in range(1, count + 1)]


def read_topic(broker: Broker, topic: str, token: str | None = None) -> list[pulsar.Message]:
    """Return what a reader sees now: all messages up to the end, by partition and in their order."""
    found = []
    with client_of(broker, token) as client:
        for name in _answered(partial(client.get_topic_partitions, full_name(topic))):
            reader = _answered(partial(client.create_reader, name, pulsar.MessageId.earliest))
            while reader.has_message_available():
                found.append(reader.read_next(60_000))
            reader.close()
    return found


def _answered(call: Callable[[], T]) -> T:
    """Return what a call returns that a broker may leave unanswered: after a kill Pulsar 4.0.7 does so once in a while.

    Asked again, it answers, as it does to programs that ask again.
    """
    for _ in range(5):
        with contextlib.suppress(pulsar.Timeout):
            return call()
    return call()


def _wait(is_so: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"The broker has not done it within {timeout_s} s.")
        time.sleep(0.02)
