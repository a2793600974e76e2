"""The source of headgate.pulsar on a real broker, without Spark: every promise, and what Pulsar's own client reads."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fastavro
import pulsar as pulsar_client
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from pulsar.schema import Array, AvroSchema, Double, Integer, Long, Record, String

from headgate.connectors.pulsar import split_reader
from headgate.connectors.pulsar.client import ClientConfig
from headgate.connectors.pulsar.ledgers import Ledgers, remembered
from headgate.connectors.pulsar.position import after_message
from headgate.connectors.pulsar.source import PulsarSource
from headgate.connectors.pulsar.split import NOT_PARTITIONED, PulsarSplit
from headgate.errors import BadDataError, DataLossError, OptionError, SourceError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.testing import ReaderHarness, SourceHarness
from headgate.testing.conformance import conformance_test
from local.pulsar import PulsarBroker, running_pulsar
from local.pulsar_topics import (
    Message,
    add_partitions,
    ask,
    client_of,
    compact,
    create_namespace,
    create_topic,
    delete_topic,
    full_name,
    ledgers,
    produce,
    read_topic,
    trim,
    unload,
    upload_schema,
)
from tests.real.pulsar_reads import by_message_id, numbers, produce_every_kind, read, read_by_the_client, source
from tests.shared_broker import PulsarAddresses

SCHEMA = pa.schema({"value": pa.binary(), "__messageId": pa.binary(), "__eventTime": pa.timestamp("us", "UTC")})


def messages(count: int, first: int = 0, **more: Any) -> list[Message]:
    return [
        Message(b"%d" % number, key=f"k{number}" if number % 3 else None, event_time_ms=number * 1000 or None,
                properties={"n": str(number)} if number % 2 else {}, **more)
        for number in range(first, first + count)
    ]  # fmt: skip


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


def by_topic(topic: str, start: Any) -> str:
    return json.dumps({topic: start})


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


# -- what is gone ------------------------------------------------------------------------------------------------------


def in_the_middle(broker: Any, topic: str, **more: str) -> tuple[PulsarSource, Any]:
    """Return a source whose first ledger was read, but for a message, and its snapshot."""
    create_topic(broker, topic)
    produce(broker, topic, messages(6), batch=1)
    each = source(broker, topic, startingOffsets="earliest", **more)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, most_rows=1) as harness:
        harness.run_until_rows(5)
        assert harness.row_count == 5
        return each, harness.snapshot()


def trimmed(broker: Any, topic: str) -> None:
    trim(broker, topic)
    produce(broker, topic, messages(3, 6), batch=1)


def made_again(broker: Any, topic: str) -> None:
    delete_topic(broker, topic)
    create_topic(broker, topic)
    produce(broker, topic, messages(3, 6), batch=1)


def compacted(broker: Any, topic: str) -> None:
    compact(broker, topic)
    trimmed(broker, topic)


GONE = pytest.mark.parametrize("lose", [trimmed, made_again, compacted])


def test_of_a_compacted_topic_each_message_is_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, [Message(b"%d" % number, key="one") for number in range(6)], batch=1)
    compact(pulsar, topic_name)
    assert numbers(read(source(pulsar, topic_name))) == list(range(6))


@GONE
def test_messages_that_are_gone_are_an_error(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None]
) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name)
    lose(pulsar, topic_name)
    with (
        pytest.raises(DataLossError, match=r"after \d+:4 are gone, or may be.*predefinedSubscription") as raised,
        SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness,
    ):
        harness.run_until_rows(1)
    assert raised.value.split == f"persistent://public/default/{topic_name}"  # type: ignore[attr-defined]


@GONE
def test_or_a_warning_and_reading_goes_on(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name, failOnDataLoss="false")
    lose(pulsar, topic_name)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(3)
        assert numbers(harness.rows()) == [6, 7, 8]
    assert "are gone, or may be" in caplog.text


def test_a_topic_that_was_deleted_is_an_error(pulsar: PulsarAddresses, topic_name: str) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name)
    delete_topic(pulsar, topic_name)
    with (
        pytest.raises(DataLossError, match=r"was deleted, and what was not read of it"),
        SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness,
    ):
        harness.run_until_rows(1)


@GONE
def test_messages_that_go_while_it_reads_are_an_error(
    pulsar: PulsarAddresses, topic_name: str, lose: Callable[[Any, str], None]
) -> None:
    """The queue of the client is full: the brokers move its cursor on without a word."""
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(6), batch=1)
    each = source(pulsar, topic_name, startingOffsets="earliest", **{"pulsar.reader.receiverQueueSize": "2"})
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, most_rows=1) as harness:
        harness.run_until_rows(2)
        lose(pulsar, topic_name)
        with pytest.raises(DataLossError, match=r"are gone, or may be"):
            harness.run_until_rows(9)


@contextmanager
def slow_admin(admin_url: str) -> Iterator[tuple[str, threading.Event]]:
    """Return an address that redirects requests to the brokers, as any of them may, and what it waits for before."""
    answering = threading.Event()
    answering.set()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answering.wait()
            self.send_response(307)
            self.send_header("Location", f"{admin_url}{self.path}")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", answering
    finally:
        answering.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_who_waits_for_the_brokers_holds_up_no_other(pulsar: PulsarAddresses, topic_name: str) -> None:
    """After a ledger's end they are asked whether anything is gone; what came meanwhile is kept in its order."""
    create_topic(pulsar, topic_name, 2)
    produce(pulsar, topic_name, [*messages(3, partition=0), *messages(3, 3, partition=1)], batch=1)
    with slow_admin(pulsar.admin_url) as (admin_url, answering):
        each = source(
            pulsar, topic_name, startingOffsets="earliest",
            # Pulsar leaves a lookup unanswered at times: it is asked again after this.
            **{"admin.url": admin_url, "pulsar.client.operationTimeoutMs": "120000"},
        )  # fmt: skip
        with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
            harness.run_until_rows(6)
            unload(pulsar, f"{topic_name}-partition-0")
            answering.clear()
            produce(pulsar, topic_name, messages(3, 6, partition=0), batch=1)
            for number in range(9, 12):
                produce(pulsar, topic_name, messages(1, number, partition=1))
                harness.run_until_rows(number - 2)
            assert numbers(harness.rows()) == [*range(6), *range(9, 12)]
            produce(pulsar, topic_name, messages(3, 12, partition=0), batch=1)
            answering.set()
            harness.run_until_rows(15)
            of_first = [
                int(row["value"])
                for row in harness.rows()
                if int(row["value"]) in (*range(3), *range(6, 9), 12, 13, 14)
            ]
            assert of_first == [*range(3), *range(6, 9), 12, 13, 14]


