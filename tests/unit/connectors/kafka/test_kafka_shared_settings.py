"""Settings that Java's consumers take, and librdkafka only refuses by rules of its own."""

from __future__ import annotations

import pytest

from headgate.connectors.kafka.bulk import BulkConsumer
from headgate.connectors.kafka.consumer_pool import acquire
from headgate.connectors.kafka.reading_settings import reading_settings
from headgate.connectors.kafka.source import KafkaSource
from headgate.errors import OptionError


@pytest.mark.parametrize(
    "settings",
    [
        {"kafka.session.timeout.ms": "600000"},
        {"kafka.session.timeout.ms": "45000", "kafka.max.poll.interval.ms": "30000"},
        {"kafka.group.protocol": "consumer", "kafka.session.timeout.ms": "45000"},
        {"kafka.max.request.size": "20971520"},
        {"kafka.reconnect.backoff.ms": "5000"},
    ],
)
def test_a_consumer_is_made(settings: dict[str, str]) -> None:
    """A setting that librdkafka refuses is a ValueError of the constructor."""
    source = KafkaSource({"kafka.bootstrap.servers": "127.0.0.1:9", "subscribe": "rides", **settings})
    given = source._client.consumer()
    BulkConsumer({**given, **reading_settings(given, 48 << 20, bounded=True)}).close()


def test_a_value_out_of_range_is_named() -> None:
    """librdkafka writes "Configuration property" here, and ends the line."""
    client = KafkaSource({"kafka.bootstrap.servers": "a:9", "subscribe": "a", "kafka.fetch.min.bytes": "-5"})._client
    with pytest.raises(OptionError, match=r"0\.\.2147483647\. Correct kafka\.fetch\.min\.bytes\.") as raised:
        acquire(client, {}, "auto")
    assert raised.value.option == "kafka.fetch.min.bytes"
