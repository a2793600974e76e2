"""The Pulsar broker of tests and of ``./run pulsar``: data that survives, listeners that refuse, two at once."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pulsar as pulsar_client
import pytest

from local.kafka import Certificates
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import (
    AdminError,
    Message,
    ask,
    compact,
    create_namespace,
    create_topic,
    delete_topic,
    grant,
    ledgers,
    partitions_of,
    produce,
    read_topic,
    set_deduplication,
    terminate,
    trim,
    unload,
    upload_schema,
)
from tests.shared_broker import PulsarAddresses


@pytest.fixture(scope="module")
def locked() -> Iterator[PulsarBroker]:
    """Return a broker at which everybody needs a token."""
    with running_pulsar(tokens=True) as broker:
        yield broker


def connect(address: str, **settings: Any) -> None:
    """Write a message as a client with these settings."""
    quiet = pulsar_client.ConsoleLogger(pulsar_client.LoggerLevel.Error)
    client = pulsar_client.Client(
        address, logger=quiet, operation_timeout_seconds=5, tls_validate_hostname=True, **settings
    )
    try:
        client.create_producer("somewhere").send(b"hello")
    finally:
        client.close()


def test_messages_and_deduplication_survive_kills(tmp_path: Path) -> None:
    numbers = [Message(b"%d" % each, str(each % 3), each % 3, each + 1, {"n": str(each)}) for each in range(2000)]
    with running_pulsar(tmp_path, deduplication=True) as broker:
        broker.freeze()
        broker.thaw()
        create_topic(broker, "kept", 3)
        create_topic(broker, "once")
        for start in (0, 1000):
            produce(broker, "kept", numbers[start : start + 1000], batch=100)
            sent = [Message(b"%d" % each, sequence_id=each + 1) for each in range(start + 1000)]
            produce(broker, "once", sent, batch=1, producer_name="again-and-again")
            broker.kill()
            broker.start()
        kept = [(m.data(), m.partition_key(), m.event_timestamp(), m.properties()) for m in read_topic(broker, "kept")]
        wanted = sorted(numbers, key=lambda each: each.partition or 0)
        assert kept == [(each.value, each.key, each.event_time_ms, each.properties) for each in wanted]
        assert [int(message.data()) for message in read_topic(broker, "once")] == list(range(2000))


def test_it_stays_on_loopback_and_two_at_once_do_not_collide() -> None:
    with ThreadPoolExecutor(2) as pool:
        running = [running_pulsar(), running_pulsar()]
        brokers = list(pool.map(lambda each: each.__enter__(), running))
        try:
            for number, broker in enumerate(brokers):
                assert broker.process is not None
                listening = psutil.Process(broker.process.pid).net_connections("tcp")
                addresses = {each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN}
                assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
                produce(broker, "own", [Message(b"%d" % number)])
            for number, broker in enumerate(brokers):
                assert [message.data() for message in read_topic(broker, "own")] == [b"%d" % number]
        finally:
            list(pool.map(lambda each: each.__exit__(None, None, None), running))
    assert [broker.process for broker in brokers] == [None, None]


def test_the_error_names_why_it_does_not_start(tmp_path: Path, pulsar: PulsarAddresses) -> None:
    taken = int(pulsar.service_url.rpartition(":")[2])
    broker = PulsarBroker(tmp_path, taken)
    with pytest.raises(RuntimeError, match=r"(?s)does not answer.*Address already in use"):
        broker.start()
    assert broker.process is None


def test_tls(pulsar: PulsarAddresses, certificates: Certificates) -> None:
    connect(pulsar.tls_service_url, tls_trust_certs_file_path=str(certificates.ca))
    with pytest.raises(pulsar_client.ConnectError):
        connect(pulsar.tls_service_url, tls_trust_certs_file_path=str(certificates.other_ca))
    namespaces = f"{pulsar.tls_admin_url}/admin/v2/namespaces/public"
    trusting, doubting = (ssl.create_default_context(cafile=each) for each in (certificates.ca, certificates.other_ca))
    with urllib.request.urlopen(namespaces, context=trusting) as answer:
        assert b"public/default" in answer.read()
    with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
        urllib.request.urlopen(namespaces, context=doubting)


def test_tokens(locked: PulsarBroker) -> None:
    grant(locked, "public/default", "writer", "produce", token=locked.token())
    connect(locked.service_url, authentication=pulsar_client.AuthenticationToken(locked.token("writer")))
    forged = locked.token("writer", secret=b"another secret that is as long as it must be")
    for token in (forged, locked.token("somebody")):
        # The client asks again until its time is over, and does not always say what the broker answered.
        with pytest.raises(pulsar_client.PulsarException):
            connect(locked.service_url, authentication=pulsar_client.AuthenticationToken(token))
        with pytest.raises(AdminError) as caught:
            ask(locked, "GET", "namespaces/public", token=token)
        assert caught.value.status in (401, 403)
    with pytest.raises(pulsar_client.PulsarException):
        connect(locked.service_url)


def test_topics_are_made_trimmed_compacted_and_deleted(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 2)
    assert partitions_of(pulsar, topic_name) == 2
    ids = produce(pulsar, topic_name, [Message(b"%d" % each, partition=0) for each in range(20)], batch=10)
    assert [each.batch_index() for each in ids] == [*range(10), *range(10)]
    trim(pulsar, topic_name)
    assert read_topic(pulsar, topic_name) == []
    before = ledgers(pulsar, f"{topic_name}-partition-0")
    produce(pulsar, topic_name, [Message(b"after", partition=0)])
    unload(pulsar, topic_name)
    assert ledgers(pulsar, f"{topic_name}-partition-0")[0] == before[0]
    delete_topic(pulsar, topic_name)
    with pytest.raises(AdminError, match="404"):
        ledgers(pulsar, f"{topic_name}-partition-0")


def test_messages_as_large_as_allowed_are_taken(pulsar: PulsarAddresses, topic_name: str) -> None:
    """By the store, too: what the broker lets pass, and the store refuses, the broker would write again for ever."""
    create_topic(pulsar, topic_name)
    large = bytes((5 << 20) + 1)  # in two chunks, of which the first is as large as a message may be
    produce(pulsar, topic_name, [Message(large), Message(b"after")], batch=1, chunking_enabled=True)
    assert [each.data() for each in read_topic(pulsar, topic_name)] == [large, b"after"]


def test_compacted_reads(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, [Message(b"%d" % each, str(each % 3)) for each in range(9)], batch=1)
    compact(pulsar, topic_name)
    client = pulsar_client.Client(pulsar.service_url)
    reader = client.create_reader(topic_name, pulsar_client.MessageId.earliest, is_read_compacted=True)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    client.close()
    assert found == [b"6", b"7", b"8"]


def test_a_terminated_topic_takes_nothing(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, [Message(b"last")])
    terminate(pulsar, topic_name)
    with pytest.raises(pulsar_client.TopicTerminated):
        produce(pulsar, topic_name, [Message(b"too late")])


def test_deduplication_of_a_topic_and_of_a_namespace(pulsar: PulsarAddresses, topic_name: str) -> None:
    twice = [Message(b"%d" % each, sequence_id=each) for each in (1, 2, 1, 2, 3)]

    def written(topic: str) -> list[bytes]:
        create_topic(pulsar, topic)
        produce(pulsar, topic, twice, batch=1, producer_name="p")
        return [message.data() for message in read_topic(pulsar, topic)]

    assert written(f"{topic_name}-plain") == [b"1", b"2", b"1", b"2", b"3"]
    assert written(f"persistent://public/once/{topic_name}") == [b"1", b"2", b"3"]
    create_topic(pulsar, topic_name)
    set_deduplication(pulsar, topic_name, True)
    produce(pulsar, topic_name, twice, batch=1, producer_name="p")
    assert [message.data() for message in read_topic(pulsar, topic_name)] == [b"1", b"2", b"3"]
    assert create_namespace(pulsar, "once") == "public/once"


def test_a_schema_is_checked(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    fields = [{"name": "id", "type": "int"}]
    upload_schema(pulsar, topic_name, "JSON", {"type": "record", "name": "Order", "fields": fields})
    found = ask(pulsar, "GET", f"schemas/public/default/{topic_name}/schema")
    assert (found["type"], found["version"]) == ("JSON", 0)