def test_a_start_that_is_gone_is_an_error(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(6), batch=1)
    trimmed(pulsar, topic_name)
    starts = by_topic(topic_name, list(ids[2].serialize()))
    with pytest.raises(DataLossError, match=r"startingOffsets for .* is not there any longer"):
        read(source(pulsar, topic_name, startingOffsets=starts))
    assert numbers(read(source(pulsar, topic_name, startingOffsets=starts, failOnDataLoss="false"))) == [6, 7, 8]


def unloaded(broker: Any, topic: str) -> None:
    """Let the broker load a topic anew, whereby it discards a ledger that has no entries."""
    for _ in range(2):
        unload(broker, topic)
        read_topic(broker, topic)


@pytest.mark.parametrize("start", ["latest", "earliest"])
@pytest.mark.parametrize("first", [0, 4], ids=["empty", "not empty"])
def test_nothing_is_lost_with_a_ledger_that_had_no_entries(
    pulsar: PulsarAddresses, topic_name: str, start: str, first: int
) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(first), batch=1)
    unloaded(pulsar, topic_name)
    each = source(pulsar, topic_name, startingOffsets=start)
    there = first if start == "earliest" else 0
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.enumerator.run_due_calls()
        harness.run_until_rows(there)
        snapshot = harness.snapshot()
    unloaded(pulsar, topic_name)
    produce(pulsar, topic_name, messages(3, first), batch=1)
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(3)
        assert numbers(harness.rows()) == list(range(first, first + 3))


