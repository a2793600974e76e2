"""Options of headgate.kafka: Spark's names, defaults and rules; what is read by them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from headgate.connectors.kafka.client_properties import JAVA_NAMES, LIBRDKAFKA_NAMES, REFUSED
from headgate.connectors.kafka.options import OPTION_SPECS, check
from headgate.connectors.kafka.subscription import Subscription, TopicInfo
from headgate.enumerators.partition import TopicPartition
from headgate.errors import OptionError
from headgate.source.options import Options

TP = TopicPartition


def parsed(**raw: str) -> Options:
    """Return checked options, as Spark passes them: names in lower case."""
    options = Options.parse("headgate.kafka", OPTION_SPECS, {name.lower(): value for name, value in raw.items()})
    check(options)
    return options


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("failOnDataLoss", True), ("startingOffsets", None), ("endingOffsets", None), ("includeHeaders", False),
        ("startingOffsetsByTimestampStrategy", "error"), ("kafkaConsumer.pollTimeoutMs", 120_000),
        ("fetchOffset.numRetries", 3), ("fetchOffset.retryIntervalMs", 1000), ("maxTriggerDelay", 15 * 60_000),
        ("maxOffsetsPerTrigger", None), ("minOffsetsPerTrigger", None), ("minPartitions", None),
        ("maxRecordsPerPartition", None), ("groupIdPrefix", "spark-kafka-source"), ("scan.split-assigner", "hash"),
        ("partition.discovery.interval", 1000), ("scan.parallelism", None), ("valueFormat", "binary"),
        ("maxBufferedBytes", 64 << 20),
    ],
)  # fmt: skip
def test_default(name: str, default: object) -> None:
    assert parsed(subscribe="a")[name] == default


@pytest.mark.parametrize(
    ("name", "value", "meant"),
    [
        ("subscribe", " b, a ,,b", ("a", "b")),
        ("assign", '{"a": [1, 0]}', (TP("a", 0), TP("a", 1))),
        ("startingOffsets", "Earliest", "earliest"),
        ("startingOffsets", ' {"a": {"0": 23, "1": -2}}', {TP("a", 0): 23, TP("a", 1): -2}),
        ("startingOffsetsByTimestamp", '{"a": {"0": 23}}', {TP("a", 0): 23}),
        ("startingTimestamp", " 23 ", 23),
        ("maxTriggerDelay", "90", 90),
        ("maxTriggerDelay", "2m", 120_000),
        ("partition.discovery.interval", "0", 0),
        ("partition.discovery.interval", "5 minutes", 300_000),
        ("scan.split-assigner", "Round-Robin", "round-robin"),
    ],
)
def test_value(name: str, value: str, meant: object) -> None:
    raw = {name: value} if name in ("subscribe", "assign") else {"subscribe": "a", name: value}
    assert parsed(**raw)[name] == meant


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("subscribe", " , "), ("subscribePattern", " "), ("subscribePattern", "a("), ("subscribePattern", r"\p{Alpha}"),
        ("subscribePattern", "[a-z&&[^b]]"), ("assign", "a"), ("assign", "{}"), ("assign", '{"a": []}'),
        ("assign", '{"a": [-1]}'), ("assign", '{"a": ["0"]}'), ("assign", '{"a": [true]}'), ("assign", '{"a": 0}'),
        ("startingOffsets", "last"), ("startingOffsets", '{"a": {"0": -3}}'), ("startingOffsets", '{"a": {"x": 0}}'),
        ("startingOffsets", '{"a": [0]}'), ("startingOffsets", "{}"), ("startingOffsets", '{"a": {"0": 1.5}}'),
        ("startingOffsetsByTimestamp", '{"a": {"0": -1}}'), ("startingTimestamp", "now"), ("minPartitions", "0"),
        ("maxRecordsPerPartition", "0"), ("startingOffsetsByTimestampStrategy", "earliest"),
        ("failOnDataLoss", "maybe"), ("valueFormat", "avro"), ("maxTriggerDelay", "soon"),
    ],
)  # fmt: skip
def test_bad_value_names_the_option(name: str, value: str) -> None:
    raw = {name: value} if name in ("subscribe", "assign", "subscribePattern") else {"subscribe": "a", name: value}
    with pytest.raises(OptionError, match=f"'{name}'.* must be "):
        parsed(**raw)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"subscribe": "a", "assign": '{"a": [0]}'},
        {"subscribe": "a", "subscribePattern": "a"},
        {"subscribe": "a", "minOffsetsPerTrigger": "2", "maxOffsetsPerTrigger": "1"},
        {"subscribe": "a", "topic": "a"},
        {"subscribe": "a", "kafka.auto.offset.reset": "earliest"},
        {"subscribe": "a", "kafka.key.deserializer": "x"},
        {"subscribe": "a", "kafka.value.deserializer": "x"},
        {"subscribe": "a", "kafka.enable.auto.commit": "false"},
        {"subscribe": "a", "kafka.interceptor.classes": "x"},
    ],
)
def test_what_spark_refuses(raw: dict[str, str]) -> None:
    with pytest.raises(OptionError) as raised:
        parsed(**raw)
    assert raised.value.option.lower() in {"subscribe"} | {name.lower() for name in raw}


def test_all_options_and_java_properties_are_documented(repository: Path) -> None:
    text = (repository / "docs" / "kafka.md").read_text()
    assert [spec.name for spec in OPTION_SPECS if f"`{spec.name}`" not in text] == []
    others = sorted(JAVA_NAMES - REFUSED.keys())  # those refused are options above
    assert [name for name in others if f"`{name}`" not in text] == []
    assert not JAVA_NAMES & LIBRDKAFKA_NAMES - {"ssl.keystore.location", "ssl.endpoint.identification.algorithm"}


TOPICS = {
    "orders": TopicInfo("id1", (0, 1)),
    "old-orders-2": TopicInfo("id2", (0,)),
    "clicks": TopicInfo("id3", (0,)),
    "__consumer_offsets": TopicInfo("id4", (0,)),
}


@pytest.mark.parametrize(
    ("raw", "topics", "selected", "missing"),
    [
        ({"subscribe": "orders,nothing"}, {"orders", "nothing"}, ["orders-0", "orders-1"], ["nothing"]),
        (
            {"assign": '{"orders": [1, 7], "nothing": [0]}'},
            {"orders", "nothing"},
            ["orders-1"],
            ["nothing", "orders-7"],
        ),
        ({"subscribe": "__consumer_offsets"}, {"__consumer_offsets"}, ["__consumer_offsets-0"], []),
        # A match somewhere in the name is enough, as in Spark 4.
        ({"subscribePattern": "order"}, None, ["old-orders-2-0", "orders-0", "orders-1"], []),
        ({"subscribePattern": "^orders$"}, None, ["orders-0", "orders-1"], []),
        ({"subscribePattern": ".*"}, None, ["clicks-0", "old-orders-2-0", "orders-0", "orders-1"], []),
    ],
)
def test_subscription(raw: dict[str, str], topics: object, selected: list[str], missing: list[str]) -> None:
    subscription = Subscription.of(parsed(**raw))
    assert subscription.topics == topics
    assert [str(each) for each in subscription.select(TOPICS)] == selected
    assert subscription.missing(TOPICS) == missing
    assert subscription.select({}) == []
    assert all(subscription.matches(each) for each in subscription.select(TOPICS))
    assert not subscription.matches(TP("somewhere-else", 0)) or raw == {"subscribePattern": ".*"}
    assert pickle.loads(pickle.dumps(subscription)) == subscription


def test_a_minimum_that_no_micro_batch_may_have_is_an_error() -> None:
    """Each micro-batch would wait for `maxTriggerDelay` otherwise."""
    with pytest.raises(OptionError, match="more than maxRowsPerTrigger, 1"):
        check(parsed(subscribe="a", minOffsetsPerTrigger="2", maxRowsPerTrigger="1"))
