"""The Kafka sink of continuous queries: how rows are sent, staged and published.

Never: look at the guarantee; `headgate.sink.broker_sink` has both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from headgate.connectors.kafka.client_config import require_client_library
from headgate.connectors.kafka.sink.options import NAME, KafkaSink
from headgate.connectors.kafka.sink.producer import KafkaWriter, check_rows
from headgate.connectors.kafka.sink.publisher import StagedPublisher
from headgate.connectors.kafka.sink.staging import STAGED_SCHEMA, staged
from headgate.protocol.operator_context import OperatorContext
from headgate.sink.broker_sink import BrokerSink, RowStager

_LINGER_MS = 1
"""How long a row may wait for others to share its request: with 0 nearly each has one of its own."""


def make_kafka_sink(options: Mapping[str, str], schema: pa.Schema) -> ContinuousKafkaSink:
    """Return the sink for the formats ``kafka`` and ``headgate.kafka``. On the driver.

    Parameters
    ----------
    options
        Those of ``writeStream``: as for `headgate.kafka` in Structured Streaming.
    schema
        The columns that are written.

    Raises
    ------
    OptionError
        An option is unknown or has a bad value; a column is missing or has the wrong type.
    DeploymentError
        confluent-kafka is not installed.
    """
    require_client_library()
    return ContinuousKafkaSink(KafkaSink.of(options, schema))


class ContinuousKafkaSink(BrokerSink):
    """Writes rows to Kafka. Made by `make_kafka_sink`."""

    name = NAME

    def __init__(self, sink: KafkaSink) -> None:
        super().__init__(exactly_once=sink.exactly_once)
        self._sink = sink

    def row_sender(self) -> KafkaWriter:
        """Return a producer. Raises `OptionError` if librdkafka refuses a setting."""
        return KafkaWriter(self._sink, linger_ms=_LINGER_MS)

    def row_stager(self) -> RowStager:
        """Return what stages all that a record is made of."""
        return _Stager(self._sink)

    def publisher(self, context: OperatorContext, items: Sequence[bytes]) -> StagedPublisher:
        """Return what publishes by transactions."""
        return StagedPublisher(self._sink, context, items)


class _Stager(RowStager):
    schema = STAGED_SCHEMA

    def __init__(self, sink: KafkaSink) -> None:
        self._sink = sink

    def staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        check_rows(self._sink, batch)
        return staged(self._sink, batch)
