"""Questions to a real broker: what there is, where it begins and ends, and errors when it does not answer."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import gc
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from headgate.connectors.kafka import cluster as cluster_module
from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.client_properties import ANY_CLIENT, CONSUMER_ONLY, LIBRDKAFKA_NAMES, PRODUCER_ONLY
from headgate.connectors.kafka.cluster import KafkaCluster, Trouble, as_source_error
from headgate.connectors.kafka.consumer_pool import close_idle
from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.connectors.kafka.positions import EndingPositions, StartingPositions
from headgate.connectors.kafka.source import KafkaSource
from headgate.connectors.kafka.split import KafkaSplit
from headgate.enumerators.partition import TopicPartition
from headgate.errors import DataLossError, OptionError, SourceError, SourceUnavailableError
from headgate.source import Boundedness, PlanLimits
from headgate.source.options import Options
from local.kafka import PASSWORD, USER, Broker, Certificates, running_broker
from local.topics import Message, create_topic, delete_topic, produce

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="{}" password="{}";'
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.jaas.config": JAAS.format(USER, PASSWORD)}
WRONG = "an0ther-password"


def client(address: str, given: dict[str, str] | None = None) -> ClientConfig:
    raw = {"subscribe": "x", "kafka.bootstrap.servers": address}
    raw |= {f"kafka.{name}": value for name, value in (given or {}).items()}
    return ClientConfig.of(Options.parse("headgate.kafka", OPTION_SPECS, raw))


def become(ask: Callable[[], object], answer: object) -> None:
    """Wait until a question has this answer."""
    deadline_s = time.monotonic() + 60
    while (found := ask()) != answer:
        assert time.monotonic() < deadline_s, found
        time.sleep(0.02)


def librdkafka_threads() -> set[str]:
    """Return the ids of librdkafka's threads in this process."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it ended just now
            if (task / "comm").read_text().startswith("rdk:"):
                found.add(task.name)
    return found


@pytest.fixture(autouse=True)
def _no_clients_of_other_tests() -> None:
    """Close what other tests left to be used again, lest its threads are counted here."""
    close_idle()
    gc.collect()


@pytest.fixture
def cluster(kafka: Broker) -> Iterator[KafkaCluster]:
    made = KafkaCluster(client(kafka.plain))
    yield made
    made.close()


def test_topics_and_ids(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 3)
    found = cluster.topics([topic_name, "there-is-no-such"])
    assert {name: info.partitions for name, info in found.items()} == {topic_name: (0, 1, 2)}
    assert cluster.topics(None)[topic_name] == found[topic_name]
    delete_topic(kafka.plain, topic_name)
    assert cluster.topics([topic_name]) == {} and topic_name not in cluster.topics(None)
    assert cluster.latest([TopicPartition(topic_name, 0)]) == {}
    create_topic(kafka.plain, topic_name, 3)
    again = cluster.topics([topic_name])[topic_name]
    assert again.topic_id is not None and again.topic_id != found[topic_name].topic_id


