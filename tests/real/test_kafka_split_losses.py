"""Records that are lost, topics made again, brokers away or refusing: what a reader of Kafka's splits makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import TopicPartition as Named
from confluent_kafka.admin import AdminClient

from headgate.connectors.kafka.cluster import KafkaCluster
from headgate.connectors.kafka.consumer import Consumed
from headgate.errors import DataLossError, SourceError, SourceUnavailableError
from local.kafka import PASSWORD, USER, Broker, Certificates, running_broker
from local.ports import free_ports
from local.topics import Message, create_topic, delete_topic, produce
from tests.real.kafka_splits import client, fetch_until, numbered, offsets, reader, silence_begins, split

# What other tests left open may be collected, and warned of, here.
pytestmark = pytest.mark.filterwarnings("error", "ignore::ResourceWarning")


# ---- data loss ----


@pytest.fixture
def shortened(kafka: Broker, topic_name: str) -> str:
    """Offsets 0 to 5 deleted, 6 to 9 there."""
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, numbered(10))
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    (deleted,) = admin.delete_records([Named(topic_name, 0, 6)]).values()
    deleted.result(240)
    return topic_name


def test_deleted_records_are_an_error(kafka: Broker, shortened: str) -> None:
    with reader(client(kafka.plain)) as harness:
        harness.add_splits(split(shortened, 0, 2, 8))
        with pytest.raises(
            DataLossError, match=r"offsets 2 to 8\. Available are 6 to 10.*failOnDataLoss to false"
        ) as caught:
            harness.fetch_all()
    facts = caught.value.facts
    assert (facts["topic"], facts["partition"], facts["wanted"], facts["available"]) == (shortened, 0, (2, 8), (6, 10))


@pytest.mark.parametrize(
    ("begin", "stop", "expected"),
    [(2, 8, [6, 7]), (0, 4, []), (0, 6, []), (6, 10, [6, 7, 8, 9]), (8, 20, [8, 9]), (15, 20, [])],
)
def test_deleted_records_are_passed_over_if_that_is_allowed(
    kafka: Broker, shortened: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    begin: int, stop: int, expected: list[int],
) -> None:  # fmt: skip
    with reader(client(kafka.plain), fail_on_data_loss=False) as harness:
        if begin < 10 < stop:  # nothing but silence shows that the rest is missing
            silence_begins(monkeypatch, lambda: offsets(harness.rows()) == expected)
        harness.add_splits(split(shortened, 0, begin, stop))
        assert offsets(harness.fetch_all()) == expected
        assert harness.fetched[-1].split.position == stop
    assert len([each for each in caplog.records if "failOnDataLoss is false" in each.message]) == (
        0 if begin >= 6 and stop <= 10 else 1
    )


def test_records_that_are_there_and_do_not_come_are_not_taken_for_lost(
    kafka: Broker, shortened: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reader(client(kafka.plain), fail_on_data_loss=False) as harness:
        harness.add_splits(split(shortened, 0, 8, 20))
        silence_begins(monkeypatch)
        monkeypatch.setattr(harness.split_reader._consumer, "consume", lambda *_: Consumed([], []))
        with pytest.raises(SourceUnavailableError, match=r"from offset 8 on.*answer, but send no records"):
            harness.fetch_all()


def test_a_range_beyond_the_end_is_an_error(kafka: Broker, shortened: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with reader(client(kafka.plain)) as harness:
        silence_begins(monkeypatch, lambda: offsets(harness.rows()) == [8, 9])
        harness.add_splits(split(shortened, 0, 8, 20))
        with pytest.raises(DataLossError, match="Available are 6 to 10"):
            harness.fetch_all()


@pytest.mark.parametrize("decoder", ["auto", "plain"])
@pytest.mark.parametrize("fail", [True, False])
def test_a_topic_deleted_while_it_is_read(kafka: Broker, topic_name: str, fail: bool, decoder: str) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, numbered(5))
    config = client(kafka.plain, topic_metadata_propagation_max_ms="300")
    with reader(config, fail_on_data_loss=fail, decoder=decoder) as harness:
        harness.add_splits(split(topic_name))
        fetch_until(harness, 5)
        delete_topic(kafka.plain, topic_name)
        if fail:
            with pytest.raises(DataLossError, match="does not exist any more") as caught:
                harness.fetch_all(200)
            assert caught.value.facts["wanted"] == (5, None)
        else:
            assert harness.fetch_all(200) == []


def identity(kafka: Broker, topic: str) -> str | None:
    cluster = KafkaCluster(client(kafka.plain))
    found = cluster.topics({topic})[topic].topic_id
    cluster.close()
    return found


def make_again(kafka: Broker, topic: str, records: int) -> None:
    """Delete a topic and make it again, with other records."""
    delete_topic(kafka.plain, topic)
    create_topic(kafka.plain, topic)
    produce(kafka.plain, topic, [Message(b"new %d" % number) for number in range(records)])


@pytest.mark.parametrize("records", [2, 3, 5], ids=["fewer", "as many", "more"])
@pytest.mark.parametrize("when", ["stopped", "running"])
def test_a_topic_that_was_made_again_is_read_from_its_beginning_where_losses_are_allowed(
    kafka: Broker, topic_name: str, records: int, when: str
) -> None:
    """Nothing of it twice, nothing missing, though there may be records at the offsets that come next."""
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, numbered(3))
    whole = msgspec.structs.replace(split(topic_name), topic_id=identity(kafka, topic_name))
    with reader(client(kafka.plain), fail_on_data_loss=False) as harness:
        if when == "running":
            harness.add_splits(whole)
            fetch_until(harness, 3)
        make_again(kafka, topic_name, records)
        if when == "stopped":
            harness.add_splits(msgspec.structs.replace(whole, position=3))
        old = 3 if when == "running" else 0
        rows = [row["value"].decode() for row in fetch_until(harness, old + records)[old:]]
        produce(kafka.plain, topic_name, [Message(b"last")])
        assert [row["value"] for row in fetch_until(harness, old + records + 1)[old + records :]] == [b"last"]
        (now,) = harness.splits.values()
        assert now.topic_id == identity(kafka, topic_name) != whole.topic_id
    assert rows == [f"new {number}" for number in range(records)]


@pytest.mark.parametrize("records", [2, 5], ids=["fewer", "more"])
@pytest.mark.parametrize("when", ["stopped", "running"])
def test_a_topic_that_was_made_again_is_data_loss(kafka: Broker, topic_name: str, records: int, when: str) -> None:
    create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic_name, numbered(3))
    whole = msgspec.structs.replace(split(topic_name), topic_id=identity(kafka, topic_name))
    with reader(client(kafka.plain)) as harness:
        if when == "running":
            harness.add_splits(whole)
            fetch_until(harness, 3)
        make_again(kafka, topic_name, records)
        if when == "stopped":
            harness.add_splits(msgspec.structs.replace(whole, position=3))
        with pytest.raises(DataLossError, match=topic_name) as caught:
            harness.fetch_all()
        assert caught.value.facts["wanted"] == (3, None) or when == "running"
        assert when == "running" or harness.rows() == [], "its records are not what is wanted"


def test_a_range_of_a_topic_that_was_made_again_gives_none_of_the_new_records(kafka: Broker, topic_name: str) -> None:
    """It was planned before that; the next plan reads the new topic from its beginning."""
    create_topic(kafka.plain, topic_name)
    planned = msgspec.structs.replace(split(topic_name, 0, 1, 4), topic_id=identity(kafka, topic_name))
    make_again(kafka, topic_name, 6)
    with reader(client(kafka.plain), fail_on_data_loss=False) as harness:
        harness.add_splits(planned)
        assert harness.fetch_all() == []


# ---- brokers ----


def test_brokers_that_are_not_there_are_named(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with reader(client(address)) as harness:
        silence_begins(monkeypatch, lambda: "Connection refused" in harness.split_reader._last_error, ask_ms=100)
        harness.add_splits(split("any", 0, 0, 10))
        with pytest.raises(
            SourceUnavailableError, match=rf"{address} sent nothing of any-0.*Connection refused"
        ) as caught:
            harness.fetch_all()
    assert caught.value.retryable
    assert not [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")]


def test_a_stream_whose_brokers_are_gone_fails_in_time(kafka: Broker) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    with reader(client(address), poll_timeout_ms=1000) as harness:
        harness.add_splits(split("any"))
        with pytest.raises(SourceUnavailableError, match="They do not answer"):
            harness.fetch_all(100)


@pytest.mark.parametrize("decoder", ["auto", "plain"])
def test_a_wrong_password_is_reported_and_not_shown(kafka: Broker, decoder: str) -> None:
    config = client(
        kafka.sasl, security_protocol="sasl_plaintext", sasl_mechanism="PLAIN", sasl_username=USER,
        sasl_password="not-the-pass-word",
    )  # fmt: skip
    with reader(config, decoder=decoder) as harness:
        harness.add_splits(split("any", 0, 0, 10))
        with pytest.raises(SourceError, match="refuse this client") as caught:
            harness.fetch_all()
    assert "not-the-pass-word" not in repr(caught.value) + str(caught.value.facts)


def test_a_wrong_authority_is_reported(kafka: Broker, certificates: Certificates) -> None:
    config = client(kafka.tls, security_protocol="ssl", ssl_ca_location=str(certificates.other_ca))
    with reader(config) as harness:
        harness.add_splits(split("any", 0, 0, 10))
        with pytest.raises(SourceError, match=r"refuse this client.*certificate"):
            harness.fetch_all()


def test_the_right_password_over_tls_reads(kafka: Broker, certificates: Certificates, topic_name: str) -> None:
    topic = create_topic(kafka.plain, topic_name)
    produce(kafka.plain, topic, numbered(10))
    config = client(
        kafka.sasl_tls, security_protocol="sasl_ssl", ssl_ca_location=str(certificates.ca), sasl_mechanism="PLAIN",
        sasl_username=USER, sasl_password=PASSWORD,
    )  # fmt: skip
    with reader(config) as harness:
        harness.add_splits(split(topic, 0, 0, 10))
        assert offsets(harness.fetch_all()) == list(range(10))


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "broker") as broker:
        yield broker


def test_a_broker_that_comes_back_is_read_on(own_broker: Broker) -> None:
    """What breaks it breaks
    `tests/real/test_kafka_stream.py::test_a_broker_that_is_killed_and_comes_back_loses_and_repeats_nothing` too.
    """
    topic = create_topic(own_broker.plain, "comes-back", 2)
    value = b"x" * 500
    count = 60_000
    produce(own_broker.plain, topic, [Message(value, partition=each % 2) for each in range(count)])
    with reader(client(own_broker.plain), poll_timeout_ms=120_000, buffered_bytes=2**20) as harness:
        harness.add_splits(*(split(topic, number, 0, count // 2) for number in range(2)))
        fetch_until(harness, 1000)
        own_broker.kill()
        for _ in range(3):
            harness.fetch()
        assert harness.splits
        own_broker.start()
        harness.fetch_all()
    for number in range(2):
        assert offsets(harness.rows(), number) == list(range(count // 2))


# ---- sizes ----


def test_large_records_are_read(kafka: Broker, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, max_message_bytes="12000000")
    sizes = [1, 10_000_000, 5, 1_000_000, 1_000_000, 10_000_000, 7]
    messages = [Message(b"%d" % (index % 10) * size) for index, size in enumerate(sizes)]
    produce(kafka.plain, topic_name, messages, message_max_bytes=12_000_000)
    with reader(client(kafka.plain), buffered_bytes=4 * 2**20) as harness:
        harness.add_splits(split(topic_name, 0, 0, len(sizes)))
        rows = harness.fetch_all()
    assert [row["value"] for row in rows] == [each.value for each in messages]
    assert all(each.batch is None or each.batch.nbytes < 2**24 or each.batch.num_rows == 1 for each in harness.fetched)
