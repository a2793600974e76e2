"""Pairs of settings that librdkafka refuses: they are made to fit, or named before a client is made."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer

from headgate.connectors.kafka.client_config import ClientConfig
from headgate.connectors.kafka.client_limits import fit_consumer
from headgate.connectors.kafka.consumer import client_log
from headgate.connectors.kafka.options import OPTION_SPECS
from headgate.connectors.kafka.reading_settings import reading_settings
from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter
from headgate.connectors.kafka.sink.transactions import TransactionalWriter
from headgate.errors import OptionError
from headgate.source.options import Options

BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9"}
VALUES = pa.schema([("value", pa.string())])


def reading(given: dict[str, str], *, tuned: bool = True) -> dict[str, Any]:
    raw = BROKER | {f"kafka.{name}": value for name, value in given.items()}
    settings = ClientConfig.of(Options.parse("headgate.kafka", OPTION_SPECS, raw)).consumer()
    return fit_consumer(settings | (reading_settings(settings, 64 << 20, bounded=True) if tuned else {}))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"fetch.max.bytes": 4 << 20, "message.max.bytes": 1_000_000}),
        ({"fetch.max.bytes": "999999"}, {"fetch.max.bytes": 999_999, "message.max.bytes": 999_999}),
        ({"fetch.max.bytes": "1000000"}, {"fetch.max.bytes": 1_000_000, "message.max.bytes": 1_000_000}),
        ({"fetch.max.bytes": "0"}, {"fetch.max.bytes": 1000, "message.max.bytes": 1000}),
        ({"fetch.max.bytes": "5000", "message.max.bytes": "9000000"}, {"fetch.max.bytes": 5000}),
        ({"receive.message.max.bytes": "1000"}, {"receive.message.max.bytes": 1512, "fetch.max.bytes": 1000}),
        ({"receive.message.max.bytes": "200000"}, {"fetch.max.bytes": 199_488, "message.max.bytes": 199_488}),
        ({"receive.message.max.bytes": "3000", "fetch.max.bytes": "2488"}, {"fetch.max.bytes": 2488}),
        ({"receive.message.max.bytes": "3000", "fetch.max.bytes": "2489"}, {"fetch.max.bytes": 2488}),
        ({"fetch.max.bytes": "2147483135"}, {"fetch.max.bytes": 2_147_483_135}),
        ({"reconnect.backoff.max.ms": "10"}, {"reconnect.backoff.ms": 10, "reconnect.backoff.max.ms": "10"}),
        ({"reconnect.backoff.ms": "5000"}, {"reconnect.backoff.max.ms": 5000}),
        (
            {"reconnect.backoff.ms": "70", "reconnect.backoff.max.ms": "60"},
            {"reconnect.backoff.ms": "70", "reconnect.backoff.max.ms": 70},
        ),
        ({"session.timeout.ms": "400000", "max.poll.interval.ms": "1"}, {}),
        ({"heartbeat.interval.ms": "90000", "group.protocol.type": "mine", "group.protocol": "consumer"}, {}),
        ({"queued.max.messages.kbytes": "1", "max.partition.fetch.bytes": "1000000000"}, {}),
        ({"transaction.timeout.ms": "1000", "delivery.timeout.ms": "5", "linger.ms": "9", "acks": "1"}, {}),
    ],
)
@pytest.mark.parametrize("tuned", [True, False])
def test_a_consumer_is_made_of_any_pair(given: dict[str, str], expected: dict[str, Any], tuned: bool) -> None:
    settings = reading(given, tuned=tuned)
    if given or tuned:
        assert settings.items() >= expected.items()
    Consumer(settings, logger=client_log).close()


def sink(given: dict[str, str], guarantee: str = "at-least-once") -> KafkaSink:
    raw = BROKER | {"topic": "rides", "guarantee": guarantee}
    return KafkaSink.of(raw | {f"kafka.{name}": value for name, value in given.items()}, VALUES)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"delivery.timeout.ms": "20"}, {"linger.ms": 19}),
        ({"message.timeout.ms": "1"}, {"linger.ms": 0}),
        ({"message.timeout.ms": "0"}, {"linger.ms": 50, "message.timeout.ms": "0"}),
        ({"delivery.timeout.ms": "20", "linger.ms": "19"}, {"linger.ms": "19"}),
        ({"queuing.strategy": "lifo"}, {"queuing.strategy": "lifo"}),
        ({"queue.buffering.backpressure.threshold": "2"}, {}),
        ({"enable.gapless.guarantee": "true"}, {"enable.idempotence": True}),
        ({"reconnect.backoff.max.ms": "10", "request.timeout.ms": "300000"}, {"reconnect.backoff.ms": 10}),
        ({"transaction.timeout.ms": "1000"}, {"delivery.timeout.ms": 120_000}),
    ],
)
def test_a_producer_is_made_of_any_pair(given: dict[str, str], expected: dict[str, Any]) -> None:
    writer = KafkaWriter(sink(given))
    try:
        assert writer._settings().items() >= expected.items()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"transaction.timeout.ms": 900_000, "delivery.timeout.ms": 120_000}),
        ({"transaction.timeout.ms": "1000"}, {"delivery.timeout.ms": 1000}),
        ({"delivery.timeout.ms": "1000000"}, {"delivery.timeout.ms": 900_000}),
        ({"message.timeout.ms": "0"}, {"message.timeout.ms": 900_000}),
        ({"request.timeout.ms": "30000", "transaction.timeout.ms": "10000"}, {"socket.timeout.ms": 10_000}),
        ({"transaction.timeout.ms": "1000", "delivery.timeout.ms": "2000", "linger.ms": "5"}, {"linger.ms": "5"}),
    ],
)
def test_nothing_is_longer_than_a_transaction(
    given: dict[str, str], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransactionalWriter, "_repeated", lambda *_: None)  # no broker is there to begin with
    writer = TransactionalWriter(sink(given, "exactly-once"), "name")
    try:
        assert writer._settings().items() >= expected.items()
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("given", "guarantee", "message"),
    [
        ({"acks": "1"}, "exactly-once", "'kafka.acks' is '1', which guarantee exactly-once excludes: it must be all"),
        ({"retries": "0"}, "exactly-once", "'kafka.retries' is '0', .* it must be above 0"),
        ({"max.in.flight": "6"}, "exactly-once", "'kafka.max.in.flight' is '6', .* it must be at most 5"),
        ({"queuing.strategy": "lifo"}, "exactly-once", "it must be fifo"),
        ({"enable.idempotence": "0"}, "exactly-once", "'kafka.enable.idempotence' cannot be false"),
        ({"acks": "0", "enable.idempotence": "true"}, "at-least-once", "which kafka.enable.idempotence true excludes"),
        ({"acks": "0", "enable.gapless.guarantee": "true"}, "at-least-once", "that kafka.acks excludes"),
        (
            {"enable.idempotence": "false", "enable.gapless.guarantee": "true"},
            "at-least-once",
            "'kafka.enable.gapless.guarantee' is 'true', .* that kafka.enable.idempotence excludes",
        ),
        (
            {"linger.ms": "120000"},
            "at-least-once",
            "'kafka.linger.ms' is '120000', and kafka.delivery.timeout.ms 120000",
        ),
        (
            {"queue.buffering.max.ms": "30", "delivery.timeout.ms": "30"},
            "at-least-once",
            "'kafka.queue.buffering.max.ms'",
        ),
    ],
)
def test_what_has_no_meaning_together_is_named(given: dict[str, str], guarantee: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        sink(given, guarantee)