def test_a_plan_knows_that_a_ledger_that_is_gone_was_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    """Tasks do not: so their range begins in the ledger that follows."""
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(4), batch=1)
    each = source(pulsar, topic_name)
    name = f"persistent://public/default/{topic_name}"
    at = PulsarSplit(split_id=name, topic=name, partition=-1, position=after_message(ids[-1].serialize()))
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, messages(1, 4), batch=1)
    ((first),) = each.plan_ranges([at], PlanLimits(), 0)
    assert first.rest is not None
    produce(pulsar, topic_name, messages(1, 5), batch=1)
    ask(pulsar, "PUT", f"persistent/public/default/{topic_name}/subscription/ferry", place_of(first.rest))
    where = f"persistent/public/default/{topic_name}"
    ask(pulsar, "POST", f"{where}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    deadline = time.monotonic() + 60
    while first.rest.position.ledger != ledgers(pulsar, topic_name)[0]:
        assert time.monotonic() < deadline, ledgers(pulsar, topic_name)
        ask(pulsar, "POST", f"{where}/trim")
        time.sleep(0.05)
    (again,) = each.plan_ranges([at], PlanLimits(), 1000)
    assert read_range(pulsar, topic_name, again.split) == [4, 5]


def held_topic(broker: Any, topic: str, partitions: int = 0) -> str:
    """Return a topic of which only a subscription keeps anything."""
    namespace = create_namespace(broker, "unkept")
    ask(broker, "POST", f"namespaces/{namespace}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    name = create_topic(broker, f"persistent://{namespace}/{topic}", partitions)
    where = f"{name.replace('://', '/')}{'-partition-0' if partitions else ''}"
    ask(broker, "PUT", f"{where}/subscription/ferry", {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    return name


def let_go(broker: Any, topic: str) -> None:
    """Delete the subscription, and with it all but the ledger that is written to."""
    where = topic.replace("://", "/")
    ask(broker, "DELETE", f"{where}/subscription/ferry?force=true")
    deadline = time.monotonic() + 60
    while len(there := ledgers(broker, topic)) > 1:
        assert time.monotonic() < deadline, there
        ask(broker, "POST", f"{where}/trim")
        time.sleep(0.05)


def test_plans_of_what_is_idle_until_all_of_it_is_trimmed(pulsar: PulsarAddresses, topic_name: str) -> None:
    """What it was is remembered from plan to plan, though some plans are of others only, as under alignment."""
    topic = held_topic(pulsar, topic_name, 2)
    produce(pulsar, topic, [*messages(4, partition=0), *messages(4, 4, partition=1)], batch=1)
    plans = Plans(pulsar, topic)
    assert sorted(plans.rows(PlanLimits())) == list(range(8))
    idle, other = sorted(plans.splits, key=lambda each: each.split_id)
    unload(pulsar, idle.split_id)
    assert plans.source.plan_ranges([idle, other], PlanLimits(), 1000) == []
    assert plans.source.plan_ranges([other], PlanLimits(), 2000) == []
    let_go(pulsar, idle.split_id)
    for now_ms in (3000, 4000, 5000):
        assert plans.source.plan_ranges([idle, other], PlanLimits(), now_ms) == []
    produce(pulsar, topic, messages(2, 8, partition=0), batch=1)
    assert plans.rows(PlanLimits()) == [8, 9]


def test_what_is_idle_until_all_of_it_is_trimmed_has_lost_nothing(
    pulsar: PulsarAddresses, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split_reader, "_IDLE_LOOK_MS", 20)
    looks: list[tuple[int, ...]] = []

    def noted(known: Ledgers, now: Ledgers, position: Any) -> Ledgers:
        looks.append(tuple(each.id for each in now.ledgers))
        return remembered(known, now, position)

    monkeypatch.setattr(split_reader, "remembered", noted)
    topic = held_topic(pulsar, topic_name)
    produce(pulsar, topic, messages(4), batch=1)
    each = source(pulsar, topic, startingOffsets="earliest")
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
        harness.run_until_rows(4)
        unload(pulsar, topic)

        def look(count: int) -> None:
            deadline = time.monotonic() + 60
            while not looks or len(looks[-1]) != count:
                assert time.monotonic() < deadline, looks
                harness.step()

        look(2)
        let_go(pulsar, topic)
        look(1)
        produce(pulsar, topic, messages(3, 4), batch=1)
        harness.run_until_rows(7)
        assert numbers(harness.rows()) == list(range(7))


def place_of(split: Any) -> dict[str, int]:
    return {"ledgerId": split.position.ledger, "entryId": 1}


def read_range(broker: Any, topic: str, split: Any) -> list[int]:
    found = source(broker, topic)
    with ReaderHarness(found.create_reader, found.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        return numbers(reader.run_to_end())


def test_a_partition_that_is_not_there_yet_is_waited_for(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    found = source(pulsar, topic_name)
    name = f"persistent://public/default/{topic_name}-partition-0"
    split = PulsarSplit(split_id=name, topic=name, partition=NOT_PARTITIONED)
    with ReaderHarness(found.create_reader, found.split_serializer, SCHEMA) as reader:
        reader.add_splits(split)
        asked = time.monotonic() + 1
        while time.monotonic() < asked:
            reader.poll()
        create_topic(pulsar, f"{topic_name}-partition-0")
        produce(pulsar, f"{topic_name}-partition-0", messages(1))
        while not reader.rows():
            reader.step()
        assert numbers(reader.rows()) == [0]


def test_an_end_that_is_gone_is_before_what_is_there(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    ids = produce(pulsar, topic_name, messages(3), batch=1)
    trimmed(pulsar, topic_name)
    ends = by_topic(topic_name, list(ids[1].serialize()))
    assert read(source(pulsar, topic_name, endingOffsets=ends), SCHEMA) == []


def test_discovery_while_partitions_move(pulsar: PulsarAddresses, topic_name: str) -> None:
    """Brokers leave out partitions that they are just loading."""
    create_topic(pulsar, topic_name, 6)
    produce(pulsar, topic_name, [Message(b"%d" % number, partition=number) for number in range(6)])
    for number in range(8):
        unload(pulsar, f"{topic_name}-partition-{number % 6}")
        assert numbers(read(source(pulsar, topic_name))) == list(range(6))


def test_a_subscription_keeps_what_was_not_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    each, snapshot = in_the_middle(pulsar, topic_name, predefinedSubscription="ferry")
    unload(pulsar, topic_name)
    produce(pulsar, topic_name, messages(3, 6), batch=1)
    before = ledgers(pulsar, topic_name)
    where = f"persistent/public/default/{topic_name}"
    ask(pulsar, "POST", f"{where}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
    for _ in range(20):  # without the subscription the first ledger goes after one or two
        ask(pulsar, "POST", f"{where}/trim")
        time.sleep(0.1)
    assert ledgers(pulsar, topic_name)[0] == before[0]
    with SourceHarness(each, boundedness=Boundedness.CONTINUOUS_UNBOUNDED, snapshot=snapshot) as harness:
        harness.run_until_rows(4)
        assert numbers(harness.rows()) == [5, 6, 7, 8]


# -- values ------------------------------------------------------------------------------------------------------------


def test_json_values_as_typed_columns(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    values = [b'{"id": 1, "name": "a"}', b'{"id": 2}', b"bad", b"", b'{"name": "x\\ny", "id": 3, "more": []}']
    produce(pulsar, topic_name, [Message(value) for value in values])
    schema = pa.schema({"name": pa.string(), "id": pa.int64(), "__topic": pa.string()})
    rows = read(source(pulsar, topic_name, valueFormat="json"), schema)
    assert [(row["id"], row["name"]) for row in rows] == [(1, "a"), (2, None), (None, None), (None, None), (3, "x\ny")]
    assert len(read(source(pulsar, topic_name, valueFormat="json", mode="DROPMALFORMED"), schema)) == 4
    with pytest.raises(BadDataError, match=r"of the message \d+:0:2 of persistent://public/default/.* FAILFAST|bad"):
        read(source(pulsar, topic_name, valueFormat="json", mode="FAILFAST"), schema)
    with pytest.raises(OptionError, match=r"the values' fields must be given"):
        source(pulsar, topic_name, valueFormat="json").schema()


RECORD = {
    "type": "record", "name": "Ride",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "driver", "type": ["null", {"type": "record", "name": "Driver", "fields": [
            {"name": "name", "type": "string"}, {"name": "stars", "type": {"type": "array", "items": "int"}}]}]},
    ],
}  # fmt: skip


def test_a_json_schema_gives_the_fields(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "JSON", RECORD)
    produce(
        pulsar, topic_name, [Message(b'{"id": 7, "driver": {"name": "n", "stars": [5, 4]}}'), Message(b'{"id": 8}')]
    )
    rows = read(source(pulsar, topic_name))
    assert [(row["id"], row["driver"]) for row in rows] == [(7, {"name": "n", "stars": [5, 4]}), (8, None)]
    assert numbers([{"value": row["id"]} for row in rows]) == [7, 8]
    raw = read(source(pulsar, topic_name, allowDifferentTopicSchemas="true"))
    assert raw[1]["value"] == b'{"id": 8}'


@pytest.mark.parametrize(
    ("kind", "data", "expected"),
    [
        ("STRING", "ü".encode(), "ü"),
        ("BOOLEAN", b"\1", True),
        ("INT8", b"\xff", -1),
        ("INT16", b"\xff\xfe", -2),
        ("INT32", b"\0\0\1\0", 256),
        ("INT64", b"\xff" * 8, -1),
        ("FLOAT", b"\x3f\xc0\0\0", 1.5),
        ("DOUBLE", b"\xbf\xf8\0\0\0\0\0\0", -1.5),
        ("BYTES", b"\0\1", b"\0\1"),
    ],
)
def test_primitive_schemas(pulsar: PulsarAddresses, topic_name: str, kind: str, data: bytes, expected: Any) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, kind, "")
    produce(pulsar, topic_name, [Message(data)])
    assert [row["value"] for row in read(source(pulsar, topic_name))] == [expected]


def test_values_that_are_not_what_the_schema_says(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "INT32", "")
    produce(pulsar, topic_name, [Message(b"\0\0\0\1"), Message(b"no number")])
    with pytest.raises(BadDataError, match=r"of the message \d+:0.* has 9 bytes, not 4"):
        read(source(pulsar, topic_name))


def test_a_record_whose_only_field_is_called_value(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    record = {"type": "record", "name": "Ride", "fields": [{"name": "value", "type": "string"}]}
    upload_schema(pulsar, topic_name, "JSON", record)
    produce(pulsar, topic_name, [Message(b'{"value": "abc"}')])
    assert [row["value"] for row in read(source(pulsar, topic_name))] == ["abc"]


def test_topics_of_different_schemas(pulsar: PulsarAddresses, topic_name: str) -> None:
    for number, kind in enumerate(("INT32", "STRING")):
        create_topic(pulsar, f"{topic_name}-{number}")
        upload_schema(pulsar, f"{topic_name}-{number}", kind, "")
    both = f"{topic_name}-0,{topic_name}-1"
    with pytest.raises(OptionError, match=r"have different schemas. Set allowDifferentTopicSchemas to true"):
        source(pulsar, "", topics=both).schema()
    assert (
        source(pulsar, "", topics=both, allowDifferentTopicSchemas="true").schema().field("value").type == pa.binary()
    )


def test_a_schema_that_is_not_read(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    upload_schema(pulsar, topic_name, "AVRO", {**RECORD, "fields": [{"name": "id", "type": ["int", "string"]}]})
    with pytest.raises(OptionError, match=r"has a type that is not read: .*Set valueFormat to binary"):
        source(pulsar, topic_name).schema()


class Ride(Record):  # type: ignore[misc]
    """What a producer of Pulsar's own client writes."""

    id = Long(required=True)
    driver = String()
    stars = Array(Integer())


class LaterRide(Record):  # type: ignore[misc]
    """The same a version later."""

    id = Long(required=True)
    tip = Double(required_default=True)
    driver = String()
    stars = Array(Integer())


LaterRide.__name__ = "Ride"  # of Avro's record


def test_avro_values_by_the_schema_of_each_message(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name, 1)
    with client_of(pulsar) as client:
        for ride in (Ride(id=1, driver="n", stars=[5, 4]), LaterRide(id=2, driver=None, stars=[], tip=2.5)):
            producer = client.create_producer(full_name(topic_name), schema=AvroSchema(type(ride)))
            producer.send(ride)
    rows = read(source(pulsar, topic_name))
    own = [
        {name: row[name] for name in ("id", "driver", "stars", "tip")} for row in sorted(rows, key=lambda r: r["id"])
    ]
    assert own == [
        {"id": 1, "driver": "n", "stars": [5, 4], "tip": None},
        {"id": 2, "driver": None, "stars": [], "tip": 2.5},
    ]
    some = read(source(pulsar, topic_name), pa.schema({"driver": pa.string(), "__topic": pa.string()}))
    assert {row["driver"] for row in some} == {"n", None}
    raw = read(source(pulsar, topic_name), pa.schema({"value": pa.binary()}))
    assert raw[0]["value"] == fastavro_bytes(1, "n", [5, 4])
    produce(pulsar, topic_name, [Message(b"\xff", partition=0)])
    with pytest.raises(BadDataError, match=r"of the message \d+:\d+ of .* is not what its Avro schema says"):
        read(source(pulsar, topic_name))


def fastavro_bytes(ride_id: int, driver: str, stars: list[int]) -> bytes:
    written = io.BytesIO()
    fastavro.schemaless_writer(written, Ride.schema(), {"id": ride_id, "driver": driver, "stars": stars})
    return written.getvalue()


def test_a_column_that_values_without_a_schema_do_not_have(pulsar: PulsarAddresses, topic_name: str) -> None:
    create_topic(pulsar, topic_name)
    produce(pulsar, topic_name, messages(2))
    with pytest.raises(OptionError, match=r"no column 'user' of type string.*Set valueFormat to json"):
        read(source(pulsar, topic_name), pa.schema({"user": pa.string()}))


# -- micro-batches' plans ----------------------------------------------------------------------------------------------


class Plans:
    """Plans micro-batches over a topic from its beginning, and reads them."""

    def __init__(self, broker: Any, topic: str, **more: str) -> None:
        self.source, self._again = (source(broker, topic, startingOffsets="earliest", **more) for _ in range(2))
        with SourceHarness(self.source, boundedness=Boundedness.CONTINUOUS_UNBOUNDED) as harness:
            harness.enumerator.run_due_calls()
            self.splits = list(harness.enumerator.assigned[0].values())

    def rows(self, limits: PlanLimits) -> list[int]:
        """Return the values of the next micro-batch, in no order; it may be none."""
        planned = self.source.plan_ranges(self.splits, limits, 0)
        found: list[int] = []
        for one in planned:
            with ReaderHarness(self._again.create_reader, self._again.split_serializer, SCHEMA) as reader:
                reader.add_splits(one.split)
                found += [int(row["value"]) for row in reader.run_to_end()]
        rests = {one.split.split_id: one.rest for one in planned}
        self.splits = [rests.get(split.split_id) or split for split in self.splits]
        return found


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