def test_no_question_creates_a_topic(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    # The broker makes topics that are asked for in the careless way.
    absent, exists = TopicPartition(topic_name, 0), TopicPartition(f"{topic_name}-there", 0)
    create_topic(kafka.plain, exists.topic)
    for asked in ([absent], [absent, exists, TopicPartition(exists.topic, 7)]):
        assert set(cluster.topics({each.topic for each in asked})) == {exists.topic} & {each.topic for each in asked}
        assert set(cluster.latest(asked)) == set(cluster.earliest(asked)) == {exists} & set(asked)
        assert set(cluster.at_timestamps(dict.fromkeys(asked, 5))) == {exists} & set(asked)
    assert set(StartingPositions.of(_options(), Boundedness.BOUNDED).resolve(cluster, [absent, exists])) == {exists}
    assert topic_name not in cluster.topics(None)


def test_offsets(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    from confluent_kafka import TopicPartition as Asked
    from confluent_kafka.admin import AdminClient

    create_topic(kafka.plain, topic_name, 2)
    produce(kafka.plain, topic_name, [Message(b"x", timestamp_ms=1000 + i) for i in range(10)])
    admin = AdminClient({"bootstrap.servers": kafka.plain})
    for future in admin.delete_records([Asked(topic_name, 0, 4)]).values():
        future.result(60)
    full, empty = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    assert cluster.earliest([full, empty]) == {full: 4, empty: 0}
    assert cluster.latest([full, empty]) == {full: 10, empty: 0}
    assert cluster.at_timestamps({full: 1007, empty: 1007}) == {full: 7, empty: None}
    assert cluster.at_timestamps({full: 1}) == {full: 4}
    assert cluster.at_timestamps({full: 2000}) == {full: None}
    assert cluster.latest([]) == cluster.earliest([]) == cluster.at_timestamps({}) == cluster.topics([]) == {}


def _options(**raw: str) -> Options:
    return Options.parse("headgate.kafka", OPTION_SPECS, {"subscribe": "x", **raw})


def test_positions_of_a_topic(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 3)
    produce(kafka.plain, topic_name, [Message(b"x", timestamp_ms=1000 + i) for i in range(5)])
    produce(kafka.plain, topic_name, [Message(b"x", partition=1, timestamp_ms=1002)])
    partitions = [TopicPartition(topic_name, number) for number in range(3)]

    def start(**raw: str) -> list[int]:
        made = StartingPositions.of(_options(**raw), Boundedness.CONTINUOUS_UNBOUNDED)
        return [made.resolve(cluster, partitions)[each] for each in partitions]

    def end(**raw: str) -> list[int]:
        made = EndingPositions.of(_options(**raw), Boundedness.BOUNDED)
        return [made.resolve(cluster, partitions)[each] for each in partitions]

    assert start() == [5, 1, 0]
    assert start(startingOffsets="earliest") == [0, 0, 0]
    assert start(startingOffsets=json.dumps({topic_name: {"0": 3, "1": -2, "2": -1}})) == [3, 0, 0]
    assert start(startingTimestamp="1002", startingOffsetsByTimestampStrategy="latest") == [2, 0, 0]
    with pytest.raises(OptionError, match=f"{topic_name}-2, which has no record that late"):
        start(startingTimestamp="1002")
    with pytest.raises(DataLossError, match=f"offset 6 of {topic_name}-0, but there are 0 to 5"):
        start(startingOffsets=json.dumps({topic_name: {"0": 6, "1": -2, "2": -1}}))
    assert end() == [5, 1, 0]
    assert end(endingTimestamp="1003") == [3, 1, 0]
    assert end(endingOffsets=json.dumps({topic_name: {"0": 3, "1": -1, "2": 0}})) == [3, 1, 0]


def test_after_an_open_transaction_a_query_waits_and_has_lost_nothing(kafka: Broker, topic_name: str) -> None:
    """Records were read before ``read_committed`` was chosen: the latest offset then lies before the position."""
    from confluent_kafka import Producer

    create_topic(kafka.plain, topic_name)
    settings = {"transactional.id": topic_name, "transaction.timeout.ms": 600_000}
    producer = Producer({"bootstrap.servers": kafka.plain, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic_name, b"x")
    producer.flush(30)
    options = {"kafka.bootstrap.servers": kafka.plain, "subscribe": topic_name}
    source = KafkaSource(options | {"kafka.isolation.level": "read_committed"})
    after = KafkaSplit(split_id=f"{topic_name}-0", topic=topic_name, partition=0, position=3)
    assert source.plan_ranges([after], PlanLimits(), 0) == []
    with pytest.raises(DataLossError, match="0 to 3"):
        source.plan_ranges([msgspec.structs.replace(after, position=4)], PlanLimits(), 1000)
    producer.commit_transaction(30)
    produce(kafka.plain, topic_name, [Message(b"y")])

    clock_ms = itertools.count(2000, 1000)
    become(lambda: [each.split.stop for each in source.plan_ranges([after], PlanLimits(), next(clock_ms))], [5])
    source._disconnect()


def test_open_and_aborted_transactions(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    from confluent_kafka import Producer

    create_topic(kafka.plain, topic_name)
    partition = TopicPartition(topic_name, 0)
    committed = KafkaCluster(client(kafka.plain, {"isolation.level": "read_committed"}))
    producer = Producer({"bootstrap.servers": kafka.plain, "transactional.id": topic_name})
    producer.init_transactions(30)
    producer.begin_transaction()
    for _ in range(3):
        producer.produce(topic_name, b"x")
    producer.flush(30)
    assert cluster.latest([partition]) == committed.ends([partition]) == {partition: 3}
    assert committed.latest([partition]) == {partition: 0}
    producer.abort_transaction(30)
    # The marker of the end has an offset, too.
    become(lambda: committed.latest([partition]), {partition: 4})
    assert cluster.latest([partition]) == {partition: 4}
    producer.begin_transaction()
    producer.produce(topic_name, b"x")
    producer.flush(30)
    assert committed.latest([partition]) == {partition: 4}
    producer.commit_transaction(30)
    become(lambda: committed.latest([partition]), {partition: 6})
    committed.close()


def test_one_question_for_many_partitions(kafka: Broker, cluster: KafkaCluster, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name, 100)
    partitions = [TopicPartition(topic_name, number) for number in range(100)]
    assert cluster.latest(partitions) == dict.fromkeys(partitions, 0)


def test_login_and_tls(kafka: Broker, certificates: Certificates, topic_name: str) -> None:
    create_topic(kafka.plain, topic_name)
    trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.ca)}
    authority = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": certificates.ca.read_text()}
    for address, given in (
        (kafka.sasl, {"security.protocol": "SASL_PLAINTEXT", **LOGIN}),
        (kafka.tls, {"security.protocol": "SSL", **trust}),
        (kafka.tls, {"security.protocol": "SSL", **authority}),
        (kafka.sasl_tls, {"security.protocol": "SASL_SSL", **LOGIN, **trust}),
    ):
        cluster = KafkaCluster(client(address, given))
        assert set(cluster.topics([topic_name])) == {topic_name}
        cluster.close()


REFUSALS = {
    "wrong password": (
        "sasl",
        {"security.protocol": "SASL_PLAINTEXT", **LOGIN, "sasl.jaas.config": JAAS.format(USER, WRONG)},
        "kafka.sasl.password",
    ),
    "wrong mechanism": (
        "sasl",
        {
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": USER,
            "sasl.password": WRONG,
        },
        "kafka.sasl.mechanism",
    ),
    "wrong authority": (
        "tls",
        {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "OTHER"},
        "kafka.ssl.truststore.location",
    ),
    "no authority": ("tls", {"security.protocol": "SSL"}, "kafka.ssl.truststore.location"),
    "login where none is wanted": (
        "plain",
        {"security.protocol": "SASL_PLAINTEXT", **LOGIN, "sasl.jaas.config": JAAS.format(USER, WRONG)},
        "kafka.security.protocol",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("names", [None, ["x"]], ids=["all", "named"])
def test_refusals_are_reported_at_once(
    kafka: Broker, certificates: Certificates, case: str, names: list[str] | None, capfd: pytest.CaptureFixture[str]
) -> None:
    listener, given, fix = REFUSALS[case]
    # Without an end to the waiting for silent brokers, this would wait for a day.
    settings = given | {"default.api.timeout.ms": "86400000"}
    if "ssl.truststore.location" in settings:
        settings["ssl.truststore.location"] = str(certificates.other_ca)
    before = librdkafka_threads()
    address = getattr(kafka, listener)
    with pytest.raises(SourceError) as raised:
        KafkaCluster(client(address, settings)).topics(names)
    assert not raised.value.retryable
    assert address in str(raised.value) and fix in str(raised.value)
    assert WRONG not in repr(raised.value.facts) + str(raised.value)
    become(lambda: librdkafka_threads() <= before, True)
    assert "rdkafka" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("listener", "protocol"), [("tls", "PLAINTEXT"), ("sasl", "PLAINTEXT"), ("plain", "SSL")], ids=str
)
def test_the_wrong_protocol_is_reported_soon(kafka: Broker, listener: str, protocol: str) -> None:
    address = getattr(kafka, listener)
    made = KafkaCluster(client(address, {"security.protocol": protocol, "default.api.timeout.ms": "86400000"}))
    with pytest.raises(SourceUnavailableError, match=rf"another kafka.security.protocol than '{protocol.lower()}'"):
        made.topics(["x"])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "no-such-host.invalid:9092"])
@pytest.mark.parametrize("names", [None, ["x"]], ids=["all", "named"])
def test_nobody_answers(
    address: str, names: list[str] | None, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = KafkaCluster(client(address, {"default.api.timeout.ms": "300"}))

    class Clock:
        """Stands still until the client has reported why nobody answers, which on a busy machine takes longer."""

        sleep = staticmethod(time.sleep)

        @staticmethod
        def monotonic() -> float:
            return 1000.0 if cluster._trouble.last else 0.0

    monkeypatch.setattr(cluster_module, "time", Clock)
    before = librdkafka_threads()
    with pytest.raises(SourceUnavailableError, match="did not answer within 300 ms") as raised:
        cluster.topics(names)
    assert raised.value.retryable and raised.value.address == address
    assert "Connection refused" in str(raised.value) or "Failed to resolve" in str(raised.value)
    become(lambda: librdkafka_threads() <= before, True)
    assert "rdkafka" not in "".join(capfd.readouterr())


def test_closing_ends_a_question_of_another_thread() -> None:
    cluster = KafkaCluster(client("127.0.0.1:1", {"default.api.timeout.ms": "86400000"}))
    reported: list[Exception] = []

    def ask() -> None:
        try:
            cluster.topics(["x"])
        except SourceUnavailableError as error:
            reported.append(error)

    asking = threading.Thread(target=ask, daemon=True)
    before = librdkafka_threads()
    asking.start()
    become(lambda: bool(librdkafka_threads() - before), True)
    cluster.close()
    asking.join()
    assert "when the client was closed" in str(reported)


def test_names_that_no_topic_can_have(cluster: KafkaCluster) -> None:
    with pytest.raises(SourceError, match=r"describe the topics \(no topic\)"):
        cluster.topics(["no topic"])


def test_missing_rights() -> None:
    from confluent_kafka import KafkaError

    config = client("somewhere:9092")
    for code, right in (
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "READ (and DESCRIBE) on the topic"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "READ on the group"),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "WRITE on the transactional id"),
    ):
        error = as_source_error(config, KafkaError(code), "read orders-0")
        assert type(error) is SourceError and error.__cause__ is not None
        assert "does not allow this user to read orders-0" in str(error) and right in str(error)


