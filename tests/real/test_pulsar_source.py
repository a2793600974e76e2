"""The source of headgate.pulsar on a real broker, without Spark: every promise, and what Pulsar's own client reads.

What is gone is in test_pulsar_losses.py, what values become in test_pulsar_values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar as pulsar_client
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import BadDataError, OptionError, SourceError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.testing import SourceHarness
from headgate.testing.conformance import conformance_test
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import Message, add_partitions, create_topic, full_name, produce, read_topic, unload
from tests.real.pulsar_reads import (
    SCHEMA,
    Plans,
    by_message_id,
    by_topic,
    messages,
    numbers,
    produce_every_kind,
    read,
    read_by_the_client,
    source,
)
from tests.shared_broker import PulsarAddresses


@pytest.fixture
def three_partitions(pulsar: PulsarAddresses, topic_name: str) -> str:
    """Return a topic with batches, without batches, and with ledgers that follow each other."""
    create_topic(pulsar, topic_name, 3)
    produce(pulsar, topic_name, messages(10, partition=0), batch=4)
    produce(pulsar, topic_name, messages(6, 10, partition=1), batch=1)
    produce(pulsar, topic_name, messages(5, 16, partition=2), batch=3)
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, messages(5, 21, partition=2), batch=3)
    return topic_name


@pytest.fixture(scope="module")
def own_broker() -> Iterator[PulsarBroker]:
    """Return a broker that a test may stop, and whose clients send in chunks what is larger than a little."""
    with running_pulsar(settings={"maxMessageSize": "100000"}) as broker:
        yield broker


@contextmanager
def frozen(broker: PulsarBroker) -> Iterator[None]:
    """Stop a broker where it is, for as long as the block runs."""
    broker.freeze()
    try:
        yield
    finally:
        broker.thaw()


@pytest.fixture
def on_its_own(own_broker: PulsarBroker, topic_name: str) -> str:
    create_topic(own_broker, topic_name, 2)
    produce(own_broker, topic_name, messages(20), batch=3)
    return topic_name


test_pulsar_keeps_while_its_broker_stands_still = conformance_test(
    lambda own_broker, on_its_own: source(
        own_broker, on_its_own, startingOffsets="earliest", **{"pulsar.client.operationTimeoutMs": "2000"}
    ),
    schema=SCHEMA,
    unavailable=lambda own_broker: frozen(own_broker),
    only=("unavailability-loses-nothing", "close-is-quick", "hanging-fetch-holds-up-nothing"),
)

test_pulsar_keeps = conformance_test(
    lambda pulsar, three_partitions: source(
        pulsar, three_partitions, startingOffsets="earliest", eventTimeColumn="__eventTime"
    ),
    schema=SCHEMA,
    add_rows=lambda pulsar, three_partitions: produce(pulsar, three_partitions, messages(5, 26, partition=1)),
)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_it_reads_what_the_client_reads(pulsar: PulsarAddresses, three_partitions: str, parallelism: int) -> None:
    """Every column of every message, beside `pulsar.Reader`."""
    count = 26 + produce_every_kind(pulsar, three_partitions, 3)
    expected = read_by_the_client(pulsar, three_partitions)
    assert len(expected) == count
    assert by_message_id(read(source(pulsar, three_partitions), parallelism=parallelism)) == expected


def test_only_the_columns_that_are_asked_for(pulsar: PulsarAddresses, three_partitions: str) -> None:
    rows = read(source(pulsar, three_partitions), pa.schema({"__topic": pa.string()}))
    assert {len(row) for row in rows} == {1}
    assert len(rows) == 26
    with SourceHarness(source(pulsar, three_partitions), schema=pa.schema([])) as harness:
        harness.run_to_end()
        assert harness.row_count == 26, "rows without columns are counted"


# -- where it starts and ends -----------------------------------------------------------------------------------------


def as_written_down(message_id: pulsar_client.MessageId) -> pulsar_client.MessageId:
    """Return an id as of ``ledger:entry:partition:index``, which is how clients print it: it lacks its batch's size."""
    of = (message_id.partition(), message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
    return pulsar_client.MessageId(*of)


@pytest.mark.parametrize("form", [lambda message_id: message_id, as_written_down], ids=["sent", "written down"])
def test_starting_and_ending_message_ids_are_read(
    pulsar: PulsarAddresses, topic_name: str, form: Callable[[Any], Any]
) -> None:
    create_topic(pulsar, topic_name)
    ids = [form(each).serialize() for each in produce(pulsar, topic_name, messages(12), batch=5)]
    for first, last in ((0, 11), (3, 8), (5, 5), (4, 10), (4, 9), (11, 11)):
        starts, ends = by_topic(topic_name, list(ids[first])), by_topic(topic_name, list(ids[last]))
        rows = read(source(pulsar, topic_name, startingOffsets=starts, endingOffsets=ends))
        assert numbers(rows) == list(range(first, last + 1))


def test_starting_and_ending_times_of_publication(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(7), batch=1)
    times = [each.publish_timestamp() for each in read_topic(pulsar, topic_name)]
    middle = times[3]
    expected = [number for number, time in enumerate(times) if time >= middle]
    assert numbers(read(source(pulsar, topic_name, startingTime=str(middle)))) == expected
    assert numbers(read(source(pulsar, topic_name, endingTime=str(middle)))) == sorted(set(range(7)) - set(expected))
    assert numbers(read(source(pulsar, topic_name, startingOffsets=str(middle)))) == expected


def test_a_starting_event_time_is_found_in_each_place(pulsar: PulsarAddresses, topic_name: str) -> None:
    """Between batches, within them, where one ledger follows another, before all and after all."""
    create_topic(pulsar, topic_name, 4)
    first = 4_000_000_000_000  # later than what has only its time of publication

    def rising(numbers: Iterable[int], partition: int) -> list[Message]:
        return [Message(b"%d" % each, event_time_ms=first + each // 2, partition=partition) for each in numbers]

    produce(pulsar, topic_name, rising(range(40), 0), batch=7)
    produce(pulsar, topic_name, rising(range(40, 50), 1), batch=1)
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, rising(range(40, 80), 0), batch=9)
    produce(pulsar, topic_name, [Message(b"99", partition=2)])
    for wanted in (0, 1, 3, 4, 13, 19, 20, 22, 24, 39):
        found = numbers(read(source(pulsar, topic_name, startingEventTime=str(first + wanted))))
        there = [each for each in (*range(80), *range(40, 50)) if each // 2 >= wanted]
        assert found == sorted(there), wanted
    assert read(source(pulsar, topic_name, startingEventTime=str(first + 40))) == []
    assert numbers(read(source(pulsar, topic_name, startingEventTime="2020-01-01T00:00:00Z")))[-1] == 99


def test_a_stream_from_an_event_time_later_than_all_goes_on_with_what_comes(
    pulsar: PulsarAddresses, topic_name: str
) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(5, 1), batch=2)
    each = source(pulsar, topic_name, startingEventTime="1970-01-01T00:00:30Z")
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.enumerator.run_due_calls()
        produce(pulsar, topic_name, messages(4, 28))
        harness.run_until_rows(4)
        assert numbers(harness.rows()) == [28, 29, 30, 31], "what follows is read, whatever its time"


def test_a_stream_starts_with_what_comes_later(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 2)
    produce(pulsar, topic_name, messages(10))
    with SourceHarness(source(pulsar, topic_name), boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.enumerator.run_due_calls()
        produce(pulsar, topic_name, messages(10, 10))
        harness.run_until_rows(10)
        assert numbers(harness.rows()) == list(range(10, 20))


def test_new_partitions_and_topics_are_found_and_read_whole(pulsar: PulsarAddresses, topic_name: str) -> None:
    for number in (0, 1):
        create_topic(pulsar, f"{topic_name}-{number}", number)
    each = source(pulsar, "", topicsPattern=f"{topic_name}-.*", startingOffsets="earliest")
    produce(pulsar, f"{topic_name}-0", messages(5))
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, parallelism=2) as harness:
        harness.run_until_rows(5)
        add_partitions(pulsar, f"{topic_name}-1", 3)
        create_topic(pulsar, f"{topic_name}-2")
        create_topic(pulsar, f"other-{topic_name}-2")
        produce(pulsar, f"{topic_name}-1", messages(5, 5, partition=2))
        produce(pulsar, f"{topic_name}-2", messages(5, 10))
        produce(pulsar, f"other-{topic_name}-2", messages(5, 100))
        harness.run_until_rows(15)
        assert numbers(harness.rows()) == list(range(15))


def test_messages_in_chunks_are_an_error(own_broker: PulsarBroker, topic_name: str) -> None:
    """Whole between others, and also where only a part of one is read: the client drops that."""
    create_topic(own_broker, topic_name)
    produce(own_broker, topic_name, messages(3))
    produce(own_broker, topic_name, [Message(bytes(250_000))], batch=1, chunking_enabled=True)
    first_id, *_ = produce(own_broker, topic_name, messages(3, 3))
    assert [len(each.data()) for each in read_topic(own_broker, topic_name)] == [1, 1, 1, 250_000, 1, 1, 1]
    second = pulsar_client.MessageId(-1, first_id.ledger_id(), first_id.entry_id() - 2, -1)
    in_the_middle = by_topic(topic_name, list(second.serialize()))
    for part in ({}, {"endingOffsets": in_the_middle}, {"startingOffsets": in_the_middle}):
        with pytest.raises(SourceError, match=rf"{topic_name} has messages that were sent in chunks"):
            read(source(own_broker, topic_name, **part))


def crypto_keys(file: Path) -> Path:
    """Write a private key into a file, and its public one beside; return the file."""
    key = rsa.generate_private_key(65537, 2048)
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    public = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    file.with_name(f"{file.name}.public").write_bytes(public)
    return file


def test_encrypted_messages(pulsar: PulsarAddresses, topic_name: str, tmp_path: Path) -> None:
    """The client drops what it cannot decrypt, unless it is asked to return it as it is; of batches it loses count."""
    ours, theirs = crypto_keys(tmp_path / "ours"), crypto_keys(tmp_path / "theirs")
    encrypted = {
        "encryption_key": "harbour", "crypto_key_reader": pulsar_client.CryptoKeyReader(f"{ours}.public", str(ours)),
    }  # fmt: skip
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(2), batch=1)
    produce(pulsar, topic_name, messages(2, 2), batch=1, **encrypted)
    produce(
        pulsar, topic_name, messages(596, 4), batch=2, compression_type=pulsar_client.CompressionType.LZ4, **encrypted
    )
    produce(pulsar, topic_name, messages(2, 600), batch=1)
    with pytest.raises(BadDataError, match=rf"the message \d+:2 of .*{topic_name} is encrypted with the key 'harbour'"):
        read(source(pulsar, topic_name))
    key_file = {"pulsar.reader.defaultCryptoKeyReader": f"file://{ours}"}
    rows = read(source(pulsar, topic_name, **key_file))
    assert numbers(rows) == list(range(602))
    assert {row["value"]: row["__key"] for row in rows} == {
        each.value: each.key and each.key.encode() for each in messages(602)
    }
    wrong = {"pulsar.reader.defaultCryptoKeyReader": str(theirs)}
    with pytest.raises(BadDataError, match=r"is encrypted with the key 'harbour'"):
        read(source(pulsar, topic_name, **wrong))
    # Far fewer messages than came may be on their way at once.
    few = {"pulsar.reader.receiverQueueSize": "50", "failOnDataLoss": "false"}
    assert numbers(read(source(pulsar, topic_name, **few))) == [0, 1, 600, 601]


def test_topics_that_are_not_there(pulsar: PulsarAddresses, topic_name: str) -> None:
    with pytest.raises(OptionError, match=r"does not exist. Create it, or correct the option"):
        read(source(pulsar, topic_name), SCHEMA)
    assert read(source(pulsar, "", topicsPattern=f"{topic_name}.*"), SCHEMA) == []
    with pytest.raises(OptionError, match=r"the namespace public/nowhere does not exist"):
        read(source(pulsar, "", topicsPattern="public/nowhere/.*"), SCHEMA)
    create_topic(pulsar, topic_name)
    starts = by_topic("some-other-topic", "earliest")
    both = f"{topic_name}-two,{topic_name}-two-partition-0"
    create_topic(pulsar, f"{topic_name}-two", 1)
    with pytest.raises(OptionError, match=r"two-partition-0 would be read twice"):
        read(source(pulsar, "", topics=both), SCHEMA)
    with pytest.raises(OptionError, match=r"names persistent://public/default/some-other-topic, which is not read"):
        read(source(pulsar, topic_name, startingOffsets=starts), SCHEMA)


# -- micro-batches' plans ----------------------------------------------------------------------------------------------


def test_plans_have_as_many_rows_as_allowed(pulsar: PulsarAddresses, three_partitions: str) -> None:
    plans = Plans(pulsar, three_partitions)
    each, counts = plans.source, []
    while found := len(plans.rows(PlanLimits(max_rows=5))):
        counts.append(found)
    splits = plans.splits
    assert sum(counts) == 26
    assert max(counts) <= 5
    lag = each.lag(splits, 1000)
    assert lag == {"entriesBehindLatest": 0, "maxEntriesBehindLatest": 0}


@pytest.mark.parametrize("batch", [1, 4])
def test_plans_end_before_an_event_time(pulsar: PulsarAddresses, topic_name: str, batch: int) -> None:
    """To the message, though they are out of order, and whatever rows are allowed beside."""
    create_topic(pulsar, topic_name, 2)
    times = [3, 1, 4, 2, 6, 5, 9, 8, None, 7, 12, 11]
    sent = [
        Message(b"%d" % (10 * number + partition), partition=partition, event_time_ms=at and at * 1000 + partition)
        for partition in (0, 1)
        for number, at in enumerate(times)
    ]
    produce(pulsar, topic_name, sent, batch=batch)
    plans = Plans(pulsar, topic_name, eventTimeColumn="__eventTime")

    def following() -> list[int | None]:
        found = plans.source.next_event_times(plans.splits)
        assert found is not None
        return [found[name] for name in sorted(found)]

    def numbers_of(*places: int) -> list[int]:
        return sorted(10 * place + partition for place in places for partition in (0, 1))

    assert following() == [3000, 3001]
    assert plans.rows(PlanLimits(before_event_time_ms=3000)) == []
    assert plans.rows(PlanLimits(before_event_time_ms=3001)) == [0, 10]
    assert following() == [4000, 3001]
    assert sorted([*plans.rows(PlanLimits(before_event_time_ms=4000)), 0, 10]) == numbers_of(0, 1)
    assert sorted(plans.rows(PlanLimits(before_event_time_ms=8900))) == numbers_of(2, 3, 4, 5)
    found = [plans.rows(PlanLimits(before_event_time_ms=12_000, max_rows=3)) for _ in range(4)]
    assert max(map(len, found)) <= 3
    assert sorted(row for rows in found for row in rows) == numbers_of(6, 7, 8, 9)
    assert following() == [12_000, 12_001]
    assert sorted(plans.rows(PlanLimits())) == numbers_of(10, 11)
    assert following() == []


# -- brokers that do not answer ---------------------------------------------------------------------------------------


def test_an_address_where_nobody_answers(pulsar: PulsarAddresses, topic_name: str) -> None:
    lost = source(pulsar, topic_name, **{"admin.url": "http://127.0.0.1:9"})
    with pytest.raises(SourceUnavailableError, match=r"http://127.0.0.1:9 \(admin.url\) does not answer"):
        read(lost, SCHEMA)


def test_a_plan_of_rows_where_nobody_answers_can_be_made_again(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(2))
    lost = source(
        pulsar, topic_name, **{"service.url": "pulsar://127.0.0.1:9", "pulsar.client.operationTimeoutMs": "1000"}
    )
    split = PulsarSplit(split_id=full_name(topic_name), topic=full_name(topic_name), partition=NOT_PARTITIONED)
    for _ in range(2):
        with pytest.raises(SourceUnavailableError, match=r"pulsar://127.0.0.1:9 did not let this client read"):
            lost.plan_ranges([split], PlanLimits(max_rows=1), 0)


def test_a_reader_that_was_let_go_is_held_by_nobody(pulsar: PulsarAddresses, three_partitions: str) -> None:
    """A worker of Spark's has one client for a thousand tasks, and a driver for as many plans."""
    each = source(pulsar, three_partitions, startingEventTime="1970-01-01T00:00:05Z")
    assert len(read(each)) == 21
    held = ClientConfig.of(each.options).connect()._consumers
    assert held == []


def test_messages_that_do_not_come(pulsar: PulsarAddresses, three_partitions: str) -> None:
    lost = source(
        pulsar, three_partitions,
        **{"service.url": "pulsar://127.0.0.1:9", "pollTimeoutMs": "1500", "pulsar.client.operationTimeoutMs": "1000"},
    )  # fmt: skip
    with pytest.raises(SourceUnavailableError, match=r"pulsar://127.0.0.1:9 did not let this client read"):
        read(lost, SCHEMA)


def test_it_goes_on_after_the_broker_was_killed(own_broker: PulsarBroker, topic_name: str) -> None:
    create_topic(own_broker, topic_name, 2)
    produce(own_broker, topic_name, messages(10))
    each = source(own_broker, topic_name, startingOffsets="earliest")
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, timeout_s=120) as harness:
        harness.run_until_rows(10)
        own_broker.kill()
        own_broker.start()
        produce(own_broker, topic_name, messages(10, 10))
        harness.run_until_rows(20)
        assert numbers(harness.rows()) == list(range(20))
