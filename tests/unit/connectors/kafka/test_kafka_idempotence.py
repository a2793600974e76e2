"""Which settings of the user's keep the producer idempotent: those that do in Java."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headgate.connectors.kafka.sink.options import KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter


@pytest.mark.parametrize(
    ("setting", "is_idempotent"),
    [
        ({}, True),
        ({"kafka.acks": "all"}, True),
        ({"kafka.acks": "-1"}, True),
        ({"kafka.acks": "1"}, False),
        ({"kafka.acks": "0"}, False),
        ({"kafka.retries": "5"}, True),
        ({"kafka.retries": "0"}, False),
        ({"kafka.max.in.flight.requests.per.connection": "5"}, True),
        ({"kafka.max.in.flight.requests.per.connection": "6"}, False),
        ({"kafka.enable.idempotence": "false"}, False),
        ({"kafka.acks": "all", "kafka.retries": "0"}, False),
    ],
)
def test_only_what_excludes_idempotence_turns_it_off(setting: dict[str, str], is_idempotent: bool) -> None:
    options = {"kafka.bootstrap.servers": "127.0.0.1:9", "topic": "rides", **setting}
    writer = KafkaWriter(KafkaSink.of(options, pa.schema([("value", pa.string())])))  # librdkafka accepts it, too
    try:
        assert (str(writer._settings().get("enable.idempotence", False)).lower() == "true") is is_idempotent
    finally:
        writer.close()