def test_what_librdkafka_refuses(kafka: Broker) -> None:
    for given, option in (
        ({"security.protocol": "fast"}, "kafka.security.protocol"),
        ({"socket.timeout.ms": "soon"}, "kafka.socket.timeout.ms"),
        ({"security.protocol": "SSL", "ssl.ca.location": "/there/is/none"}, "kafka.*"),
    ):
        with pytest.raises(OptionError) as raised:
            KafkaCluster(client(kafka.plain, given)).topics(None)
        assert raised.value.option == option


def test_no_thread_is_left(kafka: Broker) -> None:
    before = librdkafka_threads()
    cluster = KafkaCluster(client(kafka.plain))
    cluster.topics(None)
    assert librdkafka_threads() - before
    cluster.close()
    become(lambda: librdkafka_threads() <= before, True)
    cluster.topics(None)  # connects again
    cluster.close()


def test_brokers_may_restart_meanwhile(tmp_path: Path, topic_name: str) -> None:
    with running_broker(tmp_path) as broker:
        create_topic(broker.plain, topic_name)
        produce(broker.plain, topic_name, [Message(b"x")])
        partition = TopicPartition(topic_name, 0)
        cluster = KafkaCluster(client(broker.plain, {"default.api.timeout.ms": "150000"}))  # as a start may take
        assert cluster.latest([partition]) == {partition: 1}
        broker.kill()
        again = threading.Thread(target=broker.start, daemon=True)
        again.start()
        assert cluster.latest([partition]) == {partition: 1}
        assert set(cluster.topics(None)) >= {topic_name}
        again.join()
        cluster.close()


def test_a_leader_that_does_not_answer_is_no_answer(tmp_path: Path, topic_name: str) -> None:
    """It was taken for a partition that is empty, so records counted as lost, or none as late enough."""
    with running_broker(tmp_path) as broker:
        create_topic(broker.plain, topic_name)
        produce(broker.plain, topic_name, [Message(b"x")])
        partition = TopicPartition(topic_name, 0)
        hurried, patient = (KafkaCluster(client(broker.plain, {"default.api.timeout.ms": "150000"})) for _ in range(2))
        assert hurried.latest([partition]) == patient.latest([partition]) == {partition: 1}
        broker.freeze()
        # Only now, for on a busy machine the first answer of a broker takes longer.
        hurried._client = dataclasses.replace(hurried._client, timeout_ms=1000)
        for ask in (lambda: hurried.latest([partition]), lambda: hurried.at_timestamps({partition: 0})):
            with pytest.raises(SourceUnavailableError, match="did not answer within 1000 ms"):
                ask()
        with ThreadPoolExecutor(1) as threads:
            answer = threads.submit(patient.latest, [partition])
            time.sleep(0.2)  # the leader is asked by then, most often; the answer is the same if it is not
            broker.kill()
            broker.start()
            assert answer.result() == {partition: 1}
        hurried.close()
        patient.close()


def test_a_client_that_knows_an_old_leader_is_replaced() -> None:
    """It goes on asking that leader until its metadata is a quarter of an hour old, longer than anybody waits."""
    from confluent_kafka import KafkaError, KafkaException
    from confluent_kafka.admin import AdminClient

    cluster = KafkaCluster(client("127.0.0.1:1"))
    cluster._trouble.answered()
    asked: list[AdminClient] = []

    def submit(admin: AdminClient, timeout_s: float) -> dict[str, Future[int]]:
        asked.append(admin)
        assert cluster._trouble.was_answered  # else a connection closed now would be taken for a wrong protocol
        future: Future[int] = Future()
        if admin is asked[0]:
            future.set_exception(KafkaException(KafkaError(KafkaError.FENCED_LEADER_EPOCH)))
        else:
            future.set_result(7)
        return {"x-0": future}

    deadline_s = time.monotonic() + 60
    assert cluster._ask_locked(submit, "ask", deadline_s, absent=set(), doubtful=set()) == {"x-0": 7}
    assert len(asked) == 2
    cluster.close()


def test_closed_connections_are_suspicious_only_to_a_client_that_was_never_answered() -> None:
    fresh, known = Trouble(), Trouble()
    known.answered()
    for second in range(6):
        for trouble in (fresh, known):
            trouble.note("Disconnected: connection closed by peer", is_security=False, now_s=second)
    assert fresh.closed is not None and known.closed is None
    fresh.begin()
    for second in range(10):  # a proxy before a broker that starts
        fresh.note("Disconnected", is_security=False, now_s=second)
        fresh.note("Connection refused", is_security=False, now_s=second)
    assert fresh.closed is None
    for _ in range(9):
        fresh.note("SASL handshake failed: Local: Broker transport failure", is_security=True, now_s=0)
    assert fresh.refused is None


def test_the_list_of_properties_is_that_of_librdkafka() -> None:
    import confluent_kafka

    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    library = ctypes.CDLL(str(next(folder.glob("librdkafka*"))))
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_conf_dump.restype = ctypes.POINTER(ctypes.c_char_p)
    settings, size = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.c_size_t()
    dumped = library.rd_kafka_conf_dump(settings, ctypes.byref(size))
    names = {dumped[i].decode() for i in range(0, size.value, 2)}
    unknown_property = -2
    for name in LIBRDKAFKA_NAMES - {"bootstrap.servers"}:
        set_to = library.rd_kafka_conf_set(settings, name.encode(), b"", None, ctypes.c_size_t(0))
        assert set_to != unknown_property, name
    assert not ANY_CLIENT & CONSUMER_ONLY and not CONSUMER_ONLY & PRODUCER_ONLY and not ANY_CLIENT & PRODUCER_ONLY
    # What is left are callbacks, what is set by Headgate, and what is not for users.
    left = {name for name in names - LIBRDKAFKA_NAMES if not name.endswith("_cb") and "mock" not in name}
    assert left <= {
        "allow.auto.create.topics", "builtin.features", "client.software.name", "delivery.report.only.error",
        "enable.auto.commit", "enable.auto.offset.store", "enable.partition.eof", "enable.sparse.connections",
        "enable_sasl_queue", "enabled_events", "internal.termination.signal", "log.queue",
        "metadata.request.timeout.ms", "auto.commit.interval.ms", "offset.store.method", "max.poll.records",
        "partition.assignment.strategy", "share.acknowledgement.mode",
    }  # fmt: skip
